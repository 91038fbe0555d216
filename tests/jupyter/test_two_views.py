"""Two views of one output: one selection and one session, a zoom of their own, and nothing blank after a long way."""

from __future__ import annotations

import re

import pytest
from browser import Server, cell, command, open_notebook, run_again, run_cell, settled
from lab_steps import NET, wait_steps
from playwright.sync_api import Locator, Page, expect

WIDTH = "e => e.getBoundingClientRect().width"


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


def stage(view: Locator) -> Locator:
    return view.locator('[data-pane="before"]')


def test_b11_two_views_share_the_selection_and_keep_their_zoom(lab: Server, page: Page) -> None:
    run = "%graph_run mlp 4 --feed random:0 --sgd 0.1 --init 0"
    far = [f"print({k})\n" + "\n" * 30 for k in range(6)]
    open_notebook(page, lab, ["%load_ext gdlab", NET, run, *far], "views.ipynb")
    for index in range(3):
        run_cell(page, index)
    cell(page, 1).locator(".cm-content").click()
    command(page, "notebook:create-output-view")
    second = page.locator(".jp-LinkedOutputView .gdlab").first
    second.wait_for()
    first = cell(page, 1).locator(".gdlab").first
    first.scroll_into_view_if_needed()
    stage(second).locator('[data-entity="node:0.3"]').first.click()
    stage(first).locator('[data-entity="node:0.3"][data-selected]').first.wait_for()
    here, there = (stage(view).locator(".gd-node").first for view in (first, second))
    before, wide = (node.evaluate(WIDTH) for node in (here, there))
    second.locator('[data-command="zoom-in"]').first.click()
    assert there.evaluate(WIDTH) > 1.05 * wide
    assert here.evaluate(WIDTH) == before, "the other view keeps its zoom"
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer, .jp-Notebook').scrollTop = 1e6")
    page.wait_for_timeout(300)
    settled(page)
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer, .jp-Notebook').scrollTop = 0")
    first.scroll_into_view_if_needed()
    assert stage(first).locator("[data-entity^='node:']").count() > 5
    assert stage(first).locator('[data-entity="node:0.3"][data-selected]').count() == 1
    second.locator('[role="tab"][data-tab="session"]').click()
    second.locator('[data-command="step"]').first.click()
    wait_steps(page, 2, 5)
    expect(second.locator('[data-value="step"]')).to_have_text(re.compile("^5"))
    replaced(page)


def replaced(page: Page) -> None:
    """The graph's cell is run again: views of the old graph keep it, say so, and lead to the new one."""
    run_again(page, 1)
    old = cell(page, 2).locator(".gdlab")
    old.locator('[data-value="state"]', has_text="closed: replaced by a newer run").wait_for()
    assert str(old.locator('[data-value="step"]').text_content()).startswith("5")
    link = old.locator('[data-command="newer"]')
    assert link.text_content() == "replaced by a newer run: show it"
    link.click()
    newer = cell(page, 1).locator(".gdlab")
    page.wait_for_function("key => document.activeElement.dataset.study === key", arg=newer.get_attribute("data-study"))
    assert newer.get_attribute("data-study") == link.get_attribute("data-newer") != old.get_attribute("data-study")
    assert newer.locator('[data-command="newer"]').is_hidden()


def test_a_graph_beside_the_notebook_that_is_closed_is_in_its_output_again(lab: Server, page: Page) -> None:
    """F9: the output becomes one line while its graph stands beside the notebook, and no longer."""
    open_notebook(page, lab, ["%load_ext gdlab", NET], "beside.ipynb")
    for index in range(2):
        run_cell(page, index)
    own, away = cell(page, 1).locator(".gdlab").first, page.locator(".gd-away")
    own.locator(".gd-besidebutton").click()
    page.locator(".gd-beside .gdlab .gd-frame").wait_for()
    expect(away).to_have_text(re.compile("^shown beside the notebook"))
    expect(own).to_be_hidden()
    page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab", has_text="mlp").locator(".lm-TabBar-tabCloseIcon").click()
    away.wait_for(state="detached")
    own.wait_for()
    expect(page.locator(".gd-beside")).to_have_count(0)
