"""Run a graph as a function: `graph.run({"x": x})`. Made by `build_compiled_graph`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.closing import Closing
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import (
    ActiveExtentUnsupported,
    ArgumentError,
    DTypeError,
    LoadError,
    NoRunError,
    ParamNotSetError,
    SessionError,
    StaleViewWarning,
    unknown_name,
)
from gdlab.base.files import open_regular
from gdlab.base.formats import check_boundary, from_bytes
from gdlab.base.formats.packed_bytes import Packed, from_words
from gdlab.base.kinds import FLAG, MAPPING, PATH, SEVERAL, either, is_several, kinds
from gdlab.base.threads import OwnerThread, snapshot
from gdlab.base.types import Array
from gdlab.base.words import listed, plural
from gdlab.compiled.boundary_values import (
    FEEDABLE,
    OutputLayout,
    OutputSlot,
    Port,
    TensorSpec,
    accept,
    accept_bytes,
    check_index,
    check_targets,
    given_out,
    layout_of,
    typed_out,
    with_packed,
)
from gdlab.compiled.capabilities import Capabilities, capabilities_of
from gdlab.compiled.expert_routing import ExpertLayer, Mask, MoeResidencyStats, checked_mask
from gdlab.compiled.flights import NOTHING, Flight, Flights, pipelined
from gdlab.compiled.handles import HeldHandles
from gdlab.compiled.launch import REMEDY, Launcher, LaunchRequest
from gdlab.compiled.residency import Residency
from gdlab.compiled.saved import SavedBoundary, SavedGraph, write_saved
from gdlab.compiled.views import Arena, RawOutput, Views
from gdlab.devices.base import DeviceInfo
from gdlab.graph import Graph
from gdlab.graph.source import stack_level
from gdlab.plan.records import ExecutionPlan
from gdlab.rewrite import OptimizeReport
from gdlab.session import Session, open_session
from gdlab.session.arrays import as_array
from gdlab.session.checkpoint import CheckpointContent
from gdlab.session.external import unknown_slot
from gdlab.session.profile import SessionProfile, check_samples

T = TypeVar("T")
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class GraphSignature:
    """The signature of a compiled graph: its inputs, outputs and parameters, and the options that copies share.
    `states`: parameters that the graph writes; `axes`: the bucket axes by input, `upper`: their extent;
    `landing_bytes`: the most that pipelined outputs take at a time. `layers` of experts, whose choices are `hidden`
    outputs, and how many experts come from the host at a time."""

    inputs: Mapping[str, Port]
    outputs: tuple[Port, ...]
    params: tuple[TensorSpec, ...]
    states: tuple[str, ...]
    axes: Mapping[str, tuple[int, ...]]
    upper: int | None
    max_in_flight: int
    landing_bytes: int
    strict_views: bool
    layers: tuple[ExpertLayer, ...] = ()
    hidden: Mapping[str, Port] = field(default_factory=dict)
    moe_transient: int = 1

    def over(self, session: Session) -> GraphSignature:
        """Return the same signature over another session, whose plan has the same inputs and outputs."""
        places, buffers = session.values.places.inputs, iter(session.plan().output_buffers)
        inputs = {name: replace(port, buffer=places[name]) for name, port in self.inputs.items()}
        outputs = tuple(replace(port, buffer=next(buffers)) for port in self.outputs)
        hidden = {name: replace(port, buffer=next(buffers)) for name, port in self.hidden.items()}
        outputs = tuple(with_packed(outputs, hidden))
        return replace(self, inputs=inputs, outputs=outputs, hidden=hidden)


SOURCE = either("a mapping from names, or the path of a safetensors file", MAPPING, PATH)


@bound
class CompiledGraph(Closing):
    """A graph compiled for a device, called as a function. Every call copies what it is given, checks everything before
    it writes anything, and may come from any thread.

    The parts do the work: `launcher` makes forwards, `handles` keeps inputs between them, `views` shows outputs where
    they landed, `flights` knows the forwards that nobody waits for. The plan, its memory and the parameters are those
    of `session`.
    """

    def __init__(
        self,
        session: Session | None = None,
        report: OptimizeReport | None = None,
        signature: GraphSignature | None = None,
        *_: object,
        **__: object,
    ) -> None:
        if not isinstance(session, Session) or report is None or signature is None:
            raise TypeError("CompiledGraph(): use build_compiled_graph(graph)")
        self.session, self.report, self.signature = session, report, signature
        self.views = Views(signature.strict_views)
        self.whole_plan = session.loaded.plan  # the plan with all experts on the device
        self.kin: WeakSet[object] = WeakSet([self])  # all graphs and sessions over some of these parameters
        self._open((), {})
        self.sharers: WeakSet[OwnerThread] = WeakSet([session.loaded.turn])  # turns of all that share parameters
        self._slots = tuple((slot.byte_offset, slot.num_elements) for slot in self.launcher.slots)

    def _open(self, masks: Sequence[Mask], before: Mapping[str, int]) -> None:
        """Rebuild the parts that make forwards, over `session`. `before`: totals of an earlier session."""
        session, of = self.session, self.signature
        self.experts = Residency(session, of.layers, of.hidden, masks)
        self.launcher = Launcher(session, of.inputs, of.outputs, of.upper, self.views, self.experts)
        self.handles = self.launcher.handles
        session.loaded.program.queue.depth = of.max_in_flight
        posted = session.loaded.device.synchronous or self.experts.paging
        self.flights = Flights(self.launcher, of.max_in_flight, posted)
        for name, total in before.items():
            setattr(session.traffic, name, getattr(session.traffic, name) + total)

    # identity ---------------------------------------------------------------------------------------------------------
    @property
    def device(self) -> DeviceInfo:
        """The kind and name of the device, and the reason for its choice."""
        return self.session.loaded.device.info

    @property
    def plan(self) -> ExecutionPlan:
        """The plan that runs."""
        return self.session.loaded.plan

    @property
    def graph(self) -> Graph:
        """The compiled graph, after the optimizer."""
        return self.plan.graph

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in the order in which they were declared."""
        return tuple(port.spec for port in self.signature.inputs.values())

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs in order: those of the graph, then gradients."""
        return tuple(port.spec for port in self.signature.outputs)

    @property
    def params(self) -> tuple[TensorSpec, ...]:
        """The parameters, in the order in which they were declared, with their storage dtype."""
        return self.signature.params

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.signature.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, `out{i}` for one without a name."""
        return tuple(port.spec.name for port in self.signature.outputs)

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(spec.name for spec in self.signature.params)

    @property
    def output_slots(self) -> tuple[OutputSlot, ...]:
        """The place of each output in the arena of `run_raw` and `run_slots`."""
        return self.launcher.slots

    @property
    def states(self) -> tuple[str, ...]:
        """The parameters that the graph writes in place; they are kept from run to run."""
        return self.signature.states

    @property
    def epoch(self) -> int:
        """The number of forwards launched."""
        return self.launcher.epoch

    @property
    def draw(self) -> int:
        """The number of the next forward's random numbers; by default the forwards made."""
        return self.session.progress.draw % (1 << 32)

    @draw.setter
    def draw(self, draw: int) -> None:
        if isinstance(draw, bool) or not isinstance(draw, (int, np.integer)) or not 0 <= draw < 1 << 32:
            raise ArgumentError("draw", "draw", repr(draw), "an int in 0 … 2^32 − 1")

        def set_draw() -> None:
            self.session.progress.draw_offset = int(draw) - self.session.progress.steps

        self._alone("draw", set_draw)

    def counters(self) -> dict[str, int]:
        """Return running totals, counted where the work is done; `arenas_retired`: memory kept alive by views."""
        own = {"arenas_retired": self.views.retired_count, "moe_sync_points": self.experts.sync_points}
        return {**self.session.traffic.as_dict(), **own}

    def last_run_stats(self) -> dict[str, int]:
        """Return what the last forward added to the counters, and its `extent` (−1: no bucket axes)."""
        upper, extent = self.signature.upper, self.launcher.last_extent
        at = -1 if upper is None else upper if extent is None else extent
        return {**self.launcher.last_stats(), "extent": at}

    def memory_summary(self) -> dict[str, int]:
        """Return the session's summary as a dict, with the bytes of the plan's memory, of values of host handles, of
        the arena and of retired ones."""
        arena, summary = self.views.current, self.session.memory_summary()
        resident_bytes, host_bytes = self.experts.bytes()
        return {
            **asdict(summary),
            "plan_bytes": summary.total_buffer_bytes,
            "handle_bytes": sum(handle.numbers.nbytes for handle in self.handles.host.values()),
            "arena_bytes": 0 if arena is None else arena.landing.nbytes,
            "retired_bytes": self.views.retired_bytes,
            "moe_resident_bytes": resident_bytes,
            "moe_host_bytes": host_bytes,
        }

    def capabilities(self) -> Capabilities:
        """Return the features that work here, computed from the existing methods and the device."""

        def timed() -> bool:
            program = self.session.loaded.program
            reason = program.profile((0, 1))
            program.profile(None)
            return not reason

        timestamps = self._alone("capabilities", timed)
        return capabilities_of(type(self), self.session.loaded.device, self.signature.max_in_flight, timestamps)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def doc(self, name: str = "graph") -> Any: ...

    def profile(self, runs: int = 3, inputs: Any = NONE) -> SessionProfile:
        """Time every dispatch of `runs` forwards with these inputs (by default those of handles). They do not count:
        outputs, states, handles, `epoch`, `draw` and counters of forwards stay as they are."""
        count, request = check_samples("profile", "runs", runs), self.launcher.resolve("profile", inputs)

        def timed() -> SessionProfile:
            self.flights.finish(False)
            return self.launcher.profile(request, count)

        return self._alone("profile", timed, self.session.loaded.turn.call)

    # life -------------------------------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.session.closed

    def close(self) -> None:
        """Wait for pending work and release the device memory; idempotent. Memory of views stays readable."""
        if not self.closed:
            self.launcher.exclusively(lambda: self.flights.finish(False))
            self.session.close()

    def __repr__(self) -> str:
        counts = (self.inputs, "input"), (self.outputs, "output"), (self.plan.dispatches, "dispatch")
        told = ", ".join(plural(len(rows), word) for rows, word in counts)
        return f"<CompiledGraph: {self.device.kind}, {told}, {'closed' if self.closed else f'run {self.epoch}'}>"

    def _alone(self, where: str, function: Callable[[], T], run: Callable[[Callable[[], T]], T] | None = None) -> T:
        """Run `function` on the owner thread of the device, after all earlier calls; by `run` where it takes long."""
        self._check_open(where)
        try:
            return (run or self.launcher.exclusively)(function)
        finally:
            self._warn()

    def _warn(self) -> None:
        """Warn of views that were still in use when the last forwards ran, at the user's line."""
        if self.views.waiting():
            for text in self.views.take_warnings():
                warnings.warn(text, StaleViewWarning, stacklevel=stack_level())

    def _check_open(self, where: str) -> None:
        if self.closed:
            raise SessionError(where, "compiled graph", "closed", "an open one")

    def share(self, other: CompiledGraph) -> None:
        """Share parameters with another graph: neither runs while the other's are written."""
        other.sharers.add(self.session.loaded.turn)
        other.kin.add(self)
        self.sharers, self.kin = other.sharers, other.kin

    def _write(self, function: Callable[[], None]) -> None:
        """Run `function` while no forward runs over these parameters."""
        for turn in sorted(snapshot(self.sharers), key=id):
            function = partial(turn.here, function)
        function()

    # runs -------------------------------------------------------------------------------------------------------------
    def run(self, inputs: Any = NONE, out: Sequence[Array | None] | None = None) -> list[Array]:
        """Run the graph and return its outputs in order, fresh arrays in their boundary dtypes. `inputs`: a mapping of
        names, or (name, data) pairs; data in the declared shape, or flat. `out`: arrays to fill, None where a fresh one
        is wanted."""
        request = self.launcher.resolve("run", inputs)
        if out is None:
            return self.run_request(request)
        targets = iter(check_targets("run", out, self.signature.outputs))
        return self._alone("run", lambda: self.launcher.run_numbers(request, lambda p, n: _filled(next(targets), p, n)))

    def run_request(self, request: LaunchRequest) -> list[Array]:
        """Run with inputs that are resolved, at the extent of the request."""
        return self._alone(request.where, lambda: self.launcher.run(request, self.launcher.all))

    def __call__(self, /, **inputs: Any) -> Array | dict[str, Array]:
        """Run with inputs by name; return one array if there is one output, else arrays by output name."""
        arrays = self.run(inputs)
        return arrays[0] if len(arrays) == 1 else dict(zip(self.output_names, arrays, strict=True))

    @kinds(indices=SEVERAL)
    def run_read_outputs(self, inputs: Any, indices: Iterable[int]) -> list[Array | None]:
        """Run, and read back the requested outputs alone; None for the others."""
        where, outputs = "run_read_outputs", self.signature.outputs
        wanted = sorted({check_index(where, index, len(outputs)) for index in indices})
        request, layout = self.launcher.resolve(where, inputs), layout_of(outputs[i] for i in wanted)
        arrays = self._alone(where, lambda: self.launcher.run(request, layout))
        found = dict(zip(wanted, arrays, strict=True))
        return [found.get(i) for i in range(len(outputs))]

    def read_output_row(self, index: int, row: int) -> Array:
        """Return one row (of the first axis) of an output of the last forward."""
        where = "read_output_row"
        port = self.signature.outputs[check_index(where, index, len(self.signature.outputs))]
        rows, *inner = port.spec.shape
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < rows:
            raise ArgumentError(where, "row", repr(row), f"0 … {rows - 1}")

        def read() -> Array:
            self._check_ran(where)
            numbers = np.empty(inner, port.dtype.numpy)
            program, start = self.session.loaded.program, int(row) * numbers.nbytes
            program.queue.read(where, program.memory_at(port.buffer)[0], numbers.reshape(-1).data.cast("B"), start)
            return given_out(port, numbers)

        return self._alone(where, read)

    @kinds(out_dtypes=SEVERAL)
    def run_typed(self, inputs: Any, out_dtypes: Sequence[str | None] | None = None) -> list[tuple[bytes, str]]:
        """Run on little-endian bytes: `inputs` are (name, bytes, dtype), or name → (bytes, dtype); the results are
        (bytes, dtype), in the boundary dtypes or those asked for (None: the boundary's)."""
        where, outputs = "run_typed", self.signature.outputs
        request = self.launcher.resolve(where, _typed_pairs(where, inputs), _accept_typed)
        asked = [None] * len(outputs) if out_dtypes is None else list(out_dtypes)
        if len(asked) != len(outputs):
            raise ArgumentError(where, "out_dtypes", f"{len(asked)} entries", f"one for each of {len(outputs)}")
        dtypes = [
            port.spec.dtype if dtype is None else check_boundary(where, f"dtype of {port.spec.name!r}", dtype)
            for port, dtype in zip(outputs, asked, strict=True)
        ]
        each = iter(dtypes)
        made = self._alone(where, lambda: self.launcher.run_numbers(request, lambda p, n: typed_out(p, n, next(each))))
        return list(zip(made, dtypes, strict=True))

    # outputs where they landed ----------------------------------------------------------------------------------------
    def run_raw(self, inputs: Any = NONE) -> list[RawOutput]:
        """Run the graph and return its outputs without a copy; valid until the next forward."""
        arena = self._run_into_arena(self.launcher.resolve("run_raw", inputs))
        return [
            RawOutput(s.index, s.name, s.dtype, s.shape, s.nbytes, arena.epoch, arena, s.byte_offset)
            for s in self.output_slots
        ]

    def run_slots(self, inputs: Sequence[Any] = ()) -> tuple[tuple[int, int], ...]:
        """Run the graph with a value for each input in order (None: that of its handle), and return (byte offset,
        number of elements) of each output in the arena: always the same tuple."""
        names = list(self.signature.inputs)
        if not isinstance(inputs, (list, tuple)) or len(inputs) != len(names):
            given = plural(len(inputs), "value") if isinstance(inputs, (list, tuple)) else type(inputs).__name__
            raise ArgumentError("run_slots", "inputs", given, f"one for each of {', '.join(names) or 'no input'}")
        pairs = {name: data for name, data in zip(names, inputs, strict=True) if data is not None}
        self._run_into_arena(self.launcher.resolve("run_slots", pairs))
        return self._slots

    def _run_into_arena(self, request: LaunchRequest) -> Arena:
        return self._alone(request.where, lambda: self.launcher.run_into_arena(request))

    def arena_ptr(self) -> int:
        """Return the address of the arena of the last forward, if that was `run_raw` or `run_slots`."""
        self._check_open("arena_ptr")
        return self.views.filled("arena_ptr").address

    def arena_view(self) -> memoryview:
        """Return a read-only view of the arena's bytes, valid until the next forward."""
        self._check_open("arena_view")
        arena = self.views.filled("arena_view")
        return arena.view(0, arena.nbytes)

    # parameters -------------------------------------------------------------------------------------------------------
    def set_param(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into a parameter, for forwards launched later."""
        self._write(lambda: self._set(name, data, "set_param"))

    def set_param_typed(self, name: str, data: Any, dtype: str) -> None:
        """Set a parameter from little-endian bytes of `dtype`; bytes of its own storage dtype are stored unchanged."""
        where = "set_param_typed"
        types = self.whole_plan.param_types
        type = types.get(name) if isinstance(name, str) else None
        if type is None:
            raise unknown_name(where, "parameter", str(name), types)
        if type.dtype.is_storage and str(dtype) == str(type.dtype):
            return self._write(lambda: self.session.values.set_parameter_packed(name, data))
        asked = check_boundary(where, repr(name), dtype)
        numbers = from_bytes(where, repr(name), data, asked, type.num_elements)
        self._write(lambda: self._set(name, numbers, where))

    def _set(self, name: str, data: Any, where: str) -> None:
        """Set a parameter; of experts all matrices, those on the host too."""
        if not isinstance(name, str) or name not in self.experts.split:
            return self.session.values.set_parameter(name, data, where)
        full = as_array(where, name, data, self.whole_plan.param_types[name])
        self.experts.write(name, full)
        self.session.values.unset_parameters.have([name])

    def read_param(self, name: str) -> Array:
        """Return a parameter as float32, after pending work."""
        if isinstance(name, str) and name in self.experts.split:
            return self._alone("read_param", lambda: self.experts.read(name))
        return self.session.values.read_param(name, None)

    def initialize(self, seed: int = 0, zeros: bool = False) -> None:
        """Fill every parameter that has no value by its declared initializer."""
        self._write(lambda: self._whole(lambda: self.session.values.initialize(seed, zeros)))

    @kinds(source=SOURCE)
    def load_params(self, source: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Set parameters from a mapping, or from a safetensors file; also in the bytes of their storage dtype, as a
        session's checkpoint has them. All names and shapes are checked first."""
        values = dict(source) if isinstance(source, Mapping) else _file(source)
        held, where = self.session.values, "load_params"
        whole = self.whole_plan.param_types
        types = {name: held.places.types[held.parameter(where, name)] for name in values}
        types = {name: whole.get(name, type) for name, type in types.items()}
        given = {name: from_words(data, types[name]) for name, data in values.items()}
        checked = {
            name: data if isinstance(data, Packed) and data.type == types[name] else
            as_array(where, name, data, types[name])
            for name, data in given.items()
        }  # fmt: skip

        def set_all() -> None:
            for name, data in checked.items():
                self._set(name, data, where)

        self._write(set_all)

    def reset_state(self, name: str | None = None) -> None:
        """Write zeros into a state, or into all."""
        self._check_open("reset_state")
        if name is not None and name not in self.states:
            raise unknown_name("reset_state", "state", str(name), self.states)
        for state in self.states if name is None else (name,):
            shape = self.plan.param_types[state].shape
            self.session.values.set_parameter(state, np.zeros(shape, np.float32), "reset_state")

    # files ------------------------------------------------------------------------------------------------------------
    @kinds(path=PATH, weights=FLAG)
    def save(self, path: str | os.PathLike[str], weights: bool = False) -> None:
        """Write plan, boundary and bucket axes to a file that `load_compiled_graph` opens without optimizing or
        lowering; with `weights` also the parameters, states included. Handles, feeds and extent are not saved."""
        self._check_open("save")
        stored: dict[int, Array] = {}
        unset, of = frozenset(self.param_names), self.signature
        if weights:
            stored, unset = self._alone("save", lambda: self._whole(self._stored))
        names = {b: name for name, b in self.whole_plan.stored_params}
        edge = SavedBoundary(
            tuple(spec.dtype for spec in self.inputs), tuple(spec.dtype for spec in self.outputs), of.states,
            tuple((name, tuple(axes)) for name, axes in of.axes.items()), of.upper, of.max_in_flight, of.landing_bytes,
            of.strict_views, tuple(sorted(unset)), of.layers, of.moe_transient,
        )  # fmt: skip
        write_saved(path, SavedGraph(self.whole_plan, edge, {names[b]: data for b, data in stored.items()}))

    def load_stored(self, stored: Mapping[str, Array], unset: Collection[str]) -> None:
        """Write parameters as a file holds them, by the name under which the plan stores them."""
        places = dict(self.plan.stored_params)
        buffers = {places[name]: data for name, data in stored.items()}
        self._write(lambda: self._store(buffers, unset))

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters to a file that `Session.load_checkpoint` takes too, after everything launched."""
        self._alone("save_checkpoint", lambda: self.flights.finish(False))
        self._write(lambda: self._whole(lambda: self.session.save_checkpoint(path)))

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Load the parameters from a checkpoint, also from one of a session with the same parameters, all or none."""
        self._write(lambda: self._whole(lambda: self.session.load_checkpoint(path)))

    def snapshot(self) -> CheckpointContent:
        """Return the parameters after all launched forwards, in memory, for `restore`."""
        self._alone("snapshot", lambda: self.flights.finish(False))
        if unset := self.session.values.parameters_without_value():
            raise ParamNotSetError("snapshot", "parameters", f"no value for {listed(unset)}", REMEDY)
        return self._alone("snapshot", lambda: self._whole(lambda: self.session.snapshot()))

    def restore(self, snapshot: CheckpointContent) -> None:
        """Restore the parameters of a snapshot; `draw` and `epoch` go on."""
        self._write(lambda: self._whole(lambda: self.session.restore(snapshot, self.session.step_count)))

    # host handles -----------------------------------------------------------------------------------------------------
    def bind_handle(self, name: str, data: Any) -> bool:
        """Keep a value: for an input, its default in later runs; for `out{i}`, that output after every forward. An
        input that is named `out{i}` becomes that output after every forward."""
        where = "bind_handle"
        port = self.handles.port_of(name)
        if port is None:
            known = [*self.signature.inputs, *(f"out{i}" for i in range(len(self.signature.outputs)))]
            raise unknown_name(where, "input or output", str(name), known)
        index = self.handles.output_named(name)
        if name in self.signature.inputs and index is not None:
            self.handles.check_shapes(where, name, index)
        numbers = accept(where, port, data).copy()
        self._alone(where, lambda: self.handles.bind(name, numbers))
        return True

    def read_handle(self, name: str) -> Array | None:
        """Return a copy of a host handle's value, after pending work; None if it is not bound."""

        def read() -> Array | None:
            port = self.handles.port_of(name)
            bound = port is not None and name in self.handles.host
            return given_out(port, self.handles.numbers_of(name)) if port is not None and bound else None

        return self._alone("read_handle", read)

    def set_handle_feed(self, name: str, output_index: int) -> bool:
        """Replace the value of a host handle by an output after every forward."""
        where = "set_handle_feed"
        if not isinstance(name, str) or name not in self.handles.host or name not in self.signature.inputs:
            raise SessionError(where, "host handle", repr(name), "an input with a handle: bind_handle first")
        index = check_index(where, output_index, len(self.signature.outputs))
        self.handles.check_shapes(where, name, index)

        def feed() -> None:
            self.handles.feed_host(name, index)

        self._alone(where, feed)
        return True

    def unbind_handle(self, name: str) -> bool:
        """Drop a host handle; return False if it is not bound."""
        return self._alone("unbind_handle", lambda: self.handles.unbind(name))

    # gpu handles ------------------------------------------------------------------------------------------------------
    def bind_gpu_handle(self, name: str, data: Any) -> bool:
        """Upload the value of an input once: it stays on the device. Binding again uploads again and keeps the feed."""
        where = "bind_gpu_handle"
        port = self._input(where, name)
        numbers = accept(where, port, data)
        self._alone(where, lambda: self.handles.bind_on_device(name, numbers))
        return True

    def has_gpu_handle(self, name: str) -> bool:
        """Return whether an input has a gpu handle."""
        self._check_open("has_gpu_handle")
        return isinstance(name, str) and name in self.handles.gpu

    def set_gpu_handle_feed(self, name: str, output_index: int) -> bool:
        """Copy an output into a gpu handle after every forward, on the device; setting again replaces."""
        index = self.handles.check_feed("set_gpu_handle_feed", name, output_index)
        self._alone("set_gpu_handle_feed", lambda: self.handles.feeds.__setitem__(name, index))
        return True

    def clear_gpu_handle_feed(self, name: str) -> bool:
        """Stop feeding a gpu handle; it keeps its value. Return whether it was fed."""
        self._check_open("clear_gpu_handle_feed")
        if not isinstance(name, str) or name not in self.handles.gpu:
            raise unknown_name("clear_gpu_handle_feed", "gpu handle", str(name), self.handles.gpu)
        return self._alone("clear_gpu_handle_feed", lambda: self.handles.feeds.pop(name, None) is not None)

    def read_gpu_handle(self, name: str) -> Array | None:
        """Return a copy of a gpu handle's value, after pending work; None if it is not bound."""

        def read() -> Array | None:
            if not isinstance(name, str) or name not in self.handles.gpu:
                return None
            port = self.signature.inputs[name]
            return given_out(port, self.session.values.download(port.buffer).reshape(port.spec.shape))

        return self._alone("read_gpu_handle", read)

    def unbind_gpu_handle(self, name: str) -> bool:
        """Drop a gpu handle and its feed; return False if it is not bound."""
        return self._alone("unbind_gpu_handle", lambda: self.handles.unbind_on_device(name))

    def run_feed_gpu_handle(self, inputs: Any, name: str, output_index: int) -> Array:
        """Set the feed of a gpu handle, which stays, run the graph, and read that output alone."""
        where = "run_feed_gpu_handle"
        index = self.handles.check_feed(where, name, output_index)
        request, layout = self.launcher.resolve(where, inputs), layout_of([self.signature.outputs[index]])
        (array,) = self._alone(where, lambda: self._run_fed(request, layout, name, index))
        return array

    def _run_fed(self, request: LaunchRequest, layout: OutputLayout, name: str, index: int) -> list[Array]:
        before = dict(self.handles.feeds)
        epoch, self.handles.feeds[name] = self.epoch, index
        try:
            return self.launcher.run(request, layout)
        finally:
            if self.epoch == epoch:  # nothing was launched
                self.handles.feeds = before

    def _input(self, where: str, name: str) -> Port:
        if not isinstance(name, str) or name not in self.signature.inputs:
            raise unknown_name(where, "input", str(name), self.signature.inputs)
        return self.signature.inputs[name]

    # memory of others -------------------------------------------------------------------------------------------------
    def input_buffer(self, name: str) -> Any:
        """Return the memory of an input: on cpu an array of f32 or u32, on wgpu a buffer. Wait before you write it."""
        port = self._slot("input_buffer", self.signature.inputs.get(name) if isinstance(name, str) else None, name)
        return self._memory("input_buffer", port)

    def output_buffer(self, index: int = 0) -> Any:
        """Return the memory of an output, where each forward writes it: for `bind_input` of another graph on this
        device. Not to be written."""
        return self._memory("output_buffer", self._output_slot("output_buffer", index))

    def bind_input(self, name: str, memory: Any) -> bool:
        """Read an input from other memory on this device, such as `other.output_buffer(0)`, without a copy; it is a gpu
        handle from now on, until `unbind_gpu_handle`. Its numbers are f32 or u32; indices are not checked."""
        where = "bind_input"
        port = self._slot(where, self.signature.inputs.get(name) if isinstance(name, str) else None, name)
        if not port.direct:
            raise DTypeError(where, f"input {name!r}", f"a boundary of {port.spec.dtype}", "one of f32 or u32")

        def bind_memory() -> None:
            self.flights.finish(False)
            self.handles.bind_memory(where, name, memory)

        self._alone(where, bind_memory)
        return True

    def bind_output(self, index: int, memory: Any) -> bool:
        """Write an output to other memory on this device, such as `other.input_buffer("x")`, from the next forward on;
        None: to memory of its own again, whose contents are old. Whether anything changed."""
        where = "bind_output"
        port = self._output_slot(where, index)

        def bind_memory() -> bool:
            self.flights.finish(False)
            if memory is None:
                return self.session.external.unbind(port.buffer)
            self.session.external.bind(int(index), memory, where)
            return True

        return self._alone(where, bind_memory)

    def _slot(self, where: str, port: Port | None, given: object) -> Port:
        if port is None:
            known = [*self.signature.inputs, *map(str, range(len(self.signature.outputs)))]
            raise unknown_slot(where, given, known)
        return port

    def _output_slot(self, where: str, index: object) -> Port:
        """Return an output whose numbers on the device are those of its boundary dtype."""
        outputs = self.signature.outputs
        known = isinstance(index, (int, np.integer)) and not isinstance(index, bool) and 0 <= index < len(outputs)
        port = self._slot(where, outputs[int(index)] if known else None, index)  # type: ignore[call-overload]
        if port.kind not in FEEDABLE:
            given = f"a boundary of {port.spec.dtype}"
            raise DTypeError(where, f"output {index}", given, "one of f32, f16, bf16 or u32")
        return port

    def _memory(self, where: str, port: Port) -> Any:
        memory = self._alone(where, lambda: self.session.loaded.program.memory_at(port.buffer)[0])
        return memory.reshape(port.spec.shape) if isinstance(memory, np.ndarray) else memory

    # forwards that nobody waits for -----------------------------------------------------------------------------------
    def commit_no_wait(self, inputs: Any = NONE) -> None:
        """Launch a forward and return. At most `max_in_flight` are outstanding: beyond, this waits for the oldest."""
        self._begin(self._flight("commit_no_wait", inputs, NOTHING, False))

    def run_async(self, inputs: Any = NONE) -> Future[list[Array]]:
        """Launch a forward and return the future of its outputs."""
        flight = self._flight("run_async", inputs, self.launcher.all, True)
        self._begin(flight)
        return flight.future

    def _flight(self, where: str, inputs: Any, layout: OutputLayout, own: bool) -> Flight:
        request = self.launcher.resolve(where, inputs)
        self.launcher.check(request)
        if self.flights.posted:  # it begins after this call
            values = {name: numbers.copy() for name, numbers in request.values.items()}
            request = LaunchRequest(where, values, request.extent)
        return Flight(self.launcher, request, layout, own)

    def _begin(self, flight: Flight) -> None:
        if self.flights.posted:
            self.flights.post(flight)
            return self._warn()
        self._alone(flight.request.where, lambda: self.flights.begin(flight))
        if flight.own:
            self.flights.watch(flight)

    @property
    def pending(self) -> int:
        """The number of forwards that have not ended."""
        return 0 if self.closed else self.flights.pending()

    def sync_pending(self) -> None:
        """Wait for all forwards; raise the first error of a commit, once."""
        self._alone("sync_pending", self.flights.finish)

    def read_outputs(self) -> list[Array]:
        """Wait for all forwards and return the outputs of the last one."""

        def read() -> list[Array]:
            self.flights.finish()
            self._check_ran("read_outputs")
            return [
                given_out(port, self.session.values.download(port.buffer).reshape(port.spec.shape))
                for port in self.signature.outputs
            ]

        return self._alone("read_outputs", read)

    @kinds(sets=SEVERAL, indices=SEVERAL)
    def run_pipelined(self, sets: Iterable[Any], indices: Iterable[int] | None = None) -> list[list[Array]]:
        """Run the graph on each set of inputs, one after the other, and wait once at the end. All sets are checked
        before the first forward is launched; those of an iterator, which may fill one array again and again, are
        copied as they come. `indices`: the outputs that are read back, in this order; None: all."""
        where, outputs, layout = "run_pipelined", self.signature.outputs, self.launcher.all
        if indices is not None:
            layout = layout_of([outputs[check_index(where, index, len(outputs))] for index in indices])
        read = accept if isinstance(sets, (list, tuple)) else _copied
        requests = [self.launcher.resolve(f"{where}, set {k}", inputs, read) for k, inputs in enumerate(sets)]
        for request in requests:
            self.launcher.check(request)
        return self._alone(where, lambda: pipelined(self.launcher, requests, layout, self.signature.landing_bytes))

    def _check_ran(self, where: str) -> None:
        if not self.epoch:
            raise NoRunError(where, "outputs", "no run yet", "a run before it")

    # extent -----------------------------------------------------------------------------------------------------------
    @property
    def active_extent(self) -> tuple[int, int] | None:
        """(actual, upper) of forwards called from now on, or None: all entries."""
        upper, extent = self.signature.upper, self.launcher.extent
        return None if upper is None or extent is None else (extent, upper)

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """Compute with the first `actual` of `upper` entries of the bucket axes, until changed; None: with all."""
        where, upper = "set_active_extent", self.signature.upper
        self._check_open(where)
        if upper is None:
            wanted = "build_compiled_graph(…, bucket_axes={input: axis})"
            raise ActiveExtentUnsupported(where, "graph", "one without bucket axes", wanted)
        actual = _checked_extent(where, extent, upper)

        def set_extent() -> None:
            self.launcher.extent = None if actual == upper else actual

        self._alone(where, set_extent)

    # experts ----------------------------------------------------------------------------------------------------------
    def set_moe_resident_experts(self, mask: Sequence[bool]) -> None:
        """Keep the experts that the mask selects on the device, in every layer, and the others on the host; experts
        after its end stay on the device. An empty mask: all. Results keep their bits."""
        where = "set_moe_resident_experts"
        checked = checked_mask(where, mask, max(layer.most for layer in self._layers(where)))
        self._set_masks(where, [checked[: layer.most] for layer in self.signature.layers])

    def set_moe_resident_experts_per_layer(self, masks: Sequence[Sequence[bool]]) -> None:
        """Set a mask per layer in order, as `set_moe_resident_experts` does; later layers keep all on the device."""
        where = "set_moe_resident_experts_per_layer"
        layers = self._layers(where)
        given = list(masks) if isinstance(masks, (list, tuple)) else None
        if given is None or len(given) > len(layers):
            told = type(masks).__name__ if given is None else plural(len(given), "mask")
            raise ArgumentError(where, "masks", told, f"a list of at most {plural(len(layers), 'mask')}")
        pairs = list(zip(given, layers, strict=False))
        checked = [checked_mask(where, mask, layer.most, f"mask {k}") for k, (mask, layer) in enumerate(pairs)]
        self._set_masks(where, [*checked, *[()] * (len(layers) - len(checked))])

    def enable_moe_topk_capture(self, num_experts: int) -> bool:
        """Record the router's choices in each layer with `num_experts` experts, from the next forward on. False, and
        nothing is kept, where no top-k reaches such a layer."""
        if isinstance(num_experts, bool) or not isinstance(num_experts, (int, np.integer)):
            raise ArgumentError("enable_moe_topk_capture", "num_experts", repr(num_experts), "an int")
        return self._alone("enable_moe_topk_capture", lambda: self.experts.capture(int(num_experts)))

    def disable_moe_topk_capture(self) -> None:
        """Stop recording from the next forward on."""

        def disable() -> None:
            self.experts.captured = None

        self._alone("disable_moe_topk_capture", disable)

    def take_moe_topk_capture(self) -> list[Array] | None:
        """Return the router's choices in the last forward: u32 by layer, tokens × k, flat; then None until the next."""
        return self._alone("take_moe_topk_capture", self.experts.take_capture)

    def take_moe_residency_stats(self) -> MoeResidencyStats | None:
        """Return experts and rows of the last forward on the device and on the host; then None until the next."""
        return self._alone("take_moe_residency_stats", self.experts.take_stats)

    def _layers(self, where: str) -> tuple[ExpertLayer, ...]:
        if not self.signature.layers:
            raise ArgumentError(where, "graph", "one without grouped_matmul", "one with a layer of experts")
        return self.signature.layers

    def _set_masks(self, where: str, masks: Sequence[Mask]) -> None:
        """Move experts between device and host; if their number changes, with another plan of the same graph."""
        self.experts.check_masks(where, masks)
        others = [one for one in snapshot(self.kin) if one is not self and not getattr(one, "closed", False)]
        if others and self.experts.splits(masks):
            raise SessionError(where, "parameters", f"those of {others[0]!r} too", "parameters of its own: clone()")
        self._write(lambda: self._alone(where, lambda: self._move_experts(masks)))

    def _move_experts(self, masks: Sequence[Mask]) -> None:
        """Open the plan with room for the resident experts, and move all state that a caller sees."""
        self.flights.finish(False)
        old, launcher, experts = self.session, self.launcher, self.experts
        session = self.experts.session_of(self.whole_plan, masks, self.signature.moe_transient)
        held = self.handles.held()
        full = {name: experts.read(name) for name in experts.pools}
        unset = [name for name in full if name in old.values.unset_parameters]
        self.views.end("a change of masks")
        self.session, self.signature = session, self.signature.over(session)
        session.progress.steps, session.progress.draw_offset = old.progress.steps, old.progress.draw_offset
        self._open(masks, old.traffic.as_dict())
        self.experts.follow(experts)
        for name, matrices in full.items():
            self.experts.write(name, matrices)
            if name not in unset:
                session.values.unset_parameters.have([name])
        self.handles.hold(held)
        self.launcher.follow(launcher)
        old.close()

    def _whole(self, function: Callable[[], T]) -> T:
        """Run `function` while all experts lie on the device; called on the owner thread."""
        masks = self.experts.masks
        if not self.experts.split:
            return function()
        self._move_experts([()] * len(masks))
        try:
            return function()
        finally:
            self._move_experts(masks)

    # copies -----------------------------------------------------------------------------------------------------------
    def clone(self) -> CompiledGraph:
        """Return a copy by value: parameters, states, handles, feeds, extent and draw; plan and kernels are shared.
        Pending work is waited for, views stay valid, counters begin at 0."""
        self._alone("clone", lambda: self.flights.finish(False))
        session = open_session(self.whole_plan, self.session.loaded.device, self.session.nodes)
        made = CompiledGraph(session, self.report, self.signature.over(session))
        made._take(self)
        return made

    __reduce__ = refuse_copies("compiled graph", "clone()")

    def __copy__(self) -> CompiledGraph:
        return self.clone()

    def __deepcopy__(self, memo: object) -> CompiledGraph:
        return self.clone()

    def clone_from(self, other: CompiledGraph) -> None:
        """Copy the values of another compiled graph of the same plan and kind of device, as `clone` does."""
        if not isinstance(other, CompiledGraph) or other.closed:
            given = "a closed one" if isinstance(other, CompiledGraph) else type(other).__name__
            raise SessionError("clone_from", "compiled graph", given, "an open CompiledGraph")
        mine, theirs = ((g.device.kind, g.whole_plan.fingerprint, g.inputs, g.outputs) for g in (self, other))
        if mine != theirs:
            given = f"another plan on {other.device.kind}"
            raise SessionError("clone_from", "compiled graph", given, f"one of the same plan on {self.device.kind}")
        if other is not self:
            self._take(other)

    def context(self) -> CompiledGraph:
        """Return an object with inputs, handles, feeds, extent, outputs and states of its own over the same weights:
        one for each thread of a server. Its states begin at zero."""
        if self.experts.split:
            wanted = "all on the device: set_moe_resident_experts([])"
            raise SessionError("context", "experts", "some on the host", wanted)
        names = tuple(name for name in self.param_names if name not in self.states)
        loaded = self.session.loaded
        session = open_session(loaded.plan, loaded.device, self.session.nodes, self.session, names)
        made = CompiledGraph(session, self.report, self.signature)
        made.share(self)
        made.reset_state()
        return made

    def _take(self, other: CompiledGraph) -> None:
        """Copy the values of another graph of the same plan, by way of the host."""
        held = other._alone("clone", other._transferred)
        if held.masks != self.experts.masks:
            self._set_masks("clone_from", held.masks)
        self._alone("clone", lambda: self._hold(held))

    def _transferred(self) -> TransferredValues:
        stored, unset = self._stored()
        experts = self.experts
        matrices = {name: experts.read(name) for name in experts.split}
        rest = self.handles.held(), self.launcher.extent, self.draw, experts.masks, experts.captured, matrices
        return TransferredValues(stored, unset, *rest)

    def _stored(self) -> tuple[dict[int, Array], frozenset[str]]:
        """Return the parameters by buffer, and the names of those without a value, after all pending work."""
        self.flights.finish(False)
        program, plan = self.session.loaded.program, self.plan
        unset = frozenset(self.session.values.parameters_without_value())
        stored = {b: program.words(b) if plan.buffers[b].dtype.is_storage else program.download(b)
                  for _, b in plan.stored_params}  # fmt: skip
        return stored, unset

    def _store(self, stored: Mapping[int, Array], unset: Collection[str]) -> None:
        """Write parameters by buffer, and record which have a value."""
        program, plan = self.session.loaded.program, self.plan
        for buffer, data in stored.items():
            if plan.buffers[buffer].dtype.is_storage:
                program.upload_words(buffer, data)
            else:
                program.upload(buffer, data)
        self.session.values.unset_parameters.have(set(self.param_names) - set(unset))
        self.session.values.unset_parameters.lack(unset)

    def _hold(self, held: TransferredValues) -> None:
        self.flights.finish(False)
        self.views.end("clone_from")
        self._store(held.stored, held.unset)
        for name, full in held.matrices.items():
            self.experts.write(name, full)
        self.experts.captured = held.captured
        self.handles.hold(held.handles)
        self.launcher.extent = held.extent
        self.session.progress.draw_offset = held.draw - self.session.progress.steps


@dataclass(frozen=True, slots=True, eq=False)
class TransferredValues:
    """The values of a compiled graph, to be copied to another one of the same plan. `stored`: parameters by buffer,
    those of storage dtypes as words; `unset`: parameters without a value; `matrices`: the weights of which some experts
    lie on the host."""

    stored: Mapping[int, Array]
    unset: frozenset[str]
    handles: HeldHandles
    extent: int | None
    draw: int
    masks: tuple[Mask, ...]
    captured: int | None
    matrices: Mapping[str, Array]


def _filled(target: Array | None, port: Port, numbers: Array) -> Array:
    made = given_out(port, numbers) if target is None or not port.direct else numbers
    if target is None:
        return made
    target[...] = made
    return target


def _typed_pairs(where: str, inputs: Any) -> Any:
    """Return typed inputs as a mapping, or as (name, (bytes, dtype)) pairs."""
    if isinstance(inputs, Mapping):
        return inputs
    wanted = "(name, bytes, dtype) triples, or a mapping name → (bytes, dtype)"
    if isinstance(inputs, (str, bytes)) or not is_several(inputs):
        raise ArgumentError(where, "inputs", type(inputs).__name__, wanted)
    triples = list(inputs)
    if not all(isinstance(triple, (tuple, list)) and len(triple) == 3 for triple in triples):
        raise ArgumentError(where, "inputs", "an entry that is no triple", wanted)
    return [(name, (data, dtype)) for name, data, dtype in triples]


def _accept_typed(where: str, port: Port, given: Any) -> Array:
    what = repr(port.spec.name)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentError(where, what, type(given).__name__, "(bytes, dtype)")
    return accept_bytes(where, port, given[0], check_boundary(where, what, given[1]))


def _copied(where: str, port: Port, given: Any) -> Array:
    return accept(where, port, given).copy()


def _checked_extent(where: str, extent: object, upper: int) -> int:
    """Return the active extent of an (actual, upper) pair; for None, `upper`."""
    if extent is None:
        return upper
    pair = list(extent) if isinstance(extent, (tuple, list)) else []
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in pair):
        raise ArgumentError(where, "extent", f"{extent!r:.80}", f"(actual, {upper}) in integers, or None")
    if pair[1] != upper:
        raise ArgumentError(where, "upper", pair[1], f"{upper}, at which the graph is compiled")
    if not 0 <= pair[0] <= upper:
        raise ArgumentError(where, "actual", pair[0], f"0 … {upper}")
    return int(pair[0])


def _file(path: str | os.PathLike[str]) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    what, wanted = f"file {os.fspath(path)}", "a safetensors file of NumPy's dtypes (gd.load_safetensors reads BF16)"
    try:
        with open_regular(path):  # the library would wait for a pipe
            found = dict(load_file(path))
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: dtypes that NumPy lacks
        raise LoadError("load_params", what, str(error), wanted) from None
    for name, data in found.items():
        if data.dtype.kind not in "fiub":  # those that the package ml_dtypes adds
            raise LoadError("load_params", what, f"{name!r} in {data.dtype}", wanted)
    return found
