"""Runs over engines in a document: a row per engine in its run, and the reduction of gradients in the plan."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.base.words import duration, nbytes, plural
from gdlab.distributed.allreduce import Allreduce, BucketRow, allreduce_of
from gdlab.distributed.part import LATE_STEPS
from gdlab.distributed.run_record import HEAD, DistributedRun, EngineProgress, engines_run_of
from gdlab.study.study import Study
from gdlab.view.document.columns import Json
from gdlab.view.document.passes import number


def engines_json(study: Study) -> Json:
    """Return the `engines` of a study's present run; absent where engines made none of its steps."""
    run = engines_run_of(study)
    return {} if run is None else {"engines": engines_section(run)}


def engines_section(run: DistributedRun) -> Json:
    """Return the table of a run over engines, as it is now."""
    rows = list(run.rows)
    most = max(sum(_seconds(row)) for row in rows)
    return {
        "fact": "; ".join(filter(None, (run.fact(), _late(run)))),
        "head": [*HEAD[:-1], "time"],
        "rows": [_row(row, most) for row in rows],
        "lost": [str(lost) for lost in run.lost],
    }


def _seconds(row: EngineProgress) -> tuple[float, float, float]:
    """Return the seconds of an engine in steps, in reduction outside of steps, and waiting."""
    return row.report.seconds, row.report.reducing - row.report.hidden, row.report.waiting


def _row(row: EngineProgress, most: float) -> Json:
    engine, report, times = row.engine, row.report, _seconds(row)
    name = f"{engine.rank} late" if row.late else str(engine.rank)
    return {
        "engine": engine.rank, "host": engine.host, "device": engine.device_words, "late": row.late,
        "step_seconds": report.seconds, "reduce_seconds": report.reducing, "hidden_seconds": report.hidden,
        "wait_seconds": report.waiting, "nbytes": report.nbytes, "loss": number(report.loss),
        "cells": [name, engine.host, engine.device_words, *row.cells()],
        "share": [round(100 * part / most, 1) if most > 0 else 0.0 for part in times],
    }  # fmt: skip


def _late(run: DistributedRun) -> str:
    """Say which engines are late, or that none is; empty while that is not known."""
    if len(run.rows) < 2 or min(row.report.reductions for row in run.rows) < LATE_STEPS:
        return ""
    late = [str(row.engine.rank) for row in run.rows if row.late]
    return f"late: engine{'s' if len(late) > 1 else ''} {', '.join(late)}" if late else "nobody is late"


def allreduce_json(study: Study) -> Json:
    """Return the `allreduce` of a study's document: its buckets, the dispatches before which they stand, and their
    known times; absent without a run over engines or a prediction."""
    made = allreduce_of(study)
    if made is None:
        return {}
    end = len(study.plan.dispatches) + (study.session.update.early if study.has_session else 0)
    here = made.dispatches == end  # else the engines' plan is another one
    rows = made.buckets or (BucketRow(end, made.nbytes, made.predicted, made.measured),)
    section: Json = {
        "engines": made.engines, "nbytes": made.nbytes, "accumulate": made.accumulate, "read_seconds": made.read,
        "ring_seconds": made.ring, "write_seconds": made.write, "measured_seconds": made.measured, "link": made.link,
        "latency": made.latency,
    }  # fmt: skip
    told = "\n".join(allreduce_told(section, rows))
    buckets = [_bucket(made, rows, k, row.before if here else end, told) for k, row in enumerate(rows)]
    return {"allreduce": {**section, "told": told, "buckets": buckets}}


def _bucket(made: Allreduce, rows: Sequence[BucketRow], k: int, before: int, told: str) -> Json:
    row, number = rows[k], f" {k + 1} of {len(rows)}" if len(rows) > 1 else ""
    times = _words(row.predicted, row.measured, row.hidden)
    label = f"allreduce{number} over {plural(made.engines, 'engine')}, {times}"
    return {
        "before": before, "nbytes": row.nbytes, "predicted_seconds": row.predicted, "measured_seconds": row.measured,
        "hidden_seconds": row.hidden, "seconds": row.predicted if row.measured is None else row.measured,
        "label": label, "told": told if len(rows) == 1 else f"{nbytes(row.nbytes)} of gradients: {times}\n{told}",
    }  # fmt: skip


def allreduce_told(made: Json, rows: Sequence[BucketRow]) -> tuple[str, str]:
    """Describe the reduction of an `allreduce` in words, and the figures behind its prediction."""
    after = "every step" if made["accumulate"] == 1 else f"every {plural(made['accumulate'], 'step')}"
    over = f"{nbytes(made['nbytes'])} of gradients over {plural(made['engines'], 'engine')}, after {after}"
    over += f", in {len(rows)} buckets" if len(rows) > 1 else ""
    read, ring, write = (duration(made[f"{part}_seconds"]) for part in ("read", "ring", "write"))
    link = f"link {made['link']}; latency {made['latency']}"
    predicted = f"predicted by {read} to read gradients, {ring} in a ring ({link}), {write} to write them"
    total = made["read_seconds"] + made["ring_seconds"] + made["write_seconds"]
    return f"{over}: {_words(total, made['measured_seconds'], sum(row.hidden for row in rows))}", predicted


def _words(predicted: float, measured: float | None, hidden: float) -> str:
    """Return times in words: `predicted 1.2 ms, measured 1.4 ms, 1 ms of it beside the step`."""
    told = f"predicted {duration(predicted)}"
    if measured is None:
        return told
    beside = f", {duration(hidden)} of it beside the step" if hidden > 0 else ""
    return f"{told}, measured {duration(measured)}{beside}"
