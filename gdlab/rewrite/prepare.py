"""What happens to a graph before the e-graph sees it: dead nodes left out, equal nodes merged, fills computed with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.graph import Graph, Node, attrs_key, reachable
from gdlab.op import REGISTRY, Alias, Array, Elementwise, Leaf, Movement, Op
from gdlab.types import TensorType, f32

__all__ = ["OPAQUE", "Prepared", "fold_constant", "hash_cons"]

OPAQUE = frozenset({"stop_gradient"})  # nothing is computed through these
MAX_ELEMENTS = 16_384  # 64 KiB: larger results are folded only where one element tells all


@dataclass(frozen=True)
class Prepared:
    """A graph without duplicates: `kept` ids in order, their `inputs` among the kept, and `same[id]`, the kept node
    that is equal to id (−1: dead). `merged` holds the (duplicate, kept) pairs."""

    graph: Graph
    kept: tuple[int, ...]
    inputs: Mapping[int, tuple[int, ...]]
    same: tuple[int, ...]
    merged: tuple[tuple[int, int], ...]


def hash_cons(graph: Graph) -> Prepared:
    """Merge nodes that compute the same from the same: equal op, attributes bit by bit, inputs and type."""
    live = reachable(graph, graph.output_ids)
    same = [-1] * len(graph)
    first: dict[tuple[Any, ...], int] = {}
    inputs: dict[int, tuple[int, ...]] = {}
    merged = []
    for node in graph:
        if not live[node.id]:
            continue
        operands = tuple(same[i] for i in node.inputs)
        kept = first.setdefault((node.op, attrs_key(node.attrs), operands, str(node.type)), node.id)
        same[node.id] = kept
        if kept == node.id:
            inputs[kept] = operands
        else:
            merged.append((node.id, kept))
    return Prepared(graph, tuple(inputs), inputs, tuple(same), tuple(merged))


# folding --------------------------------------------------------------------------------------------------------------
def fold_constant(prepared: Prepared) -> dict[int, float]:
    """Kept nodes whose operands are all filled with one number, and the number that fills the result.

    Only where float32 holds the result exactly, so that folding is no rounding of its own.
    """
    fills: dict[int, float] = {}
    folded: dict[int, float] = {}
    for id in prepared.kept:
        node = prepared.graph._nodes[id]
        if node.op == "full":
            fills[id] = node.attr("value")
            continue
        operands = prepared.inputs[id]
        if not operands or node.op in OPAQUE or any(i not in fills for i in operands):
            continue
        value = _result(REGISTRY[node.op], node, [(prepared.graph.node(i).type, fills[i]) for i in operands])
        if value is not None:
            fills[id] = folded[id] = value
    return folded


def _result(op: Op, node: Node, operands: list[tuple[TensorType, float]]) -> float | None:
    if isinstance(op.kernel, Leaf) or node.type.dtype is not f32:
        return None
    if isinstance(op.kernel, Elementwise):
        return _exact(op.reference([np.full((1,), v) for _, v in operands], dict(node.attrs)))
    if node.type.num_elements + sum(t.num_elements for t, _ in operands) <= MAX_ELEMENTS:
        return _exact(op.reference([np.full(t.shape, v) for t, v in operands], dict(node.attrs)))
    return operands[0][1] if _only_moves(op, operands[0][0], node) else None


def _only_moves(op: Op, operand: TensorType, node: Node) -> bool:
    """Whether every element of the result is one of the operand's."""
    if isinstance(op.kernel, Alias):
        return True
    if not isinstance(op.kernel, Movement):
        return False
    axes = op.kernel.map(operand, node.type, dict(node.attrs))[1]
    return all(
        a.step == 1 and a.lo <= 0 and (a.extent is None or n - 1 - a.lo < a.extent)
        for a, n in zip(axes, node.type.shape, strict=True)
    )


def _exact(result: Array) -> float | None:
    """The one value of all elements, where float32 holds it."""
    flat = np.asarray(result, np.float64).ravel()
    value = float(flat[0])
    with np.errstate(over="ignore"):
        held = float(np.float32(value))
    if not math.isfinite(value) or held != value or not _all_are(flat, value):
        return None
    return value


def _all_are(elements: Array, value: float) -> bool:
    return bool(np.all(elements == value) and np.all(np.signbit(elements) == np.signbit(value)))
