"""NumPy forms of kernels that take or put rows by number."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom

_NARROW = 16  # columns: below, one call for all rows is faster than one call per row


def _take(x: Array, idx: Array, out: Array) -> None:
    """out[o, s] = x[o, idx[s]], zeros where the index is out of range."""
    extent = x.shape[1]
    np.take(x, idx, 1, out, "clip")
    if idx.max() >= extent:
        out[:, idx >= extent] = 0


def _taken(bench: Bench, c: Custom, x: int, idx: int) -> None:
    extent, count, inner = c["EXTENT"], c["COUNT"], c["INNER"]
    outer = bench.d.output_type.num_elements // (count * inner)
    source = bench.operand(x, (outer, extent, inner))
    bench.steps.append((_take, (source, bench.operand(idx, (count,)), bench.out((outer, count, inner)))))


def _add_rows(idx: Array, src: Array, out: Array) -> None:
    """out[idx[s]] += src[s], in order of s."""
    out[...] = 0
    if src.shape[1] < _NARROW:
        inside = idx < len(out)
        np.add.at(out, idx[inside], src[inside])
        return
    for at, row in zip(idx.tolist(), src, strict=True):
        if at < len(out):
            out[at] += row


def _scatter_add(bench: Bench, c: Custom) -> None:
    count, width = c["COUNT"], c["WIDTH"]
    out = bench.out((bench.d.output_type.num_elements // width, width))
    bench.steps.append((_add_rows, (bench.operand(0, (count,)), bench.operand(1, (count, width)), out)))


def _first_largest(x: Array, out: Array) -> None:
    out[...] = x.argmax(1)


def _argmax(bench: Bench, c: Custom) -> None:
    length, inner = c["LENGTH"], c["INNER"]
    outer = bench.d.output_type.num_elements // inner
    bench.steps.append((_first_largest, (bench.operand(0, (outer, length, inner)), bench.out((outer, inner)))))


def _last_row(x: Array, valid: Array, out: Array) -> None:
    out[0] = x[min(max(int(valid[0]), 1), len(x)) - 1]


def _prefix_last(bench: Bench, c: Custom) -> None:
    x = bench.operand(0, (c["ROWS"], c["WIDTH"]))
    bench.steps.append((_last_row, (x, bench.operand(1, (1,)), bench.out((1, c["WIDTH"])))))


def _put_last_row(g: Array, valid: Array, out: Array) -> None:
    out[...] = 0
    out[min(max(int(valid[0]), 1), len(out)) - 1] = g


def _prefix_last_grad(bench: Bench, c: Custom) -> None:
    out = bench.out((c["ROWS"], c["WIDTH"]))
    bench.steps.append((_put_last_row, (bench.operand(0, (c["WIDTH"],)), bench.operand(1, (1,)), out)))


FORMS = {
    "gather_axis": lambda bench, c: _taken(bench, c, 0, 1),
    "embedding": lambda bench, c: _taken(bench, c, 1, 0),
    "scatter_add": _scatter_add,
    "argmax": _argmax,
    "prefix_last": _prefix_last,
    "prefix_last_grad": _prefix_last_grad,
}
