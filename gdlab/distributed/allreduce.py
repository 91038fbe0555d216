"""The reduction of gradients as a dispatch of the plan: its bytes, its predicted and its measured time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from gdlab.distributed.run_record import DistributedRun
from gdlab.distributed.scaling import Scaling, ring_seconds
from gdlab.study.study import Study

_latest: WeakKeyDictionary[Study, Allreduce] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class BucketRow:
    """A bucket of the reduction: the number of dispatches of a step before it, its bytes on the wire, and its seconds:
    predicted, measured, and of the measured ones those beside the step."""

    before: int
    nbytes: int
    predicted: float
    measured: float | None = None
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class Allreduce:
    """The mean of all gradients (`nbytes`) over so many engines, once per update of `accumulate` steps. Seconds: `read`
    and `write` of the gradients by the host, `ring` of the reduction between engines, as predicted from `link` and
    `latency`; `measured`: the mean over the reductions of a run, None before one. `buckets`: the parts in which a run
    made it, of a step with `dispatches`."""

    engines: int
    nbytes: int
    accumulate: int
    read: float
    ring: float
    write: float
    link: str
    latency: str
    measured: float | None = None
    buckets: tuple[BucketRow, ...] = ()
    dispatches: int = 0

    @property
    def predicted(self) -> float:
        """Return the predicted seconds."""
        return self.read + self.ring + self.write


def allreduce_of(study: Study) -> Allreduce | None:
    """Return the reduction of the newest run over engines, or of the newest prediction; None without any."""
    return _latest.get(study)


def keep_prediction(study: Study, scaling: Scaling, engines: int) -> None:
    """Show the reduction over so many engines in the plan of the study, as `scaling` predicts it."""
    if engines < 2:
        return
    row, old = scaling.row(engines), _latest.get(study)
    made = Allreduce(
        engines, scaling.nbytes, scaling.accumulate, scaling.read, row.ring, scaling.write, scaling.link_words,
        scaling.latency_words,
    )  # fmt: skip
    if old is not None and (old.engines, old.nbytes) == (engines, scaling.nbytes):
        made = replace(made, measured=old.measured, buckets=old.buckets, dispatches=old.dispatches)
    _keep(study, made)


def keep_measured(study: Study, run: DistributedRun, link: float, latency: float, words: tuple[str, str]) -> None:
    """Show the reduction of a run in the plan of the study: the engines measured it, `link` and `latency` predict."""
    reports, n = [row.report for row in run.rows], len(run.rows)
    reductions = sum(report.reductions for report in reports)
    if n < 2 or not reductions:
        return
    size = sum(report.nbytes for report in reports) // reductions
    read, write = max(report.read for report in reports), max(report.write for report in reports)
    ring = ring_seconds(n, size, link, latency)
    measured = sum(report.reducing for report in reports) / reductions
    buckets = tuple(
        BucketRow(
            each[0].stop, each[0].nbytes,
            (read + write) * each[0].nbytes / size + ring_seconds(n, each[0].nbytes, link, latency),
            sum(times.seconds for times in each) / reductions, sum(times.hidden for times in each) / reductions,
        )
        for each in zip(*(report.buckets for report in reports), strict=True)
    )  # fmt: skip
    dispatches = reports[0].dispatches
    _keep(study, Allreduce(n, size, run.accumulate, read, ring, write, *words, measured, buckets, dispatches))


def _keep(study: Study, made: Allreduce) -> None:
    _latest[study] = made
    study.execution.rev += 1
