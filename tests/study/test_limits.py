"""An optimisation that ended by a limit says which, and what is known: in report, views and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gdlab.ops as ops
from gdlab.graph import Graph, Value
from gdlab.rewrite import RULES, Budget, Rewrite, optimize, rule
from gdlab.rewrite.engine import saturate
from gdlab.study.study import Study
from gdlab.view.text.twin import twin


@pytest.fixture(autouse=True)
def associativity() -> Iterator[None]:
    """A rule that matches without end in sight, and makes nothing cheaper."""
    theirs, removed = dict(RULES._theirs), set(RULES._removed)

    @rule(label="Add assoc")
    def assoc(x: Value, y: Value, z: Value) -> Rewrite:
        return (x + y) + z >> x + (y + z)  # type: ignore[no-any-return]

    yield
    RULES._theirs, RULES._removed = theirs, removed


def total(terms: int, extra: bool = False) -> Graph:
    with Graph() as g:
        y = ops.input("x0", (3,))
        for i in range(1, terms):
            y = y + ops.input(f"x{i}", (3,))
        g.set_outputs(ops.mul(y, ops.sigmoid(y)) if extra else y)
    return g


LIMITS = {
    "iterations": (Budget(iterations=2), "Stopped by the limit on iterations after 2 iterations: "),
    "enodes": (Budget(enodes=60), "Stopped by the limit on e-nodes ("),
    "time": (Budget(seconds=0.0), "Stopped by the limit on time ("),
}


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_report_names_the_limit_and_what_is_known(limit: str, engine: Any) -> None:
    budget, begin = LIMITS[limit]
    report = optimize(total(8), phase="forward", engine=engine, budget=budget)[1]
    assert report.stop_reason == limit and report.hit_limit
    assert report.outcome.startswith(begin) and "no rule matched" not in report.outcome
    assert "of 1 rule; none has made the graph cheaper. A cheaper graph may exist: Budget(" in report.outcome
    assert report.outcome in report.to_text() and report.to_json()["outcome"] == report.outcome


def test_a_search_without_a_round_has_no_match_so_far() -> None:
    report = optimize(total(3), phase="forward", budget=Budget(iterations=0))[1]
    assert report.outcome.startswith("Stopped by the limit on iterations after 0 iterations: no match so far. ")


def test_a_saturated_search_says_whether_anything_matched() -> None:
    outcome = optimize(total(4), phase="forward")[1].outcome
    assert outcome.startswith("Saturated after ") and outcome.endswith("of 1 rule; none made the graph cheaper.")
    outcome = optimize(total(2), phase="forward")[1].outcome
    assert outcome.startswith("Saturated after ") and outcome.endswith(": no rule matched.")
    assert "; 1 rewrite." in optimize(total(2, extra=True), phase="forward")[1].outcome
    off = optimize(total(4), phase="forward", only=("cse",))[1]
    assert off.outcome == "Not searched: no rule takes part."


@pytest.mark.parametrize("train", [False, True])
def test_a_study_that_hit_a_limit_says_so_everywhere(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturate.Budget, "cap", lambda self, nodes: 60)
    graph = total(8)
    if train:
        with Graph() as graph:
            w = y = ops.parameter("w", (3,))
            for i in range(8):
                y = y + ops.input(f"x{i}", (3,))
            graph.set_outputs(ops.mean_all(y * w))
    study = Study(graph, name="s", device="cpu", train=train)
    document, outcome = study.doc, study.report.outcome
    assert study.report.stop_reason == "enodes"
    assert document.check() == () and document.data["passes"][0]["report"]["outcome"] == outcome
    notes = [note for note in document.data["notes"] if outcome in note["text"]]
    assert [note["level"] for note in notes] == ["warning"]
    assert "; the optimizer stopped by its limit on e-nodes" in study.summary() == document.data["summary"]
    for view in ("opt", "rewrites"):
        text = " ".join(twin(document, view).split())
        assert " ".join(outcome.split()) in text and "no rule matched, or none" not in text


def test_a_study_that_saturated_has_no_such_note() -> None:
    study = Study(total(3), name="s", device="cpu")
    assert not study.doc.data["notes"] and "limit" not in study.summary()
