"""Make steps, whole in one submission each, or dispatch by dispatch and back, with the same values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.base.types import Array
from gdlab.base.words import listed
from gdlab.devices.base import EXPECTED, BufferCopy, Readback, StepCall, StepPart
from gdlab.plan.dispatch import Dispatch
from gdlab.session.loaded import LoadedPlan
from gdlab.session.progress import PartialStep, Progress
from gdlab.session.update_settings import Optimizer, ScalarRows
from gdlab.session.updates import Updates
from gdlab.session.values import Values

Uploads = Sequence[tuple[int, Array]]
EVERY = 16  # dispatches between two snapshots
MOST_BYTES = 1 << 28  # of snapshots and initial values


class Steps:
    """The steps of a session. All methods but `step` and `wait` check nothing, and are called on the owner thread."""

    def __init__(self, loaded: LoadedPlan, values: Values, updates: Updates, progress: Progress) -> None:
        self.loaded, self.values, self.updates, self.progress = loaded, values, updates, progress
        self._scalars = ScalarRows(Optimizer(), 0, 0, False, 1)  # of the last step, and of some behind it

    def step(self, count: int | None = None, feeds: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Make one step, or several, after checking that every tensor has a value."""
        if feeds is None and (count is None or (isinstance(count, int) and count == 1 and count is not True)):
            self.values.check_ready("step")
            return self.loaded.exclusively(self.make)
        self._many(*self._checked(count, feeds))

    # several ----------------------------------------------------------------------------------------------------------
    def _checked(self, count: int | None, feeds: Sequence[Mapping[str, Any]] | None) -> tuple[int, list[Uploads]]:
        """Return the number of steps, and the uploads before each (an empty list for none), all of them checked."""
        self.loaded.check_open("step")
        given = isinstance(count, (int, np.integer)) and not isinstance(count, bool) and count >= 1
        if count is not None and not given:
            raise ArgumentError("step", "n", repr(count), "an int ≥ 1")
        if feeds is None:
            self.values.check_ready("step")
            return int(count or 1), []
        if not isinstance(feeds, (list, tuple)) or not feeds or len(feeds) != (count or len(feeds)):
            shown = f"{len(feeds)} of them" if isinstance(feeds, (list, tuple)) else type(feeds).__name__
            wanted = f"a list of {count or 'some'} mappings from input names to data, one for each step"
            raise ArgumentError("step", "feeds", shown, wanted)
        self.progress.check_between_steps("step")
        uploads: list[Uploads] = [self.values.batch(f"step: feeds[{k}]", feed) for k, feed in enumerate(feeds)]
        self.values.check_ready("step", inputs=False)
        if missing := [name for name in self.values.inputs_without_value() if name not in feeds[0]]:
            wanted = "each in feeds[0], or set_input before"
            raise SessionError("step", "inputs", f"no value for {listed(missing)}", wanted)
        return len(feeds), uploads

    def _many(self, count: int, uploads: Sequence[Uploads]) -> None:
        """Make `count` steps, as many at once as the program takes."""
        nbytes = max((sum(data.nbytes for _, data in each) for each in uploads), default=0)
        made = 0
        while made < count:
            if self.progress.partial is not None:  # the rest of the one under way, or what is kept of the last
                self.loaded.exclusively(functools.partial(self.launch, uploads[made] if uploads else ()))
                made += 1
                continue
            some = min(count - made, self.loaded.program.steps_at_once(nbytes))
            parts, before = uploads[made : made + some] if uploads else [()] * some, self.progress.steps
            try:
                self.loaded.exclusively(functools.partial(self.make_together, parts))
            except SessionError as error:
                made += self.progress.steps - before
                wanted = f"no error: {made} of {count} steps are made"
                raise SessionError("step", f"step {made + 1} of {count}", str(error), wanted) from error
            made += some
            self.values.fed(buffer for each in parts for buffer, _ in each)

    def make_together(
        self, parts: Sequence[Uploads], copies: Sequence[Sequence[BufferCopy]] = (), landing: Readback | None = None
    ) -> None:
        """Make a step for each of the parts, which are written before it, in one call of the program; those that it
        makes count. `copies` of each, and `landing`: see `Program.step_many`. Checks nothing; no step is under way."""
        program, calls, counts = self.loaded.program, [], []
        steps, adam_steps, window = self.progress.steps, self.updates.adam_steps, self.updates.window
        try:
            for k, uploads in enumerate(parts):
                whole, after = self.updates.next_step()
                calls.append(StepCall(self.scalars(after), whole, uploads, copies[k] if copies else ()))
                self._count(after)
                counts.append((self.progress.steps, after, self.updates.window))
        finally:
            self.progress.steps, self.updates.adam_steps, self.updates.window = steps, adam_steps, window
        before = program.counters.forwards
        try:
            program.step_many(calls, landing)
        finally:
            if made := program.counters.forwards - before:
                self.progress.steps, self.updates.adam_steps, self.updates.window = counts[made - 1]

    def launch_many(self, parts: Sequence[tuple[Uploads, Sequence[BufferCopy]]], landing: Readback) -> None:
        """Launch each of the parts (uploads, a step, copies) in one call of the program. Their landing is one. Called
        in the turn of the device."""
        self.make_together([uploads for uploads, _ in parts], [copies for _, copies in parts], landing)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self.loaded.check_open("wait")
        self.loaded.exclusively(self.loaded.program.wait)

    def make(self, copies: Sequence[BufferCopy] = (), landing: Readback | None = None) -> None:
        """Make the next step, or the rest of the one under way. `copies` and `landing`: see `Program.step`."""
        under_way = self.progress.partial
        if under_way is not None:
            if not under_way.over:
                return self.advance(len(under_way.dispatches))
            self.progress.partial = None
        whole, adam_steps = self.updates.next_step()
        self.loaded.program.step(self.scalars(adam_steps), whole, copies, landing)
        self._count(adam_steps)  # after: a step that failed does not count
        self.scalars(self.updates.next_step()[1])  # known when they are asked for: the device works meanwhile

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

    def make_gradients(
        self, uploads: Uploads, parts: Sequence[StepPart] = (), landed: Callable[[int], None] = lambda part: None
    ) -> None:
        """Write buffers and make a step whose gradients, or their sums, are ready behind it, and nothing is updated:
        `make_update` must follow where the step ends a window of accumulation. `landed` is called with the number of
        each of the `parts` when its landing is readable, while the device goes on. Checks nothing."""
        self.progress.partial = None

        def run() -> None:
            for buffer, data in uploads:
                self.loaded.program.upload(buffer, data)
            numbers = self.scalars(self.updates.next_step()[1])
            for part, _ in enumerate(self.loaded.program.step_in_parts(numbers, parts)):
                landed(part)
            self.progress.steps += 1

        self.loaded.exclusively(run)
        self.updates.window = min(self.updates.window + 1, self.updates.settings.accumulate - 1)

    def make_update(self) -> None:
        """Make the update of the window that `make_gradients` has filled, with the gradients as they lie there now."""
        updates = self.updates
        adam_steps = updates.adam_steps + updates.optimizer.counts

        def run() -> None:
            scalars = self.scalars(adam_steps)
            if scalars is not None and updates.update.dispatches:
                self.loaded.program.update_only(scalars, updates.update.early)

        self.loaded.exclusively(run)
        updates.adam_steps, updates.window = adam_steps, 0

    def scalars(self, adam_steps: int, step: int | None = None) -> Array | None:
        """Return the numbers that the kernels of this step (or of `step`, from 0) read besides tensors, where any
        does."""
        reads, rule = self.loaded.plan.reads_scalars, self.updates.optimizer
        if rule.rule == "none" and not reads:
            return None
        updates = adam_steps if rule.counts else 0
        number = (self.progress.draw if step is None else step) if reads else 0
        found = self._scalars.find(rule, updates, number)  # the same array while no number changes
        if found is None:
            # more at once each time, as long as nothing else changes: the first step waits for them
            count = 2 * len(self._scalars.rows) if self._scalars.ends_before(rule, updates, number) else 1
            self._scalars = ScalarRows(rule, updates, number, reads, min(count, EXPECTED))
            self.loaded.program.expect_scalars(self._scalars.rows)
            found = self._scalars.rows[0]
        return found

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
        before, partial = self.progress.partial, self.begin()
        numbers, end = self.scalars(partial.adam_steps), len(partial.dispatches)
        while partial.position < stop:
            part = min(stop, partial.position // EVERY * EVERY + EVERY) if snapshots else stop
            try:
                if reversible:
                    self._store_initial(partial, part)
                partial.reversible &= reversible
                self.loaded.program.run(partial.position, part, numbers)
            except SessionError:
                if not partial.position:
                    self.progress.partial = None if before is partial else before  # no step is under way
                raise
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
        """Store the buffers that dispatches so far have written, and that later ones or the next steps read."""
        plan, memory, position = self.loaded.plan, self.loaded.plan.memory, partial.position
        known, pinned = len(plan.buffers), memory.pinned
        written = dict.fromkeys(b for d in partial.dispatches[:position] for b in d.writes)
        needed = [b for b in written if b >= known or b in pinned or memory.intervals[b].last >= position]
        sizes = {b.id: b.nbytes for b in (*plan.buffers, *self.updates.state_buffers)}
        if partial.nbytes + sum(sizes[b] for b in needed) <= MOST_BYTES:
            partial.snapshots[position] = {b: self.loaded.program.download(b) for b in needed}
