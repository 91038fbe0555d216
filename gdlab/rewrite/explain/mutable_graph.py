"""A graph under rewriting: add nodes, redirect readers, know the cost of the live nodes, and return the steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gdlab.graph import Node
from gdlab.graph.replay import Rewired, Step
from gdlab.rewrite.extract.problem import UNITS, Prices
from gdlab.rewrite.rules.prepare import Prepared

__all__ = ["StepDraft", "MutableGraph", "RewriteLog", "stays", "steps_of"]

OUTPUT = -1  # the reader of an output; its port is −1 − i


def stays(node: Node) -> bool:
    """Return whether a node is kept even when nothing reads it: inputs and parameters are the graph's interface."""
    return node.op in ("input", "parameter")


@dataclass(frozen=True, slots=True)
class RewriteLog:
    """The rewrites of a `MutableGraph`: all nodes, the first `size` those of the graph, its outputs before, the drafts,
    the changes that no step records, and the cost in units."""

    nodes: Sequence[Node]
    size: int
    outputs: tuple[int, ...]
    drafts: Sequence[StepDraft]
    silent: Sequence[Rewired]
    cost: int


@dataclass
class StepDraft:
    """A step whose removed nodes are not known yet."""

    rule: str
    label: str
    at: tuple[int, ...]
    bindings: Mapping[str, int]
    added: tuple[Node, ...]
    rewired: list[Rewired]
    before: int
    after: int
    iteration: int | None


class MutableGraph:
    """A graph under rewriting: nodes by stable id, their readers, and the number of live readers of each."""

    def __init__(self, prepared: Prepared, prices: Prices, attrs: Mapping[int, tuple[int, ...]]) -> None:
        """Prepare an empty graph; `attrs` are the attribute numbers of kept nodes that are no leaves."""
        self.graph, self.prepared, self.prices, self.attrs = prepared.graph, prepared, prices, attrs
        self.size, self.outputs_before = len(prepared.graph), tuple(prepared.graph.output_ids)
        self.nodes: list[Node] = []
        self.inputs: list[tuple[int, ...]] = []
        self.readers: list[list[tuple[int, int]]] = []  # (reader, port), each slot in one list alone
        self.reads: list[int] = []  # readers that are alive, and outputs
        self.outputs = list(self.outputs_before)
        self.cost = 0
        self.drafts: list[StepDraft] = []
        self._costs: dict[int, int] = {}
        self._silent: list[Rewired] = []

    def load(self) -> None:
        """Copy the nodes of the graph; a second call changes nothing."""
        if self.nodes:
            return
        self.nodes = self.graph._nodes[: self.size]
        self.inputs = [node.inputs for node in self.nodes]
        self.readers = [[] for _ in self.nodes]
        for id, inputs in enumerate(self.inputs):
            for port, i in enumerate(inputs):
                self.readers[i].append((id, port))
        reads = self.reads = [0] * self.size
        for i, id in enumerate(self.outputs):
            self.readers[id].append((OUTPUT, -1 - i))
            reads[id] += 1
        for id in reversed(range(self.size)):
            if reads[id]:
                self.cost += self.price(id)
                for i in self.inputs[id]:
                    reads[i] += 1

    def price(self, id: int) -> int:
        """Return the price of a node, of the graph or added, in units."""
        found = self._costs.get(id)
        if found is None:
            found = self._costs[id] = self.prices.node(self.prepared, self.attrs, id)
        return found

    def alive(self, id: int) -> bool:
        """Return whether an output depends on this node."""
        return self.reads[id] > 0

    def add(self, node: Node, cost: int) -> None:
        """Append a node; nothing reads it yet. Ids of added nodes follow each other."""
        self.nodes.append(node)
        self.inputs.append(node.inputs)
        self.readers.append([])
        self.reads.append(0)
        self._costs[node.id] = cost
        for port, i in enumerate(node.inputs):
            self.readers[i].append((node.id, port))

    def redirect(
        self, moved: Sequence[int], to: int, rule: str, label: str, bindings: Mapping[str, int],
        added: Sequence[Node] = (), iteration: int | None = None, *, at: Sequence[int],
        beside: Sequence[tuple[int, int]] = (),
    ) -> bool:  # fmt: skip
        """Let readers of `moved` read `to`, and those of `beside` (old, new) in the same step, and record it as a
        draft. Where nothing was added and nobody alive notices, the change goes with the next step, and the answer is
        False."""
        before, pairs = self.cost, [*((id, to) for id in moved if id != to), *beside]
        noticed = bool(added) or any(self.alive(old) for old, _ in pairs)
        rewired = [change for old, new in pairs for change in self._rewire(old, new)]
        if not noticed:
            self._silent += rewired
            return False
        done = [*self._silent, *rewired]
        self._silent = []
        self.drafts.append(
            StepDraft(rule, label, tuple(at), bindings, tuple(added), done, before, self.cost, iteration)
        )
        return True

    def _rewire(self, old: int, new: int) -> list[Rewired]:
        changes = []
        for reader, port in self.readers[old]:
            if reader == OUTPUT:
                self.outputs[-1 - port] = new
            else:
                inputs = self.inputs[reader]
                self.inputs[reader] = (*inputs[:port], new, *inputs[port + 1 :])
            if reader == OUTPUT or self.reads[reader] > 0:
                self._hold(new)
                self._drop(old)
            changes.append((old if reader == OUTPUT else reader, port, new))
        self.readers[new] += self.readers[old]
        self.readers[old] = []
        return changes

    def _hold(self, id: int) -> None:
        stack, reads = [id], self.reads
        while stack:
            id = stack.pop()
            reads[id] += 1
            if reads[id] == 1:
                self.cost += self.price(id)
                stack += self.inputs[id]

    def _drop(self, id: int) -> None:
        stack, reads = [id], self.reads
        while stack:
            id = stack.pop()
            reads[id] -= 1
            if reads[id] == 0:
                self.cost -= self.price(id)
                stack += self.inputs[id]

    def log(self) -> RewriteLog:
        """Return the data that the steps are made of."""
        return RewriteLog(self.nodes, self.size, self.outputs_before, self.drafts, self._silent, self.cost)


def steps_of(log: RewriteLog, order: Sequence[int], sweep: tuple[str, str]) -> tuple[Step, ...]:
    """Return the drafts as steps. The last step that reads or names a node removes it; the sweep takes the rest."""
    steps, readings = _carried_out(log)
    while idle := {k for k, step in enumerate(steps) if _changes_nothing(step)}:  # later steps do not speak of them
        log = replace(log, drafts=[draft for k, draft in enumerate(log.drafts) if k not in idle])
        steps, readings = _carried_out(log)
    kept = set(order)
    left = tuple(id for id in readings.inputs if id not in kept and id not in readings.gone)
    rest = tuple(change for change in log.silent if change[1] < 0 or change[0] in kept)
    cost = log.cost / UNITS
    return (*steps, Step(*sweep, (), {}, left, (), rest, cost, cost, None, tuple(order)))


def _carried_out(log: RewriteLog) -> tuple[list[Step], _Readings]:
    """Return one step per draft, and the readings after all of them."""
    readings = _Readings(log)
    steps = []
    for k, draft in enumerate(log.drafts):
        rewired = readings.carry_out(draft)
        steps.append(
            Step(draft.rule, draft.label, draft.at, draft.bindings, readings.removed_after(k), draft.added, rewired,
                 draft.before / UNITS, draft.after / UNITS, draft.iteration)
        )  # fmt: skip
    return steps, readings


def _changes_nothing(step: Step) -> bool:
    """Return whether the step removes all that it adds and changes no operand."""
    return not step.rewired and {node.id for node in step.added} == set(step.removed)


class _Readings:
    """Counts of readers while the drafts are carried out once more: a node can go when nothing reads it and no later
    step names it. What was dead from the beginning waits for the sweep."""

    def __init__(self, log: RewriteLog) -> None:
        self.nodes = log.nodes
        self.inputs = {id: list(log.nodes[id].inputs) for id in range(log.size)}
        self.outputs = list(log.outputs)
        self.reads = [0] * len(log.nodes)
        for id in itertools.chain(self.outputs, *self.inputs.values()):
            self.reads[id] += 1
        self.idle = {id for id in self.inputs if not self.reads[id]}
        self.last = _last_mention(log.drafts)
        self.due: dict[int, list[int]] = {}
        for id, k in self.last.items():
            self.due.setdefault(k, []).append(id)
        self.gone: set[int] = set()
        self.touched: set[int] = set()

    def carry_out(self, draft: StepDraft) -> tuple[Rewired, ...]:
        """Carry out the changes whose reader is still there, and return them."""
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
        """Return the nodes that are not needed after step k."""
        removed = []
        stack = sorted(self.touched | set(self.due.get(k, ())), reverse=True)
        self.touched = set()
        while stack:
            id = stack.pop()
            needed = self.reads[id] or self.last.get(id, -1) > k or stays(self.nodes[id])
            if needed or id in self.gone or id in self.idle:
                continue
            self.gone.add(id)
            removed.append(id)
            for i in self.inputs[id]:
                self.reads[i] -= 1
            stack += sorted(set(self.inputs[id]), reverse=True)
        return tuple(sorted(removed))


def _last_mention(drafts: Sequence[StepDraft]) -> dict[int, int]:
    """Map each node to the last step that names it."""
    last: dict[int, int] = {}
    for k, draft in enumerate(drafts):
        made = (i for node in draft.added for i in (node.id, *node.inputs))
        new = (change[2] for change in draft.rewired)
        last.update(dict.fromkeys((*draft.at, *draft.bindings.values(), *made, *new), k))
    return last
