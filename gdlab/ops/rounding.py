"""Whole numbers and remainders, element by element: `floor`, `ceil`, `trunc`, `round`, `mod`, `fmod`; and what is no
finite number: `isnan`, `isinf`."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import Elementwise, Grads, Sample, op
from gdlab.ops.elementwise import MISFITS, NAN, NOT_F32, UNARY
from gdlab.ops.select import flags

HALVES = Sample((8,), values=([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 8388609.0, 3.0],), kink=True)
STRANGE = Sample((5,), values=([NAN, np.inf, -np.inf, 0.0, -3.5],), kink=True)
WHOLES = (*UNARY, HALVES, STRANGE)


# whole numbers --------------------------------------------------------------------------------------------------------
@op(numpy=np.floor, kernel=Elementwise("floor(x)"), samples=WHOLES, bad=NOT_F32, no_grad="ends")
def floor(x: Value) -> TensorType:
    """The largest whole number ≤ x, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


@op(numpy=np.ceil, kernel=Elementwise("ceil(x)"), samples=WHOLES, bad=NOT_F32, no_grad="ends")
def ceil(x: Value) -> TensorType:
    """The smallest whole number ≥ x, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


@op(numpy=np.trunc, kernel=Elementwise("trunc(x)"), samples=WHOLES, bad=NOT_F32, no_grad="ends")
def trunc(x: Value) -> TensorType:
    """x without its fraction, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


@op(numpy=np.rint, kernel=Elementwise("round(x)"), samples=WHOLES, bad=NOT_F32, no_grad="ends")
def round(x: Value) -> TensorType:
    """The nearest whole number, halves to the even one, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


# no finite numbers ----------------------------------------------------------------------------------------------------
@op(
    numpy=lambda x: flags(np.isnan(x), x),
    kernel=Elementwise("select(0.0, 1.0, is_nan(x))"),
    samples=WHOLES,
    bad=NOT_F32,
    no_grad="ends",
)
def isnan(x: Value) -> TensorType:
    """1 where x is NaN, else 0, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


@op(
    numpy=lambda x: flags(np.isinf(x), x),
    kernel=Elementwise("select(select(0.0, 1.0, abs(x) > 3.4028235e38), 0.0, is_nan(x))"),
    samples=WHOLES,
    bad=NOT_F32,
    no_grad="ends",
)
def isinf(x: Value) -> TensorType:
    """1 where x is ±inf, else 0, elementwise: f32[...] -> f32[...]. The gradient path ends."""
    return x.type


# remainders -----------------------------------------------------------------------------------------------------------
DIVIDED = (
    Sample((6,), (6,), values=([7.5, -7.5, 7.5, -7.5, 1.0, 100.25], [2.0, 2.0, -2.0, -2.0, 3.0, 7.0])),
    Sample((2, 3), (3,), values=([[1.0, 2.5, -3.5], [0.5, 9.75, 5.25]], [4.0, 2.0, -1.5])),
    Sample((1,), (1,), values=([5.0], [3.0])),
    Sample((6,), (6,), values=([6.0, -6.0, 0.0, NAN, 5.0, 1e4], [3.0, 3.0, 2.0, 1.0, NAN, 7.0]), kink=True),
    Sample((4,), (4,), values=([5.0, -5.0, 0.9, 2.7], [np.inf, -np.inf, 0.3, 0.1]), kink=True),
    # quotients that round to whole numbers, one of 2¹⁰⁰
    Sample((5,), (5,), values=([1.5, -1.5, 1.0, 9e9, 2.0**127], [0.3, 0.3, -0.1, 0.7, 3.0 * 2.0**26]), kink=True),
)


@op(numpy=np.fmod, kernel=Elementwise("remainder(a, b)"), samples=DIVIDED, bad=MISFITS, broadcasts=True)
def fmod(a: Value, b: Value) -> TensorType:
    """The remainder of a / b with the sign of a, elementwise: f32[...], f32[...] -> f32[...]; exact. Of a
    remainder by 0: NaN."""
    return a.type


@fmod.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g,  ∂b = −g · trunc(a / b)"""
    return g, lambda: -(g * trunc(a / b))


@op(
    numpy=np.mod,
    kernel=Elementwise("modulus(a, b)"),
    samples=DIVIDED,
    bad=MISFITS,
    broadcasts=True,
)
def mod(a: Value, b: Value) -> TensorType:
    """The remainder of a / b with the sign of b, elementwise: f32[...], f32[...] -> f32[...]; exact. Of a
    remainder by 0: NaN."""
    return a.type


@mod.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g,  ∂b = −g · floor(a / b)"""
    return g, lambda: -(g * floor(a / b))
