"""Softmax, its logarithm and normalization over the last axis."""

from __future__ import annotations

from functools import cache

import numpy as np

from gdlab.graph import Value
from gdlab.op import Array, Bad, Grads, Sample, Shader, by_rows, fused, op, want
from gdlab.ops.elementwise import to_row
from gdlab.types import TensorType

WIDTHS = tuple(Sample((3, n), low=-4, high=4) for n in (1, 2, 3, 5, 64, 257, 50257))
ROWS = (*WIDTHS, Sample((2, 2, 5)), Sample((7,)), Sample((2, 3), values=([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]],)))
LOST = Sample((2, 3), values=([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 1.0]],), kink=True)
NOT_F32 = (Bad(("u32[3, 5]",), "given u32[3, 5], wanted f32 operands"),)


def _softmax(x: Array) -> Array:
    powers: Array = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = np.sum(powers, axis=-1, keepdims=True)
    return powers / total


@op(numpy=_softmax, kernel=Shader("softmax.wgsl", by_rows(5)), samples=(*ROWS, LOST), bad=NOT_F32)
def softmax(x: Value) -> TensorType:
    """e^(x − max) over its sum along the last axis: f32[..., n] -> f32[..., n]; a row of −inf gives NaN."""
    return x.type


@softmax.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    return (out * (g - (g * out).sum_inner()),)


def _log_softmax(x: Array) -> Array:
    shifted: Array = x - np.max(x, axis=-1, keepdims=True)
    total: Array = np.sum(np.exp(shifted), axis=-1, keepdims=True)
    return shifted - np.log(total)


@op(numpy=_log_softmax, kernel=Shader("log_softmax.wgsl", by_rows(5)), samples=(*ROWS, LOST), bad=NOT_F32)
def log_softmax(x: Value) -> TensorType:
    """x − max − ln Σ e^(x − max) along the last axis, never the logarithm of a softmax: f32[..., n] -> f32[..., n]."""
    return x.type


@log_softmax.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    return (g - out.exp() * g.sum_inner(),)


# normalization --------------------------------------------------------------------------------------------------------
EPS = 1e-5
SIZES = ((1, 5), (2, 3), (3, 64), (4, 257), (5, 2), (2, 50257), (2, 2, 5), (7,))


def _norm_samples(weights: int) -> tuple[Sample, ...]:
    """x and this many rows of weights; then a column alone, a row of equal elements, a row of zeros."""
    sizes = tuple(Sample(shape, *[shape[-1:]] * weights, attrs={"eps": EPS}) for shape in SIZES)
    column = Sample((3, 1), *[(1,)] * weights, attrs={"eps": 0.5})
    rows = ([[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [100.0, 101.0, 102.0]], *[None] * weights)
    return (*sizes, column, Sample((3, 3), *[(3,)] * weights, attrs={"eps": 0.25}, values=rows))


def _norm_bad(weights: int, wanted: str) -> tuple[Bad, ...]:
    row, wrong, eps = ("f32[5]",) * (weights - 1), "given f32[3, 5] and ", {"eps": EPS}
    return (
        Bad(("f32[3, 5]", *row, "f32[3]"), wanted, eps),
        Bad(("f32[3, 5]", *row, "f32[1, 5]"), wrong, eps),
        Bad(("f32[3, 5]", *row, "f32[5]"), "eps: given 0.0, wanted a number above 0", {"eps": 0.0}),
        Bad(("f32[3, 5]", *row, "f32[5]"), "eps: given nan, wanted a finite number", {"eps": float("nan")}),
    )


def _row_each(wanted: str, eps: float, x: Value, *weights: Value) -> None:
    want(all(w.shape == x.shape[-1:] for w in weights), wanted)
    want(eps > 0, "a number above 0", eps, "eps")


def _over_rows(h: Value, unit: Value, size: Value) -> Value:
    """What a row's size lets through of the cotangent h of its unit form: size · (h − unit · mean(h · unit))."""
    return size * (h - unit * (h * unit).mean_inner())


@fused(
    label="",
    family="reduction",
    samples=_norm_samples(1),
    bad=_norm_bad(1, "wanted x[…, n] and w[n]"),
    check=lambda x, w, eps: _row_each("x[…, n] and w[n]", eps, x, w),
)
def rms_norm(x: Value, w: Value, eps: float) -> Value:
    """x / √(mean x² + eps) · w along the last axis: f32[..., n], f32[n] -> f32[..., n]; eps > 0.

    B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    return (x * (x.square().mean_inner() + eps).rsqrt()).bias_mul(w)


@rms_norm.vjp
def _(g: Value, out: Value, x: Value, w: Value, eps: float) -> Grads:
    @cache
    def parts() -> tuple[Value, Value]:
        size = (x.square().mean_inner() + eps).rsqrt()
        return x * size, size

    return lambda: _over_rows(g.bias_mul(w), *parts()), lambda: to_row(g * parts()[0], w)


@fused(
    label="",
    family="reduction",
    samples=_norm_samples(2),
    bad=_norm_bad(2, "wanted x[…, n], w[n] and b[n]"),
    check=lambda x, w, b, eps: _row_each("x[…, n], w[n] and b[n]", eps, x, w, b),
)
def layer_norm(x: Value, w: Value, b: Value, eps: float) -> Value:
    """(x − mean) / √(variance + eps) · w + b along the last axis: f32[..., n], f32[n], f32[n] -> f32[..., n]; eps > 0.

    The variance is biased and taken of x − mean. J. L. Ba, J. R. Kiros, G. E. Hinton, Layer Normalization, 2016.
    """
    centred = x - x.mean_inner()
    return (centred * (centred.square().mean_inner() + eps).rsqrt()).bias_mul(w).bias_add(b)


@layer_norm.vjp
def _(g: Value, out: Value, x: Value, w: Value, b: Value, eps: float) -> Grads:
    @cache
    def parts() -> tuple[Value, Value]:
        centred = x - x.mean_inner()
        size = (centred.square().mean_inner() + eps).rsqrt()
        return centred * size, size

    def to_x() -> Value:
        h = g.bias_mul(w)
        return _over_rows(h - h.mean_inner(), *parts())

    return to_x, lambda: to_row(g * parts()[0], w), lambda: to_row(g, b)
