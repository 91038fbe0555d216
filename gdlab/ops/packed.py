"""`packed`: weights side by side in one tensor (the storage of those parameters, if nothing else reads them), and
`columns`: the columns of a product with it that belong to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType, f32
from gdlab.graph import Value
from gdlab.op import (
    REGISTRY,
    Axis,
    Call,
    Grads,
    Movement,
    Sample,
    Values,
    Verdict,
    along,
    op,
    want,
)
from gdlab.ops.join import SIDE_BY_SIDE, concat, joined

Moved = tuple[int, tuple[Axis, ...], float]
Attributes = Mapping[str, Any]


@op(
    numpy=concat.numpy,
    kernel=SIDE_BY_SIDE,
    samples=(Sample((3, 2), (3, 2), attrs={"axis": 1}), Sample((3, 2), (70, 2), attrs={"axis": 0}),
             Sample((2, 3), (2, 1), (2, 5), attrs={"axis": 1})),
    kind="private",
    family="movement",
    packing="storage",
    saved=False,
    follows=joined,
)  # fmt: skip
def packed(values: Values, axis: int) -> TensorType:
    """The `concat` of matrices along axis 0 or 1: f32[k, n], f32[k, m], … -> f32[k, n + m + …]."""
    want(axis in (0, 1), "0 or 1", axis, "axis")
    want(all(v.type.rank == 2 and v.type.dtype is f32 for v in values), "f32 matrices")
    return concat.rule(values, axis)  # type: ignore[no-any-return]


@packed.vjp
def _(g: Value, out: Value, values: Values, axis: int) -> Grads:
    """∂values[i] = slice(g, start(i), start(i + 1))"""
    assert concat.gradient is not None  # stated beside it
    return concat.gradient(g, out, values, axis)


# ranges of columns ----------------------------------------------------------------------------------------------------
def _taken(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    return attrs["start"], (Axis(x.shape[1]), Axis(1)), 0.0


def _rows_stay(call: Call) -> Verdict:
    labels = ("row", "column" if call.types[0] == call.result else None)
    return along(call, [labels], labels)


@op(
    numpy=lambda x, start, stop: x[:, start:stop],
    kernel=Movement(_taken),
    samples=(Sample((3, 7), attrs={"start": 2, "stop": 5}), Sample((2, 70), attrs={"start": 0, "stop": 64}),
             Sample((1, 4), attrs={"start": 3, "stop": 4})),
    kind="private",
    family="movement",
    packing="columns",
    follows=_rows_stay,
)  # fmt: skip
def columns(x: Value, start: int, stop: int) -> TensorType:
    """Columns start … stop − 1: f32[m, n] -> f32[m, stop − start]. Of a product whose every reader is such a range the
    ranges are what it writes, and cost nothing."""
    want(x.type.rank == 2 and x.type.dtype is f32, "an f32 matrix")
    want(0 <= start < stop <= x.shape[1], f"0 ≤ start < stop ≤ {x.shape[1]}", f"{start}:{stop}", "range")
    return TensorType((x.shape[0], stop - start))


@columns.vjp
def _(g: Value, out: Value, x: Value, start: int, stop: int) -> Grads:
    """∂x[i] = where(start ≤ i < stop, g[i − start], 0)"""
    return (among_columns(g, start, x.shape[1]),)


def _put(x: Array, start: int, width: int) -> Array:
    out = np.zeros((x.shape[0], width), x.dtype)
    out[:, start : start + x.shape[1]] = x
    return out


def _placed(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    return 0, (Axis(x.shape[1]), Axis(1, lo=attrs["start"], extent=x.shape[1])), 0.0


@op(
    numpy=_put,
    kernel=Movement(_placed),
    samples=(Sample((3, 2), attrs={"start": 2, "width": 7}), Sample((2, 64), attrs={"start": 0, "width": 70}),
             Sample((1, 1), attrs={"start": 3, "width": 4})),
    kind="private",
    family="movement",
    follows=_rows_stay,
)  # fmt: skip
def among_columns(x: Value, start: int, width: int) -> TensorType:
    """x as columns from `start` on of a matrix that is 0 elsewhere, the gradient of `columns`: f32[m, n] ->
    f32[m, width]."""
    want(x.type.rank == 2 and x.type.dtype is f32, "an f32 matrix")
    want(0 <= start and start + x.shape[1] <= width, f"room for {x.shape[1]} columns", f"{start} of {width}", "start")
    return TensorType((x.shape[0], width))


@among_columns.vjp
def _(g: Value, out: Value, x: Value, start: int, width: int) -> Grads:
    """∂x[i] = g[start + i]"""
    return (columns(g, start, start + x.shape[1]),)


PACKED, COLUMNS = packed.name, columns.name  # for passes that make these nodes


def side_by_side(terms: Sequence[Value]) -> tuple[Value, list[Value]] | None:
    """Add several `among_columns` whose columns do not overlap as one `concat`, and return it with its terms; None for
    others. Columns that none holds are zeros."""
    placed = [(t.graph.node(t.id), t.graph) for t in terms]
    if len(placed) < 2 or any(n.op != among_columns.name for n, _ in placed):
        return None
    found = sorted([(n.attr("start"), g.value(n.inputs[0])) for n, g in placed], key=lambda pair: pair[0])
    width, rows, at = terms[0].shape[1], terms[0].shape[0], 0
    pieces: list[Value] = []
    for start, x in found:
        if start < at:  # they meet
            return None
        pieces += [*_zeros(rows, start - at), x]
        at = start + x.shape[1]
    return concat([*pieces, *_zeros(rows, width - at)], 1), [x for _, x in found]


def _zeros(rows: int, count: int) -> list[Value]:
    return [REGISTRY["full"]((rows, count), 0.0)] if count else []
