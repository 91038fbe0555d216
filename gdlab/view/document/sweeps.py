"""The `sweep` section of a document: a row and a curve of each point, and the range of the plot of all curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gdlab.base.words import duration, plural, whole
from gdlab.distributed.points import value_text
from gdlab.distributed.sweep import Sweep, SweepPoint, point_cells, sweep_of
from gdlab.study.study import Study
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.passes import number
from gdlab.view.document.thinned import averaged

_MOST_CURVE, _LEAST_CURVE, _MOST_LOSSES = 100, 24, 4000  # points of a curve, and of all curves together
_LOG_FROM = 30.0  # highest by lowest loss: from there on the axis is logarithmic
_FIRST_HUE, _HUES = 20, 320


def sweep_json(study: Study) -> Json:
    """Return the `sweep` of a study's document; absent where there was none."""
    sweep = sweep_of(study)
    return {} if sweep is None else {"sweep": section(sweep)}


def sweep_doc(sweep: Sweep) -> Document:
    """Return the document of a sweep: that of its study, with this sweep."""
    document: Document = sweep.study.doc
    return Document({**document.data, "sweep": section(sweep)})


def section(sweep: Sweep) -> Json:
    """Return the section of one sweep, as it is now."""
    points = list(sweep.points)
    most = max(_LEAST_CURVE, min(_MOST_CURVE, _MOST_LOSSES // len(points)))
    curves = [averaged(point.losses, most) for point in points]
    low, high, log = plotted_range(curves)
    done = sum(1.0 if _ended(point) else min(1.0, point.steps / point.wanted) for point in points)
    return {
        "key": sweep.key,
        "state": sweep.state,
        "title": f"{plural(len(points), 'point')} × {plural(sweep.steps, 'step')}",
        "fact": sweep.fact(),
        "left": _left(sweep, points),
        "seconds": sweep.seconds,
        "progress": done / len(points),
        "keys": list(sweep.keys),
        "range": [low, high],
        "log": log,
        "best": _best(points),
        "points": [_point(point, sweep.keys, curve, len(points)) for point, curve in zip(points, curves, strict=True)],
        "events": [{"seconds": event.seconds, "text": event.text} for event in sweep.events],
    }


def _point(point: SweepPoint, keys: Sequence[str], curve: list[tuple[int, float]], count: int) -> Json:
    cells = point_cells(point, keys)[len(keys) :]
    return {
        "state": point.state,
        "hue": _FIRST_HUE + _HUES * point.index // count,
        "settings": [value_text(point.settings.get(key)) for key in keys],
        "label": point.label,
        "cells": list(cells[1:]),  # engine, steps, steps/s, loss now, lowest, time
        "steps": point.steps,
        "wanted": point.wanted,
        "loss": None if point.loss is None else number(point.loss),
        "error": point.error,
        "note": point.note,
        "retries": point.retries,
        "curve": [[step, number(loss)] for step, loss in curve],
    }


def plotted_range(curves: Sequence[Sequence[tuple[int, float]]]) -> tuple[float, float, bool]:
    """Return the losses between which curves are drawn, and whether the axis is logarithmic. What rises far above the
    first losses (a rate that diverges) is left out, so that it does not flatten the others."""
    finite = [[loss for _, loss in curve if math.isfinite(loss)] for curve in curves]
    values = np.array([loss for curve in finite for loss in curve])
    if not values.size:
        return 0.0, 1.0, False
    first = np.array([curve[0] for curve in finite if curve])
    top = max(float(np.median(values)), 1.25 * float(np.quantile(first, 0.9)))
    high = min(float(values.max()), top) if top > 0 else float(values.max())
    low = min(float(values.min()), high)
    if low > 0 and high / low > _LOG_FROM:
        return low, high, True
    if 0 < low < 0.4 * high:
        low = 0.0
    return (low, high, False) if high > low else (low - 0.5, high + 0.5, False)


def _ended(point: SweepPoint) -> bool:
    return point.state in ("done", "failed", "stopped")


def _best(points: Sequence[SweepPoint]) -> int:
    """Return the index of the point that is done with the least last loss; −1 where there is none."""
    known = [(point.loss, point.index) for point in points if point.state == "done" and point.loss is not None]
    return min(((loss, index) for loss, index in known if math.isfinite(loss)), default=(0.0, -1))[1]


def _left(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """Say how long the rest of a sweep will take, at the speed so far."""
    if sweep.state != "running":
        return f"took {duration(sweep.seconds)}" if sweep.seconds > 0 else ""
    made = sum(point.steps for point in points if point.engine != "file")
    rest = sum(point.wanted - point.steps for point in points if not _ended(point))
    return f"about {duration(sweep.seconds * rest / made)} left" if made > 0 else ""


def sweep_lines(data: Json) -> list[str]:
    """Return the state and progress of a sweep in words."""
    parts = [data["fact"], data["left"], f"{whole(100 * data['progress'])} %"]
    return [f"sweep: {data['title']}: {', '.join(part for part in parts if part)}"]
