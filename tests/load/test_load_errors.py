"""Errors of a node or a file become one `LoadError` that names it."""

from __future__ import annotations

import pytest

from gdlab.base.errors import LoadError, ShapeError, UnknownNameError, unknown_name
from gdlab.load.shared import Malformed, Unsupported, load_errors

ERRORS: dict[str, tuple[Exception, str]] = {
    "of the file": (Malformed("axis", 7, "0 … 2"), "load: add (y): axis: given 7, wanted 0 … 2"),
    "of an op": (ShapeError("add", "x", "f32[2]", "f32[3]"), "load: add (y): add: x: given f32[2], wanted f32[3]"),
    "of Python": (KeyError("k"), "load: add (y): given KeyError: 'k', wanted two operands"),
    "a long one": (ValueError("x" * 999), f"load: add (y): given ValueError: {'x' * 188}, wanted two operands"),
    "unsupported": (Unsupported("of rank 9"), "load: add (y): given of rank 9, wanted two operands"),
    "said already": (LoadError("load", "w", 1, 2), "load: w: given 1, wanted 2"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_names_the_node(kind: str) -> None:
    error, text = ERRORS[kind]
    with pytest.raises(LoadError) as caught, load_errors("load", "add (y)", "two operands"):
        raise error
    assert str(caught.value) == text


@pytest.mark.parametrize(("error", "passing"), [
    (Unsupported("of rank 9"), Unsupported), (unknown_name("load", "dims", "s0", ["n"]), UnknownNameError),
    (KeyboardInterrupt(), UnknownNameError),
])  # fmt: skip
def test_others_pass(error: BaseException, passing: type[Exception]) -> None:
    with pytest.raises(type(error)) as caught, load_errors("load", "add (y)", "two operands", passing):
        raise error
    assert caught.value is error
