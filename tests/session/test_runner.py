"""The runner: exactly the steps that were asked for, whatever is clicked, interrupted, or fed."""

from __future__ import annotations

import _thread
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import networks
import numpy as np
import pytest

from gdlab import ops
from gdlab.base.errors import ArgumentError, SessionError, ShapeError
from gdlab.devices.base import owner
from gdlab.graph import Graph
from gdlab.session import Session, build_session
from gdlab.session.run.runner import LogEvent, Runner, make_feed, random_batch
from gdlab.study.study import Study

ONE = {"x": np.ones(1, np.float32)}


def counter() -> Graph:
    """SGD with rate 1 takes x from w in every step: while x is 1, −w counts the steps that the device really made."""
    with Graph() as g:
        g.output(ops.sum_all(ops.input("x", (1,)) * ops.parameter("w", (1,))))
    return g


@pytest.fixture
def runner(device: str) -> Iterator[Runner]:
    with build_session(counter(), device) as session:
        session.initialize(zeros=True)
        session.set_learning_rate(1.0)
        runner = Runner(session)
        runner.feed = lambda step: ONE
        yield runner


def made(session: Session) -> float:
    """The steps that the device made."""
    return -float(session.read_param("w")[0])


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for another thread, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


class Gate:
    """A feed that stops before step `at` until it is opened, so that what comes then is certain."""

    def __init__(self, at: int) -> None:
        self.at, self.reached, self.opened = at, threading.Event(), threading.Event()

    def __call__(self, step: int) -> Mapping[str, Any]:
        if step == self.at:
            self.reached.set()
            assert self.opened.wait(20)
        return ONE


# runs -----------------------------------------------------------------------------------------------------------------
def test_a_run_makes_exactly_its_steps_and_knows_every_loss(runner: Runner) -> None:
    seen: list[int] = []
    runner.run(7, lambda step: (seen.append(step), ONE)[1])
    runner.run(3)
    session = runner.session
    assert (session.step_count, session.traffic.forwards, made(session)) == (10, 10, 10)
    assert seen == list(range(10)), "the feed is asked once for every step, and stays"
    assert runner.losses == [(k, 1.0 - k) for k in range(1, 11)] and runner.last_loss == -9
    assert (runner.state, runner.reason, runner.wanted, runner.events) == ("ready", "", 10, [])
    runner.run(0)
    assert (session.step_count, runner.state) == (10, "ready")


def test_pause_takes_effect_before_the_next_step_and_resume_finishes(runner: Runner) -> None:
    gate = Gate(at=4)
    future = runner.start(9, gate)
    assert gate.reached.wait(20) and runner.state == "running"
    runner.pause()
    gate.opened.set()
    runner.wait(future)  # step 5 was under way when Pause came
    assert (runner.session.step_count, runner.state, runner.reason, runner.wanted) == (5, "paused", "by you", 9)
    assert runner.events == [LogEvent(5, "pause", "paused by you")]
    runner.wait(runner.resume())
    assert (made(runner.session), runner.state, runner.reason) == (9, "ready", "")
    assert [step for step, _ in runner.losses] == list(range(1, 10))


def paused(runner: Runner, after: int, of: int) -> None:
    """A run of `of` steps, paused after `after`."""
    session = runner.session
    gate = Gate(at=session.step_count + after - 1)
    future = runner.start(of, gate)
    assert gate.reached.wait(20)
    runner.pause()
    gate.opened.set()
    runner.wait(future)
    assert runner.state == "paused"


def test_steps_taken_while_paused_count(runner: Runner) -> None:
    paused(runner, after=3, of=10)
    runner.wait(runner.step(2))
    assert (made(runner.session), runner.state, runner.wanted) == (5, "paused", 10)
    runner.session.step()  # by hand
    runner.wait(runner.resume())
    assert (made(runner.session), runner.state) == (10, "ready")


def test_steps_beyond_the_end_of_a_paused_run_are_made(runner: Runner) -> None:
    paused(runner, after=3, of=4)
    runner.wait(runner.step(5))
    assert (made(runner.session), runner.state, runner.wanted) == (8, "ready", 8)


def test_a_new_run_replaces_the_rest_of_a_paused_one(runner: Runner) -> None:
    paused(runner, after=2, of=100)
    runner.run(3)
    assert (made(runner.session), runner.state, runner.wanted) == (5, "ready", 5)


def test_stop_drops_the_rest(runner: Runner) -> None:
    gate = Gate(at=2)
    future = runner.start(50, gate)
    assert gate.reached.wait(20)
    runner.stop()
    runner.pause()  # does not bring it back
    gate.opened.set()
    runner.wait(future)
    assert (made(runner.session), runner.state, runner.wanted) == (3, "ready", 3)
    paused(runner, after=2, of=50)
    runner.stop()
    assert (made(runner.session), runner.state, runner.wanted, runner.reason) == (5, "ready", 5, "")
    with pytest.raises(SessionError, match="resume: session: given ready, wanted a paused session"):
        runner.resume()


def test_a_run_while_running_is_refused_and_changes_nothing(runner: Runner) -> None:
    runner.run(5)
    gate = Gate(at=7)
    future = runner.start(9, gate)
    assert gate.reached.wait(20)
    other: Callable[[int], Mapping[str, Any]] = lambda step: {}  # noqa: E731
    text = "run: session: given {} steps while 2 of 9 are done, wanted a ready or paused session"
    for call, steps in ((lambda: runner.start(500, other), 500), (lambda: runner.step(3), 3)):
        with pytest.raises(SessionError) as caught:
            call()
        assert str(caught.value) == text.format(steps)
    with pytest.raises(SessionError, match="resume: session: given running, wanted a paused session"):
        runner.resume()
    gate.opened.set()
    runner.wait(future)
    assert (made(runner.session), runner.wanted, runner.feed) == (14, 14, gate)


def test_reads_and_writes_slip_in_between_the_steps_of_a_run(runner: Runner) -> None:
    def unhurried(step: int) -> Mapping[str, Any]:
        time.sleep(0.001)
        return ONE

    future, seen = runner.start(100, unhurried), set[float]()
    while not future.done():
        seen.add(made(runner.session))
    assert len(seen) > 5 and seen <= set(range(101)) and made(runner.session) == 100


@pytest.mark.parametrize("steps", [-1, 1.5, "3", None, True])
def test_steps_are_whole_numbers(runner: Runner, steps: Any) -> None:
    for call in (runner.run, runner.start, runner.step):
        with pytest.raises(ArgumentError, match=r"run: steps: given .*, wanted an int ≥ 0"):
            call(steps)
    assert (runner.state, runner.session.step_count) == ("ready", 0)


# what goes wrong ------------------------------------------------------------------------------------------------------
def test_an_interrupt_pauses_at_a_step_boundary_and_raises(runner: Runner) -> None:
    session = runner.session

    def interrupt(step: int) -> Mapping[str, Any]:
        if step == 20:
            _thread.interrupt_main()
        return ONE

    with pytest.raises(KeyboardInterrupt):
        runner.run(10**6, interrupt)
    done = session.step_count
    assert 20 <= done < 10**6 and made(session) == done == len(runner.losses)
    assert (runner.state, runner.reason) == ("paused", "by interrupt")
    runner.run(5, lambda step: ONE)
    assert made(session) == done + 5 and runner.state == "ready"


@pytest.mark.parametrize("begin", ["run", "step", "resume", "step_dispatch", "run_to", "replay"])
def test_an_interrupt_before_anybody_waits_pauses_too(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the run has begun and its future is nobody's yet."""
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", init=0, sgd=0.1)
    study.run(50, until="step == 2")
    monkeypatch.setattr(Runner, "wait", lambda runner, future: _thread.interrupt_main() or time.sleep(1))
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: study.run(10**6), "step": lambda: study.step(10**6), "resume": study.resume,
        "step_dispatch": lambda: study.step_dispatch(10**6), "run_to": lambda: study.run_to(3), "replay": study.replay,
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        calls[begin]()
    assert study.runner.state in ("paused", "ready"), "ready: it was over before the interrupt"
    study.close()


@pytest.mark.parametrize(
    ("feed", "error", "text"),
    [
        (lambda step: 1 / 0, ZeroDivisionError, "division by zero"),
        (lambda step: {"x": np.ones(2)}, ShapeError, "set_input: 'x': given 2 values, wanted 1 (f32[1])"),
        (lambda step: {}, SessionError, "run: inputs: given no value for x, wanted set_input for each"),
        (lambda step: (_ for _ in ()).throw(KeyError("gone")), KeyError, "'gone'"),
    ],
    ids=["raises", "bad shape", "forgets an input", "a key error"],
)
def test_an_error_of_the_feed_pauses_and_keeps_the_session_usable(
    runner: Runner, feed: Callable[[int], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        runner.run(5, feed)
    assert str(caught.value) == text
    assert (runner.state, runner.reason) == ("paused", text) and made(runner.session) == 0
    assert runner.events == [LogEvent(0, "error", text)]
    runner.run(4, lambda step: ONE)
    assert made(runner.session) == 4 and runner.state == "ready"


def test_a_feed_that_ends_early_keeps_what_was_done(runner: Runner) -> None:
    feed = make_feed([ONE] * 3, counter())
    with pytest.raises(ArgumentError, match="feed: batches: given an end after 3 steps, wanted as many"):
        runner.run(5, feed)
    assert made(runner.session) == 3 and [step for step, _ in runner.losses] == [1, 2, 3]
    assert runner.state == "paused"


def test_a_loss_that_is_not_finite_pauses_with_its_reason(runner: Runner) -> None:
    bad = {"x": np.full(1, np.nan, np.float32)}
    runner.run(100, lambda step: bad if step == 3 else ONE)
    assert (runner.state, runner.reason) == ("paused", "loss is NaN at step 4")
    assert 4 <= runner.session.step_count <= 4 + 2, "at most two more were under way"
    assert runner.events[0] == LogEvent(4, "nonfinite", "loss is NaN at step 4")
    assert runner.wanted == 100


def test_a_closed_runner_ends_its_run_without_an_error(runner: Runner) -> None:
    future = runner.start(10**6)
    until(lambda: runner.session.step_count > 3)
    runner.close()
    runner.close()
    runner.wait(future)
    assert runner.state == "closed" and runner.session.closed and runner.session.step_count < 10**6
    assert [event.text for event in runner.events] == ["closed"]
    for call in (lambda: runner.run(1), lambda: runner.step()):
        with pytest.raises(SessionError, match="run: session: given closed, wanted an open session"):
            call()
    with pytest.raises(SessionError, match="resume: session: given closed, wanted a paused session"):
        runner.resume()


def test_a_session_closed_under_a_run_fails_it(runner: Runner) -> None:
    future = runner.start(10**6)
    until(lambda: runner.session.step_count > 3)
    runner.session.close()
    with pytest.raises(SessionError):
        runner.wait(future)
    assert runner.state == "failed" and [e.kind for e in runner.events] == ["error"]


def test_a_step_that_fails_does_not_count(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    session = runner.session
    session.set_adam(0.1)
    runner.run(2)

    def fail(*_: object) -> None:
        raise SessionError("step 3", "device", "lost", "a device")

    monkeypatch.setattr(session.loaded.program, "step", fail)
    for call in (session.step, lambda: runner.run(1)):
        with pytest.raises(SessionError, match="step 3: device: given lost"):
            call()
    assert (session.step_count, session.adam_step_count(), runner.state) == (2, 2, "paused")


# many hands -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("inside", [False, True], ids=["steps", "dispatches too"])
def test_a_thousand_commands_from_several_threads_lose_no_step(runner: Runner, inside: bool) -> None:
    session, asked, refused, lock = runner.session, [0], [0], threading.Lock()
    count, undone = len(session.step_dispatches()), [0]

    def back(dispatches: int) -> None:
        runner.back(dispatches)
        with lock:
            undone[0] += 1

    def click(seed: int) -> None:
        rng = random.Random(seed)
        commands: list[tuple[int, Callable[[], object]]] = [
            (3, lambda: runner.start(rng.randrange(1, 6))),
            (3, lambda: runner.step(rng.randrange(1, 4))),
            (3, runner.pause),
            (2, runner.resume),
            (1, runner.stop),
            (1, session.step),
            (1, lambda: made(session)),
        ]
        if inside:
            commands += [
                (3, lambda: runner.step_dispatch(rng.randrange(1, 2 * count))),
                (2, lambda: runner.run_to(rng.randrange(count))),
                (2, lambda: back(rng.randrange(1, 3))),
                (1, lambda: runner.break_at(f"dispatch {rng.randrange(count)} if step == {rng.randrange(1, 500)}")),
                (1, lambda: runner.clear(rng.choice([*runner.lookout.breaks, 0]))),
            ]
        weights = [weight for weight, _ in commands]
        for _ in range(250):
            _, command = rng.choices(commands, weights)[0]
            with lock:
                asked[0] += 1
            try:
                command()
            except (SessionError, ArgumentError):
                with lock:
                    refused[0] += 1
            if rng.random() < 0.2:
                time.sleep(0.001)

    threads = [threading.Thread(target=click, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    until(lambda: runner.state != "running")
    while runner.state == "paused":
        runner.wait(runner.resume())
    if session.under_way:  # Stop leaves a step where it is
        session.step()
    total = session.step_count
    assert asked == [1000] and 0 < refused[0] < 1000 and runner.state == "ready"
    assert total == runner.wanted or total > runner.wanted  # steps by hand may go beyond the last run
    runner.run(0)
    assert made(session) == total == session.traffic.forwards - runner.log.uncounted
    assert session.traffic.submissions == session.traffic.forwards and (inside or runner.log.uncounted == 0)
    assert not inside or undone[0] > 0
    assert runner.losses == [(k, 1.0 - k) for k in range(1, total + 1)]


def test_runs_of_several_threads_add_up(runner: Runner) -> None:
    """Every accepted run is finished: the sum of what was accepted is what the device made."""
    accepted: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            steps = rng.randrange(1, 5)
            try:
                runner.wait(runner.start(steps) if rng.random() < 0.5 else runner.step(steps))
                accepted.append(steps)
            except SessionError:
                time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(accepted) > 10 and made(runner.session) == sum(accepted) == runner.session.step_count


def test_the_rate_is_that_of_the_run(runner: Runner) -> None:
    assert runner.steps_per_second == 0.0

    def slow(step: int) -> Mapping[str, Any]:
        time.sleep(0.01)
        return ONE

    runner.run(20, slow)
    assert 1 < runner.steps_per_second < 100


def test_the_owner_is_free_after_all(runner: Runner) -> None:
    runner.run(2)
    assert owner().call(lambda: 7) == 7 and owner().jobs.empty()


# feeds ----------------------------------------------------------------------------------------------------------------
def test_feeds_are_what_people_hand_over() -> None:
    graph, calls = counter(), iter([{"x": [1]}, {"x": [2]}])
    assert make_feed(ONE, graph)(5) is ONE
    assert make_feed(lambda step: {"x": [step]}, graph)(5) == {"x": [5]}
    feed = make_feed(calls, graph)
    assert [feed(0), feed(1)] == [{"x": [1]}, {"x": [2]}]
    assert make_feed("random", graph)(0)["x"] == make_feed("random:0", graph)(3)["x"]
    assert make_feed("random:1", graph)(0)["x"] != make_feed("random:0", graph)(0)["x"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("random:x", "feed: seed: given 'x', wanted random or random:SEED, SEED an int ≥ 0"),
        ("digits", "feed: kind: given str, wanted a dict of arrays, a callable step -> dict, "
                   "an iterable of dicts, or random[:SEED]"),
        (lambda: ONE, "feed: callable: given one with the arguments (), wanted "
                     "a callable with one argument, step -> dict"),
        (lambda a, b: {}, "feed: callable: given one with the arguments (a, b), wanted "
                          "a callable with one argument, step -> dict"),
        (np.ones(3), "feed: kind: given ndarray, wanted a dict of arrays, a callable step -> dict, "
                     "an iterable of dicts, or random[:SEED]"),
    ],
)  # fmt: skip
def test_what_is_no_feed_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_feed(given, counter())
    assert str(caught.value) == text


def test_a_batch_that_is_no_dict_is_refused() -> None:
    for feed in (make_feed(lambda step: [1], counter()), make_feed([[1]], counter())):
        with pytest.raises(ArgumentError, match=r"feed: batch: given list, wanted a dict \{input name: array\}"):
            feed(0)


def test_random_labels_are_one_hot_and_integers_are_zero() -> None:
    batch = random_batch(networks.mlp(), 3)
    assert set(batch) == {"x", "y"} and batch["x"].shape == (64, 64) and batch["x"].std() > 0.9
    assert batch["y"].sum(1).tolist() == [1] * 64 and set(np.unique(batch["y"])) == {0, 1}
    with Graph() as g:
        g.output(ops.input_u32("rows", (4,)))
    assert random_batch(g, 0)["rows"].dtype == np.uint32


def test_a_callable_feed_that_ends_says_so(runner: Runner) -> None:
    batches = iter([ONE, ONE])
    with pytest.raises(ArgumentError, match="batches: given an end after 2 steps"):
        runner.run(5, make_feed(lambda step: next(batches), counter()))
    assert runner.session.step_count == 2 and runner.state == "paused"
