"""Compute the report's late fields on first access (a third of `optimize`'s time): steps, maps, counts per rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from gdlab.graph import Node
from gdlab.graph.replay import SWEEP, Step
from gdlab.rewrite.engine.eclasses import Firing, distinct
from gdlab.rewrite.engine.encoded_rows import Key
from gdlab.rewrite.explain.basis import Explained
from gdlab.rewrite.explain.mutable_graph import RewriteLog, steps_of
from gdlab.rewrite.explain.report import Derivation, RuleStat
from gdlab.rewrite.rules.pattern import Rule
from gdlab.rewrite.rules.prepare import CSE

__all__ = ["LazyReport"]


@dataclass(frozen=True, slots=True)
class LazyReport:
    """The data that the late fields are computed from, and no more: the garbage collector visits all of it.

    `same` is that of `Prepared`, `class_of`, `key_of` and `firings` are those of `EClasses`; `order` are the stable ids
    of the result's nodes; `counts` are matches, firings and seconds by rule; `given` the rules without a pattern by the
    number of their firings.
    """

    log: RewriteLog
    same: Sequence[int]
    class_of: Mapping[int, int]
    key_of: Mapping[int, Key]
    firings: Sequence[Firing]
    done: Explained
    order: Sequence[int]
    table: Sequence[Rule]
    off: Mapping[str, object]
    program: Sequence[Rule]
    given: Mapping[int, Rule]
    counts: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, float]]

    def __call__(self) -> dict[str, Any]:
        """Return the late fields of the report by name."""
        done, order, log = self.done, self.order, self.log
        steps = steps_of(log, order, (SWEEP, SWEEP))
        moved = _node_map(self.same, self.class_of, done.rep, order)
        return {
            "steps": steps,
            "rules_fired": _rules_fired(steps),
            "fusions_applied": tuple((s.label, done.root_of.get(s.at[0], s.at[0])) for s in steps[:-1] if s.at),
            "node_map": moved,
            "origin": _origin(log.nodes[: log.size], self.same, done, order, moved),
            "derivations": _derivations(done, order),
            "rules": _rule_table(self.table, self.off, self.program, self.firings, set(self.key_of.values()),
                                *self.counts, steps, done, self.given),
        }  # fmt: skip

def _node_map(
    same: Sequence[int], class_of: Mapping[int, int], rep: Mapping[int, int], order: Sequence[int]
) -> dict[int, int | None]:
    """Map each node to the node of the result that holds its value; None where it was fused away or is dead."""
    new = {id: i for i, id in enumerate(order)}
    return {id: new.get(id if kept < 0 else rep.get(class_of[kept], kept)) for id, kept in enumerate(same)}


def _origin(
    nodes: Sequence[Node], same: Sequence[int], done: Explained, order: Sequence[int], moved: Mapping[int, int | None]
) -> dict[int, tuple[int, ...]]:
    """Map every new node to the old ones it stands for: first the one whose name and source it has, then by id.

    A node that lives on by itself belongs to nobody else; one that vanished without a rule of its own (only vanished
    nodes read it, or it was a duplicate) belongs where its readers do. So every live node of the graph is found again.
    `nodes` are those of the graph as it was.
    """
    others: list[set[int]] = [set() for _ in order]
    for old, to in moved.items():
        if to is not None:
            others[to].add(old)
    for i, id in enumerate(order):
        if id in done.consumed:
            others[i] |= {old for old in done.consumed[id] if moved[old] is None}
    _adopt_orphans(nodes, same, others)
    result = {}
    for i, id in enumerate(order):
        first = id if id < len(nodes) else done.root_of.get(id, -1)
        rest = sorted(others[i] - {first})
        result[i] = (first, *rest) if first >= 0 else tuple(rest)
    return result


def _adopt_orphans(nodes: Sequence[Node], same: Sequence[int], others: Sequence[set[int]]) -> None:
    owners: list[set[int]] = [set() for _ in nodes]
    for new, olds in enumerate(others):
        for old in olds:
            owners[old].add(new)
    orphan = [not new for new in owners]
    for node in reversed(nodes):
        for i in node.inputs:
            if orphan[i] and same[node.id] >= 0:
                owners[i] |= owners[node.id]
    for old, owned_by in enumerate(owners):
        for new in owned_by if orphan[old] else ():
            others[new].add(old)


def _derivations(done: Explained, order: Sequence[int]) -> tuple[Derivation, ...]:
    """Return one derivation for each used rewrite that led to a node of the result."""
    new = {id: i for i, id in enumerate(order)}
    return tuple(
        Derivation(new[use.to], use.root, tuple(sorted(set(use.consumed))), use.chain)
        for use in done.used
        if use.to in new
    )


def _rules_fired(steps: Sequence[Step]) -> tuple[tuple[str, int], ...]:
    """Count the labels of the steps, in order of first use; the sweep is no rewrite."""
    return tuple(Counter(s.label for s in steps[:-1]).items())


def _says_something_new(f: Firing, own: Set[Key]) -> bool:
    """Return whether a firing made something new, or started at an e-node of the graph itself."""
    return not f.right or any(k not in own for k in f.right) or f.left[-1] in own


def _rule_table(
    table: Sequence[Rule], off: Mapping[str, object], program: Sequence[Rule],
    firings: Sequence[Firing], own: Set[Key],
    matched: Mapping[str, int], fired: Mapping[str, int], seconds: Mapping[str, float], steps: Sequence[Step],
    done: Explained, given: Mapping[int, Rule],
) -> tuple[RuleStat, ...]:  # fmt: skip
    """Return one row per rule, also of rules without a match. `own` are the e-nodes of the graph's nodes."""
    names = {j: r.name for j, r in given.items()} | {j: r.name for j, r in enumerate(program)}
    behind = {use.firing for use in done.used}
    used = Counter(names[f.rule] for f in behind)
    created = Counter(names[f.rule] for f in distinct(firings) if f in behind or _says_something_new(f, own))
    same = sum(1 for s in steps if s.rule == CSE)
    rows = []
    for rule in table:
        counts = [same if rule.name == CSE else d.get(rule.name, 0) for d in (matched, fired, created, used)]
        who = rule.name, rule.label, rule.safety, rule.phases, rule.doc
        m, f, c, u = counts
        rows.append(RuleStat(*who, m, f, c, u, seconds.get(rule.name, 0.0), rule.name not in off))
    return tuple(rows)
