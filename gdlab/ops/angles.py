"""Angles and hyperbolic functions, element by element, under NumPy's names: `tan`, `arcsin`, `sinh`, `arctanh`, …"""

from __future__ import annotations

import math

import numpy as np

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import Elementwise, Grads, Sample, fused, op
from gdlab.ops.elementwise import NAN, NOT_F32, UNARY
from gdlab.ops.functions import cos, horner, sin

NEAR = (Sample((3, 5), low=-1.4, high=1.4), Sample((70,), low=-0.3, high=0.3), Sample((1, 1)))
WITHIN = (Sample((3, 5), low=-0.9, high=0.9), Sample((70,), low=-0.1, high=0.1), Sample((1, 1), low=-0.5, high=0.5))
ABOVE = (Sample((3, 5), low=1.1, high=4), Sample((70,), low=1.1, high=300), Sample((1, 1), low=2, high=3))
ANGLE_EDGES = Sample((5,), values=([1.0, -1.0, 0.0, 1.5, NAN],), kink=True)
FAR = Sample((6,), values=([20.0, -20.0, 80.0, -80.0, 1e-4, -1e-4],))
ENDLESS = Sample((3,), values=([np.inf, -np.inf, NAN],), kink=True)


# angles ---------------------------------------------------------------------------------------------------------------
@fused(label="", samples=NEAR, bad=NOT_F32)
def tan(x: Value) -> Value:
    """Tangent of radians, elementwise: f32[...] -> f32[...]; of ±inf: NaN."""
    return sin(x) / cos(x)


# S. Moshier, Cephes Mathematical Library, 1989: atanf, asinhf, acoshf, atanhf
_ATAN = horner("({0} * {0})", (1.0, -3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2))
_FLAT, _STEEP = "((abs(x) - 1.0) / (abs(x) + 1.0))", "(-1.0 / max_nan(abs(x), 1.0))"


def _series(d: str) -> str:
    return f"{d} * {_ATAN.format(d)}"


@op(
    numpy=np.arctan,
    kernel=Elementwise(
        f"sign(x) * select(select({_series('abs(x)')}, 0.78539816 + {_series(_FLAT)}, abs(x) > 0.41421356), "
        f"1.5707964 + {_series(_STEEP)}, abs(x) > 2.4142135)"
    ),
    samples=(*UNARY, FAR, ENDLESS),
    bad=NOT_F32,
)
def arctan(x: Value) -> TensorType:
    """The angle from −π/2 to π/2 whose tangent is x, elementwise: f32[...] -> f32[...]; error at most 3e-7."""
    return x.type


@arctan.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / (1 + x²)"""
    return (g / (x.square() + 1),)


@fused(label="", samples=(*WITHIN, ANGLE_EDGES), bad=NOT_F32)
def arcsin(x: Value) -> Value:
    """The angle from −π/2 to π/2 whose sine is x, elementwise: f32[...] -> f32[...]; NaN where |x| > 1."""
    return arctan(x / (((1 - x) * (1 + x)).sqrt() + 1)).scale(2.0)


@arcsin.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / √(1 − x²)"""
    return (g * ((1 - x) * (1 + x)).rsqrt(),)


@fused(label="", samples=(*WITHIN, ANGLE_EDGES), bad=NOT_F32)
def arccos(x: Value) -> Value:
    """The angle from 0 to π whose cosine is x, elementwise: f32[...] -> f32[...]; NaN where |x| > 1."""
    near = arcsin((1 - x).scale(0.5).sqrt()).scale(2.0)
    return x.greater(0.5).where(near, math.pi / 2 - arcsin(x))


@arccos.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = −g / √(1 − x²)"""
    return (-(g * ((1 - x) * (1 + x)).rsqrt()),)


# hyperbolic functions -------------------------------------------------------------------------------------------------
_UP, _DOWN = "exp(abs(x) - 0.6931472)", "exp(-abs(x) - 0.6931472)"  # e^|x| / 2 overflows later than e^|x|
_SINH = horner("(x * x)", [1 / math.factorial(2 * n + 1) for n in range(5)])


@op(
    numpy=np.sinh,
    kernel=Elementwise(f"select(sign(x) * ({_UP} - {_DOWN}), x * {_SINH}, abs(x) < 1.0)"),
    samples=(*UNARY, Sample((4,), values=([5.0, -5.0, 1e-4, -1e-4],)), ENDLESS),
    bad=NOT_F32,
)
def sinh(x: Value) -> TensorType:
    """Hyperbolic sine, elementwise: f32[...] -> f32[...]."""
    return x.type


@sinh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    return (g * cosh(x),)


@op(numpy=np.cosh, kernel=Elementwise(f"{_UP} + {_DOWN}"), samples=(*UNARY, ENDLESS), bad=NOT_F32)
def cosh(x: Value) -> TensorType:
    """Hyperbolic cosine, elementwise: f32[...] -> f32[...]."""
    return x.type


@cosh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    return (g * sinh(x),)


_ASINH = horner("(x * x)", (1.0, -1.6666288134e-1, 7.4847586088e-2, -4.2699340972e-2, 2.0122003309e-2))
_LONG = "select(log(abs(x) + sqrt(x * x + 1.0)), log(abs(x)) + 0.6931472, abs(x) > 10000.0)"


@op(
    numpy=np.arcsinh,
    kernel=Elementwise(f"select(sign(x) * {_LONG}, x * {_ASINH}, abs(x) < 0.5)"),
    samples=(*UNARY, FAR, Sample((2,), values=([3e15, -1e12],)), ENDLESS),
    bad=NOT_F32,
)
def arcsinh(x: Value) -> TensorType:
    """The number whose hyperbolic sine is x, elementwise: f32[...] -> f32[...]."""
    return x.type


@arcsinh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / √(1 + x²)"""
    return (g * (x.square() + 1).rsqrt(),)


_NEAR_ONE = horner("(x - 1.0)", (1.4142135263, -1.1784741703e-1, 2.6454905019e-2, -7.5272886713e-3, 1.7596881071e-3))
_BEYOND = "select(log(x + sqrt((x - 1.0) * (x + 1.0))), log(x) + 0.6931472, x > 10000.0)"


@op(
    numpy=np.arccosh,
    kernel=Elementwise(f"select({_BEYOND}, sqrt(x - 1.0) * {_NEAR_ONE}, x < 1.5)"),
    samples=(*ABOVE, Sample((3,), values=([1.001, 3e4, 1.4],)),
             Sample((4,), values=([1.0, 0.5, -2.0, NAN],), kink=True)),
    bad=NOT_F32,
)  # fmt: skip
def arccosh(x: Value) -> TensorType:
    """The number ≥ 0 whose hyperbolic cosine is x, elementwise: f32[...] -> f32[...]; NaN where x < 1."""
    return x.type


@arccosh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / √(x² − 1)"""
    return (g * ((x - 1).rsqrt() * (x + 1).rsqrt()),)


_ATANH = horner(
    "(x * x)", (1.0, 3.33337300303e-1, 1.99782164500e-1, 1.46691431730e-1, 8.24370301058e-2, 1.81740078349e-1)
)


@op(
    numpy=np.arctanh,
    kernel=Elementwise(f"select(0.5 * log((1.0 + x) / (1.0 - x)), x * {_ATANH}, abs(x) < 0.5)"),
    samples=(*WITHIN, Sample((3,), values=([1e-4, 0.999, -0.999],)),
             Sample((3,), values=([1.5, -2.0, NAN],), kink=True)),
    bad=NOT_F32,
)  # fmt: skip
def arctanh(x: Value) -> TensorType:
    """The number whose hyperbolic tangent is x, elementwise: f32[...] -> f32[...]; NaN where |x| > 1."""
    return x.type


@arctanh.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / (1 − x²)"""
    return (g / ((1 - x) * (1 + x)),)
