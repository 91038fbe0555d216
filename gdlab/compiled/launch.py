"""Make forwards of a compiled graph in three stages: resolve (checks, nothing is written), launch, land."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from gdlab.base.errors import InputConflictError, MissingInputError, ParamNotSetError, SessionError, unknown_name
from gdlab.base.types import Array
from gdlab.base.words import listed
from gdlab.compiled.active_extent import EXTENT
from gdlab.compiled.boundary_values import OutputLayout, Port, accept, given_out, layout_of, named_values, slots_of
from gdlab.compiled.handles import Handles
from gdlab.compiled.residency import Residency
from gdlab.compiled.views import Arena, Views, arena_of, convert_into
from gdlab.devices.base import BufferCopy, QueueCounters, Readback
from gdlab.session import Session
from gdlab.session.profile import SessionProfile

T = TypeVar("T")
Read = Callable[[str, Port, Any], Array]
REMEDY = "set_param, initialize(seed) or load_params"
COUNTED = tuple(field.name for field in fields(QueueCounters))
NAMES = (*COUNTED, "arenas_retired", "moe_sync_points")
LONG_FLOPS = 1 << 29  # of a forward that takes tens of milliseconds
LONG_SECONDS = 0.03
_totals = attrgetter(*COUNTED)


@dataclass(frozen=True, slots=True, eq=False)
class LaunchRequest:
    """A requested forward: numbers by input, and the extent that was set when it was called (None: all)."""

    where: str
    values: Mapping[str, Array]
    extent: int | None


class Launcher:
    """The launcher of the forwards of one compiled graph. All methods but `resolve`, `check` and `exclusively` are
    called in the turn of the device."""

    def __init__(
        self, session: Session, inputs: Mapping[str, Port], outputs: Sequence[Port], upper: int | None, views: Views,
        experts: Residency,
    ) -> None:  # fmt: skip
        self.experts, self.unchecked = experts, [port for _, port in experts.unchecked()]
        self.session, self.inputs, self.outputs, self.upper, self.views = session, inputs, tuple(outputs), upper, views
        self.handles = Handles(session, inputs, outputs)
        self.program, self.unset = session.loaded.program, session.values.unset_parameters
        self.slots = slots_of(outputs)
        self.all = layout_of(outputs)
        self.arena_bytes = self.slots[-1].byte_offset + -(-self.slots[-1].nbytes // 256) * 256
        self.converted = layout_of((p for p in outputs if not _lands_as_shown(p)), self.arena_bytes)
        pairs = list(zip(outputs, self.slots, strict=True))
        direct = tuple((port, slot.byte_offset) for port, slot in pairs if _lands_as_shown(port))
        self.in_arena = OutputLayout(direct + self.converted.places, max(self.converted.nbytes, self.arena_bytes))
        self._converted_slots = [slot for port, slot in pairs if not _lands_as_shown(port)]
        self._names = tuple(port.spec.name for port in outputs)
        self.extent: int | None = None
        self.epoch = 0
        self.last_extent: int | None = None
        self._extent_there: int | None = None  # the extent in the hidden input now
        self._before = self._after = (0,) * len(NAMES)  # totals around the last forward
        self._long = sum(d.flops for d in session.loaded.plan.dispatches) > LONG_FLOPS
        self._seconds = 0.0  # of the last forward that was waited for

    def exclusively(self, function: Callable[[], T]) -> T:
        """Run `function` on the device's owner thread: on this one if nobody else is at work; long forwards on the
        device's own, so that Ctrl-C ends the wait."""
        turn = self.session.loaded.turn
        if self._long or self._seconds > LONG_SECONDS:
            return turn.call(function)
        return turn.here(function)

    def follow(self, before: Launcher) -> None:
        """Continue the counts of another launcher of the same graph."""
        self.extent, self.epoch, self.last_extent = before.extent, before.epoch, before.last_extent
        self._before, self._after = before._before, before._after

    # resolve ----------------------------------------------------------------------------------------------------------
    def resolve(self, where: str, inputs: Any, read: Read = accept) -> LaunchRequest:
        """Convert the inputs of a call; raise for unknown names and for data that does not fit."""
        values = {}
        for name, data in named_values(where, inputs).items():
            port = self.inputs.get(name)
            if port is None:
                raise unknown_name(where, "input", str(name), self.inputs)
            values[name] = read(where, port, data)
        return LaunchRequest(where, values, self.extent)

    def check(self, request: LaunchRequest) -> None:
        """Raise unless every input and parameter has a value, and no value is given for a gpu handle."""
        where, values, handles = request.where, request.values, self.handles
        if self.session.closed:
            raise SessionError(where, "compiled graph", "closed", "an open one")
        for name in handles.gpu:
            if name in values:
                wanted = "no value: unbind_gpu_handle, or bind_gpu_handle with the new one"
                raise InputConflictError(where, f"input {name!r}", "a value beside its gpu handle", wanted)
        if len(values) < len(self.inputs):
            self._check_missing(where, values)
        if self.unset and (unset := self.session.values.parameters_without_value()):
            raise ParamNotSetError(where, "parameters", f"no value for {listed(unset)}", REMEDY)
        self.views.check(where)

    def _check_missing(self, where: str, values: Mapping[str, Array]) -> None:
        gpu, host = self.handles.gpu, self.handles.host
        missing = [n for n in self.inputs if n not in values and n not in gpu and n not in host]
        if missing:
            wanted = "a value in the call, bind_handle or bind_gpu_handle for each"
            raise MissingInputError(where, "inputs", f"no value for {listed(missing)}", wanted)

    # launch -----------------------------------------------------------------------------------------------------------
    def launch(self, request: LaunchRequest, copies: Iterable[BufferCopy], landing: Readback) -> None:
        """Upload, run, feed and copy, in one submission on devices that have submissions. Checks nothing."""
        before = self._totals()
        try:
            uploads = self.handles.uploads(request.values) + self._extent_upload(request)
            copies = [*self.handles.copies(), *copies]
            if self.experts.layers:
                uploads += self.experts.tables()
            if self.experts.paging:
                self._launch_paged(uploads, copies, landing)
            else:
                self.session.steps.launch(uploads, copies, landing)
        except BaseException:
            self.handles.forget()
            self.experts.forget()
            self._extent_there = None
            raise
        self.experts.launched()
        self.views.end()
        self.views.sweep()
        self.handles.advance()
        self.epoch += 1
        self.last_extent = request.extent
        self._before, self._after = before, self._totals()

    def at_once(self, requests: Sequence[LaunchRequest]) -> int:
        """Return the number of these forwards to make in one submission."""
        if self.experts.paging or self.handles.by_host or self.session.progress.partial is not None:
            return 1
        nbytes = max(sum(data.nbytes for data in request.values.values()) for request in requests)
        return self.program.steps_at_once(nbytes)

    def launch_many(
        self, requests: Sequence[LaunchRequest], layout: OutputLayout, landing: Readback, stride: int
    ) -> None:
        """Launch forwards in one submission; the outputs of each go to its own part of a landing. Checks nothing."""
        before, parts = self._totals(), []
        try:
            for k, request in enumerate(requests):
                uploads = self.handles.uploads(request.values) + self._extent_upload(request)
                uploads += self.experts.tables() if self.experts.layers else []
                copies = [*self.handles.copies(), *_copies(layout, landing, k * stride)]
                parts.append((uploads, [*copies, *_copies(self._behind(layout), landing, k * stride)]))
                self.handles.advance()
            self.session.steps.launch_many(parts, landing)
        except BaseException:
            self.handles.forget()
            self.experts.forget()
            self._extent_there = None
            raise
        self.experts.launched()
        self.views.end()
        self.views.sweep()
        self.epoch += len(requests)
        self.last_extent = requests[-1].extent
        self._before, self._after = before, self._totals()

    def _launch_paged(
        self, uploads: Iterable[tuple[int, Array]], copies: Sequence[BufferCopy], landing: Readback
    ) -> None:
        """Launch a forward that stops for experts on the host."""
        for buffer, data in uploads:
            self.program.upload(buffer, data)
        self.experts.forward()
        self.program.copy(copies, landing)

    def _extent_upload(self, request: LaunchRequest) -> list[tuple[int, Array]]:
        if self.upper is None:
            return []
        extent = self.upper if request.extent is None else request.extent
        if extent == self._extent_there:
            return []
        self._extent_there = extent
        return [(self.session.values.places.inputs[EXTENT], np.array([extent], np.uint32))]

    def profile(self, request: LaunchRequest, samples: int) -> SessionProfile:
        """Time the dispatches of some forwards with these inputs, which are not counted."""
        self.check(request)
        for buffer, data in self.handles.uploads(request.values) + self._extent_upload(request):
            self.program.upload(buffer, data)
        return self.session.profiling.timed(samples, False)

    def launch_into(self, request: LaunchRequest, layout: OutputLayout) -> Readback:
        """Launch a forward whose outputs of a layout go to a landing."""
        self.check(request)
        behind = self._behind(layout)
        landing = self.program.queue.readback(max(layout.nbytes, 4, behind.nbytes))
        try:
            self.launch(request, [*_copies(layout, landing), *_copies(behind, landing)], landing)
        except BaseException:
            landing.release()
            raise
        return landing

    def _behind(self, layout: OutputLayout) -> OutputLayout:
        """Place the other values read back with forwards after the outputs: expert numbers that may be out of range."""
        if not self.unchecked:
            return OutputLayout((), 0)
        return layout_of(self.unchecked, -(-max(layout.nbytes, 4) // 16) * 16)

    # land -------------------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Wait until nothing is in flight."""
        self.program.wait()
        self._after = self._totals()

    def stride(self, layout: OutputLayout) -> int:
        """Return the bytes from one forward to the next in a landing of several."""
        return -(-max(layout.nbytes, self._behind(layout).nbytes, 4) // 16) * 16

    def numbers(self, layout: OutputLayout, landing: Readback, start: int = 0) -> list[tuple[Port, Array]]:
        """Return the arrived outputs as views of the landing, in which they begin at `start`: device numbers, for
        packed outputs the bits of their 16-bit elements."""
        memory = landing.view()
        found = []
        for port, at in layout.places:
            kind = port.dtype.numpy if port.packed is None else np.dtype(np.uint16)
            flat: Array = np.frombuffer(memory, kind, port.size, start + at)
            found.append((port, flat.reshape(port.spec.shape)))
        return found

    def check_landed(self, where: str, layout: OutputLayout, landing: Readback, start: int = 0) -> None:
        """Raise `ExpertIndexError` if a row of an arrived forward chose an expert that does not exist."""
        if self.unchecked:
            self.experts.check(where, [numbers for _, numbers in self.numbers(self._behind(layout), landing, start)])

    def taken(self, layout: OutputLayout, landing: Readback) -> list[Array]:
        """Return the outputs of an arrived landing as fresh arrays, and release it."""
        try:
            return [given_out(port, numbers) for port, numbers in self.numbers(layout, landing)]
        finally:
            landing.release()

    def run(self, request: LaunchRequest, layout: OutputLayout) -> list[Array]:
        """Run a forward and return the outputs of a layout."""
        return self.taken(layout, self._arrived(request, layout))

    def run_numbers(self, request: LaunchRequest, take: Callable[[Port, Array], T]) -> list[T]:
        """Run a forward and return `take` of each output's device numbers, which lie in a landing."""
        landing = self._arrived(request, self.all)
        try:
            return [take(port, numbers) for port, numbers in self.numbers(self.all, landing)]
        finally:
            landing.release()

    def run_into_arena(self, request: LaunchRequest) -> Arena:
        """Run a forward whose outputs stay in its landing."""
        landing = self._arrived(request, self.in_arena)
        try:
            if self._converted_slots:
                self._convert(landing)
            arena = arena_of(landing, self.arena_bytes, self.epoch, self._names)
        except BaseException:
            landing.release()
            raise
        self.views.fill(arena)
        return arena

    def _arrived(self, request: LaunchRequest, layout: OutputLayout) -> Readback:
        """Run a forward and wait for it."""
        start = time.perf_counter()
        landing = self.launch_into(request, layout)
        try:
            self.drain()
            self.check_landed(request.where, layout, landing)
        except BaseException:
            discard([landing])
            raise
        self._seconds = time.perf_counter() - start
        return landing

    def _convert(self, landing: Readback) -> None:
        for slot, (port, numbers) in zip(self._converted_slots, self.numbers(self.converted, landing), strict=True):
            convert_into(landing.address, slot, port, numbers)

    def _totals(self) -> tuple[int, ...]:
        """Return the running totals of `NAMES`."""
        return (*_totals(self.program.counters), self.views.retired_count, self.experts.sync_points)

    def last_stats(self) -> dict[str, int]:
        """Return what the last forward added to the counters."""
        return {name: b - a for name, a, b in zip(NAMES, self._before, self._after, strict=True)}


def discard(landings: Iterable[Readback]) -> None:
    """Release landings that no caller reads, once they have arrived: memory still written must not be reused."""
    for landing in landings:
        with contextlib.suppress(SessionError):  # of a lost device nothing arrives
            landing.wait()
            landing.release()


def _copies(layout: OutputLayout, landing: Readback, start: int = 0) -> list[BufferCopy]:
    return [BufferCopy(buffer, 0, landing, start + at, nbytes) for buffer, nbytes, at in layout.pieces]


def _lands_as_shown(port: Port) -> bool:
    """Return whether the bytes read back of an output are those of its boundary dtype."""
    return port.direct or port.packed is not None
