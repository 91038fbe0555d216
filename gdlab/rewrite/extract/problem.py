"""State the problem of extraction: the cost of every e-node, and the classes that read each other in a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gdlab.op.cost import CostModel, contraction_flops
from gdlab.rewrite.engine.eclasses import LEAF, EClasses, ENodeTypes
from gdlab.rewrite.engine.encoded_rows import Key
from gdlab.rewrite.extract.choice import Problem
from gdlab.rewrite.extract.cycles import components
from gdlab.rewrite.rules.prepare import Prepared

__all__ = ["TIE", "UNITS", "Prices", "problem_of"]

UNITS = 20_000_000  # cost units per µs: one flop and a 20th of a byte of the roofline are whole numbers
TIE = 20  # bits below a unit that count nodes, so that of two equal costs the smaller graph wins


class Prices:
    """Costs and flops of products of e-nodes, computed once per op, attributes and operand types."""

    def __init__(self, model: CostModel, inference: ENodeTypes) -> None:
        self.model, self.inference = model, inference
        self._prices: dict[Any, tuple[int, int]] = {}
        self.of_node: dict[int, tuple[int, int]] = {}  # results of `node`

    def price(self, op: str, numbers: tuple[int, ...], type: int, operands: tuple[int, ...]) -> tuple[int, int]:
        """Return (cost in units, flops of products) of an e-node."""
        key, types = (op, numbers, type, operands), self.inference.types
        found = self._prices.get(key)
        if found is None:
            case = op, self.inference.attrs(op, numbers), types[type], tuple([types[t] for t in operands])
            found = self._prices[key] = round(self.model.price(*case) * UNITS), contraction_flops(*case)
        return found

    def node(self, prepared: Prepared, attrs: Mapping[int, tuple[int, ...]], id: int) -> int:
        """Return the cost in units of a live node. `attrs` are the attribute numbers of kept nodes but leaves."""
        node, kept, type_of = prepared.graph._nodes[id], prepared.same[id], prepared.type_of
        if kept in attrs:
            found = self.price(node.op, attrs[kept], type_of[id], tuple([type_of[i] for i in node.inputs]))
        else:
            found = round(self.model.price(node.op, node.attrs, node.type, ()) * UNITS), 0
        self.of_node[id] = found
        return found[0]


def problem_of(classes: EClasses, outputs: Iterable[int], prices: Prices) -> tuple[Problem, list[Key], list[int]]:
    """Return the priced problem, the key of each of its e-nodes, and the cycle that each class is in (−1: none).

    In every class the start comes first, then the graph's own e-nodes, then the others by cost. E-nodes that read their
    own class are no choice, but they make a cycle.
    """
    of_class: list[Sequence[int]] = []
    keys: list[Key] = []
    costs: list[int] = []
    heavy: list[int] = []
    loops = []
    for c, found in enumerate(classes.enodes):
        key = found[0]
        if len(found) == 1 and c not in key[1]:  # nothing to choose from
            of_class.append((len(keys),))
            known = prices.of_node.get(classes.nodes[c][0]) if classes.nodes[c] and key[0] != LEAF else None
            cost, flops = _price(classes, c, key, prices) if known is None else ((known[0] << TIE) + 1, known[1])
            keys.append(key)
            costs.append(cost)
            heavy.append(flops)
            continue
        own = {classes.key_of[id]: id for id in reversed(classes.nodes[c])} or {found[0]: 0}
        priced = [(own.get(key, -1), *_price(classes, c, key, prices), key) for key in found if c not in key[1]]
        if len(priced) > 1:
            priced.sort(key=lambda p: (p[0] < 0, p[0], p[1], p[3]))
        of_class.append(list(range(len(keys), len(keys) + len(priced))))
        for _, cost, flops, key in priced:
            keys.append(key)
            costs.append(cost)
            heavy.append(flops)
        if len(priced) < len(found):
            loops.append(c)
    children = [args if len(args) < 2 else tuple(dict.fromkeys(args)) for _, args, _ in keys]
    roots = tuple(dict.fromkeys(classes.class_of[id] for id in outputs))
    problem = Problem(of_class, children, costs, heavy, roots)
    component = components(problem.below)
    for c in loops:
        if component[c] < 0:
            component[c] = len(component) + c
    return problem, keys, component


def _price(classes: EClasses, c: int, key: Key, prices: Prices) -> tuple[int, int]:
    """Price an e-node: (cost with the node counted in the low bits, flops of products)."""
    op, operands, attrs = key
    if op == LEAF:
        return 0, 0
    types = classes.types
    cost, flops = prices.price(op, attrs, types[c], tuple([types[k] for k in operands]))
    return (cost << TIE) + 1, flops
