"""Initializers: the values with which `session.initialize(seed)` fills a parameter, the same on every device and
machine.

    w = gd.parameter("w", (784, 128), init=gd.init.kaiming_uniform)
    w = gd.parameter("w", (784, 128), init=gd.init.normal(0.02))
    values = gd.init.xavier_uniform((784, 128), seed=7)

An initializer is the text that the graph keeps, such as `"normal(0.02)"`; called with a shape it gives values. Numbers
come from the Philox counter generator (Salmon et al., 2011); bounds are those of He et al. (2015) and of Glorot and
Bengio (2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.types import check_shape
from gdlab.session.initial import check_init, initial_values

__all__ = [
    "Initializer", "constant", "kaiming_normal", "kaiming_uniform", "normal", "ones", "uniform", "xavier_normal",
    "xavier_uniform", "zeros",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


class Initializer(str):
    """The text of a declaration, such as `normal(0.02)`; called with a shape it gives the values."""

    __slots__ = ()

    def __call__(self, shape: Sequence[int], seed: int = 0, name: str = "") -> np.ndarray[Any, Any]:
        """Return f32[shape], the values that `session.initialize(seed)` gives a parameter called `name`."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise ArgumentError(f"init.{self}", "seed", repr(seed), "an int in 0 … 2^64 − 1")
        return initial_values(name, check_shape(shape, f"init.{self}"), int(seed), str(self))


class _Normal(Initializer):
    """The initializer `normal`: with standard deviation 1; called with a number, `normal(0.02)`, it gives another
    initializer."""

    __slots__ = ()

    def __call__(self, shape: Any, seed: int = 0, name: str = "") -> Any:
        """Return f32[shape] with standard deviation 1; for a number instead of a shape, the initializer with that
        deviation."""
        if isinstance(shape, (int, float, np.number)) and not isinstance(shape, bool):
            if not 0 <= shape < np.inf:
                raise ArgumentError("init.normal", "standard deviation", repr(shape), "a finite number ≥ 0")
            return Initializer(check_init("normal", f"normal({float(shape)!r})"))
        return super().__call__(shape, seed, name)


zeros = Initializer("zeros")
ones = Initializer("ones")
uniform = Initializer("uniform")  # ±1/√fan-in
normal = _Normal("normal")
kaiming_uniform = Initializer("kaiming_uniform")
kaiming_normal = Initializer("kaiming_normal")
xavier_uniform = Initializer("xavier_uniform")
xavier_normal = Initializer("xavier_normal")


def constant(value: float) -> Initializer:
    """Return the initializer that sets every element to `value`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not np.isfinite(value):
        raise ArgumentError("init.constant", "value", f"{value!r:.60}", "a finite number")
    return Initializer(check_init("constant", f"constant({float(value)!r})"))
