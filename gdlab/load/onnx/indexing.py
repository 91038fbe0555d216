"""ONNX ops that take and put elements by number, count or choose: constants are computed at once, others become ops of
the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape
from gdlab.graph import Value
from gdlab.load.onnx.onnx_layout import joined, permuted, reshaped, taken
from gdlab.load.onnx.tensor import OnnxCall, Table, Tensor, axis_of, fitted, known
from gdlab.load.shared import Malformed, Unsupported

COUNTED = 1 << 23  # rows that an index which is computed as f32 may number
MOST_ROUNDS = 64  # updates of one element by constant indices


# take -----------------------------------------------------------------------------------------------------------------
def _gather_elements(call: OnnxCall) -> Tensor:
    x, at = call.tensor(0), call.tensor(1)
    axis = axis_of(call.integer("axis"), len(x.shape))
    if len(at.shape) != len(x.shape) or any(n > m for i, (n, m) in enumerate(zip(at.shape, x.shape, strict=True))
                                            if i != axis):  # fmt: skip
        raise Malformed("indices", list(at.shape), f"the rank of {list(x.shape)}, and extents within it")
    for i, n in enumerate(at.shape):
        x = x if i == axis else taken(call.home, x, i, range(n))
    if x.known and at.known:
        call.home.check_size(at.shape)
        places = _front(np.asarray(at.array), x.shape[axis])
        return known(np.take_along_axis(np.asarray(x.array), places, axis), x.kind)
    found = ops.take_along_axis(call.home.number(x), call.home.indices(at, x.shape[axis]), axis)
    return fitted(found, at.shape, x.kind)


def _front(at: Array, extent: int) -> Array:
    """Return constant indices, counted from the front."""
    if at.size and not -extent <= at.min() <= at.max() < extent:
        raise Malformed("indices", f"{at.min()} … {at.max()}", f"{-extent} … {extent - 1}")
    return np.where(at < 0, at + extent, at).astype(np.int64)


Rows = Array | Value  # numbers of rows: known, or u32


def _rows(call: OnnxCall, at: Tensor, shape: Shape, batch: int = 0) -> Rows:
    """Return the number of the row of [shape, …] that each tuple of indices names; the first `batch` axes are shared
    with the tuples."""
    lead, width = at.shape[:-1], at.shape[-1]
    extents = shape[batch : batch + width]
    if width < 1 or width > len(shape) - batch or lead[:batch] != shape[:batch]:
        raise Malformed("indices", list(at.shape), f"tuples of at most {len(shape) - batch} indices of {list(shape)}")
    steps = [math.prod(extents[i + 1 :]) for i in range(width)]
    each, count = math.prod(extents), math.prod(lead[batch:])
    call.home.check_size(lead)
    offsets = np.repeat(np.arange(math.prod(lead[:batch])) * each, count)
    if at.known:
        tuples = np.asarray(at.array).reshape(-1, width)
        columns = [_front(tuples[:, i], n) * step for i, (n, step) in enumerate(zip(extents, steps, strict=True))]
        return np.asarray(offsets + sum(columns), np.int64)
    if math.prod(shape[: batch + width]) > COUNTED:
        raise Unsupported(f"indices that are computed, of more than {COUNTED:,} rows")
    number = call.home.number(at).reshape((-1, width))
    signed = ops.where(ops.less(number, 0.0), number + ops.constant(np.array([extents], np.float32)), number)
    flat = ops.sum(signed * ops.constant(np.array([steps], np.float32)), (1,))
    return ops.to_u32(flat if not batch else flat + ops.constant(offsets.astype(np.float32)))


def _gather_nd(call: OnnxCall) -> Tensor:
    x, at, batch = call.tensor(0), call.tensor(1), call.integer("batch_dims")
    if not at.shape or not 0 <= batch < min(len(at.shape), len(x.shape)):
        raise Malformed("batch_dims", batch, f"0 … of {list(at.shape)} and {list(x.shape)}")
    places = _rows(call, at, x.shape, batch)
    inner = x.shape[batch + at.shape[-1] :]
    rows = reshaped(call.home, x, (math.prod(x.shape[: batch + at.shape[-1]]), math.prod(inner)))
    shape = (*at.shape[:-1], *inner)
    if isinstance(places, Value):
        return fitted(ops.gather(call.home.number(rows), places, 0), shape, x.kind)
    return reshaped(call.home, taken(call.home, rows, 0, places.tolist()), shape)


# put ------------------------------------------------------------------------------------------------------------------
def _scatter_elements(call: OnnxCall) -> Tensor:
    x, at, updates = (call.tensor(i) for i in range(3))
    axis = axis_of(call.integer("axis"), len(x.shape))
    if len(at.shape) != len(x.shape) or updates.shape != at.shape:
        raise Malformed("indices", list(at.shape), f"the rank of {list(x.shape)}, and updates of their shape")
    call.home.check_size(at.shape)
    step, extent = math.prod(x.shape[axis + 1 :]), x.shape[axis]
    where = np.indices(at.shape).reshape(len(at.shape), -1)
    where[axis] = 0
    offsets = np.ravel_multi_index(tuple(where), x.shape)
    places: Rows
    if at.known:
        places = offsets + _front(np.asarray(at.array).reshape(-1), extent) * step
    elif x.size > COUNTED:
        raise Unsupported(f"indices that are computed, of more than {COUNTED:,} elements")
    else:
        numbers = call.home.number(at).reshape((at.size,))
        signed = ops.where(ops.less(numbers, 0.0), numbers + float(extent), numbers)
        places = ops.to_u32(signed * float(step) + ops.constant(offsets.astype(np.float32)))
    return _put(call, x, (x.size, 1), places, updates)


def _scatter_nd(call: OnnxCall) -> Tensor:
    x, at, updates = (call.tensor(i) for i in range(3))
    if not at.shape:
        raise Malformed("indices", "a scalar", "tuples of indices")
    places, inner = _rows(call, at, x.shape), x.shape[at.shape[-1] :]
    if updates.shape != (*at.shape[:-1], *inner):
        raise Malformed("updates", list(updates.shape), f"{[*at.shape[:-1], *inner]}")
    return _put(call, x, (math.prod(x.shape[: at.shape[-1]]), math.prod(inner)), places, updates)


Combine = Callable[[Any, Any], Value]
COMBINE: dict[str, tuple[Combine, Callable[..., Any]]] = {
    "mul": (ops.mul, np.multiply), "max": (ops.maximum, np.maximum), "min": (ops.minimum, np.minimum),
}  # fmt: skip


def _put(call: OnnxCall, x: Tensor, shape: Shape, places: Rows, updates: Tensor) -> Tensor:
    """Return x with the updates written to the rows that `places` numbers."""
    how, count = call.text("reduction", "none"), math.prod(places.shape)
    rows, new = reshaped(call.home, x, shape), reshaped(call.home, updates, (count, shape[1]))
    if how not in ("none", "add", *COMBINE):
        raise Malformed("reduction", repr(how), "none, add, mul, max or min")
    if isinstance(places, Value):
        return fitted(_put_computed(call, rows, places, new, how), x.shape, x.kind)
    if how == "none":
        return reshaped(call.home, _replaced(call, rows, places, new), x.shape)
    if how == "add" and not (rows.known and new.known):
        added = ops.scatter_add(ops.constant_u32(places), call.home.number(new), shape[0])
        return fitted(call.home.number(rows) + added, x.shape, x.kind)
    return reshaped(call.home, _combined(call, rows, places, new, how), x.shape)


def _replaced(call: OnnxCall, rows: Tensor, places: Array, new: Tensor) -> Tensor:
    """Replace the rows at constant places by those of `new`; of equal places the last counts."""
    source = np.arange(rows.shape[0])
    source[places] = rows.shape[0] + np.arange(len(places))
    return taken(call.home, joined(call.home, (rows, new), 0), 0, source.tolist())


def _combined(call: OnnxCall, rows: Tensor, places: Array, new: Tensor, how: str) -> Tensor:
    """Combine rows with updates, in as many rounds as one row has updates."""
    make, fold = COMBINE.get(how, (ops.add, np.add))
    order = np.argsort(places, kind="stable")
    first = np.searchsorted(places[order], places[order])
    rounds = np.empty(len(places), np.int64)
    rounds[order] = np.arange(len(places)) - first
    if len(places) and rounds.max() >= MOST_ROUNDS:
        raise Unsupported(f"{rounds.max() + 1} updates of one element, where at most {MOST_ROUNDS} are taken")
    for turn in range(int(rounds.max(initial=-1)) + 1):
        chosen = np.flatnonzero(rounds == turn)
        old, more = taken(call.home, rows, 0, places[chosen].tolist()), taken(call.home, new, 0, chosen.tolist())
        if old.known and more.known:
            made = known(fold(old.array, more.array), rows.kind)
        else:
            made = fitted(make(call.home.number(old), call.home.number(more)), old.shape, rows.kind)
        rows = _replaced(call, rows, places[chosen], made)
    return rows


def _put_computed(call: OnnxCall, rows: Tensor, places: Value, new: Tensor, how: str) -> Value:
    """Write rows to places that the graph computes. Of several updates of one row ONNX does not say which counts: NaN.
    """
    x, updates = call.home.number(rows), call.home.number(new)
    added = ops.scatter_add(places, updates, rows.shape[0])
    if how == "add":
        return x + added
    if how != "none":
        raise Unsupported(f"reduction={how} with indices that are computed in the graph")
    hits = ops.scatter_add(places, ops.full((new.shape[0], 1), 1.0), rows.shape[0])
    return ops.where(hits, added + ops.stop_gradient(ops.sqrt(1.0 - hits)), x)  # √(1 − 2) is NaN


# choose ---------------------------------------------------------------------------------------------------------------
def _top_k(call: OnnxCall) -> Sequence[Tensor]:
    """Return the k largest (smallest) along an axis and their places, largest first."""
    x = call.tensor(0)
    axis = axis_of(call.integer("axis", -1), len(x.shape))
    count = call.static_ints(1) if len(call.inputs) > 1 else (call.integer("k"),)
    if not count or len(count) != 1 or not 1 <= count[0] <= x.shape[axis]:
        raise Malformed("k", count, f"one int in 1 … {x.shape[axis]}")
    order = (*(i for i in range(len(x.shape)) if i != axis), axis)
    lead, back = tuple(x.shape[i] for i in order[:-1]), tuple(order.index(i) for i in range(len(order)))
    rows = call.home.number(permuted(call.home, x, order)).reshape((math.prod(lead), x.shape[axis]))
    places = ops.top_k_indices(rows if call.integer("largest", 1) else -rows, count[0])
    values = ops.take_along_axis(rows, places, 1)
    shape = (*lead, count[0])
    found = (fitted(values, shape, x.kind), replace(fitted(places, shape, "int"), dtype="int64"))
    first, second = (permuted(call.home, t, back) for t in found)
    return replace(first, dtype=x.dtype), replace(second, dtype="int64", bounds=(0, x.shape[axis]))


def _one_hot(call: OnnxCall) -> Tensor:
    at, count, values = call.tensor(0), call.static(1), call.tensor(2)
    if count is None or count.size != 1 or values.shape != (2,) or (depth := int(count.reshape(-1)[0])) < 1:
        raise Malformed("depth and values", count, "an int ≥ 1, and two values")
    axis = call.integer("axis", -1)
    axis = axis_of(axis, len(at.shape) + 1)
    lined = (*at.shape[:axis], 1, *at.shape[axis:])
    shape = tuple(depth if i == axis else n for i, n in enumerate(lined))
    call.home.check_size(shape)
    classes = np.arange(depth).reshape(tuple(depth if i == axis else 1 for i in range(len(lined))))
    off, on = (taken(call.home, values, 0, [i]) for i in (0, 1))
    if at.known:
        numbers = np.asarray(at.array).reshape(lined)
        mask = np.where(numbers < 0, numbers + depth, numbers) == classes
        if values.known:
            return known(np.where(mask, np.asarray(on.array), np.asarray(off.array)), values.kind)
        chosen = call.home.number(known(mask))
    else:
        number = call.home.number(at).reshape(lined)
        number = ops.where(ops.less(number, 0.0), number + float(depth), number)
        chosen = ops.equal(number, ops.constant(classes.astype(np.float32)))
    return fitted(ops.where(chosen, call.home.operand(on), call.home.operand(off)), shape, values.kind)


# running sums ---------------------------------------------------------------------------------------------------------
def _running(call: OnnxCall, x: Array, axis: int, fold: Any) -> Array:
    """Fold known elements up to each one, or up to the one before it, from the front or from the end."""
    facing = np.flip(x, axis) if call.integer("reverse") else x
    if call.integer("exclusive"):
        first = np.full_like(np.take(facing, [0], axis), fold.identity)
        facing = np.concatenate([first, np.take(facing, range(x.shape[axis] - 1), axis)], axis)
    sums = fold.accumulate(facing, axis, dtype=x.dtype)
    return np.asarray(np.flip(sums, axis) if call.integer("reverse") else sums)


def _axis(call: OnnxCall) -> int:
    axis = call.static_ints(1)
    if axis is None or len(axis) != 1:
        raise Malformed("axis", axis, "one int")
    return axis_of(axis[0], len(call.tensor(0).shape))


def _cumsum(call: OnnxCall) -> Tensor:
    x, axis = call.tensor(0), _axis(call)
    if x.known:
        call.home.check_size(x.shape)
        return known(_running(call, np.asarray(x.array), axis, np.add), x.kind)
    order = (*(i for i in range(len(x.shape)) if i != axis), axis)
    value = call.home.number(permuted(call.home, x, order))
    value = (ops.exclusive_cumsum if call.integer("exclusive") else ops.cumsum)(value, bool(call.integer("reverse")))
    moved = Tensor(tuple(x.shape[i] for i in order), x.kind, value)
    return permuted(call.home, moved, tuple(order.index(i) for i in range(len(order))))


def _cumprod(call: OnnxCall) -> Tensor:
    x, axis = call.tensor(0), _axis(call)
    if x.known:
        call.home.check_size(x.shape)
        return known(_running(call, np.asarray(x.array), axis, np.multiply), x.kind)
    n = x.shape[axis]
    if n > MOST_ROUNDS or x.kind != "float":
        raise Unsupported(f"running products of {n} computed values, where at most {MOST_ROUNDS} floats are taken")
    parts = [call.home.number(taken(call.home, x, axis, [i])) for i in range(n)]
    parts = parts[::-1] if call.integer("reverse") else parts
    parts = [ops.full(parts[0].shape, 1.0), *parts[:-1]] if call.integer("exclusive") else parts
    made = list(accumulate(parts, ops.mul))
    made = made[::-1] if call.integer("reverse") else made
    return fitted(made[0] if n == 1 else ops.concat(made, axis), x.shape)


# what depends on values -----------------------------------------------------------------------------------------------
def _non_zero(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    if not x.known:
        raise Unsupported("places of values that are computed in the graph: their number is not known")
    call.home.check_size(x.shape)
    return replace(known(np.array(np.nonzero(np.atleast_1d(np.asarray(x.array))), np.int64), "int"), dtype="int64")


def _compress(call: OnnxCall) -> Tensor:
    x, mask = call.tensor(0), call.static(1)
    if mask is None:
        raise Malformed("condition", "none", "a mask")
    if "axis" not in call.node.attrs:
        x, axis = reshaped(call.home, x, (x.size,)), 0
    else:
        axis = axis_of(call.integer("axis"), len(x.shape))
    return taken(call.home, x, axis, np.flatnonzero(mask.reshape(-1)[: x.shape[axis]]).tolist())


INDEXING: Table = {
    "GatherElements": _gather_elements, "GatherND": _gather_nd, "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements, "ScatterND": _scatter_nd, "TopK": _top_k, "OneHot": _one_hot, "CumSum": _cumsum,
    "CumProd": _cumprod, "NonZero": _non_zero, "Compress": _compress,
}  # fmt: skip
