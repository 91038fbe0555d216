"""Make steps, whole in one submission each, or dispatch by dispatch and back, with the same values."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.devices.base import BufferCopy, Readback
from gdlab.plan.dispatch import Dispatch
from gdlab.session.loaded import LoadedPlan
from gdlab.session.optimizer import scalars
from gdlab.session.progress import PartialStep, Progress
from gdlab.session.updates import Updates
from gdlab.session.values import Values

EVERY = 16  # dispatches between two snapshots
MOST_BYTES = 1 << 28  # of snapshots and initial values


class Steps:
    """The steps of a session. All methods but `step` and `wait` check nothing, and are called on the owner thread."""

    def __init__(self, loaded: LoadedPlan, values: Values, updates: Updates, progress: Progress) -> None:
        self.loaded, self.values, self.updates, self.progress = loaded, values, updates, progress
        self._scalars: tuple[object, Array] | None = None  # of the last step, and what they were computed from

    def step(self) -> None:
        """Make a step after checking that every tensor has a value."""
        self.values.check_ready("step")
        self.loaded.exclusively(self.make)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self.loaded.check_open("wait")
        self.loaded.exclusively(self.loaded.program.wait)

    def make(self, copies: Sequence[BufferCopy] = (), landing: Readback | None = None) -> None:
        """Make the next step, or the rest of the one under way. `copies` and `landing`: see `Program.step`."""
        partial = self.progress.partial
        if partial is not None:
            if not partial.over:
                return self.advance(len(partial.dispatches))
            self.progress.partial = None
        whole, adam_steps = self.updates.next_step()
        self.loaded.program.step(self.scalars(adam_steps), whole, copies, landing)
        self._count(adam_steps)  # after: a step that failed does not count

    def launch(
        self, uploads: Sequence[tuple[int, Array]], copies: Sequence[BufferCopy] = (), landing: Readback | None = None
    ) -> None:
        """Write buffers (in their dtypes and shapes) and make one step with its copies, as one piece that no other work
        comes between. Returns at once where the device can; `landing.wait()` tells when it has ended. Checks
        nothing."""

        def run() -> None:
            for buffer, data in uploads:
                self.loaded.program.upload(buffer, data)
            self.make(copies, landing)

        self.loaded.exclusively(run)

    def scalars(self, adam_steps: int, step: int | None = None) -> Array | None:
        """Return the numbers that the kernels of this step (or of `step`, from 0) read besides tensors, where any
        does."""
        reads, rule = self.loaded.plan.reads_scalars, self.updates.optimizer
        if rule.rule == "none" and not reads:
            return None
        key = rule, adam_steps if rule.counts else 0, (self.progress.draw if step is None else step) if reads else 0
        if self._scalars is None or self._scalars[0] != key:
            self._scalars = key, scalars(*key)
        return self._scalars[1]  # the same array while no number changes: programs then leave theirs as it is

    def take_losses(self, wait: bool) -> list[tuple[int, float]]:
        """Return the (step, loss) pairs that became readable since the last call; `wait`: of all steps made."""
        return self.loaded.program.losses(wait)

    def _count(self, adam_steps: int) -> None:
        self.progress.steps += 1
        self.updates.count_step(adam_steps)

    # dispatch by dispatch ---------------------------------------------------------------------------------------------
    def dispatches(self) -> tuple[Dispatch, ...]:
        """Return the dispatches of the step under way, or of the next one: the plan's, then the update's."""
        partial = self.progress.partial
        if partial is not None and not partial.over:
            return partial.dispatches
        whole, _ = self.updates.next_step()
        update = self.updates.update
        return (*self.loaded.plan.dispatches, *(update.dispatches if whole else update.dispatches[: update.early]))

    def begin(self) -> PartialStep:
        """Return the partial step under way, or a new one."""
        partial = self.progress.partial
        if partial is None or partial.over:
            counts = self.progress.steps, self.updates.adam_steps, self.updates.window, self.loaded.program.updates
            partial = self.progress.partial = PartialStep(*self.updates.next_step(), self.dispatches(), counts)
        return partial

    def advance(self, stop: int, *, reversible: bool = True, snapshots: bool = False) -> None:
        """Run on until `stop` dispatches of a step have run; after the last one the step counts. `reversible`: store
        buffers that are changed in place, so that `rewind` can go back; `snapshots`: store one every 16 dispatches, so
        that going back is quick."""
        partial = self.begin()
        numbers, end = self.scalars(partial.adam_steps), len(partial.dispatches)
        while partial.position < stop:
            part = min(stop, partial.position // EVERY * EVERY + EVERY) if snapshots else stop
            if reversible:
                self._store_initial(partial, part)
            partial.reversible &= reversible
            self.loaded.program.run(partial.position, part, numbers)
            partial.position = part
            if snapshots and part % EVERY == 0 and part < end:
                self._store_snapshot(partial)
        if partial.position == end:
            self.loaded.program.end_step(numbers, partial.whole, end - len(self.loaded.plan.dispatches))
            self._count(partial.adam_steps)
            partial.over = True

    def rewind(self, to: int) -> int:
        """Go back until `to` dispatches of the step have run, by replay from the nearest snapshot; a step that was over
        is under way again and does not count. Returns the dispatch that the replay began with."""
        partial = self.progress.partial
        if partial is None or not 0 <= to < partial.position:
            made = "no step that was made dispatch by dispatch" if partial is None else (
                f"{to} of {partial.position} dispatches made")  # fmt: skip
            raise SessionError("back", "dispatch", made, "one of a step that is stepped through by dispatches")
        if not partial.reversible:
            given = f"a step of which more than {MOST_BYTES >> 20} MiB would have to be kept, or nothing was"
            raise SessionError("back", "snapshot", given, "a step that is stepped through by dispatches")
        if partial.over:
            updates, program = self.updates, self.loaded.program
            self.progress.steps, updates.adam_steps, updates.window, program.updates = partial.counts
            partial.over = False
        begin = max(k for k in (0, *partial.snapshots) if k <= to)
        for buffer, data in (partial.initial | partial.snapshots.get(begin, {})).items():
            self.loaded.program.upload(buffer, data)
        partial.snapshots = {k: arrays for k, arrays in partial.snapshots.items() if k <= begin}
        partial.position = begin
        if begin < to:
            self.advance(to, snapshots=True)
        return begin

    def _store_initial(self, partial: PartialStep, stop: int) -> None:
        """Store buffers that the dispatches before `stop` change in place, or that outlive the step."""
        if not partial.reversible:
            return
        known = len(self.loaded.plan.buffers)
        for d in partial.dispatches[partial.position : stop]:
            for buffer in d.writes:
                if buffer not in partial.initial and (buffer in d.in_place or buffer >= known):
                    partial.initial[buffer] = self.loaded.program.download(buffer)
        if partial.nbytes > MOST_BYTES:
            partial.snapshots.clear()
        if partial.nbytes > MOST_BYTES:
            partial.initial.clear()
            partial.reversible = False

    def _store_snapshot(self, partial: PartialStep) -> None:
        """Store what the dispatches so far have written and later ones, or the next steps, need."""
        plan, memory, position = self.loaded.plan, self.loaded.plan.memory, partial.position
        known, pinned = len(plan.buffers), memory.pinned
        written = dict.fromkeys(b for d in partial.dispatches[:position] for b in d.writes)
        needed = [b for b in written if b >= known or b in pinned or memory.intervals[b].last >= position]
        sizes = {b.id: b.nbytes for b in (*plan.buffers, *self.updates.state_buffers)}
        if partial.nbytes + sum(sizes[b] for b in needed) <= MOST_BYTES:
            partial.snapshots[position] = {b: self.loaded.program.download(b) for b in needed}
