"""What a person meets in JupyterLab besides a quiet notebook: a reload in mid-run, two tabs, no extension, no trust."""

from __future__ import annotations

import json
from collections.abc import Iterator

import nbformat
import pytest
from browser import (
    Server,
    cell,
    command,
    open_notebook,
    run_cell,
    save,
    serving,
    start_cell,
    visit,
    wait_idle,
    wait_restored,
)
from playwright.sync_api import Page
from test_lab import NET, SLOW_FEED, press, steps, wait_steps


@pytest.fixture(scope="module")
def plain_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab in which the extension of gdlab is switched off, as in hosts that have none."""
    home = tmp_path_factory.mktemp("plain")
    config = home / "jupyter_config_dir" / "labconfig"
    config.mkdir(parents=True)
    (config / "page_config.json").write_text(json.dumps({"disabledExtensions": {"gdlab": True}}))
    with serving("jupyterlab", home) as server:
        yield server


def test_b14_without_the_extension_views_are_live_and_completion_works(plain_lab: Server, page: Page) -> None:
    run = "%graph_run mlp 5 --feed random:0 --sgd 0.1 --init 0"
    open_notebook(page, plain_lab, ["%load_ext gdlab", NET, run, "%%graph more\nx = inp"], "plain.ipynb")
    assert not page.evaluate("Object.keys(window.gdlab?.core ?? {}).length")
    for index in range(3):
        run_cell(page, index)
    view = cell(page, 1).locator(".gdlab")
    view.locator('[data-pane="before"] .gd-box').first.click()
    assert view.locator("[data-lit]").count() > 1
    wait_steps(page, 2, 5)
    press(page, 2, "step")
    wait_steps(page, 2, 6)
    cell(page, 3).locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.press("Tab")
    source = "() => window.jupyterapp.shell.currentWidget.content.widgets[3].model.sharedModel.getSource()"
    page.wait_for_function(f"() => ({source})().endsWith('input') || document.querySelector('.jp-Completer-item')")


def test_b9_a_page_that_reloads_in_mid_run_says_so_and_is_live_again_after_it(lab: Server, page: Page) -> None:
    """A page finds widgets again by asking the kernel, which answers when the cell has ended; until then it says so."""
    run = "%graph_run mlp 400 --feed slow --sgd 0.1 --init 0"
    open_notebook(page, lab, ["%load_ext gdlab", NET, SLOW_FEED, run], "reload.ipynb")
    for index in range(3):
        run_cell(page, index)
    start_cell(page, 3)
    wait_steps(page, 3, 3)
    save(page)
    page.reload()
    wait_restored(page)
    cell(page, 3).scroll_into_view_if_needed()
    button = cell(page, 3).locator('[data-command="step"]').first
    button.wait_for()
    if button.is_disabled():
        assert "until a running one ends" in str(button.get_attribute("title"))
    wait_steps(page, 3, 400)
    wait_idle(page)
    page.wait_for_function("e => !e.disabled", arg=button.element_handle())
    press(page, 3, "step")
    wait_steps(page, 3, 401)


def test_two_tabs_on_one_notebook_show_one_session(lab: Server, page: Page) -> None:
    run = "%graph_run mlp 4 --feed random:0 --sgd 0.1 --init 0"
    open_notebook(page, lab, ["%load_ext gdlab", NET, run], "tabs.ipynb")
    for index in range(3):
        run_cell(page, index)
    save(page)
    other = page.context.new_page()
    other.goto(f"{lab.url}/lab/workspaces/second/tree/tabs.ipynb", wait_until="domcontentloaded")
    wait_restored(other)
    wait_idle(other)
    cell(other, 2).scroll_into_view_if_needed()
    wait_steps(other, 2, 4)
    press(other, 2, "step")
    wait_steps(other, 2, 5)
    page.bring_to_front()
    wait_steps(page, 2, 5)
    press(page, 2, "step")
    wait_steps(page, 2, 6)
    other.bring_to_front()
    wait_steps(other, 2, 6)
    assert steps(page, 2) == steps(other, 2) == 6, "one session, stepped from both tabs"
    other.close()


@pytest.mark.parametrize("trusted", [True, False])
def test_b10_a_saved_notebook_is_interactive_without_its_kernel(lab: Server, page: Page, trusted: bool) -> None:
    """Trust decides over scripts in outputs; a picture needs none."""
    name = f"saved-{trusted}.ipynb"
    run = "%graph_run mlp 4 --feed random:0 --sgd 0.1 --init 0"
    path = open_notebook(page, lab, ["%load_ext gdlab", NET, run], name)
    for index in range(3):
        run_cell(page, index)
    save(page)
    command(page, "kernelmenu:shutdown")
    page.wait_for_timeout(300)
    if not trusted:  # another file with the same outputs has no signature
        book = nbformat.read(path, as_version=4)
        book.cells.append(nbformat.v4.new_markdown_cell("somebody else wrote this"))
        name = "untrusted.ipynb"
        nbformat.write(book, lab.root / name)
    visit(page, lab, name)
    for index, what in ((2, '[data-pane="session"]'), (1, '[data-pane="before"] .gd-box')):
        cell(page, index).scroll_into_view_if_needed()
        cell(page, index).locator(what).first.wait_for()
    cell(page, 1).locator('[data-pane="before"] .gd-box').first.click()
    assert cell(page, 1).locator("[data-lit]").count() > 1
    session = cell(page, 2).locator('[data-pane="session"]')
    assert session.locator('[data-value="state"]').inner_text() == "no live session"
    assert session.locator('[data-command="step"]').first.is_disabled()
    assert page.locator("text=model not found").count() == 0
