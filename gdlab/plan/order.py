"""Order launches by the ranges of memory that they touch: hazards, levels, barrier groups, and the critical path.

Two launches conflict where a range of one overlaps a range of the other in the same memory and one of the two ranges is
written: read after write (raw), write after read (war), write after write (waw). A launch never conflicts with itself:
a range that it reads and writes is in place. Every function takes launches in the order in which the program states
them, and its time grows with their ranges (times a logarithm, where a memory is touched in parts) and with what it
returns, not with their pairs.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gdlab.plan.records import HazardKind

END = sys.maxsize  # behind the last element of any memory


class Range(NamedTuple):
    """The part start … stop − 1 of one memory, in bytes or in elements; without bounds all of it. An empty range
    conflicts with nothing."""

    memory: int
    start: int = 0
    stop: int = END

    def overlaps(self, other: Range) -> bool:
        """Return whether the two ranges share an element."""
        return self.memory == other.memory and max(self.start, other.start) < min(self.stop, other.stop)


class Footprint(NamedTuple):
    """The ranges that one launch reads and writes."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


class Conflict(NamedTuple):
    """The reason why launch `after` waits for launch `before`: its range `later` overlaps that one's `earlier`."""

    kind: HazardKind
    before: int
    after: int
    earlier: Range
    later: Range


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The most expensive chain of launches, each in conflict with the one before it, and the sum of their costs."""

    cost: float
    launches: tuple[int, ...]


# hazards --------------------------------------------------------------------------------------------------------------
def hazards(before: Sequence[Footprint], after: Sequence[Footprint]) -> list[Conflict]:
    """Return every conflict of a launch of `after` with one of `before`, by the places of both in their sequences.

    Order: the later launch; raw, war, waw; the range of the later launch; the earlier launch.
    """
    written, read = _entries([f.writes for f in before]), _entries([f.reads for f in before])
    found: list[Conflict] = []
    for launch, (reads, writes) in enumerate(after):
        kinds: tuple[tuple[HazardKind, tuple[Range, ...], dict[int, _Entries]], ...] = (
            ("raw", reads, written),
            ("war", writes, read),
            ("waw", writes, written),
        )
        for kind, ranges, earlier in kinds:
            for r in ranges:
                if r.memory in earlier:
                    found.extend(Conflict(kind, i, launch, other, r) for i, other in earlier[r.memory].over(r))
    return found


class _Entries:
    """An index of the (launch, range) entries of one memory, in order of the launches; `over` finds those that overlap
    a range by a tree: leaves ordered by start, nodes with the highest stop below them."""

    def __init__(self, entries: Sequence[tuple[int, Range]]) -> None:
        self.entries = entries
        self.alike = len({r for _, r in entries}) == 1  # as in every plan
        if self.alike:
            return
        self.by_start = sorted(range(len(entries)), key=lambda i: entries[i][1].start)
        self.starts = [entries[i][1].start for i in self.by_start]
        self.leaves = 1 << (len(entries) - 1).bit_length()
        self.highest = [-END] * (2 * self.leaves)
        self.highest[self.leaves : self.leaves + len(entries)] = [entries[i][1].stop for i in self.by_start]
        for node in range(self.leaves - 1, 0, -1):
            self.highest[node] = max(self.highest[2 * node], self.highest[2 * node + 1])

    def over(self, r: Range) -> Iterable[tuple[int, Range]]:
        """Return the entries that overlap `r`, in their order."""
        if self.alike:
            return self.entries if self.entries[0][1].overlaps(r) else ()
        found = (i for i in self._reaching(r) if self.entries[i][1].overlaps(r))
        return [self.entries[i] for i in sorted(found)]

    def _reaching(self, r: Range) -> Iterator[int]:
        """Yield the entries that start before the end of `r` and stop after its start."""
        count = bisect_left(self.starts, r.stop)
        waiting = [(1, 0, self.leaves)]  # node, its first leaf, its leaves
        while waiting:
            node, first, leaves = waiting.pop()
            if first >= count or self.highest[node] <= r.start:
                continue
            if leaves == 1:
                yield self.by_start[first]
                continue
            half = leaves // 2
            waiting += [(2 * node, first, half), (2 * node + 1, first + half, half)]


def _entries(touched: Sequence[tuple[Range, ...]]) -> dict[int, _Entries]:
    found: dict[int, list[tuple[int, Range]]] = {}
    for launch, ranges in enumerate(touched):
        for r in ranges:
            found.setdefault(r.memory, []).append((launch, r))
    return {memory: _Entries(entries) for memory, entries in found.items()}


# levels and the critical path -----------------------------------------------------------------------------------------
def levels(footprints: Sequence[Footprint]) -> list[int]:
    """Return for each launch 1 + the highest level of an earlier one that it conflicts with, else 1.

    Launches of one level have no conflicts. No order of the launches has fewer barrier groups than there are levels.
    """
    return [chain.launches for chain in _chains(footprints, [0.0] * len(footprints))]


def critical_path(footprints: Sequence[Footprint], costs: Sequence[float] | None = None) -> CriticalPath:
    """Return the most expensive chain of conflicts (the first to end, if several); `costs`: a number ≥ 0 per launch,
    else 1 each."""
    chains = _chains(footprints, [1.0] * len(footprints) if costs is None else costs)
    if not chains:
        return CriticalPath(0.0, ())
    place = max(range(len(chains)), key=lambda i: (chains[i].cost, -i))
    cost, found = chains[place].cost, [place]
    while (place := chains[place].before) >= 0:
        found.append(place)
    return CriticalPath(cost, tuple(reversed(found)))


class _ConflictChain(NamedTuple):
    """A chain of conflicts, compared by its cost, then its number of launches, then minus the number of its last launch
    (of equal chains the earlier one is the greater); with the launch before that, or −1."""

    cost: float
    launches: int
    last: int
    before: int


_NOTHING = _ConflictChain(0.0, 0, 1, -1)


def _chains(footprints: Sequence[Footprint], costs: Sequence[float]) -> list[_ConflictChain]:
    """Return for each launch the most expensive chain that ends with it; of equally expensive ones the longest."""
    stores = _stores(footprints)
    found: list[_ConflictChain] = []
    for launch, ((reads, writes), own) in enumerate(zip(footprints, costs, strict=True)):
        ends = [stores[r][0].highest(r) for r in reads]
        for r in writes:
            written, read = stores[r]
            ends += written.highest(r), read.highest(r)
        cost, launches, last, _ = max(ends, default=_NOTHING)
        chain = _ConflictChain(cost + own, launches + 1, -launch, -last)
        found.append(chain)
        for r in reads:
            stores[r][1].put(r, chain)
        for r in writes:
            stores[r][0].put(r, chain)
    return found


def _stores(footprints: Sequence[Footprint]) -> dict[Range, tuple[_OneEnd | _Ends, _OneEnd | _Ends]]:
    """Return for each range the chains that write and those that read it; overlapping ranges have the same ones."""
    found: dict[Range, tuple[_OneEnd | _Ends, _OneEnd | _Ends]] = {}
    for together in _overlapping({r for reads, writes in footprints for r in (*reads, *writes)}):
        if len(together) == 1:
            found[together[0]] = _OneEnd(), _OneEnd()
        else:
            found |= dict.fromkeys(together, (_Ends(together), _Ends(together)))
    return found


def _overlapping(ranges: set[Range]) -> Iterator[list[Range]]:
    """Yield groups of ranges, where no range overlaps one of another group; an empty range is alone."""
    together: list[Range] = []
    stop = 0
    for r in sorted(ranges):
        if r.start >= r.stop:
            yield [r]
            continue
        if together and (r.memory != together[0].memory or r.start >= stop):
            yield together
            together = []
        stop = max(stop, r.stop) if together else r.stop
        together.append(r)
    if together:
        yield together


class _OneEnd:
    """The highest chain over a range that is only touched as a whole."""

    def __init__(self) -> None:
        self.best = _NOTHING

    def highest(self, r: Range) -> _ConflictChain:
        """Return the highest chain that touches `r`."""
        return self.best

    def put(self, r: Range, chain: _ConflictChain) -> None:
        """Record that a chain touches `r`."""
        if chain > self.best and r.start < r.stop:
            self.best = chain


class _Ends:
    """The highest chains over overlapping ranges: a tree over the parts into which these cut one another. `whole[n]`:
    what touches all of node n; `below[n]`: the highest that touches any part of it."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        cuts = sorted({cut for r in ranges for cut in (r.start, r.stop)})
        self.parts = 1 << (len(cuts) - 1).bit_length()
        self.leaf = {cut: self.parts + i for i, cut in enumerate(cuts)}
        self.whole = [_NOTHING] * (2 * self.parts)
        self.below = [_NOTHING] * (2 * self.parts)

    def highest(self, r: Range) -> _ConflictChain:
        """Return the highest chain that touches `r`."""
        best = _NOTHING
        for node in (self.leaf[r.start], self.leaf[r.stop] - 1):
            while node:
                best = max(best, self.whole[node])
                node //= 2
        return max(best, *(self.below[node] for node in self._nodes(r)))

    def put(self, r: Range, chain: _ConflictChain) -> None:
        """Record that a chain touches `r`."""
        for node in self._nodes(r):
            self.whole[node] = max(self.whole[node], chain)
            while node and self.below[node] < chain:
                self.below[node] = chain
                node //= 2

    def _nodes(self, r: Range) -> Iterator[int]:
        """Yield the nodes that make up `r`, at most two of each size."""
        left, right = self.leaf[r.start], self.leaf[r.stop]
        while left < right:
            if left % 2:
                yield left
                left += 1
            if right % 2:
                right -= 1
                yield right
            left, right = left // 2, right // 2


# barrier groups -------------------------------------------------------------------------------------------------------
class ConflictTracker:
    """The launches of the current barrier group, which tells whether one more conflicts with them."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, Footprint]] = []
        self._read: dict[int, Range | _Covered] = {}  # by memory; one range as it is, which most groups have
        self._written: dict[int, Range | _Covered] = {}

    def add(self, launch: int, footprint: Footprint) -> None:
        """Add a launch to the group, whether or not it conflicts."""
        self.launches.append((launch, footprint))
        for ranges, covered in ((footprint.reads, self._read), (footprint.writes, self._written)):
            for r in ranges:
                memory, start, stop = r
                if start < stop:
                    known = covered.get(memory)
                    if known is None:
                        covered[memory] = r
                    elif isinstance(known, Range):
                        if known != r:
                            covered[memory] = both = _Covered(known.start, known.stop)
                            both.add(r)
                    else:
                        known.add(r)

    def conflicts(self, footprint: Footprint) -> bool:
        """Return whether a launch with these ranges conflicts with the group."""
        written, read = self._written, self._read
        if not written and not read:
            return False
        for r in footprint.reads:  # loops, as every op of a session comes by
            memory, start, stop = r
            known = written.get(memory)
            if known is not None and (
                start < stop and start < known[2] and known[1] < stop if isinstance(known, Range) else known.meets(r)
            ):
                return True
        for r in footprint.writes:
            memory, start, stop = r
            for covered in (written, read):
                known = covered.get(memory)
                if known is not None and (
                    start < stop and start < known[2] and known[1] < stop
                    if isinstance(known, Range)
                    else known.meets(r)
                ):
                    return True
        return False

    def first(self, launch: int, footprint: Footprint) -> Conflict | None:
        """Return the conflict to report for a launch: raw before waw before war, then its first range, then the
        earliest launch of the group; None where there is none. It looks at the whole group where there is one."""
        return self.first_known(launch, footprint) if self.conflicts(footprint) else None

    def first_known(self, launch: int, footprint: Footprint) -> Conflict | None:
        """Return `first` of a launch that is known to conflict."""
        kinds: tuple[tuple[HazardKind, tuple[Range, ...], bool], ...] = (
            ("raw", footprint.reads, True),
            ("waw", footprint.writes, True),
            ("war", footprint.writes, False),
        )
        for kind, ranges, writes in kinds:
            for r in ranges:
                memory, start, stop = r
                for i, other in self.launches:
                    for earlier in other.writes if writes else other.reads:
                        if earlier[0] == memory and start < earlier[2] and earlier[1] < stop and earlier.overlaps(r):
                            return Conflict(kind, i, launch, earlier, r)
        return None

    def reset(self) -> None:
        """Begin a new group without launches."""
        self.launches, self._read, self._written = [], {}, {}


class _Covered:
    """The covered part of one memory: ranges in order that do not touch one another; at first one, not empty."""

    __slots__ = ("starts", "stops")

    def __init__(self, start: int, stop: int) -> None:
        self.starts, self.stops = [start], [stop]

    def add(self, r: Range) -> None:
        """Cover one more range; join it with those that it overlaps or touches."""
        first, behind = bisect_left(self.stops, r.start), bisect_right(self.starts, r.stop)
        joined = first < behind
        start = min(r.start, self.starts[first]) if joined else r.start
        stop = max(r.stop, self.stops[behind - 1]) if joined else r.stop
        self.starts[first:behind], self.stops[first:behind] = [start], [stop]

    def meets(self, r: Range) -> bool:
        """Return whether a range overlaps the covered part."""
        at = bisect_right(self.stops, r.start)
        return at < len(self.starts) and max(self.starts[at], r.start) < min(self.stops[at], r.stop)


# neighbours -----------------------------------------------------------------------------------------------------------
def conflicts_within(footprints: Sequence[Footprint], window: int) -> list[list[int]]:
    """Return for each launch the later ones, at most `window` after it, that it conflicts with."""
    touched: dict[int, list[tuple[int, int, int, bool]]] = {}
    for launch, (reads, writes) in enumerate(footprints):
        for ranges, written in ((reads, False), (writes, True)):
            for memory, start, stop in ranges:
                if start < stop:
                    touched.setdefault(memory, []).append((launch, start, stop, written))
    found: list[set[int]] = [set() for _ in footprints]
    for uses in touched.values():
        if any(written for *_, written in uses):
            _pair(uses, window, found)
    return [sorted(later) for later in found]


def _pair(uses: Sequence[tuple[int, int, int, bool]], window: int, found: list[set[int]]) -> None:
    """Record the conflicts among the uses of one memory, given in order of their launches."""
    for at, (launch, start, stop, written) in enumerate(uses):
        for k in range(at + 1, len(uses)):
            other, first, last, writes = uses[k]
            if other > launch + window:
                break
            if other != launch and (written or writes) and start < last and first < stop:
                found[launch].add(other)
