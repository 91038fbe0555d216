"""The files, folders and links that the pages for readers name are there."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
from places import REPO

PACKAGE = REPO / "gdlab"
PAGES = [*sorted((REPO / "docs").glob("*.md")), REPO / "README.md"]
CODE = re.compile(r"```(?:python|ts|wgsl)\n.*?```", re.DOTALL)
KINDS = "py|ts|wgsl|md|mjs|css|ipynb|toml|json|html|svg|png"
FILE = re.compile(rf"(?<![\w/.:$-])((?:[\w.{{}},*-]+/)*[\w{{}},*-]+\.(?:{KINDS}))\b(?!\()")
FOLDER = re.compile(r"`((?:\w+/)+)`")
LINK = re.compile(r"\]\(([^)#\s]+)")
SOURCES = ("benchmarks", "docs", "gdlab", "labextension/src", "labextension/test", "notebooks", "shaders", "tests")
OTHERS = {  # files that a reader has, or writes
    "add_an_op.md": {"file.wgsl"},
    "architecture.md": {"config.json"},
    "distributed.md": {"ipcluster_config.py"},
    "lessons.md": {"net.py"},
    "loading.md": {"config.json", "tokenizer.json"},
    "README.md": {"mlp.html"},
}
INSIDE = {"cpu/": "devices/cpu", "wgpu/": "devices/wgpu", "run/": "session/run"}  # a row names them after its room
DEFINED = re.compile(r"(?:def|class) (\w+)|\b(\w+)(?:: [^=\n]+)? = |^ +(\w+):", re.MULTILINE)
NAMES = {path.name for folder in SOURCES for path in (REPO / folder).rglob("*") if path.is_file()}


def named(text: str) -> set[str]:
    """The files and folders that a page names outside of its examples; `{a,b}` stands for two."""
    text = CODE.sub("", text)
    found = set[str]()
    for word in FILE.findall(text) + FOLDER.findall(text):
        choice = re.search(r"\{([^}]*)\}", word)
        found |= {word.replace(choice[0], one) for one in choice[1].split(",")} if choice else {word}
    return found


def exists(name: str) -> bool:
    """Whether a path begins in the repository, the package or docs/; a file's name alone is that of any source."""
    path = INSIDE.get(name, name)
    return bool(fnmatch.filter(NAMES, name)) or any(any(folder.glob(path)) for folder in (REPO, PACKAGE, REPO / "docs"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = {name for name in named(text) if not exists(name)}
    assert missing == OTHERS.get(page.name, set())
    links = [link for link in LINK.findall(text) if not link.startswith("http")]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_names_in_the_code_that_the_page_of_rooms_tells_are_defined() -> None:
    page = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", page)}
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    defined = {name for names in DEFINED.findall(code) for name in names}
    assert len(told) > 35 and told - defined - {"py", "md"} == set()


def test_names_are_found() -> None:
    assert len(named((REPO / "docs" / "architecture.md").read_text(encoding="utf-8"))) > 100
    text = "`a/b.py` in `c/d/`, e_{f,g}.ts\n```python\nimport no.py\n```\n```\nx/y.wgsl ─► plan.wgsl(0)\n```"
    assert named(text) == {"a/b.py", "c/d/", "e_f.ts", "e_g.ts", "x/y.wgsl"}
    assert exists("plan/records.py") and exists("recognize*.py") and not exists("plan/record.py")
