"""ATen operators on elements and along axes: arithmetic, comparisons, functions, reductions, softmax, losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.graph import Value
from gdlab.load.onnx.tensor import Tensor, fitted, kind_of
from gdlab.load.pt2.call import Aten, Ints, Number, Operand, Table, Translate, axis
from gdlab.load.pt2.program import Dtype
from gdlab.load.shared import Malformed, Unsupported

EXACT_THRESHOLD = 15  # beyond it softplus(x) = x in float32


# two operands ---------------------------------------------------------------------------------------------------------
def _arithmetic(op: str) -> Translate:
    def translate(c: Aten, self: Operand, other: Operand) -> Tensor:
        dtype = c.meta.dtype
        if kind_of(dtype) == "bool":
            if op != "Mul":
                raise Unsupported("arithmetic of masks")
            return c.onnx("And", c.cast(self, "bool"), c.cast(other, "bool"))
        return c.onnx(op, c.cast(self, dtype), c.cast(other, dtype))

    return translate


def _scaled(op: str) -> Translate:
    """Return the translation of an op with a factor for the second operand."""
    plain = _arithmetic(op)

    def translate(c: Aten, self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
        return plain(c, self, _times(c, other, alpha))  # type: ignore[return-value]

    return translate


def _times(c: Aten, x: Operand, factor: Number) -> Operand:
    if factor == 1:
        return x
    return c.onnx("Mul", c.cast(x, c.meta.dtype), c.number(factor, c.meta.dtype))


def _rsub(c: Aten, self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return c.onnx("Sub", c.cast(other, c.meta.dtype), c.cast(_times(c, self, alpha), c.meta.dtype))


def _div(c: Aten, self: Operand, other: Operand, rounding_mode: str | None = None) -> Tensor:
    dtype = c.meta.dtype
    a, b = c.cast(self, dtype), c.cast(other, dtype)
    if rounding_mode is None:
        return c.onnx("Div", a, b)
    if rounding_mode not in ("floor", "trunc"):
        raise Malformed("rounding_mode", repr(rounding_mode), "floor or trunc")
    if kind_of(dtype) == "float":
        quotient = c.onnx("Div", a, b)
        if rounding_mode == "trunc":
            return _trunc(c, quotient)
        # as PyTorch has it: 1.5 // 0.3 is 4 in float32, where the quotient rounds to 5
        whole = c.onnx("Round", c.onnx("Div", c.onnx("Sub", a, c.onnx("Mod", a, b)), b))
        if isinstance(other, (int, float)) and other != 0:
            return whole
        return c.onnx("Where", c.onnx("Equal", b, c.number(0, dtype)), quotient, whole)
    if rounding_mode == "trunc":
        return c.onnx("Div", a, b)
    return c.onnx("Div", c.onnx("Sub", a, c.onnx("Mod", a, b)), b)


def _floor_divide(c: Aten, self: Tensor, other: Operand) -> Tensor:
    return _div(c, self, other, "floor")


def _remainder(fmod: int) -> Translate:
    def translate(c: Aten, self: Tensor, other: Operand) -> Tensor:
        return c.onnx("Mod", c.cast(self, c.meta.dtype), c.cast(other, c.meta.dtype), fmod=fmod)

    return translate


def _pow(c: Aten, self: Operand, exponent: Operand) -> Tensor:
    return c.onnx("Pow", c.cast(self, c.meta.dtype), c.cast(exponent, c.meta.dtype))


def _compared(op: str, negated: bool = False) -> Translate:
    def translate(c: Aten, self: Operand, other: Operand) -> Tensor:
        made = c.onnx(op, *c.joint(self, other))
        return c.onnx("Not", made) if negated else made

    return translate


def _logical(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, other: Tensor) -> Tensor:
        return c.onnx(op, c.cast(self, "bool"), c.cast(other, "bool"))

    return translate


def _bitwise(op: str, mask: str) -> Translate:
    def translate(c: Aten, self: Tensor, other: Operand) -> Tensor:
        dtype = c.meta.dtype
        return c.onnx(mask if dtype == "bool" else op, c.cast(self, dtype), c.cast(other, dtype))

    return translate


def _not(c: Aten, self: Tensor) -> Tensor:
    return c.onnx("Not", c.cast(self, "bool"))


def _bitwise_not(c: Aten, self: Tensor) -> Tensor:
    return c.onnx("Not" if self.kind == "bool" else "BitwiseNot", self)


def _extreme(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, other: Tensor) -> Tensor:
        return c.onnx(op, *c.joint(self, other))

    return translate


def where(c: Aten, condition: Tensor, self: Operand, other: Operand) -> Tensor:
    """Return the elements of `self` where the mask is set, else those of `other`."""
    dtype = c.meta.dtype
    return c.onnx("Where", c.cast(condition, "bool"), c.cast(self, dtype), c.cast(other, dtype))


def _masked_fill(c: Aten, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return where(c, mask, value, self)


def _clamp(c: Aten, self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    dtype = c.meta.dtype
    x = c.cast(self, dtype)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)) and min <= max:
        return c.onnx("Clip", x, c.number(min, dtype), c.number(max, dtype))
    x = x if min is None else c.onnx("Max", x, c.cast(min, dtype))
    return x if max is None else c.onnx("Min", x, c.cast(max, dtype))


def _clamp_min(c: Aten, self: Tensor, min: Operand) -> Tensor:
    return _clamp(c, self, min)


def _clamp_max(c: Aten, self: Tensor, max: Operand) -> Tensor:
    return _clamp(c, self, None, max)


def _hardtanh(c: Aten, self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return _clamp(c, self, min_val, max_val)


def _relu6(c: Aten, self: Tensor) -> Tensor:
    return _clamp(c, self, 0, 6)


def _addcmul(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number = 1) -> Tensor:
        return c.onnx("Add", self, c.cast(_times(c, c.onnx(op, tensor1, tensor2), value), c.meta.dtype))

    return translate


def _lerp(c: Aten, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return c.onnx("Add", self, c.onnx("Mul", c.cast(weight, c.meta.dtype), c.onnx("Sub", end, self)))


# one operand ----------------------------------------------------------------------------------------------------------
def _unary(op: str, **attrs: Any) -> Translate:
    def translate(c: Aten, self: Tensor) -> Tensor:
        return c.onnx(op, c.cast(self, c.meta.dtype) if c.meta.dtype != "bool" else self, **attrs)

    return translate


def _function(make: Callable[[Value], Value]) -> Translate:
    def translate(c: Aten, self: Tensor) -> Tensor:
        return fitted(make(c.value(c.cast(self, c.meta.dtype))), self.shape)

    return translate


def _rounded(op: str) -> Translate:
    """Return the translation of a rounding, which leaves whole numbers as they are."""

    def translate(c: Aten, self: Tensor) -> Tensor:
        return c.onnx(op, self) if self.kind == "float" else self

    return translate


def _trunc(c: Aten, self: Tensor) -> Tensor:
    return fitted(ops.trunc(c.value(self)), self.shape) if self.kind == "float" else self


def _gelu(c: Aten, self: Tensor, approximate: str = "none") -> Tensor:
    return c.onnx("Gelu", self, approximate=approximate)


def _elu(c: Aten, self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    if scale != 1 or input_scale != 1:
        raise Unsupported("scale and input_scale other than 1")
    return c.onnx("Elu", self, alpha=float(alpha))


def _celu(c: Aten, self: Tensor, alpha: Number = 1) -> Tensor:
    return c.onnx("Celu", self, alpha=float(alpha))


def _leaky(c: Aten, self: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return c.onnx("LeakyRelu", self, alpha=float(negative_slope))


def _threshold(c: Aten, self: Tensor, threshold: Number, value: Number) -> Tensor:
    return where(c, c.onnx("Greater", self, c.number(threshold, self.dtype)), self, value)


def _softplus(c: Aten, self: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    if threshold < EXACT_THRESHOLD or beta <= 0:
        raise Unsupported(f"threshold={threshold} and beta={beta}, where one ≥ {EXACT_THRESHOLD} and one > 0 are taken")
    return fitted(ops.softplus(c.value(self), float(beta)), self.shape)


def _prelu(c: Aten, self: Tensor, weight: Tensor) -> Tensor:
    if weight.size > 1 and len(self.shape) > 1:
        weight = c.reshaped(weight, (weight.size, *(1,) * (len(self.shape) - 2)))
    return c.onnx("PRelu", self, weight)


def _glu(c: Aten, self: Tensor, dim: int = -1) -> Tensor:
    at = axis(dim, self)
    if not self.shape or self.shape[at] % 2:
        raise Malformed("self", list(self.shape), "an even extent")
    half = self.shape[at] // 2
    a, b = c.onnx_all("Split", 2, self, c.ints((half, half)), axis=at)
    return c.onnx("Mul", a, c.onnx("Sigmoid", b))


# along axes -----------------------------------------------------------------------------------------------------------
def _reduced(op: str) -> Translate:
    def translate(
        c: Aten, self: Tensor, dim: Ints | None = None, keepdim: bool = False, dtype: Dtype | None = None
    ) -> Tensor:
        x = c.cast(self, c.meta.dtype)
        return c.reduced(op, x, dim, keepdim)

    return translate


def _masks(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, dim: Ints | None = None, keepdim: bool = False) -> Tensor:
        return c.cast(c.reduced(op, c.cast(c.cast(self, "bool"), "int64"), dim, keepdim), "bool")

    return translate


def _place(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None or not self.shape:
            self = c.reshaped(self, (self.size,))
            return c.reshaped(c.onnx(op, self, axis=0, keepdims=0), c.meta.shape)
        return c.onnx(op, self, axis=axis(dim, self), keepdims=int(keepdim))

    return translate


def _extreme_along(op: str, place: str) -> Translate:
    """Return the translation of an extreme along an axis: (values, places)."""

    def translate(c: Aten, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return c.reduced(op, self, (dim,), keepdim), c.onnx(place, self, axis=axis(dim, self), keepdims=int(keepdim))

    return translate


def _variance(root: bool, mean: bool) -> Translate:
    def translate(
        c: Aten, self: Tensor, dim: Ints | None = None, correction: Number | None = 1, keepdim: bool = False
    ) -> tuple[Tensor, ...]:
        axes = tuple(axis(d, self) for d in dim) if dim else tuple(range(len(self.shape)))
        count = math.prod(self.shape[a] for a in axes)
        left = count - (1 if correction is None else correction)
        if left <= 0:
            raise Unsupported(f"a variance of {count} elements with correction={correction}")
        centre = c.reduced("ReduceMean", self, axes, True)
        spread = c.reduced("ReduceSumSquare", c.onnx("Sub", self, centre), axes, keepdim)
        found = c.onnx("Mul", spread, c.number(1 / left, self.dtype))
        found = c.onnx("Sqrt", found) if root else found
        return (found, c.reduced("ReduceMean", self, axes, keepdim)) if mean else (found,)

    return translate


def _spread(root: bool) -> Translate:
    """Return the translation of the older form of variance, with the flag `unbiased`."""
    plain = _variance(root, False)

    def translate(
        c: Aten, self: Tensor, dim: Ints | None = None, unbiased: bool = True, keepdim: bool = False
    ) -> tuple[Tensor, ...]:
        return plain(c, self, dim, int(unbiased), keepdim)  # type: ignore[return-value]

    return translate


def _vector_norm(
    c: Aten, self: Tensor, ord: Number = 2, dim: Ints | None = None, keepdim: bool = False, dtype: Dtype | None = None
) -> Tensor:
    x = c.cast(self, c.meta.dtype)
    if ord == math.inf:
        return c.reduced("ReduceMax", c.onnx("Abs", x), dim, keepdim)
    if ord not in (1, 2):
        raise Unsupported(f"ord={ord}, where 1, 2 and infinity are taken")
    return c.reduced("ReduceL1" if ord == 1 else "ReduceL2", x if x.shape else c.reshaped(x, (1,)), dim, keepdim)


def _norm(c: Aten, self: Tensor, p: Number | None = 2, dim: Ints | None = None, keepdim: bool = False) -> Tensor:
    return _vector_norm(c, self, 2 if p is None else p, dim, keepdim)


def _softmax(op: str) -> Translate:
    def translate(c: Aten, self: Tensor, dim: int, dtype: Dtype | None = None, half_to_float: bool = False) -> Tensor:
        x = c.cast(self, c.meta.dtype)
        return c.onnx(op, x, axis=axis(dim, x)) if x.shape else c.reshaped(
            c.onnx(op, c.reshaped(x, (1,)), axis=0), ())  # fmt: skip

    return translate


def _cumsum(c: Aten, self: Tensor, dim: int, dtype: Dtype | None = None) -> Tensor:
    x = c.cast(self, c.meta.dtype)
    return c.onnx("CumSum", x, c.ints((axis(dim, x),))) if x.shape else x


def _topk(
    c: Aten, self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...]:
    return c.onnx_all("TopK", 2, self, c.ints((k,)), axis=axis(dim, self), largest=int(largest))


# losses ---------------------------------------------------------------------------------------------------------------
def _loss(c: Aten, each: Tensor, reduction: int) -> Tensor:
    if reduction not in (0, 1, 2):
        raise Malformed("reduction", reduction, "0, 1 or 2")
    return each if reduction == 0 else c.reduced(("", "ReduceMean", "ReduceSum")[reduction], each, None, False)


def _mse_loss(c: Aten, self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    difference = c.onnx("Sub", self, target)
    return _loss(c, c.onnx("Mul", difference, difference), reduction)


def _l1_loss(c: Aten, self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _loss(c, c.onnx("Abs", c.onnx("Sub", self, target)), reduction)


def _bce_with_logits(
    c: Aten, self: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:  # fmt: skip
    """Return max(x, 0) − x·t + log(1 + exp(−|x|)), as softplus(x) − x·t."""
    if pos_weight is not None:
        raise Unsupported("pos_weight")
    each = c.onnx("Sub", fitted(ops.softplus(c.value(self)), self.shape), c.onnx("Mul", self, target))
    return _loss(c, each if weight is None else c.onnx("Mul", each, weight), reduction)


def _nll(
    c: Aten, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100
) -> Tensor:
    """Return −Σ of the logarithms that the targets choose; `self`: [n, classes] or [n, classes, …]."""
    if weight is not None:
        raise Unsupported("weights of classes")
    if 0 <= ignore_index:
        raise Unsupported(f"ignore_index={ignore_index}: every target counts here")
    if target.known and target.size and int(np.min(np.asarray(target.array))) < 0:
        raise Unsupported("targets below 0")
    if len(self.shape) < 2 or target.shape != (self.shape[0], *self.shape[2:]):
        raise Unsupported(f"targets {list(target.shape)} of {list(self.shape)}")
    lined = c.reshaped(target, (target.shape[0], 1, *target.shape[1:]))
    chosen = c.onnx("GatherElements", self, lined, axis=1)
    return _loss(c, c.onnx("Neg", c.reshaped(chosen, target.shape)), reduction)


def _cross_entropy(
    c: Aten, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: Number = 0.0,
) -> Tensor:  # fmt: skip
    logs = c.onnx("LogSoftmax", self, axis=1 if len(self.shape) > 1 else 0)
    if label_smoothing:
        raise Unsupported(f"label_smoothing={label_smoothing}")
    if target.kind != "float":
        return _nll(c, logs, target, weight, reduction, ignore_index)
    if weight is not None or target.shape != self.shape:
        raise Unsupported("weights of classes, or targets of another shape")
    chosen = c.onnx("ReduceSum", c.onnx("Mul", logs, target), c.ints((1,)), keepdims=0)
    return _loss(c, c.onnx("Neg", chosen), reduction)


def _bounded(translate: Translate, low: int, high: int) -> Translate:
    """Return the translation with integers between these as its result."""

    def bounded(c: Aten, self: Tensor) -> Tensor:
        made = translate(c, self)
        assert isinstance(made, Tensor)
        return replace(made, bounds=(low, high)) if made.kind == "int" else made

    return bounded


_UNARY = {
    "abs": "Abs", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "erf": "Erf",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "relu": "Relu", "silu": "Silu", "hardswish": "HardSwish", "mish": "Mish", "selu": "Selu",
}  # fmt: skip
_PAIRS: dict[str, tuple[str, bool]] = {
    "eq": ("Equal", False), "ne": ("Equal", True), "lt": ("Less", False), "le": ("LessOrEqual", False),
    "gt": ("Greater", False), "ge": ("GreaterOrEqual", False),
}  # fmt: skip

MATH: Table = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{f"{name}.{form}": _compared(*made) for name, made in _PAIRS.items() for form in ("Tensor", "Scalar")},
    **{f"{name}.{form}": _scaled(op) for name, op in (("add", "Add"), ("sub", "Sub")) for form in ("Tensor", "Scalar")},
    "mul.Tensor": _arithmetic("Mul"), "mul.Scalar": _arithmetic("Mul"), "rsub.Scalar": _rsub, "rsub.Tensor": _rsub,
    "div.Tensor": _div, "div.Scalar": _div, "div.Tensor_mode": _div, "div.Scalar_mode": _div,
    "floor_divide": _floor_divide, "floor_divide.Scalar": _floor_divide,
    "remainder.Tensor": _remainder(0), "remainder.Scalar": _remainder(0), "fmod.Tensor": _remainder(1),
    "fmod.Scalar": _remainder(1), "pow.Tensor_Scalar": _pow, "pow.Tensor_Tensor": _pow, "pow.Scalar": _pow,
    "logical_and": _logical("And"), "logical_or": _logical("Or"), "logical_xor": _logical("Xor"), "logical_not": _not,
    "bitwise_and.Tensor": _bitwise("BitwiseAnd", "And"), "bitwise_or.Tensor": _bitwise("BitwiseOr", "Or"),
    "bitwise_xor.Tensor": _bitwise("BitwiseXor", "Xor"), "bitwise_not": _bitwise_not,
    "__and__.Tensor": _bitwise("BitwiseAnd", "And"), "__or__.Tensor": _bitwise("BitwiseOr", "Or"),
    "maximum": _extreme("Max"), "minimum": _extreme("Min"), "max.other": _extreme("Max"), "min.other": _extreme("Min"),
    "where.self": where, "where.ScalarOther": where, "where.ScalarSelf": where, "where.Scalar": where,
    "masked_fill.Scalar": _masked_fill, "masked_fill.Tensor": _masked_fill,
    "clamp": _clamp, "clamp.Tensor": _clamp, "clip": _clamp, "clamp_min": _clamp_min, "clamp_max": _clamp_max,
    "clamp_min.Tensor": _clamp_min, "clamp_max.Tensor": _clamp_max,
    "hardtanh": _hardtanh, "relu6": _relu6, "addcmul": _addcmul("Mul"), "addcdiv": _addcmul("Div"),
    "lerp.Scalar": _lerp, "lerp.Tensor": _lerp,
    "rsqrt": _function(ops.rsqrt), "square": _function(ops.square),
    "log2": _function(lambda x: ops.log(x) * (1 / math.log(2))),
    "log10": _function(lambda x: ops.log(x) * (1 / math.log(10))), "log1p": _function(ops.log1p),
    "exp2": _function(lambda x: ops.exp(x * math.log(2))), "expm1": _function(ops.expm1),
    "log_sigmoid": _function(lambda x: -ops.softplus(-x)), "frac": _function(lambda x: x - ops.trunc(x)),
    "floor": _rounded("Floor"), "ceil": _rounded("Ceil"), "round": _rounded("Round"), "trunc": _trunc,
    "sign": _bounded(_unary("Sign"), -1, 1), "isnan": _unary("IsNaN"), "isinf": _unary("IsInf"),
    "hardsigmoid": _unary("HardSigmoid", alpha=1 / 6, beta=0.5), "gelu": _gelu, "elu": _elu, "celu": _celu,
    "leaky_relu": _leaky, "threshold": _threshold, "softplus": _softplus, "prelu": _prelu, "_prelu_kernel": _prelu,
    "glu": _glu,
    "sum": _reduced("ReduceSum"), "sum.dim_IntList": _reduced("ReduceSum"), "mean": _reduced("ReduceMean"),
    "mean.dim": _reduced("ReduceMean"), "amax": _reduced("ReduceMax"), "amin": _reduced("ReduceMin"),
    "max": _reduced("ReduceMax"), "min": _reduced("ReduceMin"), "prod": _reduced("ReduceProd"),
    "prod.dim_int": _reduced("ReduceProd"), "logsumexp": _reduced("ReduceLogSumExp"),
    "any": _masks("ReduceMax"), "any.dim": _masks("ReduceMax"), "any.dims": _masks("ReduceMax"),
    "all": _masks("ReduceMin"), "all.dim": _masks("ReduceMin"), "all.dims": _masks("ReduceMin"),
    "argmax": _place("ArgMax"), "argmin": _place("ArgMin"), "max.dim": _extreme_along("ReduceMax", "ArgMax"),
    "min.dim": _extreme_along("ReduceMin", "ArgMin"),
    "var.correction": _variance(False, False), "std.correction": _variance(True, False),
    "var_mean.correction": _variance(False, True), "var": _spread(False), "std": _spread(True),
    "var.dim": _spread(False), "std.dim": _spread(True),
    "linalg_vector_norm": _vector_norm, "norm.ScalarOpt_dim": _norm, "norm.Scalar": _norm,
    "softmax.int": _softmax("Softmax"), "_softmax": _softmax("Softmax"), "log_softmax.int": _softmax("LogSoftmax"),
    "_log_softmax": _softmax("LogSoftmax"), "cumsum": _cumsum, "topk": _topk,
    "mse_loss": _mse_loss, "l1_loss": _l1_loss, "binary_cross_entropy_with_logits": _bce_with_logits,
    "nll_loss_nd": _nll, "nll_loss": _nll, "cross_entropy_loss": _cross_entropy,
}  # fmt: skip
