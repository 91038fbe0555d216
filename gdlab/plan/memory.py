"""Place buffers in memory: lifetimes in groups, and slots for buffers whose lives or bytes do not overlap."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, Interval, MemoryPlan, PlanBuffer, Slot
from gdlab.plan.target import ALIGN, CompileOptions, Target

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


ENOUGH = 1.02  # of the peak: with so little to gain no second placement is tried
SPARE = 1.1  # of the peak, that placements may take in which groups run without a barrier inside
BESIDE, BESIDE_BYTES = 1.12, 64 << 10  # of the peak, and bytes: above both together tenants stand side by side
MOST_BESIDE = 300  # buffers placed side by side: the time grows with their square (360: 95 ms, 2 cores, 2026-11-24)
Lives = dict[int, tuple[int, int, int]]  # buffer → bytes, first and last group


def memory_plan(
    buffers: Sequence[PlanBuffer], dispatches: Sequence[Dispatch], options: CompileOptions, target: Target
) -> MemoryPlan:
    """Place every pinned buffer in a slot of its own, and the others in shared slots, one after the other; where that
    takes much more than what is alive, side by side."""
    alignment = target.limits.alignment
    intervals = intervals_of(buffers, dispatches)
    pinned = _pins(buffers, intervals, options)
    peak, at = _peak(buffers, intervals, pinned, alignment)
    alone = sum(padded(buffers[b].nbytes, alignment) for b in pinned)
    lives = {
        b.id: (padded(b.nbytes, alignment), intervals[b.id].first_group, intervals[b.id].last_group)
        for b in buffers
        if b.id not in pinned
    }
    new = _behind_others(lives, intervals, dispatches) if target.adapter_class == "hardware" else set()
    shared, offsets = [[b] for b in lives], dict[int, int]()
    if options.alias:
        shared = _placed(lives, new, alone, peak)
        decoded = any(buffers[b].dtype.is_storage for b in lives)  # on cpu these take more bytes than on other devices
        if alone + _bytes(shared, lives) > BESIDE * peak + BESIDE_BYTES and len(lives) <= MOST_BESIDE and not decoded:
            beside, places = _side_by_side(lives, _apart(dispatches))
            if _bytes(beside, lives, places) < _bytes(shared, lives):
                shared, offsets = beside, places
    tenants = sorted([*shared, *([b] for b in pinned)], key=lambda t: _by_first_write(buffers[t[0]], intervals))
    sizes = [max(offsets.get(b, 0) + padded(buffers[b].nbytes, alignment) for b in t) for t in tenants]
    slot_of = {b: slot for slot, t in enumerate(tenants) for b in t}
    return MemoryPlan(
        tuple(slot_of[b.id] for b in buffers),
        tuple(offsets.get(b.id, 0) for b in buffers),
        tuple(Slot(n, tuple(t)) for n, t in zip(sizes, tenants, strict=True)),
        intervals,
        tuple(sorted(pinned.items())),
        sum(b.nbytes for b in buffers),
        sum(sizes),
        peak,
        at,
    )


def padded(nbytes: int, alignment: int) -> int:
    """Round `nbytes` up to the alignment."""
    return max(1, -(-nbytes // alignment)) * alignment


def successors(plan: ExecutionPlan, buffer: int) -> tuple[int, ...]:
    """Return the buffers that are written later in a step over bytes of this one, in order of their first writes."""
    starts, tenants = plan.memory.offset_of, plan.memory.slots[plan.memory.slot_of[buffer]].tenants
    start, stop = starts[buffer], starts[buffer] + plan.buffers[buffer].nbytes
    later = tenants[tenants.index(buffer) + 1 :]
    return tuple(b for b in later if starts[b] < stop and start < starts[b] + plan.buffers[b].nbytes)


def _by_first_write(buffer: PlanBuffer, intervals: Sequence[Interval]) -> tuple[int, int, int]:
    return intervals[buffer.id].first_group, -buffer.nbytes, buffer.id


def _behind_others(lives: Lives, intervals: Sequence[Interval], dispatches: Sequence[Dispatch]) -> set[int]:
    """Return the buffers that are first written by a dispatch behind the first one of its group. WebGPU waits for all
    earlier dispatches before one that writes memory with an earlier tenant: in the midst of a group that ends what runs
    side by side (an NVIDIA H200 takes 0.90 of the time for a step of xf with Adam without, 2026-11-24)."""
    begins = {i for i, d in enumerate(dispatches) if i == 0 or d.group != dispatches[i - 1].group}
    return {b for b in lives if intervals[b].first not in begins}


# placements: the tenants of every slot, in order of their lives -------------------------------------------------------
def _placed(lives: Lives, new: set[int], alone: int, peak: int) -> list[list[int]]:
    """Return a placement that takes little more than the peak, in which buffers of `new` are the first tenants of their
    slots: all of them, else the smaller three quarters, and so on. `alone`: bytes of the buffers that share nothing."""
    by_size = sorted(new, key=lambda b: lives[b][0])
    while by_size:
        placed = _shared(lives, set(by_size), peak - alone)
        if alone + _bytes(placed, lives) <= SPARE * peak:
            return placed
        by_size = by_size[: 3 * len(by_size) // 4]
    return _shared(lives, set(), peak - alone)


def _shared(lives: Lives, new: set[int], peak: int) -> list[list[int]]:
    """Return the smaller of two placements; the second is only tried where the first leaves much to gain."""
    first = _in_time(lives, new)
    if _bytes(first, lives) <= ENOUGH * peak:
        return first
    return min(first, _largest_first(lives, new), key=lambda placed: _bytes(placed, lives))


def _bytes(placed: list[list[int]], lives: Lives, offsets: Mapping[int, int] = MappingProxyType({})) -> int:
    return sum(max(offsets.get(b, 0) + lives[b][0] for b in tenants) for tenants in placed)


def _in_time(lives: Lives, new: set[int]) -> list[list[int]]:
    """Place greedily by first write, larger first: the smallest free slot that fits, else the largest one grows.
    Buffers of `new` begin a slot."""
    sizes, tenants = list[int](), list[list[int]]()
    free: list[tuple[int, int]] = []  # (bytes, slot), sorted
    busy: dict[int, list[int]] = {}  # last group → slots to be freed behind it
    group = -1
    for buffer, (need, first, last) in sorted(lives.items(), key=lambda item: (item[1][1], -item[1][0], item[0])):
        while group < first:
            for slot in busy.pop(group, ()):
                bisect.insort(free, (sizes[slot], slot))
            group += 1
        slot = -1 if buffer in new else _take(free, need, sizes)
        if slot < 0:
            slot = len(sizes)
            sizes.append(need)
            tenants.append([])
        tenants[slot].append(buffer)
        busy.setdefault(last, []).append(slot)
    return tenants


def _take(free: list[tuple[int, int]], need: int, sizes: list[int]) -> int:
    """Take the best free slot, grown where none fits; −1 where none is free."""
    if not free:
        return -1
    at = bisect.bisect_left(free, (need, -1))
    _, slot = free.pop(min(at, len(free) - 1))
    sizes[slot] = max(sizes[slot], need)
    return slot


def _largest_first(lives: Lives, new: set[int]) -> list[list[int]]:
    """Place the largest buffer first, each into the smallest slot that is free while it lives: small buffers then share
    the slot of a later large one. Buffers of `new` are the first tenants of a slot."""
    slots: list[list[tuple[int, int, int]]] = []  # (first, last, buffer), sorted; largest slot first
    for buffer, (_, first, last) in sorted(lives.items(), key=lambda item: (-item[1][0], item[1][1], item[0])):
        for slot in reversed(slots):
            at = bisect.bisect_left(slot, (first, last, buffer))
            if (buffer if at else slot[0][2]) in new:  # it would have an earlier tenant
                continue
            if (at == 0 or slot[at - 1][1] < first) and (at == len(slot) or slot[at][0] > last):
                slot.insert(at, (first, last, buffer))
                break
        else:
            slots.append([(first, last, buffer)])
    return [[buffer for _, _, buffer in slot] for slot in slots]


# side by side: several tenants of a slot at once ----------------------------------------------------------------------
def _apart(dispatches: Sequence[Dispatch]) -> dict[int, set[int]]:
    """Return, by buffer, those that it may not stand beside: used in one barrier group, where one of both is written.
    A dispatch has one access to each memory, and WebGPU would make the dispatches of the group wait for each other."""
    apart: dict[int, set[int]] = {}
    for _, group in itertools.groupby(dispatches, lambda d: d.group):
        together = list(group)
        written = {b for d in together for b in d.writes}
        used = written.union(*(d.reads for d in together))
        for b in used:
            apart.setdefault(b, set()).update(used if b in written else written)
    return apart


def _side_by_side(lives: Lives, apart: Mapping[int, set[int]]) -> tuple[list[list[int]], dict[int, int]]:
    """Place the largest buffer first, each into the smallest gap that some slot has while the buffer lives; where there
    is none it makes a new slot. Return the tenants of the slots, in order of their lives, and where each begins."""
    tenants, sizes, starts = list[list[int]](), list[int](), dict[int, int]()
    for buffer, (nbytes, first, last) in sorted(lives.items(), key=lambda item: (-item[1][0], item[1][1], item[0])):
        need = padded(nbytes, ALIGN)
        fitting: list[tuple[int, int, int]] = []  # (bytes, slot, start)
        for slot, size in enumerate(sizes):
            beside = [b for b in tenants[slot] if lives[b][1] <= last and first <= lives[b][2]]
            if apart.get(buffer, set()).isdisjoint(beside):
                taken = sorted((starts[b], starts[b] + padded(lives[b][0], ALIGN)) for b in beside)
                fitting += [(stop - start, slot, start) for start, stop in _gaps(taken, size) if stop - start >= need]
        _, slot, starts[buffer] = min(fitting, default=(need, len(sizes), 0))
        if slot == len(sizes):
            sizes.append(need)
            tenants.append([])
        tenants[slot].append(buffer)
    return [sorted(each, key=lambda b: lives[b][1:]) for each in tenants], starts


def _gaps(taken: Iterable[tuple[int, int]], size: int) -> Iterable[tuple[int, int]]:
    """Yield what sorted ranges, which may overlap, leave of the bytes up to `size`."""
    end = 0
    for start, stop in (*taken, (size, size)):
        if end < start:
            yield end, start
        end = max(end, stop)


# lives ----------------------------------------------------------------------------------------------------------------
def intervals_of(buffers: Sequence[PlanBuffer], dispatches: Sequence[Dispatch]) -> tuple[Interval, ...]:
    """Return each buffer's life, from first write (−1: before the step) to last use, in dispatches and groups."""
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


def _pins(buffers: Sequence[PlanBuffer], intervals: Sequence[Interval], options: CompileOptions) -> dict[int, str]:
    pinned = {b.id: _PINNED[b.kind] for b in buffers if b.kind in _PINNED}
    for b in buffers:
        if b.name and b.name in options.pin:
            pinned.setdefault(b.id, "pinned by option")
        if intervals[b.id].first < 0:
            pinned.setdefault(b.id, "read before it is written")
    return pinned


def _peak(
    buffers: Sequence[PlanBuffer], intervals: Sequence[Interval], pinned: dict[int, str], alignment: int
) -> tuple[int, int]:
    """Return the most bytes alive in one group, and the first such group; pinned buffers are always alive."""
    always = sum(padded(buffers[b].nbytes, alignment) for b in pinned)
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
