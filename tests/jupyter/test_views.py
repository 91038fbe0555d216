"""Answers that a person finds in the page: who uses a buffer, what differs, where a search hits."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import networks
import pytest
from bare_page import TABS, live, mount, open_tab
from browser import box_of, settled
from playwright.sync_api import Page, expect

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.ask.diff import diff
from gdlab.view.ask.query import search
from gdlab.view.document.make import graph_doc
from gdlab.view.text.twin import twin


@cache
def updated() -> Any:
    """The document of a study whose plan has the dispatches of an update."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.run(1, feed="random:0", sgd=0.1, init=0)
    return study.doc


def named(name: str) -> int:
    """The interval of a name."""
    return [str(each["name"]) for each in updated().plan("intervals")].index(name)


def users(interval: int) -> tuple[set[str], set[str]]:
    """The dispatches that write an interval, and those that read it, from the table of dispatches alone."""
    rows = list(enumerate(updated().plan("dispatches")))
    writes, reads = ({f"dispatch:{k}" for k, row in rows if interval in row[column]} for column in ("writes", "reads"))
    return writes, reads


MARKED = """name => [...new Set(
  [...document.querySelectorAll(`[data-pane="plan"] [data-entity^="dispatch:"][data-${name}]`)]
    .map(e => e.dataset.entity))]"""


@pytest.mark.parametrize("name", ["w2", "x", "relu"])
def test_a_buffer_says_who_writes_and_who_reads_it(page: Page, name: str) -> None:
    """V9: parameters, inputs and results; both are lit, with different marks, and are links."""
    interval = named(name)
    writes, reads = users(interval)
    assert len(reads) > 1 and (name != "w2" or writes)
    mount(page, updated())
    open_tab(page, "plan")
    if page.locator('[data-pane="plan"] .gd-foldrow').count():
        page.locator('[data-pane="plan"] .gd-foldrow button').click()
    page.locator(f'[data-pane="arena"] [data-entity="interval:{interval}"]').first.click()
    assert (
        set(page.evaluate(MARKED, "lit"))
        == writes | reads
        == {e for e in updated().select(f"interval:{interval}") if e.startswith("dispatch:")}
    )
    assert set(page.evaluate(MARKED, "writes")) == writes and set(page.evaluate(MARKED, "reads")) == reads
    written, read = page.locator(".gd-buffer .gd-used").nth(1), page.locator(".gd-buffer .gd-used").nth(2)
    assert written.locator("[data-entity]").evaluate_all("all => all.map(e => e.dataset.entity)") == sorted(writes)
    assert set(read.locator("[data-entity]").evaluate_all("all => all.map(e => e.dataset.entity)")) == reads
    assert page.locator("[data-only-reads]").count() == len(reads - writes)
    later = sorted(int(each.removeprefix("dispatch:")) for each in reads - writes)
    by_name = f"dispatch{'es' * (len(later) > 1)} {' + '.join(map(str, later))}"
    told = f"{len(later)} dispatches" if len(later) > 2 else by_name
    expect(page.locator(".gd-chain")).to_have_text(re.compile(re.escape(f"read by {told}") + "$"))
    read.locator("[data-entity]").first.click()
    assert page.locator('[data-pane="plan"] tr[data-selected]').count() == 1
    assert page.locator('[data-pane="plan"] [data-reads]').count() == 0


def test_the_text_says_who_uses_a_buffer() -> None:
    interval = named("w2")
    writes, reads = users(interval)
    text = twin(updated(), "links", f"interval:{interval}")
    for entity in writes | reads:
        does = " and ".join(word for word, ks in (("reads", reads), ("writes", writes)) if entity in ks)
        assert any(line.split()[0] == entity and line.endswith(f", {does} it") for line in text.splitlines()), entity
    line = next(line for line in twin(updated(), "arena").splitlines() if f"interval:{interval}" in line.split())
    assert ", ".join(entity[9:] for entity in sorted(reads, key=lambda e: int(e[9:]))) in line


def test_the_page_compares_variants_as_python_does(page: Page) -> None:
    """V10: the same classes, from the same side."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    study.variant("less", allow="exact")
    document = study.doc
    study.close()
    keys = [stage["key"] for stage in document.data["stages"]]
    mount(page, document)
    open_tab(page, "diff")
    sides = [keys.index(key) for key in ("optimized", "variant:plain", "variant:less")]
    fact = page.locator('[data-pane="diff"] .gd-fact')
    for left in sides:
        for right in sides:
            page.get_by_label("left", exact=True).select_option(str(left))
            page.get_by_label("right", exact=True).select_option(str(right))
            assert fact.inner_text() == diff(document, left_stage=left, right_stage=right).summary()
            assert page.get_by_label("left", exact=True).input_value() == str(left)


PICTURES = {"opt": "before", "grad": "lanes", "rewrites": "scrub", "diff": "diff"}


@pytest.mark.parametrize("tab", PICTURES)
def test_the_wheel_zooms_after_a_click_into_the_picture(page: Page, tab: str) -> None:
    """V14; before it, and after the pointer has left, it scrolls the page."""
    mount(page, updated())
    page.add_style_tag(content="body { height: 3000px }")
    open_tab(page, tab)
    camera = page.locator(f'[data-pane="{PICTURES[tab]}"] .gd-camera')
    box = box_of(camera)
    x, y = box["x"] + 12, box["y"] + box["height"] - 30
    scale = "e => Number(getComputedStyle(e.querySelector('.gd-sizer')).getPropertyValue('--gd-z'))"

    def turned() -> tuple[float, float]:
        page.mouse.wheel(0, -60)
        page.wait_for_timeout(60)
        settled(page)
        return float(camera.evaluate(scale)), float(page.evaluate("scrollY"))

    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(x, y)
    before = float(camera.evaluate(scale))
    assert turned() == (before, 0)
    page.mouse.click(x, y)
    zoomed, scrolled = turned()
    assert zoomed > before * 1.1 and scrolled == 0
    page.mouse.move(x, box["y"] - 60)
    page.mouse.move(x, y)
    assert turned()[0] == zoomed


def test_a_search_says_what_is_in_other_tabs(page: Page) -> None:
    """V13: as links, and as a list with the kind and the place of each."""
    mount(page, updated())
    field = page.locator(".gd-tools .gd-search")
    field.fill("matmul_bt")
    count, elsewhere = page.locator(".gd-hits"), page.locator(".gd-elsewhere")
    wanted = [e for e in search(updated(), "matmul_bt") if int(e[5:].split(".")[0]) > 1]
    link = page.locator('[data-elsewhere="grad"]')
    link.wait_for()
    assert count.inner_text() == "0 here," and link.inner_text() == f"{len(wanted)} in Derivative"
    link.click()
    page.locator('.gdlab[data-tab="grad"]').wait_for()
    assert count.inner_text() == f"{len(wanted)} found" and page.locator('[data-pane="lanes"] [data-hit]').count()
    field.fill("relu")
    page.locator('[data-elsewhere="plan"]').wait_for()
    assert elsewhere.locator("button").evaluate_all("all => all.map(e => e.dataset.elsewhere)") == [
        "opt", "plan", "arena"
    ]  # fmt: skip
    page.locator('[data-command="search-list"]').click()
    rows = page.locator(".gd-hitrow")
    kinds = rows.evaluate_all("all => all.map(e => [e.dataset.hitOf.split(':')[0], e.firstChild.textContent])")
    assert {tuple(each) for each in kinds} == {("node", "node"), ("dispatch", "dispatch"), ("interval", "buffer")}
    nodes = [e for e in rows.evaluate_all("all => all.map(e => e.dataset.hitOf)") if e.startswith("node:")]
    assert nodes == search(updated(), "relu")
    page.locator('[data-hit-of^="interval:"]').first.click()
    page.locator('.gdlab[data-tab="arena"] [data-selected]').first.wait_for()


def test_a_search_goes_to_the_first_hit_of_a_large_picture(page: Page) -> None:
    """V13: which is not drawn before, because it is far below; without a hit in the tab nothing moves."""
    with Graph() as g:
        h = ops.input("x", (4, 8))
        draw = random.Random(7)
        for _ in range(130):  # no loop, so nothing is one box
            h = draw.choice((ops.relu, ops.tanh, ops.sigmoid, ops.silu))(h)
        g.output(h)
    mount(page, graph_doc(g, "deep"))
    camera = page.locator('[data-pane="before"] .gd-camera')
    assert camera.evaluate("e => e.scrollTop") == 0
    page.locator(".gd-tools .gd-search").fill("flag:output")
    page.locator('[data-pane="before"] [data-hit]').first.wait_for()
    assert camera.evaluate("e => e.scrollTop") > 1000
    at = camera.evaluate("e => e.scrollTop")
    page.locator(".gd-tools .gd-search").fill("no such name")
    page.locator(".gd-hits", has_text="0 found").wait_for()
    assert camera.evaluate("e => e.scrollTop") == at
    page.locator(".gd-tools .gd-search").fill("dtype:f32")
    page.locator(".gd-hits", has_text=re.compile(r"1\d\d found")).wait_for()
    assert camera.evaluate("e => e.scrollTop") == at  # a hit is in sight, if not the first


def test_the_loss_chart_grows_marks_and_can_be_read(page: Page) -> None:
    """V8: 56 points of 20,000 fill the chart; a spike is a mark; a later run has its own; a hover says the numbers."""
    live(page, updated())
    open_tab(page, "session")
    points = [[k, 1 / k + 0.2] for k in range(1, 57)]
    points[30][1] = 7e13
    page.evaluate("p => tell({...metrics(1, 56, p), wanted: 20000})", points)
    page.locator(".gd-headdot").wait_for(state="attached")
    chart = page.locator(".gd-chart")
    box, head = box_of(chart), box_of(page.locator(".gd-headdot"))
    assert head["x"] > box["x"] + box["width"] / 2
    assert page.locator(".gd-outside").count() == 1
    smooth = box_of(page.locator(".gd-smooth"))
    assert smooth["height"] > 50 and head["y"] > box["y"] + 60, "the spike moves no mean"
    page.mouse.move(head["x"] + 4, head["y"])
    read = page.locator(".gd-readout")
    assert read.text_content() == "step 56: loss 0.218" and read.is_visible()
    page.mouse.move(box["x"] + 400, box["y"] - 40)
    assert not read.is_visible()
    page.evaluate("tell({...metrics(2, 56, []), state: 'ready', wanted: 20000})")
    page.evaluate("tell({...metrics(3, 90, Array.from({length: 34}, (_, i) => [57 + i, .2])), wanted: 1056})")
    page.locator(".gd-chart", has_text="run of 1,000").wait_for()


def test_double_clicks_mark_no_text_and_the_focus_stays(page: Page) -> None:
    """V16: words of the next pane, the buttons that switch panes, and names that begin with what stands on a button."""
    mount(page, updated())
    page.locator('[data-pane="before"] .gd-box').last.dblclick()
    assert page.evaluate("String(getSelection())") == ""
    open_tab(page, "rewrites")
    page.set_viewport_size({"width": 700, "height": 800})
    faces = page.locator(".gd-faces button")
    for index in range(faces.count()):
        faces.nth(index).click()
        assert page.evaluate("document.activeElement.dataset.face") == faces.nth(index).get_attribute("data-face")
    open_tab(page, "opt")
    page.set_viewport_size({"width": 1110, "height": 900})
    page.locator('[data-command="compare"]').click()
    differing = """() => [...document.querySelectorAll('.gdlab button[aria-label]')]
      .filter(e => e.getClientRects().length && /\\p{L}{2}/u.test(e.textContent) && !e.dataset.entity)
      .filter(e => !e.ariaLabel.toLowerCase().includes(e.textContent.trim().toLowerCase()))
      .map(e => [e.ariaLabel, e.textContent])"""
    assert page.evaluate(differing) == []


def test_tabs_that_do_not_fit_are_in_a_menu(page: Page) -> None:
    """V16, view2 F9; the menu goes where all fit."""
    mount(page, updated())
    menu = page.get_by_label("more views")
    page.set_viewport_size({"width": 1440, "height": 900})
    menu.wait_for(state="hidden")
    page.set_viewport_size({"width": 640, "height": 900})
    menu.wait_for()
    tabs = page.locator('[role="tab"]')
    assert 1 + tabs.count() == menu.locator("option").count() + page.locator('[role="tab"]:visible').count()
    menu.select_option("kernels")
    page.locator('.gdlab[data-tab="kernels"]').wait_for()
    page.set_viewport_size({"width": 1440, "height": 900})
    menu.wait_for(state="hidden")


WIDTHS = """() => [...document.querySelectorAll('.gd-pane')].filter(e => e.offsetParent)
  .map(e => [e.dataset.pane, e.offsetWidth])"""


def test_dividers_are_dragged_moved_by_keys_and_remembered(page: Page) -> None:
    """view2 F2: by pointer, by key, all width by a double click, the report as a rail; kept in `view` for each tab."""
    mount(page, updated())
    page.set_viewport_size({"width": 1440, "height": 900})
    separators = page.locator(".gd-divider")
    names = [name for name, _ in page.evaluate(WIDTHS)]
    assert separators.count() == len(names) - 1 == 3 and separators.first.get_attribute("aria-valuenow")
    before = dict(page.evaluate(WIDTHS))
    box = box_of(separators.first)
    assert box["height"] > 200
    page.mouse.move(box["x"] + 5, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 105, box["y"] + 90, steps=4)
    page.mouse.up()
    after = dict(page.evaluate(WIDTHS))
    assert abs(after[names[0]] - before[names[0]] - 100) <= 3 and abs(after[names[2]] - before[names[2]]) <= 2
    assert page.evaluate("getSelection().isCollapsed") and page.locator("[data-selected]").count() == 0
    separators.first.focus()
    page.keyboard.press("ArrowLeft")
    assert abs(dict(page.evaluate(WIDTHS))[names[0]] - after[names[0]] + 24) <= 3
    assert page.evaluate("document.activeElement.getAttribute('role')") == "separator"
    separators.last.focus()
    page.keyboard.press("End")
    assert dict(page.evaluate(WIDTHS))["report"] == 36 and page.locator('[data-pane="report"][data-rail]').count() == 1
    open_tab(page, "grad")
    assert dict(page.evaluate(WIDTHS))["stepper"] > 200, "each tab has its own"
    open_tab(page, "opt")
    page.evaluate("text => view.update({...JSON.parse(text), id: 'later'})", updated().json().decode())
    page.locator('.gdlab[data-doc="later"]').wait_for()
    assert dict(page.evaluate(WIDTHS))["report"] == 36
    page.locator('[data-pane="report"]').click()
    assert 280 < dict(page.evaluate(WIDTHS))["report"] <= 345
    separators.first.dblclick()
    assert [width for _, width in page.evaluate(WIDTHS)][1:] == [36, 36, 36]
    page.set_viewport_size({"width": 640, "height": 900})
    page.wait_for_function("() => !document.querySelector('.gd-divider, [data-rail]')")  # one pane has all there is


def test_the_height_is_chosen_in_a_cell_and_stays(page: Page) -> None:
    """view2 F7: by pointer and by key, in a newer document as well."""
    mount(page, updated())
    handle, panes = page.get_by_label("height of the view"), page.locator(".gd-panes")
    before = panes.evaluate("e => e.offsetHeight")
    handle.focus()
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert abs(panes.evaluate("e => e.offsetHeight") - before - 200) <= 2
    page.evaluate("text => view.update({...JSON.parse(text), id: 'later'})", updated().json().decode())
    page.locator('.gdlab[data-doc="later"]').wait_for()
    assert abs(panes.evaluate("e => e.offsetHeight") - before - 200) <= 2
    box = box_of(handle)
    page.mouse.move(300, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(300, box["y"] - 95, steps=3)
    page.mouse.up()
    assert abs(panes.evaluate("e => e.offsetHeight") - before - 100) <= 3


def test_a_page_of_its_own_has_all_of_the_window(page: Page, tmp_path: Path) -> None:
    """view2 F7, F8: in every tab; lines of the source wrap."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(updated().save(tmp_path / "m.html").as_uri())
    page.locator(".gd-box").first.wait_for()
    for tab in TABS:
        open_tab(page, tab)
        assert page.locator(".gd-frame").evaluate("e => e.offsetHeight") > 850, tab
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), tab
    open_tab(page, "opt")
    assert page.locator(".gd-pane-source .gd-body").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_docked_two_panes_stand_side_by_side(page: Page) -> None:
    """view2 F9: from 620 px, the report below; below 620 px one at a time."""
    mount(page, updated())
    page.evaluate("document.body.firstChild.className = 'gd-beside'")
    page.set_viewport_size({"width": 720, "height": 900})
    page.wait_for_function("document.querySelectorAll('.gd-divider').length === 1")
    widths = dict(page.evaluate(WIDTHS))
    assert abs(widths["before"] - widths["after"]) <= 2 and widths["report"] > 1.9 * widths["before"]
    page.set_viewport_size({"width": 600, "height": 900})
    page.wait_for_function("document.querySelectorAll('.gd-divider').length === 0")
    assert set(dict(page.evaluate(WIDTHS))) == {"after", "report"} or set(dict(page.evaluate(WIDTHS))) == {
        "before", "report"
    }  # fmt: skip
