"""ONNX ops that move elements or give sizes: constants are computed at once, others become ops of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.load.onnx.tensor import GraphParameters, OnnxCall, Table, Tensor, axis_of, fitted, known
from gdlab.load.shared import Malformed, Unsupported, common


# moves on either kind of tensor ---------------------------------------------------------------------------------------
def reshaped(home: GraphParameters, x: Tensor, shape: Shape) -> Tensor:
    """Return the elements of x in row-major order."""
    if math.prod(shape) != x.size:
        raise Malformed("shape", list(shape), f"{x.size} elements, as in {list(x.shape)}")
    if x.known:
        assert x.array is not None  # known
        return known(x.array.reshape(shape), x.kind)
    if shape == x.shape:
        return x
    return fitted(home.value(x), shape, x.kind)


def permuted(home: GraphParameters, x: Tensor, perm: Sequence[int]) -> Tensor:
    """Return x with its axes permuted: axis i of the result is axis perm[i] of x."""
    if sorted(perm) != list(range(len(x.shape))):
        raise Malformed("perm", list(perm), f"each of {len(x.shape)} axes once")
    if x.known:
        assert x.array is not None  # known
        return known(x.array.transpose(perm), x.kind)
    if list(perm) == sorted(perm):
        return x
    shape, value = tuple(x.shape[axis] for axis in perm), home.value(x)
    if tuple(perm) == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2):
        return Tensor(shape, x.kind, ops.transpose(value))
    return Tensor(shape, x.kind, ops.permute(value, tuple(perm)))


def broadcast(home: GraphParameters, x: Tensor, shape: Shape) -> Tensor:
    """Return x repeated to `shape`, to which it must broadcast."""
    if common(x.shape, shape) != shape:
        raise Malformed("shape", list(shape), f"a shape to which {list(x.shape)} broadcasts")
    if x.known:
        home.check_size(shape)
        return known(np.broadcast_to(np.asarray(x.array), shape), x.kind)
    return x if shape == x.shape else Tensor(shape, x.kind, ops.broadcast_to(home.value(x), shape or (1,)))


def taken(home: GraphParameters, x: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    """Return the elements at these places along an axis: a slice where they are evenly spaced, else gathered."""
    n, at = x.shape[axis], _even(places)
    shape = (*x.shape[:axis], len(at), *x.shape[axis + 1 :])
    if x.known:
        home.check_size(shape)
        return known(np.take(np.asarray(x.array), at, axis), x.kind)
    if not at:
        raise Malformed("slice", "no element", "at least one")
    if at == range(n):
        return x
    if isinstance(at, range) and at.step > 0:
        starts, stops, steps = [0] * len(shape), list(x.shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = at[0], at[-1] + 1, at.step
        return Tensor(shape, x.kind, ops.slice(home.value(x), tuple(starts), tuple(stops), tuple(steps)))
    home.check_size((len(at),))
    return Tensor(shape, x.kind, ops.gather(home.number(x), ops.constant_u32(np.asarray(at)), axis))


def _even(places: Sequence[int]) -> Sequence[int]:
    """Return evenly spaced places as a range, because a model may ask for more than memory holds."""
    if isinstance(places, range) or not places:
        return places
    step = places[1] - places[0] if len(places) > 1 else 1
    even = range(places[0], places[-1] + (1 if step > 0 else -1), step) if step else None
    return places if even is None or list(even) != list(places) else even


def padded(home: GraphParameters, x: Tensor, lo: Sequence[int], hi: Sequence[int], fill: float) -> Tensor:
    """Pad x with `fill` at the ends of every axis; a negative number removes elements."""
    for axis, (a, b) in enumerate(zip(lo, hi, strict=True)):
        if a < 0 or b < 0:
            x = taken(home, x, axis, range(max(-a, 0), x.shape[axis] - max(-b, 0)))
    lo, hi = [max(a, 0) for a in lo], [max(b, 0) for b in hi]
    shape = tuple(a + n + b for a, n, b in zip(lo, x.shape, hi, strict=True))
    if x.known:
        home.check_size(shape)
        return known(np.pad(np.asarray(x.array), list(zip(lo, hi, strict=True)), constant_values=fill), x.kind)
    if shape == x.shape:
        return x
    value = home.number(x) if fill < 0 or fill != int(fill) else home.value(x)
    return Tensor(shape, x.kind, ops.pad(value, tuple(lo), tuple(hi), fill))


# shapes ---------------------------------------------------------------------------------------------------------------
def _reshape(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    target = call.static_ints(1) if len(call.inputs) > 1 else call.integers("shape")  # before opset 5 an attribute
    if target is None:
        raise Malformed("inputs", "no shape", "a shape")
    if not call.integer("allowzero"):
        if any(n == 0 and i >= len(x.shape) for i, n in enumerate(target)):
            raise Malformed("shape", list(target), f"0 only for axes of {list(x.shape)}")
        target = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(target))
    if target.count(-1) > 1 or min(target, default=0) < -1:
        raise Malformed("shape", list(target), "extents, and at most one -1")
    rest = math.prod(n for n in target if n != -1)
    if -1 in target and (rest == 0 or x.size % rest):
        raise Malformed("shape", list(target), f"{x.size} elements, as in {list(x.shape)}")
    return reshaped(call.home, x, tuple(x.size // rest if n == -1 else n for n in target))


def _flatten(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    rank, axis = len(x.shape), call.integer("axis", 1)
    axis = rank if axis == rank else axis_of(axis, rank)
    return reshaped(call.home, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _axes(call: OnnxCall, rank: int) -> tuple[int, ...] | None:
    """Return the axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    given = call.static_ints(1) if len(call.inputs) > 1 else call.integers("axes")
    axes = None if given is None else tuple(axis_of(axis, rank) for axis in given)
    if axes is not None and len(set(axes)) != len(axes):
        raise Malformed("axes", list(given or ()), "each axis once")
    return axes


def _squeeze(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    axes = _axes(call, len(x.shape))
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1) if axes is None else axes
    if any(x.shape[axis] != 1 for axis in axes):
        raise Malformed("axes", list(axes), f"axes of extent 1 of {list(x.shape)}")
    return reshaped(call.home, x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _unsqueeze(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    given = call.static_ints(1) if len(call.inputs) > 1 else call.integers("axes")
    axes = _axes(call, len(x.shape) + len(given or ()))
    if axes is None:
        raise Malformed("axes", "none", "the axes to insert")
    old = iter(x.shape)
    shape = tuple(1 if i in axes else next(old) for i in range(len(x.shape) + len(axes)))
    return reshaped(call.home, x, shape)


def _transpose(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    perm = call.integers("perm")
    return permuted(call.home, x, tuple(range(len(x.shape)))[::-1] if perm is None else perm)


def _expand(call: OnnxCall) -> Tensor:
    x, target = call.tensor(0), call.static_ints(1)
    return broadcast(call.home, x, common(x.shape, target or ()))


def _tile(call: OnnxCall) -> Tensor:
    x, repeats = call.tensor(0), call.static_ints(1) or ()
    if len(repeats) != len(x.shape) or min(repeats, default=1) < 0:
        raise Malformed("repeats", list(repeats), f"one for each of {len(x.shape)} axes")
    if x.known:
        call.home.check_size(tuple(n * r for n, r in zip(x.shape, repeats, strict=True)))
        return known(np.tile(np.asarray(x.array), repeats), x.kind)
    value = call.home.value(x)
    for axis, r in enumerate(repeats):
        if r != 1:
            before, behind, shape = math.prod(value.shape[:axis]), math.prod(value.shape[axis:]), list(value.shape)
            shape[axis] *= r
            rows = ops.broadcast_to(value.reshape((before, 1, behind)), (before, r, behind))
            value = rows.reshape(tuple(shape))
    return fitted(value, tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), x.kind)


def _identity(call: OnnxCall) -> Tensor:
    return call.tensor(0)


def _dropout(call: OnnxCall) -> Sequence[Tensor]:
    x, training = call.tensor(0), call.static(2)
    if training is not None and training.any() and call.static(1) is not None and np.any(call.static(1)):
        raise Unsupported("dropout while training")
    if len(call.node.outputs) == 1:
        return (x,)
    return x, fitted(ops.full(x.held, 1.0), x.shape, "bool")


# pieces ---------------------------------------------------------------------------------------------------------------
def joined(home: GraphParameters, parts: Sequence[Tensor], axis: int) -> Tensor:
    if all(t.known for t in parts):
        home.check_size((sum(t.size for t in parts),))
        return known(np.concatenate([np.asarray(t.array) for t in parts], axis), parts[0].kind)
    values = [home.value(t) for t in parts]
    if len({v.type.dtype for v in values}) > 1:
        values = [home.number(t) for t in parts]
    shape = (*parts[0].shape[:axis], sum(t.shape[axis] for t in parts), *parts[0].shape[axis + 1 :])
    return Tensor(shape, parts[0].kind, values[0] if len(values) == 1 else ops.concat(values, axis))


def _concat(call: OnnxCall) -> Tensor:
    parts = [call.tensor(i) for i in range(max(1, len(call.inputs)))]
    axis = axis_of(call.integer("axis"), len(parts[0].shape))
    if any(len(t.shape) != len(parts[0].shape) for t in parts):
        raise Malformed("inputs", ", ".join(str(list(t.shape)) for t in parts), "equal ranks")
    return joined(call.home, [t for t in parts if t.size] or parts[:1], axis)


def _split(call: OnnxCall) -> Sequence[Tensor]:
    x = call.tensor(0)
    axis, count = axis_of(call.integer("axis"), len(x.shape)), len(call.node.outputs)
    n = x.shape[axis]
    sizes = call.static_ints(1) if len(call.inputs) > 1 and call.inputs[1] else call.integers("split")
    if sizes is None:
        each = -(-n // count)
        sizes = tuple(min(each, n - at * each) for at in range(count))
    if len(sizes) != count or sum(sizes) != n or min(sizes) < 0:
        raise Malformed("split", list(sizes), f"{count} extents ≥ 0 that add up to {n}")
    ends = np.cumsum(sizes).tolist()
    return [_part(call.home, x, axis, range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def _part(home: GraphParameters, x: Tensor, axis: int, places: range) -> Tensor:
    """Return the elements at these places; for no places an empty constant, which a later join leaves out."""
    if places:
        return taken(home, x, axis, places)
    return replace(known(np.zeros((*x.shape[:axis], 0, *x.shape[axis + 1 :])), x.kind), dtype=x.dtype)


def _slice(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    if len(call.inputs) > 1:
        starts, stops, axes, steps = (call.static_ints(i) for i in (1, 2, 3, 4))
    else:
        starts, stops, axes, steps = call.integers("starts"), call.integers("ends"), call.integers("axes"), None
    starts, stops = starts or (), stops or ()
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(stops) == len(axes) == len(steps) or 0 in steps:
        given = f"{list(starts)}, {list(stops)}, {list(axes)}, {list(steps)}"
        raise Malformed("starts, ends, axes, steps", given, "as many of each, and no step 0")
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        at = axis_of(axis, len(x.shape))
        x = taken(call.home, x, at, range(*slice(start, stop, step).indices(x.shape[at])))
    return x


def _gather(call: OnnxCall) -> Tensor:
    x, places = call.tensor(0), call.tensor(1)
    axis = axis_of(call.integer("axis"), len(x.shape))
    n, shape = x.shape[axis], (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    if places.known:
        at = np.asarray(places.array).reshape(-1)
        if at.size and not -n <= at.min() <= at.max() < n:
            raise Malformed("indices", f"{at.min()} … {at.max()}", f"{-n} … {n - 1}")
        return reshaped(call.home, taken(call.home, x, axis, [int(i) % n for i in at]), shape)
    flat = ops.reshape(call.home.indices(places, n), (places.size,))
    table = call.home.number(x)
    rows = ops.embedding(flat, table) if axis == 0 and len(x.shape) == 2 else ops.gather(table, flat, axis)
    return fitted(rows, shape, x.kind)


def _pad(call: OnnxCall) -> Tensor:
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    pads = call.static_ints(1) if len(call.inputs) > 1 else call.integers("pads") or call.integers("paddings")
    fill = call.static(2) if len(call.inputs) > 1 else np.float32(call.real("value"))
    axes = call.static_ints(3)
    axes = tuple(range(rank)) if axes is None else tuple(axis_of(axis, rank) for axis in axes)
    if pads is None or len(pads) != 2 * len(axes):
        raise Malformed("pads", pads, f"{2 * len(axes)} ints")
    lo, hi = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        lo[axis], hi[axis] = pads[i], pads[len(axes) + i]
    mode = call.text("mode", "constant")
    if mode == "constant":
        return padded(call.home, x, lo, hi, 0.0 if fill is None or not np.size(fill) else float(np.ravel(fill)[0]))
    return _mirrored(call.home, x, lo, hi, mode)


_MODES: dict[str, Any] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def _mirrored(home: GraphParameters, x: Tensor, lo: Sequence[int], hi: Sequence[int], mode: str) -> Tensor:
    """Pad x with a border of its own elements."""
    if mode not in _MODES:
        raise Malformed("mode", repr(mode), "constant, reflect, edge or wrap")
    for axis, (a, b) in enumerate(zip(lo, hi, strict=True)):
        home.check_size((x.shape[axis] + max(a, 0) + max(b, 0),))
        places = np.arange(max(-a, 0), x.shape[axis] - max(-b, 0))
        if not places.size:
            raise Malformed("pads", [a, b], f"something that is left of {x.shape[axis]}")
        x = taken(home, x, axis, np.pad(places, (max(a, 0), max(b, 0)), mode=_MODES[mode]).tolist())
    return x


def repeated_blocks(home: GraphParameters, x: Tensor, axis: int, block: int, extent: int) -> Tensor:
    """Repeat every entry of an axis `block` times, up to `extent` entries."""
    return taken(home, x, axis, [i // block for i in range(extent)])


# constants ------------------------------------------------------------------------------------------------------------
def _shape(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    start, end = call.integer("start"), call.node.attrs.get("end")
    return known(np.array(x.shape[slice(start, end)], np.int64), "int")


def _constant(call: OnnxCall) -> Tensor:
    forms: dict[str, Callable[[Any], Any]] = {
        "value": lambda t: t, "value_float": np.float32, "value_floats": lambda v: np.array(v, np.float32),
        "value_int": np.int64, "value_ints": lambda v: np.array(v, np.int64),
    }  # fmt: skip
    for name, given in call.node.attrs.items():
        if name in forms and given is not None:
            return given if isinstance(given, Tensor) else known(forms[name](given))
        raise Unsupported(f"a constant in the form of {name}")
    raise Malformed("value", "none", "a value")


def _constant_of_shape(call: OnnxCall) -> Tensor:
    shape, value = call.static_ints(0) or (), call.node.attrs.get("value")
    if min(shape, default=1) < 0:
        raise Malformed("shape", list(shape), "extents ≥ 0")
    fill = value if isinstance(value, Tensor) else known(np.float32(0))
    if fill.kind == "float" and math.prod(shape) > call.home.most:  # a graph needs no data for it
        return Tensor(shape, "float", ops.full(shape, float(np.asarray(fill.array).reshape(-1)[0])), dtype=fill.dtype)
    call.home.check_size(shape)
    return replace(known(np.full(shape, np.asarray(fill.array).reshape(-1)[0]), fill.kind), dtype=fill.dtype)


def _range(call: OnnxCall) -> Tensor:
    start, stop, step = (np.asarray(call.static(i)).reshape(-1)[0] for i in range(3))
    if step == 0:
        raise Malformed("delta", step, "a number other than 0")
    call.home.check_size((max(0, math.ceil((float(stop) - float(start)) / float(step))),))
    return known(np.arange(start, stop, step), call.tensor(0).kind)


def _trilu(call: OnnxCall) -> Tensor:
    x, k = call.tensor(0), call.static_ints(1) or (0,)
    call.home.check_size(x.shape[-2:])
    keep = (np.triu if call.integer("upper", 1) else np.tril)(np.ones(x.shape[-2:], np.bool_), k[0])
    if x.known:
        return known(np.where(keep, np.asarray(x.array), 0), x.kind)
    mask = call.home.number(known(keep, "bool"))
    return Tensor(x.shape, x.kind, ops.where(mask, call.number(0), 0.0))


def repeated(x: Value, factors: Shape) -> Value:
    """Repeat every element as a block of these extents."""
    for axis, r in enumerate(factors):
        if r > 1:
            before, n, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            rows = x.reshape((math.prod(before), n, 1, math.prod(behind)))
            wide = ops.broadcast_to(rows, (rows.shape[0], n, r, rows.shape[3]))
            x = wide.reshape((*before, n * r, *behind))
    return x


LAYOUT: Table = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Expand": _expand, "Tile": _tile, "Identity": _identity, "Dropout": _dropout, "Concat": _concat, "Split": _split,
    "Slice": _slice, "Gather": _gather, "Pad": _pad, "Shape": _shape, "Constant": _constant,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "Trilu": _trilu,
    "Size": lambda call: known(np.int64(call.tensor(0).size)),
}  # fmt: skip
