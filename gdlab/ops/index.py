"""Ops that take or put rows by number: `gather`, `embedding`, `scatter_add`, `argmax`, `prefix_last`.

An index that comes from an input is checked when it is uploaded (`gdlab.plan.indices`); a computed one that is out of
range reads zeros and receives no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, Shape, TensorType, u32
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Grads,
    IndexOperand,
    Refused,
    Sample,
    Shader,
    Verdict,
    Work,
    along,
    axes_of,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants, NumpyForm
from gdlab.ops.movement import axis_of, reshape

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]


def indices(wanted: str, idx: Value, *numbers: Value) -> None:
    """Refuse anything but u32[s] and f32 operands."""
    if idx.type.dtype is not u32 or any(v.type.dtype is u32 for v in numbers):
        raise Refused(wanted, error=DTypeError)
    want(idx.type.rank == 1, wanted)


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return (elements before, along, behind) an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


# take -----------------------------------------------------------------------------------------------------------------
def _take(x: Array, idx: Array, axis: int) -> Array:
    """Take elements along an axis; zeros where the index is out of range."""
    taken = np.take(x, np.minimum(idx, x.shape[axis] - 1), axis)
    inside = (idx < x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return np.where(inside, taken, 0.0)


def _taking(x: int, axis: Callable[[Attributes], int]) -> Callable[[Types, TensorType, Attributes], Work]:
    """Return the work of a kernel that takes along an axis of operand `x`, one result each."""

    def work(types: Types, result: TensorType, attrs: Attributes) -> Work:
        _, extent, inner = _around(types[x].shape, axis(attrs))
        count = types[1 - x].num_elements
        return Work(result.num_elements, constants={"EXTENT": extent, "COUNT": count, "INNER": inner})

    return work


def _take_rows(x: Array, idx: Array, out: Array) -> None:
    """Compute out[o, s] = x[o, idx[s]], zeros where the index is out of range."""
    extent = x.shape[1]
    np.take(x, idx, 1, out, "clip")
    if idx.max() >= extent:
        out[:, idx >= extent] = 0


def _take_form(x: int) -> NumpyForm:
    """Return the NumPy form of a kernel that takes along an axis of operand `x`."""

    def form(builder: KernelBuilder, c: KernelConstants) -> None:
        extent, count, inner = c["EXTENT"], c["COUNT"], c["INNER"]
        outer = builder.size // (count * inner)
        source, idx = builder.operand(x, (outer, extent, inner)), builder.operand(1 - x, (count,))
        builder.calls.append((_take_rows, (source, idx, builder.out((outer, count, inner)))))

    return form


def _gathered(call: Call) -> Verdict:
    axis = call.attrs["axis"]
    labels = axes_of(call.types[0], axis)
    return along(call, [labels, ["s"]], [*labels[:axis], "s", *labels[axis + 1 :]])


def _front_axis(x: Value, idx: Value, axis: int) -> dict[str, Any]:
    return {"axis": axis_of(axis, x.type.rank)}


@op(
    numpy=_take,
    kernel=Shader("gather_axis.wgsl", _taking(0, lambda attrs: attrs["axis"]), linear=True, numpy_form=_take_form(0)),
    samples=(Sample((5, 3), (4,), attrs={"axis": 0}, integers={1: 5}),
             Sample((2, 7, 3), (70,), attrs={"axis": 1}, integers={1: 7}),
             Sample((3, 6), (1,), attrs={"axis": -1}, integers={1: 6}),
             Sample((9,), (4,), attrs={"axis": 0}, integers={1: 9}),
             Sample((2, 3), (5,), attrs={"axis": 1}, integers={1: 3}, values=(None, [0, 2, 3, 2, 4_000_000_000]),
                    grads=([[1, 0, 2], [1, 0, 2]], None))),
    bad=(Bad(("f32[3, 5]", "u32[2]"), "gather: axis: given 2, wanted an axis in -2 … 1", {"axis": 2}),
         Bad(("f32[3, 5]", "f32[2]"), "given f32[3, 5] and f32[2], wanted x[…] f32 and idx[s] u32", {"axis": 0}),
         Bad(("u32[3, 5]", "u32[2]"), "wanted x[…] f32 and idx[s] u32", {"axis": 0}),
         Bad(("f32[3, 5]", "u32[2, 1]"), "wanted x[…] f32 and idx[s] u32", {"axis": 0})),
    family="index",
    any_dtype=True,
    canonical=_front_axis,
    reads_halves=True,
    indices=IndexOperand(1, lambda types, attrs: types[0].shape[attrs["axis"]]),
    follows=_gathered,
)  # fmt: skip
def gather(x: Value, idx: Value, axis: int) -> TensorType:
    """Element idx[i] of x along an axis, as element i: f32[..., n, ...], u32[s] -> f32[..., s, ...].

    An index ≥ n gives 0 and receives no gradient; a repeated one adds up its gradients.
    """
    indices("x[…] f32 and idx[s] u32", idx, x)
    return TensorType((*x.shape[:axis], idx.shape[0], *x.shape[axis + 1 :]))


@gather.vjp
def _(g: Value, out: Value, x: Value, idx: Value, axis: int) -> Grads:
    """∂x[n] = Σ g[i] over idx[i] = n"""
    return lambda: _put_back(g, idx, x.shape, axis), None


def _put_back(g: Value, idx: Value, shape: Shape, axis: int) -> Value:
    """Add up g at the places that were taken: rows of a matrix whose first axis is the one taken along."""
    outer, extent, inner = _around(shape, axis)
    rows = reshape(g, (outer, idx.shape[0], inner))
    rows = rows if outer == 1 else rows.permute((1, 0, 2))
    summed = scatter_add(idx, reshape(rows, (idx.shape[0], outer * inner)), extent)
    if outer == 1:
        return reshape(summed, shape)
    return reshape(reshape(summed, (extent, outer, inner)).permute((1, 0, 2)), shape)


@op(
    numpy=lambda idx, table: _take(table, idx, 0),
    kernel=Shader("embedding.wgsl", _taking(1, lambda attrs: 0), linear=True, numpy_form=_take_form(1)),
    samples=(Sample((4,), (7, 3), integers={0: 7}), Sample((70,), (5, 8), integers={0: 5}),
             Sample((1,), (1, 1), integers={0: 1}),
             Sample((4,), (3, 2), integers={0: 3}, values=([2, 0, 2, 3], None),
                    grads=(None, [[1, 1], [0, 0], [2, 2]]))),
    bad=(Bad(("u32[4]", "f32[7]"), "embedding: operands: given u32[4] and f32[7], wanted idx[s] u32 and table[v, h]"),
         Bad(("f32[4]", "f32[7, 3]"), "wanted idx[s] u32 and table[v, h]"),
         Bad(("u32[2, 2]", "f32[7, 3]"), "wanted idx[s] u32 and table[v, h]")),
    family="index",
    any_dtype=True,
    reads_halves=True,
    reads_blocks=1,
    block_axis=-1,
    indices=IndexOperand(0, lambda types, attrs: types[1].shape[0]),
    follows=lambda call: along(call, ["s", (None, "h")], "sh"),
    by_rows=True,
)  # fmt: skip
def embedding(idx: Value, table: Value) -> TensorType:
    """Row idx[i] of the table as row i: u32[s], f32[v, h] -> f32[s, h]; repeated rows add up their gradients.

    The table may lie in blocks of ggml. An index ≥ v gives a row of zeros and receives no gradient.
    """
    wanted = "idx[s] u32 and table[v, h]"
    indices(wanted, idx, table)
    want(table.type.rank == 2, wanted)
    return TensorType((idx.shape[0], table.shape[1]))


@embedding.vjp
def _(g: Value, out: Value, idx: Value, table: Value) -> Grads:
    """∂table[n] = Σ g[i] over idx[i] = n"""
    return None, lambda: scatter_add(idx, g, table.shape[0])


# put ------------------------------------------------------------------------------------------------------------------
def _scatter_add(idx: Array, src: Array, vocab: int) -> Array:
    out = np.zeros((vocab, src.shape[1]), src.dtype)
    inside = idx < vocab
    np.add.at(out, idx[inside], src[inside])
    return out


def _adding(types: Types, result: TensorType, attrs: Attributes) -> Work:
    """Return the work with one result per unit; invocations that share it search the numbers."""
    count, width = types[1].shape
    return Work(result.num_elements, count, {"COUNT": count, "WIDTH": width}, result.num_elements * count)


def _adding_rows(types: Types, result: TensorType, attrs: Attributes) -> Work:
    """Return the work with one row of the result per unit: search the numbers once, then add the matching rows."""
    count, width = types[1].shape
    length = max(count, width)
    return Work(result.shape[0], length, {"COUNT": count, "WIDTH": width}, types[1].num_elements)


NARROW = 16  # columns: below, one call for all rows is faster than one call per row


def _add_rows(idx: Array, src: Array, out: Array) -> None:
    """Compute out[idx[s]] += src[s], in order of s."""
    out[...] = 0
    if src.shape[1] < NARROW:
        inside = idx < len(out)
        np.add.at(out, idx[inside], src[inside])
        return
    for at, row in zip(idx.tolist(), src, strict=True):
        if at < len(out):
            out[at] += row


def _scatter_add_form(builder: KernelBuilder, c: KernelConstants) -> None:
    count, width = c["COUNT"], c["WIDTH"]
    out = builder.out((builder.size // width, width))
    builder.calls.append((_add_rows, (builder.operand(0, (count,)), builder.operand(1, (count, width)), out)))


SUMS_OF_ROWS = Shader(
    "scatter_add.wgsl", _adding, Shader("scatter_add_rows.wgsl", _adding_rows, linear=True, in_bounds=True),
    linear=True, in_bounds=True, numpy_form=_scatter_add_form,
)  # fmt: skip


@op(
    numpy=_scatter_add,
    kernel=SUMS_OF_ROWS,
    samples=(Sample((4,), (4, 3), attrs={"vocab": 7}, integers={0: 7}),
             Sample((300,), (300, 5), attrs={"vocab": 4}, integers={0: 4}),
             Sample((1,), (1, 1), attrs={"vocab": 1}, integers={0: 1}),
             Sample((70,), (70, 2), attrs={"vocab": 300}, integers={0: 300}),
             Sample((4,), (4, 2), attrs={"vocab": 3}, integers={0: 3}, values=([2, 0, 2, 3], None),
                    grads=(None, [[1, 1], [1, 1], [1, 1], [0, 0]]))),
    bad=(Bad(("u32[4]", "f32[3, 2]"),
         "scatter_add: operands: given u32[4] and f32[3, 2], wanted idx[s] u32 and src[s, h]", {"vocab": 5}),
         Bad(("f32[4]", "f32[4, 2]"), "wanted idx[s] u32 and src[s, h]", {"vocab": 5}),
         Bad(("u32[4]", "f32[4]"), "wanted idx[s] u32 and src[s, h]", {"vocab": 5}),
         Bad(("u32[4]", "f32[4, 2]"), "scatter_add: vocab: given 0, wanted an int ≥ 1", {"vocab": 0})),
    family="index",
    any_dtype=True,
    indices=IndexOperand(0, lambda types, attrs: attrs["vocab"]),
    follows=lambda call: along(call, ["s", "sh"], (None, "h"), mixes={"s": 0.0}),
)  # fmt: skip
def scatter_add(idx: Value, src: Value, vocab: int) -> TensorType:
    """Row v is the sum of the rows src[i] with idx[i] = v, in order of i: u32[s], f32[s, h] -> f32[vocab, h].

    Rows that nothing is added to are 0; an index ≥ vocab is left out and receives no gradient.
    """
    wanted = "idx[s] u32 and src[s, h]"
    indices(wanted, idx, src)
    want(src.type.rank == 2 and src.shape[0] == idx.shape[0], wanted)
    want(vocab >= 1, "an int ≥ 1", vocab, "vocab")
    return TensorType((vocab, src.shape[1]))


@scatter_add.vjp
def _(g: Value, out: Value, idx: Value, src: Value, vocab: int) -> Grads:
    """∂src[i] = g[idx[i]]"""
    return None, lambda: embedding(idx, g)


# find -----------------------------------------------------------------------------------------------------------------
def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :]) or (1,)


def _argmax(x: Array, axis: int) -> Array:
    return np.asarray(np.argmax(x, axis), np.uint32).reshape(_without(x.shape, axis))


def _finding(types: Types, result: TensorType, attrs: Attributes) -> Work:
    _, length, inner = _around(types[0].shape, attrs["axis"])
    return Work(result.num_elements, length, {"LENGTH": length, "INNER": inner}, types[0].num_elements)


def _first_largest(x: Array, out: Array) -> None:
    out[...] = x.argmax(1)


def _argmax_form(builder: KernelBuilder, c: KernelConstants) -> None:
    length, inner = c["LENGTH"], c["INNER"]
    outer = builder.size // inner
    builder.calls.append((_first_largest, (builder.operand(0, (outer, length, inner)), builder.out((outer, inner)))))


def _argmax_extent(call: Call) -> Verdict:
    axis, labels = call.attrs["axis"], axes_of(call.types[0])
    result = (*labels[:axis], *labels[axis + 1 :]) or (None,)
    return along(call, [labels], result, mixes={axis: -math.inf}, ordered=[axis])


@op(
    numpy=_argmax,
    kernel=Shader("argmax.wgsl", _finding, in_bounds=True, numpy_form=_argmax_form),
    samples=(Sample((3, 5), attrs={"axis": 1}), Sample((300, 3), attrs={"axis": 0}),
             Sample((2, 3, 4), attrs={"axis": -2}),
             Sample((70,), attrs={"axis": 0}), Sample((2, 3000), attrs={"axis": 1}),
             Sample((3, 4), attrs={"axis": 1}, kink=True,
                    values=([[1, 3, 3, 0], [0, np.nan, 5, np.nan], [-np.inf] * 4],)),
             Sample((2, 2), attrs={"axis": 1}, values=([[-0.0, 0.0], [0.0, -0.0]],), kink=True)),
    bad=(Bad(("f32[3, 5]",), "argmax: axis: given 2, wanted an axis in -2 … 1", {"axis": 2}),
         Bad(("u32[3, 5]",), "wanted f32 operands", {"axis": 0})),
    family="index",
    no_grad="ends",
    canonical=lambda x, axis: {"axis": axis_of(axis, x.type.rank)},
    follows=_argmax_extent,
)  # fmt: skip
def argmax(x: Value, axis: int) -> TensorType:
    """The index of the first of the largest elements along an axis, the axis dropped (of the last one [1] stays):
    f32[..., n, ...] -> u32[...]. The first NaN wins. The gradient path ends."""
    return TensorType(_without(x.shape, axis), u32)


# the last valid row ---------------------------------------------------------------------------------------------------
def _last(valid: Array, rows: int) -> int:
    return min(max(int(valid[0]), 1), rows) - 1


def _one_row(types: Types, result: TensorType, attrs: Attributes) -> Work:
    rows = max(types[0].shape[0], result.shape[0])
    return Work(result.num_elements, constants={"ROWS": rows, "WIDTH": result.shape[1]})


_VALID = tuple(
    Sample((3, 2), (1,), integers={1: 4}, values=(None, [valid]),
           grads=([[float(valid in (0, 1))] * 2, [0, 0], [float(valid > 2)] * 2], None))
    for valid in (0, 1, 3, 9)
)  # fmt: skip


def _last_row(x: Array, valid: Array, out: Array) -> None:
    out[0] = x[_last(valid, len(x))]


def _prefix_last_form(builder: KernelBuilder, c: KernelConstants) -> None:
    x = builder.operand(0, (c["ROWS"], c["WIDTH"]))
    builder.calls.append((_last_row, (x, builder.operand(1, (1,)), builder.out((1, c["WIDTH"])))))


@op(
    numpy=lambda x, valid: x[_last(valid, len(x))][None],
    kernel=Shader("prefix_last.wgsl", _one_row, linear=True, numpy_form=_prefix_last_form),
    samples=(Sample((5, 3), (1,), integers={1: 6}), Sample((1, 70), (1,), integers={1: 2}), *_VALID),
    bad=(Bad(("f32[5]", "u32[1]"),
             "prefix_last: operands: given f32[5] and u32[1], wanted x[r, d] f32 and valid[1] u32"),
         Bad(("f32[5, 3]", "u32[2]"), "wanted x[r, d] f32 and valid[1] u32"),
         Bad(("f32[5, 3]", "f32[1]"), "wanted x[r, d] f32 and valid[1] u32")),
    family="index",
    any_dtype=True,
    follows=lambda call: along(call, [(None, "d"), (None,)], (None, "d")),
)  # fmt: skip
def prefix_last(x: Value, valid: Value) -> TensorType:
    """Row valid − 1, the last of a prefix: f32[r, d], u32[1] -> f32[1, d]; valid is clamped to 1 … r."""
    wanted = "x[r, d] f32 and valid[1] u32"
    indices(wanted, valid, x)
    want(x.type.rank == 2 and valid.shape == (1,), wanted)
    return TensorType((1, x.shape[1]))


@prefix_last.vjp
def _(g: Value, out: Value, x: Value, valid: Value) -> Grads:
    """∂x[i] = where(i = valid − 1, g, 0)"""
    return prefix_last_grad(g, valid, x.shape[0]), None


def _prefix_last_grad(g: Array, valid: Array, rows: int) -> Array:
    out = np.zeros((rows, g.shape[1]), g.dtype)
    out[_last(valid, rows)] = g[0]
    return out


def _put_last_row(g: Array, valid: Array, out: Array) -> None:
    out[...] = 0
    out[_last(valid, len(out))] = g


def _prefix_last_grad_form(builder: KernelBuilder, c: KernelConstants) -> None:
    out = builder.out((c["ROWS"], c["WIDTH"]))
    builder.calls.append((_put_last_row, (builder.operand(0, (c["WIDTH"],)), builder.operand(1, (1,)), out)))


@op(
    numpy=_prefix_last_grad,
    kernel=Shader("prefix_last_grad.wgsl", _one_row, linear=True, numpy_form=_prefix_last_grad_form),
    samples=tuple(Sample((1, 3), (1,), attrs={"rows": 5}, integers={1: 6}, values=(None, [v])) for v in (0, 2, 5, 7)),
    family="index",
    kind="private",
    any_dtype=True,
    follows=lambda call: along(call, [(None, "d"), (None,)], (None, "d")),
)
def prefix_last_grad(g: Value, valid: Value, rows: int) -> TensorType:
    """Zeros with g as row valid − 1: f32[1, d], u32[1] -> f32[rows, d]; valid is clamped to 1 … rows."""
    indices("g[1, d] f32 and valid[1] u32", valid, g)
    return TensorType((rows, g.shape[1]))


@prefix_last_grad.vjp
def _(h: Value, out: Value, g: Value, valid: Value, rows: int) -> Grads:
    """∂g = h[valid − 1]"""
    return prefix_last(h, valid), None
