"""Rules carried out before the search: merge equal nodes (CSE) and compute constants (folding)."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType, f32
from gdlab.graph import ConstantData, Graph, Node, attrs_key, reachable
from gdlab.op import REGISTRY, Alias, Elementwise, Leaf, Movement, Op
from gdlab.op.storage import trained_parameters
from gdlab.rewrite.rules.pattern import F32_CONSTANTS, Rule, is_opaque
from gdlab.rewrite.rules.rule_table import RULES

__all__ = [
    "CSE", "FOLD", "Folded", "Prepared", "TypeNumbers", "fold_constant", "hash_cons", "own_gradients", "uses_of",
]  # fmt: skip

CSE, FOLD = "cse", "fold_constant"

MAX_ELEMENTS = 16_384  # 64 KiB: larger results are folded only where one element tells all


@dataclass(frozen=True)
class Prepared:
    """A graph without duplicates: `kept` ids in order, their `inputs` among the kept, and `same[id]`, the kept node
    that is equal to id (−1: dead). `merged` holds the (duplicate, kept) pairs.

    `types` are the types of live nodes, each once, and `type_of[id]` is the place of a node's type among them.
    """

    graph: Graph
    kept: tuple[int, ...]
    inputs: Mapping[int, tuple[int, ...]]
    same: tuple[int, ...]
    merged: tuple[tuple[int, int], ...]
    types: tuple[TensorType, ...]
    type_of: Mapping[int, int]


def hash_cons(graph: Graph) -> Prepared:
    """[f(x), f(y)] → [t, t] with x = y, t = f(x)

    Merge nodes that compute the same from the same: equal op, attributes bit by bit, inputs and type.
    """
    live = reachable(graph, graph.output_ids)
    same = [-1] * len(graph)
    first: dict[tuple[Any, ...], int] = {}
    inputs: dict[int, tuple[int, ...]] = {}
    merged = []
    types, type_of = TypeNumbers(), dict[int, int]()
    known: dict[int, int] = {}  # by identity: types live as long as their nodes
    for at, node in enumerate(graph._nodes):
        if not live[at]:
            continue
        operands = tuple([same[i] for i in node.inputs])
        number = known.get(id(node.type))
        if number is None:
            number = known[id(node.type)] = types[node.type]
        type_of[at] = number
        kept = first.setdefault((node.op, operands, number, attrs_key(node.attrs) if node.attrs else ()), at)
        same[at] = kept
        if kept == at:
            inputs[kept] = operands
        else:
            merged.append((at, kept))
    return Prepared(graph, tuple(inputs), inputs, tuple(same), tuple(merged), tuple(types.types), type_of)


class TypeNumbers:
    """Numbers of types: equal types have one number. `numbers[type]`; `types[number]` is a type again."""

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self._by_value: dict[Any, int] = {}
        self._known: dict[int, tuple[int, TensorType]] = {}  # by identity; held, so that nothing else gets it

    def __getitem__(self, type: TensorType) -> int:
        known = self._known.get(id(type))
        if known is None:
            # f32 is what most are; the hash of an Enum is a call of Python
            key = type.shape if type.dtype is f32 else (str(type.dtype), type.shape)
            number = self._by_value.setdefault(key, len(self.types))
            if number == len(self.types):
                self.types.append(type)
            self._known[id(type)] = known = number, type
        return known[0]


def uses_of(prepared: Prepared) -> dict[int, int]:
    """Count readers and outputs of every kept node, after equal nodes were merged."""
    found = dict.fromkeys(prepared.kept, 0)
    for operands in prepared.inputs.values():
        for i in operands:
            found[i] += 1
    for id in (*prepared.graph.output_ids, *own_gradients(prepared.graph)):
        if prepared.same[id] >= 0:
            found[prepared.same[id]] += 1
    return found


def own_gradients(graph: Graph) -> tuple[int, ...]:
    """Return the nodes of parameters whose gradient is an output: they cannot become part of another."""
    return tuple(id for id, _ in trained_parameters(graph)) if graph.num_param_grad_outputs else ()


# folding --------------------------------------------------------------------------------------------------------------
Known = float | Array  # a node's value: one number in every element, or its elements in float64 (or uint32)
Folded = float | ConstantData


def fold_constant(prepared: Prepared, through: Container[str] = ()) -> dict[int, Folded]:
    """f(a, b) → c with c = f(a, b)

    Compute an op whose operands are all constants: the elements of a result of at most 64 KiB, or a fill.

    The answer is for each such kept node the number that fills it, or its elements. They are computed by the reference
    in float64 and rounded to float32; a result that float32 does not hold is not folded. The ops in `through` hand on
    what their operand is, and stay.
    """
    known: dict[int, Known] = {}
    folded: dict[int, Folded] = {}
    nodes = prepared.graph._nodes
    for id, operands in prepared.inputs.items():
        if not operands:
            if nodes[id].op in ("full", "constant"):
                known[id] = _constant_value(nodes[id])
            continue
        if nodes[id].op in through and operands[0] in known:
            known[id] = known[operands[0]]
            continue
        if operands[0] not in known or any(i not in known for i in operands) or not _plain(nodes[id]):
            continue
        value = _result(nodes[id], [(nodes[i].type, known[i]) for i in operands])
        if value is not None:
            known[id] = value
            folded[id] = value if isinstance(value, float) else _data(nodes[id].type, value)
    return folded


def _constant_value(node: Node) -> Known:
    if node.op == "full":
        return float(node.attr("value"))
    data: ConstantData = node.attr("data")
    return data.array.astype(np.float64) if data.dtype is f32 else data.array


def _plain(node: Node) -> bool:
    """Return whether the value of a node follows from its operands alone, in float32."""
    return not is_opaque(node.op) and not isinstance(REGISTRY[node.op].kernel, Leaf) and node.type.dtype is f32


def _data(type: TensorType, value: Array) -> ConstantData:
    return ConstantData(type.dtype, type.shape, value.astype(np.float32).tobytes())


def _result(node: Node, operands: list[tuple[TensorType, Known]]) -> Known | None:
    op, attrs = REGISTRY[node.op], dict(node.attrs)
    fills = all(isinstance(v, float) for _, v in operands)
    small = node.type.num_elements <= MAX_ELEMENTS
    if fills and isinstance(op.kernel, Elementwise):
        value = _rounded(op.reference([np.full((1,), v) for _, v in operands], attrs))
        if isinstance(value, np.ndarray):  # ±inf or NaN: no fill, but elements
            return np.broadcast_to(value, node.type.shape) if small else None
        return value
    if small and sum(t.num_elements for t, v in operands if isinstance(v, float)) <= MAX_ELEMENTS:
        arrays = [np.full(t.shape, v) if isinstance(v, float) else v for t, v in operands]
        return _rounded(op.reference(arrays, attrs))
    return operands[0][1] if fills and _only_moves(op, operands[0][0], node) else None


def _only_moves(op: Op, operand: TensorType, node: Node) -> bool:
    """Return whether every element of the result is one of the operand's."""
    if isinstance(op.kernel, Alias):
        return True
    if not isinstance(op.kernel, Movement):
        return False
    axes = op.kernel.map(operand, node.type, dict(node.attrs))[1]
    return all(
        a.step == 1 and a.lo <= 0 and (a.extent is None or n - 1 - a.lo < a.extent)
        for a, n in zip(axes, node.type.shape, strict=True)
    )


def _rounded(result: Array) -> Known | None:
    """Return the elements rounded to float32, or one value where all are equal; None where float32 overflows."""
    exact = np.asarray(result, np.float64)
    with np.errstate(over="ignore"):
        held = exact.astype(np.float32).astype(np.float64)
    if np.any(np.isinf(held) & np.isfinite(exact)):
        return None
    first = float(held.flat[0])
    return first if math.isfinite(first) and _all_are(held, first) else held


def _all_are(elements: Array, value: float) -> bool:
    return bool(np.all(elements == value) and np.all(np.signbit(elements) == np.signbit(value)))


RULES.add(Rule(CSE, "CSE", "exact", hash_cons))
RULES.add(Rule(FOLD, "Fold Constant", "rounding", fold_constant, tolerance=F32_CONSTANTS))
