"""A run as the page shows it: bars that pulse, a play-head that sweeps, the clock, norms of gradients as sparklines."""

from __future__ import annotations

from typing import Any

from bare_page import AUDIT, CUT, live, mount, open_tab, trained
from browser import box_of
from playwright.sync_api import Page, expect

from gdlab.view.document.document import Document

ROW = {"name": "w1", "about": "node:0.2", "value": 0.25, "step": 40, "first": 1, "course": [8.0, 2.0, 0.25]}
FLAT = {"name": "b1", "about": "node:0.3", "value": "nan", "step": 40, "first": 1, "course": [0.5, 0.4, "nan"]}


def tell(page: Page, frame: int, **more: Any) -> None:
    page.evaluate("([n, more]) => tell(metrics(n, n, [[n, 1 / n]], more))", [frame, more])


def pulses(page: Page, frame: int, at: int) -> int:
    """Count the bars that begin to pulse with a frame, as they come, for they go again."""
    page.evaluate(
        """() => {
          window.pulsed = 0;
          window.watching = new MutationObserver(all => all.forEach(each => each.addedNodes.forEach(node => {
            if (node.classList?.contains('gd-pulse')) window.pulsed++; })));
          watching.observe(document.querySelector('.gd-timeline'), {childList: true}); }"""
    )
    tell(page, frame, under_way=at)
    return int(page.evaluate("new Promise(ok => setTimeout(() => { watching.disconnect(); ok(pulsed); }))"))


def test_the_plan_and_the_arena_move_with_a_run(page: Page) -> None:
    live(page, trained())
    tell(page, 1, under_way=-1)
    open_tab(page, "plan")
    bars = page.locator(".gd-timeline .gd-tick")
    bars.first.wait_for()
    count = bars.count()
    assert pulses(page, 2, 3) == 1, "the bar of a dispatch that is under way"
    assert pulses(page, 3, -1) == 0 and pulses(page, 4, count) == 0, "no dispatch, and none of this plan"
    tell(page, 5, under_way=count - 1)
    spot = "k => { const {x, width} = document.querySelectorAll('.gd-tick')[k].querySelector('rect')"
    spot += ".getBoundingClientRect(); const to = [...document.querySelectorAll('.gd-pulse')].at(-1)"
    spot += ".getBoundingClientRect(); return [Math.abs(x - to.x) < 1.5, Math.abs(width - to.width) < 3]; }"
    assert page.evaluate(spot, count - 1) == [True, True]
    expect(page.locator(".gd-pulse")).to_have_count(0)  # they fade and go

    open_tab(page, "arena")
    head = page.locator(".gd-runhead")
    places = []
    for frame, at in ((10, 0), (11, 4), (12, count - 1), (13, 1)):
        tell(page, frame, under_way=at)
        places.append(float(head.get_attribute("data-at") or "nan"))
    assert places[0] < places[3] < places[1] < places[2]
    mark = box_of(page.locator(".gd-axisdispatch").first.locator("rect"))
    picture = box_of(page.locator(".gd-arena"))
    assert abs(picture["x"] + places[0] - mark["x"] - mark["width"] / 2) < 1
    tell(page, 14, under_way=-1, state="ready")
    expect(head).to_be_hidden()

    page.emulate_media(reduced_motion="reduce")
    tell(page, 15, under_way=2)
    expect(head).to_be_hidden()
    open_tab(page, "plan")
    assert pulses(page, 16, 2) == 0, "who wants no motion sees none"


def test_the_clock_and_the_norms(page: Page) -> None:
    document = trained()
    live(page, document)
    open_tab(page, "session")
    tell(page, 1, timed=True, wanted=1, reason="5 s left", norms=None)
    state, step = page.locator('[data-value="state"]').first, page.locator(".gd-four .gd-number").first
    expect(state).to_have_text("running: 5 s left")
    expect(step).to_have_text("1")  # of a run by the clock nobody knows how many
    norms = page.locator(".gd-norms:not(.gd-engines)")
    expect(norms).to_be_hidden()
    tell(page, 2, timed=True, wanted=2, norms=[ROW, FLAT], norms_left_out=3)
    rows = norms.locator("li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_have_text("∂w18 → 0.25")
    assert rows.first.get_attribute("title") == "‖∂w1‖: 8 → 0.25, step 1 … 40, logarithmic"
    assert rows.last.get_attribute("title") == "‖∂b1‖: 0.5 → NaN, step 1 … 40"
    assert rows.last.get_attribute("data-broken") is not None
    expect(norms).to_contain_text("and 3 parameters more, which are not sampled")
    heights = "all => all.map(e => e.getAttribute('d').match(/[\\d.]+ ([\\d.]+)/g).map(t => +t.split(' ')[1]))"
    (first, middle, last), *_ = norms.locator("path").evaluate_all(heights)
    assert first < middle < last and 0.2 < (middle - first) / (last - first) < 0.6, "8, 2, .25 on a scale of powers"
    tell(page, 3, timed=True, wanted=3, norms=None)
    expect(rows).to_have_count(2)  # a frame without news keeps them
    rows.first.click()
    expect(rows.first).to_have_attribute("data-lit", "")
    assert page.evaluate(AUDIT) == [] and page.evaluate(CUT) == []
    tell(page, 4, timed=False, wanted=4, state="ready", norms=[ROW])
    expect(rows).to_have_count(1)
    expect(step).to_have_text("4 / 4")
    tell(page, 5, timed=True, wanted=5, reason="5 s left")
    mark = page.locator(".gd-chart text", has_text="run by the clock")
    expect(mark).to_have_count(1)
    inside = "e => e.getBoundingClientRect().right <= e.ownerSVGElement.getBoundingClientRect().right"
    assert mark.evaluate(inside), "beside the line where there is room"

    run = {
        "key": "run1", "device": "cpu", "adapter": "", "seed": None, "loss": [[1, 1.0], [40, 0.5]], "seconds": [],
        "truncated": False, "counters": {"steps": 40}, "memory": {"text": ""}, "events": [], "values": [],
        "gradient_norms": [{"name": "w1", "about": "node:0.2", "steps": [1, 20, 40], "norms": [8.0, 2.0, 0.25]}],
    }  # fmt: skip
    mount(page, Document({**document.data, "runs": [run]}))
    open_tab(page, "session")
    expect(page.locator(".gd-norms:not(.gd-engines) li")).to_have_text(["∂w18 → 0.25"])  # of a saved run too
