"""One thread at a time for objects that must not be used by two: `OwnerThread("device").call(function)`.

Every adapter, every program on cpu, the e-graphs and the callbacks of futures have an owner each. Its turn is taken by
the caller's thread where nobody else is at work (`here`), else by a thread of the owner's own, which begins with the
first job that needs it. No lock is held while one waits but the turns of the jobs that wait: where these would wait for
one another in a circle, the last one works in the turn of the one that waits for it. While the thread that has a turn
is in a function of the user's, such as a feed, the turn is lent: threads that wait for it work in it meanwhile.
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
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from gdlab.base import process
from gdlab.base.errors import SessionError

T = TypeVar("T")
Job = Generator[None, None, T]
log = logging.getLogger("gdlab.threads")
_SLICE_SECONDS = 0.05  # of waiting, so that an interrupt is delivered
_waiting: dict[int, OwnerThread] = {}  # by thread: the owner that it waits for
_waiting_lock = threading.Lock()
_own = threading.local()  # `jobs`: those that this thread advances, each inside the one before; `call`: what it runs


class OwnerThread:
    """Runs functions and jobs for others, one at a time. A job is a generator that is advanced one yield at a time, so
    that reads, Pause and Step are served between two steps of a run. `name` is in the thread's name and in errors;
    `finish` runs on the thread as its last act."""

    def __init__(self, name: str, finish: Callable[[], None] = lambda: None) -> None:
        self.where, self.finish = name, finish
        self.open = True
        self._begin()
        _owners.add(self)

    def _begin(self) -> None:
        """Begin without a thread: in a new process after a fork the parent's is gone."""
        self.jobs: queue.SimpleQueue[_OwnerCall | JobFuture[Any]] = queue.SimpleQueue()
        self.pid = process.id
        self.turn = threading.Lock()  # locked by the thread that works
        self.holder = 0  # its identity
        self.due = False  # the own thread has taken a job from the queue: no other may begin
        self.lent = 0  # functions of the user's that the holder is in
        self.borrower = 0  # the thread that works in the lent turn
        self.lending = threading.RLock()  # locked by the one of both that works
        self.under_way: list[JobFuture[Any]] = []  # jobs that are being advanced, each inside the one before
        self.thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def ident(self) -> int:
        """The identity of the own thread, which is begun."""
        self.call(lambda: None)
        return 0 if self.thread is None else self.thread.ident or 0

    def is_alive(self) -> bool:
        """Return whether a job that is queued now would be run."""
        return self.open and (self.thread is None or self.thread.is_alive())

    def _put(self, entry: _OwnerCall | JobFuture[Any]) -> None:
        """Queue an entry, and begin the own thread where there is none."""
        self._check_open()
        with self._starting:
            self.jobs.put(entry)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name=f"gdlab-{self.where}", daemon=True)
                self.thread.start()

    def rest(self) -> None:
        """End the own thread when nothing waits; a later job begins another."""
        if self.pid == process.id and self.thread is not None:
            self.jobs.put(_REST)

    def _rests(self) -> bool:
        """Return whether the own thread ends here: nothing waits."""
        with self._starting:
            if not self.jobs.empty():
                return False
            self.thread = None
            return True

    def _check_open(self) -> None:
        if self.pid != process.id:
            self._begin()
        if not self.open:
            raise self._closed()

    # the own thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        """Advance jobs in turn until closed. Nothing that a job or a callback of its future raises ends the loop."""
        while self.open:
            try:
                entry = self.jobs.get()
                if entry is _REST:
                    if self._rests():
                        return
                    continue
                self.due = True
                with self.turn:
                    self.holder = threading.get_ident()
                    try:
                        if isinstance(entry, _OwnerCall):
                            entry.run()
                        else:
                            self._advance(entry)
                    finally:
                        self.holder = 0
            except BaseException:
                log.exception("an error left a job of the %s thread, which goes on", self.where)
            self.due = False
            entry = _NOTHING  # release what the function refers to while the thread waits
        while not self.jobs.empty():
            entry = self.jobs.get()
            if entry is not _REST:
                entry.fail(self._closed())
        self.finish()

    def _advance(self, future: JobFuture[Any]) -> None:
        """Advance a job by one yield, and further while no other job waits."""
        if not future.advance(self._is_idle):
            self.jobs.put(future)

    def _is_idle(self) -> bool:
        """Return whether no other job waits, and the thread goes on."""
        return self.jobs.empty() and self.open

    # for others -------------------------------------------------------------------------------------------------------
    def post(self, job: Job[T], stop: Callable[[], object] = lambda: None) -> JobFuture[T]:
        """Queue a job; its return value is the future's result. `stop` asks it to end early: `future.cancel()`."""
        self._check_open()
        future = JobFuture(self, job, stop)
        self._put(future)
        return future

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the own thread and wait (in slices, so that Ctrl-C works); in the turn itself at once."""
        if self.is_current:
            return self._inside(function)
        call = _OwnerCall(function)
        with self.waited_for() as mine:
            if mine:
                return function()
            self._put(call)
            return call.result(self)  # type: ignore[no-any-return]

    def here(self, function: Callable[[], T]) -> T:
        """Run `function` on the caller's thread if no job runs or waits, else as `call` does: that saves the 20–50 µs
        of a change of threads. Ctrl-C takes effect after `function`: it would cut a step in two."""
        me = threading.get_ident()
        if me == self.holder or me == self.borrower:
            return self._inside(function)
        if not self.open or self.due or not self.jobs.empty() or self.pid != process.id:
            self._check_open()
            return self.call(function)
        handler = _getsignal(_INTERRUPT) if me == _MAIN else None
        interrupts = _NotedInterrupts()
        if callable(handler):
            _signal(_INTERRUPT, interrupts)
        try:  # all in one function: 1.9 µs for a step, and for the wait; in three 2.9 (2 shared cores, 2026-11-28)
            if self.turn.acquire(False):
                self.holder = me
                try:
                    return function()
                finally:
                    self.holder = 0
                    self.turn.release()
        finally:
            if callable(handler):
                _signal(_INTERRUPT, handler)
                if interrupts:
                    handler(*interrupts[-1])
        return self.call(function)

    def if_idle(self, function: Callable[[], object]) -> bool:
        """Run `function` on the caller's thread if no job runs or waits; return whether it was run."""
        if not self.open or self.due or not self.jobs.empty() or self.pid != process.id:
            return False
        if not self.turn.acquire(False):
            return False
        self.holder = threading.get_ident()
        try:
            function()
        finally:
            self.holder = 0
            self.turn.release()
        return True

    def _inside(self, function: Callable[[], T]) -> T:
        """Run a function in the turn itself; while it is lent when nobody else works in it."""
        if not self.lent:
            return function()
        with self.lending:
            return function()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let other threads work in the caller's turn while it is in a function of the user's, which may wait for
        them: nobody else could serve them."""
        if threading.get_ident() != self.holder:
            yield
            return
        self.lent += 1
        try:
            yield
        finally:
            with self.lending:  # until the last of them is ready
                self.lent -= 1

    def wait_lent(self, future: Future[Any], work: Callable[[], bool], timeout: float | None) -> None:
        """Wait for a future, in slices, and do its `work` whenever the turn is lent."""
        end = None if timeout is None else time.monotonic() + timeout
        while not future.done():
            left = _SLICE_SECONDS if end is None else min(_SLICE_SECONDS, end - time.monotonic())
            if left <= 0:
                return
            if not self.borrow(work):
                with suppress(TimeoutError, CancelledError):
                    Future.exception(future, left)

    def borrow(self, work: Callable[[], bool]) -> bool:
        """Do some work in the turn if it is lent and nobody else works in it; return whether any was done."""
        if not self.lent:
            return False
        mine, before = False, self.borrower
        try:
            mine = self.lending.acquire(False)  # in here: an interrupt behind it must release it
            if not mine or not self.lent:
                return False
            before, self.borrower = self.borrower, threading.get_ident()
            return work()
        finally:
            if mine:
                self.borrower = before
                self.lending.release()

    def close(self) -> None:
        """Finish the current job, fail the others, and end the thread; idempotent."""
        if self.open and self.pid == process.id:
            self.open = False
            if self.thread is None:
                return self.finish()
            self.jobs.put(_OwnerCall(lambda: None))  # wakes the thread
            if not self.is_current:
                with self._starting:  # whoever begins the thread has begun it then
                    thread = self.thread
                if thread is not None:
                    thread.join(10)

    # who waits for whom -----------------------------------------------------------------------------------------------
    @property
    def is_current(self) -> bool:
        """Whether the caller's thread has the turn."""
        return threading.get_ident() in (self.holder, self.borrower)

    @contextmanager
    def waited_for(self) -> Iterator[bool]:
        """Note that the caller's thread waits for this owner; False. True, and nothing is noted, where the owner's
        thread itself waits for the caller's, at once or through others: then the caller may work in its turn."""
        me, before = threading.get_ident(), None
        with _waiting_lock:
            mine = self._waits_for(me)
            if not mine:
                before, _waiting[me] = _waiting.get(me), self
        try:
            yield mine
        finally:
            if not mine:
                with _waiting_lock:
                    if before is None:
                        _waiting.pop(me, None)
                    else:
                        _waiting[me] = before

    def _waits_for(self, thread: int) -> bool:
        owner, seen = self, set[int]()
        while True:
            holder = owner.holder
            if thread in (holder, owner.borrower):
                return True
            following = _waiting.get(holder)
            if following is None or holder in seen:
                return False
            seen.add(holder)
            owner = following

    def advance_here(self, future: JobFuture[Any], seconds: float | None) -> None:
        """In the turn itself, advance a job that is waited for inside another one until it is over or the time is up;
        calls of other threads are served in between. Raises `KeyboardInterrupt` after `interrupt` of a job around
        it."""
        end = None if seconds is None else time.monotonic() + seconds
        while not future.done() and (end is None or time.monotonic() < end):
            raise_interrupts()
            if not self.open:
                raise self._closed()
            with self.lending:
                self.serve_calls()
                future.advance()

    def serve_calls(self) -> bool:
        """In the turn itself, run the functions that wait; jobs keep their turn. Return whether there were any."""
        jobs, served = [], False
        while not self.jobs.empty():
            entry = self.jobs.get()
            if isinstance(entry, _OwnerCall) and entry is not _REST:
                entry.run()
                served = True
            else:
                jobs.append(entry)
        for job in jobs:
            self.jobs.put(job)
        return served

    def check_alive(self) -> None:
        """Raise `SessionError` once the thread has ended: nobody would answer."""
        if not self.is_alive():
            raise self._closed()

    def _closed(self) -> BaseException:
        if _leaving and threading.current_thread().daemon:
            return SystemExit()  # the process goes on to end this thread, which has nobody to tell
        return SessionError(self.where, "owner thread", "closed", "a live process")


class JobFuture(Future[T]):
    """The result of a job of an owner.

    A job that was begun cannot be undone: `cancel` asks it to stop (a run: at the end of its step) and returns False;
    the future then ends as the job does. In the turn of the owner (in a feed) `result` and `exception` advance the job
    themselves: nobody else could. Callbacks run on a thread of their own, in order, and may call anything.
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
        with self._waited(timeout) as left:
            return super().result(left)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the job's error, or None; `TimeoutError` after so many seconds."""
        with self._waited(timeout) as left:
            return super().exception(left)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(future)` on the thread of callbacks once the job is over; where it is, now and here."""
        if self.done():
            return super().add_done_callback(fn)
        super().add_done_callback(partial(post_callback, fn))

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` inside the job where it waits for another one."""
        self._interrupted = True

    def raise_interrupt(self) -> None:
        """Raise `KeyboardInterrupt`, once, after `interrupt`."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    @contextmanager
    def _waited(self, timeout: float | None) -> Iterator[float | None]:
        """Advance the job if the caller has the turn, or the turn waits for the caller; the seconds left to wait."""
        if self.done():
            yield timeout
            return
        with self.owner.waited_for() as mine:
            if mine:
                if self not in self.owner.under_way:
                    self.owner.advance_here(self, timeout)
                elif self in _jobs_here() or not _serve_others(self):
                    wanted = "another run: this one goes on when its feed returns"
                    raise SessionError("run", "wait", "a run that waits for itself", wanted)
                timeout = 0
            else:
                self.owner.wait_lent(self, self._advance_lent, timeout)
                timeout = 0
            yield timeout

    def _advance_lent(self) -> bool:
        """Advance the job in the lent turn; return whether it can be."""
        if self in self.owner.under_way:  # it is the one that waits
            return False
        self.owner.serve_calls()
        self.advance()
        return True

    def advance(self, more: Callable[[], bool] = lambda: False) -> bool:
        """Advance the job by one yield in the owner's turn, and further while `more` says so; return whether it is
        over."""
        if self.done():  # it was advanced where it was waited for
            return True
        around, value, raised = (self.owner.under_way, _jobs_here()), None, None
        for jobs in around:
            jobs.append(self)
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
            for jobs in around:
                jobs.pop()
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


class _OwnerCall:
    """A function to run once on the owner, and its result: a `Future` costs twice as much."""

    __slots__ = ("abandoned", "done", "error", "function", "value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.value, self.abandoned = function, None, False
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        """Run the function; called on the owner."""
        around, _own.call = getattr(_own, "call", None), self
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        _own.call = around
        self.done.release()

    def fail(self, error: BaseException) -> None:
        """Fail without running the function."""
        self.error = error
        self.done.release()

    def result(self, owner: OwnerThread) -> Any:
        """Wait in slices of 50 ms, so that an interrupt is delivered, while the owner lives."""
        try:
            while not self.done.acquire(timeout=_SLICE_SECONDS):
                raise_interrupts()
                owner.borrow(owner.serve_calls)
                if not owner.is_alive() and not self.done.acquire(False):
                    owner.check_alive()
        except BaseException:
            self.abandoned = True
            raise
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # else error and frame would keep each other alive


_NOTHING, _REST = _OwnerCall(lambda: None), _OwnerCall(lambda: None)
_owners: weakref.WeakSet[OwnerThread] = weakref.WeakSet()


def _jobs_here() -> list[JobFuture[Any]]:
    """The jobs that this thread advances."""
    jobs: list[JobFuture[Any]] | None = getattr(_own, "jobs", None)
    if jobs is None:
        jobs = _own.jobs = []
    return jobs


def snapshot(things: weakref.WeakSet[T]) -> list[T]:
    """Return the members now; iterating a weak set fails when another thread adds to it."""
    while True:
        try:
            return list(things)
        except RuntimeError:
            continue


def current_job() -> JobFuture[Any] | None:
    """Return the job that this thread advances, the innermost one."""
    jobs = _jobs_here()
    return jobs[-1] if jobs else None


def _serve_others(future: JobFuture[Any]) -> bool:
    """Run what waits for the turns that this thread has, for a job whose thread waits for one of them; return whether
    the job can go on. A second without anything to run: it waits for a job of this thread."""
    me, end = threading.get_ident(), time.monotonic() + 1
    while time.monotonic() < end:
        served = [owner.serve_calls() for owner in snapshot(_owners) if owner.holder == me]
        if any(served) or future.done() or future not in future.owner.under_way:
            return True
        time.sleep(0.001)
    return False


def raise_interrupts() -> None:
    """Raise `KeyboardInterrupt` if a job that this thread advances was interrupted."""
    for job in _jobs_here():
        job.raise_interrupt()


def end_abandoned_call() -> None:
    """Raise `KeyboardInterrupt` in a function that an owner runs and for which nobody waits since Ctrl-C."""
    call: _OwnerCall | None = getattr(_own, "call", None)
    if call is not None and call.abandoned:
        raise KeyboardInterrupt


def wait_for(future: Future[T]) -> T:
    """Return the result, waiting in slices of 50 ms so that an interrupt is delivered; in a job, for another job of the
    same owner, advance that one meanwhile."""
    job = future if isinstance(future, JobFuture) else None
    while True:
        try:
            return future.result(_SLICE_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()
            raise_interrupts()
            if job is not None:
                job.owner.check_alive()


# callbacks ------------------------------------------------------------------------------------------------------------
_callbacks: OwnerThread | None = None
_callbacks_lock = threading.Lock()


def post_callback(fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    """Run a callback of a future on the thread of callbacks; what it raises is told in the log."""

    def job() -> Job[None]:
        try:
            fn(future)
        except BaseException:  # of a callback, which is no part of the job
            log.exception("a callback of a job failed")
        return
        yield

    global _callbacks
    with _callbacks_lock:
        if _callbacks is None or not _callbacks.is_alive():
            _callbacks = OwnerThread("callbacks")
        thread = _callbacks
    try:
        thread.post(job())
    except (SessionError, SystemExit):  # the process ends
        log.debug("a callback came after the end")


def _begin_anew() -> None:
    """In a process that was forked off, forget who waited in the parent."""
    global _waiting_lock, _callbacks_lock, _callbacks
    _waiting.clear()
    _waiting_lock, _callbacks_lock, _callbacks = threading.Lock(), threading.Lock(), None
    _own.jobs = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


_leaving = False  # the interpreter ends: it has waited for all threads but the daemons


@atexit.register
def _close_all() -> None:
    """End every thread: one that ends inside Rust code would print a panic at exit."""
    global _leaving
    _leaving = True
    for owner in snapshot(_owners):
        owner.close()


# Ctrl-C during `here` -------------------------------------------------------------------------------------------------
_MAIN, _INTERRUPT = threading.main_thread().ident, int(signal.SIGINT)
try:
    _bare_signal = importlib.import_module("_signal")  # without the enums of `signal`: 20 times faster
except ImportError:  # not CPython
    _bare_signal = signal
_getsignal, _signal = _bare_signal.getsignal, _bare_signal.signal


class _NotedInterrupts(list[tuple[Any, ...]]):
    """A signal handler that only notes the arguments of each interrupt."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> None:
        self.append(arguments)
