"""Bind several steps as one list of dispatches, with a place of its own for the numbers, inputs and loss of each.

A copy between two steps ends the compute pass, and the next pass takes the driver of an NVIDIA H200 15 µs (2026-11-24).
So the dispatches that touch numbers, inputs or the loss are bound once more for each step, and nothing is copied before
the last step has run. Long steps have a pass each all the same: in one pass the memory of every step but the first has
been used, and wgpu would wait before each dispatch (`transitions.py`).

Steps that need nothing of one another, for nothing is updated, run side by side: each writes to memory of its own, and
a barrier serves the same group of all of them. Small steps leave most of an adapter idle when they run alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.devices.base import Bound, Copy, RecordedPart, Region, StepCall
from gdlab.devices.fit import round_up
from gdlab.devices.wgpu.wgpu_queue import WgpuRecorded

if TYPE_CHECKING:
    from gdlab.devices.wgpu.plan_replay import WgpuProgram

SHORT = 24  # dispatches of a step that shares its pass with others: of 38 a step takes 183 µs, alone 165 (NVIDIA H100)
PATTERNS = 64  # of steps with and without an update, whose lists are kept
SIDE_BYTES = 64 << 20  # that steps side by side may write, together


class StepSeries:
    """Up to `most` steps of a program, whose inputs `fed` are written for each (but perhaps the first). A step is known
    by the number of steps behind it, so that the last one, 0, has the memory of single steps. `losses`: the memory of
    their losses, `loss_stride` bytes apart."""

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
        self._steps: list[tuple[list[Bound], list[Bound]]] = []  # by the number of steps behind them
        self._lists: dict[tuple[bool, ...], WgpuRecorded] = {}

    @property
    def is_current(self) -> bool:
        """Whether the program still has the dispatches that this has bound."""
        return self.launches is self.program.launches and self.update_launches is self.program.update_launches

    @cached_property
    def side_by_side(self) -> bool:
        """Whether no step reads what another one writes, and there is room for what all of them write."""
        if self.update_launches or any(bound.dispatch.in_place for bound in self.launches):
            return False
        nbytes, free = (self.most - 1) * sum(self._written.values()), self.program.gpu.free_bytes()
        return nbytes <= min(SIDE_BYTES, SIDE_BYTES if free is None else free // 4)

    @cached_property
    def _written(self) -> dict[int, int]:
        """The buffers that a step writes, but for its loss, and the bytes that bindings of them span."""
        written = dict.fromkeys(b for bound in self.launches for b in bound.dispatch.writes)
        return {b: self.program.places[b].bound for b in written if b not in self.rings}

    # bindings ---------------------------------------------------------------------------------------------------------
    def _step(self, behind: int) -> tuple[list[Bound], list[Bound]]:
        """Return the dispatches of the step with so many behind it, and those of its update."""
        while len(self._steps) <= behind:
            k, own = len(self._steps), dict[int, Any]()
            if k > 0 and self.side_by_side:
                names = ((b, nbytes, self.program.places[b].buffer.name) for b, nbytes in self._written.items())
                own = {b: self.program._buffer(nbytes, name) for b, nbytes, name in names}
            forward, update = self.launches, self.update_launches
            self._steps.append(([self._bound(b, k, own) for b in forward], [self._bound(b, k, own) for b in update]))
        return self._steps[behind]

    def _bound(self, bound: Bound, k: int, own: dict[int, Any]) -> Bound:
        """Return a dispatch of step `k`, which has the buffers `own` to itself."""
        dispatch = bound.dispatch
        if not dispatch.scalars and (self.rings.keys() | own.keys()).isdisjoint(b for b, _ in dispatch.bindings):
            return bound
        pipeline, _, homes = bound.keep
        regions = [self._region(b, k, own, home) for (b, _), home in zip(dispatch.bindings, homes, strict=False)]
        if dispatch.scalars:
            regions.append(Region(self.numbers, k * self.number_stride, self.number_stride))
        group = self.program.gpu.group("steps", pipeline, regions)
        return Bound(dispatch, (pipeline.raw, group._internal, *bound.run[2:]), (pipeline, group, tuple(regions)))

    def _region(self, buffer: int, k: int, own: dict[int, Any], home: Region) -> Region:
        if buffer in self.rings:
            return Region(self.rings[buffer], k * self.strides[buffer], home.nbytes)
        return Region(own[buffer], 0, home.nbytes) if buffer in own else home

    def recorded(self, wholes: Sequence[bool]) -> list[RecordedPart]:
        """Return the dispatches of a step for each entry, which says whether it updates: short steps, and such as run
        side by side, in one pass."""
        wholes = tuple(wholes)
        if self.side_by_side:
            try:
                return [RecordedPart(steps := self._list(wholes), 0, len(steps))]
            except SessionError:  # there is no memory for it after all
                self.side_by_side, self._steps, self._lists = False, [], {}
        steps = self._list((True,) * self.most if all(wholes) else wholes)
        forward, early, update = len(self.launches), self.program.update.early, len(self.update_launches)
        counts = [forward + (update if whole else early) for whole in wholes]
        ends = [*itertools.accumulate(counts, initial=len(steps) - sum(counts))]  # the last steps of the list
        if counts[0] <= SHORT:
            return [RecordedPart(steps, ends[0], ends[-1])]
        return [RecordedPart(steps, start, stop) for start, stop in itertools.pairwise(ends)]

    def _list(self, wholes: tuple[bool, ...]) -> WgpuRecorded:
        held = self._lists.get(wholes)
        if held is None:
            if len(self._lists) == PATTERNS:
                self._lists.clear()
            bounds = self._in_groups(len(wholes)) if self.side_by_side else self._in_turn(wholes)
            held = self._lists[wholes] = self.program.queue.recorded(bounds)
        return held

    def _in_turn(self, wholes: Sequence[bool]) -> list[Bound]:
        """Return the dispatches of steps, one step after another."""
        found, early = list[Bound](), self.program.update.early
        for behind, whole in zip(range(len(wholes) - 1, -1, -1), wholes, strict=True):
            forward, update = self._step(behind)
            found += [*forward, *(update if whole else update[:early])]
        return found

    def _in_groups(self, count: int) -> list[Bound]:
        """Return the dispatches of steps, one barrier group of all after another. The last step comes first, for wgpu
        waits before it writes to memory that the pass has used."""
        steps = [self._step(behind)[0] for behind in range(count)]
        groups = [[*same] for _, same in itertools.groupby(range(len(self.launches)), self._group_of)]
        return [step[i] for same in groups for step in steps for i in same]

    def _group_of(self, i: int) -> int:
        return self.launches[i].dispatch.group

    # data -------------------------------------------------------------------------------------------------------------
    def write(self, where: str, calls: Sequence[StepCall]) -> list[Copy]:
        """Write the numbers and inputs of each step. Return the copies to make first: of what the first step reads,
        where nothing is written for it."""
        queue, calls = self.program.queue, calls[::-1]
        if calls[0].scalars is not None:
            queue.put(where, self.numbers, _rows([call.scalars for call in calls], self.number_stride))
        written = [call for call in calls if call.uploads]
        for at, buffer in enumerate(self.fed):
            arrays, stride = [call.uploads[at][1] for call in written], self.strides[buffer]
            queue.put(where, self.rings[buffer], _rows(arrays, stride))
            for data in arrays:
                queue.counters.uploaded(data.nbytes)
        first_is_not = len(written) < len(calls)
        return [self._copy(buffer, len(written), home=False) for buffer in self.fed if first_is_not]

    def copies_home(self) -> list[Copy]:
        """Return the copies of what the last step has read, and of its loss, to where single steps have them."""
        return [self._copy(buffer, 0, home=True) for buffer in self.rings]

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
