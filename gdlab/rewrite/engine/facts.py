"""What the engine is told of a graph beside its nodes: shapes, uses, compositions of attributes, as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gdlab.base.types import TensorType
from gdlab.graph import Graph, Node
from gdlab.rewrite.engine.program import Interner, Program
from gdlab.rewrite.rules.conditions import composed, repeated, rows_of
from gdlab.rewrite.rules.constant_conditions import LAYOUTS, MASKS, held_by, is_low, mask_kinds, turn_of
from gdlab.rewrite.rules.measures import halves_of, one_over, over_root
from gdlab.rewrite.rules.prepare import Folded, Prepared, uses_of

__all__ = ["facts_of"]

HOLDING = ("full", "constant", "broadcast_to")  # what `held_by` looks at and through
MAX_COMPOSED = 120  # permutations
MAX_PRODUCTS = 8  # of the factors below a node
PASSED = ("mul", "matmul", "matmul_bt", "batch_matmul", "batch_matmul_bt")  # the factor of an operand may come out

NodeRow = tuple[int, ...]


def facts_of(
    prepared: Prepared, program: Program, numbers: Interner, folded: Mapping[int, Folded]
) -> dict[str, list[NodeRow]]:
    """Per relation that the rules ask for its rows: of nodes, of their types, and of attribute values."""
    graph, relations = prepared.graph, program.relations
    outputs = {prepared.same[id] for id in graph.output_ids}
    reads = uses_of(prepared)
    nodes = [graph._nodes[id] for id in prepared.kept]
    # of the many nodes few hold something known: only these are looked at closely
    holding = [n for n in nodes if n.op in HOLDING or n.id in folded]
    types = list(dict.fromkeys([prepared.type_of[id] for id in prepared.kept]))
    place = {number: k for k, number in enumerate(types)}
    shapes = {prepared.types[number].shape for number in types}
    opened = {r.pattern.node(r.left).op for r in program.rules for c in r.where if c.text.startswith("written")}
    # of the type alone, worked out once per type
    of_type: dict[str, Callable[[TensorType], list[NodeRow]]] = {
        "f_shape": lambda t: [(numbers(t.shape),)],
        "f_row": lambda t: [(numbers(s),) for s in rows_of(t) if s in shapes],
        "f_rank": lambda t: [(t.rank,)],
        "f_dtype": lambda t: [(numbers(str(t.dtype)),)],
        "f_last": lambda t: [(numbers((t.rank - 1,)),)],
        "f_lead": lambda t: [(numbers(tuple(range(t.rank - 1))),)],
        "f_size": lambda t: [(t.num_elements,)],
        "f_width": lambda t: [(numbers(t.shape[-1]),)],
        "f_kept": lambda t: [(numbers((*t.shape[:-1], 1)),)],
        "f_root": lambda t: [(numbers(over_root(t.shape[-1])),)],
        "f_last_extent": lambda t: [(numbers(t.shape[-1:]),)],
        "f_axes": lambda t: [(numbers(tuple(range(t.rank))),)],
        "f_halves": lambda t: [] if t.shape[-1] % 2 else [tuple(map(numbers, halves_of(t.shape)))],
        "f_over_rows": lambda t: [(numbers(one_over(t.num_elements // t.shape[-1])),)],
        "f_heads": _of_three(numbers, lambda a, b, c: a),
        "f_rows_first": _of_three(numbers, lambda a, b, c: (b, a, c)),
        "f_flat_heads": _of_three(numbers, lambda a, b, c: (b, a * c)),
        "f_apart": _of_three(numbers, lambda a, b, c: (a, 1, b, c)),
        "f_flat_rows": _of_three(numbers, lambda a, b, c: (a, b * c)),
    }
    tables: dict[str, Callable[[], list[NodeRow]]] = {
        "f_fill": lambda: [(n.id, numbers(n.attr("value"))) for n in nodes if n.op == "full"],
        "f_param": lambda: [(n.id,) for n in nodes if n.op == "parameter"],
        "f_single": lambda: [(id,) for id, count in reads.items() if count == 1],
        "f_inner": lambda: [(id,) for id in prepared.kept if id not in outputs],
        "f_written": lambda: [(n.id,) for n in nodes if n.op in opened],
        "f_low": lambda: [(n.id,) for n in holding if is_low(held_by(graph, n.id, folded))],
        "f_cosines": lambda: [row for n in holding for row in _turns(graph, n, folded, numbers, sine=False)],
        "f_sines": lambda: [row for n in holding for row in _turns(graph, n, folded, numbers, sine=True)],
    }
    tables |= {name: partial(_masked, graph, folded, name, holding) for name in MASKS}
    facts = {name: tables[name]() for name in sorted(tables.keys() & relations)}
    if "f_type" in relations:
        facts["f_type"] = [(id, place[prepared.type_of[id]]) for id in prepared.kept]
        for name in sorted(of_type.keys() & relations):
            facts[name] = [(k, *row) for k, number in enumerate(types) for row in of_type[name](prepared.types[number])]
    if "f_fill" in facts:
        facts["f_fill"] += [(id, numbers(value)) for id, value in folded.items() if isinstance(value, float)]
    return facts | _attribute_tables(graph, nodes, relations, numbers)


def _masked(graph: Graph, folded: Mapping[int, Folded], name: str, nodes: Sequence[Node]) -> list[NodeRow]:
    return [(n.id,) for n in nodes if name in mask_kinds(held_by(graph, n.id, folded), n.type.shape)]


def _turns(
    graph: Graph, node: Node, folded: Mapping[int, Folded], numbers: Interner, sine: bool
) -> list[NodeRow]:
    """(node, layout, θ) for each way in which a node is a table of rotary angles."""
    held = held_by(graph, node.id, folded)
    if held is None:
        return []
    found = ((k, turn_of(held, node.type.shape, k, sine, node.id in folded)) for k in LAYOUTS)
    return [(node.id, k.number, numbers(theta)) for k, theta in found if theta is not None]


def _of_three(numbers: Interner, of: Callable[[int, int, int], Any]) -> Callable[[TensorType], list[NodeRow]]:
    """What the shape of a tensor of rank 3 tells; of others nothing."""
    return lambda t: [(numbers(of(*t.shape)),)] if t.rank == 3 else []


def _attribute_tables(
    graph: Graph, nodes: Sequence[Node], relations: frozenset[str], numbers: Interner
) -> dict[str, list[NodeRow]]:
    """What rules need to know of attribute values: compositions, mean factors, which are finite, which above 0, and
    which shapes repeat others."""
    tables: dict[str, list[NodeRow]] = {}
    if "f_compose" in relations:
        tables["f_compose"] = _compositions(nodes, numbers)
    if "f_mean" in relations:
        sizes = sorted({n.type.num_elements for n in nodes})
        ratios = [(a, b, a // b) for a in sizes for b in sizes if a % b == 0]
        held = {numbers.values[i]: i for i in range(len(numbers.values)) if isinstance(numbers.values[i], float)}
        tables["f_mean"] = [(a, b, held[one_over(n)]) for a, b, n in ratios if one_over(n) in held]
    if "f_repeats" in relations:
        spread = {(graph._nodes[n.inputs[0]].type.shape, n.type.shape) for n in nodes if n.op == "broadcast_to"}
        tables["f_repeats"] = sorted((numbers(b), numbers(a)) for a, b in spread if repeated(a, b))
    floats = [(i, v) for i, v in enumerate(numbers.values) if isinstance(v, float) and math.isfinite(v)]
    if "f_finite" in relations:
        tables["f_finite"] = [(i,) for i, _ in floats]
    if "f_positive" in relations:
        tables["f_positive"] = [(i,) for i, v in floats if v > 0]
    return tables


def _compositions(nodes: Sequence[Node], numbers: Interner) -> list[NodeRow]:
    """(a, b, a after b) for the permutations of the graph and all that they compose to, and for factors that meet."""
    found = dict.fromkeys(v for n in nodes for name, v in n.attrs if name == "perm")
    front = list(found)
    while front and len(found) < MAX_COMPOSED:
        made = [composed(a, b) for a in front for b in list(found) if len(a) == len(b)]
        front = [p for p in dict.fromkeys(made) if p not in found]
        found |= dict.fromkeys(front)
    pairs = ((a, b, composed(a, b)) for a in found for b in found if len(a) == len(b))
    rows = [(a, b, c) for a, b, c in pairs if c in found] + _products(nodes)
    return list(dict.fromkeys((numbers(a), numbers(b), numbers(c)) for a, b, c in rows))


def _products(nodes: Sequence[Node]) -> list[tuple[float, float, float]]:
    """(a, b, a · b) for a factor and the products of those below it, through whatever reads one operand and the ops in
    `PASSED`; of chains that are longer than `MAX_PRODUCTS` the rows of `_jumps`."""
    below: dict[int, list[float]] = {}  # node -> products of the factors right below it, of the longest chain first
    chains: dict[int, _Chain] = {}
    once: dict[int, tuple[str, _Chain]] = {}  # below an op that undoes itself: another of it, and the chain goes on
    rows: list[tuple[float, float, float]] = []
    for node in nodes:
        inner = below.get(node.inputs[0], []) if len(node.inputs) == 1 else []
        if node.op in PASSED:
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
class _Chain:
    """Factors one behind the other, seen from the last: the products of the last 1, 2, 4, … of them, the chains that
    are left then, the product of all, and the rows that lead there."""

    depth: int
    products: tuple[float, ...]
    left: tuple[_Chain | None, ...]
    whole: float
    rows: tuple[tuple[float, float, float], ...] = ()


def _jumps(factor: float, before: _Chain | None) -> _Chain:
    """A chain grown by a factor: doubling finds the product of n factors in about log n rounds and rows for each. One
    that float32 does not hold begins anew."""
    products, left, rows = [factor], [before], list[tuple[float, float, float]]()
    while (last := left[-1]) is not None and len(last.products) >= len(products):
        further = last.products[len(products) - 1]
        found = composed(products[-1], further)
        if found is None:
            return _Chain(1, (factor,), (None,), factor)
        rows.append((products[-1], further, found))
        left.append(last.left[len(products) - 1])
        products.append(found)
    whole, rest = products[-1], left[-1]
    if rest is not None:
        found = composed(whole, rest.whole)
        if found is None:
            return _Chain(1, (factor,), (None,), factor)
        rows.append((whole, rest.whole, found))
        whole = found
    return _Chain(1 + (before.depth if before else 0), tuple(products), tuple(left), whole, tuple(rows))
