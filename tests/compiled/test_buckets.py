"""Ladders of buckets, the bucket of a key, and rows padded to its end and cut again (the pure part of C-16)."""

from __future__ import annotations

import numpy as np
import pytest

from gdlab.base.errors import ArgumentError, ShapeError
from gdlab.compiled.buckets import bucket_of, checked_buckets, pad_rows, power_of_two_buckets, slice_rows


@pytest.mark.parametrize(
    ("ends", "ranges"),
    [
        ((8, 64), [(1, 9), (9, 17), (17, 33), (33, 65)]),
        ((1, 1), [(1, 2)]),
        ((5, 9), [(1, 9), (9, 17)]),
        ((3, 4), [(1, 5)]),
        ((1, 5), [(1, 2), (2, 3), (3, 5), (5, 9)]),
    ],
)
def test_a_ladder_doubles_until_it_reaches_the_end(ends: tuple[int, int], ranges: list[tuple[int, int]]) -> None:
    made = power_of_two_buckets(*ends)
    assert made == tuple(range(*pair) for pair in ranges)
    assert checked_buckets(made) == made


def test_the_longest_ladder_ends_at_two_to_the_31st() -> None:
    assert power_of_two_buckets(1, 2**31)[-1] == range(2**30 + 1, 2**31 + 1)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((0, 4), "power_of_two_ladder: min: given 0, wanted 1 or more"),
        ((8, 7), "max: given 7, wanted min, 8, or more"),
        ((1, 2**31 + 1), r"max: given 2147483649, wanted at most 2\^31"),
        ((1.0, 2), "min: given 1.0, wanted an int"),
        ((1, True), "max: given True, wanted an int"),
    ],
)
def test_bad_ladders(ends: tuple[int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as e:
        power_of_two_buckets(*ends)
    assert isinstance(e.value, ValueError)


def test_keys_of_a_ladder() -> None:
    buckets = power_of_two_buckets(8, 64)
    keys = (-1, 0, 1, 8, 9, 16, 17, 33, 64, 65)
    assert [bucket_of(buckets, key) for key in keys] == [None, None, 0, 0, 1, 1, 2, 3, 3, None]


def test_gaps_hold_no_key() -> None:
    buckets = checked_buckets([range(2), range(4, 6)])
    assert [bucket_of(buckets, key) for key in range(7)] == [0, 0, None, None, 1, 1, None]


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([], "buckets: ranges: given none, wanted at least one range"),
        ([range(1, 3), range(3, 3)], r"bucket 1: given range\(3, 3\), wanted a range that is not empty"),
        ([range(-1, 3)], r"bucket 0: given range\(-1, 3\), wanted a start of 0 or more"),
        ([range(4, 6), range(1, 3)], r"bucket 1: given range\(1, 3\) behind range\(4, 6\), wanted ranges in order"),
        ([range(1, 4), range(3, 6)], "bucket 1: .* without overlaps"),
        ([range(1, 9), range(9, 20, 2)], "bucket 1: .* wanted a range of step 1"),
        ([(1, 9)], r"bucket 0: given \(1, 9\), wanted a range of step 1"),
    ],
)
def test_bad_buckets_are_named_by_index(buckets: list[range], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        checked_buckets(buckets)


def test_rows_are_padded_with_zeros_and_cut_again() -> None:
    rows = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    padded = pad_rows(rows, 2, 5)
    assert padded.tolist() == [1, 2, 3, 4, 5, 6, 0, 0, 0, 0] and padded.dtype == np.float32
    assert slice_rows(padded, 2, 3).tolist() == [1, 2, 3, 4, 5, 6]
    assert pad_rows(rows, 3, 2).tolist() == rows.ravel().tolist()
    assert pad_rows(np.zeros(0, np.uint32), 4, 2).dtype == np.uint32
    assert slice_rows(padded, 2, 0).size == 0
    padded[0] = 9
    assert rows[0, 0] == 1 and not np.shares_memory(slice_rows(padded, 2, 1), padded)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pad_rows(np.zeros(7), 2, 9), "pad_rows: elements: given 7, wanted a multiple of 2"),
        (lambda: pad_rows(np.zeros(6), 0, 9), "pad_rows: inner: given 0, wanted 1 element per row or more"),
        (lambda: pad_rows(np.zeros(6), 2, 2), "pad_rows: rows: given 3 rows that exceed upper, wanted at most 2"),
        (lambda: pad_rows(np.zeros(0), 2, 0), "pad_rows: upper: given 0"),
        (lambda: slice_rows(np.zeros(7), 2, 1), "slice_rows: elements: given 7, wanted a multiple of 2"),
        (lambda: slice_rows(np.zeros(6), -1, 1), "slice_rows: inner: given -1"),
        (lambda: slice_rows(np.zeros(6), 2, 4), "slice_rows: rows: given 4, wanted 0 … 3"),
        (lambda: slice_rows(np.zeros(6), 2, -1), "slice_rows: rows: given -1, wanted 0 … 3"),
    ],
)
def test_what_is_no_whole_rows_is_refused(call: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()  # type: ignore[operator]
