"""Make the steps of a runner on the owner's thread: whole, or dispatch by dispatch where somebody looks, and back."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from gdlab.base.errors import GdlabError, SessionError
from gdlab.base.threads import Job
from gdlab.session import Session
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.feeds import Feed
from gdlab.session.run.lookout import Lookout
from gdlab.session.run.nonfinite import Culprit, first_bad, spoiled

State = Literal["ready", "running", "paused", "failed", "closed"]
NanWatch = Literal["off", "loss", "parameters", "everything"]
LARGEST_OPENING = 1 << 28  # bytes of parameters that are kept for `reset`
_RATE_WINDOW_SECONDS = 1.0
_RECENT = 8  # batches that are remembered: more than steps are ever in flight
_SLICE_SECONDS = 0.01  # of waiting for a slow run's next step


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: a pause with its reason, a non-finite loss, an error. `about` is an entity of the
    study's document, `dispatch` the index of the dispatch that it is about (−1: none)."""

    step: int
    kind: Literal["nonfinite", "break", "pause", "error", "note"]
    text: str
    about: str | None = None
    dispatch: int = -1


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run of before a reset: the update rule that it ended with, and its losses."""

    options: str
    losses: tuple[tuple[int, float], ...]


class Stepping:
    """The half of a runner that works on the owner's thread, and all of its fields."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.state: State = "ready"
        self.reason = ""
        self.feed: Feed | None = None
        self.first_wanted = self.wanted = session.step_count
        self.losses: list[tuple[int, float]] = []
        self.earlier: list[Earlier] = []  # the last few
        self.events: list[Event] = []
        self.speed: float | None = None
        self.nan_watch: NanWatch = "loss"
        self.culprit: Culprit | None = None
        self.lookout = Lookout(session)
        self._opening: Any = None  # what `reset` goes back to; None until the first step
        self._bad = 0  # the step, from 1, whose result was not finite
        self._recent: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=_RECENT)
        self._behind = 0  # steps that the device made before the last reset
        self._pause: str | None = None
        self._broke = False  # at a breakpoint
        self._lock = threading.Lock()
        self._ticks: deque[tuple[float, int]] = deque(maxlen=4096)

    @property
    def place(self) -> str:
        """Where in a step the session stands, in words; empty between steps."""
        session = self.session
        if session.closed or not session.under_way:
            return ""
        made, at, step = session.step_dispatches(), session.position, session.step_count + 1
        if at == 0:
            return f"at the start of step {step}, before its {len(made)} dispatches"
        return f"after dispatch {at - 1} ({made[at - 1].label}), {at} of {len(made)} in step {step}"

    # -- the job -------------------------------------------------------------------------------------------------------
    def _steps_to(self, count: int) -> Iterator[None]:
        """Steps, until so many are made; the one under way is finished first."""
        while self.session.step_count < count and self._pause is None:
            self._one(last=self.session.step_count + 1 == count)
            yield

    def _dispatches(self, more: Callable[[], bool]) -> Iterator[None]:
        """Dispatches, as long as there are `more`."""
        while self._pause is None and more():
            self._one(self.session.position + 1)
            yield

    def _to(self, position: int) -> Iterator[None]:
        """On to a position of this step, or of the next one."""
        if self.session.position >= position:
            self._one()
            yield
        if self._pause is None:
            self._one(position)
            yield

    def _job(self, parts: Iterator[None]) -> Job[None]:
        try:
            began = time.monotonic()
            for _ in parts:
                due = began + 1 / self.speed if self.speed else 0.0
                yield
                while time.monotonic() < due and self._pause is None:
                    time.sleep(_SLICE_SECONDS)
                    yield
                began = time.monotonic()
            if not self.session.closed:
                self._collect(self.session.take_losses(True))
            self._name_culprit()
        except BaseException as error:
            self.events.append(Event(self.session.step_count, "error", str(error)))
            self._settle("failed" if self.session.closed else "paused", str(error))
            with suppress(SessionError):  # closed, or a lost device
                self.losses += self.session.take_losses(True)
            raise
        self._settle("paused" if self.session.step_count < self.wanted else "ready", self._pause or self.place)

    def _one(self, to: int | None = None, last: bool = False) -> None:
        """The next step, or the rest of the one under way; `to`: no further than so many of its dispatches."""
        session, lookout = self.session, self.lookout
        if not session.under_way and not self._open_step():
            return
        self.wanted = max(self.wanted, session.step_count + 1)
        looked = to is not None or (bool(lookout) and lookout.looks_inside(last))
        if not looked or not session.step_dispatches():
            session.step_now()
        elif not self._walk(to):
            return
        self._close_step()

    def _walk(self, to: int | None) -> bool:
        """Dispatch by dispatch where somebody looks; whether the step is over."""
        session, lookout = self.session, self.lookout
        dispatches, step = session.step_dispatches(), session.step_count + 1
        goal = len(dispatches) if to is None else min(to, len(dispatches))
        for stop in lookout.stops(session.position, goal, to is not None):
            session.advance_now(stop, snapshots=to is not None)
            if hits := lookout.after_dispatch(stop - 1, dispatches[stop - 1], step):
                self._stop_at(hits, step, stop - 1)
                break
        return not session.under_way

    def _open_step(self) -> bool:
        """Inputs, checks and the opening; whether the step may begin."""
        step = self.session.step_count
        if self.feed is not None:
            batch = self.feed(step)
            self._set_inputs(batch)
            self._recent.append((step, batch))
        self.session.check_ready("run")
        if self._opening is None and step == 0 and self._parameter_bytes() <= LARGEST_OPENING:
            self._opening = self.session.snapshot()
        if self.nan_watch == "everything" and (found := first_bad(self.session)) is not None:
            self._hit(step + 1, f"step {step + 1} would not be finite", culprit=found)
            return False
        return True

    def _close_step(self) -> None:
        """What is looked at when a step is over."""
        step, lookout = self.session.step_count, self.lookout
        if self.nan_watch in ("parameters", "everything") and (names := spoiled(self.session)):
            self._hit(step, f"{names[0]} is not finite after step {step}")
        now = time.perf_counter()
        self._ticks.append((now, step))
        while now - self._ticks[0][0] > _RATE_WINDOW_SECONDS:
            self._ticks.popleft()
        if not lookout:
            self._collect(self.session.take_losses(False))
            return
        self._collect(self.session.take_losses(lookout.reads_losses))
        if hits := lookout.after_step(self.losses):
            self._stop_at(hits, step)
        if self._pause is None and lookout.ends():
            self._pause = f"end of --until: {lookout.until}"

    def _stop_at(self, hits: Sequence[Break], step: int, dispatch: int = -1) -> None:
        """Pause at breakpoints."""
        text = "; ".join(f"breakpoint {b.id}: {b.text}" for b in hits)
        if self._pause is None:
            self._pause, self._broke = text, True
        self.events.append(Event(step, "break", text, f"dispatch:{dispatch}" if dispatch >= 0 else None, dispatch))

    def _back_now(self, dispatches: int) -> str:
        session = self.session
        if not session.under_way:
            self._collect(session.take_losses(True))
        counted, made = session.step_count, session.dispatches_made
        begin = session.rewind_now(max(0, made - dispatches))
        if session.step_count < counted:  # the step was over, and does not count any more
            self.losses = [row for row in self.losses if row[0] < counted]
            self._behind += 1
        step, at = session.step_count + 1, session.position
        self.lookout.go_back(step, at - 1)
        self.wanted, self.state, self.reason = max(self.wanted, step), "paused", self.place
        source = f"the snapshot after dispatch {begin - 1}" if begin else "the start of the step"
        text = f"back: {self.place}; replayed from {source}"
        self.events.append(Event(step, "note", text, f"dispatch:{at - 1}" if at else None, at - 1))
        return text

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
        if self.session.under_way:
            text = "the cause is looked for between two steps: finish the step under way"
            self.events.append(Event(self.session.step_count, "note", text))
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
        if self.state != "closed":  # a breakpoint at the end of a run is told, though there is nothing left to resume
            self.state, self.reason = state, reason if state != "ready" or self._broke else ""
        if state == "paused" and self._pause and not (self.events and self.events[-1].text == self._pause):
            self.events.append(Event(self.session.step_count, "pause", f"paused {reason}"))

    def _collect(self, pairs: list[tuple[int, float]]) -> None:
        pairs = [(step - self._behind, loss) for step, loss in pairs]
        self.losses += pairs
        for step, loss in pairs if self.nan_watch != "off" else ():
            if not math.isfinite(loss) and not self._bad:
                self._hit(step, f"non-finite loss {loss} at step {step}", f"loss is {loss} at step {step}")

    def _reset_now(self) -> None:
        self.session.take_losses(True)  # of steps that no longer count
        self._recent.clear()
        self.session.restore(self._opening)
        self._behind = self.session.traffic.steps
