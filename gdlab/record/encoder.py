"""Collect the nodes of a session: `CommandEncoder`, also for ops that have no method."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from gdlab.base.errors import ArgumentError, DTypeError, GdlabError, SessionConsumedError, SessionError, ShapeError
from gdlab.base.kinds import FLAG, TEXT, kinds
from gdlab.base.types import TensorType
from gdlab.base.words import one_of, plural
from gdlab.graph import attrs_key
from gdlab.op import REGISTRY, Op
from gdlab.plan.order import Footprint
from gdlab.record.buffers import Buffer
from gdlab.record.compute_graph import ComputeGraph, Node
from gdlab.record.fuse import fuser
from gdlab.record.fusion import chain_fuser
from gdlab.record.operation import (
    KINDS,
    Build,
    OperandRange,
    Operation,
    OpKind,
    check_aliasing,
    checked_buffer,
    operation,
    output_value,
)
from gdlab.record.ranges import Tracking, ranges_of

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

KNOWN = 8192  # equal calls that are known
UID = attrgetter("uid")
Call = tuple[Operation, tuple[Buffer, ...]]


class CommandEncoder:
    """The list of one session; its calls are counted, tracked, recorded and reordered as the session's methods are."""

    def __init__(self, executor: GraphExecutor, recording: bool, auto_barrier: bool, strict: bool) -> None:
        self.executor, self.recording, self.auto_barrier = executor, recording, auto_barrier
        self._tracking = Tracking(strict)
        self._calls: list[Call] = []  # that are not nodes yet: their ranges are looked at when somebody asks
        self._plain = auto_barrier  # whether the next call may be one of those
        self.graph = ComputeGraph(
            fusers={"norms": fuser(executor), "all": chain_fuser(executor)},
            on_change=self._passed,
            settle=self._settle,
        )
        self.begun = time.perf_counter_ns()
        self.consumed = ""  # by what
        self.next_kind: OpKind | None = None
        self.last_route = ""
        self._working = 0

    def __repr__(self) -> str:
        return f"<CommandEncoder: {plural(len(self.graph), 'node')}>"

    # calls ------------------------------------------------------------------------------------------------------------
    @kinds(opaque=FLAG)
    def dispatch(
        self, op: Any, inputs: Sequence[Buffer], output: Buffer, *, opaque: bool = False, **attrs: Any
    ) -> None:
        """Append an op: one of the registry, its name, or a function in op notation (`lambda x, y: (x * y).relu()`),
        with types from the buffers. `opaque`: it conflicts with everything."""
        where = "dispatch"
        self.check_usable(where)
        name, build = _build_of(where, op)
        if not isinstance(inputs, (list, tuple)) or not inputs:
            raise ArgumentError(where, "inputs", f"{type(inputs).__name__}", "a list of at least one buffer")
        buffers = (*inputs, output)
        for i, b in enumerate(buffers):
            checked_buffer(self.executor, where, "output" if i == len(inputs) else f"input {i}", b)
        given = tuple(sorted(attrs.items()))
        try:
            hash(attrs_key(given))
        except TypeError:
            given = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in given)
        operands = [OperandRange(i, b.range, TensorType(b.shape, b.dtype)) for i, b in enumerate(inputs)]
        result = OperandRange(len(inputs), output.range, TensorType(output.shape, output.dtype))
        made = self._lowered(name, build, operands, result, given)
        self.add(made, buffers, opaque=opaque)

    def _lowered(
        self,
        name: str,
        build: Build,
        operands: Sequence[OperandRange],
        result: OperandRange,
        attrs: tuple[tuple[str, Any], ...],
    ) -> Operation:
        try:
            return operation(
                self.executor, name, build, operands, result, attrs, in_place=_is_elementwise(name), fuse=True
            )
        except (GdlabError, RecursionError):
            raise
        except Exception as error:  # of a function of the caller's
            raise ArgumentError(name, "op", f"{type(error).__name__}: {error}", "a function in op notation") from error

    def copy_buffer(self, src: Buffer, dst: Buffer) -> None:
        """Append a copy of all bytes of one buffer to another of its size; inside one allocation through scratch."""
        where = "copy_buffer"
        self.check_usable(where)
        for what, buffer in (("src", src), ("dst", dst)):
            checked_buffer(self.executor, where, what, buffer)
        if src.dtype is not dst.dtype:
            raise DTypeError(where, "dst", str(dst.dtype), f"{src.dtype}, that of src")
        if src.element_count != dst.element_count:
            raise ShapeError(where, "dst", plural(dst.element_count, "element"), f"{src.element_count}, those of src")
        a, b = (OperandRange(i, x.range, TensorType(x.shape, x.dtype)) for i, x in enumerate((src, dst)))
        check_aliasing(where, [a], [b], False)
        made = Operation(
            where, "other", REGISTRY["reshape"], (), None, (a,), (b,), Footprint((a.range,), (b.range,)), copy=True
        )
        self.add(made, (src, dst))

    @kinds(kind=TEXT)
    def set_op_kind(self, kind: str) -> None:
        """Let passes treat the next node as one of this kind: rms_norm, elementwise_mul, elementwise_add, sdpa, softmax
        or other."""
        self.check_usable("set_op_kind")
        if kind not in KINDS:
            raise ArgumentError("set_op_kind", "kind", repr(kind), one_of(str(kind), KINDS))
        self._settle()
        self.next_kind, self._plain = kind, False

    # the list ---------------------------------------------------------------------------------------------------------
    def encode(
        self, where: str, make: Callable[..., Operation], buffers: tuple[Any, ...], numbers: tuple[Hashable, ...],
        kinds: tuple[type, ...] = (),
    ) -> Operation:  # fmt: skip
        """Append the op that `make(executor, where, buffers, *numbers)` returns; equal calls share one op. `kinds`: the
        types inside `numbers`."""
        if self.consumed:
            self.check_usable(where)
        key: tuple[Hashable, ...] | None = None
        try:  # 1, 1.0 and True are equal and not the same
            if len(buffers) == 3 and len(numbers) == 2 and not kinds:  # spelled out: 0.15 µs instead of 0.75
                (x, y, z), (m, n) = buffers, numbers
                key = (where, x.uid, y.uid, z.uid, m, n, m.__class__, n.__class__)
            else:
                key = (where, *map(UID, buffers), *numbers, *map(type, numbers), *kinds)
            made = self.executor.operations.get(key)
        except (AttributeError, TypeError):
            made, key = None, None
        if made is None:
            made = make(self.executor, where, buffers, *numbers)
            if key is not None:
                if len(self.executor.operations) >= KNOWN:
                    self.executor.operations.clear()
                self.executor.operations[key] = made
        if self._plain and not self._working:
            self._calls.append((made, buffers))
            if made.route:
                self.last_route = made.route
        else:
            self.add(made, buffers)
        return made

    def calls(self) -> list[Call]:
        """Return operation and buffers of every node."""
        return [*((n.operation, n.buffers) for n in self.graph.listed), *self._calls]

    @property
    def tracking(self) -> Tracking:
        """Return the groups and barriers of all calls."""
        self._settle()
        return self._tracking

    def _settle(self) -> None:
        """Append the nodes of calls whose ranges were not read yet."""
        calls, self._calls = self._calls, []
        for made, buffers in calls:
            self._append(made, buffers, False)

    def add(self, made: Operation, buffers: tuple[Buffer, ...], opaque: bool = False) -> None:
        """Append a node."""
        self._settle()
        self._append(made, buffers, opaque)
        self._plain = self.auto_barrier

    def _append(self, made: Operation, buffers: tuple[Buffer, ...], opaque: bool) -> None:
        me = get_ident()
        if self._working not in (0, me):
            raise SessionError(made.name, "session", "one that another thread uses", "one thread at a time")
        self._working = me
        try:
            tracking, listed = self._tracking, self.graph.listed
            node = Node(made, buffers, self.next_kind or made.kind, opaque, tracking.fence, tracking.pending)
            tracking.add(len(listed), node, self.auto_barrier)
            self.next_kind = None
            listed.append(node)
            self.graph.recorded_barriers = tracking.barriers
            if made.route:
                self.last_route = made.route
        finally:
            self._working = 0

    def append(self, node: Node) -> None:
        """Append a node of another session's list."""
        self.check_usable("encode_sequential")
        for b in node.buffers:
            checked_buffer(self.executor, "encode_sequential", "buffer", b)
        if node.fence:
            self.tracking.barrier()
        if node.declared is not None:
            self.tracking.between(len(self.graph.nodes), node.declared)
        self.next_kind = node.kind
        automatic, self.auto_barrier = self.auto_barrier, True
        try:
            self.add(node.operation, node.buffers, node.opaque)
        finally:
            self.auto_barrier = automatic

    def barrier(self) -> None:
        """Insert a barrier that is a fence."""
        self.check_usable("barrier")
        self.tracking.barrier()
        self._plain = False
        self.graph.recorded_barriers = self.tracking.barriers

    def barrier_between(self, reads: Any, writes: Any) -> None:
        """Declare ranges of the next node."""
        where = "barrier_between"
        if self.consumed:
            self.check_usable(where)
        declared = self._footprint(where, reads, writes)
        self._settle()
        self._plain = False
        self._tracking.between(len(self.graph.listed), declared)
        self.graph.recorded_barriers = self.tracking.barriers

    def track_dispatch(self, reads: Any, writes: Any) -> None:
        """Add ranges to the group, and in recording mode to the last node."""
        where = "track_dispatch"
        self.check_usable(where)
        more, nodes = self._footprint(where, reads, writes), self.graph.nodes
        self.tracking.track(len(nodes) - 1, more)
        if self.recording and nodes:
            nodes[-1].declare(more)

    def _footprint(self, where: str, reads: Any, writes: Any) -> Footprint:
        found = Footprint(ranges_of(where, "reads", reads), ranges_of(where, "writes", writes))
        return found

    def check_usable(self, where: str) -> None:
        """Raise once the session is consumed or its executor closed."""
        if self.consumed:
            raise SessionConsumedError(where, "session", f"one consumed by {self.consumed}", "a new session")
        self.executor.check_open(where)

    def consume(self, by: str) -> None:
        """Accept no more calls."""
        self.check_usable(by)
        self.consumed = by

    def _passed(self, nanoseconds: int) -> None:
        self.tracking.nanoseconds += max(1, nanoseconds)


def _build_of(where: str, op: Any) -> tuple[str, Build]:
    """Return name and function of the op given to `dispatch`."""
    if isinstance(op, str):
        if op not in REGISTRY:
            raise ArgumentError(where, "op", repr(op), one_of(op, sorted(REGISTRY)))
        op = REGISTRY[op]
    if isinstance(op, Op):
        if op.family == "leaf":
            raise ArgumentError(where, "op", op.name, "an op with operands")
        return op.name, _caller(op)
    if not callable(op):
        raise ArgumentError(where, "op", type(op).__name__, "an op, its name, or a function in op notation")
    return getattr(op, "__name__", "function"), op


@cache
def _caller(op: Op) -> Callable[..., Any]:
    """Return a function that calls an op, which also appends nodes that adapt its operands (broadcasts)."""

    def call(*values: Any, **attrs: Any) -> Any:
        return output_value(op, values, attrs)

    call.__name__ = op.name
    return call


def _is_elementwise(name: str) -> bool:
    op = REGISTRY.get(name)
    return op is not None and op.family == "elementwise"
