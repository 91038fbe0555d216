"""Runs that are cancelled, made inside a feed, or beside others: nothing hangs, and every run makes its own steps.

What used to wait for ever runs in a child process with a time limit, one for all while nothing fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from child import run_in_shared_child
from counting import ONE, counter, made

from gdlab.base.errors import SessionError
from gdlab.study.study import Study

BEGIN = "from counting import ONE, counter, made; from gdlab.devices.base import owner; study = counter({device!r})\n"


def ends(device: str, code: str, *printed: object) -> None:
    """Check that the code ends in a child, prints this, and leaves the same owner thread at work."""
    begin = "import asyncio, threading, time; " + BEGIN.format(device=device) + "before = owner()\n"
    end = "\nassert owner() is before and owner().call(lambda: 7) == 7 and study.runner.state == 'ready'"
    assert run_in_shared_child(begin + code + end).split() == [str(word) for word in printed]


# a cancelled future ---------------------------------------------------------------------------------------------------
def test_a_cancelled_run_stops_and_the_process_goes_on(device: str) -> None:
    code = """
future = study.runner.start(10**6)
print(future.cancel(), future.cancelled())
study.session.step()
study.runner.wait(future)
count = study.session.step_count
assert count < 10**6 and made(study) == count
print(study.runner.wanted <= count, study.runner.reason == "")
study.run(3)
print(made(study) - count)
"""
    ends(device, code, False, False, True, True, 3)


def test_a_run_that_asyncio_gives_up_stops(device: str) -> None:
    code = """
def quiet():
    while study.runner.state == "running":
        time.sleep(0.001)
async def main():
    try:
        await asyncio.wait_for(asyncio.wrap_future(study.runner.start(10**7)), 0.2)
    except asyncio.TimeoutError:
        print("late")
    quiet()
    await asyncio.wrap_future(study.runner.start(4))
    task = asyncio.wrap_future(study.runner.start(10**7))
    await asyncio.sleep(0)
    task.cancel()
asyncio.run(main())
study.session.wait()
quiet()
assert made(study) == study.session.step_count < 10**7
"""
    ends(device, code, "late")


@pytest.mark.parametrize("start", ["step(10**6)", "step_dispatch(10**6)", "replay()", "resume()"])
def test_every_future_of_a_runner_can_be_cancelled(start: str) -> None:
    code = f"""
if {start!r} == "replay()":
    study.run(20_000)
elif {start!r} == "resume()":
    first = study.runner.start(20_000); study.pause(); study.runner.wait(first)
future = study.runner.{start}
print(future.cancel())
study.runner.wait(future)
if study.session.under_way:
    study.step()
print(made(study) == study.session.step_count)
"""
    ends("cpu", code, False, True)


def test_the_future_of_an_earlier_run_stops_nothing() -> None:
    study = counter()
    first = study.runner.start(3)
    study.runner.wait(first)
    second = study.runner.start(500)
    assert first.cancel() is False and first.result() is None
    study.runner.wait(second)
    assert made(study) == 503
    study.close()


def test_a_run_cancelled_by_its_own_feed_makes_the_step_under_way() -> None:
    study, futures = counter(), []
    begun = threading.Event()

    def feed(step: int) -> Mapping[str, Any]:
        assert begun.wait(20)
        if step == 4:
            futures[0].cancel()
        return ONE

    futures.append(study.runner.start(100, feed))
    begun.set()
    study.runner.wait(futures[0])
    assert (made(study), study.runner.state, study.runner.wanted) == (5, "ready", 5)
    study.close()


# a feed that runs something else --------------------------------------------------------------------------------------
def test_a_feed_may_run_another_study(device: str) -> None:
    code = f"""
teacher = counter({device!r}, "teacher")
def feed(step):
    teacher.run(2); teacher.step(); teacher.runner.start(1).result()
    teacher.step_dispatch(1); teacher.runner.wait(teacher.runner.step(1))
    return ONE
study.run(3, feed=feed)
print(made(study), made(teacher), study.runner.losses, teacher.runner.state)
"""
    ends(device, code, 3, 15, *"[(1, 0.0), (2, -1.0), (3, -2.0)]".split(), "ready")


def test_feeds_may_run_feeds() -> None:
    code = """
a, b, c = (counter(name=name) for name in "abc")
def inside(other, steps):
    return lambda step: (other.run(steps), ONE)[1]
c.prepare(feed=ONE)
b.prepare(feed=inside(c, 2))
a.prepare(feed=inside(b, 3))
study.run(2, feed=inside(a, 2))
print(made(study), made(a), made(b), made(c))
"""
    ends("cpu", code, 2, 4, 12, 24)


def test_a_feed_may_train_and_resume(device: str) -> None:
    code = f"""
import gdlab as gd, numpy as np
pupil, halted = counter({device!r}, "pupil"), counter({device!r}, "halted")
future = halted.runner.start(10**6); halted.pause(); halted.runner.wait(future)
count = halted.session.step_count
halted.runner.stop()
trainer = gd.Trainer(pupil.session, gd.TrainConfig(gd.Optimizer.sgd(1.0)))
loader = gd.DataLoader(np.ones((4, 1), np.float32), np.ones((4, 1), np.float32), 1, 1, 1)
trainer._inputs_of = lambda loader: {{"x": "x", "labels": "x"}}
def feed(step):
    print(trainer.train(loader, 1).epochs[0].steps)
    gate = []
    halted.prepare(feed=lambda step: (gate or halted.pause(), gate.append(1), ONE)[2])
    halted.run(3); assert halted.runner.state == "paused"; halted.resume()
    return ONE
study.run(2, feed=feed)
print(made(study), made(pupil), made(halted) - count)
"""
    ends(device, code, 4, 4, 2, 8, 6)


def test_a_run_that_waits_for_itself_is_refused() -> None:
    code = """
gate, refused = threading.Event(), []
def feed(step):
    gate.wait(20)
    for wait in (lambda: study.runner.wait(future), lambda: future.result(), study.resume, study.run, study.step,
                 study.reset, study.replay, lambda: study.runner.step(1)):
        try:
            wait()
        except Exception as error:
            refused.append(type(error).__name__)
    return ONE
future = study.runner.start(1, feed)
gate.set()
study.runner.wait(future)
print(made(study), len(refused), set(refused))
"""
    ends("cpu", code, 1, 8, "{'SessionError'}")


INTERRUPTED = """
import _thread
teacher = counter({device!r}, "teacher")
def interrupt(step):
    if step == 20:
        _thread.interrupt_main()
    return ONE
def feed(step):
    teacher.run(10**7, feed=interrupt)
    return ONE
try:
    study.run(5, feed=feed)
except KeyboardInterrupt:
    print("interrupted", study.runner.state, teacher.runner.state, made(study))
assert 20 <= made(teacher) == teacher.session.step_count < 10**7
study.run(2, feed=ONE); teacher.run(2, feed=ONE)
print(made(study))
"""
SLOW_START = """
import time
from gdlab.session.run.stepping import Stepper
start = Stepper.start
def slow(self, *arguments):
    future = start(self, *arguments)
    if self.session is study.session:
        time.sleep(1)
    return future
Stepper.start = slow
"""
AT_ONCE = "Stepper.start = start\n"


@pytest.mark.parametrize("slow", [False, True], ids=["while it is waited for", "before anybody waits"])
def test_an_interrupt_reaches_a_run_inside_a_feed(device: str, slow: bool) -> None:
    code = INTERRUPTED.format(device=device)
    if slow:
        code = SLOW_START + code + AT_ONCE
    ends(device, code, "interrupted", "paused", "paused", 0, 2)


def test_commands_of_others_do_not_lock_a_feed_out() -> None:
    """`back` and `reset` of a session wait for the owner, whose feed gives that session commands."""
    code = """
other = counter(name="other")
def feed(step):
    try:
        other.step_dispatch(1)
    except Exception as error:
        assert type(error).__name__ == "SessionError", error
    return ONE
def clicks():
    for k in range(200):
        for click in (other.runner.back, other.reset):
            try:
                click()
            except Exception as error:
                assert type(error).__name__ == "SessionError", error
thread = threading.Thread(target=clicks)
thread.start()
study.run(300, feed=feed)
thread.join()
print(made(study))
"""
    ends("cpu", code, 300)


# steps of others ------------------------------------------------------------------------------------------------------
def beside(study: Study, steps: int, other: Any) -> list[int]:
    """Run while another thread calls `other` until the run is over; return the steps that the feed was asked for."""
    asked: list[int] = []
    called = False

    def feed(step: int) -> Mapping[str, Any]:
        asked.append(step)
        if not called:  # the other thread may have no processor yet
            time.sleep(0.005)
        return ONE

    future = study.runner.start(steps, feed)
    while not future.done():
        other()
        called = True
        time.sleep(0)  # a thread that never waits takes the interpreter for 5 ms at a time
    study.runner.wait(future)
    return asked


def test_a_run_makes_its_steps_and_others_make_theirs(device: str) -> None:
    study, by_hand = counter(device), [0]

    def step() -> None:
        if by_hand[0] < 200:
            study.session.step()
            by_hand[0] += 1

    asked = beside(study, 1000, step)
    assert by_hand[0] > 0 and len(asked) == len(set(asked)) == 1000
    assert made(study) == study.session.step_count == 1000 + by_hand[0]
    assert study.runner.state == "ready"
    study.close()


def test_a_feed_that_steps_its_own_session_takes_nothing_from_the_run(device: str) -> None:
    study = counter(device)

    def feed(step: int) -> Mapping[str, Any]:
        study.session.step()
        return ONE

    study.run(5, feed=feed)
    assert (made(study), study.runner.state, study.runner.wanted) == (10, "ready", 10)
    study.close()


def test_a_paused_run_counts_what_is_stepped_by_hand_but_not_what_was_stepped_while_it_ran() -> None:
    study = counter()

    def feed(step: int) -> Mapping[str, Any]:
        if step == 0:
            study.session.step()
            study.session.step()
        if step == 4:  # the third of its own
            study.pause()
        return ONE

    study.run(10, feed=feed)
    assert (made(study), study.runner.state, study.runner.wanted) == (5, "paused", 12)
    study.session.step()
    study.step(2)
    study.resume()
    assert (made(study), study.runner.state) == (12, "ready")
    study.close()


def test_step_and_dispatches_make_their_own(device: str) -> None:
    study = counter(device)

    def feed(step: int) -> Mapping[str, Any]:
        if not study.session.under_way:
            study.session.step()
        return ONE

    study.prepare(feed=feed)
    study.step(3)
    assert made(study) == 6
    study.step_dispatch(2 * len(study.session.step_dispatches()))
    assert made(study) == 10
    study.close()


def test_a_refusal_tells_what_the_run_itself_has_made() -> None:
    study, told = counter(), []

    def feed(step: int) -> Mapping[str, Any]:
        study.session.step()
        if len(told) < 3:
            with pytest.raises(SessionError) as caught:
                study.run(7)
            told.append(str(caught.value))
        return ONE

    study.run(4, feed=feed)
    wanted = "wanted a ready or paused session"
    assert told == [f"run: session: given 7 steps while {k} of 4 are done, {wanted}" for k in range(3)]
    study.close()


def test_a_feed_that_closes_its_session_ends_the_run() -> None:
    study = counter()
    session, runner = study.session, study.runner
    study.run(5, feed=lambda step: (step == 2 and study.close(), ONE)[1])
    assert (runner.state, session.closed, session.step_count) == ("closed", True, 2)
    with pytest.raises(SessionError):
        session.step()
