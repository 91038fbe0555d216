"""What a node costs: floating point operations, bytes moved, and seconds on a nominal machine (a roofline).

The roofline is equal on every machine: 3 µs per launch + max(bytes / 1e12 per s, flops / 2e13 per s). It ranks
rewrites; it does not predict kernel times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gdlab.errors import OptimizeError, unknown_name
from gdlab.graph import Attrs, Graph, Node
from gdlab.op import REGISTRY, Alias, Contraction, Fill, Leaf, Op, Reduction, Shader
from gdlab.types import TensorType

__all__ = ["COST_MODELS", "CostModel", "bytes_moved", "contraction_flops", "cost_model", "flops", "seconds"]

LAUNCH_SECONDS = 3e-6
BYTES_PER_SECOND = 1e12
FLOPS_PER_SECOND = 2e13

Types = tuple[TensorType, ...]
Cost = Callable[[str, Attrs, TensorType, Types], float]  # (op, attributes, type, operand types) -> µs ≥ 0


def flops(node: Node, graph: Graph) -> int:
    """Floating point operations of one node: 2·m·k·n for a product, one per element of an elementwise result."""
    return _work(node.op, node.attrs, node.type, _operands(node, graph))[0]


def bytes_moved(node: Node, graph: Graph) -> int:
    """Bytes of operands and result; 0 for leaves, fills and aliases, which move nothing."""
    return _bytes(node.op, node.type, _operands(node, graph))


def seconds(node: Node, graph: Graph) -> float:
    """Roofline time of one node."""
    return roofline(node.op, node.attrs, node.type, _operands(node, graph)) / 1e6


def contraction_flops(op: str, attrs: Attrs, type: TensorType, operands: Types) -> int:
    """The part of the flops that products make: what the optimizer never lets grow."""
    return _work(op, attrs, type, operands)[1]


def roofline(op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
    """µs on the nominal machine. An op without a kernel costs what its body costs; a product with an epilogue is one
    launch."""
    record = REGISTRY.get(op)
    if record is None or isinstance(record.kernel, (Leaf, Alias, Fill)):
        return 0.0
    if record.kernel is None and record.family != "contraction":
        body = record.trace(operands, attrs)
        return sum(
            roofline(n.op, n.attrs, n.type, tuple(body.node(i).type for i in n.inputs)) for n in body if n.op != "var"
        )
    work = _work(op, attrs, type, operands)[0]
    return (LAUNCH_SECONDS + max(_bytes(op, type, operands) / BYTES_PER_SECOND, work / FLOPS_PER_SECOND)) * 1e6


def ast_size(op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
    """10 per node, 9 for a fused one, 0 for leaves, fills and aliases."""
    record = REGISTRY.get(op)
    if record is None or isinstance(record.kernel, (Leaf, Alias, Fill)):
        return 0.0
    return 9.0 if record.body is not None else 10.0


@dataclass(frozen=True)
class CostModel:
    """A named cost: `price(op, attrs, type, operand types)` in µs."""

    name: str
    price: Cost


COST_MODELS: dict[str, Cost] = {"roofline": roofline, "ast_size": ast_size}


def cost_model(cost: str | Cost) -> CostModel:
    """The model that a name or a function stands for; a function must answer a finite number ≥ 0."""
    if callable(cost):
        return CostModel(getattr(cost, "__name__", "cost"), _checked(cost))
    if cost not in COST_MODELS:
        raise unknown_name("optimize", "cost", str(cost), COST_MODELS)
    return CostModel(cost, COST_MODELS[cost])


def _checked(cost: Cost) -> Cost:
    def price(op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
        value = cost(op, attrs, type, operands)
        if not isinstance(value, (int, float, np.number)) or not 0 <= value < float("inf"):
            spelled = " and ".join(map(str, operands)) or "no operands"
            raise OptimizeError("optimize", f"cost of {op} of {spelled}", value, "a finite number ≥ 0")
        return value

    return price


# work -----------------------------------------------------------------------------------------------------------------
def _operands(node: Node, graph: Graph) -> Types:
    return tuple(graph.node(i).type for i in node.inputs)


def _bytes(op: str, type: TensorType, operands: Sequence[TensorType]) -> int:
    record = REGISTRY.get(op)
    if record is None or isinstance(record.kernel, (Leaf, Alias, Fill)):
        return 0
    return type.size_bytes + sum(t.size_bytes for t in operands)


def _work(op: str, attrs: Attrs, type: TensorType, operands: Types) -> tuple[int, int]:
    """(all flops, flops of products) of one op."""
    record = REGISTRY.get(op)
    if record is None or isinstance(record.kernel, (Leaf, Alias, Fill)):
        return 0, 0
    if record.body is not None:
        return _work_of_body(record, operands, attrs)
    match record.kernel:
        case Contraction(a=layout):
            k = operands[0].shape[1 if layout == "mk" else 0]
            return 2 * k * type.num_elements, 2 * k * type.num_elements
        case Reduction():
            return sum(t.num_elements for t in operands), 0
        case Shader(work=rule):
            work = rule(operands, type, dict(attrs))
            assert work is not None  # the first form fits everything
            return work.flops, work.flops if record.family == "contraction" else 0
        case _:
            return (type.num_elements, 0) if record.family == "elementwise" else (0, 0)


@lru_cache(maxsize=4096)
def _work_of_body(record: Op, operands: Types, attrs: Attrs) -> tuple[int, int]:
    body = record.trace(operands, attrs)
    work = [_work(n.op, n.attrs, n.type, tuple(body.node(i).type for i in n.inputs)) for n in body if n.op != "var"]
    return sum(w for w, _ in work), sum(w for _, w in work)
