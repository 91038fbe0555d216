"""Products of several matrices at once: `batch_matmul`, of rank-3 operands, and `block_matmul`, of blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape, TensorType
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Follows,
    Grads,
    Sample,
    Shader,
    Verdict,
    Work,
    WorkRule,
    along,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

# Strides in elements: of a (matrix, row, step), of b (matrix, step, column), of the result (matrix, row).
Strides = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int]]
# (operand types, result type) -> how many products, their extents m, n and k, where their elements lie
Layout = Callable[[tuple[TensorType, ...], TensorType], tuple[int, tuple[int, int, int], Strides]]

TILE, ROWS, COLUMNS = 64, 4, 8


def _aligned(batch: int, first: int, second: int, extents: tuple[int, int]) -> int:
    """Return whether four neighbours from a multiple of 4 on always are one aligned vector inside the operand."""
    along, other = (extents[1], first) if second == 1 else (extents[0], second)
    return int(batch % 4 == other % 4 == along % 4 == 0)


def _work(layout: Layout, hardware: bool) -> WorkRule:
    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        count, (m, n, k), (a, b, c) = layout(types, result)
        tall = int(m > TILE)
        down, across = (TILE << tall, TILE) if hardware else (ROWS, COLUMNS)
        constants = dict(zip(("GROUPS", "M", "N", "K"), (count, m, n, k), strict=True))
        constants |= dict(zip(("A_G", "A_M", "A_K"), a, strict=True))
        constants |= dict(zip(("B_G", "B_K", "B_N"), b, strict=True))
        constants |= {"C_G": c[0], "C_M": c[1], "TALL": tall}
        constants |= {"A_ALIGNED": _aligned(*a, (m, k)), "B_ALIGNED": _aligned(*b, (k, n))}
        units = count * -(-m // down) * -(-n // across)
        group, trips = (256, 0) if hardware else (0, k + 4)
        return Work(units, 0, constants, 2 * count * m * n * k, group, trips=trips, extents=f"{count}x{m}x{n}x{k}")

    return work


def _view(data: Array, shape: Shape, strides: Shape) -> Array:
    """View `data` as an array of `shape` whose strides are given in elements."""
    return np.lib.stride_tricks.as_strided(data, shape, [s * data.itemsize for s in strides])


def _products_form(builder: KernelBuilder, c: KernelConstants) -> None:
    count, m, n, k = (c[name] for name in ("GROUPS", "M", "N", "K"))
    a, b = (builder.operand(i, builder.operand_shape(i)) for i in (0, 1))
    left = _view(a, (count, m, k), (c["A_G"], c["A_M"], c["A_K"]))
    right = _view(b, (count, k, n), (c["B_G"], c["B_K"], c["B_N"]))
    out = _view(builder.out((count * m * n,)), (count, m, n), (c["C_G"], c["C_M"], 1))
    builder.product(left, right, out)


def _kernel(layout: Layout) -> Shader:
    tiles = Shader("batch_matmul.wgsl", _work(layout, hardware=True), linear=True, in_bounds=True)
    registers = _work(layout, hardware=False)
    return Shader("batch_matmul_registers.wgsl", registers, tiles, linear=True, numpy_form=_products_form)


# three axes: [batch, rows, columns] -----------------------------------------------------------------------------------
def _batched(a: str, b: str) -> Layout:
    """Return the kernel of batched products: `a` is stored [g, m, k] or [g, k, m], `b` [g, k, n] or [g, n, k]."""

    def layout(types: tuple[TensorType, ...], result: TensorType) -> tuple[int, tuple[int, int, int], Strides]:
        count, m, n = result.shape
        k = types[0].shape[2 if a == "mk" else 1]
        of_a = (m * k, k, 1) if a == "mk" else (m * k, 1, m)
        of_b = (k * n, n, 1) if b == "kn" else (k * n, 1, k)
        return count, (m, n, k), (of_a, of_b, (m * n, n))

    return layout


def _batches(a: Value, b: Value, k_of_a: int, k_of_b: int, wanted: str) -> None:
    want(a.type.rank == b.type.rank == 3, f"{wanted}: rank 3 twice")
    want(a.shape[0] == b.shape[0], f"{wanted}: {a.shape[0]} and {b.shape[0]} matrices differ")
    left, right = a.shape[k_of_a], b.shape[k_of_b]
    want(left == right, f"{wanted}: {left} and {right} differ")


def _swapped(x: Array) -> Array:
    return np.swapaxes(x, 1, 2)


def _by_letters(a: str, b: str) -> Follows:
    return lambda call: along(call, [a, b], "gmn", mixes={"k": 0.0})


SIZES = (  # g, m, k, n
    (2, 3, 4, 5), (1, 1, 1, 1), (3, 17, 33, 2), (2, 1, 65, 3), (1, 65, 2, 129), (5, 2, 3, 1), (2, 68, 8, 12),
)  # fmt: skip


def _refusals(wanted: str, wrong: tuple[str, str], differ: str) -> tuple[Bad, ...]:
    return (
        Bad(wrong, f"wanted {wanted}: {differ} differ"),
        Bad(("f32[3, 5]", wrong[1]), f"wanted {wanted}: rank 3 twice"),
        Bad(("f32[4, 3, 5]", wrong[1]), f"wanted {wanted}: 4 and 2 matrices differ"),
        Bad((wrong[0], "u32[2, 5, 3]"), "wanted f32 operands"),
    )


@op(
    numpy=np.matmul,
    kernel=_kernel(_batched("mk", "kn")),
    family="contraction",
    samples=tuple(Sample((g, m, k), (g, k, n)) for g, m, k, n in SIZES),
    bad=_refusals("a[g, m, k] and b[g, k, n]", ("f32[2, 3, 5]", "f32[2, 3, 5]"), "5 and 3"),
    passes_factor=True,
    follows=_by_letters("gmk", "gkn"),
)
def batch_matmul(a: Value, b: Value) -> TensorType:
    """Matrix products a[g] · b[g] of each matrix: f32[g, m, k], f32[g, k, n] -> f32[g, m, n]."""
    _batches(a, b, 2, 1, "a[g, m, k] and b[g, k, n]")
    return TensorType((a.shape[0], a.shape[1], b.shape[2]))


@batch_matmul.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · bᵀ,  ∂b = aᵀ · g"""
    return lambda: batch_matmul_bt(g, b), lambda: batch_matmul_at(a, g)


@op(
    numpy=lambda a, b: _swapped(a) @ b,
    kernel=_kernel(_batched("km", "kn")),
    family="contraction",
    samples=tuple(Sample((g, k, m), (g, k, n)) for g, m, k, n in SIZES),
    bad=_refusals("a[g, k, m] and b[g, k, n]", ("f32[2, 3, 5]", "f32[2, 5, 3]"), "3 and 5"),
    follows=_by_letters("gkm", "gkn"),
)
def batch_matmul_at(a: Value, b: Value) -> TensorType:
    """Matrix products a[g]ᵀ · b[g] without a transpose: f32[g, k, m], f32[g, k, n] -> f32[g, m, n]."""
    _batches(a, b, 1, 1, "a[g, k, m] and b[g, k, n]")
    return TensorType((a.shape[0], a.shape[2], b.shape[2]))


@batch_matmul_at.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = b · gᵀ,  ∂b = a · g"""
    return lambda: batch_matmul_bt(b, g), lambda: batch_matmul(a, g)


@op(
    numpy=lambda a, b: a @ _swapped(b),
    kernel=_kernel(_batched("mk", "nk")),
    family="contraction",
    samples=tuple(Sample((g, m, k), (g, n, k)) for g, m, k, n in SIZES),
    bad=_refusals("a[g, m, k] and b[g, n, k]", ("f32[2, 3, 5]", "f32[2, 5, 3]"), "5 and 3"),
    passes_factor=True,
    follows=_by_letters("gmk", "gnk"),
)
def batch_matmul_bt(a: Value, b: Value) -> TensorType:
    """Matrix products a[g] · b[g]ᵀ without a transpose: f32[g, m, k], f32[g, n, k] -> f32[g, m, n]."""
    _batches(a, b, 2, 2, "a[g, m, k] and b[g, n, k]")
    return TensorType((a.shape[0], a.shape[1], b.shape[1]))


@batch_matmul_bt.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b,  ∂b = gᵀ · a"""
    return lambda: batch_matmul(g, b), lambda: batch_matmul_at(g, a)


# blocks side by side in a row -----------------------------------------------------------------------------------------
def _in_rows(b: str) -> Layout:
    """Return the layout rule for a [m, g·k], b [g, k, n] or [g, n, k], and the result [m, g·n]."""

    def layout(types: tuple[TensorType, ...], result: TensorType) -> tuple[int, tuple[int, int, int], Strides]:
        count, first, second = types[1].shape
        k, n = (first, second) if b == "kn" else (second, first)
        of_b = (k * n, n, 1) if b == "kn" else (k * n, 1, k)
        return count, (result.shape[0], n, k), ((k, count * k, 1), of_b, (n, count * n))

    return layout


def _of_columns(types: tuple[TensorType, ...], result: TensorType) -> tuple[int, tuple[int, int, int], Strides]:
    """Return the layout of a [k, g·m], b [k, g·n] and the result [g, m, n]."""
    count, m, n = result.shape
    return count, (m, n, types[0].shape[0]), ((m, 1, count * m), (n, count * n, 1), (m * n, n))


def _rows_of_blocks(a: Value, b: Value, k_of_b: int, wanted: str) -> tuple[int, int]:
    """Return the number of blocks, and the extent of b that is neither that nor K."""
    want(a.type.rank == 2 and b.type.rank == 3, f"{wanted}: rank 2 and rank 3")
    count, k = b.shape[0], b.shape[k_of_b]
    want(a.shape[1] == count * k, f"{wanted}: {a.shape[1]} and {count} · {k} differ")
    return count, b.shape[3 - k_of_b]


def _split(x: Array, groups: int) -> Array:
    """View rows of blocks as one matrix per block."""
    blocks: Array = x.reshape(x.shape[0], groups, -1).transpose(1, 0, 2)
    return blocks


def _joined(x: Array) -> Array:
    rows: Array = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    return rows


def _by_rows(call: Call) -> Verdict:
    return along(call, [("row", None), (None, None, None)], ("row", None))


def _over_rows(call: Call) -> Verdict:
    return along(call, [("row", None), ("row", None)], (None, None, None), mixes={"row": 0.0})


@op(
    numpy=lambda a, b: _joined(_split(a, len(b)) @ b),
    kernel=_kernel(_in_rows("kn")),
    family="contraction",
    samples=tuple(Sample((m, g * k), (g, k, n)) for g, m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 5]", "f32[2, 3, 4]"), "wanted a[m, g·k] and b[g, k, n]: 5 and 2 · 3 differ"),
        Bad(("f32[3, 5]", "f32[5, 4]"), "wanted a[m, g·k] and b[g, k, n]: rank 2 and rank 3"),
    ),
    follows=_by_rows,
)
def block_matmul(a: Value, b: Value) -> TensorType:
    """Block i of every row of a times b[i]: f32[m, g·k], f32[g, k, n] -> f32[m, g·n]."""
    count, n = _rows_of_blocks(a, b, 1, "a[m, g·k] and b[g, k, n]")
    return TensorType((a.shape[0], count * n))


@block_matmul.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · bᵀ,  ∂b = aᵀ · g"""
    return lambda: block_matmul_bt(g, b), lambda: block_matmul_at(a, g, b.shape[0])


@op(
    numpy=lambda a, b: _joined(_split(a, len(b)) @ _swapped(b)),
    kernel=_kernel(_in_rows("nk")),
    family="contraction",
    samples=tuple(Sample((m, g * k), (g, n, k)) for g, m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 5]", "f32[2, 4, 3]"), "wanted a[m, g·k] and b[g, n, k]: 5 and 2 · 3 differ"),
        Bad(("f32[3, 5]", "f32[5, 4]"), "wanted a[m, g·k] and b[g, n, k]: rank 2 and rank 3"),
    ),
    follows=_by_rows,
)
def block_matmul_bt(a: Value, b: Value) -> TensorType:
    """Block i of every row of a times b[i]ᵀ: f32[m, g·k], f32[g, n, k] -> f32[m, g·n]."""
    count, n = _rows_of_blocks(a, b, 2, "a[m, g·k] and b[g, n, k]")
    return TensorType((a.shape[0], count * n))


@block_matmul_bt.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = g · b,  ∂b = gᵀ · a"""
    return lambda: block_matmul(g, b), lambda: block_matmul_at(g, a, b.shape[0])


@op(
    numpy=lambda a, b, groups: _swapped(_split(a, groups)) @ _split(b, groups),
    kernel=_kernel(_of_columns),
    family="contraction",
    samples=tuple(Sample((k, g * m), (k, g * n), attrs={"groups": g}) for g, m, k, n in SIZES),
    bad=(
        Bad(("f32[3, 4]", "f32[5, 4]"), "wanted a[k, g·m] and b[k, g·n]: 3 and 5 differ", {"groups": 2}),
        Bad(("f32[3, 4]", "f32[3, 5]"), "groups: given 2, wanted a divisor of 4 and of 5", {"groups": 2}),
        Bad(("f32[3, 4]", "f32[3, 4]"), "groups: given 0, wanted a divisor of 4 and of 4", {"groups": 0}),
        Bad(("f32[2, 3, 4]", "f32[3, 4]"), "wanted a[k, g·m] and b[k, g·n]: rank 2 twice", {"groups": 2}),
    ),
    follows=_over_rows,
)
def block_matmul_at(a: Value, b: Value, groups: int) -> TensorType:
    """Blocks of columns: aᵢᵀ · bᵢ for each of `groups`: f32[k, g·m], f32[k, g·n] -> f32[g, m, n]."""
    wanted = "a[k, g·m] and b[k, g·n]"
    want(a.type.rank == b.type.rank == 2, f"{wanted}: rank 2 twice")
    want(a.shape[0] == b.shape[0], f"{wanted}: {a.shape[0]} and {b.shape[0]} differ")
    m, n = a.shape[1], b.shape[1]
    want(groups >= 1 and m % groups == n % groups == 0, f"a divisor of {m} and of {n}", groups, "groups")
    return TensorType((groups, m // groups, n // groups))


@block_matmul_at.vjp
def _(g: Value, out: Value, a: Value, b: Value, groups: int) -> Grads:
    """∂a = b · gᵀ,  ∂b = a · g"""
    return lambda: block_matmul_bt(b, g), lambda: block_matmul(a, g)
