"""An equation of a jaxpr that is being translated, and the methods with which translations make results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.types import Shape
from gdlab.load.onnx.tensor import Tensor
from gdlab.load.pt2.aten_layers import LAYERS
from gdlab.load.pt2.aten_layout import LAYOUT
from gdlab.load.pt2.aten_math import MATH
from gdlab.load.pt2.call import Aten, Result

ATEN = {**MATH, **LAYOUT, **LAYERS}
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation that is being translated: the maker of results, its parameters, the types of its results."""

    call: Aten
    params: Params

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.call.meta.shape

    @property
    def dtype(self) -> str:
        """The type of numbers of the first result."""
        return self.call.meta.dtype

    def onnx(self, op: str, *inputs: Tensor | None, **attrs: Any) -> Tensor:
        """Return the result of an operator of ONNX."""
        return self.call.onnx(op, *inputs, **attrs)

    def aten(self, name: str, *operands: Any, **arguments: Any) -> Tensor:
        """Return the result of an operator of ATen."""
        made = ATEN[name](self.call, *operands, **arguments)
        return made if isinstance(made, Tensor) else made[0]

    def ints(self, numbers: Sequence[int]) -> Tensor:
        """Return numbers as a constant."""
        return self.call.ints([int(n) for n in numbers])

    def permuted(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Return x with its axes permuted: axis i of the result is axis order[i] of x."""
        return self.aten("permute", x, tuple(map(int, order)))

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the elements of x in row-major order."""
        return self.call.reshaped(x, tuple(map(int, shape)))

    def cut(self, x: Tensor, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Tensor:
        """Return a slice of x: along each axis from `starts` to `ends` in `steps`."""
        at = [k for k, n in enumerate(x.shape) if (starts[k], ends[k], steps[k]) != (0, n, 1)]
        if not at:
            return x
        parts = [self.ints([numbers[k] for k in at]) for numbers in (starts, ends)]
        return self.call.like(x, self.onnx("Slice", x, *parts, self.ints(at), self.ints([steps[k] for k in at])))


Translation = Callable[..., Result]


def same(e: Equation, *operands: Tensor) -> Sequence[Tensor]:
    """Return the operands as they are."""
    return operands
