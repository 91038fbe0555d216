"""Ops that work element by element: arithmetic, activations, comparison, selection, biases.

A kernel is one expression that WGSL and Python both read. Its functions: `exp log sqrt inverseSqrt tanh abs sign
select` as in WGSL (`select(if_false, if_true, condition)`), and ours, exact about NaN and overflow: `max_nan min_nan
relu_nan sigmoid_stable pow_abs is_nan log1p expm1 tanh_precise sin_precise cos_precise remainder modulus round_f16
round_bf16`.
"""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array, TensorType
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Elementwise,
    Extended,
    Grads,
    Sample,
    op,
    want,
)

NAN = float("nan")
UNARY = (Sample((3, 5)), Sample((70,), low=-20, high=20), Sample((1, 1)))
POSITIVE = (Sample((3, 5), low=0.1, high=4), Sample((70,), low=0.01, high=300), Sample((1, 1), low=1, high=2))
EDGES = (Sample((5,), values=([0.0, -1.0, 1e-3, NAN, 4.0],), kink=True),)
BINARY = (Sample((3, 5), (3, 5)), Sample((4, 3), (3,)), Sample((2, 1, 3), (4, 1)), Sample((1,), (1,)))
MISFITS = (
    Bad(("f32[3, 5]", "f32[4]"), "given f32[3, 5] and f32[4], wanted shapes that broadcast to one"),
    Bad(("f32[3]", "u32[3]"), "given f32[3] and u32[3], wanted f32 operands"),
)
NOT_F32 = (Bad(("u32[3]",), "given u32[3], wanted f32 operands"),)


# arithmetic -----------------------------------------------------------------------------------------------------------
@op(numpy=np.add, kernel=Elementwise("a + b"), samples=BINARY, bad=MISFITS, broadcasts=True, commutative=True)
def add(a: Value, b: Value) -> TensorType:
    """a + b, elementwise: f32[...], f32[...] -> f32[...]; operands broadcast visibly."""
    return a.type


@add.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g,  ∂b = g"""
    return g, g


@op(numpy=np.subtract, kernel=Elementwise("a - b"), samples=BINARY, bad=MISFITS, broadcasts=True)
def sub(a: Value, b: Value) -> TensorType:
    """a − b, elementwise: f32[...], f32[...] -> f32[...]; operands broadcast visibly."""
    return a.type


@sub.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g,  ∂b = −g"""
    return g, lambda: -g


@op(
    numpy=np.multiply,
    kernel=Elementwise("a * b"),
    samples=BINARY,
    bad=MISFITS,
    broadcasts=True,
    commutative=True,
    passes_factor=True,
)
def mul(a: Value, b: Value) -> TensorType:
    """a · b, elementwise: f32[...], f32[...] -> f32[...]; operands broadcast visibly."""
    return a.type


@mul.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b,  ∂b = g · a"""
    return lambda: g * b, lambda: g * a


@op(
    numpy=np.divide,
    kernel=Elementwise("a / b"),
    samples=(Sample((3, 5), (3, 5), low=0.5), Sample((4, 3), (3,), low=-4, high=-0.5), Sample((1,), (1,), low=1),
             Sample((4,), (4,), values=([1.0, -1.0, 0.0, NAN], 0.0), kink=True)),
    bad=MISFITS,
    broadcasts=True,
)  # fmt: skip
def div(a: Value, b: Value) -> TensorType:
    """a / b, elementwise: f32[...], f32[...] -> f32[...]; operands broadcast visibly. By zero: ±inf or NaN."""
    return a.type


@div.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g / b,  ∂b = −g · out / b"""
    return lambda: g / b, lambda: -(g * out / b)


@op(numpy=np.negative, kernel=Elementwise("-x"), samples=UNARY, bad=NOT_F32)
def neg(x: Value) -> TensorType:
    """−x, elementwise: f32[...] -> f32[...]."""
    return x.type


@neg.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = −g"""
    return (-g,)


@op(
    numpy=lambda x, factor: x * factor,
    kernel=Elementwise("x * factor"),
    samples=tuple(Sample(shape, attrs={"factor": f}) for shape, f in (((3, 5), 2.5), ((70,), -1e-3), ((1, 1), 0.0))),
    bad=(Bad(("f32[3]",), "scale: factor: given nan, wanted a finite number", {"factor": NAN}),),
    typed_as_first=True,
)
def scale(x: Value, factor: float) -> TensorType:
    """x · factor for a fixed finite factor, elementwise: f32[...] -> f32[...]."""
    return x.type


@scale.vjp
def _(g: Value, out: Value, x: Value, factor: float) -> Grads:
    """∂x = factor · g"""
    return (g.scale(factor),)


@op(
    numpy=lambda x, value: x + value,
    kernel=Elementwise("x + value"),
    samples=tuple(Sample(shape, attrs={"value": v}) for shape, v in (((3, 5), 2.5), ((70,), -1e-3), ((1, 1), 0.0))),
    bad=(Bad(("f32[3]",), "add_scalar: value: given inf, wanted a finite number", {"value": float("inf")}),),
)
def add_scalar(x: Value, value: float) -> TensorType:
    """x + value for a fixed finite value, elementwise: f32[...] -> f32[...]."""
    return x.type


@add_scalar.vjp
def _(g: Value, out: Value, x: Value, value: float) -> Grads:
    """∂x = g"""
    return (g,)


@op(
    numpy=lambda x, exponent: np.power(x, np.full(x.shape, exponent)),  # a plain 0.5 is the root, which −∞ has not
    # at 0 a driver's power of a negative exponent may be 0; below 0 even and odd exponents have a value, else √x is NaN
    kernel=Elementwise(
        "select(select(pow_abs(x, exponent), 1.0 / abs(x), (x == 0.0) & (exponent < 0.0)), "
        "select(select(sqrt(x), pow_abs(x, exponent), (abs(exponent) % 2.0 == 0.0) | (x < -3.4028235e38)), "
        "-pow_abs(x, exponent), abs(exponent) % 2.0 == 1.0), x < 0.0)"
    ),
    samples=(
        Sample((3, 5), attrs={"exponent": 3.0}), Sample((70,), attrs={"exponent": -1.5}, low=0.1, high=9),
        Sample((2, 2), attrs={"exponent": 4.0}),
        Sample((4,), attrs={"exponent": 0.5}, values=([-1.0, NAN, 0.0, -np.inf],), kink=True),
        Sample((2,), attrs={"exponent": -1.5}, values=([-np.inf, np.inf],), kink=True),
        Sample((2,), attrs={"exponent": 0.0}, values=([0.0, -2.0],), grads=([0.0, 0.0],)),
        Sample((2,), attrs={"exponent": 1.0}, values=([0.0, -2.0],), grads=([1.0, 1.0],)),
        Sample((2,), attrs={"exponent": 2.0}, values=([0.0, -2.0],), grads=([0.0, -4.0],)),
    ),
    bad=(Bad(("f32[3]",), "pow_scalar: exponent: given nan, wanted a finite number", {"exponent": NAN}),),
)  # fmt: skip
def pow_scalar(x: Value, exponent: float) -> TensorType:
    """x to a fixed exponent, elementwise: f32[...] -> f32[...]. 0⁰ = 1; x < 0 with a broken exponent: NaN.

    The gradient is 0 everywhere for exponent 0, g for 1 and 2gx for 2, also at x = 0.
    """
    return x.type


@pow_scalar.vjp
def _(g: Value, out: Value, x: Value, exponent: float) -> Grads:
    """∂x = g · exponent · x^(exponent − 1)"""
    if exponent == 0.0:
        return (None,)
    if exponent == 1.0:
        return (g,)
    below = x if exponent == 2.0 else x.pow_scalar(exponent - 1.0)
    return (g * below.scale(exponent),)


@op(
    numpy=lambda x: 1.0 / x,
    kernel=Elementwise("1.0 / x"),
    samples=(*POSITIVE, Sample((4,), values=([0.0, -2.0, NAN, 0.5],), kink=True)),
    bad=NOT_F32,
)
def recip(x: Value) -> TensorType:
    """1 / x, elementwise: f32[...] -> f32[...]; of ±0: ±inf."""
    return x.type


@recip.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = −g · out²"""
    return (-(g * out.square()),)


# unary functions ------------------------------------------------------------------------------------------------------
@op(numpy=np.exp, kernel=Elementwise("exp(x)"), samples=UNARY, bad=NOT_F32)
def exp(x: Value) -> TensorType:
    """e to the x, elementwise: f32[...] -> f32[...]."""
    return x.type


@exp.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · out"""
    return (g * out,)


@op(numpy=np.log, kernel=Elementwise("log(x)"), samples=(*POSITIVE, *EDGES), bad=NOT_F32)
def log(x: Value) -> TensorType:
    """Natural logarithm, elementwise: f32[...] -> f32[...]; of 0: −inf, below 0: NaN."""
    return x.type


@log.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / x"""
    return (g / x,)


@op(numpy=np.sqrt, kernel=Elementwise("sqrt(x)"), samples=(*POSITIVE, *EDGES), bad=NOT_F32)
def sqrt(x: Value) -> TensorType:
    """Square root, elementwise: f32[...] -> f32[...]; below 0: NaN. At 0 the gradient is infinite: add an epsilon."""
    return x.type


@sqrt.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = ½ · g / out"""
    return ((g / out).scale(0.5),)


@op(numpy=lambda x: 1.0 / np.sqrt(x), kernel=Elementwise("inverseSqrt(x)"), samples=(*POSITIVE, *EDGES), bad=NOT_F32)
def rsqrt(x: Value) -> TensorType:
    """1 / √x, elementwise: f32[...] -> f32[...]; of 0: inf, below 0: NaN. Add an epsilon in the graph."""
    return x.type


@rsqrt.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = −½ · g · out³"""
    return ((g * (out * out.square())).scale(-0.5),)


@op(numpy=np.square, kernel=Elementwise("x * x"), samples=UNARY, bad=NOT_F32)
def square(x: Value) -> TensorType:
    """x², elementwise: f32[...] -> f32[...]."""
    return x.type


@square.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = 2 · g · x"""
    return ((g * x).scale(2.0),)


@op(
    numpy=np.abs,
    kernel=Elementwise("abs(x)"),
    samples=(*UNARY, Sample((3,), values=([0.0, -2.0, 3.0],), grads=([0.0, -1.0, 1.0],))),
    bad=NOT_F32,
)
def abs(x: Value) -> TensorType:
    """|x|, elementwise: f32[...] -> f32[...]; gradient 0 at 0."""
    return x.type


@abs.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · sign(x)"""
    return (g * x.sign(),)


@op(
    numpy=np.sign,
    kernel=Elementwise("sign(x)"),
    samples=(*UNARY, Sample((4,), values=([0.0, -0.0, NAN, -3.0],), kink=True)),
    bad=NOT_F32,
    no_grad="ends",
)
def sign(x: Value) -> TensorType:
    """−1, 0 or 1, elementwise: f32[...] -> f32[...]; 0 at ±0. The gradient path ends."""
    return x.type


# activations ----------------------------------------------------------------------------------------------------------
@op(
    numpy=lambda x: np.maximum(x, 0.0),
    kernel=Elementwise("relu_nan(x)"),
    samples=(*UNARY, Sample((4,), values=([0.0, -0.0, -1.0, 1.0],), grads=([0.0, 0.0, 0.0, 1.0],))),
    bad=NOT_F32,
)
def relu(x: Value) -> TensorType:
    """max(x, 0), elementwise: f32[...] -> f32[...]; gradient 0 at 0."""
    return x.type


@relu.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = where(out > 0, g, 0)"""
    return (relu_grad(out, g),)  # of the result: so that x can be fused into what made it


@op(
    numpy=lambda y, g: np.where(y > 0.0, g, 0.0),
    kernel=Elementwise("select(0.0, g, y > 0.0)"),
    samples=(
        Sample((3, 5), (3, 5)), Sample((70,), (70,)), Sample((1, 1), (1, 1)),
        Sample((3,), (3,), values=([0.0, 2.0, -1.0], [float("inf"), 3.0, NAN]), kink=True),
    ),
    kind="private",
)  # fmt: skip
def relu_grad(y: Value, g: Value) -> TensorType:
    """The cotangent g where the result y of a relu is positive, else 0: f32[...], f32[...] -> f32[...]."""
    want(y.shape == g.shape, "equal shapes")
    return g.type


@relu_grad.vjp
def _(h: Value, out: Value, y: Value, g: Value) -> Grads:
    """∂g = where(y > 0, h, 0)"""
    return None, lambda: relu_grad(y, h)


def _sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, tail) / (1.0 + tail)


FAR = Sample((6,), values=([1e4, -1e4, 88.0, -88.0, 30.0, -30.0],))


@op(numpy=_sigmoid, kernel=Elementwise("sigmoid_stable(x)"), samples=(*UNARY, FAR), bad=NOT_F32)
def sigmoid(x: Value) -> TensorType:
    """1 / (1 + e^(−x)), elementwise: f32[...] -> f32[...]; nothing overflows for large |x|."""
    return x.type


@sigmoid.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · out · (1 − out)"""
    return (g * (out * (1 - out)),)


@op(numpy=np.tanh, kernel=Elementwise("tanh_precise(x)"), samples=(*UNARY, FAR), bad=NOT_F32)
def tanh(x: Value) -> TensorType:
    """Hyperbolic tangent, elementwise: f32[...] -> f32[...]."""
    return x.type


@tanh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · (1 − out²)"""
    return (g * (1 - out.square()),)


@op(
    numpy=lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    kernel=Elementwise("min_nan(max_nan(x, lo), hi)"),
    samples=(
        Sample((3, 5), attrs={"lo": -1.0, "hi": 0.5}), Sample((70,), attrs={"lo": 0.25, "hi": 0.25}),
        Sample((1, 1), attrs={"lo": -9.0, "hi": 9.0}),
        Sample((4,), attrs={"lo": -1.0, "hi": 1.0}, values=([-1.0, 1.0, 0.0, 3.0],), grads=([0.0, 0.0, 1.0, 0.0],)),
        Sample((4,), attrs={"lo": -np.inf, "hi": 0.5}, low=-1, high=0.4),
        Sample((70,), attrs={"lo": 0.0, "hi": np.inf}),
    ),
    bad=(
        Bad(("f32[3]",), "clamp: bounds: given lo=1.0 and hi=0.0, wanted lo ≤ hi", {"lo": 1.0, "hi": 0.0}),
        Bad(("f32[3]",), "clamp: lo: given nan, wanted a number or an infinity", {"lo": NAN, "hi": 0.0}),
    ),
)  # fmt: skip
def clamp(x: Value, lo: Extended, hi: Extended) -> TensorType:
    """min(max(x, lo), hi), elementwise: f32[...] -> f32[...]; gradient g inside the open interval, else 0.

    A bound may be an infinity: then that side is open.
    """
    want(lo <= hi, "lo ≤ hi", f"lo={lo} and hi={hi}", "bounds")
    return x.type


@clamp.vjp
def _(g: Value, out: Value, x: Value, lo: float, hi: float) -> Grads:
    """∂x = where(lo < out < hi, g, 0)"""
    return (((out > lo) * out.less(hi)).where(g, 0.0),)


# biases ---------------------------------------------------------------------------------------------------------------
ROWS = tuple(Sample(x, row) for x, row in (((3, 5), (5,)), ((2, 3, 70), (70,)), ((4, 3), (1, 3)), ((7,), (7,))))
NOT_A_ROW = (
    Bad(("f32[3, 5]", "f32[3]"), "given f32[3, 5] and f32[3], wanted x[…, n] and a row b[n]"),
    Bad(("f32[3, 5]", "f32[3, 5]"), "wanted x[…, n] and a row b[n]"),
)


@op(numpy=np.add, kernel=Elementwise("x + b"), samples=ROWS, bad=NOT_A_ROW)
def bias_add(x: Value, b: Value) -> TensorType:
    """x + b with b along the last axis: f32[..., n], f32[n] -> f32[..., n]; b may also be f32[1, n]."""
    want(_is_row(x, b), "x[…, n] and a row b[n]")
    return x.type


@bias_add.vjp
def _(g: Value, out: Value, x: Value, b: Value) -> Grads:
    """∂x = g,  ∂b = Σ g"""
    return g, lambda: to_row(g, b)


@op(numpy=np.multiply, kernel=Elementwise("x * w"), samples=ROWS, bad=NOT_A_ROW[1:])
def bias_mul(x: Value, w: Value) -> TensorType:
    """x · w with w along the last axis: f32[..., n], f32[n] -> f32[..., n]; w may also be f32[1, n]."""
    want(_is_row(x, w), "x[…, n] and a row b[n]")
    return x.type


@bias_mul.vjp
def _(g: Value, out: Value, x: Value, w: Value) -> Grads:
    """∂x = g · w,  ∂w = Σ g · x"""
    return lambda: g.bias_mul(w), lambda: to_row(g * x, w)


def _is_row(x: Value, row: Value) -> bool:
    n = x.shape[-1]
    return row.shape == (n,) or (row.shape == (1, n) and x.type.rank > 1)


def to_row(g: Value, row: Value) -> Value:
    """Return the cotangent of a row that is broadcast over the rows of g."""
    total = g.sum_rows() if g.type.rank > 1 else g
    return total if total.shape == row.shape else total.reshape(row.shape)
