"""The measured part of a document: times per dispatch, tensors that were watched or looked at, variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gdlab.session import Session
from gdlab.session.run.runner import Runner
from gdlab.study.study import Study
from gdlab.study.variants import VariantFigures
from gdlab.view.document.columns import Json, column, words
from gdlab.view.document.document import Document
from gdlab.view.document.passes import number

COUNTS = ("nodes", "rewrites", "dispatches", "groups", "bytes_moved", "peak_bytes", "physical_bytes")
MOST_VALUES = 24  # of 6 KB at most
MOST_NORMS = 60  # of a parameter
_FIELDS = ("median", "p25", "p75", "predicted")


def times_json(session: Session) -> Json:
    """Return the `dispatch_seconds` of a run, if `capture_profile` has timed the dispatches of a step: seconds per
    dispatch (median and quartiles over the samples), the prediction of the roofline of `machine`, and the verdict in
    words."""
    profile = session.last_profile
    if profile is None:
        return {}
    found: Json = {name: [getattr(d, name) for d in profile.dispatches] for name in _FIELDS}
    found["verdict"] = words([d.verdict for d in profile.dispatches])
    return {"dispatch_seconds": {"samples": profile.samples, "machine": profile.machine, **found}}


def times_of(document: Document) -> Mapping[str, Any] | None:
    """Return the newest measured times: `samples`, `machine`, and a list per dispatch of `median`, `p25`, `p75`,
    `predicted` (seconds) and `verdict`; None where nothing was measured, or a file without times was asked for."""
    for run in reversed(document.data["runs"]):
        times = run.get("dispatch_seconds")
        if isinstance(times, dict) and len(times["median"]) == len(document.plan("dispatches")):
            count = len(times["median"])
            return {**times, "verdict": column(times["verdict"], count, "")}
    return None


def values_json(study: Study) -> tuple[list[Json], int]:
    """Return the summaries of the tensors watched or looked at in the present run, at most 24 (the oldest looks are
    left out first), and their number."""
    traffic = study.session.traffic
    before = traffic.readbacks, traffic.readback_bytes
    found = study.debug.values_so_far()
    traffic.readbacks, traffic.readback_bytes = before  # what is read to tell of a run is no part of it
    watched = len(study.runner.lookout.watches)
    over = max(0, len(found) - MOST_VALUES)
    kept = [*found[:watched], *found[watched + over :]][:MOST_VALUES]
    return [value.to_json() for value in kept], len(found)


def norm_courses(study: Study, runner: Runner) -> list[tuple[str, str, list[tuple[int, float]]]]:
    """Return name, entity and samples (step, norm) of each parameter whose gradient was sampled in the present run."""
    ids = {node.name: node.id for node in study.graph.parameters}
    found = [(each.name, list(each.samples)) for each in runner.norms.courses]
    return [(name, f"node:0.{ids[name]}" if name in ids else "", rows) for name, rows in found if rows]


def thinned(rows: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return at most `most` rows, evenly chosen, the first and the last among them."""
    last = len(rows) - 1
    return [rows[round(i * last / (most - 1))] for i in range(most)] if last >= most else list(rows)


def norms_json(study: Study) -> Json:
    """Return the `gradient_norms` of a run, if a panel asked for them; absent without any."""
    rows = list[Json]()
    for name, about, samples in norm_courses(study, study.runner):
        steps, norms = zip(*thinned(samples, MOST_NORMS), strict=True)
        rows.append({"name": name, "about": about or None, "steps": list(steps), "norms": [number(n) for n in norms]})
    return {"gradient_norms": rows} if rows else {}


def variants_json(study: Study, keys: Sequence[str]) -> Json:
    """Return the `variants` of a document, the study itself first; absent without any. `keys`: of its stages, in order.
    """
    shown = {f"variant:{name}": variant for name, variant in study.variants.items() if f"variant:{name}" in keys}
    if not shown:
        return {}
    figures = {each.name: each for each in study.variants.figures(study)[1:]}
    rows = {"optimized": study.figures(), **{key: figures[one.name] for key, one in shown.items()}}
    return {"variants": [_row(each, keys.index(key)) for key, each in rows.items()]}


def _row(figures: VariantFigures, stage: int) -> Json:
    step = None if figures.step is None else asdict(figures.step)
    return {
        "name": figures.name, "stage": stage, **{name: getattr(figures, name) for name in COUNTS},
        "step_seconds": step,
    }  # fmt: skip
