"""Make the steps of a run on the owner thread: whole, or dispatch by dispatch, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Literal

from gdlab.base.errors import GdlabError, SessionError
from gdlab.base.threads import Job, JobFuture, current_job
from gdlab.session import Session
from gdlab.session.checkpoint import CheckpointContent
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.earlier_state import Batch
from gdlab.session.run.feeds import Feed, FixedFeed, ReadAhead
from gdlab.session.run.gradient_norms import GradientNorms
from gdlab.session.run.log import RunLog
from gdlab.session.run.lookout import Lookout
from gdlab.session.run.nonfinite_watch import NonfiniteWatch
from gdlab.session.steps import Uploads

State = Literal["ready", "running", "paused", "failed", "closed"]
MOST_BYTES = 1 << 28  # of parameters that are stored for `reset`
_SLICE_SECONDS = 0.01  # of waiting for a slow run's next step
_MOST_AT_ONCE = 1 << 20
_AT_ONCE_SECONDS = 0.01  # of the steps that are made at once: a pause waits for at most three times as long


class ResetPoint:
    """The parameters, moments and counters of a session before its first step, in memory."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.snapshot: CheckpointContent | None = None

    def store(self) -> None:
        """Store the state before the first step, unless it is too large."""
        if self.snapshot is None and self.session.step_count == 0:
            if sum(t.size_bytes for t in self.session.plan().param_types.values()) <= MOST_BYTES:
                self.snapshot = self.session.snapshot()

    def check(self) -> None:
        """Raise `SessionError` if steps were made and nothing was stored before them."""
        if self.snapshot is None and self.session.step_count:
            wanted = f"parameters of at most {MOST_BYTES >> 20} MiB, so that it is stored"
            raise SessionError("reset", "state before the first step", "none", wanted)


class Stepper:
    """The maker of a run's steps, a job on the owner thread. `state` and `reason`: what the run does, and why it
    paused; `wanted`: the step count at which it is complete, `first_wanted` where it began: both move with the steps
    that others make while it runs. `run`: the number of the last run; `speed`: steps per second at most. `seconds` of a
    run that is made by the clock, and `seconds_left` of it: 0 of any other."""

    def __init__(
        self, session: Session, lookout: Lookout, log: RunLog, watch: NonfiniteWatch, norms: GradientNorms
    ) -> None:
        self.session, self.lookout, self.log, self.watch, self.norms = session, lookout, log, watch, norms
        self.reset_point = ResetPoint(session)
        self.state: State = "ready"
        self.reason = ""
        self.first_wanted = self.wanted = self._counted = session.step_count
        self.run = 0
        self.speed: float | None = None
        self.seconds = self.seconds_left = 0.0
        self.feed: Feed | None = None
        self.pause: str | None = None  # why the run must pause before its next step
        self.job: JobFuture[None] | None = None  # of the run, once it has begun
        self._at_breakpoint = False
        self._at_once = 1  # steps that take about _AT_ONCE_SECONDS
        self._fed_ahead: tuple[Feed, int, Batch | Exception] | None = None  # what a step, from 0, will be refused for

    def start(
        self, parts: Iterator[None], feed: Feed | None, count: int, stop: Callable[[int], None]
    ) -> Future[None]:
        """Post the job that makes these parts of steps, at step count `count`; `stop` stops the run of a number."""
        self.run, self._counted = self.run + 1, count
        self.pause, self.state, self.reason, self.feed, self._at_breakpoint = None, "running", "", feed, False
        self.job = None
        self.watch.begin()
        self.log.clear_ticks()
        return self.session.loaded.turn.post(self._job(parts), partial(stop, self.run))

    def begin_elsewhere(self, steps: int, reason: str) -> None:
        """Note that others make so many steps from now on."""
        count = self._counted = self.first_wanted = self.session.step_count
        self.wanted, self.seconds, self.seconds_left = count + steps, 0.0, 0.0
        self.pause, self.state, self.reason = None, "running", reason
        self.log.clear_ticks()

    @property
    def done(self) -> int:
        """The number of this run's steps that are made."""
        return self._counted - self.first_wanted

    @property
    def place(self) -> str:
        """The position of the session within a step, in words; empty between steps."""
        session = self.session
        if session.closed or not session.under_way:
            return ""
        dispatches, at, step = session.step_dispatches(), session.position, session.step_count + 1
        if at == 0:
            return f"at the start of step {step}, before its {len(dispatches)} dispatches"
        return f"after dispatch {at - 1} ({dispatches[at - 1].label}), {at} of {len(dispatches)} in step {step}"

    # parts of steps ---------------------------------------------------------------------------------------------------
    def steps(self, count: int) -> Iterator[None]:
        """Make so many steps; the one under way is finished first, and is one of them."""
        made = 0
        while made < count and self.pause is None:
            made += self._some_steps(count - made)
            yield

    def timed_steps(self) -> Iterator[None]:
        """Make steps until the last one of `seconds_left` has ended, at least one; a pause stops the clock."""
        while self.seconds_left > 0 and self.pause is None:
            began = time.perf_counter()
            self._some_steps(_MOST_AT_ONCE)
            yield
            self.seconds_left = max(0.0, self.seconds_left - (time.perf_counter() - began))

    def _some_steps(self, most: int) -> int:
        """Make one step, or several at once; return how many."""
        some, began = self._several(most), time.perf_counter()
        made = self._steps_at_once(some) if some > 1 else int(self._step(last=most == 1))
        self._measure(some, time.perf_counter() - began)
        return made

    def _several(self, most: int) -> int:
        """Return how many steps to make at once: one if anything looks between two steps, or gives each its inputs."""
        session, feed = self.session, self.feed
        if session.loaded.device.synchronous or not (feed is None or isinstance(feed, (FixedFeed, ReadAhead))):
            return 1
        if self.lookout or self.speed or self.watch.looks_at_each or session.progress.partial is not None:
            return 1
        types = session.plan().input_types.values() if isinstance(feed, ReadAhead) else ()
        nbytes = sum(type.size_bytes for type in types)
        return min(most, self._at_once, session.loaded.program.steps_at_once(nbytes))

    def _steps_at_once(self, count: int) -> int:
        """Make so many steps, or fewer, in one call of the device; return how many are made."""
        if not self._open_step():
            return 0
        self._skip_others()
        session, progress = self.session, self.session.progress
        further = self._further(self.watch.most_further_steps(count - 1))
        self.watch.before_more_steps([batch for batch, _ in further])
        count = 1 + len(further)
        self.wanted = max(self.wanted, progress.steps + count)
        session.steps.make_together([(), *(uploads for _, uploads in further)])
        session.values.fed(buffer for _, uploads in further for buffer, _ in uploads)
        self._counted = progress.steps
        self._close_step()
        return count

    def _further(self, count: int) -> list[tuple[Batch, Uploads]]:
        """Return the inputs of so many steps after the next one, as they are fed and as they are written; fewer if one
        is invalid: its own step will raise the error."""
        feed, found = self.feed, list[tuple[Batch, Uploads]]()
        if not isinstance(feed, ReadAhead):
            return [({}, ())] * count
        for step in range(first := self.session.progress.steps + 1, first + count):
            try:
                with self.session.loaded.turn.lend():
                    batch = feed(step)
            except Exception as error:
                self._fed_ahead = feed, step, error
                break
            try:
                uploads = self.session.values.batch("set_input", batch)
            except GdlabError:
                self._fed_ahead = feed, step, batch
                break
            found.append((batch, [(buffer, data.copy()) for buffer, data in uploads]))  # a loader may reuse arrays
        return found

    def _measure(self, count: int, seconds: float) -> None:
        """Choose how many steps are made at once from the time that so many took."""
        if count == self._at_once and seconds < _AT_ONCE_SECONDS / 2:
            self._at_once *= 2
        elif seconds > _AT_ONCE_SECONDS:
            self._at_once = max(1, self._at_once // 2)

    def dispatches(self, count: int) -> Iterator[None]:
        """Make so many dispatches."""
        for _ in range(count):
            if self.pause is not None:
                return
            self._step(self.session.position + 1)
            yield

    def to_position(self, position: int) -> Iterator[None]:
        """Go on to a position of this step, or of the next one."""
        if self.session.position >= position:
            self._step()
            yield
        if self.pause is None:
            self._step(position)
            yield

    # the job ----------------------------------------------------------------------------------------------------------
    def _job(self, parts: Iterator[None]) -> Job[None]:
        session, self.job = self.session, current_job()
        try:
            began = time.monotonic()
            for _ in parts:
                due = began + 1 / self.speed if self.speed else 0.0
                yield
                while time.monotonic() < due and self.pause is None:
                    time.sleep(_SLICE_SECONDS)
                    yield
                began = time.monotonic()
            if not session.closed:
                self._add_losses(wait=True)
                if not session.under_way:
                    self.norms.end(session.step_count)
            self.watch.find_cause()
            self._skip_others()
        except BaseException as error:
            self._skip_others()
            interrupted = isinstance(error, KeyboardInterrupt)  # while the feed waited for another run
            reason = self.pause or "by interrupt" if interrupted else str(error)
            if not interrupted:
                self.log.add(session.step_count, "error", reason)
            self._end("failed" if session.closed else "paused", reason)
            with suppress(SessionError):  # closed, or a lost device
                self.log.add_losses(session.take_losses(True))
            raise
        more = session.step_count < self.wanted or self.seconds_left > 0
        self._end("paused" if more else "ready", self.pause or self.place)

    def _skip_others(self) -> None:
        """Leave out of the run the steps that others made since its own last one."""
        if others := self.session.progress.steps - self._counted:
            self.first_wanted += others
            self.wanted += others
            self._counted += others

    def _step(self, to: int | None = None, last: bool = False) -> bool:
        """Make the next step, or the rest of the one under way; `to`: no further than so many of its dispatches.
        Return whether a step is over."""
        session, lookout, progress = self.session, self.lookout, self.session.progress
        if not progress.under_way and not self._open_step():
            return False
        self._skip_others()  # after the feed, which may step too
        self.wanted = max(self.wanted, progress.steps + 1)
        inside = to is not None or (bool(lookout) and lookout.looks_inside(last))
        if not inside or not session.step_dispatches():
            session.steps.make()
        elif not self._advance(to):
            return False
        self._counted = progress.steps
        self._close_step()
        return True

    def _advance(self, to: int | None) -> bool:
        """Run dispatch by dispatch where something looks; return whether the step is over."""
        session, lookout = self.session, self.lookout
        dispatches, step = session.step_dispatches(), session.step_count + 1
        goal = len(dispatches) if to is None else min(to, len(dispatches))
        for stop in lookout.stops(session.position, goal, to is not None):
            session.steps.advance(stop, snapshots=to is not None)
            if hits := lookout.after_dispatch(stop - 1, dispatches[stop - 1], step):
                self._pause_at(hits, step, stop - 1)
                if any(b.when.kind == "nonfinite" for b in hits):
                    self.watch.name_break(stop - 1, dispatches[stop - 1])
                break
        return not session.under_way

    def _open_step(self) -> bool:
        """Set inputs, check, and store the reset point; return whether the step may begin."""
        if self.feed is not None:
            batch = self._next_batch(self.feed)
            if self.state == "closed":  # by the feed
                return False
            self.watch.set_inputs(self.session.progress.steps, batch)
        self.session.values.check_ready("run")
        self.reset_point.store()
        reason = self.watch.before_step()
        self._request_pause(reason)
        return not reason

    def _next_batch(self, feed: Feed) -> Batch:
        """Return the inputs of the next step, which may have been read ahead."""
        step, ahead, self._fed_ahead = self.session.progress.steps, self._fed_ahead, None
        if ahead is None or ahead[0] is not feed or ahead[1] != step:
            if isinstance(feed, FixedFeed):
                return feed(step)
            with self.session.loaded.turn.lend():
                return feed(step)
        if isinstance(ahead[2], Exception):
            raise ahead[2]
        return ahead[2]

    def _close_step(self) -> None:
        """Look at the result of a step."""
        step, lookout = self.session.progress.steps, self.lookout
        self._request_pause(self.watch.after_step())
        self.log.tick(step)
        if self.norms.asked:
            self.norms.sample(step)
        if not lookout:
            self._add_losses(wait=False)
            return
        self._add_losses(wait=lookout.reads_losses)
        if hits := lookout.after_step(self.log.losses):
            self._pause_at(hits, step)
        if self.pause is None and lookout.ends():
            self._request_pause(f"end of --until: {lookout.until}")

    def _request_pause(self, reason: str) -> None:
        if reason and self.pause is None:
            self.pause = reason

    def _pause_at(self, hits: Sequence[Break], step: int, dispatch: int = -1) -> None:
        text = "; ".join(f"breakpoint {b.id}: {b.text}" for b in hits)
        self._at_breakpoint |= self.pause is None
        self._request_pause(text)
        self.log.add(step, "break", text, dispatch)

    def _add_losses(self, wait: bool) -> None:
        if pairs := self.session.take_losses(wait):
            self._request_pause(self.watch.after_losses(self.log.add_losses(pairs)))

    def _end(self, state: State, reason: str) -> None:
        if self.pause == "stopped":
            state, reason, self.wanted, self.seconds_left = "ready", "", self.session.step_count, 0.0
        if self.state != "closed":  # a breakpoint at the end of a run is shown, though there is nothing left to resume
            self.state, self.reason = state, reason if state != "ready" or self._at_breakpoint else ""
        events = self.log.events
        if state == "paused" and self.pause and not (events and events[-1].text == self.pause):
            text = "closed" if self.pause == "closed" else f"paused {reason}"
            self.log.add(self.watch.bad_step or self.session.step_count, "pause", text)

    # back, on the owner thread ----------------------------------------------------------------------------------------
    def back(self, dispatches: int) -> str:
        """Go back by so many dispatches; return in words where the replay began."""
        session = self.session
        if not session.under_way:
            self._add_losses(wait=True)
        count = session.step_count
        begin = session.steps.rewind(max(0, session.dispatches_made - dispatches))
        if session.step_count < count:  # the step was over, and does not count any more
            self.log.take_back(count)
            self.norms.go_back(count)
        step, at = session.step_count + 1, session.position
        self.lookout.go_back(step, at - 1)
        self.wanted, self.state, self.reason = max(self.wanted, step), "paused", self.place
        source = f"the snapshot after dispatch {begin - 1}" if begin else "the start of the step"
        text = f"back: {self.place}; replayed from {source}"
        self.log.add(step, "note", text, at - 1)
        return text

    def reset(self) -> None:
        """Go back to the reset point."""
        self.reset_point.check()
        if self.reset_point.snapshot is not None:
            self.session.loaded.turn.call(self._restore)
        self.first_wanted = self.wanted = self._counted = self.session.step_count
        self.state, self.reason, self.pause, self.seconds_left = "ready", "", None, 0.0

    def _restore(self) -> None:
        assert self.reset_point.snapshot is not None  # checked
        self.session.take_losses(True)  # of steps that no longer count
        self.watch.forget_batches()
        self.norms.reset()
        self.session.restore(self.reset_point.snapshot)
        self.log.uncounted = self.session.traffic.forwards
