"""Rules that find a composite in a graph of simpler ops: softmax, norms, gelu, softplus, means.

A long spelling is found in short hops, because many-premise joins are what makes a rule set slow: first the spellings
of a part are made equal, which by itself gains nothing, then one rule names the whole.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

import math

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import (
    add_scalar,
    bias_add,
    bias_mul,
    broadcast_to,
    div,
    exp,
    log,
    max_inner,
    mean,
    mean_all,
    mean_inner,
    neg,
    pow_scalar,
    recip,
    relu,
    reshape,
    rms_norm,
    rsqrt,
    scale,
    sigmoid,
    sqrt,
    square,
    sum_all,
    sum_inner,
    sum_rows,
    tanh,
)
from gdlab.ops.functions import erf
from gdlab.rewrite.rules.conditions import attr_eq, finite, rank
from gdlab.rewrite.rules.measures import kept, last_axis, leading_axes, mean_factor, one_over, row
from gdlab.rewrite.rules.pattern import F32_CONSTANTS, Rewrite
from gdlab.rewrite.rules.rule_table import recognizes, rule

__all__: list[str] = []

CUBE, ROOT, STEEP = 0.044715, math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi)


# spellings of parts ---------------------------------------------------------------------------------------------------
@rule(safety="exact", label="Square→Mul")
def square_opened(x: Value) -> Rewrite:
    """x² → x · x"""
    return square(x) >> x * x


LAST = tuple(Sample(shape, attrs={"axes": (len(shape) - 1,)}) for shape in ((3, 4), (2, 3, 4), (4,)))


@rule(safety="exact", label="Sum→SumInner", where=(attr_eq("axes", last_axis("x")),), samples=LAST)
def sum_over_the_last_axis(x: Value, axes: Shape) -> Rewrite:
    """sum(x, axes, True) → sum_inner(x)

    A sum over the last axis, which is kept.
    """
    return ops.sum(x, axes, True) >> sum_inner(x)


@rule(safety="exact", label="Mean→MeanInner", where=(attr_eq("axes", last_axis("x")),), samples=LAST)
def mean_over_the_last_axis(x: Value, axes: Shape) -> Rewrite:
    """mean(x, axes, True) → mean_inner(x)

    A mean over the last axis, which is kept.
    """
    return mean(x, axes, True) >> mean_inner(x)


@rule(safety="exact", label="Max→MaxInner", where=(attr_eq("axes", last_axis("x")),), samples=LAST)
def max_over_the_last_axis(x: Value, axes: Shape) -> Rewrite:
    """max(x, axes, True) → max_inner(x)

    A maximum over the last axis, which is kept.
    """
    return ops.max(x, axes, True) >> max_inner(x)


# the reduced axis brought back by a reshape
BACK = (attr_eq("axes", last_axis("x")), attr_eq("s", kept("x")))
BACKS = tuple(Sample(shape, attrs={"axes": (len(shape) - 1,), "s": (*shape[:-1], 1)}) for shape in ((3, 4), (2, 3, 4)))


@rule(safety="exact", label="Reshape∘Sum→SumInner", where=BACK, samples=BACKS)
def sum_with_its_axis_back(x: Value, axes: Shape, s: Shape) -> Rewrite:
    """reshape(sum(x, axes), s) → sum_inner(x)

    A sum over the last axis, which comes back with extent 1.
    """
    return reshape(ops.sum(x, axes, False), s) >> sum_inner(x)


@rule(safety="exact", label="Reshape∘Mean→MeanInner", where=BACK, samples=BACKS)
def mean_with_its_axis_back(x: Value, axes: Shape, s: Shape) -> Rewrite:
    """reshape(mean(x, axes), s) → mean_inner(x)

    A mean over the last axis, which comes back with extent 1.
    """
    return reshape(mean(x, axes, False), s) >> mean_inner(x)


@rule(safety="exact", label="Reshape∘Max→MaxInner", where=BACK, samples=BACKS)
def max_with_its_axis_back(x: Value, axes: Shape, s: Shape) -> Rewrite:
    """reshape(max(x, axes), s) → max_inner(x)

    A maximum over the last axis, which comes back with extent 1.
    """
    return reshape(ops.max(x, axes, False), s) >> max_inner(x)


@rule(safety="rounding", label="Recip∘Sqrt→Rsqrt")
def recip_sqrt(x: Value) -> Rewrite:
    """1 / √x → rsqrt(x)"""
    return recip(sqrt(x)) >> rsqrt(x)


@rule(safety="exact", label="Recip∘BroadcastTo→BroadcastTo∘Recip")
def recip_of_broadcast(x: Value, s: Shape) -> Rewrite:
    """1 / broadcast_to(x, s) → broadcast_to(1 / x, s)

    The reciprocal first, then the copies.
    """
    return recip(broadcast_to(x, s)) >> broadcast_to(recip(x), s)


@rule(safety="rounding", label="Mul+BroadcastTo∘Recip→Div")
def mul_broadcast_recip(a: Value, b: Value, s: Shape) -> Rewrite:
    """a · broadcast_to(1 / b, s) → a / broadcast_to(b, s)

    a times copies of 1 / b is a over copies of b.
    """
    return a * broadcast_to(recip(b), s) >> div(a, broadcast_to(b, s))


# mean = Σ / N ---------------------------------------------------------------------------------------------------------
SUMS = (
    Sample((3, 4), attrs={"axes": (1,), "keepdims": False, "c": 0.25}),
    Sample((3, 5), attrs={"axes": (0,), "keepdims": True, "c": one_over(3)}),
    Sample((2, 3, 4), attrs={"axes": (0, 2), "keepdims": False, "c": 0.125}),
)
FACTOR = (attr_eq("c", mean_factor("x", "s")),)


@recognizes("Mean", where=FACTOR, samples=SUMS)
def recognize_mean(x: Value, axes: Shape, keepdims: bool, c: float) -> Rewrite:
    """c · sum(x, axes, keepdims) → mean(x, axes, keepdims)

    A sum over N elements, divided by N.
    """
    return scale(ops.sum(x, axes, keepdims).named("s"), c) >> mean(x, axes, keepdims)


INNER = (Sample((3, 4), attrs={"c": 0.25}), Sample((2, 3, 5), attrs={"c": one_over(5)}))


@recognizes("Mean", where=FACTOR, samples=INNER)
def recognize_mean_inner(x: Value, c: float) -> Rewrite:
    """c · sum_inner(x) → mean_inner(x)

    A sum along the last axis, divided by its extent.
    """
    return scale(sum_inner(x).named("s"), c) >> mean_inner(x)


WHOLE = (Sample((3, 4), attrs={"c": one_over(12)}), Sample((5,), attrs={"c": one_over(5)}))


@recognizes("Mean", where=FACTOR, samples=WHOLE)
def recognize_mean_all(x: Value, c: float) -> Rewrite:
    """c · sum_all(x) → mean_all(x)

    A sum of all elements, divided by their number.
    """
    return scale(sum_all(x).named("s"), c) >> mean_all(x)


ROWS = (
    Sample((3, 4), attrs={"c": one_over(3), "axes": (0,)}),
    Sample((2, 3, 5), attrs={"c": one_over(6), "axes": (0, 1)}),
)


@recognizes("Mean", where=(*FACTOR, attr_eq("axes", leading_axes("x"))), samples=ROWS)
def recognize_mean_of_rows(x: Value, c: float, axes: Shape) -> Rewrite:
    """c · sum_rows(x) → mean(x, axes)

    A sum over the rows, divided by their number.
    """
    return scale(sum_rows(x).named("s"), c) >> mean(x, axes, False)


# softmax --------------------------------------------------------------------------------------------------------------
@recognizes("Softmax")
def recognize_softmax(x: Value, s: Shape) -> Rewrite:
    """u / broadcast_to(sum_inner(u), s) → softmax(x) with u = exp(x − broadcast_to(max_inner(x), s))"""
    powers = exp(x - broadcast_to(max_inner(x), s))
    return div(powers, broadcast_to(sum_inner(powers), s)) >> ops.softmax(x)


@recognizes("LogSoftmax")
def recognize_log_softmax(x: Value, s: Shape) -> Rewrite:
    """u − broadcast_to(log(sum_inner(exp(u))), s) → log_softmax(x) with u = x − broadcast_to(max_inner(x), s)"""
    shifted = x - broadcast_to(max_inner(x), s)
    return shifted - broadcast_to(log(sum_inner(exp(shifted))), s) >> ops.log_softmax(x)


@recognizes("LogSoftmax")
def recognize_log_softmax_by_sum(x: Value, s: Shape) -> Rewrite:
    """x − broadcast_to(m + log(sum_inner(exp(x − broadcast_to(m, s)))), s) → log_softmax(x) with m = max_inner(x)"""
    largest = max_inner(x)
    return x - broadcast_to(largest + log(sum_inner(exp(x - broadcast_to(largest, s)))), s) >> ops.log_softmax(x)


@recognizes("Softmax")
def recognize_softmax_by_log(x: Value) -> Rewrite:
    """exp(log_softmax(x)) → softmax(x)

    The other way round would lose what e^x cannot hold.
    """
    return exp(ops.log_softmax(x)) >> ops.softmax(x)


# norms ----------------------------------------------------------------------------------------------------------------
@recognizes("RmsNorm", where=(rank("w", 1), finite("eps", above=0)))
def recognize_rms_norm(x: Value, w: Value, s: Shape, eps: float) -> Rewrite:
    """bias_mul(x · broadcast_to(rsqrt(mean_inner(x · x) + eps), s), w) → rms_norm(x, w, eps)

    x / √… is found by way of its reciprocal.
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return bias_mul(x * broadcast_to(size, s), w) >> rms_norm(x, w, eps)


@recognizes("RmsNorm", where=(rank("w", 1), finite("eps", above=0)))
def recognize_rms_norm_weight_first(x: Value, w: Value, s: Shape, eps: float) -> Rewrite:
    """bias_mul(x, w) · broadcast_to(rsqrt(mean_inner(x · x) + eps), s) → rms_norm(x, w, eps)

    The weight before the division.
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return bias_mul(x, w) * broadcast_to(size, s) >> rms_norm(x, w, eps)


@recognizes("RmsNorm", where=(rank("w", 1), finite("eps", above=0)))
def recognize_rms_norm_weighted_size(x: Value, w: Value, s: Shape, eps: float) -> Rewrite:
    """x · bias_mul(broadcast_to(rsqrt(mean_inner(x · x) + eps), s), w) → rms_norm(x, w, eps)

    The weight at the size.
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return x * bias_mul(broadcast_to(size, s), w) >> rms_norm(x, w, eps)


ROW = (rank("w", 2), attr_eq("n", row("w")), finite("eps", above=0))


@recognizes("RmsNorm", where=ROW)
def recognize_rms_norm_of_row(x: Value, w: Value, s: Shape, eps: float, n: Shape) -> Rewrite:
    """bias_mul(x · broadcast_to(rsqrt(mean_inner(x · x) + eps), s), w) → rms_norm(x, w, eps)

    The same with a weight [1, n].
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return bias_mul(x * broadcast_to(size, s), w) >> rms_norm(x, reshape(w, n), eps)


@recognizes("RmsNorm", where=ROW)
def recognize_rms_norm_of_row_first(x: Value, w: Value, s: Shape, eps: float, n: Shape) -> Rewrite:
    """bias_mul(x, w) · broadcast_to(rsqrt(mean_inner(x · x) + eps), s) → rms_norm(x, w, eps)

    The weight before the division, of shape [1, n].
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return bias_mul(x, w) * broadcast_to(size, s) >> rms_norm(x, reshape(w, n), eps)


@recognizes("RmsNorm", where=ROW)
def recognize_rms_norm_of_weighted_row(x: Value, w: Value, s: Shape, eps: float, n: Shape) -> Rewrite:
    """x · bias_mul(broadcast_to(rsqrt(mean_inner(x · x) + eps), s), w) → rms_norm(x, w, eps)

    The weight at the size, of shape [1, n].
    """
    size = rsqrt(add_scalar(mean_inner(x * x), eps))
    return x * bias_mul(broadcast_to(size, s), w) >> rms_norm(x, reshape(w, n), eps)


@recognizes("LayerNorm", where=(rank("b", 1),))
def recognize_layer_norm(x: Value, w: Value, b: Value, s: Shape, eps: float) -> Rewrite:
    """bias_add(rms_norm(x − broadcast_to(mean_inner(x), s), w, eps), b) → layer_norm(x, w, b, eps)"""
    centred = x - broadcast_to(mean_inner(x), s)
    return bias_add(rms_norm(centred, w, eps), b) >> ops.layer_norm(x, w, b, eps)


@recognizes("LayerNorm", where=(rank("b", 2), attr_eq("n", row("b"))))
def recognize_layer_norm_of_row(x: Value, w: Value, b: Value, s: Shape, eps: float, n: Shape) -> Rewrite:
    """bias_add(rms_norm(x − broadcast_to(mean_inner(x), s), w, eps), b) → layer_norm(x, w, b, eps)

    The same with a bias [1, n].
    """
    centred = x - broadcast_to(mean_inner(x), s)
    return bias_add(rms_norm(centred, w, eps), b) >> ops.layer_norm(x, w, reshape(b, n), eps)


# silu -----------------------------------------------------------------------------------------------------------------
@recognizes("Sigmoid")
def recognize_sigmoid(x: Value) -> Rewrite:
    """1 / (exp(−x) + 1) → sigmoid(x)"""
    return recip(add_scalar(exp(neg(x)), 1.0)) >> sigmoid(x)


@rule(safety="rounding", label="x·(Sigmoid·u)→Silu·u")
def silu_of_a_product(x: Value, u: Value) -> Rewrite:
    """x · (sigmoid(x) · u) → silu(x) · u"""
    return x * (sigmoid(x) * u) >> ops.silu(x) * u


@rule(safety="rounding", label="x·u·Sigmoid→Silu·u")
def silu_at_the_end(x: Value, u: Value) -> Rewrite:
    """(x · u) · sigmoid(x) → silu(x) · u"""
    return x * u * sigmoid(x) >> ops.silu(x) * u


# gelu -----------------------------------------------------------------------------------------------------------------
@rule(safety="rounding", label="PowScalar→Mul")
def cube_opened(x: Value) -> Rewrite:
    """x³ → (x · x) · x"""
    return pow_scalar(x, 3.0) >> x * x * x


@rule(safety="rounding", label="Scale·x·x→Scale∘Cube")
def scaled_cube(x: Value) -> Rewrite:
    """((0.044715 · x) · x) · x → 0.044715 · ((x · x) · x)"""
    return scale(x, CUBE) * x * x >> scale(x * x * x, CUBE)


@rule(safety="rounding", label="Scale(x·x)·x→Scale∘Cube")
def scaled_square(x: Value) -> Rewrite:
    """(0.044715 · (x · x)) · x → 0.044715 · ((x · x) · x)"""
    return scale(x * x, CUBE) * x >> scale(x * x * x, CUBE)


@rule(safety="rounding", label="Scale(x)·x→Scale∘Square")
def scale_of_square(x: Value) -> Rewrite:
    """(0.044715 · x) · x → 0.044715 · (x · x)"""
    return scale(x, CUBE) * x >> scale(x * x, CUBE)


@rule(safety="rounding", label="x·(1+Scale∘Square)→x+Scale∘Cube", tolerance=F32_CONSTANTS)
def cubic_by_factor(x: Value) -> Rewrite:
    """x · (0.044715 · (x · x) + 1) → x + 0.044715 · ((x · x) · x)"""
    return x * add_scalar(scale(x * x, CUBE), 1.0) >> x + scale(x * x * x, CUBE)


@rule(safety="rounding", label="Scale(x)·(1+Scale∘Square)→Scale∘(x+Scale∘Cube)", tolerance=F32_CONSTANTS)
def scaled_cubic_by_factor(x: Value, c: float) -> Rewrite:
    """(c · x) · (0.044715 · (x · x) + 1) → c · (x + 0.044715 · ((x · x) · x))"""
    return scale(x, c) * add_scalar(scale(x * x, CUBE), 1.0) >> scale(x + scale(x * x * x, CUBE), c)


@rule(safety="rounding", label="½+½t→Scale∘(1+t)")
def half_of_both(t: Value) -> Rewrite:
    """½ · t + ½ → ½ · (t + 1)"""
    return add_scalar(scale(t, 0.5), 0.5) >> scale(add_scalar(t, 1.0), 0.5)


@rule(safety="rounding", label="Scale∘(x·(1+t))→Scale(x)·(1+t)")
def half_inside(x: Value, t: Value) -> Rewrite:
    """½ · (x · (t + 1)) → (½ · x) · (t + 1)"""
    return scale(x * add_scalar(t, 1.0), 0.5) >> scale(x, 0.5) * add_scalar(t, 1.0)


@rule(safety="rounding", label="x·Scale(1+t)→Scale(x)·(1+t)")
def half_at_the_other(x: Value, t: Value) -> Rewrite:
    """x · (½ · (t + 1)) → (½ · x) · (t + 1)"""
    return x * scale(add_scalar(t, 1.0), 0.5) >> scale(x, 0.5) * add_scalar(t, 1.0)


@recognizes("Gelu")
def recognize_gelu_tanh(x: Value) -> Rewrite:
    """(½ · x) · (tanh(√(2 / π) · (x + 0.044715 · x³)) + 1) → gelu(x)"""
    inner = scale(x + scale(x * x * x, CUBE), ROOT)
    return scale(x, 0.5) * add_scalar(tanh(inner), 1.0) >> ops.gelu(x)


@recognizes("Gelu")
def recognize_gelu_sigmoid(x: Value) -> Rewrite:
    """x · sigmoid(2 · √(2 / π) · (x + 0.044715 · x³)) → gelu(x)"""
    return x * sigmoid(scale(x + scale(x * x * x, CUBE), STEEP)) >> ops.gelu(x)


@recognizes("GeluErf")
def recognize_gelu_erf(x: Value) -> Rewrite:
    """(½ · x) · (erf(√½ · x) + 1) → gelu_erf(x)"""
    return scale(x, 0.5) * add_scalar(erf(scale(x, math.sqrt(0.5))), 1.0) >> ops.gelu_erf(x)


# not in the forward graph: at 0 the spelling has gradient 0 (relu and |x| say so), softplus one half
@rule(
    safety="rounding", label="Recognize Softplus", near=True, phases=("full", "inference"), tolerance=F32_CONSTANTS
)
def recognize_softplus(x: Value) -> Rewrite:
    """relu(x) + log(exp(−|x|) + 1) → softplus(x)"""
    return relu(x) + log(add_scalar(exp(neg(ops.abs(x))), 1.0)) >> ops.softplus(x, 1.0)
