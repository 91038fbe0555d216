"""Place the buffers of a plan: permanent buffers in a column to scale, slots in rows beside it, memory over time.

The same numbers as `labextension/src/layout/slots.ts` and `mountain.ts`, with the kinds of few buffers open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.words import nbytes

LABEL, ABOVE = 14, 92  # height of a label; of memory over time, above the slots
THINNEST = 14  # of a slot, so that a name has room
_TALLEST, _LEAST = 72, 44  # of the largest slot
_ROOM = 402  # of column and rows
_GAP, _FEW = 4, 2  # between slots; buffers of a kind that are named

Interval = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """A permanent buffer: its part of the column, and the middle of its name (None: it has none)."""

    index: int
    top: float
    height: float
    label: float | None


@dataclass(frozen=True, slots=True)
class Stratum:
    """The buffers of a kind in the column; a single one has no label for the kind."""

    kind: str
    nbytes: int
    label: float | None
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of reusable memory and its tenants; `least`: height of a tenant, with room for a name unless tenants
    stand side by side."""

    label: str
    top: int
    height: int
    least: int
    tenants: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Column and slots in one scale: `unit` pixels per byte; `always` are the bytes of the column."""

    unit: float
    strata: tuple[Stratum, ...]
    always: int
    rows: tuple[SlotRow, ...]
    height: int


@dataclass(frozen=True, slots=True)
class Band:
    """A tensor in memory over time: from dispatch `start` on, `below[i]` bytes lie under it at dispatch `start + i`."""

    index: int
    nbytes: int
    start: int
    below: tuple[int, ...]


def is_pinned(interval: Interval) -> bool:
    """Return whether a buffer is there during the whole step."""
    return interval["pinned"] is not None or interval["first"] < 0


def arrange(intervals: Sequence[Interval], slots: Sequence[Interval]) -> Arrangement:
    """Place column and slots at the largest scale at which the column and the highest slot have room, or a smaller one
    that makes room for all slots."""
    always = sum(each["padded"] for each in intervals if is_pinned(each))
    sizes = [s["nbytes"] for s in slots if any(not is_pinned(intervals[i]) for i in s["tenants"])]
    largest = max(sizes, default=0)
    unit = min(_ROOM / max(1, always), _TALLEST / max(1, largest))
    over = _end(_rows(intervals, slots, unit)) - _ROOM
    tall = sum(size * unit > _LEAST for size in sizes)
    if 0 < over <= tall * (largest * unit - _LEAST):
        unit = max(_LEAST, largest * unit - math.ceil(over / tall)) / largest
    strata, rows = _strata(intervals, unit), _rows(intervals, slots, unit)
    labels = [label for s in strata for label in (s.label, *(each.label for each in s.segments)) if label is not None]
    height = max([always * unit, _end(rows), *(label + LABEL / 2 for label in labels)])
    return Arrangement(unit, strata, always, rows, math.ceil(height))


def mountain(intervals: Sequence[Interval], groups: Sequence[Interval], count: int) -> list[Band]:
    """Return memory over time above the permanent buffers, tensors in the order of their first dispatch.

    A barrier group runs as one: what lives at one of its `count` dispatches lives at all of them.
    """
    live = [0] * count
    first_of = {k: (g["start"], g["stop"]) for g in groups for k in range(g["start"], g["stop"])}
    order = sorted((each["first"], i) for i, each in enumerate(intervals) if not is_pinned(each))
    bands = []
    for first, i in order:
        last, size = intervals[i]["last"], intervals[i]["padded"]
        start, stop = first_of.get(first, (first, 0))[0], first_of.get(last, (0, last + 1))[1]
        bands.append(Band(i, size, start, tuple(live[start:stop])))
        live[start:stop] = [under + size for under in live[start:stop]]
    return bands


def _end(rows: Sequence[SlotRow]) -> int:
    return rows[-1].top + rows[-1].height if rows else 0


def _rows(intervals: Sequence[Interval], slots: Iterable[Interval], unit: float) -> tuple[SlotRow, ...]:
    """Place slots from top to bottom, largest first."""
    found = [
        (s, slot, tuple(i for i in slot["tenants"] if not is_pinned(intervals[i]))) for s, slot in enumerate(slots)
    ]
    rows, top = list[SlotRow](), ABOVE
    for s, slot, tenants in sorted((each for each in found if each[2]), key=lambda each: -each[1]["nbytes"]):
        height = max(THINNEST, math.floor(slot["nbytes"] * unit + 0.5))
        least = 1 if any(intervals[i]["offset"] for i in tenants) else THINNEST - 2
        rows.append(SlotRow(f"slot {s} · {nbytes(slot['nbytes'])}", top, height, least, tenants))
        top += height + _GAP
    return tuple(rows)


class _Labels:
    """Labels of equal height below each other, each as near to its part as the labels above allow."""

    def __init__(self) -> None:
        self.free = LABEL / 2

    def place(self, middle: float) -> float:
        """Return the middle of the next label."""
        at = max(self.free, middle)
        self.free = at + LABEL
        return at


def _strata(intervals: Sequence[Interval], unit: float) -> tuple[Stratum, ...]:
    """Return the column: kinds, largest first, each with its buffers, largest first."""
    kinds: dict[str, list[int]] = {}
    for i, each in enumerate(intervals):
        if is_pinned(each):
            kinds.setdefault(each["kind"], []).append(i)
    sizes = {kind: sum(intervals[i]["padded"] for i in members) for kind, members in kinds.items()}
    labels, top = _Labels(), 0.0
    strata = []
    for kind in sorted(kinds, key=lambda kind: -sizes[kind]):
        members = sorted(kinds[kind], key=lambda i: (-intervals[i]["padded"], i))
        named, alone = len(members) <= _FEW, len(members) == 1
        label = None if alone else labels.place(top + (LABEL / 2 if named else sizes[kind] * unit / 2))
        segments = []
        for i in members:
            height = intervals[i]["padded"] * unit
            segments.append(Segment(i, top, height, labels.place(top + height / 2) if named else None))
            top += height
        strata.append(Stratum(kind, sizes[kind], label, tuple(segments)))
    return tuple(strata)
