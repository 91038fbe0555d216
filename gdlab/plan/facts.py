"""Derive facts of a plan from its records: fills, parameters in few bits, statistics of attention, names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gdlab.base.types import DType
from gdlab.op import ops_that

if TYPE_CHECKING:
    from gdlab.plan.dispatch import Dispatch
    from gdlab.plan.records import ExecutionPlan


def fills_of(plan: ExecutionPlan) -> tuple[tuple[int, float], ...]:
    """Return (buffer, number) of every buffer that one number fills, written by a dispatch without operands. All other
    numbers are literals inside a kernel."""
    return tuple((d.output, d.epilogue[0].args[0].value) for d in plan.dispatches if _is_fill(d))


def _is_fill(d: Dispatch) -> bool:
    return d.kernel == "pointwise" and not d.operands and [op.op for op in d.epilogue] == ["full"]


def weights_of(plan: ExecutionPlan) -> dict[int, tuple[DType, int, int]]:
    """Map the buffer of every parameter in reduced storage to (dtype, rows, columns); leading axes count as rows."""
    stored = [b for b in plan.buffers if b.dtype.is_storage]
    return {b.id: (b.dtype, math.prod(b.shape[:-1]), b.shape[-1]) for b in stored}


def statistics_of(plan: ExecutionPlan) -> tuple[tuple[int, int], ...]:
    """Return (node, buffer) of the statistics that attention keeps for its derivative, the logarithms of its sums: the
    attention of the same queries and keys, or where it is no node of its own the one that computes the logarithms."""
    nodes, places = plan.graph.nodes, plan.node_buffers
    results = ops_that(lambda op: op.attention == "result", nodes)
    statistics = ops_that(lambda op: op.attention == "statistics", nodes)
    attention = {n.inputs[:2]: n.id for n in reversed(nodes) if n.op in results}
    kept = [n for n in nodes if n.op in statistics and n.id in places]
    return tuple((attention.get(n.inputs[:2], n.id), places[n.id]) for n in kept)


def names_of(plan: ExecutionPlan) -> dict[int, str]:
    """Map nodes to their names, as far as they have one."""
    return {n.id: n.name for n in plan.graph if n.name}
