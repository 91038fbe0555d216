"""The ops of the gradient of attention: the logarithm of every softmax's sum, and one op per operand.

Each has a kernel of its own and a decomposition, which gives the second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from gdlab.base.types import Array, TensorType
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Call, Follows, Sample, Shader, Statistic, Verdict, Work, WorkRule, along, fused
from gdlab.op.numpy_form import NumpyForm
from gdlab.ops.attention.attention_numpy import grad_k_form, grad_q_form, grad_v_form, logarithm_form
from gdlab.ops.batch import batch_matmul, batch_matmul_at, batch_matmul_bt
from gdlab.ops.leaves import full

LOW = -1e30  # the score of a key that is not seen: e to that is 0


# the meaning, in NumPy ------------------------------------------------------------------------------------------------
def pair(x: Array, heads: int, group: int = 1) -> Array:
    """View x f64[rows, heads·d] as [heads·group, rows, d], every head `group` times."""
    split = x.reshape(len(x), heads, -1).transpose(1, 0, 2)
    repeated: Array = np.repeat(split, group, axis=0)
    return repeated


def seen(queries: int, keys: int, causal: bool, window: int) -> Array:
    """Return whether a query sees a key: bool[queries, keys]."""
    distance = np.arange(queries)[:, None] - np.arange(keys)
    allowed: Array = (distance >= 0) if causal else np.ones((queries, keys), bool)
    return allowed & (distance < window) if window else allowed


def _joined(x: Array) -> Array:
    rows: Array = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    return rows


def _scores(q: Array, k: Array, h: int, kv: int, d: int, causal: bool, window: int) -> Array:
    scores = pair(q, h) @ pair(k, kv, h // kv).transpose(0, 2, 1) / np.sqrt(d)
    return np.where(seen(len(q), len(k), causal, window), scores, -np.inf)


def attention_numpy(
    q: Array, k: Array, v: Array, h: int, kv: int, d: int, causal: bool = False, window: int = 0, softcap: float = 0.0
) -> Array:
    """Compute softmax(q·kᵀ/√d)·v per head, in float64; a soft cap bounds scores."""
    return attend(q, k, v, h, kv, d, seen(len(q), len(k), causal, window), softcap)


def attend(
    q: Array, k: Array, v: Array, h: int, kv: int, d: int, allowed: Array, softcap: float = 0.0
) -> Array:  # fmt: skip
    """Compute attention to the keys that a query sees by `allowed` bool[queries, keys]; a soft cap bounds scores."""
    scores = pair(q, h) @ pair(k, kv, h // kv).transpose(0, 2, 1) / np.sqrt(d)
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    scores = np.where(allowed, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights = powers / powers.sum(axis=2, keepdims=True)
    return _joined(of_seen(weights, pair(v, kv, h // kv), allowed))


def of_seen(weights: Array, values: Array, allowed: Array) -> Array:
    """Multiply weights [heads, rows, columns] by values [heads, columns, d], but leave out unseen values instead of
    multiplying them by 0: they may be NaN."""
    product: Array = weights @ values
    for row in np.flatnonzero(np.isnan(product).any(axis=(0, 2))):
        mine = weights[:, row][:, None, allowed[row]]
        product[:, row] = (mine @ values[:, allowed[row]])[:, 0]
    return product


def _lse_numpy(
    q: Array, k: Array, num_heads: int, num_kv_heads: int, head_dim: int, causal: bool, window: int
) -> Array:
    scores = _scores(q, k, num_heads, num_kv_heads, head_dim, causal, window)
    highest = scores.max(axis=2)
    logarithm: Array = (highest + np.log(np.exp(scores - highest[:, :, None]).sum(axis=2))).T
    return logarithm


def _weights(q: Array, k: Array, lse: Array, h: int, kv: int, d: int, causal: bool, window: int) -> Array:
    powers: Array = np.exp(_scores(q, k, h, kv, d, causal, window) - lse.T[:, :, None])
    return powers


def _score_gradient(
    q: Array, k: Array, v: Array, lse: Array, delta: Array, g: Array, h: int, kv: int, d: int, causal: bool, window: int
) -> Array:
    pulled = pair(g, h) @ pair(v, kv, h // kv).transpose(0, 2, 1) - delta.T[:, :, None]
    gradient: Array = _weights(q, k, lse, h, kv, d, causal, window) * pulled / np.sqrt(d)
    return gradient


def _to_key_heads(x: Array, kv: int) -> Array:
    """Sum over the query heads of every key head."""
    return _joined(x.reshape(kv, -1, *x.shape[1:]).sum(axis=1))


def _grad_q_numpy(
    q: Array, k: Array, v: Array, lse: Array, delta: Array, g: Array, num_heads: int, num_kv_heads: int, head_dim: int,
    causal: bool, window: int,
) -> Array:  # fmt: skip
    of_scores = _score_gradient(q, k, v, lse, delta, g, num_heads, num_kv_heads, head_dim, causal, window)
    keys = pair(k, num_kv_heads, num_heads // num_kv_heads)
    return _joined(of_seen(of_scores, keys, seen(len(q), len(k), causal, window)))


def _grad_k_numpy(
    q: Array, k: Array, v: Array, lse: Array, delta: Array, g: Array, num_heads: int, num_kv_heads: int, head_dim: int,
    causal: bool, window: int,
) -> Array:  # fmt: skip
    of_scores = _score_gradient(q, k, v, lse, delta, g, num_heads, num_kv_heads, head_dim, causal, window)
    allowed = seen(len(q), len(k), causal, window).T
    return _to_key_heads(of_seen(of_scores.transpose(0, 2, 1), pair(q, num_heads), allowed), num_kv_heads)


def _grad_v_numpy(
    q: Array, k: Array, lse: Array, g: Array, num_heads: int, num_kv_heads: int, head_dim: int, causal: bool,
    window: int,
) -> Array:  # fmt: skip
    weights = _weights(q, k, lse, num_heads, num_kv_heads, head_dim, causal, window)
    allowed = seen(len(q), len(k), causal, window).T
    return _to_key_heads(of_seen(weights.transpose(0, 2, 1), pair(g, num_heads), allowed), num_kv_heads)


# the meaning, in ops --------------------------------------------------------------------------------------------------
def _split(x: Value, heads: int, group: int = 1) -> Value:
    rows, width = x.shape
    split = x.reshape((rows, heads, width // heads)).permute((1, 0, 2))
    if group == 1:
        return split
    shape = heads, 1, rows, width // heads
    repeated = split.reshape(shape).broadcast_to((heads, group, *shape[2:]))
    return repeated.reshape((heads * group, *shape[2:]))


def _merged(x: Value) -> Value:
    heads, rows, d = x.shape
    return x.permute((1, 0, 2)).reshape((rows, heads * d))


def _summed(x: Value, kv: int) -> Value:
    heads, rows, d = x.shape
    return _merged(x if heads == kv else x.reshape((kv, heads // kv, rows, d)).sum(1))


def _scored(q: Value, k: Value, h: int, kv: int, d: int, causal: bool, window: int) -> Value:
    scores = batch_matmul_bt(_split(q, h), _split(k, kv, h // kv)).scale(1 / math.sqrt(d))
    if not causal:
        return scores
    return REGISTRY["where"](_mask(q.graph, q.shape[0], window), scores, LOW)


def _mask(graph: Graph, rows: int, window: int) -> Value:
    """Return f32[rows, rows], 1 where a query sees a key, without stored data: row i is a ring of 2·rows turned by i.

    The ring repeats in memory and rows one element shorter are cut from it; a key `distance` before the query is place
    −distance of the ring.
    """
    length, count = 2 * rows, min(window or rows, rows)
    ring = full((1,), 1.0, graph=graph).pad((0,), (length - 1,))
    if count > 1:
        ring = ring + full((count - 1,), 1.0, graph=graph).pad((length - count + 1,), (0,))
    flat = ring.reshape((1, length)).broadcast_to((rows, length)).reshape((rows * length,))
    turned = flat.slice((0,), (rows * (length - 1),)).reshape((rows, length - 1))
    return turned.slice((0, 0), (rows, rows))


def _weighted(q: Value, k: Value, lse: Value, h: int, kv: int, d: int, causal: bool, window: int) -> Value:
    logarithm = lse.transpose().reshape((h, q.shape[0], 1))
    return (_scored(q, k, h, kv, d, causal, window) - logarithm).exp()


def _of_scores(
    q: Value, k: Value, v: Value, lse: Value, delta: Value, g: Value, h: int, kv: int, d: int, causal: bool, window: int
) -> Value:
    pulled = batch_matmul_bt(_split(g, h), _split(v, kv, h // kv)) - delta.transpose().reshape((h, q.shape[0], 1))
    return _weighted(q, k, lse, h, kv, d, causal, window) * pulled.scale(1 / math.sqrt(d))


def together(names: str) -> str:
    """Join the files of these names, the one that names the kernel first."""
    return " + ".join(f"{name}.wgsl" for name in names.split())


def spelled(q: Value, k: Value, v: Value, h: int, kv: int) -> Value:
    """Spell out attention over all keys."""
    weights = REGISTRY["softmax"](_scored(q, k, h, kv, q.shape[1] // h, False, 0))
    return _merged(batch_matmul(weights, _split(v, kv, h // kv)))


def biased(
    q: Value, k: Value, v: Value, bias: Value, h: int, kv: int, scale: float, causal: bool
) -> Value:  # fmt: skip
    """Spell out attention with a bias on its scores."""
    scores = batch_matmul_bt(_split(q, h), _split(k, kv, h // kv)).scale(scale) + bias
    if causal:
        scores = REGISTRY["where"](_mask(q.graph, q.shape[0], 0), scores, LOW)
    return _merged(batch_matmul(REGISTRY["softmax"](scores), _split(v, kv, h // kv)))


def capped(q: Value, k: Value, v: Value, h: int, kv: int, softcap: float, window: int) -> Value:
    """Spell out causal attention whose scores are softcap · tanh(score / softcap)."""
    scores = batch_matmul_bt(_split(q, h), _split(k, kv, h // kv)).scale(math.sqrt(h / q.shape[1]) / softcap)
    scores = REGISTRY["tanh"](scores).scale(softcap)
    weights = REGISTRY["softmax"](REGISTRY["where"](_mask(q.graph, q.shape[0], window), scores, LOW))
    return _merged(batch_matmul(weights, _split(v, kv, h // kv)))


# kernels --------------------------------------------------------------------------------------------------------------
def constants(q: TensorType, k: TensorType, attrs: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the constants that every shader of the family names."""
    d = attrs["head_dim"]
    return {
        "QUERIES": q.shape[0], "KEYS": k.shape[0], "HEADS": attrs["num_heads"], "KV_HEADS": attrs["num_kv_heads"],
        "D": d, "QUADS": -(-d // 4), "CAUSAL": int(attrs.get("causal", False)), "WINDOW": attrs.get("window", 0),
        "SCALE": 1 / math.sqrt(d), "SOFTCAP": float(attrs.get("softcap", 0.0)),
        "BLOCK": q.shape[0], "OWN_ROWS": q.shape[0], "OWN_HEADS": attrs["num_heads"], "COLUMNS": k.shape[0],
    }  # fmt: skip


ROOM = 16384 // 64  # vec4 sums of 4 rows that fit in the workgroup memory of every adapter


def alone(pieces: int, trips: int, numbers: dict[str, int | float], count: int, label: str) -> Work:
    """Return the work of a kernel in which each unit has one invocation: as many side by side as have room for sums."""
    lanes = max((n for n in (1, 2, 4, 8) if n * numbers["QUADS"] <= ROOM), default=1)
    constants = numbers | {"PIECES": pieces}
    return Work(-(-pieces // lanes), 0, constants, count, lanes, trips=trips, extents=label)


TILE = 64  # rows and columns that a group of a hardware adapter works on
TILE_BYTES = 16384  # of 32 steps of both factors
FEW_GROUPS = 2 * 132  # below which a group is divided into parts: 132 processors of an NVIDIA H100 or H200
PARTS = 2  # of a group, where groups are few: a step of 8 layers of 512 rows 14.93 ms, in 2 parts 14.52 (NVIDIA H100)


def tiled(
    rows: int, own: int, numbers: dict[str, int | float], count: int, label: str, width: int = 1, flip: bool = True,
    parts: int = 1,
) -> Work:  # fmt: skip
    """Return the work of a kernel in which `parts` times 128 invocations share 64 rows of a head, and 64 or 128 of its
    elements; `flip`: the last rows come first."""
    wide = TILE if width <= TILE else 2 * TILE
    chunks = -(-width // wide)
    constants = numbers | {"CHUNKS": chunks, "WIDE": wide, "PARTS": parts, "FLIP": int(flip)}
    needed = parts * TILE_BYTES if parts > 1 else 0
    groups = -(-rows // TILE) * own * chunks
    return Work(groups, 0, constants, count, 128 * parts, extents=label, workgroup_bytes=needed)


def parted(
    rows: int, own: int, numbers: dict[str, int | float], count: int, label: str, width: int, flip: bool = True
) -> Work | None:
    """Return the work of `tiled` with groups of `PARTS` parts; None where there are enough groups."""
    work = tiled(rows, own, numbers, count, label, width, flip, PARTS)
    return work if work.units < FEW_GROUPS else None


SHORT_ROWS = 8  # that a group works on where there are few
FEW_TILES = 128  # groups of TILE rows from which on they keep hardware busy


def short(rows: int, own: int, numbers: dict[str, int | float], count: int, label: str, width: int) -> Work | None:
    """Return the work of a kernel in which 128 invocations share 8 rows of a head, and up to 128 of its elements; None
    where there are enough rows for tiles."""
    if -(-rows // TILE) * own >= FEW_TILES:
        return None
    wide = min(2 * TILE, 1 << (max(width, 4) - 1).bit_length())
    chunks = -(-width // wide)
    constants = numbers | {"CHUNKS": chunks, "WIDE": wide}
    return Work(-(-rows // SHORT_ROWS) * own * chunks, 0, constants, count, 128, extents=label)


def extents(types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> str:
    """Label the extents of attention: `q=128,kv=128,h=8/2`."""
    return f"q={types[0].shape[0]},kv={types[1].shape[0]},h={attrs['num_heads']}/{attrs['num_kv_heads']}"


def flops(q: TensorType, k: TensorType, attrs: Mapping[str, Any]) -> int:
    """Count the multiply-adds of one product of scores: of every seen pair, in every head."""
    queries, keys = q.shape[0], k.shape[0]
    pairs = queries * (queries + 1) // 2 if attrs.get("causal") else queries * keys
    window = attrs.get("window", 0)
    each: int = attrs["num_heads"] * attrs["head_dim"]
    return min(pairs, queries * window if window else pairs) * each


def _lse_tiles(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    numbers, count = constants(types[0], types[1], attrs), 2 * flops(types[0], types[1], attrs)
    return tiled(types[0].shape[0], attrs["num_heads"], numbers, count, extents(types, attrs))


def _lse_work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    numbers = constants(types[0], types[1], attrs)
    units, quads = -(-types[0].shape[0] // 4) * attrs["num_heads"], -(-attrs["head_dim"] // 4)
    trips = (quads + 1) * -(-types[1].shape[0] // 4) + 4 * quads + 8
    return alone(units, trips, numbers, 2 * flops(types[0], types[1], attrs), extents(types, attrs))


def _sums_work(of_keys: bool, second: bool, form: Literal["alone", "short", "parted", "tiled"]) -> WorkRule:
    """Return the work of sums for every query (over keys) or for every key (over queries, of each query head)."""

    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work | None:
        numbers = constants(types[0], types[1], attrs)
        queries, keys = types[0].shape[0], types[1].shape[0]
        heads, kv, quads = attrs["num_heads"], attrs["num_kv_heads"], -(-attrs["head_dim"] // 4)
        rows, columns, own = (keys, queries, kv) if of_keys else (queries, keys, heads)
        numbers |= {
            "OWN_ROWS": rows, "COLUMNS": columns, "OWN_HEADS": own, "SECOND": int(second),
            "FINAL": numbers["SCALE"] if second else 1.0,
        }  # fmt: skip
        products = 3 if second else 2
        sums = products + (of_keys and second)  # where it stores the gradient of the values, too
        trips = (heads // own) * ((sums * quads + 1) * -(-columns // 4) + 1) + 9 * quads
        count = 2 * products * flops(types[0], types[1], attrs)
        label = extents(types, attrs)
        if form == "short":
            return short(rows, own, numbers, count, label, attrs["head_dim"])
        if form != "alone":  # of causal attention the first keys and the last queries have the most columns
            return (parted if form == "parted" else tiled)(
                rows, own, numbers, count, label, attrs["head_dim"], flip=not of_keys
            )
        return alone(-(-rows // 4) * own, trips, numbers, count, label)

    return work


LSE_TILES = (
    "attention_tiles_logarithm attention_tiles_softmax attention_powers attention_tiles attention_elements "
    "attention_scores attention_mask"
)
ROWS = "attention_rows attention_no_softcap attention_four"
CAPPED_ROWS = "attention_rows attention_softcap attention_four"
LSE = Shader(
    together(f"attention_logarithm {ROWS} attention_scores attention_mask"), _lse_work,
    hardware=Shader(together(LSE_TILES), _lse_tiles, in_bounds=True), numpy_form=logarithm_form,
)  # fmt: skip


# The gradient of the values beside that of the keys: one more product than 3. The sums of wider heads find no room in
# the registers of a group (hardware), nor in 16 KiB (software).
VALUES = Statistic("attention_grad_v", "values", operands=(0, 1, 3, 5), at_most=(("head_dim", 64),), more=1 / 3)


def _sums(name: str, form: NumpyForm, of_keys: bool, second: bool) -> Shader:
    pieces = "attention_elements attention_seconds attention_stores attention_mask"
    tiles = together(f"{name} attention_tiles_sums attention_tiles_values attention_tiles {pieces}")
    few = together(f"{name} attention_short_sums attention_short {pieces}")
    many_rows = Shader(tiles, _sums_work(of_keys, second, "tiled"), in_bounds=True)
    rows_in_parts = Shader(tiles, _sums_work(of_keys, second, "parted"), hardware=many_rows, in_bounds=True)
    few_rows = Shader(few, _sums_work(of_keys, second, "short"), hardware=rows_in_parts, in_bounds=True)
    return Shader(
        together(f"{name} attention_sums attention_four attention_mask"), _sums_work(of_keys, second, "alone"),
        hardware=few_rows, numpy_form=form, statistics=(VALUES,) if of_keys and second else (),
    )  # fmt: skip


SIZES = (  # queries, keys, heads, kv heads, head_dim, causal, window; the first two with a NaN, too
    (7, 7, 4, 2, 8, True, 3), (5, 9, 4, 2, 6, False, 0), (1, 1, 1, 1, 1, True, 0), (33, 33, 2, 1, 16, True, 0),
    (70, 70, 1, 1, 64, True, 40),
)  # fmt: skip


def _samples(operands: str) -> tuple[Sample, ...]:
    """Return samples of q, k, v, l (the logarithms), d (delta) and g of every size."""
    found = []
    for queries, keys, h, kv, d, causal, window in SIZES:
        shapes = {"q": (queries, h * d), "k": (keys, kv * d), "v": (keys, kv * d), "g": (queries, h * d)}
        shapes |= {"l": (queries, h), "d": (queries, h)}
        attrs = {"num_heads": h, "num_kv_heads": kv, "head_dim": d, "causal": causal, "window": window}
        given = tuple(3.0 if o == "l" else None for o in operands)
        found.append(Sample(*(shapes[o] for o in operands), attrs=attrs, low=-1, high=1, values=given))
    return tuple(found)


def _by_rows(count: int, *queries: int) -> Follows:
    """Return the extent rule of causal attention, whose row i reads only keys up to i; in sums over queries the
    operands `queries` become 0. Without a mask the body tells."""

    def follows(call: Call) -> Verdict | None:
        if not call.attrs["causal"]:
            return None
        labels = [("row", None)] * count
        mixes = {"row": 0.0} if queries else None
        return along(call, labels, labels[0], mixes=mixes, masked=queries, ordered=["row"])

    return follows


@fused(
    label="", private=True, family="contraction", kernel=LSE, numpy=_lse_numpy, samples=_samples("qk"),
    attention="statistics",
    follows=_by_rows(2),
)  # fmt: skip
def attention_lse(
    q: Value, k: Value, num_heads: int, num_kv_heads: int, head_dim: int, causal: bool, window: int
) -> Value:
    """ln Σ e^(q·k/√d) over the keys that a query sees: f32[s, h·d], f32[t, kv·d] -> f32[s, h]."""
    scores = _scored(q, k, num_heads, num_kv_heads, head_dim, causal, window)
    highest = scores.max(-1, keepdims=True).stop_gradient()
    logarithm = (scores - highest).exp().sum(-1, keepdims=True).log() + highest
    return logarithm.reshape((num_heads, q.shape[0])).transpose()


@fused(
    label="", private=True, family="contraction", numpy=_grad_q_numpy, samples=_samples("qkvldg"),
    kernel=_sums("attention_grad_q", grad_q_form, of_keys=False, second=True),
    follows=_by_rows(6),
)  # fmt: skip
def attention_grad_q(
    q: Value, k: Value, v: Value, lse: Value, delta: Value, g: Value,
    num_heads: int, num_kv_heads: int, head_dim: int, causal: bool, window: int,
) -> Value:  # fmt: skip
    """P ⊙ (g·vᵀ − delta)·k/√d, P = e^(q·kᵀ/√d − lse): f32[s, h·d], f32[t, kv·d] twice, f32[s, h] twice, f32[s, h·d]
    -> f32[s, h·d]."""
    of_scores = _of_scores(q, k, v, lse, delta, g, num_heads, num_kv_heads, head_dim, causal, window)
    return _merged(batch_matmul(of_scores, _split(k, num_kv_heads, num_heads // num_kv_heads)))


@fused(
    label="", private=True, family="contraction", numpy=_grad_k_numpy, samples=_samples("qkvldg"),
    kernel=_sums("attention_grad_k", grad_k_form, of_keys=True, second=True),
    follows=_by_rows(6, 0, 3, 4, 5),
)  # fmt: skip
def attention_grad_k(
    q: Value, k: Value, v: Value, lse: Value, delta: Value, g: Value,
    num_heads: int, num_kv_heads: int, head_dim: int, causal: bool, window: int,
) -> Value:  # fmt: skip
    """(P ⊙ (g·vᵀ − delta))ᵀ·q/√d, P = e^(q·kᵀ/√d − lse), summed over the query heads of a key head: f32[s, h·d],
    f32[t, kv·d] twice, f32[s, h] twice, f32[s, h·d] -> f32[t, kv·d]."""
    of_scores = _of_scores(q, k, v, lse, delta, g, num_heads, num_kv_heads, head_dim, causal, window)
    return _summed(batch_matmul_at(of_scores, _split(q, num_heads)), num_kv_heads)


@fused(
    label="", private=True, family="contraction", numpy=_grad_v_numpy, samples=_samples("qklg"),
    kernel=_sums("attention_grad_v", grad_v_form, of_keys=True, second=False),
    follows=_by_rows(4, 0, 2, 3),
)  # fmt: skip
def attention_grad_v(
    q: Value, k: Value, lse: Value, g: Value,
    num_heads: int, num_kv_heads: int, head_dim: int, causal: bool, window: int,
) -> Value:  # fmt: skip
    """Pᵀ·g, P = e^(q·kᵀ/√d − lse), summed over the query heads of a key head: f32[s, h·d], f32[t, kv·d], f32[s, h],
    f32[s, h·d] -> f32[t, kv·d]."""
    weights = _weighted(q, k, lse, num_heads, num_kv_heads, head_dim, causal, window)
    return _summed(batch_matmul_at(weights, _split(g, num_heads)), num_kv_heads)
