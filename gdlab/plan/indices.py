"""How large an index may be: the bound of every input that a graph uses to number rows of something."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdlab.base.types import u32
from gdlab.graph import Graph, Node
from gdlab.op import REGISTRY, Alias, Movement

# op -> (which operand holds indices, what they must stay below)
INDEXED: Mapping[str, tuple[int, Callable[[Graph, Node], int]]] = {
    "gather": (1, lambda graph, n: graph.node(n.inputs[0]).type.shape[n.attr("axis")]),
    "embedding": (0, lambda graph, n: graph.node(n.inputs[1]).type.shape[0]),
    "scatter_add": (0, lambda graph, n: int(n.attr("vocab"))),
}
_COPIES = ("concat", "materialize")


def index_bounds(graph: Graph) -> tuple[tuple[str, int], ...]:
    """(input, bound) of every u32 input whose elements are indices, moved about or not: all must lie below the bound,
    the smallest extent that they index. What is computed from an input is not followed."""
    holds: dict[int, frozenset[str]] = {}  # node -> inputs whose elements it holds
    bounds: dict[str, int] = {}
    for node in graph:
        if node.op == "input" and node.type.dtype is u32:
            holds[node.id] = frozenset((node.name,))
        elif node.type.dtype is u32 and _moves(node):
            holds[node.id] = frozenset[str]().union(*(holds.get(i, ()) for i in node.inputs))
        if node.op in INDEXED:
            operand, bound = INDEXED[node.op]
            for name in holds.get(node.inputs[operand], ()):
                bounds[name] = min(bounds.get(name, 1 << 32), bound(graph, node))
    return tuple(sorted(bounds.items()))


def _moves(node: Node) -> bool:
    return node.op in _COPIES or isinstance(REGISTRY[node.op].kernel, (Alias, Movement))
