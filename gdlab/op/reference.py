"""The judge: evaluate a graph node by node in float64, and compare what a device got with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, ShapeError, unknown_name
from gdlab.base.formats import narrowed
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.base.words import sig
from gdlab.graph import Attrs, ConstantData, Graph, Node
from gdlab.op import (
    REGISTRY,
    Alias,
    Contraction,
    Elementwise,
    Fill,
    Leaf,
    Movement,
    Op,
    Reduction,
    Shader,
)

__all__ = [
    "compare", "error_scale", "evaluate", "finite_or_zero", "magnitudes", "node_value", "reduced_scale", "tolerance",
]  # fmt: skip

Hook = Callable[[Node, Array], None]
Values = dict[int, Array]

SMALLEST_NORMAL = 1.2e-38  # drivers flush what is smaller to 0
H = 1e-6
REACH = 1e-2  # errors relative to their scale that no kernel comes near


# values ---------------------------------------------------------------------------------------------------------------
def evaluate(graph: Graph, feeds: Mapping[str, Any], hook: Hook | None = None, exact: bool = False) -> Values:
    """Return the value of every node, id -> float64 array (u32 tensors stay integers).

    `feeds` holds every input and parameter by name, in any shape with the right number of elements; each is rounded to
    f32 first. `hook(node, value)` is called after each node. `exact`: numbers in the bodies of fused ops keep all
    digits, as on a tape in float64. A missing, mis-sized or unknown feed raises.
    """
    slots = {n.attr("name"): n.type for n in graph if _is_slot(n)}
    for name in feeds:
        if name not in slots:
            raise unknown_name("evaluate", "feed", name, slots)
    fed = {name: _feed(name, type, feeds) for name, type in slots.items()}
    values: Values = {}
    for node in graph:
        values[node.id] = value = node_value(node, values, fed, exact)
        if hook is not None:
            hook(node, value)
    return values


def _is_slot(node: Node) -> bool:
    return not node.inputs and any(key == "name" for key, _ in node.attrs)


def _feed(name: str, type: TensorType, feeds: Mapping[str, Any]) -> Array:
    if name not in feeds:
        raise ArgumentError("evaluate", repr(name), "no feed", f"{type}")
    data = np.asarray(feeds[name])
    if data.size != type.num_elements:
        raise ArgumentError("evaluate", repr(name), f"{data.size} values", f"{type.num_elements} ({type})")
    return _widened(narrowed("evaluate", repr(name), data, type.dtype).reshape(type.shape))


def _widened(data: Array) -> Array:
    return data if data.dtype == u32.numpy else data.astype(np.float64)


def node_value(node: Node, values: Values, fed: Mapping[str, Array], exact: bool = False) -> Array:
    """Return the float64 value of one node, from those of its operands and the feeds."""
    attrs = dict(node.attrs)
    if _is_slot(node):
        return fed[attrs["name"]]
    if isinstance(attrs.get("data"), ConstantData):
        return _widened(attrs["data"].array)
    value = REGISTRY[node.op].reference([values[i] for i in node.inputs], attrs, exact)
    if value.shape != node.type.shape:
        raise ShapeError("evaluate", f"numpy of {node.op}", f"shape {list(value.shape)}", f"that of {node.type}")
    return value


# error scales ---------------------------------------------------------------------------------------------------------
def magnitudes(graph: Graph, values: Values) -> Values:
    """Return the error scale m of every element: what a relative rounding error of all that went into it adds up to.

    Sums of products: the op on absolute values, Σ|a·b|; elementwise ops: Σ |∂f/∂x|·m(x), at least |f|; the rest selects
    or moves what its operands had. Where a value is not finite m is 0.
    """
    scales: Values = {}
    with np.errstate(all="ignore"):  # differences of infinities
        for node in graph:
            arrays, ms = [values[i] for i in node.inputs], [scales[i] for i in node.inputs]
            m = error_scale(REGISTRY.get(node.op), arrays, ms, node.attrs, values[node.id])
            scales[node.id] = finite_or_zero(m)
    return scales


def finite_or_zero(m: Array) -> Array:
    """Return numbers with 0 in place of what is not finite."""
    return np.where(np.isfinite(m), m, 0.0)


def error_scale(op: Op | None, arrays: Sequence[Array], ms: Sequence[Array], attrs: Attrs, out: Array) -> Array:
    """Return the error scale of one result, by what kind of kernel makes it."""
    if out.dtype == u32.numpy:  # an integer is right or wrong
        return np.zeros(out.shape)
    size = np.abs(np.asarray(out, np.float64))
    kernel = Leaf() if op is None or not arrays else op.kernel
    match kernel:
        case Leaf() | Fill():
            return size
        case Contraction() | Movement() | Alias() | Shader(linear=True):
            assert op is not None  # only a Leaf has no op
            plain = [x if x.dtype == u32.numpy else m for x, m in zip(arrays, ms, strict=True)]
            return np.maximum(size, np.abs(op.reference(plain, dict(attrs))))
        case Reduction():
            assert op is not None
            return np.maximum(size, reduced_scale(op, kernel, arrays[0], ms[0], attrs, out))
        case Elementwise():
            assert op is not None
            slopes = (_slope(op, arrays, attrs, i) * m for i, m in enumerate(ms))
            return np.maximum(size, sum(map(finite_or_zero, slopes), np.zeros(out.shape)))
        case Shader(bound=rule) if rule is not None:
            return np.maximum(size, rule(*ms, **dict(attrs)))
        case Shader() if op is not None and op.body is not None:
            return np.maximum(size, _scale_of_body(op, arrays, ms, attrs))
        case Shader():
            assert op is not None
            return _scale_of_shader(op, arrays, ms, attrs, size)
        case None:
            assert op is not None
            return _scale_of_body(op, arrays, ms, attrs)


def reduced_scale(op: Op, kernel: Reduction, x: Array, m: Array, attrs: Attrs, out: Array) -> Array:
    """Return scales folded as the reduction folds what they belong to: their sum, or the largest of those whose element
    can be the maximum (minimum) within their errors. One that is hidden by a score of −1e30 cannot."""
    if kernel.combine == "sum":
        return op.reference([m], dict(attrs))
    axes, high = kernel.axes(TensorType(x.shape), dict(attrs)), x if kernel.combine == "max" else -x
    with np.errstate(invalid="ignore"):
        hidden = high + REACH * m < np.max(high - REACH * m, axis=axes, keepdims=True)
    largest: Array = np.max(np.where(hidden, 0.0, m), axis=axes)
    return largest.reshape(out.shape)


def _slope(op: Op, arrays: Sequence[Array], attrs: Attrs, index: int) -> Array:
    """|∂ result / ∂ operand| of an elementwise op: the steeper side, where one side jumps the other, by differences."""
    sides = []
    for sign in (1.0, -1.0):
        wide, narrow = (_secant(op, arrays, attrs, index, sign * h) for h in (H, H / 16))
        # at a jump the secant grows as the step shrinks; one that the narrow step does not reach is no slope either
        slope = np.where(wide > 4.0 * narrow + H, narrow, wide)
        sides.append(np.where(narrow > 4.0 * wide + H, 0.0, slope))
    return np.maximum(*sides)


def _secant(op: Op, arrays: Sequence[Array], attrs: Attrs, index: int, h: float) -> Array:
    x = arrays[index]
    step = h * np.maximum(1.0, np.abs(x))
    moved = [*arrays[:index], x + step, *arrays[index + 1 :]]
    rise = np.abs(op.reference(moved, dict(attrs)) - op.reference(arrays, dict(attrs)))
    return np.asarray(rise / np.abs(step))


def _scale_of_shader(op: Op, arrays: Sequence[Array], ms: Sequence[Array], attrs: Attrs, size: Array) -> Array:
    """The largest of a few directional differences: operands moved by ±m in patterns along their last axes."""
    worst, plain = size, op.reference(arrays, dict(attrs))
    for period in (1, 2, 4):
        moved = [_moved(x, m, period) for x, m in zip(arrays, ms, strict=True)]
        rise = np.abs(op.reference(moved, dict(attrs)) - plain) / H
        worst = np.maximum(worst, size + finite_or_zero(rise))
    return worst


def _moved(x: Array, m: Array, period: int) -> Array:
    """x ± H · m, the sign changing every `period` places; indices stay where they are."""
    signs = np.where(np.arange(x.shape[-1]) // period % 2 == 0, 1.0, -1.0)
    return x if x.dtype == u32.numpy else x + H * signs * m


def _scale_of_body(op: Op, arrays: Sequence[Array], ms: Sequence[Array], attrs: Attrs) -> Array:
    graph = op.trace(tuple(TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in arrays), attrs)
    values, scales = dict(enumerate(arrays)), dict(enumerate(ms))
    for node in graph.nodes[len(arrays) :]:
        values[node.id] = out = node_value(node, values, {})
        operands = [values[i] for i in node.inputs], [scales[i] for i in node.inputs]
        scales[node.id] = finite_or_zero(error_scale(REGISTRY[node.op], *operands, node.attrs, out))
    return scales[graph.output_ids[0]]


# comparison -----------------------------------------------------------------------------------------------------------
def tolerance(m: Array, rtol: float, floor: float = 1e-3) -> Array:
    """Return what `compare` allows each element to be off, by the error scale `m`."""
    allowed: Array = rtol * (m + floor * np.max(m, initial=0.0))
    return allowed


def compare(got: Any, want: Any, m: Any, rtol: float, floor: float = 1e-3, doubt: Any = 0.0) -> str | None:
    """Return None where |got − want| ≤ rtol · (m + floor · max m) + doubt everywhere, else what failed and where it is
    worst.

    Values that are not finite must be equal in kind and sign; values below 1.2e-38 count as 0.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return f"shape: got {list(got.shape)}, wanted {list(want.shape)}"
    got, want = (np.where(np.abs(v) < SMALLEST_NORMAL, 0.0, v) for v in (got, want))
    m = np.broadcast_to(np.asarray(m, np.float64), want.shape)
    allowed = tolerance(m, rtol, floor) + np.asarray(doubt, np.float64)
    finite = np.isfinite(want) & np.isfinite(got)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        excess = np.where(finite, np.abs(got - want) - allowed, np.where(same, -np.inf, np.inf))
    failed = int(np.count_nonzero(excess > 0))
    if failed == 0:
        return None
    at = tuple(map(int, np.unravel_index(int(np.argmax(excess)), excess.shape)))
    worst = f"got {got[at]!s}, wanted {want[at]!s} ± {sig(allowed[at])}"
    return f"{failed} of {want.size} differ, worst at {list(at)}: {worst}"
