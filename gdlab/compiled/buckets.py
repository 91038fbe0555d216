"""Buckets of extents: ladders of ranges, the bucket of a key, and rows that are padded to its end and cut again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, ShapeError
from gdlab.base.kinds import INTEGER, SEVERAL, check_kind, kinds
from gdlab.base.types import Array

__all__ = ["bucket_of", "checked_buckets", "pad_rows", "power_of_two_buckets", "slice_rows"]

LARGEST = 1 << 31  # of an extent in a ladder


# ranges ---------------------------------------------------------------------------------------------------------------
def checked_buckets(buckets: Iterable[range]) -> tuple[range, ...]:
    """Return the buckets as a tuple: half-open ranges of step 1, in order, without overlaps; gaps are fine.

    Raises `ArgumentError`, which names the index of the first bad one.
    """
    check_kind("buckets", "ranges", buckets, SEVERAL)
    found = tuple(buckets)
    if not found:
        raise ArgumentError("buckets", "ranges", "none", "at least one range")
    for i, bucket in enumerate(found):
        if not isinstance(bucket, range) or bucket.step != 1:
            raise ArgumentError("buckets", f"bucket {i}", repr(bucket), "a range of step 1")
        if not bucket:
            raise ArgumentError("buckets", f"bucket {i}", repr(bucket), "a range that is not empty")
        if bucket.start < 0:
            raise ArgumentError("buckets", f"bucket {i}", repr(bucket), "a start of 0 or more")
        if i and bucket.start < found[i - 1].stop:
            given = f"{bucket!r} behind {found[i - 1]!r}"
            raise ArgumentError("buckets", f"bucket {i}", given, "ranges in order, without overlaps")
    return found


def bucket_of(buckets: Sequence[range], key: int) -> int | None:
    """Return the index of the bucket that holds the key, or None. The buckets are checked ones."""
    index = bisect_right(buckets, key, key=lambda bucket: bucket.start) - 1
    return index if index >= 0 and key in buckets[index] else None


def power_of_two_buckets(min: int, max: int) -> tuple[range, ...]:
    """Return the ladder of buckets whose upper ends are p, 2p, 4p … with p the next power of two from `min` on, until
    one reaches `max`; the first begins at 1. `(8, 64)`: 1 … 8, 9 … 16, 17 … 32, 33 … 64.

    Raises `ArgumentError` for `min` below 1, `max` below `min`, and an end beyond 2^31.
    """
    for name, given in (("min", min), ("max", max)):
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
            raise ArgumentError("power_of_two_ladder", name, repr(given), "an int")
    if min < 1:
        raise ArgumentError("power_of_two_ladder", "min", min, "1 or more")
    if max < min:
        raise ArgumentError("power_of_two_ladder", "max", max, f"min, {min}, or more")
    if max > LARGEST:
        raise ArgumentError("power_of_two_ladder", "max", max, f"at most 2^31 = {LARGEST}")
    upper = 1 << (int(min) - 1).bit_length()
    found = [range(1, upper + 1)]
    while upper < max:
        found.append(range(upper + 1, 2 * upper + 1))
        upper *= 2
    return tuple(found)


# rows -----------------------------------------------------------------------------------------------------------------
@kinds(inner=INTEGER, upper=INTEGER)
def pad_rows(data: Any, inner: int, upper: int) -> Array:
    """Return the rows of `inner` elements each as a flat array of `upper` rows, padded with zeros.

    Raises `ShapeError` for elements that are no whole rows and for more than `upper` rows.
    """
    flat, rows = _rows("pad_rows", data, inner)
    if upper < 1:
        raise ShapeError("pad_rows", "upper", upper, "1 row or more")
    if rows > upper:
        raise ShapeError("pad_rows", "rows", f"{rows} rows that exceed upper", f"at most {upper}")
    padded = np.zeros(upper * inner, flat.dtype)
    padded[: flat.size] = flat
    return padded


@kinds(inner=INTEGER, actual=INTEGER)
def slice_rows(data: Any, inner: int, actual: int) -> Array:
    """Return a flat copy of the first `actual` rows of `inner` elements each.

    Raises `ShapeError` for elements that are no whole rows and for fewer than `actual` rows.
    """
    flat, rows = _rows("slice_rows", data, inner)
    if not 0 <= actual <= rows:
        raise ShapeError("slice_rows", "rows", actual, f"0 … {rows}")
    return flat[: actual * inner].copy()


def _rows(where: str, data: Any, inner: int) -> tuple[Array, int]:
    """Return the elements as a flat array, and the number of rows."""
    try:
        flat = np.ravel(np.asarray(data))
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(where, "data", "a ragged sequence", "an array") from None
    if inner < 1:
        raise ShapeError(where, "inner", inner, "1 element per row or more")
    if flat.size % inner:
        raise ShapeError(where, "elements", flat.size, f"a multiple of {inner}, the elements of a row")
    return flat, flat.size // inner
