"""The WGSL of every op: each sample compiled for software and for hardware."""

from __future__ import annotations

from op_checks import wire, working_ops

from gdlab.base.errors import GdlabError
from gdlab.op import Op, Shader
from gdlab.plan import compile
from gdlab.plan.target import Limits, Target

TARGETS = (Target("wgpu", "software", Limits()), Target.portable())


def texts_of(op: Op) -> dict[str, str]:
    """Text → what it computes, of the first samples of an op."""
    found: dict[str, str] = {}
    for sample in op.samples[:3]:
        graph = wire(op, sample).graph
        for target in TARGETS:
            try:
                plan = compile(graph, mode="inference", target=target)
            except GdlabError:  # a cache or storage that this wiring does not fit
                continue
            for dispatch in plan.dispatches:
                found.setdefault(plan.wgsl(dispatch.index)[0], dispatch.label)
    return found


def all_texts() -> dict[str, str]:
    found: dict[str, str] = {}
    for op in working_ops():
        if isinstance(op.kernel, Shader):
            found |= texts_of(op)
    return found
