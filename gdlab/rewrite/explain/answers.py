"""Answer questions to a report in words: why a node is as it is, why two nodes were not fused, or a rule not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gdlab.base.errors import OptimizeError, UnknownRuleError
from gdlab.base.words import near_hint, plural
from gdlab.graph import Graph, Node, users
from gdlab.graph.replay import Step
from gdlab.rewrite.explain.near_misses import Missed, why_not_used
from gdlab.rewrite.rules.matching import GraphUses, PatternMatch, layouts, matches
from gdlab.rewrite.rules.pattern import Refusal, Rule

__all__ = ["RuleAnswer", "AnswerData"]

ABOVE = 3  # levels of readers in which a rule's root is looked for


@dataclass(frozen=True, slots=True, repr=False)
class RuleAnswer:
    """An answer in words (`print` it, or let a notebook show it), with the steps or near misses it cites."""

    text: str
    steps: tuple[Step, ...] = ()
    missed: tuple[Missed, ...] = ()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class AnswerData:
    """The data of the answers: the result, the stable ids of its nodes, all rules, and why some took no part."""

    graph: Graph
    order: Sequence[int]
    table: Sequence[Rule]
    off: Mapping[str, Refusal]
    early: Refusal | None

    # questions: why -----------------------------------------------------------------------------------------------
    def why(self, steps: Sequence[Step], node: Any) -> RuleAnswer:
        """Return the steps that led to a node of the result, first to last."""
        made = self._node(node)
        steps = _leading_to(steps, self.order[made.id])
        if not steps:
            return RuleAnswer(f"{_named(made)} is as it was written: no rewrite made it.")
        lines = [f"{_named(made)} was made by {plural(len(steps), 'rewrite')}:"]
        lines += [f"  {i}. {step}" for i, step in enumerate(steps, 1)]
        return RuleAnswer("\n".join(lines), steps)

    def _node(self, given: Any) -> Node:
        """Return the node of the result that an id, a Value, a Node or a name stands for."""
        id = getattr(given, "id", given)
        if isinstance(id, str):
            named = [n for n in self.graph if n.name == id]
            if named:
                return named[-1]
        elif isinstance(id, int) and not isinstance(id, bool) and 0 <= id < len(self.graph):
            node = self.graph.node(id)
            if _is_of_graph(given, node):
                return node
        raise OptimizeError("report", "node", repr(given), f"an id 0 … {len(self.graph) - 1} or a name of the result")

    # questions: why not -------------------------------------------------------------------------------------------
    def why_not_rule(self, steps: Sequence[Step], near: Sequence[Missed], name: Any) -> RuleAnswer:
        """Return why a rule was not used, or not more often."""
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
        return RuleAnswer("\n".join(lines), steps, missed)

    def _of_rule(self, rule: Rule) -> str:
        if rule.name in self.off:
            return f"{rule.label} took no part: {self.off[rule.name][1]}."
        if rule.left < 0:
            return f"{rule.label} found nothing to do."
        tried = [layout for n in self.graph for layout in self._layouts_at(rule, n.id)]
        best = max(tried, key=lambda layout: len(layout.bound), default=None)
        if best is None or not best.bound:
            return f"{rule.label} found no {rule.pattern.node(rule.left).op} in the graph."
        reason = best.misfit.text if best.misfit else self._refusal(rule, best.root)
        return f"{rule.label} came nearest at %{best.root}: {reason}."

    def why_not_pair(self, near_misses: Sequence[Missed], a: Any, b: Any) -> RuleAnswer:
        """Return why two nodes, one of which reads the other, were not fused."""
        low, high = sorted((self._node(a), self._node(b)), key=lambda n: n.id)
        if low.id not in high.inputs:
            return RuleAnswer(f"{_named(low)} and {_named(high)} are no neighbours: neither reads the other.")
        pair = {low.id, high.id}
        recorded = tuple(m for m in near_misses if m.node == high.id and (m.about in (None, low.id)))
        labels = {m.label for m in recorded}
        lines, partial = [m.text for m in recorded], []
        for rule in self.table:
            if rule.left < 0 or rule.label in labels or len(rule.left_nodes) < 2:
                continue
            for root in self._roots(high.id):
                tried = self._layouts_at(rule, root)
                if any(layout.misfit is None and pair <= layout.inner for layout in tried):
                    lines.append(f"{rule.label} was not used at %{root}: {self._refusal(rule, root)}.")
                misfits = [(layout, layout.misfit) for layout in tried if layout.misfit is not None]
                partial += [(len(layout.bound), f"{rule.label} fits %{root} in part: {misfit.text}.")
                            for layout, misfit in misfits
                            if pair <= layout.inner | {misfit.node.id} and high.id != misfit.node.id]  # fmt: skip
        if not lines:
            lines = [text for _, text in sorted(partial, key=lambda pair: -pair[0])[:3]]
        lines = list(dict.fromkeys(lines)) or [f"No rule joins {low.op} and {high.op}."]
        return RuleAnswer("\n".join(lines), (), recorded)

    def _roots(self, id: int) -> list[int]:
        """Return a node and those above it that may be the root of a pattern around it."""
        readers = users(self.graph)
        roots, front = [id], [id]
        for _ in range(ABOVE):
            front = [reader for k in front for reader, _ in readers[k]]
            roots += front
        return list(dict.fromkeys(roots))

    def _layouts_at(self, rule: Rule, root: int) -> list[PatternMatch]:
        """Return all layouts at a root, exchanged operands first: of equally good layouts, answers cite one."""
        return [*layouts(rule, self.graph, root)][::-1]

    def _refusal(self, rule: Rule, root: int) -> str:
        """Return why a rule whose pattern stands at this root was not used, in words."""
        around = GraphUses(self.graph)
        for match in matches(rule, around, root):
            (_, detail), _ = why_not_used(rule, match, self.off.get(rule.name), self.early, around)
            return detail
        return "its pattern is not there"


def _is_of_graph(given: Any, node: Node) -> bool:
    """Return whether a Value or a Node is of this graph and not of another, such as the one before; ids always pass."""
    record = getattr(given, "node", given)
    return not isinstance(record, Node) or replace(record, name=node.name) == node


def _named(node: Node) -> str:
    return f"%{node.id} {node.op}" + (f" {node.name!r}" if node.name else "")


def _leading_to(steps: Sequence[Step], id: int) -> tuple[Step, ...]:
    """Return the steps that added a node or gave it readers of others, and those that led to the nodes it replaced."""
    wanted, leading = {id}, []
    for step in reversed(steps[:-1]):
        if wanted & {n.id for n in step.added} or any(new in wanted for _, _, new in step.rewired):
            leading.append(step)
            wanted |= {*step.at, *step.removed}
    return tuple(reversed(leading))
