"""A study: every stage once, one session, one runner; what it says of itself, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import networks
import numpy as np
import pytest
from session_state import state_of

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, AutodiffError, GdlabError, GraphError, SessionError
from gdlab.base.words import nbytes
from gdlab.graph import Graph
from gdlab.session import build_inference_session, build_session, lanes_of
from gdlab.study.study import Study

STAGES = [
    "optimized", "report", "derivative", "autodiff", "written_derivative", "final", "final_report", "plan", "device",
]  # fmt: skip


@pytest.fixture
def study() -> Iterator[Study]:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    yield study
    study.close()


# stages ---------------------------------------------------------------------------------------------------------------
def test_every_stage_is_made_once(study: Study) -> None:
    for stage in STAGES:
        assert getattr(study, stage) is getattr(study, stage), stage
    assert study.session is study.session and study.runner is study.runner and study.runner.session is study.session
    assert study.session.plan() is study.plan


def test_no_session_is_opened_by_looking(study: Study) -> None:
    for stage in STAGES:
        getattr(study, stage)
    text = (repr(study), str(study), study.summary())
    assert not study.has_session and study.rev == 0
    assert text[0] == "<Study mlp: 14 nodes, training, no session>"
    assert text[1].startswith(text[2] + "\n%0 = input(")
    _ = study.session
    assert study.has_session and study.rev == 1 and "session ready" in repr(study)


def test_a_study_runs_the_same_plan_as_a_session(study: Study) -> None:
    with build_session(networks.mlp(batch=8), "cpu") as session:
        assert session.plan() == study.plan
    inference = Study(networks.reader(8), device="cpu")
    with build_inference_session(networks.reader(8), "cpu") as session:
        assert session.plan() == inference.plan
        assert inference.final is inference.optimized and inference.final_report is inference.report


def test_the_graph_is_a_copy(study: Study) -> None:
    graph = networks.mlp(batch=8)
    mine = Study(graph, train=True, device="cpu")
    with graph:
        graph.set_outputs([ops.input("late", (1,))])
    assert len(mine.graph) == 14 and mine.plan == study.plan


def test_the_summary_counts_what_is_there(study: Study) -> None:
    final, plan, step = study.final, study.plan, study.execution.totals()
    rewrites = sum(n for _, n in (*study.report.rules_fired, *study.final_report.rules_fired))
    assert study.summary() == (
        "graph mlp: 14 nodes, 4 parameters (9,610 values), 1 output; "
        f"train: {len(study.derivative)} nodes -> {len(final)}, {rewrites} rewrites; "
        f"plan: {step.dispatch_words}, {step.groups} groups, {nbytes(step.physical_bytes)}"
    )
    assert rewrites > 0 and len(final) < len(study.derivative) and study.missed == plan.missed
    reader = Study(networks.reader(8), device="cpu", name="reader")
    assert re.match(r"graph reader: \d+ nodes, .*; inference: \d+ nodes -> \d+, \d+ rewrites; plan: ", reader.summary())


def test_rules_may_be_switched_off() -> None:
    block = networks.transformer(length=4, width=8, inner=8)
    everything = Study(block, train=True, device="cpu")
    fired = [label for label, _ in everything.final_report.rules_fired if label != "CSE"]  # equal nodes are always one
    assert len(fired) > 1
    nothing = Study(block, train=True, device="cpu", disable=tuple(fired))
    assert {label for label, _ in nothing.final_report.rules_fired} <= {"CSE"}
    alone = Study(block, train=True, device="cpu", only=(fired[0],))
    assert {label for label, _ in alone.final_report.rules_fired} - {"CSE"} == {fired[0]}


def test_the_written_graph_may_be_differentiated_by_any_name() -> None:
    with Graph() as g:
        x = ops.input("x", (3,))
        h = ops.square(x).named("h")
        g.output(ops.sum_all(h * 3.0))
    study = Study(g, train=True, device="cpu", name="g")
    derivative, report = study.differentiate_wrt(("h", "x"))
    assert report.wrt == (h.id, x.id) and derivative.num_param_grad_outputs == 2
    with pytest.raises(GraphError, match="graph g: wrt: given 'y', wanted one of x, h"):
        study.differentiate_wrt(("y",))
    whole, _ = study.written_derivative
    assert str(whole) == str(differentiate(g)[0])


# running --------------------------------------------------------------------------------------------------------------
def test_a_run_sets_what_is_given_and_makes_its_steps(study: Study) -> None:
    study.run(5, feed="random:0", adam=1e-2, init=0)
    losses = [loss for _, loss in study.runner.losses]
    assert len(losses) == study.session.step_count == 5 and losses[-1] < losses[0]
    assert str(study.session.optimizer) == "Adam, lr 0.01"
    study.run(2, sgd=0.1)
    study.step()
    study.step(3)
    assert study.session.step_count == 11 and study.session.adam_step_count() == 5
    assert str(study.session.optimizer) == "SGD, lr 0.1"


def test_pause_and_resume_reach_the_runner(study: Study) -> None:
    def feed(step: int) -> dict[str, Any]:
        if step == 3:
            study.pause()
        return batch

    study.prepare(feed="random", init=0)
    batch = dict(study.runner.feed(0))  # type: ignore[misc]
    study.run(10, feed=feed)
    assert (study.session.step_count, study.runner.state) == (4, "paused")
    study.resume()
    assert (study.session.step_count, study.runner.state) == (10, "ready")


def test_values_set_by_hand_need_no_feed(study: Study) -> None:
    study.prepare(init=0)
    study.session.set_input("x", np.zeros((8, 64)))
    study.session.set_input("y", np.eye(10)[:8])
    study.run(2)
    assert study.session.read_loss() == pytest.approx(np.log(10), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, SessionError, "graph mlp: run: given no value for x, y, wanted --feed or set_input"),
        ({"feed": "random"}, SessionError, "run: parameters: given no value for w1, b1, w2, b2, wanted initialize("
                                           "seed), initialize(zeros=True), set_parameter or load_checkpoint"),
        ({"feed": 3, "adam": 1e-3}, ArgumentError, "feed: kind: given int, wanted a dict of arrays, "
                                                   "a callable step -> dict, an iterable of dicts, or random[:SEED]"),
        ({"feed": "random", "adam": -1, "init": 0}, SessionError,
         "set_adam: lr: given -1, wanted a finite number ≥ 0"),
        ({"sgd": float("nan"), "init": 0}, SessionError,
         "set_learning_rate: lr: given nan, wanted a finite number ≥ 0"),
    ],
    ids=["no feed", "no values", "bad feed", "bad rate", "no number"],
)  # fmt: skip
def test_a_run_that_cannot_start_says_why(study: Study, settings: Any, error: type[Exception], text: str) -> None:
    before = state_of(study.session)
    with pytest.raises(error) as caught:
        study.run(5, **settings)
    assert str(caught.value) == text
    assert state_of(study.session) == before and study.runner.state == "ready"


def test_a_study_that_runs_takes_no_settings(study: Study) -> None:
    study.prepare(feed="random", init=0)
    feed = study.runner.feed
    future = study.runner.start(10**6)
    try:
        with pytest.raises(SessionError, match=r"run: session: given 5 steps while \d+ of 1000000 are done"):
            study.run(5, feed="random:1", adam=1e-3)
        with pytest.raises(SessionError, match=r"run: session: given new settings while \d+ of 1000000 are done"):
            study.prepare(sgd=0.1)
        assert str(study.session.optimizer) == "no update rule" and study.runner.feed is feed
    finally:
        study.runner.stop()
        study.runner.wait(future)


def test_a_closed_study_stays_readable_and_is_reopened(study: Study) -> None:
    study.run(2, feed="random", init=0)
    old, summary, rev = study.session, study.summary(), study.rev
    study.close()
    assert old.closed and not study.has_session and study.summary() == summary and "session closed" in repr(study)
    study.reopen()
    study.run(1, feed="random", init=0)
    assert study.session is not old and study.session.step_count == 1
    assert study.rev > rev, "views must draw the new session"


# refusals -------------------------------------------------------------------------------------------------------------
def test_what_is_no_study_is_refused() -> None:
    vector = networks.reader(8)
    with pytest.raises(GraphError, match=r"graph g: output: given none, wanted a last expression or output\(...\)"):
        Study(Graph(), name="g")
    with pytest.raises(GraphError, match=r"graph g: loss: given f32\[8, 10\], wanted shape \[1\]"):
        Study(vector, train=True, name="g")
    with pytest.raises(GraphError, match="graph g: graph: given int, wanted a Graph"):
        Study(3, name="g")  # type: ignore[arg-type]


def test_a_study_for_inference_has_no_derivative() -> None:
    study = Study(networks.reader(8), device="cpu", name="reader")
    for stage in ("derivative", "autodiff", "written_derivative"):
        with pytest.raises(AutodiffError, match="graph reader: derivative: given a study for inference, wanted train="):
            getattr(study, stage)
    study.prepare(feed="random", init=0)
    with pytest.raises(SessionError, match="set_adam: session: given an inference session, wanted a training session"):
        study.prepare(adam=1e-3)
    study.run(3)
    np.testing.assert_allclose(study.session.read_output().sum(1), 1, rtol=1e-5)
    study.close()


def test_a_rewritten_node_has_the_lane_of_the_node_it_replaced() -> None:
    """Other nodes that it swallowed, here forward node 1, do not move backward node 2."""
    with Graph() as final:
        ops.relu(ops.input("x", (2,)))
    autodiff = SimpleNamespace(forward_nodes=2, adjoint_of={2: 1})
    report = SimpleNamespace(origin={0: (0, 2), 1: (2, 1)})
    lanes = lanes_of(final, autodiff, report)  # type: ignore[arg-type]
    assert [(lane.phase, lane.forward) for lane in lanes] == [("forward", 0), ("backward", 1)]


# asking ---------------------------------------------------------------------------------------------------------------
def test_a_variant_is_kept_beside_the_study(study: Study) -> None:
    rev = study.rev
    plain = study.variant("plain", only="cse")
    assert study.variants == {"plain": plain} and study.rev == rev + 1
    assert plain.report.rules_fired == () and len(plain.optimized) > len(study.optimized)
    rows = [line.split() for line in study.compare().splitlines()]
    assert rows[0][:2] == ["nodes", "rewrites"] and [row[0] for row in rows[1:]] == ["mlp", "plain"]
    assert rows[2][1:4] == [str(len(plain.final)), str(sum(n for r in plain.reports for _, n in r.rules_fired)),
                            str(len(plain.plan.dispatches))]  # fmt: skip
    assert [s["key"] for s in study.doc.data["stages"]][-1] == "variant:plain" and study.doc.check() == ()


def test_at_most_six_variants_are_kept_and_a_refused_one_is_not(study: Study) -> None:
    for k in range(8):
        study.variant(f"v{k}")
    assert list(study.variants) == [f"v{k}" for k in range(2, 8)]
    with pytest.raises(ValueError, match="optimize: disable: given 'nope', wanted the id or label of a rule"):
        study.variant("bad", disable="nope")
    assert "bad" not in study.variants
    assert study.variant(disable=["fuse_silu"], allow="exact").name == "no fuse_silu; allow exact"
    assert study.variant(device="cpu").name == "cpu" and study.variant().name == "as it is"


def test_the_numbers_are_those_of_the_session(study: Study) -> None:
    assert study.feeds()["b1"].any(), "before a session every parameter has random values"
    study.prepare(init=0)
    feeds = study.feeds({"x": np.ones((8, 64)), "y": np.eye(10)[:8]})
    np.testing.assert_array_equal(feeds["w1"], study.session.read_param("w1"))
    assert not feeds["b1"].any()
    study.session.set_input("x", np.full((8, 64), 2.0))
    assert (study.feeds()["x"] == 2).all() and study.feeds()["y"].shape == (8, 10)
    with pytest.raises(KeyError, match="feed: input: given y, wanted one of x"):
        study.feeds({"x": np.ones((8, 64))})
    assert study.session.step_count == 0


def test_values_and_gradients_by_hand() -> None:
    with Graph() as g:
        x = ops.input("x", (2,))
        g.output(ops.sum_all(ops.square(x) * ops.parameter("w", (2,))))
    study = Study(g, train=True, device="cpu", name="g")
    study.prepare(init=0)
    study.session.set_parameter("w", [3.0, -1.0])
    values = study.values({"x": [2.0, 5.0]})
    assert values.value[g.output_ids[0]].tolist() == [3 * 4 - 25]
    assert values.gradient[0].tolist() == [2 * 2 * 3, 2 * 5 * -1]  # of an input too
    assert [values.gradient[n.id].tolist() for n in study.graph.parameters] == [[4, 25]]
    row = next(line for line in str(values).splitlines() if " w " in line)
    assert row.split("  ")[-2:] == ["[3, −1]", "[4, 25]"] or ("[3, −1]" in row and row.endswith("[4, 25]"))
    assert {o["id"] for o in study.doc.data["overlays"]} == {"value", "gradient", "adjoint"}
    assert study.doc.check() == ()
    study.close()


@pytest.mark.parametrize(
    "wrong", [{"adam": 0.1, "init": -1}, {"sgd": 0.3, "adam": -1.0}, {"until": "loss < 1", "sgd": -1.0}]
)
def test_settings_that_are_refused_change_nothing(wrong: dict[str, Any]) -> None:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.run(1, feed="random:0", sgd=0.1, init=0)
    rule, until = study.session.optimizer, study.runner.lookout.until
    with pytest.raises(GdlabError):
        study.run(1, **wrong)
    assert (study.session.optimizer, study.runner.lookout.until, study.session.step_count) == (rule, until, 1)
    study.close()


def test_a_data_loader_is_a_feed_and_replays() -> None:
    from gdlab.train.data import DataLoader, InputStream

    rng = np.random.default_rng(0)
    labels = np.eye(10)[rng.integers(0, 10, 40)]
    streams = [InputStream("x", rng.normal(size=(40, 64)), 64), InputStream("y", labels, 10)]
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.run(12, feed=DataLoader.with_streams(streams, 8), sgd=0.1, init=0)  # more than two epochs of five
    losses = list(study.runner.losses)
    study.replay()
    assert study.runner.losses == losses and len({loss for _, loss in losses}) == 12
    study.close()
