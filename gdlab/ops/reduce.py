"""Reductions over axes: sum, mean, max, min; over everything, over rows, over the last axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape, TensorType
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Elementwise,
    Grads,
    Reduction,
    Sample,
    op,
    want,
)
from gdlab.ops.movement import axis_of

Axes = tuple[int, ...]
OVER_AXES = (
    Sample((3, 5), attrs={"axes": (1,)}), Sample((3, 300), attrs={"axes": (-1,), "keepdims": True}),
    Sample((300, 3), attrs={"axes": 0}), Sample((2, 3, 4), attrs={"axes": (0, 2)}),
    Sample((2, 3, 4), attrs={"axes": (1, 2), "keepdims": True}), Sample((4, 5)), Sample((1,), attrs={"axes": (0,)}),
)  # fmt: skip
NOT_F32 = (Bad(("u32[3, 5]",), "given u32[3, 5], wanted f32 operands"),)
BAD_AXES = (
    Bad(("f32[3, 5]",), "axis: given 2, wanted an axis in -2 … 1", {"axes": (2,)}),
    Bad(("f32[3, 5]",), "axes: given [1, 1], wanted at least one axis, each once", {"axes": (1, -1)}),
    Bad(("f32[3, 5]",), "axes: given [], wanted at least one axis, each once", {"axes": ()}),
    Bad(("u32[3, 5]",), "wanted f32 operands", {"axes": (0,)}),
)


def _front_axes(x: Value, axes: Axes | None, keepdims: bool) -> dict[str, Any]:
    every = range(x.type.rank) if axes is None else axes
    return {"axes": tuple(sorted(axis_of(axis, x.type.rank) for axis in every)), "keepdims": keepdims}


def _reduced(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """Return the shape of the result; [1] if all axes go."""
    want(bool(axes) and len(set(axes)) == len(axes), "at least one axis, each once", list(axes), "axes")
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return tuple(n for axis, n in enumerate(shape) if axis not in axes) or (1,)


def _over(fold: Callable[..., Any]) -> Callable[..., Array]:
    def numpy(x: Array, axes: Axes, keepdims: bool) -> Array:
        return np.reshape(fold(x, axis=axes, keepdims=keepdims), _reduced(x.shape, axes, keepdims))

    return numpy


def _back(value: Value, x: Value, axes: Axes, keepdims: bool) -> Value:
    """Repeat over x again a value that was reduced over `axes`."""
    gone = () if keepdims else axes
    lined_up = gone == tuple(range(len(gone)))  # leading axes come back by themselves
    spread = value if lined_up else value.reshape(_reduced(x.shape, axes, True))
    return spread if spread.shape == x.shape else spread.broadcast_to(x.shape)


# sum and mean ---------------------------------------------------------------------------------------------------------
@op(numpy=_over(np.sum), kernel=Reduction("sum"), samples=OVER_AXES, bad=BAD_AXES, canonical=_front_axes)
def sum(x: Value, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Shape:
    """Sum over axes (None: all, result f32[1]), which are dropped or kept as 1: f32[...] -> f32[...]."""
    assert axes is not None  # canonical filled it in
    return _reduced(x.shape, axes, keepdims)


@sum.vjp
def _(g: Value, out: Value, x: Value, axes: Axes, keepdims: bool) -> Grads:
    """∂x = broadcast_to(g)"""
    return (_back(g, x, axes, keepdims),)


@op(numpy=_over(np.mean), kernel=Reduction("sum", "acc / n"), samples=OVER_AXES, bad=BAD_AXES, canonical=_front_axes)
def mean(x: Value, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Shape:
    """Mean over axes (None: all, result f32[1]), which are dropped or kept as 1: f32[...] -> f32[...]."""
    assert axes is not None  # canonical filled it in
    return _reduced(x.shape, axes, keepdims)


@mean.vjp
def _(g: Value, out: Value, x: Value, axes: Axes, keepdims: bool) -> Grads:
    """∂x = broadcast_to(g) / count(x)"""
    count = math.prod(x.shape[axis] for axis in axes)
    return (_back(g.scale(1 / count), x, axes, keepdims),)


def _all(x: TensorType, attrs: Mapping[str, Any]) -> Axes:
    return tuple(range(x.rank))


def _rows(x: TensorType, attrs: Mapping[str, Any]) -> Axes:
    return tuple(range(x.rank - 1))


def _last(x: TensorType, attrs: Mapping[str, Any]) -> Axes:
    return (x.rank - 1,)


# lavapipe ends a loop silently at 65535 trips: more elements than that
WHOLE = (Sample((3, 5)), Sample((70_000,)), Sample((2, 3, 4)), Sample((1, 1)))
MATRICES = tuple(Sample(shape) for shape in ((3, 5), (1, 70_000), (70_000, 2), (2, 300), (2, 3, 4), (1, 1)))


@op(numpy=lambda x: np.reshape(np.sum(x), 1), kernel=Reduction("sum", axes=_all), samples=WHOLE, bad=NOT_F32)
def sum_all(x: Value) -> Shape:
    """Sum of all elements: f32[...] -> f32[1]."""
    return (1,)


@sum_all.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = broadcast_to(g)"""
    return (g.broadcast_to(x.shape),)


@op(
    numpy=lambda x: np.reshape(np.mean(x), 1),
    kernel=Reduction("sum", "acc / n", _all),
    samples=WHOLE,
    bad=NOT_F32,
)
def mean_all(x: Value) -> Shape:
    """Mean of all elements: f32[...] -> f32[1]."""
    return (1,)


@mean_all.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = broadcast_to(g) / count(x)"""
    return (g.scale(1 / x.type.num_elements).broadcast_to(x.shape),)


@op(
    numpy=lambda x: np.sum(x, axis=tuple(range(x.ndim - 1))),
    kernel=Reduction("sum", axes=_rows),
    samples=MATRICES,
    bad=(Bad(("f32[3]",), "sum_rows: operands: given f32[3], wanted rank 2 or more"),),
)
def sum_rows(x: Value) -> Shape:
    """Sum over all axes but the last, the gradient of a bias: f32[..., n] -> f32[n]."""
    want(x.type.rank >= 2, "rank 2 or more")
    return x.shape[-1:]


@sum_rows.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = broadcast_to(g)"""
    return (g.broadcast_to(x.shape),)


@op(
    numpy=lambda x: np.sum(x, axis=-1, keepdims=True),
    kernel=Reduction("sum", axes=_last),
    samples=MATRICES,
    bad=NOT_F32,
)
def sum_inner(x: Value) -> Shape:
    """Sum over the last axis, which is kept: f32[..., n] -> f32[..., 1]."""
    return (*x.shape[:-1], 1)


@sum_inner.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = broadcast_to(g)"""
    return (g.broadcast_to(x.shape),)


@op(
    numpy=lambda x: np.mean(x, axis=-1, keepdims=True),
    kernel=Reduction("sum", "acc / n", _last),
    samples=MATRICES,
    bad=NOT_F32,
)
def mean_inner(x: Value) -> Shape:
    """Mean over the last axis, which is kept: f32[..., n] -> f32[..., 1]."""
    return (*x.shape[:-1], 1)


@mean_inner.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = broadcast_to(g) / count(x)"""
    return (g.scale(1 / x.shape[-1]).broadcast_to(x.shape),)


# max and min ----------------------------------------------------------------------------------------------------------
TIED = ([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]],)
THIRD = 1 / 3


@op(
    numpy=_over(np.max),
    kernel=Reduction("max"),
    samples=(*OVER_AXES, Sample((2, 3), attrs={"axes": (1,)}, values=TIED, grads=([[0, 0.5, 0.5], [THIRD] * 3],))),
    bad=BAD_AXES,
    canonical=_front_axes,
)
def max(x: Value, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Shape:
    """Largest element over axes (None: all, to f32[1]): f32[...] -> f32[...]; NaN wins. Ties share the gradient."""
    assert axes is not None  # canonical filled it in
    return _reduced(x.shape, axes, keepdims)


@op(
    numpy=_over(np.min),
    kernel=Reduction("min"),
    samples=(*OVER_AXES, Sample((2, 3), attrs={"axes": (1,)}, values=TIED, grads=([[1, 0, 0], [THIRD] * 3],))),
    bad=BAD_AXES,
    canonical=_front_axes,
)
def min(x: Value, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Shape:
    """Smallest element over axes (None: all, to f32[1]): f32[...] -> f32[...]; NaN wins. Ties share the gradient."""
    assert axes is not None  # canonical filled it in
    return _reduced(x.shape, axes, keepdims)


@op(
    numpy=lambda x: np.max(x, axis=-1, keepdims=True),
    kernel=Reduction("max", axes=_last),
    samples=(*MATRICES, Sample((2, 3), values=TIED, grads=([[0, 0.5, 0.5], [THIRD] * 3],))),
    bad=NOT_F32,
)
def max_inner(x: Value) -> Shape:
    """Largest element over the last axis, kept as 1: f32[..., n] -> f32[..., 1]; NaN wins. Ties share the gradient."""
    return (*x.shape[:-1], 1)


@op(
    numpy=lambda x, y: np.asarray((x == y) | np.isnan(x), x.dtype),
    kernel=Elementwise("select(0.0, 1.0, (x == y) | is_nan(x))"),
    samples=(Sample((3, 5), (3, 5)), Sample((70,), (70,), values=(1.0, None)),
             Sample((4,), (4,), values=([1.0, 2.0, np.nan, -0.0], [1.0, 3.0, np.nan, 0.0]), kink=True)),
    kind="private",
    no_grad="ends",
)  # fmt: skip
def attains(x: Value, y: Value) -> TensorType:
    """1 where x equals the extremum y (a NaN of x is one), else 0: f32[...], f32[...] -> f32[...]."""
    want(x.shape == y.shape, "equal shapes")
    return x.type


def _to_extrema(g: Value, out: Value, x: Value, axes: Axes, keepdims: bool) -> Grads:
    """∂x = where(x = out, g / n, 0) with n = Σ(x = out)

    Every element that attains the extremum gets an equal part of g.
    """
    mask = attains(x, _back(out, x, axes, keepdims))
    share = g / mask.sum(axes, keepdims=keepdims)
    return (mask.where(_back(share, x, axes, keepdims), 0.0),)


max.vjp(_to_extrema)
min.vjp(_to_extrema)


@max_inner.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = where(x = out, g / n, 0) with n = Σ(x = out)"""
    return _to_extrema(g, out, x, (x.type.rank - 1,), True)
