"""Describe a tensor in numbers: statistics, histogram, thumbnail, exact values of a window, difference to another.

Statistics ignore what is not finite and count it. Float64 throughout; a window's values are those of the tensor.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.types import Array
from gdlab.base.words import grid, plural, sig, whole

BINS, SIDE, WINDOW = 32, 64, 16
_BLOCK = 1 << 17  # elements
_MASK = 255  # of a thumbnail: not finite
_IN_FULL = 12  # elements of a tensor that is told in full
_IN_FULL_AXES = 4
_BARS = "▁▂▃▄▅▆▇█"
_HEAT_ROWS, _HEAT_COLS, NOT_FINITE = 12, 48, "×"


@dataclass(frozen=True, slots=True)
class ArrayHistogram:
    """Counts of finite elements in 32 equal parts of low … high (all in the first where they are equal)."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrayThumbnail:
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
    histogram: ArrayHistogram
    thumbnail: ArrayThumbnail

    @property
    def nonfinite(self) -> int:
        """NaN and infinities."""
        return self.nan + self.inf

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a document's tensor summary."""
        h, t = self.histogram, self.thumbnail
        return {
            "n": self.n, "min": _word(self.min), "max": _word(self.max), "mean": _word(self.mean),
            "std": _word(self.std), "l2": _word(self.l2), "nan": self.nan, "inf": self.inf, "zero": self.zero,
            "histogram": {"low": _word(h.low), "high": _word(h.high), "counts": list(h.counts)},
            "thumbnail": {
                "rows": t.rows, "cols": t.cols, "low": t.low, "high": t.high,
                "data": base64.b64encode(t.data).decode("ascii"),
            },
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any]) -> Summary:
        """Return the summary that a document holds."""
        h, t = data["histogram"], data["thumbnail"]
        low, high, mean, std, l2 = (float(data[name]) for name in ("min", "max", "mean", "std", "l2"))
        return Summary(
            data["n"], low, high, mean, std, l2, data["nan"], data["inf"], data["zero"],
            ArrayHistogram(float(h["low"]), float(h["high"]), tuple(h["counts"])),
            ArrayThumbnail(t["rows"], t["cols"], float(t["low"]), float(t["high"]), base64.b64decode(t["data"])),
        )  # fmt: skip

    def lines(self) -> list[str]:
        """Return three lines: range and mean; spread and counts; the histogram."""
        h = self.histogram
        odd = f"{whole(self.zero)} zero, {whole(self.nan)} NaN, {whole(self.inf)} infinite"
        counts = f"{plural(self.n, 'element')}, {odd}"
        found = [str(self), f"std {value_words(self.std)}, l2 {value_words(self.l2)}; {counts}"]
        if self.n > 1 and self.n != self.nonfinite:
            found.append(f"{value_words(h.low)} {histogram_bars(h.counts)} {value_words(h.high)}")
        return found

    def picture(self) -> list[str]:
        """Return the thumbnail in characters, and what they mean; nothing of less than two elements."""
        t = self.thumbnail
        bad = f", {NOT_FINITE} not finite" if _MASK in t.data else ""
        scale = f"{_BARS[0]} {value_words(t.low)} … {_BARS[-1]} {value_words(t.high)}{bad}"
        return [*heat(t), scale] if self.n > 1 else []

    def __str__(self) -> str:
        if self.n == 1 and not self.nonfinite:
            return value_words(self.mean)
        if self.n == self.nonfinite:
            return f"{plural(self.n, 'element')}, none finite"
        bad = f", {whole(self.nonfinite)} not finite" if self.nonfinite else ""
        return f"{value_words(self.min)} … {value_words(self.max)}, mean {value_words(self.mean)}{bad}"


@dataclass(frozen=True, slots=True)
class Window:
    """Exact values of at most 16 × 16 elements of a slice: `slice` picks the leading axes, `row` and `col` say where it
    begins."""

    slice: tuple[int, ...]
    row: int
    col: int
    values: Array

    def texts(self) -> list[list[str]]:
        """Write each value in the fewest digits that give it back, as Python does: to be copied."""
        return [[str(v) for v in row] for row in self.values]

    def to_json(self) -> dict[str, Any]:
        """Return its first row and column, and its values as texts: JSON has no float32."""
        return {"row": self.row, "col": self.col, "rows": self.texts()}

    def __str__(self) -> str:
        texts = self.texts()
        head = ["", *(str(self.col + j) for j in range(self.values.shape[1]))]
        rows = [[str(self.row + i), *row] for i, row in enumerate(texts)]
        return "\n".join(grid(head, rows, right=range(len(head))))


@dataclass(frozen=True, slots=True)
class Difference:
    """Distance of a tensor from another: the largest absolute error, the largest distance in float32 steps and where it
    is. `unlike` elements are not finite where the other has something else: then `at` is the first of those."""

    to: str
    error: float
    ulp: float
    at: tuple[int, ...]
    got: float
    want: float
    unlike: int

    def to_json(self) -> dict[str, Any]:
        """Return its fields, and the text of `str`."""
        return {
            "to": self.to, "error": _word(self.error), "ulp": _word(self.ulp), "at": list(self.at),
            "got": _word(self.got), "want": _word(self.want), "unlike": self.unlike, "text": str(self),
        }  # fmt: skip

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.at))}]: {sig(self.got, 9)} for {sig(self.want, 9)}"
        if self.unlike:
            count = f"{plural(self.unlike, 'element')} {'is' if self.unlike == 1 else 'are'}"
            return f"{self.to}: {count} not finite in one of the two alone, first at {place}"
        if self.ulp == 0:
            return f"{self.to}: equal"
        return f"{self.to}: at most {sig(self.error)}; {sig(self.ulp)} ulp at {place}"


def summarize(data: Array, slice: Sequence[int] = ()) -> Summary:
    """Return the summary of a tensor; the thumbnail is of the slice that `window` looks at."""
    flat = data.reshape(-1)
    count = nan = zero = 0
    low, high, sums = float("inf"), float("-inf"), list[float]()
    for block in _blocks(flat):
        finite = block[good] if not (good := np.isfinite(block)).all() else block
        nan += int(np.count_nonzero(np.isnan(block))) if finite is not block else 0
        zero += int(np.count_nonzero(block == 0))
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            sums.append(float(finite.sum()))
            count += finite.size
    if not count:
        low = high = float("nan")
    mean = math.fsum(sums) / count if count else low
    counts, deviation, squares = np.zeros(BINS, np.int64), list[float](), list[float]()
    for block in _blocks(flat):
        finite = block[good] if not (good := np.isfinite(block)).all() else block
        counts += _counts(finite, low, high)
        deviation.append(_squares(finite - mean))
        squares.append(_squares(finite))
    std, l2 = (math.sqrt(math.fsum(deviation) / count), math.sqrt(math.fsum(squares))) if count else (low, low)
    histogram = ArrayHistogram(low, high, tuple(counts.tolist()))
    thumbnail = _thumbnail(_plane(data, slice))
    return Summary(flat.size, low, high, mean, std, l2, nan, flat.size - count - nan, zero, histogram, thumbnail)


def window(data: Array, row: int = 0, col: int = 0, slice: Sequence[int] = (), side: int = WINDOW) -> Window:
    """Return at most `side` × `side` elements from `row`, `col` on of the plane that `slice` picks (zeros by default).
    """
    plane = _plane(data, slice)
    rows, cols = plane.shape
    for what, at, count in (("row", row, rows), ("column", col, cols)):
        if not 0 <= at < max(count, 1):
            raise ArgumentError("look", what, str(at), f"0 … {count - 1}")
    picked = tuple(slice) or (0,) * max(0, data.ndim - 2)
    return Window(picked, row, col, plane[row : row + side, col : col + side].copy())


def difference(got: Array, want: Array, to: str) -> Difference:
    """Compare `got` (float32) with `want` (float64 or float32) of the same shape; ulp as float32 steps at `want`."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    alike = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        off = np.where(alike, np.abs(a - b), 0.0)
        spacing = np.spacing(np.abs(b).clip(np.finfo(np.float32).tiny, np.finfo(np.float32).max).astype(np.float32))
        steps = np.where(alike, off / spacing.astype(np.float64), 0.0)
    odd = ~alike & ~same
    first = int(np.argmax(odd if odd.any() else steps)) if steps.size else 0
    at = tuple(map(int, np.unravel_index(first, steps.shape))) if steps.size else ()
    worst = (float(a[at]), float(b[at])) if steps.size else (0.0, 0.0)
    unlike = int(np.count_nonzero(odd))
    return Difference(to, float(off.max(initial=0.0)), float(steps.max(initial=0.0)), at, *worst, unlike)


def bars(values: Sequence[float]) -> str:
    """Draw values as a sparkline, `▁▃▅█`; a space where a value is not finite."""
    finite = [v for v in values if np.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[int((v - low) * scale + 0.5)] if np.isfinite(v) else " " for v in values)


def histogram_bars(counts: Sequence[int]) -> str:
    """Draw a bar for each part of a histogram, from zero: an empty part has the lowest bar, all others have higher
    ones."""
    most = max(counts, default=0) or 1
    return "".join(_BARS[-(-(len(_BARS) - 1) * count // most)] for count in counts)


def heat(small: ArrayThumbnail) -> list[str]:
    """Draw a thumbnail in at most 12 rows of 48 characters, the mean of a cell from ▁ (low) to █ (high); × where
    something is not finite."""
    if not small.data:
        return []
    cells = np.frombuffer(small.data, np.uint8).reshape(small.rows, small.cols).astype(np.float64)
    down, across = (_starts(n, most) for n, most in ((small.rows, _HEAT_ROWS), (small.cols, _HEAT_COLS)))
    bad = np.logical_or.reduceat(np.logical_or.reduceat(cells == _MASK, down, 0), across, 1)
    top = len(_BARS) - 1
    level = (_cell_means(cells, down, across) / (_MASK - 1) * top + 0.5).astype(int).clip(0, top)
    shown = np.where(bad, NOT_FINITE, np.array(list(_BARS))[level])
    return ["".join(row) for row in shown.tolist()]


def array_words(array: Array) -> str:
    """Return one number, up to 12 elements in three significant digits, else range and mean: `0.2`, `[1, −2, 0.5]`,
    `−1.2 … 3, mean 0.1`."""
    if array.size <= _IN_FULL and array.ndim <= _IN_FULL_AXES:
        return _nested(array.tolist()) if array.size > 1 else value_words(array.reshape(-1)[0]) if array.size else "[]"
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    also = f", {whole(bad)} not finite" if bad else ""
    if not finite.size:
        return f"{plural(bad, 'value')}, none finite"
    return f"{value_words(finite.min())} … {value_words(finite.max())}, mean {value_words(finite.mean())}{also}"


def _nested(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_nested, values))}]"
    return value_words(values, 3).replace(",", "")  # a comma separates the elements


def value_words(value: Any, digits: int = 4) -> str:
    """Return a float in so many significant digits, an integer in full."""
    return whole(int(value)) if isinstance(value, (int, np.integer)) else sig(value, digits)


# inside ---------------------------------------------------------------------------------------------------------------
def _word(value: float) -> float | str:
    """A float as JSON can say it."""
    return value if np.isfinite(value) else "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"


def _starts(size: int, most: int) -> Array:
    """Return the beginnings of at most `most` equal parts."""
    count = min(most, size)
    return np.arange(count) * size // count


def _cell_means(values: Array, down: Array, across: Array) -> Array:
    """The mean of each cell, wherever rows `down` and columns `across` begin one."""

    def total(of: Array) -> Array:
        return np.asarray(np.add.reduceat(np.add.reduceat(of, down, 0), across, 1))

    return np.asarray(total(values) / total(np.ones_like(values)))


def _blocks(flat: Array) -> Iterator[Array]:
    """Float64 in parts that stay in the processor's cache."""
    return (flat[at : at + _BLOCK].astype(np.float64) for at in range(0, flat.size, _BLOCK))


def _squares(values: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.sum(np.square(values)))  # not np.dot: its threads wait for each other on a busy machine


def _counts(finite: Array, low: float, high: float) -> Array:
    if low == high or not finite.size:
        return np.array([finite.size, *(0,) * (BINS - 1)])
    with np.errstate(all="ignore"):
        place = ((finite / 2 - low / 2) / (high / 2 - low / 2) * BINS).astype(np.uint8)
    return np.bincount(np.minimum(place, BINS - 1), minlength=BINS)


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


def _thumbnail(plane: Array) -> ArrayThumbnail:
    if not plane.size:
        return ArrayThumbnail(0, 0, 0.0, 0.0, b"")
    down, across = (_starts(size, SIDE) for size in plane.shape)
    means = np.empty((down.size, across.size))
    whole = np.ones(means.shape, bool)
    widths = np.diff(across, append=plane.shape[1])
    for i, (first, last) in enumerate(pairwise([*down.tolist(), plane.shape[0]])):
        band = plane[first:last].astype(np.float64)
        bad = ~np.isfinite(band)
        if bad.any():
            whole[i] = ~np.logical_or.reduceat(bad.any(0), across)
            band[bad] = 0.0
        means[i] = np.add.reduceat(band.sum(0), across) / (widths * (last - first))
    low, high = (float(means[whole].min()), float(means[whole].max())) if whole.any() else (0.0, 0.0)
    with np.errstate(all="ignore"):
        scaled = (means / 2 - low / 2) / (high / 2 - low / 2) * 254 if high > low else np.zeros_like(means)
    data = np.where(whole, np.nan_to_num(scaled).round().clip(0, 254), _MASK).astype(np.uint8)
    return ArrayThumbnail(down.size, across.size, low, high, data.tobytes())
