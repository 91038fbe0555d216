"""In which order dispatches run: conflicts, levels, and barrier groups with the reason that each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdlab.plan.dispatch import Dispatch, DispatchPhase
from gdlab.plan.records import Group, Hazard, HazardKind
from gdlab.plan.source import source_hash

PHASES: tuple[DispatchPhase, ...] = ("forward", "backward", "copy", "update")


def scheduled(dispatches: Sequence[Dispatch], serial: bool, reorder: bool = False) -> tuple[list[int], list[int]]:
    """(order, group of each in that order): stably sorted by (phase, level); levels restart in every phase.

    `reorder`: levels run through all phases, so that a dispatch moves to the first group behind everything that it
    conflicts with. There are then as few groups as the longest chain of conflicts has dispatches, the least possible.
    """
    ranks = [0 if reorder else PHASES.index(d.phase) for d in dispatches]
    levels = _levels(dispatches, ranks)
    places = list(zip(ranks, levels, strict=True))
    order = sorted(range(len(dispatches)), key=lambda i: (*places[i], PHASES.index(dispatches[i].phase)))
    if serial:
        return order, list(range(len(order)))
    groups: list[int] = []
    for before, i in zip([-1, *order], order, strict=False):
        begins = before < 0 or places[before] != places[i]
        groups.append(len(groups) and groups[-1] + begins)
    return order, groups


def _levels(dispatches: Sequence[Dispatch], ranks: Sequence[int]) -> list[int]:
    """1 + the highest level among earlier dispatches of the same rank that conflict."""
    written: dict[tuple[int, int], int] = {}  # (rank, buffer) → highest level of a writer
    read: dict[tuple[int, int], int] = {}
    levels = []
    for d, rank in zip(dispatches, ranks, strict=True):
        level = 0
        for b in d.reads:
            level = max(level, written.get((rank, b), 0))
        for b in d.writes:
            level = max(level, written.get((rank, b), 0), read.get((rank, b), 0))
        level += 1
        levels.append(level)
        for b in d.reads:
            read[rank, b] = max(level, read.get((rank, b), 0))
        for b in d.writes:
            written[rank, b] = max(level, written.get((rank, b), 0))
    return levels


def before_reordering(dispatches: Sequence[Dispatch], order: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """For each dispatch of a reordered plan the place that it would have else; and how many groups there would be."""
    usual, groups = scheduled(dispatches, serial=False)
    place = {dispatch: at for at, dispatch in enumerate(usual)}
    return tuple(place[i] for i in order), groups[-1] + 1 if groups else 0


def numbered(dispatches: Sequence[Dispatch], order: Sequence[int], groups: Sequence[int]) -> tuple[Dispatch, ...]:
    """The dispatches in order, with their index, group and digest of their source."""
    places = enumerate(zip(order, groups, strict=True))
    return tuple(
        replace(dispatches[i], index=index, group=group, source_hash=source_hash(dispatches[i]))
        for index, (i, group) in places
    )


def groups_of(dispatches: Sequence[Dispatch]) -> tuple[Group, ...]:
    """The barrier groups of numbered dispatches, each with its conflicts with the group before it."""
    starts = [i for i, d in enumerate(dispatches) if i == 0 or d.group != dispatches[i - 1].group]
    found: list[Group] = []
    for start, stop in zip(starts, [*starts[1:], len(dispatches)], strict=True):
        before = dispatches[found[-1].start : start] if found else ()
        found.append(Group(start, stop, tuple(hazards(before, dispatches[start:stop]))))
    return tuple(found)


def hazards(before: Sequence[Dispatch], after: Sequence[Dispatch]) -> list[Hazard]:
    """Every conflict of a later dispatch with an earlier one: read after write, write after read, write after write."""
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for d in before:
        for b in d.writes:
            writers.setdefault(b, []).append(d.index)
        for b in d.reads:
            readers.setdefault(b, []).append(d.index)
    found: list[Hazard] = []
    for d in after:
        kinds: tuple[tuple[HazardKind, tuple[int, ...], dict[int, list[int]]], ...] = (
            ("raw", d.reads, writers),
            ("war", d.writes, readers),
            ("waw", d.writes, writers),
        )
        for kind, buffers, earlier in kinds:
            found.extend(Hazard(other, d.index, b, kind) for b in buffers for other in earlier.get(b, ()))
    return found
