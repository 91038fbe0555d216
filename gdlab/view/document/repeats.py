"""Find runs of equal nodes in a long graph: `tanh ×1500`, in a chain or side by side, periods of a few ops, and the
steps of an unrolled loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from gdlab.graph import Graph, Node

LEAST = 60  # ops: smaller graphs are drawn whole
_REPEATS = 8
_PERIOD = 8  # ops that are repeated so often, at most
_STEPS = 3  # repetitions of more ops: the steps of a loop
_TRIED = 8  # such periods that are tried
_LABEL = 20  # characters
_SHARED = 8  # reads of a value, from which on it is one thing that all read and no link of a chain


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run of nodes that are `count` times the same ops, and the names of these ops."""

    nodes: tuple[int, ...]
    count: int
    label: str


def repeats(graph: Graph, group: Sequence[int]) -> list[tuple[int, Repeat]]:
    """Return (group, run) of the runs of equal ops that lie directly in one group; none where there are few ops."""
    ops = [node for node in graph if node.inputs]
    if len(ops) <= LEAST:
        return []
    inside: dict[int, list[Node]] = {}
    for node in ops:
        inside.setdefault(group[node.id], []).append(node)
    users = [0] * len(graph)
    for node in ops:
        for i in set(node.inputs):
            users[i] += 1
    return [(g, run) for g, nodes in inside.items() for run in _runs(graph, nodes, users)]


def _runs(graph: Graph, nodes: Sequence[Node], users: Sequence[int]) -> Iterator[Repeat]:
    place = {node.id: k for k, node in enumerate(nodes)}
    number: dict[Hashable, int] = {}
    kind = [number.setdefault((node.op, node.type, node.attrs), len(number)) for node in nodes]
    number = {}
    same = [number.setdefault(_signature(graph, node, place, users), len(number)) for node in nodes]
    periods = [*range(1, min(_PERIOD, len(nodes) // 2) + 1), *_long_periods(same)]
    longest = {period: _matches(same, period) for period in periods}
    start = done = 0
    while start < len(nodes):
        period = next((p for p, match in longest.items() if match[start] // p >= _least(p)), 0)
        if not period:
            start += 1
            continue
        end = start + longest[period][start] + period
        first = start
        # The first of a chain reads what comes before it, and is equal but for that.
        while first > max(done, start - period) and kind[first - 1] == kind[first - 1 + period]:
            first -= 1
        start, end = first, first + (end - first) // period * period
        if period > _PERIOD and (end - start) // period < _STEPS:
            start = end
            continue
        label = _label([node.op for node in nodes[start : start + period]])
        yield Repeat(tuple(node.id for node in nodes[start:end]), (end - start) // period, label)
        start = done = end


def _least(period: int) -> int:
    """Return how many periods must equal the one before it; the first step of a loop is found afterwards."""
    return _REPEATS - 1 if period <= _PERIOD else _STEPS - 2


def _long_periods(same: Sequence[int]) -> list[int]:
    """Return the most frequent distances above `_PERIOD` between a node and the next that is equal, the shortest
    first."""
    last: dict[int, int] = {}
    found: Counter[int] = Counter()
    for i, number in enumerate(same):
        if number in last:
            found[i - last[number]] += 1
        last[number] = i
    return sorted(p for p, _ in found.most_common(_TRIED + _PERIOD) if p > _PERIOD)[:_TRIED]


def _label(ops: Sequence[str]) -> str:
    """Return the label of a run: `tanh`, `tanh, mul`, `matmul … relu`."""
    names = ", ".join(dict.fromkeys(ops))
    return names if len(names) <= _LABEL else f"{ops[0]} … {ops[-1]}"


def _matches(same: Sequence[int], period: int) -> list[int]:
    """Count for each place how many nodes from there on equal those one period later."""
    found = [0] * (len(same) + 1)
    for i in range(len(same) - period - 1, -1, -1):
        found[i] = found[i + 1] + 1 if same[i] == same[i + period] else 0
    return found


def _signature(graph: Graph, node: Node, place: dict[int, int], users: Sequence[int]) -> Hashable:
    """Return a key of a node: op, type, attributes, and for each input its distance, its shared value, or its type."""
    at = place[node.id]
    inputs: list[Hashable] = []
    for i in node.inputs:
        if users[i] >= _SHARED:
            inputs.append(("shared", i))
        elif i in place:
            inputs.append(("back", at - place[i]))
        else:
            source = graph.node(i)
            inputs.append((source.op, source.type) if not source.inputs else ("from", i))
    return node.op, node.type, node.attrs, tuple(inputs)
