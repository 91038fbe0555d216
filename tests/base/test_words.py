"""The only formatter: numbers, bytes, durations, plurals, nearest names, tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gdlab
from gdlab.base import words

ROOT = Path(gdlab.__file__).parent.parent
CORPUS = json.loads((ROOT / "labextension/test/words.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "value", "text"), [(name, *row) for name, rows in CORPUS.items() for row in rows], ids=str
)
def test_numbers_are_those_of_the_page(name: str, value: float, text: str) -> None:
    """`labextension/test/chart.test.ts` holds the page to the same file."""
    assert getattr(words, name)(value) == text


def test_what_json_cannot_say() -> None:
    assert [words.sig(float(v)) for v in ("nan", "inf", "-inf")] == ["NaN", "∞", "−∞"]
    assert words.duration(None) == words.duration(float("nan")) == "–"
    six = [words.sig(v, 6) for v in (-1.783394, 123456.7, 1234567.0, 0.25)]
    assert six == ["−1.78339", "123,457", "1.23457e6", "0.25"]
    assert words.sig(1234.5678, 9) == "1,234.5678" and words.whole(2**63) == "9,223,372,036,854,775,808"


def test_plurals() -> None:
    counted = [(1, "dispatch"), (2, "dispatch"), (1000, "node"), (0, "output")]
    assert [words.plural(*each) for each in counted] == ["1 dispatch", "2 dispatches", "1,000 nodes", "0 outputs"]


def test_the_nearest_name_is_the_first_of_the_most_alike() -> None:
    assert words.nearest("grad3", ["grad1", "grad2"]) == "grad1" and words.nearest("zebra", ["w1"]) == ""
    assert words.by_likeness("w", ["abc", "w1"], 0) == ["w1", "abc"] and words.by_likeness("w", []) == []
    assert words.one_of("x1", ["x", "y", "z"], 2) == "one of x, y … (3 in all); nearest: x"
    assert words.one_of("x", []) == "one of none: there are none"


def test_a_grid_aligns_wide_letters() -> None:
    lines = words.grid(("a", "n"), [("漢字", "1"), ("x", "20")], right={1}, indent="")
    assert lines == ["a      n", "漢字   1", "x     20"]
