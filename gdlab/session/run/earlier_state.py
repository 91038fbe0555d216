"""Store the state of a session every few steps, with the inputs since, and go back to the state before any of them.

The copy stays on the device: on cpu it is made as often as it costs 0.5 % of the time, on other devices, which do not
wait for it, every 128 steps (a step moves at least three times the bytes). A copy may hold what the last update
spoiled, which only the loss of the next step tells; so the one before it is kept as well, where memory allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.base.errors import GdlabError
from gdlab.session import Session

Batch = Mapping[str, Any]
MOST_STEPS = 128  # from one copy to the next
MOST_BYTES = 3 << 28  # of the copies: one of parameters of 256 MiB with two moments, or two of half the size
MOST_BATCH_BYTES = 1 << 26  # of inputs since the first copy
_FIRST_STEPS = 8  # from the first copy to the second
_SHARE = 200  # a copy takes at most one part in so many of the time


@dataclass(frozen=True, slots=True)
class _StateCopy:
    """The state after `step` steps: `data` on the device, and the counts of Adam updates and of steps in the window."""

    step: int
    data: Any
    counts: tuple[int, int]


class EarlierState:
    """Everything that a step changes and a later one reads, as it was after `step` steps (−1: nothing is stored), and
    with `keep` 2 also as it was when it was stored before that; the inputs of the steps since the first of these.
    `next`: the step before which to store again. All methods are called on the owner thread, between two steps."""

    def __init__(self, session: Session, keep: int = 1) -> None:
        self.session, self.progress, self.updates = session, session.progress, session.updates
        self.traffic = session.loaded.program.counters
        self.keep, self.next = keep, 0
        self.batches: list[Batch] = []  # of the steps since the first copy; empty where nothing was set
        self._copies: list[_StateCopy] = []  # in order
        self._buffers: tuple[int, ...] = ()
        self._began = 0.0
        self.note()

    @property
    def step(self) -> int:
        """Return the steps before the last copy; −1: nothing is stored."""
        return self._copies[-1].step if self._copies else -1

    @property
    def first(self) -> int:
        """Return the steps before the first copy; −1: nothing is stored."""
        return self._copies[0].step if self._copies else -1

    # while a run goes on ----------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Forget everything if others have written a tensor, made a step or changed the update since `note`."""
        if self.step < 0:
            return
        updates, traffic = self.updates, self.traffic
        if (
            traffic.upload_bytes != self._bytes_up
            or traffic.dispatches != self._dispatches
            or updates.adam_steps != self._adam_steps
            or updates.optimizer is not self._optimizer
            or updates.update is not self._update
        ):
            self.forget()

    def note(self) -> None:
        """Note that all changes of the session until now are known here."""
        updates, traffic = self.updates, self.traffic
        self._bytes_up, self._dispatches = traffic.upload_bytes, traffic.dispatches
        self._adam_steps = updates.adam_steps
        self._optimizer, self._update = updates.optimizer, updates.update

    def forget(self) -> None:
        """Forget copy and inputs."""
        self.next, self.batches, self._copies = 0, [], []

    def must_store(self) -> bool:
        """Return whether the state must be stored now, even if earlier steps may still turn out bad."""
        return self.step < 0 or self.progress.steps - self.step >= self._most_steps()

    def store(self) -> None:
        """Store the state as it is now; nothing where it is too large, and then not again for a while."""
        count, began = self.progress.steps, time.perf_counter()
        steps, seconds = (count - self.step, began - self._began) if self._copies else (0, 0.0)
        buffers = self._changed_buffers()
        if buffers != self._buffers:
            self._buffers, self._copies = buffers, []
        fit, first, spare = MOST_BYTES // max(1, self._copy_bytes()), self.first, None
        if self._copies and len(self._copies) >= min(self.keep, fit):
            spare = self._copies.pop(0).data
        self.batches = self.batches[self.first - first :] if self._copies else []
        try:
            data = self.session.loaded.program.store_copy(buffers, spare) if fit else None
        except (GdlabError, MemoryError):
            data = None
        if data is None:
            self._copies, self.batches = [], []
        else:
            self._copies.append(_StateCopy(count, data, (self.updates.adam_steps, self.updates.window)))
        self._began = time.perf_counter()
        self.next = count + self._interval(steps, seconds, self._began - began)

    def _interval(self, steps: int, seconds: float, cost: float) -> int:
        """Return after how many steps to store again: `steps` took `seconds` since the last copy, this one `cost`."""
        most = self._most_steps()
        if not self.session.loaded.device.synchronous or self.step < 0:
            return most
        return min(most, max(1, math.ceil(_SHARE * cost * steps / seconds)) if steps and seconds else _FIRST_STEPS)

    def _most_steps(self) -> int:
        plan = self.session.loaded.plan
        nbytes = sum(type.size_bytes for type in plan.input_types.values())
        return max(1, min(MOST_STEPS, MOST_BATCH_BYTES // max(self.keep * nbytes, 1)))

    # back -------------------------------------------------------------------------------------------------------------
    def batch(self, step: int) -> Batch:
        """Return the inputs of step `step`, which counts from 0."""
        return self.batches[step - self.first]

    def load(self) -> None:
        """Load the last copy into the session; only its count of steps stays."""
        copy = self._copies[-1]
        self.session.loaded.program.load_copy(copy.data)
        self.session.updates.adam_steps, self.session.updates.window = copy.counts

    def drop_last(self) -> bool:
        """Forget the last copy if there is another one; return whether there was."""
        if len(self._copies) < 2:
            return False
        self._copies.pop()
        return True

    def repeat(self, step: int) -> float:
        """Make the step that follows the copy once more, from the state that `load` gave, and return its loss; nothing
        is counted."""
        steps, updates, program = self.session.steps, self.session.updates, self.session.loaded.program
        whole, adam_steps = updates.next_step()
        count = len(self.session.loaded.plan.dispatches)
        count += len(updates.update.dispatches) if whole else updates.update.early
        program.run(0, count, steps.scalars(adam_steps, step))
        updates.count_step(adam_steps)
        return self.session.read_loss()

    def _changed_buffers(self) -> tuple[int, ...]:
        """Return the buffers that a step changes in place, or that outlive it."""
        plan, update = self.session.loaded.plan, self.session.updates.update
        known = len(plan.buffers)
        changed = (b for d in (*plan.dispatches, *update.dispatches) for b in d.writes if b in d.in_place or b >= known)
        return tuple(dict.fromkeys(changed))

    def _copy_bytes(self) -> int:
        plan, state = self.session.loaded.plan, self.session.updates.state_buffers
        sizes = {b.id: b.nbytes for b in (*plan.buffers, *state)}
        return sum(sizes[b] for b in self._buffers)


def same_loss(a: float, b: float) -> bool:
    """Return whether a repeated step gave the loss that it gave before."""
    return bool(np.isclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True))
