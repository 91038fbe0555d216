"""The op methods of a session as functions in op notation; the compiler lowers each to its dispatches."""

from __future__ import annotations

import math

import numpy as np

from gdlab import ops
from gdlab.base.types import f32
from gdlab.graph import Value


def rms_norm(x: Value, w: Value, eps: float) -> Value:
    """Return x / √(mean x² + eps) · w along rows."""
    return ops.rms_norm(x, w, eps)


def rms_norm_no_scale(x: Value, eps: float) -> Value:
    """Return x / √(mean x² + eps) along rows."""
    return x * ((x * x).mean_inner() + eps).rsqrt()


def scaled_rms_norm(x: Value, w: Value, s: Value, eps: float) -> Value:
    """Return a norm times a tensor, as a fused pair does; in 16 bits with the norm rounded as it would be stored."""
    y = ops.rms_norm(x, w, eps)
    return (y if x.type.dtype is f32 else ops.round_to(y, str(x.type.dtype))) * s


def add(a: Value, b: Value) -> Value:
    """Return a + b."""
    return a + b


def mul(a: Value, b: Value) -> Value:
    """Return a · b."""
    return a * b


def gelu(x: Value) -> Value:
    """Return GELU in its tanh form."""
    return ops.gelu(x)


def softmax(x: Value) -> Value:
    """Return the softmax of rows."""
    return ops.softmax(x)


def softcap(x: Value, cap: float) -> Value:
    """Return tanh(x / cap) · cap."""
    return (x / cap).tanh() * cap


def rope(x: Value, positions: Value, theta: float) -> Value:
    """Turn pairs (2i, 2i + 1) of every row by position · θ^(−2i/d): the rotation of halves between two permutations."""
    rows, d = x.shape
    apart = x.reshape((rows, d // 2, 2)).permute((0, 2, 1)).reshape((rows, d))
    turned = ops.rope_positions(apart, positions, theta, d)
    return turned.reshape((rows, 2, d // 2)).permute((0, 2, 1)).reshape((rows, d))


def rope_leading(
    x: Value, positions: Value, *factors: Value, n_heads: int, head_dim: int, rope_dim: int, theta: float
) -> Value:
    """Turn pairs (i, i + rope_dim/2) of the first rope_dim elements of every head by position · θ^(−2i/rope_dim) /
    factor i, as in ggml; other elements stay."""
    rows, length = x.shape[0], positions.shape[0]
    first = x.slice((0, 0), (rows, rope_dim)).reshape((length, n_heads * rope_dim))
    turned = ops.rope_positions(first, positions, theta, rope_dim, *factors).reshape((rows, rope_dim))
    return ops.concat([turned, x.slice((0, rope_dim), (rows, head_dim))], 1)


def rope_neox(
    x: Value, positions: Value, *factors: Value, n_heads: int, head_dim: int, rope_dim: int, theta: float
) -> Value:
    """Turn pairs (i, i + head_dim/2) with i < rope_dim/2 of every head by position · θ^(−2i/head_dim) / factor i; other
    elements stay."""
    length = positions.shape[0]
    if rope_dim == head_dim:
        turned = ops.rope_positions(x.reshape((length, n_heads * head_dim)), positions, theta, head_dim, *factors)
        return turned.reshape(x.shape)
    half, part = head_dim // 2, rope_dim // 2
    heads = x.reshape((length * n_heads, 2, half))
    first = heads.slice((0, 0, 0), (length * n_heads, 2, part)).reshape((length, n_heads * rope_dim))
    rest = heads.slice((0, 0, part), (length * n_heads, 2, half))
    rate = theta ** (rope_dim / head_dim)  # θ^(−2i/head_dim) = rate^(−2i/rope_dim)
    turned = ops.rope_positions(first, positions, rate, rope_dim, *factors)
    return ops.concat([turned.reshape((length * n_heads, 2, part)), rest], 2).reshape(x.shape)


def copied(x: Value) -> Value:
    """Return x."""
    return x.reshape(x.shape)


def attention(
    q: Value, k: Value, v: Value, *limits: Value, seq: int, causal: bool, scale: float, softcap: float
) -> Value:
    """Return attention of q[b, group · seq, d] to k and v[b, capacity, d]: query row s sees key t where first ≤ t ≤
    last (+ s if causal), with (first, last, end) = `limits`; elements of v from `end` on count as 0. Without limits the
    caches are full, and nothing lies behind their keys."""
    (_, rows, _), capacity = q.shape, k.shape[1]
    if not limits and not softcap and 1 < seq and (seq == capacity or not causal):
        return _tiled(q, k, v, seq, causal, scale)
    scores = ops.batch_matmul_bt(q, k).scale(scale)
    if softcap:
        scores = (scores / softcap).tanh().scale(softcap)
    keys = np.arange(capacity, dtype=np.float32)
    across, down = ops.constant(keys.reshape(1, 1, -1)), ops.constant(keys.reshape(1, -1, 1))
    row = np.tile(np.arange(seq, dtype=np.float32), rows // seq).reshape(1, -1, 1)
    if not limits:
        if causal:
            scores = ops.where(across <= ops.constant(row + (capacity - seq)), scores, -np.inf)
        return ops.batch_matmul(ops.softmax(scores), v)
    numbers = limits[0].to_f32()
    first, last, end = (numbers.slice((i,), (i + 1,)).reshape((1, 1, 1)) for i in range(3))
    seen = (across <= (last + ops.constant(row) if causal else last)) * (across >= first)
    weights = ops.softmax(ops.where(seen, scores, -np.inf))
    held = ops.where((down <= end) * (down >= first), v, 0.0)
    return ops.batch_matmul(weights, held)


def _tiled(q: Value, k: Value, v: Value, seq: int, causal: bool, scale: float) -> Value:
    """Return attention to full caches by the engine's tiled kernel: heads side by side in rows, divided by √d."""
    d, heads, kv_heads = q.shape[2], q.shape[0] * q.shape[1] // seq, k.shape[0]
    rows = [
        shaped(shaped(x, (count, x.type.num_elements // (count * d), d)).permute((1, 0, 2)), (-1, count * d))
        for x, count in ((q.scale(scale * d**0.5), heads), (k, kv_heads), (v, kv_heads))
    ]
    attend = ops.causal_attention if causal else ops.cross_attention
    found = shaped(attend(*rows, heads, kv_heads, d), (seq, heads, d)).permute((1, 0, 2))
    return shaped(found, q.shape)


def shaped(x: Value, shape: tuple[int, ...]) -> Value:
    """Return x in a shape (one extent may be −1); x itself where it has that shape."""
    count = math.prod(n for n in shape if n >= 0)
    shape = tuple(x.type.num_elements // count if n < 0 else n for n in shape)
    return x if x.shape == shape else x.reshape(shape)
