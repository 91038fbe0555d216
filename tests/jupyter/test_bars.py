"""The front end at its limits: large graphs, many messages, zoomed text, forced colours, an accessibility audit."""

from __future__ import annotations

from functools import cache
from statistics import median, quantiles
from typing import Any

import networks
import pytest
from bare_page import AUDIT, CUT, TABS, live, mount, open_tab, trained
from clock import wall_seconds_here
from nested_calls import network
from networks import deep
from playwright.sync_api import Page

from benchmarks.pages import PAINT
from gdlab.study.study import Study
from gdlab.view.document.make import graph_doc

SHARED = 2  # a shared machine may take twice the time of a bar
# Frame times while `act(t)` runs on every frame, in ms.
FRAMES = """async ([act, seconds]) => {
  const run = new Function('t', act), times = [], start = performance.now();
  let before = start;
  await new Promise(done => {
    const frame = now => {
      times.push(now - before);
      before = now;
      run(now - start);
      if (now - start < 1000 * seconds) requestAnimationFrame(frame);
      else done();
    };
    requestAnimationFrame(frame);
  });
  return times.slice(2);
}"""


def frames(page: Page, act: str, seconds: float) -> list[float]:
    found: list[float] = page.evaluate(FRAMES, [act, seconds])
    return found


def late(times: list[float]) -> float:
    return quantiles(times, n=20)[-1]


# What a frame of a quiet machine does easily: where it comes late, others use the machine.
EIGHT_MS = "const end = performance.now() + 8; while (performance.now() < end);"


def check_frames(page: Page, act: str, seconds: float) -> None:
    """Half of the frames come within 17 ms, all but one in twenty within 33, in the best of three tries."""
    for _ in range(3):
        plain, busy = frames(page, EIGHT_MS, 0.7), frames(page, act, seconds)
        told = median(busy), late(busy)
        if told[0] <= SHARED * max(17, median(plain)) and told[1] <= SHARED * max(33, late(plain)):
            return
    raise AssertionError(f"median {told[0]:.1f} ms, p95 {told[1]:.1f} ms; bars 17 and 33 ms, with factor {SHARED}")


@cache
def large() -> Any:
    return graph_doc(deep(623), "deep")


def first_paint(page: Page, document: Any) -> float:
    """Mount a document in a fresh page; seconds, by the page's clock, until boxes are painted."""
    mount(page, trained())
    return float(page.evaluate(PAINT, document.json().decode())) / 1000


@pytest.mark.clock
def test_b1_a_graph_of_6236_nodes_moves_smoothly(fresh_page: Page) -> None:
    """Panning, zooming at the pointer, and opening a group of a large graph."""
    page = fresh_page
    assert 6200 < len(large().nodes()) < 6300
    assert any(first_paint(page, large()) <= wall_seconds_here(SHARED * 0.5) for _ in range(3)), "first paint"
    camera = "document.querySelector('[data-pane=before] .gd-camera')"
    check_frames(page, f"{camera}.scrollTop += 60;", 2)
    wheel = (
        f"const c = {camera}, f = c.getBoundingClientRect(); c.dispatchEvent(new WheelEvent('wheel', {{ctrlKey: true,"
        " bubbles: true, cancelable: true, clientX: f.left + 200, clientY: f.top + 200,"
        " deltaY: 30 * Math.sign(Math.sin(t / 300))}));"
    )
    check_frames(page, wheel, 2)
    mount(page, graph_doc(network(520), "calls"))
    written = page.locator('[data-pane="before"]')
    closed = written.locator(".gd-box:has(.gd-sheet)")
    closed.first.wait_for()
    before = written.locator(".gd-fact").inner_text()
    closed.first.dblclick()
    page.wait_for_function(
        "text => document.querySelector('[data-pane=before] .gd-fact').innerText !== text", arg=before
    )
    assert "nodes for" in written.locator(".gd-fact").inner_text()


@pytest.mark.clock
def test_what_is_drawn_whole_is_painted_as_soon_as_a_small_graph(fresh_page: Page) -> None:
    """500 nodes: what is in sight comes first. Where others use the machine, a graph of 60 nodes is the measure."""
    page = fresh_page
    documents = [graph_doc(networks.written_with(nodes, len), "painted").json().decode() for nodes in (60, 500)]
    mount(page, graph_doc(networks.mlp(), "mlp"))
    taken = [[float(page.evaluate(PAINT, document)) for document in documents] for _ in range(4)]
    small, large = (min(each) for each in zip(*taken[1:], strict=True))
    assert large <= SHARED * max(100, small), f"{large:.0f} ms, 60 nodes {small:.0f} ms; bar 100 ms, with factor 2"


@pytest.mark.clock
def test_b3_a_thousand_updates_a_second(fresh_page: Page) -> None:
    page = fresh_page
    live(page, trained())
    open_tab(page, "session")
    seventeen = (
        "window.n ??= 0; for (let i = 0; i < 17; i++) { window.n++;"
        " window.tell(window.metrics(window.n, window.n, [[window.n, 1 / window.n]])); }"
    )
    check_frames(page, seventeen, 4)
    told = page.evaluate("window.n")
    assert told > 1000
    page.wait_for_function("n => document.querySelector('[data-value=step]').dataset.number === String(n)", arg=told)
    assert float(page.locator('[data-value="loss"]').get_attribute("data-number")) == pytest.approx(1 / told)
    head, box = (page.locator(f".gd-chart {what}").first for what in (".gd-headdot", ".gd-smooth"))
    assert head.count() == 1 and box.count() == 1


def test_a_loss_that_is_no_number_is_said_and_marked(page: Page) -> None:
    live(page, trained())
    open_tab(page, "session")
    page.evaluate("tell(metrics(1, 3, [[1, 2.5], [2, 1.5], [3, 'nan']], {state: 'paused', reason: 'loss is NaN'}))")
    loss = page.locator('[data-value="loss"]')
    assert loss.inner_text() == "NaN" and loss.get_attribute("data-broken") is not None
    page.wait_for_selector(".gd-chart .gd-broken", state="attached")  # the chart is drawn with the next frame
    assert page.locator(".gd-chart .gd-broken").count() == 1
    text = "first NaN: dispatch 0, line 3 of the cell"
    page.evaluate("text => tell({type: 'event', step: 3, kind: 'nonfinite', about: 'dispatch:0', text})", text)
    page.evaluate("tell({type: 'event', step: 3, kind: 'pause', about: null, text: 'paused'})")
    events = page.locator(".gd-events > li")
    assert events.count() == 1, "the pause says nothing new"
    assert events.locator(".gd-line[data-entity^='line:']").count() >= 1
    page.locator(".gd-scale button", has_text="log").click()
    assert page.locator(".gd-chart .gd-axis").count() > 3


def test_what_if_a_rule_were_off(page: Page) -> None:
    """A selected rule has a button that asks for a variant without it."""
    live(page, trained())
    rule = page.locator('[data-pane="report"] tr[data-entity^="rule:"]').first
    rule.click()
    page.locator('[data-command="what-if"]').click()
    sent = page.evaluate("sent.filter(each => each.type === 'command').at(-1)")
    row = int(str(rule.get_attribute("data-entity")).split(".")[1])
    assert sent["name"] == "optimize"
    assert sent["args"] == {"disable": [trained().data["passes"][0]["report"]["rules"][row]["id"]]}
    refused = {"type": "reply", "req": sent["req"], "ok": False, "result": None}
    page.evaluate("m => tell(m)", {**refused, "error": {"kind": "E", "message": "it cannot be off", "about": None}})
    page.locator('[data-pane="report"] .gd-note', has_text="it cannot be off").wait_for()


def test_when_the_kernel_is_gone_the_picture_stays_and_says_so(page: Page) -> None:
    live(page, trained())
    open_tab(page, "session")
    page.evaluate("tell(metrics(1, 7, [[7, 0.5]]))")
    page.evaluate("end()")
    assert page.locator('[data-value="state"]').inner_text().endswith("or the kernel is gone")
    assert page.locator('[data-value="step"]').inner_text() == "7"
    buttons = page.locator('[data-pane="session"] .gd-buttons button:visible')
    assert all(each.is_disabled() and each.get_attribute("title") for each in buttons.all())
    open_tab(page, "opt")
    page.locator('[data-pane="before"] .gd-box').first.click()
    assert page.locator("[data-selected]").count() >= 1


# B4 ------------------------------------------------------------------------------------------------------------------
def test_b4_at_200_percent_nothing_is_cut(page: Page) -> None:
    """Zoomed to 200 % an output of 1,070 px is 535 wide: panes take turns, the page never scrolls sideways."""
    mount(page, trained())
    page.set_viewport_size({"width": 555, "height": 450})
    for name in TABS:
        open_tab(page, name)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), name
        assert page.evaluate(CUT) == [], name
        assert page.locator(".gd-pane:visible").count() >= 1


def test_b4_forced_colours_keep_outlines_and_letters(page: Page) -> None:
    page.emulate_media(forced_colors="active")
    mount(page, trained())
    box = page.locator('[data-pane="before"] .gd-box').nth(1)
    colour = "e => ['stroke', 'fill'].map(name => getComputedStyle(e)[name])"
    forced = {
        name: page.evaluate(
            "name => { const e = document.body.appendChild(document.createElement('i')); e.style.color = name;"
            " const found = getComputedStyle(e).color; e.remove(); return found; }",
            name,
        )
        for name in ("Canvas", "CanvasText")
    }
    assert box.locator(".gd-shape").first.evaluate(colour) == [forced["CanvasText"], forced["Canvas"]]
    assert box.locator("text.gd-op").evaluate(colour)[1] == forced["CanvasText"]
    assert box.locator(".gd-letter").text_content()
    box.click()
    selected = page.locator('[data-pane="before"] [data-selected] .gd-shape').first
    assert selected.evaluate("e => getComputedStyle(e).strokeWidth") == "3px"


# B12 -----------------------------------------------------------------------------------------------------------------
def test_b12_the_audit_finds_nothing(page: Page) -> None:
    live(page, trained())
    page.evaluate("tell(metrics(1, 7, [[6, 0.6], [7, 0.5]]))")
    for name in TABS:
        open_tab(page, name)
        assert page.evaluate(AUDIT) == [], name
    open_tab(page, "opt")
    picture = page.locator('[data-pane="before"] [role="application"]')
    assert picture.get_attribute("aria-roledescription") == "computation graph"
    page.keyboard.press("?")
    assert page.evaluate(AUDIT) == []


# B2, on closed groups ------------------------------------------------------------------------------------------------
def test_arrows_walk_along_what_is_drawn_where_groups_are_closed(page: Page) -> None:
    mount(page, Study(network(12), train=True, device="cpu", name="blocks").doc.with_view({"depth": 2}))
    written = page.locator('[data-pane="before"]')
    written.locator(".gd-bracket", has_text="block ×12").click()
    closed = written.locator(".gd-box:has(.gd-sheet)").first
    closed.click()
    shown = set(written.locator(".gd-node").evaluate_all("all => all.map(e => e.dataset.entity)"))
    walked = []
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.dataset.entity ?? null")
        walked.append(focused)
        assert focused in shown and written.locator("[data-selected]").first.get_attribute("data-entity") == focused
    assert walked[0] != walked[1], "from the group to its user and back"
    assert walked[1] == closed.get_attribute("data-entity")


def test_colours_reach_closed_groups(page: Page) -> None:
    document = Study(network(12), train=True, device="cpu", name="blocks").doc.with_view({"depth": 2})
    mount(page, document)
    written = page.locator('[data-pane="before"]')
    written.locator(".gd-bracket", has_text="block ×12").click()
    page.get_by_label("colour by").select_option("flops")
    closed = written.locator(".gd-box[data-heat]:has(.gd-sheet)")
    assert closed.count() == 1
    inside = sum(f for f, g in zip(*(document.nodes().column(c) for c in ("flops", "group")), strict=True) if g >= 0)
    shown = str(closed.locator("title").text_content()).split("\n")
    assert any(line.endswith("FLOP") for line in shown) and inside > 0
