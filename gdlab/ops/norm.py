"""Softmax and its logarithm over the last axis."""

from __future__ import annotations

import numpy as np

from gdlab.graph import Value
from gdlab.op import Array, Bad, Grads, Rows, Sample, op
from gdlab.types import TensorType

WIDTHS = tuple(Sample((3, n), low=-4, high=4) for n in (1, 2, 3, 5, 64, 257, 50257))
ROWS = (*WIDTHS, Sample((2, 2, 5)), Sample((7,)), Sample((2, 3), values=([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]],)))
LOST = Sample((2, 3), values=([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 1.0]],), kink=True)
NOT_F32 = (Bad(("u32[3, 5]",), "given u32[3, 5], wanted f32 operands"),)


def _softmax(x: Array) -> Array:
    powers: Array = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = np.sum(powers, axis=-1, keepdims=True)
    return powers / total


@op(numpy=_softmax, kernel=Rows("softmax.wgsl"), samples=(*ROWS, LOST), bad=NOT_F32)
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


@op(numpy=_log_softmax, kernel=Rows("log_softmax.wgsl"), samples=(*ROWS, LOST), bad=NOT_F32)
def log_softmax(x: Value) -> TensorType:
    """x − max − ln Σ e^(x − max) along the last axis, never the logarithm of a softmax: f32[..., n] -> f32[..., n]."""
    return x.type


@log_softmax.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    return (g - out.exp() * g.sum_inner(),)
