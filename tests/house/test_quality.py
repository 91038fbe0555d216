"""The things that GDLAB_EXPECT promises are on this machine, whether or not a test asks for them."""

from __future__ import annotations

import re

import pytest
from machine import THINGS, expected, needs
from places import HELPERS, TESTS


def test_expected_things_are_there() -> None:
    for thing in sorted(expected()):
        needs(thing)


def test_a_missing_thing_fails_when_expected_and_skips_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(THINGS, "lavapipe", (lambda: False, "a driver"))
    monkeypatch.setenv("GDLAB_EXPECT", "lavapipe")
    with pytest.raises(pytest.fail.Exception, match="lavapipe: given none, wanted a driver"):
        needs("lavapipe")
    monkeypatch.setenv("GDLAB_EXPECT", "")
    with pytest.raises(pytest.skip.Exception, match="lavapipe: given none"):
        needs("lavapipe")


def test_an_unknown_thing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDLAB_EXPECT", "lavapipe, coffee")
    with pytest.raises(pytest.UsageError, match="given coffee, wanted words of wgpu, lavapipe"):
        expected()


SKIPS = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|xfail|importorskip)\b(?!\.Exception)|unittest\.skip|skip[T]est")


def test_no_test_is_skipped_in_another_way() -> None:
    paths = [path for path in sorted(TESTS.rglob("*.py")) if path != HELPERS / "machine.py"]
    assert [path.name for path in paths if SKIPS.search(path.read_text(encoding="utf-8"))] == []
    assert len(SKIPS.findall((HELPERS / "machine.py").read_text(encoding="utf-8"))) == 1
