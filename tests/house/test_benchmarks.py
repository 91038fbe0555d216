"""The benchmarks measure what their rows say, and find their place in docs/figures.md."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import compiled, generate, measure, passes, peer_onnx, recognize, steps
from benchmarks.__main__ import BEGIN, CHOSEN, END, main, with_table
from gdlab.compiled import build_compiled_graph
from gdlab.models import TransformerLmConfig


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


@pytest.mark.parametrize(
    ("given", "words"),
    {
        "peers --only nosuch": "argument --only: given nosuch, wanted one of mlp, xf, xfL, xfM",
        "groups --only m": "argument --only: given m, wanted one of mlp, xf",
        "generate --only f64": "argument --only: given f64, wanted one of ",
        "kernels --only nosuch": "argument --only: given nosuch, wanted one of ",
        "eager --only mlp": "argument --only: given with eager, wanted with one of generate, groups, kernels, peers",
        "--only mlp": "argument --only: given with all, wanted with one of generate",
        "peers --docs": "argument --docs: given with peers, wanted without a table",
        "peers --1b": "argument --1b: given with peers, wanted with generate",
    }.items(),
)
def test_an_option_that_chooses_nothing_is_refused(
    given: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", *given.split()])
    for name in CHOSEN:
        monkeypatch.setattr(f"benchmarks.{name}.print_table", lambda *given: None)
    with pytest.raises(SystemExit):
        main()
    assert words in capsys.readouterr().err


def test_figures_are_rounded_to_three() -> None:
    assert measure.spread([0.0012345, 0.001, 0.002], "ms", 1e3) == "**1.23** ms (1 – 2)"
    assert measure.spread([5432.1], "/s") == "**5,430** /s (5,430 – 5,430)"


def test_the_table_replaces_the_old_one_and_nothing_else() -> None:
    once = with_table("# gdlab\n\ntext\n", "old \\1")
    assert once == f"# gdlab\n\ntext\n\n## Figures\n\n{BEGIN}\nold \\1\n{END}\n"
    assert with_table(once + "\nmore\n", "new") == once.replace("old \\1", "new") + "\nmore\n"


@pytest.mark.parametrize("name", ["tiny", "transformer"])
def test_calls_of_a_compiled_graph_are_those_of_the_session(name: str) -> None:
    case = compiled.CASES[name]
    with build_compiled_graph(case.graph(False), "cpu") as graph:
        graph.initialize(0)
        calls = compiled.calls_of(graph, "cpu", case)
        (want,) = calls["run"]()  # type: ignore[misc]
        np.testing.assert_array_equal(calls["session"](), want)
        found = compiled.quartiles({"run": calls["run"], "run_slots": calls["run_slots"]}, 4)
    assert set(found) == {"run", "run_slots"} and all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize("name", compiled.CASES)
def test_the_onnx_model_of_a_network_computes_it(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    case = compiled.CASES[name]
    with build_compiled_graph(case.graph(False), "cpu") as graph:
        graph.initialize(0)
        (input_name,) = graph.input_names
        x = case.data()[input_name]
        model = peer_onnx.model_of(case.graph(False), {name: graph.read_param(name) for name in graph.param_names})
        (want,) = graph.run({input_name: x})
        (got,) = ReferenceEvaluator(model).run(None, {input_name: peer_onnx.as_fed(x)})
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_bars_are_of_calls_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bar that has no peer of its own is judged, also without onnxruntime or a GPU of NVIDIA."""
    monkeypatch.setattr(compiled, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "BARS", [bar for bar in compiled.BARS if bar.network != "transformer"])
    judged = {(bar.network, bar.call): ratio for bar, ratio in compiled.bar_rows(4)}
    assert judged.keys() >= {
        ("tiny", "run_slots"), ("tiny", f"run_pipelined of {compiled.SETS}"), ("three outputs", "run"),
        ("layers at all of its rows", "run"), ("two contexts", "in two threads"),
    }  # fmt: skip
    assert all(0.01 < ratio < 100 for ratio in judged.values())


def test_decoding_is_measured_on_models_that_are_made_from_a_seed() -> None:
    config, values = TransformerLmConfig(40, 32, 1, 2, 1, 64), generate.RandomMatrices()
    found = {d: generate.ours(generate.RandomModel(config, d, values), "cpu", 2, d == "q8") for d in ("f32", "q8")}
    wide, narrow = found["f32"], found["q8"]
    assert len(wide.seconds) == generate.ROUNDS and min(wide.seconds) > 0 and len(wide.tokens) == generate.WARM
    assert narrow.weight_bytes < 0.4 * wide.weight_bytes
    assert 0 < np.abs(narrow.logits - wide.logits).max() < 0.1 * np.abs(wide.logits).max()
    assert any("a batch of 8" in note for note in narrow.notes)
