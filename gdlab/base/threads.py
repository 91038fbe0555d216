"""One thread that owns objects which are bound to a thread: `OwnerThread("device").call(function)`.

The device owner and the e-graph owner are two threads of this class.
"""

from __future__ import annotations

import atexit
import importlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from gdlab.base.errors import SessionError

T = TypeVar("T")
Job = Generator[None, None, T]


class OwnerThread(threading.Thread):
    """A thread that runs functions and jobs for others, one at a time. A job is a generator that is advanced one yield
    at a time, so that reads, Pause and Step are served between two steps of a run. `name` is in the thread's name and
    in errors; `finish` runs on the thread as its last act."""

    def __init__(self, name: str, finish: Callable[[], None] = lambda: None) -> None:
        super().__init__(daemon=True, name=f"gdlab-{name}")
        self.where, self.finish = name, finish
        self.jobs: queue.SimpleQueue[_Call | tuple[Job[Any], Future[Any]]] = queue.SimpleQueue()
        self.open = True
        self.pid = os.getpid()
        self.turn = threading.Lock()  # locked by the thread that works: this one, or one that calls `here`
        self.holder = 0
        self.due = False  # this thread has taken a job from the queue: no other may begin
        self.start()
        atexit.register(self.close)  # a daemon thread that ends inside Rust code would print a panic at exit

    def run(self) -> None:
        """Advance jobs in turn until closed."""
        while self.open:
            entry = self.jobs.get()
            self.due = True
            with self.turn:
                if isinstance(entry, _Call):
                    entry.run()
                else:
                    self._advance(*entry)
            self.due = False
            del entry  # release what the function refers to while the thread waits
        while not self.jobs.empty():
            left = self.jobs.get()
            (left if isinstance(left, _Call) else left[1]).set_exception(self._closed())
        self.finish()

    def _advance(self, job: Job[Any], future: Future[Any]) -> None:
        """Advance a job by one yield, and further while no other job waits."""
        try:
            next(job)
            while self.open and self.jobs.empty():
                next(job)
            self.jobs.put((job, future))
        except StopIteration as end:
            future.set_result(end.value)
        except BaseException as error:  # a Rust panic is no Exception
            future.set_exception(error)

    def post(self, job: Job[T]) -> Future[T]:
        """Queue a job; its return value is the future's result."""
        if not self.open:
            raise self._closed()
        future: Future[T] = Future()
        self.jobs.put((job, future))
        return future

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on this thread and wait (in slices, so that Ctrl-C works); on the thread itself, and inside
        `here`, run it at once."""
        if threading.get_ident() in (self.ident, self.holder):
            return function()
        if not self.open:
            raise self._closed()
        call = _Call(function)
        self.jobs.put(call)
        return call.result()  # type: ignore[no-any-return]

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
            self.jobs.put(((None for _ in ()), Future()))  # wakes the thread
            self.join(10)

    def _closed(self) -> SessionError:
        return SessionError(self.where, "owner thread", "closed", "a live process")


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

    def set_exception(self, error: BaseException) -> None:
        """Fail without running the function."""
        self.error = error
        self.done.release()

    def result(self) -> Any:
        """Wait in slices of 50 ms, so that an interrupt is delivered."""
        while not self.done.acquire(timeout=0.05):
            pass
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # else error and frame would keep each other alive


def wait_for(future: Future[T]) -> T:
    """Return the result, waiting in slices of 50 ms so that an interrupt is delivered."""
    while True:
        try:
            return future.result(0.05)
        except TimeoutError:
            if future.done():
                return future.result()


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
