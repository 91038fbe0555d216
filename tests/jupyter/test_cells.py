"""The cell that a graph was written in: ops in the colours of their families, lines that light, the graph beside it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browser import Server, cell, command, open_notebook, run_cell, settled
from playwright.sync_api import Locator, Page, expect

from gdlab.view.picture.palette import INK

NET = """%%graph mlp --train
x = input("x", (8, 8))
y = input("y", (8, 8))
h = relu(x @ parameter("relu(", (8, 8)))  # tanh(h)
loss = mse_loss(h, y * float(np.exp(0.0)))
loss"""
LIT = "all => all.map(e => e.textContent)"


def lit_lines(page: Page, index: int = 1) -> list[str]:
    page.wait_for_timeout(120)  # a frame, in which the editor is told
    settled(page)
    found: list[str] = cell(page, index).locator(".gd-cm-lit").evaluate_all(LIT)
    return found


def drawn(page: Page, index: int = 1) -> Locator:
    view = cell(page, index).locator(".gdlab")
    view.locator('[data-pane="before"] .gd-box').first.wait_for()
    return view


def selected(view: Locator) -> list[str]:
    found: list[str] = view.locator("[data-selected]").evaluate_all("all => all.map(e => e.dataset.entity)")
    return sorted(set(found))


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


@pytest.fixture
def written(lab: Server, page: Page) -> Locator:
    open_notebook(page, lab, ["import numpy as np\n%load_ext gdlab", NET])
    run_cell(page, 0)
    run_cell(page, 1)
    return drawn(page)


def test_b14_ops_have_the_colours_of_their_families_before_any_run(lab: Server, page: Page) -> None:
    open_notebook(page, lab, [NET, "relu(1)"])
    marks = cell(page, 0).locator(".gd-cm")
    marks.first.wait_for()
    inks: dict[str, Any] = dict(marks.evaluate_all("all => all.map(e => [e.textContent, e.className])"))
    assert {name: ink.split()[-1] for name, ink in inks.items()} == {
        "input": "gd-f-leaf", "parameter": "gd-f-leaf", "relu": "gd-f-elementwise", "mse_loss": "gd-f-loss",
    }, "not what stands in a string or a comment"  # fmt: skip
    assert cell(page, 1).locator(".gd-cm").count() == 0, "another cell is the notebook's own"
    look = "e => { const c = getComputedStyle(e.querySelector('span') ?? e).color; return c }"
    loss = cell(page, 0).locator(".gd-f-loss")
    assert loss.evaluate(look).startswith("oklch(0.49 0.13 22")
    assert INK  # the same hues as everywhere: tests/view/test_palette.py


def test_the_picture_and_the_lines_of_its_cell_are_one_selection(page: Page, written: Locator) -> None:
    a_selection_lights_the_lines(page, written)
    a_click_on_a_line_selects_what_it_made(page, written)
    a_changed_cell_says_so_and_lights_nothing(page, written)


def a_selection_lights_the_lines(page: Page, written: Locator) -> None:
    assert lit_lines(page) == []
    written.locator('[data-pane="before"] .gd-box', has_text="relu").first.click()
    assert lit_lines(page) == [NET.splitlines()[3]]
    written.locator('[data-pane="before"] .gd-box', has_text="mse_loss").first.click()
    assert lit_lines(page) == [NET.splitlines()[4]]
    page.keyboard.press("Escape")
    assert lit_lines(page) == []


def a_click_on_a_line_selects_what_it_made(page: Page, written: Locator) -> None:
    cell(page, 1).locator(".cm-line", has_text="relu(").click(position={"x": 4, "y": 6})
    ops = written.locator('[data-pane="before"] [data-lit] .gd-op').evaluate_all(LIT)
    assert sorted(ops) == ["matmul", "relu"]
    assert lit_lines(page) == [NET.splitlines()[3]]
    assert page.evaluate("() => document.activeElement.closest('.cm-content') !== null"), "one goes on writing"
    before = selected(written)
    cell(page, 1).locator(".cm-line").first.click()  # the line of the magic made nothing
    assert selected(written) == before


def a_changed_cell_says_so_and_lights_nothing(page: Page, written: Locator) -> None:
    written.locator('[data-pane="before"] .gd-box', has_text="mse_loss").first.click()
    assert lit_lines(page)
    editor = cell(page, 1).locator(".cm-content")
    editor.click()
    page.keyboard.press("Control+End")
    page.keyboard.type(" * 2.0")
    assert lit_lines(page) == []
    assert cell(page, 1).locator(".gd-cm-note").inner_text() == "the cell has changed since"
    for _ in range(6):
        page.keyboard.press("Backspace")
    assert lit_lines(page) and cell(page, 1).locator(".gd-cm-note").count() == 0


def test_the_graph_stands_beside_its_notebook(page: Page, written: Locator) -> None:
    shown_beside_and_back(page, written)
    the_palette_has_the_command(page)


def test_the_graph_stands_beside_its_notebook_in_notebook_7(notebook7: Server, page: Page) -> None:
    open_notebook(page, notebook7, ["import numpy as np\n%load_ext gdlab", NET])
    run_cell(page, 0)
    run_cell(page, 1)
    shown_beside_and_back(page, drawn(page))


def shown_beside_and_back(page: Page, view: Locator) -> None:
    view.locator('[data-command="beside"]').click()
    beside = page.locator('[id^="gdlab-beside"]')
    beside.locator(".gd-box").first.wait_for()
    assert beside.locator('[data-command="beside"]').is_hidden(), "it stands there already"
    beside.locator('[data-pane="before"] .gd-box', has_text="relu").first.click()
    assert selected(view) == selected(beside) != []
    assert lit_lines(page) == [NET.splitlines()[3]]
    line = view.locator("xpath=preceding-sibling::*[contains(@class, 'gd-away')]")
    expect(line).to_have_text(re.compile("^shown beside the notebook"))
    expect(view).to_be_hidden()
    line.locator("button").click()
    view.locator(".gd-box").first.wait_for()
    expect(beside).to_have_count(0)
    expect(line).to_have_count(0)


def the_palette_has_the_command(page: Page) -> None:
    cell(page, 1).locator(".cm-content").click()
    command(page, "gdlab:open-beside")
    page.locator('[id^="gdlab-beside"] .gd-box').first.wait_for()
    assert page.locator(".lm-TabBar-tabLabel", has_text="mlp").count() == 1
    commands = "() => window.jupyterapp.commands.label('gdlab:open-beside')"
    assert page.evaluate(commands) == "Open the Graph Beside the Notebook"
