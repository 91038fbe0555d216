"""ONNX ops that work element by element or along axes: their ops of a graph, and their values on constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape
from gdlab.graph import Value
from gdlab.load.onnx.onnx_layout import reshaped
from gdlab.load.onnx.tensor import (
    DTYPES,
    HALVES,
    Kind,
    OnnxCall,
    Table,
    Tensor,
    Translate,
    axis_of,
    fitted,
    kind_of,
    known,
)
from gdlab.load.shared import Malformed, Unsupported, common
from gdlab.ops import operators

Number = Value | float
Make = Callable[[Any, Any], Value]
One = Callable[[OnnxCall], Tensor]


def _common(*tensors: Tensor) -> Shape:
    return common(*(t.shape for t in tensors))


def folded(
    call: OnnxCall, fold: Callable[..., Any], tensors: tuple[Tensor, ...], kind: Kind, effort: int = 1
) -> Tensor:
    """Return the value of `fold` on known elements."""
    call.home.check_size(_common(*tensors), effort)
    with np.errstate(all="ignore"):
        return known(fold(*(t.array for t in tensors)), kind)


# two operands ---------------------------------------------------------------------------------------------------------
def binary(make: Make, fold: Callable[..., Any], mask: bool = False) -> One:
    """Return the translation of an op of two operands; `make` takes values and plain numbers, of these at most one."""

    def translate(call: OnnxCall) -> Tensor:
        a, b = call.tensor(0), _aligned(call)
        shape, kind = _common(a, b), "bool" if mask else a.kind
        if a.known and b.known:
            return folded(call, fold, (a, b), kind)
        return fitted(make(call.home.operand(a), call.home.operand(b)), shape, kind)

    return translate


def _aligned(call: OnnxCall) -> Tensor:
    """Return operand 1; before opset 7 its first axis may lie at a given `axis` of operand 0."""
    b, behind = call.tensor(1), len(call.tensor(0).shape) - len(call.tensor(1).shape) - call.integer("axis")
    if call.opset >= 7 or "axis" not in call.node.attrs or behind <= 0:
        return b
    return reshaped(call.home, b, (*b.shape, *(1,) * behind))


def _trunc(x: Value) -> Value:
    """Round toward 0, for integers below 2³²."""
    return ops.sign(x) * ops.to_f32(ops.to_u32(ops.abs(x)))


def _div(call: OnnxCall) -> Tensor:
    a, b = call.tensor(0), call.tensor(1)
    if a.kind == "float":
        return _quotient(call)
    if a.known and b.known:
        if not np.all(b.array):
            raise Malformed("divisor", 0, "an integer other than 0")
        return folded(call, lambda x, y: (x - np.fmod(x, y)) // y, (a, b), "int")
    x, y = call.number(0), call.number(1)
    size = ops.div(ops.abs(x) + 0.5, ops.abs(y))  # half of one more than needed: a device may round a whole down
    return fitted(ops.sign(x) * ops.sign(y) * _trunc(size), _common(a, b), "int")


def _divided(a: Number, b: Number) -> Value:
    if b == 0 and not isinstance(b, Value):
        return ops.div(a, 0.0)
    return operators.div(a, b)


_quotient = binary(_divided, np.divide)


def _pow(call: OnnxCall) -> Tensor:
    if call.tensor(0).kind != "float" and not (call.tensor(0).known and call.tensor(1).known):
        raise Unsupported("a power of integers that are computed in the graph")
    return _power(call)


def _known_power(x: Array, y: Array) -> Array:
    whole = x.dtype.kind in "iu" and y.dtype.kind in "iu"
    return np.asarray(np.power(x, y.astype(x.dtype)) if whole else np.power(x.astype(np.float64), y))


_power = binary(operators.power, _known_power)


def _compared(make: Callable[..., Value], fold: Callable[..., Any]) -> Translate:
    return binary(make, fold, mask=True)


def _many(make: Make, fold: Callable[..., Any], mean: bool = False) -> Translate:
    """Return the translation of an op that takes any number of operands, one after the other."""

    def translate(call: OnnxCall) -> Tensor:
        tensors = tuple(call.tensor(i) for i in range(max(1, len(call.inputs))))
        if all(t.known for t in tensors):
            total = folded(call, lambda *arrays: reduce(fold, arrays), tensors, tensors[0].kind)
            return known(total.array / len(tensors)) if mean and total.array is not None else total
        operands = [call.home.number(t) for t in tensors]
        out = reduce(make, operands)
        return fitted(out / len(tensors) if mean else out, _common(*tensors), tensors[0].kind)

    return translate


def _where(call: OnnxCall) -> Tensor:
    c, a, b = (call.tensor(i) for i in range(3))
    if c.known and a.known and b.known:
        return folded(call, np.where, (c, a, b), a.kind)
    mask, x, y = call.number(0), call.home.operand(a), call.home.operand(b)
    return fitted(ops.where(mask, x, y), _common(c, a, b), a.kind)


# a bound that is left out is the last finite number: Clip makes infinities finite
LOWEST = {"float32": -3.4028234663852886e38, "float16": -65504.0, "bfloat16": -3.3895313892515355e38}


def _clip(call: OnnxCall) -> Tensor:
    x, lo, hi = call.tensor(0), _bound(call, 1, "min"), _bound(call, 2, "max")
    least = LOWEST.get(x.dtype, LOWEST["float32"]) if x.kind == "float" else -math.inf
    most = -least
    if x.known and all(b is None or b.known for b in (lo, hi)):
        low, high = (most if b is None else b.array for b, most in ((lo, least), (hi, most)))
        return folded(call, lambda a: np.clip(a, low, high), (x,), x.kind)
    numbers = [(least, most)[i] if b is None else _single(b) for i, b in enumerate((lo, hi))]
    value = call.number(0)
    if None not in numbers and numbers[0] <= numbers[1]:  # type: ignore[operator]
        return fitted(ops.clamp(value, numbers[0], numbers[1]), x.shape, x.kind)
    if lo is not None:
        value = ops.maximum(value, call.home.operand(lo))
    if hi is not None:
        value = ops.minimum(value, call.home.operand(hi))
    return fitted(value, x.shape, x.kind)


def _bound(call: OnnxCall, i: int, name: str) -> Tensor | None:
    """Return a bound of Clip: an input since opset 11, an attribute before."""
    given = call.node.attrs.get(name)
    return call.optional(i) if given is None else known(np.float32(call.real(name)))


def _single(t: Tensor) -> float | None:
    number = float(t.array.reshape(-1)[0]) if t.array is not None and t.size == 1 else None
    return None if number is None or math.isnan(number) else number


# one operand ----------------------------------------------------------------------------------------------------------
def unary(make: Callable[[Value], Value], fold: Callable[..., Any] | None = None) -> Translate:
    def translate(call: OnnxCall) -> Tensor:
        x = call.tensor(0)
        if fold is not None and x.known:
            return folded(call, fold, (x,), x.kind, effort=16 if fold is _erf else 1)
        return fitted(make(call.number(0)), x.shape, x.kind)

    return translate


def shaped(make: Callable[[OnnxCall, Value], Value]) -> Translate:
    """Return the translation of an op with attributes."""
    return lambda call: fitted(make(call, call.number(0)), call.tensor(0).shape)


def _gelu(call: OnnxCall, x: Value) -> Value:
    forms = {"none": ops.gelu_erf, "tanh": ops.gelu}
    kind = call.text("approximate", "none")
    if kind not in forms:
        raise Malformed("approximate", repr(kind), "'none' or 'tanh'")
    return forms[kind](x)


def _swish(call: OnnxCall, x: Value) -> Value:
    alpha = call.real("alpha", 1.0)
    return ops.silu(x) if alpha == 1 else x * ops.sigmoid(x * alpha)


def _leaky(call: OnnxCall, x: Value) -> Value:
    return ops.where(ops.less(x, 0.0), x * call.real("alpha", 0.01), x)


def _elu(call: OnnxCall, x: Value) -> Value:
    alpha = call.real("alpha", 1.0)
    return ops.elu(x) if alpha == 1 else ops.where(ops.greater(x, 0.0), x, ops.elu(x) * alpha)


def _hard_sigmoid(x: Value, alpha: float, beta: float) -> Value:
    return ops.clamp(x * alpha + beta, 0.0, 1.0)


def _prelu(call: OnnxCall) -> Tensor:
    """Return x, times the slope where it is negative; the slope broadcasts, before opset 7 it is one per channel."""
    x, slope = call.tensor(0), call.tensor(1)
    if call.opset < 7 and slope.size > 1 and len(x.shape) > 2:
        slope = reshaped(call.home, slope, (slope.size, *(1,) * (len(x.shape) - 2)))
    value, factor = call.number(0), call.home.operand(slope)
    return fitted(ops.where(ops.less(value, 0.0), operators.mul(value, factor), value), common(x.shape, slope.shape))


def _cast(call: OnnxCall) -> Tensor:
    to = call.integer("to")
    if to not in DTYPES:
        raise Unsupported(f"a cast to type {to}")
    return cast(call, DTYPES[to])


def cast(call: OnnxCall, dtype: str) -> Tensor:
    """Return operand 0 as another type of number."""
    x, kind = call.tensor(0), kind_of(dtype)
    if x.known:
        assert x.array is not None  # known
        with np.errstate(all="ignore"):
            whole = x.array.astype(np.int64) if kind == "int" and x.kind == "float" else x.array
            return replace(known(whole, kind), dtype=dtype)
    if kind == x.kind or (kind == "float" and x.kind == "bool"):
        return replace(x, kind=kind, parameter=x.parameter if kind == x.kind else "", dtype=dtype)
    number = call.number(0)
    if kind == "bool":
        return fitted(ops.not_equal(number, 0.0), x.shape, kind)
    return replace(fitted(_trunc(number) if x.kind == "float" else number, x.shape, kind), dtype=dtype)


# along axes -----------------------------------------------------------------------------------------------------------
def axes_of(call: OnnxCall, rank: int) -> tuple[int, ...] | None:
    """Return the axes of a reduction: an input or an attribute, by opset; None: nothing is reduced."""
    given = call.static_ints(1) if len(call.inputs) > 1 else call.integers("axes")
    if not given:
        return None if call.integer("noop_with_empty_axes") else tuple(range(rank))
    axes = tuple(axis_of(axis, rank) for axis in given)
    if len(set(axes)) != len(axes):
        raise Malformed("axes", list(given), "each axis once")
    return axes


Reduce = Callable[..., Value]


def _alone(x: Value) -> Value:
    return x


def reduced(make: Reduce, fold: Callable[..., Any] | None = None, alone: Callable[[Value], Value] = _alone) -> One:
    """Return the translation of a reduction by `make(x, axes, keepdims=True)`; `alone` is applied to each element if no
    axis is reduced."""

    def translate(call: OnnxCall) -> Tensor:
        x = call.tensor(0)
        axes, keep = axes_of(call, len(x.shape)), bool(call.integer("keepdims", 1))
        if x.known and fold is not None:
            call.home.check_size(x.shape)
            return known(x.array if axes is None else fold(x.array, axis=axes, keepdims=keep), x.kind)
        value = call.number(0)
        if axes is None:
            return fitted(alone(value), x.shape, x.kind)
        left = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
        return fitted(make(value, axes, True) if axes else alone(value), left, x.kind)

    return translate


def _norm1(x: Value, axes: Shape, keepdims: bool) -> Value:
    return ops.sum(ops.abs(x), axes, keepdims)


def _squares(x: Value, axes: Shape, keepdims: bool) -> Value:
    return ops.sum(ops.square(x), axes, keepdims)


def _log_sum_exp(x: Value, axes: Shape, keepdims: bool) -> Value:
    top = ops.max(x, axes, True)
    return top + ops.log(ops.sum(ops.exp(x - top), axes, True))


def _arg(sign: float) -> Translate:
    def translate(call: OnnxCall) -> Tensor:
        x, value = call.tensor(0), call.number(0)
        axis, n = axis_of(call.integer("axis"), len(x.shape)), x.shape[axis_of(call.integer("axis"), len(x.shape))]
        value = value if sign > 0 else -value
        left = tuple(1 if i == axis else m for i, m in enumerate(x.shape) if i != axis or call.integer("keepdims", 1))
        if not call.integer("select_last_index"):
            return fitted(ops.argmax(value, axis), left, "int")
        call.home.check_size((n,))
        backward = ops.gather(value, ops.constant_u32(np.arange(n)[::-1].copy()), axis)
        return fitted((n - 1) - ops.to_f32(ops.argmax(backward, axis)), left, "int")

    return translate


def _softmax_of_halves(near: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """Return the translation of softmax by the steps of ONNX's function, each rounded: the optimizer must not make one
    op of it."""

    def make(x: Value) -> Value:
        powers = near(ops.exp(near(x - ops.max(x, (-1,), True))))
        return powers / near(ops.sum(powers, (-1,), True))

    return make


def _softmax(plain: Callable[[Value], Value], logarithm: bool = False) -> Translate:
    """Return the translation of softmax along one axis; before opset 13 over all axes from `axis` on, as one."""

    def translate(call: OnnxCall) -> Tensor:
        x, value, make = call.tensor(0), call.number(0), plain
        rank = len(x.shape)
        if x.dtype in HALVES and not logarithm:
            make = _softmax_of_halves(HALVES[x.dtype])
        if call.opset < 13:
            axis = call.integer("axis", 1)
            outer = math.prod(x.shape[: axis_of(axis, rank) if axis != rank else rank])
            flat = value if rank == 2 and outer == x.shape[0] else value.reshape((outer, -1))
            return fitted(make(flat), x.shape)
        axis = axis_of(call.integer("axis", -1), rank) if rank else 0
        if axis >= rank - 1:
            return fitted(make(value), x.shape)
        order = (*(i for i in range(rank) if i != axis), axis)
        back = tuple(order.index(i) for i in range(rank))
        return fitted(ops.permute(make(ops.permute(value, order)), back), x.shape)

    return translate


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


MATH: Table = {
    "Add": binary(operators.add, np.add), "Sub": binary(operators.sub, np.subtract),
    "Mul": binary(operators.mul, np.multiply), "Div": _div, "Pow": _pow,
    "Equal": _compared(ops.equal, np.equal), "Greater": _compared(ops.greater, np.greater),
    "GreaterOrEqual": _compared(ops.greater_equal, np.greater_equal), "Less": _compared(ops.less, np.less),
    "LessOrEqual": _compared(ops.less_equal, np.less_equal),
    "And": binary(ops.minimum, np.logical_and, mask=True), "Or": binary(ops.maximum, np.logical_or, mask=True),
    "Xor": binary(ops.not_equal, np.logical_xor, mask=True), "Not": unary(lambda x: 1.0 - x, np.logical_not),
    "Min": _many(ops.minimum, np.minimum), "Max": _many(ops.maximum, np.maximum), "Sum": _many(ops.add, np.add),
    "Mean": _many(ops.add, np.add, mean=True), "Where": _where, "Clip": _clip, "Cast": _cast,
    "CastLike": lambda call: cast(call, call.tensor(1).dtype),
    "PRelu": _prelu,
    "Neg": unary(ops.neg, np.negative), "Abs": unary(ops.abs, np.abs), "Sign": unary(ops.sign, np.sign),
    "Exp": unary(ops.exp, np.exp), "Log": unary(ops.log, np.log), "Sqrt": unary(ops.sqrt, np.sqrt),
    "Reciprocal": unary(ops.recip, np.reciprocal), "Erf": unary(ops.erf, _erf), "Sin": unary(ops.sin, np.sin),
    "Cos": unary(ops.cos, np.cos), "Relu": unary(ops.relu), "Sigmoid": unary(ops.sigmoid),
    "Tanh": unary(ops.tanh, np.tanh), "Softplus": unary(ops.softplus), "Gelu": shaped(_gelu),
    "Silu": unary(ops.silu), "Swish": shaped(_swish), "LeakyRelu": shaped(_leaky), "Elu": shaped(_elu),
    "HardSigmoid": shaped(lambda c, x: _hard_sigmoid(x, c.real("alpha", 0.2), c.real("beta", 0.5))),
    "HardSwish": unary(lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5)),
    "Softsign": unary(lambda x: x / (ops.abs(x) + 1.0)),
    "ReduceMean": reduced(ops.mean), "ReduceSum": reduced(ops.sum, np.sum), "ReduceMax": reduced(ops.max, np.max),
    "ReduceMin": reduced(ops.min, np.min), "ReduceL1": reduced(_norm1, alone=ops.abs),
    "ReduceSumSquare": reduced(_squares, alone=ops.square),
    "ReduceL2": reduced(lambda x, axes, keep: ops.sqrt(_squares(x, axes, keep)), alone=ops.abs),
    "ReduceLogSumExp": reduced(_log_sum_exp), "ArgMax": _arg(1.0), "ArgMin": _arg(-1.0),
    "Softmax": _softmax(ops.softmax), "LogSoftmax": _softmax(ops.log_softmax, logarithm=True),
}  # fmt: skip
