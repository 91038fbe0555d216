"""NumPy forms of kernels over the rows of the last axis."""

from __future__ import annotations

import numpy as np

from gdlab.device.bench import Bench
from gdlab.device.chain import Array
from gdlab.plan.plan import Custom


def _shifted(bench: Bench, x: Array, out: Array) -> tuple[Array, Array]:
    """x − max in `out`; e to that, and its sum per row."""
    powers, column = bench.temporary(x.shape), bench.temporary((x.shape[0], 1))
    bench.steps += [
        (np.maximum.reduce, (x, 1, None, column, True)),
        (np.subtract, (x, column, out)),
        (np.exp, (out, powers)),
        (np.add.reduce, (powers, 1, None, column, True)),
    ]
    return powers, column


def _softmax(bench: Bench, c: Custom) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out = bench.out(shape)
    powers, total = _shifted(bench, bench.operand(0, shape), out)
    bench.steps.append((np.divide, (powers, total, out)))


def _log_softmax(bench: Bench, c: Custom) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out = bench.out(shape)
    _, total = _shifted(bench, bench.operand(0, shape), out)
    bench.steps += [(np.log, (total, total)), (np.subtract, (out, total, out))]


FORMS = {"softmax": _softmax, "log_softmax": _log_softmax}
