"""Replay a plan on an open adapter: one command buffer per step, at most two in flight, losses through a ring.

Knows wgpu only through the `Gpu` it is given. Everything here runs on the owner thread.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab import kernels
from gdlab.base.errors import ArgumentError, CompileError, SessionError
from gdlab.base.formats import decode, encode
from gdlab.base.types import Array
from gdlab.devices.base import KEPT, Program, Shared, Traffic
from gdlab.devices.fit import Place, check_memory, check_plan, check_update, plan_places, state_places, tenants
from gdlab.devices.wgpu.progress import told
from gdlab.devices.wgpu.recording import Row, Rows, record_pass
from gdlab.devices.wgpu.staging import Staging
from gdlab.devices.wgpu.stamps import MOST, Stamps
from gdlab.plan.dispatch import OWN_SCALARS, SCALARS, Dispatch
from gdlab.plan.records import Buffer, ExecutionPlan, Update
from gdlab.plan.source import source_hash
from gdlab.plan.variants import in_bounds

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu, Pipeline

IN_FLIGHT = 2
RECIPE_BYTES = 1 << 10
READ_BYTES = 16 << 20  # the kept staging buffer of reads grows up to this
NO_UPDATE = Update("none", (), (), ())


@dataclass(frozen=True, slots=True)
class Launch:
    """A dispatch made ready. `group` and `pipeline` own the raw handles of `row`."""

    pipeline: Pipeline
    group: Any
    sizes: tuple[int, ...]
    row: Row


@dataclass(frozen=True, slots=True)
class Flight:
    """A submission under way. `loss_of`: the step whose loss its staging buffer receives."""

    where: str
    loss_of: int | None
    staging: Staging
    submission: int


class WgpuProgram(Program):
    """A plan on an adapter. `rows` and `update_rows` are what a step walks; `places` says where every tensor lies."""

    def __init__(
        self, gpu: Gpu, plan: ExecutionPlan, checked: bool = True, shared: Shared | None = None
    ) -> None:
        self.gpu, self.plan, self.checked, self.open = gpu, plan, checked, True
        self.update, self.traffic = NO_UPDATE, Traffic()
        if checked:
            check_plan(plan, gpu.bounds)
            check_memory(plan.memory.physical_bytes, plan.buffers, gpu.free_bytes())
        self.places = plan_places(plan)
        taken = self._taken(shared)
        self.memory = taken | {
            ("slot", i): gpu.buffer(slot.nbytes, name=tenants(plan, slot.tenants))
            for i, slot in enumerate(plan.memory.slots)
            if ("slot", i) not in taken
        }
        self.scalars = gpu.buffer(4 * (len(SCALARS) + OWN_SCALARS))
        self.told: Array | None = None
        self.launches = self._launches("dispatch", plan.dispatches, self.places, self.memory)
        self.update_launches: list[Launch] = []
        self.rows: list[Row] = [launch.row for launch in self.launches]
        self.update_rows: list[Row] = []
        self.joined: dict[bool, tuple[list[Row], list[Row], Rows]] = {}  # by whether it updates; made of what, and rows
        self.marker = self.scalars if plan.loss_buffer is None else self._memory_of(plan.loss_buffer)
        self.ring = tuple(Staging(gpu, 4) for _ in range(IN_FLIGHT + 1))
        self.reader: Staging | None = None
        self.flying: deque[Flight] = deque()
        self.readable: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self.stamps: Stamps | None = None
        self.times: list[tuple[int, float]] = []
        self._warm_up(taken)
        for ref, data in plan.constant_buffers:
            gpu.write("load", self._memory_of(ref), data)

    # the plan made ready ----------------------------------------------------------------------------------------------
    def _launches(
        self, what: str, dispatches: Sequence[Dispatch], places: dict[int, Place], memory: dict[tuple[str, int], Any]
    ) -> list[Launch]:
        made = enumerate(told(f"compile, {what}", dispatches))
        return [self._launch(f"{what} {n} ({d.label})", d, places, memory) for n, d in made]

    def _launch(
        self, where: str, dispatch: Dispatch, places: dict[int, Place], memory: dict[tuple[str, int], Any]
    ) -> Launch:
        pipeline = self._kernel(where, dispatch)
        bound = [(memory[places[b].home], places[b].bound) for b, _ in dispatch.bindings]
        if dispatch.scalars:
            bound.append((self.scalars, self.scalars.size))
        group = self.gpu.group(where, pipeline, bound)
        sizes = tuple(size for _, size in bound)
        return Launch(pipeline, group, sizes, (pipeline.raw, group._internal, *dispatch.workgroups))

    def _kernel(self, where: str, dispatch: Dispatch) -> Pipeline:
        """The compiled kernel; the text of equal dispatches is written once."""
        access = "".join(a for _, a in dispatch.bindings) + "r" * bool(dispatch.scalars)
        shapes, written = tuple(o.shape for o in dispatch.operands), dispatch.source_hash or source_hash(dispatch)
        recipe = written, shapes, self.plan.target, access
        known = self.gpu.recipes.get(recipe)
        pipeline = self.gpu.known(known) if known is not None else None
        if known is not None and pipeline is not None:
            return pipeline
        text, _ = kernels.wgsl(dispatch, self.plan.target)
        trusted = self.plan.target.adapter_class == "hardware" and in_bounds(dispatch)
        key, pipeline = self.gpu.pipeline(where, text, access, trusted)
        self.gpu.recipes.put(recipe, key, RECIPE_BYTES)
        return pipeline

    def _taken(self, shared: Shared | None) -> dict[tuple[str, int], Any]:
        """The device buffers that belong to another program as well, by their place in this one."""
        if shared is None:
            return {}
        there = shared.program
        assert isinstance(there, WgpuProgram)  # of the same device, says `Device.load`
        return {self.places[b].home: there._memory_of(other) for b, other in shared.buffers}

    def _warm_up(self, taken: Container[tuple[str, int]]) -> None:
        """Run one workgroup of every new kernel (drivers compile at first use), then zero (so touch) every buffer."""
        for launch, d in told("warm-up", list(zip(self.launches, self.plan.dispatches, strict=True))):
            kept = d.in_place and taken  # a cache that belongs to another program as well
            self._run_cold([launch], self._scratch_group if kept else lambda launch: launch.group)
        buffers = [buffer for home, buffer in self.memory.items() if home not in taken]
        self._submit_and_wait("warm-up", partial(self._clear, buffers))
        for staging in self.ring:  # the way of a loss, once
            self.read_into("warm-up", self.scalars._internal, 0, staging, memoryview(bytearray(4)))
        self._whole(True)

    def _run_cold(self, launches: Iterable[Launch], group_of: Callable[[Launch], Any]) -> None:
        for launch in launches:
            if launch.pipeline not in self.gpu.warm:
                group = group_of(launch)
                rows = [(launch.pipeline.raw, group._internal, 1, 1, 1)]
                self._submit_and_wait("warm-up", partial(self._pass, rows))
                self.gpu.warm.add(launch.pipeline)

    def _scratch_group(self, launch: Launch) -> Any:
        """The kernel's bindings on memory of nobody: an update must not run on the parameters before its time."""
        bound = [(self.gpu.buffer(size), size) for size in launch.sizes]
        return self.gpu.group("warm-up", launch.pipeline, bound)

    def configure(self, update: Update) -> None:
        self._alive("configure")
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
            p.home: self.gpu.buffer(p.nbytes, name=p.buffer.name)
            for p in places.values()
            if p.home not in self.memory
        }
        memory = {**self.memory, **new}
        launches = self._launches("update", update.dispatches, places, memory)
        self._run_cold(launches, self._scratch_group)
        if new:
            self._submit_and_wait("configure", partial(self._clear, list(new.values())))
        self.update, self.places, self.memory = update, places, memory
        self.update_launches, self.update_rows = launches, [launch.row for launch in launches]
        self._whole(True)  # now, not in the first step

    # recording --------------------------------------------------------------------------------------------------------
    def _pass(self, rows: Sequence[Row], encoder: Any, described: Any = None) -> None:
        record_pass(self.gpu, rows, encoder, described)

    def record(self, where: str, rows: Sequence[Row], staging: Staging, stamps: Stamps | None = None) -> Any:
        """A finished command buffer: the rows in one pass, then four bytes of the loss (of anything, if none)."""

        def encode(encoder: Any) -> None:
            if stamps is None:
                self._pass(rows, encoder)
            else:
                stamps.encode(self, rows, encoder)
            self.gpu.raw.CommandEncoderCopyBufferToBuffer(encoder, self.marker._internal, 0, staging.handle, 0, 4)

        return self.gpu.record(where, encode)

    def _clear(self, buffers: Iterable[Any], encoder: Any) -> None:
        for buffer in buffers:
            self.gpu.raw.CommandEncoderClearBuffer(encoder, buffer._internal, 0, buffer.size)

    def _submit_and_wait(self, where: str, encode: Callable[[Any], None]) -> None:
        self.gpu.poll(self.gpu.submit(self.gpu.record(where, encode)))

    # running ----------------------------------------------------------------------------------------------------------
    def step(self, scalars: Array | None, whole: bool = True) -> None:
        self._step(self._whole(whole), scalars, self.stamps)

    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        self._alive("run")
        self._tell("run", scalars)
        self._submit_and_wait("run", partial(self._pass, (self.rows + self.update_rows)[start:stop]))

    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        self._step(self._update_part(whole)[done:], scalars, None)
        self.traffic.dispatches += len(self.rows) + done

    def _step(self, rows: Sequence[Row], scalars: Array | None, stamps: Stamps | None) -> None:
        number = self.traffic.steps + 1
        loss_of = None if self.plan.loss_buffer is None else number
        self._fly(f"step {number}", rows, scalars, loss_of, stamps)
        self.traffic.steps = number

    def _update_part(self, whole: bool) -> list[Row]:
        return self.update_rows if whole else self.update_rows[: self.update.early]

    def _whole(self, whole: bool) -> Rows:
        """All rows of a step, made ready once."""
        held = self.joined.get(whole)
        if held is None or held[0] is not self.rows or held[1] is not self.update_rows:
            rows = Rows(self.gpu, self.rows + self._update_part(whole))
            held = self.joined[whole] = self.rows, self.update_rows, rows
        return held[2]

    def update_only(self, scalars: Array) -> None:
        self._fly(f"update after step {self.traffic.steps}", self.update_rows, scalars, None, None)

    def _fly(
        self, where: str, rows: Sequence[Row], scalars: Array | None, loss_of: int | None, stamps: Stamps | None
    ) -> None:
        self._alive(where)
        if scalars is None and (self.update_rows or self.plan.reads_scalars):
            raise SessionError(where, "scalars", "none", f"{len(SCALARS)} numbers: {', '.join(SCALARS)}")
        self._harvest(IN_FLIGHT - 1 if stamps is None else 0)  # one set of stamps: steps that are timed go one by one
        self._tell(where, scalars)
        staging = self.ring[self.traffic.submissions % len(self.ring)]
        submission = self.gpu.submit(self.record(where, rows, staging, stamps))
        self.traffic.submissions += 1
        self.traffic.dispatches += len(rows)
        staging.request(where, 4)
        self.flying.append(Flight(where, loss_of, staging, submission))
        if stamps is not None:
            self._harvest(0)
            self.times = stamps.read(self)
        self.gpu.poll()

    def _tell(self, where: str, scalars: Array | None) -> None:
        """Write the numbers of a step, unless they are the very array of the step before."""
        if scalars is not None and scalars is not self.told:
            self.gpu.write(where, self.scalars, np.ascontiguousarray(scalars, np.float32))
            self.told = scalars

    # timing -----------------------------------------------------------------------------------------------------------
    def profile(self, window: tuple[int, int] | None) -> str:
        self._alive("profile")
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

    def _harvest(self, depth: int) -> None:
        """Take what has ended; wait for the oldest until at most `depth` submissions are in flight."""
        while self.flying and (len(self.flying) > depth or self.flying[0].staging.status):
            flight, data = self.flying.popleft(), np.zeros(1, np.float32)
            flight.staging.take(flight.where, flight.submission, data.data.cast("B"))
            if flight.loss_of is not None:
                self.readable.append((flight.loss_of, float(data[0])))

    def losses(self, wait: bool) -> list[tuple[int, float]]:
        self._alive("losses")
        self.gpu.poll()
        self._harvest(0 if wait else IN_FLIGHT)
        found = list(self.readable)
        self.readable.clear()
        return found

    def wait(self) -> None:
        self._alive("wait")
        self._harvest(0)

    # data -------------------------------------------------------------------------------------------------------------
    def _memory_of(self, buffer: int) -> Any:
        return self.memory[self.places[buffer].home]

    def _logical(self, where: str, buffer: int) -> Buffer:
        self._alive(where)
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
        self._alive("upload")
        self.gpu.write("upload", self._memory_of(buffer), words)
        self.traffic.bytes_up += words.nbytes

    def download(self, buffer: int) -> Array:
        logical = self._logical("download", buffer)
        if logical.dtype.is_storage:
            return decode(self.words(buffer), logical.dtype, logical.shape).astype(logical.dtype.numpy, copy=False)
        return self._read(buffer, np.empty(logical.shape, logical.dtype.numpy))

    def words(self, buffer: int) -> Array:
        return self._read(buffer, np.empty(self._logical("download", buffer).nbytes // 4, np.uint32))

    def _read(self, buffer: int, out: Array) -> Array:
        """Fill `out` with all bytes of a buffer."""
        whole, source = out.data.cast("B"), self._memory_of(buffer)._internal
        staging = self._staging(len(whole))
        for start in range(0, len(whole), staging.nbytes):
            part = whole[start : start + staging.nbytes]
            self.read_into("download", source, start, staging, part)
        self.traffic.bytes_down += len(whole)
        return out

    def read_into(self, where: str, source: Any, start: int, staging: Staging, into: memoryview) -> None:
        copy, nbytes = self.gpu.raw.CommandEncoderCopyBufferToBuffer, len(into)
        commands = self.gpu.record(where, lambda encoder: copy(encoder, source, start, staging.handle, 0, nbytes))
        submission = self.gpu.submit(commands)
        staging.request(where, nbytes)
        staging.take(where, submission, into)

    def _staging(self, nbytes: int) -> Staging:
        wanted = min(max(4096, 1 << (nbytes - 1).bit_length()), READ_BYTES)
        if self.reader is None or self.reader.nbytes < wanted:
            self.reader = Staging(self.gpu, wanted)
        return self.reader

    def store_copy(
        self, buffers: Sequence[int], into: dict[tuple[str, int], Any] | None = None
    ) -> dict[tuple[str, int], Any]:
        self._alive("copy")
        homes = dict.fromkeys(self.places[b].home for b in buffers)
        if into is None:
            into = {home: self.gpu.buffer(self.memory[home].size, name="a copy of the state") for home in homes}
        self._copy_buffers((self.memory[home], into[home]) for home in homes)
        return into

    def load_copy(self, copy: dict[tuple[str, int], Any]) -> None:
        self._alive("copy")
        self._copy_buffers((data, self.memory[home]) for home, data in copy.items())

    def _copy_buffers(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Submit the copies (from, to) in queue order; nothing is waited for."""
        copy = self.gpu.raw.CommandEncoderCopyBufferToBuffer

        def encode(encoder: Any) -> None:
            for source, target in pairs:
                copy(encoder, source._internal, 0, target._internal, 0, source.size)

        self.gpu.submit(self.gpu.record("copy", encode))

    def memory_at(self, buffer: int) -> tuple[Any, int]:
        self._alive("memory")
        return self._memory_of(buffer), self.places[buffer].bound

    def bytes_in(self, memory: Any) -> int | None:
        mine = type(memory) is type(self.scalars) and memory._device is self.scalars._device
        return int(memory.size) if mine and memory.usage & self.scalars.usage == self.scalars.usage else None

    def rebind(self, buffer: int, memory: Any) -> None:
        self.wait()
        held = {**self.memory, self.places[buffer].home: memory}
        self.launches = self._launches("dispatch", self.plan.dispatches, self.places, held)
        self.memory, self.rows = held, [launch.row for launch in self.launches]
        self.marker = self.scalars if self.plan.loss_buffer is None else self._memory_of(self.plan.loss_buffer)
        self.configure(self.update)  # an output may be a gradient too

    def poison(self) -> None:
        self._alive("poison")
        pinned = {self.places[b].home for b in self.plan.memory.pinned}
        for home, buffer in self.memory.items():
            if home[0] == "slot" and home not in pinned:
                self.gpu.write("poison", buffer, np.full(buffer.size // 4, np.nan, np.float32))

    # the end ----------------------------------------------------------------------------------------------------------
    def _alive(self, where: str) -> None:
        if not self.open:
            raise SessionError(where, "program", "closed", "an open one")
        if self.gpu.pid != os.getpid():
            self.gpu.alive(where)

    def close(self) -> None:
        if not self.open or self.gpu.pid != os.getpid():
            return
        with contextlib.suppress(SessionError):  # of a lost device there is nothing to wait for
            self._harvest(0)
        self.open = False
        self.memory, self.places, self.ring, self.reader, self.stamps = {}, {}, (), None, None
        self.launches, self.rows, self.update_launches, self.update_rows, self.joined = [], [], [], [], {}
        self.scalars = self.marker = None
