"""State one op on byte ranges: `operation(…)` checks them, lowers the function to a piece, and lists its ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gdlab import ops
from gdlab.base.errors import ArgumentError, DTypeError, SessionError, ShapeError
from gdlab.base.types import HALVES, DType, TensorType, f32
from gdlab.base.words import plural
from gdlab.graph import Value
from gdlab.kernels.decode import decodes_four
from gdlab.op import Op
from gdlab.plan.order import Footprint, Range
from gdlab.plan.piece import Piece, piece
from gdlab.record.buffers import Buffer

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

OpKind = Literal["rms_norm", "elementwise_mul", "elementwise_add", "sdpa", "softmax", "other"]
KINDS: tuple[OpKind, ...] = ("rms_norm", "elementwise_mul", "elementwise_add", "sdpa", "softmax", "other")
Build = Op | Callable[..., Any]


class OperandRange(NamedTuple):
    """A tensor of an op: its range of a buffer (numbered among the buffers of the call), and its type."""

    buffer: int
    range: Range
    type: TensorType
    stride: int = 0  # bytes between matrices in a storage dtype; 0: packed
    words: bool = False  # whether a storage dtype lies in a u32 buffer


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An op on ranges, made once for equal calls. `numbers`: u32 numbers that the last operands read, written when the
    list is submitted. `checks`: (range of expert numbers, how many experts). `route`: variant and reason of a
    product."""

    name: str
    kind: OpKind
    build: Build
    attrs: tuple[tuple[str, Any], ...]
    piece: Piece | None
    operands: tuple[OperandRange, ...]
    results: tuple[OperandRange, ...]
    footprint: Footprint
    numbers: tuple[int, ...] = ()
    checks: tuple[tuple[OperandRange, int], ...] = ()
    route: str = ""
    fuse: bool = False
    copy: bool = False
    key: tuple[Any, ...] = field(init=False)  # the data that its binding depends on, but for memory
    stored: bool = field(init=False)  # whether it reads a storage dtype
    work: int = field(init=False)  # flops and words moved

    def __post_init__(self) -> None:
        parts = (*self.operands, *self.results)
        spans = tuple((p.buffer, p.range.start, p.range.stop, p.stride) for p in parts)
        object.__setattr__(self, "key", (self.piece, spans))
        object.__setattr__(self, "stored", not self.copy and any(p.type.dtype.is_storage for p in parts))
        launched = () if self.piece is None else self.piece.dispatches
        words = sum(p.type.num_elements for p in parts)
        object.__setattr__(self, "work", words + sum(d.flops for d in launched))

    @property
    def dispatches(self) -> int:
        """Return the number of dispatches."""
        return 0 if self.piece is None else len(self.piece.dispatches)


def part(
    executor: GraphExecutor, where: str, what: str, buffers: Sequence[Buffer], at: int, type: TensorType,
    least: bool = False, words: bool = False,
) -> OperandRange:  # fmt: skip
    """Return the tensor of the first elements of a buffer, or raise if it does not fit. `least`: the buffer may have
    more elements; `words`: it may be one of u32, as it is of blocks."""
    buffer = checked_buffer(executor, where, what, buffers[at])
    held = DType.u32 if type.dtype.in_blocks or (words and buffer.dtype is not type.dtype) else type.dtype
    if buffer.dtype is not held:
        raise DTypeError(
            where, what, f"{buffer.dtype} elements", f"{held}" + (" words" if held is not type.dtype else "")
        )
    count = type.num_elements if held is type.dtype else type.size_bytes // 4
    if buffer.element_count < count or (not least and buffer.element_count != count):
        wanted = f"at least {count}" if least else str(count)
        raise ShapeError(where, what, plural(buffer.element_count, "element"), wanted)
    start = buffer.byte_offset
    return OperandRange(
        at, Range(buffer.allocation.number, start, start + type.size_bytes), type, 0, held is not type.dtype
    )


def checked_buffer(executor: GraphExecutor, where: str, what: str, buffer: Any) -> Buffer:
    """Return an open buffer of this executor."""
    if not isinstance(buffer, Buffer):
        raise ArgumentError(where, what, type(buffer).__name__, "a Buffer of alloc_buffer")
    if buffer.executor is not executor:
        raise ArgumentError(where, what, "a buffer of another executor", "one of this session's executor")
    if not buffer.is_open:
        raise SessionError(where, what, f"{buffer!r}, which was released", "an open buffer")
    return buffer


def check_aliasing(
    where: str, operands: Sequence[OperandRange], results: Sequence[OperandRange], in_place: bool
) -> None:
    """Refuse a result that overlaps an operand, unless it is the same range of an op that may run in place."""
    for r in results:
        for o in operands:
            if r.range.overlaps(o.range) and not (in_place and r.range == o.range):
                given = (
                    f"bytes {r.range.start} … {r.range.stop} of allocation {r.range.memory}, "
                    f"an input's {o.range.start} … {o.range.stop}"
                )
                wanted = "the same range or disjoint ones" if in_place else "disjoint ranges"
                raise ArgumentError(where, "output", given, wanted)


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A function whose result is rounded to 16 bits, once, and stored so."""

    build: Build
    dtype: DType

    def __call__(self, *values: Value, **attrs: Any) -> Any:
        found = self.build(*values, **attrs)
        return self._rounded(found) if isinstance(found, Value) else [self._rounded(v) for v in found]

    def _rounded(self, value: Value) -> Value:
        return value if value.type.dtype is self.dtype else STORING[self.dtype](value)


STORING = {DType.f16: ops.to_f16, DType.bf16: ops.to_bf16}


def unstored(build: Build) -> Build:
    """Return the function without the storage of its result in 16 bits."""
    return build.build if isinstance(build, StoredResult) else build


def operation(
    executor: GraphExecutor,
    where: str,
    build: Build,
    operands: Sequence[OperandRange],
    result: OperandRange,
    attrs: Sequence[tuple[str, Any]] = (),
    *,
    kind: OpKind = "other",
    in_place: bool = False,
    numbers: tuple[int, ...] = (),
    numbered: Sequence[TensorType] = (),
    fuse: bool = False,
    also_written: Sequence[Range] = (),
    reads: Sequence[Range] | None = None,
    checks: tuple[tuple[OperandRange, int], ...] = (),
    route: bool = False,
) -> Operation:
    """Check the ranges and lower the function; `numbered` are the types of the operands behind those that ranges hold,
    which read `numbers`; `reads` are the ranges that matter, where these are less than the operands."""
    check_aliasing(where, operands, [result], in_place)
    for range in also_written:
        check_aliasing(where, [*operands, result], [OperandRange(0, range, result.type)], False)
    types = (*(p.type for p in operands), *numbered)
    if result.type.dtype in HALVES:
        build, fuse = StoredResult(build, result.type.dtype), True
    made = lowered(executor, where, build, types, tuple(attrs), fuse)
    check_result(where, made, result)
    touched = tuple(dict.fromkeys((p.range for p in operands) if reads is None else reads))
    writes = (result.range, *also_written)
    return Operation(
        where, kind, build, tuple(attrs), made, tuple(operands), (result,), Footprint(touched, writes), numbers, checks,
        route_of(made) if route else "", fuse,
    )  # fmt: skip


def lowered(
    executor: GraphExecutor, where: str, build: Build, types: tuple[TensorType, ...], attrs: Any, fuse: bool
) -> Piece:
    """Return the piece of a function of one result that draws no random numbers."""
    counters = executor.queue.counters
    made = piece(build, types, executor.device.target, attrs, fuse=fuse, counter=counters)
    if len(made.results) != 1:
        raise ArgumentError(where, "op", plural(len(made.results), "result"), "one")
    if any(d.scalars for d in made.dispatches):
        raise ArgumentError(where, "op", "one that reads the number of a step", "an op without random numbers")
    return made


def check_result(where: str, made: Piece, result: OperandRange) -> None:
    """Refuse a result that does not fill its range exactly."""
    buffer = made.buffers[made.results[0]]
    type = TensorType(buffer.shape, buffer.dtype)
    if type.dtype is not result.type.dtype:
        raise DTypeError(where, "output", str(result.type.dtype), f"{type.dtype}, that of the result {type}")
    if type.num_elements != result.type.num_elements:
        wanted = f"{type.num_elements}, those of the result {type}"
        raise ShapeError(where, "output", plural(result.type.num_elements, "element"), wanted)


def route_of(made: Piece) -> str:
    """Return variant and reason of the dispatch that computes most of a product."""
    most = max(made.dispatches, key=lambda d: d.flops)
    by_four = any(decodes_four(most, o) for o in most.operands)
    more = ", each block decoded once, four elements at a time" if by_four else ""
    return f"{most.variant or most.kernel}: {most.variant_reason or most.label}{more}"


def fused(
    executor: GraphExecutor, build: Build, norm: Operation, scale: OperandRange, result: OperandRange
) -> Operation:
    """Return the op that computes norm and product together."""
    operands = (*norm.operands, scale)
    if result.type.dtype in HALVES:
        build = StoredResult(build, result.type.dtype)
    made = lowered(executor, "fusion", build, tuple(p.type for p in operands), norm.attrs, True)
    reads = tuple(dict.fromkeys(p.range for p in operands))
    name = "rms_norm + elementwise_mul"
    return Operation(
        name, "other", build, norm.attrs, made, operands, (result,), Footprint(reads, (result.range,)), fuse=True
    )


def moved(operation: Operation, shift: int) -> Operation:
    """Return the op with its buffers numbered from `shift` on, for a node that has the buffers of two."""
    return replace(
        operation,
        operands=tuple(p._replace(buffer=p.buffer + shift) for p in operation.operands),
        results=tuple(p._replace(buffer=p.buffer + shift) for p in operation.results),
    )


def kinds_of(params: object) -> tuple[type, ...]:
    """Return the types of the fields of parameters: 1, 1.0 and True are equal but differ in type."""
    return tuple([type(getattr(params, name)) for name in getattr(params, "__slots__", ())])


def tensor(shape: Sequence[int], dtype: DType = f32) -> TensorType:
    """Return a type."""
    return TensorType(tuple(shape), dtype)


def output_value(build: Op, values: tuple[Value, ...], attrs: dict[str, Any]) -> Value:
    """Return the value of a call of a registry op, which takes any number of operands as a list."""
    return build(list(values), **attrs) if build.variadic else build(*values, **attrs)
