"""ONNX ops of one operand, remainders and norms that are a few ops of the graph, and bits of known integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape
from gdlab.graph import Value
from gdlab.load.convolutions import averaged
from gdlab.load.onnx.onnx_layers import pool_window
from gdlab.load.onnx.onnx_layout import permuted, reshaped
from gdlab.load.onnx.onnx_math import binary, folded, reduced, shaped, unary
from gdlab.load.onnx.tensor import DTYPES, OnnxCall, Table, Tensor, Translate, axis_of, fitted, known
from gdlab.load.shared import Malformed, Unsupported, common

MOST_TAPS = 64  # channels that LRN adds up one by one


# remainders -----------------------------------------------------------------------------------------------------------
def _mod(call: OnnxCall) -> Tensor:
    a, b = call.tensor(0), call.tensor(1)
    truncates = bool(call.integer("fmod"))
    if a.kind == "float" or (a.known and b.known):
        if b.kind == "int" and not np.all(np.asarray(b.array)):
            raise Malformed("divisor", 0, "an integer other than 0")
        return _remainder[truncates](call)
    x, y = call.number(0), call.number(1)
    return fitted((ops.fmod if truncates else ops.mod)(x, y), common(a.shape, b.shape), "int")


_remainder = {False: binary(ops.mod, np.mod), True: binary(ops.fmod, np.fmod)}


# bits -----------------------------------------------------------------------------------------------------------------
def _bits(fold: Callable[..., Any]) -> Translate:
    """Return the translation of an op on the bits of known integers; ops of the graph have no bits."""

    def translate(call: OnnxCall) -> Tensor:
        tensors = tuple(call.tensor(i) for i in range(len(call.inputs)))
        if not all(t.known for t in tensors):
            raise Unsupported("bits of integers that are computed in the graph")
        return folded(call, fold, tensors, "int")

    return translate


def _shifted(call: OnnxCall) -> Tensor:
    direction = call.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Malformed("direction", repr(direction), "'LEFT' or 'RIGHT'")
    return _bits(np.left_shift if direction == "LEFT" else np.right_shift)(call)  # type: ignore[return-value]


# one operand ----------------------------------------------------------------------------------------------------------
def _masked(make: Callable[[Value], Value], fold: Callable[..., Any]) -> Translate:
    def translate(call: OnnxCall) -> Tensor:
        x = call.tensor(0)
        if x.known:
            return folded(call, fold, (x,), "bool")
        return fitted(make(call.number(0)), x.shape, "bool")

    return translate


def _is_inf(call: OnnxCall) -> Tensor:
    x, value = call.tensor(0), call.number(0)
    found = ops.isinf(value)
    for name, side in (("detect_positive", ops.less), ("detect_negative", ops.greater)):
        if not call.integer(name, 1):
            found = found * side(value, 0.0)
    return fitted(found, x.shape, "bool")


def _selu(call: OnnxCall, x: Value) -> Value:
    alpha = call.real("alpha", 1.6732631921768188)
    return ops.where(ops.greater(x, 0.0), x, ops.elu(x) * alpha) * call.real("gamma", 1.0507010221481323)


def _celu(call: OnnxCall, x: Value) -> Value:
    alpha = call.real("alpha", 1.0)
    return ops.maximum(x, 0.0) + ops.minimum(ops.elu(x / alpha) * alpha, 0.0)


def _shrink(call: OnnxCall, x: Value) -> Value:
    bias, most = call.real("bias"), call.real("lambd", 0.5)
    beyond = ops.where(ops.less(x, -most), x + bias, 0.0)
    return ops.where(ops.greater(x, most), x - bias, beyond)


def _hardmax(call: OnnxCall) -> Tensor:
    """Return 1 where the first of the largest elements is; before opset 13 over all axes from `axis` on, as one."""
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    if call.opset < 13:
        axis = call.integer("axis", 1)
        axis = axis if axis == rank else axis_of(axis, rank)
        flat = reshaped(call.home, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return reshaped(call.home, _largest(call, flat, 1), x.shape)
    return _largest(call, x, axis_of(call.integer("axis", -1), rank))


def _largest(call: OnnxCall, x: Tensor, axis: int) -> Tensor:
    n = x.shape[axis]
    lined = tuple(n if i == axis else 1 for i in range(len(x.shape)))
    call.home.check_size((n,))
    at = ops.to_f32(ops.argmax(call.home.number(x), axis))
    at = at.reshape(tuple(1 if i == axis else m for i, m in enumerate(x.shape)))
    return fitted(ops.equal(at, ops.constant(np.arange(n, dtype=np.float32).reshape(lined))), x.shape)


# norms ----------------------------------------------------------------------------------------------------------------
def _lp_normalization(call: OnnxCall) -> Tensor:
    x, p = call.number(0), call.integer("p", 2)
    shape = call.tensor(0).shape
    axes = (axis_of(call.integer("axis", -1), len(shape)),)
    if p not in (1, 2):
        raise Malformed("p", p, "1 or 2")
    size = ops.sum(ops.abs(x), axes, True) if p == 1 else ops.sqrt(ops.sum(ops.square(x), axes, True))
    return fitted(x / ops.where(ops.equal(size, 0.0), 1.0, size), shape)


def _local_response(call: OnnxCall) -> Tensor:
    """Return x / (bias + α/size · the squares of the channels around)^β."""
    x, shape, size = call.number(0), call.tensor(0).shape, call.integer("size")
    if len(shape) < 3 or size < 1:
        raise Malformed("size", f"{size} of {list(shape)}", "channels around each, of [n, c, …]")
    before, channels = (size - 1) // 2, shape[1]
    if size > MOST_TAPS:
        raise Unsupported(f"size={size}, where at most {MOST_TAPS} channels are added up")
    lo, hi = ([0] * len(shape), [0] * len(shape))
    lo[1], hi[1] = before, size - 1 - before
    wide = ops.pad(ops.square(x), tuple(lo), tuple(hi), 0.0)
    total = None
    for tap in range(size):
        starts, stops = [0] * len(shape), list(shape)
        starts[1], stops[1] = tap, tap + channels
        part = ops.slice(wide, tuple(starts), tuple(stops))
        total = part if total is None else total + part
    assert total is not None  # size ≥ 1
    base = total * (call.real("alpha", 1e-4) / size) + call.real("bias", 1.0)
    return fitted(x / ops.pow_scalar(base, call.real("beta", 0.75)), shape)


def _p_norm(total: Callable[[Value], Value], x: Value, p: int) -> Value:
    if p == 1:
        return total(ops.abs(x))
    if p == 2:
        return ops.sqrt(total(ops.square(x)))
    return ops.pow_scalar(total(ops.pow_scalar(ops.abs(x), float(p))), 1 / p)


def _lp_pool(call: OnnxCall) -> Tensor:
    window = pool_window(call)
    count = float(math.prod(window.size))
    out = _p_norm(lambda x: averaged(x, window, True) * count, call.number(0), call.integer("p", 2))
    return fitted(out, out.shape)


def _global_lp_pool(call: OnnxCall) -> Tensor:
    axes = tuple(range(2, len(call.tensor(0).shape)))
    out = _p_norm(lambda x: ops.sum(x, axes, True), call.number(0), call.integer("p", 2))
    return fitted(out, out.shape)


# blocks ---------------------------------------------------------------------------------------------------------------
def _blocks(call: OnnxCall) -> tuple[Tensor, int]:
    x, size = call.tensor(0), call.integer("blocksize")
    if len(x.shape) != 4 or size < 1:
        raise Malformed("blocksize", f"{size} of {list(x.shape)}", "an int ≥ 1, of [n, c, h, w]")
    return x, size


def _depth_to_space(call: OnnxCall) -> Tensor:
    x, b = _blocks(call)
    (n, c, h, w), mode = x.shape, call.text("mode", "DCR")
    if c % (b * b) or mode not in ("DCR", "CRD"):
        raise Malformed("mode and blocksize", f"{mode!r}, {b}", f"DCR or CRD, and blocks that divide {c} channels")
    first = mode == "DCR"
    apart = reshaped(call.home, x, (n, b, b, c // (b * b), h, w) if first else (n, c // (b * b), b, b, h, w))
    moved = permuted(call.home, apart, (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3))
    return reshaped(call.home, moved, (n, c // (b * b), h * b, w * b))


def _space_to_depth(call: OnnxCall) -> Tensor:
    x, b = _blocks(call)
    n, c, h, w = x.shape
    if h % b or w % b:
        raise Malformed("blocksize", b, f"a divisor of {h} and {w}")
    if call.text("mode", "DCR") != "DCR":
        raise Unsupported(f"mode={call.text('mode')}, where DCR is taken")
    apart = reshaped(call.home, x, (n, c, h // b, b, w // b, b))
    return reshaped(call.home, permuted(call.home, apart, (0, 3, 5, 1, 2, 4)), (n, c * b * b, h // b, w // b))


def _logarithm(x: Value, axes: Shape, keepdims: bool) -> Value:
    return ops.log(ops.sum(x, axes, keepdims))


def _eye_like(call: OnnxCall) -> Tensor:
    x, to = call.tensor(0), call.integer("dtype", 0)
    if len(x.shape) != 2 or (to and to not in DTYPES):
        raise Malformed("input", list(x.shape), "a matrix, and a dtype of numbers")
    call.home.check_size(x.shape)
    dtype = DTYPES[to] if to else x.dtype
    eye = np.eye(*x.shape, k=call.integer("k"), dtype=np.float32)
    made = known(eye if "float" in dtype else eye.astype(dtype))
    return Tensor(made.shape, made.kind, array=made.array, dtype=dtype)


def _inverse_bits(x: Array) -> Array:
    return np.asarray(np.bitwise_not(x))


FUNCTIONS: Table = {
    "Mod": _mod, "BitShift": _shifted, "BitwiseAnd": _bits(np.bitwise_and), "BitwiseOr": _bits(np.bitwise_or),
    "BitwiseXor": _bits(np.bitwise_xor), "BitwiseNot": _bits(_inverse_bits),
    "Floor": unary(ops.floor, np.floor), "Ceil": unary(ops.ceil, np.ceil), "Round": unary(ops.round, np.rint),
    "IsNaN": _masked(ops.isnan, np.isnan), "IsInf": _is_inf,
    "Tan": unary(ops.tan, np.tan), "Asin": unary(ops.arcsin, np.arcsin), "Acos": unary(ops.arccos, np.arccos),
    "Atan": unary(ops.arctan, np.arctan), "Sinh": unary(ops.sinh, np.sinh), "Cosh": unary(ops.cosh, np.cosh),
    "Asinh": unary(ops.arcsinh, np.arcsinh), "Acosh": unary(ops.arccosh, np.arccosh),
    "Atanh": unary(ops.arctanh, np.arctanh),
    "Selu": shaped(_selu), "Celu": shaped(_celu), "Shrink": shaped(_shrink), "Hardmax": _hardmax,
    "ThresholdedRelu": shaped(lambda c, x: ops.where(ops.greater(x, c.real("alpha", 1.0)), x, 0.0)),
    "Mish": unary(lambda x: x * ops.tanh(ops.softplus(x))),
    "ReduceProd": reduced(ops.prod, np.prod), "ReduceLogSum": reduced(_logarithm, alone=ops.log),
    "LpNormalization": _lp_normalization, "LRN": _local_response, "LpPool": _lp_pool, "GlobalLpPool": _global_lp_pool,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "EyeLike": _eye_like,
}  # fmt: skip
