"""Make steps, whole in one submission each, or in parts: on to any dispatch and back, with the same values."""

from __future__ import annotations

from typing import Any

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.plan.dispatch import Dispatch
from gdlab.session.optimizer import scalars
from gdlab.session.partial_step import EVERY, MOST_BYTES, Way
from gdlab.session.state import State

_VALUES = "initialize(seed), initialize(zeros=True), set_parameter or load_checkpoint"


class Steps(State):
    """`step` and `wait`; the runner calls `step_now` and `take_losses` on the owner thread."""

    def step(self) -> None:
        """One submission: forward, backward (training), the configured update. Returns at once where the device can."""
        self.check_ready("step")
        self._do(self.step_now)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self._alive("wait")
        self._do(self._program.wait)

    @property
    def step_count(self) -> int:
        """Steps made so far."""
        return self._steps

    @property
    def traffic(self) -> Any:
        """Running totals: steps, dispatches, submissions, bytes up and down."""
        return self._program.traffic

    def check_ready(self, where: str, *, inputs: bool = True) -> None:
        """Raise `SessionError` unless every parameter and (with `inputs`) every input has a value."""
        self._alive(where)
        if inputs and self._unset_inputs:
            raise SessionError(where, "inputs", f"no value for {', '.join(self.unset_inputs)}", "set_input for each")
        if self._unset_parameters and self.unset_parameters:  # the set may be shared with a larger session
            raise SessionError(where, "parameters", f"no value for {', '.join(self.unset_parameters)}", _VALUES)

    def step_now(self) -> None:
        """`step` without checks, for the owner thread (the runner): the next one, or the rest of the one under way."""
        if self._way is not None:
            if not self._way.over:
                return self.advance_now(len(self._way.dispatches))
            self._way = None
        whole, adam_steps = self._next_now()
        self._program.step(self._scalars_now(adam_steps), whole)
        self._advance_now(adam_steps)  # after: a step that failed does not count

    def _scalars_now(self, adam_steps: int) -> Array | None:
        """What the kernels of this step read besides tensors, where any does."""
        reads = self._plan.reads_scalars
        if self._optimizer.rule == "none" and not reads:
            return None
        key = self._optimizer, adam_steps if self._optimizer.counts else 0, self._steps if reads else 0
        if self._numbers is None or self._numbers[0] != key:
            self._numbers = key, scalars(*key)
        return self._numbers[1]  # the same array while no number changes: programs then leave theirs as it is

    def take_losses(self, wait: bool) -> list[tuple[int, float]]:
        """(step, loss) pairs that became readable since the last call; for the runner, on the owner thread."""
        return self._program.losses(wait)

    def _next_now(self) -> tuple[bool, int]:
        """Whether the next step updates (else it only adds up gradients), and the Adam counter behind it."""
        whole = self._window + 1 >= self._accumulate
        return whole, self._adam_steps + (whole and self._optimizer.counts)

    def _advance_now(self, adam_steps: int) -> None:
        self._steps, self._adam_steps = self._steps + 1, adam_steps
        if self._optimizer.rule != "none":
            self._window = (self._window + 1) % self._accumulate

    # in parts, on the owner thread ------------------------------------------------------------------------------------
    @property
    def under_way(self) -> bool:
        """Whether a step has begun and is not over."""
        return self._way is not None and not self._way.over

    @property
    def position(self) -> int:
        """How many dispatches of the step under way have run; 0 between steps."""
        return self._way.at if self._way is not None and not self._way.over else 0

    @property
    def dispatches_made(self) -> int:
        """How many dispatches have run of the step that is, or was last, made in parts."""
        return 0 if self._way is None else self._way.at

    def last_dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches of the step that is, or was last, made in parts."""
        return () if self._way is None else self._way.dispatches

    def step_dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches of the step under way, or of the next one: the plan's, then the update's."""
        if self._way is not None and not self._way.over:
            return self._way.dispatches
        whole, _ = self._next_now()
        update = self._update.dispatches if whole else self._update.dispatches[: self._update.early]
        return (*self._plan.dispatches, *update)

    def advance_now(self, stop: int, *, returns: bool = True, snapshots: bool = False) -> None:
        """Run on until `stop` dispatches of a step have run; after the last one the step counts. `returns`: keep what
        lay in buffers that are changed in place, so that `rewind_now` can go back; `snapshots`: keep one every 16
        dispatches, so that going back is quick."""
        way = self.begin_now()
        scalars, end = self._scalars_now(way.adam_steps), len(way.dispatches)
        while way.at < stop:
            part = min(stop, way.at // EVERY * EVERY + EVERY) if snapshots else stop
            if returns:
                self._keep_start_now(way, part)
            way.returns &= returns
            self._program.run(way.at, part, scalars)
            way.at = part
            if snapshots and part % EVERY == 0 and part < end:
                self._keep_snapshot_now(way)
        if way.at == end:
            self._program.end_step(scalars, way.whole, end - len(self._plan.dispatches))
            self._advance_now(way.adam_steps)
            way.over = True

    def rewind_now(self, to: int) -> int:
        """Go back until `to` dispatches of the step have run, by replay from the nearest snapshot; a step that was over
        is under way again and does not count. Returns the dispatch that the replay began with."""
        way = self._way
        if way is None or not 0 <= to < way.at:
            given = "no step that was made dispatch by dispatch" if way is None else f"{to} of {way.at} dispatches made"
            raise SessionError("back", "dispatch", given, "one of a step that is stepped through by dispatches")
        if not way.returns:
            given = f"a step of which more than {MOST_BYTES >> 20} MiB would have to be kept, or nothing was"
            raise SessionError("back", "snapshot", given, "a step that is stepped through by dispatches")
        if way.over:
            self._steps, self._adam_steps, self._window, self._program.updates = way.counts
            way.over = False
        begin = max(k for k in (0, *way.snapshots) if k <= to)
        held = way.snapshots.get(begin, {})
        for buffer, data in (way.start | held).items():
            self._program.upload(buffer, data)
        way.snapshots = {k: kept for k, kept in way.snapshots.items() if k <= begin}
        way.at = begin
        if begin < to:
            self.advance_now(to, snapshots=True)
        return begin

    def begin_now(self) -> Way:
        """The step under way, or a new one."""
        if self._way is None or self._way.over:
            dispatches = self.step_dispatches()
            counts = self._steps, self._adam_steps, self._window, self._program.updates
            self._way = Way(*self._next_now(), dispatches, counts)
        return self._way

    def _keep_start_now(self, way: Way, stop: int) -> None:
        """What lies in buffers that the dispatches before `stop` change in place or that outlive the step."""
        if not way.returns:
            return
        for d in way.dispatches[way.at : stop]:
            for buffer in d.writes:
                if buffer not in way.start and (buffer in d.in_place or buffer >= len(self._plan.buffers)):
                    way.start[buffer] = self._program.download(buffer)
        if way.nbytes > MOST_BYTES:
            way.snapshots.clear()
        if way.nbytes > MOST_BYTES:
            way.start.clear()
            way.returns = False

    def _keep_snapshot_now(self, way: Way) -> None:
        """What the dispatches so far have written and the others, or the next steps, need."""
        memory, known = self._plan.memory, len(self._plan.buffers)
        pinned = memory.pinned
        written = dict.fromkeys(b for d in way.dispatches[: way.at] for b in d.writes)
        wanted = [b for b in written if b >= known or b in pinned or memory.intervals[b].last >= way.at]
        sizes = {b.id: b.nbytes for b in (*self._plan.buffers, *self._state_buffers)}
        if way.nbytes + sum(sizes[b] for b in wanted) <= MOST_BYTES:
            way.snapshots[way.at] = {b: self._program.download(b) for b in wanted}
