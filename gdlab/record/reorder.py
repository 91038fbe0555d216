"""Move nodes into earlier barrier groups: the pass `reorder`, a greedy look-ahead of 63 nodes, or exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gdlab.plan.order import ConflictTracker, conflicts_within, levels
from gdlab.record.compute_graph import ComputeGraph, Node, grouping

AHEAD = 63  # nodes behind the conflicting one that are looked at
ENDS = ("sdpa", "softmax")  # kinds that end the look-ahead


def reorder(graph: ComputeGraph, exact: bool = False) -> int:
    """Run the pass on a graph, and have the order checked before it is taken. `exact`: by levels, which gives the
    fewest groups that any order has between fences."""
    begun = time.perf_counter_ns()
    nodes = graph.nodes
    order = exact_order(nodes) if exact else new_order(nodes)
    moved = sum(i != k for k, i in enumerate(order))
    try:
        graph.check_order(order)
        fences, before = [n.fence for n in nodes], len(grouping(nodes).barriers)
        made = [nodes[i] for i in order]
        _set_fences(made, fences)
        if len(grouping(made).barriers) > before:
            _set_fences(nodes, fences)
            graph.kept_order = "the new order would have had more barriers"
            return 0
        graph.nodes[:] = made
        graph.order, graph.moved, graph.recorded_barriers = order, moved, None
    finally:
        graph.on_change(time.perf_counter_ns() - begun)
    return moved


def _set_fences(nodes: Sequence[Node], fences: Sequence[bool]) -> None:
    """Set the fences at the places where they were: they belong to places."""
    for node, fence in zip(nodes, fences, strict=True):
        node.fence = fence


def new_order(nodes: Sequence[Node]) -> list[int]:
    """Return the order of the nodes by the look-ahead."""
    return _ordered(nodes, _segment)


def exact_order(nodes: Sequence[Node]) -> list[int]:
    """Return an order of the nodes with the fewest groups."""
    return _ordered(nodes, _by_level)


def _ordered(nodes: Sequence[Node], segment: Callable[[Sequence[Node]], list[int]]) -> list[int]:
    """Return the order of the nodes, segment by segment: fences and opaque nodes stay where they are."""
    found, start = list[int](), 0
    for i in range(1, len(nodes) + 1):
        if i == len(nodes) or nodes[i].fence or nodes[i].opaque or nodes[i - 1].opaque:
            found += [start + k for k in segment(nodes[start:i])]
            start = i
    return found


def _by_level(nodes: Sequence[Node]) -> list[int]:
    """Return the order by the longest chain of conflicts that ends with each node."""
    level = levels([n.footprint for n in nodes])
    return sorted(range(len(nodes)), key=level.__getitem__)


def _segment(nodes: Sequence[Node]) -> list[int]:
    """Return the order of nodes without a fence."""
    footprints = [n.footprint for n in nodes]
    later = conflicts_within(footprints, AHEAD)
    group, used, order = ConflictTracker(), bytearray(len(nodes)), list[int]()
    held_by = [-1] * len(nodes)  # of the current look-ahead: a skipped node that this one conflicts with

    def emit(i: int) -> None:
        used[i] = 1
        order.append(i)
        group.add(i, footprints[i])

    for first in range(len(nodes)):
        if used[first]:
            continue
        if group.conflicts(footprints[first]):
            for i in later[first]:
                held_by[i] = first
            for i in range(first + 1, min(first + AHEAD + 1, len(nodes))):
                if used[i]:
                    continue
                if nodes[i].kind in ENDS:
                    break
                if held_by[i] != first and not group.conflicts(footprints[i]):
                    emit(i)
                    continue
                for k in later[i]:
                    held_by[k] = first
            group.reset()
        emit(first)
    return order
