"""NumPy forms of kernels over the rows of the last axis."""

from __future__ import annotations

from functools import partial

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom


def _shifted(bench: Bench, x: Array, out: Array) -> tuple[Array, Array]:
    """x − max in `out`; e to that, and its sum per row."""
    powers, column = bench.temporary(x.shape), bench.temporary((x.shape[0], 1))
    bench.row_maxima(x, column)
    bench.call(np.subtract, x, column, out)
    bench.steps.append((np.exp, (out, powers)))
    bench.row_sums(powers, column)
    return powers, column


def _softmax(bench: Bench, c: Custom) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out = bench.out(shape)
    powers, total = _shifted(bench, bench.operand(0, shape), out)
    bench.call(np.divide, powers, total, out)


def _log_softmax(bench: Bench, c: Custom) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out = bench.out(shape)
    _, total = _shifted(bench, bench.operand(0, shape), out)
    bench.steps.append((np.log, (total, total)))
    bench.call(np.subtract, out, total, out)


# norms ----------------------------------------------------------------------------------------------------------------
def _centred(bench: Bench, x: Array, out: Array) -> None:
    """x − mean in `out`."""
    mean = bench.temporary((x.shape[0], 1))
    bench.row_sums(x, mean)
    bench.steps += [(np.divide, (mean, _width(x), mean)), (np.subtract, (x, mean, out))]


def _width(x: Array) -> np.float32:
    return np.float32(x.shape[1])


def _sizes(bench: Bench, c: Custom, x: Array) -> Array:
    """1 / √(mean x² + eps) per row."""
    size = bench.temporary((x.shape[0], 1))
    eps = np.float32(dict(c.numbers)["EPS"])
    bench.steps += [
        (_dots, (x, x, size)),
        (np.divide, (size, _width(x), size)),
        (np.add, (size, eps, size)),
        (np.sqrt, (size, size)),
        (np.reciprocal, (size, size)),
    ]
    return size


def _dots(a: Array, b: Array, out: Array) -> None:
    """Σ a · b per row."""
    np.matmul(a[:, None, :], b[:, :, None], out=out[:, :, None])


def _norm(bench: Bench, c: Custom, centre: bool) -> None:
    shape = c["ROWS"], c["WIDTH"]
    x, out = bench.operand(0, shape), bench.out(shape)
    if centre:
        _centred(bench, x, out)
        x = out
    size = _sizes(bench, c, x)
    bench.steps += [(np.multiply, (x, size, out)), (np.multiply, (out, bench.operand(1, shape[1:]), out))]
    if centre:
        bench.steps.append((np.add, (out, bench.operand(2, shape[1:]), out)))


def _norm_grad(bench: Bench, c: Custom, centre: bool) -> None:
    """size · (h − mean h − unit · mean(h · unit)); `operand`s are g, x and w."""
    shape = c["ROWS"], c["WIDTH"]
    out, unit, mean = bench.out(shape), bench.temporary(shape), bench.temporary((shape[0], 1))
    x = bench.operand(1, shape)
    if centre:
        _centred(bench, x, unit)
        x = unit
    size = _sizes(bench, c, x)
    g, w = bench.operand(0, shape), bench.operand(2, shape[1:])
    bench.steps += [(np.multiply, (x, size, unit)), (np.multiply, (g, w, out))]
    if centre:
        _centred(bench, out, out)
    bench.steps += [
        (_dots, (out, unit, mean)),
        (np.divide, (mean, _width(unit), mean)),
        (np.multiply, (unit, mean, unit)),
        (np.subtract, (out, unit, out)),
        (np.multiply, (out, size, out)),
    ]


FORMS = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "rms_norm": partial(_norm, centre=False),
    "layer_norm": partial(_norm, centre=True),
    "rms_norm_grad_x": partial(_norm_grad, centre=False),
    "layer_norm_grad_x": partial(_norm_grad, centre=True),
}
