"""Initial values of parameters: the declared initializer by name, from Philox, the same on every device and machine."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from gdlab.base import philox
from gdlab.base.errors import ArgumentError
from gdlab.base.formats import narrowed
from gdlab.base.types import Array, f32

DOMAIN = 3  # of the counter: these numbers meet no other stream of the same seed
DEFAULT = "default"
KNOWN = (
    "zeros", "ones", "uniform", "normal(std)", "constant(value)", "kaiming_uniform", "kaiming_normal", "xavier_uniform",
    "xavier_normal",
)  # fmt: skip
_KINDS = (DEFAULT, *(known.partition("(")[0] for known in KNOWN))
_CALL = re.compile(r"(\w+)(?:\(([^)]*)\))?")


def initial_values(name: str, shape: Sequence[int], seed: int, init: str = DEFAULT) -> Array:
    """Return f32[shape], the initial value of parameter `name`, from a random stream of its own.

    `init`: `zeros`, `ones`, `constant(v)`, `uniform` (±1/√fan-in), `normal(std)` (1), `kaiming_uniform` (±√(6/fan-in)),
    `kaiming_normal`, `xavier_uniform` (±√(6/(fan-in + fan-out))), `xavier_normal`. Without a declaration `uniform` for
    rank ≥ 2 and `zeros` for rank 1. Fan-in is the last extent but one times those before it; of a rank-4 kernel
    [out, in, height, width] it is in · height · width. Sources: He and others (2015); Glorot and Bengio (2010).
    """
    kind, number = draw_of(name, shape, init)
    if kind == "fill":
        held = narrowed("initialize", f"init of {name!r}", np.array([number]), f32)
        return np.full(shape, held[0], np.float32)
    count, stream = math.prod(shape), stream_of(name)
    if kind == "normal":
        values = philox.normal(count, seed, domain=DOMAIN, call=stream) * np.float64(number)
    else:
        values = (2 * philox.uniform(count, seed, domain=DOMAIN, call=stream).astype(np.float64) - 1) * number
    return narrowed("initialize", f"init of {name!r}", values.reshape(shape), f32)


def draw_of(name: str, shape: Sequence[int], init: str = DEFAULT) -> tuple[Literal["fill", "uniform", "normal"], float]:
    """Return the distribution of a parameter's initial values: `fill` with a number, `uniform` between ± a number, or
    `normal` with this standard deviation."""
    kind, number = _parsed(check_init(name, init)) or (DEFAULT, math.nan)
    fan_in, fan_out = fans(shape)
    if kind == DEFAULT:
        kind = "uniform" if len(shape) >= 2 else "zeros"
    if kind in ("zeros", "ones", "constant"):
        return "fill", {"zeros": 0.0, "ones": 1.0, "constant": number}[kind]
    bound = {
        "uniform": 1 / math.sqrt(fan_in), "normal": 1.0 if math.isnan(number) else number,
        "kaiming_uniform": math.sqrt(6 / fan_in), "kaiming_normal": math.sqrt(2 / fan_in),
        "xavier_uniform": math.sqrt(6 / (fan_in + fan_out)), "xavier_normal": math.sqrt(2 / (fan_in + fan_out)),
    }[kind]  # fmt: skip
    return "normal" if kind.endswith("normal") else "uniform", bound


def stream_of(name: str) -> int:
    """Return the stream of a parameter's numbers, below 2³²."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:4], "little")


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return (fan-in, fan-out) of a weight [in, out], or of [out, in, height, width]; of a vector its length, twice."""
    if len(shape) < 2:
        return shape[0], shape[0]
    if len(shape) == 4:
        field = shape[2] * shape[3]
        return shape[1] * field, shape[0] * field
    return shape[-2], shape[-1]


def check_init(name: str, init: object) -> str:
    """Return the declaration itself if it is a known one, else raise."""
    if not isinstance(init, str) or _parsed(init) is None:
        raise ArgumentError("initialize", f"init of {name}", repr(init), f"one of {', '.join(KNOWN)}")
    return init


def _parsed(init: str) -> tuple[str, float] | None:
    """Return (kind, its number, NaN without one); None for a text that is no declaration."""
    call = _CALL.fullmatch(init.strip())
    kind, text = call.groups() if call else ("", None)
    least, most = {"normal": (0, 1), "constant": (1, 1)}.get(kind, (0, 0))
    numbers = _floats(text)
    if kind not in _KINDS or numbers is None or not least <= len(numbers) <= most:
        return None
    if kind == "normal" and numbers and numbers[0] < 0:
        return None
    return kind, numbers[0] if numbers else math.nan


def _floats(text: str | None) -> list[float] | None:
    """Return the numbers between the parentheses; None where one is no finite number."""
    try:
        numbers = [float(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
