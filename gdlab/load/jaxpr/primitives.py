"""Translate the primitives of a jaxpr: one table, most of it by equal operators of ATen and ONNX.

A translation is called with the equation's call and its operands, each of the type that the jaxpr says; what it cannot
meet is `Unsupported`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.load.jaxpr.equation import Equation, Translation, same
from gdlab.load.jaxpr.gather_scatter import dynamic_slice, dynamic_update_slice, gathered, scattered
from gdlab.load.onnx.tensor import Tensor, fitted, known
from gdlab.load.shared import Unsupported

MOST_FACTORS = 16  # of a power of integers
TO_EVEN = 1  # of jax.lax.RoundingMethod


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
    """Return x < y; an index is compared with 0 so as to count from the front, so for a tensor that is never negative
    it is false."""
    never = x.kind == "int" and not x.known and x.bounds is not None and y.known and y.size == 1
    if never and x.bounds is not None and x.bounds[0] >= int(np.asarray(y.array).reshape(-1)[0]):
        return e.call.filled(e.shape, False, "bool")
    return e.onnx("Less", x, y)


def _select(e: Equation, which: Tensor, *cases: Tensor) -> Tensor:
    if which.kind != "bool":
        made = cases[0]
        for k, case in enumerate(cases[1:], 1):
            made = e.onnx("Where", e.onnx("Equal", which, e.call.number(k, which.dtype)), case, made)
        return made
    if which.known and np.asarray(which.array).size and np.unique(np.asarray(which.array)).size == 1:
        return cases[int(np.asarray(which.array).reshape(-1)[0])]
    return e.onnx("Where", which, cases[1], cases[0])


def _extreme(op: str, least: float) -> Translation:
    """Return the translation of max or min; `least` never wins."""

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
    if x.kind == "int" and 1 <= y <= MOST_FACTORS:
        return reduce(partial(e.onnx, "Mul"), [x] * y)
    return e.aten("square", x) if y == 2 and x.kind == "float" else e.aten("pow.Tensor_Scalar", x, y)


def _power(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    return e.onnx("Pow", x, e.call.cast(y, x.dtype))


def _divided(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    return e.aten("div.Tensor_mode", x, y, rounding_mode="trunc") if x.kind == "int" else e.onnx("Div", x, y)


def _rounded(e: Equation, x: Tensor) -> Tensor:
    if int(e.params["rounding_method"]) == TO_EVEN:
        return e.aten("round", x)
    size = e.onnx("Abs", x)
    below = e.aten("floor", size)
    up = e.onnx("GreaterOrEqual", e.onnx("Sub", size, below), e.call.number(0.5, x.dtype))
    return e.onnx("Mul", e.aten("sign", x), e.onnx("Add", below, e.call.cast(up, x.dtype)))


def _finite(e: Equation, x: Tensor) -> Tensor:
    return e.onnx("Not", e.onnx("Or", e.onnx("IsNaN", x), e.onnx("IsInf", x)))


def _erfc(e: Equation, x: Tensor) -> Tensor:
    return e.onnx("Sub", e.call.number(1.0, x.dtype), e.onnx("Erf", x))


def _cube_root(e: Equation, x: Tensor) -> Tensor:
    third = e.call.number(1 / 3, x.dtype)
    return e.onnx("Mul", e.aten("sign", x), e.onnx("Pow", e.onnx("Abs", x), third))


def _erf_inv(e: Equation, x: Tensor) -> Tensor:
    """Return the inverse of erf by two polynomials (M. Giles, "Approximating the erfinv function", 2010)."""
    w = e.onnx("Neg", e.aten("log1p", e.onnx("Neg", e.aten("square", x))))
    border = e.call.number(5.0, x.dtype)
    near = _polynomial(e, e.onnx("Sub", w, e.call.number(2.5, x.dtype)), NEAR)
    root = e.onnx("Sqrt", e.onnx("Max", w, border))  # whose gradient is finite where it is not chosen
    far = _polynomial(e, e.onnx("Sub", root, e.call.number(3.0, x.dtype)), FAR)
    chosen = e.onnx("Where", e.onnx("Less", w, border), near, far)
    end = e.onnx("Equal", e.onnx("Abs", x), e.call.number(1.0, x.dtype))
    return e.onnx("Mul", e.onnx("Where", end, e.call.number(math.inf, x.dtype), chosen), x)


NEAR = (2.81022636e-8, 3.43273939e-7, -3.5233877e-6, -4.39150654e-6, 2.1858087e-4, -1.25372503e-3, -4.17768164e-3,
        0.246640727, 1.50140941)  # fmt: skip
FAR = (-2.00214257e-4, 1.00950558e-4, 1.34934322e-3, -3.67342844e-3, 5.73950773e-3, -7.6224613e-3, 9.43887047e-3,
       1.00167406, 2.83297682)  # fmt: skip


def _polynomial(e: Equation, x: Tensor, factors: Sequence[float]) -> Tensor:
    """Return a polynomial by Horner's rule, the highest power first."""
    made = e.call.number(factors[0], x.dtype)
    for factor in factors[1:]:
        made = e.onnx("Add", e.onnx("Mul", made, x), e.call.number(factor, x.dtype))
    return made


def _angle(e: Equation, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), whose -0 is 0: the arc tangent of the smaller by the larger coordinate,
    turned."""
    zero, one = (e.call.number(n, x.dtype) for n in (0.0, 1.0))
    steep, left = e.onnx("Greater", e.onnx("Abs", y), e.onnx("Abs", x)), e.onnx("Less", x, zero)
    above, below = e.onnx("Where", steep, x, y), e.onnx("Where", steep, y, x)
    turn = e.onnx("Atan", e.onnx("Div", above, e.onnx("Where", e.onnx("Equal", below, zero), one, below)))
    sides = [e.onnx("Where", e.onnx("Less", y, zero), e.call.number(-a, x.dtype), e.call.number(a, x.dtype))
             for a in (math.pi / 2, math.pi)]  # fmt: skip
    flat = e.onnx("Where", left, e.onnx("Add", turn, sides[1]), turn)
    return e.onnx("Where", steep, e.onnx("Sub", sides[0], turn), flat)


def _ordered(strict: bool) -> Translation:
    """Return the translation of less (or equal) in an order that has NaN behind all numbers."""

    def translate(e: Equation, x: Tensor, y: Tensor) -> Tensor:
        if not strict:
            x, y = y, x
        less = e.onnx("And", e.onnx("Not", e.onnx("IsNaN", x)), e.onnx("Not", e.onnx("GreaterOrEqual", x, y)))
        return less if strict else e.onnx("Not", less)

    return translate


def _reduced_precision(e: Equation, x: Tensor) -> Tensor:
    exponent, mantissa = int(e.params["exponent_bits"]), int(e.params["mantissa_bits"])
    if exponent >= 8 and mantissa >= 23:
        return x
    name = {(8, 7): "bfloat16", (5, 10): "float16"}.get((exponent, mantissa))
    if name is None:
        raise Unsupported(f"a float of {exponent} and {mantissa} bits: those of float16 and bfloat16 are taken")
    return e.call.cast(e.call.cast(x, name), x.dtype)


def _shifted(times: bool) -> Translation:
    """Return the translation of shifts by a constant number of bits."""

    def translate(e: Equation, x: Tensor, by: Tensor) -> Tensor:
        bits = np.asarray(by.array) if by.known else np.zeros(0)
        if not bits.size or bits.min() < 0 or bits.max() > 30:
            raise Unsupported("a shift by a number of bits that the graph computes, or by more than 30")
        factor = e.call.cast(replace(known(np.int64(1) << bits.astype(np.int64)), dtype="int64"), x.dtype)
        if times:
            return e.onnx("Mul", x, factor)
        return e.aten("div.Tensor_mode", x, factor, rounding_mode="floor")

    return translate


def _platform(e: Equation) -> Tensor:
    """Return the index of a function's default branch, meant for all platforms, if there is one."""
    kinds = list(e.params["platforms"])
    return e.call.number(kinds.index(None) if None in kinds else 0, e.dtype)


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
    return e.cut(x, starts, ends, e.params["strides"] or [1] * len(starts))


def _padded(e: Equation, x: Tensor, value: Tensor) -> Tensor:
    """Pad x with `value` at the ends of axes and between elements; a negative number removes elements."""
    return _bordered(e, x, value, e.params["padding_config"])


def _bordered(e: Equation, x: Tensor, value: Tensor, borders: Sequence[tuple[int, int, int]]) -> Tensor:
    for axis, (_, _, inner) in enumerate(borders):
        if inner and (n := x.shape[axis]) > 1:
            apart = e.reshaped(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
            behind = [inner if k == axis + 1 else 0 for k in range(len(apart.shape))]
            wide = e.onnx("Pad", apart, e.ints([0] * len(behind) + behind), value)
            wide = e.reshaped(wide, (*x.shape[:axis], n * (inner + 1), *x.shape[axis + 1 :]))
            ends = [n * (inner + 1) - inner if k == axis else m for k, m in enumerate(x.shape)]
            x = e.cut(e.call.like(x, wide), [0] * len(ends), ends, [1] * len(ends))
    sides = [int(b[side]) for side in (0, 1) for b in borders]
    return e.call.like(x, e.onnx("Pad", x, e.ints(sides), value)) if any(sides) else x


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
    """Return parts of x along an axis, one behind the other."""
    first, made = 0, []
    for size in map(int, sizes):
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = first, first + size
        made.append(e.cut(x, starts, ends, [1] * len(x.shape)))
        first += size
    return made


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


def _running(combine: Callable[[Equation, Tensor, Tensor], Tensor]) -> Translation:
    """Return the translation of a cumulative op, which combines each element with those 1, 2, 4, … places before."""

    def translate(e: Equation, x: Tensor) -> Tensor:
        axis, back, step, steps = int(e.params["axis"]), bool(e.params["reverse"]), 1, [1] * len(x.shape)
        zeros, n = [0] * len(x.shape), x.shape[e.params["axis"]]
        while step < n:
            from_step = [step if k == axis else 0 for k in range(len(steps))]
            to_step, before = ([m if k == axis else size for k, size in enumerate(x.shape)] for m in (step, n - step))
            from_end = [n - step if k == axis else 0 for k in range(len(steps))]
            front, late = e.cut(x, zeros, before, steps), e.cut(x, from_step, x.shape, steps)
            both = e.call.like(x, combine(e, late, front))
            rest = e.cut(x, from_end, x.shape, steps) if back else e.cut(x, zeros, to_step, steps)
            x = e.call.like(x, e.onnx("Concat", *((both, rest) if back else (rest, both)), axis=axis))
            step *= 2
        return x

    return translate


def _log_of_sum(e: Equation, x: Tensor, y: Tensor) -> Tensor:
    """Return log(exp x + exp y); for equal ones x + log 2, so that no infinity is taken from another."""
    zero = e.call.number(0.0, x.dtype)
    apart = e.onnx("Where", e.onnx("Equal", x, y), zero, e.onnx("Neg", e.onnx("Abs", e.onnx("Sub", x, y))))
    return e.onnx("Add", e.onnx("Max", x, y), e.aten("log1p", e.onnx("Exp", apart)))


def _sorted(e: Equation, *operands: Tensor) -> Sequence[Tensor]:
    """Return the operands sorted by the first ones, equal keys as they come and NaN last: one stable pass for each key,
    the first key last."""
    axis, keys = int(e.params["dimension"]), int(e.params["num_keys"])
    n = operands[0].shape[axis]
    back = (axis,)
    if len(operands) == 1:
        return [e.aten("flip", e.call.onnx_all("TopK", 2, operands[0], e.ints([n]), axis=axis)[0], back)]
    made = list(operands)
    for key in reversed(range(keys)):
        found = e.call.onnx_all("TopK", 2, e.aten("flip", made[key], back), e.ints([n]), axis=axis)[1]
        at = e.onnx("Sub", e.call.number(n - 1, "int64"), e.aten("flip", found, back))
        made = [e.call.like(t, e.onnx("GatherElements", t, at, axis=axis)) for t in made]
    return made


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
    if p["batch_group_count"] != 1:
        raise Unsupported("a convolution with groups of the batch")
    d, borders, gaps = p["dimension_numbers"], p["padding"], p["lhs_dilation"]
    images = e.permuted(x, d.lhs_spec)
    if set(gaps) - {1} or min(min(b) for b in borders) < 0:
        sides = ((int(low), int(high), int(n) - 1) for (low, high), n in zip(borders, gaps, strict=True))
        around = [(0, 0, 0), (0, 0, 0), *sides]
        images, borders = _bordered(e, images, e.call.number(0.0, x.dtype), around), [(0, 0)] * len(gaps)
    made = e.onnx(
        "Conv", images, e.permuted(w, d.rhs_spec), strides=tuple(map(int, p["window_strides"])),
        dilations=tuple(map(int, p["rhs_dilation"])), group=int(p["feature_group_count"]),
        pads=tuple(int(b[side]) for side in (0, 1) for b in borders),
    )  # fmt: skip
    return e.permuted(made, np.argsort(d.out_spec).tolist())


def _window(op: str) -> Translation:
    """Return the translation of the maximum, or the sum, of windows along one or two axes of images."""

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
    "erfc": _erfc, "erf_inv": _erf_inv, "cbrt": _cube_root, "atan2": _angle, "lt_to": _ordered(True),
    "le_to": _ordered(False), "reduce_precision": _reduced_precision, "platform_index": _platform,
    "shift_left": _shifted(True), "shift_right_arithmetic": _shifted(False),
    "convert_element_type": _converted, "stop_gradient": _stopped, "copy": same, "copy_p": same,
    "optimization_barrier": same,
    "reshape": _reshape, "squeeze": _into_shape, "expand_dims": _into_shape, "broadcast_in_dim": _broadcast,
    "transpose": lambda e, x: e.permuted(x, e.params["permutation"]), "iota": _iota, "slice": _sliced,
    "rev": lambda e, x: e.aten("flip", x, tuple(e.params["dimensions"])), "dynamic_slice": dynamic_slice,
    "pad": _padded, "concatenate": _concatenated, "split": _split, "gather": gathered,
    "dynamic_update_slice": dynamic_update_slice, "scatter": scattered("none"), "scatter-add": scattered("add"),
    "scatter-mul": scattered("mul"), "scatter-max": scattered("max"), "scatter-min": scattered("min"),
    "stack": _stacked, "unstack": _unstacked, "tile": _tiled,
    "reduce_sum": _reduced("ReduceSum"), "reduce_max": _reduced("ReduceMax"), "reduce_min": _reduced("ReduceMin"),
    "reduce_prod": _reduced("ReduceProd"), "reduce_and": _masks("all.dims"), "reduce_or": _masks("any.dims"),
    "argmax": _place("ArgMax"), "argmin": _place("ArgMin"), "cumsum": _summed, "top_k": _top_k,
    "sort": _sorted, "cumprod": _running(lambda e, x, y: e.onnx("Mul", x, y)),
    "cummax": _running(lambda e, x, y: e.onnx("Max", x, y)), "cummin": _running(lambda e, x, y: e.onnx("Min", x, y)),
    "cumlogsumexp": _running(_log_of_sum),
    "dot_general": _dot_general, "conv_general_dilated": _convolved, "reduce_window_max": _window("MaxPool"),
    "reduce_window_sum": _window("AveragePool"),
}  # fmt: skip
