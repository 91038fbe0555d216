"""Translate gather, scatter and slices whose beginning is computed: all take or put rows of a matrix by number.

Axes that are indexed, or of which a part is taken, come first and number the rows; whole axes are the rows. Numbers are
constants where the indices are, else a few nodes of integers. Indices outside the tensor are what their mode says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gdlab.base.types import Shape
from gdlab.load.jaxpr.equation import Equation, Translation
from gdlab.load.onnx.numbers import bounds_of
from gdlab.load.onnx.tensor import Tensor, kind_of, known
from gdlab.load.shared import Unsupported

CLIP, FILL_OR_DROP = 1, 2  # of jax.lax.GatherScatterMode
Starts = Mapping[int, Tensor]  # of an axis of the tensor, where each slice begins


@dataclass(frozen=True, slots=True)
class _Rows:
    """Slices of a tensor as rows of a matrix: `first` axes number the rows, `whole` axes are the rows. `places`: the
    rows' numbers [indices …, first …]; `inside`: which indices name slices inside the tensor, None where all do."""

    first: tuple[int, ...]
    whole: tuple[int, ...]
    places: Tensor
    inside: Tensor | None

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the tensor, those that number rows first."""
        return (*self.first, *self.whole)


def _rows(e: Equation, shape: Shape, lead: Shape, starts: Starts, sizes: Sequence[int]) -> _Rows:
    """Return the rows that slices of these sizes are made of, one slice for each place of `lead`."""
    first = tuple(k for k, n in enumerate(shape) if sizes[k] != n)
    window = tuple(int(sizes[k]) for k in first)
    e.call.home.check_size((*lead, *window))
    inside: Tensor | None = None
    place = replace(known(np.zeros(lead, np.int64)), dtype="int64")
    for axis, start in starts.items():
        limit = shape[axis] - int(sizes[axis])
        low, high = bounds_of(start)
        if low < 0 or high > limit:
            fits = e.onnx("And", e.onnx("GreaterOrEqual", start, _int(0)), e.onnx("LessOrEqual", start, _int(limit)))
            inside = fits if inside is None else e.onnx("And", inside, fits)
            start = e.onnx("Max", e.onnx("Min", start, _int(limit)), _int(0))
        if axis in first:
            stride = math.prod(shape[k] for k in first[first.index(axis) + 1 :])
            place = e.onnx("Add", place, e.onnx("Mul", start, _int(stride)))
    if inside is not None and inside.known and np.asarray(inside.array).all():
        inside = None
    offsets = np.arange(math.prod(shape[k] for k in first)).reshape([shape[k] for k in first])
    offsets = offsets[tuple(slice(n) for n in window)]
    places = e.onnx("Add", e.reshaped(place, (*lead, *[1] * len(first))), replace(known(offsets), dtype="int64"))
    return _Rows(first, tuple(k for k in range(len(shape)) if k not in first), places, inside)


def _int(number: int) -> Tensor:
    return replace(known(np.int64(number)), dtype="int64")


def _starts(e: Equation, index: Tensor, axes: Sequence[int], shared: Mapping[int, int]) -> dict[int, Tensor]:
    """Return the beginnings of slices: tuples of indices name places along `axes`; along an axis that is `shared` with
    the indices each takes its own place."""
    lead = index.shape[:-1]
    index = e.call.cast(index, "int64")
    found = {int(axis): e.onnx("Gather", index, _int(i), axis=len(lead)) for i, axis in enumerate(axes)}
    for axis, i in shared.items():
        e.call.home.check_size(lead)
        counted = np.arange(lead[i]).reshape([-1 if k == i else 1 for k in range(len(lead))])
        found[axis] = replace(known(np.broadcast_to(counted, lead)), dtype="int64")
    return found


def _matrix(e: Equation, x: Tensor, rows: _Rows) -> Tensor:
    count = math.prod(x.shape[k] for k in rows.first)
    return e.reshaped(e.permuted(x, rows.order), (count, math.prod(x.shape[k] for k in rows.whole)))


def _flat(e: Equation, x: Tensor, columns: int) -> Tensor:
    return e.reshaped(x, (x.size // columns, columns))


# take -----------------------------------------------------------------------------------------------------------------
def _taken(e: Equation, x: Tensor, rows: _Rows, sizes: Sequence[int], lead: Shape) -> Tensor:
    """Return slices as [indices …, axes of the tensor in the order of its rows …]."""
    at = e.reshaped(rows.places, (rows.places.size,))
    made = e.call.like(x, e.onnx("Gather", _matrix(e, x, rows), at, axis=0))
    return e.reshaped(made, (*lead, *(sizes[k] for k in rows.order)))


def gathered(e: Equation, x: Tensor, index: Tensor) -> Tensor:
    """Return slices of a tensor by tuples of indices."""
    d, sizes, mode = e.params["dimension_numbers"], tuple(map(int, e.params["slice_sizes"])), _mode(e)
    shared = dict(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    starts, lead = _starts(e, index, d.start_index_map, shared), index.shape[:-1]
    simple = _by_one_axis(e, x, starts, sizes, mode)
    if simple is not None:
        return simple
    rows = _rows(e, x.shape, lead, starts, sizes)
    made = _taken(e, x, rows, sizes, lead)
    if rows.inside is not None and mode == FILL_OR_DROP:
        here = e.reshaped(rows.inside, (*lead, *[1] * len(x.shape)))
        made = e.onnx("Where", here, made, _fill(e, x))
    gone = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    kept = [k for k in rows.order if k not in gone]
    made = e.reshaped(made, (*lead, *(sizes[k] for k in kept)))
    places = [k for k in range(len(e.shape)) if k not in d.offset_dims]
    own = dict(zip(places, range(len(lead)), strict=True))
    own |= {at: len(lead) + kept.index(k) for at, k in zip(d.offset_dims, sorted(kept), strict=True)}
    return e.call.like(x, e.permuted(made, [own[k] for k in range(len(e.shape))]))


def _by_one_axis(e: Equation, x: Tensor, starts: Starts, sizes: Sequence[int], mode: int) -> Tensor | None:
    """Return whole slices of one axis by indices, or an element of one axis for each place of the others, as one node;
    None for anything else. Indices that the graph computes are taken to be inside, unless they are clipped."""
    d = e.params["dimension_numbers"]
    if len(d.start_index_map) != 1:
        return None
    axis, rank = int(d.start_index_map[0]), len(x.shape)
    at, limit, rest = starts[axis], x.shape[axis] - 1, tuple(k for k in range(rank) if k != axis)
    low, high = bounds_of(at)
    if at.known and not 0 <= low <= high <= limit:
        return None
    if mode == CLIP and (low < 0 or high > limit):
        at = e.onnx("Max", e.onnx("Min", at, _int(limit)), _int(0))
    if rest and d.operand_batching_dims == d.start_indices_batching_dims == rest and len(at.shape) == rank:
        return e.call.like(x, e.onnx("GatherElements", x, at, axis=axis))
    if d.operand_batching_dims or d.collapsed_slice_dims != (axis,) or any(sizes[k] != x.shape[k] for k in rest):
        return None
    made = e.call.like(x, e.onnx("Gather", x, at, axis=axis))  # axes before, of the indices, behind
    count = len(at.shape)
    places = [k for k in range(rank - 1 + count) if k not in d.offset_dims]
    own = dict(zip(d.offset_dims, (*range(axis), *range(axis + count, rank - 1 + count)), strict=True))
    own |= dict(zip(places, range(axis, axis + count), strict=True))
    return e.permuted(made, [own[k] for k in range(rank - 1 + count)])


def _mode(e: Equation) -> int:
    return int(e.params["mode"].value)


def _fill(e: Equation, x: Tensor) -> Tensor:
    """Return the element at indices outside, JAX's default if the equation has none."""
    value, kind = e.params["fill_value"], kind_of(x.dtype)
    if value is None and kind == "int":
        value = np.iinfo(x.dtype).max if x.dtype.startswith("u") else np.iinfo(x.dtype).min
    if value is None:
        value = math.nan if kind == "float" else True
    return e.call.number(np.asarray(value).item(), x.dtype)


# put ------------------------------------------------------------------------------------------------------------------
def scattered(reduction: str) -> Translation:
    """Return the translation that writes slices over others, or combines both by this reduction."""

    def translate(e: Equation, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
        d, computed = e.params["dimension_numbers"], e.params.get("update_jaxpr")
        if reduction == "none" and computed is not None and computed.eqns:
            raise Unsupported("`.at[…].apply(f)`: write `x.at[i].set(f(x[i]))`")
        gone = {*map(int, d.inserted_window_dims), *map(int, d.operand_batching_dims)}
        kept = [k for k in range(len(x.shape)) if k not in gone]
        sizes = [1] * len(x.shape)
        for k, at in zip(kept, d.update_window_dims, strict=True):
            sizes[k] = updates.shape[at]
        shared = {int(a): int(i) for a, i in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True)}
        starts, lead = _starts(e, index, d.scatter_dims_to_operand_dims, shared), index.shape[:-1]
        rows = _rows(e, x.shape, lead, starts, sizes)
        window = dict(zip(kept, d.update_window_dims, strict=True))
        outer = [k for k in range(len(updates.shape)) if k not in d.update_window_dims]
        new = e.permuted(updates, [*outer, *(window[k] for k in rows.order if k in window)])
        return _put(e, x, rows, new, reduction, _mode(e) != CLIP)

    return translate


def _put(e: Equation, x: Tensor, rows: _Rows, new: Tensor, reduction: str, drop: bool) -> Tensor:
    """Return x with these rows written at their places; `drop`: leave rows of outside indices out, else clip these
    indices."""
    columns = math.prod(x.shape[k] for k in rows.whole)
    places, new = e.reshaped(rows.places, (rows.places.size, 1)), _flat(e, new, columns)
    if drop and rows.inside is not None:
        lead = rows.inside.shape
        here = e.aten("expand", e.reshaped(rows.inside, (*lead, *[1] * len(rows.first))), rows.places.shape)
        here = e.reshaped(here, (here.size, 1))
        if here.known and places.known:
            at = e.ints(np.flatnonzero(np.asarray(here.array)).tolist())
            if not at.size:
                return x
            places, new = (e.call.like(t, e.onnx("Gather", t, at, axis=0)) for t in (places, new))
        else:  # a row behind the last one is left out
            places = e.onnx("Where", here, places, _int(math.prod(x.shape[k] for k in rows.first)))
    made = e.onnx("ScatterND", _matrix(e, x, rows), places, new, reduction=reduction)
    made = e.reshaped(made, [x.shape[k] for k in rows.order])
    return e.permuted(made, [rows.order.index(k) for k in range(len(x.shape))])


# slices ---------------------------------------------------------------------------------------------------------------
def _beginnings(e: Equation, starts: Sequence[Tensor]) -> dict[int, Tensor]:
    return {k: e.call.cast(start, "int64") for k, start in enumerate(starts)}


def dynamic_slice(e: Equation, x: Tensor, *starts: Tensor) -> Tensor:
    """Return a slice of constant sizes, moved so far that it lies inside."""
    sizes = e.shape
    if all(start.known for start in starts):
        first = [min(max(int(np.asarray(s.array)), 0), n - size)
                 for s, n, size in zip(starts, x.shape, sizes, strict=True)]  # fmt: skip
        return e.cut(x, first, [a + size for a, size in zip(first, sizes, strict=True)], [1] * len(sizes))
    rows = _rows(e, x.shape, (), _beginnings(e, starts), sizes)
    made = _taken(e, x, rows, sizes, ())
    return e.call.like(x, e.permuted(made, [rows.order.index(k) for k in range(len(sizes))]))


def dynamic_update_slice(e: Equation, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    """Return the tensor with a slice written over another, moved so far that it lies inside."""
    rows = _rows(e, x.shape, (), _beginnings(e, starts), update.shape)
    return _put(e, x, rows, e.permuted(update, rows.order), "none", False)
