"""Which weights of a graph lie packed in one tensor: a `packed` node of parameters that nothing else reads is the
storage of them all, a derived parameter; its sources are ranges of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gdlab.types import Shape

if TYPE_CHECKING:
    from gdlab.graph import Graph, Node

PACKED = "packed"


class Part(NamedTuple):
    """Where a source lies: start … stop − 1 along `axis` (0 rows, 1 columns) of buffer `buffer`."""

    buffer: int
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DerivedParam:
    """A parameter that is the storage of others: `sources` are (name, extent along `axis`) in order; axis 1: columns,
    0: rows."""

    name: str
    sources: tuple[tuple[str, int], ...]
    axis: int
    shape: Shape
    transform: Literal["concat"] = "concat"

    def part(self, source: str, buffer: int) -> Part:
        """The range of a source, where the whole lies in `buffer`."""
        start = 0
        for name, extent in self.sources:
            if name == source:
                return Part(buffer, self.axis, start, start + extent)
            start += extent
        raise KeyError(source)


def derived_of(graph: Graph) -> dict[int, DerivedParam]:
    """The derived parameters by node: `packed` nodes whose operands are different parameters, each read here alone and
    no output."""
    nodes: Sequence[Node] = graph._nodes
    found = [n for n in nodes if n.op == PACKED]
    if not found:
        return {}
    uses = dict.fromkeys((i for n in found for i in n.inputs), 0)
    for i in (i for n in nodes for i in n.inputs):
        if i in uses:
            uses[i] += 1
    for i in graph.output_ids:
        if i in uses:
            uses[i] += 1
    taken, records = {n.name for n in nodes if not n.inputs}, {}
    for n in found:
        if len(n.inputs) > 1 and all(nodes[i].op == "parameter" and uses[i] == 1 for i in n.inputs):
            records[n.id] = _record(n, [nodes[i] for i in n.inputs], taken)
            taken.add(records[n.id].name)
    return records


def _record(node: Node, sources: Sequence[Node], taken: set[str]) -> DerivedParam:
    axis: int = node.attr("axis")
    extents = tuple((n.name, n.type.shape[axis]) for n in sources)
    name = "+".join(n.name for n in sources)
    while name in taken:  # a leaf may be called so
        name += "+"
    return DerivedParam(name, extents, axis, node.type.shape)


def stored_of(graph: Graph) -> tuple[tuple[int, str], ...]:
    """(node, name) of what has a buffer of its own: parameters, with a derived one in place of its sources, by node."""
    derived = derived_of(graph)
    inside = {i for id in derived for i in graph._nodes[id].inputs}
    plain = [(n.id, n.name) for n in graph._nodes if n.op == "parameter" and n.id not in inside]
    return tuple(sorted([*plain, *((id, d.name) for id, d in derived.items())]))
