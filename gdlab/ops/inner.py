"""Ops along the last axis: running sums, shifts, repeats and division by the row's sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType
from gdlab.graph import Value
from gdlab.op import (
    Axis,
    Bad,
    Call,
    Grads,
    Movement,
    Sample,
    Shader,
    Verdict,
    Work,
    along,
    fused,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.elementwise import bias_add
from gdlab.ops.movement import broadcast_to, reshape, strides

_F64 = np.dtype(np.float64)
NOT_F32 = (Bad(("u32[3, 5]",), "given u32[3, 5], wanted f32 operands"),)


# running sums ---------------------------------------------------------------------------------------------------------
def _before(x: Array, reverse: bool) -> Array:
    """Return the sum of the elements before (behind) each element."""
    facing = x[..., ::-1] if reverse else x
    sums = np.concatenate([np.zeros((*x.shape[:-1], 1)), np.cumsum(facing, -1)[..., :-1]], -1)
    return sums[..., ::-1] if reverse else sums


def _running(types: tuple[TensorType, ...], result: TensorType, attrs: Any) -> Work:
    width = result.shape[-1]
    constants = {"WIDTH": width, "REVERSE": int(attrs["reverse"])}
    return Work(result.num_elements // width, width, constants, 2 * result.num_elements)


def _running_form(builder: KernelBuilder, c: KernelConstants) -> None:
    width = c["WIDTH"]
    shape = c.units, width
    x, out, sums = builder.operand(0, shape), builder.out(shape), builder.temporary((c.units, width - 1), _F64)
    if c["REVERSE"]:
        x, out = x[:, ::-1], out[:, ::-1]
    builder.calls.append((np.copyto, (out[:, :1], np.float32(0))))
    if width > 1:  # float64: a running sum in float32 loses a digit per thousand elements
        builder.calls += [(np.add.accumulate, (x[:, :-1], 1, _F64, sums)), (np.copyto, (out[:, 1:], sums))]


RUNS = tuple(
    Sample(shape, attrs={"reverse": reverse})
    for shape, reverse in (((3, 5), False), ((3, 5), True), ((2, 257), False), ((2, 2, 70), True), ((7,), False),
                           ((1, 50257), True), ((2, 1), False))
)  # fmt: skip


def _summed_up(call: Call) -> Verdict:
    labels = range(-call.result.rank, 0)
    return along(call, [labels], labels, mixes={-1: 0.0})


@op(
    numpy=_before,
    kernel=Shader("exclusive_cumsum.wgsl", _running, linear=True, in_bounds=True, numpy_form=_running_form),
    samples=RUNS,
    bad=NOT_F32,
    family="reduction",
    follows=_summed_up,
)
def exclusive_cumsum(x: Value, reverse: bool = False) -> TensorType:
    """The sum of all that lies before each element of the last axis (`reverse`: behind): f32[..., n] -> f32[..., n]."""
    return x.type


@exclusive_cumsum.vjp
def _(g: Value, out: Value, x: Value, reverse: bool) -> Grads:
    """∂x[j] = Σ g[i] over i > j

    With `reverse` over i < j.
    """
    return (exclusive_cumsum(g, not reverse),)


@fused(label="", samples=RUNS, bad=NOT_F32, family="reduction")
def cumsum(x: Value, reverse: bool = False) -> Value:
    """The sum up to each element of the last axis (`reverse`: from it on): f32[..., n] -> f32[..., n]."""
    return exclusive_cumsum(x, reverse) + x


# shifts and repeats ---------------------------------------------------------------------------------------------------
def _shifted(x: TensorType, result: TensorType, attrs: Any) -> tuple[int, tuple[Axis, ...], float]:
    kept = [Axis(step) for step in strides(x.shape)[:-1]]
    return 0, (*kept, Axis(1, lo=attrs["offset"], extent=x.shape[-1])), 0.0


def _shift(x: Array, offset: int) -> Array:
    out, n = np.zeros_like(x), x.shape[-1]
    if abs(offset) < n:
        out[..., max(offset, 0) : n + min(offset, 0)] = x[..., max(-offset, 0) : n - max(offset, 0)]
    return out


def _within(x: Value, offset: int) -> dict[str, Any]:
    """Clamp a shift to the length of the row: longer ones shift the whole row out."""
    n = x.shape[-1]
    return {"offset": max(-n, min(n, offset))}


def _kept_by_shift(call: Call) -> Verdict:
    """Keep a bucket axis under a shift: one to the front takes zeros from behind the active entries."""
    labels, offset = range(-call.result.rank, 0), call.attrs["offset"]
    return along(call, [labels], labels, mixes={-1: 0.0} if offset < 0 else None, ordered=[-1] if offset else ())


@op(
    numpy=_shift,
    kernel=Movement(_shifted),
    samples=tuple(
        Sample(shape, attrs={"offset": o})
        for shape, o in (((3, 5), 2), ((3, 5), -1), ((2, 2, 70), 0), ((2, 3), 3), ((2, 3), -7), ((7,), 6),
                         ((2, 3), -(2**31)), ((2, 3), 2**40))
    ),
    canonical=_within,
    bad=(Bad(("u32[3, 5]",), "wanted f32 operands", {"offset": 1}),
         Bad(("f32[3]",), "shift_inner: offset: given 0.5, wanted an int", {"offset": 0.5})),
    follows=_kept_by_shift,
)  # fmt: skip
def shift_inner(x: Value, offset: int) -> TensorType:
    """Element n − offset of the last axis as element n, 0 where there is none: f32[..., n] -> f32[..., n]."""
    return x.type


@shift_inner.vjp
def _(g: Value, out: Value, x: Value, offset: int) -> Grads:
    """∂x[i] = g[i + offset]"""
    return (shift_inner(g, -offset),)


def _at_least_one(x: Value, count: int, what: str) -> None:
    want(count >= 1, "an int ≥ 1", count, what)


@fused(
    label="",
    family="movement",
    samples=tuple(
        Sample(shape, attrs={"repeats": r}) for shape, r in (((3, 5), 2), ((2, 2, 3), 4), ((70,), 1), ((1, 1), 3))
    ),
    bad=(Bad(("f32[3, 5]",), "tile_inner: repeats: given 0, wanted an int ≥ 1", {"repeats": 0}),),
    check=lambda x, repeats: _at_least_one(x, repeats, "repeats"),
)
def tile_inner(x: Value, repeats: int) -> Value:
    """Each row repeated: f32[..., n] -> f32[..., repeats · n]."""
    rows, n = x.type.num_elements // x.shape[-1], x.shape[-1]
    tiled = broadcast_to(reshape(x, (rows, 1, n)), (rows, repeats, n))
    return reshape(tiled, (*x.shape[:-1], repeats * n))


def _column(x: Value, n: int) -> None:
    want(x.shape[-1] == 1, "x[…, 1]")
    _at_least_one(x, n, "n")


@fused(
    label="",
    family="movement",
    samples=tuple(Sample(shape, attrs={"n": n}) for shape, n in (((3, 1), 5), ((2, 2, 1), 70), ((1,), 4), ((1, 1), 1))),
    bad=(Bad(("f32[3, 5]",), "broadcast_inner: operands: given f32[3, 5], wanted x[…, 1]", {"n": 5}),
         Bad(("f32[3, 1]",), "broadcast_inner: n: given 0, wanted an int ≥ 1", {"n": 0})),
    check=_column,
)  # fmt: skip
def broadcast_inner(x: Value, n: int) -> Value:
    """A column repeated n times: f32[..., 1] -> f32[..., n]."""
    return broadcast_to(x, (*x.shape[:-1], n))


def _one_row(x: Value, b: Value) -> None:
    want(b.shape == (1, *x.shape[-1:]), "x[…, n] and b[1, n]")


@fused(
    label="",
    family="elementwise",
    samples=(Sample((3, 5), (1, 5)), Sample((2, 2, 70), (1, 70)), Sample((1, 1), (1, 1))),
    bad=(Bad(("f32[3, 5]", "f32[1, 3]"),
             "broadcast_add: operands: given f32[3, 5] and f32[1, 3], wanted x[…, n] and b[1, n]"),
         Bad(("f32[3, 5]", "f32[5]"), "wanted x[…, n] and b[1, n]")),
    check=_one_row,
)  # fmt: skip
def broadcast_add(x: Value, b: Value) -> Value:
    """x plus one row, `bias_add` of a bias that is a matrix of one row: f32[..., n], f32[1, n] -> f32[..., n]."""
    return bias_add(x, reshape(b, b.shape[1:]))


# shares of a row ------------------------------------------------------------------------------------------------------
def _positive(x: Value, floor: float) -> None:
    want(floor > 0, "a number above 0", floor, "floor")


@fused(
    label="",
    family="reduction",
    samples=(Sample((3, 5), attrs={"floor": 0.5}, low=0.1), Sample((2, 300), attrs={"floor": 1e-3}, low=0.1),
             Sample((2, 2, 3), attrs={"floor": 50.0}), Sample((7,), attrs={"floor": 0.25}, low=0.5),
             Sample((2, 2), attrs={"floor": 3.0}, values=([[1.0, 2.0], [0.0, 0.0]],),
                    grads=([[1 / 3] * 2, [1 / 3] * 2],))),
    bad=(Bad(("f32[3, 5]",), "normalize_inner_sum: floor: given 0.0, wanted a number above 0", {"floor": 0.0}),
         Bad(("f32[3, 5]",), "floor: given inf, wanted a finite number", {"floor": float("inf")})),
    check=_positive,
)  # fmt: skip
def normalize_inner_sum(x: Value, floor: float) -> Value:
    """x over the sum of its row, which counts as at least `floor` > 0: f32[..., n] -> f32[..., n]."""
    total = (x.sum_inner() - floor).relu() + floor
    return x / total
