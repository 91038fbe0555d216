"""Turns: a program on cpu waits for nobody else; jobs that would wait for one another in a circle do not; cancelled
futures and callbacks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from child import run_child
from counting import ONE, counter

from gdlab.base.errors import SessionError
from gdlab.base.threads import wait_for


def test_another_programs_pending_work_does_not_delay_one_on_cpu() -> None:
    """A feed of the first waits until a second thread has stepped the other."""
    first, other = counter("cpu"), counter("cpu", "other")
    stepped, asked = threading.Event(), list[bool]()

    def feed(step: int) -> Any:
        if step == 1:
            asked.append(stepped.wait(20))
        return ONE

    def step_other() -> None:
        other.session.set_input("x", np.ones(1, np.float32))
        for _ in range(5):
            other.session.step()
        assert other.session.read_loss() is not None
        stepped.set()

    future = first.runner.start(3, feed)
    thread = threading.Thread(target=step_other)
    thread.start()
    first.runner.wait(future)
    thread.join(20)
    assert asked == [True] and first.session.step_count == 3 and other.session.step_count == 5


def test_feeds_that_run_one_another_do_not_wait_in_a_circle(device: str) -> None:
    """A runs B, whose feed steps and reads A."""
    a, b = counter(device), counter(device, "other")
    seen = list[int]()

    def of_b(step: int) -> Any:
        a.session.step()
        seen.append(a.session.step_count)
        return ONE

    def of_a(step: int) -> Any:
        b.runner.run(2, of_b)
        return ONE

    a.session.set_input("x", np.ones(1, np.float32))
    a.runner.run(2, of_a)
    assert len(seen) == 4 and b.session.step_count == 4 and a.session.step_count == 6
    assert a.runner.state == b.runner.state == "ready"


def test_a_circle_of_runs_from_two_threads_ends(device: str) -> None:
    """Both feeds step the other session at the same time."""
    studies = [counter(device), counter(device, "other")]
    together = threading.Barrier(2, timeout=20)
    for study in studies:
        study.session.set_input("x", np.ones(1, np.float32))

    def feed_of(other: Any) -> Any:
        def feed(step: int) -> Any:
            if step == 1 and device == "cpu":  # on one adapter the two runs take turns
                together.wait()
            other.session.step()
            return ONE

        return feed

    futures = [study.runner.start(20, feed_of(other)) for study, other in zip(studies, reversed(studies), strict=True)]
    for study, future in zip(studies, futures, strict=True):
        study.runner.wait(future)
    assert [study.session.step_count for study in studies] == [40, 40]


def test_a_thousand_cancelled_futures_end(device: str) -> None:
    study = counter(device)
    for k in range(1000):
        future = study.runner.start(10**6, lambda step: ONE)
        assert future.cancel() is False
        if k % 100:
            wait_for(future)
        else:
            asyncio.run(_wrapped(future))
    assert study.runner.state in ("ready", "paused") and study.session.step_count < 10**6
    study.session.step()


async def _wrapped(future: Any) -> None:
    await asyncio.wait_for(asyncio.wrap_future(future), 20)


def test_a_callback_runs_off_the_owner_and_may_call_run(device: str) -> None:
    study, other = counter(device), counter(device, "other")
    called = threading.Event()
    names = list[str]()

    def callback(future: Any) -> None:
        names.append(threading.current_thread().name)
        other.runner.run(3, lambda step: ONE)
        study.runner.run(2, lambda step: ONE)
        called.set()

    reached = threading.Event()
    future = study.runner.start(2, lambda step: ONE if reached.wait(20) else ONE)
    future.add_done_callback(callback)
    reached.set()
    study.runner.wait(future)
    assert called.wait(20) and names == ["gdlab-callbacks"]
    assert other.session.step_count == 3 and study.session.step_count == 4


def test_a_callback_that_fails_is_told_and_the_next_runs(caplog: pytest.LogCaptureFixture) -> None:
    study, seen, reached = counter("cpu"), threading.Event(), threading.Event()
    future = study.runner.start(1, lambda step: ONE if reached.wait(20) else ONE)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: seen.set())
    reached.set()
    study.runner.wait(future)
    assert seen.wait(20) and any("callback" in record.message for record in caplog.records)


def test_sessions_that_train_shared_parameters_have_one_turn() -> None:
    from gdlab import ops
    from gdlab.graph import Graph
    from gdlab.session import SessionConfig, build, build_session

    def graph(train: bool) -> Graph:
        with Graph() as g:
            y = ops.input("x", (4, 3)) @ ops.parameter("w", (3, 2))
            g.set_outputs([ops.sum_all(ops.square(y)) if train else y])
        return g

    with build_session(graph(True), "cpu") as training:
        training.initialize(0)
        reading = [build(graph(False), SessionConfig("inference", "cpu", share_parameters_from=training))[0]]
        assert reading[0].loaded.turn is training.loaded.turn
        config = SessionConfig("inference", "cpu", share_parameters_from=reading[0])
        alone, _ = build(graph(False), SessionConfig("inference", "cpu"))
        assert alone.loaded.turn is not training.loaded.turn
        reading.append(build(graph(False), config)[0])
        for session in (*reading, alone):
            session.close()


def test_a_session_without_jobs_begins_no_thread() -> None:
    run_child("""
import threading
import numpy as np, gdlab as gd
with gd.Graph() as g:
    g.set_outputs([gd.input("x", (2,)) * 2.0])
for _ in range(20):
    s = gd.build_inference_session(g, "cpu")
    s.set_input("x", np.ones(2)); s.step(); assert s.read_output().tolist() == [2, 2]
    s.close()
assert not [t for t in threading.enumerate() if t.name == "gdlab-device"], threading.enumerate()
""")


def test_a_closed_session_ends_its_thread() -> None:
    study = counter("cpu")
    study.runner.run(3, lambda step: ONE)
    thread = study.session.loaded.turn.thread
    assert thread is not None and thread.is_alive()
    study.close()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(SessionError):
        study.session.step()
