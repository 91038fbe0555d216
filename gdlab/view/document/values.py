"""What a study has to tell of values: overlays of its nodes, and the summaries of tensors that were looked at."""

from __future__ import annotations

from gdlab.base.statistics import told
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
        found.append(_overlay("value", "value", 0, {i: told(v) for i, v in numbers.value.items()}))
        if numbers.gradient:
            texts = {i: told(v) for i, v in numbers.gradient.items()}
            found.append(_overlay("gradient", "gradient of the loss", 0, texts))
        if numbers.adjoint and "derivative:written" in keys:
            texts = {i: told(v) for i, v in numbers.adjoint.items()}
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


MOST_VALUES = 24  # of 6 KB at most


def values_json(study: Study) -> tuple[list[Json], int]:
    """The summaries of what is watched and of what was looked at in the present run, at most 24, the oldest looks left
    out first; and how many there are."""
    traffic = study.session.traffic
    before = traffic.bytes_down
    found = study.debug.values_so_far()
    traffic.bytes_down = before  # what is read to tell of a run is no part of it: the next document says the same
    watched = len(study.runner.lookout.watches)
    over = max(0, len(found) - MOST_VALUES)
    kept = [*found[:watched], *found[watched + over :]][:MOST_VALUES]
    return [value.to_json() for value in kept], len(found)
