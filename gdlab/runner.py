"""Drive one session: run n steps, pause, resume, stop, with a feed; for magics, panel, scripts and command line."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gdlab.device.base import Job, owner, wait_for
from gdlab.errors import ArgumentError, SessionError
from gdlab.graph import Graph
from gdlab.session import Session
from gdlab.types import f32

State = Literal["ready", "running", "paused", "failed", "closed"]
Feed = Callable[[int], Mapping[str, Any]]
_RATE_WINDOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: a pause with its reason, a non-finite loss, an error."""

    step: int
    kind: Literal["nonfinite", "pause", "error", "note"]
    text: str


class Runner:
    """Steps one session on the device owner's thread.

    `run(n)` makes exactly n steps. Pause takes effect before the next step; Resume finishes the rest, and steps taken
    while paused count. The session stays usable after an interrupt, a pause, and an error of the feed.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.state: State = "ready"
        self.reason = ""
        self.feed: Feed | None = None
        self.first_wanted = self.wanted = session.step_count
        self.losses: list[tuple[int, float]] = []
        self.events: list[Event] = []
        self._pause: str | None = None
        self._lock = threading.Lock()
        self._ticks: deque[tuple[float, int]] = deque(maxlen=4096)

    # -- commands, from any thread -------------------------------------------------------------------------------------
    def start(self, steps: int, feed: Feed | None = None) -> Future[None]:
        """Begin a run of `steps` steps; the future ends with the run, at its pause, or with its error."""
        with self._lock:
            self.check_start(steps)
            self.feed = feed or self.feed
            self.wanted = self.session.step_count + int(steps)
            self.first_wanted = self.session.step_count
            return self._begin(self.wanted)

    def run(self, steps: int, feed: Feed | None = None) -> None:
        """`start` and wait. Ctrl-C pauses at a step boundary, keeps everything, and raises `KeyboardInterrupt`."""
        self._wait(self.start(steps, feed))

    def step(self, steps: int = 1) -> Future[None]:
        """Make a few steps now. While paused they count towards the run that Resume finishes."""
        with self._lock:
            self.check_start(steps)
            until = self.session.step_count + int(steps)
            if self.state != "paused":
                self.first_wanted = self.session.step_count
            self.wanted = max(self.wanted, until)
            return self._begin(until)

    def pause(self, reason: str = "by you") -> None:
        """Stop before the next step."""
        if self.state == "running" and self._pause != "stopped":  # what Stop drops stays dropped
            self._pause = reason

    def resume(self) -> Future[None]:
        """Finish the paused run."""
        with self._lock:
            if self.state != "paused":
                raise SessionError("resume", "session", self.state, "a paused session")
            return self._begin(self.wanted)

    def stop(self) -> None:
        """Pause, and drop the rest of the run."""
        self.pause("stopped")
        if self.state == "paused":
            self.wanted, self.state, self.reason = self.session.step_count, "ready", ""

    def close(self) -> None:
        """End the run and the session; idempotent."""
        self.pause("closed")
        self.state = "closed"
        owner().call(self.session.close)  # there it falls between two steps of a run

    def wait(self, future: Future[None]) -> None:
        """Wait for a run that was started; Ctrl-C pauses it."""
        self._wait(future)

    # -- figures -------------------------------------------------------------------------------------------------------
    @property
    def steps_per_second(self) -> float:
        """Rate over the last second of running; 0 before the first two steps."""
        ticks = list(self._ticks)
        if len(ticks) < 2 or ticks[-1][0] <= ticks[0][0]:
            return 0.0
        return (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])

    @property
    def last_loss(self) -> float | None:
        """The newest loss known, or None."""
        return self.losses[-1][1] if self.losses else None

    # -- the job, on the owner's thread --------------------------------------------------------------------------------
    def _begin(self, until: int) -> Future[None]:
        self._pause, self.state, self.reason = None, "running", ""
        self._ticks.clear()
        return owner().post(self._job(until))

    def _job(self, until: int) -> Job[None]:
        try:
            while self.session.step_count < until and self._pause is None:
                self._one()
                yield
            if not self.session.closed:
                self._collect(self.session.take_losses(True))
        except BaseException as error:
            self.events.append(Event(self.session.step_count, "error", str(error)))
            self._settle("failed" if self.session.closed else "paused", str(error))
            with suppress(SessionError):  # closed, or a lost device
                self.losses += self.session.take_losses(True)
            raise
        self._settle("paused" if self.session.step_count < self.wanted else "ready", self._pause or "")

    def _one(self) -> None:
        step = self.session.step_count
        if self.feed is not None:
            for name, data in self.feed(step).items():
                self.session.set_input(name, data)
        self.session.check_ready("run")
        self.session.step_now()
        now = time.perf_counter()
        self._ticks.append((now, step + 1))
        while now - self._ticks[0][0] > _RATE_WINDOW_SECONDS:
            self._ticks.popleft()
        self._collect(self.session.take_losses(False))

    def _settle(self, state: State, reason: str) -> None:
        if self._pause == "stopped":
            state, reason, self.wanted = "ready", "", self.session.step_count
        if self.state != "closed":
            self.state, self.reason = state, reason if state != "ready" else ""
        if state == "paused" and self._pause:
            self.events.append(Event(self.session.step_count, "pause", f"paused {reason}"))

    def _collect(self, pairs: list[tuple[int, float]]) -> None:
        self.losses += pairs
        for step, loss in pairs:
            if not math.isfinite(loss) and self._pause is None:
                self._pause = f"non-finite loss {loss} at step {step}"
                self.events.append(Event(step, "nonfinite", f"loss is {loss} at step {step}"))

    # -- waiting -------------------------------------------------------------------------------------------------------
    def check_start(self, steps: int) -> None:
        """Raise unless `steps` steps could begin now."""
        if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < 0:
            raise ArgumentError("run", "steps", repr(steps), "an int ≥ 0")
        self.refuse_while_running(f"{steps} steps")

    def refuse_while_running(self, given: str) -> None:
        """Raise `SessionError` if the session is running or closed; `given` is what was asked for."""
        if self.state == "closed":
            raise SessionError("run", "session", "closed", "an open session")
        if self.state == "running":
            done, wanted = self.session.step_count - self.first_wanted, self.wanted - self.first_wanted
            given = f"{given} while {done} of {wanted} are done"
            raise SessionError("run", "session", given, "a ready or paused session")

    def _wait(self, future: Future[None]) -> None:
        try:
            wait_for(future)
        except KeyboardInterrupt:
            self.pause("by interrupt")
            wait_for(future)
            raise


# feeds ----------------------------------------------------------------------------------------------------------------
def make_feed(given: Any, graph: Graph) -> Feed:
    """A feed from what people hand over: a dict of arrays, a callable `step -> dict`, an iterable of dicts (its end
    ends the run with an error), or `"random[:SEED]"`."""
    if isinstance(given, str) and given.partition(":")[0] == "random":
        seed = given.partition(":")[2] or "0"
        if not seed.isdigit():
            raise ArgumentError("feed", "seed", repr(seed), "random or random:SEED, SEED an int ≥ 0")
        batch = random_batch(graph, int(seed))
        return lambda step: batch
    if isinstance(given, Mapping):
        return lambda step: given
    if callable(given):
        return lambda step: _checked(_called(given, step))
    if hasattr(given, "__iter__") and not isinstance(given, (str, bytes, np.ndarray)):
        batches: Iterator[Any] = iter(given)
        return lambda step: _checked(_next(batches, step))
    wanted = "a dict of arrays, a callable step -> dict, an iterable of dicts, or random[:SEED]"
    raise ArgumentError("feed", "kind", type(given).__name__, wanted)


def _checked(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise ArgumentError("feed", "batch", type(batch).__name__, "a dict {input name: array}")
    return batch


def _next(batches: Iterator[Any], step: int) -> Any:
    return _called(lambda _: next(batches), step)


def _called(feed: Callable[[int], Any], step: int) -> Any:
    """What the feed gives; its end must not leave as the `StopIteration` that ends the run's own generator."""
    try:
        return feed(step)
    except StopIteration:
        raise ArgumentError("feed", "batches", f"an end after {step} steps", "as many batches as steps") from None


def random_batch(graph: Graph, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """One batch: normal(0, 1), one-hot rows for the labels of a cross entropy, zeros for u32 inputs."""
    rng = np.random.default_rng(seed)
    labels = {n.inputs[1] for n in graph if n.op == "cross_entropy_loss"}
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for node in graph.inputs:
        shape = node.type.shape
        if node.id in labels:
            batch[node.name] = np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], shape[:-1])]
        elif node.type.dtype is f32:
            batch[node.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            batch[node.name] = np.zeros(shape, np.uint32)
    return batch
