"""Say in text what became of a list: `Report`, of `GraphSession.report`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gdlab.base.words import duration, plural
from gdlab.plan.order import hazards
from gdlab.record.graph import Grouping, Placed, grouping, spelled
from gdlab.record.ranges import predicted_device_barriers


@dataclass(frozen=True)
class Report:
    """A list of a session and what its finisher did with it.

    `names_before` and `names` are the nodes before and after the passes, `order[k]` the node (after fusion) that runs
    k-th where they were reordered; `placed_before` and `placed` their ranges; `chunks` the nodes of both submissions;
    `timing` (encoding, waiting) in nanoseconds.
    """

    finisher: str
    names_before: tuple[str, ...]
    names: tuple[str, ...]
    order: tuple[int, ...]
    placed_before: tuple[Placed, ...]
    placed: tuple[Placed, ...]
    fusions: int
    fused: tuple[Any, ...]
    fusion_misses: tuple[tuple[int, str], ...]
    reordered: int
    kept_order: str
    copies: int
    routes: tuple[tuple[str, str], ...]
    submissions: int
    chunks: tuple[int, int]
    timing: tuple[int, int] = (0, 0)

    @cached_property
    def before(self) -> Grouping:
        """Return the barrier groups before the passes."""
        return grouping(self.placed_before)

    @cached_property
    def after(self) -> Grouping:
        """Return the barrier groups after the passes."""
        return grouping(self.placed)

    @property
    def predicted_device_barriers(self) -> int:
        """Return how many barriers wgpu would place by itself."""
        return predicted_device_barriers(p.footprint for p in self.placed)

    def timed(self, encoding_ns: int, gpu_wait_ns: int) -> Report:
        """Return the report with its times."""
        return replace(self, timing=(encoding_ns, gpu_wait_ns))

    def __repr__(self) -> str:
        return f"<Report of {self.finisher}: {plural(len(self.names), 'node')}, {plural(self.fusions, 'fusion')}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def groups(self) -> list[list[int]]:
        """Return the places of the nodes by barrier group."""
        found, at = [], 0
        for size in self.after.sizes:
            found.append(list(range(at, at + size)))
            at += size
        return found

    def hazards(self) -> list[tuple[str, int, int, str]]:
        """Return (kind, earlier node, later node, the later one's range in words) of every pair of neighbouring groups'
        conflicts."""
        found: list[tuple[str, int, int, str]] = []
        for left, right in zip(self.groups(), self.groups()[1:], strict=False):
            of = hazards([self.placed[i].footprint for i in left], [self.placed[i].footprint for i in right])
            found += [(c.kind, left[c.before], right[c.after], spelled([c.later])) for c in of]
        return found

    def _lines(self) -> Iterator[str]:
        yield f"{self.finisher}: {plural(len(self.names), 'node')} in {plural(self.submissions, 'submission')}"
        yield f"groups {len(self.before.sizes)} → {len(self.after.sizes)}, " + (
            f"barriers {len(self.before.barriers)} → {len(self.after.barriers)}, "
            f"barriers that wgpu would place {self.predicted_device_barriers}"
        )
        yield f"fusions {self.fusions}, moved {self.reordered}, copies through scratch {self.copies}"
        for pair in self.fused:
            yield f"  fused: node {pair.norm} and node {pair.product}; not stored: {spelled([pair.dropped])}"
        for at, why in self.fusion_misses:
            yield f"  not fused: node {at}: {why}"
        if self.kept_order:
            yield f"  order kept: {self.kept_order}"
        moved = {i: k for k, i in enumerate(self.order) if i != k}
        places = {k: i for i, k in moved.items()}
        for number, group in enumerate(self.groups()):
            named = (f"{i} {self.names[i]}" + (f" (was {places[i]})" if i in places else "") for i in group)
            yield f"group {number}: " + ", ".join(named)
        for kind, earlier, later, words in self.hazards():
            yield f"  {kind}: node {earlier} → node {later}, bytes {words}"
        if self.chunks[1]:
            yield f"submitted in two: {self.chunks[0]} and {plural(self.chunks[1], 'node')}"
        for name, route in self.routes:
            yield f"route of {name}: {route}"
        encoding, waiting = (duration(ns * 1e-9) for ns in self.timing)
        yield f"time: {encoding} to the first submission, {waiting} behind the last"
