"""Ops along an axis with an index for every element, and products: `take_along_axis`, `add_along_axis`, `prod`."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    fused,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.movement import axis_of, pad, permute, reshape
from gdlab.ops.movement import slice as cut
from gdlab.ops.reduce import BAD_AXES

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return (elements before, along, behind) an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _check(wanted: str, x: Value, idx: Value, axis: int) -> None:
    """Refuse operands whose axes differ besides the given one."""
    if idx.type.dtype is not u32 or x.type.dtype is u32:
        raise Refused(wanted, error=DTypeError)
    rest = [tuple(n for i, n in enumerate(v.shape) if i != axis) for v in (x, idx)]
    want(x.type.rank == idx.type.rank and rest[0] == rest[1], wanted)


def _constants(whole: TensorType, idx: TensorType, axis: int) -> dict[str, int]:
    _, extent, inner = _around(whole.shape, axis)
    return {"EXTENT": extent, "COUNT": idx.shape[axis], "INNER": inner}


# take -----------------------------------------------------------------------------------------------------------------
TAKEN = "x[…, n, …] f32 and idx[…, s, …] u32, equal on the other axes"


def _take(x: Array, idx: Array, axis: int) -> Array:
    taken = np.take_along_axis(x, np.minimum(idx, x.shape[axis] - 1).astype(np.int64), axis)
    return np.where(idx < x.shape[axis], taken, 0.0)


def _taking(types: Types, result: TensorType, attrs: Attributes) -> Work:
    return Work(result.num_elements, constants=_constants(types[0], types[1], attrs["axis"]))


def _take_into(x: Array, idx: Array, out: Array) -> None:
    out[...] = _take(x, idx, 1)


def _take_form(builder: KernelBuilder, c: KernelConstants) -> None:
    extent, count, inner = c["EXTENT"], c["COUNT"], c["INNER"]
    outer = builder.size // (count * inner)
    x, idx = builder.operand(0, (outer, extent, inner)), builder.operand(1, (outer, count, inner))
    builder.calls.append((_take_into, (x, idx, builder.out((outer, count, inner)))))


def _take_extent(call: Call) -> Verdict:
    axis, labels = call.attrs["axis"], axes_of(call.types[0], call.attrs["axis"])
    chosen = (*labels[:axis], "s", *labels[axis + 1 :])
    return along(call, [labels, chosen], chosen)


@op(
    numpy=_take,
    kernel=Shader("take_along_axis.wgsl", _taking, linear=True, numpy_form=_take_form),
    samples=(Sample((5, 3), (4, 3), attrs={"axis": 0}, integers={1: 5}),
             Sample((2, 7, 3), (2, 70, 3), attrs={"axis": 1}, integers={1: 7}),
             Sample((3, 6), (3, 1), attrs={"axis": -1}, integers={1: 6}),
             Sample((9,), (4,), attrs={"axis": 0}, integers={1: 9}),
             Sample((2, 3), (2, 2), attrs={"axis": 1}, integers={1: 3}, values=(None, [[0, 0], [2, 4_000_000_000]]),
                    grads=([[2, 0, 0], [0, 0, 1]], None))),
    bad=(Bad(("f32[3, 5]", "u32[3, 2]"), "take_along_axis: axis: given 2, wanted an axis in -2 … 1", {"axis": 2}),
         Bad(("f32[3, 5]", "u32[2, 5]"), f"wanted {TAKEN}", {"axis": 1}),
         Bad(("f32[3, 5]", "u32[3]"), f"wanted {TAKEN}", {"axis": 1}),
         Bad(("f32[3, 5]", "f32[3, 2]"), f"wanted {TAKEN}", {"axis": 1})),
    family="index",
    any_dtype=True,
    canonical=lambda x, idx, axis: {"axis": axis_of(axis, x.type.rank)},
    indices=IndexOperand(1, lambda types, attrs: types[0].shape[attrs["axis"]]),
    follows=_take_extent,
)  # fmt: skip
def take_along_axis(x: Value, idx: Value, axis: int) -> TensorType:
    """Element idx[…, i, …] of x along an axis: f32[..., n, ...], u32[..., s, ...] -> f32[..., s, ...].

    An index ≥ n gives 0 and receives no gradient; a repeated one adds up its gradients.
    """
    _check(TAKEN, x, idx, axis)
    return TensorType(idx.shape)


@take_along_axis.vjp
def _(g: Value, out: Value, x: Value, idx: Value, axis: int) -> Grads:
    """∂x[j] = Σ g[i] over idx[i] = j"""
    return lambda: add_along_axis(g, idx, axis, x.shape[axis]), None


# add ------------------------------------------------------------------------------------------------------------------
ADDED = "src[…, s, …] f32 and idx[…, s, …] u32 of one shape"


def _add(src: Array, idx: Array, axis: int, extent: int) -> Array:
    moved, at = np.moveaxis(src, axis, 0), np.moveaxis(idx, axis, 0)
    out = np.zeros((extent, *moved.shape[1:]), src.dtype)
    places = np.indices(at.shape)[1:]
    inside = at < extent
    np.add.at(out, (at[inside], *(p[inside] for p in places)), moved[inside])
    return np.moveaxis(out, 0, axis)


def _adding(types: Types, result: TensorType, attrs: Attributes) -> Work:
    constants = _constants(result, types[1], attrs["axis"])
    count = constants["COUNT"]
    return Work(result.num_elements, 0, constants, result.num_elements * count, trips=count)


def _add_into(src: Array, idx: Array, out: Array) -> None:
    out[...] = _add(src, idx, 1, out.shape[1])


def _add_form(builder: KernelBuilder, c: KernelConstants) -> None:
    extent, count, inner = c["EXTENT"], c["COUNT"], c["INNER"]
    outer = builder.size // (extent * inner)
    src, idx = (builder.operand(i, (outer, count, inner)) for i in (0, 1))
    builder.calls.append((_add_into, (src, idx, builder.out((outer, extent, inner)))))


def _put(call: Call) -> Verdict:
    axis, labels = call.attrs["axis"], axes_of(call.types[0])
    return along(call, [labels, labels], (*labels[:axis], None, *labels[axis + 1 :]), mixes={axis: 0.0}, masked={0})


@op(
    numpy=_add,
    kernel=Shader("add_along_axis.wgsl", _adding, linear=True, numpy_form=_add_form),
    samples=(Sample((4, 3), (4, 3), attrs={"axis": 0, "extent": 5}, integers={1: 5}),
             Sample((2, 70, 3), (2, 70, 3), attrs={"axis": 1, "extent": 4}, integers={1: 4}),
             Sample((3, 1), (3, 1), attrs={"axis": -1, "extent": 1}, integers={1: 1}),
             Sample((2, 2), (2, 2), attrs={"axis": 1, "extent": 3}, integers={1: 3},
                    values=(None, [[0, 0], [2, 4_000_000_000]]), grads=([[1, 1], [1, 0]], None))),
    bad=(Bad(("f32[3, 2]", "u32[3, 2]"), "add_along_axis: axis: given 2, wanted an axis in -2 … 1",
             {"axis": 2, "extent": 3}),
         Bad(("f32[3, 2]", "u32[3, 2]"), "add_along_axis: extent: given 0, wanted an int ≥ 1",
             {"axis": 1, "extent": 0}),
         Bad(("f32[3, 2]", "u32[3, 1]"), f"wanted {ADDED}", {"axis": 1, "extent": 3}),
         Bad(("f32[3, 2]", "f32[3, 2]"), f"wanted {ADDED}", {"axis": 1, "extent": 3})),
    family="index",
    any_dtype=True,
    canonical=lambda src, idx, axis, extent: {"axis": axis_of(axis, src.type.rank), "extent": extent},
    indices=IndexOperand(1, lambda types, attrs: attrs["extent"]),
    follows=_put,
)  # fmt: skip
def add_along_axis(src: Value, idx: Value, axis: int, extent: int) -> TensorType:
    """Zeros with `extent` elements along an axis, to which src is added at idx, in order: f32[..., s, ...], u32[..., s,
    ...] -> f32[..., extent, ...]. An index ≥ extent is left out and receives no gradient."""
    _check(ADDED, src, idx, axis)
    want(src.shape == idx.shape, ADDED)
    want(extent >= 1, "an int ≥ 1", extent, "extent")
    return TensorType((*src.shape[:axis], extent, *src.shape[axis + 1 :]))


@add_along_axis.vjp
def _(g: Value, out: Value, src: Value, idx: Value, axis: int, extent: int) -> Grads:
    """∂src[i] = g[idx[i]]"""
    return lambda: take_along_axis(g, idx, axis), None


# products -------------------------------------------------------------------------------------------------------------
def _check_axes(x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> None:
    front = [axis_of(axis, x.type.rank) for axis in axes or ()]
    want(axes is None or (bool(axes) and len(set(front)) == len(front)), "at least one axis, each once",
         list(axes or ()), "axes")  # fmt: skip


@fused(
    label="",
    family="reduction",
    samples=(Sample((3, 5), attrs={"axes": (1,)}), Sample((2, 12), attrs={"axes": (-1,), "keepdims": True}),
             Sample((7, 3), attrs={"axes": (0,)}), Sample((2, 3, 4), attrs={"axes": (0, 2)}), Sample((2, 3)),
             Sample((1,), attrs={"axes": (0,)}),
             Sample((2, 3), attrs={"axes": (1,)}, values=([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0]],),
                    grads=([[6.0, 0.0, 0.0], [0.0, 0.0, 0.0]],))),
    bad=(BAD_AXES[0], *BAD_AXES[2:],
         Bad(("f32[3, 5]",), "axes: given [1, -1], wanted at least one axis, each once", {"axes": (1, -1)})),
    check=_check_axes,
)  # fmt: skip
def prod(x: Value, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Value:
    """Product over axes (None: all, to f32[1]), which are dropped or kept as 1: f32[...] -> f32[...]."""
    rank = x.type.rank
    gone = tuple(sorted(axis_of(axis, rank) for axis in (range(rank) if axes is None else axes)))
    left = tuple(axis for axis in range(rank) if axis not in gone)
    kept = tuple(x.shape[axis] for axis in left)
    n = math.prod(x.shape[axis] for axis in gone)
    rows = x if (*left, *gone) == tuple(range(rank)) else permute(x, (*left, *gone))
    rows = reshape(rows, (*kept, n))
    zeros = (0,) * len(kept)
    while n > 1:
        if n % 2:
            rows, n = pad(rows, (*zeros, 0), (*zeros, 1), 1.0), n + 1
        half = n // 2
        rows = cut(rows, (*zeros, 0), (*kept, half)) * cut(rows, (*zeros, half), (*kept, n))
        n = half
    shape = tuple(1 if axis in gone else extent for axis, extent in enumerate(x.shape)) if keepdims else kept or (1,)
    return reshape(rows, shape)
