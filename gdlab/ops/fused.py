"""Fused ops, each with its decomposition: gates, activations, and products with an addend."""

from __future__ import annotations

import math
from typing import Literal

from gdlab.graph import Value
from gdlab.op import Bad, Elementwise, Grads, Sample, fused, want
from gdlab.ops.channels import group_norm
from gdlab.ops.contract import matmul, matmul_at, matmul_bt
from gdlab.ops.elementwise import FAR, NOT_F32, UNARY, bias_add, sigmoid
from gdlab.ops.functions import erf
from gdlab.ops.loss import equal_shapes
from gdlab.ops.norm import rms_norm

Addend = Literal["full", "row"]
GATES = (Sample((3, 5), (3, 5)), Sample((70,), (70,), low=-20, high=20), Sample((1, 1), (1, 1)))
UNEQUAL = (Bad(("f32[3, 5]", "f32[5]"), "given f32[3, 5] and f32[5], wanted equal shapes"),)


# gates ----------------------------------------------------------------------------------------------------------------
@fused(
    label="Mul+Sigmoid→Silu",
    kernel=Elementwise("x * sigmoid_stable(x)"),
    samples=(*UNARY, FAR),
    bad=NOT_F32,
)
def silu(x: Value) -> Value:
    """x · sigmoid(x), elementwise: f32[...] -> f32[...]."""
    return x * sigmoid(x)


@silu.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · (s + x · s · (1 − s)) with s = sigmoid(x)"""
    return (silu_grad(x, g),)


@fused(
    label="",
    private=True,
    kernel=Elementwise("g * (sigmoid_stable(x) * (1.0 + x * (1.0 - sigmoid_stable(x))))"),
    samples=GATES,
    check=equal_shapes,
)
def silu_grad(x: Value, g: Value) -> Value:
    """g · (s + x · s · (1 − s)) with s = sigmoid(x): f32[...], f32[...] -> f32[...]."""
    s = sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


@fused(
    label="Silu+Mul→SwiGLU",
    kernel=Elementwise("gate * sigmoid_stable(gate) * up"),
    samples=GATES,
    bad=UNEQUAL,
    check=equal_shapes,
)
def swiglu(gate: Value, up: Value) -> Value:
    """silu(gate) · up, elementwise: f32[...], f32[...] -> f32[...] of equal shapes."""
    return silu(gate) * up


@swiglu.vjp
def _(g: Value, out: Value, gate: Value, up: Value) -> Grads:
    """∂gate = g · up · (s + gate · s · (1 − s)),  ∂up = g · silu(gate) with s = sigmoid(gate)"""
    return lambda: swiglu_grad_gate(gate, up, g), lambda: swiglu(gate, g)


@fused(
    label="",
    private=True,
    kernel=Elementwise("g * up * (sigmoid_stable(gate) * (1.0 + gate * (1.0 - sigmoid_stable(gate))))"),
    samples=tuple(Sample(*s.shapes, s.shapes[0], low=s.low, high=s.high) for s in GATES),
    check=equal_shapes,
)
def swiglu_grad_gate(gate: Value, up: Value, g: Value) -> Value:
    """g · up · silu′(gate): three f32[...] -> f32[...]."""
    return silu_grad(gate, g * up)


# activations ----------------------------------------------------------------------------------------------------------
_STEEP, _CUBE = 2 * math.sqrt(2 / math.pi), 0.044715
_INNER = f"{_STEEP} * (x + {_CUBE} * x * x * x)"


def _gelu_inner(x: Value) -> Value:
    return (x + (x * x.square()).scale(_CUBE)).scale(_STEEP)


@fused(label="", kernel=Elementwise(f"x * sigmoid_stable({_INNER})"), samples=(*UNARY, FAR), bad=NOT_F32)
def gelu(x: Value) -> Value:
    """x · sigmoid(2u), u = √(2/π) (x + 0.044715 x³), elementwise: f32[...] -> f32[...]; the tanh form of GELU.

    D. Hendrycks, K. Gimpel, Gaussian Error Linear Units (GELUs), 2016.
    """
    return x * sigmoid(_gelu_inner(x))


@gelu.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g · s · (1 + x · (1 − s) · 2·√(2/π)·(1 + 0.134145·x²)) with s = sigmoid(2·√(2/π)·(x + 0.044715·x³))"""
    return (gelu_grad(x, g),)


# beyond, s · (1 − s) is 0, and times an x² that overflows it would be NaN
_FAR = 1e6
_C = f"max_nan(min_nan(x, {_FAR}), -{_FAR})"
_S = f"sigmoid_stable({_INNER.replace('x', _C)})"


@fused(
    label="",
    private=True,
    kernel=Elementwise(f"g * ({_S} + {_C} * ({_S} * (1.0 - {_S})) * {_STEEP} * (1.0 + {3 * _CUBE} * {_C} * {_C}))"),
    samples=(*GATES, Sample((4,), (4,), values=([1e30, -1e30, 3e38, -3e38], [1.0, 1.0, 2.0, -2.0]),
                            grads=(0.0, [1.0, 0.0, 1.0, 0.0]))),
    check=equal_shapes,
)  # fmt: skip
def gelu_grad(x: Value, g: Value) -> Value:
    """g · (s + x · s · (1 − s) · 2u′) with s = sigmoid(2u) as in `gelu`: f32[...], f32[...] -> f32[...]."""
    near = x.clamp(-_FAR, _FAR)
    s = sigmoid(_gelu_inner(near))
    return g * (s + near * (s * (1 - s)) * (1 + near.square().scale(3 * _CUBE)).scale(_STEEP))


HUGE = Sample((2,), values=([3e38, -3e38],), grads=([1.0, 0.0],))


@fused(label="", samples=(*UNARY, FAR, HUGE), bad=NOT_F32)
def gelu_erf(x: Value) -> Value:
    """x (1 + erf(x / √2)) / 2, elementwise: f32[...] -> f32[...]; the exact form of GELU.

    D. Hendrycks, K. Gimpel, Gaussian Error Linear Units (GELUs), 2016.
    """
    return x.scale(0.5) * (1 + erf(x.scale(math.sqrt(0.5))))  # 2x may overflow


@fused(
    label="Gelu+Mul→GeGLU",
    kernel=Elementwise(f"gate * sigmoid_stable({_INNER.replace('x', 'gate')}) * up"),
    samples=GATES,
    bad=UNEQUAL,
    check=equal_shapes,
)
def geglu(gate: Value, up: Value) -> Value:
    """gelu(gate) · up, elementwise: f32[...], f32[...] -> f32[...] of equal shapes.

    N. Shazeer, GLU Variants Improve Transformer, 2020.
    """
    return gelu(gate) * up


@geglu.vjp
def _(g: Value, out: Value, gate: Value, up: Value) -> Grads:
    """∂gate = gelu_grad(gate, g · up),  ∂up = g · gelu(gate)"""
    return lambda: gelu_grad(gate, g * up), lambda: geglu(gate, g)


@fused(
    label="",
    kernel=Elementwise("relu_nan(x) + log1p(exp(-abs(beta * x))) / beta"),
    samples=(*UNARY, FAR, Sample((70,), attrs={"beta": 0.25}), Sample((3, 5), attrs={"beta": 8.0}),
             Sample((3,), values=([0.0, 1e4, -1e4],), grads=([0.5, 1.0, 0.0],))),
    bad=(*NOT_F32, *(Bad(("f32[3]",), f"softplus: beta: given {b}, wanted a number above 0", {"beta": b})
                     for b in (0.0, -1.0)),
         Bad(("f32[3]",), "softplus: beta: given inf, wanted a finite number", {"beta": math.inf})),
    check=lambda x, beta: want(beta > 0, "a number above 0", beta, "beta"),
)  # fmt: skip
def softplus(x: Value, beta: float = 1.0) -> Value:
    """relu(x) + ln(1 + e^(−|beta · x|)) / beta, elementwise: f32[...] -> f32[...]; beta > 0."""
    return x.relu() + (-x.scale(beta).abs()).exp().log1p().scale(1 / beta)


@softplus.vjp
def _(g: Value, out: Value, x: Value, beta: float) -> Grads:
    """∂x = g · sigmoid(beta · x)"""
    return (g * sigmoid(x.scale(beta)),)


@fused(
    label="",
    kernel=Elementwise("select(expm1(x), x, x > 0.0)"),
    samples=(*UNARY, FAR, Sample((3,), values=([0.0, 2.0, -1e4],), grads=([1.0, 1.0, 0.0],))),
    bad=NOT_F32,
)
def elu(x: Value) -> Value:
    """x above 0, else e^x − 1, elementwise: f32[...] -> f32[...]; slope 1 at 0.

    D.-A. Clevert, T. Unterthiner, S. Hochreiter, Fast and Accurate Deep Network Learning by Exponential Linear Units
    (ELUs), 2015.
    """
    return x.relu() + (-(-x).relu()).expm1()


@elu.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = where(out > 0, g, g · (out + 1))"""
    return ((out > 0).where(g, g * (out + 1)),)


# a product and an addend ----------------------------------------------------------------------------------------------
def _addend_fits(product: tuple[int, ...], c: Value, addend: Addend) -> None:
    rows, columns = product
    fits = c.shape == product if addend == "full" else c.shape in ((columns,), (1, columns))
    wanted = f"c[{rows}, {columns}] with addend='full'" if addend == "full" else f"c[{columns}] with addend='row'"
    want(fits, wanted, str(c.type), "addend")


def _add(product: Value, c: Value, addend: Addend) -> Value:
    return bias_add(product, c) if addend == "row" else product + c


def _samples(*layouts: tuple[int, ...]) -> tuple[Sample, ...]:
    """Return a, b, c of m × k × n = 3 × 4 × 5, 17 × 33 × 2 and 1 × 1 × 1, full and by row; layouts index (m, k, n)."""
    sizes = ((3, 4, 5), (17, 33, 2), (1, 1, 1))
    full = [Sample(*(tuple(s[i] for i in axes) for axes in layouts), (s[0], s[2])) for s in sizes]
    row = [Sample(*(tuple(s[i] for i in axes) for axes in layouts), (s[2],), attrs={"addend": "row"}) for s in sizes]
    return (*full, *row, Sample(*row[0].shapes[:2], (1, 5), attrs={"addend": "row"}))


def _bad(a: str, b: str) -> tuple[Bad, ...]:
    return (
        Bad((a, b, "f32[5]"), "addend: given f32[5], wanted c[3, 5] with addend='full'"),
        Bad((a, b, "f32[3, 5]"), "addend: given f32[3, 5], wanted c[5] with addend='row'", {"addend": "row"}),
        Bad((a, b, "f32[3, 5]"), "addend: given 'column', wanted one of full, row", {"addend": "column"}),
        Bad((a, "f32[7, 7]", "f32[3, 5]"), "differ"),
    )


@fused(
    label={"full": "MatMul+Add→FusedMatMulAdd", "row": "MatMul+BiasAdd→FusedMatMulAdd"},
    family="contraction",
    samples=_samples((0, 1), (1, 2)),
    bad=_bad("f32[3, 4]", "f32[4, 5]"),
    check=lambda a, b, c, addend: _addend_fits(matmul.rule(a, b).shape, c, addend),
)
def fused_matmul_add(a: Value, b: Value, c: Value, addend: Literal["full", "row"] = "full") -> Value:
    """a · b + c: f32[m, k], f32[k, n], f32[m, n] (full) or f32[n] (row) -> f32[m, n]."""
    return _add(matmul(a, b), c, addend)


@fused(
    label={"full": "MatMulAT+Add→FusedMatMulATAdd", "row": "MatMulAT+BiasAdd→FusedMatMulATAdd"},
    family="contraction",
    samples=_samples((1, 0), (1, 2)),
    bad=_bad("f32[4, 3]", "f32[4, 5]"),
    check=lambda a, b, c, addend: _addend_fits(matmul_at.rule(a, b).shape, c, addend),
)
def fused_matmul_at_add(a: Value, b: Value, c: Value, addend: Literal["full", "row"] = "full") -> Value:
    """aᵀ · b + c: f32[k, m], f32[k, n], f32[m, n] (full) or f32[n] (row) -> f32[m, n]."""
    return _add(matmul_at(a, b), c, addend)


@fused(
    label={"full": "MatMulBT+Add→FusedMatMulBTAdd", "row": "MatMulBT+BiasAdd→FusedMatMulBTAdd"},
    family="contraction",
    samples=_samples((0, 1), (2, 1)),
    bad=_bad("f32[3, 4]", "f32[5, 4]"),
    check=lambda a, b, c, addend: _addend_fits(matmul_bt.rule(a, b).shape, c, addend),
)
def fused_matmul_bt_add(a: Value, b: Value, c: Value, addend: Literal["full", "row"] = "full") -> Value:
    """a · bᵀ + c: f32[m, k], f32[n, k], f32[m, n] (full) or f32[n] (row) -> f32[m, n]."""
    return _add(matmul_bt(a, b), c, addend)


# a norm and a product -------------------------------------------------------------------------------------------------
def _norm_fits(x: Value, w: Value, m: Value, eps: float) -> None:
    fits = x.type.rank == m.type.rank == 2 and w.shape == x.shape[-1:] == m.shape[:1]
    want(fits, "x[r, k], w[k] and m[k, n]")
    want(eps > 0, "a number above 0", eps, "eps")


NORMED = tuple(Sample((r, k), (k,), (k, n), attrs={"eps": 1e-5}) for r, k, n in ((3, 5, 4), (17, 33, 2), (1, 1, 1)))


@fused(
    label="",
    family="reduction",
    samples=NORMED,
    bad=(Bad(("f32[3, 5]", "f32[5]", "f32[4, 5]"), "wanted x[r, k], w[k] and m[k, n]", {"eps": 1e-5}),
         Bad(("f32[3, 5]", "f32[3]", "f32[5, 4]"), "wanted x[r, k], w[k] and m[k, n]", {"eps": 1e-5}),
         Bad(("f32[3, 5]", "f32[5]", "f32[5, 4]"), "eps: given -1.0, wanted a number above 0", {"eps": -1.0})),
    check=_norm_fits,
)  # fmt: skip
def fused_rms_norm_matmul(x: Value, w: Value, m: Value, eps: float) -> Value:
    """rms_norm(x, w, eps) · m: f32[r, k], f32[k], f32[k, n] -> f32[r, n]; eps > 0. The gradient norms x again."""
    return matmul(rms_norm(x, w, eps), m)


@fused(
    label="GroupNorm+Silu→GroupNormSilu",
    family="reduction",
    samples=tuple(Sample(shape, shape[1:2], shape[1:2], attrs={"groups": groups, "eps": 1e-5})
                  for shape, groups in (((2, 4, 3, 2), 2), ((1, 6, 5), 3), ((2, 5, 70), 1))),
    bad=(Bad(("f32[2, 4, 3]", "f32[4]", "f32[3]"), "wanted x[b, c, …], w[c] and b[c]", {"groups": 2, "eps": 1e-5}),),
    check=group_norm.check,
    phases=("inference",),  # training needs the normalized value again
)  # fmt: skip
def group_norm_silu(x: Value, w: Value, b: Value, groups: int, eps: float) -> Value:
    """silu(group_norm(x, w, b, groups, eps)): f32[b, c, ...], f32[c], f32[c] -> f32[b, c, ...]; eps > 0."""
    return silu(group_norm(x, w, b, groups, eps))
