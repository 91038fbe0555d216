"""A graph on the bench: nodes are added and readers rewired, and the cost of what is alive is known at every moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.cost import CostModel
from gdlab.graph import Graph, Node
from gdlab.rewrite.load import UNITS
from gdlab.steps import Rewired, Step
from gdlab.types import TensorType

__all__ = ["Bench", "Draft", "finish"]

OUTPUT = -1  # the reader of an output; its port is −1 − i


@dataclass
class Draft:
    """A step before it is known what it removes."""

    rule: str
    label: str
    at: tuple[int, ...]
    bindings: Mapping[str, int]
    added: tuple[Node, ...]
    rewired: list[Rewired]
    before: int
    after: int
    iteration: int | None


class Bench:
    """Nodes by stable id, who reads them, and which of them the outputs reach."""

    def __init__(self, graph: Graph, model: CostModel) -> None:
        self.graph, self.model = graph, model
        self._prices: dict[int, int] = {}
        self._known: dict[Any, int] = {}
        self._types: dict[int | str, int] = {}
        self.nodes: dict[int, Node] = {}
        self.inputs: dict[int, list[int]] = {}
        self.readers: dict[int, dict[tuple[int, int], None]] = {}
        self.reads: dict[int, int] = {}  # readers that are alive, and outputs
        self.outputs = list(graph.output_ids)
        self.cost = 0
        self.drafts: list[Draft] = []
        self._silent: list[Rewired] = []

    def put_on(self) -> None:
        """Put the graph on the bench; asked twice, it stays as it is."""
        if self.nodes:
            return
        nodes = self.graph._nodes
        self.nodes = {node.id: node for node in nodes}
        self.inputs = {node.id: [*node.inputs] for node in nodes}
        self.readers = {node.id: {} for node in nodes}
        for node in nodes:
            for port, i in enumerate(node.inputs):
                self.readers[i][node.id, port] = None
        self.reads = dict.fromkeys(self.nodes, 0)
        for i, id in enumerate(self.outputs):
            self.readers[id][OUTPUT, -1 - i] = None
            self._hold(id)

    def price(self, id: int) -> int:
        """The price of a node in units, worked out once per op, attributes and types."""
        if id not in self._prices:
            node = self.nodes[id]
            operands = tuple([self.nodes[i].type for i in node.inputs])
            key = node.op, node.attrs, self._number(node.type), tuple([self._number(t) for t in operands])
            if key not in self._known:
                self._known[key] = round(self.model.price(node.op, node.attrs, node.type, operands) * UNITS)
            self._prices[id] = self._known[key]
        return self._prices[id]

    def _number(self, type: TensorType) -> int:
        """A number for a type: its hash takes long. Types stay as long as their nodes do, so identity is enough."""
        number = self._types.get(id(type))
        if number is None:
            number = self._types[id(type)] = self._types.setdefault(str(type), len(self._types))
        return number

    def alive(self, id: int) -> bool:
        """Whether an output depends on this node."""
        return self.reads[id] > 0

    def add(self, node: Node) -> None:
        """Put a node on the bench; nothing reads it yet."""
        self.nodes[node.id] = node
        self.inputs[node.id] = list(node.inputs)
        self.readers[node.id] = {}
        self.reads[node.id] = 0
        for port, i in enumerate(node.inputs):
            self.readers[i][node.id, port] = None

    def redirect(
        self, moved: Sequence[int], to: int, rule: str, label: str, bindings: Mapping[str, int],
        added: Sequence[Node] = (), iteration: int | None = None, *, at: Sequence[int],
    ) -> bool:  # fmt: skip
        """Let `to` be read wherever one of `moved` is, and write a step down. Where nothing was added and nobody alive
        notices, the change goes with the next step, and the answer is False."""
        before = self.cost
        noticed = bool(added) or any(self.alive(id) for id in moved if id != to)
        rewired = [change for id in moved if id != to for change in self._rewire(id, to)]
        if not noticed:
            self._silent += rewired
            return False
        done = [*self._silent, *rewired]
        self._silent = []
        self.drafts.append(Draft(rule, label, tuple(at), bindings, tuple(added), done, before, self.cost, iteration))
        return True

    def _rewire(self, old: int, new: int) -> list[Rewired]:
        changes = []
        for reader, port in self.readers[old]:
            self.readers[new][reader, port] = None
            if reader == OUTPUT:
                self.outputs[-1 - port] = new
            else:
                self.inputs[reader][port] = new
            if reader == OUTPUT or self.alive(reader):
                self._hold(new)
                self._drop(old)
            changes.append((old if reader == OUTPUT else reader, port, new))
        self.readers[old] = {}
        return changes

    def _hold(self, id: int) -> None:
        stack = [id]
        while stack:
            id = stack.pop()
            self.reads[id] += 1
            if self.reads[id] == 1:
                self.cost += self.price(id)
                stack += self.inputs[id]

    def _drop(self, id: int) -> None:
        stack = [id]
        while stack:
            id = stack.pop()
            self.reads[id] -= 1
            if self.reads[id] == 0:
                self.cost -= self.price(id)
                stack += self.inputs[id]

    def final(self, id: int) -> Node:
        """The node as it is wired now."""
        node, inputs = self.nodes[id], tuple(self.inputs[id])
        return node if inputs == node.inputs else Node(id, node.op, inputs, node.attrs, node.type, node.name)

    def leftover(self) -> list[Rewired]:
        """Changes that no step has written down yet."""
        return self._silent


def finish(
    bench: Bench, order: Sequence[int], stays: Callable[[Node], bool], sweep: tuple[str, str]
) -> tuple[Step, ...]:
    """The drafts as steps. The step after which nobody reads or names a node removes it; the sweep takes the rest."""
    readings = _Readings(bench, stays)
    steps = []
    for k, draft in enumerate(bench.drafts):
        rewired = readings.carry_out(draft)
        steps.append(
            Step(draft.rule, draft.label, draft.at, draft.bindings, readings.removed_after(k), draft.added, rewired,
                 draft.before / UNITS, draft.after / UNITS, draft.iteration)
        )  # fmt: skip
    kept = set(order)
    left = tuple(id for id in readings.inputs if id not in kept and id not in readings.gone)
    rest = tuple(change for change in bench.leftover() if change[1] < 0 or change[0] in kept)
    cost = bench.cost / UNITS
    return (*steps, Step(*sweep, (), {}, left, (), rest, cost, cost, None, tuple(order)))


class _Readings:
    """The drafts carried out once more, counting who reads whom: a node can go when nobody does and no later step
    speaks of it. What was dead from the beginning waits for the sweep."""

    def __init__(self, bench: Bench, stays: Callable[[Node], bool]) -> None:
        self.nodes, self.stays = bench.nodes, stays
        self.inputs = {node.id: list(node.inputs) for node in bench.graph}
        self.outputs = list(bench.graph.output_ids)
        self.reads = dict.fromkeys(bench.nodes, 0)
        for id in itertools.chain(self.outputs, *self.inputs.values()):
            self.reads[id] += 1
        self.idle = {id for id in self.inputs if not self.reads[id]}
        self.last = _last_mention(bench.drafts)
        self.due: dict[int, list[int]] = {}
        for id, k in self.last.items():
            self.due.setdefault(k, []).append(id)
        self.gone: set[int] = set()
        self.touched: set[int] = set()

    def carry_out(self, draft: Draft) -> tuple[Rewired, ...]:
        """The changes that find their reader still there."""
        for node in draft.added:
            self.inputs[node.id] = list(node.inputs)
            for i in node.inputs:
                self.reads[i] += 1
        done = tuple(change for change in draft.rewired if change[1] < 0 or change[0] not in self.gone)
        for reader, port, new in done:
            slots, at = (self.outputs, -1 - port) if port < 0 else (self.inputs[reader], port)
            self.reads[slots[at]] -= 1
            self.touched.add(slots[at])
            self.reads[new] += 1
            slots[at] = new
        return done

    def removed_after(self, k: int) -> tuple[int, ...]:
        """The nodes that step k is the last to need."""
        removed = []
        stack = sorted(self.touched | set(self.due.get(k, ())), reverse=True)
        self.touched = set()
        while stack:
            id = stack.pop()
            needed = self.reads[id] or self.last.get(id, -1) > k or self.stays(self.nodes[id])
            if needed or id in self.gone or id in self.idle:
                continue
            self.gone.add(id)
            removed.append(id)
            for i in self.inputs[id]:
                self.reads[i] -= 1
            stack += sorted(set(self.inputs[id]), reverse=True)
        return tuple(sorted(removed))


def _last_mention(drafts: Sequence[Draft]) -> dict[int, int]:
    """Per node the last step that speaks of it."""
    last: dict[int, int] = {}
    for k, draft in enumerate(drafts):
        made = (i for node in draft.added for i in (node.id, *node.inputs))
        new = (change[2] for change in draft.rewired)
        last.update(dict.fromkeys((*draft.at, *draft.bindings.values(), *made, *new), k))
    return last
