"""A plan on a device: its program, whether it is still open, and on which thread its work runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gdlab.base.errors import SessionError
from gdlab.base.threads import OwnerThread
from gdlab.devices.base import Device, SharedBuffers
from gdlab.plan.records import ExecutionPlan

T = TypeVar("T")
TRAINING = "a training session: build_session(graph), Study(graph, train=True), --train"


class LoadedPlan:
    """A plan whose program is loaded on a device, until `close`. `shared`: buffers taken from another program."""

    def __init__(self, plan: ExecutionPlan, device: Device, shared: SharedBuffers | None = None) -> None:
        self.plan, self.device, self.closed = plan, device, False
        try:
            self.program = device.load(plan, shared)
        except MemoryError as error:
            raise SessionError("session", "memory", str(error), "a plan that fits into this machine") from None

    def close(self) -> None:
        """Release the device buffers; idempotent."""
        if not self.closed:
            self.closed = True
            self.exclusively(self.program.close)

    def exclusively(self, function: Callable[[], T]) -> T:
        """Run `function` between two steps of any run, on this thread if nobody else is at work."""
        return self.program.turn.here(function)

    @property
    def turn(self) -> OwnerThread:
        """The thread that owns the program: long work goes through its `call`, so that it can be interrupted."""
        return self.program.turn

    def check_open(self, where: str) -> None:
        """Raise `SessionError` if this is closed."""
        if self.closed:
            raise SessionError(where, "session", "closed", "an open session")

    def check_training(self, where: str) -> None:
        """Raise `SessionError` if this is closed, or its plan is for inference."""
        self.check_open(where)
        if self.plan.mode != "training":
            raise SessionError(where, "session", "an inference session", TRAINING)
