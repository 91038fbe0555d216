"""The parameter update of a training plan: SGD or Adam, as dispatches in the same record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from gdlab.plan import variants
from gdlab.plan.labels import display
from gdlab.plan.plan import SCALARS, Buffer, Dispatch, ExecutionPlan, KernelName, Operand, Update
from gdlab.types import TensorType

Rule = Literal["none", "sgd", "adam"]
_NONE: Mapping[str, float] = MappingProxyType({})
_FLOPS = {"sgd": 2, "adam": 13}


def update_of(plan: ExecutionPlan, rule: Rule, multipliers: Mapping[str, float] = _NONE) -> Update:
    """One dispatch per parameter: p ← p − lr·k·g, or Adam; `multipliers` gives k by parameter name (default 1).

    State buffers have the same ids in every update of a plan, so that moments outlive a switch to SGD and back.
    """
    if rule == "none":
        return Update("none", (), (), ())
    names = {b: name for name, b in plan.param_buffers}
    buffers: list[Buffer] = []
    moments: list[tuple[int, int, int]] = []
    dispatches: list[Dispatch] = []
    for parameter, gradient in plan.param_grad_pairs:
        in_place: tuple[int, ...] = (parameter,)
        if rule == "adam":
            first, second = (_moment(plan, len(buffers) + i, parameter, names[parameter], "mv"[i]) for i in (0, 1))
            buffers += [first, second]
            moments.append((parameter, first.id, second.id))
            in_place = (parameter, first.id, second.id)
        index = len(plan.dispatches) + len(dispatches)
        factor = float(multipliers.get(names[parameter], 1.0))
        dispatches.append(_dispatch(plan, rule, index, parameter, gradient, in_place, factor))
    return Update(rule, tuple(dispatches), tuple(buffers), tuple(moments))


def _moment(plan: ExecutionPlan, number: int, parameter: int, name: str, which: str) -> Buffer:
    b = plan.buffers[parameter]
    return Buffer(len(plan.buffers) + number, b.nbytes, b.dtype, b.shape, "state", f"adam_{which}.{name}", b.nodes)


def _dispatch(
    plan: ExecutionPlan,
    rule: KernelName,
    index: int,
    parameter: int,
    gradient: int,
    in_place: tuple[int, ...],
    factor: float,
) -> Dispatch:
    b = plan.buffers[parameter]
    size, operand = math.prod(b.shape), Operand(gradient, plan.buffers[gradient].shape)
    schedule = variants.pointwise(size, (operand,), plan.target)
    return Dispatch(
        index, rule, f"{display(rule)}[{size}]", "update", (operand,), parameter, TensorType(b.shape, b.dtype),
        in_place=in_place,
        scalars=("lr",) if rule == "sgd" else SCALARS,
        workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size,
        params=(int(np.float32(factor).view(np.uint32)),),
        variant=schedule.variant, variant_reason=schedule.reason,
        origin=b.nodes[:1], group=len(plan.groups),
        flops=_FLOPS[rule] * size, bytes_read=b.nbytes * (len(in_place) + 1), bytes_written=b.nbytes * len(in_place),
    )  # fmt: skip
