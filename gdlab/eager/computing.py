"""Compute one op on device memory, now or soon: pieces are bound to memory, cached and submitted.

`QueueEngine` runs the kernels of plans on the queue of a device, `ReferenceEngine` the NumPy meaning of ops in a wider
dtype. Both are called in the turn of the session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.formats import decode
from gdlab.base.formats.packed_bytes import Packed, as_stored
from gdlab.base.types import Array, TensorType, u32
from gdlab.devices.base import Bound, Copy, Device, Item, Queue, QueueCounters, Region
from gdlab.devices.fit import round_up
from gdlab.eager.references import AllocatorStats, AnyBuffer, MemoryBlock
from gdlab.graph import Attrs, attrs_key
from gdlab.op import REGISTRY
from gdlab.ops.random import at_step
from gdlab.plan.dispatch import SCALARS, Dispatch
from gdlab.plan.piece import Piece, piece
from gdlab.plan.records import PlanBuffer
from gdlab.plan.target import Target

PIECES, BINDINGS = 4096, 16384  # kept at most; beyond it all are made again
Operands = Sequence[AnyBuffer]
Place = tuple[Hashable, tuple[int, ...]]  # key of the bound work, and the identities of its memory


class EagerCompute(ABC):
    """The memory and arithmetic of a session."""

    counters: QueueCounters
    target: Target | None = None

    def __init__(self) -> None:
        self.live_bytes = self.peak_bytes = self.allocs = self.frees = 0
        self.alive = set[MemoryBlock]()

    def take(self, nbytes: int) -> MemoryBlock:
        """Return memory for a tensor of `nbytes` bytes."""
        block = MemoryBlock(self._make(nbytes), nbytes)
        self.alive.add(block)
        self.allocs += 1
        self.live_bytes += nbytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
        return block

    def free(self, block: MemoryBlock) -> None:
        """Release memory."""
        self.alive.discard(block)
        self.frees += 1
        self.live_bytes -= block.nbytes
        self._release(block.memory)

    def free_all(self) -> None:
        """Release all memory, whoever refers to it."""
        for block in tuple(self.alive):
            block.references = 0
            self.free(block)
            block.memory = None

    @abstractmethod
    def _make(self, nbytes: int) -> Any: ...

    @abstractmethod
    def _release(self, memory: Any) -> None: ...

    @abstractmethod
    def compute(self, op: str, attrs: Attrs, operands: Operands, type: TensorType) -> MemoryBlock:
        """Return the memory of the result of an op."""

    @abstractmethod
    def upload(self, type: TensorType, data: Array | Packed) -> MemoryBlock:
        """Return memory that holds `data`, an array of the shape of `type`."""

    @abstractmethod
    def download(self, block: MemoryBlock, type: TensorType) -> Array:
        """Return a copy of a tensor."""

    @abstractmethod
    def copied(self, block: MemoryBlock, type: TensorType) -> MemoryBlock:
        """Return memory with a copy of the contents."""

    @abstractmethod
    def set_step(self, step: int) -> None:
        """Draw the random numbers of this step from now on."""

    @abstractmethod
    def flush(self) -> None:
        """Submit pending work."""

    def on_host(self, block: MemoryBlock) -> bool:
        """Return whether reading memory costs no more than a copy."""
        return True

    def collect(self) -> int:
        """Drop free memory and its bindings; return its bytes."""
        return 0

    def stats(self) -> AllocatorStats:
        """Return counts and bytes of held memory."""
        return AllocatorStats(self.live_bytes, self.peak_bytes, self.pool_bytes, self.allocs, self.frees)

    @property
    def pool_bytes(self) -> int:
        """Bytes that are free for later tensors."""
        return 0


# on a device ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class PlacedPiece:
    """A piece with the memory of its constants. `alias`: there is none, the result is the operand itself."""

    piece: Piece
    constants: tuple[tuple[int, MemoryBlock], ...]
    result_bytes: int
    scratch_bytes: tuple[int, ...]


class QueueEngine(EagerCompute):
    """The engine that runs the kernels of plans. Dispatches of an adapter are submitted `flush_at` at a time; memory
    that is given back waits for the dispatches that may read it."""

    def __init__(self, device: Device, queue: Queue, flush_at: int) -> None:
        super().__init__()
        self.device, self.queue, self.target, self.flush_at = device, queue, device.target, flush_at
        self.counters = queue.counters
        self.immediate = device.synchronous
        self._recipes: dict[Hashable, PlacedPiece] = {}
        self._near: dict[tuple[Any, ...], tuple[PlacedPiece, object]] = {}  # by identities of attributes and types
        self._bindings: dict[Place, tuple[Item, ...]] = {}
        self._bound_to: defaultdict[int, set[Place]] = defaultdict(set)  # keys of bindings by memory
        self._pending: list[Item] = []
        self._retired: list[Any] = []

    # memory -----------------------------------------------------------------------------------------------------------
    def _make(self, nbytes: int) -> Any:
        return self.queue.make(nbytes)

    def _release(self, memory: Any) -> None:
        if self._pending:
            self._retired.append(memory)
        else:
            self._give(memory)

    def _give(self, memory: Any) -> None:
        if not self.queue.release(memory):
            self._forget(memory)

    @contextmanager
    def _freeing(self, block: MemoryBlock) -> Iterator[None]:
        """Release memory if the block fails."""
        try:
            yield
        except BaseException:
            self.free(block)
            raise

    def _forget(self, memory: Any) -> None:
        """Drop the bindings to memory that the pool did not keep."""
        for place in self._bound_to.pop(id(memory), ()):
            self._bindings.pop(place, None)
            for other in place[1]:
                self._bound_to.get(other, set()).discard(place)

    @property
    def pool_bytes(self) -> int:
        """Free bytes of this queue's pool, which all queues of an adapter share."""
        return self.queue.free_bytes

    def collect(self) -> int:
        """Drop the free memory of the pool, and all bindings, which are made again."""
        self.flush()
        self._bindings.clear()
        self._bound_to.clear()
        return self.queue.collect()

    def on_host(self, block: MemoryBlock) -> bool:
        """Return whether the device is cpu."""
        return self.immediate

    def nbytes(self, buffer: PlanBuffer) -> int:
        """Return the bytes of a buffer on this device: NumPy keeps weights of storage dtypes decoded."""
        return 4 * TensorType(buffer.shape).num_elements if self.immediate else buffer.nbytes

    def size(self, type: TensorType) -> int:
        """Return the bytes of a tensor on this device."""
        return 4 * type.num_elements if self.immediate else type.size_bytes

    # transfers --------------------------------------------------------------------------------------------------------
    def upload(self, type: TensorType, data: Array | Packed) -> MemoryBlock:
        """Copy an array to new memory, which no pending work reads."""
        packed = None
        if type.dtype.is_storage:
            packed = Packed.of(data, type)
            given = np.asarray(packed) if self.immediate else packed.words
        else:
            given = np.ascontiguousarray(data, type.dtype.numpy)
        block = self.take(self.size(type))
        block.packed = packed if type.dtype.in_blocks else None
        with self._freeing(block):
            self.queue.write("eager.upload", block.memory, given.reshape(-1).view(np.uint8))
        return block

    def download(self, block: MemoryBlock, type: TensorType) -> Array:
        """Submit pending work, and copy."""
        self.flush()
        storage, words = type.dtype.is_storage, type.dtype.is_storage and not self.immediate
        made = np.empty(type.size_bytes // 4 if words else type.num_elements, np.uint32)
        self.queue.read("eager.download", block.memory, made.data.cast("B"))
        if not storage:
            return made.view(type.dtype.numpy).reshape(type.shape)
        values = decode(made, type.dtype, type.shape) if words else made.view(np.float32).reshape(type.shape)
        return values.astype(type.dtype.numpy, copy=False)

    def copied(self, block: MemoryBlock, type: TensorType) -> MemoryBlock:
        """Copy on the device."""
        made = self.take(block.nbytes)
        made.packed = block.packed
        with self._freeing(made):
            self._submit((Copy(block.memory, 0, made.memory, 0, block.nbytes),))
        return made

    # numbers ----------------------------------------------------------------------------------------------------------
    def set_numbers(self, numbers: Array) -> None:
        """Write the numbers that kernels read in later submissions."""
        self.flush()
        self.queue.set_scalars("eager", numbers)

    def set_step(self, step: int) -> None:
        """Write the step as two of the numbers."""
        numbers = np.zeros(len(SCALARS), np.float32)
        numbers[SCALARS.index("step_low")], numbers[SCALARS.index("step_high")] = step & 0xFFFF, step >> 16
        self.set_numbers(numbers)

    # work -------------------------------------------------------------------------------------------------------------
    def compute(self, op: str, attrs: Attrs, operands: Operands, type: TensorType) -> MemoryBlock:
        """Bind the piece of the op to memory, unless it is bound, and submit it."""
        parts: list[Any] = [op, id(attrs)]
        blocks = []
        for buffer in operands:
            parts.append(id(buffer.type))
            blocks.append(buffer.block)
        near = tuple(parts)
        known = self._near.get(near)
        recipe = known[0] if known is not None else self._recipe(near, op, attrs, tuple([b.type for b in operands]))
        out = self.take(recipe.result_bytes)
        blocks.append(out)
        try:
            for nbytes in recipe.scratch_bytes:
                blocks.append(self.take(nbytes))
            place = (id(recipe), tuple([id(b.memory) for b in blocks]))
            items = self._bindings.get(place)
            if items is None:
                items = self._bound(place, recipe, blocks)
            if self.immediate:
                self.queue.submit("eager", items)
            else:
                self._submit(items)
        except BaseException:
            self.free(out)
            raise
        finally:
            for block in blocks[len(operands) + 1 :]:
                self.free(block)
        return out

    def _recipe(self, near: tuple[Any, ...], op: str, attrs: Attrs, types: tuple[TensorType, ...]) -> PlacedPiece:
        """Return the recipe of an op on types, also cached by the identities of these objects, which it keeps alive."""
        key = (op, attrs_key(attrs), *types)
        recipe = self._recipes.get(key) or self._made(key, op, attrs, types)
        if len(self._near) >= PIECES:
            self._near.clear()
        self._near[near] = recipe, (attrs, types)
        return recipe

    def _made(self, key: Hashable, op: str, attrs: Attrs, types: tuple[TensorType, ...]) -> PlacedPiece:
        assert self.target is not None  # of the device
        made = piece(REGISTRY[op], types, self.target, attrs, counter=self.counters)
        by_id = {b.id: b for b in made.buffers}
        constants: list[tuple[int, MemoryBlock]] = []
        try:
            for b, data in made.constants:
                constants.append((b, MemoryBlock(self.queue.make(len(data)), len(data))))
                self.queue.write("eager.constant", constants[-1][1].memory, data)
        except BaseException:
            for _, block in constants:
                self.queue.release(block.memory)
            raise
        scratch = tuple(self.nbytes(by_id[b]) for b in made.scratch)
        if len(self._recipes) >= PIECES:
            self._recipes.clear()
            self._near.clear()
            self._bindings.clear()
            self._bound_to.clear()
        recipe = self._recipes[key] = PlacedPiece(made, tuple(constants), self.nbytes(by_id[made.results[0]]), scratch)
        return recipe

    def _bound(self, place: Place, recipe: PlacedPiece, blocks: Sequence[MemoryBlock]) -> tuple[Item, ...]:
        made = recipe.piece
        at = dict(zip((*made.operands, made.results[0], *made.scratch), blocks, strict=True)) | dict(recipe.constants)
        return self.bound(place, made.dispatches, {b.id: b for b in made.buffers}, at)

    def bound(
        self, place: Place, dispatches: Sequence[Dispatch], buffers: dict[int, PlanBuffer], at: dict[int, MemoryBlock]
    ) -> tuple[Item, ...]:
        """Return dispatches bound to memory, cached under `place` as long as that memory is."""
        known = self._bindings.get(place)
        if known is not None:
            return known
        assert self.target is not None  # of the device
        regions = {b: self._region(buffers[b], block) for b, block in at.items() if b in buffers}
        bounds: list[Bound] = [self.queue.bind(f"eager, {d.label}", d, self.target, regions) for d in dispatches]
        items: tuple[Item, ...] = (self.queue.recorded(bounds),) if self.immediate else tuple(bounds)
        if len(self._bindings) >= BINDINGS:
            self._bindings.clear()
            self._bound_to.clear()
        self._bindings[place] = items
        for block in at.values():
            self._bound_to[id(block.memory)].add(place)
        return items

    def _region(self, buffer: PlanBuffer, block: MemoryBlock) -> Region:
        if not self.immediate:
            return Region(block.memory, 0, min(round_up(buffer.nbytes), int(block.memory.size)))
        dtype = np.dtype(np.float32) if buffer.dtype.is_storage else buffer.dtype.numpy
        count = TensorType(buffer.shape).num_elements
        return Region(block.memory[:count].view(dtype).reshape(buffer.shape), 0, 4 * count)

    def submit(self, items: Sequence[Item]) -> None:
        """Run work now, or together with pending work."""
        self._submit(items)

    def _submit(self, items: Sequence[Item]) -> None:
        if self.immediate:
            self.queue.submit("eager", items)
            return
        self._pending.extend(items)
        if len(self._pending) < self.flush_at:
            return
        try:
            self.flush()
        except BaseException:
            del self._pending[len(self._pending) - len(items) :]  # a failed call's own work; the rest stays pending
            raise

    def flush(self) -> None:
        """Submit pending work; then release the memory that it read. Where that fails it stays pending."""
        if self._pending:
            self.queue.submit("eager", self._pending)
            self._pending = []
        retired, self._retired = self._retired, []
        for memory in retired:
            self._give(memory)


# in a wider dtype -----------------------------------------------------------------------------------------------------
class ReferenceEngine(EagerCompute):
    """The engine that evaluates the NumPy meaning of ops in `dtype`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self.dtype, self.step = dtype, 0
        self.counters = QueueCounters()

    def _make(self, nbytes: int) -> Any:
        return None

    def _release(self, memory: Any) -> None: ...

    def _holding(self, array: Array) -> MemoryBlock:
        block = self.take(array.nbytes)
        block.memory = array
        return block

    def compute(self, op: str, attrs: Attrs, operands: Operands, type: TensorType) -> MemoryBlock:
        """Evaluate the reference; its result must have the dtype."""
        with at_step(self.step):
            value = REGISTRY[op].reference([array_of(b) for b in operands], dict(attrs), exact=True)
        if type.dtype is not u32 and all(b.type.dtype is u32 for b in operands):
            value = value.astype(self.dtype)  # fills, draws and what is made of indices are exact in float64
        wanted = np.dtype(np.uint32) if type.dtype is u32 else self.dtype
        if value.dtype != wanted:
            raise DTypeError(f"eager.{op}", "result", value.dtype, f"{wanted}: its reference leaves the dtype")
        self.counters.dispatches += 1
        return self._holding(np.ascontiguousarray(value).reshape(type.shape))

    def upload(self, type: TensorType, data: Array | Packed) -> MemoryBlock:
        """Copy an array."""
        data = as_stored(data, type)
        array = np.array(data, np.uint32 if type.dtype is u32 else self.dtype, order="C")
        self.counters.uploaded(array.nbytes)
        block = self._holding(array.reshape(type.shape))
        block.packed = data if isinstance(data, Packed) else None
        return block

    def download(self, block: MemoryBlock, type: TensorType) -> Array:
        """Copy the array."""
        self.counters.read_back(block.nbytes)
        return np.array(block.memory).reshape(type.shape)

    def copied(self, block: MemoryBlock, type: TensorType) -> MemoryBlock:
        """Copy the array."""
        made = self._holding(block.memory.copy())
        made.packed = block.packed
        return made

    def set_step(self, step: int) -> None:
        """Draw the random numbers of this step, by `at_step`."""
        self.step = step

    def flush(self) -> None:
        """Return at once: nothing is ever pending."""


def array_of(buffer: AnyBuffer) -> Array:
    """Return the array of a buffer of a `ReferenceEngine`: views show the same memory in another shape."""
    array: Array = buffer.block.memory
    return array.reshape(buffer.type.shape)


def engine_of(device: Device, scalar: np.dtype[Any], flush_at: int) -> tuple[EagerCompute, Any]:
    """Return the engine of a session, and the owner thread that it is called on."""
    turn = device.turn()
    if scalar != np.float32:
        return ReferenceEngine(scalar), turn
    make = partial(QueueEngine, device)
    return turn.here(lambda: make(device.queue(), flush_at)), turn
