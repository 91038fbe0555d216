"""Runs over engines in a document: a row per engine in its run, and the reduction of gradients in the plan."""

from __future__ import annotations

from gdlab.base.words import duration
from gdlab.distributed.allreduce import allreduce_of
from gdlab.distributed.part import LATE_STEPS
from gdlab.distributed.run_record import DistributedRun, Row, engines_run_of
from gdlab.study.study import Study
from gdlab.view.document.columns import Json
from gdlab.view.document.passes import number


def engines_json(study: Study) -> Json:
    """Return the `engines` of a study's present run; absent where engines made none of its steps."""
    run = engines_run_of(study)
    return {} if run is None else {"engines": engines_section(run)}


def engines_section(run: DistributedRun) -> Json:
    """Return the table of a run over engines, as it is now."""
    return {
        "fact": run.fact(),
        "late": _late(run),
        "rows": [_row(row) for row in list(run.rows)],
        "lost": [str(lost) for lost in run.lost],
    }


def _row(row: Row) -> Json:
    report = row.report
    return {
        "engine": row.engine.rank, "host": row.engine.host, "device": row.engine.device_words, "late": row.late,
        "step_seconds": report.seconds, "reduce_seconds": report.reducing, "wait_seconds": report.waiting,
        "nbytes": report.nbytes, "loss": number(report.loss), "cells": list(row.cells()),
    }  # fmt: skip


def _late(run: DistributedRun) -> str:
    """Say which engines are late, or that nobody is; empty while nobody knows."""
    if len(run.rows) < 2 or min(row.report.reductions for row in run.rows) < LATE_STEPS:
        return ""
    late = [str(row.engine.rank) for row in run.rows if row.late]
    return f"late: engine{'s' if len(late) > 1 else ''} {', '.join(late)}" if late else "nobody is late"


def allreduce_json(study: Study) -> Json:
    """Return the `allreduce` of a study's document: before which dispatch it stands, and what is known of it; absent
    without a run over engines or a prediction."""
    made = allreduce_of(study)
    if made is None:
        return {}
    early = study.session.update.early if study.has_session else 0
    return {"allreduce": {
        "engines": made.engines, "nbytes": made.nbytes, "accumulate": made.accumulate,
        "before": len(study.plan.dispatches) + early, "read_seconds": made.read, "ring_seconds": made.ring,
        "write_seconds": made.write, "measured_seconds": made.measured, "link": made.link, "latency": made.latency,
    }}  # fmt: skip


def predicted_seconds(made: Json) -> float:
    """Return the predicted time of an `allreduce`."""
    return float(made["read_seconds"] + made["ring_seconds"] + made["write_seconds"])


def allreduce_words(made: Json) -> str:
    """Return the predicted and the measured time of an `allreduce`: `predicted 1.2 ms, measured 1.4 ms`."""
    measured = made["measured_seconds"]
    told = f"predicted {duration(predicted_seconds(made))}"
    return told if measured is None else f"{told}, measured {duration(measured)}"
