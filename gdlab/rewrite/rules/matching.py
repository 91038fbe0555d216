"""Lay a rule's left side over a graph: the one matcher behind matches, near misses, and answers to "why not".

The engines match over e-classes instead (egglog by joins, `engine/worklist.py` in Python): there an operand is a class
of many e-nodes, matched again only where the e-graph changed, and conditions are joins with rows and not checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gdlab.graph import AttrVar, Graph, Node, users
from gdlab.rewrite.rules.conditions import Match, Refusal
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule
from gdlab.rewrite.rules.prepare import own_gradients
from gdlab.rewrite.rules.relations import interned

__all__ = ["GraphUses", "PatternMatch", "Misfit", "layouts", "matches", "refused"]


@dataclass(frozen=True, slots=True)
class Misfit:
    """The first part of a pattern that a node does not fit: another op, another node where the pattern names one twice
    (`bound`), or another value of an attribute."""

    node: Node
    pattern: Node
    bound: int | None = None
    attr: str = ""
    value: Any = None

    @property
    def text(self) -> str:
        """The misfit in words."""
        if self.bound is not None:
            return f"%{self.node.id} would have to be %{self.bound}, which the pattern names twice"
        if self.attr:
            return f"{self.attr} of %{self.node.id} is {self.node.attr(self.attr)}, it wants {self.value}"
        return f"%{self.node.id} is {self.node.op}, it wants {self.pattern.op}"


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """A rule's left side laid over a graph at `root`: graph nodes by pattern node and attributes by variable, complete
    or up to the first misfit."""

    rule: Rule
    root: int
    bound: dict[int, int]
    attrs: dict[str, Any]
    misfit: Misfit | None = None

    @property
    def inner(self) -> set[int]:
        """The nodes that stand for ops of the pattern."""
        return {id for p, id in self.bound.items() if self.rule.pattern.node(p).op != "var"}


def layouts(rule: Rule, graph: Graph, root: int, *, misfits: bool = True) -> Iterator[PatternMatch]:
    """Return every way to lay a rule's left side at `root`, without conditions: both operand orders of commutative
    ops, each up to its first misfit; without `misfits` the complete ones alone, which takes less time."""
    pattern, nodes = rule.pattern._nodes, graph._nodes
    stack: list[tuple[tuple[tuple[int, int], ...], dict[int, int], dict[str, Any]]] = [(((rule.left, root),), {}, {})]
    while stack:
        pending, bound, attrs = stack.pop()
        if not pending:
            yield PatternMatch(rule, root, bound, attrs)
            continue
        (p, id), rest = pending[0], pending[1:]
        wanted, node = pattern[p], nodes[id]
        if p in bound:
            if bound[p] == id:
                stack.append((rest, bound, attrs))
            elif misfits:
                yield PatternMatch(rule, root, bound, attrs, Misfit(node, wanted, bound[p]))
            continue
        if wanted.op == "var":
            stack.append((rest, bound | {p: id}, attrs))
            continue
        if wanted.op != node.op or len(wanted.inputs) != len(node.inputs):
            if misfits:
                yield PatternMatch(rule, root, bound, attrs, Misfit(node, wanted))
            continue
        unified = _unify(wanted, node, attrs) if wanted.attrs else attrs
        if isinstance(unified, Misfit):
            if misfits:
                yield PatternMatch(rule, root, bound, attrs, unified)
            continue
        orders = [node.inputs]
        if node.op in COMMUTATIVE and node.inputs[0] != node.inputs[1]:
            orders.append(node.inputs[::-1])
        for inputs in reversed(orders):
            pairs = [*zip(wanted.inputs, inputs, strict=True)]
            if misfits and len(pairs) > 1:  # ops of the pattern before its variables: they fail first
                pairs.sort(key=lambda pair: pattern[pair[0]].op == "var")
            stack.append(((*pairs, *rest), bound | {p: id}, unified))


def _unify(wanted: Node, node: Node, attrs: dict[str, Any]) -> dict[str, Any] | Misfit:
    """Return the attributes known when `node` stands for this op of a pattern, or the attribute that does not fit."""
    unified = dict(attrs)
    for (name, want), (_, value) in zip(wanted.attrs, node.attrs, strict=True):
        known = unified.setdefault(want.name, value) if isinstance(want, AttrVar) else want
        if interned(known) != interned(value):
            return Misfit(node, wanted, attr=name, value=known)
    return unified


# matches --------------------------------------------------------------------------------------------------------------
class GraphUses:
    """The readers of every node of a graph, how often each is used, and its outputs: conditions look at these."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers, self.outputs = graph, users(graph), frozenset(graph.output_ids)
        self.uses = [len(readers) for readers in self.readers]
        for id in (*graph.output_ids, *own_gradients(graph)):
            self.uses[id] += 1


def matches(rule: Rule, around: GraphUses, root: int) -> Iterator[Match]:
    """Return every complete layout of a rule's left side at `root` as a match for conditions to check."""
    for layout in layouts(rule, around.graph, root, misfits=False):
        bound = layout.bound
        named = {name: bound[id] for name, id in rule.names.items() if id in bound}
        inner = tuple(bound[n.id] for n in reversed(rule.left_nodes))
        yield Match(around.graph, named, layout.attrs, inner, around.uses, around.outputs)


def refused(rule: Rule, match: Match) -> tuple[int, Refusal] | None:
    """Return the first condition that refuses, by its place in `where`, and its refusal; None where all hold.

    A condition that determines an attribute gives it to the ones after it.
    """
    for i, condition in enumerate(rule.where):
        refusal = condition.check(match)
        if refusal is not None:
            return i, refusal
        if condition.binds and condition.binds not in (*match.attrs, *match.nodes):
            match = replace(match, attrs={**match.attrs, condition.binds: condition.value(match)})
    return None
