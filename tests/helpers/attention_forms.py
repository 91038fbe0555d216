"""Attention of many heads as people write it out, under every mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from recognizing import p

from gdlab import ops
from gdlab.graph import Value

S, H, D = 5, 3, 4  # rows, heads, width of a head


def masks(n: int = S) -> dict[str, np.ndarray]:
    later = np.triu(np.full((n, n), -1e9), 1)
    return {"causal": later, "infinite": np.triu(np.full((n, n), -np.inf), 1), "strict": later + later.T,
            "soft": later / 1e6, "earlier": later.T, "seen": np.tril(np.ones((n, n))),
            "hidden": np.triu(np.ones((n, n)), 1), "diagonal": np.eye(n)}  # fmt: skip


def constant(name: str, *lead: int) -> Value:
    mask = masks()[name]
    return ops.constant(np.broadcast_to(mask, (*lead, *mask.shape)))


MASKED: dict[str, Callable[[Value], Value]] = {
    "nothing": lambda s: s,
    "an addend": lambda s: s + constant("causal"),
    "an addend first": lambda s: constant("causal") + s,
    "an infinite addend": lambda s: s + constant("infinite"),
    "where seen": lambda s: ops.where(constant("seen"), s, -1e9),
    "where hidden": lambda s: ops.where(constant("hidden"), -np.inf, s),
    "where a comparison holds": lambda s: ops.where(constant("seen") > 0.5, s, -1e30),
    "where a comparison of places holds": lambda s: ops.where(places(0) >= places(1), s, -1e9),
}


def places(axis: int) -> Value:
    """The row or the column of every score."""
    line = np.arange(S, dtype=np.float32)
    return ops.broadcast_to(ops.constant(np.expand_dims(line, 1 - axis)), (S, S))


def apart(x: Value, heads: int = H) -> Value:
    return x.reshape((x.shape[0], heads, x.shape[1] // heads)).permute((1, 0, 2))


def joined(x: Value) -> Value:
    return x.permute((1, 0, 2)).reshape((x.shape[1], x.shape[0] * x.shape[2]))


def qkv(keys: int = S, heads: int = H) -> tuple[Value, Value, Value]:
    return p("q", S, H * D), p("k", keys, heads * D), p("v", keys, heads * D)


def attend(q: Value, k: Value, v: Value, mask: Callable[[Value], Value], factor: float = D**-0.5) -> Value:
    return ops.batch_matmul(ops.softmax(mask(ops.batch_matmul_bt(q, k) * factor)), v)


def heads(mask: Callable[[Value], Value], factor: float = D**-0.5) -> Value:
    return joined(attend(*map(apart, qkv()), mask, factor))


def keys_first(form: str) -> Value:
    q, k, v = qkv()
    scaled = q * D**-0.5 if form == "rows scaled" else q
    columns = {
        "transpose": lambda: apart(k).T,
        "permute": lambda: k.reshape((S, H, D)).permute((1, 2, 0)),
        "permute twice": lambda: apart(k).permute((0, 2, 1)),
        "rows scaled": lambda: apart(k).T,
        "keys scaled": lambda: apart(k * D**-0.5).T,
    }[form]()
    scores = ops.batch_matmul(apart(scaled), columns)
    scores = scores if "scaled" in form else scores / np.sqrt(D)
    return joined(ops.batch_matmul(ops.softmax(scores + constant("causal", H)), apart(v)))
