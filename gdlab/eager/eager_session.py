"""Define by run: every op of a session computes at once and joins its tape.

s = gd.EagerSession(device="cpu")
w = s.param(init, "w")
loss = ((s.input(xb) @ s.use(w)).relu() - s.input(tb)).square().mean_all()
s.step(gd.eager.Adam(1e-2), s.backward_scalar_param_grads(loss))
s.reset_tape()
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import (
    ArgumentError,
    DTypeError,
    EagerError,
    GdlabError,
    GraphError,
    OutputIndexError,
    ShapeError,
)
from gdlab.base.formats import narrowed
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import (
    FLAG,
    FUNCTION,
    MAPPING,
    NAMED,
    SEVERAL,
    TEXT,
    check_kind,
    either,
    instance,
    is_several,
    kinds,
)
from gdlab.base.statistics import array_words
from gdlab.base.types import Array, TensorType, check_shape
from gdlab.base.words import plural
from gdlab.devices.base import DeviceInfo
from gdlab.devices.choose import device as choose
from gdlab.eager import grads as backward
from gdlab.eager import parameter_steps
from gdlab.eager.computing import EagerCompute, engine_of
from gdlab.eager.convert import FloatConv, HostOnlyConv, conv_of, dtype_of
from gdlab.eager.eager_options import Options, options_of
from gdlab.eager.grads import BackwardTrace, DeviceGradMap, Grads
from gdlab.eager.jit import Jitted
from gdlab.eager.params import NatRef, Nats, NatVecRef, Param, checked_nat, input_leaf, parameter_leaf, taken, type_of
from gdlab.eager.references import AllocatorStats, AnyBuffer, MemoryBlock, Origin
from gdlab.eager.rng import RngState
from gdlab.eager.tape import Tape, TensorRef
from gdlab.eager.tape_as_graph import TapeExport, to_graph
from gdlab.graph import ConstantData, Value, capture, here, replace_current
from gdlab.op import REGISTRY
from gdlab.session.arrays import as_array
from gdlab.session.initial import DEFAULT, initial_values
from gdlab.session.update_settings import Optimizer

P = ParamSpec("P")
R = TypeVar("R")
Seed = int | RngState | None
TENSORS = either("tensors: one, a list or a mapping by name", instance(TensorRef, ""), SEVERAL)
NUMBERS = either("integers: a list, an array or a u32 tensor", instance(TensorRef, ""), SEVERAL)
GRADS = instance((Grads, DeviceGradMap), "gradients of backward or backward_scalar_param_grads")
STREAM = instance(RngState, "a stream of split_rng or RngState")
LEAKS = 8  # tensors that `assert_no_leaks` names
_numbers = itertools.count(1)


def call(method: Callable[Concatenate[EagerSession, P], R]) -> Callable[Concatenate[EagerSession, P], R]:
    """Decorate a method as a call of an open session, one at a time; its errors name the user's line."""

    @wraps(method)
    def called(self: EagerSession, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            self._check_open(method.__name__)
            return self.locked(partial(method, self, *args, **kwargs))
        except GdlabError as error:
            if error.source is None:
                error.source = here()
            raise

    return called  # type: ignore[return-value]


@bound
class EagerSession:
    """A tape of ops that ran, the parameters that they read, and gradients. See `gdlab.eager.Options`."""

    def __init__(self, options: Options | None = None, **keywords: Any) -> None:
        self.opts = options_of(options, keywords)
        chosen = choose(self.opts.device)
        if self.opts.scalar != np.float32 and chosen.info.kind != "cpu":
            raise DTypeError("EagerSession", "scalar", self.opts.scalar, f"float32 on {chosen.info.kind}")
        self.number, self.open = next(_numbers), True
        self._device = chosen
        self.engine: EagerCompute
        self.engine, self._turn = engine_of(chosen, self.opts.scalar, self.opts.flush_at)
        self.lock = RLock() if chosen.synchronous else None
        self.params: list[Param] = []
        self._by_name: dict[str, Param] = {}
        self._nats = Nats(self)
        self.tracks = self.opts.track_gradients
        self.step_number, self._drawn_step = 0, -1
        self._feeds: dict[str, Any] = {}
        self.made_up: Callable[[str, TensorType], Any] = lambda name, type: None  # for inputs that are not fed
        self._entered: list[Tape] = []
        self.tracer: Callable[[TensorRef], None] | None = None
        self.rules = parameter_steps.OptimizerState()
        self.jitted: list[Jitted] = []
        self.dropped = deque[list[Any]]()  # gradients that nobody holds any more
        self.tape = Tape(self, 1)

    __reduce__ = refuse_copies("eager session", "state_dict() and load_state_dict(), in a session of its own")

    def __repr__(self) -> str:
        state = plural(len(self.tape), "node") if self.open else "closed"
        return f"<EagerSession {self.number}: {self.device}, {state}, {plural(len(self.params), 'parameter')}>"

    def __str__(self) -> str:
        return tape_text(self.tape)

    # life -------------------------------------------------------------------------------------------------------------
    @property
    def device(self) -> DeviceInfo:
        """The device that the session computes on."""
        return self._device.info

    @property
    def generation(self) -> int:
        """The number of the recording, from 1."""
        return self.tape.generation

    @property
    def device_tape(self) -> Tape:
        """The recording if an adapter computes it; on cpu an empty one."""
        return self.tape if not self._device.synchronous else Tape(self, self.generation)

    @property
    def cpu_tape(self) -> Tape:
        """The recording if cpu computes it; on an adapter an empty one."""
        return self.tape if self._device.synchronous else Tape(self, self.generation)

    def counters(self) -> dict[str, int]:
        """Return totals of the queue: `dispatches`, `submissions`, `pieces_created`, `bindings_created` …"""
        return self.engine.counters.as_dict()

    def locked(self, function: Callable[..., R], *args: Any) -> R:
        """Run a function on the owner thread of the device."""
        if self.lock is not None:
            with self.lock:
                return function(*args)
        return self._turn.here(partial(function, *args))  # type: ignore[no-any-return]

    def _check_open(self, where: str) -> None:
        if not self.open:
            raise EagerError(f"eager.{where}", f"session {self.number}", "a closed session", "an open one")

    def check_tape(self, tape: Tape, op: str, *ids: int) -> None:
        """Raise `EagerError` for a tape that is not the current one."""
        where, shown = f"eager.{op}", f"TensorRef %{ids[0]}" if ids else f"the tape of generation {tape.generation}"
        if tape.session is not self:
            given = f"{shown} of session {tape.session.number}"
            raise EagerError(where, "foreign handle", given, f"session {self.number}")
        self._check_open(op)
        if tape is not self.tape:
            given = f"{shown} of generation {tape.generation}"
            wanted = f"generation {self.generation} (reset_tape was called; record it again)"
            raise EagerError(where, "stale handle", given, wanted)

    def own(self, where: str, ref: Any) -> TensorRef:
        """Return a tensor of this recording, or raise."""
        if not isinstance(ref, TensorRef):
            kind = GraphError if isinstance(ref, Value) else ArgumentError
            raise kind(f"eager.{where}", "tensor", repr(ref), "a TensorRef of this session")
        self.check_tape(ref.graph, where, ref.id)
        if not 0 <= ref.id < len(self.tape):
            raise OutputIndexError(f"eager.{where}", "tensor id", ref.id, f"0 … {len(self.tape) - 1}")
        return ref

    def __enter__(self) -> Self:
        self._check_open("with")
        self._entered.append(self.tape)
        self.tape.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered.pop().__exit__(*exc)

    @call
    def reset_tape(self, keep_nats: bool = False) -> None:
        """Release the values of this recording and begin the next; parameters, moments and random streams go on."""
        if keep_nats is not False:
            check_kind("reset_tape", "keep_nats", keep_nats, FLAG)
        old = self.tape
        old.release()
        self._release_dropped()
        self.engine.flush()  # gives its memory back: each recording begins with the same
        self.tape = Tape(self, old.generation + 1)
        replace_current(old, self.tape)
        self.step_number = (self.step_number + 1) % 2**32
        if not keep_nats:
            self._nats.clear()

    def _release_dropped(self) -> None:
        """Release the memory of gradients that nothing refers to any more."""
        while self.dropped:
            for found in self.dropped.popleft():
                if isinstance(found, AnyBuffer):
                    found.release()

    @contextmanager
    def generation_block(self) -> Iterator[Tape]:
        """Give the block a recording of its own: reset before and after it."""
        self.reset_tape()
        try:
            yield self.tape
        finally:
            if self.open:
                self.reset_tape()

    recording = generation_block

    @kinds(function=FUNCTION)
    def with_fresh_tape(self, function: Callable[[], R]) -> R:
        """Reset, then run `function`."""
        self.reset_tape()
        return function()

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Make new leaves not differentiable inside the block."""
        before, self.tracks = self.tracks, False
        try:
            yield
        finally:
            self.tracks = before

    def close(self) -> None:
        """Download parameters and release everything, also gradients and buffers that are still held; idempotent."""
        if not self.open:
            return
        for jitted in self.jitted:
            jitted.close()
        self.locked(self._closed)

    def _closed(self) -> None:
        for param in self.params:
            param.set_host(param.sync())
        self.tape.release()
        self.rules.release()
        self.engine.free_all()
        self.engine.collect()
        self.open = False

    def flush(self) -> None:
        """Submit pending work."""
        self._check_open("flush")
        self.locked(self.engine.flush)

    @kinds(on=FLAG)
    def trace(self, on: bool = True) -> None:
        """Print each node as it runs: id, op, type, min, mean, max."""
        self.tracer = (lambda value: print(traced(value))) if on else None

    # leaves -----------------------------------------------------------------------------------------------------------
    @call
    def param(self, init: Any, name: str | None = None, requires_grad: bool | None = None) -> Param:
        """Make a parameter that holds a copy of `init`."""
        _check_name("eager.param", name)
        if requires_grad is not None:
            check_kind("eager.param", "requires_grad", requires_grad, FLAG)
        data = self.taken("eager.param", repr(name or "init"), init, floats=True)
        return self._param(name, TensorType(data.shape), data, requires_grad)

    def _param(self, name: str | None, type: TensorType, data: Array, requires_grad: bool | None) -> Param:
        uid = len(self.params)
        _check_name("eager.param", name)
        trained = self.opts.requires_grad_by_default if requires_grad is None else bool(requires_grad)
        made = Param(self, uid, name or f"p{uid}", type, trained and not type.dtype.is_storage, data)
        self.params.append(made)
        self._by_name[made.name] = made
        return made

    @call
    def use(self, param: Param) -> TensorRef:
        """Return the current value of a parameter as a leaf."""
        return parameter_leaf(self.tape, self._own_param("use", param))

    def _own_param(self, where: str, param: Any) -> Param:
        if not isinstance(param, Param):
            raise ArgumentError(f"eager.{where}", "parameter", type(param).__name__, "a Param of this session")
        if param.session is not self:
            given = f"{param.name!r} of session {param.session.number}"
            raise EagerError(f"eager.{where}", "foreign handle", given, f"session {self.number}")
        return param

    @call
    def input(self, value: Any, name: str | None = None, requires_grad: bool = False) -> TensorRef:
        """Return a leaf with a copy of `value`: integers as indices (u32), other numbers as f32."""
        _check_name("eager.input", name)
        if requires_grad is not False:
            check_kind("eager.input", "requires_grad", requires_grad, FLAG)
        data = self.taken("eager.input", repr(name or "value"), value)
        if requires_grad and data.dtype == np.uint32:
            raise DTypeError("eager.input", "requires_grad", "indices", "numbers that are differentiable")
        return input_leaf(self.tape, data, name or "", requires_grad and self.tracks)

    @call
    def const(self, value: Any, name: str | None = None) -> TensorRef:
        """Return a constant of the tape, which is part of the graph."""
        _check_name("eager.const", name)
        data = self.taken("eager.const", repr(name or "value"), value)
        type = type_of(data)
        with np.errstate(over="ignore"):  # of a wide session, whose tape holds the data itself
            held = ConstantData(type.dtype, type.shape, data.astype(type.dtype.numpy, copy=False).tobytes())
        source = self.tape.source_of_call()
        return self.tape.put_constant((("data", held),), type, name or "", source, data)

    def detach(self, x: TensorRef) -> TensorRef:
        """Return the same memory as a tensor that no gradient flows through."""
        return REGISTRY["stop_gradient"](self.own("detach", x))  # type: ignore[return-value]

    def feed(self, /, **arrays: Any) -> None:
        """Give arrays to `gd.input(name, shape)` on the tape."""
        self._feeds.update(arrays)

    def named_leaf(self, kind: str, attrs: Mapping[str, Any], type: TensorType, name: str) -> TensorRef:
        """Return the leaf that a builder asks for by name."""
        return self.locked(self._named_leaf, kind, attrs, type, name)

    def _named_leaf(self, kind: str, attrs: Mapping[str, Any], type: TensorType, name: str) -> TensorRef:
        if kind == "input":
            given = self._feeds[name] if name in self._feeds else self.made_up(name, type)
            if given is None:
                raise EagerError("eager.input", repr(name), "no value", f"s.feed({name}=array)")
            given = self.converted("eager.input", given)
            data = as_array("eager.input", name, given, type, scalar=self.opts.scalar)
            return input_leaf(self.tape, np.array(data), name, False)
        param = self._by_name.get(name)
        if param is None:
            values = initial_values(name, type.shape, self.opts.seed, attrs.get("init") or DEFAULT)
            param = self._param(name, type, values, None)
            param.init = attrs.get("init") or ""
        elif param.type != type:
            raise GraphError(kind, "name", f"{name!r} again, as {type}", f"a new name: {name!r} is {param.type}")
        return parameter_leaf(self.tape, param)

    @property
    def params_by_leaf(self) -> dict[int, Param]:
        """The parameters that this recording used, by leaf id."""
        return {id: facts.param for id, facts in self.tape.facts.items() if facts.param is not None}

    # reading ----------------------------------------------------------------------------------------------------------
    @call
    def get_value(self, ref: TensorRef, shape: Sequence[int] | None = None) -> Array:
        """Return a fresh array of a value."""
        ref = self.own("get_value", ref)
        asked = ref.shape if shape is None else check_shape(shape, "eager.get_value")
        if asked != ref.shape:
            raise ShapeError("eager.get_value", f"shape of %{ref.id}", list(asked), str(list(ref.shape)))
        self.tape.check_live("get_value", ref.id)
        buffer = self.tape.buffers[ref.id]
        return self.engine.download(buffer.block, buffer.type)

    @call
    def read_buffer(self, buffer: AnyBuffer) -> Array:
        """Return a fresh array of a buffer's contents."""
        return self.engine.download(self._own_buffer("read_buffer", buffer).block, buffer.type)

    @call
    def buffer(self, id: int) -> AnyBuffer:
        """Return the memory of a node."""
        if not isinstance(id, (int, np.integer)) or not 0 <= id < len(self.tape):
            raise OutputIndexError("eager.buffer", "tensor id", id, f"0 … {len(self.tape) - 1}")
        return self.tape.buffers[id]

    def _own_buffer(self, where: str, buffer: Any) -> AnyBuffer:
        if not isinstance(buffer, AnyBuffer):
            raise ArgumentError(f"eager.{where}", "buffer", type(buffer).__name__, "an AnyBuffer of this session")
        if buffer.session != self.number:
            raise EagerError(
                f"eager.{where}", "foreign handle", f"a buffer of session {buffer.session}", f"session {self.number}"
            )
        return buffer

    def buffer_of(self, block: MemoryBlock, type: TensorType) -> AnyBuffer:
        """Return a first reference to memory."""
        return AnyBuffer(self.number, type, block, self.engine.free)

    # mirrors ----------------------------------------------------------------------------------------------------------
    @call
    def param_value(self, param: Param) -> Array:
        """Return a copy of a parameter's current value."""
        return np.array(self._own_param("param_value", param).sync(), self.opts.scalar)

    @call
    def param_held(self, param: Param) -> Array | Packed:
        """Return a parameter's current value as another session takes it bit by bit: blocks in their bytes."""
        held = self._own_param("param_held", param).sync()
        return held if isinstance(held, Packed) else held.copy()

    @call
    def sync_param_device_to_host(self, param: Param) -> None:
        """Download the value if the host's copy is stale."""
        self._own_param("sync_param_device_to_host", param).sync()

    @call
    def set_param_device_value(self, param: Param, buffer: AnyBuffer) -> None:
        """Use memory as the value of a parameter (by a reference of its own); the host's copy becomes stale."""
        param = self._own_param("set_param_device_value", param)
        given = self._own_buffer("set_param_device_value", buffer)
        self._check_value(param, "device value", given.type)
        param.set_device(given.share())

    @call
    def set_param_host_value(self, param: Param, value: Any) -> None:
        """Use a copy of an array as the value of a parameter; the mirror is dropped, with memory that only it held."""
        param = self._own_param("set_param_host_value", param)
        if isinstance(value, Packed) and value.type == param.type:
            return param.set_host(value)
        where, what = "eager.set_param_host_value", repr(param.name)
        data = self.taken(where, what, value, floats=True)
        self._check_value(param, "host value", TensorType(data.shape, param.type.dtype))
        if param.type.dtype.is_storage:
            narrowed(where, what, data, param.type.dtype)
        param.set_host(data)

    def _check_value(self, param: Param, what: str, type: TensorType) -> None:
        if type != param.type:
            raise ShapeError(f"parameter {param.name!r}", what, type, str(param.type))

    @call
    def to_any_buffer(self, array: Any) -> AnyBuffer:
        """Upload an array by the conversion of its dtype (`register_conv`); the caller releases the buffer."""
        made = conv_of(dtype_of(array)).to_any_buffer(self, array)
        made.block.origin = Origin("to_any_buffer", capture())
        return made

    @call
    def of_any_buffer(self, buffer: AnyBuffer, dtype: Any = None) -> Array:
        """Download a buffer by the conversion of a dtype, by default that of the session."""
        given = self._own_buffer("of_any_buffer", buffer)
        return self.read_buffer(given) if dtype is None else conv_of(dtype).of_any_buffer(self, given)

    def to_float(self, scalar: Any) -> float:
        """Return a scalar as a float of the host, by the conversion of its dtype."""
        return conv_of(dtype_of(scalar)).to_float(scalar)

    def uploaded(self, type: TensorType, data: Array) -> AnyBuffer:
        """Return new memory that holds an array of this type; for conversions."""
        return self.buffer_of(self.engine.upload(type, data), type)

    def converted(self, where: str, data: Any) -> Any:
        """Return data as numbers: by the conversion registered for its dtype, else unchanged. What only a host holds
        goes to no adapter."""
        dtype = dtype_of(data)
        conv = conv_of(dtype)
        if type(conv) in (FloatConv, HostOnlyConv):
            if isinstance(conv, HostOnlyConv) and dtype.kind == "f":
                conv.check(where, self)
            return data
        buffer = self._own_buffer("to_any_buffer", conv.to_any_buffer(self, data))
        try:
            return self.engine.download(buffer.block, buffer.type)
        finally:
            buffer.release()

    def taken(self, where: str, what: str, data: Any, floats: bool = False) -> Array:
        """Return a copy of data in the dtype that a tensor of this session has."""
        return taken(where, what, self.converted(where, data), self.opts.scalar, floats)

    # numbers ----------------------------------------------------------------------------------------------------------
    @property
    def nats(self) -> tuple[int, ...]:
        """The numbers of the session, as now."""
        return tuple(self._nats.values)

    @call
    def input_nat(self, value: int) -> NatRef:
        """Store a number 0 … 2^32 − 1, which may be an operand wherever an op takes indices."""
        return NatRef(self, self._nats.generation, self._nats.add("eager.input_nat", [value]))

    @call
    def get_nat(self, ref: NatRef) -> int:
        """Return the current number."""
        return self._nats.get("eager.get_nat", ref)[0]

    @call
    def set_nat(self, ref: NatRef, value: int) -> None:
        """Replace a number; nodes recorded before keep theirs."""
        self._nats.set("eager.set_nat", ref, [value])

    @call
    @kinds(values=NUMBERS)
    def nat_vec_to_array(self, values: Any) -> list[int]:
        """Return the integers of an array, a list or a u32 tensor as ints."""
        array = values.numpy() if isinstance(values, TensorRef) else values
        found = array.tolist() if isinstance(array, np.ndarray) else list(array)
        return [checked_nat("eager.nat_vec_to_array", v, at) for at, v in enumerate(found)]

    @call
    @kinds(values=SEVERAL)
    def input_nat_vec(self, values: Sequence[int]) -> NatVecRef:
        """Store a block of numbers."""
        given = list(values)
        if not given:
            raise ShapeError("eager.input_nat_vec", "length", 0, "at least 1")
        return NatVecRef(self, self._nats.generation, self._nats.add("eager.input_nat_vec", given), len(given))

    @call
    def get_nat_vec(self, ref: NatVecRef) -> list[int]:
        """Return the current numbers."""
        return self._nats.get("eager.get_nat_vec", ref)

    @call
    @kinds(values=SEVERAL)
    def set_nat_vec(self, ref: NatVecRef, values: Sequence[int]) -> None:
        """Replace a block of numbers."""
        self._nats.set("eager.set_nat_vec", ref, list(values))

    def nat_leaf(self, ref: NatVecRef) -> TensorRef:
        """Return a u32 leaf of the current numbers."""
        numbers = np.array(self._nats.get("eager.nat", ref), np.uint32)
        return self.locked(input_leaf, self.tape, numbers, "", False)

    # random numbers ---------------------------------------------------------------------------------------------------
    @call
    def begin_draws(self, step: int) -> None:
        """Draw the random numbers of this step in this recording; the next recording draws those of the next step."""
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < 2**32:
            raise ArgumentError("eager.begin_draws", "step", repr(step), "an int in 0 … 2^32 − 1")
        if self.tape.draws:
            given = f"{step} after {plural(self.tape.draws, 'draw')}"
            raise EagerError("eager.begin_draws", "step", given, "a call before the first draw")
        self.step_number = int(step)

    begin_step = begin_draws

    def set_drawn_step(self, written: bool = False) -> None:
        """Let the device draw the numbers of this recording. `written`: it does already."""
        if written:
            self._drawn_step = self.step_number
        elif self._drawn_step != self.step_number:
            self.engine.set_step(self.step_number)
            self._drawn_step = self.step_number

    def rand_uniform(self, shape: Sequence[int], seed: Seed = None, call: int | None = None) -> TensorRef:
        """Draw uniform numbers in [0, 1). `seed`: that of the session, another one, or a stream, which goes on."""
        return self._draw("rand_uniform", seed, call, shape=_extents(shape))

    def rand_normal(self, shape: Sequence[int], seed: Seed = None, call: int | None = None) -> TensorRef:
        """Draw normal numbers."""
        return self._draw("rand_normal", seed, call, shape=_extents(shape))

    def bernoulli_mask(
        self, shape: Sequence[int], keep_prob: float | TensorRef, seed: Seed = None, call: int | None = None
    ) -> TensorRef:
        """Draw 1 with this probability, else 0; a tensor of one element may give it."""
        if isinstance(keep_prob, TensorRef):
            keep = self.own("bernoulli_mask", keep_prob)
            return REGISTRY["less"](self.rand_uniform(shape, seed, call), keep)  # type: ignore[return-value]
        return self._draw("bernoulli_mask", seed, call, shape=_extents(shape), keep_prob=keep_prob)

    @kinds(train=FLAG)
    def dropout(self, state: RngState | None, x: TensorRef, p: float, train: bool = True) -> TensorRef:
        """Set each element to 0 with probability p, else divide it by 1 − p; `train=False`: return x, draw nothing."""
        self.own("dropout", x)
        return self._draw("dropout", state, None, x=x, p=p) if train else x

    @kinds(state=STREAM)
    def split_rng(self, state: RngState) -> RngState:
        """Return the next child of a stream."""
        return state.split()

    def _draw(self, op: str, seed: Seed, call: int | None, **attrs: Any) -> TensorRef:
        self._check_open(op)
        key = self.opts.seed if seed is None else seed.key if isinstance(seed, RngState) else seed
        number = seed.call if isinstance(seed, RngState) and call is None else call
        made = REGISTRY[op](**attrs, seed=key, call=number, graph=self.tape)
        if isinstance(seed, RngState) and call is None:
            seed.call += 1
        return made  # type: ignore[return-value]

    # memory -----------------------------------------------------------------------------------------------------------
    @call
    def release_device_buffer(self, buffer: AnyBuffer) -> bool:
        """Release a reference; return False if it was released before."""
        return self._own_buffer("release_device_buffer", buffer).release()

    release_any_buffer = release_device_buffer

    @call
    def release_tape_non_param_values(self) -> None:
        """Release the values of this recording, but not those of parameters."""
        for id, buffer in enumerate(self.tape.buffers):
            facts = self.tape.facts.get(id)
            if facts is None or facts.param is None:
                buffer.release()

    @call
    def release_tape_after_optimizer_step(self) -> None:
        """Release the values of this recording, but not those of frozen parameters: the step made new mirrors."""
        for id, buffer in enumerate(self.tape.buffers):
            facts = self.tape.facts.get(id)
            if facts is None or facts.param is None or facts.param.requires_grad:
                buffer.release()

    @call
    @kinds(grads=SEVERAL)
    def release_grad_array(self, grads: Sequence[AnyBuffer]) -> None:
        """Release a dense list of gradients."""
        for buffer in grads:
            self._own_buffer("release_grad_array", buffer).release()

    @call
    @kinds(grads=GRADS)
    def release_grad_map(self, grads: Grads) -> None:
        """Release a map of gradients."""
        grads.release()

    def check_any_buffer_size(self, where: str, buffer: AnyBuffer) -> None:
        """Raise if memory has fewer bytes than its type needs."""
        given = self._own_buffer(where, buffer)
        if given.block.nbytes < given.nbytes:
            raise ShapeError(where, "buffer size", f"{given.block.nbytes} bytes", f"{given.nbytes} ({given.type})")

    @call
    def owned_any_buffer(self, where: str, buffer: AnyBuffer) -> AnyBuffer:
        """Check the size, then return a copy."""
        self.check_any_buffer_size(where, buffer)
        made = self.buffer_of(self.engine.copied(buffer.block, buffer.type), buffer.type)
        made.block.origin = Origin("owned_any_buffer", capture())
        return made

    @call
    def collect_allocator(self) -> int:
        """Release pooled memory and forget its bindings; return its bytes."""
        return self.engine.collect()

    def allocator_stats(self) -> AllocatorStats:
        """Return counts and bytes of the session's memory."""
        return self.locked(self.engine.stats)

    @call
    def assert_no_leaks(self) -> None:
        """Raise if more is alive than parameters and their moments, with the owners and the user's lines."""
        self._release_dropped()
        kept = {id(b.block): b.block.nbytes for b in self._owned_buffers()}
        if self.engine.live_bytes == sum(kept.values()):
            return
        self.tape.tell_origins()
        alive = [str(b.origin or "memory without a node") for b in self.engine.alive if id(b) not in kept]
        more = f" and {len(alive) - LEAKS} more" if len(alive) > LEAKS else ""
        shown = f"; alive: {', '.join(sorted(alive)[:LEAKS])}{more}" if alive else ""
        wanted = f"{sum(kept.values())}, parameters and moments{shown}"
        raise EagerError("eager.assert_no_leaks", "live bytes", self.engine.live_bytes, wanted)

    def _owned_buffers(self) -> list[AnyBuffer]:
        return [*(p.mirror for p in self.params if p.mirror is not None), *self.rules.buffers()]

    # gradients --------------------------------------------------------------------------------------------------------
    @call
    @kinds(create_graph=FLAG)
    def backward(self, out: TensorRef, seed: Any = None, *, create_graph: bool = False) -> Grads:
        """Compute the gradients of all leaves that need one; each is `x.grad` too. `seed`: the cotangent of `out`,
        which else has one element."""
        return backward.backward(self, self.own("backward", out), seed, create_graph)

    @call
    def backward_dense_all(self, out: TensorRef, seed: Any) -> list[AnyBuffer]:
        """Compute one gradient per node of the recording, zeros where none arrives."""
        return backward.dense(self, {self.own("backward_dense_all", out): seed})

    @call
    def backward_scalar_dense_all(self, loss: TensorRef) -> list[AnyBuffer]:
        """Compute one gradient per node of the recording, of a scalar loss."""
        return backward.dense(self, {self.own("backward_scalar_dense_all", loss): None})

    @call
    @kinds(seeds=MAPPING)
    def backward_dense_from(self, seeds: Mapping[TensorRef, Any]) -> list[AnyBuffer]:
        """Compute one gradient per node, of several outputs with a cotangent each."""
        return backward.dense(self, {self.own("backward_dense_from", out): seed for out, seed in seeds.items()})

    @call
    @kinds(missing=TEXT)
    def backward_scalar_param_grads(self, loss: TensorRef, missing: str = "zero") -> DeviceGradMap:
        """Compute the gradients of trainable parameters, on the device. `missing`: what is made of those that the loss
        does not reach: "zero", "none" or "error"."""
        return backward.param_grads(self, self.own("backward_scalar_param_grads", loss), missing)

    @contextmanager
    def grad_map(self, loss: TensorRef, missing: str = "zero") -> Iterator[DeviceGradMap]:
        """Compute `backward_scalar_param_grads`, and release it at the end of the block."""
        grads = self.backward_scalar_param_grads(loss, missing)
        try:
            yield grads
        finally:
            grads.release()

    @call
    @kinds(wrt=SEVERAL)
    def vjp(self, out: TensorRef, seed: Any, wrt: Sequence[TensorRef]) -> list[Array]:
        """Compute the cotangents of `wrt` (nodes of the recording) under a cotangent of `out`."""
        refs = [self.own("vjp", x) for x in wrt]
        return backward.cotangents(self, self.own("vjp", out), seed, refs)

    @call
    @kinds(tangents=MAPPING)
    def jvp(self, out: TensorRef, tangents: Mapping[TensorRef, Any]) -> Array:
        """Compute the derivative of `out` along tangents of nodes."""
        return backward.jvp(self, self.own("jvp", out), tangents)

    @call
    @kinds(tangents=MAPPING)
    def hvp(self, loss: TensorRef, tangents: Mapping[TensorRef, Any]) -> list[Array]:
        """Compute the second derivative of a loss along tangents, one array for each."""
        return backward.hvp(self, self.own("hvp", loss), tangents)

    @call
    def grads_text(self) -> str:
        """Return the last backward of this recording, step by step with its numbers: node, cotangent, contributions."""
        return backward.grads_text(self)

    @call
    def backward_trace(self, most: int = 200) -> BackwardTrace | None:
        """Return the last backward of this recording as a graph with the value of every node; None without one."""
        return backward.backward_trace(self, most)

    @call
    def jacrev(self, out: TensorRef, x: TensorRef) -> Array:
        """Compute the derivative of `out` by `x`, row by row: shape out.shape + x.shape."""
        return backward.jacrev(self, self.own("jacrev", out), self.own("jacrev", x))

    @call
    def jacfwd(self, out: TensorRef, x: TensorRef) -> Array:
        """Compute the derivative of `out` by `x`, column by column: shape out.shape + x.shape."""
        return backward.jacfwd(self, self.own("jacfwd", out), self.own("jacfwd", x))

    @call
    def hessian(self, loss: TensorRef, x: TensorRef) -> Array:
        """Compute the second derivative of a loss by `x`: shape x.shape + x.shape."""
        return backward.hessian(self, self.own("hessian", loss), self.own("hessian", x))

    @call
    def hook(self, x: TensorRef, function: Callable[[TensorRef, TensorRef], Any]) -> Callable[[], None]:
        """Call `function(x, gradient)` in each backward, when the gradient of x is complete and before it flows on.
        What it returns, unless None, flows on instead. The gradient may be read, or used in ops, inside the call alone.
        Return a function that removes the hook; a new recording has none."""
        ref, key = self.own("hook", x), object()
        if not callable(function):
            raise ArgumentError("eager.hook", "function", type(function).__name__, "a function (x, gradient)")
        hooks = self.tape.hooks.setdefault(ref.id, {})
        hooks[key] = function  # type: ignore[assignment]
        return lambda: None if hooks.pop(key, None) else None

    def jit(self, function: Callable[..., TensorRef]) -> Jitted:
        """Return a function of tensors that is recorded once for each combination of types, then run from a plan with
        current parameters. No gradient flows through it; control flow on values is kept as it went, which a warning
        tells once."""
        self._check_open("jit")
        self.jitted.append(Jitted(self, function))
        return self.jitted[-1]

    @call
    @kinds(outputs=TENSORS)
    def to_graph(self, outputs: TensorRef | Sequence[TensorRef] | Mapping[str, TensorRef]) -> TapeExport:
        """Return the part of this recording that the outputs need, as a graph."""
        return to_graph(self, outputs)

    # steps ------------------------------------------------------------------------------------------------------------
    @call
    @kinds(check_finite=FLAG, reset_state=FLAG)
    def step(
        self,
        rule: Optimizer | parameter_steps.UserRule,
        grads: Grads,
        *,
        check_finite: bool = True,
        reset_state: bool = False,
    ) -> None:
        """Move trainable parameters by their gradients, which are released; a failed step changes nothing. `rule`: one
        of `gdlab.eager`, such as `Adam(1e-3)`, or a function in op notation (see `gdlab.eager.rule`)."""
        parameter_steps.step(self, rule, grads, check_finite, reset_state)

    def sgd_step_all(self, lr: float, grads: Grads) -> None:
        """Make a step of `Sgd(lr)`."""
        self.step(parameter_steps.Sgd(lr), grads)

    def adam_step_all(self, grads: Grads, lr: float = 1e-3) -> None:
        """Make a step of `Adam(lr)`."""
        self.step(parameter_steps.Adam(lr), grads)

    @kinds(build_loss=FUNCTION)
    def sgd_step_scalar_graph(self, lr: float, build_loss: Callable[[], TensorRef]) -> float:
        """Record, differentiate and step on a fresh tape; return the loss before the update."""
        self.reset_tape()
        loss = self.own("sgd_step_scalar_graph", build_loss())
        value = float(loss)
        self.sgd_step_all(lr, self.backward_scalar_param_grads(loss))
        return value

    @call
    def state_dict(self) -> dict[str, Array]:
        """Return parameters, moments, counters and the seed as arrays, for `numpy.savez`."""
        return parameter_steps.state_dict(self)

    @call
    @kinds(state=NAMED)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, bit by bit; everything is checked first. A rule that is a function has to be made
        before, by `gdlab.eager.rule`."""
        parameter_steps.load_state_dict(self, state)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def to_study(self, loss: TensorRef, name: str = "graph", **options: Any) -> Any: ...


def _extents(shape: Any) -> Any:
    """Return a shape for an op, which then refuses it if it is invalid."""
    return tuple(shape) if is_several(shape) else shape


def traced(value: TensorRef) -> str:
    """Describe a node that has run in one line: id, op, type, min, mean, max; up to 16 numbers whole."""
    return f"%{value.id} {value.node.op} {value.type}: {array_words(value.numpy())}"


def tape_text(tape: Tape) -> str:
    """Return the tape as text, each node with its value."""
    lines = tape.copy().text().splitlines()
    shown = []
    for node, line in zip(tape.nodes, lines, strict=False):
        buffer = tape.buffers[node.id]
        shown.append(f"{line}  # {'released' if buffer.released else array_words(tape.session.read_buffer(buffer))}")
    return "\n".join([*shown, *lines[len(shown) :]])


def _check_name(where: str, name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        given = name if isinstance(name, str) else type(name).__name__
        raise ArgumentError(where, "name", repr(given), "a non-empty str: data comes first")
