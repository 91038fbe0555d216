"""The benchmarks measure what their rows say, and find their place in docs/figures.md."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import compiled, measure, passes, recognize, steps
from benchmarks.__main__ import BEGIN, END, with_table


def test_the_graphs_have_the_sizes_of_their_rows() -> None:
    for nodes in (passes.SMALL, passes.LARGE, min(passes.DRAWN)):
        graph, report = passes.differentiated(nodes)
        assert nodes - 5 < len(graph) <= nodes
        assert len(passes.drawn(nodes)) == len(graph) and report.forward_nodes < len(graph)


@pytest.mark.parametrize("train", [False, True])
def test_the_transformer_in_primitives_is_recognized(train: bool) -> None:
    from gdlab.plan import compile

    before, after, missed, taken = recognize.optimized(1, train)
    counts = [len(compile(g, mode="training" if train else "inference").dispatches) for g in (before, after)]
    assert counts[1] < counts[0] and len(after) < len(before) and taken > 0
    assert "RmsNorm+MatMul→FusedRmsNormMatMul 4 × disabled" in recognize.reasons(missed)
    assert recognize.reasons(()) == "every near match was used"


def test_cells_of_the_tour_become_pictures() -> None:
    cells = passes.tour_cells()
    assert [name for name, _, _ in cells] == ["mlp", "block"]
    assert 0 < passes.picture_seconds(*cells[0]) < 20


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_both_loops_train_the_same_network(rule: str) -> None:
    import networks

    from gdlab.session import build_session

    by_hand = steps.by_hand(rule)(3)
    with build_session(networks.mlp(), "cpu") as session:
        run, runner = steps.by_session(session, rule)
        run(3)
        np.testing.assert_allclose([loss for _, loss in runner.losses], by_hand, rtol=1e-5)


def test_contestants_take_turns() -> None:
    calls: list[str] = []
    rates = measure.rates_of({"a": (lambda n: calls.append(f"a{n}"), 2), "b": (lambda n: calls.append(f"b{n}"), 3)})
    assert calls == ["a2", "b3"] * (measure.ROUNDS + 1)
    assert [len(found) for found in rates.values()] == [measure.ROUNDS] * 2


def test_figures_are_rounded_to_three() -> None:
    assert measure.spread([0.0012345, 0.001, 0.002], "ms", 1e3) == "**1.23** ms (1 – 2)"
    assert measure.spread([5432.1], "/s") == "**5,430** /s (5,430 – 5,430)"


def test_the_table_replaces_the_old_one_and_nothing_else() -> None:
    once = with_table("# gdlab\n\ntext\n", "old \\1")
    assert once == f"# gdlab\n\ntext\n\n## Figures\n\n{BEGIN}\nold \\1\n{END}\n"
    assert with_table(once + "\nmore\n", "new") == once.replace("old \\1", "new") + "\nmore\n"


@pytest.mark.parametrize("name", ["tiny", "transformer"])
def test_calls_of_a_compiled_graph_are_those_of_the_session(name: str) -> None:
    from gdlab.compiled import build_compiled_graph

    case = compiled.CASES[name]
    with build_compiled_graph(case.graph(False), "cpu") as graph:
        graph.initialize(0)
        calls = compiled.calls_of(graph, "cpu", case)
        (want,) = calls["run"]()  # type: ignore[misc]
        np.testing.assert_array_equal(calls["session"](), want)
        found = compiled.quartiles({"run": calls["run"], "run_slots": calls["run_slots"]}, 4)
    assert set(found) == {"run", "run_slots"} and all(seconds > 0 for seconds in found.values())
