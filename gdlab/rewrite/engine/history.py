"""Record the e-graph through time as deltas: the e-nodes that each iteration added, and the classes it merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gdlab.graph import AttrVar, ConstantData
from gdlab.rewrite.engine.egglog_program import OpSignature
from gdlab.rewrite.engine.saturate import EGraphSnapshot
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule
from gdlab.rewrite.rules.relations import Interner

__all__ = ["RECORDED", "Delta", "NamedNode", "deltas", "rank", "renamed", "sorted_operands"]

RECORDED = 300  # nodes of a graph up to which a study has its e-graph's growth recorded by itself: at most 30 ms

Key = tuple[str, tuple[int, ...], tuple[int, ...]]  # op, operand classes, attribute numbers


@dataclass(frozen=True, slots=True)
class NamedNode:
    """An e-node by name: class, op, operand classes, and the label of the rule that made it (None: the graph's).

    A class is named `%i` by its lowest node of the graph, or `+j` in order of creation.
    """

    cls: str
    op: str
    children: tuple[str, ...]
    attrs: tuple[Any, ...] = ()
    label: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; no attributes where there are none."""
        plain = {"class": self.cls, "op": self.op, "children": list(self.children), "label": self.label}
        return plain | ({"attrs": [_plain(v) for v in self.attrs]} if self.attrs else {})


@dataclass(frozen=True, slots=True)
class Delta:
    """The change of one iteration: e-nodes added, classes merged (the name that stays, the name that goes), the number
    of e-nodes that became equal to others, and firings per rule label."""

    added: tuple[NamedNode, ...]
    merged: tuple[tuple[str, str], ...]
    collapsed: int = 0
    fired: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "added": [n.to_json() for n in self.added],
            "merged": [list(pair) for pair in self.merged],
            "collapsed": self.collapsed,
            "fired": [list(pair) for pair in self.fired],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, ConstantData):
        return value.digest
    return list(value) if isinstance(value, tuple) else value


def deltas(
    history: Sequence[EGraphSnapshot], rules: Sequence[Rule], signatures: Mapping[str, OpSignature], numbers: Interner
) -> tuple[Delta, ...]:
    """Return one delta per snapshot, against the one before; the first holds the graph itself."""
    recorded: list[Delta] = []
    known: dict[NamedNode, None] = {}  # without labels
    count, shots = 0, [-1] * len(rules)
    for k, shot in enumerate(history):
        if k and shot is history[k - 1]:  # nothing has changed
            recorded.append(Delta((), ()))
            continue
        kept = _kept_names(known, shot, numbers)
        names, count = _all_names(kept, shot, count)
        labels = _labels(shot, rules, numbers) if recorded else {}
        nodes: dict[NamedNode, str | None] = {}
        for key, c in sorted(_e_nodes(shot).items(), key=lambda item: _order(item[0], names)):
            children = tuple([names[k] for k in key[1]])
            attrs = tuple([numbers.values[i] for i in key[2]])
            nodes.setdefault(NamedNode(names[c], key[0], sorted_operands(key[0], children), attrs), labels.get(key))
        moved = {old: names[c] for old, c in kept.items() if old != names[c]} if recorded else {}
        before = [renamed(node, moved) for node in known] if moved else list(known)
        merged = tuple((new, old) for old, new in moved.items())
        there = set(before)
        fresh = [n for n in nodes if n not in there]
        added = tuple(NamedNode(n.cls, n.op, n.children, n.attrs, nodes[n]) for n in fresh)
        now = [len(rows) for rows in shot.fired] or [0] * len(rules)
        fired = tuple((r.label, a - max(b, 0)) for r, a, b in zip(rules, now, shots, strict=True) if a > max(b, 0))
        recorded.append(Delta(added, merged, len(before) - len(there), fired))
        known, shots = dict.fromkeys(nodes), now
    return tuple(recorded)


def renamed(node: NamedNode, moved: Mapping[str, str]) -> NamedNode:
    """Return an e-node without its label, with the classes in `moved` renamed."""
    children = tuple([moved.get(c, c) for c in node.children])
    return NamedNode(moved.get(node.cls, node.cls), node.op, sorted_operands(node.op, children), node.attrs)


def sorted_operands(op: str, children: tuple[str, ...]) -> tuple[str, ...]:
    """Return class names in the order in which e-nodes are compared: those of commutative ops sorted."""
    return tuple(sorted(children, key=rank)) if op in COMMUTATIVE else children


@lru_cache(maxsize=4096)
def rank(name: str) -> tuple[int, int]:
    """Return the sort key of a class name: classes of the graph come first."""
    return (name[0] != "%"), int(name[1:])


def _e_nodes(shot: EGraphSnapshot) -> dict[Key, int]:
    """Return the e-nodes of a snapshot with their classes; commutative operands are sorted."""
    found: dict[Key, int] = {}
    for op, operands, attrs, c in shot.enodes:
        found[op, tuple(sorted(operands)) if op in COMMUTATIVE else operands, attrs] = c
    return found


def _order(key: Key, names: Mapping[int, str]) -> tuple[Any, ...]:
    """Return the sort key of an e-node: op, operands by name (class numbers are the engine's own), attributes."""
    ranks = [rank(names[k]) for k in key[1]]
    return (key[0], tuple(sorted(ranks) if key[0] in COMMUTATIVE else ranks), key[2])


def _kept_names(known: Mapping[NamedNode, None], shot: EGraphSnapshot, numbers: Interner) -> dict[str, int]:
    """Return the present class of each earlier name: those of the graph by their nodes, others by their e-nodes."""
    home = _e_nodes(shot)
    found = {f"%{id}": c for id, c in shot.class_of.items()}
    waiting = [n for n in known if n.cls not in found]
    while waiting:
        left = []
        for node in waiting:
            if node.cls in found:
                continue
            if all(k in found for k in node.children):
                operands = tuple([found[k] for k in node.children])
                key = (node.op, tuple(sorted(operands)) if node.op in COMMUTATIVE else operands,
                       tuple([numbers(v) for v in node.attrs]))  # fmt: skip
                found[node.cls] = home[key]
            else:
                left.append(node)
        if len(left) == len(waiting):
            break
        waiting = left
    held = {name for n in known for name in (n.cls, *n.children)}
    return {name: c for name, c in found.items() if name in held} if known else found


def _all_names(kept: Mapping[str, int], shot: EGraphSnapshot, count: int) -> tuple[dict[int, str], int]:
    """Return the name of every class, new ones numbered level by level, and the count of numbers used so far."""
    names: dict[int, str] = {}
    for name, c in sorted(kept.items(), key=lambda item: rank(item[0])):
        names.setdefault(c, name)
    waiting = {key: c for key, c in _e_nodes(shot).items() if c not in names}
    while waiting:
        ready = [(key, c) for key, c in waiting.items() if all(k in names for k in key[1])]
        if not ready:
            break
        for _, c in sorted(ready, key=lambda item: _order(item[0], names)):
            if c not in names:
                names[c] = f"+{count}"
                count += 1
        waiting = {key: c for key, c in waiting.items() if c not in names}
    return names, count


def _labels(shot: EGraphSnapshot, rules: Sequence[Rule], numbers: Interner) -> dict[Key, str]:
    """Map every e-node on the right side of a firing to the label of the first rule that made it so."""
    home = _e_nodes(shot)
    labels: dict[Key, str] = {}
    for rule, rows in zip(rules, shot.fired, strict=True):
        for env, attrs, _ in rows:
            values = dict(zip(rule.attr_variables, attrs, strict=True))
            classes = {rule.names[name]: c for name, c in zip(rule.variables, env, strict=True)}
            for node in (*rule.left_nodes, *rule.right_nodes):
                if not all(i in classes for i in node.inputs):
                    break
                operands = tuple([classes[i] for i in node.inputs])
                given = [values[v.name] if isinstance(v, AttrVar) else numbers(v) for _, v in node.attrs]
                key = node.op, tuple(sorted(operands)) if node.op in COMMUTATIVE else operands, tuple(given)
                if key not in home:
                    break
                classes[node.id] = home[key]
                if node in rule.right_nodes and node not in rule.left_nodes:
                    labels.setdefault(key, rule.label)
    return labels
