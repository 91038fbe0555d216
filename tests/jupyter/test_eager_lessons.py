"""The text of every `%%graph` cell of the notebooks runs on a tape, with the values of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lessons import LESSONS, read

import gdlab as gd
from gdlab.eager import EagerSession
from gdlab.jupyter.cell import run_cell
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.session.initial import DEFAULT, initial_values
from gdlab.session.run.feeds import random_batch

NAMES = {"np": np, "gd": gd}


def cells() -> list[Any]:
    found = []
    for name in (*LESSONS, "tour"):
        for number, cell in enumerate(read(name).cells):
            head, _, body = cell.source.partition("\n")
            if cell.cell_type == "code" and head.startswith("%%graph"):
                found.append(pytest.param(body, id=f"{name}-{number}"))
    return found


@pytest.mark.parametrize("body", cells())
def test_the_text_of_a_graph_cell_runs_on_a_tape(body: str) -> None:
    try:
        graph = run_cell("g", "%%graph g", body, NAMES, 1).graph
    except NameError as error:  # a name that the notebook made before
        assert str(error)
        return
    if any(n.type.num_elements > 1 << 18 for n in graph):
        return
    feeds: dict[str, Any] = dict(random_batch(graph, 0))
    s = EagerSession(device="cpu", seed=3)
    s.feed(**feeds)
    run_cell("e", "%%eager e", body, NAMES, 2, graph=s.tape)
    for n in graph.parameters:
        feeds[n.name] = initial_values(n.name, n.type.shape, 3, dict(n.attrs).get("init") or DEFAULT)
    values = evaluate(graph, feeds)
    scales = magnitudes(graph, values)
    for ref, id in zip(s.tape.outputs, graph.output_ids, strict=True):
        failure = compare(np.asarray(ref), values[id], scales[id], 1e-5)
        assert failure is None, failure
    s.close()
