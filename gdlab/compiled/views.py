"""Read outputs in the memory they were copied to: `run_raw`, `run_slots`, and views that never dangle.

Outputs land in an arena. All views of it are made from one exporter; while anything that was derived from a view is
alive, so is the exporter, and then the arena is retired at the next forward: it keeps its memory, and another one is
taken.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.copies import refuse_copies
from gdlab.base.errors import NoRunError, StaleViewError
from gdlab.base.formats import BOUNDARY, landed
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.compiled.boundary_values import OutputSlot, Port
from gdlab.devices.base import Readback

_FORMATS = {"f32": "f", "u32": "I"}  # of memoryviews; others are bytes


@dataclass(slots=True, eq=False)
class Arena:
    """The memory that the outputs of forward `epoch` were copied to. `source`: what all views are made from, None
    before the first; `handed`: the views that people hold; `ended_by`: what ended their validity."""

    landing: Readback
    nbytes: int
    epoch: int
    names: tuple[str, ...]
    valid: bool = True
    ended_by: str = ""
    source: Any = None
    handed: list[weakref.ref[memoryview]] = field(default_factory=list)

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self.landing.address

    @property
    def exporter(self) -> Any:
        """The object that all views are made from, created on demand."""
        if self.source is None:
            self.source = exporter_of(self.landing, self.address, self.nbytes)
        return self.source

    def view(self, start: int, nbytes: int, format: str = "B") -> memoryview:
        """Return a read-only view of some bytes, which ends with the arena."""
        made = memoryview(self.exporter).cast("B")[start : start + nbytes].cast(format).toreadonly()  # type: ignore[call-overload]
        self.handed.append(weakref.ref(made))
        return made  # type: ignore[no-any-return]

    def end(self, by: str) -> Callable[[], Any]:
        """End the validity of all views. What comes back answers None once nothing derived from one is alive."""
        self.valid, self.ended_by = False, by
        if self.source is None:
            return _nothing
        for held in self.handed:
            view = held()
            try:
                if view is not None:
                    view.release()
            except BufferError:  # somebody exports it: it keeps the exporter alive
                continue
        view = None
        self.handed.clear()
        alive = weakref.ref(self.source)
        self.source = None
        return alive


def _nothing() -> None:
    """Return None, as an arena without views does."""


def arena_of(landing: Readback, nbytes: int, epoch: int, names: tuple[str, ...]) -> Arena:
    """Return an arena over a landing that has arrived."""
    return Arena(landing, nbytes, epoch, names)


def exporter_of(landing: Readback, address: int, nbytes: int) -> Any:
    """Return the source of all views. The memory lives as long as anything derived from one, also after `close`."""
    exporter: Any = (ctypes.c_ubyte * max(nbytes, 1)).from_address(address)
    exporter.landing = landing  # views refer to the exporter, which refers to what owns the memory
    return exporter


@dataclass(frozen=True, slots=True, eq=False)
class RawOutput:
    """An output of `run_raw`, in the memory of its landing: valid until the next forward of its graph."""

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    epoch: int
    arena: Arena = field(repr=False)
    byte_offset: int = field(repr=False)

    __reduce__ = refuse_copies("output in place", "numpy().copy()")

    @property
    def valid(self) -> bool:
        """Whether no forward was launched since."""
        return self.arena.valid

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return self._valid().address + self.byte_offset

    @property
    def mem(self) -> memoryview:
        """A read-only view: of f32 `f`, of u32 `I`, else of bytes."""
        return self._valid().view(self.byte_offset, self.nbytes, _FORMATS.get(self.dtype, "B"))

    def numpy(self) -> Array:
        """Return a read-only array on the same memory; for bf16 the bits, u16."""
        view = memoryview(self._valid().exporter).cast("B")[self.byte_offset : self.byte_offset + self.nbytes]
        return np.frombuffer(view.toreadonly(), BOUNDARY[self.dtype]).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None and not copy else np.array(array, dtype)

    def _valid(self) -> Arena:
        if not self.arena.valid:
            given = f"output {self.name!r} of run {self.epoch}, after which there was {self.arena.ended_by}"
            raise StaleViewError("RawOutput", "view", given, "a copy made before: .numpy().copy(), or run()")
        return self.arena


class Views:
    """The arena of the last forward, if that filled one, and retired arenas."""

    def __init__(self, strict: bool = False) -> None:
        self.strict, self.retired_count = strict, 0
        self.current: Arena | None = None
        self._retired: deque[tuple[Callable[[], Any], Readback]] = deque()
        self._stale: deque[str] = deque()  # texts of warnings

    def check(self, where: str) -> None:
        """With `strict`, raise `StaleViewError` while anything derived from a view is in use."""
        arena = self.current
        if not self.strict or arena is None or arena.source is None:
            return
        alive, arena.source = weakref.ref(arena.source), None
        held = arena.source = alive()
        if held is None:
            return
        given = f"views of {_told(arena)} in use"
        raise StaleViewError(where, "views", given, "none: delete or copy them, or strict_views=False")

    def end(self, by: str = "") -> None:
        """End the validity of the views of the last forward: another one is launched, or for the reason `by`."""
        arena, self.current = self.current, None
        if arena is None:
            return
        alive = arena.end(by or f"run {arena.epoch + 1}")
        if alive() is not None:
            self.retired_count += 1
            self._stale.append(f"views of {_told(arena)} are in use after a later run: they keep its memory and values")
        self._retired.append((alive, arena.landing))

    def sweep(self) -> None:
        """Release the memory of arenas that are no longer in use; called on the owner thread."""
        for _ in range(len(self._retired)):
            alive, landing = self._retired.popleft()
            if alive() is None:
                landing.release()
            else:
                self._retired.append((alive, landing))

    def fill(self, arena: Arena) -> None:
        """Make this the arena of the last forward."""
        self.current = arena

    def waiting(self) -> bool:
        """Return whether there are warnings."""
        return bool(self._stale)

    def take_warnings(self) -> list[str]:
        """Return the texts of new warnings, once."""
        return [self._stale.popleft() for _ in range(len(self._stale))]

    @property
    def retired_bytes(self) -> int:
        """Bytes of retired arenas."""
        return sum(landing.nbytes for alive, landing in tuple(self._retired) if alive() is not None)

    def filled(self, where: str) -> Arena:
        """Return the arena of the last forward."""
        if self.current is None:
            given = "no forward, or a last one of another kind"
            raise NoRunError(where, "arena", given, "run_raw or run_slots before it")
        return self.current


def _told(arena: Arena) -> str:
    names = ", ".join(map(repr, arena.names))
    return f"run {arena.epoch} ({plural(len(arena.names), 'output')}: {names})"


def convert_into(address: int, slot: OutputSlot, port: Port, numbers: Array) -> None:
    """Write an output in its boundary dtype at its place in an arena."""
    made = np.ascontiguousarray(landed(numbers, port.spec.dtype))
    ctypes.memmove(address + slot.byte_offset, made.ctypes.data, slot.nbytes)
