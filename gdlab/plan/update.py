"""The parameter update of a training plan: SGD or Adam, as dispatches in the same record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from gdlab.plan import variants
from gdlab.plan.labels import display
from gdlab.plan.plan import SCALARS, Buffer, Dispatch, ExecutionPlan, KernelName, Operand, Update
from gdlab.plan.source import source_hash
from gdlab.types import TensorType

Rule = Literal["none", "sgd", "adam"]
_NONE: Mapping[str, float] = MappingProxyType({})
_FLOPS = {"sgd": 2, "adam": 13}


def update_of(plan: ExecutionPlan, rule: Rule, multipliers: Mapping[str, float] = _NONE) -> Update:
    """The update by rule. `multipliers` gives a factor of the learning rate by parameter name (default 1).

    State buffers have the same ids in every update of a plan, so that moments outlive a switch to SGD and back.
    """
    return RULES[rule](plan, multipliers)


def no_update(plan: ExecutionPlan, multipliers: Mapping[str, float] = _NONE) -> Update:
    """Nothing: parameters keep their values."""
    return Update("none", (), (), ())


def sgd_update(plan: ExecutionPlan, multipliers: Mapping[str, float] = _NONE) -> Update:
    """p ← p − lr · factor · g, one dispatch per parameter."""
    return Update("sgd", _dispatches(plan, "sgd", multipliers, [(p,) for p, _ in plan.param_grad_pairs]), (), ())


def adam_update(plan: ExecutionPlan, multipliers: Mapping[str, float] = _NONE) -> Update:
    """m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p − lr · factor · m·c₁ / (√(v·c₂) + ε): one dispatch each."""
    names = {b: name for name, b in plan.param_buffers}
    buffers: list[Buffer] = []
    for parameter, _ in plan.param_grad_pairs:
        for which in "mv":
            buffers.append(_moment(plan, len(buffers), parameter, names[parameter], which))
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    moments = [(p, m.id, v.id) for (p, _), (m, v) in zip(plan.param_grad_pairs, pairs, strict=True)]
    return Update("adam", _dispatches(plan, "adam", multipliers, moments), tuple(buffers), tuple(moments))


RULES: Mapping[Rule, Callable[[ExecutionPlan, Mapping[str, float]], Update]] = {
    "none": no_update,
    "sgd": sgd_update,
    "adam": adam_update,
}


def _dispatches(
    plan: ExecutionPlan, rule: KernelName, multipliers: Mapping[str, float], in_place: Sequence[tuple[int, ...]]
) -> tuple[Dispatch, ...]:
    names = {b: name for name, b in plan.param_buffers}
    found: list[Dispatch] = []
    for (parameter, gradient), touched in zip(plan.param_grad_pairs, in_place, strict=True):
        factor = float(multipliers.get(names[parameter], 1.0))
        found.append(_dispatch(plan, rule, len(plan.dispatches) + len(found), parameter, gradient, touched, factor))
    return tuple(found)


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
    schedule = variants.update(size, plan.target)
    made = Dispatch(
        index, rule, f"{display(rule)}[{size}]", "update", (operand,), parameter, TensorType(b.shape, b.dtype),
        in_place=in_place,
        scalars=("lr",) if rule == "sgd" else SCALARS,
        workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size,
        params=(int(np.float32(factor).view(np.uint32)),),
        variant=schedule.variant, variant_reason=schedule.reason,
        origin=b.nodes[:1], group=len(plan.groups),
        flops=_FLOPS[rule] * size, bytes_read=b.nbytes * (len(in_place) + 1), bytes_written=b.nbytes * len(in_place),
    )  # fmt: skip
    return replace(made, source_hash=source_hash(made))
