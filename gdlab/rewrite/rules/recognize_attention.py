"""Rules that find attention in a graph of simpler ops: of one head, of heads [heads, rows, d], with repeated keys.

Heads are found in hops: attention of [heads, rows, d] is that of rows with their heads side by side, between two
reorderings; where such reorderings are written too, they cancel. A. Vaswani et al., Attention Is All You Need, 2017.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import (
    batch_matmul,
    batch_matmul_bt,
    broadcast_to,
    causal_attention,
    full_attention,
    matmul,
    matmul_bt,
    multi_head_attn,
    permute,
    reshape,
    scale,
    softmax,
    where,
)
from gdlab.rewrite.rules.conditions import attr_eq, repeats, shape_eq
from gdlab.rewrite.rules.constant_conditions import causal_mask, hidden, hidden_keys, seen_keys
from gdlab.rewrite.rules.measures import flat_heads, heads, heads_apart, one_over_root, rows_first, width
from gdlab.rewrite.rules.pattern import Matrix, Rewrite
from gdlab.rewrite.rules.rule_table import recognizes, rule

__all__: list[str] = []


# places of the scale of the scores ------------------------------------------------------------------------------------
@rule(safety="rounding", label="Scale∘MatMulBT→MatMulBT∘Scale")
def scaled_query(q: Value, k: Value, c: float) -> Rewrite:
    """(c · q) · kᵀ → c · (q · kᵀ)

    Scores are scaled before or after.
    """
    return matmul_bt(scale(q, c), k) >> scale(matmul_bt(q, k), c)


@rule(safety="rounding", label="MatMulBT∘Scale→Scale∘MatMulBT")
def scaled_key(q: Value, k: Value, c: float) -> Rewrite:
    """q · (c · k)ᵀ → c · (q · kᵀ)"""
    return matmul_bt(q, scale(k, c)) >> scale(matmul_bt(q, k), c)


@rule(safety="rounding", label="Scale∘BatchMatMulBT→BatchMatMulBT∘Scale")
def scaled_queries(q: Value, k: Value, c: float) -> Rewrite:
    """(c · q) · kᵀ → c · (q · kᵀ)

    Head by head.
    """
    return batch_matmul_bt(scale(q, c), k) >> scale(batch_matmul_bt(q, k), c)


@rule(safety="rounding", label="BatchMatMulBT∘Scale→Scale∘BatchMatMulBT")
def scaled_keys(q: Value, k: Value, c: float) -> Rewrite:
    """q · (c · k)ᵀ → c · (q · kᵀ)

    Head by head.
    """
    return batch_matmul_bt(q, scale(k, c)) >> scale(batch_matmul_bt(q, k), c)


@rule(safety="rounding", label="Reshape∘Scale→Scale∘Reshape")
def scale_of_reshape(x: Value, s: Shape, c: float) -> Rewrite:
    """reshape(c · x, s) → c · reshape(x, s)

    A factor may wait until the elements have their places.
    """
    return reshape(scale(x, c), s) >> scale(reshape(x, s), c)


@rule(safety="rounding", label="Permute∘Scale→Scale∘Permute")
def scale_of_permute(x: Value, p: Shape, c: float) -> Rewrite:
    """permute(c · x, p) → c · permute(x, p)

    A factor may wait until the axes have their order.
    """
    return permute(scale(x, c), p) >> scale(permute(x, p), c)


# attention of one head ------------------------------------------------------------------------------------------------
SQUARE = (shape_eq("k", "q"), shape_eq("v", "k"), attr_eq("c", one_over_root("q")), attr_eq("d", width("q")))
ONE = {"c": 0.5, "d": 4}
HEAD = (Sample((3, 4), (3, 4), (3, 4), attrs=ONE),)
MASKED = (Sample((3, 4), (3, 4), (3, 3), (3, 4), attrs=ONE),)
CHOSEN = (Sample((3, 4), (3, 4), (3, 3), (3, 3), (3, 4), attrs=ONE),)


@recognizes("FullAttention", where=SQUARE, samples=HEAD)
def recognize_full_attention(q: Matrix, k: Value, v: Value, c: float, d: int) -> Rewrite:
    """softmax(c · (q · kᵀ)) · v → full_attention(q, k, v, 1, 1, d)

    With c = 1 / √d.
    """
    scores = softmax(scale(matmul_bt(q, k), c))
    return matmul(scores, v) >> full_attention(q, k, v, 1, 1, d)


@recognizes("CausalAttention", where=(*SQUARE, causal_mask("mask")), samples=MASKED)
def recognize_causal_attention(q: Matrix, k: Value, mask: Value, v: Value, c: float, d: int) -> Rewrite:
    """softmax(c · (q · kᵀ) + mask) · v → causal_attention(q, k, v, 1, 1, d)

    With c = 1 / √d; the mask hides the later keys.
    """
    scores = softmax(scale(matmul_bt(q, k), c) + mask)
    return matmul(scores, v) >> causal_attention(q, k, v, 1, 1, d)


@recognizes("CausalAttention", where=(*SQUARE, seen_keys("seen"), hidden("low")), samples=CHOSEN)
def recognize_causal_attention_of_seen(
    q: Matrix, k: Value, seen: Value, low: Value, v: Value, c: float, d: int
) -> Rewrite:
    """softmax(where(seen, c · (q · kᵀ), low)) · v → causal_attention(q, k, v, 1, 1, d)

    With c = 1 / √d; a key that is not seen counts next to −∞.
    """
    scores = softmax(where(seen, scale(matmul_bt(q, k), c), low))
    return matmul(scores, v) >> causal_attention(q, k, v, 1, 1, d)


@recognizes("CausalAttention", where=(*SQUARE, hidden_keys("later"), hidden("low")), samples=CHOSEN)
def recognize_causal_attention_of_hidden(
    q: Matrix, k: Value, later: Value, low: Value, v: Value, c: float, d: int
) -> Rewrite:
    """softmax(where(later, low, c · (q · kᵀ))) · v → causal_attention(q, k, v, 1, 1, d)

    With c = 1 / √d; a later key counts next to −∞.
    """
    scores = softmax(where(later, low, scale(matmul_bt(q, k), c)))
    return matmul(scores, v) >> causal_attention(q, k, v, 1, 1, d)


# attention of heads ---------------------------------------------------------------------------------------------------
SWAP = (1, 0, 2)  # [heads, rows, d] <-> [rows, heads, d]

HEADS = (
    shape_eq("v", "q"), attr_eq("c", one_over_root("q")), attr_eq("h", heads("q")), attr_eq("d", width("q")),
    attr_eq("s", flat_heads("q")), attr_eq("t", rows_first("q")),
)  # fmt: skip
MANY = {"c": 0.5, "h": 2, "d": 4, "s": (3, 8), "t": (3, 2, 4)}
ALL_HEADS = (Sample((2, 3, 4), (2, 3, 4), (2, 3, 4), attrs=MANY),)
ALL_MASKED = (Sample((2, 3, 4), (2, 3, 4), (2, 3, 3), (2, 3, 4), attrs=MANY),)
ALL_CHOSEN = (Sample((2, 3, 4), (2, 3, 4), (2, 3, 3), (2, 3, 3), (2, 3, 4), attrs=MANY),)
ACROSS = (Sample((2, 3, 4), (2, 5, 4), (2, 5, 4), attrs={**MANY, "u": (5, 8)}),)


def side_by_side(x: Value, s: Shape) -> Value:
    """View heads x, [heads, rows, d], as [rows, heads · d], which is shape s."""
    return reshape(permute(x, SWAP), s)


def apart(x: Value, t: Shape) -> Value:
    """View x, [rows, heads · d], as [heads, rows, d], where t is [rows, heads, d]."""
    return permute(reshape(x, t), SWAP)


@recognizes("FullAttention", where=HEADS, samples=ALL_HEADS)
def recognize_full_attention_of_heads(
    q: Value, k: Value, v: Value, c: float, h: int, d: int, s: Shape, t: Shape
) -> Rewrite:
    """softmax(c · (q · kᵀ)) · v → full_attention(q, k, v, h, h, d)

    Of every head, with as many keys as queries.
    """
    scores = softmax(scale(batch_matmul_bt(q, k), c))
    return batch_matmul(scores, v) >> apart(full_attention(*(side_by_side(x, s) for x in (q, k, v)), h, h, d), t)


@recognizes(
    "CrossAttention", where=(*HEADS[1:], attr_eq("d", width("v")), attr_eq("u", flat_heads("v"))), samples=ACROSS
)
def recognize_cross_attention_of_heads(
    q: Value, k: Value, v: Value, c: float, h: int, d: int, s: Shape, t: Shape, u: Shape
) -> Rewrite:
    """softmax(c · (q · kᵀ)) · v → multi_head_attn(q, k, v, h, h, d, True)

    Of every head, over the keys of another sequence.
    """
    scores = softmax(scale(batch_matmul_bt(q, k), c))
    rows = side_by_side(q, s), side_by_side(k, u), side_by_side(v, u)
    # of equal costs the first name in the alphabet wins: `full_attention` where that holds too
    return batch_matmul(scores, v) >> apart(multi_head_attn(*rows, h, h, d, True), t)


@recognizes("CausalAttention", where=(*HEADS, causal_mask("mask")), samples=ALL_MASKED)
def recognize_causal_attention_of_heads(
    q: Value, k: Value, mask: Value, v: Value, c: float, h: int, d: int, s: Shape, t: Shape
) -> Rewrite:
    """softmax(c · (q · kᵀ) + mask) · v → causal_attention(q, k, v, h, h, d)

    Of every head; the mask hides the later keys.
    """
    scores = softmax(scale(batch_matmul_bt(q, k), c) + mask)
    return batch_matmul(scores, v) >> apart(causal_attention(*(side_by_side(x, s) for x in (q, k, v)), h, h, d), t)


@recognizes("CausalAttention", where=(*HEADS, seen_keys("seen"), hidden("low")), samples=ALL_CHOSEN)
def recognize_causal_attention_of_heads_of_seen(
    q: Value, k: Value, seen: Value, low: Value, v: Value, c: float, h: int, d: int, s: Shape, t: Shape
) -> Rewrite:
    """softmax(where(seen, c · (q · kᵀ), low)) · v → causal_attention(q, k, v, h, h, d)

    Of every head; a key that is not seen counts next to −∞.
    """
    scores = softmax(where(seen, scale(batch_matmul_bt(q, k), c), low))
    return batch_matmul(scores, v) >> apart(causal_attention(*(side_by_side(x, s) for x in (q, k, v)), h, h, d), t)


@recognizes("CausalAttention", where=(*HEADS, hidden_keys("later"), hidden("low")), samples=ALL_CHOSEN)
def recognize_causal_attention_of_heads_of_hidden(
    q: Value, k: Value, later: Value, low: Value, v: Value, c: float, h: int, d: int, s: Shape, t: Shape
) -> Rewrite:
    """softmax(where(later, low, c · (q · kᵀ))) · v → causal_attention(q, k, v, h, h, d)

    Of every head; a later key counts next to −∞.
    """
    scores = softmax(where(later, low, scale(batch_matmul_bt(q, k), c)))
    return batch_matmul(scores, v) >> apart(causal_attention(*(side_by_side(x, s) for x in (q, k, v)), h, h, d), t)


# every key head for several query heads -------------------------------------------------------------------------------
# J. Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, 2023
GROUPED = (
    attr_eq("a", heads_apart("k")), repeats("b", "a"), shape_eq("v", "k"), attr_eq("g", heads("k")),
    attr_eq("u", flat_heads("k")),
)  # fmt: skip
GROUPS = {"a": (2, 1, 3, 4), "b": (2, 3, 3, 4), "r": (6, 3, 4), "s": (3, 24), "h": 6, "g": 2, "d": 4, "u": (3, 8)}
ALL_GROUPS = (Sample((3, 24), (2, 3, 4), (2, 3, 4), attrs=GROUPS),)


def repeated(x: Value, a: Shape, b: Shape, r: Shape, s: Shape) -> Value:
    """Repeat every head of x, [key heads, rows, d], in place, and view all as [rows, heads · d], which is s."""
    return side_by_side(reshape(broadcast_to(reshape(x, a), b), r), s)


@recognizes("GroupedKeys", where=GROUPED, samples=ALL_GROUPS)
def recognize_grouped_keys_of_causal_attention(
    q: Value, k: Value, v: Value, a: Shape, b: Shape, r: Shape, s: Shape, h: int, d: int, g: int, u: Shape
) -> Rewrite:
    """causal_attention(q, repeat(k), repeat(v), h, h, d) → causal_attention(q, k, v, h, g, d)

    Causal attention whose key heads were repeated reads each of them for several query heads.
    """
    left = causal_attention(q, repeated(k, a, b, r, s), repeated(v, a, b, r, s), h, h, d)
    return left >> causal_attention(q, side_by_side(k, u), side_by_side(v, u), h, g, d)


@recognizes("GroupedKeys", where=GROUPED, samples=ALL_GROUPS)
def recognize_grouped_keys_of_full_attention(
    q: Value, k: Value, v: Value, a: Shape, b: Shape, r: Shape, s: Shape, h: int, d: int, g: int, u: Shape
) -> Rewrite:
    """full_attention(q, repeat(k), repeat(v), h, h, d) → full_attention(q, k, v, h, g, d)

    Attention over all keys whose key heads were repeated reads each of them for several query heads.
    """
    left = full_attention(q, repeated(k, a, b, r, s), repeated(v, a, b, r, s), h, h, d)
    return left >> full_attention(q, side_by_side(k, u), side_by_side(v, u), h, g, d)
