"""Drive one session: run n steps, pause, resume, stop, reset, dispatch by dispatch and back, watched; with a feed."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import get_args
from weakref import WeakValueDictionary

import numpy as np

from gdlab.base.copies import refuse_copies
from gdlab.base.errors import ArgumentError, SessionError
from gdlab.base.kinds import NUMBER
from gdlab.base.threads import JobFuture, wait_for
from gdlab.base.types import Array
from gdlab.base.words import natural, plural, whole
from gdlab.plan.dispatch import Dispatch
from gdlab.session import Session
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.feeds import Feed, InTurn, make_feed, random_batch, restart
from gdlab.session.run.gradient_norms import GradientNorms
from gdlab.session.run.log import Earlier, LogEvent, RunLog
from gdlab.session.run.lookout import Lookout, Watched
from gdlab.session.run.nonfinite import Culprit
from gdlab.session.run.nonfinite_watch import NanWatch, NonfiniteWatch
from gdlab.session.run.stepping import State, Stepper
from gdlab.session.run.under_way import UnderWay

__all__ = ["LogEvent", "Feed", "NanWatch", "Runner", "State", "make_feed", "random_batch", "runner_of"]

_runners: WeakValueDictionary[int, Runner] = WeakValueDictionary()  # by the id of their session


def steps_instead() -> int | None:
    """Return the number of steps that runs by the clock make instead: GDLAB_STEPS, so that outputs of tests and
    notebooks are the same everywhere."""
    if not (text := os.environ.get("GDLAB_STEPS", "").strip()):
        return None
    count = natural(text)
    if not count:
        raise ArgumentError("run", "GDLAB_STEPS", repr(text), "an int ≥ 1, or no such variable")
    return count


def runner_of(session: Session) -> Runner:
    """Return the runner of a session, made if it has none: two runners of one session would miscount its steps."""
    known = _runners.get(id(session))
    return known if known is not None and known.session is session else Runner(session)


class Runner:
    """A driver that steps one session on the device owner's thread.

    `run(n)` makes exactly n steps and asks its feed for each; `run(seconds=5)` ends at the first step's end after that
    time of running (where the environment variable GDLAB_STEPS=n is set, n steps in its place). Pause takes effect
    before the next step; Resume finishes the rest, and steps taken while paused count; those that others make while it
    runs do not. `cancel()` of a run's future is Stop. A feed may run another session; its own run cannot be waited for
    there. The session stays usable after an interrupt, a pause, and an error of the feed.

    `speed`: steps per second at most (None: as fast as it goes). `nan_watch`: what is looked at for NaN and
    infinity, "off"; "loss" (the default, from the losses that are read anyway); "parameters": they and their gradients
    after each step; "everything": the output of every dispatch before every step (twice the work). A hit pauses the
    run, and `culprit` names the first dispatch whose result is not finite.

    A step may be made dispatch by dispatch: the last one that has run is the current one. Step and Run finish the step
    under way first; it is one of those that they were asked for.

    Parts: `lookout` (watches, breakpoints, the end condition), `log`, `nonfinite_watch`, `norms` (of gradients, sampled
    for who looks), and `stepper`, which makes the steps.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.feed: Feed | None = None
        self.lookout, self.log = Lookout(session), RunLog()
        self.nonfinite_watch = NonfiniteWatch(session, self.log)
        self.norms, self.under_way = GradientNorms(session), UnderWay(session, self.log)
        self.stepper = Stepper(session, self.lookout, self.log, self.nonfinite_watch, self.norms)
        self._lock = threading.Lock()  # of commands
        self._stop_elsewhere: Callable[[], None] | None = None  # while others make the steps
        _runners[id(session)] = self

    def __repr__(self) -> str:
        made, wanted = self.session.progress.steps, self.wanted
        return f"<Runner: {self.state}, {whole(made)} of {plural(max(made, wanted), 'step')}>"

    __reduce__ = refuse_copies("runner", "the runner itself: two would count past each other")

    # -- commands, from any thread -------------------------------------------------------------------------------------
    def start(
        self, steps: int | None = None, feed: Feed | None = None, *, seconds: float | None = None
    ) -> Future[None]:
        """Begin a run of `steps` steps, or of some seconds; the future ends with the run, at its pause, or with its
        error."""
        with self._lock:
            steps, seconds = self.check_span(steps, seconds)
            if feed is not None and not callable(feed):
                wanted = "a callable step -> dict: make_feed(…) makes one of a loader, a dict or a list"
                raise ArgumentError("run", "feed", type(feed).__name__, wanted)
            self.feed, count = self.feed if feed is None else feed, self.session.step_count
            self.stepper.first_wanted, self.stepper.wanted = count, count + steps
            self.stepper.seconds = self.stepper.seconds_left = seconds
            return self._start(self.stepper.timed_steps() if seconds else self.stepper.steps(steps), count)

    def run(self, steps: int | None = None, feed: Feed | None = None, *, seconds: float | None = None) -> None:
        """Start a run and wait for its end. Ctrl-C pauses at a step boundary, keeps everything, and raises
        `KeyboardInterrupt`."""
        self.to_end(lambda: self.start(steps, feed, seconds=seconds))

    def to_end(self, begin: Callable[[], Future[None]]) -> None:
        """Begin a run and wait for it, with Ctrl-C as in `run`."""
        before = self.stepper.run
        try:
            self.wait(begin())
        except KeyboardInterrupt:  # it may come before anybody waits
            if self.stepper.run != before and self.state == "running":
                self.pause("by interrupt")
                self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Wait for the end of a run whose future was not returned; its feed may be waiting for another run."""
        told = None
        while self.state == "running":
            job = self.stepper.job
            if job is not None and job is not told:
                job.interrupt()
                told = job
            time.sleep(0.001)

    def step(self, steps: int = 1) -> Future[None]:
        """Make a few steps now. While paused they count towards the run that Resume finishes."""
        with self._lock:
            self.check_start(steps)
            count = self._begin_unless_paused()
            self.stepper.wanted = max(self.wanted, count + int(steps))
            return self._start(self.stepper.steps(int(steps)), count)

    def step_dispatch(self, dispatches: int = 1) -> Future[None]:
        """Make so many dispatches of the plan, and of the update, one at a time; the session is paused after each."""
        with self._lock:
            self.check_start(dispatches, "dispatches")
            count = self._begin_unless_paused()
            return self._start(self.stepper.dispatches(int(dispatches)), count)

    def run_to(self, dispatch: int) -> Future[None]:
        """Run until dispatch `dispatch` of the step under way has run, or where it has, of the next step."""
        with self._lock:
            self.refuse_while_running(f"run to dispatch {dispatch}")
            end = len(self.session.step_dispatches())
            if not isinstance(dispatch, (int, np.integer)) or isinstance(dispatch, bool) or not 0 <= dispatch < end:
                raise ArgumentError("run_to", "dispatch", repr(dispatch), f"0 … {end - 1}: a step has {end}")
            count = self._begin_unless_paused()
            return self._start(self.stepper.to_position(int(dispatch) + 1), count)

    def back(self, dispatches: int = 1) -> str:
        """Go back in the step that is, or was last, made dispatch by dispatch; says where the replay began."""

        def go_back() -> str:
            with self._lock:
                self.check_start(dispatches, "dispatches")
                return self.stepper.back(int(dispatches))

        # the lock in the turn alone: a feed there may give commands too
        return self.session.loaded.turn.call(go_back)

    def _start(self, parts: Iterator[None], count: int) -> Future[None]:
        future = self.stepper.start(parts, self.feed, count, self._stop)
        future.add_done_callback(lambda _: self)  # so that the runner lives, and `runner_of` finds it, until then
        return future

    def _begin_unless_paused(self) -> int:
        """Return the step count that a command begins with."""
        count = self.session.step_count
        if self.state != "paused":
            self.stepper.first_wanted = count
        return count

    def pause(self, reason: str = "by you") -> None:
        """Stop before the next step; a run that others make is stopped."""
        if self._stop_elsewhere is not None:
            self._stop_elsewhere()
        elif self.state == "running" and self.stepper.pause != "stopped":  # what Stop drops stays dropped
            self.stepper.pause = reason

    def resume(self) -> Future[None]:
        """Finish the paused run."""
        with self._lock:
            if self.state != "paused":
                raise SessionError("resume", "session", self.state, "a paused session")
            count, stepper = self.session.step_count, self.stepper
            return self._start(stepper.timed_steps() if self.timed else stepper.steps(self.wanted - count), count)

    def stop(self) -> None:
        """Pause, and drop the rest of the run."""
        self.pause("stopped")
        if self.state == "paused":
            self.stepper.wanted, self.stepper.state, self.stepper.reason = self.session.step_count, "ready", ""
            self.stepper.seconds_left = 0.0

    def _stop(self, run: int) -> None:
        """Stop if run number `run` is still the last: cancelling the future of an earlier run stops nothing."""
        if self.stepper.run == run:
            self.stop()

    def set_speed(self, steps_per_second: float | None) -> None:
        """Make at most so many steps per second from now on; None: as fast as it goes."""
        given = steps_per_second
        if given is not None and not (NUMBER.holds(given) and 0 < given < math.inf):
            raise ArgumentError("speed", "steps per second", repr(steps_per_second), "a number > 0, or None")
        self.stepper.speed = None if given is None else float(given)

    def set_watch(self, mode: NanWatch) -> None:
        """Choose the values that are checked for NaN and infinity from the next step on."""
        if not isinstance(mode, str) or mode not in get_args(NanWatch):
            raise ArgumentError("watch", "mode", repr(mode), f"one of {', '.join(get_args(NanWatch))}")
        self.nonfinite_watch.mode = mode

    def watch(self, *names: str) -> list[Watched]:
        """Watch tensors: named nodes, parameters, `w.grad`, `%7`; all or none."""
        return self.lookout.watch(names)

    def break_at(self, text: str) -> Break:
        """Pause where a breakpoint says, `EVENT [if TEST]` (`gdlab.session.run.breakpoints` has the grammar)."""
        return self.lookout.break_at(text)

    def clear(self, id: int) -> None:
        """Remove a watch or a breakpoint."""
        self.lookout.clear(id)

    def set_until(self, text: str | None) -> None:
        """End runs when a condition holds (`gdlab.session.run.stop_conditions`); None: never."""
        self.lookout.set_until(text)

    def reset(self) -> None:
        """Restore parameters, moments and counters as before the first step; feed and update rule stay, a list is
        begun again."""
        self.session.loaded.turn.call(self._reset)

    def _reset(self) -> None:
        with self._lock:
            self.refuse_while_running("reset")
            self.stepper.reset()
            restart(self.feed)
            self.log.reset(str(self.session.optimizer))
            self.nonfinite_watch.culprit = None
            self.lookout.reset()

    def replay(self) -> Future[None]:
        """Reset, and make the same number of steps again: with the same feed and update rule, the same losses. A
        generator has given its batches away: `SessionError`."""
        if isinstance(self.feed, InTurn):
            raise SessionError("replay", "feed", "an iterator, which gives each batch once", "a list, or step -> dict")
        steps = self.session.step_count
        self.reset()
        return self.start(steps)

    def read_losses(self) -> None:
        """Add the losses of all steps made so far to the log, including those that others made."""
        self.session.loaded.turn.call(lambda: self.log.add_losses(self.session.take_losses(True)))

    @contextmanager
    def elsewhere(self, steps: int, reason: str, stop: Callable[[], None]) -> Iterator[None]:
        """Count as running while others make so many steps from this session's state; Pause and Stop call `stop`."""
        with self._lock:
            self.refuse_while_running(f"a run {reason}")
            self._stop_elsewhere = stop
            self.stepper.begin_elsewhere(steps, reason)
        try:
            yield
        finally:
            self._stop_elsewhere = None
            if self.state == "running":
                self.stepper.state, self.stepper.reason = "ready", ""
                self.stepper.wanted = self.session.step_count

    def adopt_steps(self, steps: int, losses: list[tuple[int, float]]) -> None:
        """Count steps that were made elsewhere and whose state the session has now, with their losses by step."""
        self.read_losses()
        self.session.progress.steps += steps
        self.log.uncounted -= steps
        self.log.losses += losses
        self.stepper.first_wanted = self.stepper.wanted = self.session.step_count

    def close(self) -> None:
        """End the run and the session; idempotent."""
        self.pause("closed")
        self.stepper.state = "closed"
        self.session.loaded.turn.call(self.session.close)  # there it falls between two steps of a run

    def wait(self, future: Future[None]) -> None:
        """Wait for a run that was started; Ctrl-C pauses it."""
        try:
            wait_for(future)
        except KeyboardInterrupt:
            self.pause("by interrupt")
            if isinstance(future, JobFuture):  # its feed may be waiting for another run
                future.interrupt()
            wait_for(future)
            raise

    # -- state ---------------------------------------------------------------------------------------------------------
    @property
    def state(self) -> State:
        """The runner's state now."""
        return self.stepper.state

    @property
    def reason(self) -> str:
        """The reason of the pause, or an empty string."""
        return self.stepper.reason

    @property
    def wanted(self) -> int:
        """The step count at which the run is complete; of one that is `timed`, the steps begun so far."""
        return self.stepper.wanted

    @property
    def timed(self) -> bool:
        """Whether the run under way, or paused, ends by the clock."""
        return self.stepper.seconds_left > 0

    @property
    def speed(self) -> float | None:
        """Steps per second at most; None: as fast as it goes."""
        return self.stepper.speed

    @property
    def place(self) -> str:
        """The position of the session within a step, in words; empty between steps."""
        return self.stepper.place

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The (step, loss) of every step since the last reset."""
        return self.log.losses

    @property
    def last_loss(self) -> float | None:
        """The newest loss known, or None."""
        return self.losses[-1][1] if self.losses else None

    @property
    def earlier(self) -> list[Earlier]:
        """The last few runs before resets."""
        return self.log.earlier

    @property
    def events(self) -> list[LogEvent]:
        """Pauses, breakpoints, errors and notes so far."""
        return self.log.events

    @property
    def nan_watch(self) -> NanWatch:
        """The values that are watched for NaN and infinity."""
        return self.nonfinite_watch.mode

    @property
    def culprit(self) -> Culprit | None:
        """The first dispatch of the last run whose result is not finite."""
        return self.nonfinite_watch.culprit

    @property
    def steps_per_second(self) -> float:
        """Rate over the last second of running; 0 before the first two steps."""
        return self.log.steps_per_second

    @property
    def dispatch(self) -> int:
        """The current dispatch: the last one that has run of a step that is made in parts; −1: none."""
        return self.session.dispatches_made - 1

    def dispatch_under_way(self) -> int:
        """Sample the dispatch that is under way in a run (`UnderWay`); −1 where none runs. For pictures, from one
        thread."""
        return self.under_way.sample() if self.state == "running" else -1

    def output(self) -> tuple[Dispatch, Array]:
        """Return the current dispatch and its first result; ranges of columns side by side."""
        made, at = self.session.last_dispatches(), self.dispatch
        if at < 0:
            raise SessionError("output", "dispatch", "none that has run", "a step that is made by dispatches")
        return made[at], self.session.values.read_results(made[at])[0]

    # -- checks --------------------------------------------------------------------------------------------------------
    def check_start(self, count: int, what: str = "steps") -> None:
        """Raise unless so many steps (or dispatches) could begin now."""
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 0:
            raise ArgumentError("run", what, repr(count), "an int ≥ 0")
        self.refuse_while_running(f"{count} {what}")

    def check_span(self, steps: int | None, seconds: float | None) -> tuple[int, float]:
        """Return the steps and the seconds of a run, one of them 0, after checking that it could begin now."""
        if seconds is None:
            self.check_start(steps)  # type: ignore[arg-type]  # it is checked
            return int(steps), 0.0  # type: ignore[arg-type]
        if steps is not None:
            raise ArgumentError("run", "seconds", f"{seconds} and {steps} steps as well", "one of the two")
        if not (NUMBER.holds(seconds) and 0 < seconds < math.inf):
            raise ArgumentError("run", "seconds", repr(seconds), "a number > 0")
        instead = steps_instead()
        self.refuse_while_running(f"{seconds} seconds")
        return (0, float(seconds)) if instead is None else (instead, 0.0)

    def refuse_while_running(self, given: str) -> None:
        """Raise `SessionError` if the session is running or closed; `given` names the call."""
        if self.state == "closed":
            raise SessionError("run", "session", "closed", "an open session")
        if self.state == "running":
            stepper, whole_run = self.stepper, str(self.wanted - self.stepper.first_wanted)
            given = f"{given} while {stepper.done} of {'a timed run' if self.timed else whole_run} are done"
            raise SessionError("run", "session", given, "a ready or paused session")
