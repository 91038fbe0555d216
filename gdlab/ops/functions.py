"""Functions of one or two operands, element by element: `pow`, `log1p`, `expm1`, `sin`, `cos`, `erf`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import Elementwise, Grads, Sample, op
from gdlab.ops.elementwise import MISFITS, NAN, NOT_F32, UNARY


def horner(x: str, coefficients: Sequence[float]) -> str:
    """Return the polynomial in x, coefficients from the constant upward, as an expression."""
    text = repr(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"({c!r} + {x} * {text})"
    return text


# power ----------------------------------------------------------------------------------------------------------------
# WGSL has no power of a negative base, and on some drivers none of ±1 to an infinite or of 0 to a negative exponent
_SIZE = "select(select(pow_abs(a, b), 1.0, abs(a) == 1.0), 1.0 / abs(a), (a == 0.0) & (b < 0.0))"
_EVEN = "((abs(b) % 2.0 == 0.0) | (abs(b) > 16777216.0) | (a < -3.4028235e38))"  # −∞ has every power
_BELOW = f"select(select(sqrt(a), {_SIZE}, {_EVEN}), -{_SIZE}, abs(b) % 2.0 == 1.0)"
_NUMBERS = f"select(select({_SIZE}, {_BELOW}, a < 0.0), a + b, is_nan(a) | is_nan(b))"


@op(
    numpy=np.power,
    kernel=Elementwise(f"select({_NUMBERS}, 1.0, (b == 0.0) | (a == 1.0))"),
    samples=(
        Sample((3, 5), (3, 5), low=0.1, high=3), Sample((4, 3), (3,), low=0.5, high=4), Sample((1,), (1,), low=1),
        Sample((7,), (7,), values=([-2.0, -2.0, -2.0, -2.0, NAN, 0.0, 1.0], [3.0, 2.0, 0.5, -1.0, 0.0, -1.0, NAN]),
               kink=True),
        Sample((5,), (5,), values=([-1.0, 2.0, 0.5, -2.0, 0.0], [np.inf, np.inf, np.inf, -np.inf, np.inf]), kink=True),
        Sample((5,), (5,), values=([-np.inf, -np.inf, -np.inf, 0.0, NAN], [0.5, -2.5, 3.0, NAN, NAN]), kink=True),
        Sample((3,), (3,), values=([0.0, 0.0, 2.0], [2.0, 1.0, 0.0]),
               grads=([0.0, 1.0, 0.0], [0.0, 0.0, math.log(2.0)])),
        Sample((1,), (1,), values=([0.0], [0.0]), grads=([0.0], [-np.inf])),
    ),
    bad=MISFITS,
    broadcasts=True,
)  # fmt: skip
def pow(a: Value, b: Value) -> TensorType:
    """a to the power b, elementwise: f32[...], f32[...] -> f32[...]; operands broadcast visibly.

    0⁰ = 1; a < 0 has a value where b is integral (−∞ always), else it is NaN. The gradient b · a^(b−1) is 0 where
    a = b = 0, and y · ln a is 0 where a = 0 < b.
    """
    return a.type


@pow.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b · a^(b − 1),  ∂b = g · out · log(a)

    Where a is 0, a receives none of 0^0, and b receives none of 0^b with b > 0.
    """

    def to_base() -> Value:
        base = (a.equal(0.0) * b.equal(0.0)).where(1.0, a)
        return g * (b * base.pow(b - 1))

    def to_exponent() -> Value:
        return g * (out * (a.equal(0.0) * b.greater(0.0)).where(1.0, a).log())

    return to_base, to_exponent


# near 0 ---------------------------------------------------------------------------------------------------------------
TINY = Sample((6,), values=([1e-3, -1e-3, 1e-7, -1e-10, 1e-30, 0.0],))


@op(
    numpy=np.log1p,
    kernel=Elementwise("log1p(x)"),
    samples=(
        Sample((3, 5), low=-0.9, high=4), Sample((70,), low=-0.6, high=0.6), Sample((1, 1), low=1, high=2), TINY,
        Sample((5,), values=([-1.0, -2.0, NAN, np.inf, 1e30],), kink=True),
    ),
    bad=NOT_F32,
)  # fmt: skip
def log1p(x: Value) -> TensorType:
    """ln(1 + x), elementwise: f32[...] -> f32[...], with all digits of a small x; of −1: −inf, below −1: NaN."""
    return x.type


@log1p.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g / (1 + x)"""
    return (g / (1 + x),)


@op(
    numpy=np.expm1,
    kernel=Elementwise("expm1(x)"),
    samples=(Sample((3, 5)), Sample((70,), low=-20, high=20), Sample((70,), low=-0.6, high=0.6), Sample((1, 1)), TINY,
             Sample((4,), values=([80.0, -100.0, -np.inf, NAN],), kink=True)),
    bad=NOT_F32,
)  # fmt: skip
def expm1(x: Value) -> TensorType:
    """e^x − 1, elementwise: f32[...] -> f32[...], with all digits of a small x."""
    return x.type


@expm1.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · (out + 1)"""
    return (g * (out + 1),)


# angles ---------------------------------------------------------------------------------------------------------------
EDGE_ANGLES = (
    Sample((9,), values=([0.0, -0.5, 1.5707964, 3.1415927, 3.17, -4.712389, 6.2831855, 100.0, -1000.0],)),
    Sample((3,), values=([np.inf, -np.inf, NAN],), kink=True),
)


@op(numpy=np.sin, kernel=Elementwise("sin_precise(x)"), samples=(*UNARY, *EDGE_ANGLES), bad=NOT_F32)
def sin(x: Value) -> TensorType:
    """Sine of radians, elementwise: f32[...] -> f32[...]; of ±inf: NaN. Error at most 5e-7 up to |x| = 1e7."""
    return x.type


@sin.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · cos(x)"""
    return (g * x.cos(),)


@op(numpy=np.cos, kernel=Elementwise("cos_precise(x)"), samples=(*UNARY, *EDGE_ANGLES), bad=NOT_F32)
def cos(x: Value) -> TensorType:
    """Cosine of radians, elementwise: f32[...] -> f32[...]; of ±inf: NaN. Error at most 5e-7 up to |x| = 1e7."""
    return x.type


@cos.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = −g · sin(x)"""
    return (-(g * x.sin()),)


# error function -------------------------------------------------------------------------------------------------------
# W. J. Cody, Rational Chebyshev Approximations for the Error Function, Mathematics of Computation 23, 1969:
# e^(x²) · erfc(x) for 0.46875 ≤ x ≤ 4 as a quotient of two polynomials, constant first
_CODY_P = (1230.339354797997, 2051.078377826071, 1712.047612634071, 881.952221241769, 298.6351381974001,
           66.11919063714163, 8.883149794388376, 0.5641884969886701, 2.153115354744038e-08)  # fmt: skip
_CODY_Q = (1230.339354803749, 3439.367674143722, 4362.619090143247, 3290.799235733460, 1621.389574566690,
           537.1811018620099, 117.6939508913125, 15.74492611070983, 1.0)  # fmt: skip
_SERIES = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(11)]
_CAPPED = "min_nan(abs(x), 4.0)"
_ERFC = f"exp(-{_CAPPED} * {_CAPPED}) * {horner(_CAPPED, _CODY_P)} / {horner(_CAPPED, _CODY_Q)}"


@op(
    numpy=lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
    kernel=Elementwise(f"select(sign(x) * (1.0 - {_ERFC}), x * {horner('(x * x)', _SERIES)}, abs(x) < 1.0)"),
    samples=(*UNARY, Sample((9,), values=([0.0, 1e-20, 1.0, -1.0, 4.0, -3.9, 5.0, 1e4, -1e4],))),
    bad=NOT_F32,
)
def erf(x: Value) -> TensorType:
    """Error function (2/√π) ∫₀ˣ e^(−t²) dt, elementwise: f32[...] -> f32[...]; error at most 2e-7.

    Below 1 the Maclaurin series, above W. J. Cody, Rational Chebyshev Approximations for the Error Function, 1969.
    """
    return x.type


@erf.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · 2 / √π · exp(−x²)"""
    return (g * (-x.square()).exp().scale(2 / math.sqrt(math.pi)),)
