"""Join neighbours of a list that compile to fewer dispatches together: the pass `fuse(rules="all")`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdlab.base.types import Shape
from gdlab.graph import Attrs, Value
from gdlab.op import Op
from gdlab.plan.order import Footprint
from gdlab.plan.piece import fusions_missed
from gdlab.record.compute_graph import Node
from gdlab.record.fuse import Fusion, read_later
from gdlab.record.operation import Build, OperandRange, Operation, lowered, moved
from gdlab.record.reorder import ENDS

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor


@dataclass(frozen=True, slots=True)
class Chained:
    """Two functions composed: `second` reads the result of `first`, which has `count` operands, at operand `place`, in
    this shape."""

    first: Build
    first_attrs: Attrs
    count: int
    second: Build
    second_attrs: Attrs
    place: int
    shape: Shape

    def __call__(self, *values: Value) -> Value:
        y = _called(self.first, values[: self.count], self.first_attrs)
        y = y if y.shape == self.shape else y.reshape(self.shape)
        others = values[self.count :]
        return _called(self.second, (*others[: self.place], y, *others[self.place :]), self.second_attrs)


def _called(build: Build, values: Sequence[Value], attrs: Attrs) -> Value:
    """Return the one value of a call; for an op that of its node, whose attributes are stored ones."""
    if not isinstance(build, Op):
        found = build(*values, **dict(attrs))
        return found if isinstance(found, Value) else found[0]
    graph = values[0].graph
    return graph.append(build.name, tuple(v.id for v in values), attrs, build.infer(values, dict(attrs)))


def chain_fuser(executor: GraphExecutor) -> Callable[[list[Node]], tuple[list[Node], list[Any], list[Any]]]:
    """Return the pass over the lists of an executor: nodes -> (nodes, fusions, misses)."""

    def run(nodes: list[Node]) -> tuple[list[Node], list[Any], list[Any]]:
        made, firsts, fusions, misses = list[Node](), list[int](), list[Fusion](), list[tuple[int, str]]()
        for at, node in enumerate(nodes):
            place = _place_of(made[-1], node) if made else None
            if place is None:
                made.append(node)
                firsts.append(at)
                continue
            y = made[-1].operation.results[0]
            joined = _refusal(nodes, made[-1], at, place) or _joined(executor, made[-1], node, place)
            if isinstance(joined, str):
                misses.append((at, joined))
                made.append(node)
                firsts.append(at)
                continue
            made[-1] = joined
            fusions.append(Fusion(firsts[-1], at, y.range))
        return made, fusions, misses

    return run


def _place_of(first: Node, second: Node) -> int | None:
    """Return the operand of the second node that overlaps the result of the first; None where none does, or where one
    of the two is no function of operands alone."""
    for node in (first, second):
        o = node.operation
        if o.piece is None or o.numbers or o.checks or len(o.results) != 1 or len(o.footprint.writes) != 1:
            return None
    y = first.operation.results[0].range
    return next((i for i, p in enumerate(second.operation.operands) if p.range.overlaps(y)), None)


def _refusal(nodes: Sequence[Node], first: Node, at: int, place: int) -> str:
    """Return why the node at a place stays apart from the one before it, by F1 to F6; empty if it need not."""
    second = nodes[at]
    y, out = first.operation.results[0], second.operation.results[0]
    if second.fence or first.opaque or second.opaque:
        return "F1: a fence stands between" if second.fence else "F1: one of the two is opaque"
    operands = second.operation.operands
    if operands[place].range != y.range:
        return "F2: no operand is exactly the result before it"
    others = [p for i, p in enumerate(operands) if i != place]
    if any(p.range.overlaps(y.range) for p in others):
        return "F3: another operand overlaps the result before it"
    if operands[place].type.num_elements != y.type.num_elements or operands[place].type.dtype is not y.type.dtype:
        return "F4: element counts or dtypes differ"
    if any(p.range.overlaps(out.range) and p.range != out.range for p in (*first.operation.operands, *others)):
        return "F5: the result overlaps an operand in part"
    alive = read_later(nodes, at, y.range, first.buffers[y.buffer].transient, out.range)
    return "F6: " + alive.replace("the norm's result", "the result before it") if alive else ""


def _joined(executor: GraphExecutor, first: Node, second: Node, place: int) -> Node | str:
    """Return both as one node; where that has as many dispatches as both, why the compiler keeps them apart."""
    a, b = first.operation, moved(second.operation, len(first.buffers))
    assert a.piece is not None and b.piece is not None  # `_place_of` looked
    others = tuple(p for i, p in enumerate(b.operands) if i != place)
    shape = b.operands[place].type.shape
    build = Chained(a.build, a.attrs, len(a.operands), b.build, b.attrs, place, shape)
    operands: tuple[OperandRange, ...] = (*a.operands, *others)
    types = tuple(p.type for p in operands)
    made = lowered(executor, "fusion", build, types, (), True)
    if len(made.dispatches) >= len(a.piece.dispatches) + len(b.piece.dispatches):
        reasons = fusions_missed(build, types, executor.device.target)
        return reasons[-1] if reasons else f"no fusion joins {first.name} and {second.name}"
    reads = tuple(dict.fromkeys(p.range for p in operands))
    name = f"{first.name} + {second.name}"
    kind = first.kind if first.kind in ENDS else second.kind if second.kind in ENDS else "other"
    operation = Operation(
        name, kind, build, (), made, operands, b.results, Footprint(reads, (b.results[0].range,)), fuse=True
    )
    own = {*reads, b.results[0].range, a.results[0].range}
    more = [d for d in (first.declared, second.declared) if d is not None]
    declared = Footprint(
        tuple(r for d in more for r in d.reads if r not in own),
        tuple(r for d in more for r in d.writes if r not in own),
    )
    buffers = (*first.buffers, *second.buffers)
    return Node(operation, buffers, kind, False, first.fence, declared if declared != Footprint((), ()) else None)
