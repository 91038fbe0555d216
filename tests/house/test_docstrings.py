"""The words of the house (shared style, "Words"), as far as a test can tell."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from places import REPO

WORDS = r"\s*(What|Which|Who|Whose|How|Where|When|Why)\b"
QUESTION = re.compile(WORDS)
BEGUN = re.compile(rf"""(?m)^\s*[rR]?["']+{WORDS}""")  # only code with such a line is parsed: all would take 8 s
FOLDERS = ("gdlab", "benchmarks", "docs", "labextension", "notebooks", "tests")


def questions(code: str) -> list[str]:
    """The docstrings that begin with a question: of a module, class or function, or below a name."""
    if not BEGUN.search(code):
        return []
    texts = [
        node.value.value for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]  # fmt: skip
    return [text for text in texts if QUESTION.match(text)]


def codes() -> Iterator[tuple[str, str]]:
    """The code of every module, script and test, of the cells of notebooks (but magics) and of the pages' examples."""
    for folder in FOLDERS:
        for path in sorted((REPO / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield _label(path), path.read_text(encoding="utf-8")
    for path in sorted((REPO / "notebooks").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "code":
                yield f"{_label(path)}, cell {number}", re.sub(r"(?m)^[%!].*", "", "".join(cell["source"]))
    for path in sorted((REPO / "docs").glob("add_*.md")):
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)):
            yield f"{_label(path)}, example {number}", text


def _label(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def test_no_docstring_begins_with_a_question() -> None:
    found = list(codes())
    places = {place.partition(",")[0] for place, _ in found}
    assert len(places) > 800 and {"notebooks/bytes.ipynb", "docs/add_a_rule.md", "tests/conftest.py"} <= places
    assert [(place, text) for place, code in found for text in questions(code)] == []


def test_every_kind_of_docstring_is_seen() -> None:
    for code in (
        '"""What."""', 'class A:\n    """How it is."""', 'def f():\n    r"""\n    Why so."""', 'x = 1\n"""Where."""',
        "class A:\n    x: int\n    'Who'\n",
    ):  # fmt: skip
        assert len(questions(code)) == 1, code
    for code in ('"""Whether it is."""', 'f(\n    "What")', '"""A.\n\nWhat."""'):
        assert questions(code) == [], code
