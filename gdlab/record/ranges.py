"""Track the barrier groups of a list while it is encoded: conflicts, barriers, their causes, sizes, time."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gdlab.base.errors import ArgumentError, SessionError, ShapeError, UnderDeclaredWarning
from gdlab.plan.order import Conflict, ConflictTracker, Footprint, Range
from gdlab.plan.records import HazardKind
from gdlab.record.buffers import Buffer, integer
from gdlab.record.compute_graph import Node

LARGEST = 8  # groups of so many nodes and more are counted together


class LoggedBarrier(NamedTuple):
    """A barrier and its cause: the range `new` of the `node` after it conflicts with `earlier`, of node `before`."""

    node: int
    kind: HazardKind
    new: Range
    before: int
    earlier: Range


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Nodes, barriers and groups of a list, nodes per group, and groups by size ("8+": 8 and more)."""

    dispatches: int
    barriers: int
    groups: int
    ratio: float
    histogram: dict[str, int]

    def __str__(self) -> str:
        lines = [
            f"  [GROUP_STATS] dispatches={self.dispatches} barriers={self.barriers} groups={self.groups} "
            f"ratio={self.ratio:.2f}"
        ]
        lines += [f"    size {size}: {count} groups" for size, count in self.histogram.items()]
        return "\n".join(lines)


def group_stats(sizes: Iterable[int], barriers: int) -> GroupStats:
    """Return the statistics of groups of these sizes."""
    found = [s for s in sizes if s]
    counted = Counter(min(s, LARGEST) for s in found)
    named = {f"{s}+" if s == LARGEST else str(s): counted[s] for s in sorted(counted)}
    total = sum(found)
    return GroupStats(total, barriers, len(found), total / len(found) if found else 0.0, named)


@dataclass(slots=True)
class Tracking:
    """The current group of a session. `barriers` counts both kinds; `log` says why those of conflicts stand."""

    strict: bool
    barriers: int = 0
    log: list[LoggedBarrier] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])
    nanoseconds: int = 0
    fence: bool = False  # before the next node
    after_opaque: bool = False
    pending: Footprint | None = None  # declared for the next node
    joined: bool = False  # ranges of the next node are in the group already
    warned: set[str] = field(default_factory=set)
    tracker: ConflictTracker = field(default_factory=ConflictTracker)

    def spent(self, since: int) -> None:
        """Count time in checks."""
        self.nanoseconds += max(1, time.perf_counter_ns() - since)

    def barrier(self) -> None:
        """Insert a barrier that is a fence."""
        begun = time.perf_counter_ns()
        self.barriers += 1
        self._begin_group()
        self.fence = True
        self.spent(begun)

    def between(self, node: int, declared: Footprint) -> None:
        """Declare ranges of the next node, and insert a barrier if they conflict with the group."""
        begun = time.perf_counter_ns()
        if self.pending is not None:
            self.tracker.add(node, self.pending)
            self.joined = True
        found = self.tracker.first(node, declared)
        if found is not None:
            self._insert(found)
        elif self.after_opaque:
            self._after_opaque()
        old = self.pending
        self.pending = declared if old is None else Footprint(old.reads + declared.reads, old.writes + declared.writes)
        self.spent(begun)

    def track(self, node: int, more: Footprint) -> None:
        """Add ranges to the group unchecked."""
        begun = time.perf_counter_ns()
        self.tracker.add(max(node, 0), more)
        self.spent(begun)

    def check_declared(self, index: int, node: Node, automatic: bool) -> Conflict | None:
        """Return the undeclared conflict of a node with its group; under `strict` raise it."""
        if self.joined:  # by `between`, which must not conflict with its own node
            tracker = ConflictTracker()
            for launch, footprint in self.tracker.launches:
                if launch != index:
                    tracker.add(launch, footprint)
            found = tracker.first(index, node.footprint)
        else:
            found = self.tracker.first_known(index, node.footprint)
        if found is not None and not automatic and self.strict:
            given = (
                f"{found.kind} conflict of {_words(found.later)} with {_words(found.earlier)} of node {found.before}"
            )
            raise SessionError(node.name, "declared ranges", given, "barrier_between with all ranges of the op")
        return found

    def add(self, index: int, node: Node, automatic: bool) -> None:
        """Add a node to the group, after a barrier if it needs one."""
        begun = time.perf_counter_ns()
        tracker, footprint = self.tracker, node.footprint
        if self.joined or tracker.conflicts(footprint):
            found = self.check_declared(index, node, automatic)
            if found is not None:
                self._insert(found)
                if not automatic and node.kind not in self.warned:
                    self._warn(node, found)
        if (node.opaque or self.after_opaque) and self.sizes[-1]:
            self._after_opaque()
        self.after_opaque = node.opaque
        tracker.add(index, footprint)
        self.sizes[-1] += 1
        self.pending, self.joined, self.fence = None, False, False
        self.nanoseconds += time.perf_counter_ns() - begun or 1

    def _warn(self, node: Node, found: Conflict) -> None:
        self.warned.add(node.kind)
        text = (
            f"{node.name}: declared ranges: given none that cover {_words(found.later)}, which conflicts with "
            f"{_words(found.earlier)} of node {found.before}; a barrier was inserted"
        )
        warnings.warn(text, UnderDeclaredWarning, stacklevel=_caller_level())

    def _after_opaque(self) -> None:
        self.barriers += 1
        self._begin_group()
        self.after_opaque = False

    def _insert(self, found: Conflict) -> None:
        self.barriers += 1
        self.log.append(LoggedBarrier(found.after, found.kind, found.later, found.before, found.earlier))
        self._begin_group()
        self.after_opaque = False

    def _begin_group(self) -> None:
        self.tracker.reset()
        self.joined = False
        if self.sizes[-1]:
            self.sizes.append(0)


def _caller_level() -> int:
    """Return the `stacklevel` of the first caller outside this room, counted from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gdlab.record"):
        level, frame = level + 1, frame.f_back
    return level


def _words(r: Range) -> str:
    return f"bytes {r.start} … {r.stop} of allocation {r.memory}"


def ranges_of(where: str, what: str, entries: Any) -> tuple[Range, ...]:
    """Return the ranges of buffers, views and (buffer, start, end)."""
    if not isinstance(entries, (list, tuple)):
        raise ArgumentError(where, what, type(entries).__name__, "a list of buffers or (buffer, start, end)")
    return tuple([e.range if e.__class__ is Buffer else _range_of(where, what, e) for e in entries])


def _range_of(where: str, what: str, entry: Any) -> Range:
    if isinstance(entry, Buffer):
        return entry.range
    if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], Buffer):
        raise ArgumentError(where, what, f"{entry!r:.80}", "a buffer or (buffer, start, end)")
    buffer, start, stop = entry[0], integer(where, what, entry[1], 0), integer(where, what, entry[2], 0)
    if not start <= stop <= buffer.nbytes:
        raise ShapeError(where, what, f"bytes {start} … {stop}", f"a range of 0 … {buffer.nbytes}")
    return Range(buffer.allocation.number, buffer.byte_offset + start, buffer.byte_offset + stop)


def predicted_device_barriers(touched: Iterable[Footprint]) -> int:
    """Return the number of launches that wgpu would put a barrier before: those that use an allocation otherwise than
    its last user did, or write what that wrote. Whole allocations, whatever the ranges."""
    last, found = dict[int, str](), 0
    for reads, writes in touched:
        use = {r.memory: "read" for r in reads}
        use |= {r.memory: "write" for r in writes}
        found += any(m in last and (last[m] != u or u == "write") for m, u in use.items())
        last |= use
    return found
