"""One thread that owns objects which are bound to a thread: `OwnerThread("device").call(function)`.

The device owner and the e-graph owner are two threads of this class.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from gdlab.base.errors import SessionError

T = TypeVar("T")
Job = Generator[None, None, T]
log = logging.getLogger("gdlab.threads")
_SLICE_SECONDS = 0.05  # of waiting, so that an interrupt is delivered


class OwnerThread(threading.Thread):
    """A thread that runs functions and jobs for others, one at a time. A job is a generator that is advanced one yield
    at a time, so that reads, Pause and Step are served between two steps of a run. `name` is in the thread's name and
    in errors; `finish` runs on the thread as its last act."""

    def __init__(self, name: str, finish: Callable[[], None] = lambda: None) -> None:
        super().__init__(daemon=True, name=f"gdlab-{name}")
        self.where, self.finish = name, finish
        self.jobs: queue.SimpleQueue[_Call | JobFuture[Any]] = queue.SimpleQueue()
        self.open = True
        self.pid = os.getpid()
        self.turn = threading.Lock()  # locked by the thread that works: this one, or one that calls `here`
        self.holder = 0
        self.due = False  # this thread has taken a job from the queue: no other may begin
        self.under_way: list[JobFuture[Any]] = []  # jobs that are being advanced, each inside the one before
        self.start()
        atexit.register(self.close)  # a daemon thread that ends inside Rust code would print a panic at exit

    def run(self) -> None:
        """Advance jobs in turn until closed. Nothing that a job or a callback of its future raises ends the loop."""
        while self.open:
            try:
                entry = self.jobs.get()
                self.due = True
                with self.turn:
                    if isinstance(entry, _Call):
                        entry.run()
                    else:
                        self._advance(entry)
            except BaseException:
                log.exception("an error left a job of the %s thread, which goes on", self.where)
            self.due = False
            entry = _NOTHING  # release what the function refers to while the thread waits
        while not self.jobs.empty():
            self.jobs.get().fail(self._closed())
        self.finish()

    def _advance(self, future: JobFuture[Any]) -> None:
        """Advance a job by one yield, and further while no other job waits."""
        if not future.advance(self._is_idle):
            self.jobs.put(future)

    def _is_idle(self) -> bool:
        """Return whether no other job waits, and the thread goes on."""
        return self.jobs.empty() and self.open

    def post(self, job: Job[T], stop: Callable[[], object] = lambda: None) -> JobFuture[T]:
        """Queue a job; its return value is the future's result. `stop` asks it to end early: `future.cancel()`."""
        if not self.open:
            raise self._closed()
        future = JobFuture(self, job, stop)
        self.jobs.put(future)
        return future

    def advance_here(self, future: JobFuture[Any], seconds: float | None) -> None:
        """On this thread itself, advance a job that is waited for inside another one until it is over or the time is
        up; calls of other threads are served in between. Raises `KeyboardInterrupt` after `interrupt` of
        a job around it."""
        end = None if seconds is None else time.monotonic() + seconds
        while not future.done() and (end is None or time.monotonic() < end):
            for outer in self.under_way:
                outer.raise_interrupt()
            if not self.open:
                raise self._closed()
            self._serve_calls()
            future.advance()

    def _serve_calls(self) -> None:
        """Run the functions that wait; jobs keep their turn."""
        jobs = []
        while not self.jobs.empty():
            entry = self.jobs.get()
            if isinstance(entry, _Call):
                entry.run()
            else:
                jobs.append(entry)
        for job in jobs:
            self.jobs.put(job)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on this thread and wait (in slices, so that Ctrl-C works); on the thread itself, and inside
        `here`, run it at once."""
        if threading.get_ident() in (self.ident, self.holder):
            return function()
        if not self.open:
            raise self._closed()
        call = _Call(function)
        self.jobs.put(call)
        return call.result(self)  # type: ignore[no-any-return]

    def here(self, function: Callable[[], T]) -> T:
        """Run `function` on the caller's thread if no job runs or waits, else as `call` does: that saves the 20–50 µs
        of a change of threads. Ctrl-C takes effect after `function`: it would cut a step in two."""
        me = threading.get_ident()
        if me in (self.ident, self.holder):
            return function()
        if not self.open or self.due or not self.jobs.empty():
            return self.call(function)
        handler = _bare_signal.getsignal(_INTERRUPT) if me == _MAIN else None
        ran, value = self._uninterrupted(function, me, handler) if callable(handler) else self._here(function, me)
        return value if ran else self.call(function)  # type: ignore[return-value]

    def _uninterrupted(self, function: Callable[[], T], me: int, handler: Callable[..., Any]) -> tuple[bool, T | None]:
        interrupt = _NotedInterrupt()
        _bare_signal.signal(_INTERRUPT, interrupt)
        try:
            return self._here(function, me)
        finally:
            _bare_signal.signal(_INTERRUPT, handler)
            if interrupt.arguments:
                handler(*interrupt.arguments)

    def _here(self, function: Callable[[], T], me: int) -> tuple[bool, T | None]:
        """Return (whether the function ran, its result)."""
        if not self.turn.acquire(False):
            return False, None
        self.holder = me
        try:
            return True, function()
        finally:
            self.holder = 0
            self.turn.release()

    def close(self) -> None:
        """Finish the current job, fail the others, and end the thread; idempotent."""
        if self.open and self.pid == os.getpid():
            self.open = False
            self.jobs.put(_Call(lambda: None))  # wakes the thread
            if not self.is_current:
                self.join(10)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self.ident

    def check_alive(self) -> None:
        """Raise `SessionError` once the thread has ended: nobody would answer."""
        if not self.is_alive():
            raise self._closed()

    def _closed(self) -> SessionError:
        return SessionError(self.where, "owner thread", "closed", "a live process")


class JobFuture(Future[T]):
    """The result of a job on an owner thread.

    A job that was begun cannot be undone: `cancel` asks it to stop (a run: at the end of its step) and returns False;
    the future then ends as the job does. On the owner's own thread (in a feed) `result` and `exception` advance the job
    themselves: nobody else could.
    """

    def __init__(self, owner: OwnerThread, job: Job[T], stop: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.owner, self._job, self._stop, self._interrupted = owner, job, stop, False

    def cancel(self) -> bool:
        """Ask the job to stop; False: the future ends as the job does."""
        if not self.done():
            self._stop()
        return False

    def result(self, timeout: float | None = None) -> T:
        """Return the job's result, or raise its error; `TimeoutError` after so many seconds."""
        return super().result(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the job's error, or None; `TimeoutError` after so many seconds."""
        return super().exception(self._wait(timeout))

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` inside the job where it waits for another one."""
        self._interrupted = True

    def raise_interrupt(self) -> None:
        """Raise `KeyboardInterrupt`, once, after `interrupt`."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _wait(self, timeout: float | None) -> float | None:
        """Advance the job if this is the owner's thread; return the seconds that are left to wait."""
        if self.done() or not self.owner.is_current:
            return timeout
        if self in self.owner.under_way:
            wanted = "another run: this one goes on when its feed returns"
            raise SessionError("run", "wait", "a run that waits for itself", wanted)
        self.owner.advance_here(self, timeout)
        return 0

    def advance(self, more: Callable[[], bool] = lambda: False) -> bool:
        """Advance the job by one yield on the owner's thread, and further while `more` says so; return whether it is
        over."""
        if self.done():  # it was advanced where it was waited for
            return True
        under_way, value, raised = self.owner.under_way, None, None
        under_way.append(self)
        try:
            next(self._job)
            while more():
                next(self._job)
            return False
        except StopIteration as end:
            value = end.value
        except BaseException as error:  # a Rust panic is no Exception
            raised = error
        finally:
            under_way.pop()
        self._settle(value, raised)
        return True

    def fail(self, error: BaseException) -> None:
        """End the future without the job."""
        if not self.done():
            self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self._stop = lambda: None  # release the run
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except InvalidStateError:  # somebody else has set it
            log.warning("the result of a job on the %s thread was set by somebody else", self.owner.where)
        except BaseException:  # of a callback, which is no part of the job
            log.exception("a callback of a job on the %s thread failed", self.owner.where)


class _Call:
    """A function to run once on the owner, and its result: a `Future` costs twice as much."""

    __slots__ = ("done", "error", "function", "value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.value = function, None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        """Run the function; called on the owner."""
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.done.release()

    def fail(self, error: BaseException) -> None:
        """Fail without running the function."""
        self.error = error
        self.done.release()

    def result(self, owner: OwnerThread) -> Any:
        """Wait in slices of 50 ms, so that an interrupt is delivered, while the owner lives."""
        while not self.done.acquire(timeout=_SLICE_SECONDS):
            if not owner.is_alive() and not self.done.acquire(False):
                owner.check_alive()
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # else error and frame would keep each other alive


_NOTHING = _Call(lambda: None)


def wait_for(future: Future[T]) -> T:
    """Return the result, waiting in slices of 50 ms so that an interrupt is delivered; in a job, for another job of the
    same thread, advance that one meanwhile."""
    job = future if isinstance(future, JobFuture) else None
    seconds = None if job is not None and job.owner.is_current else _SLICE_SECONDS
    while True:
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                return future.result()
            if job is not None:
                job.owner.check_alive()


# Ctrl-C during `here` -------------------------------------------------------------------------------------------------
_MAIN, _INTERRUPT = threading.main_thread().ident, int(signal.SIGINT)
try:
    _bare_signal = importlib.import_module("_signal")  # without the enums of `signal`: 20 times faster
except ImportError:  # not CPython
    _bare_signal = signal


class _NotedInterrupt:
    """A signal handler that only notes the interrupt."""

    __slots__ = ("arguments",)

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> None:
        self.arguments = arguments
