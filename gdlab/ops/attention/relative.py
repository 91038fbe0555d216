"""Compute biases of attention by the distance of key and query."""

from __future__ import annotations

import numpy as np

from gdlab.base.errors import ArgumentError, GraphError, ShapeError
from gdlab.base.types import Array
from gdlab.graph import Value, whole
from gdlab.op import is_number
from gdlab.ops.index import gather
from gdlab.ops.leaves import constant_u32

__all__ = ["t5_relative_bias"]

WHERE = "t5_relative_bias"


@whole
def t5_relative_bias(table: Value, q: int, k: int, max_distance: int = 128, bidirectional: bool = True) -> Value:
    """A bias per head for every query and key by their distance: f32[heads, buckets] -> f32[heads, q, k].

    Distances below half of the buckets have one each, the others share the rest logarithmically up to `max_distance`;
    keys after the query have buckets of their own, the upper half, or, if not bidirectional, bucket 0. The buckets are
    a constant of the graph, the gradient of the table is a sum by bucket. C. Raffel et al., Exploring the Limits of
    Transfer Learning with a Unified Text-to-Text Transformer, 2020.
    """
    if not isinstance(table, Value):
        raise ArgumentError(WHERE, "operand", f"{type(table).__name__} {table!r:.60}", "a value of a graph")
    least = 4 if bidirectional else 2
    if table.type.rank != 2 or table.shape[1] < least or table.shape[1] % (least // 2):
        wanted = f"table[heads, buckets] with {least} buckets or more" + (", an even number" if bidirectional else "")
        raise ShapeError(WHERE, "operands", str(table.type), wanted)
    if not all(isinstance(n, (int, np.integer)) and n >= 1 for n in (q, k)):
        raise GraphError(WHERE, "q and k", f"{q!r} and {k!r}", "ints ≥ 1")
    if not is_number(max_distance):
        raise GraphError(WHERE, "max_distance", repr(max_distance), "a number")
    if not max_distance > table.shape[1] // least:
        wanted = f"more than the {table.shape[1] // least} distances with buckets of their own"
        raise GraphError(WHERE, "max_distance", repr(max_distance), wanted)
    index = _buckets(table.shape[1], int(q), int(k), max_distance, bidirectional)
    places = constant_u32(index.reshape(-1), graph=table.graph)
    return gather(table, places, 1).reshape((table.shape[0], int(q), int(k)))


def _buckets(count: int, q: int, k: int, max_distance: int, bidirectional: bool) -> Array:
    """Return the bucket of every pair, u32[q, k]."""
    after = np.arange(k)[None, :] - np.arange(q)[:, None]
    count = count // 2 if bidirectional else count
    distance = np.abs(after) if bidirectional else np.maximum(-after, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1) / exact) / np.log(max_distance / exact)
    shared = exact + np.floor(np.maximum(ratio, 0) * (count - exact) + 1e-6)  # whole numbers stay whole
    found = np.where(distance < exact, distance, np.minimum(shared, count - 1))
    return np.asarray(found + (count * (after > 0) if bidirectional else 0), np.uint32)
