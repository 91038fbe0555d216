"""Ops that put tensors side by side, cut them apart, and copy them: `concat`, `split`, `materialize`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, ShapeError
from gdlab.base.types import Shape, TensorType
from gdlab.graph import Value, whole
from gdlab.op import (
    Bad,
    Call,
    Grads,
    Refused,
    Sample,
    Shader,
    Values,
    Verdict,
    Work,
    along,
    axes_of,
    elementwise,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.movement import axis_of, slice

__all__ = ["concat", "materialize", "split"]

PARTS = 7  # operands of one kernel: 8 storage buffers with the result; more are joined in two levels


def places(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    """Return END{k}, where operand k ends in a run along the axis, and PART{k}, its number of elements there."""
    inner = math.prod(result.shape[attrs["axis"] + 1 :])
    sizes = [t.shape[attrs["axis"]] * inner for t in types] + [0] * (PARTS - len(types))
    ends = np.cumsum(sizes).tolist()
    parts = {f"PART{k}": n for k, n in enumerate(sizes)} | {f"END{k}": n for k, n in enumerate(ends)}
    return Work(result.num_elements, constants={"RUN": ends[-1], **parts})


def _concat_form(builder: KernelBuilder, c: KernelConstants) -> None:
    out = builder.out((builder.size // c["RUN"], c["RUN"]))
    for k in range(len(c.names)):
        size, end = c[f"PART{k}"], c[f"END{k}"]
        builder.calls.append((np.copyto, (out[:, end - size : end], builder.operand(k, (len(out), size)))))


SIDE_BY_SIDE = Shader("concat.wgsl", places, linear=True, in_bounds=True, numpy_form=_concat_form)


def joined(call: Call) -> Verdict:
    """Return the extent rule of ops that put operands side by side."""
    labels = axes_of(call.result, call.attrs["axis"])
    return along(call, [labels] * len(call.types), labels)


def _front_axis(values: Values, axis: int) -> dict[str, Any]:
    return {"axis": axis_of(axis, values[0].type.rank)}


@op(
    numpy=lambda values, axis: np.concatenate(values, axis),
    kernel=SIDE_BY_SIDE,
    samples=(Sample((3, 2), (3, 5), attrs={"axis": 1}), Sample((3, 2), (1, 2), (70, 2), attrs={"axis": 0}),
             Sample((2, 3, 4), (2, 1, 4), attrs={"axis": -2}), Sample((4,), attrs={"axis": 0}),
             Sample(*[(2, n) for n in (1, 2, 3, 1, 5, 1, 2, 4, 1)], attrs={"axis": 1}),
             Sample((3,), (4,), attrs={"axis": 0}, integers={0: 9, 1: 9})),
    bad=(Bad(("f32[3, 2]", "f32[4, 5]"),
             "concat: operands: given f32[3, 2] and f32[4, 5], wanted equal extents but along axis 1", {"axis": 1}),
         Bad(("f32[3, 2]", "f32[3]"), "wanted equal extents but along axis 0", {"axis": 0}),
         Bad(("f32[3]", "u32[3]"), "given f32[3] and u32[3], wanted operands of one dtype", {"axis": 0}),
         Bad(("f32[3]",), "concat: axis: given 1, wanted an axis in -1 … 0", {"axis": 1})),
    family="movement",
    any_dtype=True,
    canonical=_front_axis,
    follows=joined,
)  # fmt: skip
def concat(values: Values, axis: int) -> TensorType:
    """One behind the other along an axis: any[..., a, ...], any[..., b, ...], … -> any[..., a + b + …, ...]."""
    first = values[0].type
    if any(v.type.dtype is not first.dtype for v in values):
        raise Refused("operands of one dtype", error=DTypeError)
    rest = [(*v.shape[:axis], *v.shape[axis + 1 :]) for v in values]
    same = all(v.type.rank == first.rank for v in values) and all(r == rest[0] for r in rest)
    want(same, f"equal extents but along axis {axis}")
    total = sum(v.shape[axis] for v in values)
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


@concat.vjp
def _(g: Value, out: Value, values: Values, axis: int) -> Grads:
    """∂values[i] = slice(g, start(i), start(i + 1))"""
    ends = np.cumsum([v.shape[axis] for v in values]).tolist()
    return tuple(_part(g, end - v.shape[axis], end, axis) for v, end in zip(values, ends, strict=True))


def _part(g: Value, start: int, stop: int, axis: int) -> Callable[[], Value]:
    return lambda: _along(g, start, stop, axis)


def _along(x: Value, start: int, stop: int, axis: int) -> Value:
    """Slice start … stop − 1 along one axis."""
    whole: Shape = (0,) * x.type.rank
    starts, stops = (*whole[:axis], start, *whole[axis + 1 :]), (*x.shape[:axis], stop, *x.shape[axis + 1 :])
    return x if (start, stop) == (0, x.shape[axis]) else slice(x, starts, stops)


@whole
def split(x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
    """The parts of these sizes along an axis, as a tuple: any[..., a + b, ...] -> any[..., a, ...], any[..., b, ...].

    The sizes are ints ≥ 1 that add up to the extent, else `ShapeError`.
    """
    if not isinstance(x, Value):
        raise ArgumentError("split", "operand", f"{type(x).__name__} {x!r:.60}", "a value of a graph")
    rank = x.type.rank
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise ShapeError("split", "axis", repr(axis), f"an axis in {-rank} … {rank - 1}")
    extent = x.shape[axis]
    parts = list(sizes) if isinstance(sizes, (Sequence, np.ndarray)) else []
    if not parts or any(not isinstance(n, (int, np.integer)) or n < 1 for n in parts) or sum(parts) != extent:
        wanted = f"ints ≥ 1 that add up to {extent}, axis {axis} of {x.type}"
        raise ShapeError("split", "sizes", f"{sizes!r:.60}", wanted)
    ends = np.cumsum(parts).tolist()
    return tuple(_along(x, end - n, end, int(axis) % rank) for n, end in zip(map(int, parts), ends, strict=True))


def _materialize_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = (c.units,)
    builder.calls.append((np.copyto, (builder.out(shape), builder.operand(0, shape))))


def _each(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    return Work(result.num_elements)


@op(
    numpy=lambda x: x,
    kernel=Shader("materialize.wgsl", _each, linear=True, in_bounds=True, numpy_form=_materialize_form),
    samples=(Sample((3, 5)), Sample((70,)), Sample((1, 1)),
             Sample((2, 3), values=([[np.nan, -0.0, np.inf], [0, 1, 2]],), kink=True), Sample((5,), integers={0: 9})),
    family="movement",
    any_dtype=True,
    opaque=True,
    own_buffer=True,
    follows=elementwise,
)  # fmt: skip
def materialize(x: Value) -> TensorType:
    """x, copied into a buffer of its own that no rule and no fusion drops: any[...] -> any[...]."""
    return x.type


@materialize.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g"""
    return (g,)
