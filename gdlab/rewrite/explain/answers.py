"""Questions to a report, answered in words: what made this node, and what kept two nodes, or a rule, from more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gdlab.base.errors import OptimizeError, UnknownRuleError
from gdlab.base.words import near_hint, plural
from gdlab.graph import AttrVar, Graph, Node, users
from gdlab.graph.replay import Step
from gdlab.rewrite.explain.near_misses import Missed
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Match, Refusal, Rule, matches, refused
from gdlab.rewrite.rules.relations import interned

__all__ = ["Answer", "Asked"]

ABOVE = 3  # levels of readers in which a rule's root is looked for


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """An answer in words (`print` it, or let a notebook show it), with the steps or near misses it speaks of."""

    text: str
    steps: tuple[Step, ...] = ()
    missed: tuple[Missed, ...] = ()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Asked:
    """What the answers are found in: the result, the stable ids of its nodes, all rules, and why some took no part."""

    graph: Graph
    order: Sequence[int]
    table: Sequence[Rule]
    off: Mapping[str, Refusal]
    early: Refusal | None

    # why ----------------------------------------------------------------------------------------------------------
    def why(self, steps: Sequence[Step], node: Any) -> Answer:
        """The steps that led to a node of the result, first to last."""
        found = self._node(node)
        steps = _leading_to(steps, self.order[found.id])
        if not steps:
            return Answer(f"{_named(found)} is as it was written: no rewrite made it.")
        lines = [f"{_named(found)} was made by {plural(len(steps), 'rewrite')}:"]
        lines += [f"  {i}. {step}" for i, step in enumerate(steps, 1)]
        return Answer("\n".join(lines), steps)

    def _node(self, given: Any) -> Node:
        """A node by id, Value, Node or name."""
        id = getattr(given, "id", given)
        if isinstance(id, str):
            named = [n for n in self.graph if n.name == id]
            if named:
                return named[-1]
        elif isinstance(id, int) and not isinstance(id, bool) and 0 <= id < len(self.graph):
            node = self.graph.node(id)
            if _is_it(given, node):
                return node
        raise OptimizeError("report", "node", repr(given), f"an id 0 … {len(self.graph) - 1} or a name of the result")

    # why not ------------------------------------------------------------------------------------------------------
    def why_not_rule(self, steps: Sequence[Step], near: Sequence[Missed], name: Any) -> Answer:
        """What kept a rule from being used, or from being used more often."""
        wanted = str(getattr(name, "name", name))
        rules = [r for r in self.table if wanted in (r.name, r.label)]
        if not rules:
            hint = near_hint(wanted, [text for r in self.table for text in (r.name, r.label)])
            raise UnknownRuleError("report", "rule", repr(wanted), f"the id or label of a rule{hint}")
        missed = tuple(m for m in near if m.label == rules[0].label)
        steps = tuple(s for s in steps[:-1] if s.rule in {r.name for r in rules})
        lines = [f"{rules[0].label} was used at %{s.at[0]}." for s in steps if s.at]
        lines += [m.text for m in missed]
        lines += [self._of_rule(r) for r in rules if not steps and not missed]
        return Answer("\n".join(lines), steps, missed)

    def _of_rule(self, rule: Rule) -> str:
        if rule.name in self.off:
            return f"{rule.label} took no part: {self.off[rule.name][1]}."
        if rule.left < 0:
            return f"{rule.label} found nothing to do."
        tries = [t for n in self.graph for t in _tries(rule, self.graph, n.id)]
        best = max(tries, key=lambda t: len(t.bound), default=None)
        if best is None or not best.bound:
            return f"{rule.label} found no {rule.pattern.node(rule.left).op} in the graph."
        return f"{rule.label} came nearest at %{best.root}: {best.text or self._refused(rule, best.root)}."

    def why_not_pair(self, near_misses: Sequence[Missed], a: Any, b: Any) -> Answer:
        """What kept two nodes, one of which reads the other, from becoming one."""
        low, high = sorted((self._node(a), self._node(b)), key=lambda n: n.id)
        if low.id not in high.inputs:
            return Answer(f"{_named(low)} and {_named(high)} are no neighbours: neither reads the other.")
        pair = {low.id, high.id}
        recorded = tuple(m for m in near_misses if m.node == high.id and (m.about in (None, low.id)))
        labels = {m.label for m in recorded}
        lines, near = [m.text for m in recorded], []
        for rule in self.table:
            if rule.left < 0 or rule.label in labels or len(rule.left_nodes) < 2:
                continue
            for root in self._roots(high.id):
                tries = _tries(rule, self.graph, root)
                whole = [t for t in tries if not t.text and pair <= t.inner(rule)]
                lines += [f"{rule.label} was not used at %{root}: {self._refused(rule, root)}." for _ in whole[:1]]
                near += [(len(t.bound), f"{rule.label} fits %{root} in part: {t.text}.") for t in tries
                         if t.text and pair <= t.inner(rule) | {t.at} and high.id != t.at]  # fmt: skip
        if not lines:
            lines = [text for _, text in sorted(near, key=lambda pair: -pair[0])[:3]]
        lines = list(dict.fromkeys(lines)) or [f"No rule joins {low.op} and {high.op}."]
        return Answer("\n".join(lines), (), recorded)

    def _roots(self, id: int) -> list[int]:
        """A node and the nodes above it that may be the root of a pattern around it."""
        readers = users(self.graph)
        found, front = [id], [id]
        for _ in range(ABOVE):
            front = [reader for k in front for reader, _ in readers[k]]
            found += front
        return list(dict.fromkeys(found))

    def _refused(self, rule: Rule, root: int) -> str:
        """Why a rule whose pattern stands at this root was not used, in words."""
        readers = users(self.graph)
        outputs = frozenset(self.graph.output_ids)
        uses = [len(r) for r in readers]
        for id in self.graph.output_ids:
            uses[id] += 1
        for match in matches(rule, self.graph, root, uses, outputs):
            _, refusal = refused(rule, match) or (0, None)
            refusal = refusal or self.off.get(rule.name) or _shared(match, readers) or self.early
            return refusal[1] if refusal else "the graph costs no less with it"
        return "its pattern is not there"


def _is_it(given: Any, node: Node) -> bool:
    """Whether a Value or a Node is not of another graph, such as the one before; ids are taken as they are."""
    record = getattr(given, "node", given)
    return not isinstance(record, Node) or replace(record, name=node.name) == node


def _shared(match: Match, readers: list[list[tuple[int, int]]]) -> Refusal | None:
    for id in match.inner[1:]:
        for reader, _ in readers[id]:
            if reader not in match.inner:
                return "multi_use", f"%{id} is read by %{reader} too"
        if id in match.outputs:
            return "is_output", f"%{id} is an output of the graph"
    return None


def _named(node: Node) -> str:
    return f"%{node.id} {node.op}" + (f" {node.name!r}" if node.name else "")


def _leading_to(steps: Sequence[Step], id: int) -> tuple[Step, ...]:
    """The steps that added a node, or handed it the readers of others, and those that led to what they replaced."""
    wanted, found = {id}, []
    for step in reversed(steps[:-1]):
        if wanted & {n.id for n in step.added} or any(new in wanted for _, _, new in step.rewired):
            found.append(step)
            wanted |= {*step.at, *step.removed}
    return tuple(reversed(found))


# how far a pattern fits -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Try:
    """A pattern laid over a graph until its first part that failed (`text`, at node `at`); no text: it fits."""

    root: int
    bound: dict[int, int]
    text: str
    at: int

    def inner(self, rule: Rule) -> set[int]:
        """The nodes that stand for ops of the pattern."""
        return {id for p, id in self.bound.items() if rule.pattern.node(p).op != "var"}


def _tries(rule: Rule, graph: Graph, root: int) -> list[_Try]:
    """Every way to lay a rule's left side at `root`, each up to what failed; none where the root does not fit."""
    pattern, done = rule.pattern, []
    if pattern.node(rule.left).op != graph.node(root).op:
        return []
    stack: list[tuple[tuple[tuple[int, int], ...], dict[int, int], dict[str, Any]]] = [(((rule.left, root),), {}, {})]
    while stack:
        pending, bound, attrs = stack.pop()
        if not pending:
            done.append(_Try(root, bound, "", root))
            continue
        (p, id), rest = pending[0], pending[1:]
        want, node = pattern.node(p), graph.node(id)
        failed, found = _failure(want, node, bound.get(p), attrs)
        if failed:
            done.append(_Try(root, bound, failed, id))
        elif p in bound or want.op == "var":
            stack.append((rest, bound | {p: id}, found))
        else:
            for inputs in _orders(node):
                # ops of the pattern before its variables: what says most fails first
                pairs = zip(want.inputs, inputs, strict=True)
                below = sorted(pairs, key=lambda pair: pattern.node(pair[0]).op == "var")
                stack.append(((*below, *rest), bound | {p: id}, found))
    return done


def _orders(node: Node) -> Iterator[Iterable[int]]:
    yield node.inputs
    if node.op in COMMUTATIVE and node.inputs[0] != node.inputs[1]:
        yield node.inputs[::-1]


def _failure(want: Node, node: Node, bound: int | None, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """In words why a node cannot stand for this part of a pattern (empty: it can), and the attributes known then."""
    if bound is not None:
        same = bound == node.id
        return ("" if same else f"%{node.id} would have to be %{bound}, which the pattern names twice"), attrs
    if want.op == "var":
        return "", attrs
    if want.op != node.op or len(want.inputs) != len(node.inputs):
        return f"%{node.id} is {node.op}, it wants {want.op}", attrs
    found = dict(attrs)
    for (name, wanted), (_, value) in zip(want.attrs, node.attrs, strict=True):
        known = found.setdefault(wanted.name, value) if isinstance(wanted, AttrVar) else wanted
        if interned(known) != interned(value):
            return f"{name} of %{node.id} is {value}, it wants {known}", attrs
    return "", found
