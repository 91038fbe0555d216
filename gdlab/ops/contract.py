"""Matrix products: `matmul`, and the forms that read an operand transposed."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import Bad, Contraction, Grads, Sample, op, want

SIZES = (  # m, k, n
    (2, 3, 4), (1, 1, 1), (17, 33, 3), (1, 65, 2), (65, 2, 1), (33, 129, 17), (129, 3, 65), (3, 17, 129), (2, 1, 33),
)  # fmt: skip


@op(
    numpy=np.matmul,
    kernel=Contraction("mk", "kn"),
    samples=tuple(Sample((m, k), (k, n)) for m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 5]", "f32[3, 5]"), "given f32[3, 5] and f32[3, 5], wanted a[m, k] and b[k, n]: 5 and 3 differ"),
        Bad(("f32[5]", "f32[5, 2]"), "wanted a[m, k] and b[k, n]: reshape other ranks first"),
        Bad(("f32[3, 5]", "u32[5, 2]"), "wanted f32 operands"),
    ),
    reads_blocks=1,
    passes_factor=True,
)
def matmul(a: Value, b: Value) -> TensorType:
    """Matrix product a · b: f32[m, k], f32[k, n] -> f32[m, n]."""
    _check(a, b, 1, 0, "a[m, k] and b[k, n]")
    return TensorType((a.shape[0], b.shape[1]))


@matmul.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · bᵀ,  ∂b = aᵀ · g"""
    return lambda: (matmul_grad_a if b.type.dtype.in_blocks else matmul_bt)(g, b), lambda: matmul_at(a, g)


@op(
    numpy=lambda a, b: a @ b.T,
    kernel=Contraction("mk", "nk"),
    samples=tuple(Sample((m, n), (k, n)) for m, k, n in SIZES[:4]),
    bad=(Bad(("f32[3, 5]", "f32[5, 3]"), "wanted a[m, n] and b[k, n]: 5 and 3 differ"),),
    kind="private",
    reads_blocks=1,
)
def matmul_grad_a(a: Value, b: Value) -> TensorType:
    """a · bᵀ, the gradient of `matmul` past a weight b that lies in blocks: f32[m, n], f32[k, n] -> f32[m, k]."""
    _check(a, b, 1, 1, "a[m, n] and b[k, n]")
    return TensorType((a.shape[0], b.shape[0]))


@matmul_grad_a.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b,  ∂b = gᵀ · a"""
    return lambda: matmul(g, b), lambda: matmul_at(g, a)


@op(
    numpy=lambda a, b: a.T @ b,
    kernel=Contraction("km", "kn"),
    samples=tuple(Sample((k, m), (k, n)) for m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 5]", "f32[5, 3]"), "given f32[3, 5] and f32[5, 3], wanted a[k, m] and b[k, n]: 3 and 5 differ"),
        Bad(("f32[2, 3, 5]", "f32[3, 2]"), "wanted a[k, m] and b[k, n]: reshape other ranks first"),
    ),
)
def matmul_at(a: Value, b: Value) -> TensorType:
    """Matrix product aᵀ · b without a transpose: f32[k, m], f32[k, n] -> f32[m, n]."""
    _check(a, b, 0, 0, "a[k, m] and b[k, n]")
    return TensorType((a.shape[1], b.shape[1]))


@matmul_at.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = b · gᵀ,  ∂b = a · g"""
    return lambda: matmul_bt(b, g), lambda: matmul(a, g)


@op(
    numpy=lambda a, b: a @ b.T,
    kernel=Contraction("mk", "nk"),
    samples=tuple(Sample((m, k), (n, k)) for m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 5]", "f32[5, 3]"), "given f32[3, 5] and f32[5, 3], wanted a[m, k] and b[n, k]: 5 and 3 differ"),
        Bad(("f32[3, 5]", "f32[5]"), "wanted a[m, k] and b[n, k]: reshape other ranks first"),
    ),
    reads_blocks=1,
    block_axis=-1,
    passes_factor=True,
)
def matmul_bt(a: Value, b: Value) -> TensorType:
    """Matrix product a · bᵀ without a transpose: f32[m, k], f32[n, k] -> f32[m, n]; b may be bf16 or lie in blocks of
    ggml."""
    _check(a, b, 1, 1, "a[m, k] and b[n, k]")
    return TensorType((a.shape[0], b.shape[0]))


@matmul_bt.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b,  ∂b = gᵀ · a"""
    return lambda: (matmul_bt_grad_a if b.type.dtype.in_blocks else matmul)(g, b), lambda: matmul_at(g, a)


@op(
    numpy=lambda a, b: a @ b,
    kernel=Contraction("mk", "kn"),
    samples=tuple(Sample((m, n), (n, k)) for m, k, n in SIZES[:4]),
    bad=(Bad(("f32[3, 5]", "f32[3, 5]"), "wanted a[m, n] and b[n, k]: 5 and 3 differ"),),
    kind="private",
    reads_blocks=1,
    block_axis=-1,
)
def matmul_bt_grad_a(a: Value, b: Value) -> TensorType:
    """a · b, the gradient of `matmul_bt` past a weight b in blocks of ggml: f32[m, n], f32[n, k] -> f32[m, k]."""
    _check(a, b, 1, 0, "a[m, n] and b[n, k]")
    return TensorType((a.shape[0], b.shape[1]))


@matmul_bt_grad_a.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · bᵀ,  ∂b = aᵀ · g"""
    return lambda: matmul_bt(g, b), lambda: matmul_at(a, g)


def _check(a: Value, b: Value, k_of_a: int, k_of_b: int, layout: str) -> None:
    """Check that both operands have rank 2, and that their summed axes have one extent."""
    want(a.type.rank == b.type.rank == 2, f"{layout}: reshape other ranks first")
    left, right = a.shape[k_of_a], b.shape[k_of_b]
    want(left == right, f"{layout}: {left} and {right} differ")
