"""Describe a list before and after each pass: groups, conflicts, moves, and the reasons why nodes stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gdlab.base.words import plural
from gdlab.plan.order import hazards
from gdlab.plan.records import HazardKind
from gdlab.record.compute_graph import GroupFacts, Grouping, grouping, spelled


class ListConflict(NamedTuple):
    """A conflict of nodes of neighbouring groups, by their places in the list; `words`: the later one's bytes."""

    kind: HazardKind
    before: int
    after: int
    words: str
    memory: int


@dataclass(frozen=True)
class ListStage:
    """A list as a pass left it. `sources[k]`: the places in the stage before of what is node k here (two of a fused
    node, none in the first stage); `moving`: whether a pass looked for earlier groups."""

    title: str
    names: tuple[str, ...]
    placed: tuple[GroupFacts, ...]
    sources: tuple[tuple[int, ...], ...] = ()
    moving: bool = False

    @cached_property
    def grouping(self) -> Grouping:
        """Return sizes of the barrier groups, and where barriers stand."""
        return grouping(self.placed)

    @cached_property
    def groups(self) -> tuple[range, ...]:
        """Return the places of the nodes by barrier group."""
        found, at = list[range](), 0
        for size in self.grouping.sizes:
            found.append(range(at, at + size))
            at += size
        return tuple(found)

    @cached_property
    def hazards(self) -> tuple[ListConflict, ...]:
        """Return the conflicts of neighbouring groups."""
        found = list[ListConflict]()
        for left, right in zip(self.groups, self.groups[1:], strict=False):
            of = hazards([self.placed[i].footprint for i in left], [self.placed[i].footprint for i in right])
            found += [
                ListConflict(c.kind, left[c.before], right[c.after], spelled([c.later]), c.later.memory) for c in of
            ]
        return tuple(found)

    @cached_property
    def moved(self) -> dict[int, int]:
        """Return for each moved node its earlier place; that of a fused one is the place of its first part."""
        shift, found = 0, dict[int, int]()
        for k, origin in enumerate(self.sources):
            if len(origin) == 1 and origin[0] != k + shift:
                found[k] = origin[0]
            shift += len(origin) - 1
        return found

    @cached_property
    def stays(self) -> tuple[str, ...]:
        """Return in words, for every node, why it is in no earlier group; empty in the first group."""
        first = {h.after: h for h in reversed(self.hazards)}
        words = [""] * len(self.names)
        for number, group in enumerate(self.groups):
            for k in group if number else ():
                words[k] = self._why(k, group, first.get(k))
        return tuple(words)

    def _why(self, k: int, group: range, hazard: ListConflict | None) -> str:
        fence = next((i for i in range(group.start, k + 1) if self.placed[i].fence), None)
        if fence is not None:
            return "a fence stands before it" if fence == k else f"a fence stands before node {fence}"
        opaque = next((i for i in (k, group.start - 1) if self.placed[i].opaque), None)
        if opaque is not None:
            return f"node {opaque} is opaque: it conflicts with everything"
        if hazard is not None:
            return f"{hazard.kind} with node {hazard.before}, bytes {hazard.words}"
        if self.moving:
            return "the look-ahead did not reach it: softmax, sdpa or 63 nodes end it"
        return "nothing moves nodes here, and a node before it begins the group"

    def lines(self) -> Iterator[str]:
        """Return groups, moves and conflicts in words, a line each."""
        for number, group in enumerate(self.groups):
            named = (f"{i} {self.names[i]}" + (f" (was {self.moved[i]})" if i in self.moved else "") for i in group)
            yield f"group {number}: " + ", ".join(named)
        for h in self.hazards:
            yield f"  {h.kind}: node {h.before} → node {h.after}, bytes {h.words}"

    def further(self) -> Iterator[str]:
        """Return in words, for every node after the first group, why it is in no earlier one."""
        for k, why in enumerate(self.stays):
            if why:
                yield f"  node {k} {self.names[k]}: {why}"

    def fact(self) -> str:
        """Count nodes, groups and barriers."""
        counts = plural(len(self.names), "node"), plural(len(self.groups), "group")
        return f"{', '.join(counts)}, {plural(len(self.grouping.barriers), 'barrier')}"
