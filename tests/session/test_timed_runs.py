"""Runs that end by the clock: at the first step's end after that time, paused, resumed, and as steps for tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from networks import small_mlp

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.session.run import stepping
from gdlab.session.run.runner import Runner
from gdlab.study.study import Study


class Clock:
    """A clock that each step moves by one second; `at`: what happens in the feed of a step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[int, object] = {}

    def feed(self, step: int) -> dict[str, np.ndarray]:
        self.now += 1.0
        if step in self.at:
            self.at[step]()
        return {"x": np.ones((8, 6), np.float32), "y": np.eye(3, dtype=np.float32)[[0] * 8]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    fake = SimpleNamespace(perf_counter=lambda: made.now, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(stepping, "time", fake)
    monkeypatch.delenv("GDLAB_STEPS", raising=False)
    return made


@pytest.fixture
def study(clock: Clock) -> Iterator[Study]:
    graph = small_mlp()
    made = Study(graph, train=True, device="cpu", name="mlp")
    types = {n.name: n.type.shape for n in graph.inputs}

    def feed(step: int) -> dict[str, np.ndarray]:
        clock.feed(step)
        return {name: np.full(shape, 0.5, np.float32) for name, shape in types.items()}

    made.prepare(feed=feed, adam=1e-2, init=0)
    yield made
    made.close()


def test_it_ends_at_the_first_steps_end_after_that_time(study: Study) -> None:
    study.run(seconds=3.5)
    runner = study.runner
    assert (study.session.step_count, runner.state, runner.wanted, runner.timed) == (4, "ready", 4, False)
    assert [step for step, _ in runner.losses] == [1, 2, 3, 4]
    study.run(seconds=0.001)
    assert study.session.step_count == 5, "one step at least"
    study.run(2)
    study.run()
    assert study.session.step_count == 8, "runs by number are as before"


def test_a_pause_stops_the_clock_and_resume_makes_the_rest(study: Study, clock: Clock) -> None:
    runner = study.runner
    clock.at[1] = lambda: runner.pause()
    study.run(seconds=5)
    assert (runner.state, runner.timed, study.session.step_count) == ("paused", True, 2)
    clock.now += 1000.0
    study.step()
    assert (runner.state, study.session.step_count) == ("paused", 3)
    study.resume()
    assert (runner.state, runner.timed, study.session.step_count) == ("ready", False, 6)


def test_stop_and_reset_drop_the_rest(study: Study, clock: Clock) -> None:
    runner = study.runner
    clock.at[1] = clock.at[4] = lambda: runner.pause()
    study.run(seconds=5)
    runner.stop()
    assert (runner.state, runner.timed) == ("ready", False)
    with pytest.raises(SessionError, match="wanted a paused session"):
        study.resume()
    study.run(seconds=5)
    study.reset()
    assert (runner.state, runner.timed, study.session.step_count) == ("ready", False, 0)
    clock.at = {2: lambda: runner.start(3)}
    with pytest.raises(SessionError, match="3 steps while 2 of a timed run are done"):
        study.run(seconds=5)


def test_gdlab_steps_makes_steps_in_its_place(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDLAB_STEPS", "7")
    study.run(seconds=3600)
    assert (study.session.step_count, study.runner.wanted) == (7, 7)
    study.run(2)
    assert study.session.step_count == 9, "of runs by the clock alone"
    for bad in ("many", "0", "-1", "1.5"):
        monkeypatch.setenv("GDLAB_STEPS", bad)
        with pytest.raises(ArgumentError, match=f"run: GDLAB_STEPS: given '{bad}', wanted an int ≥ 1"):
            study.run(seconds=1)
    assert study.session.step_count == 9


def test_bad_times_change_nothing(study: Study) -> None:
    for bad in (0, -1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(ArgumentError, match="run: seconds: given .*, wanted a number > 0"):
            study.run(seconds=bad)
    with pytest.raises(ArgumentError, match="run: seconds: given 5 and 3 steps as well, wanted one of the two"):
        study.run(3, seconds=5, adam=1.0)
    runner = Runner(study.session)
    with pytest.raises(ArgumentError, match="wanted one of the two"):
        runner.start(1, seconds=1.0)
    assert study.session.step_count == 0 and "0.01" in str(study.session.optimizer)
