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
FEW_ROWS, FEW_COLUMNS = 8, 24  # fewer leave most of a block in registers empty
OPTIONS = ("-march=native", "-ffp-contract=fast", "-pthread")
X86_OPTIONS = ("-mprefer-vector-width=512",)  # clang would split vectors
_F32 = np.dtype(np.float32)
_NAME = "gdlab_product"


class Product:
    """The product of two factors into an array, bound to their memory."""

    __slots__ = ("_function", "_table", "_place", "a", "b", "out")

    def __init__(self, function: Callable[[int], int], a: Array, b: Array, out: Array) -> None:
        self._function, self.a, self.b, self.out = function, a, b, out
        addresses = (x.__array_interface__["data"][0] for x in (a, b, out))
        steps = ((a.strides[0], a.strides[1]), (b.strides[0], b.strides[1]), (out.strides[0],))
        numbers = [n for at, some in zip(addresses, steps, strict=True) for n in (at, *(s // 4 for s in some))]
        self._table = np.array([*numbers, *a.shape, b.shape[1], max(1, min(cores(), threads()))], np.int64)
        self._place = self._table.__array_interface__["data"][0]

    def __call__(self) -> None:
        if not self._function(self._place):
            self.a.dot(self.b, self.out)


def product(a: Array, b: Array, out: Array) -> NumpyCall:
    """Return the call that multiplies a[m, k] by b[k, n] into `out`, [m, n] in C order."""
    (m, k), n = a.shape, b.shape[1]
    known = all(x.dtype == _F32 and x.flags.aligned for x in (a, b, out)) and out.strides[1] == 4
    if known and m * k * n > WORTH and m >= FEW_ROWS and n >= FEW_COLUMNS and (function := _function()) is not None:
        return Product(function, a, b, out), ()
    return a.dot, (b, out)  # the product of `matmul`, 0.4 µs sooner


@cache
def _function() -> Callable[[Any], int] | None:
    """Return `gdlab_product` of `product.c`; None where there is no compiler, or no folder for its output."""
    text = Path(__file__).with_name("product.c").read_text("ascii")
    x86 = X86_OPTIONS if platform.machine() in ("x86_64", "AMD64") else ()
    found = functions("", {_NAME: text}, *OPTIONS, *x86).get(_NAME)
    if found is not None:
        found.restype, found.argtypes = ctypes.c_int, [ctypes.c_void_p]
    return found
