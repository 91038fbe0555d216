"""Count the dispatches, groups and bytes of a whole step, the plan and its update: `totals(plan, update).groups`; every
view reads it here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdlab.base.words import nbytes, plural, whole
from gdlab.plan.memory import padded
from gdlab.plan.records import ExecutionPlan, Update


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The numbers of dispatches, barrier groups and bytes of a step. `dispatches` includes the last `updates`, those of
    the update.

    `physical_bytes` are allocated: slots of the plan and `state_bytes` of the optimizer's state, which is alive in
    every group and so counts at the peak. Logical sizes are without the padding. `parts` are what the physical bytes
    hold, by name; they add up to them.
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
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def dispatch_words(self) -> str:
        """`18 dispatches`, with an update `18 + 6 dispatches`."""
        return dispatch_words(self.dispatches, self.updates)


_PARTS = {
    "input": "inputs",
    "constant": "inputs",
    "parameter": "parameters",
    "derived": "parameters",
    "gradient": "gradients",
    "output": "outputs",
    "loss": "outputs",
    "state": "caches",
}
_UPDATE = {"grad_sum.": "gradients", "clip_": "scratch"}  # else the state of a rule
_ORDER = ("inputs", "parameters", "gradients", "optimizer state", "outputs", "caches", "reusable slots", "scratch")


def parts_of(plan: ExecutionPlan, update: Update | None = None) -> tuple[tuple[str, int], ...]:
    """Return the memory of a step by kind of content, in padded bytes that add up to its physical bytes; without empty
    kinds.

    A slot that several buffers may share is a reusable one, of whatever they are; sums of gradients over several
    steps count as gradients, factors of a clip as scratch.
    """
    found = dict.fromkeys(_ORDER, 0)
    pinned = plan.memory.pinned
    for slot in plan.memory.slots:
        kind = plan.buffers[slot.tenants[0]].kind
        fixed = kind in _PARTS and len(slot.tenants) == 1 and slot.tenants[0] in pinned
        found[_PARTS[kind] if fixed else "reusable slots"] += slot.nbytes
    if update is not None:
        for b in update.buffers:
            name = next((name for prefix, name in _UPDATE.items() if b.name.startswith(prefix)), "optimizer state")
            found[name] += padded(b.nbytes, plan.target.limits.alignment)
    return tuple((name, size) for name, size in found.items() if size)


def parts_words(parts: Iterable[tuple[str, int]]) -> str:
    """Say in words how much memory each part takes: `inputs 19 KB, parameters 39.4 KB, reusable slots 68.6 KB`."""
    found = dict(parts)  # a document that was read holds them in the order of their names
    return ", ".join(f"{name} {nbytes(found[name])}" for name in _ORDER if name in found)


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
        parts_of(plan, update),
    )
