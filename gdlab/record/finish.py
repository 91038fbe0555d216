"""Run the list of a session: passes, submissions, waiting, and the results of finishers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdlab.base.errors import ArgumentError, ExpertIndexError
from gdlab.base.types import Array
from gdlab.record.compute_graph import GroupFacts, Node, grouping, placed, sketched
from gdlab.record.list_report import Report
from gdlab.record.operation import OperandRange

if TYPE_CHECKING:
    from gdlab.record.encoder import Call, CommandEncoder
    from gdlab.record.executor import Submission

LEAST, PARTS = 64, 10  # nodes of the first of two submissions: at least so many, one part of so many


class Timing(NamedTuple):
    """Nanoseconds from begin to the first submission, and from the last to the end of the work."""

    encoding_ns: int
    gpu_wait_ns: int


class FusionTiming(NamedTuple):
    """Nanoseconds as in `Timing`, and the number of fused pairs."""

    encoding_ns: int
    gpu_wait_ns: int
    fusions: int


class Reordered(NamedTuple):
    """The number of fused pairs, and of nodes that moved."""

    fusions: int
    reordered: int


class ReorderedTiming(NamedTuple):
    """Nanoseconds as in `Timing`, fused pairs, moved nodes."""

    encoding_ns: int
    gpu_wait_ns: int
    fusions: int
    reordered: int


class Optimized(NamedTuple):
    """Fused pairs, moved nodes, and the barriers inside the first and the second submission."""

    fusions: int
    reordered: int
    barriers_buf0: int
    barriers_buf1: int


class OptimizedTiming(NamedTuple):
    """Nanoseconds as in `Timing`, fused pairs, moved nodes, barriers inside both submissions."""

    encoding_ns: int
    gpu_wait_ns: int
    fusions: int
    reordered: int
    barriers_buf0: int
    barriers_buf1: int


class FinishFacts(NamedTuple):
    """The facts that a finisher may return."""

    timing: Timing
    fusions: int
    reordered: int
    barriers: tuple[int, int]


class PendingWork:
    """The work that `commit` submitted. Dropping it is safe: the work runs to its end."""

    __slots__ = ("_calls", "_checked", "_error", "_submission", "encoder", "times")

    def __init__(
        self, encoder: CommandEncoder, submission: Submission | None, checked: tuple[tuple[int, OperandRange, int], ...]
    ) -> None:
        self.encoder, self._submission, self._checked = encoder, submission, checked
        self._calls: list[Call] | None = encoder.calls()  # keeps the buffers
        self._error: Exception | None = None
        self.times: list[tuple[float, float]] = []  # of the dispatches, where they were asked for

    def __repr__(self) -> str:
        return f"<PendingWork: {'done' if self.done else 'submitted'}>"

    def __del__(self) -> None:
        submission = getattr(self, "_submission", None)
        if submission is not None and submission.numbers is None:
            submission.executor.landed.append(submission.readback)

    @property
    def done(self) -> bool:
        """Return whether the work was waited for, or there was none."""
        return self._submission is None

    def wait_until_completed(self) -> None:
        """Wait for the end of the work; raise its error, at every call."""
        submission = self._submission
        if submission is not None:
            landed = submission.executor.wait(submission, [part for _, part, _ in self._checked])
            self.times = submission.times
            self._submission, self._calls = None, None
            self._error = _bad_index(self._checked, landed)
        if self._error is not None:
            raise self._error


def _bad_index(checked: tuple[tuple[int, OperandRange, int], ...], landed: list[Array]) -> ExpertIndexError | None:
    """Return the error of the first row whose expert does not exist."""
    for (node, _, experts), numbers in zip(checked, landed, strict=True):
        bad = np.flatnonzero(numbers >= experts)
        if bad.size:
            return index_error(f"node {node} (quantized_matmul_id_ggml)", int(bad[0]), int(numbers[bad[0]]), experts)
    return None


def index_error(where: str, row: int, index: int, experts: int) -> ExpertIndexError:
    """Return the error of a row whose expert does not exist."""
    return ExpertIndexError(
        where, f"ids[{row}]", index, f"0 … {experts - 1}: that row of the result is zero",
        row=row, index=index, experts=experts,
    )  # fmt: skip


def begin_time(where: str, encoder: CommandEncoder, given: Any) -> int:
    """Return when the session began: `perf_counter_ns` of its begin, or the time given by the caller."""
    if given is None:
        return encoder.begun
    now = time.perf_counter_ns()
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= now:
        wanted = "an int of time.perf_counter_ns() that has passed"
        raise ArgumentError(where, "session_begin", f"{given!r:.60}", wanted)
    return given


def split(count: int) -> int:
    """Return how many of `count` nodes go into the first of two submissions."""
    return min(count, max(LEAST, count // PARTS))


def launch(
    where: str, encoder: CommandEncoder, *, fuse: bool = False, reorder: bool = False, dual: bool = False,
    begun: int | None = None, timed: bool = False,
) -> tuple[PendingWork, FinishFacts, Callable[[], Report]]:  # fmt: skip
    """Consume the session, run the passes in recording mode, and submit the list; its report is made on demand."""
    encoder.check_usable(where)
    graph, optimizing = encoder.graph, encoder.recording
    start = encoder.begun if begun is None else begun
    if not timed and not (optimizing and (fuse or reorder or dual)):
        known = _launch_known(where, encoder, start)
        if known is not None:
            return known
    recorded = tuple(graph.nodes)
    before = placed(recorded)
    names = [n.name for n in graph.nodes]
    fusions = graph.fuse() if fuse and optimizing else 0
    between = (tuple([n.name for n in graph.nodes]), placed(graph.nodes)) if fusions and reorder else None
    moved = graph.reorder() if reorder and optimizing else 0
    encoder.consume(where)
    nodes = graph.nodes
    n0 = split(len(nodes)) if dual and optimizing else len(nodes)
    chunks = [part for part in (nodes[:n0], nodes[n0:]) if part]
    checked = tuple((i, part, experts) for i, node in enumerate(nodes) for part, experts in node.operation.checks)
    counters = encoder.executor.queue.counters
    submissions = counters.submissions
    landing = [part for _, part, _ in checked]
    executor = encoder.executor
    submission = executor.submit_known(encoder.calls()) if not timed and len(chunks) == 1 else None
    if submission is None and chunks:
        submission = executor.submit(chunks, landing, nodes, where if timed else "")
        if not timed and len(chunks) == 1:
            executor.keep(encoder.calls())
    now = time.perf_counter_ns()
    first, last = (submission.first_ns, submission.last_ns) if submission is not None else (now, now)
    after = placed(nodes) if fusions or moved else before
    inside = _inside(after, n0) if dual and optimizing else (0, 0)
    outcome = FinishFacts(Timing(max(0, first - start), last), fusions, moved, inside)
    report = partial(
        Report,
        finisher=where,
        names_before=tuple(names),
        names=tuple([n.name for n in nodes]),
        order=tuple(graph.order),
        placed_before=before,
        placed=after,
        fusions=fusions,
        fused=tuple(graph.fusions),
        fusion_misses=tuple(graph.misses),
        reordered=moved,
        kept_order=graph.kept_order,
        copies=submission.copies if submission is not None else 0,
        routes=_routes(nodes),
        submissions=counters.submissions - submissions,
        chunks=(n0, len(nodes) - n0),
        between=between,
        labels=_labels(nodes),
    )
    report = partial(_recorded, report, recorded)
    return PendingWork(encoder, submission, checked), outcome, report


def _launch_known(
    where: str, encoder: CommandEncoder, start: int
) -> tuple[PendingWork, FinishFacts, Callable[[], Report]] | None:
    """Submit a list that has run before as it is: its ranges are only read if the report is asked for."""
    executor, calls = encoder.executor, encoder.calls()
    submission = executor.submit_known(calls)
    if submission is None:
        return None
    encoder.consume(where)
    graph = encoder.graph
    outcome = FinishFacts(Timing(max(0, submission.first_ns - start), submission.last_ns), 0, 0, (0, 0))
    done = tuple(graph.fusions), tuple(graph.misses), graph.kept_order, tuple(graph.order)

    def report() -> Report:
        nodes = graph.nodes
        names, list_placed = tuple([n.name for n in nodes]), placed(nodes)
        fused, misses, kept_order, order = done
        return Report(
            finisher=where, names_before=names, names=names, order=order, placed_before=list_placed,
            placed=list_placed, fusions=0, fused=fused, fusion_misses=misses, reordered=0, kept_order=kept_order,
            copies=submission.copies, routes=_routes(nodes), submissions=1, chunks=(len(nodes), 0),
            labels=_labels(nodes), recorded=sketched(nodes),
        )  # fmt: skip

    return PendingWork(encoder, submission, ()), outcome, report


def _recorded(report: Callable[..., Report], nodes: Sequence[Node]) -> Report:
    return report(recorded=sketched(nodes))


def _routes(nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    return tuple([(n.name, n.operation.route) for n in nodes if n.operation.route])


def _labels(nodes: Sequence[Node]) -> dict[int, str]:
    return {b.allocation.number: b.allocation.label for n in nodes for b in n.buffers if b.allocation.label}


def _inside(nodes: Sequence[GroupFacts], cut: int) -> tuple[int, int]:
    """Return the barriers inside both parts of a list; a barrier at the cut is absorbed."""
    barriers = grouping(nodes).barriers
    return sum(b < cut for b in barriers), sum(b > cut for b in barriers)


def waited(work: PendingWork, outcome: FinishFacts) -> FinishFacts:
    """Wait for the work, and return the outcome with the seconds since the last submission."""
    work.wait_until_completed()
    elapsed = max(0, time.perf_counter_ns() - outcome.timing.gpu_wait_ns)
    return outcome._replace(timing=Timing(outcome.timing.encoding_ns, elapsed))
