"""What the engine is told of a graph beside its nodes: shapes, uses, compositions of attributes, as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gdlab.graph import Graph, Node
from gdlab.rewrite.conditions import composed, is_causal_mask, one_over, over_root, rows_of
from gdlab.rewrite.prepare import Folded, Prepared
from gdlab.rewrite.program import Interner, Program
from gdlab.types import TensorType

__all__ = ["facts_of"]

MAX_COMPOSED = 120  # permutations
MAX_PRODUCTS = 8  # of the factors below a node

NodeRow = tuple[int, ...]


def facts_of(
    prepared: Prepared, program: Program, numbers: Interner, folded: Mapping[int, Folded]
) -> dict[str, list[NodeRow]]:
    """Per relation that the rules ask for its rows: of nodes, of their types, and of attribute values."""
    graph, relations = prepared.graph, program.relations
    outputs = {prepared.same[id] for id in graph.output_ids}
    reads = _uses(prepared)
    nodes = [graph._nodes[id] for id in prepared.kept]
    shapes = {n.type.shape for n in nodes}
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
    }
    tables: dict[str, Callable[[Node], list[NodeRow]]] = {
        "f_fill": lambda n: [(numbers(n.attr("value")),)] if n.op == "full" else [],
        "f_param": lambda n: [()] if n.op == "parameter" else [],
        "f_single": lambda n: [()] if reads[n.id] == 1 else [],
        "f_inner": lambda n: [] if n.id in outputs else [()],
        "f_causal": lambda n: [()] if is_causal_mask(n) else [],
        "f_written": lambda n: [()] if n.op in opened else [],
    }
    facts: dict[str, list[NodeRow]] = {}
    for name in sorted(tables.keys() & relations):
        facts[name] = [(n.id, *columns) for n in nodes for columns in tables[name](n)]
    if "f_type" in relations:
        facts["f_type"], types = _types(nodes)
        for name in sorted(of_type.keys() & relations):
            facts[name] = [(k, *columns) for k, t in enumerate(types) for columns in of_type[name](t)]
    if "f_fill" in facts:
        facts["f_fill"] += [(id, numbers(value)) for id, value in folded.items() if isinstance(value, float)]
    return facts | _attribute_tables(nodes, relations, numbers)


def _types(nodes: Sequence[Node]) -> tuple[list[NodeRow], list[TensorType]]:
    """(node, number of its type), and the types in order."""
    numbers: dict[tuple[int, ...], int] = {}
    types: list[TensorType] = []
    rows: list[NodeRow] = []
    for node in nodes:
        key = (id(node.type.dtype), *node.type.shape)  # dtypes are few and live as long as the process
        number = numbers.setdefault(key, len(types))
        if number == len(types):
            types.append(node.type)
        rows.append((node.id, number))
    return rows, types


def _attribute_tables(nodes: Sequence[Node], relations: frozenset[str], numbers: Interner) -> dict[str, list[NodeRow]]:
    """What rules need to know of attribute values: compositions, mean factors, which are finite and which above 0."""
    tables: dict[str, list[NodeRow]] = {}
    if "f_compose" in relations:
        tables["f_compose"] = _compositions(nodes, numbers)
    if "f_mean" in relations:
        sizes = sorted({n.type.num_elements for n in nodes})
        ratios = [(a, b, a // b) for a in sizes for b in sizes if a % b == 0]
        held = {numbers.values[i]: i for i in range(len(numbers.values)) if isinstance(numbers.values[i], float)}
        tables["f_mean"] = [(a, b, held[one_over(n)]) for a, b, n in ratios if one_over(n) in held]
    floats = [(i, v) for i, v in enumerate(numbers.values) if isinstance(v, float) and math.isfinite(v)]
    if "f_finite" in relations:
        tables["f_finite"] = [(i,) for i, _ in floats]
    if "f_positive" in relations:
        tables["f_positive"] = [(i,) for i, v in floats if v > 0]
    return tables


def _uses(prepared: Prepared) -> dict[int, int]:
    """Readers and outputs of every kept node, after equal nodes were merged."""
    found = dict.fromkeys(prepared.kept, 0)
    for operands in prepared.inputs.values():
        for i in operands:
            found[i] += 1
    for id in (*prepared.graph.output_ids, *own_gradients(prepared.graph)):
        if prepared.same[id] >= 0:
            found[prepared.same[id]] += 1
    return found


def own_gradients(graph: Graph) -> tuple[int, ...]:
    """The nodes of parameters with a gradient of their own among the outputs: they cannot become part of another."""
    return tuple(id for id, _ in graph.trained_parameters) if graph.num_param_grad_outputs else ()


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
    """(a, b, a · b) for a factor and the products of those below it, through whatever reads one operand."""
    below: dict[int, list[float]] = {}  # node -> products of the factors right below it, of the longest chain first
    rows = []
    for node in nodes:
        inner = below.get(node.inputs[0], []) if len(node.inputs) == 1 else []
        if node.op == "scale":
            factor = node.attr("factor")
            made = [(factor, b, composed(factor, b)) for b in inner]
            rows += [(a, b, c) for a, b, c in made if c is not None]
            inner = [*(c for _, _, c in made if c is not None), factor][:MAX_PRODUCTS]
        if inner:
            below[node.id] = inner
    return rows
