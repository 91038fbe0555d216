"""Number types of ONNX in a graph of f32: integers wrap or are refused, float16 and bfloat16 are rounded.

A graph computes integers as f32, which has all of them up to 2²⁴. So each result of integers has bounds, from the
bounds of its operands; where they leave the type the result is wrapped, where they leave f32 the node is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gdlab import ops
from gdlab.base.formats import round_bf16
from gdlab.base.types import Array
from gdlab.load.onnx.tensor import HALVES, Bounds, GraphParameters, Kind, OnnxCall, Tensor, axis_of
from gdlab.load.shared import Unsupported

EXACT = 1 << 23  # a step below 2²⁴, for what is added while wrapping
ASSUMED = 1 << 22  # inputs of 32 and 64 bits that are computed with are taken to be at most this
NARROW = ("int8", "uint8", "int16", "uint16")
PLAIN: dict[Kind, str] = {"float": "float32", "int": "int64", "bool": "bool"}
SAID = {"Shape": "int64", "Size": "int64", "ArgMax": "int64", "ArgMin": "int64"}  # whatever the operands are
SUMS = frozenset(("MatMulInteger", "ConvInteger"))  # their sums are rounded once, to the nearest f32
PASSING = frozenset(("Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
SELECTING = frozenset("""
Abs Ceil Clip Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Floor Gather
GatherElements GatherND GlobalMaxPool Hardmax Identity Max MaxPool Min Neg OneHot Pad ReduceMax ReduceMin Relu Reshape
Resize Round Scatter ScatterElements ScatterND Sign Slice SpaceToDepth Split Squeeze ThresholdedRelu Tile TopK Transpose
Trilu Unsqueeze Upsample Where
""".split())  # their results are operands, or as exact  # fmt: skip


def settled(call: OnnxCall, t: Tensor) -> Tensor:
    """Return a result of a node with its type: constants and values wrapped or rounded, bounds known."""
    op = call.node.op
    _check_products(call)
    dtype = t.dtype or SAID.get(op) or _dtype_of_operands(call, t.kind)
    if t.known:
        return replace(t, array=as_type(np.asarray(t.array), dtype), dtype=dtype)
    if t.kind == "float":
        kept = _selects(call) or (op in ("Cast", "CastLike") and call.tensor(0).dtype == dtype)
        return replace(t, dtype=dtype) if kept else rounded(call.home, replace(t, dtype=dtype))
    return _wrapped(call, replace(t, dtype=dtype)) if t.kind == "int" else replace(t, dtype=dtype)


def _selects(call: OnnxCall) -> bool:
    """Return whether the results are elements of operands, or are exact for other reasons."""
    op = call.node.op
    if op in ("Resize", "Upsample"):
        return call.text("mode", "nearest") == "nearest"
    return op in SELECTING and call.text("reduction", "none") == "none"


def _dtype_of_operands(call: OnnxCall, kind: Kind) -> str:
    return next((t.dtype for t in call.inputs if t is not None and t.kind == kind and t.dtype), PLAIN[kind])


def as_type(array: Array, dtype: str) -> Array:
    """Convert known elements to a type: integers wrap, halves are rounded and stay float32."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return round_bf16(array.astype(np.float32))
        if dtype == "float16":
            return np.asarray(array.astype(np.float16).astype(np.float32))
        return np.asarray(array.astype("float32" if dtype == "float64" else dtype, copy=False))


def rounded(home: GraphParameters, t: Tensor) -> Tensor:
    """Return a value with the precision of its type."""
    if t.dtype not in HALVES:
        return t
    return Tensor(t.shape, t.kind, HALVES[t.dtype](home.number(t)), dtype=t.dtype)


# integers -------------------------------------------------------------------------------------------------------------
def _check_products(call: OnnxCall) -> None:
    """Raise if anything but a conversion to float reads a sum of products of codes, which is an f32 near to a whole
    number."""
    for t in call.inputs:
        if t is not None and t.bounds is not None and not t.known and max(-t.bounds[0], t.bounds[1]) > EXACT:
            if t.kind == "int" and call.node.op not in PASSING:
                raise Unsupported(f"integers that may reach {max(-t.bounds[0], t.bounds[1]):,}, beyond what f32 has")


def _wrapped(call: OnnxCall, t: Tensor) -> Tensor:
    op = call.node.op
    if t.bounds is None and op not in BOUNDS:
        raise Unsupported("integers that are computed in the graph")
    low, high = t.bounds or BOUNDS[op](call)
    limits = np.iinfo(t.dtype)
    if max(-low, high) > EXACT and not _selects(call) and op not in SUMS and not t.known:
        raise Unsupported(f"integers that may reach {max(-low, high):,}, where those up to {EXACT:,} are exact")
    if limits.min <= low and high <= limits.max:
        return replace(t, bounds=(low, high))
    if t.dtype not in NARROW:
        raise Unsupported(f"a number that may fall to {low:,}, where {t.dtype} wraps")
    size, least = limits.max - limits.min + 1, int(limits.min)
    shift = -least + size * max(0, -(-(least - low) // size))  # a multiple of `size` that makes it ≥ 0
    value = call.home.number(t) + float(shift)
    times = ops.to_f32(ops.to_u32(value * (1.0 / size)))
    return Tensor(t.shape, t.kind, value - times * float(size) + float(least), dtype=t.dtype)


def bounds_of(t: Tensor) -> Bounds:
    """Return the least and the greatest integer that a tensor may hold."""
    if t.array is not None:
        return (int(t.array.min()), int(t.array.max())) if t.size else (0, 0)
    if t.bounds is not None:
        return t.bounds
    if t.dtype in NARROW:
        return int(np.iinfo(t.dtype).min), int(np.iinfo(t.dtype).max)
    return (0, 1) if t.kind == "bool" else (0 if t.dtype.startswith("u") else -ASSUMED, ASSUMED)


def bounds_of_input(dtype: str) -> Bounds:
    """Return the bounds of an integer input, which cannot be negative."""
    return 0, int(np.iinfo(dtype).max) if dtype in NARROW else ASSUMED


def _union(*bounds: Bounds) -> Bounds:
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _operands(call: OnnxCall) -> list[Bounds]:
    return [bounds_of(t) for t in call.inputs if t is not None]


def _highest(call: OnnxCall) -> Bounds:
    return max(low for low, _ in _operands(call)), max(high for _, high in _operands(call))


def _lowest(call: OnnxCall) -> Bounds:
    return min(low for low, _ in _operands(call)), min(high for _, high in _operands(call))


def _clipped(call: OnnxCall) -> Bounds:
    low, high = _first(call)
    if (least := call.optional(1)) is not None:
        low, high = max(low, bounds_of(least)[0]), max(high, bounds_of(least)[1])
    if (most := call.optional(2)) is not None:
        low, high = min(low, bounds_of(most)[0]), min(high, bounds_of(most)[1])
    return low, high


def _all(call: OnnxCall) -> Bounds:
    """Return the bounds of all integer operands together."""
    return _union(*(bounds_of(t) for t in call.inputs if t is not None and t.kind != "float"))


def _chosen(call: OnnxCall) -> Bounds:
    return _union(*_operands(call)[1:])


def _first(call: OnnxCall) -> Bounds:
    return bounds_of(call.tensor(0))


def _with_zero(call: OnnxCall) -> Bounds:
    return _union((0, 0), _all(call))


def _sum(call: OnnxCall) -> Bounds:
    lows, highs = zip(*(bounds_of(t) for t in call.inputs if t is not None), strict=True)
    return sum(lows), sum(highs)


def _difference(call: OnnxCall) -> Bounds:
    (a, b), (c, d) = bounds_of(call.tensor(0)), bounds_of(call.tensor(1))
    return a - d, b - c


def _times(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _product(call: OnnxCall) -> Bounds:
    return _times(bounds_of(call.tensor(0)), bounds_of(call.tensor(1)))


def _quotient(call: OnnxCall) -> Bounds:
    a, b = bounds_of(call.tensor(0)), bounds_of(call.tensor(1))
    most = max(-a[0], a[1])
    if max(most, -b[0], b[1]) > ASSUMED:
        raise Unsupported(f"a division of integers above {ASSUMED:,}")
    return 0 if min(a[0], b[0]) >= 0 else -most, most


def _matmul(call: OnnxCall) -> Bounds:
    low, high = _product(call)
    inner = call.tensor(0).shape[-1]
    return inner * min(low, 0), inner * max(high, 0)


def _magnitude(call: OnnxCall) -> Bounds:
    low, high = _first(call)
    return 0, max(-low, high)


def _added(call: OnnxCall) -> Bounds:
    """Return the bounds of a sum of any elements of operand 0."""
    x = call.tensor(0)
    low, high = _times(_first(call), _first(call)) if call.node.op == "ReduceSumSquare" else _first(call)
    if call.node.op == "ReduceL1":
        low, high = _magnitude(call)
    axes = call.static_ints(1) if len(call.inputs) > 1 else call.integers("axes")
    count = int(np.prod([x.shape[axis_of(a, len(x.shape))] for a in axes])) if axes else x.size
    return count * min(low, 0), count * max(high, 0)


def _cast(call: OnnxCall) -> Bounds:
    x = call.tensor(0)
    return (-ASSUMED, ASSUMED) if x.kind == "float" else bounds_of(x)


def _remainder(call: OnnxCall) -> Bounds:
    low, high = bounds_of(call.tensor(1))
    if max(-low, high) > ASSUMED or max(_magnitude(call)) > ASSUMED:
        raise Unsupported(f"a remainder of integers above {ASSUMED:,}")
    most = max(-low, high)
    return 0 if min(low, _first(call)[0]) >= 0 else -most, most


def _running(call: OnnxCall) -> Bounds:
    x = call.tensor(0)
    low, high = _first(call)
    count = max(x.shape, default=1)
    return count * min(low, 0), count * max(high, 0)


def _scattered(call: OnnxCall) -> Bounds:
    """Return the bounds of elements that updates replace, or are added to."""
    data, updates = bounds_of(call.tensor(0)), bounds_of(call.tensor(2))
    how, count = call.text("reduction", "none"), call.tensor(2).size
    if how == "mul":
        raise Unsupported("products of integers that are computed in the graph")
    if how != "add":
        return _union(data, updates)
    return data[0] + count * min(updates[0], 0), data[1] + count * max(updates[1], 0)


def _place(call: OnnxCall) -> Bounds:
    return 0, max(call.tensor(0).shape, default=1)


BOUNDS: dict[str, Callable[[OnnxCall], Bounds]] = {
    "Add": _sum, "Sum": _sum, "Sub": _difference, "Mul": _product, "Div": _quotient, "MatMul": _matmul,
    "Neg": lambda call: _times((-1, -1), _first(call)), "Abs": _magnitude, "Sign": lambda call: (-1, 1),
    "Cast": _cast, "CastLike": _cast, "ArgMax": _place, "ArgMin": _place, "Where": _chosen, "Max": _highest,
    "Min": _lowest, "Clip": _clipped, "Concat": _all, "Pad": _with_zero, "Relu": _with_zero, "Trilu": _with_zero,
    "Mod": _remainder, "CumSum": _running, "OneHot": lambda call: bounds_of(call.tensor(2)),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scattered),
    "ReduceSum": _added, "ReduceL1": _added, "ReduceSumSquare": _added,
    **dict.fromkeys(
        ("Compress", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
         "Identity", "MaxPool", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice",
         "SpaceToDepth", "TopK", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample", "Dropout"), _first),
}  # fmt: skip
