"""Run plans with NumPy, dispatch by dispatch from the dispatch's own fields, in float32."""

from __future__ import annotations

import math
import platform
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.base.formats import decode, encode
from gdlab.base.threads import OwnerThread
from gdlab.base.types import Array, DType
from gdlab.devices.base import (
    KEPT,
    Bound,
    BufferCopy,
    Copy,
    Device,
    DeviceInfo,
    Item,
    Program,
    Readback,
    Region,
    SharedBuffers,
    Stamp,
    StepPart,
)
from gdlab.devices.cpu.call_lanes import beside, flat, run, spread
from gdlab.devices.cpu.cpu_queue import CpuQueue, CpuRecorded
from gdlab.devices.fit import check_memory, free_bytes, physical_bytes, zeros
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.dispatch import SCALARS, Dispatch
from gdlab.plan.records import ExecutionPlan, PlanBuffer, Update
from gdlab.plan.rules.rule_record import BLOCK
from gdlab.plan.target import Limits, Target
from gdlab.plan.verify import verify, verify_update

_F32 = np.dtype(np.float32)
NO_UPDATE = Update("none", (), (), ())
TINY = np.float32(1.2e-38)  # smaller moments are flushed to zero: arithmetic on denormals is a hundred times slower
FLUSH_EVERY = 16  # updates between two flushes
CHEAP = 1 << 26  # floating point operations of a plan that runs once to be warm: some milliseconds
PAGE = 4096  # bytes of memory that the system gives at a time, at the least


class CpuDevice(Device):
    """The device NumPy on this machine: needs no driver. `step` is synchronous."""

    synchronous = True

    def __init__(self, reason: str = "asked for") -> None:
        self.info = DeviceInfo("cpu", f"NumPy {np.__version__}, {platform.machine()}", "cpu", reason)
        self.target = Target("cpu", "cpu", Limits(binding_bytes=memory_bytes()))

    def turn(self) -> OwnerThread:
        """Return a new owner thread."""
        return OwnerThread("device")

    def queue(self) -> CpuQueue:
        """Return a queue with memory of its own."""
        return CpuQueue()

    def load(self, plan: ExecutionPlan, shared: SharedBuffers | None = None) -> CpuProgram:
        """Verify the plan and compile it to NumPy calls."""
        verify(plan)
        check_memory(plan.memory.physical_bytes, plan.buffers, free_bytes())
        return CpuProgram(plan, shared)

    def open_queue(self) -> tuple[CpuQueue, OwnerThread]:
        """Return a queue with an owner thread of its own."""
        turn = OwnerThread("device")
        queue = CpuQueue()
        weakref.finalize(queue, turn.rest).atexit = False
        return queue, turn


def flush(moment: Array) -> None:
    """Replace elements smaller than `TINY` by zero in place, in parts that stay in the cache."""
    flat = moment.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        small = np.abs(part) < TINY
        if small.any():
            part[small] = 0


def memory_bytes() -> int:
    """Return the physical memory of this machine; 16 GiB where it does not tell."""
    return (physical_bytes() or 16 << 30) // 256 * 256


class CpuProgram(Program):
    """A plan as a list of NumPy calls over its slots, run by its queue."""

    queue: CpuQueue

    def __init__(self, plan: ExecutionPlan, shared: SharedBuffers | None = None) -> None:
        self.plan, self.update, self.queue, self.open = plan, NO_UPDATE, CpuQueue(), True
        self.turn = _turn(plan, shared)
        self._rest = weakref.finalize(self, self.turn.rest)  # others go on with a turn that they share
        self._rest.atexit = False
        self.slots = _slots(plan, shared)
        places = zip(plan.buffers, plan.memory.slot_of, plan.memory.offset_of, strict=True)
        self.arrays = {b.id: _tensor(self.slots[slot], offset, b) for b, slot, offset in places}
        for buffer, data in plan.constant_buffers:
            self.arrays[buffer][...] = np.frombuffer(data, self.arrays[buffer].dtype).reshape(self.arrays[buffer].shape)
        self.packed = {b.id for b in plan.buffers if b.dtype.is_storage}
        self.blocks = _blocks(plan, shared)
        self.given: Array | None = None
        self.reads_scalars = plan.reads_scalars
        self.launches = self.queue.recorded_fused(self._bound(plan.dispatches))
        self.update_launches = self.early_launches = self.queue.recorded([])
        self.window: tuple[int, int] | None = None
        self.times: list[tuple[int, float]] = []
        self.flushes: list[NumpyCall] = []
        self.updates = 0
        self.loss = None if plan.loss_buffer is None else self.arrays[plan.loss_buffer].reshape(-1)
        self.readable: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._warm_up({b for b, _ in shared.buffers} if shared is not None else set())

    def _warm_up(self, shared: set[int]) -> None:
        """Warm up, so that the first step takes as long as others: touch every page of memory, and run a plan that
        costs little once, on zeros, for the first calls of NumPy and BLAS."""
        cheap = sum(d.flops for d in self.plan.dispatches) <= CHEAP
        if cheap and not any(d.in_place for d in self.plan.dispatches):
            self.queue.finish("warm-up", self.launches.bounds)
        kept = {self.plan.memory.slot_of[b] for b in shared | {b for b, _ in self.plan.constant_buffers}}
        for slot, data in enumerate(self.slots):
            if slot not in kept:
                data.fill(0)
        self._touch_scratch()

    def _bound(self, dispatches: Sequence[Dispatch]) -> list[Bound]:
        arrays = {b: Region(array, 0, array.nbytes) for b, array in self.arrays.items()}
        return [self.queue.bind(f"dispatch {d.index}", d, self.plan.target, arrays) for d in dispatches]

    def _touch_scratch(self) -> None:
        for array in self.queue.scratch.arrays():
            pages = array.reshape(-1).view(np.uint8)[::PAGE]
            pages[...] = pages.copy()

    def upload(self, buffer: int, data: Array) -> None:
        """Copy `data` into the buffer."""
        home = self._home("upload", buffer)
        usual = data.__class__ is np.ndarray and data.dtype is home.dtype is _F32 and buffer not in self.packed
        if usual and data.shape == home.shape:
            home[...] = data
            self.queue.counters.uploaded(home.nbytes)
            return
        given, stored = np.asarray(data), self._dtype(buffer)
        if given.dtype != stored.numpy or given.size != home.size:
            wanted = f"{stored.numpy}, {home.size * stored.nbytes} bytes"
            raise ArgumentError("upload", f"data of buffer {buffer}", f"{given.dtype}, {given.nbytes} bytes", wanted)
        if stored.is_storage:
            return self.upload_words(buffer, encode(given.reshape(home.shape), stored))
        np.copyto(home, given.reshape(home.shape))
        self.queue.counters.uploaded(home.nbytes)

    def upload_words(self, buffer: int, words: Array) -> None:
        """Decode the words into the buffer, once; keep words of blocks too."""
        home = self._home("upload", buffer)
        if buffer in self.blocks:
            self.blocks[buffer][...] = words
        home[...] = decode(words, self._dtype(buffer), home.shape)
        self.queue.counters.uploaded(home.nbytes)

    def words(self, buffer: int) -> Array:
        """Return the words of a buffer: of blocks as they are kept, of f16 encoded again, which is exact."""
        home = self._home("download", buffer)
        self.queue.counters.read_back(home.nbytes)
        return self.blocks[buffer].copy() if buffer in self.blocks else encode(home, self._dtype(buffer))

    def download(self, buffer: int) -> Array:
        """Return a copy of the buffer."""
        home = self._home("download", buffer)
        self.queue.counters.read_back(home.nbytes)
        return home.astype(self._dtype(buffer).numpy)

    def store_copy(self, buffers: Sequence[int], into: dict[int, Array] | None = None) -> dict[int, Array]:
        """Return copies of the arrays by buffer."""
        if into is None:
            return {b: self._home("copy", b).copy() for b in buffers}
        for buffer, data in into.items():
            np.copyto(data, self.arrays[buffer])
        return into

    def load_copy(self, copy: dict[int, Array]) -> None:
        """Write the copies back to the arrays."""
        for buffer, data in copy.items():
            np.copyto(self._home("copy", buffer), data)

    def memory_at(self, buffer: int) -> tuple[Array, int]:
        """Return the array itself, and its size."""
        home = self._home("memory", buffer)
        return home, home.nbytes

    def bytes_in(self, memory: object) -> int | None:
        """Return the bytes of a writable C-contiguous array of 4-byte elements; None for any other object."""
        good = isinstance(memory, np.ndarray) and memory.itemsize == 4 and memory.flags.carray
        return memory.nbytes if good else None  # type: ignore[attr-defined]

    def users_of(self, memory: Array, nbytes: int, moved: Mapping[int, Array]) -> set[int]:
        """Return the buffers whose arrays overlap the first `nbytes` of `memory`."""
        start, held = memory.ctypes.data, (*self.arrays.items(), *moved.items())
        return {b for b, a in held if a.ctypes.data < start + nbytes and start < a.ctypes.data + a.nbytes}

    def rebind(self, buffer: int, memory: Array) -> None:
        """Bind the buffer to another array: the calls of dispatches that read or write it are made anew."""
        home = self._home("memory", buffer)
        self.arrays[buffer] = memory.reshape(-1)[: home.size].view(home.dtype).reshape(home.shape)
        self.launches, self.update_launches, self.early_launches = (
            self._rebound(list, buffer) for list in (self.launches, self.update_launches, self.early_launches)
        )
        self.flushes = self._flushes()
        self.loss = None if self.plan.loss_buffer is None else self.arrays[self.plan.loss_buffer].reshape(-1)

    def _rebound(self, list: CpuRecorded, buffer: int) -> CpuRecorded:
        touched = (any(b == buffer for b, _ in bound.dispatch.bindings) for bound in list.bounds)
        made = zip(list.bounds, touched, strict=True)
        return self.queue.recorded_fused([self._bound([a.dispatch])[0] if new else a for a, new in made])

    def configure(self, update: Update) -> None:
        """Make the update's calls; new state starts at zero."""
        self._alive("configure")
        verify_update(self.plan, update)
        new = [b for b in update.buffers if b.id not in self.arrays]
        check_memory(sum(b.nbytes for b in new), new, free_bytes() if new else None)
        for b in update.buffers:
            if b.id not in self.arrays:
                self.arrays[b.id] = zeros(b.shape, b.dtype.numpy)
                self.arrays[b.id].fill(0)  # touches its pages now
        bounds = self._bound(update.dispatches)
        self.update_launches, self.early_launches = map(self.queue.recorded_fused, (bounds, bounds[: update.early]))
        self._touch_scratch()
        self.update = update
        self.flushes = self._flushes()
        self.given = None

    def step(
        self, scalars: Array | None, whole: bool = True, copies: Sequence[BufferCopy] = (),
        landing: Readback | None = None,
    ) -> None:  # fmt: skip
        """Run forward, backward, update and copies, now."""
        self._alive("step")
        self._set("step", scalars)
        if self.window is not None and landing is None:
            self._timed(whole)
        else:
            self.queue.submit("step", (self.launches, self._update_part(whole), *self._copy_items(copies)), landing)
            if copies:
                self.counters.landed(copies)
            self._flush(whole)
        self._count(landing is None)

    def step_in_parts(self, scalars: Array | None, parts: Sequence[StepPart]) -> Iterator[None]:
        """Run each part now."""
        self._alive("step")
        self._set("step", scalars)
        bounds, at = [*self.launches.bounds, *self.early_launches.bounds], 0
        for part in parts:
            self.queue.submit("step", [*bounds[at : part.stop], *self._copy_items(part.copies)], part.landing)
            self.counters.landed(part.copies)
            at = part.stop
            yield
        self.queue.submit("step", bounds[at:])
        self._count()

    def copy(self, copies: Sequence[BufferCopy], landing: Readback) -> None:
        """Run some copies, now."""
        self._alive("copy")
        self.queue.submit("copy", self._copy_items(copies), landing)
        self.counters.landed(copies)

    def _copy_items(self, copies: Sequence[BufferCopy]) -> Sequence[Copy]:
        """Return the copies between arrays."""
        return [Copy(self.arrays[c.source], c.start, self._target(c), c.at, c.nbytes) for c in copies]

    def _target(self, copy: BufferCopy) -> Array | Readback:
        return copy.target if isinstance(copy.target, Readback) else self.arrays[copy.target]

    def dispatch_under_way(self) -> int:
        """Return the running dispatch, as the queue knows it."""
        return self.queue.dispatch_under_way()

    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        """Run some dispatches, now."""
        self._alive("run")
        if scalars is not None:
            self._set("run", scalars)
        self.queue.finish("run", [*self.launches.bounds, *self.update_launches.bounds][start:stop])

    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        """Run the rest of the update, and count the step."""
        self._alive("step")
        self._set("step", scalars)
        self.queue.submit("step", self._update_part(whole).bounds[done:])
        self.queue.counters.dispatches += len(self.launches) + done
        self._flush(whole)
        self._count()

    def update_only(self, scalars: Array, start: int = 0) -> None:
        """Run the update with the gradients of the last step, without its first `start` dispatches."""
        self._alive("update")
        self._set("update", scalars)
        self.queue.submit("update", self.update_launches.bounds[start:] if start else (self.update_launches,))
        self._flush(True)

    def profile(self, window: tuple[int, int] | None) -> str:
        """Time the window by the clock of this machine."""
        self._alive("profile")
        self.window = window
        return ""

    def timings(self) -> list[tuple[int, float]]:
        """Return the times of the last step that was timed."""
        return list(self.times)

    def _set(self, where: str, scalars: Array | None) -> None:
        if scalars is None:
            if self.update_launches or self.reads_scalars:
                raise SessionError(where, "scalars", "none", f"{len(SCALARS)} numbers: {', '.join(SCALARS)}")
            return
        if scalars is self.given:  # the session hands over the same array as long as no number changes
            return
        self.queue.set_scalars(where, scalars)
        self.given = scalars

    def _update_part(self, whole: bool) -> CpuRecorded:
        return self.update_launches if whole else self.early_launches

    def _flush(self, whole: bool) -> None:
        if not whole or not self.flushes:
            return
        self.updates += 1
        if self.updates % FLUSH_EVERY == 0:
            run(self.flushes)

    def _flushes(self) -> list[NumpyCall]:
        """Return the calls that flush the moments, four passes over each."""
        moments = [self.arrays[b] for _, *pair in self.update.moments for b in pair]
        return flat(beside(spread([((flush, (m,)), 4 * m.size) for m in moments])))

    def _timed(self, whole: bool) -> None:
        """Run a step that reads the clock after each dispatch of the window."""
        assert self.window is not None  # the caller looked
        bounds = [*self.launches.bounds, *self._update_part(whole).bounds]
        start, stop = self.window[0], min(self.window[1], len(bounds))
        items: list[Item] = [Stamp(0)]
        for index, bound in enumerate(bounds):
            items += [bound, Stamp(index + 1)]
        self.queue.submit("step", items)
        self._flush(whole)
        stamps = self.queue.stamps
        self.times = [(index, stamps[index + 1] - stamps[index]) for index in range(start, stop)]

    def _count(self, with_loss: bool = True) -> None:
        counters = self.queue.counters
        counters.forwards += 1
        if self.loss is not None and with_loss:
            self.readable.append((counters.forwards, float(self.loss[0])))

    def losses(self, wait: bool) -> list[tuple[int, float]]:
        """Return all losses since the last call."""
        self._alive("losses")
        found = list(self.readable)
        self.readable.clear()
        return found

    def wait(self) -> None:
        """Return at once: nothing is ever in flight."""
        self._alive("wait")
        self.queue.wait()

    def poison(self) -> None:
        """Fill every slot of intermediates with NaN."""
        self._alive("poison")
        pinned = {self.plan.memory.slot_of[b] for b in self.plan.memory.pinned}
        for slot, data in enumerate(self.slots):
            if slot not in pinned:
                data.view(np.float32)[...] = np.nan

    def close(self) -> None:
        """Drop calls and arrays."""
        self.open = False
        self._rest()
        self.slots, self.arrays = [], {}
        self.launches = self.update_launches = self.early_launches = self.queue.recorded([])

    def _alive(self, where: str) -> None:
        if not self.open:
            raise SessionError(where, "program", "closed", "an open one")

    def _dtype(self, buffer: int) -> DType:
        return self.plan.buffers[buffer].dtype if buffer < len(self.plan.buffers) else DType.f32  # states are f32

    def _home(self, where: str, buffer: int) -> Array:
        self._alive(where)
        if buffer not in self.arrays:
            raise ArgumentError(where, "buffer", buffer, f"one of the {len(self.arrays)} buffers of this program")
        return self.arrays[buffer]


def _turn(plan: ExecutionPlan, shared: SharedBuffers | None) -> OwnerThread:
    """Return a new owner thread; or that of the program whose parameters it shares, if one of the two trains them."""
    other = None if shared is None else shared.program
    if other is not None and "training" in (plan.mode, other.plan.mode):
        return other.turn
    return OwnerThread("device")


def _slots(plan: ExecutionPlan, shared: SharedBuffers | None) -> list[Array]:
    """Return one zeroed array per slot; for a shared buffer, which is pinned and so alone in it, the other's."""
    taken: dict[int, Array] = {}
    if shared is not None:
        assert isinstance(shared.program, CpuProgram)  # of the same device, says `Device.load`
        there = shared.program
        taken = {plan.memory.slot_of[b]: there.slots[there.plan.memory.slot_of[o]] for b, o in shared.buffers}
    sizes = [slot.nbytes // 4 for slot in plan.memory.slots]
    for b in plan.buffers:
        if b.dtype.is_storage:
            slot = plan.memory.slot_of[b.id]
            sizes[slot] = max(sizes[slot], math.prod(b.shape))
    return [taken[i] if i in taken else zeros((size,), np.uint32) for i, size in enumerate(sizes)]


def _blocks(plan: ExecutionPlan, shared: SharedBuffers | None) -> dict[int, Array]:
    """Return the words of every buffer of blocks, which are kept beside the values in its slot."""
    blocks = {b.id: zeros((b.nbytes // 4,), np.uint32) for b in plan.buffers if b.dtype.in_blocks}
    for b, other in shared.buffers if shared is not None else ():
        if b in blocks:
            assert shared is not None and isinstance(shared.program, CpuProgram)  # as in `_slots`
            blocks[b] = shared.program.blocks[other]
    return blocks


def _tensor(slot: Array, offset: int, buffer: PlanBuffer) -> Array:
    dtype = np.dtype(np.float32) if buffer.dtype.is_storage else buffer.dtype.numpy
    return slot[offset // 4 :][: math.prod(buffer.shape)].view(dtype).reshape(buffer.shape)
