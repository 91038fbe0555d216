"""Find the bounds of indices: for every input that numbers rows of something, the number of those rows."""

from __future__ import annotations

from gdlab.base.types import u32
from gdlab.graph import Graph
from gdlab.op import REGISTRY, ops_that


def index_bounds(graph: Graph) -> tuple[tuple[str, int], ...]:
    """Return (input, bound) of every u32 input whose elements are indices, moved about or not: all must lie below the
    bound, the smallest extent that they index. What is computed from an input is not followed."""
    moves = ops_that(lambda op: op.family == "movement", graph)
    indexed = ops_that(lambda op: op.indices, graph)
    holds: dict[int, frozenset[str]] = {}  # node -> inputs whose elements it holds
    bounds: dict[str, int] = {}
    for node in graph:
        if node.op == "input" and node.type.dtype is u32:
            holds[node.id] = frozenset((node.name,))
        elif node.type.dtype is u32 and node.op in moves:
            holds[node.id] = frozenset[str]().union(*(holds.get(i, ()) for i in node.inputs))
        if node.op in indexed and (indices := REGISTRY[node.op].indices) is not None:
            types = [graph.node(i).type for i in node.inputs]
            for name in holds.get(node.inputs[indices.operand], ()):
                bounds[name] = min(bounds.get(name, 1 << 32), indices.bound(types, dict(node.attrs)))
    return tuple(sorted(bounds.items()))
