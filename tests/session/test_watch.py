"""A run that is watched: NaN named by its dispatch and line, conditions, speed, reset and replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import networks
import numpy as np
import pytest
from documents import checked

from gdlab import ops
from gdlab.base.errors import ArgumentError, SessionError
from gdlab.graph import Graph
from gdlab.session.run.feeds import random_batch
from gdlab.study.study import Study
from gdlab.view.text.twin import twin as text


def fragile() -> Graph:
    """log of something that the third batch makes negative."""
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("w", (3, 2))
        h = ops.square(x @ w).named("h")
        safe = (h + ops.input("shift", (4, 2))).named("safe")
        g.output(ops.log(safe).mean_all())
    return g


def feed(step: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((4, 3)), "shift": np.full((4, 2), -1e3 if step == 2 else 1.0)}


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    study = Study(fragile(), train=True, device=device, name="fragile")
    study.prepare(feed=feed, sgd=0.01, init=0)
    yield study
    study.close()


def log_dispatch(study: Study) -> int:
    node = next(n.id for n in study.final if n.op == "log")
    return next(d.index for d in study.plan.dispatches if node in d.origin)


def test_the_default_watch_names_the_first_bad_dispatch_and_its_line(study: Study) -> None:
    study.run(10)
    runner = study.runner
    assert runner.state == "paused" and runner.reason == "loss is NaN at step 3"
    culprit = runner.culprit
    assert culprit is not None and culprit.what == "NaN"
    event = next(e for e in runner.events if e.dispatch >= 0)
    assert (event.kind, event.about) == ("nonfinite", f"dispatch:{culprit.dispatch}")
    lines = {e for e in study.doc.select(event.about) if e.startswith("line:")}
    assert lines and study.doc.data["runs"][0]["events"][1]["about"] == event.about
    assert culprit.dispatch == log_dispatch(study) and culprit.spoiled == ()


def test_watching_everything_stops_before_anything_is_spoiled(study: Study) -> None:
    study.runner.set_watch("everything")
    study.run(10)
    runner, culprit = study.runner, study.runner.culprit
    assert (study.session.step_count, runner.reason) == (2, "step 3 would not be finite")
    assert culprit is not None and culprit.dispatch == log_dispatch(study) and culprit.spoiled == ()
    assert np.isfinite(study.session.read_param("w")).all()
    assert "log" in culprit.label and culprit.place.startswith("line ") and culprit.place.endswith("test_watch.py")
    source = study.graph.source(next(n.id for n in study.graph if n.op == "log"))[0]
    assert culprit.place == f"line {source.line} of {source.file}"
    assert culprit.inputs[0].startswith("safe \N{MINUS SIGN}1,000 … \N{MINUS SIGN}99"), culprit.inputs
    overlay = next(o for o in study.doc.data["overlays"] if o["id"] == "nonfinite")
    assert set(overlay["values"]) == {str(i) for i in culprit.nodes} and set(overlay["values"].values()) == {"NaN"}


def test_watching_parameters_sees_what_the_loss_does_not_show() -> None:
    with Graph() as g:
        w = ops.parameter("w", (2,))
        g.output((ops.sqrt(w * ops.input("x", (2,)))).sum_all())
    study = Study(g, train=True, device="cpu", name="root")
    study.prepare(feed={"x": np.zeros(2)}, sgd=0.1)
    study.session.set_parameter("w", np.ones(2))
    study.runner.set_watch("parameters")
    study.run(5)  # sqrt(0) is 0, and its slope is not finite
    assert study.session.step_count == 1 and study.runner.reason == "w is not finite after step 1"
    culprit = study.runner.culprit
    assert culprit is not None and culprit.spoiled == () and study.plan.dispatches[culprit.dispatch].phase == "backward"
    assert "w 1 … 1" in culprit.inputs or "x 0 … 0" in culprit.inputs, culprit.inputs
    study.close()


def test_watching_nothing_goes_on(study: Study) -> None:
    study.runner.set_watch("off")
    study.run(6)
    assert study.session.step_count == 6 and study.runner.state == "ready" and study.runner.events == []


@pytest.mark.parametrize(("late", "named"), [(7, True), (100, True), (140, True), (260, False)])
def test_a_loss_that_arrives_late_is_explained_by_the_batch_of_its_step(
    late: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches since the last state but one are remembered: no cause is named for a loss that arrives later."""
    study = Study(fragile(), train=True, device="cpu", name="fragile")
    study.prepare(feed=feed, init=0)  # no update, so that no parameter is spoiled
    session, waiting, take = study.session, list[tuple[int, float]](), study.session.take_losses

    def take_late(wait: bool) -> list[tuple[int, float]]:
        waiting.extend(take(wait))
        arrived = [pair for pair in waiting if pair[0] + late <= session.step_count]
        del waiting[: len(arrived)]
        return arrived

    monkeypatch.setattr(session, "take_losses", take_late)
    study.run(300)
    assert study.runner.reason == "loss is NaN at step 3" and session.step_count == 3 + late
    culprit = study.runner.culprit
    assert (culprit is not None and culprit.dispatch == log_dispatch(study)) == named
    study.close()


def test_a_sound_session_has_no_culprit(study: Study) -> None:
    study.run(2)
    assert study.session.search.first_bad() is None and study.runner.culprit is None
    with pytest.raises(
        ArgumentError, match="watch: mode: given 'all', wanted one of off, loss, parameters, everything"
    ):
        study.runner.set_watch("all")  # type: ignore[arg-type]


# conditions, speed ----------------------------------------------------------------------------------------------------
def test_a_run_ends_when_its_condition_holds() -> None:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.run(500, feed="random:0", adam=1e-2, init=0, until="loss < 0.5 and absmax(w1) > 0")
    losses = [loss for _, loss in study.runner.losses]
    assert losses[-1] < 0.5 <= min(losses[:-1]) and study.session.step_count == len(losses) < 500
    assert study.runner.reason == "end of --until: loss < 0.5 and absmax(w1) > 0"
    with pytest.raises(ArgumentError, match="until: test: given w9, wanted one of x, w1, "):
        study.prepare(until="min(w9) < 1")
    study.runner.set_until(None)
    study.resume()
    assert study.session.step_count == 500
    study.close()


def test_speed_is_a_limit_and_pause_does_not_wait_for_it(study: Study) -> None:
    study.runner.set_speed(50)
    began = time.monotonic()
    study.run(2)
    assert time.monotonic() - began >= 2 / 50
    study.runner.set_speed(0.01)
    future = study.runner.start(5)
    while study.session.step_count < 3:
        time.sleep(0.001)
    began = time.monotonic()
    study.pause()
    study.runner.wait(future)
    assert time.monotonic() - began < 20 and study.session.step_count == 3, "the next step is 100 s away"
    study.runner.set_speed(np.float32(50))  # type: ignore[arg-type]
    assert type(study.runner.speed) is float
    for bad in (0, -1, float("inf"), "fast", True):
        with pytest.raises(ArgumentError, match="speed: steps per second: given "):
            study.runner.set_speed(bad)  # type: ignore[arg-type]


# reset and replay -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", [{"sgd": 0.1}, {"adam": 1e-2}])
def test_a_replay_makes_the_same_losses(device: str, rule: dict[str, float]) -> None:
    study = Study(networks.mlp(batch=8), train=True, device=device, name="mlp")
    study.run(7, feed="random:0", init=0, **rule)
    opening, losses = study.runner.stepper.reset_point.snapshot.tensors["w1"].copy(), list(study.runner.losses)
    assert not np.array_equal(study.session.read_param("w1"), opening)
    study.reset()
    session = study.session
    np.testing.assert_array_equal(session.read_param("w1"), opening)
    assert (session.step_count, session.adam_step_count(), study.runner.losses, study.runner.state) == (
        0,
        0,
        [],
        "ready",
    )
    study.run(7)
    assert study.runner.losses == losses, "steps are counted from 1 again"
    study.replay()
    assert study.runner.losses == losses and study.session.step_count == 7
    study.close()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_is_replayed_from_its_first_batch(kind: Callable[[Any], Any]) -> None:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    batches = [random_batch(study.graph, seed) for seed in range(5)]
    study.run(2, feed=batches[0], sgd=0.1, init=0)
    study.run(3, feed=kind(batches))  # its first batch is that of the third step
    losses = study.runner.losses[2:]
    study.replay()
    assert study.session.step_count == 5, "of five batches, from the first step on"
    assert len({loss for _, loss in [*losses, *study.runner.losses]}) == 8
    first = list(study.runner.losses)
    study.replay()
    assert study.runner.losses == first
    study.close()


def test_an_iterator_cannot_be_replayed() -> None:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    batch = random_batch(study.graph, 0)
    study.run(2, feed=(batch for _ in range(9)), sgd=0.1, init=0)
    losses = list(study.runner.losses)
    with pytest.raises(SessionError, match="replay: feed: given an iterator"):
        study.replay()
    assert study.session.step_count == 2 and study.runner.losses == losses
    study.close()


def test_a_reset_clears_a_pause_and_is_refused_while_running(study: Study) -> None:
    study.reset()  # before any step it changes nothing
    study.run(10)
    assert study.runner.culprit is not None
    study.reset()
    assert study.runner.culprit is None and study.runner.state == "ready" and study.runner.events[-1].kind == "note"
    assert np.isfinite(study.session.read_param("w")).all()
    future = study.runner.start(10**6)
    try:
        with pytest.raises(SessionError, match="run: session: given reset while "):
            study.runner.reset()
    finally:
        study.runner.stop()
        study.runner.wait(future)


def test_runs_of_before_a_reset_stay_in_the_document_with_their_rule() -> None:
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.reset()
    assert study.runner.earlier == [], "nothing was run"
    study.run(3, feed="random:0", sgd=0.1, init=0)
    first = list(study.runner.losses)
    study.reset()
    study.prepare(adam=1e-2)
    study.run(2)
    old, new = study.doc.data["runs"]
    assert [tuple(row) for row in old["loss"]] == first and old["label"] == "SGD, lr 0.1" and "label" not in new
    assert len(new["loss"]) == 2 and old["counters"]["steps"] == 3
    checked(study.doc)
    twin = text(study.doc, "session")
    assert "earlier0: cpu, " in twin and "; SGD, lr 0.1" in twin
    for _ in range(6):
        study.reset()
        study.run(1)
    assert [len(run.losses) for run in study.runner.earlier] == [1, 1, 1, 1] and len(study.doc.data["runs"]) == 5
    study.close()
