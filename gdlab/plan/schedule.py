"""Order a plan's dispatches into barrier groups, and record why each group begins; conflicts are those of `order`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gdlab.plan.dispatch import Dispatch, DispatchPhase
from gdlab.plan.kernel_digest import source_hash
from gdlab.plan.order import Footprint, Range, hazards, levels
from gdlab.plan.records import BarrierGroup, Hazard

PHASES: tuple[DispatchPhase, ...] = ("forward", "backward", "copy", "update")


def scheduled(
    dispatches: Sequence[Dispatch], serial: bool, reorder: bool = False, longest_first: bool = False
) -> tuple[list[int], list[int]]:
    """Return (order, group of each in that order): stably sorted by (phase, level); levels restart in every phase.

    `reorder`: levels run through all phases, so that a dispatch moves to the first group behind everything that it
    conflicts with. There are then as few groups as the longest chain of conflicts has dispatches, the least possible.
    `longest_first`: in a group those whose workgroups have most to do begin, so that short ones fill the gaps at its
    end. NVIDIA H200, µs on the GPU: an Adam step of `xfM` 13,447 in program order, 13,356 so, 13,571 the other way
    round, one of `xf` 472, 452, 484 (2026-11-28).
    """
    ranks = [0 if reorder else PHASES.index(d.phase) for d in dispatches]
    levels = _levels(dispatches, ranks)
    places = list(zip(ranks, levels, strict=True))
    work = [-d.flops / math.prod(d.workgroups) if longest_first else 0.0 for d in dispatches]
    order = sorted(range(len(dispatches)), key=lambda i: (*places[i], PHASES.index(dispatches[i].phase), work[i]))
    if serial:
        return order, list(range(len(order)))
    groups: list[int] = []
    for before, i in zip([-1, *order], order, strict=False):
        begins = before < 0 or places[before] != places[i]
        groups.append(len(groups) and groups[-1] + begins)
    return order, groups


def footprint_of(d: Dispatch) -> Footprint:
    """Return the ranges that a dispatch touches: whole buffers, each a memory of its own."""
    return Footprint(tuple(map(Range, d.reads)), tuple(map(Range, d.writes)))


def _levels(dispatches: Sequence[Dispatch], ranks: Sequence[int]) -> list[int]:
    """Return the level of each dispatch among those of its rank."""
    found = [0] * len(dispatches)
    for rank in dict.fromkeys(ranks):
        alike = [i for i, r in enumerate(ranks) if r == rank]
        for i, level in zip(alike, levels([footprint_of(dispatches[i]) for i in alike]), strict=True):
            found[i] = level
    return found


def before_reordering(
    dispatches: Sequence[Dispatch], order: Sequence[int], longest_first: bool = False
) -> tuple[tuple[int, ...], int]:
    """Return the place that each dispatch would have without reordering, and the number of groups without it."""
    usual, groups = scheduled(dispatches, serial=False, longest_first=longest_first)
    place = {dispatch: at for at, dispatch in enumerate(usual)}
    return tuple(place[i] for i in order), groups[-1] + 1 if groups else 0


def numbered(dispatches: Sequence[Dispatch], order: Sequence[int], groups: Sequence[int]) -> tuple[Dispatch, ...]:
    """Return the dispatches in order, with their index, group and digest of their source."""
    places = enumerate(zip(order, groups, strict=True))
    return tuple(
        replace(dispatches[i], index=index, group=group, source_hash=source_hash(dispatches[i]))
        for index, (i, group) in places
    )


def groups_of(dispatches: Sequence[Dispatch]) -> tuple[BarrierGroup, ...]:
    """Return the barrier groups of numbered dispatches, each with its conflicts with the group before it."""
    starts = [i for i, d in enumerate(dispatches) if i == 0 or d.group != dispatches[i - 1].group]
    found: list[BarrierGroup] = []
    for start, stop in zip(starts, [*starts[1:], len(dispatches)], strict=True):
        before = dispatches[found[-1].start : start] if found else ()
        found.append(BarrierGroup(start, stop, tuple(buffer_hazards(before, dispatches[start:stop]))))
    return tuple(found)


def buffer_hazards(before: Sequence[Dispatch], after: Sequence[Dispatch]) -> list[Hazard]:
    """Return every conflict of a later dispatch with an earlier one, with the buffer."""
    found = hazards([footprint_of(d) for d in before], [footprint_of(d) for d in after])
    return [Hazard(before[c.before].index, after[c.after].index, c.later.memory, c.kind) for c in found]
