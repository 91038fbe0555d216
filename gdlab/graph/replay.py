"""The replay of a pass: one `Step` is one change to a graph, and `replay(graph, steps, k)` applies the first k of them.

Ids are stable through a replay: nodes of the input graph keep theirs, added nodes have ids from `len(graph)` on. The
order of nodes is computed (inputs first, then lowest id) until the last step, `sweep`, gives the final one. So every
prefix is a valid graph, and all steps give the result of the pass exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from gdlab.base.errors import ArgumentError
from gdlab.base.words import sig
from gdlab.graph import Graph, Node

__all__ = ["SWEEP", "Rewired", "Step", "assemble", "replay", "topological"]

SWEEP = "sweep"
BITS = 32
MASK = (1 << BITS) - 1
Rewired = tuple[int, int, int]  # (reader, port, new id); port −1 − i is output i, then the reader is its former node


@dataclass(frozen=True, slots=True)
class Step:
    """One change: by which rule, where (`at`: the nodes it replaced, first the one that named the new), and what.

    `bindings` says which node stood for each variable of the rule. Costs are of the whole live graph, in µs. Iteration
    is the round of saturation that found it, or None. `order` is set in the last step alone: all ids, as they stay.
    """

    rule: str
    label: str
    at: tuple[int, ...] = ()
    bindings: Mapping[str, int] = field(default_factory=dict)
    removed: tuple[int, ...] = ()
    added: tuple[Node, ...] = ()
    rewired: tuple[Rewired, ...] = ()
    cost_before: float = 0.0
    cost_after: float = 0.0
    iteration: int | None = None
    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = ", ".join(f"%{id}" for id in self.at)
        return f"{self.label}{' at ' + where if where else ''}: {sig(self.cost_before)} -> {sig(self.cost_after)} µs"


def replay(graph: Graph, steps: Sequence[Step], k: int | None = None) -> Graph:
    """Return the graph after the first `k` steps (None: all); sources, output names and gradient count come along."""
    nodes, outputs, origin, order = _state(graph, steps, k)
    return assemble(graph, nodes, {id: node.inputs for id, node in nodes.items()}, outputs, order, origin)


State = tuple[dict[int, Node], list[int], dict[int, int], Sequence[int]]


def _state(graph: Graph, steps: Sequence[Step], k: int | None) -> State:
    count = len(steps) if k is None else k
    if not 0 <= count <= len(steps):
        raise ArgumentError("replay", "k", k, f"0 … {len(steps)}")
    nodes = {node.id: node for node in graph}
    outputs = list(graph.output_ids)
    root_of: dict[int, int] = {}
    for step in steps[:count]:
        for node in step.added:
            nodes[node.id] = node
            if step.at:
                root_of[node.id] = root_of.get(step.at[0], step.at[0])
        for reader, port, new in step.rewired:
            if port < 0:
                outputs[-1 - port] = new
            else:
                old = nodes[reader]
                nodes[reader] = replace(old, inputs=(*old.inputs[:port], new, *old.inputs[port + 1 :]))
        for id in step.removed:
            del nodes[id]
    final = steps[count - 1].order if count else ()
    return nodes, outputs, root_of, final or topological({id: node.inputs for id, node in nodes.items()})


def topological(inputs: Mapping[int, Sequence[int]], rank: Mapping[int, int] | None = None) -> list[int]:
    """Return all ids in topological order: the inputs of a node before it, then lowest id (or lowest `rank`, then
    lowest id) first."""
    # one number per node, its id in the low bits: they are fast to compare
    place = {id: id if rank is None else rank[id] << BITS | id for id in inputs}
    order = sorted(inputs, key=place.__getitem__)
    at = {id: i for i, id in enumerate(order)}
    if all(at[i] < at[id] for id, below in inputs.items() for i in below):  # mostly nothing has to wait
        return order
    waiting: dict[int, int] = {}
    readers: dict[int, list[int]] = {id: [] for id in inputs}
    ready = []
    for id, found in inputs.items():
        below = set(found)
        waiting[id] = len(below)
        for i in below:
            readers[i].append(id)
        if not below:
            ready.append(place[id])
    heapify(ready)
    order = []
    while ready:
        id = heappop(ready) & MASK
        order.append(id)
        for reader in readers[id]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, place[reader])
    return order


def assemble(
    graph: Graph, nodes: Mapping[int, Node] | Sequence[Node], inputs: Mapping[int, Sequence[int]],
    outputs: Iterable[int], order: Sequence[int], root_of: Mapping[int, int],
) -> Graph:  # fmt: skip
    """Return a graph of `nodes` in `order` that read `inputs`, numbered anew; all but the nodes comes from `graph`.

    An added node has the source of the node in `root_of`.
    """
    new = {id: i for i, id in enumerate(order)}
    result = Graph()
    frames, place, append = graph._frames, new.__getitem__, result._nodes.append
    for i, id in enumerate(order):
        node, reads = nodes[id], tuple(map(place, inputs[id]))
        same = node.id == i and reads == node.inputs
        append(node if same else Node(i, node.op, reads, node.attrs, node.type, node.name))
        written = frames.get(root_of.get(id, id))
        if written is not None:
            result._frames[i] = written
        if not reads and node.op in ("input", "parameter"):
            result._leaves[node.name] = i
    result._outputs = [(new[id], name) for id, name in zip(outputs, graph.output_names, strict=True)]
    result.num_param_grad_outputs = graph.num_param_grad_outputs
    result.zero_gradients = tuple(new[id] for id in graph.zero_gradients if id in new)
    return result
