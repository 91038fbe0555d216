"""Replay a plan on an open adapter through its queue: steps, updates, losses, transfers, copies.

Knows wgpu only through the `Gpu` it is given. Everything here runs in the turn of the device.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base import process
from gdlab.base.errors import ArgumentError, CompileError, SessionError
from gdlab.base.formats import decode, encode
from gdlab.base.types import Array
from gdlab.devices.base import (
    KEPT,
    Bound,
    BufferCopy,
    Clear,
    Copy,
    Item,
    Program,
    Readback,
    RecordedPart,
    Region,
    SharedBuffers,
    StepCall,
    StepPart,
)
from gdlab.devices.fit import Place, check_memory, check_plan, check_update, plan_places, state_places, tenants
from gdlab.devices.wgpu.compile_progress import logged_progress
from gdlab.devices.wgpu.held_steps import IN_A_ROW, HeldSteps
from gdlab.devices.wgpu.readback import Fence, WgpuReadback
from gdlab.devices.wgpu.stamps import MOST, Stamps
from gdlab.devices.wgpu.step_series import StepSeries
from gdlab.devices.wgpu.wgpu_queue import CommandsAhead, WgpuQueue, WgpuRecorded
from gdlab.plan.dispatch import SCALARS, Dispatch
from gdlab.plan.records import ExecutionPlan, PlanBuffer, Update

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

NO_UPDATE = Update("none", (), (), ())
AT_ONCE = 64  # steps of one submission at most
DISPATCHES_AT_ONCE = 512  # of one submission of several steps
FLOPS_AT_ONCE = {"software": 1 << 27, "hardware": 1 << 35}  # so that Ctrl-C need not wait for what is in flight
UPLOADS_AT_ONCE = 8 << 20  # bytes of inputs that wait in memory of their own
Home = tuple[str, int]


def _upload_bytes(call: StepCall) -> int:
    return sum(data.nbytes for _, data in call.uploads)


def _steps(steps: range) -> str:
    return f"steps {steps[0]} … {steps[-1]}"


class WgpuProgram(Program):
    """A plan loaded on an adapter. `launches` and `update_launches` are what a step walks; `places` says where every
    tensor lies, `memory` what lies at each home."""

    queue: WgpuQueue

    def __init__(
        self, gpu: Gpu, plan: ExecutionPlan, checked: bool = True, shared: SharedBuffers | None = None
    ) -> None:
        self.gpu, self.plan, self.checked, self.open = gpu, plan, checked, True
        self.update, self.turn = NO_UPDATE, gpu.turn
        self._at_once = self._most_at_once()
        self.held = HeldSteps()
        self._lent, self._expected = (0, False), False  # lent at so many lendings; whether steps of it are expected
        if checked:
            check_plan(plan, gpu.bounds)
            check_memory(plan.memory.physical_bytes, plan.buffers, gpu.free_bytes())
        self.queue = WgpuQueue(gpu)
        self.places = plan_places(plan)
        taken = self._shared_memory(shared)
        self.memory = taken | {
            ("slot", i): self._buffer(slot.nbytes, tenants(plan, slot.tenants))
            for i, slot in enumerate(plan.memory.slots)
            if ("slot", i) not in taken
        }
        self.launches = self._launches("dispatch", plan.dispatches, self.places, self.memory)
        self.update_launches: list[Bound] = []
        self.joined: dict[bool, tuple[list[Bound], list[Bound], WgpuRecorded]] = {}  # by whether a step updates
        # the steps whose losses come, and the bytes from one loss to the next
        self.losses_under_way: deque[tuple[range, WgpuReadback, int]] = deque()
        self.ahead: dict[bool, CommandsAhead] = {}  # of the next step, by whether it updates; always this object
        weakref.finalize(self, gpu.holding.abandon, self.ahead).atexit = False
        self.series: dict[tuple[int, ...], StepSeries] = {}  # by the inputs that are written for each step
        self.readable: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self.stamps: Stamps | None = None
        self.times: list[tuple[int, float]] = []
        self._warm_up(taken)
        for ref, data in plan.constant_buffers:
            self.queue.write("load", self._memory_of(ref), data)
        self.queue.counters.uploads = self.queue.counters.upload_bytes = self.queue.counters.submissions = 0

    def _buffer(self, nbytes: int, name: str) -> Any:
        self.queue.counters.buffers_created += 1
        return self.gpu.buffer(nbytes, name=name)

    # the plan made ready ----------------------------------------------------------------------------------------------
    def _launches(
        self, what: str, dispatches: Sequence[Dispatch], places: Mapping[int, Place], memory: Mapping[Home, Any]
    ) -> list[Bound]:
        made = enumerate(logged_progress(f"compile, {what}", dispatches))
        return [self._launch(f"{what} {n} ({d.label})", d, places, memory) for n, d in made]

    def _launch(
        self, where: str, dispatch: Dispatch, places: Mapping[int, Place], memory: Mapping[Home, Any]
    ) -> Bound:
        bound = [(b, places[b]) for b, _ in dispatch.bindings]
        regions = {b: Region(memory[p.home], p.offset, p.bound) for b, p in bound}
        return self.queue.bind(where, dispatch, self.plan.target, regions)

    def _shared_memory(self, shared: SharedBuffers | None) -> dict[tuple[str, int], Any]:
        """Return the device buffers that are shared with another program, by their place in this one."""
        if shared is None:
            return {}
        there = shared.program
        assert isinstance(there, WgpuProgram)  # of the same device, says `Device.load`
        return {self.places[b].home: there._memory_of(other) for b, other in shared.buffers}

    def _warm_up(self, taken: Container[Home]) -> None:
        """Run one workgroup of every new kernel (drivers compile at first use), then zero (so touch) every buffer."""
        for launch in logged_progress("warm-up", self.launches):
            kept = launch.dispatch.in_place and taken  # a cache that belongs to another program as well
            self._run_cold([launch], self._on_scratch if kept else lambda launch: launch)
        clears = [Clear(buffer) for home, buffer in self.memory.items() if home not in taken]
        self.queue.finish("warm-up", clears)
        self.queue.read("warm-up", self.queue.scalars, memoryview(bytearray(4)))  # the way of a loss, once
        self.queue.counters.readbacks = self.queue.counters.readback_bytes = 0
        self._whole(True)

    def _run_cold(self, launches: Iterable[Bound], made: Callable[[Bound], Bound]) -> None:
        for launch in launches:
            pipeline = launch.keep[0]
            if pipeline not in self.gpu.warm:
                bound = made(launch)
                row = (*bound.run[:2], 1, 1, 1)
                self.queue.finish("warm-up", [Bound(launch.dispatch, row, bound.keep)])
                self.gpu.warm.add(pipeline)

    def _on_scratch(self, launch: Bound) -> Bound:
        """Return the launch on scratch memory: the warm-up of an update must not change the parameters."""
        pipeline, _, regions = launch.keep
        scratch = tuple(Region(self.gpu.buffer(r.nbytes), 0, r.nbytes) for r in regions)
        group = self.gpu.group("warm-up", pipeline, scratch)
        return Bound(launch.dispatch, (pipeline.raw, group._internal, 1, 1, 1), (pipeline, group, scratch))

    def configure(self, update: Update) -> None:
        self._settle("configure")
        self.queue.check_alive("configure")  # kernels and memory of a lost device have other errors
        if self.checked:
            check_update(self.plan, update, self.gpu.bounds)
            unmade = [b for b in update.buffers if b.id not in self.places]
            check_memory(sum(b.nbytes for b in unmade), unmade, self.gpu.free_bytes() if unmade else None)
        for b in update.buffers:
            if b.id in self.places and self.places[b.id].buffer.nbytes != b.nbytes:
                wanted = f"{self.places[b.id].buffer.nbytes} bytes, as before"
                raise CompileError("update", f"state buffer {b.name}", f"{b.nbytes} bytes", wanted)
        places = {**self.places, **state_places(update.buffers)}
        new = {
            p.home: self._buffer(p.nbytes, p.buffer.name)
            for p in places.values()
            if p.home not in self.memory
        }
        memory = {**self.memory, **new}
        launches = self._launches("update", update.dispatches, places, memory)
        self._run_cold(launches, self._on_scratch)
        if new:
            self.queue.finish("configure", [Clear(buffer) for buffer in new.values()])
        self.drop_ahead()
        self.update, self.places, self.memory, self.update_launches = update, places, memory, launches
        self._at_once = self._most_at_once()
        self._whole(True)  # now, not in the first step

    # running ----------------------------------------------------------------------------------------------------------
    def step(
        self, scalars: Array | None, whole: bool = True, copies: Sequence[BufferCopy] = (),
        landing: Readback | None = None,
    ) -> None:  # fmt: skip
        if landing is None and not copies:
            return self._plain_step(scalars, whole)
        self._settle("step")
        moved = self._copy_items(copies)
        self._step(self._whole(whole), scalars, None, moved, landing)
        self.counters.landed(copies)

    def expect_scalars(self, rows: Sequence[Array]) -> None:
        self.queue.expect(rows)

    def _plain_step(self, scalars: Array | None, whole: bool) -> None:
        """Make a step, or hold it where it stands behind others: see `held_steps.py`."""
        number, held = self.counters.forwards + 1, self.held
        where = f"step {number}"
        self._check(where, scalars)
        held.raise_error()
        if self._holds(whole):
            self.gpu.holding.hold(self, StepCall(scalars, whole))
            self.counters.forwards = number
            self.queue.count(self._whole(whole))
            if len(held.calls) >= held.enough:
                held.enough = min(2 * held.enough, self._at_once)
                self.submit_held()
        else:
            self.submit_held()
            self._single(number, scalars, whole)
            self.counters.forwards = number
        held.row += 1

    def _holds(self, whole: bool) -> bool:
        """Return whether a step may be held: it is like those before it, and nobody else uses the memory."""
        if not whole or self.lent or self.stamps is not None or self._at_once < 2:
            return False
        series = self.series.get(())
        return self.held.row >= (IN_A_ROW if series is None or not series.is_current else 1)

    def submit_held(self) -> None:
        """Submit the steps that are held, if any."""
        if not self.held.calls:
            return
        if self.gpu.holding.program is self:
            self.gpu.holding.program = None
        calls, last = self.held.taken(), self.counters.forwards
        try:
            if len(calls) == 1:
                self._single(last, calls[0].scalars, True, counted=False)
            else:
                self._harvest(False)
                self._step_series(last - len(calls) + 1, calls, (), counted=False)
        except BaseException:
            self.counters.forwards -= len(calls)
            raise

    def _single(self, number: int, scalars: Array | None, whole: bool, counted: bool = True) -> None:
        """Submit a step; record one like it, or the beginning of one, to be the next, while the adapter works on it."""
        list, where = self._whole(whole), f"step {number}"
        again, ahead = list.whole and self.stamps is None, self.ahead.get(whole)
        if ahead is None or self.stamps is not None:
            self._submit(where, list, scalars, self._losses_of(number), self.stamps, counted=counted)
        else:
            try:
                self.queue.submit_ahead(where, ahead, scalars, counted)
            finally:
                if ahead.is_submitted:
                    del self.ahead[whole]
            self._harvest(False)  # the adapter works meanwhile
            self._await_losses(self._losses_of(number), ahead.readback)
        if again and list.ahead and not self.lent:
            try:
                self.ahead[whole] = self._recorded_ahead(f"step {number + 1}", list)
            except SessionError:
                pass  # the next step says what is wrong, before it is submitted
        self.gpu.poll()

    def _recorded_ahead(self, where: str, list: WgpuRecorded) -> CommandsAhead:
        items, readback = self._with_loss((list,))
        if not self._expected:
            self.gpu.holding.expect(self)
            self._expected = True
        try:
            return self.queue.ahead(where, items, readback)
        except BaseException:
            readback.release()
            raise

    def _losses_of(self, number: int) -> range:
        """Return the steps whose losses come from step `number`: itself, or none."""
        return range(number, number + (self.plan.loss_buffer is not None))

    def _with_loss(self, items: Sequence[Item]) -> tuple[Sequence[Item], WgpuReadback | Fence]:
        """Return the items of a step with the copy of its loss, if it has any, and what tells that they have ended."""
        if self.plan.loss_buffer is None:
            return items, Fence(self.gpu)
        readback = self.queue.readback(4)
        return [*items, Copy(self._marker, 0, readback, 0, 4)], readback

    def _await_losses(self, steps: range, readback: WgpuReadback | Fence, stride: int = 4) -> None:
        if isinstance(readback, WgpuReadback):
            self.losses_under_way.append((steps, readback, stride))

    def step_in_parts(self, scalars: Array | None, parts: Sequence[StepPart]) -> Iterator[None]:
        self._settle("step")
        number = self.counters.forwards + 1
        where, dispatches = f"step {number}", self._whole(False)
        self._check(where, scalars)
        if scalars is not None:
            self.queue.set_scalars(where, scalars)
        at, under_way = 0, deque[Readback]()
        for part in parts:
            items: list[Item] = [RecordedPart(dispatches, at, part.stop), *self._copy_items(part.copies)]
            self.queue.submit(where, items, part.landing)
            self.counters.landed(part.copies)
            at = part.stop
            under_way.append(part.landing)
            if len(under_way) == self.queue.depth:
                under_way.popleft().wait()
                yield
        rest = RecordedPart(dispatches, at, len(dispatches))
        self._submit(where, rest, scalars, self._losses_of(number), None)
        self.counters.forwards = number
        for landing in under_way:
            landing.wait()
            yield

    def copy(self, copies: Sequence[BufferCopy], landing: Readback) -> None:
        self._settle("copy")
        assert isinstance(landing, WgpuReadback)  # of this program's queue
        moved = self._copy_items(copies)
        marker = Copy(self._marker, 0, landing, landing.nbytes - 4, 4)  # it lands though there is nothing to copy
        self.queue.submit("copy", moved or (marker,), landing)
        self.counters.landed(copies)

    def steps_at_once(self, upload_bytes: int) -> int:
        return 1 if self.stamps is not None else max(1, min(self._at_once, UPLOADS_AT_ONCE // max(1, upload_bytes)))

    def _most_at_once(self) -> int:
        """Return the number of steps for one submission, whatever they upload."""
        dispatches = [*self.plan.dispatches, *self.update.dispatches]
        flops = FLOPS_AT_ONCE["software" if self.plan.target.adapter_class == "software" else "hardware"]
        each = sum(d.flops for d in dispatches)
        return max(1, min(AT_ONCE, DISPATCHES_AT_ONCE // max(1, len(dispatches)), flops // max(1, each)))

    def step_many(self, calls: Sequence[StepCall], landing: Readback | None = None) -> None:
        first_fed, *others = ([buffer for buffer, _ in call.uploads] for call in calls)
        fed = others[-1] if others else first_fed
        alike = first_fed in (fed, []) and all(other == fed for other in others)
        few = len(calls) <= self.steps_at_once(max((_upload_bytes(call) for call in calls), default=0))
        if not few or (landing is None and not (alike and len(calls) > 1)):
            return super().step_many(calls, landing)
        first = self.counters.forwards + 1
        where = _steps(range(first, first + len(calls)))
        self._settle(where)
        self._check(where, calls[0].scalars)
        self._harvest(False)
        if landing is None:
            self._step_series(first, calls, fed)
        else:
            self._step_each(where, calls, landing)
        self.counters.forwards += len(calls)

    def _step_series(
        self, first: int, calls: Sequence[StepCall], fed: Sequence[int], counted: bool = True
    ) -> None:  # fmt: skip
        """Make steps that nobody looks between in one pass. `first`: the number of the first of them."""
        steps = range(first, first + len(calls))
        where, series = _steps(steps), self._series_of(tuple(fed), len(calls), _upload_bytes(calls[-1]))
        before = series.write(where, calls)
        self.queue.scalars_are(None)  # theirs lie elsewhere
        items: list[Item] = [
            *before, *series.recorded([call.whole for call in calls]), *series.copies_home()
        ]  # fmt: skip
        if series.losses is None:
            return self.queue.submit(where, items, Fence(self.gpu), counted=counted)
        readback = self.queue.readback(len(calls) * series.loss_stride)
        self._send(where, [*items, Copy(series.losses, 0, readback, 0, readback.nbytes)], readback, counted)
        self._await_losses(steps[::-1], readback, series.loss_stride)

    def _series_of(self, fed: tuple[int, ...], count: int, upload_bytes: int) -> StepSeries:
        held = self.series.get(fed)
        if held is None or not held.is_current or held.most < count:
            self.series = {key: other for key, other in list(self.series.items())[-1:] if other.is_current}
            held = self.series[fed] = StepSeries(self, fed, self.steps_at_once(upload_bytes))
        return held

    def _step_each(self, where: str, calls: Sequence[StepCall], landing: Readback) -> None:
        """Make steps each of which is followed by copies, which land together."""
        assert isinstance(landing, WgpuReadback)  # of this program's queue
        lent: list[Any] = []
        try:
            prepared, lent = self.queue.scalar_copies(where, [call.scalars for call in calls])
            items: list[Item] = []
            for k, call in enumerate(calls):
                for buffer, data in call.uploads:
                    lent.append(self._lend(where, data))
                    items.append(Copy(lent[-1], 0, *self._place_of(buffer, 0), data.nbytes, counted=False))
                items += [*prepared[k], self._whole(call.whole), *self._copy_items(call.copies)]
            self.queue.submit(where, items, landing, ())
        finally:  # submitted work runs before the next write to this memory
            for memory in lent:
                self.queue.release(memory)
        self.queue.scalars_are(calls[-1].scalars)
        for call in calls:
            self.counters.landed(call.copies)

    def _lend(self, where: str, data: Array) -> Any:
        """Return memory with the data of an input, as the source of a copy."""
        memory = self.queue.make(data.nbytes)
        self.queue.write(where, memory, np.ascontiguousarray(data))
        return memory

    def _copy_items(self, copies: Sequence[BufferCopy]) -> list[Copy]:
        """Return the copies between the memories of buffers."""
        return [Copy(*self._place_of(c.source, c.start), *self._place_of(c.target, c.at), c.nbytes) for c in copies]

    def _place_of(self, target: int | Readback, at: int) -> tuple[Any, int]:
        """Return the memory of a buffer, or the readback itself, and the byte of it that byte `at` is."""
        return (target, at) if isinstance(target, Readback) else (self._memory_of(target), self._offset_of(target) + at)

    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        self._settle("run")
        if scalars is not None:
            self.queue.set_scalars("run", scalars)
        self.queue.finish("run", (self.launches + self.update_launches)[start:stop])

    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        self._settle("step")
        rest = self._update_part(whole)[done:]
        self._step(self.queue.recorded(rest), scalars, None)
        self.counters.dispatches += len(self.launches) + done

    def _step(
        self, list: WgpuRecorded, scalars: Array | None, stamps: Stamps | None, moved: Sequence[Copy] = (),
        landing: Readback | None = None,
    ) -> None:  # fmt: skip
        number = self.counters.forwards + 1
        self._submit(f"step {number}", list, scalars, self._losses_of(number), stamps, moved, landing)
        self.counters.forwards = number

    def _update_part(self, whole: bool) -> list[Bound]:
        return self.update_launches if whole else self.update_launches[: self.update.early]

    def _whole(self, whole: bool) -> WgpuRecorded:
        """Return all dispatches of a step, prepared once."""
        held = self.joined.get(whole)
        if held is None or held[0] is not self.launches or held[1] is not self.update_launches:
            recorded = self.queue.recorded(self.launches + self._update_part(whole))
            held = self.joined[whole] = self.launches, self.update_launches, recorded
        return held[2]

    def update_only(self, scalars: Array, start: int = 0) -> None:
        where = f"update after step {self.counters.forwards}"
        self._settle(where)
        self._submit(where, self.queue.recorded(self.update_launches[start:]), scalars, range(0), None)

    def _submit(
        self, where: str, list: WgpuRecorded | RecordedPart, scalars: Array | None, losses: range,
        stamps: Stamps | None, moved: Sequence[Copy] = (), landing: Readback | None = None, counted: bool = True,
    ) -> None:  # fmt: skip
        """Submit dispatches, then copies. Without a landing the loss of the step in `losses`, if any, is copied to
        where it can be read."""
        self._check(where, scalars)
        self._harvest(False)
        if scalars is not None:
            self.queue.set_scalars(where, scalars)
        if stamps is not None:
            return self._submit_timed(where, list, losses, stamps)
        if landing is not None or not losses:
            return self.queue.submit(where, (list, *moved), landing or Fence(self.gpu), counted=counted)
        items, readback = self._with_loss((list, *moved))
        self._send(where, items, readback, counted)
        self._await_losses(losses, readback)

    def _check(self, where: str, scalars: Array | None) -> None:
        self._alive(where)
        if scalars is None and (self.update_launches or self.plan.reads_scalars):
            raise SessionError(where, "scalars", "none", f"{len(SCALARS)} numbers: {', '.join(SCALARS)}")

    @property
    def _marker(self) -> Any:
        """Memory whose first four bytes are copied when a step has ended: the loss, or any other."""
        return self.queue.scalars if self.plan.loss_buffer is None else self._memory_of(self.plan.loss_buffer)

    def _send(
        self, where: str, items: Sequence[Item], readback: WgpuReadback | Fence, counted: bool = True
    ) -> None:  # fmt: skip
        try:
            self.queue.submit(where, items, readback, counted=counted)
        except BaseException:
            readback.release()
            raise

    def _submit_timed(
        self, where: str, list: WgpuRecorded | RecordedPart, losses: range, stamps: Stamps
    ) -> None:
        """Submit as `_submit` does, with stamps, and wait: there is one set of them."""
        self.queue.stamps, readback = stamps, self.queue.readback(8 * (2 * MOST + 2))
        loss = self.queue.readback(4)
        items = [*stamps.items(list.bounds, readback), Copy(self._marker, 0, loss, 0, 4)]
        self._send(where, items, readback)
        with self.gpu.checked(where):
            loss.request(where, readback.submission)
        self.losses_under_way.append((losses, loss, 4))
        readback.wait()
        self.times = stamps.seconds(readback.view()) if stamps.count else []
        self.queue.retire(readback)
        self._harvest(True)

    # timing -----------------------------------------------------------------------------------------------------------
    def profile(self, window: tuple[int, int] | None) -> str:
        self._settle("profile")
        reason = "" if window is None else self.gpu.no_stamps
        if window is None or reason:
            self.stamps = None
            return reason
        if self.stamps is None:
            self.stamps = Stamps(self.gpu)
        self.stamps.window = window[0], min(window[1], window[0] + MOST)
        return ""

    def timings(self) -> list[tuple[int, float]]:
        return list(self.times)

    def _harvest(self, wait: bool) -> None:
        """Take the losses of the steps that have ended; `wait`: of all submitted steps."""
        while self.losses_under_way and (wait or self.losses_under_way[0][1].ready):
            steps, readback, stride = self.losses_under_way.popleft()
            try:
                readback.wait()
                numbers = readback.floats
                found = [(step, numbers[k * stride // 4]) for k, step in enumerate(steps)]
                self.readable.extend(sorted(found))  # a series begins with the last one
            finally:
                self.queue.retire(readback)

    def losses(self, wait: bool) -> list[tuple[int, float]]:
        self._settle("losses")
        self.gpu.poll()
        self._harvest(wait)
        found = list(self.readable)
        self.readable.clear()
        return found

    def wait(self) -> None:
        self._settle("wait")
        self.queue.wait()  # losses are taken when they are asked for, or behind the next step

    # data -------------------------------------------------------------------------------------------------------------
    def _memory_of(self, buffer: int) -> Any:
        return self.memory[self.places[buffer].home]

    def _offset_of(self, buffer: int) -> int:
        return self.places[buffer].offset

    def _logical(self, where: str, buffer: int) -> PlanBuffer:
        self._settle(where)
        if buffer not in self.places:
            raise ArgumentError(where, "buffer", buffer, f"one of the {len(self.places)} buffers of this program")
        return self.places[buffer].buffer

    def upload(self, buffer: int, data: Array) -> None:
        logical, given = self._logical("upload", buffer), np.ascontiguousarray(data)
        size = math.prod(logical.shape)
        if given.dtype != logical.dtype.numpy or given.size != size:
            wanted = f"{logical.dtype}, {size * logical.dtype.nbytes} bytes"
            raise ArgumentError("upload", f"data of {logical.name}", f"{given.dtype}, {given.nbytes} bytes", wanted)
        if logical.dtype.is_storage:
            given = encode(given.reshape(logical.shape), logical.dtype)
        self.upload_words(buffer, given)

    def upload_words(self, buffer: int, words: Array) -> None:
        self._settle("upload")
        self.queue.write("upload", self._memory_of(buffer), words, self._offset_of(buffer))

    def download(self, buffer: int) -> Array:
        logical = self._logical("download", buffer)
        if logical.dtype.is_storage:
            return decode(self.words(buffer), logical.dtype, logical.shape).astype(logical.dtype.numpy, copy=False)
        return self._read(buffer, np.empty(logical.shape, logical.dtype.numpy))

    def words(self, buffer: int) -> Array:
        return self._read(buffer, np.empty(self._logical("download", buffer).nbytes // 4, np.uint32))

    def _read(self, buffer: int, out: Array) -> Array:
        """Fill `out` with all bytes of a buffer."""
        self.queue.read("download", self._memory_of(buffer), out.data.cast("B"), self._offset_of(buffer))
        return out

    def store_copy(
        self, buffers: Sequence[int], into: dict[tuple[str, int], Any] | None = None
    ) -> dict[tuple[str, int], Any]:
        self._settle("copy")
        homes = dict.fromkeys(self.places[b].home for b in buffers)
        if into is None:
            into = {home: self._buffer(self.memory[home].size, "a copy of the state") for home in homes}
        self._copy_buffers((self.memory[home], into[home]) for home in homes)
        return into

    def load_copy(self, copy: dict[tuple[str, int], Any]) -> None:
        self._settle("copy")
        self._copy_buffers((data, self.memory[home]) for home, data in copy.items())

    def _copy_buffers(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Submit the copies (from, to) in queue order; nothing is waited for."""
        self.queue.move("copy", [Copy(source, 0, target, 0, source.size) for source, target in pairs])

    def memory_at(self, buffer: int) -> tuple[Any, int]:
        self._settle("memory")
        self._give_out(self._memory_of(buffer))
        return self._memory_of(buffer), self.places[buffer].bound

    def bytes_in(self, memory: Any) -> int | None:
        ours = self.queue.scalars
        mine = type(memory) is type(ours) and memory._device is ours._device
        return int(memory.size) if mine and memory.usage & ours.usage == ours.usage else None

    @property
    def lent(self) -> bool:
        """Whether others use memory of this program, in an order that we do not know: then no step is held."""
        lendings, lent = self._lent
        if lendings != self.gpu.lendings:
            lent = any(memory in self.gpu.lent for memory in self.memory.values())
            self._lent = self.gpu.lendings, lent
        return lent

    def _give_out(self, memory: Any) -> None:
        """Note that others have this memory from now on, whichever programs use it."""
        self.gpu.holding.settle()
        self.gpu.lent.add(memory)
        self.gpu.lendings += 1
        for program in [*self.gpu.holding.ahead]:
            if program.lent:
                program.drop_ahead()

    def users_of(self, memory: Any, nbytes: int, moved: Mapping[int, Any]) -> set[int]:
        bound = {b for b, place in self.places.items() if self.memory.get(place.home) is memory}
        return bound | {b for b, other in moved.items() if other is memory}

    def rebind(self, buffer: int, memory: Any) -> None:
        self.wait()
        home = self.places[buffer].home
        held = {**self.memory, home: memory}

        def bound_again(what: str, launches: list[Bound]) -> list[Bound]:
            touched = [any(self.places[b].home == home for b, _ in a.dispatch.bindings) for a in launches]
            named = enumerate(zip(launches, touched, strict=True))
            return [
                self._launch(f"{what} {n} ({a.dispatch.label})", a.dispatch, self.places, held) if new else a
                for n, (a, new) in named
            ]

        launches, updates = bound_again("dispatch", self.launches), bound_again("update", self.update_launches)
        self.drop_ahead()
        self.memory, self.launches, self.update_launches = held, launches, updates
        self._give_out(memory)
        self._whole(True)

    def poison(self) -> None:
        self._settle("poison")
        pinned = {self.places[b].home for b in self.plan.memory.pinned}
        for home, buffer in self.memory.items():
            if home[0] == "slot" and home not in pinned:
                self.queue.write("poison", buffer, np.full(buffer.size // 4, np.nan, np.float32))

    # the end ----------------------------------------------------------------------------------------------------------
    def _settle(self, where: str) -> None:
        """Submit what is held, before anything but a step is done, or raise what that has raised."""
        self._alive(where)
        self.held.end_row()
        self.held.raise_error()
        self.submit_held()

    def _alive(self, where: str) -> None:
        if not self.open:
            raise SessionError(where, "program", "closed", "an open one")
        if self.gpu.pid != process.id:
            self.gpu.alive(where)

    def close(self) -> None:
        if not self.open or self.gpu.pid != process.id:
            return
        self.gpu.holding.settle()
        with contextlib.suppress(SessionError):  # of a lost device there is nothing to wait for
            self._harvest(True)
        self.drop_ahead()
        self.open = False
        self.memory, self.places, self.stamps, self.queue.stamps = {}, {}, None, None
        self.launches, self.update_launches, self.joined, self.series = [], [], {}, {}

    def drop_ahead(self) -> None:
        """Drop what was recorded ahead: its memory changes, or is lent, or the end has come."""
        while self.ahead:
            _, ahead = self.ahead.popitem()
            self.queue.spend("a step that was recorded ahead", ahead)
