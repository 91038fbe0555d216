"""Translate the primitives of a jaxpr: one table, most of it in the operators of ATen and ONNX that do the same.

A translation is called with the equation's call and its operands, each of the type that the jaxpr says; what it cannot
meet is `Unsupported`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.load.onnx.tensor import Tensor, fitted, known
from gdlab.load.pt2.aten_layers import LAYERS
from gdlab.load.pt2.aten_layout import LAYOUT
from gdlab.load.pt2.aten_math import MATH
from gdlab.load.pt2.call import Aten, Result
from gdlab.load.shared import Unsupported

ATEN = {**MATH, **LAYOUT, **LAYERS}
Params = Mapping[str, Any]
TO_EVEN = 1  # of jax.lax.RoundingMethod


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation on its way into a graph: how results are made, its parameters, the types of its results."""

    call: Aten
    params: Params

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.call.meta.shape

    @property
    def dtype(self) -> str:
        """The type of numbers of the first result."""
        return self.call.meta.dtype

    def onnx(self, op: str, *inputs: Tensor | None, **attrs: Any) -> Tensor:
        """The result of an operator of ONNX."""
        return self.call.onnx(op, *inputs, **attrs)

    def aten(self, name: str, *operands: Any, **arguments: Any) -> Tensor:
        """The result of an operator of ATen."""
        made = ATEN[name](self.call, *operands, **arguments)
        return made if isinstance(made, Tensor) else made[0]

    def ints(self, numbers: Sequence[int]) -> Tensor:
        """Numbers as a constant."""
        return self.call.ints([int(n) for n in numbers])

    def permuted(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Axis i of the result is axis order[i] of x."""
        return self.aten("permute", x, tuple(map(int, order)))

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The elements of x in row-major order."""
        return self.call.reshaped(x, tuple(map(int, shape)))


Translation = Callable[..., Result]


def same(e: Equation, *operands: Tensor) -> Sequence[Tensor]:
    """Operands as they are."""
    return operands


def _onnx(op: str) -> Translation:
    return lambda e, *operands: e.onnx(op, *operands)


def _aten(name: str, **arguments: Any) -> Translation:
    return lambda e, *operands: e.aten(name, *operands, **arguments)


# elementwise ----------------------------------------------------------------------------------------------------------
def _compared(op: str, negated: bool = False) -> Translation:
    def translate(e: Equation, x: Tensor, y: Tensor) -> Tensor:
        made = e.onnx(op, x, y)
        return e.onnx("Not", made) if negated else made

    return translate


def _less(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    """An index is compared with 0 before it counts from the front: of what is never below, nothing is."""
    never = x.kind == "int" and not x.known and x.bounds is not None and y.known and y.size == 1
    if never and x.bounds is not None and x.bounds[0] >= int(np.asarray(y.array).reshape(-1)[0]):
        return e.call.filled(e.shape, False, "bool")
    return e.onnx("Less", x, y)


def _select(e: Equation, which: Tensor, *cases: Tensor) -> Tensor:
    if which.kind != "bool" or len(cases) != 2:
        raise Unsupported(f"a choice of {len(cases)} by integers")
    if which.known and np.asarray(which.array).size and np.unique(np.asarray(which.array)).size == 1:
        return cases[int(np.asarray(which.array).reshape(-1)[0])]
    return e.onnx("Where", which, cases[1], cases[0])


def _extreme(op: str, least: float) -> Translation:
    """The larger or the smaller one; `least` is never it."""

    def translate(e: Equation, x: Tensor, y: Tensor) -> Tensor:
        for one, other in ((x, y), (y, x)):
            if one.known and one.kind == "float" and other.shape == e.shape and (np.asarray(one.array) == least).all():
                return other
        return e.onnx(op, x, y)

    return translate


def _clamp(e: Equation, low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    return e.onnx("Min", e.onnx("Max", x, low), high)


def _integer_pow(e: Equation, x: Tensor) -> Tensor:
    y = int(e.params["y"])
    return e.aten("square", x) if y == 2 and x.kind == "float" else e.aten("pow.Tensor_Scalar", x, y)


def _power(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    return e.onnx("Pow", x, e.call.cast(y, x.dtype))


def _divided(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    return e.aten("div.Tensor_mode", x, y, rounding_mode="trunc") if x.kind == "int" else e.onnx("Div", x, y)


def _rounded(e: Equation, x: Tensor) -> Tensor:
    if int(e.params["rounding_method"]) != TO_EVEN:
        raise Unsupported("rounding halves away from zero: round to even is taken")
    return e.aten("round", x)


def _finite(e: Equation, x: Tensor) -> Tensor:
    return e.onnx("Not", e.onnx("Or", e.onnx("IsNaN", x), e.onnx("IsInf", x)))


def _erfc(e: Equation, x: Tensor) -> Tensor:
    return e.onnx("Sub", e.call.number(1.0, x.dtype), e.onnx("Erf", x))


def _converted(e: Equation, x: Tensor) -> Tensor:
    return e.call.cast(x, e.dtype)


# shapes ---------------------------------------------------------------------------------------------------------------
def _into_shape(e: Equation, x: Tensor) -> Tensor:
    return e.reshaped(x, e.shape)


def _reshape(e: Equation, x: Tensor) -> Tensor:
    order = e.params["dimensions"]
    return e.reshaped(x if order is None else e.permuted(x, order), e.shape)


def _broadcast(e: Equation, x: Tensor) -> Tensor:
    if x.known and x.size == 1:
        return e.call.filled(e.shape, np.asarray(x.array).reshape(-1)[0].item(), x.dtype)
    shape = [1] * len(e.shape)
    for axis, place in enumerate(e.params["broadcast_dimensions"]):
        shape[place] = x.shape[axis]
    return e.aten("expand", e.reshaped(x, shape), e.shape)


def _iota(e: Equation) -> Tensor:
    e.call.home.check_size(e.shape)
    axis = int(e.params["dimension"])
    counted = np.arange(e.shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(e.shape))])
    number = np.float32 if "float" in e.dtype else np.int64
    return replace(known(np.broadcast_to(counted, e.shape).astype(number)), dtype=e.dtype)


def _sliced(e: Equation, x: Tensor) -> Tensor:
    starts, ends = e.params["start_indices"], e.params["limit_indices"]
    return _cut(e, x, starts, ends, e.params["strides"] or [1] * len(starts))


def _cut(e: Equation, x: Tensor, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Tensor:
    at = [k for k, n in enumerate(x.shape) if (starts[k], ends[k], steps[k]) != (0, n, 1)]
    if not at:
        return x
    parts = [e.ints([numbers[k] for k in at]) for numbers in (starts, ends)]
    return e.call.like(x, e.onnx("Slice", x, *parts, e.ints(at), e.ints([steps[k] for k in at])))


def _dynamic_slice(e: Equation, x: Tensor, *starts: Tensor) -> Tensor:
    if not all(start.known for start in starts):
        raise Unsupported("a slice whose beginning is computed in the graph")
    sizes = e.params["slice_sizes"]
    first = [min(max(int(np.asarray(s.array)), 0), n - size)
             for s, n, size in zip(starts, x.shape, sizes, strict=True)]  # fmt: skip
    return _cut(e, x, first, [a + size for a, size in zip(first, sizes, strict=True)], [1] * len(sizes))


def _padded(e: Equation, x: Tensor, value: Tensor) -> Tensor:
    borders = e.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in borders):
        raise Unsupported("a padding below 0, or between elements")
    return e.onnx("Pad", x, e.ints([b[0] for b in borders] + [b[1] for b in borders]), value)


def _concatenated(e: Equation, *parts: Tensor) -> Tensor:
    return e.call.like(parts[0], e.onnx("Concat", *parts, axis=int(e.params["dimension"])))


def _stacked(e: Equation, *parts: Tensor) -> Tensor:
    axis = int(e.params["axis"])
    shape = (*e.shape[:axis], 1, *e.shape[axis + 1 :])
    made = e.onnx("Concat", *(e.reshaped(x, shape) for x in parts), axis=axis)
    return e.call.like(parts[0], made)


def _unstacked(e: Equation, x: Tensor) -> Sequence[Tensor]:
    axis = int(e.params["axis"])
    return [e.reshaped(part, e.shape) for part in _cuts(e, x, axis, [1] * x.shape[axis])]


def _tiled(e: Equation, x: Tensor) -> Tensor:
    return e.call.like(x, e.onnx("Tile", x, e.ints(e.params["reps"])))


def _split(e: Equation, x: Tensor) -> Sequence[Tensor]:
    return _cuts(e, x, int(e.params["axis"]), e.params["sizes"])


def _cuts(e: Equation, x: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    """Parts of x along an axis, one behind the other."""
    first, made = 0, []
    for size in map(int, sizes):
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = first, first + size
        made.append(_cut(e, x, starts, ends, [1] * len(x.shape)))
        first += size
    return made


def _gathered(e: Equation, x: Tensor, index: Tensor) -> Tensor:
    """Slices of one axis by indices, or an element of one axis for each place of the others. Indices that point outside
    are not looked for: JAX gives NaN there."""
    d, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    if len(d.start_index_map) != 1 or index.shape[-1] != 1:
        raise Unsupported("indices of several axes at once")
    axis, rank = d.start_index_map[0], len(x.shape)
    rest = tuple(k for k in range(rank) if k != axis)
    at = e.reshaped(index, index.shape[:-1])
    if d.operand_batching_dims:
        if d.operand_batching_dims != rest or d.start_indices_batching_dims != rest or len(at.shape) != rank:
            raise Unsupported("indices that share some axes with what is indexed")
        return e.call.like(x, e.onnx("GatherElements", x, at, axis=axis))
    if d.collapsed_slice_dims != (axis,) or any(sizes[k] != x.shape[k] for k in rest):
        raise Unsupported("parts of slices by indices")
    made = e.call.like(x, e.onnx("Gather", x, at, axis=axis))  # axes before, of the indices, behind
    count = len(at.shape)
    places = [k for k in range(rank - 1 + count) if k not in d.offset_dims]
    own = dict(zip(d.offset_dims, (*range(axis), *range(axis + count, rank - 1 + count)), strict=True))
    own |= dict(zip(places, range(axis, axis + count), strict=True))
    return e.permuted(made, [own[k] for k in range(rank - 1 + count)])


# folds ----------------------------------------------------------------------------------------------------------------
def _reduced(op: str) -> Translation:
    return lambda e, x: e.call.reduced(op, x, tuple(e.params["axes"]), False) if e.params["axes"] else x


def _masks(name: str) -> Translation:
    def translate(e: Equation, x: Tensor) -> Tensor:
        if x.kind != "bool":
            raise Unsupported("bits of integers")
        return e.aten(name, x, tuple(e.params["axes"]))

    return translate


def _place(op: str) -> Translation:
    def translate(e: Equation, x: Tensor) -> Tensor:
        (axis,) = e.params["axes"]
        return e.onnx(op, x, axis=int(axis), keepdims=0)

    return translate


def _summed(e: Equation, x: Tensor) -> Tensor:
    return e.onnx("CumSum", x, e.ints([e.params["axis"]]), reverse=int(e.params["reverse"]))


def _top_k(e: Equation, x: Tensor) -> Sequence[Tensor]:
    if e.params.get("axis", len(x.shape) - 1) != len(x.shape) - 1:
        raise Unsupported("the largest along another axis than the last")
    return e.call.onnx_all("TopK", 2, x, e.ints([e.params["k"]]), axis=-1)


# products and windows -------------------------------------------------------------------------------------------------
def _dot_general(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    letters = iter(string.ascii_letters)
    a = [next(letters) for _ in x.shape]
    b = [next(letters) for _ in y.shape]
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        b[j] = a[i]
    free = [k for i, k in enumerate(a) if i not in (*left, *left_batch)]
    free += [k for j, k in enumerate(b) if j not in (*right, *right_batch)]
    if len(y.shape) == 2 and x.shape and tuple(left) == (len(x.shape) - 1,) and not left_batch and x.kind == "float":
        rows = e.reshaped(x, (-1 if not x.size else x.size // x.shape[-1], x.shape[-1]))
        return e.reshaped(e.onnx("Gemm", rows, y, transB=int(right[0] == 1)), e.shape)
    equation = f"{''.join(a)},{''.join(b)}->{''.join([*(a[i] for i in left_batch), *free])}"
    return e.aten("einsum", equation, (x, y))


def _convolved(e: Equation, x: Tensor, w: Tensor) -> Tensor:
    p = e.params
    if set(p["lhs_dilation"]) - {1} or p["batch_group_count"] != 1:
        raise Unsupported("a convolution of an image with gaps, or with groups of the batch")
    d = p["dimension_numbers"]
    made = e.onnx(
        "Conv", e.permuted(x, d.lhs_spec), e.permuted(w, d.rhs_spec), strides=tuple(map(int, p["window_strides"])),
        dilations=tuple(map(int, p["rhs_dilation"])), group=int(p["feature_group_count"]),
        pads=tuple(int(b[side]) for side in (0, 1) for b in p["padding"]),
    )  # fmt: skip
    return e.permuted(made, np.argsort(d.out_spec).tolist())


def _window(op: str) -> Translation:
    """The largest, or the sum, of windows along one or two axes of images."""

    def translate(e: Equation, x: Tensor) -> Tensor:
        p, rank = e.params, len(x.shape)
        size, steps, borders = p["window_dimensions"], p["window_strides"], p["padding"]
        if set(p["base_dilation"]) - {1} or set(p["window_dilation"]) - {1}:
            raise Unsupported("windows with gaps")
        moved = [k for k in range(rank) if (size[k], steps[k], *borders[k]) != (1, 1, 0, 0)]
        if len(moved) > 2:
            raise Unsupported("windows along more than two axes")
        rest = [k for k in range(rank) if k not in moved]
        order, extents = [*rest, *moved], [x.shape[k] for k in moved]
        images = e.reshaped(e.permuted(x, order), (1, math.prod(x.shape[k] for k in rest), *extents))
        attrs: dict[str, Any] = {"kernel_shape": tuple(int(size[k]) for k in moved)}
        attrs |= {"strides": tuple(int(steps[k]) for k in moved)}
        attrs |= {"pads": tuple(int(borders[k][side]) for side in (0, 1) for k in moved)}
        if op == "AveragePool":
            made = e.onnx(op, images, count_include_pad=1, **attrs)
            count = math.prod(attrs["kernel_shape"])
            made = e.onnx("Mul", made, e.call.number(float(count), x.dtype))
        else:
            made = e.onnx(op, images, **attrs)
        return e.permuted(e.reshaped(made, [e.shape[k] for k in order]), np.argsort(order).tolist())

    return translate


def _stopped(e: Equation, x: Tensor) -> Tensor:
    if x.known or x.kind != "float":
        return x
    return e.call.like(x, fitted(ops.stop_gradient(e.call.value(x)), x.shape, x.kind))


PRIMITIVES: dict[str, Translation] = {
    **{name: _onnx(op) for name, op in {
        "abs": "Abs", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos",
        "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
        "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf", "add": "Add",
        "add_any": "Add", "sub": "Sub", "mul": "Mul",
    }.items()},
    **{name: _aten(op) for name, op in {
        "exp2": "exp2", "log1p": "log1p", "expm1": "expm1", "rsqrt": "rsqrt", "square": "square", "floor": "floor",
        "ceil": "ceil", "sign": "sign", "and": "bitwise_and.Tensor", "or": "bitwise_or.Tensor",
        "xor": "bitwise_xor.Tensor", "not": "bitwise_not", "rem": "fmod.Tensor",
    }.items()},
    "eq": _compared("Equal"), "ne": _compared("Equal", True), "lt": _less, "le": _compared("LessOrEqual"),
    "gt": _compared("Greater"), "ge": _compared("GreaterOrEqual"), "select_n": _select, "clamp": _clamp,
    "max": _extreme("Max", -math.inf), "min": _extreme("Min", math.inf), "integer_pow": _integer_pow,
    "pow": _power, "div": _divided, "round": _rounded, "is_finite": _finite,
    "erfc": _erfc, "convert_element_type": _converted, "stop_gradient": _stopped, "copy": same, "copy_p": same,
    "optimization_barrier": same,
    "reshape": _reshape, "squeeze": _into_shape, "expand_dims": _into_shape, "broadcast_in_dim": _broadcast,
    "transpose": lambda e, x: e.permuted(x, e.params["permutation"]), "iota": _iota, "slice": _sliced,
    "rev": lambda e, x: e.aten("flip", x, tuple(e.params["dimensions"])), "dynamic_slice": _dynamic_slice,
    "pad": _padded, "concatenate": _concatenated, "split": _split, "gather": _gathered,
    "stack": _stacked, "unstack": _unstacked, "tile": _tiled,
    "reduce_sum": _reduced("ReduceSum"), "reduce_max": _reduced("ReduceMax"), "reduce_min": _reduced("ReduceMin"),
    "reduce_prod": _reduced("ReduceProd"), "reduce_and": _masks("all.dims"), "reduce_or": _masks("any.dims"),
    "argmax": _place("ArgMax"), "argmin": _place("ArgMin"), "cumsum": _summed, "top_k": _top_k,
    "dot_general": _dot_general, "conv_general_dilated": _convolved, "reduce_window_max": _window("MaxPool"),
    "reduce_window_sum": _window("AveragePool"),
}  # fmt: skip
