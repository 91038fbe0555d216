"""Sessions of the door `record`: buffers from arrays, NumPy meanings of the op methods, a transformer layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import gdlab as gd
from gdlab.record import Buffer, SdpaParams

Array = np.ndarray[Any, Any]
_executors: dict[str, gd.GraphExecutor] = {}


def executor(device: str) -> gd.GraphExecutor:
    """One executor per device for all tests, so that kernels are made once."""
    if device not in _executors or not _executors[device].open:
        _executors[device] = gd.GraphExecutor(device)
    return _executors[device]


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def buffer(ex: gd.GraphExecutor, array: Array, **more: Any) -> Buffer:
    """A buffer that holds an array (uint32 or float32)."""
    held = np.asarray(array)
    dtype = gd.u32 if held.dtype == np.uint32 else gd.f32
    made = ex.alloc_buffer(4 * held.size, dtype, held.shape, **more)
    made.write(held)
    return made


def raw(ex: gd.GraphExecutor, words: bytes) -> Buffer:
    """A u32 buffer of bytes."""
    count = -(-len(words) // 4)
    made = ex.alloc_buffer(4 * count, gd.u32, (count,))
    made.write(words)
    return made


def zeros(ex: gd.GraphExecutor, *shape: int, **more: Any) -> Buffer:
    return ex.alloc_buffer(4 * int(np.prod(shape)), gd.f32, shape, **more)


@contextmanager
def recorded(ex: gd.GraphExecutor, **more: Any) -> Iterator[gd.GraphSession]:
    with ex.begin_recorded(**{"auto_barrier": True, **more}) as s:
        yield s


def direct(ex: gd.GraphExecutor, **more: Any) -> gd.GraphSession:
    made: gd.GraphSession = ex.begin(**{"auto_barrier": True, **more})
    return made


def close(got: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    """Max |error| / max(1, |wanted|); NaN fails."""
    error = np.abs(got.astype(np.float64).reshape(-1) - np.asarray(wanted, np.float64).reshape(-1))
    worst = float((error / np.maximum(1, np.abs(np.asarray(wanted).reshape(-1)))).max())
    assert worst <= tolerance, worst


# meanings in float64 --------------------------------------------------------------------------------------------------
def rms(x: Array, w: Array | float = 1.0, eps: float = 1e-6) -> Array:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def softmax(x: Array) -> Array:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: Array) -> Array:
    x = x.astype(np.float64)
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def turned(x: Array, first: Array, second: Array, positions: Array, rates: Array) -> Array:
    """x[rows, d] with the pairs (first[i], second[i]) turned by positions · rates."""
    angle = np.outer(positions, rates)
    out, a, b = x.astype(np.float64).copy(), x[:, first].astype(np.float64), x[:, second].astype(np.float64)
    out[:, first], out[:, second] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return out


def attention(q: Array, k: Array, v: Array, allowed: Array, scale: float, softcap: float = 0.0) -> Array:
    """q[B, H, S, D], k and v[B, Hkv, T, D], allowed[S, T]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), group, 1) for a in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    return softmax(np.where(allowed, scores, -np.inf)) @ v


# a list ---------------------------------------------------------------------------------------------------------------
class Layer:
    """Buffers of a small transformer layer, twice over some forty ops."""

    ROWS, HEADS, D = 4, 2, 16

    def __init__(self, ex: gd.GraphExecutor) -> None:
        self.ex, self.names = ex, dict[str, Buffer]()

    def at(self, name: str, *shape: int, transient: bool = False, positive: bool = False) -> Buffer:
        """The buffer of a name, made at its first use."""
        if name not in self.names:
            x = data(*shape, seed=len(self.names))
            array = np.abs(x) if positive else x
            self.names[name] = buffer(self.ex, array, label=name, transient=transient)
        return self.names[name]

    def reset(self) -> None:
        for i, (name, b) in enumerate(self.names.items()):
            if name != "positions":
                b.write(data(*b.shape, seed=i))

    def bytes(self) -> dict[str, bytes]:
        return {name: b.read().tobytes() for name, b in self.names.items() if not b.transient}

    def encode(self, s: gd.GraphSession) -> None:
        r, h, d = self.ROWS, self.HEADS, self.D
        n = r * h * d
        if "positions" not in self.names:
            self.names["positions"] = buffer(self.ex, np.arange(r, dtype=np.uint32))
        positions = self.names["positions"]
        x, kept = self.at("x", r, h * d), SdpaParams(h, h, d, r, r, d**-0.5)
        for layer in range(4):
            y, z = self.at(f"y{layer}", r, h * d, transient=True), self.at(f"z{layer}", r, h * d)
            w, scale = self.at(f"w{layer}", h * d), self.at(f"s{layer}", r, h * d)
            s.rms_norm(x, w, y, r, h * d)
            s.elementwise_mul(y, scale, z, n, gd.f32)
            parts = {}
            for part in "qkv":
                turned = self.at(f"{part}{layer}", r * h, d)
                s.rope_neox_f32(z, turned, positions, None, r, h, d, d if part != "v" else 0)
                parts[part] = turned
            a, g = self.at(f"a{layer}", r, h * d), self.at(f"g{layer}", r, h * d)
            s.sdpa(parts["q"], parts["k"], parts["v"], a, kept, 1)
            s.gelu(a, g)
            s.softcap(g, g, 30.0)
            s.elementwise_add(x, g, x, n, gd.f32)
            s.softmax(z, self.at(f"p{layer}", r, h * d), r, h * d)
