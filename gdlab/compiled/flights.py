"""Launch forwards without waiting for them: `commit_no_wait`, `run_async`, `run_pipelined`."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial

from gdlab.base.threads import post_callback
from gdlab.base.types import Array
from gdlab.compiled.boundary_values import OutputLayout, given_out
from gdlab.compiled.launch import Launcher, LaunchRequest, discard
from gdlab.devices.base import Readback

NOTHING = OutputLayout((), 4)  # the landing of a forward whose outputs nobody reads: it tells the end
POLL_SECONDS = 5e-5


class ForwardFuture(Future[list[Array]]):
    """The outputs of a forward, to wait for. Callbacks run on a thread of their own and may call anything. In the turn
    of the device (in a feed) `result` and `exception` settle the forward themselves: nobody else could."""

    flights: weakref.ref[Flights] | None = None  # those that the forward is one of

    def result(self, timeout: float | None = None) -> list[Array]:
        """Return the outputs, or raise the error; raise `TimeoutError` after `timeout` seconds."""
        return super().result(self._settle_here(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None; raise `TimeoutError` after `timeout` seconds."""
        return super().exception(self._settle_here(timeout))

    def _settle_here(self, timeout: float | None) -> float | None:
        """Settle the forward if the caller runs on the device's owner thread, or that thread waits for the caller or is
        lent; return the seconds left to wait."""
        flights = None if self.done() or self.flights is None else self.flights()
        if flights is None:
            return timeout
        turn = flights.launcher.program.turn
        with turn.waited_for() as mine:
            if mine:
                flights.settle(self)
            else:
                turn.wait_lent(self, partial(flights.settle, self), timeout)
        return 0

    def add_done_callback(self, fn: Callable[[Future[list[Array]]], object]) -> None:
        """Call `fn(future)` on the thread of callbacks once the forward has ended; if it has, now on this thread."""
        super().add_done_callback(fn if self.done() else partial(post_callback, fn))


class Flight:
    """A forward that no caller waits for yet. `future`: its outputs; `own`: an error of it is the future's alone."""

    def __init__(self, launcher: Launcher, request: LaunchRequest, layout: OutputLayout, own: bool) -> None:
        self.launcher, self.request, self.layout, self.own = launcher, request, layout, own
        self.future = ForwardFuture()
        self._landing: Readback | None = None

    def begin(self) -> None:
        """Launch the forward, unless it was launched or cancelled before; called on the owner thread."""
        if self.future.done() or self.future.running() or not self.future.set_running_or_notify_cancel():
            return
        try:
            self._landing = self.launcher.launch_into(self.request, self.layout)
        except BaseException as error:
            self.future.set_exception(error)

    @property
    def ready(self) -> bool:
        """Whether the forward can be settled without waiting."""
        return self._landing is None or self._landing.ready

    def settle(self) -> None:
        """Wait for the forward and set the result, once; called on the owner thread."""
        landing, self._landing = self._landing, None
        if landing is None:
            return
        try:
            landing.wait()
            self.launcher.check_landed(self.request.where, self.layout, landing)
            arrays = self.launcher.taken(self.layout, landing)
        except BaseException as error:
            landing.release()
            self.future.set_exception(error)
        else:
            self.future.set_result(arrays)

    def job(self) -> Generator[None, None, None]:
        """Begin the forward and settle it on the owner thread, letting others work until it is ready."""
        self.begin()
        while not self.ready:
            self.launcher.program.losses(False)  # polls the device
            yield
            time.sleep(POLL_SECONDS)
        self.settle()


class Flights:
    """The forwards in flight of a compiled graph: at most `most`, oldest first."""

    def __init__(self, launcher: Launcher, most: int, posted: bool) -> None:
        self.launcher, self.most, self.posted = launcher, most, posted
        self.under_way: deque[Flight] = deque()
        self._error: BaseException | None = None  # the first of a commit, for `finish`
        self._lock = threading.Lock()  # of the two above; nobody waits while it is held

    def post(self, flight: Flight) -> None:
        """Queue a flight for the owner thread; with too many in flight, wait for the oldest. For devices that return
        when their work is done."""
        self._prune()
        while len(self.under_way) >= self.most and not self.launcher.program.turn.is_current:
            self.launcher.program.counters.throttle_waits += 1
            _wait(self.under_way)
            self._prune()
        self.launcher.views.end()
        self._add(flight)
        self.launcher.program.turn.post(flight.job())

    def begin(self, flight: Flight) -> None:
        """Launch a flight now, on the owner thread; with too many in flight its queue waits for the oldest."""
        flight.begin()
        error = flight.future.exception() if flight.future.done() else None
        if error is not None and not flight.own:
            raise error
        self._add(flight)
        while len(self.under_way) > self.most:
            self.under_way[0].settle()
            self._prune()

    def _add(self, flight: Flight) -> None:
        flight.future.flights = weakref.ref(self)
        self.under_way.append(flight)

    def settle(self, future: Future[list[Array]]) -> bool:
        """Settle the forward of a future, and those before it; called on the owner thread."""
        for flight in tuple(self.under_way):
            flight.begin()
            flight.settle()
            if flight.future is future:
                break
        return future.done()

    def watch(self, flight: Flight) -> None:
        """Settle a begun flight as soon as it has ended, whoever waits for it."""
        self.launcher.program.turn.post(flight.job())

    def finish(self, raising: bool = True) -> None:
        """Wait for all flights; called on the owner thread. Raises the first error of a commit, once."""
        for flight in tuple(self.under_way):
            flight.begin()
            flight.settle()
        self._prune()
        if not raising:
            return
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pending(self) -> int:
        """Return the number of forwards that have not ended."""
        if not self.posted and self.under_way:
            self.launcher.exclusively(self._settle_ready)
        self._prune()
        return len(self.under_way)

    def _settle_ready(self) -> None:
        self.launcher.program.losses(False)  # polls the device
        for flight in tuple(self.under_way):
            if flight.ready:
                flight.settle()

    def _prune(self) -> None:
        with self._lock:
            while self.under_way and self.under_way[0].future.done():
                flight = self.under_way.popleft()
                error = None if flight.future.cancelled() else flight.future.exception()
                if error is not None and not flight.own and self._error is None:
                    self._error = error


def pipelined(
    launcher: Launcher, requests: Sequence[LaunchRequest], layout: OutputLayout, most_bytes: int
) -> list[list[Array]]:  # fmt: skip
    """Launch forwards one after the other and wait at the end, or where their landings exceed `most_bytes`; return the
    outputs of a layout. Several short ones are one submission, where the device has submissions."""
    results, stride = list[list[Array]](), launcher.stride(layout)
    count = max(1, most_bytes // stride)
    for start in range(0, len(requests), count):
        some, landings = requests[start : start + count], list[tuple[Readback, Sequence[LaunchRequest]]]()
        together = launcher.at_once(some)
        try:
            for k in range(0, len(some), together):
                landings.append(_landing_of(launcher, some[k : k + together], layout, stride))
            launcher.drain()
            for landing, parts in landings:
                for k, request in enumerate(parts):
                    launcher.check_landed(request.where, layout, landing, k * stride)
            for landing, parts in landings:
                for k in range(len(parts)):
                    pairs = launcher.numbers(layout, landing, k * stride)
                    results.append([given_out(port, numbers) for port, numbers in pairs])
        finally:
            discard(landing for landing, _ in landings)
    return results


def _landing_of(
    launcher: Launcher, requests: Sequence[LaunchRequest], layout: OutputLayout, stride: int
) -> tuple[Readback, Sequence[LaunchRequest]]:
    """Launch forwards into one landing."""
    if len(requests) == 1:
        return launcher.launch_into(requests[0], layout), requests
    for request in requests:
        launcher.check(request)
    landing = launcher.program.queue.readback(stride * len(requests))
    try:
        launcher.launch_many(requests, layout, landing, stride)
    except BaseException:
        landing.release()
        raise
    return landing, requests


def _wait(flights: deque[Flight]) -> None:
    """Wait for the oldest flight, unless it has ended meanwhile."""
    with contextlib.suppress(IndexError, CancelledError):
        flights[0].future.exception()
