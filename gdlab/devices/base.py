"""Define the interface of a device, cpu or wgpu, and the owner thread that all device work runs on."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.threads import OwnerThread
from gdlab.base.types import Array
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.plan.target import Target


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Kind, adapter and why it was chosen; `reason` is a sentence for people."""

    kind: str
    name: str
    adapter_class: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.name}" + (f" ({self.adapter_class} adapter)" if self.kind == "wgpu" else "")


@dataclass(slots=True)
class Traffic:
    """Running totals of a program."""

    steps: int = 0
    dispatches: int = 0
    submissions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


KEPT = 1 << 16  # losses that nobody has taken yet: a script that only steps holds no more of them


class Program(ABC):
    """A plan made ready on a device: its buffers live here. All methods are called on the owner thread."""

    plan: ExecutionPlan
    update: Update
    traffic: Traffic
    updates: int = 0  # by rules with moments; whoever restores a state sets it, so that cpu goes on with the same bits

    @abstractmethod
    def upload(self, buffer: int, data: Array) -> None:
        """Write the whole logical extent of a buffer; a step already submitted keeps its data. `data` has the
        buffer's dtype."""

    @abstractmethod
    def download(self, buffer: int) -> Array:
        """A copy of the logical extent, in the buffer's dtype and shape, after everything submitted so far."""

    @abstractmethod
    def upload_words(self, buffer: int, words: Array) -> None:
        """Write a buffer of reduced storage in the very words that it shall hold, u32[...] (`gdlab.base.formats`)."""

    @abstractmethod
    def words(self, buffer: int) -> Array:
        """A copy of the words of a buffer of reduced storage, after everything submitted so far. Not `encode` of what
        `download` gives: values do not tell the step of a block exactly."""

    @abstractmethod
    def store_copy(self, buffers: Sequence[int], into: Any = None) -> Any:
        """Copy these buffers on the device, as everything submitted so far leaves them, without waiting; `into`: an
        earlier copy of the same buffers, which is overwritten. The result is for `load_copy` of this program."""

    @abstractmethod
    def load_copy(self, copy: Any) -> None:
        """Write the buffers of a copy as they were stored."""

    @abstractmethod
    def memory_at(self, buffer: int) -> tuple[Any, int]:
        """The memory that a buffer lies in (on cpu an array of its shape), and the bytes that other memory in its place
        must have."""

    @abstractmethod
    def bytes_in(self, memory: object) -> int | None:
        """Bytes of memory that could be bound here; None of anything else."""

    @abstractmethod
    def rebind(self, buffer: int, memory: Any) -> None:
        """From the next step on a buffer that shares with nobody lies in this memory."""

    @abstractmethod
    def configure(self, update: Update) -> None:
        """Use these update dispatches from the next step on; state buffers that are new start at zero, others are
        kept."""

    @abstractmethod
    def step(self, scalars: Array | None, whole: bool = True) -> None:
        """One step in one submission: the plan's dispatches, then the update's (with `scalars`: float32, `SCALARS`
        order); not `whole`: of the update the `early` ones alone, which add up gradients."""

    @abstractmethod
    def run(self, start: int, stop: int, scalars: Array | None = None) -> None:
        """A part of a step: its dispatches start … stop − 1, the update's counted after the plan's, waited for.
        `end_step` must follow the last."""

    @abstractmethod
    def end_step(self, scalars: Array | None, whole: bool = True, done: int = 0) -> None:
        """The rest of a step that `run` began: the update's dispatches but the first `done`, which `run` has made; now
        it counts, and its loss is readable."""

    @abstractmethod
    def profile(self, window: tuple[int, int] | None) -> str:
        """From the next step on, time the dispatches start … stop − 1 of every step, the update's counted after the
        plan's; None: no more. Returns why that cannot be, or an empty string."""

    @abstractmethod
    def timings(self) -> list[tuple[int, float]]:
        """(dispatch, seconds) of the last completed step that was timed."""

    @abstractmethod
    def update_only(self, scalars: Array) -> None:
        """The update's dispatches alone, with the gradients of the last step."""

    @abstractmethod
    def losses(self, wait: bool) -> list[tuple[int, float]]:
        """(step, loss) pairs that became readable since the last call, in order, none missing of the last `KEPT`;
        `wait`: all submitted ones."""

    @abstractmethod
    def wait(self) -> None:
        """Return when nothing is in flight."""

    @abstractmethod
    def poison(self) -> None:
        """Fill every intermediate slot with NaN: results must not change (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release the buffers; idempotent."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Buffers that a new program takes over from `program` instead of making its own: (its id, the id there)."""

    program: Program
    buffers: tuple[tuple[int, int], ...]


class Device(ABC):
    """Runs plans. `target` is what to compile for. `anywhere`: its programs may be called on any thread, one at a
    time."""

    info: DeviceInfo
    target: Target
    anywhere = False

    @abstractmethod
    def load(self, plan: ExecutionPlan, shared: Shared | None = None) -> Program:
        """Validate the plan, allocate its buffers and make its kernels ready; raises `CompileError` before anything
        is left half built. `shared` says which buffers live in another program of this device."""


# the owner thread -----------------------------------------------------------------------------------------------------
_owner: OwnerThread | None = None
_lock = threading.Lock()


def owner() -> OwnerThread:
    """Return the device owner of this process (a new one after fork): the one thread that touches devices."""
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
