"""Overlays follow the links: what is known of a node is known of what became of it, and of what it came from."""

from __future__ import annotations

import networks
import numpy as np
import pytest

from gdlab.base.statistics import array_words
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.text.twin import twin


def overlay(document: Document, id: str) -> dict[str, dict[int, str]]:
    """The texts of an overlay by the key of the stage."""
    keys = [stage["key"] for stage in document.data["stages"]]
    found = [each for each in document.data["overlays"] if each["id"] == id]
    assert len({each["stage"] for each in found}) == len(found), "one overlay of an id and a stage"
    return {keys[each["stage"]]: {int(i): text for i, text in each["values"].items()} for each in found}


@pytest.mark.parametrize("id", ["value", "gradient"])
def test_values_are_known_on_every_stage(id: str) -> None:
    study = Study(networks.small_mlp(), train=True, device="cpu", name="small")
    _ = study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    values, document = study.values(), study.doc
    numbers = values.value if id == "value" else values.gradient
    found = overlay(document, id)
    assert set(found) == {"written", "optimized", "derivative", "final", "derivative:written", "variant:plain"}
    moved = study.pipeline.nodes(study.graph).place
    for node, number in numbers.items():
        assert found["written"][node] == found["derivative:written"][node] == array_words(np.asarray(number))
        if moved[node] is not None:
            assert found["final"][moved[node]] == found["written"][node]
    h = {stage: [n["name"] for n in document.nodes(stage)].index("h") for stage in found}
    assert len({found[stage][h[stage]] for stage in found}) == 1
    assert found["written"][h["written"]] in twin(document, "opt")


@pytest.mark.parametrize("train", [True, False])
def test_every_node_of_every_stage_has_its_value_adjoints_too(train: bool) -> None:
    """The values that `--values` writes on the boxes of all tabs, lanes included."""
    graph = networks.small_mlp()
    study = Study(graph, train=train, device="cpu", name="small")
    numbers, document = study.values("random:0"), study.doc
    found = overlay(document, "value")
    assert {key: len(texts) for key, texts in found.items()} == {
        stage["key"]: stage["nodes"]["count"] for stage in document.data["stages"]
    }
    if train:
        graph, report = study.written_derivative
        for id, gradient in zip(report.wrt, report.gradients, strict=True):
            assert found["derivative:written"][gradient] == array_words(numbers.gradient[id])


def test_a_node_that_is_not_finite_is_known_where_it_was_written(device: str) -> None:
    study = Study(networks.small_mlp(), train=True, device=device, name="small")
    study.runner.set_watch("everything")
    inputs = {n.name: np.full(n.type.shape, np.inf if n.name == "x" else 0.25, np.float32) for n in study.graph.inputs}
    study.run(2, feed=inputs, init=0, sgd=0.1)
    culprit, found = study.runner.culprit, overlay(study.doc, "nonfinite")
    assert culprit is not None and set(found) >= {"written", "optimized", "derivative", "final"}
    assert set(found["final"]) == set(culprit.nodes)
    written = {study.graph.node(i).op for i in found["written"]}
    assert written & {"matmul", "bias_add"}, "the nodes that were fused into the first bad dispatch"
    study.close()


def test_a_study_for_inference_too() -> None:
    study = Study(networks.gated_block(), device="cpu", name="gated")
    study.values()
    found = overlay(study.doc, "value")
    assert set(found) == {"written", "optimized"} and len(found["optimized"]) >= len(study.optimized) - 2
