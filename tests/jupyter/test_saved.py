"""The size of a saved notebook: ten graphs of 60 nodes within 2.5 MB, a few KB of widget state each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import nbformat
import pytest

from gdlab import ops
from gdlab.graph import Graph
from gdlab.jupyter.display import study_bundle
from gdlab.jupyter.widget import close_panel, panel_of
from gdlab.study.study import Study

NODES = 60


def network() -> Graph:
    """Exactly 60 nodes as written."""
    with Graph() as graph:
        h = ops.input("x", (16, 32))
        for layer in range(14):
            h = ops.relu(h @ ops.parameter(f"w{layer}", (32, 32)))
            if len(graph) < 55:
                h = h + 1.0
        graph.set_outputs(ops.mse_loss(h, ops.input("y", (16, 32))))
    return graph


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    study = Study(network(), train=True, device="cpu", name="deep")
    study.run(30, feed="random:0", sgd=1e-3, init=0)
    yield study
    close_panel(study)
    study.close()


@pytest.mark.parametrize("show", ["opt", "session"])
def test_ten_graph_cells_weigh_little(study: Study, show: str) -> None:
    assert abs(len(study.graph) - NODES) <= 3
    data, metadata = study_bundle(study, [show])
    shown = nbformat.v4.new_output("display_data", data, metadata=metadata)
    cells = [nbformat.v4.new_code_cell("%%graph deep --train", outputs=[shown]) for _ in range(10)]
    book = nbformat.v4.new_notebook(cells=cells)
    state = panel_of(study).widget.get_state()
    book.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {str(i): state for i in range(10)}}
    assert len(nbformat.writes(book).encode()) <= 2.5e6
    assert len(json.dumps(state, default=str)) <= 15_000


def test_a_long_run_adds_a_curve_and_not_every_step(study: Study) -> None:
    data, _ = study_bundle(study, ["session"])
    before = len(json.dumps(data))
    runner = study.runner
    known = list(runner.losses)
    try:
        runner.losses[:] = [(step, 1.0 / step + 0.01 * (step * 7919 % 101)) for step in range(1, 200_001)]
        data, _ = study_bundle(study, ["session"])
    finally:
        runner.losses[:] = known
    assert len(json.dumps(data)) <= before + 400_000
