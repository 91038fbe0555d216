"""Compile pointwise chains to NumPy: the kernel's expression becomes ufunc calls with preallocated results."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.formats import round_bf16, round_f16
from gdlab.base.types import Array, Shape
from gdlab.devices.cpu.call_lanes import WORTH, CallList, beside, lane_count
from gdlab.devices.fit import zeros
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.dispatch import PointOp
from gdlab.plan.expr import parse

SMALL = 1 << 14  # elements that stay in a core's cache
FLAT, FLAT_ROWS = 1 << 13, 64  # elements and rows up to which a repeated operand is written out first
LARGE, PART = 1 << 21, 1 << 16  # elements from which on a chain is made in parts, and of a part
_F32, _BOOL, _BITS = np.dtype(np.float32), np.dtype(np.bool_), np.dtype(np.uint32)


class Scratch:
    """Temporaries that dispatches share, because they run one after the other; each dispatch claims its own. What runs
    in another lane meanwhile claims them from that lane's scratch."""

    def __init__(self) -> None:
        self.pool: dict[tuple[Shape, np.dtype[Any]], list[Array]] = {}
        self.others: list[Scratch] = []
        self.work = 0  # of all calls that were made for this lane, as `CallList` counts it

    def lanes(self, count: int) -> list[Scratch]:
        """Return this scratch and those of the other lanes, `count` together."""
        while len(self.others) < count - 1:
            self.others.append(Scratch())
        return [self, *self.others[: count - 1]]

    def arrays(self) -> Iterator[Array]:
        """Return all arrays of the pool, and of the other lanes."""
        mine = itertools.chain.from_iterable(self.pool.values())
        return itertools.chain(mine, *(other.arrays() for other in self.others))

    def claim(self, shape: Shape, dtype: np.dtype[Any], taken: set[int]) -> Array:
        """Return an array that is not among `taken` (ids), and add it to them."""
        pool = self.pool.setdefault((shape, dtype), [])
        found = next((a for a in pool if id(a) not in taken), None)
        if found is None:
            found = zeros(shape, dtype)
            pool.append(found)
        taken.add(id(found))
        return found


# values of an expression ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ScalarLiteral:
    """A literal value: float32 or bool."""

    value: Any


@dataclass(eq=False)
class ArrayNode:
    """An array value: an existing one (`array`), or the result of `ufunc` over `args`."""

    shape: Shape
    dtype: np.dtype[Any]
    array: Array | None = None
    ufunc: Callable[..., Any] | None = None
    args: tuple[ArrayNode | ScalarLiteral, ...] = ()
    flag: ArrayNode | None = None  # this float is 1 where `flag` holds, else 0
    uses: int = field(default=0)


Value = ArrayNode | ScalarLiteral
_ONE, _ZERO, _FALSE = ScalarLiteral(np.float32(1)), ScalarLiteral(np.float32(0)), ScalarLiteral(np.bool_(False))


def _make(ufunc: Callable[..., Any], *args: Value, dtype: np.dtype[Any] = _F32) -> Value:
    if all(isinstance(a, ScalarLiteral) for a in args):
        with np.errstate(all="ignore"):
            return ScalarLiteral(dtype.type(ufunc(*(a.value for a in args if isinstance(a, ScalarLiteral)))))
    shape = np.broadcast_shapes(*(a.shape for a in args if isinstance(a, ArrayNode)))
    return ArrayNode(shape, dtype, ufunc=ufunc, args=args)


def _select(if_false: Value, if_true: Value, condition: Value) -> Value:
    """Select by bits, never by arithmetic: the value not selected may be infinite or NaN."""
    if isinstance(condition, ScalarLiteral):
        return if_true if condition.value else if_false
    if _is(if_false, 0.0) and _is(if_true, 1.0):
        made = ArrayNode(condition.shape, _F32, ufunc=np.positive, args=(condition,), flag=condition)
        return made
    if _is(if_false, 0.0):
        return _masked(if_true, condition)
    opposite = _make(np.logical_not, condition, dtype=_BOOL)
    if _is(if_true, 0.0):
        return _masked(if_false, opposite)
    return _make(_bits_or, _masked(if_true, condition), _masked(if_false, opposite))


def _is(value: Value, number: float) -> bool:
    """Return whether a value is this literal (+0.0, not −0.0)."""
    return isinstance(value, ScalarLiteral) and value.value == number and not math.copysign(1, float(value.value)) < 0


def _masked(value: Value, condition: Value) -> Value:
    return _make(_bits_times, value, condition)


def _bits_times(value: Any, condition: Any, out: Array) -> None:
    """Write value where condition, else +0.0."""
    np.multiply(_bits(value), condition, out.view(_BITS))


def _bits_or(a: Any, b: Any, out: Array) -> None:
    np.bitwise_or(_bits(a), _bits(b), out.view(_BITS))


def _bits(value: Any) -> Any:
    return value.view(_BITS)


def _not_equal(a: Value, b: Value) -> Value:
    if isinstance(a, ArrayNode) and a.flag is not None and _is(b, 0.0):
        return a.flag
    return _make(np.not_equal, a, b, dtype=_BOOL)


def _is_nan(x: Value) -> Value:
    return _FALSE if isinstance(x, ArrayNode) and x.flag is not None else _make(np.isnan, x, dtype=_BOOL)


def _logical(ufunc: Callable[..., Any], absorbing: bool) -> Callable[[Value, Value], Value]:
    def make(a: Value, b: Value) -> Value:
        for one, other in ((a, b), (b, a)):
            if isinstance(one, ScalarLiteral):
                return one if bool(one.value) == absorbing else other
        return _make(ufunc, a, b, dtype=_BOOL)

    return make


def _sigmoid(x: Value) -> Value:
    """Return 1 / (1 + e^−x): where the power is infinite the result is 0, which is right."""
    return _make(np.divide, _ONE, _make(np.add, _ONE, _make(np.exp, _make(np.negative, x))))


def _plain(ufunc: Callable[..., Any]) -> Callable[..., Value]:
    return lambda *args: _make(ufunc, *args)


def _into(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap a function of arrays so that it writes into `out`, as a ufunc does."""

    def call(x: Any, out: Array | None = None) -> Any:
        made = function(x)
        if out is not None:
            out[...] = made
        return made

    return call


def _compare(ufunc: Callable[..., Any]) -> Callable[..., Value]:
    return lambda a, b: _make(ufunc, a, b, dtype=_BOOL)


_FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "exp": _plain(np.exp),
    "log": _plain(np.log),
    "sqrt": _plain(np.sqrt),
    "inverseSqrt": lambda x: _make(np.divide, _ONE, _make(np.sqrt, x)),
    "tanh": _plain(np.tanh),
    "abs": _plain(np.abs),
    "sign": _plain(np.sign),
    "floor": _plain(np.floor),
    "ceil": _plain(np.ceil),
    "trunc": _plain(np.trunc),
    "round": _plain(np.rint),
    "select": _select,
    "max_nan": _plain(np.maximum),
    "min_nan": _plain(np.minimum),
    "relu_nan": lambda x: _make(np.maximum, x, _ZERO),
    "sigmoid_stable": _sigmoid,
    "pow_abs": lambda x, exponent: _make(np.power, _make(np.abs, x), exponent),
    "is_nan": _is_nan,
    "log1p": _plain(np.log1p),
    "expm1": _plain(np.expm1),
    "tanh_precise": _plain(np.tanh),
    "sin_precise": _plain(np.sin),
    "cos_precise": _plain(np.cos),
    "remainder": _plain(np.fmod),
    "modulus": _plain(np.mod),
    "round_f16": _plain(_into(round_f16)),
    "round_bf16": _plain(_into(round_bf16)),
}
_BINARY: Mapping[type, Callable[..., Value]] = {
    ast.Add: _plain(np.add),
    ast.Sub: _plain(np.subtract),
    ast.Mult: _plain(np.multiply),
    ast.Div: _plain(np.divide),
    ast.Mod: _plain(np.fmod),  # WGSL's remainder has the sign of the dividend
    ast.BitOr: _logical(np.logical_or, absorbing=True),
    ast.BitAnd: _logical(np.logical_and, absorbing=False),
}
_COMPARE: Mapping[type, Callable[..., Value]] = {
    ast.Gt: _compare(np.greater),
    ast.Lt: _compare(np.less),
    ast.GtE: _compare(np.greater_equal),
    ast.LtE: _compare(np.less_equal),
    ast.Eq: _compare(np.equal),
    ast.NotEq: _not_equal,
}


def build(text: str, scope: Mapping[str, Value]) -> Value:
    """Return the value of an expression over named values."""
    return _walk(parse(text), text, scope)


def _walk(tree: ast.expr, text: str, scope: Mapping[str, Value]) -> Value:
    match tree:
        case ast.Name(id=name) if name in scope:
            return scope[name]
        case ast.Constant(value=float() | int() as value):
            return ScalarLiteral(np.float32(value))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_walk(left, text, scope), _walk(right, text, scope))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _make(np.negative, _walk(operand, text, scope))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_walk(left, text, scope), _walk(right, text, scope))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_walk(a, text, scope) for a in args))
    raise CompileError("kernel", "expression", repr(text), f"operands and {', '.join(_FUNCTIONS)}")


# from values to calls -------------------------------------------------------------------------------------------------
def emit(result: Value, out: Array, scratch: Scratch, taken: set[int]) -> list[NumpyCall]:
    """Return the calls that leave `result` in `out`, in order; temporaries are reused after their last reader. Large
    results are made in parts, all calls of one part after the other: temporaries then stay in the cache (4 million
    numbers: 0.72–0.91 of the time; 2026-11-21). Lanes share the parts where they have enough to do: six calls on a
    million numbers take 0.5–0.75 of the time with two (EPYC, 2026-11-24)."""
    if isinstance(result, ScalarLiteral):
        return [(np.copyto, (out, result.value))]
    order = _order(result)
    if result.array is not None:
        return [(np.copyto, (out, np.broadcast_to(result.array, out.shape)))]
    count, lanes = sum(node.array is None for node in order), scratch.lanes(lane_count())
    shared = count * out.size * (len(lanes) - 1) // len(lanes) >= WORTH
    rows = max(1, PART // (out.size // len(out))) if shared or out.size >= LARGE else 0
    if not rows or count == 1:
        return _emit(order, result, out, scratch, taken)
    made: list[tuple[list[NumpyCall], int]] = []
    for number, start in enumerate(range(0, len(out), rows)):
        part = slice(start, min(start + rows, len(out)))
        nodes = _part(order, part, out.shape)
        calls = _emit(_order(nodes[-1]), nodes[-1], out[part], lanes[number % len(lanes)], taken)
        made.append((calls, len(calls) * out[part].size))
    lists = [made[number :: len(lanes)] for number in range(len(lanes))]
    return beside([CallList([c for calls, _ in some for c in calls], sum(w for _, w in some)) for some in lists])


def _part(order: list[ArrayNode], part: slice, shape: Shape) -> list[ArrayNode]:
    """Return the nodes restricted to a part of their first axis, where that is the first axis of `shape`."""
    nodes: list[ArrayNode] = []
    place = {id(node): i for i, node in enumerate(order)}
    for node in order:
        cut = len(node.shape) == len(shape) and node.shape[0] == shape[0]
        if node.array is not None:
            nodes.append(array(node.array[part]) if cut else node)
            continue
        args = tuple(nodes[place[id(a)]] if isinstance(a, ArrayNode) else a for a in node.args)
        size = (part.stop - part.start, *node.shape[1:]) if cut else node.shape
        nodes.append(ArrayNode(size, node.dtype, ufunc=node.ufunc, args=args))
    return nodes


def _emit(order: list[ArrayNode], result: ArrayNode, out: Array, scratch: Scratch, taken: set[int]) -> list[NumpyCall]:
    places: dict[int, Array] = {}
    owned: dict[int, Array] = {}
    steps: list[NumpyCall] = []
    for node in order:
        if node.array is not None:
            places[id(node)] = node.array
            continue
        args = tuple(_argument(a, places) for a in node.args)
        for arg in _distinct(node):
            arg.uses -= 1
            if arg.uses == 0 and id(arg) in owned:  # a ufunc may write where it reads
                taken.discard(id(owned.pop(id(arg))))
        target = out if node is result else scratch.claim(node.shape, node.dtype, taken)
        laid, args = lay_out(args, target, scratch, taken)
        steps += [*laid, _step(node, args, target)]
        places[id(node)] = target
        if node is not result:
            owned[id(node)] = target
    return steps


def lay_out(
    args: tuple[Any, ...], target: Array, scratch: Scratch, taken: set[int]
) -> tuple[list[NumpyCall], tuple[Any, ...]]:
    """Repeat a row or column operand of a small result in an array of its own, and return the operands: a ufunc that
    repeats it begins its loop anew in each row (64 x 10: 1.2 and 0.8 µs, 64 x 128: 2.5 and 2.0; EPYC, 2026-11-21)."""
    steps, whole, claimed = list[NumpyCall](), list[Any](), list[Array]()
    read = {id(arg) for arg in args} - taken  # given back already, and read by this very call
    taken |= read
    for arg in args:
        repeats = isinstance(arg, np.ndarray) and 1 < arg.size < target.size and target.ndim == 2
        if repeats and target.size <= FLAT and len(target) <= FLAT_ROWS:
            claimed.append(scratch.claim(target.shape, arg.dtype, taken))
            steps.append((claimed[-1].__setitem__, (..., arg)))
            arg = claimed[-1]
        whole.append(arg)
    taken.difference_update(map(id, claimed), read)
    return steps, tuple(whole)


def _distinct(node: ArrayNode) -> list[ArrayNode]:
    return list({id(a): a for a in node.args if isinstance(a, ArrayNode)}.values())


def _step(node: ArrayNode, args: tuple[Any, ...], target: Array) -> NumpyCall:
    """Return one call; selections get their views of bits now instead of in every run."""
    assert node.ufunc is not None  # a node without an array is computed
    if node.ufunc is np.positive:
        return np.copyto, (target, args[0])
    if node.ufunc is _bits_times:
        return np.multiply, (_bits(args[0]), args[1], target.view(_BITS))
    if node.ufunc is _bits_or:
        return np.bitwise_or, (_bits(args[0]), _bits(args[1]), target.view(_BITS))
    if node.ufunc in (np.maximum, np.minimum):  # these refuse a third positional argument
        return partial(node.ufunc, out=target), tuple(_filled(a, target) for a in args)
    return node.ufunc, (*args, target)


def _filled(arg: Any, target: Array) -> Any:
    """Return a number as a whole array for small results: NumPy is vectorized only for two arrays, 3 times faster."""
    if arg.ndim or arg.flags.writeable or target.size > SMALL:  # literals alone cannot be written
        return arg
    return _constant(float(arg), target.shape)


@lru_cache(maxsize=64)
def _constant(value: float, shape: Shape) -> Array:
    constant = np.full(shape, value, np.float32)
    constant.flags.writeable = False
    return constant


def _argument(value: Value, places: dict[int, Array]) -> Any:
    return _scalar(value.value.tobytes(), value.value.dtype) if isinstance(value, ScalarLiteral) else places[id(value)]


@lru_cache(maxsize=1024)
def _scalar(data: bytes, dtype: np.dtype[Any]) -> Array:
    """Return a number as an array without axes, which saves a ufunc 0.2 µs."""
    return np.frombuffer(data, dtype).reshape(())


def _order(result: ArrayNode) -> list[ArrayNode]:
    """Return the nodes in the order of evaluation, equal ones once, and the number of readers of each."""
    order: list[ArrayNode] = []
    state: dict[int, int] = {}
    stack: list[ArrayNode] = [result]
    while stack:
        node = stack[-1]
        if state.get(id(node)) == 2:
            stack.pop()
            continue
        if state.get(id(node)) == 1:
            state[id(node)] = 2
            order.append(stack.pop())
            continue
        state[id(node)] = 1
        node.uses = 0
        stack.extend(a for a in reversed(node.args) if isinstance(a, ArrayNode) and state.get(id(a)) is None)
    kept = _merged(order)
    for node in kept:
        for arg in _distinct(node):
            arg.uses += 1
    return kept


def _merged(order: list[ArrayNode]) -> list[ArrayNode]:
    """Merge equal computations: an expression may say `sigmoid_stable(x)` twice."""
    first: dict[tuple[object, ...], ArrayNode] = {}
    stands_for: dict[int, ArrayNode] = {}
    kept: list[ArrayNode] = []
    for node in order:
        node.args = tuple(stands_for[id(a)] if isinstance(a, ArrayNode) else a for a in node.args)
        key = (node.ufunc, *(id(a) if isinstance(a, ArrayNode) else a.value.tobytes() for a in node.args))
        found = node if node.array is not None else first.setdefault(key, node)
        stands_for[id(node)] = found
        if found is node:
            kept.append(node)
    return kept


# chains --------------------------------------------------------------------------------------------------------------
def array(data: Array) -> ArrayNode:
    """Return an array as a value."""
    return ArrayNode(data.shape, data.dtype, array=data)


def chain(
    lines: Sequence[PointOp], operands: Mapping[int, Array], acc: Value | None, dual: Value | None = None
) -> Value:
    """Return the value of a chain's last line (without lines: `acc`); operands already broadcast over its domain."""
    leaves = {index: array(data) for index, data in operands.items()}
    values: list[Value] = []
    for line in lines:
        scope: dict[str, Value] = {
            name: ScalarLiteral(np.float32(value)) for name, value in line.attrs if isinstance(value, (int, float))
        }
        for name, arg in zip(line.names, line.args, strict=True):
            match arg.kind:
                case "operand":
                    scope[name] = leaves[arg.index]
                case "op":
                    scope[name] = values[arg.index]
                case "acc":
                    assert acc is not None  # the plan was verified
                    scope[name] = acc
                case "dual":
                    assert dual is not None  # the plan was verified
                    scope[name] = dual
                case "literal":
                    scope[name] = ScalarLiteral(np.float32(arg.value))
        values.append(build(line.expr, scope))
    if values:
        return values[-1]
    assert acc is not None  # only a chain on a core may be empty
    return acc
