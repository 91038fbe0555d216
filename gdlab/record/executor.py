"""Hold a device for sessions: `GraphExecutor("wgpu")` makes buffers, begins sessions and submits their lists.

A node becomes items of the device's queue here: its dispatches over the ranges of its buffers, and copies through
scratch memory where a kernel may not read or write a range as it lies.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gdlab.base.closing import Closing
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import ArgumentError, CompileError, GraphEncodeError, SessionError
from gdlab.base.kinds import FLAG, kinds
from gdlab.base.memo import LruCache
from gdlab.base.threads import OwnerThread
from gdlab.base.types import Array, TensorType
from gdlab.devices.base import (
    STAMP_BYTES,
    Bound,
    Clear,
    Copy,
    Decode,
    Device,
    Encode,
    Item,
    Queue,
    Readback,
    Region,
    stamped,
)
from gdlab.devices.choose import device as chosen_device
from gdlab.devices.fit import free_bytes, round_up
from gdlab.plan.records import PlanBuffer as PieceBuffer
from gdlab.plan.target import ALIGN
from gdlab.record.buffers import Allocation, Buffer, checked_layout
from gdlab.record.compute_graph import Node
from gdlab.record.operation import OperandRange, Operation

if TYPE_CHECKING:
    from gdlab.record.encoder import Call
    from gdlab.record.graph_session import GraphSession
    from gdlab.record.node_times import ListProfile

T = TypeVar("T")
BINDINGS = 4096  # nodes made ready that are kept, without scratch
LISTS = 64  # lists that are kept as they were submitted
BINDING_BYTES, LARGE = 1 << 16, 1 << 20
VECTOR = 16  # bytes that a kernel loads or stores at a time
MARKER = 4  # bytes that tell the end of a submission
LONG_SECONDS = 0.03  # of a list that runs on the device's own thread, so that Ctrl-C ends the wait
PACE = 2e-9  # seconds per flop or word, before any list was timed
LEAST_WORK = 1 << 20  # flops and words, below which it is not the work that takes the time
SMALL = 1 << 20  # bytes that are cleared by a write


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A prepared node: items in order, `scratch` of its own, and the memory by whose identity it is cached."""

    items: tuple[Item, ...]
    scratch: tuple[Any, ...]
    pinned: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class KnownList:
    """A list that has run, prepared to be submitted again. `writes`: (call, buffer of it, count) of every allocation
    that is written."""

    items: tuple[Item, ...]
    writes: tuple[tuple[int, int, int], ...]
    copies: int
    work: int


class GraphExecutor(Closing):
    """A device with its buffers, and the sessions on it: `with ex.begin_recorded() as s: ...`.

    `device`: "auto", "cpu", "wgpu", "wgpu:1", "wgpu:NAME" or a Device. Sessions of one executor may run in several
    threads. `close` (or leaving a `with` block) releases all memory.
    """

    def __init__(self, device: str | Device = "auto") -> None:
        self._device = chosen_device(device)
        self.queue: Queue
        self.turn: OwnerThread
        self.queue, self.turn = self._device.open_queue()
        self.is_cpu = self._device.target.kind == "cpu"
        self.alignment = 4 if self.is_cpu else max(ALIGN, self._device.target.limits.alignment)
        self.open = True
        self.operations: dict[Hashable, Operation] = {}
        self.bindings: LruCache[Hashable, Binding] = LruCache(BINDINGS * BINDING_BYTES)
        self.lists: LruCache[tuple[Operation, ...], KnownList] = LruCache(LISTS)
        self.freed: deque[Any] = deque()
        self.landed: deque[Readback] = deque()  # readbacks that nobody waits for
        self.allocations: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self.known: dict[Hashable, None] = {}  # lists that were recorded without error
        self.numbers: Any = None
        self._slots = 0
        self.pace = PACE
        self.marker = self.turn.call(lambda: self.queue.make(ALIGN, "marker"))

    @property
    def device(self) -> Device:
        """Return the device."""
        return self._device

    __reduce__ = refuse_copies("graph executor", "another GraphExecutor on the device")

    def __repr__(self) -> str:
        return f"<GraphExecutor on {self._device.info}{'' if self.open else ', closed'}>"

    @kinds(auto_barrier=FLAG, strict=FLAG)
    def begin(self, auto_barrier: bool = False, strict: bool = False) -> Any:
        """Return a session in direct mode: the list runs as it is. `auto_barrier`: every op declares its ranges;
        `strict`: an undeclared conflict is an error."""
        return self._session(False, auto_barrier, strict)

    @kinds(auto_barrier=FLAG, strict=FLAG)
    def begin_recorded(self, auto_barrier: bool = False, strict: bool = False) -> Any:
        """Return a session in recording mode: the list may be fused, reordered and split before it runs."""
        return self._session(True, auto_barrier, strict)

    def _session(self, recording: bool, auto_barrier: bool, strict: bool) -> Any:
        from gdlab.record.graph_session import GraphSession

        self.check_open("begin")
        return GraphSession(self, recording, auto_barrier, strict)

    def profile(self, session: GraphSession) -> ListProfile:
        """Run the list of a session as it is, and wait; return the time of every node beside the roofline's, by
        timestamps on an adapter that has them (`SessionError` for others), by the clock on cpu."""
        if getattr(session, "executor", None) is not self:
            raise ArgumentError("profile", "session", f"{session!r:.60}", "a session of this executor")
        return session._profile()

    def counters(self) -> dict[str, int]:
        """Return the totals of objects made and work submitted, as a new object."""
        return self.queue.counters.as_dict()

    def close(self) -> None:
        """Wait for what is in flight and release all memory; idempotent. Buffers and sessions of it cannot be used."""
        if not self.open:
            return
        self.open = False
        self._in_turn(self._close)

    def _close(self) -> None:
        self.queue.wait()
        self._collect()
        self.bindings.clear()
        self.lists.clear()
        self.operations.clear()
        for allocation in list(self.allocations):
            allocation.release()
        self._collect()
        for memory in (self.marker, self.numbers):
            if memory is not None:
                self.queue.release(memory)

    def check_open(self, where: str) -> None:
        """Raise `SessionError` if the executor is closed."""
        if not self.open:
            raise SessionError(where, "executor", "closed", "a new GraphExecutor")

    def _in_turn(self, function: Callable[[], T]) -> T:
        return self.turn.here(function)

    # memory -----------------------------------------------------------------------------------------------------------
    @kinds(transient=FLAG)
    def alloc_buffer(self, nbytes: int, dtype: Any, shape: Any, label: str = "", transient: bool = False) -> Buffer:
        """Return a zero-filled buffer. `transient`: its contents are undefined after a session, so that fusion may
        leave a store to it out."""
        where = "alloc_buffer"
        self.check_open(where)
        found, extents = checked_layout(where, nbytes, dtype, shape)
        if not isinstance(label, str):
            raise ArgumentError(where, "label", type(label).__name__, "a str")
        most = self._device.target.limits.binding_bytes
        if nbytes > most:
            raise SessionError(where, "nbytes", nbytes, f"at most {most}, the largest binding of this device")
        return Buffer(self, self.allocation(-(-nbytes // 4) * 4, label, transient), 0, found, extents)

    def allocation(self, nbytes: int, label: str = "", transient: bool = False) -> Allocation:
        """Return new memory, zero-filled."""

        def make() -> Any:
            self._collect()
            memory = self.queue.make(round_up(nbytes), label)
            self._clear(memory, round_up(nbytes))
            return memory

        if nbytes > SMALL and self.is_cpu:
            self._check_memory(nbytes)
        made = Allocation(self._in_turn(make), nbytes, label, transient, self.freed)
        self.allocations.add(made)
        return made

    def _check_memory(self, nbytes: int) -> None:
        free = free_bytes()
        if free is not None and nbytes > free:
            raise SessionError("alloc_buffer", "memory", f"{nbytes} bytes", f"at most {free}, the free memory")

    def _clear(self, memory: Any, nbytes: int) -> None:
        """Fill with zeros, after earlier work on the same memory of the pool, and without a count."""
        c = self.queue.counters
        if nbytes <= SMALL:
            before = c.uploads, c.upload_bytes
            self.queue.write("alloc_buffer", memory, np.zeros(nbytes // 4, np.uint32))
            c.uploads, c.upload_bytes = before
        else:
            self.queue.finish("alloc_buffer", [Clear(memory)])

    def release(self, allocation: Allocation) -> None:
        """Release the memory of an allocation."""
        allocation.release()
        self.operations.clear()  # they refer to the buffers by number
        self.lists.clear()

    def _collect(self) -> None:
        """Release the memory of allocations that nothing refers to any more."""
        while self.landed:
            self._land(self.landed.popleft())
        while self.freed:
            memory = self.freed.popleft()
            if self._size_of(memory) > LARGE:
                self.bindings.clear()  # they would keep it
                self.lists.clear()
            self.queue.release(memory)

    def _size_of(self, memory: Any) -> int:
        return int(memory.nbytes if self.is_cpu else memory.size)

    def write(self, buffer: Buffer, data: Array) -> None:
        """Write a whole buffer."""
        self.check_open("write")

        def body() -> None:
            self._collect()
            self.queue.write("write", buffer.allocation.memory, data.reshape(-1), buffer.byte_offset)

        self._in_turn(body)
        buffer.allocation.version += 1
        buffer.allocation.from_host = True

    def read(self, buffer: Buffer, into: memoryview) -> None:
        """Read a whole buffer."""
        self.check_open("read")

        def body() -> None:
            self._collect()
            self.queue.read("read", buffer.allocation.memory, into, buffer.byte_offset)

        self._in_turn(body)

    # nodes made ready -------------------------------------------------------------------------------------------------
    def encode(self, nodes: Sequence[Node], first: int = 0) -> list[tuple[Item, ...]]:
        """Return the items of every node; called on the owner thread. `GraphEncodeError` names a node that cannot be
        made ready."""
        self._number(nodes)
        slot, found = 0, []
        for index, node in enumerate(nodes, first):
            try:
                found.append(self._items(node, slot))
            except (CompileError, SessionError) as error:
                raise encode_error(index, node, error) from error
            slot += bool(node.operation.numbers)
            for part in node.operation.results:
                allocation = node.buffers[part.buffer].allocation
                allocation.version += 1
                allocation.from_host = False
        return found

    def _number(self, nodes: Sequence[Node]) -> None:
        """Write the numbers of all nodes, each at a place of its own."""
        rows = [node.operation.numbers for node in nodes if node.operation.numbers]
        if not rows:
            return
        if self._slots < len(rows):
            self._slots = max(64, 1 << (len(rows) - 1).bit_length())
            if self.numbers is not None:
                self.queue.release(self.numbers)
            self.numbers = self.queue.make(self._slots * ALIGN, "numbers of nodes")
        words = np.zeros((len(rows), ALIGN // 4), np.uint32)
        for row, numbers in zip(words, rows, strict=True):
            row[: len(numbers)] = numbers
        c = self.queue.counters
        before = c.uploads, c.upload_bytes
        self.queue.write("submit", self.numbers, words.reshape(-1))
        c.uploads, c.upload_bytes = before

    def _items(self, node: Node, slot: int) -> tuple[Item, ...]:
        operation = node.operation
        memories = [b.allocation.memory for b in node.buffers]
        for memory in memories:
            if memory is None:
                raise SessionError("submit", "buffer", "one that was released", "open buffers")
        decoded = self._decoded(node) if operation.stored and self.is_cpu else {}
        key: tuple[Any, ...] = (operation.key, tuple(map(id, memories)))
        if operation.numbers:
            key += (id(self.numbers), slot)
        if decoded:
            key += tuple((i, id(array)) for i, (_, array) in decoded.items())
        binding = self.bindings.get(key)
        if binding is None:
            binding = _Binder(self, node, slot, decoded).bind()
            self.bindings.put(key, binding, BINDING_BYTES + sum(map(self._size_of, binding.scratch)))
        if not decoded:
            return binding.items
        return (*(self._decode(node, p, array) for p, array in decoded.values()), *binding.items)

    def _decoded(self, node: Node) -> dict[int, tuple[OperandRange, Array]]:
        """Return the arrays that operands in a storage dtype are decoded into, by number of the operand."""
        return {
            i: (p, self.queue.decoded((p.range, p.type, p.stride), p.type.shape))  # type: ignore[attr-defined]
            for i, p in enumerate(node.operation.operands)
            if p.type.dtype.is_storage
        }

    def _decode(self, node: Node, part: OperandRange, array: Array) -> Decode:
        allocation = node.buffers[part.buffer].allocation
        start, stop = part.range.start, part.range.stop
        key = part.range, part.type, part.stride
        return Decode(
            key, allocation.version, array, allocation.memory, start, stop - start, part.type.dtype, part.stride
        )

    # submitting -------------------------------------------------------------------------------------------------------
    def submit(
        self, chunks: Sequence[Sequence[Node]], landing: Sequence[OperandRange], nodes: Sequence[Node], timed: str = ""
    ) -> Submission:
        """Run the chunks one after the other, each as one submission, and the last with copies of some ranges
        (`landing`, of buffers of `nodes`) that the host reads; return when they are submitted. `timed`: who asks for
        the time of every dispatch of the only chunk. Ctrl-C ends the wait for
        a list that takes long; the list runs to its end."""
        work = sum(n.operation.work for n in nodes)
        if work * self.pace < LONG_SECONDS:
            return self._in_turn(lambda: self._submit(chunks, landing, nodes, work, timed))
        made = list[Submission]()
        try:
            self.turn.call(lambda: made.append(self._submit(chunks, landing, nodes, work, timed)))
        except KeyboardInterrupt:
            self.turn.post(self._abandoned(made))
            raise
        return made[0]

    def keep(self, calls: Sequence[Call]) -> None:
        """Cache a list that has run, for `submit_known`: one of ops of this executor alone, without numbers and checks,
        whose weights are decoded in its kernels."""
        operations = tuple([operation for operation, _ in calls])
        if any(o.numbers or o.checks or (o.stored and self.is_cpu) for o in operations):
            return
        items = list[Item]()
        writes = dict[int, tuple[int, int, int]]()
        for k, (operation, buffers) in enumerate(calls):
            binding = self.bindings.get((operation.key, tuple([id(b.allocation.memory) for b in buffers])))
            if binding is None:
                return
            items += binding.items
            for part in operation.results:
                number = buffers[part.buffer].allocation.number
                writes[number] = k, part.buffer, writes.get(number, (0, 0, 0))[2] + 1
        copies = sum(isinstance(i, Copy) for i in items)
        known = KnownList(
            tuple(self._joined(items)), tuple(writes.values()), copies, sum(o.work for o in operations)
        )  # fmt: skip
        self.lists.put(operations, known, 1)

    def _joined(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items, neighbouring dispatches joined to one."""
        for dispatches, part in groupby(items, lambda item: isinstance(item, Bound)):
            if dispatches:
                yield self.queue.recorded([i for i in part if isinstance(i, Bound)])
            else:
                yield from part

    def submit_known(self, calls: Sequence[Call]) -> Submission | None:
        """Submit a cached list at once; return None for any other, and for one that takes long."""
        if not calls:
            return None
        known = self.lists.get(tuple([operation for operation, _ in calls]))
        if known is None or known.work * self.pace >= LONG_SECONDS:
            return None
        return self._in_turn(lambda: self._submit_known(calls, known))

    def _submit_known(self, calls: Sequence[Call], known: KnownList) -> Submission | None:
        self._collect()
        readback = self.queue.readback(MARKER)
        begun = time.perf_counter_ns()
        try:
            last = Copy(self.marker, 0, readback, 0, MARKER)
            self.queue.submit("submit", (*known.items, last), readback, [])
        except SessionError:  # nothing ran; the node is found by the list's nodes
            readback.release()
            self.lists.clear()
            return None
        except BaseException:
            readback.release()
            raise
        ended = begun if self.is_cpu else time.perf_counter_ns()
        for k, place, count in known.writes:
            allocation = calls[k][1][place].allocation
            allocation.version += count
            allocation.from_host = False
        return Submission(self, readback, ended, ended, known.copies, 1, known.work, begun)

    def check_timed(self, where: str, dispatches: int) -> None:
        """Raise where this number of dispatches cannot be timed."""
        self._in_turn(lambda: self.queue.check_stamps(where, dispatches))

    def _abandoned(self, made: Sequence[Submission]) -> Generator[None, None, None]:
        """Release, after the submission, the memory that no caller waits for."""
        self.landed.extend(submission.readback for submission in made)
        yield

    def _submit(
        self,
        chunks: Sequence[Sequence[Node]],
        landing: Sequence[OperandRange],
        nodes: Sequence[Node],
        work: int,
        timed: str,
    ) -> Submission:
        self._collect()
        everything = [node for chunk in chunks for node in chunk]
        versions = [(b.allocation, b.allocation.version, b.allocation.from_host) for n in everything for b in n.buffers]
        sent, launched, landed = 0, 0, ALIGN * len(landing) + sum(_padded(p) for p in landing)
        if timed:
            launched = sum(n.operation.dispatches for n in everything)
        readback = self.queue.readback(max(MARKER + landed, (ALIGN + landed + STAMP_BYTES * launched) * bool(timed)))
        try:
            items = self.encode(everything)
            self._check_encodable(chunks, items)
            begun, at = time.perf_counter_ns(), 0
            first = begun
            for k, chunk in enumerate(chunks):
                part = [i for of_node in items[at : at + len(chunk)] for i in of_node]
                last = k == len(chunks) - 1
                if timed:
                    part = [*stamped(part), *self.queue.stamps_into(launched, readback, ALIGN + landed)]
                if last:
                    part += self._landing(landing, nodes, readback)
                self._send(part, readback if last else None, everything[: at + len(chunk)], items, sent)
                sent, at = sent + 1, at + len(chunk)
                if k == 0 and not self.is_cpu:
                    first = time.perf_counter_ns()
            ended = begun if self.is_cpu else time.perf_counter_ns()
        except BaseException:
            readback.release()
            if not sent:
                for allocation, version, from_host in reversed(versions):
                    allocation.version, allocation.from_host = version, from_host
            raise
        copies = sum(isinstance(i, Copy) for of_node in items for i in of_node)
        stamps = (launched, ALIGN + landed) if timed else None
        return Submission(self, readback, first, ended, copies, len(chunks), work, begun, stamps=stamps)

    def _check_encodable(self, chunks: Sequence[Sequence[Node]], items: Sequence[tuple[Item, ...]]) -> None:
        """Record a list of several parts whole before its first submission, so that an invalid one is refused before
        anything runs."""
        if len(chunks) < 2:
            return
        key = tuple(map(id, items))
        if key in self.known:
            return
        try:
            self.queue.rehearse("submit", [i for of_node in items for i in of_node])
        except SessionError as error:
            raise self._refused([n for chunk in chunks for n in chunk], items, error) from error
        if len(self.known) > BINDINGS:
            self.known.clear()
        self.known[key] = None

    def _send(
        self, part: Sequence[Item], readback: Readback | None, nodes: Sequence[Node],
        items: Sequence[tuple[Item, ...]], sent: int,
    ) -> None:  # fmt: skip
        try:
            self.queue.submit("submit", part, readback, [])
        except SessionError as error:
            found = self._refused(nodes, items, error)
            if sent and isinstance(found, GraphEncodeError):
                found = GraphEncodeError(
                    found.where, f"{found.what}, after chunk 0 ran", found.given, found.wanted,
                    index=found.index, op=found.op,
                )  # fmt: skip
            raise found from error

    def _refused(self, nodes: Sequence[Node], items: Sequence[tuple[Item, ...]], error: SessionError) -> SessionError:
        """Return the error that names the refused node: the first whose prefix cannot be recorded."""
        low, high = 0, len(nodes)  # the prefix of `low` nodes can be recorded
        while low < high:
            middle = (low + high) // 2
            try:
                self.queue.rehearse("submit", [i for of_node in items[: middle + 1] for i in of_node])
                low = middle + 1
            except SessionError:
                high = middle
        return encode_error(low, nodes[low], error) if low < len(nodes) else error

    def _landing(self, landing: Sequence[OperandRange], nodes: Sequence[Node], readback: Readback) -> list[Item]:
        found: list[Item] = [Copy(self.marker, 0, readback, 0, MARKER)]
        at = ALIGN
        by_number = {b.allocation.number: b.allocation.memory for n in nodes for b in n.buffers}
        for part in landing:
            start, stop = part.range.start, part.range.stop
            found.append(Copy(by_number[part.range.memory], start, readback, at, stop - start))
            at += _padded(part)
        return found

    def _land(self, readback: Readback) -> None:
        """Release a readback; on an adapter the queue counts it as in flight."""
        retire = getattr(self.queue, "retire", None)
        if retire is not None:
            readback.wait()
            retire(readback)
        else:
            readback.release()

    def wait(self, submission: Submission, landing: Sequence[OperandRange]) -> list[Array]:
        """Wait for a submission; return its landed numbers, as u32. Ctrl-C ends the wait for one that takes long; one
        may wait for it again."""
        if self.is_cpu and not landing and submission.stamps is None:  # it ran when it was submitted
            if submission.numbers is None:
                self._timed(submission)
                self.landed.append(submission.readback)
                submission.numbers = []
            return submission.numbers
        turn = self.turn.here if submission.work * self.pace < LONG_SECONDS else self.turn.call
        return turn(lambda: self._wait(submission, landing))

    def _timed(self, submission: Submission) -> None:
        """Update the estimate of seconds per work by the time of a list."""
        if submission.work:
            self.pace = (time.perf_counter_ns() - submission.begun_ns) * 1e-9 / max(submission.work, LEAST_WORK)

    def _wait(self, submission: Submission, landing: Sequence[OperandRange]) -> list[Array]:
        if submission.numbers is not None:
            return submission.numbers
        submission.readback.wait()
        self._timed(submission)
        found, at = [], ALIGN
        view = submission.readback.view() if landing else memoryview(b"")
        for part in landing:
            size = part.range.stop - part.range.start
            found.append(np.frombuffer(view[at : at + size], np.uint32).copy())
            at += _padded(part)
        if submission.stamps is not None:
            count, start = submission.stamps
            view = memoryview(b"") if self.is_cpu else submission.readback.view()
            submission.times = self.queue.stamped_seconds(count, view[start : start + STAMP_BYTES * count])
        view = memoryview(b"")
        self._land(submission.readback)
        submission.numbers = found
        return found


@dataclass(slots=True, eq=False)
class Submission:
    """A submitted list: its readback, the times when the first and the last part had been submitted, its copies;
    `work`: flops and words; `numbers`: those landed, after a wait."""

    executor: GraphExecutor
    readback: Readback
    first_ns: int
    last_ns: int
    copies: int
    submissions: int
    work: int = 0
    begun_ns: int = 0
    numbers: list[Array] | None = None
    stamps: tuple[int, int] | None = None  # dispatches that are timed, and where their stamps are landed
    times: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each of them


def _padded(part: OperandRange) -> int:
    return round_up(part.range.stop - part.range.start)


def encode_error(index: int, node: Node, error: Exception) -> GraphEncodeError:
    """Return the error that names the node that the device refuses."""
    what, given = f"node {index} ({node.operation.name})", getattr(error, "given", str(error))
    wanted = f"{getattr(error, 'wanted', 'a valid one')} (nothing was submitted)"
    return GraphEncodeError("submit", what, given, wanted, index=index, op=node.operation.name)


class _Binder:
    """The binding of one node: the ranges to bind in place, and those to copy through scratch."""

    def __init__(
        self, executor: GraphExecutor, node: Node, slot: int, decoded: dict[int, tuple[OperandRange, Array]]
    ) -> None:
        self.executor, self.node, self.slot, self.decoded = executor, node, slot, decoded
        self.operation = node.operation
        self.scratch: list[Any] = []
        self.before: list[Item] = []
        self.after: list[Item] = []
        self.regions: dict[int, Region] = {}

    def bind(self) -> Binding:
        """Bind the node, and return its items."""
        operation, queue = self.operation, self.executor.queue
        if operation.copy:
            return self._copied()
        piece = operation.piece
        assert piece is not None  # only copies have none
        for result in operation.results:
            self._result(result, piece.buffers[piece.results[0]])
        for i, (part, b) in enumerate(zip(operation.operands, piece.operands, strict=False)):
            self._operand(i, part, piece.buffers[b])
        for b in piece.operands[len(operation.operands) :]:
            self.regions[b] = self._region(self.executor.numbers, self.slot * ALIGN, piece.buffers[b])
        for b in piece.scratch:
            self.regions[b] = self._fresh(piece.buffers[b])
        for b, data in piece.constants:
            memory = self._scratch_memory(piece.buffers[b].nbytes)
            c = queue.counters
            before = c.uploads, c.upload_bytes
            queue.write("submit", memory, data)
            c.uploads, c.upload_bytes = before
            self.regions[b] = self._region(memory, 0, piece.buffers[b])
        target = self.executor.device.target
        bounds: list[Bound] = [
            queue.bind(f"{operation.name} ({d.label})", d, target, {b: self.regions[b] for b, _ in d.bindings})
            for d in piece.dispatches
        ]
        pinned = [b.allocation.memory for b in self.node.buffers]
        pinned += [self.executor.numbers, *(array for _, array in self.decoded.values())]
        return Binding((*self.before, *bounds, *self.after), tuple(self.scratch), tuple(pinned))

    def _copied(self) -> Binding:
        """Bind a copy; inside one allocation through scratch."""
        (source,), (target,) = self.operation.operands, self.operation.results
        a, b = (self.node.buffers[p.buffer].allocation.memory for p in (source, target))
        size = source.range.stop - source.range.start
        if a is not b:
            return Binding((Copy(a, source.range.start, b, target.range.start, size),), (), (a, b))
        between = self._scratch_memory(size)
        items = Copy(a, source.range.start, between, 0, size), Copy(between, 0, b, target.range.start, size)
        return Binding(items, (between,), (a,))

    def _result(self, part: OperandRange, buffer: PieceBuffer) -> None:
        memory = self.node.buffers[part.buffer].allocation.memory
        start, size = part.range.start, part.range.stop - part.range.start
        (into,) = self.operation.piece.results if self.operation.piece is not None else (-1,)
        if self._result_lies_well(part):
            self.regions[into] = self._region(memory, start, buffer)
            return
        region = self.regions[into] = self._fresh(buffer)
        if self.executor.is_cpu and buffer.dtype.is_storage:
            self.after.append(Encode(region.memory, memory, start, buffer.dtype))
        else:
            self.after.append(Copy(self.scratch[-1], 0, memory, start, size))

    def _result_lies_well(self, part: OperandRange) -> bool:
        operands = self.operation.operands
        if self.executor.is_cpu:
            return not part.type.dtype.is_storage and not any(part.range.overlaps(o.range) for o in operands)
        allocation = self.node.buffers[part.buffer].allocation
        if part.range.start % self.executor.alignment or any(o.range.memory == part.range.memory for o in operands):
            return False
        return (part.range.stop - part.range.start) % VECTOR == 0 or part.range.stop == allocation.nbytes

    def _operand(self, i: int, part: OperandRange, buffer: PieceBuffer) -> None:
        piece = self.operation.piece
        assert piece is not None
        b = piece.operands[i]
        if i in self.decoded:
            self.regions[b] = Region(self.decoded[i][1], 0, self.decoded[i][1].nbytes)
            return
        memory = self.node.buffers[part.buffer].allocation.memory
        start, size = part.range.start, part.range.stop - part.range.start
        if start % self.executor.alignment == 0:
            self.regions[b] = self._region(memory, start, buffer, size)
            return
        between = self._scratch_memory(size)
        self.before.append(Copy(memory, start, between, 0, size))
        self.regions[b] = self._region(between, 0, buffer, size)

    def _fresh(self, buffer: PieceBuffer) -> Region:
        """Return a region of scratch memory for a buffer of the piece; on cpu elements in a storage dtype are f32."""
        if not (self.executor.is_cpu and buffer.dtype.is_storage):
            return self._region(self._scratch_memory(buffer.nbytes), 0, buffer)
        count = math.prod(buffer.shape)
        return Region(self._scratch_memory(4 * count)[:count].view(np.float32).reshape(buffer.shape), 0, 4 * count)

    def _scratch_memory(self, nbytes: int) -> Any:
        memory = self.executor.queue.make(round_up(nbytes), "scratch")
        self.scratch.append(memory)
        return memory

    def _region(self, memory: Any, start: int, buffer: PieceBuffer, size: int = 0) -> Region:
        """Return the region of a buffer of the piece: on cpu an array of its shape, else whole vectors."""
        nbytes = size or buffer.nbytes
        if not self.executor.is_cpu:
            span = min(-(-nbytes // VECTOR) * VECTOR, int(memory.size) - start)
            return Region(memory, start, span)
        type = TensorType(buffer.shape, buffer.dtype)
        flat = memory.view(np.uint8)[start : start + type.size_bytes]
        return Region(flat.view(buffer.dtype.numpy).reshape(buffer.shape), 0, type.size_bytes)
