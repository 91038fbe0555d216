"""What a tensor holds in numbers: statistics, histogram, thumbnail, exact values of a window, difference to another.

Statistics ignore what is not finite and count it. Float64 throughout; a window's values are those of the tensor.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gdlab.errors import ArgumentError
from gdlab.op import Array

BINS, SIDE, WINDOW = 32, 64, 16
_MASK = 255  # of a thumbnail: not finite
_IN_FULL = 8  # elements of a vector that is told in full
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many finite elements lie in each of 32 equal parts of low … high (all in the first where they are equal)."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A slice as at most 64 × 64 bytes, row by row: 0 … 254 between low and high, the mean of a cell; 255: something in
    the cell is not finite."""

    rows: int
    cols: int
    low: float
    high: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """`n` elements: `nan`, `inf` and `zero` are counts; the rest is over the finite ones (NaN where there are none)."""

    n: int
    min: float
    max: float
    mean: float
    std: float
    l2: float
    nan: int
    inf: int
    zero: int
    histogram: Histogram
    thumbnail: Thumbnail

    @property
    def nonfinite(self) -> int:
        """NaN and infinities."""
        return self.nan + self.inf

    def to_json(self) -> dict[str, Any]:
        """The fields of a document's tensor summary."""
        found = asdict(self)
        found["histogram"]["counts"] = list(self.histogram.counts)
        found["thumbnail"]["data"] = base64.b64encode(self.thumbnail.data).decode("ascii")
        return found

    def __str__(self) -> str:
        if self.n == 1 and not self.nonfinite:
            return number(self.mean)
        if self.n == self.nonfinite:
            return f"{self.n} elements, none finite"
        bad = f", {self.nonfinite} not finite" if self.nonfinite else ""
        return f"{number(self.min)} … {number(self.max)}, mean {number(self.mean)}{bad}"


@dataclass(frozen=True, slots=True)
class Window:
    """Exact values of at most 16 × 16 elements of a slice: `slice` picks the leading axes, `row` and `col` say where it
    begins."""

    slice: tuple[int, ...]
    row: int
    col: int
    values: Array

    def __str__(self) -> str:
        texts = [[str(v) for v in row] for row in self.values]
        width = max((len(t) for row in texts for t in row), default=1)
        numbers = "  ".join(f"{self.col + j:>{width}}" for j in range(self.values.shape[1]))
        lines = [f"{self.row + i:>6}  " + "  ".join(f"{t:>{width}}" for t in row) for i, row in enumerate(texts)]
        return "\n".join([f"{'':>6}  {numbers}", *lines])


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from another: the largest absolute error, the largest distance in float32 steps and where it
    is; elements that are not finite count where the other has them otherwise (`unlike`)."""

    to: str
    error: float
    ulp: float
    at: tuple[int, ...]
    got: float
    want: float
    unlike: int

    def __str__(self) -> str:
        if self.unlike:
            return f"{self.to}: {self.unlike} elements are not finite in one of the two alone"
        if self.ulp == 0:
            return f"{self.to}: equal"
        place = f"[{', '.join(map(str, self.at))}]"
        steps = f"{self.ulp:.1f}" if self.ulp < 10 else f"{self.ulp:.0f}"
        return f"{self.to}: at most {self.error:.3g}; {steps} ulp at {place}: {self.got:.9g} for {self.want:.9g}"


def summarize(data: Array, slice: Sequence[int] = ()) -> Summary:
    """The summary of a tensor; the thumbnail is of the slice that `window` looks at."""
    values = data.astype(np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    nan = int(np.count_nonzero(np.isnan(values)))
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (float("nan"), float("nan"))
    with np.errstate(all="ignore"):
        mean, std = (float(finite.mean()), float(finite.std())) if finite.size else (low, low)
        l2 = float(np.sqrt(np.sum(np.square(finite)))) if finite.size else low
    counts = _counts(finite, low, high)
    return Summary(
        values.size, low, high, mean, std, l2, nan, values.size - finite.size - nan,
        int(np.count_nonzero(values == 0)), Histogram(low, high, counts), _thumbnail(_plane(data, slice)),
    )  # fmt: skip


def window(data: Array, row: int = 0, col: int = 0, slice: Sequence[int] = (), side: int = WINDOW) -> Window:
    """At most `side` × `side` elements from `row`, `col` on of the plane that `slice` picks (zeros by default)."""
    plane = _plane(data, slice)
    rows, cols = plane.shape
    for what, at, count in (("row", row, rows), ("column", col, cols)):
        if not 0 <= at < max(count, 1):
            raise ArgumentError("look", what, str(at), f"0 … {count - 1}")
    picked = tuple(slice) or (0,) * max(0, data.ndim - 2)
    return Window(picked, row, col, plane[row : row + side, col : col + side].copy())


def difference(got: Array, want: Array, to: str) -> Difference:
    """How far `got` (float32) is from `want` (float64 or float32) of the same shape; ulp as float32 steps at `want`."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    alike = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        off = np.where(alike, np.abs(a - b), 0.0)
        spacing = np.spacing(np.abs(b).clip(np.finfo(np.float32).tiny, np.finfo(np.float32).max).astype(np.float32))
        steps = np.where(alike, off / spacing.astype(np.float64), 0.0)
    at = tuple(map(int, np.unravel_index(int(np.argmax(steps)), steps.shape))) if steps.size else ()
    worst = (float(a[at]), float(b[at])) if steps.size else (0.0, 0.0)
    unlike = int(np.count_nonzero(~alike & ~same))
    return Difference(to, float(off.max(initial=0.0)), float(steps.max(initial=0.0)), at, *worst, unlike)


def bars(values: Sequence[float]) -> str:
    """A sparkline: `▁▃▅█`; a space where a value is not finite."""
    finite = [v for v in values if np.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[int((v - low) * scale + 0.5)] if np.isfinite(v) else " " for v in values)


def told(array: Array) -> str:
    """One number, a small vector in full, else range and mean: `0.25`, `[1, −2, 0.5]`, `−1.2 … 3.4, mean 0.1`."""
    if array.size <= _IN_FULL and array.ndim <= 2:
        return _nested(array.tolist()) if array.size > 1 else number(array.reshape(-1)[0]) if array.size else "[]"
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    also = f", {bad} not finite" if bad else ""
    if not finite.size:
        return f"{bad} values, none finite"
    return f"{number(finite.min())} … {number(finite.max())}, mean {number(finite.mean())}{also}"


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else number(values)


def number(value: Any) -> str:
    """Four significant digits, a true minus."""
    text = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
    return text.replace("-", "\N{MINUS SIGN}")


# inside ---------------------------------------------------------------------------------------------------------------
def _counts(finite: Array, low: float, high: float) -> tuple[int, ...]:
    if not finite.size:
        return (0,) * BINS
    if low == high:
        return (finite.size, *(0,) * (BINS - 1))
    with np.errstate(all="ignore"):
        place = ((finite / 2 - low / 2) / (high / 2 - low / 2) * BINS).astype(np.int64).clip(0, BINS - 1)
    return tuple(map(int, np.bincount(place, minlength=BINS)))


def _plane(data: Array, slice: Sequence[int]) -> Array:
    """The matrix that is looked at: of a vector one row, of more axes the last two of a slice."""
    if data.ndim <= 2 and slice:
        raise ArgumentError("look", "slice", str(list(slice)), "none: the tensor has at most two axes")
    if data.ndim < 2:
        return data.reshape(1, -1)
    leading = data.shape[:-2]
    picked = tuple(slice) or (0,) * len(leading)
    if len(picked) != len(leading) or any(not 0 <= i < n for i, n in zip(picked, leading, strict=False)):
        wanted = f"an index below each of {' x '.join(map(str, leading))}"
        raise ArgumentError("look", "slice", str(list(slice)), wanted)
    plane: Array = data[picked]
    return plane


def _thumbnail(plane: Array) -> Thumbnail:
    rows, cols = min(SIDE, plane.shape[0]), min(SIDE, plane.shape[1])
    if not plane.size:
        return Thumbnail(0, 0, 0.0, 0.0, b"")
    down, across = (np.arange(n) * size // n for n, size in ((rows, plane.shape[0]), (cols, plane.shape[1])))
    values = plane.astype(np.float64)
    good = np.isfinite(values)
    kept = np.where(good, values, 0.0)
    with np.errstate(all="ignore"):
        total = np.add.reduceat(np.add.reduceat(kept, down, 0), across, 1)
        count = np.add.reduceat(np.add.reduceat(good.astype(np.float64), down, 0), across, 1)
        cells = np.add.reduceat(np.add.reduceat(np.ones_like(values), down, 0), across, 1)
        means = total / count
    whole = (count == cells) & np.isfinite(means)
    low, high = (float(means[whole].min()), float(means[whole].max())) if whole.any() else (0.0, 0.0)
    with np.errstate(all="ignore"):
        scaled = (means / 2 - low / 2) / (high / 2 - low / 2) * 254 if high > low else np.zeros_like(means)
    data = np.where(whole, np.nan_to_num(scaled).round().clip(0, 254), _MASK).astype(np.uint8)
    return Thumbnail(rows, cols, low, high, data.tobytes())
