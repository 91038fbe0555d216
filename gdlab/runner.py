"""Drive one session: run n steps, pause, resume, stop, reset, until a condition holds, watched for NaN; with a feed."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from gdlab.device.base import Job, owner, wait_for
from gdlab.errors import ArgumentError, GdlabError, SessionError
from gdlab.feeds import Feed, make_feed, random_batch
from gdlab.nonfinite import Culprit, first_bad, spoiled
from gdlab.session import Session
from gdlab.until import StopTest, parse_test

__all__ = ["Event", "Feed", "Runner", "State", "Watch", "make_feed", "random_batch"]

State = Literal["ready", "running", "paused", "failed", "closed"]
Watch = Literal["off", "loss", "parameters", "everything"]
_RATE_WINDOW_SECONDS = 1.0
_RECENT = 8  # batches that are remembered: more than steps are ever in flight
_SLICE_SECONDS = 0.01  # of waiting for a slow run's next step
_LARGEST_OPENING = 1 << 28  # bytes of parameters that are kept for `reset`


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: a pause with its reason, a non-finite loss, an error. `about` is an entity of the
    study's document, `dispatch` the index of the dispatch that it is about (−1: none)."""

    step: int
    kind: Literal["nonfinite", "pause", "error", "note"]
    text: str
    about: str | None = None
    dispatch: int = -1


class Runner:
    """Steps one session on the device owner's thread.

    `run(n)` makes exactly n steps. Pause takes effect before the next step; Resume finishes the rest, and steps taken
    while paused count. The session stays usable after an interrupt, a pause, and an error of the feed.

    `speed`: steps per second at most (None: as fast as it goes). `watch`: what is looked at for NaN and infinity,
    "off"; "loss" (the default, from the losses that are read anyway); "parameters": they and their gradients after each
    step; "everything": the output of every dispatch before every step (twice the work). A hit pauses the run, and
    `culprit` names the first dispatch whose result is not finite. `until` ends a run when its condition holds.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.state: State = "ready"
        self.reason = ""
        self.feed: Feed | None = None
        self.first_wanted = self.wanted = session.step_count
        self.losses: list[tuple[int, float]] = []
        self.events: list[Event] = []
        self.speed: float | None = None
        self.watch: Watch = "loss"
        self.culprit: Culprit | None = None
        self.until: StopTest | None = None
        self._opening: Any = None  # what `reset` goes back to; None until the first step
        self._bad = 0  # the step, from 1, whose result was not finite
        self._recent: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=_RECENT)
        self._behind = 0  # steps that the device made before the last reset
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

    def set_speed(self, steps_per_second: float | None) -> None:
        """Make at most so many steps per second from now on; None: as fast as it goes."""
        if steps_per_second is not None and not (
            isinstance(steps_per_second, (int, float)) and 0 < steps_per_second < math.inf
        ):
            raise ArgumentError("speed", "steps per second", repr(steps_per_second), "a number > 0, or None")
        self.speed = steps_per_second

    def set_watch(self, watch: Watch) -> None:
        """What is looked at for NaN and infinity from the next step on."""
        if watch not in get_args(Watch):
            raise ArgumentError("watch", "mode", repr(watch), f"one of {', '.join(get_args(Watch))}")
        self.watch = watch

    def set_until(self, text: str | None) -> None:
        """End runs when a condition holds (`gdlab.until` has the grammar); None: never."""
        self.until = None if text is None else parse_test(text, self.session)

    def reset(self) -> None:
        """Parameters, moments and counters as they were before the first step; feed and update rule stay."""
        with self._lock:
            self.refuse_while_running("reset")
            if self._opening is None and self.session.step_count:
                wanted = f"parameters of at most {_LARGEST_OPENING >> 20} MiB, to be kept"
                raise SessionError("reset", "opening", "nothing that was kept", wanted)
            if self._opening is not None:
                owner().call(self._reset_now)
            self.losses, self.culprit = [], None
            self.first_wanted = self.wanted = self.session.step_count
            self.state, self.reason, self._pause = "ready", "", None
            self._ticks.clear()
            self.events.append(Event(0, "note", "reset to the opening state"))

    def replay(self) -> Future[None]:
        """`reset`, and make the same number of steps again: with the same feed and update rule, the same losses."""
        steps = self.session.step_count
        self.reset()
        return self.start(steps)

    def _reset_now(self) -> None:
        self.session.take_losses(True)  # of steps that no longer count
        self._recent.clear()
        self.session.restore(self._opening)
        self._behind = self.session.traffic.steps

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
        self._pause, self.state, self.reason, self._bad, self.culprit = None, "running", "", 0, None
        self._ticks.clear()
        return owner().post(self._job(until))

    def _job(self, until: int) -> Job[None]:
        try:
            while self.session.step_count < until and self._pause is None:
                due = time.monotonic() + 1 / self.speed if self.speed else 0.0
                self._one()
                yield
                while time.monotonic() < due and self._pause is None:
                    time.sleep(_SLICE_SECONDS)
                    yield
            if not self.session.closed:
                self._collect(self.session.take_losses(True))
            self._name_culprit()
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
            batch = self.feed(step)
            self._set_inputs(batch)
            self._recent.append((step, batch))
        self.session.check_ready("run")
        if self._opening is None and step == 0 and self._parameter_bytes() <= _LARGEST_OPENING:
            self._opening = self.session.snapshot()
        if self.watch == "everything" and (found := first_bad(self.session)) is not None:
            self._hit(step + 1, f"step {step + 1} would not be finite", culprit=found)
            return
        self.session.step_now()
        if self.watch in ("parameters", "everything") and (names := spoiled(self.session)):
            self._hit(step + 1, f"{names[0]} is not finite after step {step + 1}")
        now = time.perf_counter()
        self._ticks.append((now, step + 1))
        while now - self._ticks[0][0] > _RATE_WINDOW_SECONDS:
            self._ticks.popleft()
        self._collect(self.session.take_losses(False))
        if self.until is not None and self._pause is None and self.until.holds(self.session):
            self._pause = f"end of --until: {self.until}"

    def _parameter_bytes(self) -> int:
        return sum(t.size_bytes for t in self.session.plan().param_types.values())

    def _hit(self, step: int, reason: str, text: str = "", culprit: Culprit | None = None) -> None:
        """Something is not finite: pause, tell it, and remember to look for the cause once the run has ended."""
        if self._pause is None:
            self._pause = reason
        self._bad, self.culprit = step, culprit
        self.events.append(Event(step, "nonfinite", text or reason))

    def _name_culprit(self) -> None:
        """The first dispatch whose result is not finite, with the inputs of that step and the parameters as they are
        now; no step is made."""
        if not self._bad or self.session.closed:
            return
        if self.culprit is None:
            with suppress(GdlabError):
                self.culprit = self._first_bad()
        if self.culprit is None:
            text = "nothing is not finite now: the parameters have moved on; watch everything to stop before it happens"
            self.events.append(Event(self.session.step_count, "note", text))
        else:
            c = self.culprit
            self.events.append(
                Event(self.session.step_count, "nonfinite", str(c), f"dispatch:{c.dispatch}", c.dispatch)
            )

    def _first_bad(self) -> Culprit | None:
        """Losses arrive late: the inputs may be those of a later step by now."""
        then = next((batch for step, batch in self._recent if step == self._bad - 1), None)
        if then is None or then is self._recent[-1][1]:
            return first_bad(self.session)
        self._set_inputs(then)
        try:
            return first_bad(self.session)
        finally:
            self._set_inputs(self._recent[-1][1])

    def _set_inputs(self, batch: Mapping[str, Any]) -> None:
        for name, data in batch.items():
            self.session.set_input(name, data)

    def _settle(self, state: State, reason: str) -> None:
        if self._pause == "stopped":
            state, reason, self.wanted = "ready", "", self.session.step_count
        if self.state != "closed":
            self.state, self.reason = state, reason if state != "ready" else ""
        if state == "paused" and self._pause:
            self.events.append(Event(self.session.step_count, "pause", f"paused {reason}"))

    def _collect(self, pairs: list[tuple[int, float]]) -> None:
        pairs = [(step - self._behind, loss) for step, loss in pairs]
        self.losses += pairs
        for step, loss in pairs if self.watch != "off" else ():
            if not math.isfinite(loss) and not self._bad:
                self._hit(step, f"non-finite loss {loss} at step {step}", f"loss is {loss} at step {step}")

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
