"""The supported operations of NNEF 1.0, each a function whose parameters are those of the format.

Shapes are aligned at their first axis: [c] against [n, c] is [c, 1], where NumPy would align at the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.load.convolutions import SpatialWindow, averaged, convolved, highest, same_border
from gdlab.load.shared import Malformed, Unsupported, common, product
from gdlab.ops import operators

Operand = Value | float | int
Pads = Sequence[tuple[int, int]]


def _ints(what: str, given: Any, length: int | None = None, least: int = 1) -> Shape:
    """Return a list of ints, or raise."""
    good = isinstance(given, tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not good or (length is not None and len(given) != length) or min(given, default=least) < least:
        wanted = f"{'a list of' if length is None else length} ints ≥ {least}"
        raise Malformed(what, f"{given!r:.60}", wanted)
    return tuple(given)


def value_of(given: Operand) -> Value:
    """Return a number as a tensor."""
    if isinstance(given, Value):
        return given
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Malformed("operand", f"{given!r:.60}", "a tensor or a number")
    return ops.scalar(float(given))


def _widened(x: Value, rank: int) -> Value:
    """Return x with ones appended to its shape."""
    return x if x.type.rank >= rank else x.reshape((*x.shape, *(1,) * (rank - x.type.rank)))


# element by element ---------------------------------------------------------------------------------------------------
def _binary(make: Callable[[Any, Any], Value]) -> Callable[[Operand, Operand], Value]:
    def call(x: Operand, y: Operand) -> Value:
        if not isinstance(x, Value) and not isinstance(y, Value):
            x = value_of(x)
        if isinstance(x, Value) and isinstance(y, Value):
            rank = max(x.type.rank, y.type.rank)
            x, y = _widened(x, rank), _widened(y, rank)
            common(x.shape, y.shape)
        return make(x, y)

    return call


def _div(x: Any, y: Any) -> Value:
    return ops.div(x, 0.0) if not isinstance(y, Value) and y == 0 else operators.div(x, y)


def _unary(make: Callable[[Value], Value]) -> Callable[[Operand], Value]:
    return lambda x: make(value_of(x))


def _copy(x: Operand) -> Value:
    return value_of(x)


def _leaky_relu(x: Operand, alpha: float) -> Value:
    x = value_of(x)
    return ops.where(ops.less(x, 0.0), x * alpha, x)


def _clamp(x: Operand, a: Operand, b: Operand) -> Value:
    return _binary(ops.minimum)(_binary(ops.maximum)(x, a), b)


def _softmax(x: Value, axes: Shape = (1,)) -> Value:
    rank, axes = x.type.rank, _ints("axes", axes, least=0)
    if not axes or max(axes) >= rank or len(set(axes)) != len(axes):
        raise Malformed("axes", list(axes), f"some of 0 … {rank - 1}, each once")
    others = tuple(i for i in range(rank) if i not in axes)
    order = (*others, *sorted(axes))
    if order == tuple(range(rank)) and len(axes) == 1:
        return ops.softmax(x)
    moved = x if order == tuple(range(rank)) else ops.permute(x, order)
    outer = tuple(x.shape[i] for i in others)
    rows = ops.softmax(moved.reshape((*outer, -1))).reshape(moved.shape)
    return rows if moved is x else ops.permute(rows, tuple(order.index(i) for i in range(rank)))


def _reduce(make: Callable[..., Value]) -> Callable[..., Value]:
    def call(input: Value, axes: Shape) -> Value:
        return make(input, _ints("axes", axes, least=0), True)

    return call


def _sum_reduce(input: Value, axes: Shape, normalize: bool = False) -> Value:
    return (ops.mean if normalize else ops.sum)(input, _ints("axes", axes, least=0), True)


# products and windows -------------------------------------------------------------------------------------------------
def _matmul(A: Value, B: Value, transposeA: bool = False, transposeB: bool = False) -> Value:
    if min(A.type.rank, B.type.rank) < 2:
        raise Malformed("operands", f"{A.type} and {B.type}", "rank 2 or more")
    if A.type.rank == B.type.rank == 2 and transposeA != transposeB:
        return (ops.matmul_at if transposeA else ops.matmul_bt)(A, B)
    return product(ops.transpose(A) if transposeA else A, ops.transpose(B) if transposeB else B)


def _linear(input: Value, filter: Value, bias: Operand = 0.0) -> Value:
    out, b = ops.matmul_bt(input, filter), _bias(bias, filter.shape[0])
    return out if b is None else ops.bias_add(out, b)


def _bias(bias: Operand, channels: int) -> Value | None:
    """Return a bias as f32[channels], from [1, channels], [channels] or a number; None for 0."""
    if not isinstance(bias, Value):
        return None if bias == 0 else ops.full((channels,), float(bias))
    if bias.shape == (1,) and channels > 1:
        return ops.broadcast_to(bias, (channels,))
    if bias.type.num_elements != channels:
        raise Malformed("bias", bias.type, f"{channels} numbers")
    return bias.reshape((channels,))


def _window(extents: Shape, size: Shape, padding: Pads, stride: Shape, dilation: Shape) -> SpatialWindow:
    rank = len(size)
    steps = _ints("stride", stride or (1,) * rank, rank)
    apart = _ints("dilation", dilation or (1,) * rank, rank)
    if not isinstance(padding, tuple) or (padding and len(padding) != rank):
        raise Malformed("padding", f"{padding!r:.60}", f"{rank} pairs, or none")
    pairs = [_ints("padding", p, 2, least=0) for p in padding]
    border = tuple((p[0], p[1]) for p in pairs) if pairs else same_border(extents, size, steps, apart, upper=True)
    return SpatialWindow(size, steps, apart, border)


def _check_border(border: str, window: SpatialWindow, known: Sequence[str]) -> None:
    if border not in known and any(map(any, window.border)):
        raise Unsupported(f"border {border!r}, where {' or '.join(map(repr, known))} is taken")


def _conv(
    input: Value, filter: Value, bias: Operand = 0.0, border: str = "constant", padding: Pads = (), stride: Shape = (),
    dilation: Shape = (), groups: int = 1,
) -> Value:  # fmt: skip
    if input.type.rank not in (3, 4) or filter.type.rank != input.type.rank:
        raise Unsupported(f"{input.type} and {filter.type}, where images of one or two axes are taken")
    window = _window(input.shape[2:], filter.shape[2:], padding, stride, dilation)
    _check_border(border, window, ("constant", "ignore"))
    return convolved(input, filter, _bias(bias, filter.shape[0]), window, groups or input.shape[1])


def _pool_window(input: Value, size: Shape, padding: Pads, stride: Shape, dilation: Shape) -> SpatialWindow:
    """Return the window of a pooling along the spatial axes, or raise where batch or channels are pooled."""
    rank = input.type.rank
    if rank not in (3, 4):
        raise Unsupported(f"{input.type}, where images of one or two axes are taken")
    window = _window(input.shape, _ints("size", size, rank), padding, stride, dilation)
    if window.size[:2] != (1, 1) or window.stride[:2] != (1, 1) or any(map(any, window.border[:2])):
        raise Unsupported("pooling along batch or channels")
    return SpatialWindow(window.size[2:], window.stride[2:], window.dilation[2:], window.border[2:])


def _max_pool(
    input: Value, size: Shape, border: str = "constant", padding: Pads = (), stride: Shape = (), dilation: Shape = ()
) -> Value:
    window = _pool_window(input, size, padding, stride, dilation)
    _check_border(border, window, ("constant", "ignore"))
    if border == "constant" and any(map(any, window.border)):  # a border of zeros, which may win
        lo, hi = ((0, 0, *ends) for ends in zip(*window.border, strict=True))
        input = ops.pad(input, lo, hi)
        window = SpatialWindow(window.size, window.stride, window.dilation, ((0, 0),) * len(window.size))
    return highest(input, window)


def _avg_pool(
    input: Value, size: Shape, border: str = "constant", padding: Pads = (), stride: Shape = (), dilation: Shape = ()
) -> Value:
    window = _pool_window(input, size, padding, stride, dilation)
    _check_border(border, window, ("constant", "ignore"))
    return averaged(input, window, border == "constant")


# layout ---------------------------------------------------------------------------------------------------------------
def _reshape(input: Value, shape: Shape, axis_start: int = 0, axis_count: int = -1) -> Value:
    rank = input.type.rank
    count = rank - axis_start if axis_count == -1 else axis_count
    if not 0 <= axis_start <= axis_start + count <= rank:
        raise Malformed("axis_start, axis_count", f"{axis_start}, {axis_count}", f"axes of {input.type}")
    target = _ints("shape", shape, least=-1)
    if any(n == 0 and axis_start + i >= rank for i, n in enumerate(target)):
        raise Malformed("shape", list(target), f"0 only for axes of {input.type}")
    inner = [input.shape[axis_start + i] if n == 0 else n for i, n in enumerate(target)]
    elements, rest = math.prod(input.shape[axis_start : axis_start + count]), math.prod(n for n in inner if n != -1)
    if inner.count(-1) > 1 or elements % rest:
        raise Malformed("shape", list(target), f"{elements} elements, and at most one -1")
    inner = [elements // rest if n == -1 else n for n in inner]
    whole = (*input.shape[:axis_start], *inner, *input.shape[axis_start + count :])
    return input.reshape(whole or (1,))


def _transpose(input: Value, axes: Shape) -> Value:
    rank = input.type.rank
    perm = (*_ints("axes", axes, least=0), *range(len(axes), rank))
    if perm == (*range(rank - 2), rank - 1, rank - 2):
        return ops.transpose(input)
    return ops.permute(input, perm)


def _concat(values: Sequence[Value], axis: int) -> Value:
    if not isinstance(values, tuple) or not values or not all(isinstance(v, Value) for v in values):
        raise Malformed("values", f"{values!r:.60}", "a list of tensors")
    return ops.concat(values, axis)


def _squeeze(input: Value, axes: Shape) -> Value:
    gone = _ints("axes", axes, least=0)
    if any(axis >= input.type.rank or input.shape[axis] != 1 for axis in gone):
        raise Malformed("axes", list(gone), f"axes of extent 1 of {input.type}")
    return input.reshape(tuple(n for i, n in enumerate(input.shape) if i not in gone) or (1,))


def _unsqueeze(input: Value, axes: Shape) -> Value:
    new, old = _ints("axes", axes, least=0), iter(input.shape)
    rank = input.type.rank + len(new)
    if len(set(new)) != len(new) or max(new, default=0) >= rank:
        raise Malformed("axes", list(new), f"axes below {rank}, each once")
    return input.reshape(tuple(1 if i in new else next(old) for i in range(rank)))


def _constant(shape: Shape, value: Any) -> Value:
    extents, given = _ints("shape", shape) or (1,), value if isinstance(value, tuple) else (value,)
    if not given or any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in given):
        raise Malformed("value", f"{value!r:.60}", "numbers")
    if len(given) == 1 and math.prod(extents) > 1:
        return ops.full(extents, float(given[0]))
    if len(given) != math.prod(extents):
        raise Malformed("value", f"{len(given)} numbers", f"{math.prod(extents)}, or one")
    return ops.constant(np.array(given, np.float64), extents)


OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "constant": _constant, "add": _binary(operators.add), "sub": _binary(operators.sub), "mul": _binary(operators.mul),
    "div": _binary(_div), "pow": _binary(operators.power), "min": _binary(ops.minimum), "max": _binary(ops.maximum),
    "relu": _unary(ops.relu), "sigmoid": _unary(ops.sigmoid), "tanh": _unary(ops.tanh), "neg": _unary(ops.neg),
    "abs": _unary(ops.abs), "exp": _unary(ops.exp), "log": _unary(ops.log), "rcp": _unary(ops.recip),
    "sqrt": _unary(ops.sqrt), "rsqrt": _unary(ops.rsqrt), "sqr": _unary(ops.square), "silu": _unary(ops.silu),
    "gelu": _unary(ops.gelu), "softplus": _unary(ops.softplus), "elu": _unary(ops.elu), "copy": _copy,
    "leaky_relu": _leaky_relu, "clamp": _clamp, "softmax": _softmax, "matmul": _matmul, "linear": _linear,
    "conv": _conv, "max_pool": _max_pool, "avg_pool": _avg_pool, "sum_reduce": _sum_reduce,
    "mean_reduce": _reduce(ops.mean), "max_reduce": _reduce(ops.max), "min_reduce": _reduce(ops.min),
    "reshape": _reshape, "transpose": _transpose, "concat": _concat, "squeeze": _squeeze, "unsqueeze": _unsqueeze,
}  # fmt: skip
