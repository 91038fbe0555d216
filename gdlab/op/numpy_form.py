"""Write a kernel that is a file in `shaders/` in NumPy: `form(builder, c)` appends the calls of one dispatch.

A form reads `builder.operand(k, shape)`, writes all of `builder.out(shape)`, has temporaries of
`builder.temporary(shape)`, and appends (function, arguments) to `builder.calls`; the ops that were fused behind the
kernel follow by themselves. What runs it implements these protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gdlab.base.types import Array, Shape

__all__ = ["KernelBuilder", "KernelConstants", "NumpyCall", "NumpyForm"]

NumpyCall = tuple[Callable[..., Any], tuple[Any, ...]]  # called with these arguments, once per run
F32 = np.dtype(np.float32)


class KernelConstants(Protocol):
    """The constants that the plan fixed of a kernel (see `gdlab.op.Work`), and the names of its operands."""

    @property
    def form(self) -> str:
        """The name of the kernel: its first file, without `.wgsl`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the operands, in order."""

    @property
    def units(self) -> int:
        """The number of independent units of work."""

    @property
    def numbers(self) -> tuple[tuple[str, float], ...]:
        """The float constants."""

    @property
    def tables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The arrays of u32."""

    def __getitem__(self, name: str) -> int:
        """Return the integer constant of this name."""


class KernelBuilder(Protocol):
    """The arrays of one dispatch, and the calls that compute it."""

    calls: list[NumpyCall]

    @property
    def scalars(self) -> Mapping[str, Array]:
        """The per-step numbers, as arrays without axes."""

    def result(self, name: str, shape: Shape) -> Array | None:
        """Return the result that a file stores with `store_NAME`, as an array of `shape`; None where it is not wanted.
        """

    @property
    def size(self) -> int:
        """The number of elements of the result."""

    @property
    def result_shape(self) -> Shape:
        """The shape of the result."""

    def operand_shape(self, index: int) -> Shape:
        """Return the shape of an operand."""

    def out(self, shape: Shape) -> Array:
        """Return the result, as an array of this shape."""

    def operand(self, index: int, shape: Shape) -> Array:
        """Return all elements of an operand, as an array of this shape."""

    def temporary(self, shape: Shape, dtype: np.dtype[Any] = F32) -> Array:
        """Return an array that nothing else of this dispatch uses."""

    def row_sums(self, x: Array, out: Array) -> None:
        """Put the sum of every row of x[rows, n] in `out`, one element each."""

    def row_maxima(self, x: Array, out: Array) -> None:
        """Put the greatest element of every row of x[rows, n] in `out`, one element each."""

    def call(self, ufunc: Callable[..., Any], a: Array, b: Array, out: Array) -> None:
        """Put ufunc(a, b) in `out`, where b may be a row or a column."""

    def product(self, a: Array, b: Array, out: Array) -> None:
        """Put the product of a[.., m, k] and b[.., k, n] in `out`, [.., m, n], which shares no memory with them."""

    def evaluate(self, expr: str, operands: Mapping[str, Array], out: Array) -> None:
        """Put the value of an expression over named arrays (written as in `Elementwise`) in `out`."""


NumpyForm = Callable[[KernelBuilder, KernelConstants], None]
