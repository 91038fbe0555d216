"""Samples and bad calls: what the tests feed an op, stated in its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape


@dataclass(frozen=True)
class Sample:
    """Operands for the tests: `Sample((3, 5), (5,), attrs={"axis": 0}, low=-2, high=2)`.

    Elements are uniform in low … high, or `values` (one entry per operand, None: random). `kink` marks points where the
    derivative jumps: there a central difference means nothing, and `grads`, when given, holds the gradient of the sum
    of the result by convention (one entry per operand, None: no gradient). `integers={0: 7}`: operand 0 is u32, its
    elements are below 7. Shapes of a leaf are its attributes.
    """

    shapes: tuple[Shape, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    values: tuple[Any, ...] | None = None
    kink: bool = False
    grads: tuple[Any, ...] | None = None
    integers: Mapping[int, int] = field(default_factory=dict)

    def __init__(
        self,
        *shapes: Shape,
        attrs: Mapping[str, Any] | None = None,
        low: float = -2.0,
        high: float = 2.0,
        values: tuple[Any, ...] | None = None,
        kink: bool = False,
        grads: tuple[Any, ...] | None = None,
        integers: Mapping[int, int] | None = None,
    ) -> None:
        for name, value in (
            ("shapes", shapes), ("attrs", dict(attrs or {})), ("low", low), ("high", high), ("values", values),
            ("kink", kink or grads is not None), ("grads", grads), ("integers", dict(integers or {})),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def arrays(self, seed: int = 0) -> list[Array]:
        """Return the operands as float64 arrays that float32 holds exactly; those of indices as uint32."""
        rng = np.random.default_rng(seed)
        out: list[Array] = []
        for i, shape in enumerate(self.shapes):
            given = None if self.values is None else self.values[i]
            if i in self.integers:
                data = rng.integers(self.integers[i], size=shape) if given is None else np.broadcast_to(given, shape)
                out.append(np.asarray(data, np.uint32))
                continue
            data = rng.uniform(self.low, self.high, shape) if given is None else np.broadcast_to(given, shape)
            out.append(np.asarray(data, np.float32).astype(np.float64))
        return out


@dataclass(frozen=True)
class Bad:
    """A call that must be refused: operands as types (`f32[3, 5]` texts), attributes, and a part of the message."""

    types: tuple[str, ...]
    message: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
