"""Price a node: floating point operations, bytes moved, and seconds on a nominal or measured machine (a roofline).

The nominal roofline is equal everywhere: 3 µs per launch + max(bytes / 1e12 per s, flops / 2e13 per s). It ranks
rewrites; it does not predict kernel times. `roofline(device)` takes the figures that were measured on a device, and
`"device"` those of the machine at hand, rounded to powers of √2, so that measuring again rarely changes a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np

from gdlab.base.errors import OptimizeError, unknown_name
from gdlab.base.types import TensorType
from gdlab.graph import Attrs, Graph, Node
from gdlab.op import REGISTRY, Alias, Contraction, Fill, Leaf, Op, Reduction, Shader
from gdlab.op.machines import MEASURE, Machine, automatic_machine, kept_machine

__all__ = [
    "COST_NAMES", "DEVICE", "Cost", "CostModel", "Roofline", "ast_size", "bytes_moved", "contraction_flops",
    "cost_model", "flops", "priced", "roofline", "seconds",
]  # fmt: skip


Types = tuple[TensorType, ...]
Cost = Callable[[str, Attrs, TensorType, Types], float]  # (op, attributes, type, operand types) -> µs ≥ 0


def flops(node: Node, graph: Graph) -> int:
    """Count the floating point operations of one node: 2·m·k·n for a product, one per element of an elementwise result.
    """
    return _work(node.op, node.attrs, node.type, _operands(node, graph))[0]


def bytes_moved(node: Node, graph: Graph) -> int:
    """Return the bytes of operands and result; 0 for leaves, fills and aliases, which move nothing."""
    return _bytes(node.op, node.type, _operands(node, graph))


def seconds(node: Node, graph: Graph) -> float:
    """Return the roofline time of one node."""
    return roofline(node.op, node.attrs, node.type, _operands(node, graph)) / 1e6


def contraction_flops(op: str, attrs: Attrs, type: TensorType, operands: Types) -> int:
    """Return the part of the flops that products make: what the optimizer never lets grow."""
    return _work(op, attrs, type, operands)[1]


@dataclass(frozen=True)
class Roofline:
    """launch + max(bytes / bandwidth, flops / peak), in µs; called with a device alone, the roofline of that device.

    (S. Williams, A. Waterman, D. Patterson, Roofline: an insightful visual performance model, 2009.)
    """

    machine: Machine = Machine()

    @property
    def __name__(self) -> str:
        return f"roofline({self.machine})" if self.machine.name else "roofline"

    @overload
    def __call__(self, op: str, attrs: Attrs, type: TensorType, operands: Types, /) -> float: ...
    @overload
    def __call__(self, device: Any, /) -> Roofline: ...
    def __call__(self, *given: Any) -> float | Roofline:
        """µs of (op, attributes, type, operand types), or the roofline of a device as it was measured."""
        return Roofline(kept_machine(given[0])) if len(given) == 1 else self._price(*given)

    def _price(self, op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
        """An op without a kernel costs what its body costs; a product with an epilogue is one launch."""
        record = REGISTRY.get(op)
        if record is None or _is_free(record):
            return 0.0
        if record.kernel is None and record.family != "contraction":
            body = record.trace(operands, attrs)
            types = [n.type for n in body]
            inner = (n for n in body if n.op != "var")
            return sum(self._price(n.op, n.attrs, n.type, tuple([types[i] for i in n.inputs])) for n in inner)
        work, m = _work(op, attrs, type, operands)[0], self.machine
        moved = _bytes(op, type, operands)
        return (m.launch_seconds + max(moved / m.bytes_per_second, work / m.flops_per_second)) * 1e6


roofline = Roofline()


def ast_size(op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
    """Price an op at 10, a fused one at 9, and leaves, fills and aliases at 0."""
    record = REGISTRY.get(op)
    if record is None or _is_free(record):
        return 0.0
    return 9.0 if record.body is not None else 10.0


@dataclass(frozen=True)
class CostModel:
    """A named cost: `price(op, attrs, type, operand types)` in µs."""

    name: str
    price: Cost


def priced(model: str) -> str:
    """Return in words whose costs a report's `cost_model` names: `modelled for a nominal GPU`."""
    if model == "roofline":
        return "modelled for a nominal GPU"
    if model.startswith("roofline("):
        return f"modelled for {model.removeprefix('roofline(').rsplit(': ', 1)[0]}"
    return f"as {model} counts" if model else "modelled"


_MODELS: dict[str, Cost] = {"roofline": roofline, "ast_size": ast_size}
DEVICE = "device"  # the name that stands for the roofline of the machine at hand
COST_NAMES = (*_MODELS, DEVICE)


def cost_model(cost: str | Cost) -> CostModel:
    """Return the model that a name or a function stands for; a function must answer a finite number ≥ 0. `"device"` is
    the roofline of the device that `device="auto"` chooses, by its kept figures; where there are none,
    `OptimizeError`."""
    if isinstance(cost, str) and cost == DEVICE:
        machine = automatic_machine()
        if machine is None:
            wanted = f"figures of this machine: `{MEASURE}` measures them, as a Study with cost='device' on 'auto' does"
            raise OptimizeError("optimize", "cost", "'device', of which nothing is kept here", wanted)
        cost = Roofline(machine.rounded)
    if isinstance(cost, Roofline):
        return CostModel(cost.__name__, cost)
    if callable(cost):
        return CostModel(getattr(cost, "__name__", "cost"), _checked(cost))
    if not isinstance(cost, str) or cost not in _MODELS:
        raise unknown_name("optimize", "cost", str(cost), COST_NAMES)
    return CostModel(cost, _MODELS[cost])


def _checked(cost: Cost) -> Cost:
    def price(op: str, attrs: Attrs, type: TensorType, operands: Types) -> float:
        spelled = " and ".join(map(str, operands)) or "no operands"
        try:
            value = cost(op, attrs, type, operands)
        except Exception as e:
            raise OptimizeError("optimize", f"cost of {op} of {spelled}", repr(e), "a finite number ≥ 0") from e
        if not _is_price(value):
            raise OptimizeError("optimize", f"cost of {op} of {spelled}", value, "a finite number ≥ 0")
        return float(value)

    return price


def _is_price(value: Any) -> bool:
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return real and 0 <= value < float("inf")


# work -----------------------------------------------------------------------------------------------------------------
def _is_free(record: Op) -> bool:
    """Whether it moves nothing: leaves, fills, aliases, packed weights, columns of a product with them."""
    return record.packing is not None or isinstance(record.kernel, (Leaf, Alias, Fill))


def _operands(node: Node, graph: Graph) -> Types:
    return tuple(graph.node(i).type for i in node.inputs)


def _bytes(op: str, type: TensorType, operands: Sequence[TensorType]) -> int:
    record = REGISTRY.get(op)
    if record is None or _is_free(record):
        return 0
    return type.size_bytes + sum(t.size_bytes for t in operands)


def _work(op: str, attrs: Attrs, type: TensorType, operands: Types) -> tuple[int, int]:
    """(all flops, flops of products) of one op."""
    record = REGISTRY.get(op)
    if record is None or _is_free(record):
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


@lru_cache(maxsize=512)  # entries of about 1 KB
def _work_of_body(record: Op, operands: Types, attrs: Attrs) -> tuple[int, int]:
    body = record.trace(operands, attrs)
    work = [_work(n.op, n.attrs, n.type, tuple(body.node(i).type for i in n.inputs)) for n in body if n.op != "var"]
    return sum(w for w, _ in work), sum(w for _, w in work)
