"""Define the options of an eager session."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError
from gdlab.devices.base import Device

Checks = Literal["raise", "strict", "off"]
SCALARS = (np.float32, np.float64, np.longdouble)


@dataclass(frozen=True)
class Options:
    """The options that say where and how a session computes.

    `device`: `"auto"`, `"cpu"`, `"wgpu"`, `"wgpu:1"` or a Device (`use_gpu` chooses between cpu and wgpu); `scalar`:
    what cpu computes in, float32 with the bits of plans, float64 and long double with the NumPy meaning of ops;
    `requires_grad_by_default`: of `param`; `track_gradients`: whether new leaves are differentiable; `seed` of random
    ops; `checks`: `"raise"` refuses indices that are out of range where the host knows them, `"strict"` also results
    that are not finite, `"off"` nothing; `flush_at`: dispatches that make a submission.
    """

    device: str | Device = "auto"
    scalar: Any = np.float32
    requires_grad_by_default: bool = True
    track_gradients: bool = True
    seed: int = 0
    checks: Checks = "raise"
    flush_at: int = 64

    def __post_init__(self) -> None:
        where = "EagerSession"
        if self.checks not in get_args(Checks):
            raise ArgumentError(where, "checks", repr(self.checks), " or ".join(map(repr, get_args(Checks))))
        if not isinstance(self.seed, (int, np.integer)) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**64:
            raise ArgumentError(where, "seed", repr(self.seed), "an int in 0 … 2^64 − 1")
        if not isinstance(self.flush_at, int) or self.flush_at < 1:
            raise ArgumentError(where, "flush_at", repr(self.flush_at), "an int ≥ 1")
        try:
            scalar = np.dtype(self.scalar)
        except TypeError:
            scalar = np.dtype(object)
        if scalar not in [np.dtype(s) for s in SCALARS]:
            raise DTypeError(where, "scalar", getattr(self.scalar, "__name__", self.scalar), "float32 or a wider float")
        object.__setattr__(self, "scalar", scalar)
        wide = scalar != np.float32
        if wide and self.device == "auto":
            object.__setattr__(self, "device", "cpu")
        kind = self.device.info.kind if isinstance(self.device, Device) else str(self.device).partition(":")[0]
        if wide and kind != "cpu":
            raise DTypeError(where, "scalar", scalar, f"float32 on {kind}")


def options_of(given: Options | None, keywords: dict[str, Any]) -> Options:
    """Return the options of a call."""
    known = [f.name for f in fields(Options)]
    if given is not None and not isinstance(given, Options):
        raise ArgumentError("EagerSession", "options", type(given).__name__, "Options or keywords")
    use_gpu = keywords.pop("use_gpu", None)
    for name in keywords:
        if name not in known:
            raise TypeError(f"EagerSession: option: given {name!r}, wanted one of {', '.join([*known, 'use_gpu'])}")
    if use_gpu is not None:
        device = "wgpu" if use_gpu else "cpu"
        if str(keywords.get("device", device)).partition(":")[0] != device:
            raise ArgumentError(
                "EagerSession", "use_gpu", f"{use_gpu} and device={keywords['device']!r}", "one of them"
            )
        keywords.setdefault("device", device)
    return replace(given or Options(), **keywords)
