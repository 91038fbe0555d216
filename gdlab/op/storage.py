"""Find the weights of a graph that lie packed in one tensor, the caches that are written in place, and what is trained.

A `packed` node of parameters that nothing else reads is the storage of them all, a derived parameter; its sources are
ranges of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gdlab.base.errors import GraphError
from gdlab.base.types import Shape, f32
from gdlab.graph import Graph, Node
from gdlab.op.kernel import Alias
from gdlab.op.record import Op, ops_that


class SourceRange(NamedTuple):
    """The range of a source: start … stop − 1 along `axis` (0 rows, 1 columns) of buffer `buffer`."""

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

    def part(self, source: str, buffer: int) -> SourceRange:
        """Return the range of a source, where the whole lies in `buffer`."""
        start = 0
        for name, extent in self.sources:
            if name == source:
                return SourceRange(buffer, self.axis, start, start + extent)
            start += extent
        raise KeyError(source)


def derived_of(graph: Graph) -> dict[int, DerivedParam]:
    """Return the derived parameters by node: `packed` nodes whose operands are different parameters, each read here
    alone and no output."""
    nodes: Sequence[Node] = graph._nodes
    packing = ops_that(lambda op: op.packing == "storage", nodes)
    packs = [n for n in nodes if n.op in packing]
    if not packs:
        return {}
    uses = dict.fromkeys((i for n in packs for i in n.inputs), 0)
    for i in (i for n in nodes for i in n.inputs):
        if i in uses:
            uses[i] += 1
    for i in graph.output_ids:
        if i in uses:
            uses[i] += 1
    taken, records = {n.name for n in nodes if not n.inputs}, {}
    for n in packs:
        if len(n.inputs) > 1 and all(nodes[i].op == "parameter" and uses[i] == 1 for i in n.inputs):
            records[n.id] = _record(n, [nodes[i] for i in n.inputs], taken)
            taken.add(records[n.id].name)
    return records


def derived_parameters(graph: Graph) -> tuple[DerivedParam, ...]:
    """Return the parameters that are the storage of others, in node order."""
    return tuple(derived_of(graph).values())


def stored_in(graph: Graph) -> dict[str, str]:
    """Map each source to the derived parameter that is its storage; a parameter that is not in it has its own."""
    return {source: d.name for d in derived_parameters(graph) for source, _ in d.sources}


def _record(node: Node, sources: Sequence[Node], taken: set[str]) -> DerivedParam:
    axis: int = node.attr("axis")
    extents = tuple((n.name, n.type.shape[axis]) for n in sources)
    name = "+".join(n.name for n in sources)
    while name in taken:  # a leaf may be called so
        name += "+"
    return DerivedParam(name, extents, axis, node.type.shape)


def stored_parameters(graph: Graph) -> tuple[tuple[int, str], ...]:
    """Return (node, name) of each parameter that has a buffer of its own: parameters, with a derived one in place of
    its sources, by node."""
    derived = derived_of(graph)
    inside = {i for id in derived for i in graph._nodes[id].inputs}
    plain = [(n.id, n.name) for n in graph._nodes if n.op == "parameter" and n.id not in inside]
    return tuple(sorted([*plain, *((id, d.name) for id, d in derived.items())]))


def _writes(op: Op) -> bool:
    return op.writes_in_place


def _is_view(op: Op) -> bool:
    """Whether its result is its operand's elements, where they lie."""
    return isinstance(op.kernel, Alias)


def _in_parameters(graph: Graph) -> dict[int, tuple[int, int]]:
    """Of every node whose value lies in the memory of a parameter that may be a cache: the parameter, and the node that
    put it there (the parameter itself or a cache write)."""
    nodes: Sequence[Node] = graph._nodes
    writes, views = ops_that(_writes, nodes), ops_that(_is_view, nodes)
    if not writes:
        return {}
    homes = {n.id: (n.id, n.id) for n in nodes if n.op == "parameter"}
    for n in nodes:
        if n.op in views and n.inputs[0] in homes:
            homes[n.id] = homes[n.inputs[0]]
        elif n.op in writes and n.inputs[1] in homes:
            homes[n.id] = homes[n.inputs[1]][0], n.id
    return homes


def written_in_place(graph: Graph) -> dict[int, int]:
    """Return the parameter of each cache write, by node: its cache is the parameter, or what an earlier write left
    there."""
    return {id: home for id, (home, by) in _in_parameters(graph).items() if id == by != home}


def check_caches(graph: Graph, where: str) -> None:
    """Raise `GraphError` where anything but its cache write reads what that overwrites in place: it would see old rows
    or new ones, as the order of dispatches happens to be."""
    homes, nodes = _in_parameters(graph), graph._nodes
    over: dict[int, int] = {}  # what put a value there -> the first write over it
    for id, (home, by) in homes.items():
        if id == by != home:
            over.setdefault(homes[nodes[id].inputs[1]][1], id)
    reads: list[tuple[Node | None, int, int]] = []
    if over:
        views = ops_that(_is_view, nodes)
        reads += [(n, k, i) for n in nodes if n.op not in views for k, i in enumerate(n.inputs)]
        reads += [(None, 0, i) for i in graph.output_ids]
    for n, k, i in reads:
        write = over.get(homes[i][1]) if i in homes else None
        if write is not None and (n is None or (n.id, k) != (write, 1)):
            at, what = (i, "an output") if n is None else (n.id, n.op)
            given, source = f"{nodes[homes[i][0]].name}, which %{write} writes in place", graph.source(at)
            raise GraphError(where, f"%{at} {what}", given, "the rows as written: pass the result of cache_write",
                             node=at, source=source[0] if source else None)  # fmt: skip


def trained_parameters(graph: Graph) -> tuple[tuple[int, str], ...]:
    """Return those of `stored_parameters` that are trained: f32 (a storage dtype is not updated), and no cache."""
    caches = set(written_in_place(graph).values())
    return tuple(
        (id, name) for id, name in stored_parameters(graph) if graph._nodes[id].type.dtype is f32 and id not in caches
    )
