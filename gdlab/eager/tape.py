"""Record ops as they run: a `Tape` is a graph whose `append` computes, a `TensorRef` a value that can be read.

Every op, operator, layer and pass works on them as on any graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.errors import EagerError, ExpertIndexError, GraphError, ShapeError
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.base.words import plural
from gdlab.eager.references import AnyBuffer, Origin
from gdlab.graph import Attrs, ConstantData, Graph, Value, capture
from gdlab.graph.source import Frame, Source
from gdlab.op import REGISTRY, Alias, Op

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession
    from gdlab.eager.params import Param

SHOWN = 1000  # elements of a tensor that are printed


class TensorRef(Value):
    """A computed node of a tape: an operand of ops, and its value."""

    __slots__ = ()
    graph: Tape

    @property
    def session(self) -> EagerSession:
        """The session that computed the node."""
        return self.graph.session

    @property
    def generation(self) -> int:
        """The number of the recording that the node belongs to."""
        return self.graph.generation

    def numpy(self) -> Array:
        """Return a copy of the value."""
        return self.session.get_value(self)

    def item(self) -> float | int:
        """Return the only element."""
        if self.type.num_elements != 1:
            raise ShapeError("eager.item", f"%{self.id}", list(self.shape), "one element")
        return self.numpy().reshape(-1)[0].item()  # type: ignore[no-any-return]

    @property
    def grad(self) -> Any:
        """The gradient of the last `backward` through the node, as an array (`create_graph`: a TensorRef), or None."""
        self.session.check_tape(self.graph, "grad", self.id)
        found = self.graph.grads.get(self.id)
        return self.session.read_buffer(found) if isinstance(found, AnyBuffer) else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # type: ignore[override]
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Value]:
        rows, rest = self.shape[0], self.shape[1:] or (1,)
        return (self[i : i + 1].reshape(rest) for i in range(rows))

    def __repr__(self) -> str:
        if self.id >= len(self.graph):
            return f"TensorRef %{self.id}, cut off"
        label = f' "{self.name}"' if self.name else ""
        return f"TensorRef %{self.id}{label} {self.type}"

    def __str__(self) -> str:
        tape = self.graph
        if tape is not tape.session.tape or self.id >= len(tape) or tape.buffers[self.id].released:
            return repr(self)
        return f"{self!r}\n{np.array2string(self.numpy(), threshold=SHOWN, separator=', ')}"


@dataclass(frozen=True, slots=True)
class LeafFacts:
    """The facts of a leaf: the `Param` that it shows, and its numbers on the host, if they are indices."""

    param: Param | None = None
    host: Array | None = None
    given: bool = False  # its name was given by the user


_UNKNOWN = LeafFacts()


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of an op that a tape needs at each call: whether its result is the operand itself, whether it
    reads indices, draws random numbers, passes a gradient on, or writes a cache."""

    alias: bool
    indices: bool
    draws: bool
    differentiable: bool
    writes: bool


@lru_cache(maxsize=1024)
def _traits(op: Op) -> Traits:
    differentiable = not op.no_grad or op.no_grad == "refuses"
    return Traits(isinstance(op.kernel, Alias), op.indices is not None, op.family == "random", differentiable,
                  op.writes_in_place)  # fmt: skip


_LEAVES = ("constant", "input", "parameter", "var")
Hook = Callable[[TensorRef, Value], Any]


class TapeOperand(ABC):
    """Base of an operand that a session holds: `on(tape)` is the leaf of its current value."""

    @abstractmethod
    def on(self, tape: Tape) -> Value:
        """Return the leaf."""


@bound
class Tape(Graph):
    """One recording of a session: nodes in the order in which they ran, each with its memory."""

    value_class = TensorRef

    def __init__(self, session: EagerSession, generation: int) -> None:
        super().__init__()
        self.session, self.generation = session, generation
        self.exact = session.opts.scalar != np.float32
        self.buffers: list[AnyBuffer] = []
        self.needs_grad: list[bool] = []
        self.facts: dict[int, LeafFacts] = {}
        self.grads: dict[int, AnyBuffer | TensorRef] = {}
        self.written: dict[int, Param] = {}  # cache writes by id
        self.hooks: dict[int, dict[object, Hook]] = {}  # by node, then by key
        self.swept: tuple[dict[TensorRef, Any], dict[int, Array]] | None = (
            None  # the last backward: seeds, hooks' answers
        )
        self.draws = 0

    def __repr__(self) -> str:
        return f"<Tape {self.generation} of session {self.session.number}: {plural(len(self), 'node')}>"

    def append(
        self, op: str, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, name: str = "",
        source: tuple[Frame, ...] | Source = (),
    ) -> Value:  # fmt: skip
        """Compute a node, then append it; a failure leaves the tape as it is."""
        session = self.session
        if session.tape is not self or not session.open:
            session.check_tape(self, op, *inputs)
        if session.lock is None:
            return session.locked(self._computed, op, inputs, attrs, type, name, source)
        with session.lock:
            return self._computed(op, inputs, attrs, type, name, source)

    def _computed(
        self, op: str, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, name: str,
        source: tuple[Frame, ...] | Source,
    ) -> Value:  # fmt: skip
        if not inputs and op in _LEAVES:
            return self._constant(op, attrs, type, name, source)
        session, buffers = self.session, self.buffers
        traits = _traits(REGISTRY[op])
        if traits.indices and session.opts.checks != "off":
            self._check_indices(op, inputs, attrs)
        if traits.draws:
            session.set_drawn_step()
            self.draws += 1
        try:
            if traits.alias:
                made = buffers[inputs[0]].share(type)
            else:
                block = session.engine.compute(op, attrs, [buffers[i] for i in inputs], type)
                made = AnyBuffer(session.number, type, block, session.engine.free)
        except EagerError:
            self.check_live(op, *inputs)
            raise
        if session.opts.checks == "strict" and type.dtype is f32:
            self._check_finite(op, made)
        needed = False
        if traits.differentiable:
            for i in inputs:
                needed = needed or self.needs_grad[i]
        value = self.put(op, inputs, attrs, type, name, source, made, needed)
        if traits.writes:
            self._write_param(value.id, inputs[1], made)
        return value

    def check_live(self, where: str, *ids: int) -> None:
        """Raise `EagerError` for the first of these nodes whose memory was released."""
        for id in ids:
            if self.buffers[id].released:
                raise EagerError(f"eager.{where}", f"value of %{id}", "a released buffer", "a live one", node=id)

    def _write_param(self, id: int, cache: int, made: AnyBuffer) -> None:
        """Make the result of a cache write the value of the parameter that the cache shows, through views and earlier
        writes; this recording keeps the old value."""
        at = cache
        while (
            at not in self.facts and at not in self.written and isinstance(REGISTRY[self._nodes[at].op].kernel, Alias)
        ):
            at = self._nodes[at].inputs[0]
        param = self.facts.get(at, _UNKNOWN).param or self.written.get(at)
        if param is not None:
            self.written[id] = param
            param.set_device(made.share(param.type))

    def put(
        self, op: str, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, name: str,
        source: tuple[Frame, ...] | Source, buffer: AnyBuffer, needs_grad: bool, facts: LeafFacts | None = None,
    ) -> TensorRef:  # fmt: skip
        """Append a node whose value exists."""
        value = super().append(op, inputs, attrs, type, name, source)
        assert isinstance(value, TensorRef)  # the class of its values
        self.buffers.append(buffer)
        self.needs_grad.append(needs_grad)
        if facts is not None:
            self.facts[value.id] = facts
        if self.session.tracer is not None:
            self.session.tracer(value)
        return value

    def _constant(
        self, op: str, attrs: Attrs, type: TensorType, name: str, source: tuple[Frame, ...] | Source
    ) -> TensorRef:
        if op != "constant":
            raise GraphError(f"eager.{op}", "leaf", repr(name), "EagerSession.input or EagerSession.param")
        return self.put_constant(attrs, type, name, source, dict(attrs)["data"].array)

    def put_constant(
        self, attrs: Attrs, type: TensorType, name: str, source: tuple[Frame, ...] | Source, data: Array
    ) -> TensorRef:
        """Append a constant that holds `data`."""
        buffer = self.session.buffer_of(self.session.engine.upload(type, data), type)
        return self.put("constant", (), attrs, type, name, source, buffer, False, LeafFacts(None, data, bool(name)))

    def make_constant(self, held: ConstantData, given: Array) -> Value:
        """Append a constant; an exact tape holds the numbers `given`."""
        if not self.exact:
            return super().make_constant(held, given)
        self.session.check_tape(self, "constant")
        type, source = TensorType(held.shape, held.dtype), self.source_of_call()
        return self.session.locked(self.put_constant, (("data", held),), type, "", source, given)

    def make_leaf(self, kind: str, attrs: Attrs, type: TensorType, name: str) -> Value:
        """Return the array that was fed under this name, or the session's parameter of it, as a leaf."""
        self.session.check_tape(self, kind)
        value = self.session.named_leaf(kind, dict(attrs), type, name)
        return self.register_leaf(value)

    def source_of_call(self) -> tuple[Frame, ...]:
        """Return the user's frames, if this tape records them."""
        return capture() if self.records_sources else ()

    def operand(self, given: Any) -> Any:
        """Return an operand as a value: the u32 leaf of the session's numbers, the current leaf of a parameter."""
        return given.on(self) if isinstance(given, TapeOperand) else given

    def own(self, value: Value, where: str = "") -> Value:
        """Return `value` if it belongs to this recording."""
        if isinstance(value, TensorRef) and (value.graph is not self or self is not self.session.tape):
            self.session.check_tape(value.graph, where or "op", value.id)
        return super().own(value, where)

    def cut(self, length: int) -> None:
        """Remove the nodes from `length` on, and release their memory."""
        for id in sorted((i for i in self.written if i >= length), reverse=True):
            param, before = self.written.pop(id), self.buffers[self._nodes[id].inputs[1]]
            if param.mirror is not None and param.mirror.block is self.buffers[id].block:
                param.set_device(before.share(param.type))
        for buffer in self.buffers[length:]:
            buffer.release()
        del self.buffers[length:], self.needs_grad[length:]
        for id in [i for i in self.facts if i >= length]:
            del self.facts[id]
        for id in [i for i in self.grads if i >= length]:
            self._drop_grad(id)
        for id in [i for i in self.hooks if i >= length]:
            del self.hooks[id]
        if self.swept is not None and any(out.id >= length for out in self.swept[0]):
            self.swept = None
        super().cut(length)

    def _drop_grad(self, id: int) -> None:
        gone = self.grads.pop(id)
        if isinstance(gone, AnyBuffer):
            gone.release()

    def release(self) -> None:
        """Release all memory."""
        self.swept = None  # it refers to this tape, which is to end without the cyclic collector
        self.hooks.clear()
        for id in list(self.grads):
            self._drop_grad(id)
        for id, buffer in enumerate(self.buffers):
            block = buffer._block
            if block is not None and block.references > 1 and block.origin is None:
                block.origin = self._origin(id)
            buffer.release()

    def tell_origins(self) -> None:
        """Label all memory of this recording with its node."""
        for id, buffer in enumerate(self.buffers):
            if not buffer.released and buffer.block.origin is None:
                buffer.block.origin = self._origin(id)

    def _origin(self, id: int) -> Origin:
        return Origin(f"%{id} {self._nodes[id].op}", self._frames.get(id, ()))

    def copy(self) -> Graph:
        """Return a plain graph of the same nodes, without values."""
        plain = Graph()
        plain._nodes, plain._frames = list(self._nodes), dict(self._frames)
        plain._outputs, plain._leaves = list(self._outputs), dict(self._leaves)
        return plain

    def host_of(self, id: int) -> Array | None:
        """Return the numbers of a node that the host knows, also through views of them."""
        return self.facts.get(self._viewed(id), _UNKNOWN).host

    def _viewed(self, id: int) -> int:
        """Return the node whose memory this one shows."""
        while id not in self.facts and isinstance(REGISTRY[self._nodes[id].op].kernel, Alias):
            id = self._nodes[id].inputs[0]
        return id

    # checks -----------------------------------------------------------------------------------------------------------
    def _check_indices(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> None:
        rule = REGISTRY[op].indices
        assert rule is not None  # the caller looked
        id = inputs[rule.operand]
        host = self.host_of(id) if self._nodes[id].type.dtype is u32 else None
        computed = host is None
        if computed and (self.session.opts.checks != "strict" or not rule.experts):
            return
        most = rule.bound([self._nodes[i].type for i in inputs], _named(attrs))
        flat = (TensorRef(self, id).numpy() if host is None else host).reshape(-1)
        if computed and flat.size and int(flat.max()) >= most:
            row = int(np.argmax(flat >= most))
            raise ExpertIndexError(f"eager.{op}", f"index {row}", int(flat[row]), f"0 … {most - 1}", node=id,
                                   row=row, index=int(flat[row]), experts=most)  # fmt: skip
        if flat.size and int(flat.max()) >= most:
            at = int(np.argmax(flat >= most))
            raise ShapeError(f"eager.{op}", f"index {at}", int(flat[at]), f"0 … {most - 1}", node=id)

    def _check_finite(self, op: str, made: AnyBuffer) -> None:
        """Read a result back; refuse the first number that is not finite."""
        try:
            flat = self.session.engine.download(made.block, made.type).reshape(-1)
            wrong = ~np.isfinite(flat)
            if wrong.any():
                at, wanted = int(np.argmax(wrong)), 'finite numbers (checks="strict")'
                raise EagerError(f"eager.{op}", f"result, element {at}", flat[at], wanted)
        except BaseException:
            made.release()
            raise


def _named(attrs: Attrs) -> Mapping[str, Any]:
    return dict(attrs)
