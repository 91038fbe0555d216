"""Encode a prepared graph as rows of numbers for the engine, with the results of the rules that have no pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gdlab.base.errors import OptimizeError
from gdlab.graph import ConstantData
from gdlab.op import REGISTRY, Leaf
from gdlab.ops.packed import COLUMNS, PACKED
from gdlab.rewrite.engine.egglog_program import GraphRows, RuleProgram
from gdlab.rewrite.rules.constant_conditions import may_be_known
from gdlab.rewrite.rules.packing import Siblings
from gdlab.rewrite.rules.prepare import Folded, Prepared, uses_of
from gdlab.rewrite.rules.relations import GraphFacts, Interner

__all__ = ["Encoded", "Key", "encode", "fold_key", "ops_of"]

ORDER = ("node", "type", "attribute")

Key = tuple[str, tuple[int, ...], tuple[int, ...]]  # an e-node: op, operand classes, attribute numbers


@dataclass
class Encoded:
    """An encoded graph: its rows, and the maps that turn attribute numbers back into values."""

    rows: GraphRows
    numbers: Interner
    attrs: dict[int, tuple[int, ...]]  # node -> attribute numbers


def encode(
    prepared: Prepared, program: RuleProgram, folded: Mapping[int, Folded], siblings: Iterable[Siblings]
) -> Encoded:
    """Encode a graph: one row per kept node, one more per folded one, those of packed products, and the facts that the
    rules require."""
    numbers, attrs = program.literals.copy(), {}
    rows = GraphRows(count=len(prepared.kept))
    for id in prepared.kept:
        node = prepared.graph._nodes[id]
        if node.op not in program.signatures:
            if node.inputs:
                raise OptimizeError("optimize", f"%{id}", f"op {node.op}", "an op of the registry")
            rows.leaves.append(id)
            continue
        attrs[id] = tuple([numbers(v) for _, v in node.attrs])
        rows.ops.setdefault(node.op, []).append((id, *prepared.inputs[id], *attrs[id]))
    for id, value in folded.items():
        op, _, attr_numbers = fold_key(prepared, id, value, numbers)
        rows.ops.setdefault(op, []).append((id, *attr_numbers))
    rows.facts = facts_of(prepared, program, numbers, folded)
    for s in siblings:
        _add_packed(rows, s, numbers)
    return Encoded(rows, numbers, attrs)


def facts_of(
    prepared: Prepared, program: RuleProgram, numbers: Interner, folded: Mapping[int, Folded]
) -> dict[str, list[tuple[int, ...]]]:
    """Return the rows of each relation that the rules require."""
    graph = prepared.graph
    nodes = [graph._nodes[id] for id in prepared.kept]
    types = list(dict.fromkeys([prepared.type_of[id] for id in prepared.kept]))
    place = {number: k for k, number in enumerate(types)}
    facts = GraphFacts(
        graph=graph,
        nodes=nodes,
        known=[n for n in nodes if may_be_known(n) or n.id in folded],
        types=[prepared.types[number] for number in types],
        type_of=[(id, place[prepared.type_of[id]]) for id in prepared.kept],
        uses=uses_of(prepared),
        outputs=frozenset(prepared.same[id] for id in graph.output_ids),
        folded=folded,
        numbers=numbers,
        opened=program.opened,
    )
    # in this order new attribute values get their numbers
    relations = sorted(program.relations, key=lambda r: (ORDER.index(r.subject), r.name))
    return {relation.name: relation.rows(facts) for relation in relations}


def fold_key(prepared: Prepared, id: int, value: Folded, numbers: Interner) -> Key:
    """Return the e-node that a folded node is equal to: a fill, or a constant."""
    if isinstance(value, ConstantData):
        return "constant", (), (numbers(value),)
    return "full", (), (numbers(prepared.graph._nodes[id].type.shape), numbers(value))


def _add_packed(rows: GraphRows, s: Siblings, numbers: Interner) -> None:
    """Add the rows of packed products: the pack, the wider product, and the column range of each of the products."""
    pack, product = s.ids
    rows.ops.setdefault(PACKED, []).append((pack, *s.weights, numbers(s.axis)))
    rows.ops.setdefault(s.op, []).append((product, s.left, pack))
    ranges = [(id, product, numbers(start), numbers(stop)) for id, start, stop in s.ranges]
    rows.ops.setdefault(COLUMNS, []).extend(ranges)


def ops_of(
    prepared: Prepared, folded: Mapping[int, Folded], siblings: Iterable[Siblings]
) -> set[tuple[str, int]]:
    """Return the ops that the rows of a graph hold, leaves left out, each with the number of its operands."""
    nodes = prepared.graph._nodes
    ops = {(nodes[id].op, len(operands)) for id, operands in prepared.inputs.items()}
    ops = {(op, n) for op, n in ops if op in REGISTRY and not isinstance(REGISTRY[op].kernel, Leaf)}
    ops |= {("full" if isinstance(value, float) else "constant", 0) for value in folded.values()}
    return ops | {pair for s in siblings for pair in ((PACKED, len(s.weights)), (s.op, 2), (COLUMNS, 1))}
