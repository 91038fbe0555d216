"""Multiply matrices on all cores in C, where there is a C compiler; elsewhere, and small ones, with NumPy's BLAS.

BLAS of two threads is as fast as the slower of them: beside a busy process a product of 0.4 ms may wait for 30 ms. It
adds in an order that depends on their number, and takes transposed factors slower. `product.c` leaves the pieces of a
thread that gets no core to the others, and adds in one order. It is compiled when the first product that is worth it is
bound, once per machine, and kept beside other caches.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.blas import cores, threads
from gdlab.base.types import Array
from gdlab.devices.native import functions
from gdlab.op.numpy_form import NumpyCall

WORTH = 1 << 18  # multiplications from which on: OpenBLAS takes one thread up to here, and 6 µs
EACH = 1 << 18  # multiplications that a thread is called for
MOST_AXES = 2  # of matrices
FEW_ROWS, FEW_COLUMNS = 8, 24  # fewer leave most of a block in registers empty
OPTIONS = ("-march=native", "-ffp-contract=fast", "-pthread")
X86_OPTIONS = ("-mprefer-vector-width=512",)  # clang would split vectors
_F32 = np.dtype(np.float32)
_NAME = "gdlab_product"


class BoundProduct:
    """The product of two factors into an array, bound to their memory."""

    __slots__ = ("_function", "_table", "_place", "a", "b", "out")

    def __init__(self, function: Callable[[int], int], a: Array, b: Array, out: Array) -> None:
        self._function, self.a, self.b, self.out = function, a, b, out
        kept = _axes(out)
        numbers: list[int] = []
        for x in (a, b, out):
            steps = np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])).strides
            own = [0] * (MOST_AXES - len(kept)) + [steps[axis] for axis in kept] + [*steps[-2:]]
            numbers += (x.__array_interface__["data"][0], *(step // x.itemsize for step in own))
        matrices = [1] * (MOST_AXES - len(kept)) + [out.shape[axis] for axis in kept]
        by = max(1, min(cores(), threads(), out.size * a.shape[-1] // EACH))
        self._table = np.array([*numbers, *matrices, *a.shape[-2:], b.shape[-1], by], np.int64)
        self._place = self._table.__array_interface__["data"][0]

    def __call__(self) -> None:
        if not self._function(self._place):
            np.matmul(self.a, self.b, self.out)


def product(a: Array, b: Array, out: Array) -> NumpyCall:
    """Return the call that multiplies a[.., m, k] by b[.., k, n] into `out`, [.., m, n]: one matrix or as many as the
    axes before tell, over which factors are broadcast."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    if out.size * k > WORTH and m >= FEW_ROWS and n >= FEW_COLUMNS and len(_axes(out)) <= MOST_AXES:
        known = all(x.dtype == _F32 and x.flags.aligned for x in (a, b, out)) and out.strides[-1] == out.itemsize
        if known and (function := compiled()) is not None:
            return BoundProduct(function, a, b, out), ()
    if out.ndim == 2:
        return a.dot, (b, out)  # the product of `matmul`, 0.4 µs sooner
    return np.matmul, (a, b, out)


def _axes(out: Array) -> list[int]:
    """Return the axes along which there are several matrices."""
    return [axis for axis, n in enumerate(out.shape[:-2]) if n > 1]


@cache
def compiled() -> Callable[[Any], int] | None:
    """Return `gdlab_product` of `product.c`; None where there is no compiler, or no folder for its output."""
    text = Path(__file__).with_name("product.c").read_text("ascii")
    x86 = X86_OPTIONS if platform.machine() in ("x86_64", "AMD64") else ()
    found = functions("", {_NAME: text}, *OPTIONS, *x86).get(_NAME)
    if found is not None:
        found.restype, found.argtypes = ctypes.c_int, [ctypes.c_void_p]
    return found
