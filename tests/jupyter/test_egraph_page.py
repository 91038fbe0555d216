"""The e-graph in the page: every iteration as Python replays it, nothing moves, one selection with the graph."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import networks
import pytest
from bare_page import mount, open_tab
from browser import box_of
from networks import gated_block, there_and_back
from playwright.sync_api import Browser, Page

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.ask.slices import view_slice
from gdlab.view.document.document import Document
from gdlab.view.document.egraph import class_names
from gdlab.view.document.growth import grown, place
from gdlab.view.document.reduced import without_growth

PANE = '[data-pane="egraph"]'
DRAWN = """() => [...document.querySelectorAll('[data-pane="egraph"] [data-class]')].map(group => ({
  name: group.dataset.class, entity: group.dataset.entity ?? '', place: group.getAttribute('transform'),
  merged: group.hasAttribute('data-merged'),
  ways: [...group.querySelectorAll('.gd-enode')].map(way => [way.querySelector('.gd-op').textContent,
    way.hasAttribute('data-new'), way.hasAttribute('data-chosen'),
    way.querySelector('.gd-madeby')?.textContent ?? ''])}))"""


@cache
def document(name: str) -> Document:
    graphs: dict[str, Any] = {"block": gated_block, "back": there_and_back}
    found: Document = Study(graphs[name](), name=name, device="cpu").doc
    return found


def opened(page: Page, doc: Document) -> None:
    mount(page, doc)
    open_tab(page, "rewrites")
    page.locator('[data-pane="scrub"] button', has_text="e-graph").click()
    page.locator(f"{PANE} .gd-camera, {PANE} .gd-empty").wait_for()


def at(page: Page, k: int) -> list[dict[str, Any]]:
    slider = page.locator('[data-command="egraph"]')
    while int(slider.input_value()) != k:
        page.locator(f'[data-command="egraph-{"next" if int(slider.input_value()) < k else "previous"}"]').click()
    found: list[dict[str, Any]] = page.evaluate(DRAWN)
    return found


@pytest.mark.parametrize("width", [1110, 700])
def test_every_text_is_nine_pixels_high_and_inside_its_box(page: Page, width: int) -> None:
    """view2 F1, of the e-graph: what is drawn at 0.75 is set larger; names and prices do not meet."""
    opened(page, document("block"))
    page.set_viewport_size({"width": width, "height": 900})
    page.locator(f"{PANE} .gd-enode").first.wait_for()
    at(page, len(document("block").data["passes"][0]["deltas"]) - 1)
    wrong = page.locator(f"{PANE} .gd-camera").evaluate("""camera => {
      const zoom = new DOMMatrix(getComputedStyle(camera.querySelector('.gd-world')).transform).a, wrong = [];
      for (const e of camera.querySelectorAll('text, tspan'))
        if (e.textContent && parseFloat(getComputedStyle(e).fontSize) * zoom < 8.99)
          wrong.push([e.textContent, parseFloat(getComputedStyle(e).fontSize) * zoom]);
      for (const way of camera.querySelectorAll('.gd-enode')) {
        const box = way.querySelector('.gd-wayshape').getBoundingClientRect();
        const [name, price] = ['.gd-op', '.gd-price'].map(key => way.querySelector(key)?.getBoundingClientRect());
        if (name.left < box.left || (price && (price.right > box.right || name.right > price.left)))
          wrong.push([way.textContent, 'meets']);
      }
      return wrong; }""")
    assert wrong == []


@pytest.mark.parametrize("name", ["block", "back"])
def test_the_page_shows_every_iteration_as_python_replays_it(page: Page, name: str) -> None:
    doc = document(name)
    one = doc.data["passes"][0]
    names, last = class_names(doc, one), len(one["deltas"]) - 1
    gone = {old for delta in one["deltas"] for _, old in delta["merged"]}
    opened(page, doc)
    places: dict[str, str] = {}
    for k in range(last + 1):
        wanted: dict[str, list[Any]] = defaultdict(list)
        for n in grown(one, k):
            called = ", ".join(c if c in gone else names[c][1] for c in n.children)
            label = ("new · " if n.since == k and n.label else "") + n.label
            wanted[n.cls].append([f"{n.op}({called})", bool(label) and n.since == k, k == last and n.chosen, label])
        drawn = at(page, k)
        assert {d["name"]: d["ways"] for d in drawn if d["ways"]} == wanted
        assert {d["name"] for d in drawn if d["merged"]} == {new for new, _ in one["deltas"][k]["merged"]}
        assert {d["name"] for d in drawn if not d["ways"]} == {old for _, old in one["deltas"][k]["merged"]}
        assert all(places.setdefault(d["name"], d["place"]) == d["place"] for d in drawn), "nothing moves"
        assert all(d["entity"] == names[d["name"]][0] for d in drawn if d["name"] in names)
        fact = page.locator(f"{PANE} .gd-player").inner_text()
        counts = f"{len(wanted)} classes, {sum(map(len, wanted.values()))} e-nodes and "
        assert f"iteration {k} of {last}" in fact and counts in fact


def test_what_is_new_chosen_and_more_expensive_is_said_in_words(page: Page) -> None:
    opened(page, document("block"))
    at(page, 1)
    aside = page.locator(f"{PANE} .gd-easide")
    assert aside.inner_text().startswith("Iteration 1\n")
    rows = aside.locator(".gd-came tbody tr, .gd-came > tr").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == [
        "Add+BroadcastTo→BiasAdd 2 2", "MatMul+Add→FusedMatMulAdd 3 3", "Mul+Sigmoid→Silu 1 1",
    ]  # fmt: skip
    at(page, 3)
    assert "Saturated: no rule has anything left to say. The choice, in bold," in aside.inner_text()
    page.locator(f'{PANE} [data-class="%5"]').click()
    ways = [" ".join(row.split()) for row in aside.locator(".gd-ways > tr").all_inner_texts()]
    assert ways[0] == 'fused_matmul_add(x, wg, bg, addend="row") chosen · MatMul+BiasAdd→FusedMatMulAdd 3.06 0'
    assert "bias_add(%2, bg) Add+BroadcastTo→BiasAdd 3.03 +3.03" in ways and "add(%2, %4) 3.05 +6.07" in ways
    heavy = page.locator(f"{PANE} .gd-edge-chosen").evaluate_all("all => all.map(e => e.dataset.ends)")
    assert sorted(heavy) == ["%10 %13", "%13 %16", "%5 %13"], "the choice stands out as a graph"


def test_one_selection_with_the_graph_the_source_and_the_rules(page: Page) -> None:
    opened(page, document("block"))
    page.locator(f'{PANE} [data-class="%13"]').click()
    assert page.locator(f"{PANE} [data-selected]").get_attribute("data-entity") == "node:0.13"
    at(page, 3)
    chosen = page.locator(f'{PANE} [data-class="%16"] [data-chosen]')
    chosen.click(position={"x": 30, "y": 10})
    assert chosen.get_attribute("data-entity") == "node:1.9" and chosen.get_attribute("data-selected") == ""
    page.locator(f"{PANE} .gd-madeby", has_text="Silu+Mul→SwiGLU").click()
    rule = page.locator(f"{PANE} .gd-madeby[data-selected]").get_attribute("data-entity")
    rules = document("block").data["passes"][0]["report"]["rules"]
    assert rules[int(str(rule).partition(".")[2])]["label"] == "Silu+Mul→SwiGLU"
    open_tab(page, "opt")
    page.locator('[data-pane="before"] [data-entity="node:0.11"]').click()
    open_tab(page, "rewrites")
    assert page.locator(f'{PANE} [data-class="%11"]').get_attribute("data-selected") == ""


def test_keys_step_play_plays_and_nothing_moves_where_motion_is_not_wanted(browser: Browser) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    opened(page, document("back"))
    slider = page.locator('[data-command="egraph"]')
    page.locator(f'{PANE} [data-class="%2"]').click()
    for key, k in ((".", 1), (".", 2), (",", 1)):
        page.keyboard.press(key)
        assert slider.input_value() == str(k)
    assert page.locator(f"{PANE} [data-merged]").count() == 3
    assert page.evaluate("() => document.getAnimations().length") == 0
    assert page.locator(f"{PANE} [data-selected]").get_attribute("data-entity") == "node:0.2", "keys turn pages"
    for key, entity in (("ArrowRight", "node:0.3"), ("ArrowRight", "node:0.4"), ("ArrowLeft", "node:0.3")):
        page.keyboard.press(key)  # along the edges, as in a graph
        assert page.locator(f"{PANE} [data-selected]").get_attribute("data-entity") == entity
    page.locator('[data-command="egraph-play"]').click()
    page.wait_for_function("() => document.querySelector('[data-command=egraph]').value === '2'")
    page.locator('[data-command="egraph-play"]').click()
    open_tab(page, "opt")
    open_tab(page, "rewrites")
    assert slider.is_visible() and not page.locator('[data-pane="scrub"]').is_visible()
    page.locator(f"{PANE} button", has_text="rewrites").click()
    assert page.locator('[data-pane="scrub"]').is_visible() and not slider.is_visible()
    context.close()


def test_of_a_large_e_graph_what_grew_is_drawn_and_a_selection_brings_the_rest(page: Page) -> None:
    doc = Study(networks.transformer(2), device="cpu", name="large").doc.with_view({"depth": 9})
    one = doc.data["passes"][0]
    ways: dict[str, int] = defaultdict(int)
    for n in grown(one):
        ways[n.cls] += 1
    opened(page, doc)
    drawn = {d["name"] for d in at(page, 0)}
    assert len(drawn) <= 48 < len(ways)
    assert f"of {len(ways)} classes, select a node to see others" in page.locator(f"{PANE} .gd-player").inner_text()
    names = class_names(doc, one)
    hidden = next(n for n in sorted(ways, key=place) if n not in drawn and ways[n] == 1)
    open_tab(page, "opt")
    page.locator(f'[data-pane="before"] [data-entity="{names[hidden][0]}"]').first.click()
    open_tab(page, "rewrites")
    assert page.locator(f'{PANE} [data-class="{hidden}"][data-selected]').count() == 1


def test_without_a_record_it_says_what_to_type_and_a_slice_is_enough(page: Page) -> None:
    opened(page, without_growth(document("block")))
    assert page.locator(f"{PANE} .gd-empty").inner_text() == (
        "How its e-graph grew was not recorded: 17 nodes. %%graph NAME --egraph records it."
    )
    doc = document("block")
    opened(page, Document({**doc.data, **view_slice(doc, "egraph"), "plan": None, "links": [], "wgsl_base": []}))
    assert len(at(page, 3)) == 11


def test_it_can_be_asked_for_and_names_are_shown_literally(page: Page) -> None:
    evil = "<img onerror=alert(1)>"
    with Graph() as g:
        x = ops.input(evil, (2, 3))
        g.output((x * ops.sigmoid(x).named(evil)).named("x" * 10_000))
    doc = Study(g, device="cpu").doc.with_view({"show": ["egraph"]})
    mount(page, doc)
    assert page.locator(f"{PANE} .gd-camera").is_visible()
    assert any(evil in text for text in page.locator(f"{PANE} .gd-classname").all_text_contents())
    assert "(<img onerror" in page.locator(f"{PANE} .gd-enode").first.text_content()  # type: ignore[operator]
    assert page.locator("img").count() == 0
    box = box_of(page.locator(f"{PANE} .gd-class").last)
    assert box["width"] < 400, "a long name is cut"
