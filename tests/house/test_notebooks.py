"""Notebooks as a person runs them, in JupyterLab, and as they read where nothing runs: in HTML and in Markdown."""

from __future__ import annotations

import shutil

import pytest
from browser import Server, open_notebook, run_all, save
from live_notebooks import check_live
from matrix import also
from places import NOTEBOOKS
from playwright.sync_api import Page


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


# All of them are run in a shell (test_lesson_claims.py); here is one of each kind: sessions and memory, models of
# files, an eager tape. `test_the_tour` in tests/jupyter/test_lab.py is the sixth.
@pytest.mark.parametrize("name", also(["bytes", "models", "tape"], "chain_rule", "fusion"))
def test_every_graph_cell_is_live_and_reads_without_scripts(lab: Server, page: Page, name: str) -> None:
    """B5: no error, a live picture with the right number of nodes. B16: its SVG in HTML and Markdown."""
    shutil.copy(NOTEBOOKS / "small_files.py", lab.root)  # which one of them imports
    path = open_notebook(page, lab, NOTEBOOKS / f"{name}.ipynb", f"run-{name}.ipynb")
    run_all(page)
    save(page)
    check_live(page, path)


def test_no_notebook_is_left_out() -> None:
    seen = {"tour", "bytes", "models", "tape", "chain_rule", "fusion"}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == seen
