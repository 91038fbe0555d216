"""The words of the house (shared style, "Words"), as far as a test can tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from places import REPO

QUESTION = re.compile(r"(What|Who|Whose|How|Where|Why)\b")


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the package, with its place."""
    for path in sorted((REPO / "gdlab").rglob("*.py")):
        name = path.relative_to(REPO / "gdlab").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{name}: {getattr(node, 'name', 'module')}", ast.get_docstring(node) or ""


def test_no_docstring_begins_with_a_question() -> None:
    assert [place for place, text in docstrings() if QUESTION.match(text)] == []
