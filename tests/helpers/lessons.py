"""Run the notebooks that teach, cell by cell, in an IPython shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.utils.capture import capture_output
from places import NOTEBOOKS
from shells import fresh_shell, told

from gdlab.rewrite import RULES

if TYPE_CHECKING:
    from nbformat import NotebookNode

WITHOUT_PICTURE = re.compile(r"--quiet|^%graph_(check|trace|watch)")
LESSONS = ("chain_rule", "fusion", "bytes", "tape")
SHOWN = ("tour", "models")  # notebooks that show before they ask


def read(name: str) -> NotebookNode:
    import nbformat  # not above: every run of pytest would take 3 s of processor time for it

    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture
def lesson_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(NOTEBOOKS)  # a kernel finds what stands beside its notebook
    monkeypatch.chdir(Path.cwd())  # a notebook may go to a folder of its own
    theirs, removed = dict(RULES._theirs), set(RULES._removed)
    with fresh_shell() as shell:
        yield shell
    RULES._theirs, RULES._removed = theirs, removed


def run_lesson(shell: Any, name: str) -> tuple[list[str], dict[str, Any]]:
    """Run a lesson; return the output of each code cell, and the names that it left."""
    printed = []
    for number, cell in enumerate(read(name).cells):
        if cell.cell_type != "code":
            continue
        with capture_output() as out:
            result = shell.run_cell(cell.source, store_history=True)
        problem = result.error_before_exec or result.error_in_exec
        assert problem is None, (number, cell.source, out.stdout + out.stderr)
        for shown in out.outputs:
            assert {"image/svg+xml", "text/plain", "text/html"} & set(shown.data), cell.source
        if cell.source.startswith(("%%graph", "%graph")) and not WITHOUT_PICTURE.search(cell.source):
            assert out.outputs[0].data["image/svg+xml"].startswith("<svg"), cell.source
        printed.append(told(out))
    return printed, shell.user_ns
