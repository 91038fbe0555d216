"""Find products of one operand whose weights can lie side by side, so that one product makes them all (F14).

How many there are differs, so no pattern says it: `siblings_of` looks at the graph, the engine is told of the wider
product beside it, and the rest (extraction, steps, near misses) is as for any rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gdlab.graph import Graph
from gdlab.ops.packed import COLUMNS, PACKED
from gdlab.rewrite.engine.facts import uses_of
from gdlab.rewrite.engine.prepare import Prepared, hash_cons
from gdlab.rewrite.engine.program import Interner, Rows
from gdlab.rewrite.engine.rows import EClasses, Encoded, Firing, Key
from gdlab.rewrite.explain.report import Missed
from gdlab.rewrite.rules.conditions import Condition, Match
from gdlab.rewrite.rules.pattern import Refusal, Rule

__all__ = [
    "PACKED_PRODUCT", "WHEN_ENABLED", "Siblings", "add_rows", "distinct", "firings_of", "held_by", "near_siblings",
    "siblings_of",
]  # fmt: skip

MOST = 6  # products that one dispatch makes: its operands and results are all the buffers that WebGPU promises
WHEN_ENABLED = "it takes part only when enabled"
PACKED_PRODUCT = {"pack_products": ("matmul", 1), "pack_products_bt": ("matmul_bt", 0)}  # rule: op, axis of the pack


@dataclass(frozen=True, slots=True)
class Siblings:
    """Products `op` of `left` with different weights, in the order of the graph; `stops`: where their columns end in
    the wider product. `ids` are two that the graph does not have: of the pack, and of the wider product."""

    rule: str
    op: str
    axis: int
    left: int
    weights: tuple[int, ...]
    products: tuple[int, ...]
    stops: tuple[int, ...]
    ids: tuple[int, int]

    @property
    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(product, start, stop) of each."""
        return zip(self.products, (0, *self.stops), self.stops, strict=False)


def siblings_of(prepared: Prepared, rules: Iterable[Rule]) -> tuple[Siblings, ...]:
    """Two or more products of one operand are column ranges of one product, with their weights side by side.

    All of a graph that those of `rules` find that say so, at most `MOST` products at once.
    """
    nodes, found = prepared.graph._nodes, list[Siblings]()
    for rule in rules:
        if rule.name not in PACKED_PRODUCT:
            continue
        op, axis = PACKED_PRODUCT[rule.name]
        look = _Look(prepared)
        for left, products in _families(prepared, op).items():
            fit = [id for id in products if look.refusal(rule, id) is None]
            for part in _parts(fit) if len(fit) > 1 else ():
                weights = tuple([prepared.inputs[id][1] for id in part])
                stops = tuple(accumulate(nodes[w].type.shape[axis] for w in weights))
                first = len(nodes) + 2 * len(found)
                found.append(Siblings(rule.name, op, axis, left, weights, tuple(part), stops, (first, first + 1)))
    return tuple(found)


def _families(prepared: Prepared, op: str) -> dict[int, list[int]]:
    """The products of each left operand, where there are several and one of them reads a parameter."""
    nodes, families = prepared.graph._nodes, dict[int, list[int]]()
    for id in prepared.kept:
        if nodes[id].op == op:
            families.setdefault(prepared.inputs[id][0], []).append(id)
    return {
        left: ids
        for left, ids in families.items()
        if len(ids) > 1 and any(nodes[prepared.inputs[id][1]].op == "parameter" for id in ids)
    }


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Pieces of nearly equal length, none longer than `MOST`."""
    count = -(-len(ids) // MOST)
    bounds = [len(ids) * k // count for k in range(count + 1)]
    return (ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False))


class _Look:
    """A graph as conditions look at it."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.uses = [0] * len(prepared.graph)
        for id, count in uses_of(prepared).items():
            self.uses[id] = count
        self.outputs = frozenset(prepared.same[id] for id in prepared.graph.output_ids)

    def refusal(self, rule: Rule, product: int) -> tuple[Condition, Refusal] | None:
        """The first condition that the weight of a product does not meet, and why."""
        match = Match(self.prepared.graph, {"w": self.prepared.inputs[product][1]}, {}, (product,), self.uses,
                      self.outputs)  # fmt: skip
        return next(((c, r) for c in rule.where if (r := c.check(match)) is not None), None)


# what the engine is told ----------------------------------------------------------------------------------------------
def held_by(siblings: Iterable[Siblings]) -> set[tuple[str, int]]:
    """The ops that packing leads to, with the number of their operands."""
    return {held for s in siblings for held in ((PACKED, len(s.weights)), (s.op, 2), (COLUMNS, 1))}


def add_rows(rows: Rows, siblings: Iterable[Siblings], numbers: Interner) -> None:
    """The pack, the wider product, and what each of the products is in it."""
    for s in siblings:
        pack, product = s.ids
        rows.ops.setdefault(PACKED, []).append((pack, *s.weights, numbers(s.axis)))
        rows.ops.setdefault(s.op, []).append((product, s.left, pack))
        ranges = [(id, product, numbers(start), numbers(stop)) for id, start, stop in s.ranges]
        rows.ops.setdefault(COLUMNS, []).extend(ranges)


def firings_of(
    siblings: Iterable[Siblings], classes: EClasses, encoded: Encoded, number: Mapping[str, int]
) -> list[Firing]:
    """One for each product; `number` is that of the rule. All products are what it stands on, its own comes last."""
    numbers, class_of, home, found = encoded.numbers, classes.class_of, classes.home, list[Firing]()
    for s in siblings:
        weights, left = tuple([class_of[w] for w in s.weights]), class_of[s.left]
        pack: Key = PACKED, weights, (numbers(s.axis),)
        if pack not in home or (product := (s.op, (left, home[pack]), ())) not in home:
            continue
        keys = [classes.key_of[id] for id in s.products]
        for (id, start, stop), own in zip(s.ranges, keys, strict=True):
            key: Key = COLUMNS, (home[product],), (numbers(start), numbers(stop))
            stands_on, leads_to = (*(k for k in keys if k != own), own), (pack, product, key)
            found.append(Firing(number[s.rule], class_of[id], (left, *weights), (), stands_on, leads_to))
    return found


def distinct(firings: Iterable[Firing]) -> list[Firing]:
    """The firings, of each pack that of its first product alone: together they are one rewrite."""
    seen, found = set[tuple[int, tuple[int, ...]]](), list[Firing]()
    for f in firings:
        if f.rule >= 0 or not f.env or (f.rule, f.env) not in seen:
            found.append(f)
        if f.rule < 0:
            seen.add((f.rule, f.env))
    return found


# why not --------------------------------------------------------------------------------------------------------------
def near_siblings(graph: Graph, rule: Rule, off: Refusal | None, budget: Refusal | None) -> list[Missed]:
    """Products of one operand that stayed apart: each whose weight is refused, or the last of those that would do.
    Nothing where somebody switched the rule off, or bolder ones, or it is for another phase: it is off anyway."""
    if off is not None and off[1] != WHEN_ENABLED:
        return []
    op = PACKED_PRODUCT[rule.name][0]
    left = [n.inputs[0] for n in graph if n.op == op]
    if len(set(left)) == len(left):  # the usual case, told at once
        return []
    prepared, found = hash_cons(graph), list[Missed]()
    look = _Look(prepared)
    for products in _families(prepared, op).values():
        refused = {id: against for id in products if (against := look.refusal(rule, id)) is not None}
        fit = [id for id in products if id not in refused]
        if len(fit) > 1:
            found.append(_missed(rule, fit[-1], off or budget or ("cost", "the graph costs no less with it")))
        for id, (condition, refusal) in refused.items() if off is None else ():
            if graph._nodes[prepared.inputs[id][1]].op == PACKED:
                continue  # it is what others became
            found.append(_missed(rule, id, refusal, prepared.inputs[id][1], condition))
    return found


def _missed(
    rule: Rule, root: int, refusal: Refusal, about: int | None = None, guard: Condition | None = None
) -> Missed:
    reason, detail = refusal
    text = f"{rule.label} was not used at %{root}: {detail}."
    return Missed(rule.label, root, reason, detail, text, about, None if guard is None else guard.source)
