"""The summary of a tensor's elements: against NumPy, with what is not finite, at the borders."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from gdlab.base.errors import ArgumentError
from gdlab.base.statistics import bars, difference, summarize, window


def test_statistics_are_those_of_the_finite_elements() -> None:
    data = np.random.default_rng(0).normal(3, 2, (40, 50)).astype(np.float32)
    data[0, :3] = np.nan, np.inf, -np.inf
    data[1, 0] = 0
    found, good = summarize(data), data[np.isfinite(data)].astype(np.float64)
    assert (found.n, found.nan, found.inf, found.nonfinite, found.zero) == (2000, 1, 2, 3, 1)
    assert (found.min, found.max) == (good.min(), good.max())
    assert [found.mean, found.std, found.l2] == pytest.approx([good.mean(), good.std(), np.linalg.norm(good)])
    counts, _ = np.histogram(good, 32, (good.min(), good.max()))
    assert sum(found.histogram.counts) == good.size
    assert np.abs(np.subtract(found.histogram.counts, counts)).max() <= 1, "one on a border may fall to either side"


@pytest.mark.parametrize("value", [2.5, 0.0, 3.0e38])
def test_equal_elements_lie_in_the_first_part(value: float) -> None:
    found = summarize(np.full((3, 4), value, np.float32))
    assert found.histogram.counts == (12,) + (0,) * 31 and found.std == 0
    assert found.thumbnail.data == bytes(12) and (found.thumbnail.rows, found.thumbnail.cols) == (3, 4)


def test_nothing_finite_and_nothing_at_all() -> None:
    found = summarize(np.full(5, np.nan, np.float32))
    assert np.isnan([found.min, found.mean, found.l2]).all() and found.nan == 5 and sum(found.histogram.counts) == 0
    assert found.thumbnail.data == b"\xff" * 5 and str(found) == "5 elements, none finite"
    assert summarize(np.zeros((0, 3), np.float32)).n == 0


def test_the_widest_range_does_not_overflow() -> None:
    found = summarize(np.array([[-3.4e38, 3.4e38]], np.float32))
    assert found.histogram.counts[0] == found.histogram.counts[31] == 1
    assert found.thumbnail.data == bytes([0, 254])


def test_a_thumbnail_has_at_most_64_cells_a_side_and_shows_one_nan() -> None:
    data = np.zeros((1000, 130), np.float32)
    data[500:] = 1.0
    data[999, 129] = np.nan
    small = summarize(data).thumbnail
    cells = np.frombuffer(small.data, np.uint8).reshape(small.rows, small.cols)
    assert cells.shape == (64, 64) and (small.low, small.high) == (0.0, 1.0)
    assert cells[0, 0] == 0 and cells[63, 0] == 254 and cells[63, 63] == 255 and (cells == 255).sum() == 1


def test_the_document_form_is_plain_json() -> None:
    found = summarize(np.arange(6.0).reshape(2, 3)).to_json()
    json.dumps(found, allow_nan=False)
    assert len(base64.b64decode(found["thumbnail"]["data"])) == 6 and len(found["histogram"]["counts"]) == 32
    assert set(found) == {"n", "min", "max", "mean", "std", "l2", "nan", "inf", "zero", "histogram", "thumbnail"}


def test_a_window_is_exact() -> None:
    data = np.random.default_rng(1).normal(size=(2, 3, 40, 30)).astype(np.float32)
    found = window(data, 30, 20, (1, 2))
    assert found.values.shape == (10, 10) and np.array_equal(found.values, data[1, 2, 30:, 20:])
    assert np.array_equal(window(data).values, data[0, 0, :16, :16])
    first = str(found).split("\n")[1].split()
    assert first[0] == "30" and [np.float32(v) for v in first[1:]] == list(data[1, 2, 30, 20:])
    assert window(np.arange(20.0), 0, 18).values.tolist() == [[18.0, 19.0]]
    for call, text in (
        (lambda: window(data, 40), "look: row: given 40, wanted 0 … 39"),
        (lambda: window(data, 0, -1), "look: column: given -1, wanted 0 … 29"),
        (lambda: window(data, 0, 0, (2, 0)), r"look: slice: given \[2, 0\], wanted an index below each of 2 x 3"),
        (lambda: window(data, 0, 0, (1,)), r"look: slice: given \[1\], wanted an index below each of 2 x 3"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()


def test_a_difference_is_told_in_float32_steps_with_its_place() -> None:
    want = np.linspace(-1, 1, 12).reshape(3, 4)
    got = want.astype(np.float32)
    got[2, 1] = np.nextafter(np.nextafter(got[2, 1], np.float32(9)), np.float32(9))
    found = difference(got, want.astype(np.float32), "cpu")
    assert found.at == (2, 1) and found.ulp == 2.0 and found.unlike == 0
    assert found.error == float(got[2, 1]) - float(np.float32(want[2, 1]))
    assert str(found).startswith("cpu: at most ") and "; 2 ulp at [2, 1]: " in str(found)
    assert str(difference(got, got, "cpu")) == "cpu: equal"
    got[0, 0] = np.nan
    assert difference(got, got, "cpu").unlike == 0
    odd = difference(got, want, "cpu")
    assert odd.unlike == 1 and odd.at == (0, 0)
    assert str(odd) == "cpu: 1 element is not finite in one of the two alone, first at [0, 0]: NaN for −1"


def test_sparklines() -> None:
    assert bars([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert bars([1, float("nan"), 1]) == "▁ ▁" and bars([]) == ""
