"""What is known of a step that is made in parts: how far it is, and what is needed to go back in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdlab.base.types import Array
from gdlab.plan.dispatch import Dispatch

EVERY = 16  # dispatches between two snapshots
MOST_BYTES = 1 << 28  # of snapshots, and of what lay there before the step


@dataclass(slots=True)
class Way:
    """A step that is made in parts: `at` of its `dispatches` (the update's after the plan's) have run; `over`: all
    have, and the step counts. `start` holds what lay in a buffer before this step changed it in place, `snapshots[k]`
    what the first k dispatches wrote and the others need."""

    whole: bool
    adam_steps: int
    dispatches: tuple[Dispatch, ...]
    counts: tuple[int, int, int, int]
    at: int = 0
    over: bool = False
    start: dict[int, Array] = field(default_factory=dict)
    snapshots: dict[int, dict[int, Array]] = field(default_factory=dict)
    returns: bool = True

    @property
    def nbytes(self) -> int:
        """Of everything that is kept to go back."""
        return sum(a.nbytes for kept in (self.start, *self.snapshots.values()) for a in kept.values())
