"""The pages that say how to add something are right: each example is carried out in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machine import needs, node
from places import REPO

PAGES = sorted((REPO / "docs").glob("add_*.md"))
BLOCK = re.compile(r"^```(python|ts|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("gdlab", "shaders", "labextension/src")
SKIPPED = shutil.ignore_patterns("__pycache__", "static", "labextension")
MOST_LINES = 80


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in COPIED:
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=SKIPPED if folder == "gdlab" else None)
    return tmp_path


def carry_out(page: Path, copy: Path) -> list[str]:
    """Do to the copy what the blocks of a page say; return the blocks that try it."""
    tries = []
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        head, _, text = block.partition("\n")
        words = head.lstrip("#/ ")
        if kind == "diff":
            for part in re.split(r"^--- (?=\w)", block, flags=re.MULTILINE)[1:]:
                change(copy, part)
        elif words == "try it":
            tries.append(text)
        elif words.startswith("new file "):
            write_new(copy / words.removeprefix("new file "), text)
        else:
            path = copy / words.removeprefix("add to ")
            path.write_text(path.read_text(encoding="utf-8") + f"\n\n{text}", encoding="utf-8")
    return tries


def change(copy: Path, part: str) -> None:
    """Apply the hunks of one file; the lines that a hunk names stand there once."""
    name, _, hunks = part.partition("\n")
    path = copy / name
    for hunk in re.split(r"^---\n", hunks, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] in f" {sign}") + "\n" for sign in "-+")
        text = path.read_text(encoding="utf-8")
        assert text.count(f"\n{old}") == 1, f"{name}: {old}"
        path.write_text(text.replace(f"\n{old}", f"\n{new}"), encoding="utf-8")


def write_new(path: Path, text: str) -> None:
    assert not path.exists(), path
    path.write_text(text, encoding="utf-8")


def run_in(copy: Path, code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pages_are_short() -> None:
    assert [page.stem for page in PAGES] == ["add_a_pane", "add_a_rule", "add_an_op", "add_an_update_rule"]
    for page in PAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, page.name


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "add_a_pane"], ids=lambda page: page.stem)
def test_the_example_of_a_page_works_in_a_copy(page: Path, copy: Path) -> None:
    tries = carry_out(page, copy)
    assert len(tries) == 1
    run_in(copy, f"import gdlab; assert gdlab.__file__.startswith({str(copy)!r})\n{tries[0]}")


def test_the_pane_of_the_page_has_a_place_and_a_text_twin(copy: Path) -> None:
    carry_out(REPO / "docs" / "add_a_pane.md", copy)
    code = """
import gdlab as gd
from gdlab.view.text.twin import twin
with gd.Graph() as graph:
    graph.output(gd.relu(gd.relu(gd.input("x", (3,)))))
print(twin(gd.Study(graph).doc, "counts"))
"""
    assert run_in(copy, code).startswith("written: input 1, relu 2\n")


def test_the_pane_of_the_page_is_typed(copy: Path) -> None:
    needs("typescript")
    carry_out(REPO / "docs" / "add_a_pane.md", copy)
    front, tools = copy / "labextension", REPO / "labextension"
    shutil.copy(tools / "tsconfig.json", front)
    done = subprocess.run(
        [str(node()), tools / "node_modules/typescript/bin/tsc", "-p", "."], cwd=front, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
