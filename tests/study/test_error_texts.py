"""No error text is longer than a screen, however many names, parameters or inputs a graph has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.base.errors import ArgumentError, SessionError, ShapeError, UnknownNameError
from gdlab.base.words import listed

MANY = 400
WIDE = {f"a{i}": np.zeros(1, np.float32) for i in range(4000)}


def long_sum() -> gd.Graph:
    with gd.Graph() as graph:
        total = gd.input("x", (1,)) * 1.0
        for i in range(MANY):
            total = total + gd.parameter(f"layer{i}.weight", (1,)) * gd.input(f"x{i}", (1,))
        graph.set_outputs(total)
    return graph


@pytest.fixture(scope="module")
def study() -> Iterator[gd.Study]:
    with gd.Graph() as graph:
        graph.set_outputs(gd.parameter("w", (1,)) * 2.0)
    made = gd.Study(long_sum(), train=True, device="cpu", name="long")
    made.session  # noqa: B018 (opened)
    yield made
    made.close()


CALLS: dict[str, Callable[[gd.Study, Path], Any]] = {
    "step without inputs": lambda s, _: s.session.step(),
    "steps without inputs": lambda s, _: s.session.step([{}]),
    "run without a feed": lambda s, _: s.run(1),
    "run with half a feed": lambda s, _: s.run(1, feed={"x": np.zeros(1)}, init=0),
    "run with a feed of other names": lambda s, _: s.run(1, feed=WIDE, init=0),
    "a checkpoint without values": lambda s, folder: fresh().save_checkpoint(str(folder / "a.safetensors")),
    "an unknown input": lambda s, _: s.session.set_input("layr0.weight", np.zeros(1)),
    "an unknown parameter": lambda s, _: s.session.read_param("layr0.weight"),
    "an unknown tensor": lambda s, _: s.watch("layr0.weight"),
    "an unknown node": lambda s, _: s.runner.break_at("node layr0"),
    "a long name": lambda s, _: s.session.set_input("x" * 50_000, np.zeros(1)),
    "many lines": lambda s, _: s.session.read_param("x\n" * 5_000),
    "a checkpoint of another model": lambda s, _: gd.models.checkpoint_weights(s.graph, WIDE),
}


def fresh() -> Any:
    return gd.Study(long_sum(), train=True, device="cpu", name="fresh").session


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_a_large_graph_is_short(study: gd.Study, call: str, tmp_path: Path) -> None:
    with pytest.raises(gd.GdlabError) as caught:
        CALLS[call](study, tmp_path)
    text = str(caught.value)
    assert len(text) <= 1_000 and text.count("\n") < 40, text


@pytest.mark.parametrize("kind", [ArgumentError, SessionError, ShapeError, UnknownNameError])
def test_whatever_an_error_is_given_its_text_is_bounded(kind: type[gd.GdlabError]) -> None:
    rows = "a row of a table\n" * 9_000
    error = kind(rows, rows, rows, rows)
    assert str(error).count("\n") < 40 and len(str(error)) < 4_600 and error.given == rows
    assert "more lines" in str(error)


def test_names_are_listed_with_their_number() -> None:
    assert listed(["a", "b"]) == "a, b" and listed([]) == ""
    assert listed([str(i) for i in range(1_234)], 3) == "0, 1, 2 … (1,234 in all)"
