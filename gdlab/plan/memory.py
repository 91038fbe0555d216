"""Where buffers lie: lifetimes in groups, and one slot for buffers whose lives do not meet."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from gdlab.plan.plan import Buffer, CompileOptions, Dispatch, Interval, MemoryPlan, Slot

_PINNED = {
    "input": "written by the host before a step",
    "parameter": "kept from step to step",
    "derived": "kept from step to step",
    "constant": "uploaded once",
    "output": "read by the host after a step",
    "loss": "read by the host after a step",
    "gradient": "read by the update and by the host",
    "state": "kept from step to step",
}


def memory_plan(
    buffers: Sequence[Buffer], dispatches: Sequence[Dispatch], options: CompileOptions, alignment: int
) -> MemoryPlan:
    """Greedy best fit by first write, larger first: the smallest free slot that fits, else the largest one grows."""
    intervals = intervals_of(buffers, dispatches)
    pinned = _pins(buffers, intervals, options)
    slot_of, sizes, tenants = [-1] * len(buffers), list[int](), list[list[int]]()
    order = sorted(buffers, key=lambda b: (intervals[b.id].first_group, -b.nbytes, b.id))
    free: list[tuple[int, int]] = []  # (bytes, slot), sorted
    busy: dict[int, list[int]] = {}  # last group → slots to be freed behind it
    group = -1
    for buffer in order:
        interval, need = intervals[buffer.id], padded(buffer.nbytes, alignment)
        while group < interval.first_group:
            for slot in busy.pop(group, ()):
                bisect.insort(free, (sizes[slot], slot))
            group += 1
        shares = buffer.id not in pinned and options.alias
        slot = _take(free, need, sizes) if shares else -1
        if slot < 0:
            slot = len(sizes)
            sizes.append(need)
            tenants.append([])
        slot_of[buffer.id] = slot
        tenants[slot].append(buffer.id)
        if shares:
            busy.setdefault(interval.last_group, []).append(slot)
    slots = tuple(Slot(n, tuple(t)) for n, t in zip(sizes, tenants, strict=True))
    peak, at = _peak(slots, slot_of, buffers, intervals, pinned, alignment)
    logical = sum(b.nbytes for b in buffers)
    return MemoryPlan(
        tuple(slot_of), slots, intervals, tuple(sorted(pinned.items())), logical, sum(sizes), peak, at
    )


def padded(nbytes: int, alignment: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return max(1, -(-nbytes // alignment)) * alignment


def _take(free: list[tuple[int, int]], need: int, sizes: list[int]) -> int:
    """The best free slot, grown where none fits; −1 where none is free."""
    if not free:
        return -1
    at = bisect.bisect_left(free, (need, -1))
    _, slot = free.pop(min(at, len(free) - 1))
    sizes[slot] = max(sizes[slot], need)
    return slot


def intervals_of(buffers: Sequence[Buffer], dispatches: Sequence[Dispatch]) -> tuple[Interval, ...]:
    """From the first write (−1: before the step) to the last use, in dispatches and groups."""
    first, last = [-1] * len(buffers), [-1] * len(buffers)
    written = [b.kind in ("input", "parameter", "derived", "constant", "state") for b in buffers]
    for d in dispatches:
        for b in (*d.reads, *d.writes):
            last[b] = d.index
        for b in d.writes:
            if not written[b]:
                first[b], written[b] = d.index, True
    group = [d.group for d in dispatches]
    return tuple(
        Interval(f, n, group[f] if f >= 0 else -1, group[n] if n >= 0 else -1) for f, n in zip(first, last, strict=True)
    )


def _pins(buffers: Sequence[Buffer], intervals: Sequence[Interval], options: CompileOptions) -> dict[int, str]:
    pinned = {b.id: _PINNED[b.kind] for b in buffers if b.kind in _PINNED}
    for b in buffers:
        if b.name and b.name in options.pin:
            pinned.setdefault(b.id, "pinned by option")
        if intervals[b.id].first < 0:
            pinned.setdefault(b.id, "read before it is written")
    return pinned


def _peak(
    slots: Sequence[Slot],
    slot_of: Sequence[int],
    buffers: Sequence[Buffer],
    intervals: Sequence[Interval],
    pinned: dict[int, str],
    alignment: int,
) -> tuple[int, int]:
    """The most bytes alive in one group, and the first such group; pinned buffers are always alive."""
    always = sum(slots[slot_of[b]].nbytes for b in pinned)
    change: dict[int, int] = {0: 0}
    for b in buffers:
        if b.id not in pinned:
            size, interval = padded(b.nbytes, alignment), intervals[b.id]
            change[interval.first_group] = change.get(interval.first_group, 0) + size
            change[interval.last_group + 1] = change.get(interval.last_group + 1, 0) - size
    alive, peak, at = 0, 0, 0
    for group in sorted(change):
        alive += change[group]
        if alive > peak:
            peak, at = alive, group
    return always + peak, at
