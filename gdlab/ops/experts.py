"""Products of rows with one of several matrices each, chosen by number: `grouped_matmul`, `_bt`, `_at`; and the choice,
`top_k_indices`.

A number that comes from an input is checked when it is uploaded (`gdlab.plan.indices`); a computed one that is out of
range makes its row zero and its gradients too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType, u32
from gdlab.graph import Node, Value
from gdlab.op import (
    Bad,
    Call,
    Cut,
    Grads,
    IndexOperand,
    Sample,
    Shader,
    Tag,
    Verdict,
    Work,
    WorkRule,
    along,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.index import indices
from gdlab.ops.movement import broadcast_to, reshape

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]
TILE = 64  # columns of a row (rows and columns of a matrix) that one group computes on hardware


# rows times matrices --------------------------------------------------------------------------------------------------
def _by_rows(b: str, units: Callable[[int, int], int], group: int = 0) -> WorkRule:
    """Return the work of a product whose matrices are stored "kn" or "nk", in `units` for these rows and columns."""

    def work(types: Types, result: TensorType, attrs: Attributes) -> Work:
        (m, n), k, experts = result.shape, types[0].shape[1], types[1].shape[0]
        aligned = int((n if b == "kn" else k) % 4 == 0)
        constants = {"PAGES": experts, "N": n, "K": k, "REPEAT": attrs.get("repeat", 1), "W_ALIGNED": aligned}
        constants |= {"W_K": n, "W_N": 1} if b == "kn" else {"W_K": 1, "W_N": k}
        constants |= {"STRIDE": attrs["stride"]} if attrs.get("stride") else {}
        trips = 0 if group else k + 4
        if len(types) > 3:  # with a table
            constants |= {"EXPERTS": types[3].shape[0]}
        extents = f"{m}x{n}x{k} of {experts}"
        return Work(units(m, n), 0, constants, 2 * m * n * k, group, trips=trips, extents=extents)

    return work


def _rows_form(builder: KernelBuilder, c: KernelConstants) -> None:
    n, k, pages, repeat = c["N"], c["K"], c["PAGES"], c["REPEAT"]
    m = builder.size // n
    w = builder.operand(1, (pages, k, n) if c["W_N"] == 1 else (pages, n, k))
    w = w if c["W_N"] == 1 else np.swapaxes(w, 1, 2)
    x, idx = builder.operand(0, (m // repeat, k)), builder.operand(2, (m,))
    if len(c.names) > 3:
        table = builder.operand(3, (c["EXPERTS"],))
        builder.calls.append((_paged_products, (x, w, idx, table, builder.out((m, n)))))
    else:
        builder.calls.append((_products, (x, w, idx, repeat, builder.out((m, n)))))


def _paged_products(x: Array, w: Array, idx: Array, table: Array, out: Array) -> None:
    """Compute out[r] = x[r] · w[table[idx[r]]] where that matrix is there; zeros for a number outside, others stay."""
    for number in np.unique(idx).tolist():
        page = int(table[number]) if number < len(table) else len(w)
        rows = np.flatnonzero(idx == number)
        if page == len(w):
            out[rows] = 0
        elif page < len(w):
            out[rows] = x[rows] @ w[page]


def _products(x: Array, w: Array, idx: Array, repeat: int, out: Array) -> None:
    """Compute out[r] = x[r // repeat] · w[idx[r]], number by number; zeros where there is no such matrix."""
    for expert in np.unique(idx).tolist():
        rows = np.flatnonzero(idx == expert)
        if expert >= len(w):
            out[rows] = 0
        elif len(rows) == len(idx) and repeat == 1:
            np.matmul(x, w[expert], out)
        else:
            out[rows] = x[rows // repeat] @ w[expert]


def _check_stride(w: Value, stride: int) -> None:
    """Check the stride of matrices in blocks of ggml, which may lie apart."""
    if not stride:
        return
    wanted = "0: only matrices in blocks lie apart"
    want(w.type.dtype.in_blocks, wanted, stride, "stride")
    least = w.type.data_bytes // w.shape[0]
    want(stride >= least, f"0 or at least {least}, the bytes of one matrix", stride, "stride")


def _grouped(x: Array, w: Array, idx: Array, repeat: int = 1) -> Array:
    out = np.zeros((len(idx), w.shape[2]), x.dtype)
    _products(x, w, idx, repeat, out)
    return out


def _kernel(b: str, pages: str = "all_pages.wgsl") -> Shader:
    alone = _by_rows(b, lambda m, n: m * -(-n // 4))
    groups = _by_rows(b, lambda m, n: m * -(-n // TILE), group=256)
    hardware = Shader(f"grouped_matmul_rows.wgsl + {pages}", groups, linear=True)
    return Shader(f"grouped_matmul.wgsl + {pages}", alone, hardware, linear=True, numpy_form=_rows_form)


_OPERANDS = {"kn": "x[m, k], w[e, k, n] and idx[m] u32", "nk": "x[m / repeat, k], w[e, n, k] and idx[m] u32"}


def _grouped_type(x: Value, w: Value, idx: Value, b: str, repeat: int = 1) -> TensorType:
    wanted = _OPERANDS[b]
    indices(wanted, idx, x, w)
    want(x.type.rank == 2 and w.type.rank == 3, wanted)
    want(repeat >= 1, "an int ≥ 1", repeat, "repeat")
    rows, k, n = x.shape[0] * repeat, *((w.shape[1], w.shape[2]) if b == "kn" else (w.shape[2], w.shape[1]))
    want(x.shape[1] == k, f"{wanted}: {x.shape[1]} and {k} differ")
    given = f"{x.shape[0]} · {repeat}" if repeat > 1 else f"{rows}"
    want(rows == idx.shape[0], f"{wanted}: {given} rows and {idx.shape[0]} numbers differ")
    return TensorType((rows, n))


def _by_row(call: Call) -> Verdict:
    return along(call, ["mk", (None, "k", "n"), "m"], "mn", mixes={"k": 0.0})


def _by_repeated_row(call: Call) -> Verdict:
    """Treat the product as that of x with each row repeated."""
    repeat, (x, *others) = call.attrs["repeat"], call.types
    types = (TensorType((x.shape[0] * repeat, x.shape[1]), x.dtype), *others)
    rows, *tags = call.tags
    alike = replace(call, types=types, tags=(tuple(_spread(tag, repeat) for tag in rows), *tags))
    verdict = along(alike, ["mk", (None, "n", "k"), "m"], "mn", mixes={"k": 0.0})
    operands = tuple(_gathered(tag, repeat) for tag in verdict.operands[0])
    return replace(verdict, operands=(operands, *verdict.operands[1:]))


def _spread(tag: Tag, repeat: int) -> Tag:
    return replace(tag, inner=tag.inner * repeat) if tag.axis == 0 else tag


def _gathered(tag: Tag, repeat: int) -> Tag:
    if tag.axis == 0 and tag.inner % repeat:
        raise Cut(f"a bucket axis inside the {repeat} rows that each row of x meets")
    return replace(tag, inner=tag.inner // repeat) if tag.axis == 0 else tag


# m, k, n, experts
SIZES = ((3, 4, 5, 2), (1, 1, 1, 1), (17, 33, 2, 4), (1, 65, 3, 3), (70, 2, 129, 3), (5, 8, 12, 1), (9, 68, 68, 16))
EXPERTS = IndexOperand(2, lambda types, attrs: types[1].shape[0], experts=True)


@op(
    numpy=_grouped,
    kernel=_kernel("kn"),
    family="contraction",
    samples=(*(Sample((m, k), (e, k, n), (m,), integers={2: e}) for m, k, n, e in SIZES),
             Sample((6, 3), (4, 3, 2), (6,), integers={2: 4}, values=(None, None, [3, 3, 3, 1, 0, 0])),
             Sample((4, 3), (3, 3, 2), (4,), integers={2: 3}, values=(None, None, [2, 2, 2, 2])),
             Sample((2, 2), (2, 2, 1), (2,), integers={2: 3},
                    values=([[1, 2], [3, 4]], [[[5], [6]], [[7], [8]]], [1, 2]),
                    grads=([[7, 8], [0, 0]], [[[0], [0]], [[1], [2]]], None))),
    bad=(Bad(("f32[4, 3]", "f32[2, 5, 6]", "u32[4]"), "wanted x[m, k], w[e, k, n] and idx[m] u32: 3 and 5 differ"),
         Bad(("f32[4, 3]", "f32[2, 3, 6]", "u32[5]"),
             "wanted x[m, k], w[e, k, n] and idx[m] u32: 4 rows and 5 numbers differ"),
         Bad(("f32[4, 3]", "f32[3, 6]", "u32[4]"),
             "grouped_matmul: operands: given f32[4, 3] and f32[3, 6] and u32[4], wanted x[m, k], w[e, k, n]"),
         Bad(("f32[4, 3]", "f32[2, 3, 6]", "f32[4]"), "wanted x[m, k], w[e, k, n] and idx[m] u32")),
    any_dtype=True,
    indices=EXPERTS,
    follows=_by_row,
)  # fmt: skip
def grouped_matmul(x: Value, w: Value, idx: Value) -> TensorType:
    """Row i of x times matrix idx[i] of w: f32[m, k], f32[e, k, n], u32[m] -> f32[m, n].

    An index ≥ e makes its row zero; matrices without rows and one matrix for all rows are legal.
    """
    return _grouped_type(x, w, idx, "kn")


@grouped_matmul.vjp
def _(g: Value, out: Value, x: Value, w: Value, idx: Value) -> Grads:
    """∂x[i] = g[i] · w[idx[i]]ᵀ,  ∂w[e] = Σ x[i]ᵀ · g[i] over idx[i] = e"""
    return lambda: grouped_matmul_bt(g, w, idx), lambda: grouped_matmul_at(x, g, idx, w.shape[0]), None


def _paged(x: Array, w: Array, idx: Array, table: Array) -> Array:
    out = np.zeros((len(idx), w.shape[2]), x.dtype)
    _paged_products(x, w, idx, table, out)
    return out


# rows, pages, experts
@op(
    numpy=_paged,
    kernel=_kernel("kn", "some_pages.wgsl"),
    family="contraction",
    kind="private",
    samples=(*(Sample((m, k), (p, k, n), (m,), (e,), integers={2: e, 3: p + 1})
               for m, k, n, p, e in ((5, 4, 3, 2, 6), (70, 9, 129, 3, 4), (6, 8, 8, 4, 4))),),
    no_grad="refuses",
    any_dtype=True,
    own_buffer=True,
    indices=IndexOperand(2, lambda types, attrs: types[3].shape[0], experts=True),
    follows=lambda call: along(call, ["mk", (None, "k", "n"), "m", (None,)], "mn", mixes={"k": 0.0}),
)  # fmt: skip
def paged_grouped_matmul(x: Value, w: Value, idx: Value, table: Value) -> TensorType:
    """Row i of x times matrix table[idx[i]] of w: f32[m, k], f32[p, k, n], u32[m], u32[e] -> f32[m, n].

    An index ≥ e and an entry p of the table make a row zero. Rows with an entry above p are left as they are in the
    memory of the result: the dispatch is run again with another table.
    """
    indices("x[m, k], w[p, k, n], idx[m] u32 and table[e] u32", table)
    want(table.type.rank == 1, "table[e] u32")
    return _grouped_type(x, w, idx, "kn")


@op(
    numpy=lambda x, w, idx, repeat, stride=0: _grouped(x, np.swapaxes(w, 1, 2), idx, repeat),
    kernel=_kernel("nk"),
    family="contraction",
    samples=(*(Sample((m, k), (e, n, k), (m,), attrs={"repeat": 1}, integers={2: e}) for m, k, n, e in SIZES),
             Sample((3, 4), (5, 6, 4), (6,), attrs={"repeat": 2}, integers={2: 5}),
             Sample((2, 68), (3, 66, 68), (16,), attrs={"repeat": 8}, integers={2: 3}),
             Sample((1, 2), (2, 1, 2), (3,), attrs={"repeat": 3}, integers={2: 3},
                    values=([[1, 2]], [[[5, 6]], [[7, 8]]], [1, 2, 1]),
                    grads=([[14, 16]], [[[0, 0]], [[2, 4]]], None))),
    bad=(Bad(("f32[4, 3]", "f32[2, 6, 5]", "u32[4]"),
             "wanted x[m / repeat, k], w[e, n, k] and idx[m] u32: 3 and 5 differ"),
         Bad(("f32[4, 3]", "f32[2, 6, 3]", "u32[4]"),
             "wanted x[m / repeat, k], w[e, n, k] and idx[m] u32: 4 · 2 rows and 4 numbers differ", {"repeat": 2}),
         Bad(("f32[4, 3]", "f32[2, 6, 3]", "u32[4]"), "grouped_matmul_bt: repeat: given 0, wanted an int ≥ 1",
             {"repeat": 0}),
         Bad(("f32[4, 3]", "f32[6, 3]", "u32[4]"), "wanted x[m / repeat, k], w[e, n, k] and idx[m] u32"),
         Bad(("u32[4, 3]", "f32[2, 6, 3]", "u32[4]"), "wanted x[m / repeat, k], w[e, n, k] and idx[m] u32")),
    any_dtype=True,
    reads_blocks=1,
    block_axis=-1,
    indices=EXPERTS,
    follows=_by_repeated_row,
)  # fmt: skip
def grouped_matmul_bt(x: Value, w: Value, idx: Value, repeat: int = 1, stride: int = 0) -> TensorType:
    """Row i // repeat of x times the transpose of matrix idx[i] of w: f32[m / repeat, k], f32[e, n, k], u32[m]
    -> f32[m, n].

    An index ≥ e makes its row zero. With `repeat` every row of x meets so many matrices: those of one token. w may lie
    in blocks of ggml, then also with `stride` bytes from one matrix to the next (0: as many as one has).
    """
    _check_stride(w, stride)
    return _grouped_type(x, w, idx, "nk", repeat)


@grouped_matmul_bt.vjp
def _(g: Value, out: Value, x: Value, w: Value, idx: Value, repeat: int, stride: int) -> Grads:
    """∂x[j] = Σ g[i] · w[idx[i]] over i // repeat = j,  ∂w[e] = Σ g[i]ᵀ · x[i // repeat] over idx[i] = e"""

    def to_x() -> Value:
        rows = grouped_matmul_bt_grad_x(g, w, idx, stride) if w.type.dtype.in_blocks else grouped_matmul(g, w, idx)
        return rows if repeat == 1 else reshape(rows, (x.shape[0], repeat, x.shape[1])).sum((1,))

    return to_x, lambda: grouped_matmul_at(g, _repeated(x, repeat), idx, w.shape[0]), None


@op(
    numpy=lambda x, w, idx, stride=0: _grouped(x, w, idx),
    kernel=_kernel("kn"),
    family="contraction",
    kind="private",
    samples=tuple(Sample((m, k), (e, k, n), (m,), integers={2: e}) for m, k, n, e in SIZES),
    bad=(Bad(("f32[4, 3]", "f32[2, 5, 6]", "u32[4]"), "wanted x[m, k], w[e, k, n] and idx[m] u32: 3 and 5 differ"),),
    any_dtype=True,
    reads_blocks=1,
    block_axis=-1,
    indices=EXPERTS,
    follows=_by_row,
)  # fmt: skip
def grouped_matmul_bt_grad_x(x: Value, w: Value, idx: Value, stride: int = 0) -> TensorType:
    """Row i of x times matrix idx[i] of w, the gradient of `grouped_matmul_bt` past matrices in blocks of ggml:
    f32[m, n], f32[e, n, k], u32[m] -> f32[m, k]."""
    _check_stride(w, stride)
    return _grouped_type(x, w, idx, "kn")


@grouped_matmul_bt_grad_x.vjp
def _(g: Value, out: Value, x: Value, w: Value, idx: Value, stride: int) -> Grads:
    """∂x[i] = g[i] · w[idx[i]]ᵀ,  ∂w[e] = Σ x[i]ᵀ · g[i] over idx[i] = e"""
    return lambda: grouped_matmul_bt(g, w, idx, 1, stride), lambda: grouped_matmul_at(x, g, idx, w.shape[0]), None


def _repeated(x: Value, repeat: int) -> Value:
    """Repeat every row of x, copies one after the other."""
    if repeat == 1:
        return x
    rows, width = x.shape
    return reshape(broadcast_to(reshape(x, (rows, 1, width)), (rows, repeat, width)), (rows * repeat, width))


# sums of outer products -----------------------------------------------------------------------------------------------
def _by_matrix(down: int, across: int, group: int = 0) -> WorkRule:
    """Return the work of sums of outer products, by tiles of these rows and columns."""

    def work(types: Types, result: TensorType, attrs: Attributes) -> Work:
        (experts, k, n), m = result.shape, types[0].shape[0]
        constants = {"ROWS": m, "K": k, "N": n}
        units, trips = experts * -(-k // down) * -(-n // across), 0 if group else m + 16
        return Work(units, 0, constants, 2 * m * n * k, group, trips=trips, extents=f"{k}x{n}x{m} of {experts}")

    return work


def _matrices_form(builder: KernelBuilder, c: KernelConstants) -> None:
    m, k, n = c["ROWS"], c["K"], c["N"]
    operands = builder.operand(0, (m, k)), builder.operand(1, (m, n)), builder.operand(2, (m,))
    builder.calls.append((_sums_of_outer, (*operands, builder.out((builder.size // (k * n), k, n)))))


def _sums_of_outer(x: Array, g: Array, idx: Array, out: Array) -> None:
    """Compute out[e] = Σ outer(x[i], g[i]) over idx[i] = e."""
    for expert, matrix in enumerate(out):
        rows = np.flatnonzero(idx == expert)
        np.matmul(x[rows].T, g[rows], matrix)


def _grouped_at(x: Array, g: Array, idx: Array, experts: int) -> Array:
    out = np.zeros((experts, x.shape[1], g.shape[1]), np.result_type(x, g))
    _sums_of_outer(x, g, idx, out)
    return out


def _summed_rows(call: Call) -> Verdict:
    return along(call, ["mk", "mn", "m"], (None, "k", "n"), mixes={"m": 0.0})


@op(
    numpy=_grouped_at,
    kernel=Shader(
        "grouped_matmul_at.wgsl", _by_matrix(4, 4),
        Shader("grouped_matmul_at_tiles.wgsl", _by_matrix(TILE, TILE, group=256), linear=True), linear=True,
        numpy_form=_matrices_form,
    ),
    family="contraction",
    samples=(*(Sample((m, k), (m, n), (m,), attrs={"experts": e}, integers={2: e}) for m, k, n, e in SIZES),
             Sample((300, 3), (300, 5), (300,), attrs={"experts": 2}, integers={2: 2}),
             Sample((5, 2), (5, 3), (5,), attrs={"experts": 3}, integers={2: 3}, kink=True,
                    values=(None, None, [0, 5, 0, 2, 0])),
             Sample((2, 2), (2, 1), (2,), attrs={"experts": 1}, integers={2: 2},
                    values=([[1, 2], [3, 4]], [[5], [6]], [1, 0]),
                    grads=([[0, 0], [6, 6]], [[0], [7]], None))),
    bad=(Bad(("f32[4, 3]", "f32[5, 2]", "u32[4]"),
             "grouped_matmul_at: operands: given f32[4, 3] and f32[5, 2] and u32[4], wanted x[m, k], g[m, n]",
             {"experts": 2}),
         Bad(("f32[4, 3]", "f32[4, 2]", "u32[5]"), "wanted x[m, k], g[m, n] and idx[m] u32", {"experts": 2}),
         Bad(("f32[4, 3]", "f32[4, 2]", "f32[4]"), "wanted x[m, k], g[m, n] and idx[m] u32", {"experts": 2}),
         Bad(("f32[4, 3]", "f32[4, 2]", "u32[4]"), "grouped_matmul_at: experts: given 0, wanted an int ≥ 1",
             {"experts": 0})),
    any_dtype=True,
    indices=IndexOperand(2, lambda types, attrs: attrs["experts"], experts=True),
    follows=_summed_rows,
)  # fmt: skip
def grouped_matmul_at(x: Value, g: Value, idx: Value, experts: int) -> TensorType:
    """Matrix e is the sum of x[i]ᵀ · g[i] over the rows with idx[i] = e, in order of i: f32[m, k], f32[m, n], u32[m]
    -> f32[experts, k, n].

    Matrices without rows are 0; a row with an index ≥ experts is left out.
    """
    wanted = "x[m, k], g[m, n] and idx[m] u32"
    indices(wanted, idx, x, g)
    want(x.type.rank == g.type.rank == 2 and x.shape[0] == g.shape[0] == idx.shape[0], wanted)
    want(experts >= 1, "an int ≥ 1", experts, "experts")
    return TensorType((experts, x.shape[1], g.shape[1]))


@grouped_matmul_at.vjp
def _(h: Value, out: Value, x: Value, g: Value, idx: Value, experts: int) -> Grads:
    """∂x[i] = g[i] · h[idx[i]]ᵀ,  ∂g[i] = x[i] · h[idx[i]]"""
    return lambda: grouped_matmul_bt(g, h, idx), lambda: grouped_matmul(x, h, idx), None


# the choice -----------------------------------------------------------------------------------------------------------
def _top_k(x: Array, k: int) -> Array:
    """Return the indices of the k largest elements of each row, stable, by descending value, NaN first."""
    order = np.lexsort((-x, ~np.isnan(x)), axis=-1)
    return order[..., :k].astype(np.uint32)


def _choosing(rounds: bool) -> WorkRule:
    """Return the work of a kernel over rows; with `rounds` the length counts every reading of a row, which software
    adapters limit for each invocation."""

    def work(types: Types, result: TensorType, attrs: Attributes) -> Work:
        (rows, length), k = types[0].shape, attrs["k"]
        constants = {"LENGTH": length, "COUNT": k}
        shared = length * k if rounds else length
        return Work(rows, shared, constants, 2 * rows * length * k, extents=f"{rows}x{length}")

    return work


def _top_k_form(builder: KernelBuilder, c: KernelConstants) -> None:
    rows, k = c.units, c["COUNT"]
    builder.calls.append((_choose, (builder.operand(0, (rows, c["LENGTH"])), k, builder.out((rows, k)))))


def _choose(x: Array, k: int, out: Array) -> None:
    out[...] = _top_k(x, k)


_SPECIAL = [[1, 3, 3, 0, 3], [0, np.nan, 5, np.nan, np.inf], [-np.inf] * 5, [-0.0, 0.0, -1, 0.0, np.nan], [np.nan] * 5]


def _chosen(call: Call) -> Verdict:
    return along(call, ["te"], ("t", None), mixes={"e": -math.inf}, ordered="e")


@op(
    numpy=_top_k,
    kernel=Shader("top_k.wgsl", _choosing(rounds=True), Shader("top_k.wgsl", _choosing(rounds=False)),
                  numpy_form=_top_k_form),
    samples=(Sample((3, 5), attrs={"k": 2}), Sample((70, 8), attrs={"k": 8}), Sample((1, 1), attrs={"k": 1}),
             Sample((2, 3000), attrs={"k": 5}), Sample((9, 68), attrs={"k": 1}),
             *(Sample((5, 5), attrs={"k": k}, values=(_SPECIAL,), kink=True) for k in (1, 3, 5))),
    bad=(Bad(("f32[3, 5]",), "top_k_indices: k: given 0, wanted 1 … 5", {"k": 0}),
         Bad(("f32[3, 5]",), "top_k_indices: k: given 6, wanted 1 … 5", {"k": 6}),
         Bad(("f32[15]",), "top_k_indices: operands: given f32[15], wanted x[t, e]", {"k": 1}),
         Bad(("u32[3, 5]",), "wanted f32 operands", {"k": 1})),
    family="index",
    no_grad="ends",
    follows=_chosen,
)  # fmt: skip
def top_k_indices(x: Value, k: int) -> TensorType:
    """The indices of the k largest elements of every row, largest first: f32[t, e] -> u32[t, k].

    NaN comes before every number, as in `argmax`; of equal elements the first comes first. The gradient path ends.
    """
    want(x.type.rank == 2, "x[t, e]")
    rows, length = x.shape
    want(1 <= k <= length, f"1 … {length}", k, "k")
    return TensorType((rows, k), u32)


# nodes of them --------------------------------------------------------------------------------------------------------
def is_product(node: Node) -> bool:
    """Return whether a node multiplies rows by matrices of operand 1 that operand 2 chooses."""
    return node.op == grouped_matmul.name


def is_choice(node: Node) -> bool:
    """Return whether a node returns the indices of the largest elements."""
    return node.op == top_k_indices.name


def keeps_order(node: Node) -> bool:
    """Return whether a node keeps the elements of its operand in their order."""
    return node.op == reshape.name
