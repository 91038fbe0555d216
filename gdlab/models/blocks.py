"""Build parts of several models: checked modes and extents, attention over every image, the output of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.graph import Value

Mode = Literal["training", "inference"]


def check_mode(model: str, mode: str) -> None:
    """Raise unless the mode is one of the model's."""
    if mode not in ("training", "inference"):
        raise GraphError(model, "mode", repr(mode), "'training' or 'inference'")


def check_extents(model: str, **extents: int) -> None:
    """Raise unless every extent is an int ≥ 1."""
    for name, n in extents.items():
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise GraphError(model, name, repr(n), "an int ≥ 1")


def check_multiple(model: str, name: str, n: int, of: int) -> None:
    """Raise unless `of` divides `n`."""
    if n % of:
        raise GraphError(model, name, n, f"a multiple of {of}")


def attend(q: Value, k: Value, v: Value, batch: int, heads: int) -> Value:
    """Append full attention among the rows of each of `batch` sequences that lie one behind the other, all f32[n, d].
    """
    width = q.shape[1] // heads

    def one(parts: Sequence[Value]) -> Value:
        return ops.full_attention(*parts, heads, heads, width)

    if batch == 1:
        return one((q, k, v))
    rows = [q.shape[0] // batch] * batch
    return ops.concat([one(parts) for parts in zip(*(t.split(rows, 0) for t in (q, k, v)), strict=True)], 0)


def classified(x: Value, batch: int, classes: int, mode: Mode) -> tuple[Value, str]:
    """Return the output of a classifier and its name: logits f32[batch, classes], or their cross entropy against
    `labels`."""
    if mode == "inference":
        return x.named("logits"), "logits"
    return ops.cross_entropy_loss(x, ops.input("labels", (batch, classes))), "loss"
