"""Plans whose buffers stand side by side in slots, however small they are: as close as `docs` and `verify` allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gdlab.plan import compiler
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.memory import memory_plan
from gdlab.plan.records import ExecutionPlan, MemoryPlan, PlanBuffer, Slot
from gdlab.plan.target import CompileOptions, Target


def force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every plan that shares slots placed side by side from now on."""
    monkeypatch.setattr(compiler, "memory_plan", stacked)


def offsets(plan: ExecutionPlan) -> int:
    """The number of buffers that begin behind the first byte of their slots."""
    return sum(offset > 0 for offset in plan.memory.offset_of)


def stacked(
    buffers: Sequence[PlanBuffer], dispatches: Sequence[Dispatch], options: CompileOptions, target: Target
) -> MemoryPlan:
    """Put each buffer into the first slot that has no partner of a dispatch which writes one of both, at the first free
    byte, behind all others if need be: the fewest slots, and dispatches of one group that write the same slot."""
    made = memory_plan(buffers, dispatches, options, target)
    lives, loose = made.intervals, [b.id for b in buffers if b.id not in made.pinned]
    if not options.alias or any(buffers[b].dtype.is_storage for b in loose):
        return made
    partners: list[set[int]] = [set() for _ in buffers]
    for d in dispatches:
        for b, access in d.bindings:
            partners[b] |= {other for other, how in d.bindings if "w" in (access, how)}
    slots: list[list[int]] = []
    start = [0] * len(buffers)
    for b in sorted(loose, key=lambda b: lives[b].first):
        for slot in (*slots, new := list[int]()):
            alive = [t for t in slot if lives[t].last_group >= lives[b].first_group]
            if partners[b].isdisjoint(alive):
                break
        taken = [(start[t], start[t] + -(-buffers[t].nbytes // 256) * 256) for t in alive]
        places = [0, *(stop for _, stop in taken)]
        start[b] = min(at for at in places if all(stop <= at or at + buffers[b].nbytes <= low for low, stop in taken))
        slot.append(b)
        if slot is new:
            slots.append(slot)
    slots += [[b] for b in made.pinned]
    sizes = [max(start[b] + -(-buffers[b].nbytes // 256) * 256 for b in slot) for slot in slots]
    place = {b: number for number, slot in enumerate(slots) for b in slot}
    return replace(
        made,
        slot_of=tuple(place[b.id] for b in buffers),
        offset_of=tuple(start),
        slots=tuple(Slot(size, tuple(slot)) for size, slot in zip(sizes, slots, strict=True)),
        physical_bytes=sum(sizes),
    )
