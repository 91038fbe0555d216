"""Disturbances that a person meets in JupyterLab and in Notebook 7: a reload or a restart in mid-run, two tabs, no
kernel, no trust, no extension."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from browser import (
    PYTHON,
    Server,
    Watch,
    box_of,
    bring,
    cell,
    command,
    open_notebook,
    restart_kernel,
    run_again,
    run_cell,
    save,
    serving,
    show,
    start_cell,
    visit,
    wait_idle,
    wait_restored,
)
from lab_steps import NET, SLOW_FEED, press, steps, wait_steps
from matrix import also
from playwright.sync_api import Locator, Page, Route, expect

from gdlab.graph import Graph
from gdlab.jupyter import display
from gdlab.jupyter.display import bundle, study_bundle
from gdlab.ops import input, relu
from gdlab.study.study import Study
from gdlab.view.document.reduced import PICTURE_ALONE

RUN = "%graph_run mlp 4 --feed random:0 --sgd 0.1 --init 0"
LONG_RUN = "%graph_run mlp 150 --feed slow --sgd 0.1 --init 0"


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab or of Notebook 7 that tests share."""
    return app_page


SERVERS = {"lab": "lab", "seven": "notebook7"}


@pytest.fixture(params=SERVERS)
def host(request: pytest.FixtureRequest) -> Server:
    """Each of the two applications in turn."""
    server: Server = request.getfixturevalue(SERVERS[request.param])
    return server


@pytest.fixture(params=also(["lab"], "seven"))
def kernel_host(request: pytest.FixtureRequest) -> Server:
    """For what a kernel, its comms, a file and trust do, which is the same code of Jupyter's in both applications. What
    Notebook 7 draws without a kernel is in the test of a picture alone and in test_parts.py."""
    server: Server = request.getfixturevalue(SERVERS[request.param])
    return server


# without the extension ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plain_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab in which the extension of gdlab is switched off, as in hosts that have none."""
    with serving("jupyterlab", tmp_path_factory.mktemp("plain"), "gdlab") as server:
        yield server


def test_b14_without_the_extension_views_are_live_and_completion_works(
    plain_lab: Server, fresh_page: Page, watch: Watch
) -> None:
    page = fresh_page
    run = "%graph_run mlp 5 --feed random:0 --sgd 0.1 --init 0"
    cells = ["%load_ext gdlab", NET, run, "%%graph more\nx = inp", "%graph mlp --static"]
    path = open_notebook(page, plain_lab, cells, "plain.ipynb")
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
    page.keyboard.press("Escape")
    run_again(page, 4)
    save(page)
    command(page, "kernelmenu:shutdown")
    watch.allow("console error: Error: widget model not found")  # the host's own word for a view without its kernel
    reopened_without_extension_and_kernel(plain_lab, page, path)


def reopened_without_extension_and_kernel(server: Server, page: Page, path: Path) -> None:
    """A cell that was shown with `--static` still has its picture: one image, which names what it shows."""
    visit(page, server, path.name)
    picture = cell(page, 4).locator(".jp-RenderedSVG img, .jp-RenderedSVG svg").first
    picture.wait_for()
    picture.scroll_into_view_if_needed()
    size = box_of(picture)
    assert size["width"] > 300 and size["height"] > 200
    assert picture.evaluate("e => e.tagName !== 'IMG' || (e.complete && e.naturalWidth > 300)")


def test_a_package_that_the_page_does_not_share_costs_one_feature_and_is_said(lab: Server, fresh_page: Page) -> None:
    """An older JupyterLab may lack a package: files do not open as pictures then, and everything else works."""
    page = fresh_page
    with Graph() as graph:
        graph.output(relu(input("x", (4, 8))))
    data, metadata = bundle(Study(graph, device="cpu", name="old").doc, ["opt"])
    shown = nbformat.v4.new_output("display_data", data, metadata=metadata)
    cells = [nbformat.v4.new_code_cell("%graph old", outputs=[shown], execution_count=1)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=PYTHON), lab.root / "older.ipynb")

    def without(route: Route) -> None:
        answer = route.fetch()
        text = answer.text().replace("@jupyterlab/docregistry", "@jupyterlab/nobody-has-this")
        route.fulfill(response=answer, body=text)

    warnings: list[str] = []
    page.on("console", lambda message: warnings.append(message.text) if message.type == "warning" else None)
    page.route("**/gdlab/static/remoteEntry*", without)
    visit(page, lab, "older.ipynb")
    cell(page, 0).locator('.gdlab [data-pane="before"] [data-entity="node:0.1"]').first.click()
    assert cell(page, 0).locator("[data-lit]").count() > 1
    told = [text for text in warnings if text.startswith("gdlab")]
    assert len(told) == 2 and told[0].startswith("gdlab: this page shares no @jupyterlab/nobody-has-this"), told
    assert told[1].startswith("gdlab: .gdlab.json files do not open as pictures here: "), told


# the kernel ends, or starts again -------------------------------------------------------------------------------------
def test_an_output_that_holds_the_picture_alone_shows_it_without_a_kernel(
    host: Server, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A widget's view is in the output too: its renderer would say that the model is not found."""
    with Graph() as graph:
        graph.output(relu(input("x", (4, 8))))
    monkeypatch.setattr(display, "_MAX_PACKED_BYTES", 100)
    data, metadata = study_bundle(Study(graph, device="cpu", name="large"), ["opt"])
    assert "application/vnd.jupyter.widget-view+json" in data
    shown = nbformat.v4.new_output("display_data", data, metadata=metadata)
    cells = [nbformat.v4.new_code_cell("%graph large", outputs=[shown], execution_count=1)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=PYTHON), host.root / "large.ipynb")
    show(page, host, "large.ipynb")
    drawn = cell(page, 0).locator("img.gd-picture")
    drawn.wait_for()
    page.wait_for_function("() => document.querySelector('img.gd-picture').naturalWidth > 100")
    assert drawn.get_attribute("alt") == "large"
    assert cell(page, 0).locator(f"text=gdlab: {PICTURE_ALONE}").count() == 1
    assert page.locator("text=model not found").count() == 0
    wait_idle(page)  # a server that is ended while its kernel starts does not end


def in_mid_run(page: Page, host: Server, name: str) -> None:
    """A notebook whose last cell makes many slow steps, of which some are made."""
    open_notebook(page, host, ["%load_ext gdlab", NET, SLOW_FEED, LONG_RUN], name)
    for index in range(3):
        run_cell(page, index)
    start_cell(page, 3)
    wait_steps(page, 3, 3)


def test_b9_a_kernel_that_is_restarted_leaves_pictures_that_say_so(kernel_host: Server, page: Page) -> None:
    """In mid-run, and at rest; run again, the cells are live with the new kernel, and their buttons work."""
    in_mid_run(page, kernel_host, "restart.ipynb")
    ended = "closed: the kernel has ended; run the cell again"
    for at_rest in (False, True):
        restart_kernel(page)
        page.wait_for_function(
            """wanted => [...document.querySelectorAll('[data-pane="session"] [data-value="state"]')]
            .some(e => e.innerText === wanted)""",
            arg=ended,
        )
        wait_idle(page)
        expect(state_of(page, 3)).to_have_text(ended)
        assert steps(page, 3) >= 3, "what the run came to is still there"
        for button in cell(page, 3).locator(".gd-buttons").first.locator("button:visible").all():
            assert button.is_disabled() and button.get_attribute("title") == "the session is closed: run the cell again"
        expect(cell(page, 1).locator('[role="tab"][data-tab="session"]')).to_have_attribute("data-state", "closed")
        bring(page, 1).locator('[data-pane="before"] .gd-box').first.click()
        assert cell(page, 1).locator("[data-lit]").count() > 1, "the picture is interactive"
        bring(page, 3)
        if at_rest:
            break
        for index in range(3):
            run_again(page, index)
        expect(state_of(page, 3), "the old view belongs to the old session").to_have_text(ended)
        start_cell(page, 3)
        expect(state_of(page, 3)).to_have_text("running")
        wait_steps(page, 3, 3)
        press(page, 3, "pause")
        wait_idle(page)
        made = steps(page, 3)
        assert 3 <= made < 150
        press(page, 3, "step")
        wait_steps(page, 3, made + 1)


def state_of(page: Page, index: int) -> Locator:
    return cell(page, index).locator('[data-pane="session"] [data-value="state"]').first


def test_b9_a_page_that_reloads_in_mid_run_says_so_and_is_live_again_after_it(kernel_host: Server, page: Page) -> None:
    """A page finds widgets again by asking the kernel, which answers when the cell has ended; until then it says so. A
    kernel on a busy machine may answer before its last step: the session runs then."""
    in_mid_run(page, kernel_host, "reload.ipynb")
    save(page)
    page.reload()
    wait_restored(page)
    bring(page, 3)
    button = cell(page, 3).locator('[data-command="step"]').first
    button.wait_for()
    reason = str(button.evaluate("button => button.disabled ? button.title : ''"))  # of one moment: the run may end
    assert reason == "" or "until a running one ends" in reason or reason == "the session is running"
    wait_steps(page, 3, 150)
    wait_idle(page)
    expect(button).to_be_enabled()
    press(page, 3, "step")
    wait_steps(page, 3, 151)


# one notebook in several places ---------------------------------------------------------------------------------------
def second_tab(server: Server, page: Page, name: str) -> Page:
    other = page.context.new_page()
    place = f"lab/workspaces/second/tree/{name}" if server.app == "jupyterlab" else f"notebooks/{name}"
    other.goto(f"{server.url}/{place}", wait_until="domcontentloaded")
    wait_restored(other)
    wait_idle(other)
    return other


def test_two_tabs_on_one_notebook_show_one_session_and_one_selection(kernel_host: Server, page: Page) -> None:
    open_notebook(page, kernel_host, ["%load_ext gdlab", NET, RUN], "tabs.ipynb")
    for index in range(3):
        run_cell(page, index)
    save(page)
    other = second_tab(kernel_host, page, "tabs.ipynb")
    bring(other, 2)
    wait_steps(other, 2, 4)
    press(other, 2, "step")
    wait_steps(other, 2, 5)
    bring(other, 1).locator('[data-pane="before"] [data-entity="node:0.6"]').first.click()
    page.bring_to_front()
    wait_steps(page, 2, 5)
    here = cell(page, 1).locator('[data-pane="before"]')
    here.locator('[data-entity="node:0.6"][data-selected]').first.wait_for()
    here.locator('[data-entity="node:0.3"]').first.click()
    press(page, 2, "step")
    wait_steps(page, 2, 6)
    other.bring_to_front()
    wait_steps(other, 2, 6)
    cell(other, 1).locator('[data-pane="before"] [data-entity="node:0.3"][data-selected]').first.wait_for()
    assert steps(page, 2) == steps(other, 2) == 6, "one session, stepped from both tabs"
    other.close()


def test_b10_a_saved_notebook_is_interactive_without_its_kernel(kernel_host: Server, page: Page) -> None:
    """Trusted, and not: trust decides over scripts in outputs, and a picture needs none."""
    path = open_notebook(page, kernel_host, ["%load_ext gdlab", NET, RUN], "saved.ipynb")
    for index in range(3):
        run_cell(page, index)
    keep_bookmark(page, "the node")
    save(page)
    command(page, "kernelmenu:shutdown")
    book = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_markdown_cell("somebody else wrote this"))
    nbformat.write(book, kernel_host.root / "untrusted.ipynb")  # another file with the same outputs has no signature
    for name, trusted, look in (("saved.ipynb", True, visit), ("untrusted.ipynb", False, show)):
        look(page, kernel_host, name)
        told = "() => window.jupyterapp.shell.currentWidget.content.widgets[1]?.model?.trusted"
        page.wait_for_function(f"trusted => ({told})() === trusted", arg=trusted)
        picture_without_kernel(page)
        assert names_of_bookmarks(page) == ["the node"]
    keep_bookmark(page, "without a kernel")
    save(page)
    show(page, kernel_host, "untrusted.ipynb")
    picture_without_kernel(page)
    assert names_of_bookmarks(page) == ["the node", "without a kernel"]


def keep_bookmark(page: Page, name: str) -> None:
    """Select a node of the second cell's picture and give the selection a name."""
    bring(page, 1)
    cell(page, 1).locator('[data-pane="before"] .gd-box').first.click()
    field = cell(page, 1).locator('[data-command="bookmark"]')
    field.fill(name)
    field.press("Enter")
    page.wait_for_function("count => JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON())"
                           ".includes(count)", arg=f'"name":"{name}"')  # fmt: skip


def names_of_bookmarks(page: Page) -> list[str]:
    found: list[str] = cell(page, 1).locator("datalist option").evaluate_all("all => all.map(e => e.value)")
    return found


def picture_without_kernel(page: Page) -> None:
    for index, what in ((2, '[data-pane="session"]'), (1, '[data-pane="before"] .gd-box')):
        bring(page, index)
        cell(page, index).locator(what).first.wait_for()
    cell(page, 1).locator('[data-pane="before"] .gd-box').first.click()
    assert cell(page, 1).locator("[data-lit]").count() > 1
    expect(state_of(page, 2)).to_have_text("no live session")
    assert steps(page, 2) == 4
    expect(cell(page, 2).locator('[data-pane="session"] [data-command="step"]').first).to_be_disabled()
    assert page.locator("text=model not found").count() == 0
