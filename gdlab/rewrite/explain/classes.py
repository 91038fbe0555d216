"""List the classes of the e-graph at its end: every e-node of each, its cost, and which one was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gdlab.base.types import TensorType
from gdlab.rewrite.engine.eclasses import LEAF, EClasses, ordered
from gdlab.rewrite.engine.encoded_rows import Key
from gdlab.rewrite.engine.history import Delta, NamedNode, rank, renamed
from gdlab.rewrite.extract.choice import Choice, Problem, Search
from gdlab.rewrite.extract.problem import TIE, UNITS
from gdlab.rewrite.rules.relations import Interner

__all__ = ["EClass", "Priced", "PricedNode", "eclasses"]


@dataclass(frozen=True, slots=True)
class PricedNode:
    """An e-node of a class: one way to compute it.

    `cost`: of its op alone, µs; None where it is no choice (it reads its own class, or has no type). `more`: what the
    whole graph would cost more with it, all else as chosen, µs; None where nothing reads the class, where it would lead
    back to its own class, and where it computes more products. `given`: the label of the rule that added it before the
    first iteration (a folded constant, a pack of siblings), else "".
    """

    node: NamedNode
    chosen: bool = False
    cost: float | None = None
    more: float | None = None
    given: str = ""


@dataclass(frozen=True, slots=True)
class EClass:
    """A class at the end: the graph's nodes in it, the node of the result that it became (−1: none), and its ways to
    compute it, the chosen one first, then by cost. A leaf has none."""

    name: str
    type: TensorType
    nodes: tuple[int, ...]
    made: int
    ways: tuple[PricedNode, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; of the ways, the e-node and its costs."""
        ways = [
            w.node.to_json() | {"chosen": w.chosen, "cost": w.cost, "more": w.more, "given": w.given} for w in self.ways
        ]
        plain = {"name": self.name, "type": str(self.type), "nodes": list(self.nodes), "made": self.made}
        return {**plain, "ways": ways}


@dataclass(frozen=True)
class Priced:
    """A solved problem of extraction: the problem, the key of each of its e-nodes, its cycles, and the choice."""

    problem: Problem
    keys: Sequence[Key]
    component: Sequence[int]
    choice: Choice


def eclasses(
    deltas: Sequence[Delta], classes: EClasses, priced: Priced, numbers: Interner, kept: Sequence[int],
    made: Mapping[int, int], rules: Mapping[int, str],
) -> tuple[EClass, ...]:  # fmt: skip
    """Return every class at the end with its e-nodes and their costs, by name. `kept[id]` is the node that stands for a
    node of the graph (−1: dead), `made[c]` the node of the result that class c became, and `rules` are the labels of
    the rules without a pattern by the number of their firings."""
    at_end = sorted(_at_end(deltas), key=lambda n: rank(n.cls))
    number = _numbered(at_end, classes, numbers)
    nodes: dict[int, list[int]] = {}
    for id, same in enumerate(kept):
        if same >= 0:
            nodes.setdefault(classes.class_of[same], []).append(id)
    ways: dict[str, list[PricedNode]] = {}
    prices, own = _prices(priced), set(classes.key_of.values())
    given = {key: rules[f.rule] for f in classes.firings if f.rule in rules for key in f.right if key not in own}
    for node in at_end:
        key = _key(node, number, numbers)
        way = prices.get((number.get(node.cls, -1), key), _FREE)
        ways.setdefault(node.cls, []).append(replace(way, node=node, given=given.get(key, "")))
    found = []
    for name, c in sorted(number.items(), key=lambda item: rank(item[0])):
        listed = sorted(ways.get(name, ()), key=lambda w: (not w.chosen, w.cost is None, w.cost or 0.0))
        type = classes.type_list[classes.types[c]]
        found.append(EClass(name, type, tuple(nodes.get(c, ())), made.get(c, -1), tuple(listed)))
    return tuple(found)


def _at_end(deltas: Sequence[Delta]) -> Iterable[NamedNode]:
    """Return the e-nodes at the end without labels, in the order in which they came."""
    nodes: dict[NamedNode, None] = {}
    for delta in deltas:
        moved = {old: new for new, old in delta.merged}
        nodes = dict.fromkeys(renamed(n, moved) for n in nodes) if moved else nodes
        nodes.update(dict.fromkeys(NamedNode(n.cls, n.op, n.children, n.attrs) for n in delta.added))
    return nodes


_FREE = PricedNode(NamedNode("", "", ()))


def _numbered(nodes: Iterable[NamedNode], classes: EClasses, numbers: Interner) -> dict[str, int]:
    """Return the class number of each class name: by the lowest node in it, else by one of its e-nodes."""
    number = {f"%{min(ids)}": c for c, ids in enumerate(classes.nodes) if ids}
    waiting = [n for n in nodes if n.cls not in number]
    while waiting:
        for node in waiting:
            c = classes.home.get(_key(node, number, numbers)) if all(k in number for k in node.children) else None
            if c is not None:
                number.setdefault(node.cls, c)
        left = [n for n in waiting if n.cls not in number]
        if len(left) == len(waiting):
            break
        waiting = left
    return number


def _key(node: NamedNode, number: Mapping[str, int], numbers: Interner) -> Key:
    operands = tuple([number.get(k, -1) for k in node.children])
    return node.op, ordered(node.op, operands), tuple([numbers(v) for v in node.attrs])


def _prices(priced: Priced) -> dict[tuple[int, Key], PricedNode]:
    """Price every e-node that could be chosen, by class and key: alone, and as a change of the whole graph's cost."""
    problem, choice, live = priced.problem, priced.choice, set(priced.choice.live)
    start = [[choice.enode[c], *(e for e in of if e != choice.enode[c])] for c, of in enumerate(problem.of_class)]
    search = Search(replace(problem, of_class=start), priced.component, None)
    found = {}
    for c, enodes in enumerate(start):
        for e in enodes:
            chosen = c in live and e == choice.enode[c]
            gain = None if c not in live or priced.keys[e][0] == LEAF else search.attempt([(c, e)], keep=False)
            more = None if gain is None else _micros((gain + (1 << TIE - 1)) >> TIE)
            found[c, priced.keys[e]] = PricedNode(_FREE.node, chosen, _micros(problem.cost[e] >> TIE), more)
    return found


def _micros(units: int) -> float:
    return units / UNITS
