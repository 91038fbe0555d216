"""A study and its variants as a document compares them: one row each, for the page and for text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gdlab.base.words import grid
from gdlab.study.study import Study
from gdlab.study.variants import HEAD, Figures, StepTime
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document

_COUNTS = ("nodes", "rewrites", "dispatches", "groups", "bytes_moved", "peak_bytes", "physical_bytes")


def variants_json(study: Study, keys: Sequence[str]) -> Json:
    """`variants` of a document, the study itself first; absent without any. `keys`: of its stages, in order."""
    shown = {f"variant:{name}": variant for name, variant in study.variants.items() if f"variant:{name}" in keys}
    if not shown:
        return {}
    pairs = {"optimized": study, **shown}
    return {"variants": [_row(one.figures(), keys.index(key)) for key, one in pairs.items()]}


def _row(figures: Figures, stage: int) -> Json:
    step = None if figures.step is None else asdict(figures.step)
    return {
        "name": figures.name, "stage": stage, **{name: getattr(figures, name) for name in _COUNTS},
        "step_seconds": step,
    }  # fmt: skip


def comparison(document: Document) -> Iterator[str]:
    """The table of the variants, as `Study.compare` has it."""
    rows = document.data.get("variants") or []
    if rows:
        yield "what if:"
        cells = [_figures(row).row() for row in rows]
        yield from grid(HEAD, cells, right=set(range(1, len(HEAD))))


def _figures(row: Json) -> Figures:
    step = row["step_seconds"]
    counts = {name: row[name] for name in _COUNTS}
    return Figures(row["name"], **counts, step=StepTime(**step) if step else None)
