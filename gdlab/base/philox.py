"""Random numbers that are the same on every machine and device: the Philox4x32-10 counter generator, in NumPy.

`words` are the bits, `uniform` and `normal` the numbers made of them; a WGSL kernel that follows the same rules gives
the same bits. A block of four words has a 128-bit counter (index of the block, domain, call, step) and a 64-bit key,
the seed. Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.base.types import Array

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_BUMPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def block(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Return the four words of the counter block; each word of the counter is a uint32 number or an array of them."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0), (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _BUMPS[0]) & 0xFFFFFFFF, (k1 + _BUMPS[1]) & 0xFFFFFFFF
    w0, w1, w2, w3 = (w.astype(np.uint32) for w in (c0, c1, c2, c3))
    return w0, w1, w2, w3


def words(count: int, seed: int, *, domain: int = 0, call: int = 0, step: int = 0) -> Array:
    """Return the first `count` words of a stream, u32[count]; 0 ≤ seed < 2⁶⁴, the others are below 2³²."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    made = block((blocks, domain, call, step), (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(made, axis=-1).reshape(-1)[:count]


def uniform(count: int, seed: int, *, domain: int = 0, call: int = 0, step: int = 0) -> Array:
    """Return f32[count] in [0, 1): the upper 24 bits of each word times 2⁻²⁴, exact in float32."""
    return np.asarray(_fractions(words(count, seed, domain=domain, call=call, step=step)), np.float32)


def normal(count: int, seed: int, *, domain: int = 0, call: int = 0, step: int = 0) -> Array:
    """Return f32[count] of the standard normal distribution: √(−2 ln u₁) · cos 2πu₂ of the words 2i and 2i + 1, in
    float64."""
    pairs = words(2 * count, seed, domain=domain, call=call, step=step).reshape(count, 2)
    u1, u2 = _fractions(pairs[:, 0]) + 2.0**-24, _fractions(pairs[:, 1])  # u1 in (0, 1]: its logarithm is finite
    return np.asarray(np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2), np.float32)


def _fractions(bits: Array) -> Array:
    return np.asarray((bits >> np.uint32(8)) * 2.0**-24)
