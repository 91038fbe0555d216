"""Run pooling with NumPy: one call per place of a window, for all windows at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

_BOOL = np.dtype(np.bool_)


class PoolSizes:
    """The sizes of a pooling as arrays see it: all channels of all images are planes."""

    def __init__(self, builder: KernelBuilder, c: KernelConstants, image: Shape) -> None:
        self.builder, self.c = builder, c
        self.planes = int(np.prod(image)) // (c["H"] * c["W"])
        self.image = (self.planes, c["H"], c["W"])
        self.result = (self.planes, c["OH"], c["OW"])

    def room(self, planes: int, value: float) -> Array:
        """Return padded planes filled with this value."""
        c = self.c
        room = self.builder.temporary((planes, c["H"] + 2 * c["PH"], c["W"] + 2 * c["PW"]))
        self.builder.calls.append((room.fill, (value,)))
        return room

    def inside(self, room: Array) -> Array:
        """Return the part of padded planes that is the image."""
        c = self.c
        return room[:, c["PH"] : c["PH"] + c["H"], c["PW"] : c["PW"] + c["W"]]

    def padded(self, x: Array, value: float) -> Array:
        """Return a padded copy of x; x itself where there is no padding."""
        if self.c["PH"] == self.c["PW"] == 0:
            return x
        room = self.room(self.planes, value)
        self.builder.calls.append((np.copyto, (self.inside(room), x)))
        return room

    def taps(self, room: Array) -> Iterator[Array]:
        """Yield each place of a window in row-major order: a view of the padded planes, one element per window."""
        c = self.c
        for i in range(c["KH"]):
            for j in range(c["KW"]):
                yield room[:, i :: c["SH"], j :: c["SW"]][:, : c["OH"], : c["OW"]]

    def places(self) -> Array:
        """Return for every padded pixel its place in the image; outside the image a number that no pixel has."""
        c = self.c
        place = np.full((1, c["H"] + 2 * c["PH"], c["W"] + 2 * c["PW"]), 0xFFFFFFFF, np.uint32)
        self.inside(place)[...] = np.arange(c["H"] * c["W"], dtype=np.uint32).reshape(1, c["H"], c["W"])
        return place

    def divisors(self) -> Array:
        """Count the pixels of each window."""
        c = self.c
        ones = np.full((1, c["H"] + 2 * c["PH"], c["W"] + 2 * c["PW"]), float(c["COUNT_PAD"]), np.float32)
        self.inside(ones)[...] = 1.0
        return np.asarray(np.sum([*self.taps(ones)], axis=0), np.float32)


def max_pool_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.operand_shape(0))
    out = builder.out(s.result)
    first, *rest = s.taps(s.padded(builder.operand(0, s.image), -np.inf))
    builder.calls.append((np.copyto, (out, first)))
    builder.calls += [(_larger, (out, tap)) for tap in rest]


def _larger(out: Array, other: Array) -> None:
    np.maximum(out, other, out=out)


def max_index_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.operand_shape(0))
    out, best, place = builder.out(s.result), builder.temporary(s.result), s.places()
    better, nan, old = (builder.temporary(s.result, _BOOL) for _ in range(3))
    builder.calls += [(best.fill, (-np.inf,)), (np.copyto, (out, _first_places(s, place)))]
    for value, here in zip(s.taps(s.padded(builder.operand(0, s.image), -np.inf)), s.taps(place), strict=True):
        builder.calls += [
            (np.isnan, (value, nan)),
            (np.isnan, (best, old)),
            (np.greater, (nan, old, nan)),
            (np.greater, (value, best, better)),
            (np.logical_or, (better, nan, better)),
            (_copy_where, (out, here, better)),
            (_copy_where, (best, value, better)),
        ]


def _first_places(s: PoolSizes, place: Array) -> Array:
    """Return the first pixel of each window."""
    first: Array = np.min([*s.taps(place)], axis=0)
    return first


def _copy_where(out: Array, values: Array, where: Array) -> None:
    np.copyto(out, values, where=where)


def put_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.result_shape)
    g, index, out = builder.operand(0, s.result), builder.operand(1, s.result), builder.out(s.image)
    same, part, room = builder.temporary(s.result, _BOOL), builder.temporary(s.result), s.room(s.planes, 0.0)
    for here, tap in zip(s.taps(s.places()), s.taps(room), strict=True):
        builder.calls += [
            (np.equal, (index, here, same)),
            (part.fill, (0.0,)),
            (_copy_where, (part, g, same)),
            (np.add, (tap, part, tap)),
        ]
    builder.calls.append((np.copyto, (out, s.inside(room))))


def take_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.operand_shape(0))
    x, index, out = builder.operand(0, s.image), builder.operand(1, s.result), builder.out(s.result)
    same = builder.temporary(s.result, _BOOL)
    builder.calls.append((out.fill, (0.0,)))
    for here, tap in zip(s.taps(s.places()), s.taps(s.padded(x, 0.0)), strict=True):
        builder.calls += [(np.equal, (index, here, same)), (_copy_where, (out, tap, same))]


def avg_pool_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.operand_shape(0))
    out = builder.out(s.result)
    first, *rest = s.taps(s.padded(builder.operand(0, s.image), 0.0))
    builder.calls.append((np.copyto, (out, first)))
    builder.calls += [(np.add, (out, tap, out)) for tap in rest]
    builder.calls.append((np.divide, (out, s.divisors(), out)))


def avg_pool_grad_form(builder: KernelBuilder, c: KernelConstants) -> None:
    s = PoolSizes(builder, c, builder.result_shape)
    part, room = builder.temporary(s.result), s.room(s.planes, 0.0)
    builder.calls.append((np.divide, (builder.operand(0, s.result), s.divisors(), part)))
    builder.calls += [(np.add, (tap, part, tap)) for tap in s.taps(room)]
    builder.calls.append((np.copyto, (builder.out(s.image), s.inside(room))))
