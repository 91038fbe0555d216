"""Make steps: one submission each of forward, backward and the configured update."""

from __future__ import annotations

from typing import Any

from gdlab.device.base import owner
from gdlab.errors import SessionError
from gdlab.session.data import Array
from gdlab.session.optimizer import scalars
from gdlab.session.state import State

_VALUES = "initialize(seed), initialize(zeros=True), set_parameter or load_checkpoint"


class Steps(State):
    """`step` and `wait`; the runner calls `step_now` and `take_losses` on the owner thread."""

    def step(self) -> None:
        """One submission: forward, backward (training), the configured update. Returns at once where the device can."""
        self.check_ready("step")
        owner().call(self.step_now)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self._alive("wait")
        owner().call(self._program.wait)

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
        """`step` without checks, for the owner thread (the runner)."""
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
