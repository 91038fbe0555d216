"""Hold steps that nobody waits for yet, to submit several of them as one (`step_series.py`); and drop what programs
recorded ahead that nobody closed.

A submission takes the host 30 to 60 µs however short its step is (NVIDIA H200). So a step right behind others is held
until there are two of them, then four, and so on, as many as one submission may have. They are submitted before
anything else that is asked of the adapter, and by a thread of its own once no step has come for HELD_SECONDS.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from gdlab.devices.base import StepCall

if TYPE_CHECKING:
    from gdlab.devices.wgpu.plan_replay import WgpuProgram
    from gdlab.devices.wgpu.wgpu_device import Gpu
    from gdlab.devices.wgpu.wgpu_queue import CommandsAhead

IN_A_ROW = 8  # steps before the first that is held: to bind a series takes milliseconds
HELD_SECONDS = 500e-6  # without another step


class HeldSteps:
    """The steps of a program that are made but not submitted. `row`: steps in a row so far, with nothing between them;
    `enough`: how many are submitted together; `error`: of a submission that nobody waited for, to be raised next."""

    def __init__(self) -> None:
        self.calls: list[StepCall] = []
        self.row, self.enough = 0, 2
        self.error: Exception | None = None

    def taken(self) -> list[StepCall]:
        """Return the steps that were held, which are the caller's to submit."""
        calls, self.calls = self.calls, []
        return calls

    def end_row(self) -> None:
        """Begin a new row: something else is asked of the program."""
        self.row, self.enough = 0, 2

    def raise_error(self) -> None:
        """Raise what a submission that nobody waited for has raised, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error


class HoldingPrograms:
    """The program of an adapter that holds steps: at most one, so that all work keeps its order. Called in the turn."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.program: WgpuProgram | None = None
        self.ahead: weakref.WeakSet[WgpuProgram] = weakref.WeakSet()  # whose steps may be recorded ahead
        self.abandoned: deque[dict[bool, CommandsAhead]] = deque()  # by programs that were never closed
        self._wake: SimpleQueue[bool] = SimpleQueue()  # not an event: its lock may be held where a collection begins
        self._awake = False
        self._thread: threading.Thread | None = None

    def hold(self, program: WgpuProgram, call: StepCall) -> None:
        """Hold a step of this program."""
        if self.program is not program:
            self.settle()
            self.program = program
        program.held.calls.append(call)
        self._start()
        self._rouse()

    def expect(self, program: WgpuProgram) -> None:
        """Be ready for steps of this program that are recorded ahead and that nobody submits."""
        self.ahead.add(program)
        self._start()

    def abandon(self, ahead: dict[bool, CommandsAhead]) -> None:
        """Take what a program has recorded ahead that is gone now; on any thread, at any time."""
        if ahead:
            self.abandoned.append(ahead)
            self._rouse()

    def _rouse(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake.put(True)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="gdlab-held-steps", daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Submit what is held, and drop what was abandoned; an error waits for the next call of its program."""
        program, self.program = self.program, None
        if program is not None:
            try:
                program.submit_held()
            except Exception as error:
                program.held.error = error
        while self.abandoned:
            for ahead in self.abandoned.popleft().values():
                ahead.queue.spend("a program that nobody closed", ahead)

    def _watch(self) -> None:
        """Settle, on a thread of its own, once no step has come for a while."""
        while self._wake.get():
            last, program = -1, self.program
            while program is not None or self.abandoned:
                made = program.counters.forwards if program is not None else last
                if made == last and self.gpu.turn.if_idle(self.settle):
                    break
                last = made
                del program  # it may be closed and freed meanwhile
                time.sleep(HELD_SECONDS)
                program = self.program
            self._awake = False
            if self.program is not None or self.abandoned:  # since the last look
                self._rouse()
