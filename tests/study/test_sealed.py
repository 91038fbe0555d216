"""Graphs of a study are complete: nothing outside changes them, and what is asked of them again is the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import networks
import pytest

import gdlab as gd
from gdlab.study.study import Study

CHANGES: dict[str, Callable[[gd.Graph], object]] = {
    "an op": lambda g: gd.tanh(g.value(0)),
    "an operator": lambda g: g.value(0) + 1,
    "a method": lambda g: g.value(0).relu(),
    "a composite": lambda g: g.value(0).split([1] * g.value(0).shape[1], 1),
    "a name": lambda g: g.value(len(g) - 1).named("other"),
    "outputs": lambda g: g.set_outputs(g.value(len(g) - 1)),
    "an output": lambda g: g.output(g.value(0), "more"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stage", ["graph", "optimized", "derivative", "final"])
def test_a_value_of_a_study_is_refused_before_anything_is_appended(change: str, stage: str) -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    graph = getattr(study, stage)
    before = graph.text()
    with gd.Graph() as other:
        with pytest.raises(gd.GraphError, match="a value of graph mlp, which is complete"):
            CHANGES[change](graph)
    assert graph.text() == before and len(other) == 0


def test_the_graph_that_a_person_built_stays_open() -> None:
    graph = networks.mlp()
    nodes = len(graph)
    Study(graph, train=True, device="cpu").plan  # noqa: B018
    gd.build_session(graph, "cpu").close()
    graph.value(0).relu()
    assert len(graph) == nodes + 1


@pytest.mark.parametrize("make", [networks.mlp, networks.transformer])
def test_graphs_and_plans_pickle(make: Callable[[], gd.Graph]) -> None:
    study = Study(make(), train=True, device="cpu")
    graph, plan = pickle.loads(pickle.dumps(study.graph)), pickle.loads(pickle.dumps(study.plan))
    assert graph.text() == study.graph.text() and graph.sources() == study.graph.sources()
    assert plan.to_json() == study.plan.to_json() and plan.fingerprint == study.plan.fingerprint
    assert pickle.loads(pickle.dumps(study.optimized)).text() == study.optimized.text()


def test_a_graph_pickles_while_it_is_built() -> None:
    with gd.Graph() as graph:
        x = gd.input("x", (2, 3))
        copy = pickle.loads(pickle.dumps(graph))
        graph.output(x.relu())
    assert len(copy) == 1 and copy.source(0)[0].file == __file__
    with copy:
        copy.output(copy.value(0).tanh())
    assert len(copy) == 2 and len(graph) == 2
