"""Quantized ONNX ops: integers as exact f32 numbers, rounded half to even as ONNX defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.load.convolutions import convolved
from gdlab.load.onnx.numbers import bounds_of
from gdlab.load.onnx.onnx_layers import image_rank, kernel_size, window_of
from gdlab.load.onnx.onnx_layout import repeated_blocks, reshaped
from gdlab.load.onnx.tensor import DTYPES, OnnxCall, Table, Tensor, axis_of, fitted, known
from gdlab.load.shared import Malformed, Unsupported, product

EXACT = 1 << 24  # whole numbers up to it are f32's
Multiply = Callable[[Value, Value], Value]
CODES = ("int8", "uint8", "int16", "uint16")


# scales ---------------------------------------------------------------------------------------------------------------
def _lined(call: OnnxCall, i: int, shape: Shape, axis: int) -> Tensor | None:
    """Return a scale or zero point as it broadcasts to `shape`: one number, one per entry of an axis, or one per block.
    """
    t = call.optional(i)
    if t is not None and t.array is not None:  # a constant, so that codes by it fold
        t = replace(t, parameter="")
    if t is None or t.size == 1:
        return None if t is None else reshaped(call.home, t, (1,) * max(1, len(shape)))
    axis = axis_of(axis, len(shape))
    if len(t.shape) == 1 and t.size == shape[axis]:
        return reshaped(call.home, t, tuple(t.size if a == axis else 1 for a in range(len(shape))))
    block = call.integer("block_size")
    if block < 1 or t.shape != tuple(-(-n // block) if a == axis else n for a, n in enumerate(shape)):
        raise Malformed(f"input {i}", list(t.shape), f"one number, or those of axis {axis} of {list(shape)}")
    return repeated_blocks(call.home, t, axis, block, shape[axis])


def _rounded(value: Value, dtype: str) -> Value:
    """Return the nearest integers of a type, halves to the even one; beyond its bounds the bound."""
    limits = np.iinfo(dtype)
    return ops.clamp(ops.round(value), float(limits.min), float(limits.max))


def _codes(value: Value, shape: Shape, dtype: str) -> Tensor:
    limits = np.iinfo(dtype)
    return replace(fitted(value, shape, "int"), dtype=dtype, bounds=(int(limits.min), int(limits.max)))


def _quantize(call: OnnxCall) -> Tensor:
    """Return saturate(round(x / scale) + zero point)."""
    x, zero = call.tensor(0), call.optional(2)
    said = DTYPES.get(call.integer("output_dtype"), "") if call.integer("output_dtype") else ""
    dtype = zero.dtype if zero is not None else said or "uint8"
    if dtype not in CODES or (call.integer("precision") not in (0, 1)):
        raise Unsupported(f"{dtype or call.integer('output_dtype')}, where {', '.join(CODES)} are taken")
    axis = call.integer("axis", 1)
    scale, shift = _lined(call, 1, x.shape, axis), _lined(call, 2, x.shape, axis)
    assert scale is not None  # operand 1 must be there
    if x.known or x.array is not None and scale.array is not None:
        return _folded_codes(call, x, scale, shift, dtype)
    value = ops.round(call.number(0).reshape(x.held) / call.home.number(scale))
    value = value if shift is None else value + call.home.number(shift)
    return _codes(_rounded(value, dtype), x.shape, dtype)


def _folded_codes(call: OnnxCall, x: Tensor, scale: Tensor, shift: Tensor | None, dtype: str) -> Tensor:
    if scale.array is None or (shift is not None and shift.array is None):
        raise Unsupported("a constant by a scale that is computed in the graph")
    call.home.check_size(x.shape)
    limits = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        codes = np.rint(np.asarray(x.array, np.float32).reshape(x.held) / scale.array)
        codes = codes if shift is None else codes + np.asarray(shift.array).astype(np.float32)
    made = np.clip(codes, limits.min, limits.max).astype(dtype).reshape(x.shape)
    return replace(known(made, "int"), dtype=dtype)


def _dequantize(call: OnnxCall) -> Tensor:
    """Return (x − zero point) · scale; constants become a parameter, so that weights are plain floats."""
    x, axis = call.tensor(0), call.integer("axis", 1)
    if x.dtype == "int32" and not x.known and max(map(abs, bounds_of(x))) > EXACT:
        raise Unsupported("int32 codes that are computed in the graph")
    scale, shift = _lined(call, 1, x.shape, axis), _lined(call, 2, x.shape, axis)
    assert scale is not None  # operand 1 must be there
    if x.known and scale.array is not None and (shift is None or shift.known):
        call.home.check_size(x.shape)
        whole = np.asarray(x.array).astype(np.int64).reshape(x.held)
        whole = whole if shift is None else whole - np.asarray(shift.array).astype(np.int64)
        array = (whole.astype(np.float32) * np.asarray(scale.array, np.float32)).astype(np.float32).reshape(x.shape)
        name = f"{call.node.inputs[0]}.dequantized"
        free = name not in call.home.taken and name not in call.home.weights
        return Tensor(x.shape, "float", array=array, parameter=name if free and x.shape else "", dtype=scale.dtype)
    value = call.number(0).reshape(x.held)
    value = value if shift is None else value - call.home.number(shift)
    return replace(fitted(value * call.home.number(scale), x.shape), dtype=scale.dtype)


def _dynamic(call: OnnxCall) -> Sequence[Tensor]:
    """Return codes of 8 bits, their scale and zero point, from the range of x."""
    x = call.tensor(0)
    value = call.number(0)
    axes = tuple(range(value.type.rank))
    top = ops.maximum(ops.max(value, axes), 0.0)
    low = ops.minimum(ops.min(value, axes), 0.0)
    scale = (top - low) / 255.0
    safe = ops.where(ops.equal(scale, 0.0), 1.0, scale)
    zero = _rounded(-low / safe, "uint8")
    lined = (1,) * value.type.rank
    codes = _rounded(ops.round(value / safe.reshape(lined)) + zero.reshape(lined), "uint8")
    return _codes(codes, x.shape, "uint8"), replace(fitted(scale, ()), dtype="float32"), _codes(zero, (), "uint8")


# products -------------------------------------------------------------------------------------------------------------
def _less_zero(call: OnnxCall, i: int, zero: int, rows: bool) -> tuple[Value, int]:
    """Return codes less their zero point, and their largest magnitude. `rows`: one zero point per row, else per column.
    """
    t, z = call.tensor(i), call.optional(zero)
    low, high = bounds_of(t)
    value = call.number(i)
    if z is None:
        return value, max(-low, high)
    shift = z
    if z.size > 1:
        if len(z.shape) != 1:
            raise Unsupported("zero points with several axes")
        shift = reshaped(call.home, z, (z.size, 1)) if rows else z
    else:
        shift = reshaped(call.home, z, (1,))
    least, most = bounds_of(z)
    return value - call.home.number(shift), max(high - least, most - low)


def _sum_of_products(a: Value, b: Value, large: int, count: int, multiply: Multiply) -> Value:
    """Return the product as the f32 nearest to its whole number: where a sum may exceed the exact integers of f32, a is
    split into multiples of 16 and the rest, and only their sum is rounded."""
    if large * count <= EXACT:
        return multiply(a, b)
    if large * count > EXACT * 15:
        raise Unsupported(f"sums of {count:,} products that may reach {large * count:,}")
    high = ops.trunc(a * (1 / 16))
    return multiply(high, b) * 16.0 + multiply(a - high * 16.0, b)


def _matmul_integer(call: OnnxCall) -> Tensor:
    a, x = _less_zero(call, 0, 2, rows=True)
    b, y = _less_zero(call, 1, 3, rows=False)
    return _whole(_multiplied(call, a, b, x * y), x * y * call.tensor(0).shape[-1])


def _multiplied(call: OnnxCall, a: Value, b: Value, large: int) -> Value:
    if min(len(call.tensor(i).shape) for i in _matrices(call)) < 2:
        raise Unsupported("operands of rank 1")
    return _sum_of_products(a, b, large, a.shape[-1], product)


def _matrices(call: OnnxCall) -> tuple[int, int]:
    return (0, 3) if call.node.op == "QLinearMatMul" else (0, 1)


def _whole(value: Value, most: int) -> Tensor:
    return replace(fitted(value, value.shape, "int"), dtype="int32", bounds=(-most, most))


def _conv_integer(call: OnnxCall) -> Tensor:
    out, most = _convolved(call, (0, 2), (1, 3))
    return _whole(out, most)


def _convolved(call: OnnxCall, x: tuple[int, int], w: tuple[int, int]) -> tuple[Value, int]:
    """Return a convolution of codes less their zero points; the border is the zero point, so 0."""
    image_rank(call)
    image, first = _less_zero(call, *x, rows=False)
    weights = call.tensor(w[0])
    kernel, second = _less_zero_of_kernel(call, *w)
    count = math.prod(weights.shape[1:])
    window, group = window_of(call, kernel_size(call, w[0])), call.integer("group", 1)

    def multiply(a: Value, b: Value) -> Value:
        return convolved(a, b, None, window, group)

    return _sum_of_products(image, kernel, first * second, count, multiply), first * second * count


def _less_zero_of_kernel(call: OnnxCall, i: int, zero: int) -> tuple[Value, int]:
    z, rank = call.optional(zero), len(call.tensor(i).shape)
    if z is None or z.size == 1:
        return _less_zero(call, i, zero, rows=False)
    (low, high), (least, most) = bounds_of(call.tensor(i)), bounds_of(z)
    shift = reshaped(call.home, z, (z.size, *(1,) * (rank - 1)))
    return call.number(i) - call.home.number(shift), max(high - least, most - low)


def _requantized(call: OnnxCall, total: Value, scale: Value, zero: int) -> Tensor:
    """Return saturate(round(total · scale) + zero point), as 8 bits."""
    z = call.tensor(zero)
    if z.size != 1 or z.dtype not in CODES:
        raise Unsupported("zero points of the result per entry")
    lined = (1,) * total.type.rank
    value = ops.round(total * scale) + call.home.number(reshaped(call.home, z, lined))
    return _codes(_rounded(value, z.dtype), total.shape, z.dtype)


def _scale(call: OnnxCall, first: int, second: int, result: int, shape: Shape) -> Value:
    """Return the scales of both operands over that of the result; the second may be one number per entry."""
    a, b, y = (call.tensor(i) for i in (first, second, result))
    if a.size != 1 or y.size != 1:
        raise Unsupported("scales per row")
    own = reshaped(call.home, b, shape if b.size > 1 else (1,) * len(shape))
    lined = (1,) * len(shape)
    parts = [call.home.number(t) for t in (reshaped(call.home, a, lined), own, reshaped(call.home, y, lined))]
    return parts[0] * parts[1] / parts[2]


def _qlinear_matmul(call: OnnxCall) -> Tensor:
    a, x = _less_zero(call, 0, 2, rows=True)
    b, y = _less_zero(call, 3, 5, rows=False)
    total = _multiplied(call, a, b, x * y)
    columns = (*(1,) * (total.type.rank - 1), call.tensor(4).size)
    return _requantized(call, total, _scale(call, 1, 4, 6, columns), 7)


def _qlinear_conv(call: OnnxCall) -> Tensor:
    total, most = _convolved(call, (0, 2), (3, 5))
    lined = (1, call.tensor(4).size, *(1,) * (total.type.rank - 2))
    if (bias := call.optional(8)) is not None:
        if most + max(map(abs, bounds_of(bias))) > EXACT:
            raise Unsupported(f"sums with a bias that may reach {most + max(map(abs, bounds_of(bias))):,}")
        total = total + call.number(8).reshape((1, bias.size, *lined[2:]))
    return _requantized(call, total, _scale(call, 1, 4, 6, lined), 7)


QUANTIZED: Table = {
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer, "ConvInteger": _conv_integer, "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}  # fmt: skip
