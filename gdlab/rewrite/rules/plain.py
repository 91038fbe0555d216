"""Rules that bring a graph into a plain form, each stated once in op notation: collapses, spellings, products.

The table itself, and `@rule`, are in `rule_table.py`; recognizing composites is in `recognize.py`.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.ops import (
    abs,
    batch_matmul,
    batch_matmul_at,
    batch_matmul_bt,
    bias_add,
    bias_mul,
    broadcast_to,
    clamp,
    div,
    full,
    fused_rms_norm_matmul,
    matmul,
    matmul_at,
    matmul_bt,
    neg,
    permute,
    recip,
    relu,
    reshape,
    rms_norm,
    scale,
    stop_gradient,
    transpose,
)
from gdlab.rewrite.rules.compositions import attr_compose
from gdlab.rewrite.rules.conditions import finite, shape_eq
from gdlab.rewrite.rules.pattern import F32_CONSTANTS, Matrix, Rewrite
from gdlab.rewrite.rules.rule_table import rule

__all__: list[str] = []


# the rules ------------------------------------------------------------------------------------------------------------
@rule(safety="exact", label="Neg∘Neg→x")
def neg_neg(x: Value) -> Rewrite:
    """−(−x) → x"""
    return neg(neg(x)) >> x


@rule(safety="exact", label="Transpose∘Transpose→x")
def transpose_transpose(x: Value) -> Rewrite:
    """(xᵀ)ᵀ → x"""
    return transpose(transpose(x)) >> x


@rule(safety="exact", label="Relu∘Relu→Relu")
def relu_relu(x: Value) -> Rewrite:
    """relu(relu(x)) → relu(x)

    A second relu changes nothing.
    """
    return relu(relu(x)) >> relu(x)


@rule(safety="exact", label="Add+Neg→Sub")
def add_neg(a: Value, b: Value) -> Rewrite:
    """a + −b → a − b"""
    return a + -b >> a - b


@rule(safety="exact", label="Sub→Add+Neg")
def sub_to_add_neg(a: Value, b: Value) -> Rewrite:
    """a − b → a + −b

    Lets a − (−b) become a + b.
    """
    return a - b >> a + -b


@rule(safety="exact", label="Reshape∘Reshape→Reshape")
def reshape_reshape(x: Value, s: Shape, t: Shape) -> Rewrite:
    """reshape(reshape(x, s), t) → reshape(x, t)

    Only the last of two reshapes counts.
    """
    return reshape(reshape(x, s), t) >> reshape(x, t)


@rule(safety="exact", label="Reshape→x", where=(shape_eq("x", "s"),))
def reshape_to_own_shape(x: Value, s: Shape) -> Rewrite:
    """reshape(x, s) → x

    A reshape to the own shape is nothing.
    """
    return reshape(x, s) >> x


@rule(safety="exact", label="BroadcastTo→x", where=(shape_eq("x", "s"),))
def broadcast_to_own_shape(x: Value, s: Shape) -> Rewrite:
    """broadcast_to(x, s) → x

    A broadcast to the own shape is nothing.
    """
    return broadcast_to(x, s) >> x


@rule(safety="exact", label="Permute∘Permute→Permute", where=(attr_compose("p", "q", "r"),))
def permute_permute(x: Value, p: Shape, q: Shape, r: Shape) -> Rewrite:
    """permute(permute(x, p), q) → permute(x, r)

    Two reorderings of the axes are one.
    """
    return permute(permute(x, p), q) >> permute(x, r)


# p after p is p for the identity alone: permutations are a group
@rule(safety="exact", label="Permute→x", where=(attr_compose("p", "p", "p"),))
def permute_identity(x: Value, p: Shape) -> Rewrite:
    """permute(x, p) → x

    Axes in their own order stay where they are.
    """
    return permute(x, p) >> x


@rule(safety="exact", label="Abs∘Neg→Abs")
def abs_neg(x: Value) -> Rewrite:
    """|−x| → |x|"""
    return abs(neg(x)) >> abs(x)


@rule(safety="exact", label="Abs∘Abs→Abs")
def abs_abs(x: Value) -> Rewrite:
    """||x|| → |x|"""
    return abs(abs(x)) >> abs(x)


@rule(safety="exact", label="Clamp∘Clamp→Clamp")
def clamp_clamp(x: Value, lo: float, hi: float) -> Rewrite:
    """clamp(clamp(x, lo, hi), lo, hi) → clamp(x, lo, hi)

    A second clamp to the same bounds changes nothing.
    """
    return clamp(clamp(x, lo, hi), lo, hi) >> clamp(x, lo, hi)


@rule(safety="exact", label="Scale→x")
def scale_by_one(x: Value) -> Rewrite:
    """1 · x → x"""
    return scale(x, 1.0) >> x


@rule(
    safety="rounding", label="Scale∘Scale→Scale", where=(attr_compose("a", "b", "c"), finite("c")),
    tolerance=F32_CONSTANTS,
)  # fmt: skip
def scale_scale(x: Value, a: float, b: float, c: float) -> Rewrite:
    """a · (b · x) → c · x

    Two factors are one, where float32 holds their product.
    """
    return scale(scale(x, b), a) >> scale(x, c)


@rule(safety="rounding", label="Mul+Recip→Div")
def mul_recip(a: Value, b: Value) -> Rewrite:
    """a · (1 / b) → a / b"""
    return a * recip(b) >> div(a, b)


@rule(safety="rounding", label="Div→Mul+Recip")
def div_opened(a: Value, b: Value) -> Rewrite:
    """a / b → a · (1 / b)

    Lets quotients share the reciprocal.
    """
    return div(a, b) >> a * recip(b)


@rule(safety="exact", label="Mul∘One→x")
def mul_by_one(x: Value, s: Shape) -> Rewrite:
    """x · 1 → x

    The seed of a gradient leaves this behind.
    """
    return x * full(s, 1.0) >> x


@rule(safety="exact", label="Add+BroadcastTo→BiasAdd", near=True, where=(shape_eq("b", "x", last=True),))
def broadcast_to_bias_add(x: Value, b: Value, s: Shape) -> Rewrite:
    """x + broadcast_to(b, s) → bias_add(x, b)

    A row added to every row is a bias.
    """
    return x + broadcast_to(b, s) >> bias_add(x, b)


@rule(safety="exact", label="Mul+BroadcastTo→BiasMul", near=True, where=(shape_eq("b", "x", last=True),))
def broadcast_to_bias_mul(x: Value, b: Value, s: Shape) -> Rewrite:
    """x · broadcast_to(b, s) → bias_mul(x, b)

    A row multiplied into every row is a scale per column.
    """
    return x * broadcast_to(b, s) >> bias_mul(x, b)


@rule(safety="exact", label="BiasAdd→Add+BroadcastTo", where=(shape_eq("x", "s"),))
def bias_add_opened(x: Value, b: Value, s: Shape) -> Rewrite:
    """bias_add(x, b) → x + broadcast_to(b, s)

    A bias is a broadcast and a sum, where the broadcast is there already.
    """
    return bias_add(x, b) >> x + broadcast_to(b, s)


@rule(safety="exact", label="BiasMul→Mul+BroadcastTo", where=(shape_eq("x", "s"),))
def bias_mul_opened(x: Value, b: Value, s: Shape) -> Rewrite:
    """bias_mul(x, b) → x · broadcast_to(b, s)

    A scale per column is a broadcast and a product, where the broadcast is there already.
    """
    return bias_mul(x, b) >> x * broadcast_to(b, s)


@rule(safety="rounding", label="MatMul+Transpose→MatMulBT")
def matmul_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """a · bᵀ → matmul_bt(a, b)

    A product reads its second operand transposed without a copy.
    """
    return matmul(a, transpose(b)) >> matmul_bt(a, b)


@rule(safety="rounding", label="Transpose+MatMul→MatMulAT")
def matmul_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """aᵀ · b → matmul_at(a, b)

    A product reads its first operand transposed without a copy.
    """
    return matmul(transpose(a), b) >> matmul_at(a, b)


@rule(safety="rounding", label="MatMulBT+Transpose→MatMul")
def matmul_bt_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """matmul_bt(a, bᵀ) → a · b"""
    return matmul_bt(a, transpose(b)) >> matmul(a, b)


@rule(safety="rounding", label="Transpose+MatMulAT→MatMul")
def matmul_at_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """matmul_at(aᵀ, b) → a · b"""
    return matmul_at(transpose(a), b) >> matmul(a, b)


@rule(safety="rounding", label="Transpose+MatMulBT→Transpose∘MatMul")
def matmul_bt_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """matmul_bt(aᵀ, b) → (b · a)ᵀ

    One transpose instead of two.
    """
    return matmul_bt(transpose(a), b) >> transpose(matmul(b, a))


@rule(safety="rounding", label="MatMulAT+Transpose→Transpose∘MatMul")
def matmul_at_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """matmul_at(a, bᵀ) → (b · a)ᵀ

    One transpose instead of two.
    """
    return matmul_at(a, transpose(b)) >> transpose(matmul(b, a))


@rule(safety="rounding", label="Transpose∘MatMulBT→MatMulBT")
def transpose_of_matmul_bt(a: Value, b: Value) -> Rewrite:
    """matmul_bt(a, b)ᵀ → matmul_bt(b, a)"""
    return transpose(matmul_bt(a, b)) >> matmul_bt(b, a)


@rule(safety="rounding", label="Transpose∘MatMulAT→MatMulAT")
def transpose_of_matmul_at(a: Value, b: Value) -> Rewrite:
    """matmul_at(a, b)ᵀ → matmul_at(b, a)"""
    return transpose(matmul_at(a, b)) >> matmul_at(b, a)


@rule(safety="rounding", label="BatchMatMul+Transpose→BatchMatMulBT")
def batch_matmul_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """a · bᵀ → batch_matmul_bt(a, b)

    Products read their second operands transposed without a copy.
    """
    return batch_matmul(a, transpose(b)) >> batch_matmul_bt(a, b)


@rule(safety="rounding", label="Transpose+BatchMatMul→BatchMatMulAT")
def batch_matmul_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """aᵀ · b → batch_matmul_at(a, b)

    Products read their first operands transposed without a copy.
    """
    return batch_matmul(transpose(a), b) >> batch_matmul_at(a, b)


@rule(safety="rounding", label="BatchMatMulBT+Transpose→BatchMatMul")
def batch_matmul_bt_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """batch_matmul_bt(a, bᵀ) → a · b

    Matrix by matrix.
    """
    return batch_matmul_bt(a, transpose(b)) >> batch_matmul(a, b)


@rule(safety="rounding", label="Transpose+BatchMatMulAT→BatchMatMul")
def batch_matmul_at_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """batch_matmul_at(aᵀ, b) → a · b

    Matrix by matrix.
    """
    return batch_matmul_at(transpose(a), b) >> batch_matmul(a, b)


@rule(safety="exact", label="Permute→Transpose")
def permute_of_two(x: Value) -> Rewrite:
    """permute(x, (1, 0)) → xᵀ

    Both axes exchanged is the transpose.
    """
    return permute(x, (1, 0)) >> transpose(x)


@rule(safety="exact", label="Permute→Transpose")
def permute_of_the_last_two(x: Value) -> Rewrite:
    """permute(x, (0, 2, 1)) → xᵀ

    The last two of three axes exchanged is the transpose.
    """
    return permute(x, (0, 2, 1)) >> transpose(x)


@rule(safety="exact", label="Permute→Transpose∘Permute")
def permute_to_columns(x: Value) -> Rewrite:
    """permute(x, (1, 2, 0)) → permute(x, (1, 0, 2))ᵀ

    [rows, heads, d] as [heads, d, rows] is the transpose of [heads, rows, d].
    """
    return permute(x, (1, 2, 0)) >> transpose(permute(x, (1, 0, 2)))


# off: a norm inside a product is computed again by every tile, and again by the gradient
@rule(safety="rounding", label="RmsNorm+MatMul→FusedRmsNormMatMul", near=True, on=False)
def fuse_rms_norm_matmul(x: Matrix, w: Value, m: Matrix, eps: float) -> Rewrite:
    """rms_norm(x, w, eps) · m → fused_rms_norm_matmul(x, w, m, eps)

    A normalized operand of a product is normalized as it is read.
    """
    return matmul(rms_norm(x, w, eps), m) >> fused_rms_norm_matmul(x, w, m, eps)


@rule(safety="exact", label="StopGradient→x", phases=("full",))
def drop_stop_gradient(x: Value) -> Rewrite:
    """stop_gradient(x) → x

    Once the gradients are there, `stop_gradient` has done its work.
    """
    return stop_gradient(x) >> x
