"""Define the interface of a device, cpu or wgpu, and the owner thread that all device work runs on."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.threads import OwnerThread
from gdlab.base.types import Array, DType
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.plan.target import Target


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The kind of a device, its adapter, and `reason`, a sentence that says why it was chosen. `automatic`: it is the
    one that `"auto"` stands for on this machine."""

    kind: str
    name: str
    adapter_class: str
    reason: str
    automatic: bool = False

    def __str__(self) -> str:
        return f"{self.kind}, {self.name}" + (f" ({self.adapter_class} adapter)" if self.kind == "wgpu" else "")


@dataclass(slots=True)
class QueueCounters:
    """Totals of a queue, counted where its work is done. `forwards`: steps; `submissions`: a step may be submitted in
    parts; `uploads` and `readbacks`: tensors; `copies`: on the device; `waits`: until nothing is in flight;
    `throttle_waits`: for the oldest of too many steps; `*_created`: objects made, which a steady state does not."""

    forwards: int = 0
    dispatches: int = 0
    workgroups: int = 0
    submissions: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    readbacks: int = 0
    readback_bytes: int = 0
    copies: int = 0
    waits: int = 0
    throttle_waits: int = 0
    buffers_created: int = 0
    pipelines_created: int = 0
    bindings_created: int = 0
    pieces_created: int = 0

    def uploaded(self, nbytes: int) -> None:
        """Count an uploaded tensor of `nbytes` bytes."""
        self.uploads += 1
        self.upload_bytes += nbytes

    def read_back(self, nbytes: int) -> None:
        """Count a tensor of `nbytes` bytes that was read back."""
        self.readbacks += 1
        self.readback_bytes += nbytes

    def landed(self, copies: Sequence[BufferCopy]) -> None:
        """Count the bytes that the copies of a step bring into a readback."""
        for copy in copies:
            if isinstance(copy.target, Readback):
                self.read_back(copy.nbytes)

    def as_dict(self) -> dict[str, int]:
        """Return all totals by name, as a new dict."""
        return {name: getattr(self, name) for name in self.__slots__}


KEPT = 1 << 16  # losses that nobody has taken yet: a script that only steps holds no more of them
IN_FLIGHT = 2  # steps
EXPECTED = 32  # steps whose numbers a program is told ahead, at most


# items of a submission ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A dispatch with its memory, ready to run. `run`: what the device executes; `keep` owns its handles."""

    dispatch: Dispatch
    run: Any
    keep: Any = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `nbytes` bytes (a multiple of 4) of `source`, from `start` on, to place `at` of memory or a `Readback`.
    Not `counted`: it stands for a write that the caller counts."""

    source: Any
    start: int
    target: Any
    at: int
    nbytes: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Clear:
    """A fill of memory with zeros."""

    memory: Any


@dataclass(frozen=True, slots=True)
class Decode:
    """A decoding, for queues on cpu: fill `target`, the array that `decoded(key, …)` returned, from the words of
    `source`, `nbytes` bytes from `start` on, unless it holds this `version` of them. With a `stride` every matrix of
    the array (its first axis) begins so many bytes behind the one before."""

    key: Any
    version: int
    target: Array
    source: Any
    start: int
    nbytes: int
    dtype: DType
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Encode:
    """An encoding, for queues on cpu: write an array in a storage dtype as words of `target`, from byte `start` on."""

    source: Array
    target: Any
    start: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Stamp:
    """A timestamp of the device, stored as number `index` of the queue's stamps."""

    index: int


class Recorded:
    """A list of dispatches that is submitted again and again, prepared once. `whole`: they were submitted without an
    error before, so that they may go in parts from now on."""

    bounds: tuple[Bound, ...]
    whole: bool = False

    def __len__(self) -> int:
        return len(self.bounds)


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """Dispatches start … stop − 1 of a prepared list, for queues on wgpu."""

    list: Recorded
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The dispatches of the part."""
        return self.list.bounds[self.start : self.stop]


Item = Bound | Copy | Clear | Decode | Encode | Stamp | Recorded | RecordedPart
STAMP_BYTES = 16  # of a dispatch: its begin and its end


def stamped(items: Iterable[Item]) -> list[Item]:
    """Return the items with stamps 2k and 2k + 1 around dispatch k."""
    found, count = list[Item](), 0
    for item in items:
        if isinstance(item, Bound):
            found += [Stamp(2 * count), item, Stamp(2 * count + 1)]
            count += 1
        else:
            found.append(item)
    return found


class Readback(ABC):
    """Memory that the caller reads: filled by `Copy` items, readable after `wait`, until `release`."""

    nbytes: int

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the copied bytes have arrived, as far as is known without asking the device."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the copied bytes have arrived."""

    @abstractmethod
    def view(self) -> memoryview:
        """Return the bytes; valid until `release`. Call `wait` first."""

    @property
    @abstractmethod
    def address(self) -> int:
        """The address of the first byte, until `release`."""

    @abstractmethod
    def release(self) -> None:
        """Release the memory to its queue's pool."""


class Queue(ABC):
    """The one way to a device: memory, kernels bound to it, and lists of work in order. All methods are called in the
    turn of the device (`Device.turn`). At most `depth` submissions with a readback (steps) are in flight."""

    depth: int
    counters: QueueCounters

    @abstractmethod
    def make(self, nbytes: int, name: str = "") -> Any:
        """Return device memory of at least `nbytes` bytes, a multiple of 256, with undefined contents. `name` is for
        errors."""

    @abstractmethod
    def release(self, memory: Any) -> bool:
        """Release memory of `make`, to be used again at its size; work submitted before still runs. Return whether it
        is kept: beyond some megabytes it is dropped."""

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes of memory that is free and cached."""

    @abstractmethod
    def collect(self) -> int:
        """Drop the free memory, and return its bytes."""

    @abstractmethod
    def write(self, where: str, memory: Any, data: Any, start: int = 0) -> None:
        """Write bytes from `start` on: after everything submitted before, and before everything after."""

    @abstractmethod
    def read(self, where: str, memory: Any, into: memoryview, start: int = 0) -> None:
        """Fill `into` with bytes of memory from `start` on, after everything submitted so far."""

    @abstractmethod
    def bind(self, where: str, dispatch: Dispatch, target: Target, memory: Mapping[int, Region]) -> Bound:
        """Prepare a dispatch over the regions of its buffers."""

    @abstractmethod
    def recorded(self, bounds: Sequence[Bound]) -> Recorded:
        """Prepare a list of dispatches to be submitted again and again."""

    @abstractmethod
    def set_scalars(self, where: str, numbers: Array) -> None:
        """Write the per-step numbers that kernels of the next submission read, float32 in `SCALARS` order."""

    @abstractmethod
    def readback(self, nbytes: int) -> Readback:
        """Return memory that results can be copied into."""

    @abstractmethod
    def submit(
        self, where: str, items: Sequence[Item], readback: Readback | None = None, cuts: Sequence[int] | None = None
    ) -> None:
        """Run the items in order. With a readback they count as a step: one that would be more than `depth` in flight
        waits for the oldest first, and the readback tells when this one has ended. `cuts`: where to submit in parts,
        as positions in `items`; None: as it pleases, `Recorded` items in growing parts once they have run whole."""

    @abstractmethod
    def finish(self, where: str, items: Sequence[Item]) -> None:
        """Run the items and wait for them. Counts nothing: for parts of steps and for what is no step."""

    @abstractmethod
    def rehearse(self, where: str, items: Sequence[Item]) -> None:
        """Raise the errors that `submit` would raise for these items before it submits them; run nothing."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until nothing is in flight."""

    @abstractmethod
    def check_stamps(self, where: str, dispatches: int) -> None:
        """Raise `SessionError` where so many dispatches of one submission cannot be timed; else prepare for it."""

    @abstractmethod
    def stamps_into(self, dispatches: int, into: Readback, at: int) -> list[Any]:
        """Return the items that copy the stamps of dispatches (`stamped`) into a readback, from byte `at` on."""

    @abstractmethod
    def stamped_seconds(self, dispatches: int, data: memoryview) -> list[tuple[float, float]]:
        """Return begin and end of each dispatch, from the bytes that the items of `stamps_into` copied."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of memory in which a buffer of a dispatch lies: `offset` is a multiple of 256. On cpu `memory` is an
    array of the buffer's dtype and shape."""

    memory: Any
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """A copy of `nbytes` bytes (a multiple of 4) of a program's buffer, from `start` on, to place `at` of another of
    its buffers or of a `Readback`."""

    source: int
    start: int
    target: int | Readback
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StepCall:
    """One of several steps: its scalars, whether it is `whole` (`Program.step`), buffers that are written before it, in
    their dtypes and shapes, and copies that follow it."""

    scalars: Array | None
    whole: bool = True
    uploads: Sequence[tuple[int, Array]] = ()
    copies: Sequence[BufferCopy] = ()


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step: its dispatches up to `stop` − 1, those of the update counted after the plan's, and the copies
    that follow them into `landing`."""

    stop: int
    copies: Sequence[BufferCopy]
    landing: Readback


class Program(ABC):
    """A plan loaded on a device, with its buffers. All methods are called in its `turn`: of each program on cpu, of
    each adapter. Programs that train on shared parameters have one turn."""

    plan: ExecutionPlan
    update: Update
    queue: Queue
    turn: OwnerThread
    updates: int = 0  # by rules with moments; whoever restores a state sets it, so that cpu goes on with the same bits

    @property
    def counters(self) -> QueueCounters:
        """The totals of the program's queue."""
        return self.queue.counters

    @abstractmethod
    def upload(self, buffer: int, data: Array) -> None:
        """Write the whole logical extent of a buffer; submitted steps keep their data. `data` has the buffer's dtype.
        """

    @abstractmethod
    def download(self, buffer: int) -> Array:
        """Return a copy of the logical extent, in the buffer's dtype and shape, after everything submitted so far."""

    @abstractmethod
    def upload_words(self, buffer: int, words: Array) -> None:
        """Write a buffer of reduced storage from its encoded words, u32[...] (`gdlab.base.formats`)."""

    @abstractmethod
    def words(self, buffer: int) -> Array:
        """Return a copy of the words of a buffer of reduced storage, after everything submitted so far. Not `encode` of
        what `download` gives: values do not tell the step of a block exactly."""

    @abstractmethod
    def store_copy(self, buffers: Sequence[int], into: Any = None) -> Any:
        """Copy these buffers on the device, as everything submitted so far leaves them, without waiting; `into`: an
        earlier copy of the same buffers, to be overwritten. The result is for `load_copy` of this program."""

    @abstractmethod
    def load_copy(self, copy: Any) -> None:
        """Write the buffers back from a copy of `store_copy`."""

    @abstractmethod
    def memory_at(self, buffer: int) -> tuple[Any, int]:
        """Return the memory of a buffer that shares its slot with no other (on cpu an array of its shape), and the
        bytes that other memory in its place must have."""

    @abstractmethod
    def bytes_in(self, memory: object) -> int | None:
        """Return the bytes of memory that could be bound here; None for any other object."""

    @abstractmethod
    def users_of(self, memory: Any, nbytes: int, moved: Mapping[int, Any]) -> set[int]:
        """Return the buffers whose memory overlaps the first `nbytes` of this. `moved`: memory by buffer that is not
        bound now, and counts too."""

    @abstractmethod
    def rebind(self, buffer: int, memory: Any) -> None:
        """Bind a buffer that shares its slot with no other to this memory, from the next step on."""

    @abstractmethod
    def configure(self, update: Update) -> None:
        """Use these update dispatches from the next step on; new state buffers start at zero, others are kept."""

    @abstractmethod
    def step(
        self, scalars: Array | None, whole: bool = True, copies: Sequence[BufferCopy] = (),
        landing: Readback | None = None,
    ) -> None:  # fmt: skip
        """Run one step: the plan's dispatches, then the update's (with `scalars`: float32, `SCALARS` order), then the
        copies, which commute; not `whole`: of the update only the `early` dispatches, which add up gradients. `landing`
        tells when the step has ended, and takes copies; such a step has no loss in `losses`."""

    def expect_scalars(self, rows: Sequence[Array]) -> None:
        """Take note that the next steps will be given these very arrays, at most EXPECTED, in this order, unless
        something changes meanwhile. Nothing depends on it but time."""
        return

    @abstractmethod
    def step_in_parts(self, scalars: Array | None, parts: Sequence[StepPart]) -> Iterator[None]:
        """Run one step that is not `whole`, submitted part by part, and then the rest of it. Yields after each part
        whose landing is readable, while the device goes on with the next ones; the step counts once all are made."""

    @abstractmethod
    def copy(self, copies: Sequence[BufferCopy], landing: Readback) -> None:
        """Run copies alone, after everything submitted so far; `landing` tells when they have ended."""

    def steps_at_once(self, upload_bytes: int) -> int:
        """Return the number of steps, with this many bytes of uploads each, for one call of `step_many`."""
        return 1

    def step_many(self, calls: Sequence[StepCall], landing: Readback | None = None) -> None:
        """Run several steps in order, each with its loss in `losses`, or with its copies, whose end `landing` tells.
        Where one fails, those before it count."""
        for call in calls:
            for buffer, data in call.uploads:
                self.upload(buffer, data)
            self.step(call.scalars, call.whole, call.copies, landing)

    @abstractmethod
    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        """Run a part of a step and wait for it: its dispatches start … stop − 1, the update's counted after the plan's.
        `end_step` must follow the last."""

    @abstractmethod
    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        """Run the rest of a step that `run` began: the update's dispatches but the first `done`, which `run` has made;
        now it counts, and its loss is readable."""

    @abstractmethod
    def profile(self, window: tuple[int, int] | None) -> str:
        """Time the dispatches start … stop − 1 of every step from the next on, the update's counted after the plan's;
        None stops timing. Returns why that cannot be, or an empty string."""

    @abstractmethod
    def timings(self) -> list[tuple[int, float]]:
        """Return (dispatch, seconds) of the last completed step that was timed."""

    def dispatch_under_way(self) -> int | None:
        """Return the running dispatch of the present or last step; None if unknown. From any thread."""
        return None

    @abstractmethod
    def update_only(self, scalars: Array, start: int = 0) -> None:
        """Run the update's dispatches alone, with the gradients of the last step, from dispatch `start` on."""

    @abstractmethod
    def losses(self, wait: bool) -> list[tuple[int, float]]:
        """Return (step, loss) pairs that became readable since the last call, in order, none missing of the last
        `KEPT`; `wait`: all submitted ones."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until nothing is in flight."""

    @abstractmethod
    def poison(self) -> None:
        """Fill every intermediate slot with NaN, which must not change results (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release the buffers; idempotent."""


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """Buffers that a new program takes over from `program` instead of making its own: (its id, the id in `program`)."""

    program: Program
    buffers: tuple[tuple[int, int], ...]


class Device(ABC):
    """A device. `target` is what to compile for; `synchronous`: a call returns when its work is done."""

    info: DeviceInfo
    target: Target
    synchronous = False

    def __repr__(self) -> str:
        return f"<Device: {self.info}>"

    @abstractmethod
    def turn(self) -> OwnerThread:
        """Return the owner thread that a queue is used on; on cpu a new one."""

    @abstractmethod
    def queue(self) -> Queue:
        """Return a new queue. Call it in the turn."""

    @abstractmethod
    def load(self, plan: ExecutionPlan, shared: SharedBuffers | None = None) -> Program:
        """Validate the plan, allocate its buffers and make its kernels ready; raise `CompileError` before anything is
        left half built. `shared` says which buffers live in another program of this device."""

    @abstractmethod
    def open_queue(self) -> tuple[Queue, OwnerThread]:
        """Return a queue for a door that has no plan, and the owner thread that its methods are called on."""


# turns -----------------------------------------------------------------------------------------------------
_owner: OwnerThread | None = None
_lock = threading.Lock()


def owner() -> OwnerThread:
    """Return the owner thread of the first adapter, which also lists the adapters (a new one after a fork)."""
    global _owner
    current = _owner
    if current is not None and _answers(current):
        return current
    with _lock:
        if _owner is None or not _answers(_owner):
            _owner = OwnerThread("device")
        return _owner


def _answers(thread: OwnerThread) -> bool:
    return thread.open and thread.pid == os.getpid() and thread.is_alive()
