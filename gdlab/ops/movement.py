"""Ops that only move elements: shapes, axes, slices, padding; and `stop_gradient`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape, TensorType, broadcast_shapes, check_shape, u32
from gdlab.graph import Value
from gdlab.op import (
    Alias,
    Axis,
    Bad,
    Call,
    Extended,
    Grads,
    Movement,
    Refused,
    Sample,
    Verdict,
    along,
    elementwise,
    op,
    want,
)

Moved = tuple[int, tuple[Axis, ...], float]
Attributes = Mapping[str, Any]


def strides(shape: Shape) -> tuple[int, ...]:
    """Return the elements between neighbours along each axis, row-major."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def axis_of(axis: int, rank: int) -> int:
    """Return `axis` counted from the front."""
    if not -rank <= axis < rank:
        raise Refused(f"an axis in {-rank} … {rank - 1}", axis, "axis")
    return axis % rank


# shapes ---------------------------------------------------------------------------------------------------------------
def _whole_shape(x: Value, shape: tuple[int, ...]) -> dict[str, Any]:
    if shape.count(-1) != 1:
        return {"shape": check_shape(shape, "reshape")}
    known, count = -math.prod(shape), x.type.num_elements
    want(known > 0 and count % known == 0, f"a divisor of {count} elements", list(shape), "shape")
    return {"shape": tuple(count // known if n == -1 else n for n in shape)}


@op(
    numpy=lambda x, shape: np.reshape(x, shape),
    kernel=Alias(),
    samples=(Sample((3, 4), attrs={"shape": (2, 6)}), Sample((70,), attrs={"shape": (7, 1, 10)}),
             Sample((2, 3, 4), attrs={"shape": (4, -1)}), Sample((1, 1), attrs={"shape": (1,)})),
    bad=(Bad(("f32[3, 4]",), "reshape: shape: given 12 elements, wanted 10 (f32[2, 5])", {"shape": (2, 5)}),
         Bad(("f32[3, 4]",), "given [5, -1], wanted a divisor of 12 elements", {"shape": (5, -1)}),
         Bad(("f32[3, 4]",), "wanted ints ≥ 1", {"shape": (-1, -1)})),
    any_dtype=True,
    canonical=_whole_shape,
    reads_halves=True,
)  # fmt: skip
def reshape(x: Value, shape: tuple[int, ...]) -> TensorType:
    """The same elements, row-major, in another shape; one extent may be −1: any[...] -> any[shape]. Costs nothing."""
    result = TensorType(shape, x.type.dtype)
    want(result.num_elements == x.type.num_elements, f"{result.num_elements} ({result})",
         f"{x.type.num_elements} elements", "shape")  # fmt: skip
    return result


@reshape.vjp
def _(g: Value, out: Value, x: Value, shape: Shape) -> Grads:
    """∂x = reshape(g)"""
    return (reshape(g, x.shape),)


def _spread(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    grown = result.rank - x.rank
    extents, steps = (1,) * grown + x.shape, (0,) * grown + strides(x.shape)
    return 0, tuple(Axis(0 if n == 1 else step) for n, step in zip(extents, steps, strict=True)), 0.0


@op(
    numpy=lambda x, shape: np.broadcast_to(x, shape),
    kernel=Movement(_spread),
    samples=(Sample((5,), attrs={"shape": (3, 5)}), Sample((3, 1), attrs={"shape": (3, 300)}),
             Sample((2, 1, 3), attrs={"shape": (2, 2, 4, 3)}), Sample((1,), attrs={"shape": (1, 7)}),
             Sample((2, 3), attrs={"shape": (2, 3)}), Sample((3, 1), attrs={"shape": (2, 3, 4)}, integers={0: 9})),
    bad=(Bad(("f32[3, 5]",), "broadcast_to: shape: given [5], wanted a shape that f32[3, 5] broadcasts to",
             {"shape": (5,)}),
         Bad(("f32[3]",), "wanted a shape that f32[3] broadcasts to", {"shape": (3, 5)})),
    any_dtype=True,
    follows=elementwise,
)  # fmt: skip
def broadcast_to(x: Value, shape: tuple[int, ...]) -> TensorType:
    """Repeat along axes of extent 1 and new axes on the left, NumPy's rule: any[...] -> any[shape]."""
    fits = len(shape) >= x.type.rank and broadcast_shapes((x.shape, check_shape(shape, "broadcast_to"))) == tuple(shape)
    want(fits, f"a shape that {x.type} broadcasts to", list(shape), "shape")
    return TensorType(shape, x.type.dtype)


@broadcast_to.vjp
def _(g: Value, out: Value, x: Value, shape: Shape) -> Grads:
    """∂x = Σ g"""
    grown = len(shape) - x.type.rank
    inner = tuple(axis for axis in range(grown, len(shape)) if x.shape[axis - grown] != shape[axis])
    if grown + len(inner) == 0:
        return (g,)
    total = g.sum((*range(grown), *inner), keepdims=bool(inner))
    return (total if total.shape == x.shape else reshape(total, x.shape),)


# axes -----------------------------------------------------------------------------------------------------------------
def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _reorder(x: TensorType, perm: Sequence[int]) -> Moved:
    steps = strides(x.shape)
    return 0, tuple(Axis(steps[axis]) for axis in perm), 0.0


def _turned(call: Call) -> Verdict:
    rank = call.result.rank
    return along(call, [range(rank)], call.attrs.get("perm", _swapped(rank)))


@op(
    numpy=lambda x: np.swapaxes(x, -1, -2),
    kernel=Movement(lambda x, result, attrs: _reorder(x, _swapped(x.rank))),
    samples=(Sample((3, 5)), Sample((2, 3, 4)), Sample((1, 70)), Sample((1, 1)), Sample((3, 5), integers={0: 9})),
    bad=(Bad(("f32[3]",), "transpose: operands: given f32[3], wanted rank 2 or more"),),
    any_dtype=True,
    follows=_turned,
)
def transpose(x: Value) -> TensorType:
    """Swap the last two axes: any[..., m, n] -> any[..., n, m]. Also `x.T`."""
    want(x.type.rank >= 2, "rank 2 or more")
    return TensorType(tuple(x.shape[axis] for axis in _swapped(x.type.rank)), x.type.dtype)


@transpose.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = gᵀ"""
    return (transpose(g),)


def _front_perm(x: Value, perm: tuple[int, ...]) -> dict[str, Any]:
    return {"perm": tuple(axis_of(axis, x.type.rank) for axis in perm)}


@op(
    numpy=lambda x, perm: np.transpose(x, perm),
    kernel=Movement(lambda x, result, attrs: _reorder(x, attrs["perm"])),
    samples=(Sample((2, 3, 4), attrs={"perm": (2, 0, 1)}), Sample((3, 5), attrs={"perm": (1, 0)}),
             Sample((2, 3, 4, 5), attrs={"perm": (0, -2, 1, -1)}), Sample((7,), attrs={"perm": (0,)}),
             Sample((2, 3, 4), attrs={"perm": (2, 0, 1)}, integers={0: 9})),
    bad=(Bad(("f32[2, 3]",), "permute: perm: given [0, 0], wanted each of the 2 axes once", {"perm": (0, 0)}),
         Bad(("f32[2, 3]",), "permute: axis: given 2, wanted an axis in -2 … 1", {"perm": (2, 0)})),
    any_dtype=True,
    canonical=_front_perm,
    follows=_turned,
)  # fmt: skip
def permute(x: Value, perm: tuple[int, ...]) -> TensorType:
    """Reorder the axes: result axis i is axis perm[i] of x, any[...] -> any[...]."""
    want(sorted(perm) == list(range(x.type.rank)), f"each of the {x.type.rank} axes once", list(perm), "perm")
    return TensorType(tuple(x.shape[axis] for axis in perm), x.type.dtype)


@permute.vjp
def _(g: Value, out: Value, x: Value, perm: tuple[int, ...]) -> Grads:
    """∂x = permute(g, perm⁻¹)"""
    return (permute(g, tuple(perm.index(axis) for axis in range(len(perm)))),)


# slices and padding ---------------------------------------------------------------------------------------------------
def _bounds(x: Value, starts: Shape, stops: Shape, steps: Shape | None) -> dict[str, Any]:
    steps = (1,) * x.type.rank if steps is None else steps * x.type.rank if len(steps) == 1 else steps
    lengths = [len(starts), len(stops), len(steps)]
    want(lengths == [x.type.rank] * 3, f"one start, stop and step for each of {x.type.rank} axes", lengths, "lengths")
    front = [tuple(i + n if i < 0 else i for i, n in zip(given, x.shape, strict=True)) for given in (starts, stops)]
    return {"starts": front[0], "stops": front[1], "steps": steps}


def _cut(starts: Shape, stops: Shape, steps: Shape) -> tuple[Any, ...]:
    return tuple(map(_builtin_slice, starts, stops, steps))


def _taken(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    across = strides(x.shape)
    offset = sum(n * start for n, start in zip(across, attrs["starts"], strict=True))
    return offset, tuple(Axis(n * step) for n, step in zip(across, attrs["steps"], strict=True)), 0.0


_builtin_slice = slice


def _untouched(call: Call, whole: Sequence[bool]) -> Verdict:
    """Keep a bucket axis where the op takes all of it and puts nothing beside it."""
    labels = [axis if kept else None for axis, kept in enumerate(whole)]
    return along(call, [labels], labels)


def _kept_by_slice(call: Call) -> Verdict:
    cuts = zip(call.attrs["starts"], call.attrs["stops"], call.attrs["steps"], call.types[0].shape, strict=True)
    return _untouched(call, [cut == (0, cut[3], 1, cut[3]) for cut in cuts])


def _kept_by_pad(call: Call) -> Verdict:
    return _untouched(call, [lo == hi == 0 for lo, hi in zip(call.attrs["lo"], call.attrs["hi"], strict=True)])


def _kept_by_unslice(call: Call) -> Verdict:
    return _untouched(call, [n == whole for n, whole in zip(call.types[0].shape, call.result.shape, strict=True)])


@op(
    numpy=lambda x, starts, stops, steps: x[_cut(starts, stops, steps)],
    kernel=Movement(_taken),
    samples=(Sample((4, 6), attrs={"starts": (1, 0), "stops": (3, 5)}),
             Sample((70,), attrs={"starts": (-60,), "stops": (-1,), "steps": (7,)}),
             Sample((2, 3, 4), attrs={"starts": (0, 1, 1), "stops": (2, 3, 4), "steps": (1, 1, 2)}),
             Sample((3,), attrs={"starts": (2,), "stops": (3,)}),
             Sample((4, 6), attrs={"starts": (1, 1), "stops": (3, 6), "steps": (1, 2)}, integers={0: 9})),
    bad=(Bad(("f32[3]",), "slice: axis 0: given 2:2:1, wanted 0 ≤ start < stop ≤ 3 and step ≥ 1",
             {"starts": (2,), "stops": (2,)}),
         Bad(("f32[3]",), "given 0:4:1, wanted 0 ≤ start < stop ≤ 3", {"starts": (0,), "stops": (4,)}),
         Bad(("f32[3]",), "given 0:3:0, wanted", {"starts": (0,), "stops": (3,), "steps": (0,)}),
         Bad(("f32[3, 4]",), "wanted one start, stop and step for each of 2 axes", {"starts": (0,), "stops": (3,)})),
    any_dtype=True,
    canonical=_bounds,
    follows=_kept_by_slice,
)  # fmt: skip
def slice(
    x: Value, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...] | None = None
) -> TensorType:
    """Every step-th element of start … stop − 1 along each axis (one step: of all axes): any[...] -> any[...].
    Also `x[1:3, ::2]`."""
    assert steps is not None  # canonical filled it in
    for axis, (start, stop, step, n) in enumerate(zip(starts, stops, steps, x.shape, strict=True)):
        inside = 0 <= start < stop <= n and step >= 1
        want(inside, f"0 ≤ start < stop ≤ {n} and step ≥ 1", f"{start}:{stop}:{step}", f"axis {axis}")
    return TensorType(tuple(map(_length, starts, stops, steps)), x.type.dtype)


def _length(start: int, stop: int, step: int) -> int:
    return -((start - stop) // step)


@slice.vjp
def _(g: Value, out: Value, x: Value, starts: Shape, stops: Shape, steps: Shape) -> Grads:
    """∂x[starts + i · steps] = g[i]"""
    if max(steps) > 1:
        return (unslice(g, x.shape, starts, steps),)
    return (pad(g, starts, tuple(n - stop for n, stop in zip(x.shape, stops, strict=True))),)


def _widened(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    axes = zip(strides(x.shape), attrs["lo"], x.shape, strict=True)
    return 0, tuple(Axis(step, lo=lo, extent=n) for step, lo, n in axes), float(attrs["value"])


@op(
    numpy=lambda x, lo, hi, value: np.pad(x, tuple(zip(lo, hi, strict=True)), constant_values=x.dtype.type(value)),
    kernel=Movement(_widened),
    samples=(Sample((3, 5), attrs={"lo": (1, 0), "hi": (0, 2)}),
             Sample((70,), attrs={"lo": (3,), "hi": (4,), "value": -1.5}),
             Sample((1, 2, 3), attrs={"lo": (1, 1, 1), "hi": (1, 1, 1)}), Sample((1,), attrs={"lo": (0,), "hi": (0,)}),
             Sample((3,), attrs={"lo": (1,), "hi": (2,), "value": 7}, integers={0: 5})),
    bad=(Bad(("f32[3]",), "pad: amounts: given lo=[-1] and hi=[0], wanted ints ≥ 0, one for each of 1 axes",
             {"lo": (-1,), "hi": (0,)}),
         Bad(("f32[3, 4]",), "wanted ints ≥ 0, one for each of 2 axes", {"lo": (1,), "hi": (1,)}),
         Bad(("u32[3]",), "pad: value: given -1.5, wanted an integer in 0 … 2^24, as x is u32",
             {"lo": (1,), "hi": (1,), "value": -1.5})),
    any_dtype=True,
    follows=_kept_by_pad,
)  # fmt: skip
def pad(x: Value, lo: tuple[int, ...], hi: tuple[int, ...], value: Extended = 0.0) -> TensorType:
    """lo[i] elements `value` before and hi[i] behind along axis i: any[...] -> any[...]."""
    fits = len(lo) == len(hi) == x.type.rank and min(*lo, *hi) >= 0
    want(fits, f"ints ≥ 0, one for each of {x.type.rank} axes", f"lo={list(lo)} and hi={list(hi)}", "amounts")
    whole = x.type.dtype is not u32 or (value.is_integer() and 0 <= value <= 1 << 24)
    want(whole, "an integer in 0 … 2^24, as x is u32", value, "value")
    return TensorType(tuple(a + n + b for a, n, b in zip(lo, x.shape, hi, strict=True)), x.type.dtype)


@pad.vjp
def _(g: Value, out: Value, x: Value, lo: Shape, hi: Shape, value: float) -> Grads:
    """∂x[i] = g[lo + i]"""
    return (slice(g, lo, tuple(a + n for a, n in zip(lo, x.shape, strict=True))),)


def _unsliced(x: Array, shape: Shape, starts: Shape, steps: Shape) -> Array:
    out = np.zeros(shape, x.dtype)
    out[_cut(starts, _ends(x.shape, starts, steps), steps)] = x
    return out


def _ends(taken: Shape, starts: Shape, steps: Shape) -> Shape:
    return tuple(start + (n - 1) * step + 1 for n, start, step in zip(taken, starts, steps, strict=True))


def _scattered(x: TensorType, result: TensorType, attrs: Attributes) -> Moved:
    axes = zip(strides(x.shape), attrs["starts"], attrs["steps"], x.shape, strict=True)
    return 0, tuple(Axis(across, lo, step, n) for across, lo, step, n in axes), 0.0


@op(
    numpy=_unsliced,
    kernel=Movement(_scattered),
    samples=(Sample((2, 3), attrs={"shape": (5, 6), "starts": (1, 0), "steps": (3, 2)}),
             Sample((10,), attrs={"shape": (70,), "starts": (2,), "steps": (7,)}),
             Sample((2, 1, 3), attrs={"shape": (2, 4, 3), "starts": (0, 3, 0), "steps": (1, 1, 1)})),
    bad=(Bad(("f32[3]",), "unslice: shape: given [4], wanted room for x",
             {"shape": (4,), "starts": (0,), "steps": (2,)}),),
    kind="private",
    follows=_kept_by_unslice,
)  # fmt: skip
def unslice(x: Value, shape: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]) -> TensorType:
    """Zeros of `shape` with x at every step-th place from start on, the gradient of a slice: f32[...] -> f32[shape]."""
    whole = len(shape) == len(starts) == len(steps) == x.type.rank
    want(whole, f"one entry for each of {x.type.rank} axes", list(shape), "shape")
    room = all(end <= n for end, n in zip(_ends(x.shape, starts, steps), shape, strict=True))
    want(room and min(starts) >= 0 and min(steps) >= 1, "room for x", list(shape), "shape")
    return TensorType(shape)


@unslice.vjp
def _(g: Value, out: Value, x: Value, shape: Shape, starts: Shape, steps: Shape) -> Grads:
    """∂x[i] = g[starts + i · steps]"""
    return (slice(g, starts, _ends(x.shape, starts, steps), steps),)


# gradients ------------------------------------------------------------------------------------------------------------
@op(
    numpy=lambda x: x,
    kernel=Alias(),
    samples=(Sample((3, 5), kink=True), Sample((70,), kink=True), Sample((1, 1), kink=True)),
    any_dtype=True,
    no_grad="stops",
    opaque=True,
    reads_halves=True,
)
def stop_gradient(x: Value) -> TensorType:
    """x, through which no gradient flows: any[...] -> any[...]. Costs nothing."""
    return x.type
