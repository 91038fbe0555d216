"""Check an order of nodes by the values that each would read and write: `violation(nodes, order)`.

This module shares nothing with the tracker of conflicts and the passes that it judges: it replays both orders on the
parts into which all ranges cut memory, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int, int]  # memory, first byte, byte behind the last
Launch = tuple[Sequence[Interval], Sequence[Interval], bool, bool]  # reads, writes, opaque, behind a fence


def violation(launches: Sequence[Launch], order: Sequence[int]) -> str:
    """Return the error of running `order[0]`, `order[1]`, … instead of 0, 1, …; an empty string if there is none.

    Every part that a launch reads must have the same last writer, every part that it writes the same last writer and
    the same readers since. An opaque launch touches everything; launches stay between the fences where they were.
    """
    if sorted(order) != list(range(len(launches))):
        return "an order that leaves out launches, or has some twice"
    crossed = _fence_crossed(launches, order)
    if crossed:
        return crossed
    parts = _parts_of(launches)
    before, after = _replay(parts, range(len(launches))), _replay(parts, order)
    for launch in range(len(launches)):
        if before[launch] != after[launch]:
            return _difference(launch, before[launch], after[launch])
    return ""


NOBODY: frozenset[int] = frozenset()
Seen = tuple[tuple[int, int | None, frozenset[int]], ...]  # (part, last writer, readers since) of one launch


def _fence_crossed(launches: Sequence[Launch], order: Sequence[int]) -> str:
    section, sections = 0, []
    for _, _, _, fenced in launches:
        section += fenced
        sections.append(section)
    for place, launch in enumerate(order):
        if sections[launch] != sections[place]:
            return f"node {launch} on the other side of a fence, at place {place}"
    return ""


def _parts_of(launches: Sequence[Launch]) -> list[tuple[list[int], list[int]]]:
    """Return the parts that every launch reads and writes, as numbers; all opaque launches share part 0."""
    cuts: dict[int, set[int]] = {}
    for reads, writes, _, _ in launches:
        for memory, start, stop in (*reads, *writes):
            if start < stop:
                cuts.setdefault(memory, set()).update((start, stop))
    number, places = 1, {}
    for memory, ends in cuts.items():
        found = sorted(ends)
        places[memory] = {end: number + i for i, end in enumerate(found)}
        number += len(found)

    def numbers(ranges: Iterable[Interval]) -> list[int]:
        hit: dict[int, None] = {}
        for memory, start, stop in ranges:
            if start < stop:
                at = places[memory]
                hit.update(dict.fromkeys(range(at[start], at[stop])))
        return list(hit)

    everything = list(range(number))
    found_parts = []
    for reads, writes, opaque, _ in launches:
        if opaque:
            found_parts.append((everything, everything))
        else:
            found_parts.append(([*numbers(reads), 0], numbers(writes)))
    return found_parts


def _replay(parts: Sequence[tuple[list[int], list[int]]], order: Iterable[int]) -> list[Seen]:
    """Return the last writer of every part of a launch, and the readers since, when they run in this order."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found: list[Seen] = [()] * len(parts)
    for launch in order:
        reads, writes = parts[launch]
        seen = [(p, writer.get(p), NOBODY) for p in reads]
        seen += [(p, writer.get(p), frozenset(readers.get(p, ()))) for p in writes]
        found[launch] = tuple(seen)
        for p in reads:
            readers.setdefault(p, []).append(launch)
        for p in writes:
            writer[p] = launch
            readers[p] = []
    return found


def _difference(launch: int, before: Seen, after: Seen) -> str:
    for (_, wrote, read), (_, writes, reads) in zip(before, after, strict=True):
        if wrote != writes:
            return f"node {launch} after the write of {_named(writes)} instead of {_named(wrote)}"
        if read != reads:
            return f"node {launch} overwrites before or after other readers: {sorted(reads)} instead of {sorted(read)}"
    return f"node {launch} finds something else"


def _named(writer: int | None) -> str:
    return "none" if writer is None else f"node {writer}"
