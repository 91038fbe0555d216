"""Run attention with NumPy: blocks of rows against the columns that they see, products of all heads in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gdlab.base.types import Array
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

BLOCK = 128  # rows of a block: its scores stay in the cache


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The extents of an attention, from the constants of its kernel."""

    queries: int
    keys: int
    heads: int
    kv: int
    d: int
    causal: bool
    window: int
    softcap: float = 0.0

    @property
    def group(self) -> int:
        """Number of query heads of a key head."""
        return self.heads // self.kv

    def keys_of(self, first: int, end: int) -> tuple[int, int]:
        """Return first and end of the keys that some of the queries see."""
        return max(0, first + 1 - self.window) if self.window else 0, min(end, self.keys) if self.causal else self.keys

    def queries_of(self, first: int, end: int) -> tuple[int, int]:
        """Return first and end of the queries that see some of the keys."""
        last = min(end - 1 + self.window, self.queries) if self.window else self.queries
        return first if self.causal else 0, last

    def hidden(self, queries: tuple[int, int], keys: tuple[int, int]) -> Array | None:
        """Mark the pairs of the block that do not see each other; None where all do."""
        distance = np.arange(*queries)[:, None] - np.arange(*keys)
        unseen = (distance < 0) if self.causal else np.zeros(distance.shape, bool)
        if self.window:
            unseen |= distance >= self.window
        return unseen if unseen.any() else None


def _sizes(c: KernelConstants) -> AttentionSizes:
    return AttentionSizes(
        c["QUERIES"], c["KEYS"], c["HEADS"], c["KV_HEADS"], c["D"], bool(c["CAUSAL"]), c["WINDOW"],
        dict(c.numbers).get("SOFTCAP", 0.0),
    )  # fmt: skip


def _by_head(x: Array, rows: int, kv: int, group: int) -> Array:
    """View [rows, heads·d] as [kv, group, rows, d], without a copy."""
    return x.reshape(rows, kv, group, -1).transpose(1, 2, 0, 3)


class _Work:
    """Operands by head, and room for the blocks of one dispatch."""

    def __init__(self, builder: KernelBuilder, s: AttentionSizes, names: tuple[str, ...]) -> None:
        self.builder, self.s = builder, s
        rows = {"q": s.queries, "g": s.queries, "k": s.keys, "v": s.keys}
        self.at: dict[str, Array] = {}
        for i, name in enumerate(names):
            if name in rows:
                groups = s.group if name in "qg" else 1
                whole = builder.operand(i, (rows[name], s.kv * groups * s.d))
                self.at[name] = _by_head(whole, rows[name], s.kv, groups)
            elif name in ("lse", "delta"):
                self.at[name] = builder.operand(i, (s.queries, s.kv, s.group)).transpose(1, 2, 0)[..., None]
        self.room: dict[str, Array] = {}

    def block(self, name: str, rows: int, columns: int, group: int | None = None) -> Array:
        """Return memory for [kv, group, rows, columns], the same for every block of this name."""
        shape = self.s.kv, self.s.group if group is None else group, rows, columns
        size = math.prod(shape)
        if name not in self.room or self.room[name].size < size:
            self.room[name] = self.builder.temporary((size,))
        return self.room[name][:size].reshape(shape)

    def scaled_queries(self, first: int, end: int) -> Array:
        """Return q/√d of some rows."""
        q = self.block("scaled", end - first, self.s.d)
        factor = np.float32(1 / math.sqrt(self.s.d))
        self.builder.calls.append((np.multiply, (self.at["q"][:, :, first:end], factor, q)))
        return q

    def scores(self, rows: tuple[int, int], columns: tuple[int, int], scaled: Array | None = None) -> Array:
        """Return q·kᵀ/√d of the block, capped where there is a soft cap, −inf where a query does not see a key."""
        scores = self.block("scores", rows[1] - rows[0], columns[1] - columns[0])
        keys = self.at["k"][:, :, columns[0] : columns[1]]
        q = self.scaled_queries(*rows) if scaled is None else scaled
        self.builder.product(q, keys.transpose(0, 1, 3, 2), scores)
        if self.s.softcap:
            self.builder.calls.append((cap, (scores, self.s.softcap)))
        unseen = self.s.hidden(rows, columns)
        if unseen is not None:
            first = int(unseen.any(axis=0).argmax())  # columns before it are seen by all
            self.builder.calls.append((_hide, (scores[..., first:], unseen[:, first:])))
        return scores

    def weights(self, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
        """Return e^(score − lse) of the block."""
        scores = self.scores(rows, columns)
        lse = self.at["lse"][:, :, rows[0] : rows[1]]
        self.builder.calls += [(np.subtract, (scores, lse, scores)), (np.exp, (scores, scores))]
        return scores

    def of_seen(self, weights: Array, values: Array, unseen: Array | None, out: Array) -> None:
        """Append what `of_seen` does."""
        self.builder.product(weights, values, out)
        if unseen is not None:
            self.builder.calls.append((leave_out, (weights, values, unseen, out)))

    def of_scores(self, rows: tuple[int, int], columns: tuple[int, int], weights: Array) -> Array:
        """Return P ⊙ (g·vᵀ − delta) of the block, in the place of its weights P."""
        pulled = self.block("pulled", *weights.shape[2:])
        values = self.at["v"][:, :, columns[0] : columns[1]].transpose(0, 1, 3, 2)
        self.builder.product(self.at["g"][:, :, rows[0] : rows[1]], values, pulled)
        self.builder.calls += [
            (np.subtract, (pulled, self.at["delta"][:, :, rows[0] : rows[1]], pulled)),
            (np.multiply, (weights, pulled, weights)),
        ]
        return weights


def of_seen(weights: Array, values: Array, unseen: Array | None, out: Array) -> None:
    """Multiply weights [kv, group, rows, columns] by values, but leave out unseen values instead of multiplying them by
    0: they may be NaN."""
    np.matmul(weights, values, out)
    leave_out(weights, values, unseen, out)


def leave_out(weights: Array, values: Array, unseen: Array | None, out: Array) -> None:
    """Compute rows of a product anew, without what they do not see, where that is NaN."""
    if unseen is None or not np.isnan(np.add.reduce(out, None)):  # where one is NaN the sum is
        return
    for row in np.flatnonzero(np.isnan(out).any(axis=(0, 1, 3))):
        there = ~unseen[row]
        out[:, :, row] = (weights[:, :, row][:, :, None, there] @ values[:, :, there])[:, :, 0]


def cap(scores: Array, softcap: float) -> None:
    """Replace scores by softcap · tanh(score / softcap)."""
    np.multiply(scores, np.float32(1 / softcap), out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, np.float32(softcap), out=scores)


def _hide(scores: Array, unseen: Array) -> None:
    np.copyto(scores, -np.inf, where=unseen)


def _blocks(rows: int) -> list[tuple[int, int]]:
    return [(first, min(first + BLOCK, rows)) for first in range(0, rows, BLOCK)]


# forward --------------------------------------------------------------------------------------------------------------
def _softmax(work: _Work, rows: tuple[int, int]) -> tuple[Array, Array, Array, tuple[int, int]]:
    """Return e^(score − highest), highest and sum of a block of queries, and the range of its keys."""
    columns = work.s.keys_of(*rows)
    scores = work.scores(rows, columns)
    highest, total = (work.block(name, scores.shape[2], 1) for name in ("highest", "total"))
    work.builder.calls += [
        (np.maximum.reduce, (scores, 3, None, highest, True)),
        (np.subtract, (scores, highest, scores)),
        (np.exp, (scores, scores)),
        (np.add.reduce, (scores, 3, None, total, True)),
    ]
    return scores, highest, total, columns


def attention_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = _sizes(c)
    work = _Work(builder, s, c.names)
    out = _by_head(builder.out((s.queries, s.heads * s.d)), s.queries, s.kv, s.group)
    logarithm = builder.result("logarithm", (s.queries, s.kv, s.group))
    for rows in _blocks(s.queries):
        powers, highest, total, columns = _softmax(work, rows)
        part = out[:, :, rows[0] : rows[1]]
        work.of_seen(powers, work.at["v"][:, :, columns[0] : columns[1]], s.hidden(rows, columns), part)
        builder.calls.append((np.divide, (part, total, part)))
        if logarithm is not None:
            here = logarithm.transpose(1, 2, 0)[..., None][:, :, rows[0] : rows[1]]
            builder.calls += [(np.log, (total, total)), (np.add, (total, highest, here))]


def logarithm_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = _sizes(c)
    work = _Work(builder, s, c.names)
    out = builder.out((s.queries, s.kv, s.group)).transpose(1, 2, 0)[..., None]
    for rows in _blocks(s.queries):
        _, highest, total, _ = _softmax(work, rows)
        builder.calls += [(np.log, (total, total)), (np.add, (total, highest, out[:, :, rows[0] : rows[1]]))]


# backward -------------------------------------------------------------------------------------------------------------
def grad_q_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = _sizes(c)
    work = _Work(builder, s, c.names)
    out = _by_head(builder.out((s.queries, s.heads * s.d)), s.queries, s.kv, s.group)
    for rows in _blocks(s.queries):
        columns = s.keys_of(*rows)
        of_scores = work.of_scores(rows, columns, work.weights(rows, columns))
        part = out[:, :, rows[0] : rows[1]]
        work.of_seen(of_scores, work.at["k"][:, :, columns[0] : columns[1]], s.hidden(rows, columns), part)
        builder.calls.append((np.multiply, (part, np.float32(1 / math.sqrt(s.d)), part)))


def grad_k_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = _sizes(c)
    work, shape = _Work(builder, s, c.names), (s.keys, s.kv * s.d)
    out, values = builder.out(shape), builder.result("values", shape)
    for columns in _blocks(s.keys):
        rows = s.queries_of(*columns)
        shares = work.weights(rows, columns)
        if values is not None:
            _of_keys(work, rows, columns, shares, "g", values)
        part = _of_keys(work, rows, columns, work.of_scores(rows, columns, shares), "q", out)
        builder.calls.append((np.multiply, (part, np.float32(1 / math.sqrt(s.d)), part)))


def grad_v_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = _sizes(c)
    work, out = _Work(builder, s, c.names), builder.out((s.keys, s.kv * s.d))
    for columns in _blocks(s.keys):
        rows = s.queries_of(*columns)
        _of_keys(work, rows, columns, work.weights(rows, columns), "g", out)


def _of_keys(
    work: _Work, rows: tuple[int, int], columns: tuple[int, int], block: Array, of: str, out: Array
) -> Array:  # fmt: skip
    """Multiply the transposed block by `of`, summed over the query heads of every key head; return where it goes."""
    s = work.s
    hidden = s.hidden(rows, columns)
    unseen = None if hidden is None else hidden.T
    parts = work.block("parts", columns[1] - columns[0], s.d)
    part = _by_head(out, s.keys, s.kv, 1)[:, 0, columns[0] : columns[1]]
    work.of_seen(block.transpose(0, 1, 3, 2), work.at[of][:, :, rows[0] : rows[1]], unseen, parts)
    work.builder.calls.append((np.add.reduce, (parts, 1, None, part)))
    return part
