"""Count the steps of a session, and describe the step that is run dispatch by dispatch."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.plan.dispatch import Dispatch


@dataclass(slots=True)
class PartialStep:
    """A step that is run dispatch by dispatch: `position` of its `dispatches` (the update's after the plan's) have run;
    `over`: all have, and the step counts. `whole`: it ends with an update, not only with sums of gradients.
    `counts`: steps, Adam updates, steps in the accumulation window and updates of the program before it. To go back:
    `initial` holds buffers as they were before this step changed them in place, `snapshots[k]` what the first k
    dispatches wrote and later ones need; not `reversible`: these took too much memory, or were not wanted."""

    whole: bool
    adam_steps: int
    dispatches: tuple[Dispatch, ...]
    counts: tuple[int, int, int, int]
    position: int = 0
    over: bool = False
    initial: dict[int, Array] = field(default_factory=dict)
    snapshots: dict[int, dict[int, Array]] = field(default_factory=dict)
    reversible: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is stored to go back."""
        return sum(a.nbytes for arrays in (self.initial, *self.snapshots.values()) for a in arrays.values())


@dataclass(slots=True)
class Progress:
    """The number of steps made, and the partial step under way, or the last one. `draw_offset`: random numbers are
    those of step `steps + draw_offset`."""

    steps: int = 0
    draw_offset: int = 0
    partial: PartialStep | None = None

    @property
    def draw(self) -> int:
        """The number of the next step, from 0, which its random numbers depend on."""
        return self.steps + self.draw_offset

    @property
    def under_way(self) -> bool:
        """Whether a step has begun and is not over."""
        return self.partial is not None and not self.partial.over

    def check_between_steps(self, where: str) -> None:
        """Raise `SessionError` while a step is under way."""
        partial = self.partial
        if partial is not None and not partial.over:
            given = f"a step of which {partial.position} of {len(partial.dispatches)} dispatches are made"
            raise SessionError(where, "session", given, "its end first: step()")

    def check_stepped(self, where: str, what: str) -> None:
        """Raise `SessionError` before the first step."""
        if self.steps == 0:
            raise SessionError(where, what, "no step yet", "a step before it")
