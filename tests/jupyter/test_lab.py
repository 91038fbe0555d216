"""The notebook in real JupyterLab: what a person sees, clicks, reloads and reopens."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from browser import (
    Server,
    cell,
    command,
    open_notebook,
    run_all,
    run_cell,
    save,
    settled,
    shot,
    start_cell,
    theme,
    visit,
    wait_idle,
    wait_restored,
)
from lab_steps import NET, SLOW_FEED, press, steps, wait_steps
from live_notebooks import check_live
from places import NOTEBOOKS
from playwright.sync_api import Page, expect

TOUR = NOTEBOOKS / "tour.ipynb"


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


def state(page: Page) -> dict[str, object]:
    """Return what the kernel itself says of the study, beside the busy cell's own answer."""
    return json.loads(cell(page, -1).locator(".jp-OutputArea-output").last.inner_text())


def test_the_tour(lab: Server, page: Page) -> None:
    path = open_notebook(page, lab, TOUR, "tour.ipynb")
    sources = [c.source for c in nbformat.read(path, as_version=4).cells]
    run_all(page)
    told = page.locator(".jp-OutputArea-output pre", has_text="gdlab-summary {")
    told.wait_for(timeout=240_000)
    wait_idle(page)
    magic = [i for i, s in enumerate(sources) if s.startswith(("%%graph", "%graph_grad", "%graph_plan", "%graph_run"))]
    for i in magic:
        picture = cell(page, i).locator(".gdlab").first
        picture.scroll_into_view_if_needed()
        assert picture.locator("[data-entity]").count() > 5, sources[i]
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    summary = json.loads(told.inner_text().split("gdlab-summary", 1)[1])
    assert summary["accuracy"] >= 0.95 and summary["loss_last"] < 0.3 < summary["loss_first"]
    for name in ("light", "dark"):
        theme(page, name)
        for i in magic[:4]:
            cell(page, i).scroll_into_view_if_needed()
            shot(page, f"tour-{name}-{i}")
    theme(page, "light")
    save(page)
    check_live(page, path)
    reopened_without_kernel(lab, page, magic)


def reopened_without_kernel(lab: Server, page: Page, magic: list[int]) -> None:
    """The saved notebook without its kernel: the picture is interactive, the buttons say that there is no session."""
    command(page, "kernelmenu:shutdown")
    told = page.locator('[data-pane="session"] [data-value="state"]', has_text="closed: the kernel has ended")
    told.first.wait_for(state="attached")  # without a reload
    page.locator('[data-tab="session"][data-state="closed"]').nth(3).wait_for(state="attached")
    visit(page, lab, "tour.ipynb")
    for i in magic[:2]:
        cell(page, i).scroll_into_view_if_needed()
        node = cell(page, i).locator('.gdlab [data-entity^="node:"]').first
        node.wait_for()
        node.click()
        assert cell(page, i).locator("[data-selected]").count() >= 1
        assert cell(page, i).locator("[data-lit]").count() >= 1
    assert page.locator("text=model not found").count() == 0


def test_buttons_while_a_cell_runs(lab: Server, page: Page) -> None:
    """Step and Pause act at once though the cell is busy and the reporter publishes all the time."""
    run = "%graph_run mlp 400 --feed slow --sgd 0.1 --init 0"
    tell = "import json; print(json.dumps([mlp.session.step_count, mlp.runner.state]))"
    open_notebook(page, lab, ["%load_ext gdlab", NET, SLOW_FEED, run, tell], "buttons.ipynb")
    for i in range(3):
        run_cell(page, i)
    start_cell(page, 3)
    wait_steps(page, 3, 3)
    opened = cell(page, 3).locator('[role="tab"][aria-selected="true"]')
    assert opened.get_attribute("data-tab") == "session"  # its own document says so, though the study sent a newer one
    press(page, 3, "pause")
    page.wait_for_function("() => !document.querySelector('.jp-Notebook .jp-Cell:nth-of-type(4) .jp-mod-running')")
    wait_idle(page)  # a paused run ends its cell
    run_cell(page, 4)
    paused, kind = state(page)  # type: ignore[misc]
    assert kind == "paused" and 3 <= int(paused) < 300
    press(page, 3, "step")
    wait_steps(page, 3, int(paused) + 1)
    assert steps(page, 3) == int(paused) + 1
    save(page)
    page.reload()
    wait_restored(page)
    cell(page, 3).locator('[data-command="step"]').first.wait_for()
    cell(page, 3).scroll_into_view_if_needed()
    wait_steps(page, 3, int(paused) + 1)
    press(page, 3, "step")
    wait_steps(page, 3, int(paused) + 2)
    press(page, 3, "resume")
    wait_steps(page, 3, 400)
    run_cell(page, 4)
    assert state(page) == [400, "ready"]


TAB_OF = {"line": "opt", "node": "opt", "step": "rewrites", "dispatch": "plan", "interval": "arena", "wgsl": "kernels"}


def test_one_selection_lights_what_the_links_say(lab: Server, page: Page) -> None:
    """Clicking any kind of thing lights in every pane shown what `Document.select` computes in Python."""
    ask = (
        "import json; d = mlp.doc\n"
        "print(json.dumps([d.data['lines']['line'], *[sorted(d.select(e)) for e in ENTITIES]]))"
    )
    open_notebook(page, lab, ["%load_ext gdlab", NET, ask], "select.ipynb")
    run_cell(page, 0)
    run_cell(page, 1)
    view = cell(page, 1).locator(".gdlab")
    view.locator('[data-command="source"]').click()
    names, lit = [], []
    for kind, tab in TAB_OF.items():
        view.locator(f'[role="tab"][data-tab="{tab}"]').click()
        entities = f'[data-entity^="{kind}:"]:visible'
        thing = view.locator(f"{entities}[title^=from]" if kind == "wgsl" else entities).nth(1)
        thing.click()
        settled(page)
        names.append(thing.get_attribute("data-entity"))
        lit.append(set(view.locator("[data-lit]:visible").evaluate_all("all => all.map(e => e.dataset.entity)")))
    cell(page, 2).locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(ask.replace("ENTITIES", repr(names)))
    run_cell(page, 2)
    rows, *sets = state(page)  # type: ignore[misc]

    def by_row(entities: set[str]) -> set[str]:
        """A row of the source pane stands for all calls that were written in it."""
        return {f"row:{rows[int(e[5:])]}" if e.startswith("line:") else e for e in entities}

    for name, shown, wanted in zip(names, lit, map(set, sets), strict=True):
        assert name in shown and by_row(shown) <= by_row(wanted) and len(wanted) > 2, (name, shown - wanted)
    assert sum(map(len, lit)) > 20


def test_notebook_7_draws_and_steps(notebook7: Server, page: Page) -> None:
    """The same extension serves Notebook 7: picture, session, a step from its button."""
    run = "%graph_run mlp 3 --feed random:0 --sgd 0.1 --init 0"
    open_notebook(page, notebook7, ["%load_ext gdlab", NET, run], "seven.ipynb")
    for i in range(3):
        run_cell(page, i)
    cell(page, 1).locator('.gdlab [data-entity="node:0.3"]').first.wait_for()
    wait_steps(page, 2, 3)
    press(page, 2, "step")
    wait_steps(page, 2, 4)


HOSTILE = r"""%%graph odd --train --device cpu
x = input("</script><img onerror=alert(1) src=x>", (4, 3))
h = relu(x @ parameter("n" * 10_000, (3, 3)) @ parameter("\u202eשלום\u200b", (3, 3)))
for _ in range(60):
    h = h @ parameter(f"w{_}", (3, 3))
square(h).sum_all()"""
READS = "e => e.getStartPositionOfChar(0).x < e.getEndPositionOfChar(e.getNumberOfChars() - 1).x"


def test_names_disturb_nothing_and_a_closed_study_stays_readable(lab: Server, page: Page) -> None:
    run = "%graph_run odd 5 --feed random --sgd 1e-3 --init 0"
    open_notebook(page, lab, ["%load_ext gdlab", HOSTILE, run, "odd.close()"])
    for index in range(4):
        run_cell(page, index)
    cell(page, 2).locator('[data-pane="session"]', has_text="closed").wait_for()
    wait_steps(page, 2, 5)
    expect(cell(page, 2).locator(".gd-chart .gd-headdot")).to_have_count(1)
    view = cell(page, 1).locator(".gdlab").first
    view.scroll_into_view_if_needed()
    written = view.locator('[data-pane="before"]')
    pill = written.locator(".gd-pill", has_text="שלום").locator("tspan.gd-type")
    assert pill.text_content() == "f32[3, 3]" and pill.evaluate(READS)
    assert page.locator("img[onerror]").count() == 0
    written.locator('[data-entity="node:0.0"]').first.click()
    for _ in range(2):  # the selection, then the view
        page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.classList.contains('jp-Cell')")
    view.locator('[role="tab"][data-tab="plan"]').click()
    strip = view.locator(".gd-timebox")
    strip.locator(".gd-tick").nth(150).wait_for()
    assert strip.evaluate("e => e.scrollWidth <= e.clientWidth")


BROKEN = """%%graph bad --train --device cpu
x = input("x", (8, 16))
h = square(x @ parameter("w", (16, 16)))
p = softmax(h @ parameter("v", (16, 4)))
log(p - 2.0).sum_all()"""


def test_a_nan_lights_the_line_that_made_it(lab: Server, page: Page) -> None:
    """A run stops at the first loss that is not finite; the first bad dispatch, its node and line are lit."""
    run = "%graph_run bad 50 --feed random:0 --sgd 0.1 --init 0"
    open_notebook(page, lab, ["%load_ext gdlab", BROKEN, run], "nan.ipynb")
    for i in range(3):
        run_cell(page, i)
    session = cell(page, 2).locator('[data-pane="session"]')
    session.locator('li[data-kind="nonfinite"]', has_text="first NaN: dispatch").wait_for()
    expect(session.locator('[data-value="state"]')).to_have_text(re.compile("^paused"))  # behind the event
    wait_steps(page, 2, 1)
    assert steps(page, 2) == 1
    written = cell(page, 1).locator('[data-pane="before"]')
    written.locator("[data-lit]", has_text="log").wait_for()
    cell(page, 1).locator('[data-command="source"]').click()
    cell(page, 1).locator('[data-pane="source"] [data-lit]', has_text="log(p - 2.0)").first.wait_for()
    save(page)
    page.reload()
    wait_restored(page)
    cell(page, 2).scroll_into_view_if_needed()
    session.locator('li[data-kind="nonfinite"]', has_text="first NaN: dispatch").wait_for()
    expect(session.locator("li[data-kind]"), "said again, counted once").to_have_count(2)  # while it is drawn anew
