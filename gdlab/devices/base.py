"""What a device is: the interface of cpu and wgpu, and the owner thread that all of their work runs on."""

from __future__ import annotations

import atexit
import importlib
import os
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.plan.target import Target

T = TypeVar("T")
Job = Generator[None, None, T]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Kind, adapter and why it was chosen; `reason` is a sentence for people."""

    kind: str
    name: str
    adapter_class: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.name}" + (f" ({self.adapter_class} adapter)" if self.kind == "wgpu" else "")


@dataclass(slots=True)
class Traffic:
    """Running totals of a program."""

    steps: int = 0
    dispatches: int = 0
    submissions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


KEPT = 1 << 16  # losses that nobody has taken yet: a script that only steps holds no more of them


class Program(ABC):
    """A plan made ready on a device: its buffers live here. All methods are called on the owner thread."""

    plan: ExecutionPlan
    update: Update
    traffic: Traffic
    updates: int = 0  # by rules with moments; whoever restores a state sets it, so that cpu goes on with the same bits

    @abstractmethod
    def upload(self, buffer: int, data: Array) -> None:
        """Write the whole logical extent of a buffer; a step already submitted keeps its data. `data` has the
        buffer's dtype."""

    @abstractmethod
    def download(self, buffer: int) -> Array:
        """A copy of the logical extent, in the buffer's dtype and shape, after everything submitted so far."""

    @abstractmethod
    def upload_words(self, buffer: int, words: Array) -> None:
        """Write a buffer of reduced storage in the very words that it shall hold, u32[...] (`gdlab.base.formats`)."""

    @abstractmethod
    def words(self, buffer: int) -> Array:
        """A copy of the words of a buffer of reduced storage, after everything submitted so far. Not `encode` of what
        `download` gives: values do not tell the step of a block exactly."""

    @abstractmethod
    def memory_at(self, buffer: int) -> tuple[Any, int]:
        """The memory that a buffer lies in (on cpu an array of its shape), and the bytes that other memory in its place
        must have."""

    @abstractmethod
    def bytes_in(self, memory: object) -> int | None:
        """Bytes of memory that could be bound here; None of anything else."""

    @abstractmethod
    def rebind(self, buffer: int, memory: Any) -> None:
        """From the next step on a buffer that shares with nobody lies in this memory."""

    @abstractmethod
    def configure(self, update: Update) -> None:
        """Use these update dispatches from the next step on; state buffers that are new start at zero, others are
        kept."""

    @abstractmethod
    def step(self, scalars: Array | None, whole: bool = True) -> None:
        """One step in one submission: the plan's dispatches, then the update's (with `scalars`: float32, `SCALARS`
        order); not `whole`: of the update the `early` ones alone, which add up gradients."""

    @abstractmethod
    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        """A part of a step: its dispatches start … stop − 1, the update's counted after the plan's, waited for.
        `end_step` must follow the last."""

    @abstractmethod
    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        """The rest of a step that `run` began: the update's dispatches but the first `done`, which `run` has made; now
        it counts, and its loss is readable."""

    @abstractmethod
    def profile(self, window: tuple[int, int] | None) -> str:
        """From the next step on, time the dispatches start … stop − 1 of every step, the update's counted after the
        plan's; None: no more. Returns why that cannot be, or an empty string."""

    @abstractmethod
    def timings(self) -> list[tuple[int, float]]:
        """(dispatch, seconds) of the last completed step that was timed."""

    @abstractmethod
    def update_only(self, scalars: Array) -> None:
        """The update's dispatches alone, with the gradients of the last step."""

    @abstractmethod
    def losses(self, wait: bool) -> list[tuple[int, float]]:
        """(step, loss) pairs that became readable since the last call, in order, none missing of the last `KEPT`;
        `wait`: all submitted ones."""

    @abstractmethod
    def wait(self) -> None:
        """Return when nothing is in flight."""

    @abstractmethod
    def poison(self) -> None:
        """Fill every intermediate slot with NaN: results must not change (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release the buffers; idempotent."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Buffers that a new program takes over from `program` instead of making its own: (its id, the id there)."""

    program: Program
    buffers: tuple[tuple[int, int], ...]


class Device(ABC):
    """Runs plans. `target` is what to compile for. `anywhere`: its programs may be called on any thread, one at a
    time."""

    info: DeviceInfo
    target: Target
    anywhere = False

    @abstractmethod
    def load(self, plan: ExecutionPlan, shared: Shared | None = None) -> Program:
        """Validate the plan, allocate its buffers and make its kernels ready; raises `CompileError` before anything
        is left half built. `shared` says which buffers live in another program of this device."""


# Ctrl-C, held back ----------------------------------------------------------------------------------------------------
_MAIN, _INTERRUPT = threading.main_thread().ident, int(signal.SIGINT)
try:
    _bare = importlib.import_module("_signal")  # without the names that `signal` gives to numbers: 20 times faster
except ImportError:  # not CPython
    _bare = signal


class _Later:
    """A handler of interrupts that only notes them."""

    __slots__ = ("came",)

    def __init__(self) -> None:
        self.came: tuple[Any, ...] = ()

    def __call__(self, *given: Any) -> None:
        self.came = given


# the owner ------------------------------------------------------------------------------------------------------------
class _Call:
    """A function for the owner to run once, and its result: a `Future` costs twice as much."""

    __slots__ = ("done", "error", "function", "value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.value = function, None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        """On the owner."""
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.done.release()

    def set_exception(self, error: BaseException) -> None:
        """The end, without a run."""
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
            self.error = None  # else error and frame would keep each other


class Owner(threading.Thread):
    """The one thread that touches devices. Jobs are generators advanced one yield at a time, so that reads, Pause
    and Step slip in between two steps of a run."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="gdlab-device")
        self.jobs: queue.SimpleQueue[_Call | tuple[Job[Any], Future[Any]]] = queue.SimpleQueue()
        self.open = True
        self.pid = os.getpid()
        self.turn = threading.Lock()  # held by the thread that works on devices: this one, or one that calls `here`
        self.holder = 0
        self.due = False  # this thread has a job in hand: nobody else may begin
        self.start()
        atexit.register(self.close)  # a daemon thread cut off inside a submission would print a Rust panic at exit

    def run(self) -> None:
        """Advance jobs in turn until closed."""
        while self.open:
            given = self.jobs.get()
            self.due = True
            with self.turn:
                if isinstance(given, _Call):
                    given.run()
                else:
                    self._advance(*given)
            self.due = False
            del given  # what a function held is let go while the owner waits
        while not self.jobs.empty():
            left = self.jobs.get()
            error = SessionError("device", "owner thread", "closed", "a live process")
            (left if isinstance(left, _Call) else left[1]).set_exception(error)

    def _advance(self, job: Job[Any], future: Future[Any]) -> None:
        """One yield, and more of them while nobody else waits."""
        try:
            next(job)
            while self.open and self.jobs.empty():
                next(job)
            self.jobs.put((job, future))
        except StopIteration as end:
            future.set_result(end.value)
        except BaseException as error:
            future.set_exception(error)

    def post(self, job: Job[T]) -> Future[T]:
        """Queue a generator; its return value is the future's result."""
        if not self.open:
            raise SessionError("device", "owner thread", "closed", "a live process")
        future: Future[T] = Future()
        self.jobs.put((job, future))
        return future

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the owner and wait (in slices, so that Ctrl-C works); on the owner itself, and inside
        `here`, run it at once."""
        if threading.get_ident() in (self.ident, self.holder):
            return function()
        if not self.open:
            raise SessionError("device", "owner thread", "closed", "a live process")
        call = _Call(function)
        self.jobs.put(call)
        return call.result()  # type: ignore[no-any-return]

    def here(self, function: Callable[[], T]) -> T:
        """`call`, on this thread if nobody else is at work or waits for it: that saves the 20–50 µs of handing over.
        Ctrl-C takes effect when `function` has ended: it would cut a step in two."""
        me = threading.get_ident()
        if me in (self.ident, self.holder):
            return function()
        if not self.open or self.due or not self.jobs.empty():
            return self.call(function)
        usual = _bare.getsignal(_INTERRUPT) if me == _MAIN else None
        ran, value = self._held_back(function, me, usual) if callable(usual) else self._here(function, me)
        return value if ran else self.call(function)  # type: ignore[return-value]

    def _held_back(self, function: Callable[[], T], me: int, usual: Callable[..., Any]) -> tuple[bool, T | None]:
        later = _Later()
        _bare.signal(_INTERRUPT, later)
        try:
            return self._here(function, me)
        finally:
            _bare.signal(_INTERRUPT, usual)
            if later.came:
                usual(*later.came)

    def _here(self, function: Callable[[], T], me: int) -> tuple[bool, T | None]:
        """(whether it ran, its result)."""
        if not self.turn.acquire(False):
            return False, None
        self.holder = me
        try:
            return True, function()
        finally:
            self.holder = 0
            self.turn.release()

    def close(self) -> None:
        """Finish the job in hand and end the thread; idempotent."""
        if self.open:
            self.open = False
            self.jobs.put((_nothing(), Future()))
            self.join(10)


def _nothing() -> Job[None]:
    return
    yield


_owner: Owner | None = None
_lock = threading.Lock()


def owner() -> Owner:
    """The device owner of this process (a new one after fork)."""
    global _owner
    current = _owner
    if current is not None and current.open and current.pid == os.getpid():
        return current
    with _lock:
        if _owner is None or not _owner.open or _owner.pid != os.getpid():
            _owner = Owner()
        return _owner


def wait_for(future: Future[T]) -> T:
    """The result, waited for in slices of 50 ms so that an interrupt is delivered."""
    while True:
        try:
            return future.result(0.05)
        except TimeoutError:
            if future.done():
                return future.result()
