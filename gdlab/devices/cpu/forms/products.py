"""NumPy form of products of several matrices: one call of BLAS each, on views that copy nothing."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom


def _view(data: Array, shape: Shape, strides: Shape) -> Array:
    """`data` as an array of `shape` whose strides are given in elements."""
    return np.lib.stride_tricks.as_strided(data, shape, [s * data.itemsize for s in strides])


def _batch_matmul(bench: Bench, c: Custom) -> None:
    count, m, n, k = (c[name] for name in ("GROUPS", "M", "N", "K"))
    a, b = (bench.operand(i, (bench.d.operands[i].shape)) for i in (0, 1))
    left = _view(a, (count, m, k), (c["A_G"], c["A_M"], c["A_K"]))
    right = _view(b, (count, k, n), (c["B_G"], c["B_K"], c["B_N"]))
    out = _view(bench.out((count * m * n,)), (count, m, n), (c["C_G"], c["C_M"], 1))
    bench.steps.append((np.matmul, (left, right, out)))


FORMS = {"batch_matmul_registers": _batch_matmul}
