"""The numbers of the next steps in device memory, written many at once.

Where numbers change from step to step, as those of Adam do, a step that is recorded ahead begins with a copy of its own
from here. Numbers that nobody expects, as where the rate changes in each step, come through a mapped buffer, which is
to be filled, unmapped, submitted, and mapped again: 10 µs a step (NVIDIA H200, 2026-11-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.base import EXPECTED, Copy

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_queue import WgpuQueue


@dataclass(frozen=True, slots=True)
class NumbersAhead:
    """The numbers of a step that is recorded ahead: the row that it copies, what is expected to stand there, and in
    which version of the memory that does."""

    row: int
    expected: Array
    version: int


class ExpectedNumbers:
    """The memory of a queue for the numbers of its next steps. `rows`: these, `place`: the next of them, `written`:
    whether the memory has them all."""

    def __init__(self, queue: WgpuQueue) -> None:
        self.queue = queue
        self.rows: Sequence[Array] = ()
        self.place, self.written, self.version = 0, False, 0
        self._memory: Any = None

    @property
    def memory(self) -> Any:
        """The memory, made when it is first asked for."""
        if self._memory is None:
            self.queue.counters.buffers_created += 1
            self._memory = self.queue.gpu.buffer(EXPECTED * self._stride)
        return self._memory

    @property
    def _stride(self) -> int:
        return int(self.queue.scalars.size)

    def next(self, where: str) -> NumbersAhead | None:
        """Return the place of the numbers of the next step, which are written now; None if nobody knows them."""
        if self.place == len(self.rows):
            return None
        if not self.written:
            table = np.zeros((len(self.rows), self._stride // 4), np.float32)
            table[:, : len(self.rows[0])] = self.rows
            self.queue.put(where, self.memory, table)
            self.written = True
            self.version += 1
        return NumbersAhead(self.place, self.rows[self.place], self.version)

    def copy(self, numbers: NumbersAhead) -> Copy:
        """Return the copy to where kernels read them."""
        return Copy(self.memory, numbers.row * self._stride, self.queue.scalars, 0, self._stride, counted=False)

    def make_right(self, where: str, ahead: NumbersAhead, numbers: Array) -> None:
        """Write the numbers of a step to its row, unless they stand there as expected."""
        if ahead.expected is numbers and ahead.version == self.version:
            return
        row = np.zeros(self._stride // 4, np.float32)
        row[: len(numbers)] = numbers
        self.queue.put(where, self.memory, row, ahead.row * self._stride)
        self.written = False  # other rows may be those of other steps
        self.version += 1

    def pass_by(self, numbers: Array) -> None:
        """Go on behind these numbers, which a step has now; where they are none of the rows, none is expected."""
        rows, place = self.rows, self.place
        if place < len(rows) and rows[place] is numbers:
            self.place = place + 1
            return
        self.place = next((k + 1 for k, row in enumerate(rows) if row is numbers), len(rows))
