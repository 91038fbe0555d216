"""Overlays of a document: a text for each node, from the values of a study."""

from __future__ import annotations

from gdlab.base.statistics import array_words
from gdlab.study.study import Study
from gdlab.view.document.columns import Json

# Those that every document has (the page works them out from its nodes), then those that a study may add.
OVERLAYS = (
    "nbytes", "bytes_moved", "flops", "seconds", "dispatch", "dtype", "lane",
    "value", "gradient", "adjoint", "nonfinite",
)  # fmt: skip


def overlays_of(study: Study, keys: list[str]) -> list[Json]:
    """The overlays of a study's document; `keys`: of its stages, in order."""
    found: list[Json] = []
    numbers = study.numbers
    if numbers is not None:
        found.append(_overlay("value", "value", 0, {i: array_words(v) for i, v in numbers.value.items()}))
        if numbers.gradient:
            texts = {i: array_words(v) for i, v in numbers.gradient.items()}
            found.append(_overlay("gradient", "gradient of the loss", 0, texts))
        if numbers.adjoint and "derivative:written" in keys:
            texts = {i: array_words(v) for i, v in numbers.adjoint.items()}
            found.append(_overlay("adjoint", "value, adjoints too", keys.index("derivative:written"), texts))
    culprit = study.runner.culprit if study.has_session else None
    if culprit is not None:
        stage = keys.index(study.pipeline.compiled.key)
        found.append(_overlay("nonfinite", "not finite", stage, dict.fromkeys(culprit.nodes, culprit.what)))
    return found


def _overlay(id: str, label: str, stage: int, values: dict[int, str]) -> Json:
    return {
        "id": id, "label": label, "unit": "", "scale": "category", "aggregate": "none", "stage": stage,
        "values": {str(i): text for i, text in sorted(values.items())},
    }  # fmt: skip
