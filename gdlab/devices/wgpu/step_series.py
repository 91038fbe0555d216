"""Bind several steps as one list of dispatches, with a place of its own for the numbers, inputs and loss of each.

A copy between two steps ends the compute pass, and the next pass takes the driver of an NVIDIA H200 15 µs (2026-11-24).
So the dispatches that touch numbers, inputs or the loss are bound once more for each step, and nothing is copied before
the last step has run. Long steps have a pass each all the same: in one pass the memory of every step but the first has
been used, and wgpu would wait before each dispatch (`transitions.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.base import Bound, Copy, RecordedPart, Region, StepCall
from gdlab.devices.fit import round_up
from gdlab.devices.wgpu.wgpu_queue import WgpuRecorded

if TYPE_CHECKING:
    from gdlab.devices.wgpu.plan_replay import WgpuProgram

SHORT = 24  # dispatches of a step that shares its pass with others: of 38 a step takes 183 µs, alone 165 (NVIDIA H100)
PATTERNS = 8  # of steps with and without an update, whose lists are kept


class StepSeries:
    """Up to `most` steps of a program, whose inputs `fed` are written for each (but perhaps the first). `losses`: the
    memory of their losses, `loss_stride` bytes apart."""

    def __init__(self, program: WgpuProgram, fed: Sequence[int], most: int) -> None:
        self.program, self.fed, self.most = program, tuple(fed), most
        self.launches, self.update_launches = program.launches, program.update_launches
        loss = program.plan.loss_buffer
        places = {b: program.places[b] for b in (*self.fed, *([] if loss is None else [loss]))}
        self.strides = {b: round_up(place.bound) for b, place in places.items()}
        self.rings = {b: program._buffer(most * self.strides[b], place.buffer.name) for b, place in places.items()}
        self.losses = None if loss is None else self.rings[loss]
        self.loss_stride = 4 if loss is None else self.strides[loss]
        self.number_stride = int(program.queue.scalars.size)
        self.numbers = program._buffer(most * self.number_stride, "numbers of steps")
        self._steps = [self._step(k) for k in range(most)]
        self._lists: dict[tuple[bool, ...], WgpuRecorded] = {}

    @property
    def is_current(self) -> bool:
        """Whether the program still has the dispatches that this has bound."""
        return self.launches is self.program.launches and self.update_launches is self.program.update_launches

    # bindings ---------------------------------------------------------------------------------------------------------
    def _step(self, k: int) -> tuple[list[Bound], list[Bound]]:
        """Return the dispatches of step `k`, and those of its update."""
        return [self._bound(b, k) for b in self.launches], [self._bound(b, k) for b in self.update_launches]

    def _bound(self, bound: Bound, k: int) -> Bound:
        dispatch = bound.dispatch
        if not dispatch.scalars and self.rings.keys().isdisjoint(b for b, _ in dispatch.bindings):
            return bound
        pipeline, _, homes = bound.keep
        regions = [
            Region(self.rings[b], k * self.strides[b], home.nbytes) if b in self.rings else home
            for (b, _), home in zip(dispatch.bindings, homes, strict=False)
        ]
        if dispatch.scalars:
            regions.append(Region(self.numbers, k * self.number_stride, self.number_stride))
        group = self.program.gpu.group("steps", pipeline, regions)
        return Bound(dispatch, (pipeline.raw, group._internal, *bound.run[2:]), (pipeline, group, tuple(regions)))

    def recorded(self, wholes: Sequence[bool]) -> list[RecordedPart]:
        """Return the dispatches of a step for each entry, which says whether it updates: short steps in one pass."""
        wholes = tuple(wholes)
        steps = self._list((True,) * self.most if all(wholes) else wholes)
        forward, early, update = len(self.launches), self.program.update.early, len(self.update_launches)
        ends = [0, *itertools.accumulate(forward + (update if whole else early) for whole in wholes)]
        if ends[1] <= SHORT:
            return [RecordedPart(steps, 0, ends[-1])]
        return [RecordedPart(steps, start, stop) for start, stop in itertools.pairwise(ends)]

    def _dispatches(self, k: int, whole: bool) -> list[Bound]:
        forward, update = self._steps[k]
        return forward + (update if whole else update[: self.program.update.early])

    def _list(self, wholes: tuple[bool, ...]) -> WgpuRecorded:
        held = self._lists.get(wholes)
        if held is None:
            if len(self._lists) == PATTERNS:
                self._lists.clear()
            bounds = [bound for k, whole in enumerate(wholes) for bound in self._dispatches(k, whole)]
            held = self._lists[wholes] = self.program.queue.recorded(bounds)
        return held

    # data -------------------------------------------------------------------------------------------------------------
    def write(self, where: str, calls: Sequence[StepCall]) -> list[Copy]:
        """Write the numbers and inputs of each step. Return the copies to make first: of what the first step reads,
        where nothing is written for it."""
        queue = self.program.queue
        if calls[0].scalars is not None:
            queue.put(where, self.numbers, _rows([call.scalars for call in calls], self.number_stride))
        written = [call for call in calls if call.uploads]
        before = len(calls) - len(written) if self.fed else 0  # the first, or none
        for at, buffer in enumerate(self.fed):
            arrays, stride = [call.uploads[at][1] for call in written], self.strides[buffer]
            queue.put(where, self.rings[buffer], _rows(arrays, stride), before * stride)
            for data in arrays:
                queue.counters.uploaded(data.nbytes)
        return [self._copy(buffer, 0, home=False) for buffer in self.fed[: before * len(self.fed)]]

    def copies_home(self, count: int) -> list[Copy]:
        """Return the copies of what the last of `count` steps has read and written to where single steps have it."""
        return [self._copy(buffer, count - 1, home=True) for buffer in self.rings]

    def _copy(self, buffer: int, k: int, home: bool) -> Copy:
        """Return the copy of a buffer between its place for step `k` and that of single steps."""
        ring, place, at = self.rings[buffer], self.program._place_of(buffer, 0), k * self.strides[buffer]
        nbytes = self.program.places[buffer].bound
        return Copy(ring, at, *place, nbytes, False) if home else Copy(*place, ring, at, nbytes, False)


def _rows(arrays: Sequence[Array | None], stride: int) -> Array:
    """Return the bytes of arrays, one every `stride` bytes."""
    table = np.zeros((len(arrays), stride), np.uint8)
    for row, data in zip(table, arrays, strict=True):
        assert data is not None  # steps of one program have numbers, or none has
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        row[: flat.size] = flat
    return table
