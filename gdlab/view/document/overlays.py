"""Overlays of a document: a text for each node, from the values of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdlab.autodiff import AutodiffReport
from gdlab.base.statistics import array_words
from gdlab.rewrite import OptimizeReport
from gdlab.session import PipelineStage
from gdlab.study.node_values import NodeValues
from gdlab.study.study import Study
from gdlab.view.document.columns import Json

# Those that every document has (the page works them out from its nodes), then those that a study may add.
OVERLAYS = (
    "nbytes", "bytes_moved", "flops", "seconds", "dispatch", "dtype", "lane",
    "value", "gradient", "adjoint", "nonfinite",
)  # fmt: skip


def overlays_of(study: Study, keys: list[str]) -> list[Json]:
    """Return the overlays of a study's document; `keys`: those of its stages, in order."""
    found: list[Json] = []
    numbers = study.numbers
    if numbers is not None:
        found.append(overlay_of("value", "value", 0, {i: array_words(v) for i, v in numbers.value.items()}))
        if numbers.gradient:
            texts = {i: array_words(v) for i, v in numbers.gradient.items()}
            found.append(overlay_of("gradient", "gradient of the loss", 0, texts))
        if numbers.adjoint and "derivative:written" in keys:
            texts = {i: array_words(v) for i, v in numbers.adjoint.items()}
            found.append(overlay_of("adjoint", "value, adjoints too", keys.index("derivative:written"), texts))
    culprit = study.runner.culprit if study.has_session else None
    if culprit is not None:
        stage = keys.index(study.pipeline.compiled.key)
        found.append(overlay_of("nonfinite", "not finite", stage, dict.fromkeys(culprit.nodes, culprit.what)))
    every = [each for overlay in found for each in (overlay, *_elsewhere(study, overlay, keys))]
    return [_completed(each, numbers, keys) if each["id"] == "value" and numbers else each for each in every]


def _completed(overlay: Json, numbers: NodeValues, keys: Sequence[str]) -> Json:
    """Return the values of a stage with those of the nodes that passes made, such as adjoints."""
    own = {str(i): array_words(v) for i, v in numbers.stages.get(keys[overlay["stage"]], {}).items()}
    values = {**own, **overlay["values"]}
    return {**overlay, "values": dict(sorted(values.items(), key=lambda item: int(item[0])))}


def _elsewhere(study: Study, overlay: Json, keys: list[str]) -> list[Json]:
    """Return the overlay for the other stages: below its own stage, on the nodes with the same values; above it, on the
    nodes that its nodes came from."""
    stages, made = study.stages(), {overlay["stage"]: {int(i): text for i, text in overlay["values"].items()}}
    place = {stage.key: number for number, stage in enumerate(stages)}
    at = overlay["stage"]
    while at > 0:
        origin = _origin(stages[at])
        above = {old: text for new, text in made[at].items() for old in origin(new)}
        at = place[stages[at].parent]
        made[at] = above
    for number, stage in enumerate(stages):
        if number not in made and stage.key != "written" and place[stage.parent] in made:
            image = _image(stage)
            pairs = [(image(old), text) for old, text in made[place[stage.parent]].items()]
            made[number] = {new: text for new, text in pairs if new is not None}
    said = {(overlay["id"], overlay["stage"])}
    return [
        {**overlay, "stage": keys.index(stages[number].key), "values": {str(i): t for i, t in sorted(values.items())}}
        for number, values in sorted(made.items())
        if values and (overlay["id"], number) not in said and stages[number].key in keys
    ]


def _image(stage: PipelineStage) -> Callable[[int], int | None]:
    """Return the node of a stage that holds the value of a node of the stage before it; differentiation keeps ids."""
    match stage.report:
        case OptimizeReport(node_map=moved) if moved:
            return moved.get
    return lambda old: old


def _origin(stage: PipelineStage) -> Callable[[int], Sequence[int]]:
    """Return the nodes of the stage before it that a node of a stage came from."""
    match stage.report:
        case OptimizeReport(origin=origin) if origin:
            return lambda new: origin.get(new, ())
        case AutodiffReport(forward_nodes=forward):
            return lambda new: (new,) if new < forward else ()
    return lambda new: (new,)


def overlay_of(id: str, label: str, stage: int, values: dict[int, str]) -> Json:
    return {
        "id": id, "label": label, "unit": "", "scale": "category", "aggregate": "none", "stage": stage,
        "values": {str(i): text for i, text in sorted(values.items())},
    }  # fmt: skip
