"""Submit work to an adapter: the only module that does. Lists go in growing parts once they have run whole.

Knows wgpu only through the `Gpu` it is given.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import CapabilityError, SessionError
from gdlab.base.types import Array
from gdlab.devices.base import (
    IN_FLIGHT,
    STAMP_BYTES,
    Bound,
    Clear,
    Copy,
    Item,
    Queue,
    QueueCounters,
    Recorded,
    RecordedPart,
    Region,
    Stamp,
)
from gdlab.devices.buffer_pool import size_class
from gdlab.devices.wgpu.expected_numbers import ExpectedNumbers, NumbersAhead
from gdlab.devices.wgpu.pass_recording import RecordedRows, Row, record_pass
from gdlab.devices.wgpu.readback import SUCCESS, Fence, Mapped, Pace, WgpuReadback
from gdlab.devices.wgpu.transitions import group_starts, naming, read_ahead, uses_of
from gdlab.plan.dispatch import OWN_SCALARS, SCALARS, Dispatch
from gdlab.plan.target import Target

if TYPE_CHECKING:
    from gdlab.devices.wgpu.stamps import Stamps
    from gdlab.devices.wgpu.wgpu_device import Gpu

FIRST_PART = 32  # dispatches of the first part of a list; each further one has twice as many
NEAR = 8  # dispatches by which a part may be longer
PART_BYTES, PARTS = 2 << 20, 4  # of a large tensor that is read: bytes of a part, and parts under way
FLUSH_BYTES = 4 << 20  # of writes: unsubmitted ones pile up staging memory
# of what is recorded ahead: to drop it takes its time, and as much memory as it writes
AHEAD_FLOPS, AHEAD_BYTES = {"software": 1 << 27, "hardware": 1 << 38}, 512 << 20


class WgpuRecorded(Recorded):
    """A list of dispatches as rows of the C loop's table; on hardware with rows between them that name what a group
    reads. `bounds` keep pipelines and bind groups alive; the rows of dispatch i begin at `starts[i]`."""

    def __init__(self, gpu: Gpu, bounds: Sequence[Bound]) -> None:
        self.gpu, self.bounds, self.whole, self.pace = gpu, tuple(bounds), False, Pace()
        uses = [uses_of(bound) for bound in bounds] if gpu.names_reads and len(bounds) > 1 else []
        self.groups = group_starts(uses)
        ahead = read_ahead(uses, self.groups)
        rows, self.starts, self.keep = list[Row](), list[int](), list[Any]()
        for i, bound in enumerate(bounds):
            self.starts.append(len(rows))
            for row, keep in naming(gpu, ahead[i]) if i in ahead else ():
                rows.append(row)
                self.keep.append(keep)
            rows.append(bound.run)
        self.starts.append(len(rows))
        self.rows, self.count = RecordedRows(gpu, rows), len(self.bounds)
        each = (math.prod(bound.run[2:]) for bound in self.bounds)
        self.workgroups = list(itertools.accumulate(each, initial=0))  # of all dispatches before one

    @cached_property
    def ahead(self) -> int:
        """The number of its dispatches that are recorded ahead: all, a third of a long list, less, or none, as is
        cheap. However long that is, the adapter begins at once, and pauses only behind it (`xfM` with Adam, 378
        dispatches, waited for: of 129 instead of 32 at first 13.15 to 13.17 ms instead of 13.22 to 13.24, NVIDIA H200,
        2026-11-28, losses taken behind the next step included)."""
        third, count = len(self) // 3, len(self)
        parts = [third >> k for k in range(third.bit_length()) if third >> k > FIRST_PART]
        stops = [_group_start(self.groups, part) for part in (*parts, *self._ends[:1])]
        return next((stop for stop in (count, *stops) if self._is_cheap(self.bounds[:stop])), 0)

    def _is_cheap(self, bounds: Sequence[Bound]) -> bool:
        nbytes = sum(int(memory.size) for memory in _memory_written(bounds))
        flops = sum(bound.dispatch.flops for bound in bounds)
        return flops <= AHEAD_FLOPS[self.gpu.adapter_class] and nbytes <= AHEAD_BYTES

    def cuts(self, ahead: bool = False) -> list[int]:
        """Return the ends of the parts to submit it in, once it has run whole; `ahead`: where the first is recorded
        ahead."""
        if not self.whole:
            return []
        return self._ends_behind if ahead else self._ends

    @cached_property
    def _ends(self) -> list[int]:
        return _part_ends(len(self), self.groups, FIRST_PART)

    @cached_property
    def _ends_behind(self) -> list[int]:
        """The ends of its parts where the first is what is recorded ahead."""
        return _part_ends(len(self), self.groups, self.ahead) if self.ahead else self._ends


@dataclass(slots=True)
class CommandsAhead:
    """A finished command buffer that must be submitted, once: as a step, or the beginning of one, by `submit_ahead`, or
    without effect by `spend`. wgpu-native (29) never releases a finished command buffer that was not submitted, nor
    what it names. `items` and `readback` are those of the whole step: the command buffer has the first of its `parts`,
    the others are recorded once that is submitted. Where the numbers of the step change, it copies them from
    `numbers`, or, if nobody expects any, from the mapped buffer `upload`, to be filled before."""

    queue: WgpuQueue
    commands: Any
    items: Sequence[Item]
    parts: Sequence[Sequence[Item]]
    readback: WgpuReadback | Fence
    numbers: NumbersAhead | None
    upload: Mapped | None

    @property
    def is_submitted(self) -> bool:
        """Whether it was submitted, or released."""
        return self.commands is None

    def taken(self) -> Any:
        """Return the command buffer, which is the caller's to submit now."""
        commands, self.commands = self.commands, None
        return commands

    @property
    def written(self) -> list[Any]:
        """The memory that it writes, but for its readback."""
        numbers = [] if self.numbers is None and self.upload is None else [self.queue.scalars]
        bounds = [b for item in self.parts[0] if isinstance(item, (Recorded, RecordedPart)) for b in item.bounds]
        return list(dict.fromkeys([*numbers, *_memory_written(bounds)]))


def _memory_written(bounds: Iterable[Bound]) -> list[Any]:
    """Return the memory that dispatches write."""
    uses = (use for bound in bounds for use in uses_of(bound).values())
    return list(dict.fromkeys(use.region.memory for use in uses if use.written))


def _group_start(starts: Sequence[int], stop: int) -> int:
    """Return the start of a group where one is near behind `stop`, else `stop`."""
    return next((start for start in starts if stop <= start < stop + NEAR), stop)


def _part_ends(count: int, starts: Sequence[int], first: int) -> list[int]:
    """Return the ends of parts of `count` dispatches: `first`, then twice as many each time; at the start of a group
    where one is near, since a submission waits for the one before."""
    found, stop, size = list[int](), first, first
    while stop + FIRST_PART <= count:
        near = _group_start(starts, stop)
        found.append(near if near + FIRST_PART <= count else stop)
        size *= 2
        stop = found[-1] + size
    return found


class WgpuQueue(Queue):
    """The queue of one program or door on an adapter. `flying`: readbacks of the steps in flight, oldest first."""

    def __init__(self, gpu: Gpu, depth: int = IN_FLIGHT, counters: QueueCounters | None = None) -> None:
        self.gpu, self.depth, self.counters = gpu, depth, QueueCounters() if counters is None else counters
        self.flying: deque[WgpuReadback | Fence] = deque()
        self.stamps: Stamps | None = None
        self.scalars = gpu.buffer(4 * (len(SCALARS) + OWN_SCALARS))
        self._scalars_handle = self.scalars._internal
        self._written: Array | None = None  # scalars
        self.changing = False  # whether the last numbers were others than those before
        self.expected = ExpectedNumbers(self)
        self.uploads: deque[Mapped] = deque()  # for numbers that nobody expects

    # memory -----------------------------------------------------------------------------------------------------------
    def make(self, nbytes: int, name: str = "") -> Any:
        """Return a device buffer of the pool."""
        created = self.gpu.tensors.created
        number, memory = self.gpu.tensors.take(size_class(nbytes))
        self.counters.buffers_created += self.gpu.tensors.created - created
        self.gpu.numbers[memory] = number
        return memory

    def release(self, memory: Any) -> bool:
        """Release memory to the pool."""
        number = self.gpu.numbers.pop(memory, None)
        return number is not None and self.gpu.tensors.give(int(memory.size), number, memory)

    @property
    def free_bytes(self) -> int:
        """Free bytes of the pool."""
        return self.gpu.tensors.free_bytes

    def collect(self) -> int:
        """Drop the free memory of the pool, which all queues of the adapter share."""
        return self.gpu.tensors.clear()

    def readback(self, nbytes: int) -> WgpuReadback:
        """Return a mapped buffer of the pool."""
        created = self.gpu.readbacks.created
        number, mapped = self.gpu.readbacks.take(size_class(nbytes))
        self.counters.buffers_created += self.gpu.readbacks.created - created
        return WgpuReadback(number, mapped, nbytes)

    def write(self, where: str, memory: Any, data: Any, start: int = 0) -> None:
        """Write through the queue's own staging memory, in parts."""
        self.counters.uploaded(memoryview(data).nbytes)
        self.put(where, memory, data, start)

    def put(self, where: str, memory: Any, data: Any, start: int = 0) -> None:
        """Write as `write` does, without counting it as a tensor."""
        gpu, source = self.gpu, self.gpu.ffi.from_buffer(data)
        gpu.holding.settle()
        for at in range(0, len(source), FLUSH_BYTES):
            nbytes = min(FLUSH_BYTES, len(source) - at)
            with gpu.checked(where):
                gpu.raw.QueueWriteBuffer(gpu.q, memory._internal, start + at, source + at, nbytes)
            gpu.pending += nbytes
            if gpu.pending >= FLUSH_BYTES:
                self.send(gpu.record(where, lambda encoder: None))
                gpu.poll()

    def read(self, where: str, memory: Any, into: memoryview, start: int = 0) -> None:
        """Read in parts, several of which are in flight."""
        under_way: deque[tuple[int, WgpuReadback]] = deque()
        for at in range(0, len(into), PART_BYTES):
            nbytes = min(PART_BYTES, len(into) - at)
            if len(under_way) == PARTS:
                first, part = under_way.popleft()
                part.take(into[first : first + part.nbytes])
            part = self.readback(nbytes)
            padded = -(-nbytes // 4) * 4
            submission = self._run(where, [Copy(memory, start + at, part, 0, padded)])
            with self.gpu.checked(where):
                part.request(where, submission)
            under_way.append((at, part))
        for first, part in under_way:
            part.take(into[first : first + part.nbytes])
        self.counters.read_back(len(into))

    # kernels ----------------------------------------------------------------------------------------------------------
    def bind(self, where: str, dispatch: Dispatch, target: Target, memory: Mapping[int, Region]) -> Bound:
        """Compile the kernel, unless it is known, and bind it."""
        pipeline = self.gpu.kernel(where, dispatch, target, self.counters)
        regions = [memory[b] for b, _ in dispatch.bindings]
        if dispatch.scalars:
            regions.append(Region(self.scalars, 0, int(self.scalars.size)))
        group = self.gpu.group(where, pipeline, regions)
        self.counters.bindings_created += 1
        row: Row = (pipeline.raw, group._internal, *dispatch.workgroups)
        return Bound(dispatch, row, (pipeline, group, tuple(regions)))

    def recorded(self, bounds: Sequence[Bound]) -> WgpuRecorded:
        """Return the dispatches as rows of a table."""
        return WgpuRecorded(self.gpu, bounds)

    def set_scalars(self, where: str, numbers: Array | None) -> None:
        """Write the numbers, if any; nothing where they are the very array of the last call. Raises once the device is
        lost."""
        self.changing = numbers is not None and numbers is not self._written
        if numbers is None or not self.changing:
            return self.check_alive(where)
        self.expected.pass_by(numbers)
        self.put(where, self.scalars, np.ascontiguousarray(numbers, np.float32))
        self._written = numbers

    def check_alive(self, where: str) -> None:
        """Raise once the device is lost, after which a submission would end the process: by a write of nothing, which
        takes 2 µs."""
        with self.gpu.checked(where):
            self._write_nothing()

    def _write_nothing(self) -> None:
        gpu = self.gpu
        gpu.raw.QueueWriteBuffer(gpu.q, self._scalars_handle, 0, gpu.null, 0)

    def scalar_copies(self, where: str, steps: Sequence[Array | None]) -> tuple[list[list[Copy]], list[Any]]:
        """Return for each of several steps the copies that write its numbers, and their source memory, to be released
        once they are submitted. Call `scalars_are` then."""
        changed = [numbers for numbers, last in zip(steps, [self._written, *steps], strict=False)
                   if numbers is not None and numbers is not last]  # fmt: skip
        if not changed:
            return [[] for _ in steps], []
        table = np.ascontiguousarray(changed, np.float32)
        memory, rows, last, found = self.make(table.nbytes), iter(range(len(changed))), self._written, []
        self.put(where, memory, table)
        for numbers in steps:
            new, nbytes = numbers is not None and numbers is not last, table[0].nbytes
            found.append([Copy(memory, next(rows) * nbytes, self.scalars, 0, nbytes, counted=False)] if new else [])
            last = numbers
        return found, [memory]

    def expect(self, rows: Sequence[Array]) -> None:
        """Take note of the numbers of the next steps: these very arrays, in this order, unless something changes."""
        self.expected.rows, self.expected.place, self.expected.written = rows, 0, False

    def scalars_are(self, numbers: Array | None) -> None:
        """Remember the numbers that the last submission leaves in place."""
        self._written = numbers

    # work -------------------------------------------------------------------------------------------------------------
    def submit(
        self, where: str, items: Sequence[Item], readback: Any = None, cuts: Sequence[int] | None = None,
        counted: bool = True,
    ) -> None:  # fmt: skip
        """Throttle, record, submit, and request the readback. Not `counted`: all but the submission is counted."""
        pace = None
        if readback is not None:
            self._throttle()
            pace = self._pace_of(items)
        parts = list(_growing(items)) if cuts is None else [items[a:b] for a, b in _pairs(cuts, len(items))]
        if cuts is None and len(parts) > 1 and self._is_busy():
            parts = [items]
        submission = 0
        for part in parts:
            submission = self._run(where, part)
        self.counters.submissions += len(parts)
        for item in items if counted else ():
            self.count(item)
        if readback is not None:
            with self.gpu.checked(where):
                readback.request(where, submission)
            readback.pace = pace
            self.flying.append(readback)
        self.gpu.poll()

    def ahead(self, where: str, items: Sequence[Item], readback: WgpuReadback | Fence) -> CommandsAhead:
        """Record items that `submit_ahead` submits, once, behind the numbers of their step where these change; their
        end is that of the readback. Of a long list only the first part is recorded."""
        whole = all(item.ahead == item.count for item in items if type(item) is WgpuRecorded)
        parts = [items] if whole else list(_growing(items, ahead=True))
        first, upload = parts[0], None
        numbers = self.expected.next(where) if self.changing else None
        if numbers is not None:
            first = [self.expected.copy(numbers), *first]
        elif self.changing:
            upload = self._upload()
            first = [Copy(upload.owner, 0, self.scalars, 0, upload.nbytes, counted=False), *first]
        commands = self.gpu.record(where, partial(self._encode, first))
        return CommandsAhead(self, commands, items, parts, readback, numbers, upload)

    def _upload(self) -> Mapped:
        """Return a mapped buffer for the numbers of a step."""
        if self.uploads and self.uploads[0].status == SUCCESS:
            return self.uploads.popleft()
        self.counters.buffers_created += 1
        return Mapped(self.gpu, int(self.scalars.size), upload=True)

    def submit_ahead(self, where: str, ahead: CommandsAhead, numbers: Array | None, counted: bool = True) -> None:
        """Submit what was recorded ahead, with the numbers of its step, and what is left of the step; request its
        readback."""
        self._throttle()
        upload, pace, gpu = ahead.upload, self._pace_of(ahead.items), self.gpu
        self.changing = numbers is not None and numbers is not self._written
        given = self._written if numbers is None else numbers  # a step without numbers leaves those of the last one
        if given is None:
            given = np.zeros(int(self.scalars.size) // 4, np.float32)
        if ahead.numbers is not None:
            self.expected.make_right(where, ahead.numbers, given)
        elif upload is None and self.changing:
            self.put(where, self.scalars, np.ascontiguousarray(given, np.float32))
        with gpu.checked(where) as calls:  # one for all
            self._write_nothing()
            calls.raise_error()  # the device is lost: nothing may be submitted
            if upload is not None:
                upload.fill(np.ascontiguousarray(given, np.float32))
            if numbers is not None:
                self._written = numbers
                if self.changing:
                    self.expected.pass_by(numbers)
            rest = ahead.parts[1:]
            if len(rest) > 1 and self._is_busy():
                rest = [_joined(rest)]
            try:
                submission = self.send(ahead.taken())
                for part in rest:
                    submission = self._run(where, part)
            except BaseException:
                ahead.readback.release()
                raise
            self.counters.submissions += 1 + len(rest)
            for item in ahead.items if counted else ():
                self.count(item)
            ahead.readback.request(where, submission)
            if upload is not None:
                self._take_back(upload)
        ahead.readback.pace = pace
        self.flying.append(ahead.readback)

    def _is_busy(self) -> bool:
        """Return whether the adapter has something else to do first. Then there is time to record a step whole: each
        submission costs it a pause (`xfM` with Adam in turn after turn, NVIDIA H200: 13.07 ms a step in four parts,
        13.00 in one, 2026-11-28)."""
        self.gpu.poll()
        return self.gpu.ended != self.gpu.submitted

    def _pace_of(self, items: Sequence[Item]) -> Pace | None:
        """Return the pace of the list that is about to be submitted, if it is one and the adapter has nothing else to
        do."""
        if self.gpu.adapter_class != "hardware" or self.gpu.ended != self.gpu.submitted:
            return None
        lists = [item for item in items if type(item) is WgpuRecorded]
        if len(lists) != 1:
            return None
        lists[0].pace.begun = time.perf_counter()
        return lists[0].pace

    def spend(self, where: str, ahead: CommandsAhead) -> None:
        """Submit what was recorded ahead without effect: between copies of the memory that it writes, there and back.
        Of a lost device, and where there is no memory for the copies, it is released only, which frees nothing."""
        gpu, there, back = self.gpu, list[Copy](), list[Copy]()
        try:
            for memory in ahead.written:
                copy, size = self.make(int(memory.size)), int(memory.size)
                there.append(Copy(memory, 0, copy, 0, size))
                back.append(Copy(copy, 0, memory, 0, size))
            before, after = (gpu.record(where, partial(self._encode, copies)) for copies in (there, back))
            if ahead.upload is not None:
                ahead.upload.fill(np.zeros(ahead.upload.nbytes // 4, np.float32))
            self.send(before, ahead.taken(), after)
            if ahead.upload is not None:
                with gpu.checked(where):
                    self._take_back(ahead.upload)
        except SessionError:
            if not ahead.is_submitted:
                gpu.raw.CommandBufferRelease(ahead.taken())
        for copy in back:
            self.release(copy.source)
        ahead.readback.release()

    def _take_back(self, upload: Mapped) -> None:
        upload.map(upload.nbytes)
        self.uploads.append(upload)

    def finish(self, where: str, items: Sequence[Item]) -> None:
        """Run the items and wait for them, without counting them."""
        self.gpu.poll(self._run(where, items))

    def move(self, where: str, copies: Sequence[Copy]) -> None:
        """Submit copies that are no part of a step, without counting or waiting."""
        self._run(where, copies)

    def rehearse(self, where: str, items: Sequence[Item]) -> None:
        """Record the items, and throw the recording away."""
        self.gpu.raw.CommandBufferRelease(self.gpu.record(where, partial(self._encode, items)))

    def wait(self) -> None:
        """Wait for the steps in flight."""
        self.counters.waits += 1
        while self.flying:
            self.flying[0].wait()
            self.flying.popleft()

    def check_stamps(self, where: str, dispatches: int) -> None:
        """Raise where the adapter has no timestamps, or a set holds fewer."""
        from gdlab.devices.wgpu.stamps import MOST, Stamps

        if self.gpu.no_stamps:
            raise CapabilityError(where, "timestamps", self.gpu.no_stamps, "an adapter with them, or device='cpu'")
        if dispatches > MOST:
            raise SessionError(where, "dispatches", f"{dispatches:,}", f"at most {MOST:,} that are timed")
        if self.stamps is None:
            self.stamps = Stamps(self.gpu)

    def stamps_into(self, dispatches: int, into: Any, at: int) -> list[Any]:
        """Return the items that resolve the stamps and copy them."""
        from gdlab.devices.wgpu.stamps import Resolve

        if not dispatches:
            return []
        assert self.stamps is not None  # `check_stamps` made them
        nbytes = STAMP_BYTES * dispatches
        return [Resolve(2 * dispatches), Copy(self.stamps.resolved, 0, into, at, nbytes)]

    def stamped_seconds(self, dispatches: int, data: memoryview) -> list[tuple[float, float]]:
        """Return times from ticks of the device's clock."""
        assert self.stamps is not None
        return self.stamps.pairs(dispatches, data)

    def retire(self, readback: WgpuReadback) -> None:
        """Release a readback that has been waited for."""
        if readback in self.flying:
            self.flying.remove(readback)
        readback.release()

    def _throttle(self) -> None:
        while self.flying and (len(self.flying) >= self.depth or self.flying[0].ready):
            self.counters.throttle_waits += not self.flying[0].ready
            self.flying[0].wait()
            self.flying.popleft()

    def count(self, item: Item) -> None:
        """Count an item that is submitted."""
        if type(item) is WgpuRecorded:  # of every step: a pattern takes twice as long
            item.whole = True
            self.counters.dispatches += item.count
            self.counters.workgroups += item.workgroups[-1]
            return
        match item:
            case RecordedPart(WgpuRecorded() as list):
                self.counters.dispatches += len(item)
                self.counters.workgroups += list.workgroups[item.stop] - list.workgroups[item.start]
            case Bound():
                _, _, x, y, z = item.run
                self.counters.dispatches += 1
                self.counters.workgroups += x * y * z
            case Copy():
                self.counters.copies += item.counted and not isinstance(item.target, WgpuReadback)

    def _run(self, where: str, items: Sequence[Item]) -> int:
        return self.send(self.gpu.record(where, partial(self._encode, items)))

    def send(self, *commands: Any) -> int:
        """Submit finished command buffers, once, and release them."""
        gpu = self.gpu
        gpu.holding.settle()
        gpu.pending, raw, array = 0, gpu.raw, gpu.one_command
        if len(commands) == 1:
            array[0] = commands[0]
        else:
            array = gpu.ffi.new("WGPUCommandBuffer[]", commands)
        gpu.submitted = submission = int(raw.QueueSubmitForIndex(gpu.q, len(commands), array))
        for each in commands:
            raw.CommandBufferRelease(each)
        return submission

    # recording --------------------------------------------------------------------------------------------------------
    def _encode(self, items: Sequence[Any], encoder: Any) -> None:
        if self.stamps is not None and any(isinstance(item, Stamp) for item in items):
            return self.stamps.encode(items, encoder, self.encode_transfer)
        rows: list[Row] = []
        for item in items:
            kind = type(item)
            if kind is Bound:
                rows.append(item.run)
                continue
            if rows:
                record_pass(self.gpu, rows, encoder)
                rows = []
            if kind is WgpuRecorded:
                record_pass(self.gpu, item.rows, encoder)
            elif kind is RecordedPart:
                list = item.list
                record_pass(self.gpu, list.rows, encoder, list.starts[item.start], list.starts[item.stop])
            else:
                self.encode_transfer(item, encoder)
        if rows:
            record_pass(self.gpu, rows, encoder)

    def encode_transfer(self, item: Any, encoder: Any) -> None:
        """Record a copy or a clear."""
        raw = self.gpu.raw
        if type(item) is Clear:
            return raw.CommandEncoderClearBuffer(encoder, item.memory._internal, 0, item.memory.size)  # type: ignore[no-any-return]
        into = item.target.mapped.handle if type(item.target) is WgpuReadback else item.target._internal
        raw.CommandEncoderCopyBufferToBuffer(encoder, item.source._internal, item.start, into, item.at, item.nbytes)


def _joined(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the items of several parts, with neighbouring parts of a list as one."""
    found: list[Any] = []
    for item in (item for part in parts for item in part):
        last = found[-1] if found else None
        if isinstance(item, RecordedPart) and isinstance(last, RecordedPart) and last.list is item.list:
            found[-1] = RecordedPart(item.list, last.start, item.stop)
        else:
            found.append(item)
    return found


def _growing(items: Sequence[Item], ahead: bool = False) -> Iterable[Sequence[Any]]:
    """Cut lists that have run whole into growing parts; items between lists go with the next part. `ahead`: the first
    is recorded ahead."""
    part: list[Any] = []
    for item in items:
        cuts = item.cuts(ahead) if isinstance(item, WgpuRecorded) else []
        if not cuts:
            part.append(item)
            continue
        assert isinstance(item, WgpuRecorded)  # nothing else has cuts
        for start, stop in _pairs(cuts, len(item)):
            part.append(RecordedPart(item, start, stop))
            if stop < len(item):
                yield part
                part = []
    yield part


def _pairs(cuts: Sequence[int], end: int) -> list[tuple[int, int]]:
    places = [0, *cuts, end]
    return list(zip(places, places[1:], strict=False))
