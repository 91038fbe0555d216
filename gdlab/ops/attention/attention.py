"""Scaled dot-product attention: causal, windowed, full and across, with query heads that share key heads.

Forward keeps a running maximum and sum per query, so that scores are never stored; gradients make them anew from the
logarithm of the sum. A. Vaswani et al., Attention Is All You Need, 2017; T. Dao et al., FlashAttention, 2022;
J. Ainslie et al., GQA, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Grads,
    Sample,
    Shader,
    Statistic,
    Verdict,
    Work,
    WorkRule,
    along,
    fused,
    keeps_rows,
    op,
    want,
)
from gdlab.ops.attention.attention_grad import (
    CAPPED_ROWS,
    ROWS,
    alone,
    attention_grad_k,
    attention_grad_q,
    attention_grad_v,
    attention_lse,
    attention_numpy,
    biased,
    capped,
    constants,
    extents,
    flops,
    parted,
    short,
    spelled,
    tiled,
    together,
)
from gdlab.ops.attention.attention_numpy import attention_form
from gdlab.ops.attention.cache import cached_attention

PIECES = "attention_powers attention_elements attention_stores attention_scores attention_values attention_mask"
TILES = f"attention_tiles_result attention_tiles_softmax attention_tiles_values attention_tiles {PIECES}"
SHORT = f"attention_short_result attention_short {PIECES}"
REST = "attention_scores attention_values attention_mask"


def _work(causal: bool) -> WorkRule:
    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        masked = {**attrs, "causal": causal}
        numbers = constants(types[0], types[1], masked)
        units = -(-types[0].shape[0] // 4) * attrs["num_heads"]
        quads = int(numbers["QUADS"])
        trips = (2 * quads + 1) * -(-types[1].shape[0] // 4) + 9 * quads
        return alone(units, trips, numbers, 4 * flops(types[0], types[1], masked), extents(types, attrs))

    return work


def _shared(causal: bool, form: Callable[..., Work | None]) -> WorkRule:
    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work | None:
        masked = {**attrs, "causal": causal}
        numbers, count = constants(types[0], types[1], masked), 4 * flops(types[0], types[1], masked)
        rows, heads, width = types[0].shape[0], attrs["num_heads"], attrs["head_dim"]
        return form(rows, heads, numbers, count, extents(types, attrs), width)

    return work


def _kernel(causal: bool, windowed: bool = False) -> Shader:
    tiles = Shader(together(TILES), _shared(causal, tiled), in_bounds=True)
    parts = Shader(together(TILES), _shared(causal, parted), hardware=tiles, in_bounds=True)
    few = Shader(together(SHORT), _shared(causal, short), hardware=parts, in_bounds=True)
    fixed = ("causal", causal), *(() if windowed else (("window", 0),))
    logarithm = Statistic("attention_lse", "logarithm", fixed)
    rows = together(f"attention_result {ROWS} {REST}")
    return Shader(rows, _work(causal), hardware=few, numpy_form=attention_form, statistics=(logarithm,))


# checks of every form -------------------------------------------------------------------------------------------------
def _check(q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, square: bool) -> TensorType:
    wanted = "q[queries, heads·d], k and v[keys, kv_heads·d]"
    want(q.type.rank == k.type.rank == v.type.rank == 2, f"{wanted}: reshape other ranks first")
    want(num_heads >= 1, "an int ≥ 1", num_heads, "num_heads")
    want(num_kv_heads >= 1 and num_heads % num_kv_heads == 0, f"a divisor of {num_heads}", num_kv_heads, "num_kv_heads")
    want(head_dim >= 1, "an int ≥ 1", head_dim, "head_dim")
    want(q.shape[1] == num_heads * head_dim, f"{wanted}: {q.shape[1]} and {num_heads} · {head_dim} differ")
    want(k.shape == v.shape, f"{wanted}: {list(k.shape)} and {list(v.shape)} differ")
    want(k.shape[1] == num_kv_heads * head_dim, f"{wanted}: {k.shape[1]} and {num_kv_heads} · {head_dim} differ")
    want(not square or q.shape[0] == k.shape[0], f"as many keys as queries: {k.shape[0]} and {q.shape[0]} differ")
    return q.type


def _pull(
    g: Value, out: Value, q: Value, k: Value, v: Value, heads: tuple[int, int, int], causal: bool, window: int = 0
) -> Grads:
    """Return the gradients of all forms, by D = Σ dO·O of every query and head, and the saved logarithms."""
    attrs = (*heads, causal, window)

    @cache
    def saved() -> tuple[Value, Value]:
        delta = (g * out).reshape((-1, heads[2])).sum_inner().reshape((q.shape[0], heads[0]))
        return attention_lse(q, k, *attrs), delta

    return (
        lambda: attention_grad_q(q, k, v, *saved(), g, *attrs),
        lambda: attention_grad_k(q, k, v, *saved(), g, *attrs),
        lambda: attention_grad_v(q, k, saved()[0], g, *attrs),
    )


# samples --------------------------------------------------------------------------------------------------------------
SQUARE = (  # rows, heads, kv heads, head_dim
    (1, 1, 1, 1), (2, 2, 1, 8), (7, 4, 2, 16), (33, 2, 2, 32), (5, 3, 1, 3), (33, 2, 1, 48), (7, 1, 1, 80),
    (33, 1, 1, 64), (7, 2, 1, 96), (70, 1, 1, 128), (128, 2, 1, 8),
)  # fmt: skip
ACROSS = ((3, 9, 2, 1, 8), (33, 7, 2, 2, 64), (1, 70, 1, 1, 6))  # queries, keys, heads, kv heads, head_dim
FAR = ([[30.0], [-30.0], [30.0]], [[30.0], [30.0], [-30.0]], None)  # logits of ±900


def _heads(h: int, kv: int, d: int, **more: Any) -> dict[str, Any]:
    return {"num_heads": h, "num_kv_heads": kv, "head_dim": d, **more}


def _one(queries: int, keys: int, h: int, kv: int, d: int, **more: Any) -> Sample:
    return Sample((queries, h * d), (keys, kv * d), (keys, kv * d), attrs=_heads(h, kv, d, **more))


def _samples(sizes: tuple[tuple[int, ...], ...] = SQUARE[:5], **more: Any) -> tuple[Sample, ...]:
    far = Sample((3, 1), (3, 1), (3, 1), attrs=_heads(1, 1, 1, **more), values=FAR)
    return (*(_one(s, s, h, kv, d, **more) for s, h, kv, d in sizes), far)


def _refused(message: str, q: str, k: str, v: str = "", **attrs: Any) -> Bad:
    return Bad((f"f32[{q}]", f"f32[{k}]", f"f32[{v or k}]"), message, {**_heads(4, 2, 8), **attrs})


def _bad(square: bool, **more: Any) -> tuple[Bad, ...]:
    differ = (_refused("as many keys as queries: 5 and 3 differ", "3, 32", "5, 16", **more),) if square else ()
    return (
        _refused("q[queries, heads·d], k and v[keys, kv_heads·d]: 30 and 4 · 8 differ", "3, 30", "3, 16", **more),
        _refused("kv_heads·d]: 24 and 2 · 8 differ", "3, 32", "3, 24", **more),
        _refused("kv_heads·d]: [3, 16] and [2, 16] differ", "3, 32", "3, 16", "2, 16", **more),
        _refused("reshape other ranks first", "2, 3, 32", "3, 16", **more),
        _refused("num_kv_heads: given 3, wanted a divisor of 4", "3, 32", "3, 24", num_kv_heads=3, **more),
        _refused("num_heads: given 0, wanted an int ≥ 1", "3, 32", "3, 16", num_heads=0, **more),
        _refused("head_dim: given 0, wanted an int ≥ 1", "3, 32", "3, 16", head_dim=0, **more),
        Bad(("f32[3, 32]", "u32[3, 16]", "f32[3, 16]"), "wanted f32 operands", {**_heads(4, 2, 8), **more}),
        *differ,
    )


# extent rules ---------------------------------------------------------------------------------------------------------
def _over_active_keys(call: Call) -> Verdict:
    """Attend to the first keys of a cache; spell it out where that would need a gradient, or keys lie inside another
    axis. Queries alone keep their bucket axis."""
    verdict = along(call, [("query", None), ("key", None), ("key", None)], ("query", None), mixes={"key": 0.0})
    tag = next((tag for tag in verdict.operands[1] if tag.axis == 0), None)
    if tag is None:
        return verdict
    if call.gradients or tag.outer > 1:
        return replace(verdict, masks=(), body=_spelled_out if verdict.result else _nan_over_no_keys)
    heads = [call.attrs[name] for name in ("num_heads", "num_kv_heads", "head_dim")]

    def build(n: Value, operands: Sequence[Value]) -> Value:
        last = n.scale(float(tag.inner)) if tag.inner > 1 else n
        result = cached_attention(*operands, (last - 1).to_u32(), *heads)
        return result if verdict.result else result * (n / n)  # over no keys: NaN

    return replace(verdict, build=build)


def _spelled_out(q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, **other: Any) -> Value:
    return spelled(q, k, v, num_heads, num_kv_heads)


def _nan_over_no_keys(q: Value, k: Value, v: Value, **heads: Any) -> Value:
    return _spelled_out(q, k, v, **heads) + k.greater(k).mean_all()  # 0, whatever k holds


# forms ----------------------------------------------------------------------------------------------------------------
@op(
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim, causal=True
    ),
    kernel=_kernel(causal=True),
    family="contraction",
    samples=_samples(SQUARE),
    bad=_bad(square=True),
    attention="result",
    typed_as_first=True,
    follows=keeps_rows(0, 1, 2),
)
def causal_attention(q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int) -> TensorType:
    """softmax(q·kᵀ/√d)·v per head, where query i sees keys 0 … i: f32[s, h·d], f32[s, kv·d] twice -> f32[s, h·d].

    Query head j reads key head j / (num_heads / num_kv_heads).
    """
    return _check(q, k, v, num_heads, num_kv_heads, head_dim, square=True)


@causal_attention.vjp
def _(
    g: Value, out: Value, q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int
) -> Grads:  # fmt: skip
    """∂q = D·k,  ∂k = Dᵀ·q,  ∂v = Pᵀ·g with P = softmax(causal(q·kᵀ/√head_dim)), D = P⊙(g·vᵀ − Σ g⊙out) / √head_dim"""
    return _pull(g, out, q, k, v, (num_heads, num_kv_heads, head_dim), causal=True)


@op(
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim, window: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim, causal=True, window=window
    ),
    kernel=_kernel(causal=True, windowed=True),
    family="contraction",
    samples=(*_samples(window=5), _one(7, 7, 1, 1, 4, window=1), _one(7, 7, 1, 1, 4, window=99)),
    bad=(*_bad(square=True, window=2), _refused("window: given 0, wanted an int ≥ 1", "3, 32", "3, 16", window=0)),
    attention="result",
    follows=keeps_rows(0, 1, 2),
)
def sliding_window_attention(
    q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, window: int
) -> TensorType:
    """`causal_attention` whose query i sees the last `window` keys up to its own: f32[s, h·d], f32[s, kv·d] twice ->
    f32[s, h·d]."""
    want(window >= 1, "an int ≥ 1", window, "window")
    return _check(q, k, v, num_heads, num_kv_heads, head_dim, square=True)


@sliding_window_attention.vjp
def _(
    g: Value, out: Value, q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, window: int
) -> Grads:
    """∂q = D·k,  ∂k = Dᵀ·q,  ∂v = Pᵀ·g with P = softmax(window(q·kᵀ/√head_dim)), D = P⊙(g·vᵀ − Σ g⊙out) / √head_dim"""
    return _pull(g, out, q, k, v, (num_heads, num_kv_heads, head_dim), causal=True, window=window)


@op(
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim
    ),
    kernel=_kernel(causal=False),
    family="contraction",
    samples=_samples(),
    bad=_bad(square=True),
    attention="result",
    typed_as_first=True,
    follows=_over_active_keys,
)
def full_attention(q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int) -> TensorType:
    """softmax(q·kᵀ/√d)·v per head over all keys: f32[s, h·d], f32[s, kv·d] twice -> f32[s, h·d]."""
    return _check(q, k, v, num_heads, num_kv_heads, head_dim, square=True)


@full_attention.vjp
def _(
    g: Value, out: Value, q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int
) -> Grads:  # fmt: skip
    """∂q = D·k,  ∂k = Dᵀ·q,  ∂v = Pᵀ·g with P = softmax(q·kᵀ/√head_dim), D = P⊙(g·vᵀ − Σ g⊙out) / √head_dim"""
    return _pull(g, out, q, k, v, (num_heads, num_kv_heads, head_dim), causal=False)


@op(
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim
    ),
    kernel=_kernel(causal=False),
    family="contraction",
    samples=(*(_one(*sizes) for sizes in ACROSS), *_samples()[1:4]),
    bad=_bad(square=False),
    attention="result",
    follows=_over_active_keys,
)
def cross_attention(q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int) -> TensorType:
    """softmax(q·kᵀ/√d)·v per head over all keys of another sequence: f32[s, h·d], f32[t, kv·d] twice -> f32[s, h·d]."""
    return _check(q, k, v, num_heads, num_kv_heads, head_dim, square=False)


@cross_attention.vjp
def _(
    g: Value, out: Value, q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int
) -> Grads:  # fmt: skip
    """∂q = D·k,  ∂k = Dᵀ·q,  ∂v = Pᵀ·g with P = softmax(q·kᵀ/√head_dim), D = P⊙(g·vᵀ − Σ g⊙out) / √head_dim"""
    return _pull(g, out, q, k, v, (num_heads, num_kv_heads, head_dim), causal=False)


@op(
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim, is_cross: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim
    ),
    kernel=_kernel(causal=False),
    family="contraction",
    samples=(*(_one(*sizes, is_cross=True) for sizes in ACROSS), *_samples(is_cross=False)[1:4]),
    bad=(*_bad(square=True, is_cross=False), *_bad(square=False, is_cross=True)[:2]),
    typed_as_first=True,
    follows=_over_active_keys,
)
def multi_head_attn(
    q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, is_cross: bool
) -> TensorType:
    """Attention over all keys; without `is_cross` there must be as many keys as queries: f32[s, h·d], f32[t, kv·d]
    twice -> f32[s, h·d]."""
    return _check(q, k, v, num_heads, num_kv_heads, head_dim, square=not is_cross)


@multi_head_attn.vjp
def _(
    g: Value, out: Value, q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, is_cross: bool
) -> Grads:
    """∂q = D·k,  ∂k = Dᵀ·q,  ∂v = Pᵀ·g with P = softmax(q·kᵀ/√head_dim), D = P⊙(g·vᵀ − Σ g⊙out) / √head_dim"""
    return _pull(g, out, q, k, v, (num_heads, num_kv_heads, head_dim), causal=False)


# with a bias ----------------------------------------------------------------------------------------------------------
def _check_biased(
    q: Value, k: Value, v: Value, bias: Value,
    num_heads: int, num_kv_heads: int, head_dim: int, scale: float, causal: bool,
) -> None:  # fmt: skip
    _check(q, k, v, num_heads, num_kv_heads, head_dim, square=causal)
    want(bias.shape == (num_heads, q.shape[0], k.shape[0]), f"bias[heads, queries, keys], not {list(bias.shape)}")


def _biased(queries: int, keys: int, h: int, kv: int, d: int, causal: bool) -> Sample:
    shapes = (queries, h * d), (keys, kv * d), (keys, kv * d), (h, queries, keys)
    return Sample(*shapes, attrs=_heads(h, kv, d, scale=0.5, causal=causal), low=-1, high=1)


@fused(
    label="",
    family="contraction",
    samples=(_biased(3, 3, 1, 1, 2, True), _biased(7, 7, 4, 2, 3, True), _biased(5, 9, 2, 2, 8, False)),
    bad=(
        Bad(("f32[3, 8]", "f32[3, 8]", "f32[3, 8]", "f32[3, 3]"), "wanted bias[heads, queries, keys], not [3, 3]",
            _heads(2, 2, 4, scale=1.0, causal=True)),
        Bad(("f32[3, 8]", "f32[5, 8]", "f32[5, 8]", "f32[2, 3, 5]"), "as many keys as queries",
            _heads(2, 2, 4, scale=1.0, causal=True)),
    ),
    check=_check_biased,
    attention="result",
)  # fmt: skip
def biased_attention(
    q: Value, k: Value, v: Value, bias: Value,
    num_heads: int, num_kv_heads: int, head_dim: int, scale: float, causal: bool,
) -> Value:  # fmt: skip
    """softmax(scale · q·kᵀ + bias)·v per head: f32[s, h·d], f32[t, kv·d] twice, f32[h, s, t] -> f32[s, h·d].

    Its scores are as large as the bias.
    """
    return biased(q, k, v, bias, num_heads, num_kv_heads, scale, causal)


# with a soft cap ------------------------------------------------------------------------------------------------------
def _check_capped(
    q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, softcap: float, window: int
) -> None:
    _check(q, k, v, num_heads, num_kv_heads, head_dim, square=True)
    want(softcap > 0, "a number above 0", softcap, "softcap")
    want(window >= 0, "an int ≥ 0", window, "window")


@fused(
    label="",
    numpy=lambda q, k, v, num_heads, num_kv_heads, head_dim, softcap, window: attention_numpy(
        q, k, v, num_heads, num_kv_heads, head_dim, causal=True, window=window, softcap=softcap
    ),
    family="contraction",
    kernel=Shader(together(f"attention_result {CAPPED_ROWS} {REST}"), _work(causal=True), numpy_form=attention_form),
    samples=(
        _one(1, 1, 1, 1, 1, softcap=2.0, window=0), _one(5, 5, 3, 1, 3, softcap=0.5, window=0),
        _one(7, 7, 4, 2, 8, softcap=1.0, window=3), _one(33, 33, 2, 1, 16, softcap=30.0, window=99),
        Sample((3, 1), (3, 1), (3, 1), attrs=_heads(1, 1, 1, softcap=50.0, window=0), values=FAR),
    ),
    bad=(
        *_bad(square=True, softcap=1.0),
        _refused("softcap: given 0.0, wanted a number above 0", "3, 32", "3, 16", softcap=0.0),
        _refused("window: given -1, wanted an int ≥ 0", "3, 32", "3, 16", softcap=1.0, window=-1),
    ),
    check=_check_capped,
    attention="result",
)  # fmt: skip
def softcap_attention(
    q: Value, k: Value, v: Value, num_heads: int, num_kv_heads: int, head_dim: int, softcap: float, window: int = 0
) -> Value:
    """`causal_attention` whose scores s are softcap · tanh(s / softcap), of the last `window` keys where it is not 0:
    f32[s, h·d], f32[s, kv·d] twice -> f32[s, h·d].

    M. Riviere et al., Gemma 2: Improving Open Language Models at a Practical Size, 2024.
    """
    return capped(q, k, v, num_heads, num_kv_heads, softcap, window)
