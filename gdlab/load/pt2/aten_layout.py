"""ATen operators that move, take, put or make elements: constants are computed at once, others become ops of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.load.onnx.onnx_layout import broadcast, permuted, taken
from gdlab.load.onnx.tensor import Tensor, fitted, known
from gdlab.load.pt2.call import Aten, Ints, Maybe, Number, Operand, Table, Tensors, Translate, axis
from gdlab.load.pt2.program import Dtype
from gdlab.load.shared import Malformed, Unsupported, common

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# shapes ---------------------------------------------------------------------------------------------------------------
def _resolved(x: Tensor, size: Ints) -> Shape:
    """Return a shape with −1 replaced by the extent that fits."""
    rest = math.prod(n for n in size if n != -1)
    if size.count(-1) > 1 or min(size, default=0) < -1 or (-1 in size and (not rest or x.size % rest)):
        raise Malformed("size", list(size), f"{x.size} elements, as in {list(x.shape)}")
    return tuple(x.size // rest if n == -1 else n for n in size)


def _view(c: Aten, self: Tensor, size: Ints) -> Tensor:
    return c.reshaped(self, _resolved(self, size))


def _reshape(c: Aten, self: Tensor, shape: Ints) -> Tensor:
    return c.reshaped(self, _resolved(self, shape))


def _flatten(c: Aten, self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    first, last = axis(start_dim, self), axis(end_dim, self)
    if not self.shape:
        return c.reshaped(self, (1,))
    inner = math.prod(self.shape[first : last + 1])
    return c.reshaped(self, (*self.shape[:first], inner, *self.shape[last + 1 :]))


def _unflatten(c: Aten, self: Tensor, dim: int, sizes: Ints) -> Tensor:
    at = axis(dim, self)
    inner = _resolved(Tensor((self.shape[at],)), sizes)
    return c.reshaped(self, (*self.shape[:at], *inner, *self.shape[at + 1 :]))


def _squeeze(c: Aten, self: Tensor, dim: Ints | None = None) -> Tensor:
    axes = range(len(self.shape)) if dim is None else [axis(d, self) for d in dim]
    return c.reshaped(self, tuple(n for i, n in enumerate(self.shape) if n != 1 or i not in axes))


def unsqueezed(c: Aten, self: Tensor, dim: int) -> Tensor:
    """Return x with a new axis of extent 1."""
    at = dim + len(self.shape) + 1 if dim < 0 else dim
    if not 0 <= at <= len(self.shape):
        raise Malformed("dim", dim, f"an axis of {len(self.shape) + 1}")
    return c.reshaped(self, (*self.shape[:at], 1, *self.shape[at:]))


def _permute(c: Aten, self: Tensor, dims: Ints) -> Tensor:
    return c.like(self, permuted(c.home, self, [axis(d, self) for d in dims]))


def _transpose(c: Aten, self: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(len(self.shape)))
    if order:
        a, b = axis(dim0, self), axis(dim1, self)
        order[a], order[b] = order[b], order[a]
    return c.like(self, permuted(c.home, self, order))


def _swapaxes(c: Aten, self: Tensor, axis0: int, axis1: int) -> Tensor:
    return _transpose(c, self, axis0, axis1)


def _t(c: Aten, self: Tensor) -> Tensor:
    return _transpose(c, self, -2, -1) if len(self.shape) > 1 else self


def _reversed(c: Aten, self: Tensor) -> Tensor:
    return c.like(self, permuted(c.home, self, tuple(range(len(self.shape)))[::-1]))


def _movedim(c: Aten, self: Tensor, source: Ints, destination: Ints) -> Tensor:
    start, end = [axis(d, self) for d in source], [axis(d, self) for d in destination]
    if len(start) != len(end):
        raise Malformed("destination", list(destination), f"{len(start)} axes")
    order = [i for i in range(len(self.shape)) if i not in start]
    for to, at in sorted(zip(end, start, strict=True)):
        order.insert(to, at)
    return c.like(self, permuted(c.home, self, order))


def _expand(c: Aten, self: Tensor, size: Ints, implicit: bool = False) -> Tensor:
    new = len(size) - len(self.shape)
    if new < 0:
        raise Malformed("size", list(size), f"at least the rank of {list(self.shape)}")
    shape = tuple(self.shape[i - new] if n == -1 and i >= new else n for i, n in enumerate(size))
    if min(shape, default=1) < 0:
        raise Malformed("size", list(size), "extents")
    return c.like(self, broadcast(c.home, c.reshaped(self, (*(1,) * new, *self.shape)), shape))


def _expand_as(c: Aten, self: Tensor, other: Tensor) -> Tensor:
    return _expand(c, self, other.shape)


def _broadcast_all(c: Aten, tensors: Tensors) -> tuple[Tensor, ...]:
    shape = common(*(t.shape for t in tensors))
    return tuple(c.like(t, broadcast(c.home, t, shape)) for t in tensors)


def _same(c: Aten, self: Tensor) -> Tensor:
    return self


def _detach(c: Aten, self: Tensor) -> Tensor:
    if not c.train or self.known or self.kind != "float":
        return self
    return c.like(self, fitted(ops.stop_gradient(c.value(self)), self.shape, self.kind))


def _cast(c: Aten, self: Tensor, dtype: Dtype | None = None) -> Tensor:
    return c.cast(self, c.meta.dtype)


def _cast_like(c: Aten, self: Tensor, other: Tensor) -> Tensor:
    return c.cast(self, c.meta.dtype)


def _dropout(c: Aten, input: Tensor, p: Number, train: bool) -> Tensor:
    if train and p:
        raise Unsupported("dropout while training: export the module after eval()")
    return input


def dropout_in_place(c: Aten, self: Tensor, p: Number, train: bool) -> Tensor:
    """Translate `dropout_`, whose first argument is called `self`, as `dropout`."""
    return _dropout(c, self, p, train)


def _as_strided(c: Aten, self: Tensor, size: Ints, stride: Ints, storage_offset: int | None = None) -> Tensor:
    """Return the operand in this shape if these strides are its own; raise for others, which would read other elements.
    """
    wanted = [(n, s) for n, s in zip(size, stride, strict=True) if n != 1]
    if storage_offset or wanted != c.laid_out("self"):
        raise Unsupported("elements by other strides than those of the operand")
    return c.reshaped(self, size)


# pieces ---------------------------------------------------------------------------------------------------------------
def _taken(c: Aten, x: Tensor, at: int, places: Sequence[int]) -> Tensor:
    if not len(places):  # a constant without elements, which is left out where it is joined
        return replace(known(np.zeros((*x.shape[:at], 0, *x.shape[at + 1 :])), x.kind), dtype=x.dtype)
    return c.like(x, taken(c.home, x, at, places))


def _slice(
    c: Aten, self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    at = axis(dim, self)
    if step < 1 or not self.shape:
        raise Malformed("step", step, "an int ≥ 1, of an axis")
    return _taken(c, self, at, range(*slice(start, end, step).indices(self.shape[at])))


def _select(c: Aten, self: Tensor, dim: int, index: int) -> Tensor:
    at = axis(dim, self)
    if not self.shape or not -self.shape[at] <= index < self.shape[at]:
        raise Malformed("index", index, f"an index of {list(self.shape)}")
    one = _taken(c, self, at, range(index % self.shape[at], index % self.shape[at] + 1))
    return c.reshaped(one, (*self.shape[:at], *self.shape[at + 1 :]))


def _narrow(c: Aten, self: Tensor, dim: int, start: int, length: int) -> Tensor:
    return _slice(c, self, dim, start, start + length if start >= 0 else (start + length or None))


def _cat(c: Aten, tensors: Tensors, dim: int = 0) -> Tensor:
    parts = [c.cast(t, c.meta.dtype) for t in tensors if t.shape != (0,)]
    if not parts:
        raise Malformed("tensors", "none", "one")
    return c.onnx("Concat", *parts, axis=axis(dim, parts[0]))


def _stack(c: Aten, tensors: Tensors, dim: int = 0) -> Tensor:
    if not tensors:
        raise Malformed("tensors", "none", "one")
    parts = tuple(unsqueezed(c, t, dim) for t in tensors)
    return _cat(c, parts, dim)


def _sizes(c: Aten, self: Tensor, split_sizes: Ints, dim: int = 0) -> tuple[Tensor, ...]:
    at = axis(dim, self)
    if sum(split_sizes) != self.shape[at] or min(split_sizes, default=0) < 0:
        raise Malformed("split_sizes", list(split_sizes), f"extents that add up to {self.shape[at]}")
    ends = np.cumsum(split_sizes).tolist()
    return tuple(_taken(c, self, at, range(e - n, e)) for e, n in zip(ends, split_sizes, strict=True))


def _equal_sizes(c: Aten, self: Tensor, split_size: Ints, dim: int = 0) -> tuple[Tensor, ...]:
    if len(split_size) != 1:
        return _sizes(c, self, split_size, dim)
    n, each = self.shape[axis(dim, self)], split_size[0]
    if each < 1:
        raise Malformed("split_size", each, "an int ≥ 1")
    return _sizes(c, self, tuple(min(each, n - at) for at in range(0, n, each)), dim)


def _chunk(c: Aten, self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    if chunks < 1:
        raise Malformed("chunks", chunks, "an int ≥ 1")
    return _equal_sizes(c, self, (max(1, -(-self.shape[axis(dim, self)] // chunks)),), dim)


def _unbind(c: Aten, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(_select(c, self, dim, i) for i in range(self.shape[axis(dim, self)]))


def _repeat(c: Aten, self: Tensor, repeats: Ints) -> Tensor:
    wide = c.reshaped(self, (*(1,) * (len(repeats) - len(self.shape)), *self.shape))
    return c.onnx("Tile", wide, c.ints(repeats)) if repeats else self


def _repeat_interleave(
    c: Aten, self: Tensor, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    x = c.reshaped(self, (self.size,)) if dim is None else self
    at = axis(0 if dim is None else dim, x)
    return repeated(c, x, at, repeats)


def repeated(c: Aten, x: Tensor, at: int, times: int) -> Tensor:
    """Repeat every element along an axis so many times."""
    n = x.shape[at]
    if times < 1:
        raise Malformed("repeats", times, "an int ≥ 1")
    apart = c.reshaped(x, (*x.shape[: at + 1], 1, *x.shape[at + 1 :]))
    wide = c.like(x, broadcast(c.home, apart, (*x.shape[: at + 1], times, *x.shape[at + 1 :])))
    return c.reshaped(wide, (*x.shape[:at], n * times, *x.shape[at + 1 :]))


def _flip(c: Aten, self: Tensor, dims: Ints) -> Tensor:
    for d in dims:
        at = axis(d, self)
        self = _taken(c, self, at, range(self.shape[at] - 1, -1, -1))
    return self


def _roll(c: Aten, self: Tensor, shifts: Ints, dims: Ints = ()) -> Tensor:
    x = self if dims else c.reshaped(self, (self.size,))
    axes = tuple(axis(d, x) for d in dims) if dims else (0,)
    if len(axes) != len(shifts):
        raise Malformed("shifts", list(shifts), f"{len(axes)} ints")
    for shift, at in zip(shifts, axes, strict=True):
        n = x.shape[at]
        if cut := -shift % n:
            x = _cat_plain(c, (_taken(c, x, at, range(cut, n)), _taken(c, x, at, range(cut))), at)
    return c.reshaped(x, self.shape)


def _cat_plain(c: Aten, parts: Tensors, at: int) -> Tensor:
    return c.onnx("Concat", *parts, axis=at)


def _unfold(c: Aten, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    at = axis(dimension, self)
    count = (self.shape[at] - size) // step + 1 if step > 0 and size > 0 else 0
    if count < 1:
        raise Malformed("size and step", f"{size}, {step}", f"windows of {self.shape[at]}")
    c.home.check_size((count, size))
    x = _taken(c, self, at, [i * step + j for i in range(count) for j in range(size)])
    x = c.reshaped(x, (*self.shape[:at], count, size, *self.shape[at + 1 :]))
    order = [i for i in range(len(x.shape)) if i != at + 1]
    return c.like(x, permuted(c.home, x, [*order, at + 1]))


def _pixel_shuffle(c: Aten, self: Tensor, upscale_factor: int) -> Tensor:
    return c.onnx("DepthToSpace", self, blocksize=upscale_factor, mode="CRD")


def _pixel_unshuffle(c: Aten, self: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor
    if len(self.shape) != 4 or r < 1 or self.shape[2] % r or self.shape[3] % r:
        raise Malformed("downscale_factor", r, f"a divisor of {list(self.shape)}")
    n, ch, h, w = self.shape
    apart = c.reshaped(self, (n, ch, h // r, r, w // r, r))
    return c.reshaped(c.like(self, permuted(c.home, apart, (0, 1, 3, 5, 2, 4))), (n, ch * r * r, h // r, w // r))


def _channel_shuffle(c: Aten, self: Tensor, groups: int) -> Tensor:
    n, ch, *rest = self.shape
    if groups < 1 or ch % groups:
        raise Malformed("groups", groups, f"a divisor of {ch}")
    apart = c.reshaped(self, (n, groups, ch // groups, *rest))
    order = (0, 2, 1, *range(3, len(apart.shape)))
    return c.reshaped(c.like(self, permuted(c.home, apart, order)), self.shape)


def _pad(c: Aten, self: Tensor, pad: Ints, mode: str = "constant", value: Number | None = None) -> Tensor:
    rank, given = len(self.shape), len(pad) // 2
    if mode not in MODES or len(pad) % 2 or given > rank:
        raise Malformed("pad and mode", f"{list(pad)}, {mode!r:.40}", f"pairs for axes of {list(self.shape)}")
    lo, hi = [0] * rank, [0] * rank
    for i in range(given):
        lo[rank - 1 - i], hi[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    fill = c.number(0 if value is None else value, self.dtype)
    return c.onnx("Pad", self, c.ints((*lo, *hi)), fill, mode=MODES[mode])


def _padded(mode: str) -> Translate:
    def translate(c: Aten, self: Tensor, padding: Ints) -> Tensor:
        return _pad(c, self, padding, mode)

    return translate


def _constant_pad(c: Aten, self: Tensor, pad: Ints, value: Number = 0) -> Tensor:
    return _pad(c, self, pad, "constant", value)


def _triangle(upper: int) -> Translate:
    def translate(c: Aten, self: Tensor, diagonal: int = 0) -> Tensor:
        return c.onnx("Trilu", self, c.ints((diagonal,)), upper=upper)

    return translate


def _meshgrid(c: Aten, tensors: Tensors, indexing: str = "ij") -> tuple[Tensor, ...]:
    if indexing not in ("ij", "xy"):
        raise Malformed("indexing", repr(indexing), "ij or xy")
    flat = [c.reshaped(t, (t.size,)) for t in tensors]
    shape = tuple(t.size for t in flat)
    made = []
    for i, t in enumerate(flat):
        lined = c.reshaped(t, tuple(t.size if j == i else 1 for j in range(len(flat))))
        wide = c.like(t, broadcast(c.home, lined, shape))
        made.append(_transpose(c, wide, 0, 1) if indexing == "xy" and len(flat) > 1 else wide)
    return tuple(made)


# by number ------------------------------------------------------------------------------------------------------------
def _embedding(
    c: Aten, weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    if scale_grad_by_freq and c.train:
        raise Unsupported("scale_grad_by_freq=True")
    rows = c.onnx("Gather", weight, indices, axis=0)
    if padding_idx < 0 or not c.train or rows.known:
        return rows
    lined = c.reshaped(indices, (*indices.shape, 1))  # the row of padding gets no gradient
    padding = c.onnx("Equal", c.cast(lined, "int64"), c.number(padding_idx, "int64"))
    value = c.value(rows)
    return fitted(ops.where(c.value(padding), ops.stop_gradient(value), value), rows.shape)


def _index_select(c: Aten, self: Tensor, dim: int, index: Tensor) -> Tensor:
    return c.onnx("Gather", self, index, axis=axis(dim, self))


def _gather(c: Aten, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return c.onnx("GatherElements", self, index, axis=axis(dim, self))


def _indexed(c: Aten, x: Tensor, indices: Maybe) -> tuple[Tensor, list[int], Tensor, int]:
    """Return x with the indexed axes first, these axes, tuples of indices, and the place of their axes in the result.
    """
    found: list[tuple[int, Tensor]] = []
    at = 0
    for index in indices:
        if index is None:
            at += 1
        elif index.kind == "bool":
            if not index.known:
                raise Unsupported("a mask that is computed as an index: the extent of the result is not known")
            for part in np.nonzero(np.asarray(index.array)):
                found.append((at, c.ints(part.tolist())))
                at += 1
        else:
            found.append((at, index))
            at += 1
    if not found or at > len(x.shape):
        raise Malformed("indices", len(indices), f"indices of {list(x.shape)}")
    axes = [a for a, _ in found]
    shape = common(*(t.shape for _, t in found))
    columns = [unsqueezed(c, c.like(t, broadcast(c.home, c.cast(t, "int64"), shape)), len(shape)) for _, t in found]
    tuples = columns[0] if len(columns) == 1 else c.onnx("Concat", *columns, axis=len(shape))
    order = [*axes, *(i for i in range(len(x.shape)) if i not in axes)]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return c.like(x, permuted(c.home, x, order)), axes, tuples, axes[0] if adjacent else 0


def _index(c: Aten, self: Tensor, indices: Maybe) -> Tensor:
    x, axes, tuples, place = _indexed(c, self, indices)
    if len(axes) == 1:
        made = c.onnx("Gather", x, c.reshaped(tuples, tuples.shape[:-1]), axis=0)
    else:
        made = c.onnx("GatherND", x, tuples)
    new, rank = len(tuples.shape) - 1, len(made.shape)
    order = [*range(new, new + place), *range(new), *range(new + place, rank)]
    return c.like(made, permuted(c.home, made, order))


def _index_put(c: Aten, self: Tensor, indices: Maybe, values: Tensor, accumulate: bool = False) -> Tensor:
    x, axes, tuples, place = _indexed(c, self, indices)
    if place:
        raise Unsupported("indices behind axes that are kept")
    shape = (*tuples.shape[:-1], *x.shape[len(axes) :])
    new = c.like(values, broadcast(c.home, values, shape))
    made = c.onnx("ScatterND", x, tuples, new, reduction="add" if accumulate else "none")
    rest = [i for i in range(len(self.shape)) if i not in axes]
    back = [[*axes, *rest].index(i) for i in range(len(self.shape))]
    return c.like(made, permuted(c.home, made, back))


def _scatter(reduction: str) -> Translate:
    def translate(c: Aten, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return c.onnx("ScatterElements", self, index, src, axis=axis(dim, self), reduction=reduction)

    return translate


def _scatter_value(c: Aten, self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return c.onnx("ScatterElements", self, index, c.filled(index.shape, value, self.dtype), axis=axis(dim, self))


def _slice_scatter(
    c: Aten, self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Return x with some of its slices replaced by those of `src`."""
    at = axis(dim, self)
    if step < 1:
        raise Malformed("step", step, "an int ≥ 1")
    n = self.shape[at]
    places = range(*slice(start, end, step).indices(n))
    if src.shape != (*self.shape[:at], len(places), *self.shape[at + 1 :]):
        raise Malformed("src", list(src.shape), f"the shape of the slice of {list(self.shape)}")
    c.home.check_size((n,))
    source = list(range(n))
    for i, place in enumerate(places):
        source[place] = n + i
    both = _cat_plain(c, (self, c.cast(src, self.dtype)), at)
    return _taken(c, both, at, source)


def _select_scatter(c: Aten, self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    at = axis(dim, self)
    if not -self.shape[at] <= index < self.shape[at]:
        raise Malformed("index", index, f"an index of {list(self.shape)}")
    place = index % self.shape[at]
    return _slice_scatter(c, self, unsqueezed(c, src, at), at, place, place + 1)


def _one_hot(c: Aten, self: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 1:
        raise Unsupported("a number of classes that depends on the data")
    made = c.onnx("OneHot", self, c.ints((num_classes,)), c.ints((0, 1)), axis=-1)
    return replace(made, dtype="int64", bounds=(0, 1))


def _copy(c: Aten, self: Tensor, src: Tensor) -> Tensor:
    return c.like(src, broadcast(c.home, c.cast(src, self.dtype), self.shape))


def _fill(c: Aten, self: Tensor, value: Operand) -> Tensor:
    if isinstance(value, Tensor):
        return c.like(self, broadcast(c.home, c.cast(value, self.dtype), self.shape))
    return c.filled(self.shape, value, self.dtype)


def _zero(c: Aten, self: Tensor) -> Tensor:
    return c.filled(self.shape, 0, self.dtype)


# constants ------------------------------------------------------------------------------------------------------------
def _arange(c: Aten, end: Number, start: Number = 0, step: Number = 1, dtype: Dtype | None = None) -> Tensor:
    count = math.ceil((end - start) / step) if step else -1
    if count < 0 or (count,) != c.meta.shape:
        raise Malformed("start, end, step", f"{start}, {end}, {step}", f"{list(c.meta.shape)} numbers")
    c.home.check_size((count,))
    numbers = start + np.arange(count) * step
    return c.cast(replace(known(numbers), dtype="float32" if numbers.dtype.kind == "f" else "int64"), c.meta.dtype)


def _full(c: Aten, size: Ints, fill_value: Number, dtype: Dtype | None = None) -> Tensor:
    return c.filled(_extents(size), fill_value, c.meta.dtype)


def _extents(size: Ints) -> Shape:
    if min(size, default=0) < 0:
        raise Malformed("size", list(size), "extents ≥ 0")
    return size


def _made(value: Number) -> Translate:
    def translate(c: Aten, size: Ints, dtype: Dtype | None = None) -> Tensor:
        return c.filled(_extents(size), value, c.meta.dtype)

    return translate


def _new(value: Number) -> Translate:
    def translate(c: Aten, self: Tensor, size: Ints, dtype: Dtype | None = None) -> Tensor:
        return c.filled(_extents(size), value, c.meta.dtype)

    return translate


def _new_full(c: Aten, self: Tensor, size: Ints, fill_value: Number, dtype: Dtype | None = None) -> Tensor:
    return c.filled(_extents(size), fill_value, c.meta.dtype)


def _made_like(value: Number) -> Translate:
    def translate(c: Aten, self: Tensor, dtype: Dtype | None = None) -> Tensor:
        return c.filled(self.shape, value, c.meta.dtype)

    return translate


def _full_like(c: Aten, self: Tensor, fill_value: Number, dtype: Dtype | None = None) -> Tensor:
    return c.filled(self.shape, fill_value, c.meta.dtype)


def _scalar_tensor(c: Aten, s: Number, dtype: Dtype | None = None) -> Tensor:
    return c.number(s, c.meta.dtype)


def _eye(c: Aten, n: int, m: int | None = None, dtype: Dtype | None = None) -> Tensor:
    shape = _extents((n, n if m is None else m))
    c.home.check_size(shape)
    return c.cast(replace(known(np.eye(*shape, dtype=np.int64), "int"), dtype="int64"), c.meta.dtype)


def _linspace(c: Aten, start: Number, end: Number, steps: int, dtype: Dtype | None = None) -> Tensor:
    c.home.check_size(_extents((steps,)))
    return c.cast(replace(known(np.linspace(start, end, steps).astype(np.float32)), dtype="float32"), c.meta.dtype)


VIEWS = frozenset("""
_unsafe_view alias as_strided broadcast_tensors broadcast_to chunk contiguous detach dropout expand expand_as
feature_dropout flatten lift_fresh mT meshgrid movedim narrow numpy_T permute reshape select slice split
split_with_sizes squeeze swapaxes t to transpose type_as unbind unflatten unfold unsqueeze view
""".split())  # fmt: skip

LAYOUT: Table = {
    "view": _view, "_unsafe_view": _view, "reshape": _reshape, "flatten.using_ints": _flatten,
    "unflatten.int": _unflatten, "squeeze": _squeeze, "squeeze.dim": _squeeze, "squeeze.dims": _squeeze,
    "unsqueeze": unsqueezed, "permute": _permute, "transpose.int": _transpose, "swapaxes": _swapaxes, "t": _t,
    "mT": _t, "numpy_T": _reversed, "movedim.int": _movedim, "movedim.intlist": _movedim, "expand": _expand,
    "broadcast_to": _expand, "broadcast_tensors": _broadcast_all, "expand_as": _expand_as,
    **dict.fromkeys(("contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy"), _same), "detach": _detach,
    **dict.fromkeys(("to.dtype", "to.device", "to.dtype_layout", "_to_copy"), _cast), "type_as": _cast_like,
    "as_strided": _as_strided, "to.other": _cast_like, "dropout": _dropout, "feature_dropout": _dropout,
    "slice.Tensor": _slice, "select.int": _select, "narrow": _narrow, "cat": _cat, "concat": _cat, "stack": _stack,
    "split.Tensor": _equal_sizes, "split.sizes": _sizes, "split_with_sizes": _sizes, "chunk": _chunk,
    "unbind.int": _unbind, "repeat": _repeat, "repeat_interleave.self_int": _repeat_interleave, "flip": _flip,
    "roll": _roll, "unfold": _unfold, "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle, "pad": _pad, "constant_pad_nd": _constant_pad,
    **{f"{kind}_pad{n}d": _padded(mode) for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
       for n in (1, 2)},
    "tril": _triangle(0), "triu": _triangle(1), "meshgrid": _meshgrid, "meshgrid.indexing": _meshgrid,
    "embedding": _embedding, "index_select": _index_select, "gather": _gather, "index.Tensor": _index,
    "index_put": _index_put, "scatter.src": _scatter("none"), "scatter_add": _scatter("add"),
    "scatter.value": _scatter_value, "slice_scatter": _slice_scatter, "select_scatter": _select_scatter,
    "one_hot": _one_hot, "copy": _copy, "fill.Scalar": _fill, "fill.Tensor": _fill, "zero": _zero,
    "arange": _arange, "arange.start": _arange, "arange.start_step": _arange, "full": _full, "zeros": _made(0),
    "ones": _made(1), "new_zeros": _new(0), "new_ones": _new(1), "new_full": _new_full, "zeros_like": _made_like(0),
    "ones_like": _made_like(1), "full_like": _full_like, "scalar_tensor": _scalar_tensor, "eye": _eye, "eye.m": _eye,
    "linspace": _linspace,
}  # fmt: skip
