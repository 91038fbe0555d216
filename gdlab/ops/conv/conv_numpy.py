"""Run convolutions with NumPy: patches of a few rows at a time, so that they stay in the cache, and BLAS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

PATCH = 1 << 18  # floats of the patches that are held at a time


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Some rows of the results of some images."""

    first: int
    images: int
    row: int
    rows: int


class ConvSizes:
    """The sizes of a convolution as arrays see it: channels split by group."""

    def __init__(self, c: KernelConstants) -> None:
        self.c, self.n, self.groups = c, c["N"], c["CI"] // c["IN"]
        self.x = (self.n, self.groups, c["IN"], c["H"], c["W"])
        self.y = (self.n, self.groups, c["OUT"], c["OH"], c["OW"])
        self.k = (self.groups, c["OUT"], c["IN"] * c["KH"] * c["KW"])
        self.padded = (c["H"] + 2 * c["PH"], c["W"] + 2 * c["PW"])
        self.held: dict[str, Array] = {}

    def blocks(self) -> Iterator[ImageRows]:
        """Yield blocks of work: several small images at once, or a large one in bands."""
        c = self.c
        per_row = self.k[2] * self.groups * c["OW"]
        rows = min(c["OH"], max(1, PATCH // per_row))
        images = max(1, PATCH // (per_row * rows)) if rows == c["OH"] else 1
        for first in range(0, self.n, images):
            for row in range(0, c["OH"], rows):
                yield ImageRows(first, min(images, self.n - first), row, min(rows, c["OH"] - row))

    def room(self, builder: KernelBuilder) -> Array:
        """Return memory for the padded images of a block."""
        images = max(b.images for b in self.blocks())
        return builder.temporary((images, *self.x[1:3], *self.padded))

    def inside(self, room: Array, images: int) -> Array:
        """Return the part of the padded images that is the images."""
        c = self.c
        return room[:images, ..., c["PH"] : c["PH"] + c["H"], c["PW"] : c["PW"] + c["W"]]

    def taps(self, room: Array, b: ImageRows) -> Array:
        """View the padded images as [group, channel, kh, kw, image, row, column of the result]."""
        c = self.c
        n, g, i, y, x = room.strides
        start = room[:, :, :, b.row * c["SH"] :]
        shape = (self.groups, c["IN"], c["KH"], c["KW"], b.images, b.rows, c["OW"])
        strides = (g, i, c["DH"] * y, c["DW"] * x, n, c["SH"] * y, c["SW"] * x)
        return np.lib.stride_tricks.as_strided(start, shape, strides)

    def patches(self, builder: KernelBuilder, b: ImageRows) -> tuple[Array, Array]:
        """Return memory for patches, as two views: as `taps`, and as matrices [group, window element, pixel]."""
        c = self.c
        pixels = b.images * b.rows * c["OW"]
        flat = self._cut(builder, "patches", (self.groups, self.k[2], pixels))
        return flat.reshape(self.groups, c["IN"], c["KH"], c["KW"], b.images, b.rows, c["OW"]), flat

    def result(self, builder: KernelBuilder, y: Array, b: ImageRows, read: bool) -> tuple[Array, Array | None]:
        """Return a block's part of y as matrices [group, channel, pixel], and the view to copy it to or from."""
        part = y[b.first : b.first + b.images, :, :, b.row : b.row + b.rows]
        if b.images == 1:  # rows are neighbours: a view
            pixels = b.rows * self.c["OW"]
            n, g, o, _, w = y.strides
            return np.lib.stride_tricks.as_strided(part, (self.groups, self.c["OUT"], pixels), (g, o, w)), None
        shape = (self.groups, self.c["OUT"], b.images, b.rows, self.c["OW"])
        whole = self._cut(builder, "result", shape)
        turned = part.transpose(1, 2, 0, 3, 4)
        if read:
            builder.calls.append((np.copyto, (whole, turned)))
        return whole.reshape(self.groups, self.c["OUT"], -1), turned

    def _cut(self, builder: KernelBuilder, what: str, shape: Shape) -> Array:
        """Return the beginning of one temporary that all blocks share: the first block is the largest."""
        size = math.prod(shape)
        if what not in self.held:
            self.held[what] = builder.temporary((size,))
        return self.held[what][:size].reshape(shape)


def _is_plain(c: KernelConstants) -> bool:
    """Return whether every pixel is its own patch."""
    steps = (c["KH"], c["KW"], c["SH"], c["SW"])
    return set(steps) == {1} and c["PH"] == c["PW"] == 0 and c["IN"] == c["CI"] and c["H"] * c["W"] >= 16


def _patched(builder: KernelBuilder, s: ConvSizes, x: Array) -> Iterator[tuple[ImageRows, Array]]:
    """Yield blocks with their patches."""
    room = s.room(builder)
    builder.calls.append((room.fill, (0.0,)))
    for b in s.blocks():
        if b.row == 0:
            builder.calls.append((np.copyto, (s.inside(room, b.images), x[b.first : b.first + b.images])))
        split, flat = s.patches(builder, b)
        builder.calls.append((np.copyto, (split, s.taps(room, b))))
        yield b, flat


def conv2d_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = ConvSizes(c)
    x, k, y = builder.operand(0, s.x), builder.operand(1, s.k), builder.out(s.y)
    if _is_plain(c):
        builder.product(k, x.reshape(s.n, c["IN"], -1), y.reshape(s.n, c["OUT"], -1))
        return
    for b, patches in _patched(builder, s, x):
        out, turned = s.result(builder, y, b, read=False)
        builder.product(k, patches, out)
        if turned is not None:
            builder.calls.append((np.copyto, (turned, out.reshape(turned.shape))))


def grad_weight_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = ConvSizes(c)
    g, x, out = builder.operand(0, s.y), builder.operand(1, s.x), builder.out(s.k)
    part = builder.temporary(s.k)
    builder.calls.append((out.fill, (0.0,)))
    for b, patches in _patched(builder, s, x):
        own, _ = s.result(builder, g, b, read=True)
        builder.product(own, patches.transpose(0, 2, 1), part)
        builder.calls.append((np.add, (out, part, out)))


def grad_input_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = ConvSizes(c)
    g, k, out = builder.operand(0, s.y), builder.operand(1, s.k), builder.out(s.x)
    turned = k.transpose(0, 2, 1)
    if _is_plain(c):
        builder.product(turned, g.reshape(s.n, c["OUT"], -1), out.reshape(s.n, c["IN"], -1))
        return
    room = s.room(builder)
    for b in s.blocks():
        if b.row == 0:
            builder.calls.append((room.fill, (0.0,)))
        own, _ = s.result(builder, g, b, read=True)
        split, flat = s.patches(builder, b)
        builder.product(turned, own, flat)
        places = s.taps(room, b)
        for i in range(c["KH"]):
            for j in range(c["KW"]):
                place = places[:, :, i, j]
                builder.calls.append((np.add, (place, split[:, :, i, j], place)))
        if b.row + b.rows == c["OH"]:
            builder.calls.append((np.copyto, (out[b.first : b.first + b.images], s.inside(room, b.images))))
