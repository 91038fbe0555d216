"""Convolution and pooling with the options of model files: one or two spatial axes, any border, any dilation.

A border is a pair per axis, (before, behind). What a graph's own op takes goes to it; an uneven border becomes a `pad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape
from gdlab.graph import Value
from gdlab.load.shared import Malformed, Unsupported

MOST_WINDOWS = 1 << 21  # of a pool whose border does not count
MOST_SPREAD = 512  # elements along an axis of a dilated window: each makes a node
Border = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SpatialWindow:
    """A kernel's extents along the spatial axes, its strides, its dilations, and the border around the image; `ceil`: a
    last window may reach over the border's end."""

    size: Shape
    stride: Shape
    dilation: Shape
    border: Border
    ceil: bool = False

    def reach(self, axis: int) -> int:
        """Return the number of elements from the first to the last of a window."""
        return self.dilation[axis] * (self.size[axis] - 1) + 1

    def count(self, axis: int, extent: int) -> int:
        """Count the windows along an axis; one that would begin behind the image does not count."""
        lo, hi = self.border[axis]
        room, step = extent + lo + hi - self.reach(axis), self.stride[axis]
        found = (-(-room // step) if self.ceil else room // step) + 1
        if self.ceil and (found - 1) * step >= extent + lo:
            found -= 1
        return found

    def over(self, extents: Shape) -> SpatialWindow:
        """Return the window with the border that its last places need, and without `ceil`."""
        hi = []
        for axis, n in enumerate(extents):
            lo, given = self.border[axis]
            need = (self.count(axis, n) - 1) * self.stride[axis] + self.reach(axis) - n - lo
            hi.append((lo, max(given, need)))
        return SpatialWindow(self.size, self.stride, self.dilation, tuple(hi))

    @property
    def even(self) -> bool:
        """Whether every border is as wide before as behind."""
        return all(lo == hi for lo, hi in self.border)

    @property
    def padding(self) -> Shape:
        """The border before each axis."""
        return tuple(lo for lo, _ in self.border)


def same_border(extents: Shape, size: Shape, stride: Shape, dilation: Shape, upper: bool) -> Border:
    """Return the border that gives ⌈extent / stride⌉ windows; an odd element lies behind (`upper`) or before."""
    border = []
    for n, k, s, d in zip(extents, size, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        border.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    return tuple(border)


def as_image(x: Value) -> Value:
    """Return [n, c, w] as [n, c, 1, w]; an image as it is."""
    return x if x.type.rank == 4 else x.reshape((*x.shape[:2], 1, x.shape[2]))


def as_image_window(window: SpatialWindow) -> SpatialWindow:
    """Return a window along w as one along h and w."""
    if len(window.size) == 2:
        return window
    return SpatialWindow(
        (1, *window.size), (1, *window.stride), (1, *window.dilation), ((0, 0), *window.border), window.ceil
    )


def _like(image: Value, x: Value) -> Value:
    """Return an image back in the rank of x."""
    return image if x.type.rank == 4 else image.reshape((*image.shape[:2], image.shape[3]))


def bordered(x: Value, border: Border, fill: float) -> Value:
    """Return an image with its border."""
    if not any(map(any, border)):
        return x
    lo, hi = zip(*border, strict=True)
    return ops.pad(x, (0, 0, *lo), (0, 0, *hi), fill)


# convolution ----------------------------------------------------------------------------------------------------------
def convolved(x: Value, k: Value, bias: Value | None, window: SpatialWindow, groups: int) -> Value:
    """Append a convolution: f32[n, ci, …], f32[co, ci/groups, …], f32[co] -> f32[n, co, …] with one or two spatial
    axes."""
    image, kernel, window = as_image(x), as_image(k), as_image_window(window)
    padding = window.padding
    if not window.even:
        image, padding = bordered(image, window.border, 0.0), (0, 0)
    if len({*window.stride}) == len({*padding}) == len({*window.dilation}) == 1:
        out = ops.conv2d(image, kernel, window.stride[0], padding[0], window.dilation[0], groups)
    else:
        out = ops.conv2d_hw(image, kernel, window.stride, padding, window.dilation, groups)
    return _like(out if bias is None else ops.add_per_channel(out, bias), x)


def transposed(x: Value, k: Value, bias: Value | None, window: SpatialWindow, groups: int, more: Shape) -> Value:
    """Append a transposed convolution, the gradient of a convolution: f32[n, ci, …], f32[ci, co/groups, …], f32[co] ->
    f32[n, co, …]. `more`: elements behind each axis that no window reaches."""
    image, kernel, wide = as_image(x), as_image(k), as_image_window(window)
    more = (0,) * (2 - len(more)) + more
    full = [(n - 1) * wide.stride[axis] + wide.reach(axis) for axis, n in enumerate(image.shape[2:])]
    if wide.even and min(wide.padding) >= 0 and all(m < s for m, s in zip(more, wide.stride, strict=True)):
        size = tuple(n - 2 * p + m for n, p, m in zip(full, wide.padding, more, strict=True))
        out = ops.conv2d_grad_input(image, kernel, size, wide.stride, wide.padding, wide.dilation, groups)
    else:
        out = ops.conv2d_grad_input(image, kernel, tuple(full), wide.stride, (0, 0), wide.dilation, groups)
        ends = [(-lo, m - hi) for (lo, hi), m in zip(wide.border, more, strict=True)]
        out = bordered(out, tuple((max(a, 0), max(b, 0)) for a, b in ends), 0.0)
        starts = tuple(max(-a, 0) for a, _ in ends)
        stops = tuple(n - max(-b, 0) for n, (_, b) in zip(out.shape[2:], ends, strict=True))
        if any(starts) or stops != out.shape[2:]:
            out = ops.slice(out, (0, 0, *starts), (*out.shape[:2], *stops))
    return _like(out if bias is None else ops.add_per_channel(out, bias), x)


# pooling --------------------------------------------------------------------------------------------------------------
def highest(x: Value, window: SpatialWindow) -> Value:
    """Return the maximum of every window: f32[n, c, …] -> f32[n, c, …]."""
    image, window = as_image(x), as_image_window(window)
    window = window.over(image.shape[2:]) if window.ceil else window
    if max(window.dilation) > 1:
        return _like(_folded(ops.maximum, bordered(image, window.border, -math.inf), window), x)
    padding = window.padding
    if not window.even or any(p >= n for p, n in zip(padding, window.size, strict=True)):
        image, padding = bordered(image, window.border, -math.inf), (0, 0)
    return _like(ops.max_pool_2d(image, window.size, window.stride, padding), x)


def averaged(x: Value, window: SpatialWindow, with_border: bool) -> Value:
    """Return the mean of every window, of the border too or without it: f32[n, c, …] -> f32[n, c, …]."""
    image, window = as_image(x), as_image_window(window)
    within = window.over(image.shape[2:]) if window.ceil else window
    plain = max(window.dilation) == 1
    fits = within.border == window.border and window.even
    if plain and fits and all(p < n for p, n in zip(window.padding, window.size, strict=True)):
        return _like(ops.avg_pool_2d(image, window.size, window.stride, window.padding, with_border), x)
    counted = math.prod(window.size) / _counts(image.shape[2:], window, within, with_border)
    wide = bordered(image, within.border, 0.0)
    if plain:
        mean = ops.avg_pool_2d(wide, window.size, window.stride, (0, 0))
    else:
        mean = _folded(ops.add, wide, within) / math.prod(window.size)
    return _like(mean if (counted == 1).all() else mean * ops.constant(counted[None, None]), x)


def _counts(extents: Shape, window: SpatialWindow, within: SpatialWindow, with_border: bool) -> Array:
    """Return the number of elements of each window that count: those of the image, with `with_border` also of its
    border, but none that `ceil` adds."""
    windows = math.prod(within.count(axis, n) for axis, n in enumerate(extents))
    if windows > MOST_WINDOWS:
        raise Malformed("windows", f"{windows:,}", f"at most {MOST_WINDOWS:,} whose elements are counted")
    along = []
    for axis, n in enumerate(extents):
        lo, hi = window.border[axis] if with_border else (0, 0)
        begins = np.arange(within.count(axis, n)) * window.stride[axis] - window.border[axis][0]
        if window.dilation[axis] == 1:
            counts = np.minimum(begins + window.size[axis], n + hi) - np.maximum(begins, -lo)
        else:
            places = (begins + i * window.dilation[axis] for i in range(window.size[axis]))
            counts = sum((((at >= -lo) & (at < n + hi)).astype(np.int64) for at in places), np.zeros_like(begins))
        along.append(counts)
    return np.asarray(np.maximum(np.multiply.outer(along[0], along[1]), 1), np.float64)


def _folded(make: Callable[[Value, Value], Value], padded: Value, window: SpatialWindow) -> Value:
    """Return all elements of every window, one axis after the other."""
    if max(window.size) > MOST_SPREAD:
        raise Unsupported(f"a dilated window of more than {MOST_SPREAD} elements along an axis")
    for axis, (size, stride, apart) in enumerate(zip(window.size, window.stride, window.dilation, strict=True), 2):
        count = (padded.shape[axis] - window.reach(axis - 2)) // stride + 1
        parts = [_spaced(padded, axis, i * apart, count, stride) for i in range(size)]
        padded = reduce(make, parts)
    return padded


def _spaced(x: Value, axis: int, start: int, count: int, step: int) -> Value:
    """Return `count` elements along an axis, `step` apart."""
    starts, stops, steps = [0] * 4, list(x.shape), [1] * 4
    starts[axis], stops[axis], steps[axis] = start, start + (count - 1) * step + 1, step
    return ops.slice(x, tuple(starts), tuple(stops), tuple(steps))
