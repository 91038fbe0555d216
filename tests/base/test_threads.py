"""Owner threads: nothing that a job, its future or a callback does ends the thread or leaves a caller waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from child import run_child

from gdlab.base.errors import SessionError
from gdlab.base.threads import Job, JobFuture, OwnerThread, wait_for


@pytest.fixture
def thread() -> Iterator[OwnerThread]:
    made = OwnerThread("test")
    yield made
    made.close()


def count(steps: int, stopped: list[object]) -> Job[int]:
    """A job that counts until it is stopped."""
    for step in range(steps):
        if stopped:
            return step
        yield
    return steps


def posted(thread: OwnerThread, steps: int) -> JobFuture[int]:
    stopped: list[object] = []
    return thread.post(count(steps, stopped), lambda: stopped.append(True))


def test_a_cancelled_future_ends_as_its_job_does(thread: OwnerThread) -> None:
    future = posted(thread, 10**9)
    assert future.cancel() is False and not future.cancelled()
    assert wait_for(future) < 10**9 and future.cancel() is False
    assert thread.call(lambda: 7) == 7


def test_a_future_that_somebody_else_sets_leaves_the_thread_alive(thread: OwnerThread) -> None:
    future = posted(thread, 10**9)
    future.set_result(-1)
    assert thread.call(lambda: 7) == 7 and wait_for(future) == -1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, ZeroDivisionError])
def test_an_error_of_a_job_or_a_callback_leaves_the_thread_alive(
    thread: OwnerThread, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Job[None]:
        raise error
        yield

    opened = threading.Event()

    def wait() -> Job[None]:
        assert opened.wait(20)
        return
        yield

    def called_back(_: object) -> None:
        raise error

    future = thread.post(wait())
    future.add_done_callback(called_back)
    opened.set()
    with caplog.at_level(logging.CRITICAL + 1, "concurrent.futures"):
        wait_for(future)
        failed = thread.post(fail())
        with pytest.raises(RuntimeError if error is StopIteration else error):
            wait_for(failed)
        assert thread.call(lambda: 7) == 7


def test_a_job_may_wait_for_another_on_its_own_thread(thread: OwnerThread) -> None:
    def outer() -> Job[list[int]]:
        results = []
        for wait in (wait_for, JobFuture.result, lambda f: [f.exception(), f.result()][1]):
            results.append(wait(posted(thread, 5)))
            yield
        return results

    future = thread.post(outer())
    assert wait_for(future) == [5, 5, 5] and thread.jobs.empty()


def test_a_job_that_waits_for_itself_is_refused(thread: OwnerThread) -> None:
    known: list[JobFuture[None]] = []
    ready = threading.Event()

    def outer() -> Job[None]:
        ready.wait(20)
        wait_for(inner()) if len(known) > 1 else wait_for(known[0])
        yield

    def inner() -> JobFuture[None]:
        return known[1]

    def waits_for_outer() -> Job[None]:
        wait_for(known[0])
        yield

    text = "run: wait: given a run that waits for itself, wanted another run: this one goes on when its feed returns"
    for jobs in ([outer()], [outer(), waits_for_outer()]):  # itself; one that waits for the first
        known.clear()
        ready.clear()
        known += [thread.post(job) for job in jobs]
        ready.set()
        with pytest.raises(SessionError) as caught:
            wait_for(known[0])
        assert str(caught.value) == text
    assert thread.call(lambda: 7) == 7


def test_calls_of_others_are_served_while_a_job_waits_for_another(thread: OwnerThread) -> None:
    served: list[int] = []

    def inner() -> Job[None]:
        while not served:
            yield

    def outer() -> Job[None]:
        threading.Thread(target=lambda: served.append(thread.call(lambda: 7))).start()
        wait_for(thread.post(inner()))
        yield

    wait_for(thread.post(outer()))
    assert served == [7]


def test_a_closed_thread_fails_what_waits(thread: OwnerThread) -> None:
    future = posted(thread, 10**9)
    thread.close()
    with pytest.raises(SessionError, match="test: owner thread: given closed, wanted a live process"):
        wait_for(future)
    with pytest.raises(SessionError, match="given closed"):
        thread.call(lambda: 7)


LEAVING = """
import atexit, sys, threading, time
sys.stderr = sys.stdout
atexit.register(time.sleep, 0.2)  # runs last: time for the thread's next call
from gdlab.base.threads import OwnerThread
owner, begun = OwnerThread("leaving"), threading.Event()
def work():
    while True:
        owner.call(begun.set)
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_daemon_thread_that_still_calls_when_the_process_ends_says_nothing() -> None:
    assert run_child(LEAVING) == ""
