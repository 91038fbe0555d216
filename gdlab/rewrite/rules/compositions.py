"""The condition that one attribute is the composition of two others: permutations, and factors in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.graph import Node
from gdlab.op import ops_that
from gdlab.rewrite.rules.conditions import Condition, Match, Refusal, condition
from gdlab.rewrite.rules.relations import Fact, GraphFacts, Relation, Row, interned

__all__ = ["attr_compose", "composed"]

SMALLEST = float(np.finfo(np.float32).tiny)
MAX_COMPOSED = 120  # permutations
MAX_PRODUCTS = 8  # of the factors below a node


def attr_compose(a: str, b: str, c: str) -> Condition:
    """Attribute `c` is `a` after `b`: c[i] = a[b[i]] of permutations, a · b in float32 of factors. It determines `c`.

    Where float32 does not hold a product of factors (too large, or too small for its precision), there is no such `c`.
    """

    def check(m: Match) -> Refusal | None:
        value = composed(m.attrs[a], m.attrs[b])
        if value is None:
            return "attributes", f"{m.attrs[a]!r} · {m.attrs[b]!r} is beyond float32"
        same = interned(m.attrs.get(c, value)) == interned(value)
        return None if same else ("attributes", f"{a} after {b} is {value}, not {m.attrs[c]}")

    return condition(f"attr_compose({a}, {b}, {c})", (a, b, c), (Fact(COMPOSE, (a, b, c)),), check, c,
                     lambda m: composed(m.attrs[a], m.attrs[b]))  # fmt: skip


def composed(a: Any, b: Any) -> Any:
    """Return permutation a after b, or the product of two factors as float32 holds it; None where it cannot."""
    if isinstance(a, tuple):
        return tuple(a[i] for i in b)
    with np.errstate(over="ignore", under="ignore"):
        product = float(np.float32(a * b))
    # one that became 0 or lost digits would be a factor of its own: (1e-30 · (1e-30 · 1e30)) is not 0
    exact = math.isfinite(product) and (abs(product) >= SMALLEST or a == 0 or b == 0)
    return product if exact else None


# rows -----------------------------------------------------------------------------------------------------------------
def _compositions(facts: GraphFacts) -> list[Row]:
    """Return (a, b, a after b) for the graph's permutations and their compositions, and for factors that meet."""
    nodes, numbers = facts.nodes, facts.numbers
    perms = dict.fromkeys(v for n in nodes for name, v in n.attrs if name == "perm")
    front = list(perms)
    while front and len(perms) < MAX_COMPOSED:
        products = [composed(a, b) for a in front for b in list(perms) if len(a) == len(b)]
        front = [p for p in dict.fromkeys(products) if p not in perms]
        perms |= dict.fromkeys(front)
    pairs = ((a, b, composed(a, b)) for a in perms for b in perms if len(a) == len(b))
    rows = [(a, b, c) for a, b, c in pairs if c in perms] + _products(nodes)
    return list(dict.fromkeys((numbers(a), numbers(b), numbers(c)) for a, b, c in rows))


def _products(nodes: Sequence[Node]) -> list[tuple[float, float, float]]:
    """Return (a, b, a · b) for each factor and the products of those below it, through any op of one operand and ops
    that pass a factor; of chains that are longer than `MAX_PRODUCTS` the rows of `_jumps`."""
    passed = ops_that(lambda op: op.passes_factor, nodes)
    below: dict[int, list[float]] = {}  # node -> products of the factors right below it, of the longest chain first
    chains: dict[int, _FactorChain] = {}
    once: dict[
        int, tuple[str, _FactorChain]
    ] = {}  # below an op that undoes itself: another of it, and the chain goes on
    rows: list[tuple[float, float, float]] = []
    for node in nodes:
        inner = below.get(node.inputs[0], []) if len(node.inputs) == 1 else []
        if node.op in passed and any(i in below for i in node.inputs):
            left, right = (below.get(i, []) for i in node.inputs)
            both = [(a, b, composed(a, b)) for a in left for b in right]
            rows += [row for a, b, c in both if c is not None for row in ((a, b, c), (b, a, c))]
            inner = [*(c for _, _, c in both if c is not None), *left, *right][:MAX_PRODUCTS]
        if node.op == "scale":
            factor = node.attr("factor")
            chain = chains[node.id] = _jumps(factor, chains.get(node.inputs[0]))
            made = [(factor, b, composed(factor, b)) for b in inner]
            rows += chain.rows
            rows += [(a, b, c) for a, b, c in made if c is not None] if chain.depth <= MAX_PRODUCTS else []
            inner = [*(c for _, _, c in made if c is not None), factor][:MAX_PRODUCTS]
        elif node.op in ("reshape", "permute") and node.inputs[0] in chains:
            chains[node.id] = chains[node.inputs[0]]
        elif node.op in ("neg", "transpose") and node.inputs[0] in chains:
            once[node.id] = node.op, chains[node.inputs[0]]
        elif node.inputs and once.get(node.inputs[0], ("",))[0] == node.op:
            chains[node.id] = once[node.inputs[0]][1]
        if inner:
            below[node.id] = inner
    return rows


@dataclass(frozen=True, slots=True)
class _FactorChain:
    """A chain of factors, seen from the last: the products of the last 1, 2, 4, … of them, the chains left before
    those, the product of all, and the rows that lead there."""

    depth: int
    products: tuple[float, ...]
    left: tuple[_FactorChain | None, ...]
    whole: float
    rows: tuple[tuple[float, float, float], ...] = ()


def _jumps(factor: float, before: _FactorChain | None) -> _FactorChain:
    """Extend a chain by a factor: doubling finds the product of n factors in about log n rounds and rows for each. One
    that float32 does not hold begins anew."""
    products, left, rows = [factor], [before], list[tuple[float, float, float]]()
    while (last := left[-1]) is not None and len(last.products) >= len(products):
        further = last.products[len(products) - 1]
        found = composed(products[-1], further)
        if found is None:
            return _FactorChain(1, (factor,), (None,), factor)
        rows.append((products[-1], further, found))
        left.append(last.left[len(products) - 1])
        products.append(found)
    whole, rest = products[-1], left[-1]
    if rest is not None:
        found = composed(whole, rest.whole)
        if found is None:
            return _FactorChain(1, (factor,), (None,), factor)
        rows.append((whole, rest.whole, found))
        whole = found
    return _FactorChain(1 + (before.depth if before else 0), tuple(products), tuple(left), whole, tuple(rows))


COMPOSE = Relation("f_compose", "attribute", 3, _compositions)
