"""The front end alone in a page: replay, search, colours, culling, copying; nothing leaks, nothing leaves the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networks
import pytest
from bare_page import mount, open_tab, trained
from clock import wall_seconds_here
from nested_calls import network
from networks import deep
from playwright.sync_api import Browser, Page

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.ask.query import search
from gdlab.view.document.layouts import drawn
from gdlab.view.document.make import graph_doc
from gdlab.view.layout.boxes import chains_of

PLACES = """() => Object.fromEntries([...document.querySelectorAll('[data-pane="scrub"] .gd-box:not([data-gone])')]
  .map(e => [e.dataset.entity, e.getAttribute('transform')]))"""


def test_the_replay_moves_nothing_and_ends_with_the_optimized_graph(page: Page) -> None:
    mount(page, trained())
    open_tab(page, "rewrites")
    field = page.locator('[data-value="scrub"]')
    seen = [page.evaluate(PLACES)]
    for k in range(1, 6):
        page.keyboard.press(".") if k > 1 else page.locator('[data-command="scrub-next"]').click()
        assert field.input_value() == str(k)
        seen.append(page.evaluate(PLACES))
    for before, after in zip(seen, seen[1:], strict=False):
        assert all(after[entity] == place for entity, place in before.items() if entity in after)
    assert set(seen[0]) == {f"node:0.{i}" for i in (0, 2, 5, 6, 8, 11, 13)}, "biases are pills"
    shown = page.locator('[data-pane="scrub"] .gd-fact').inner_text()
    assert shown == f"{len(trained().nodes('optimized'))} nodes after 4 of 4 rewrites, swept"
    for _ in range(5):
        page.locator('[data-command="scrub-previous"]').click()
    assert page.evaluate(PLACES) == seen[0]
    row = page.locator('[data-pane="rewrites"] tr[data-entity="step:0.1"]')
    row.click()
    assert field.input_value() == "2" and page.locator('[data-pane="scrub"] [data-diff="added"]').count() == 1


DRAWN = """() => document.querySelector('[data-pane="scrub"] svg').outerHTML
  .replace(/ (data-(lit|selected|joined)|tabindex)="[^"]*"/g, '')"""


def test_steps_draw_what_a_jump_draws(page: Page) -> None:
    """A step draws anew only what it touches, forwards and backwards."""
    document, drawn = Study(networks.transformer(), device="cpu", name="xf").doc, {}
    mount(page, document)
    open_tab(page, "rewrites")
    assert page.locator('[data-pane="scrub"] .gd-box').count() <= 60, "drawn at once"
    forwards = [page.locator('[data-command="scrub-next"]').click() or page.evaluate(DRAWN) for _ in range(6)]
    for k in range(5, 0, -1):
        page.locator('[data-command="scrub-previous"]').click()
        drawn[k] = page.evaluate(DRAWN)
    assert [drawn[k] for k in range(1, 6)] == forwards[:5] and len({*forwards}) == 6
    mount(page, document)
    open_tab(page, "rewrites")
    page.locator('[data-value="scrub"]').fill("6")
    page.keyboard.press("Enter")
    assert page.evaluate(DRAWN) == forwards[5]


FIRST = """async text => {
  document.body.replaceChildren(document.createElement('div'));
  window.view = front.mount(document.body.firstChild, JSON.parse(text), null);
  while (!document.querySelector('.gd-box')) await new Promise(requestAnimationFrame);
  return document.querySelectorAll('.gd-box').length;
}"""


def test_a_picture_begins_with_what_is_in_sight_and_is_soon_whole(page: Page) -> None:
    document = graph_doc(networks.transformer(8, extra=40), "soon").with_view({"depth": 100})
    nodes = drawn(document, 0)
    boxes = 1 + sum(not node.leaf for node in nodes) - len(chains_of(nodes))  # x is one; other leaves are pills
    mount(page, document)
    page.evaluate("view.destroy()")
    assert 0 < page.evaluate(FIRST, document.json().decode()) < boxes / 2
    page.wait_for_function("n => document.querySelectorAll('.gd-box').length === n", arg=boxes)
    order = page.locator(".gd-box").evaluate_all("all => all.map(e => Number(e.dataset.entity.split('.')[1]))")
    assert order == sorted(order), "in the order of the document, whenever it was drawn"
    page.locator(".gd-box").last.click()
    assert page.locator(".gd-box[data-selected]").count() == 1


def test_search_by_keyboard_alone(page: Page) -> None:
    mount(page, trained())
    page.locator(".gdlab").focus()
    page.keyboard.press("/")
    page.keyboard.type("op:matmul")
    page.locator(".gd-hits", has_text="2 found").wait_for()
    hits = page.locator("[data-hit]").evaluate_all("all => all.map(e => e.dataset.entity)")
    assert hits == [e for e in search(trained(), "op:matmul") if e.startswith(("node:0.", "node:1."))]
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator("[data-selected]").get_attribute("data-entity") == hits[1]
    assert page.locator(".gd-hits").inner_text() == "2 / 2 found"
    page.locator(".gd-tools .gd-search").fill("/(/")
    page.locator(".gd-hits[data-error]").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('[data-hit]')")


def test_colours_have_a_legend_and_the_reach_says_what_it_leaves_out(page: Page) -> None:
    mount(page, trained())
    page.get_by_label("colour by").select_option("flops")
    legend = page.locator('[data-pane="before"] .gd-legend')
    assert legend.inner_text().split("\n") == ["operations", "640 FLOP1.05 MFLOP"]
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').click()
    page.get_by_label("show around the selection").select_option("1")
    fact = page.locator('[data-pane="before"] .gd-fact')
    assert fact.inner_text() == "showing 6 of 14 nodes", "a bias and its broadcast are one pill"
    shown = page.locator('[data-pane="before"] .gd-node').evaluate_all("all => all.map(e => e.dataset.entity)")
    assert sorted(set(shown)) == ["node:0.4", "node:0.5", "node:0.6", "node:0.7", "node:0.8"]


COPIED = """() => Object.defineProperty(
  navigator, 'clipboard', {value: {writeText: async text => { window.copied = text; }}})"""


def test_copies(page: Page) -> None:
    mount(page, trained())
    page.evaluate(COPIED)
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').click()
    copied = {}
    for name in ("text", "Markdown", "JSON", "DOT", "SVG"):
        page.locator('[data-command="copy"]').select_option(name)
        page.wait_for_function("() => window.copied !== undefined")
        copied[name] = page.evaluate("() => { const text = window.copied; delete window.copied; return text; }")
    assert copied["text"] == "%6 = relu(%5) : f32[64, 128]"
    assert copied["Markdown"].splitlines()[-1] == "| %6 | relu |  | f32[64, 128] | %5 |"
    assert json.loads(copied["JSON"])[0]["op"] == "relu"
    assert 'n6" [label="relu f32[64, 128]"]' in copied["DOT"]
    assert copied["SVG"].startswith("<svg") and "var(" not in copied["SVG"] and "class=" not in copied["SVG"]


def elements(page: Page) -> int:
    return int(page.locator('[data-pane="before"] svg.gd-picture').evaluate("e => e.querySelectorAll('*').length"))


@pytest.mark.clock
def test_a_large_graph_is_drawn_in_few_elements_at_every_scale(fresh_page: Page) -> None:
    """4,500 nodes, laid out in a worker: at most 2,500 elements, the page stays free, what is selected is brought."""
    page = fresh_page
    document = graph_doc(deep(450), "deep")
    assert document.data["stages"][0]["layouts"] == {} and len(document.nodes()) > 4400
    mount(page, document)
    node = page.locator('[data-pane="before"] .gd-box').first
    node.wait_for()
    seconds = page.evaluate("(performance.now() - window.began) / 1000")
    assert seconds <= wall_seconds_here(2 * 0.5)
    counts = [elements(page)]
    page.locator(".gdlab").focus()
    for _ in range(14):
        page.keyboard.press("-")
        counts.append(elements(page))
    assert max(counts) <= 2500 and counts[-1] < 100, "far away, boxes are a few paths"
    last = len(document.nodes()) - 1
    open_tab(page, "text")
    page.locator('[data-pane="outline"] .gd-scroll').evaluate("e => { e.scrollTop = e.scrollHeight; }")
    page.locator(f'[data-pane="outline"] [data-entity="node:0.{last}"]').click()
    assert page.locator('[data-pane="outline"] tr').count() < 200
    open_tab(page, "opt")
    page.locator(".gdlab").focus()
    page.keyboard.press("0")
    page.locator(f'[data-pane="before"] [data-entity="node:0.{last}"]').first.wait_for()


def test_opening_and_closing_leaks_nothing(page: Page) -> None:
    mount(page, trained())
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    again = """async ([text, times]) => {
      for (let i = 0; i < times; i++) {
        const el = document.createElement('div');
        document.body.append(el);
        const view = front.mount(el, JSON.parse(text), null);
        while (!el.querySelector('.gd-frame')) await new Promise(done => setTimeout(done));
        const tabs = i % 10 ? [] : ['rewrites', 'diff', 'plan', 'text'];
        for (const name of tabs) el.querySelector(`[role=tab][data-tab=${name}]`).click();
        view.destroy();
        el.remove();
      }
    }"""

    def measure(times: int) -> dict[str, float]:
        page.evaluate(again, [trained().json().decode(), times])
        for _ in range(3):
            session.send("HeapProfiler.collectGarbage")
        found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return {name: found[name] for name in ("JSEventListeners", "Nodes", "JSHeapUsedSize")}

    page.evaluate("view.destroy()")
    before, after = measure(10), measure(100)
    assert after["JSHeapUsedSize"] - before["JSHeapUsedSize"] <= 2.5e6
    assert after["JSEventListeners"] <= before["JSEventListeners"] + 10
    assert after["Nodes"] <= before["Nodes"] + 100


def test_the_margin_of_a_saved_page_is_dark_where_the_view_is(tmp_path: Path, browser: Browser) -> None:
    path = trained().save(tmp_path / "mlp.html")
    for scheme, dark in (("light", False), ("dark", True)):
        view = browser.new_page(color_scheme=scheme)
        view.goto(path.as_uri())
        view.locator(".gd-frame").wait_for()
        ground = view.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        view.close()
        assert max(ground[:3]) < 60 if dark else min(ground[:3]) == 255, (scheme, ground)


def test_a_large_page_from_disk_lays_out_in_a_worker_and_asks_for_nothing(tmp_path: Path, browser: Browser) -> None:
    document = graph_doc(deep(130), "deep").with_view({"depth": 2})  # blocks are open
    assert len(document.nodes()) > 1000 and document.data["stages"][0]["layouts"] == {}
    path = document.save(tmp_path / "deep.html")
    context = browser.new_context(offline=True)
    view = context.new_page()
    said: list[str] = []
    view.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    own = ("file:", "blob:")
    view.on("request", lambda request: None if request.url.startswith(own) else said.append(request.url))
    view.goto(path.as_uri())
    view.locator('[data-entity="node:0.4"]').first.wait_for()
    context.close()
    assert said == []


def test_hostile_names_are_text_everywhere(page: Page) -> None:
    bad = "</script><img onerror=alert(1) src=x>"
    with Graph() as g:
        h = ops.input(bad, (4, 3)) @ ops.parameter("__proto__", (3, 3))
        h = h @ ops.parameter("n" * 10_000, (3, 3)) @ ops.parameter("\u202eשלום\u200b", (3, 3))
        g.set_outputs(ops.square(ops.relu(h)).sum_all())
    mount(page, Study(g, train=True, device="cpu", name=bad).doc)
    for name in ("opt", "rewrites", "grad", "diff", "plan", "arena", "kernels", "text"):
        open_tab(page, name)
    page.locator(".gd-tools .gd-search").fill("onerror")
    page.locator(".gd-hits", has_text="found").wait_for()
    assert page.locator("[data-hit]:visible").count() >= 1
    assert page.locator("img").count() == 0 and page.locator(".gdlab script").count() == 0
    assert page.locator('[data-pane="outline"]', has_text=bad).count() == 1


def test_groups_open_and_close(page: Page) -> None:
    """139 nodes, two levels open; Space opens a call at its node and closes it again, a bracket closes its group."""
    mount(page, Study(network(12), train=True, device="cpu", name="blocks").doc.with_view({"depth": 2}))
    written = page.locator('[data-pane="before"]')
    fact = written.locator(".gd-fact")
    assert fact.inner_text() == "43 nodes for 139 nodes"
    closed = written.locator(".gd-box:has(.gd-sheet)")
    assert closed.count() == 24 and written.locator(".gd-bracket").count() == 14
    closed.nth(1).click()
    page.keyboard.press(" ")
    assert closed.count() == 23 and written.locator(".gd-box[data-selected]", has_text="relu").count() == 1
    written.locator(".gd-bracket", has_text="half").click()
    assert closed.count() == 24
    written.locator(".gd-bracket", has_text="block ×12").click()
    assert fact.inner_text() == "8 nodes for 139 nodes"
    (label,) = written.locator(".gd-box:has(.gd-sheet) .gd-op").all_text_contents()
    assert label == "block" and "132 nodes" in closed.text_content()
    open_tab(page, "grad")
    page.locator('[data-pane="lanes"] .gd-box:has(.gd-sheet)').nth(23).wait_for()  # out of sight: a little later


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_for_people(page: Page, scheme: Any) -> None:
    """No comparison: the last look of each new view is kept in build/shots."""
    page.emulate_media(color_scheme=scheme)
    mount(page, trained())
    for name in ("rewrites", "diff", "text"):
        open_tab(page, name)
        if name == "rewrites":
            page.locator('[data-command="scrub-next"]').dblclick()
        assert page.locator(".gd-panes").evaluate("e => e.scrollWidth <= e.clientWidth + 1"), name
