"""Submit work to NumPy: every list runs at once, in the thread that submits it."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import length_hint
from typing import Any

import numpy as np

from gdlab.base.formats import decode, encode
from gdlab.base.memo import LruCache
from gdlab.base.types import Array, Shape, TensorType
from gdlab.devices.base import (
    IN_FLIGHT,
    Bound,
    Clear,
    Copy,
    Decode,
    Encode,
    Item,
    Queue,
    QueueCounters,
    Readback,
    Recorded,
    Region,
    Stamp,
)
from gdlab.devices.buffer_pool import Pool, size_class
from gdlab.devices.cpu.call_lanes import flat, is_worth_it, joined
from gdlab.devices.cpu.calls import steps_of
from gdlab.devices.cpu.chain_calls import Scratch
from gdlab.devices.cpu.fused_calls import fused
from gdlab.devices.cpu.update_calls import rule_scalars
from gdlab.devices.fit import zeros
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.dispatch import OWN_SCALARS, SCALARS, Dispatch
from gdlab.plan.rules import rule_of
from gdlab.plan.target import Target

FREE_BYTES = 64 << 20  # of memory that nobody uses and that is kept for the next
DECODED_BYTES = 1 << 30  # of tensors in a storage dtype, as f32


class _Errstate:
    """A context for functions in which NumPy does not warn of overflow, NaN and division by zero."""

    def run(self, function: Callable[..., object], *args: Any) -> object:
        """Call the function."""
        with np.errstate(all="ignore"):
            return function(*args)


def _quiet() -> Context | _Errstate:
    """Return a context in which NumPy does not warn. NumPy 2 keeps its error state in the context: to enter one takes a
    tenth of `with np.errstate`, which was 0.85 of the 13 µs of a small op (2 cores, 2026-11-23)."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return _Errstate()
    made = Context()
    made.run(partial(np.seterr, all="ignore"))
    return made


class CpuRecorded(Recorded):
    """A list of dispatches as one list of calls. Updates by one rule, each of other parameters, run at the same time
    where there are lanes."""

    def __init__(self, bounds: Sequence[Bound]) -> None:
        self.bounds, self.whole, self.count = tuple(bounds), True, len(bounds)
        self.calls: list[NumpyCall] = []
        self.ends: list[int] = []  # per dispatch: the calls until it has ended
        for updates, some in groupby(self.bounds, _updates):
            listed = [*some]
            together = joined(call for bound in listed for call in bound.run) if updates else []
            if any(is_worth_it(call) for call, _ in together):
                self.calls += flat(together)
                self.ends += [len(self.calls)] * len(listed)
                continue
            for bound in listed:
                self.calls += flat(bound.run)
                self.ends.append(len(self.calls))
        self.workgroups = sum(workgroups(bound.dispatch) for bound in bounds)

    def dispatch_at(self, calls: int) -> int:
        """Return the dispatch that runs when this number of calls has begun."""
        return bisect_left(self.ends, calls)


def _updates(bound: Bound) -> tuple[str, int] | None:
    """Return the rule by which a dispatch updates parameters and its barrier group, inside which no two write the same;
    None for another dispatch."""
    update = bound.dispatch.update
    return None if update is None else (update.rule, bound.dispatch.group)


class CpuReadback(Readback):
    """A readback as an array of bytes."""

    def __init__(self, pool: Pool[Array], nbytes: int) -> None:
        self._pool, self.nbytes = pool, nbytes
        self._size = size_class(nbytes)
        self._number, self.array = pool.take(self._size)
        self._open = True

    @property
    def ready(self) -> bool:
        """Always true."""
        return True

    def wait(self) -> None:
        """Return at once: nothing is ever in flight."""

    def view(self) -> memoryview:
        """Return the bytes."""
        return self.array.data.cast("B")[: self.nbytes]

    @property
    def address(self) -> int:
        """The address of the array."""
        return int(self.array.__array_interface__["data"][0])

    def release(self) -> None:
        """Release the array; idempotent."""
        if self._open:
            self._open = False
            self._pool.give(self._size, self._number, self.array)


class CpuQueue(Queue):
    """A queue of NumPy calls. `scalars`: the per-step numbers by name; `stamps`: seconds by index."""

    def __init__(self, depth: int = IN_FLIGHT, counters: QueueCounters | None = None) -> None:
        self.depth, self.counters = depth, QueueCounters() if counters is None else counters
        self.scratch = Scratch()
        self.numbers = np.zeros(len(SCALARS) + OWN_SCALARS, np.float32)
        self.scalars = {name: self.numbers[i : i + 1].reshape(()) for i, name in enumerate(SCALARS)}
        self.rules: dict[str, tuple[dict[str, Array], list[NumpyCall]]] = {}  # scalars and shared calls of those bound
        self.stamps: dict[int, float] = {}
        self._pool: Pool[Array] = Pool(self._new, FREE_BYTES)
        self._quiet, self._pid = _quiet(), os.getpid()
        self._running: tuple[int, CpuRecorded | None, Iterator[NumpyCall]] = 0, None, iter(())
        self._decoded: LruCache[Hashable, _Decoded] = LruCache(DECODED_BYTES)
        self._numbers: dict[int, tuple[int, int]] = {}  # of memory in use, by id: its size and number in the pool

    # memory -----------------------------------------------------------------------------------------------------------
    def make(self, nbytes: int, name: str = "") -> Array:
        """Return an array of u32 of the pool."""
        size = size_class(nbytes)
        number, memory = self._pool.take(size)
        self._numbers[id(memory)] = size, number
        return memory

    def _new(self, nbytes: int) -> Array:
        made = zeros((nbytes // 4,), np.uint32)
        self.counters.buffers_created += 1
        return made

    def release(self, memory: Array) -> bool:
        """Release memory to the pool."""
        known = self._numbers.pop(id(memory), None)
        return known is not None and self._pool.give(*known, memory)

    @property
    def free_bytes(self) -> int:
        """Free bytes of the pool."""
        return self._pool.free_bytes

    def collect(self) -> int:
        """Drop the free memory of the pool."""
        return self._pool.clear()

    def readback(self, nbytes: int) -> CpuReadback:
        """Return an array of the pool as a readback."""
        return CpuReadback(self._pool, nbytes)

    def write(self, where: str, memory: Array, data: Any, start: int = 0) -> None:
        """Copy the bytes."""
        source = memoryview(data).cast("B")
        _bytes(memory)[start : start + len(source)] = np.frombuffer(source, np.uint8)
        self.counters.uploaded(len(source))

    def read(self, where: str, memory: Array, into: memoryview, start: int = 0) -> None:
        """Copy the bytes."""
        into[:] = _bytes(memory)[start : start + len(into)].data
        self.counters.read_back(len(into))

    # kernels ----------------------------------------------------------------------------------------------------------
    def bind(self, where: str, dispatch: Dispatch, target: Target, memory: Mapping[int, Region]) -> Bound:
        """Make the NumPy calls of a dispatch; the memory of a region is an array of its buffer's dtype and shape."""
        arrays = {b: region.memory for b, region in memory.items()}
        self.counters.bindings_created += 1
        scalars = self.scalars if dispatch.update is None else self._rule_scalars(where, dispatch.update.rule)
        return Bound(dispatch, steps_of(dispatch, arrays, self.scratch, scalars))

    def _rule_scalars(self, where: str, rule: str) -> dict[str, Array]:
        """Return the per-step numbers by the names that a rule gives them, and those computed from them once a step."""
        if rule not in self.rules:
            own, shared = rule_scalars(rule_of(where, rule), self.numbers)
            self.rules[rule] = self.scalars | own, shared
        return self.rules[rule][0]

    def recorded(self, bounds: Sequence[Bound]) -> CpuRecorded:
        """Join dispatches to one list of calls."""
        return CpuRecorded(bounds)

    def recorded_fused(self, bounds: Sequence[Bound]) -> CpuRecorded:
        """Join dispatches that run again and again, with loops in place of some of their calls: these may have to be
        compiled first."""
        runs = fused([bound.run for bound in bounds], self.scratch.arrays())
        return CpuRecorded([replace(bound, run=run) for bound, run in zip(bounds, runs, strict=True)])

    def set_scalars(self, where: str, numbers: Array) -> None:
        """Copy the numbers, and compute those that rules share among their parameters."""
        self.numbers[: len(numbers)] = numbers
        with np.errstate(all="ignore"):
            for _, shared in self.rules.values():
                for function, args in shared:
                    function(*args)

    # work -------------------------------------------------------------------------------------------------------------
    def submit(
        self, where: str, items: Sequence[Item], readback: Readback | None = None, cuts: Sequence[int] | None = None
    ) -> None:
        """Run all items now."""
        if self._pid != os.getpid():  # a context that another thread was in when the process was forked stays entered
            self._quiet, self._pid = _quiet(), os.getpid()
        self._quiet.run(self._run_all, items)
        self.counters.submissions += 1

    def _run_all(self, items: Sequence[Item]) -> None:
        counters, before = self.counters, 0
        for item in items:
            if item.__class__ is CpuRecorded:
                calls = iter(item.calls)
                self._running = before, item, calls
                for function, args in calls:
                    function(*args)
                before += item.count
                counters.dispatches += item.count
                counters.workgroups += item.workgroups
            else:
                self._run(item)
                self._count(item)

    def dispatch_under_way(self) -> int:
        """Return the number of ended dispatches of the last submission; callable from any thread. The list's own
        iterator tells, so a step does not count its calls."""
        before, item, calls = self._running
        return before if item is None else before + item.dispatch_at(len(item.calls) - length_hint(calls))

    def finish(self, where: str, items: Sequence[Item]) -> None:
        """Run the items, without counting them."""
        with np.errstate(all="ignore"):
            for item in items:
                self._run(item)

    def rehearse(self, where: str, items: Sequence[Item]) -> None:
        """Accept all items: their calls were made when dispatches were bound."""

    def wait(self) -> None:
        """Return at once: nothing is ever in flight."""
        self.counters.waits += 1

    def check_stamps(self, where: str, dispatches: int) -> None:
        """Accept any number: dispatches are timed by the clock."""
        self.stamps.clear()

    def stamps_into(self, dispatches: int, into: Readback, at: int) -> list[Any]:
        """Return no items: stamps are kept beside the work."""
        return []

    def stamped_seconds(self, dispatches: int, data: memoryview) -> list[tuple[float, float]]:
        """Return the times of the last submission with stamps."""
        return [(self.stamps[2 * k], self.stamps[2 * k + 1]) for k in range(dispatches)]

    def _run(self, item: Item) -> None:
        match item:
            case Bound():
                for function, args in item.run:
                    function(*args)
            case Stamp():
                self.stamps[item.index] = time.perf_counter()
            case Copy():
                source, target = _bytes(item.source), _bytes(item.target)
                target[item.at : item.at + item.nbytes] = source[item.start : item.start + item.nbytes]
            case Clear():
                item.memory.fill(0)
            case Decode():
                self._decode(item)
            case Encode():
                words = encode(item.source, item.dtype)
                _bytes(item.target)[item.start : item.start + words.nbytes] = words.view(np.uint8)
            case _:
                raise TypeError(f"no item of this queue: {item!r}")

    # storage dtypes ---------------------------------------------------------------------------------------------------
    def decoded(self, key: Hashable, shape: Shape) -> Array:
        """Return the array that `Decode` items of this key fill with the elements of a tensor in a storage dtype. It is
        kept, with those of others up to `DECODED_BYTES`, for whoever reads the tensor next."""
        held = self._decoded.get(key)
        if held is None:
            held = _Decoded(zeros(shape, np.float32))
            self._decoded.put(key, held, held.array.nbytes)
        return held.array

    def _decode(self, item: Decode) -> None:
        held = self._decoded.get(item.key)
        kept = held is not None and held.array is item.target
        if held is None or not kept or held.version != item.version:
            decode_into(item.target, item)
        if held is not None and kept:
            held.version = item.version

    def _count(self, item: Item) -> None:
        if isinstance(item, Bound):
            self.counters.dispatches += 1
            self.counters.workgroups += workgroups(item.dispatch)
        elif isinstance(item, Copy):
            self.counters.copies += not isinstance(item.target, CpuReadback)


class _Decoded:
    """Decoded elements, and the version of the words that they were decoded from."""

    __slots__ = ("array", "version")

    def __init__(self, array: Array) -> None:
        self.array, self.version = array, -1


def decode_into(array: Array, item: Decode) -> None:
    """Decode the words of an item, matrix by matrix where these lie apart."""
    words = _bytes(item.source)[item.start : item.start + item.nbytes]
    if not item.stride:
        array[...] = decode(np.ascontiguousarray(words).view(np.uint32), item.dtype, array.shape)
        return
    for k, matrix in enumerate(array):
        part = words[k * item.stride :][: TensorType(matrix.shape, item.dtype).data_bytes]
        padded = np.pad(part, (0, -len(part) % 4)).view(np.uint32)
        matrix[...] = decode(padded, item.dtype, matrix.shape)


def workgroups(dispatch: Dispatch) -> int:
    """Return the number of workgroups that a dispatch has (on cpu: would have)."""
    x, y, z = dispatch.workgroups
    return x * y * z


def _bytes(memory: Array | CpuReadback) -> Array:
    array = memory.array if isinstance(memory, CpuReadback) else memory
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat
