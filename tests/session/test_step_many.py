"""`session.step(n)` and `session.step(feeds=…)`: bit for bit what n calls of `step()` make, in fewer submissions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from counting import ONE, counter, made
from machine import needs
from networks import dropping

from gdlab import ops
from gdlab.base.errors import ArgumentError, GdlabError, SessionError
from gdlab.devices.base import Program
from gdlab.graph import Graph
from gdlab.session import Session, SessionConfig, build

COUNT = 7
RULES: dict[str, dict[str, Any]] = {
    "sgd": {}, "adam": {}, "accumulated": {"accumulate": 3}, "clipped": {"clip": 0.5},
}  # fmt: skip
Feed = Mapping[str, Any]


def batches(count: int = COUNT) -> list[Feed]:
    rng = np.random.default_rng(3)
    return [{"x": rng.normal(size=(8, 12)).astype(np.float32), "y": rng.normal(size=(8, 3)).astype(np.float32)}
            for _ in range(count)]  # fmt: skip


def training(device: str, rule: str = "adam") -> Session:
    session, _ = build(dropping(), SessionConfig("training", device))
    session.initialize(seed=1)
    if rule == "sgd":
        session.set_learning_rate(0.1)
    else:
        session.set_adam(1e-2)
    session.set_grad_accumulate(RULES[rule].get("accumulate", 1))
    session.set_grad_clip_norm(RULES[rule].get("clip"))
    return session


def state(session: Session) -> tuple[Any, ...]:
    losses = session.take_losses(True)
    values = [session.read_param(name).tobytes() for name in session.param_names()]
    return losses, values, session.step_count, session.adam_step_count()


@pytest.mark.parametrize("rule", RULES)
def test_n_steps_are_n_calls_bit_for_bit(device: str, rule: str) -> None:
    with training(device, rule) as one, training(device, rule) as many:
        for session in (one, many):
            for name, data in batches(1)[0].items():
                session.set_input(name, data)
        for _ in range(COUNT):
            one.step()
        many.step(COUNT)
        found = state(many)
        assert found == state(one) and [step for step, _ in found[0]] == [*range(1, COUNT + 1)]
        assert len({loss for _, loss in found[0]}) == COUNT  # each has draws of its own
        one.step()
        many.step(1)
        assert state(many) == state(one)


@pytest.mark.parametrize("rule", RULES)
def test_feeds_are_inputs_set_before_each_step(device: str, rule: str) -> None:
    with training(device, rule) as one, training(device, rule) as many:
        for feed in batches():
            for name, data in feed.items():
                one.set_input(name, data)
            one.step()
        many.step(COUNT, batches())
        assert state(many) == state(one)
        one.step()
        many.step()  # with the inputs of the last
        assert state(many) == state(one)
        counts = one.traffic.as_dict(), many.traffic.as_dict()
        told = ("forwards", "dispatches", "workgroups", "uploads", "upload_bytes", "copies")
        assert [counts[0][name] for name in told] == [counts[1][name] for name in told]
        assert (counts[1]["submissions"] < counts[0]["submissions"]) == (device == "wgpu")


def test_a_feed_may_leave_out_what_is_set(device: str) -> None:
    with training(device) as session:
        session.set_input("y", batches()[0]["y"])
        session.step(feeds=[{"x": feed["x"]} for feed in batches(3)])
        assert session.step_count == 3 and len(session.take_losses(True)) == 3
        session.step(2)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
def test_a_count_that_is_none_is_refused(device: str, wrong: Any) -> None:
    study = counter(device)
    with pytest.raises(ArgumentError, match=r"step: n: given .*, wanted an int ≥ 1"):
        study.session.step(wrong)
    assert made(study) == study.session.step_count == 0
    study.close()


def test_feeds_are_checked_before_the_first_step(device: str) -> None:
    good = batches(3)
    faults: list[tuple[Any, type[GdlabError], str]] = [
        ((3, good[:2]), ArgumentError, "feeds: given 2 of them, wanted a list of 3"),
        ((None, []), ArgumentError, "feeds: given 0 of them"),
        ((None, "ab"), ArgumentError, "feeds: given str"),
        ((3, [*good[:2], 7]), ArgumentError, r"step: feeds\[2\]: feed: given int"),
        ((3, [*good[:2], {"z": 1}]), GdlabError, r"step: feeds\[2\].*z"),
        ((3, [*good[:2], {"x": np.ones(3)}]), GdlabError, r"step: feeds\[2\].*\[8, 12\]"),
        ((2, [{"x": good[0]["x"]}, good[1]]), SessionError, "no value for y, wanted each in feeds"),
    ]
    with training(device) as session:
        for arguments, error, message in faults:
            with pytest.raises(error, match=message):
                session.step(*arguments)
            assert session.step_count == 0 and session.traffic.forwards == 0
        with pytest.raises(SessionError, match="no value for x, y"):
            session.step(2)


def test_a_step_that_fails_says_how_many_are_made(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = counter(device)
    session = study.session
    program = type(session.loaded.program)
    real, calls = program.step_many, [0]

    def failing(self: Program, steps: Any, landing: Any = None) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise SessionError("step 65", "device", "lost", "a device")
        real(self, steps, landing)

    monkeypatch.setattr(program, "step_many", failing)
    first = session.loaded.program.steps_at_once(0)
    with pytest.raises(SessionError, match=rf"step {first + 1} of 200: .*{first} of 200 steps are made"):
        session.step(200)
    assert session.step_count == made(study) == first
    monkeypatch.undo()
    session.step(5)
    assert session.step_count == made(study) == first + 5
    assert [step for step, _ in session.take_losses(True)] == [*range(1, first + 6)]
    study.close()


def test_the_step_under_way_is_the_first(device: str) -> None:
    with training(device) as one, training(device) as many:
        for session in (one, many):
            for name, data in batches(1)[0].items():
                session.set_input(name, data)
            session.steps.advance(3)
        for _ in range(3):
            one.step()
        with pytest.raises(SessionError, match="step: session: given a step of which 3"):
            many.step(feeds=batches(2))
        many.step(3)
        assert state(many) == state(one)


def test_inference_makes_several_too(device: str) -> None:
    with Graph() as g:
        g.set_outputs([ops.input("x", (3,)) + ops.rand_uniform((3,), 5)])
    session, _ = build(g, SessionConfig("inference", device))
    with session:
        draws = []
        for _ in range(2):
            session.step(2, [{"x": np.zeros(3)}, {"x": np.ones(3)}])
            draws.append(session.read_output())
        assert session.step_count == 4 and (draws[0] >= 1).all() and not np.array_equal(*draws)


def test_ctrl_c_ends_between_submissions(device: str) -> None:
    needs("posix")  # Windows sends no SIGINT to itself alone
    study = counter(device)
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        study.session.step(10**8)
    timer.join()
    session = study.session
    assert 0 < session.step_count < 10**8 and made(study) == session.step_count
    session.step(2)
    assert made(study) == session.step_count
    study.close()


# steps of one pass ----------------------------------------------------------------------------------------------------
@pytest.fixture
def adapter() -> str:
    needs("wgpu")
    return "wgpu"


def test_steps_of_one_call_share_one_pass(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with training(adapter) as session:
        for name, data in batches(1)[0].items():
            session.set_input(name, data)
        session.step(3)
        session.wait()
        raw, passes = session.loaded.program.gpu.raw, []
        begin = raw.CommandEncoderBeginComputePass
        monkeypatch.setattr(raw, "CommandEncoderBeginComputePass", lambda *a: passes.append(a) or begin(*a))
        before = session.traffic.submissions
        session.step(3)
        session.step(3, batches(3))
        assert len(passes) == 2 == session.traffic.submissions - before
        assert len({loss for _, loss in session.take_losses(True)[-3:]}) == 3


def test_steps_of_one_call_follow_a_changed_update_and_memory(adapter: str) -> None:
    """The dispatches of the steps of one call are bound anew where the update or a memory has changed."""
    with training(adapter, "sgd") as one, training(adapter, "sgd") as many:
        for session in (one, many):
            for name, data in batches(1)[0].items():
                session.set_input(name, data)
        for change in (lambda s: None, lambda s: s.set_adam(1e-2), lambda s: s.set_grad_accumulate(2)):
            for session in (one, many):
                change(session)
            for feed in batches(4):
                one.set_input("x", feed["x"])
                one.step()
            many.step(4, [{"x": feed["x"]} for feed in batches(4)])
            one.step()
            one.step()
            many.step(2)
            assert state(many) == state(one)
        assert len(many.loaded.program.series) <= 2


def test_an_input_holds_what_the_last_of_the_steps_read(adapter: str) -> None:
    with training(adapter) as session:
        session.step(COUNT, batches())
        program = session.loaded.program
        for name, buffer in program.plan.input_buffers:
            np.testing.assert_array_equal(program.turn.call(lambda b=buffer: program.download(b)), batches()[-1][name])
        assert session.read_loss() == session.take_losses(True)[-1][1]


def test_ctrl_c_ends_a_profile_and_the_next_call_is_served(device: str) -> None:
    needs("posix")
    study = counter(device)
    session, before, compiled = study.session, study.session.step_count, study.compiled()
    for profile in (lambda n: session.capture_profile(n, train=False), lambda n: compiled.profile(n, ONE)):
        timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            profile(1_000_000)  # half a minute
        timer.join()
        start = time.perf_counter()
        assert profile(2).samples == 2 and session.step_count == before
        assert time.perf_counter() - start < 10
