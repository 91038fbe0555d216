"""Count what a whole step has, the plan and its update: `totals(plan, update).groups`; every view reads it here."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab.base.words import plural, whole
from gdlab.plan.memory import padded
from gdlab.plan.records import ExecutionPlan, Update


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Dispatches, barrier groups and bytes of a step. `dispatches` includes the last `updates`, those of the update.

    `physical_bytes` are allocated: slots of the plan and `state_bytes` of the optimizer's state, which is alive in
    every group and so counts at the peak. Logical sizes are without the padding.
    """

    dispatches: int
    updates: int
    groups: int
    bytes_moved: int
    logical_bytes: int
    physical_bytes: int
    peak_bytes: int
    peak_group: int
    padding_bytes: int
    parameter_bytes: int
    state_bytes: int

    @property
    def dispatch_words(self) -> str:
        """`18 dispatches`, with an update `18 + 6 dispatches`."""
        return dispatch_words(self.dispatches, self.updates)


def dispatch_words(dispatches: int, updates: int) -> str:
    """Say how many dispatches a step has, those of the update apart: `18 + 6 dispatches`."""
    own = dispatches - updates
    return f"{whole(own)} + {whole(updates)} dispatches" if updates else plural(own, "dispatch")


def totals(plan: ExecutionPlan, update: Update | None = None) -> StepTotals:
    """Return the totals of a plan with an update behind it."""
    own = () if update is None else update.dispatches
    state = () if update is None else update.buffers
    memory, alignment = plan.memory, plan.target.limits.alignment
    logical = memory.logical_bytes + sum(b.nbytes for b in state)
    state_bytes = sum(padded(b.nbytes, alignment) for b in state)
    return StepTotals(
        len(plan.dispatches) + len(own),
        len(own),
        len(plan.groups) + len({d.group for d in own}),
        sum(d.bytes_read + d.bytes_written for d in (*plan.dispatches, *own)),
        logical,
        memory.physical_bytes + state_bytes,
        memory.peak_bytes + state_bytes,
        memory.peak_group,
        sum(padded(b.nbytes, alignment) for b in plan.buffers) + state_bytes - logical,
        sum(padded(b.nbytes, alignment) for b in plan.buffers if b.kind in ("parameter", "derived")),
        state_bytes,
    )
