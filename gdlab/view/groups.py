"""Groups of a graph: the calls of a person's own functions that made its nodes, and runs of calls that are alike.

A group is one call (`block(h)`); three or more calls in a row that made the same structure lie in a `series`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gdlab.graph import Graph, Location
from gdlab.view.columns import Json, words

_LEAST_NODES, _LEAST_CALLS = 2, 3


@dataclass(frozen=True, slots=True)
class Group:
    """One group: its parent comes before it, −1 at the top; `repeat` calls lie in a series."""

    parent: int
    label: str
    kind: Literal["call", "series"]
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a stage, and the innermost one of each node (−1: none)."""

    rows: tuple[Group, ...]
    of_node: tuple[int, ...]

    def carried(self, origin: Sequence[int]) -> Groups:
        """The groups of a stage that was made from this one; `origin`: the node each came from, −1 for none."""
        return replace(self, of_node=tuple(self.of_node[i] if i >= 0 else -1 for i in origin))

    def table(self) -> Json:
        """The table of a document."""
        rows = self.rows
        return {
            "count": len(rows),
            "key": [f"g{i}" for i in range(len(rows))],
            "parent": [g.parent for g in rows],
            "label": words([g.label for g in rows]),
            "kind": words([g.kind for g in rows]),
            "repeat": [g.repeat for g in rows],
        }


@dataclass(slots=True)
class _Call:
    """A call while its nodes are collected; `first` and `last` are the places inside it that made a node."""

    parent: int
    caller: Location
    label: str
    first: Location
    last: Location
    nodes: list[int] = field(default_factory=list)  # of this call and of the calls inside it


def groups_of(graph: Graph) -> Groups:
    """The groups of a written graph."""
    calls, inner = _calls(graph)
    ops = {node.id for node in graph if node.inputs}
    kept = [k for k, call in enumerate(calls) if _counts(call, ops)]
    return _numbered(graph, calls, kept, inner)


def _counts(call: _Call, ops: set[int]) -> bool:
    """A call of a single op, and one that made the whole graph, group nothing."""
    return _LEAST_NODES <= len(ops.intersection(call.nodes)) < len(ops)


def _calls(graph: Graph) -> tuple[list[_Call], list[int]]:
    """Every call in the order of its first node, and the innermost call of each node."""
    calls: list[_Call] = []
    inner: list[int] = []
    path: list[int] = []  # the calls that the last node lay in, outermost first
    for node, chain in zip(graph, _chains(graph), strict=True):
        now: list[int] = []
        parent = -1
        for caller, at in zip(chain, chain[1:], strict=False):
            depth = len(now)
            known = path[depth] if depth < len(path) else -1
            if known < 0 or not _goes_on(calls[known], parent, caller, at):
                known = len(calls)
                calls.append(_Call(parent, caller, at.function, at, at))
                path = path[:depth]
            calls[known].last = at
            calls[known].nodes.append(node.id)
            now.append(known)
            parent = known
        path = now
        inner.append(parent)
    return calls, inner


def _chains(graph: Graph) -> list[list[Location]]:
    """The places that lead to each node, outermost first, from the innermost function that all of them lie in: what is
    around it (a cell's module, a test runner) says nothing about the graph."""
    found = [[at for at in chain if at.function == "<module>" or at.function[0] != "<"] for chain in graph.sources()]
    # id(): the nodes of one call share its places
    named = {id(at): (at.file, at.function) for chain in found for at in chain}
    common = set.intersection(*({named[id(at)] for at in chain} for chain in found if chain)) if named else set()
    cut = []
    for chain in found:
        base = next((k for k, at in enumerate(chain) if named[id(at)] in common), len(chain) - 1)
        cut.append(chain[base::-1] if chain else [])
    return cut


def _goes_on(call: _Call, parent: int, caller: Location, at: Location) -> bool:
    """Whether a node at this place belongs to the call: one that is back at its first place is the next call."""
    if call.parent != parent or (call.caller is not caller and call.caller != caller):
        return False
    return (at is not call.first and at != call.first) or call.last == call.first


def _numbered(graph: Graph, calls: Sequence[_Call], kept: Sequence[int], inner: Sequence[int]) -> Groups:
    """Number what is kept, parents first, with a series before each run of calls that are alike."""
    number: dict[int, int] = {}
    series: dict[int, int] = {}
    rows: list[Group] = []
    keep = set(kept)
    runs = _runs(graph, calls, kept, keep)
    for k in kept:
        parent = number.get(_above(calls, calls[k].parent, keep), -1)
        if k in runs:
            if runs[k][0] == k:
                rows.append(Group(parent, calls[k].label, "series", len(runs[k])))
                series.update(dict.fromkeys(runs[k], len(rows) - 1))
            parent = series[k]
        number[k] = len(rows)
        rows.append(Group(parent, calls[k].label, "call"))
    return Groups(tuple(rows), tuple(number.get(_above(calls, k, keep), -1) for k in inner))


def _above(calls: Sequence[_Call], k: int, keep: set[int]) -> int:
    """The nearest call from k outwards that is kept, or −1."""
    while k >= 0 and k not in keep:
        k = calls[k].parent
    return k


def _runs(graph: Graph, calls: Sequence[_Call], kept: Sequence[int], keep: set[int]) -> dict[int, list[int]]:
    """For each call that lies in a run of at least three that are alike: the run."""
    found: dict[int, list[int]] = {}
    run: list[int] = []
    before: Hashable = None
    for k in [*kept, -1]:
        if k >= 0 and run and _inside(calls, k, run[-1]):
            continue
        like = (_above(calls, calls[k].parent, keep), calls[k].caller, _structure(graph, calls[k])) if k >= 0 else None
        if like != before:
            if len(run) >= _LEAST_CALLS:
                found.update(dict.fromkeys(run, run))
            run, before = [], like
        run.append(k)
    return found


def _inside(calls: Sequence[_Call], k: int, outer: int) -> bool:
    while k >= 0 and k != outer:
        k = calls[k].parent
    return k == outer


def _structure(graph: Graph, call: _Call) -> Hashable:
    """Ops, types, attributes and edges inside a call; what comes from outside is told apart by its port alone."""
    place = {id: i for i, id in enumerate(call.nodes)}
    return tuple(
        (node.op, node.type, node.inputs and node.attrs, tuple(place.get(i, -1) for i in node.inputs))
        for node in (graph.node(id) for id in call.nodes)
    )
