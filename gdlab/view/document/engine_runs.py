"""Runs over engines in a document: a row per engine in its run, and the reduction of gradients in the plan."""

from __future__ import annotations

from gdlab.base.words import duration, nbytes, plural
from gdlab.distributed.allreduce import allreduce_of
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
    """Return the times of an engine in steps, in reduction and waiting."""
    return row.report.seconds, row.report.reducing, row.report.waiting


def _row(row: EngineProgress, most: float) -> Json:
    engine, report, (own, reducing, waiting) = row.engine, row.report, _seconds(row)
    name = f"{engine.rank} late" if row.late else str(engine.rank)
    return {
        "engine": engine.rank, "host": engine.host, "device": engine.device_words, "late": row.late,
        "step_seconds": own, "reduce_seconds": reducing, "wait_seconds": waiting, "nbytes": report.nbytes,
        "loss": number(report.loss), "cells": [name, engine.host, engine.device_words, *row.cells()],
        "share": [round(100 * part / most, 1) if most > 0 else 0.0 for part in (own, reducing, waiting)],
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
    seconds = made.predicted if made.measured is None else made.measured
    section = {
        "engines": made.engines, "nbytes": made.nbytes, "accumulate": made.accumulate,
        "before": len(study.plan.dispatches) + early, "read_seconds": made.read, "ring_seconds": made.ring,
        "write_seconds": made.write, "measured_seconds": made.measured, "seconds": seconds, "link": made.link,
        "latency": made.latency,
    }  # fmt: skip
    label = f"allreduce over {plural(made.engines, 'engine')}, {allreduce_words(section)}"
    return {"allreduce": {**section, "label": label, "told": "\n".join(allreduce_told(section))}}


def allreduce_told(made: Json) -> tuple[str, str]:
    """Return what the reduction of an `allreduce` is, and what its prediction is made of."""
    after = "every step" if made["accumulate"] == 1 else f"every {plural(made['accumulate'], 'step')}"
    over = f"{nbytes(made['nbytes'])} of gradients over {plural(made['engines'], 'engine')}, after {after}"
    read, ring, write = (duration(made[f"{part}_seconds"]) for part in ("read", "ring", "write"))
    link = f"link {made['link']}; latency {made['latency']}"
    predicted = f"predicted by {read} to read gradients, {ring} in a ring ({link}), {write} to write them"
    return f"{over}: {allreduce_words(made)}", predicted


def predicted_seconds(made: Json) -> float:
    """Return the predicted time of an `allreduce`."""
    return float(made["read_seconds"] + made["ring_seconds"] + made["write_seconds"])


def allreduce_words(made: Json) -> str:
    """Return the predicted and the measured time of an `allreduce`: `predicted 1.2 ms, measured 1.4 ms`."""
    measured = made["measured_seconds"]
    told = f"predicted {duration(predicted_seconds(made))}"
    return told if measured is None else f"{told}, measured {duration(measured)}"
