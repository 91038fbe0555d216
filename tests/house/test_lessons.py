"""The lessons are saved without outputs and ask before they show. (test_lesson_claims.py runs them.)"""

from __future__ import annotations

import re

import nbformat
import pytest
from lessons import LESSONS, SHOWN, read

WORDS_A_MINUTE = 150


@pytest.mark.parametrize("name", [*LESSONS, *SHOWN])
def test_a_notebook_is_saved_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
    assert len({c.id for c in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_asks_before_it_shows(name: str) -> None:
    cells = read(name).cells
    asked = [i for i, c in enumerate(cells) if c.cell_type == "markdown" and "**Question.**" in c.source]
    assert len(asked) >= 5 and "Answer first" in cells[0].source
    for i in asked:
        code = next(k for k in range(i + 1, len(cells)) if cells[k].cell_type == "code")
        assert code == i + 1, "what answers a question stands below it"
        answer = next(c.source for c in cells[code:] if c.cell_type == "markdown")
        assert not answer.startswith("**Question"), "an answer before the next question"
    words = sum(len(re.findall(r"\w+", c.source)) for c in cells)
    assert 4 <= words / WORDS_A_MINUTE <= 12, "ten minutes, with the time to think"
