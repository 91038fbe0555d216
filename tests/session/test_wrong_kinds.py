"""Public methods of session and runner, given another kind of object: an error of gdlab's tree, or understood."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting import ONE, counter

from gdlab.base.errors import GdlabError
from gdlab.study.study import Study

WRONG: dict[str, Any] = {
    "none": None, "minus one": -1, "half": 1.5, "nan": float("nan"), "empty text": "", "bytes": b"x", "list": [],
    "dict": {}, "object": object(), "of none": [None], "array": np.ones((2, 3)), "no elements": np.zeros(0),
    "function": lambda: 1, "yes": True, "complex": 1j, "long text": "a" * 10_000, "surrogate": "\ud800",
    "nested": {1: [2]},
}  # fmt: skip
LEFT_OUT = {"controls", "close", "wait", "save_checkpoint", "load_checkpoint"}
RIGHT = {"name": "w", "prefix": "w", "data": ONE["x"], "feed": None, "names": ["w"], "weights": {}}


def methods(subject: Any) -> list[tuple[str, list[inspect.Parameter]]]:
    found = []
    for name in dir(type(subject)):
        method = inspect.getattr_static(type(subject), name)
        if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(method):
            continue
        given = [p for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        if given:
            found.append((name, given))
    return found


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("part", ["session", "runner"])
def test_no_kind_of_argument_ends_in_an_error_of_python(part: str, kind: str) -> None:
    study = counter()
    study.run(1)
    of: Callable[[Study], Any] = lambda s: getattr(s, part)  # noqa: E731
    for name, parameters in methods(of(study)):
        for at, asked in enumerate(parameters):
            if asked.name == "out" or (asked.name, kind) == ("feed", "function"):
                continue  # an array, a feed of the caller's
            before = [RIGHT.get(p.name, 1) for p in parameters[:at]]
            after = [RIGHT.get(p.name, 1) for p in parameters[at + 1 :] if p.default is p.empty]
            try:
                getattr(of(study), name)(*before, WRONG[kind], *after)
            except GdlabError as error:
                assert len(str(error)) <= 4100 and str(error).count("\n") <= 40, name
            except Exception as error:
                pytest.fail(f"{part}.{name}, {asked.name} = {kind}: {type(error).__name__}: {error}")
            if study.runner.state == "running":
                study.runner.stop()
            while study.runner.state == "running":
                pass
    study.close()
