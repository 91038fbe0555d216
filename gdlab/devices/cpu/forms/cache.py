"""NumPy forms of caches: rows written at a position, attention to what a cache holds."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.devices.cpu.forms.attention import of_seen
from gdlab.plan.dispatch import Custom


def _write(bench: Bench, c: Custom) -> None:
    rows, width, new = c["ROWS"], c["WIDTH"], c["NEW"]
    counts = [bench.operand(i, (1,)) for i in range(2, len(c.names))]
    operands = bench.operand(0, (new, width)), bench.operand(1, (rows, width))
    bench.steps.append((_rows, (*operands, bench.out((rows, width)), *counts)))


def _in_place(bench: Bench, c: Custom) -> None:
    rows, width, new = c["ROWS"], c["WIDTH"], c["NEW"]
    counts = [bench.operand(i, (1,)) for i in range(1, len(c.names))]
    bench.steps.append((_put, (bench.operand(0, (new, width)), bench.out((rows, width)), *counts)))


def _rows(new: Array, cache: Array, out: Array, pos: Array, count: Array | None = None) -> None:
    np.copyto(out, cache)
    _put(new, out, pos, count)


def _put(new: Array, out: Array, pos: Array, count: Array | None = None) -> None:
    start, rows = int(pos[0]), len(new) if count is None else min(int(count[0]), len(new))
    if start + rows <= len(out):
        out[start : start + rows] = new[:rows]


def _attention(bench: Bench, c: Custom) -> None:
    queries, keys, heads, kv, d = (c[name] for name in ("QUERIES", "KEYS", "HEADS", "KV_HEADS", "D"))
    q = bench.operand(0, (queries, kv, heads // kv, d)).transpose(1, 2, 0, 3)
    k, v = (bench.operand(i, (keys, kv, 1, d)).transpose(1, 2, 0, 3) for i in (1, 2))
    out = bench.out((queries, kv, heads // kv, d)).transpose(1, 2, 0, 3)
    counts = [bench.operand(i, (1,)) for i in range(3, len(c.names))]
    bench.steps.append((_attend, (q, k, v, out, c["WINDOW"], *counts)))


def _attend(q: Array, k: Array, v: Array, out: Array, window: int, pos: Array, valid: Array | None = None) -> None:
    """[kv, group, rows, d]; with `valid` the queries stand one behind the other."""
    keys, block = k.shape[2], valid is not None
    last = np.minimum(min(int(pos[0]), keys - 1) + np.arange(q.shape[2]) * block, keys - 1)[:, None]
    end = int(last[-1, 0]) + 1
    k, v, place = k[:, :, :end], v[:, :, :end], np.arange(end)
    hidden = (place > last) | (place <= last - window if window else False)
    scores = q @ k.transpose(0, 1, 3, 2) * np.float32(q.shape[3] ** -0.5)
    scores[..., hidden] = -np.inf
    powers = np.exp(scores - scores.max(axis=3, keepdims=True))
    of_seen(powers, v, np.broadcast_to(hidden, scores.shape[2:]), out)
    np.divide(out, powers.sum(axis=3, keepdims=True), out=out)
    if valid is not None:
        out[:, :, int(valid[0]) :] = 0


FORMS = {
    "cache_all": _write, "cache_prefix": _write, "cache_in_place": _in_place, "attention_cached": _attention,
}  # fmt: skip
