"""NumPy forms of kernels along the last axis."""

from __future__ import annotations

import numpy as np

from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom

_F64 = np.dtype(np.float64)


def _exclusive_cumsum(bench: Bench, c: Custom) -> None:
    width = c["WIDTH"]
    shape = c.units, width
    x, out, sums = bench.operand(0, shape), bench.out(shape), bench.temporary((c.units, width - 1), _F64)
    if c["REVERSE"]:
        x, out = x[:, ::-1], out[:, ::-1]
    bench.steps.append((np.copyto, (out[:, :1], np.float32(0))))
    if width > 1:  # float64: a running sum in float32 loses a digit per thousand elements
        bench.steps += [(np.add.accumulate, (x[:, :-1], 1, _F64, sums)), (np.copyto, (out[:, 1:], sums))]


FORMS = {"exclusive_cumsum": _exclusive_cumsum}
