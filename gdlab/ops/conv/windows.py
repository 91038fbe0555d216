"""Describe windows that slide over images: their number, and the places of their elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdlab.base.types import Array
from gdlab.graph import Value
from gdlab.op import Refused, want

Pair = tuple[int, int]


def pair(values: Sequence[int], what: str) -> Pair:
    """Return (along h, along w); one number counts for both."""
    if len(values) not in (1, 2):
        raise Refused("one int, or one along h and one along w", list(values), what)
    return values[0], values[-1]


def is_image(*values: Value) -> bool:
    """Return whether all values have rank 4."""
    return all(v.type.rank == 4 for v in values)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `kernel` elements, `dilation` apart, `stride` from one to the next, over images of `size` with
    `padding` on all sides."""

    size: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def check(self) -> None:
        """Refuse steps below 1, negative padding, and windows that do not fit even once."""
        want(min(self.stride) >= 1, "ints ≥ 1", list(self.stride), "stride")
        want(min(self.dilation) >= 1, "ints ≥ 1", list(self.dilation), "dilation")
        want(min(self.padding) >= 0, "ints ≥ 0", list(self.padding), "padding")
        given = f"a window of {_by(self.span)} in an image of {_by(self.padded)}, padding included"
        want(min(self.count) >= 1, "an image that holds the window", given)

    @property
    def span(self) -> Pair:
        """Extent from the first element of a window to its last one, both included."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1

    @property
    def padded(self) -> Pair:
        """Extents of the image with padding."""
        return self.size[0] + 2 * self.padding[0], self.size[1] + 2 * self.padding[1]

    @property
    def count(self) -> Pair:
        """The number of windows along h and w."""
        spans = zip(self.padded, self.span, self.stride, strict=True)
        h, w = ((n - span) // step + 1 for n, span, step in spans)
        return h, w

    @property
    def constants(self) -> Mapping[str, int]:
        """The extents by the names that shaders use."""
        names = ("H W", "KH KW", "SH SW", "PH PW", "DH DW", "OH OW")
        pairs = (self.size, self.kernel, self.stride, self.padding, self.dilation, self.count)
        return {n: v for both, p in zip(names, pairs, strict=True) for n, v in zip(both.split(), p, strict=True)}

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Yield each place of a window in row-major order, with its slices of the padded image over all windows."""
        (dh, dw), (sh, sw), (oh, ow) = self.dilation, self.stride, self.count
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                rows = slice(i * dh, i * dh + (oh - 1) * sh + 1, sh)
                yield i, j, (rows, slice(j * dw, j * dw + (ow - 1) * sw + 1, sw))

    def pad(self, x: Array, value: float = 0.0) -> Array:
        """Return x[n, c, h, w] with its padding."""
        (ph, pw) = self.padding
        padded: Array = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=value)
        return padded

    def inside(self) -> tuple[slice, slice]:
        """Return the slices of the image in the padded image."""
        (h, w), (ph, pw) = self.size, self.padding
        return slice(ph, ph + h), slice(pw, pw + w)


def _by(extents: Pair) -> str:
    return f"{extents[0]} x {extents[1]}"
