"""Join `rms_norm` and the `elementwise_mul` that follows it where no result changes: the pass `fuse`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdlab.base.errors import ArgumentError
from gdlab.plan.order import Footprint, Range
from gdlab.record import op_methods
from gdlab.record.compute_graph import ComputeGraph, Node
from gdlab.record.operation import OperandRange, Operation, fused, moved, unstored

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor


@dataclass(frozen=True, slots=True)
class Fusion:
    """A fused pair: the places of norm and product in the list before the pass, and the range that is not stored."""

    norm: int
    product: int
    dropped: Range


def fuser(executor: GraphExecutor) -> Callable[[list[Node]], tuple[list[Node], list[Any], list[Any]]]:
    """Return the pass over the lists of an executor: nodes -> (nodes, fusions, misses)."""

    def run(nodes: list[Node]) -> tuple[list[Node], list[Any], list[Any]]:
        made, fusions, misses, at = list[Node](), list[Fusion](), list[tuple[int, str]](), 0
        while at < len(nodes):
            pair = _product_of(nodes, at)
            miss = "" if pair is None else refusal(nodes, at, pair)
            if pair is None or miss:
                if miss:
                    misses.append((at, miss))
                made.append(nodes[at])
                at += 1
                continue
            made.append(_joined(executor, nodes[at], nodes[pair]))
            fusions.append(Fusion(at, pair, nodes[at].operation.results[0].range))
            at = pair + 1
        return made, fusions, misses

    return run


def fuse(graph: ComputeGraph, rules: str = "norms") -> int:
    """Run the pass of these rules on a graph."""
    begun = time.perf_counter_ns()
    if rules not in graph.fusers:
        raise ArgumentError("fuse", "rules", f"{rules!r:.60}", " or ".join(map(repr, graph.fusers)))
    nodes, fusions, misses = graph.fusers[rules](graph.nodes)
    graph.misses = misses
    if fusions:
        graph.nodes[:] = nodes
        graph.fusions += fusions
        graph.recorded_barriers = None
    graph.on_change(time.perf_counter_ns() - begun)
    return len(fusions)


def _product_of(nodes: Sequence[Node], at: int) -> int | None:
    """Return the first product after a norm that reads its result, or None."""
    norm = nodes[at]
    if unstored(norm.operation.build) is not op_methods.rms_norm or norm.kind != "rms_norm" or norm.opaque:
        return None
    y = norm.operation.results[0].range
    for j in range(at + 1, len(nodes)):
        own = nodes[j].operation.footprint
        if any(r.overlaps(y) for r in own.reads):
            product = unstored(nodes[j].operation.build) is op_methods.mul and nodes[j].kind == "elementwise_mul"
            return j if product and not nodes[j].opaque else None
        if any(_covers(w, y) for w in own.writes):
            return None
    return None


def refusal(nodes: Sequence[Node], at: int, pair: int) -> str:
    """Return why norm and product stay two nodes, in words; an empty string if they may be joined."""
    norm, product = nodes[at], nodes[pair]
    x, w = (p.range for p in norm.operation.operands)
    y = norm.operation.results[0]
    a, b = product.operation.operands
    out = product.operation.results[0]
    if pair != at + 1 or product.fence:
        return "F1: a fence stands between norm and product" if pair == at + 1 else "F1: another node stands between"
    equal = [p for p in (a, b) if p.range == y.range]
    if len(equal) != 1:
        how = "both operands of the product are" if equal else "no operand of the product is exactly"
        return f"F2: {how} the norm's result"
    scale = b if equal[0] is a else a
    if scale.range.overlaps(y.range):
        return "F3: the scale overlaps the norm's result"
    if product.operation.results[0].type.num_elements != y.type.num_elements or a.type.dtype is not y.type.dtype:
        return "F4: element counts or dtypes differ"
    if not _placed_well(out.range, x, w, scale.range, y.range):
        return "F5: the product's result overlaps an operand"
    alive = read_later(nodes, pair, y.range, norm.buffers[y.buffer].transient, out.range)
    return f"F6: {alive}" if alive else ""


def _placed_well(out: Range, x: Range, w: Range, scale: Range, y: Range) -> bool:
    if out.overlaps(w):
        return False
    return out in (x, scale, y) or not any(out.overlaps(r) for r in (x, scale, y))


def read_later(nodes: Sequence[Node], pair: int, y: Range, transient: bool, out: Range) -> str:
    """Return why the norm's result is still read after the product, or an empty string."""
    if _covers(out, y):
        return ""
    for j in range(pair + 1, len(nodes)):
        node = nodes[j]
        if node.opaque or any(r.overlaps(y) for r in node.reads):
            return f"node {j} ({node.name}) reads the norm's result"
        if any(_covers(w, y) for w in node.operation.footprint.writes):
            return ""
    return "" if transient else "the norm's result is not transient, and nothing overwrites it"


def _covers(outer: Range, inner: Range) -> bool:
    return outer.memory == inner.memory and outer.start <= inner.start and outer.stop >= inner.stop


def _joined(executor: GraphExecutor, norm: Node, product: Node) -> Node:
    y, result = norm.operation.results[0].range, product.operation.results[0]
    key = "fused", norm.operation, product.operation
    made = executor.operations.get(key)
    if made is None:
        made = executor.operations[key] = _joined_operation(executor, norm, product)
    if norm.declared is None and product.declared is None:
        return Node(made, (*norm.buffers, *product.buffers), "other", False, norm.fence)
    own = {*norm.operation.footprint.reads, *product.operation.footprint.reads, y, result.range}
    more = [d for d in (norm.declared, product.declared) if d is not None]
    declared = Footprint(
        tuple(r for d in more for r in d.reads if r not in own),
        tuple(r for d in more for r in d.writes if r not in own),
    )
    buffers = (*norm.buffers, *product.buffers)
    return Node(made, buffers, "other", False, norm.fence, declared if declared != Footprint((), ()) else None)


def _joined_operation(executor: GraphExecutor, norm: Node, product: Node) -> Operation:
    shifted = moved(product.operation, len(norm.buffers))
    a, b = shifted.operands
    scale = b if a.range == norm.operation.results[0].range else a
    result, like = shifted.results[0], norm.operation.results[0].type
    return fused(
        executor, op_methods.scaled_rms_norm, norm.operation,
        OperandRange(scale.buffer, scale.range, like), OperandRange(result.buffer, result.range, like),
    )  # fmt: skip
