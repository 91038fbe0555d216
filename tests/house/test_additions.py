"""The pages that say how to add something are right: each example is carried out in a copy of the package.

What an addition costs is counted there: the files that a person edits. Others are generated from them.
"""

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
BLOCK = re.compile(r"^```(python|ts|wgsl|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("gdlab", "shaders", "docs", "labextension")
# Bytecode comes along: the files have the times of their originals, so that a child compiles what was changed alone.
SKIPPED = shutil.ignore_patterns("static", "node_modules", "pictures")
# Files by hand; of a pane without its text twin, which is a function and its row.
PRICES = {
    "add_a_column": 2,
    "add_a_condition": 1,
    "add_a_magic": 1,
    "add_a_pane": 2,
    "add_a_rule": 1,
    "add_an_op": 1,
    "add_an_op_with_a_shader": 2,
    "add_an_update_rule": 1,
}
TWIN = "gdlab/view/text/"
GENERATED = {  # what follows from an addition, and its line there
    "add_a_column": {
        "labextension/src/doc/records.ts": "  buffers: number;",
        "gdlab/view/document/schema.json": '"buffers": {"$ref": "#/$defs/intColumn"}',
        "docs/graphdoc.md": "| `buffers` | int | 0 | how many it binds |",
    },
    "add_an_op": {
        "gdlab/ops/__init__.py": '    "softsign",',
        "docs/ops.md": "| `softsign(x)` |",
        "labextension/src/host/ops.ts": " softsign ",
    },
    "add_an_op_with_a_shader": {
        "gdlab/ops/__init__.py": '    "swap_pairs",',
        "docs/ops.md": "| `swap_pairs(x)` |",
        "labextension/src/host/ops.ts": " swap_pairs ",
    },
    "add_a_pane": {"labextension/src/panes/later.ts": "  countsPane,"},
}
MOST_LINES = 80


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in COPIED:
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=SKIPPED)
    return tmp_path


def carry_out(page: Path, copy: Path) -> tuple[list[str], set[str]]:
    """Do to the copy what the blocks of a page say; return the blocks that try it, and the files that were edited."""
    tries, edited = [], set()
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        head, _, text = block.partition("\n")
        words = head.lstrip("#/ ")
        if kind == "diff":
            for part in re.split(r"^--- (?=\w)", block, flags=re.MULTILINE)[1:]:
                edited.add(change(copy, part))
        elif words == "try it":
            tries.append(text)
        elif words.startswith("new file "):
            edited.add(write_new(copy, words.removeprefix("new file "), text))
        else:
            edited.add(name := words.removeprefix("add to "))
            path = copy / name
            path.write_text(path.read_text(encoding="utf-8") + f"\n\n{text}", encoding="utf-8")
    return tries, edited


def change(copy: Path, part: str) -> str:
    """Apply the hunks of one file, and return its name; the lines that a hunk names stand there once."""
    name, _, hunks = part.partition("\n")
    path = copy / name
    for hunk in re.split(r"^---\n", hunks, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] in f" {sign}") + "\n" for sign in "-+")
        text = path.read_text(encoding="utf-8")
        assert text.count(f"\n{old}") == 1, f"{name}: {old}"
        path.write_text(text.replace(f"\n{old}", f"\n{new}"), encoding="utf-8")
    return name


def write_new(copy: Path, name: str, text: str) -> str:
    assert not (copy / name).exists(), name
    (copy / name).write_text(text, encoding="utf-8")
    return name


def run_in(copy: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def generate(page: Path, copy: Path) -> None:
    """Write again what is generated: exactly the files that follow from the addition change."""
    made = GENERATED.get(page.stem, {})
    if made:
        assert set(run_in(copy, "labextension/generate.py").split()) == set(made)
    for name, line in made.items():
        assert line in (copy / name).read_text(encoding="utf-8"), name


def test_the_pages_are_short() -> None:
    assert [page.stem for page in PAGES] == list(PRICES)
    for page in PAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, page.name


def test_what_is_generated_is_that_of_today() -> None:
    done = subprocess.run(
        [sys.executable, REPO / "labextension/generate.py", "check"], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "add_a_pane"], ids=lambda page: page.stem)
def test_the_example_of_a_page_works_in_a_copy_at_its_price(page: Path, copy: Path) -> None:
    tries, edited = carry_out(page, copy)
    assert len(tries) == 1 and len(edited) == PRICES[page.stem], edited
    generate(page, copy)
    run_in(copy, "-c", f"import gdlab; assert gdlab.__file__.startswith({str(copy)!r})\n{tries[0]}")


def test_the_pane_of_the_page_has_a_place_and_a_text_twin(copy: Path) -> None:
    _, edited = carry_out(REPO / "docs" / "add_a_pane.md", copy)
    twin = {name for name in edited if name.startswith(TWIN)}
    assert len(edited - twin) == PRICES["add_a_pane"] and len(twin) == 2
    code = """
import gdlab as gd
from gdlab.view.text.twin import twin
with gd.Graph() as graph:
    graph.output(gd.relu(gd.relu(gd.input("x", (3,)))))
print(twin(gd.Study(graph).doc, "counts"))
"""
    assert run_in(copy, "-c", code).startswith("written: input 1, relu 2\n")


def test_the_pane_of_the_page_is_typed(copy: Path) -> None:
    needs("typescript")
    page = REPO / "docs" / "add_a_pane.md"
    carry_out(page, copy)
    generate(page, copy)
    compiler = REPO / "labextension/node_modules/typescript/bin/tsc"
    done = subprocess.run(
        [str(node()), compiler, "-p", "."], cwd=copy / "labextension", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
