"""The words of the house (shared style, "Words"), as far as a test can tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from places import REPO

QUESTION = re.compile(r"(What|Which|Who|Whose|How|Where|When|Why)\b")
FOLDERS = ("gdlab", "benchmarks", "docs", "labextension", "tests/helpers")


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the package and of the scripts and helpers beside it, with its place."""
    paths = [path for folder in FOLDERS for path in sorted((REPO / folder).rglob("*.py"))]
    for path in (path for path in paths if "node_modules" not in path.parts):
        name = path.relative_to(REPO).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{name}: {getattr(node, 'name', 'module')}", ast.get_docstring(node) or ""


def test_no_docstring_begins_with_a_question() -> None:
    assert [place for place, text in docstrings() if QUESTION.match(text)] == []
