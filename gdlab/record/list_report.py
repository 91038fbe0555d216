"""Report on a list in text: `Report`, of `GraphSession.report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gdlab.base.binding import bound
from gdlab.base.words import duration, plural
from gdlab.plan.order import CriticalPath, critical_path
from gdlab.record.compute_graph import GroupFacts, Grouping, Sketch, grouping, spelled
from gdlab.record.list_stages import ListStage
from gdlab.record.ranges import predicted_device_barriers

PATH = 24  # nodes of the critical path that the text names


@bound
@dataclass(frozen=True)
class Report:
    """A list of a session, and the changes that its finisher made.

    `names_before` and `names` are the nodes before and after the passes, `order[k]` the node (after fusion) that runs
    k-th where they were reordered; `placed_before` and `placed` their ranges; `chunks` the nodes of both submissions;
    `recorded` the nodes as they were encoded; `between` the list between fusion and reordering, where both changed it;
    `labels` those of allocations; `timing` (encoding, waiting) in nanoseconds. `doc` is its document, for views.
    """

    finisher: str
    names_before: tuple[str, ...]
    names: tuple[str, ...]
    order: tuple[int, ...]
    placed_before: tuple[GroupFacts, ...]
    placed: tuple[GroupFacts, ...]
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
    between: tuple[tuple[str, ...], tuple[GroupFacts, ...]] | None = None
    labels: Mapping[int, str] = field(default_factory=dict)
    recorded: tuple[Sketch, ...] = field(default=(), repr=False)

    @cached_property
    def before(self) -> Grouping:
        """Return the barrier groups before the passes."""
        return grouping(self.placed_before)

    @cached_property
    def after(self) -> Grouping:
        """Return the barrier groups after the passes."""
        return grouping(self.placed)

    @cached_property
    def stages(self) -> tuple[ListStage, ...]:
        """Return the list as recorded, and after each pass that changed it."""
        found = [ListStage("As recorded", self.names_before, self.placed_before)]
        if self.fusions:
            names, nodes = (self.names, self.placed) if self.between is None else self.between
            found.append(ListStage("After fusion", names, nodes, self._origins()))
        if self.reordered:
            sources = tuple((i,) for i in self.order)
            found.append(ListStage("After reordering", self.names, self.placed, sources, True))
        return tuple(found)

    def _origins(self) -> tuple[tuple[int, ...], ...]:
        """Return the recorded nodes of each node after fusion."""
        joined = {i: [i] for i in range(len(self.names_before))}
        for pair in self.fused[-self.fusions :]:  # those of the finisher, behind what was fused by hand
            joined[pair.norm] += joined.pop(pair.product)
        return tuple(map(tuple, joined.values()))

    @cached_property
    def critical_path(self) -> CriticalPath:
        """Return the longest chain of conflicting nodes: no order has fewer groups than it has nodes."""
        return critical_path([p.footprint for p in self.placed])

    @property
    def predicted_device_barriers(self) -> int:
        """Return the number of barriers that wgpu would place by itself."""
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
        return [list(group) for group in self.stages[-1].groups]

    def hazards(self) -> list[tuple[str, int, int, str]]:
        """Return (kind, earlier node, later node, later range in words) of each conflict of neighbouring groups."""
        return [h[:4] for h in self.stages[-1].hazards]

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
        yield from self.stages[-1].lines()
        for stage in self.stages[:-1]:
            yield f"{stage.title}: {stage.fact()}"
            yield from (f"  {line}" for line in stage.lines())
        if len(self.stages[-1].groups) > 1:
            yield "Why not further in front:"
            yield from self.stages[-1].further()
        path = self.critical_path.launches
        if len(path) > 1:
            chain = ", ".join(map(str, path[:PATH])) + (" …" if len(path) > PATH else "")
            yield f"critical path: {plural(len(path), 'node')}, one group each at least: {chain}"
        if self.chunks[1]:
            yield f"submitted in two: {self.chunks[0]} and {plural(self.chunks[1], 'node')}"
        for name, route in self.routes:
            yield f"route of {name}: {route}"
        encoding, waiting = (duration(ns * 1e-9) for ns in self.timing)
        yield f"time: {encoding} to the first submission, {waiting} behind the last"
