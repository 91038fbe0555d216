"""Time the dispatches of a step on the GPU: stamps between the dispatches of its pass, or around a pass for each.

On a software adapter a stamp takes 12-70 microseconds itself (measured on lavapipe): believe what is longer than 100.
Knows wgpu only through the `Gpu` it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gdlab.devices.wgpu.recording import Row
    from gdlab.devices.wgpu.replay import WgpuProgram
    from gdlab.devices.wgpu.wgpu_device import Gpu

SET = 4096  # stamps that a query set holds
MOST = SET // 2 - 1  # dispatches that are timed in one step


class Stamps:
    """A set of stamps and the buffer that they are resolved into. `window`: the dispatches that are timed."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.window, self.count = gpu, (0, MOST), 0
        self.owner = gpu.query_set(SET)
        self.handle = self.owner._internal
        self.resolved = gpu.buffer(8 * SET, resolve=True)

    def encode(self, program: WgpuProgram, rows: Sequence[Row], encoder: Any) -> None:
        """Record the rows with stamps, and their resolution."""
        start, stop = self.window[0], min(self.window[1], len(rows))
        self.count = max(0, stop - start)
        (self._inside if self.gpu.stamps_inside else self._passes)(program, rows, encoder, start, start + self.count)
        if self.count:
            raw = self.gpu.raw
            raw.CommandEncoderResolveQuerySet(encoder, self.handle, 0, self._stamps(), self.resolved._internal, 0)

    def _stamps(self) -> int:
        return self.count + 1 if self.gpu.stamps_inside else 2 * self.count

    def _inside(self, program: WgpuProgram, rows: Sequence[Row], encoder: Any, start: int, stop: int) -> None:
        """One pass, with a stamp before the first of the window and one after each."""
        raw, gpu = self.gpu.raw, self.gpu
        one_pass = raw.CommandEncoderBeginComputePass(encoder, gpu.null)
        for index, (pipeline, group, x, y, z) in enumerate(rows):
            if index == start and self.count:
                raw.ComputePassEncoderWriteTimestamp(one_pass, self.handle, 0)
            raw.ComputePassEncoderSetPipeline(one_pass, pipeline)
            raw.ComputePassEncoderSetBindGroup(one_pass, 0, group, 0, gpu.null)
            raw.ComputePassEncoderDispatchWorkgroups(one_pass, x, y, z)
            if start <= index < stop:
                raw.ComputePassEncoderWriteTimestamp(one_pass, self.handle, index - start + 1)
        raw.ComputePassEncoderEnd(one_pass)
        raw.ComputePassEncoderRelease(one_pass)

    def _passes(self, program: WgpuProgram, rows: Sequence[Row], encoder: Any, start: int, stop: int) -> None:
        """A pass for each dispatch of the window, stamped at its begin and its end: every adapter with stamps can."""
        program._pass(rows[:start], encoder)
        for number, row in enumerate(rows[start:stop]):
            program._pass([row], encoder, self.gpu.stamped_pass(self.handle, 2 * number))
        program._pass(rows[stop:], encoder)

    def read(self, program: WgpuProgram) -> list[tuple[int, float]]:
        """(dispatch, seconds), after the step has ended."""
        if not self.count:
            return []
        ticks = np.empty(self._stamps(), np.uint64)
        staging = program._staging(ticks.nbytes)
        program.read_into("profile", self.resolved._internal, 0, staging, ticks.data.cast("B"))
        inside = self.gpu.stamps_inside
        begin, end = (ticks[:-1], ticks[1:]) if inside else (ticks[::2], ticks[1::2])
        period = self.gpu.stamp_seconds()
        spent = (end.astype(np.int64) - begin.astype(np.int64)) * period
        return [(self.window[0] + i, float(seconds)) for i, seconds in enumerate(spent)]
