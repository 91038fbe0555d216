"""Looks and motion of the page: what is met first, what stays in place, names in every script, forced colours."""

from __future__ import annotations

from functools import cache
from typing import Any
from xml.etree import ElementTree

import networks
import pytest
import view_networks
from bare_page import TABS, live, mount, open_tab, trained
from browser import box_of, settled
from colours import contrast
from nested_calls import network
from playwright.sync_api import Locator, Page

from gdlab import ops
from gdlab.base.words import nbytes
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.document.layouts import laid_out
from gdlab.view.document.make import graph_doc
from gdlab.view.picture.plan_picture import plan_picture
from gdlab.view.text.plan_text import live_bytes

OPS = "all => all.filter(e => !e.hasAttribute('data-gone')).map(e => e.querySelector('.gd-op').textContent)"


def ops_of(stage: int) -> list[str]:
    """The ops of a stage that are boxes in its picture: an input is called by its name."""
    return sorted(n["name"] if n["op"] == "input" else n["op"] for n in boxes(stage))


def boxes(stage: int) -> list[dict[str, Any]]:
    rows, table = trained().data["stages"][stage]["layouts"]["auto"]["row"], trained().nodes(stage)
    return [node for node, row in zip(table, rows, strict=True) if row >= 0]


def test_the_replay_begins_with_the_graph_as_it_was_written(page: Page) -> None:
    """A place has the width of its widest node, but shows the one that stands there now."""
    mount(page, trained())
    open_tab(page, "rewrites")
    drawn = page.locator('[data-pane="scrub"] .gd-box')
    assert sorted(drawn.evaluate_all(OPS)) == ops_of(0)
    while page.locator('[data-command="scrub-next"]').is_enabled():
        page.locator('[data-command="scrub-next"]').click()
    assert sorted(drawn.evaluate_all(OPS)) == ops_of(1) != ops_of(0)


def test_a_tick_says_where_the_same_rule_fired_and_only_a_limit_is_red(page: Page) -> None:
    mount(page, trained())
    open_tab(page, "rewrites")
    page.locator('[data-command="scrub-next"]').click()
    ticks = page.locator(".gd-ticks span")
    label = page.locator(".gd-said .gd-strong").inner_text()
    titles = ticks.evaluate_all("all => all.map(e => [e.title, e.hasAttribute('data-some')])")
    assert len(titles) > 1 and all(some == (title == label) for title, some in titles)
    assert page.locator("[data-stopped]").count() == 0
    limited = trained().json().decode().replace('"stop_reason":"saturated"', '"stop_reason":"iterations"')
    page.evaluate("text => view.update({...JSON.parse(text), id: 'limited'})", limited)
    page.locator("[data-stopped]").wait_for()
    assert "ended early: the limit of iterations was reached" in page.locator(".gd-said").first.inner_text()


@cache
def wide() -> Any:
    """Two hundred products beside each other: many panes wide."""
    with Graph() as g:
        x = ops.input("x", (4, 8))
        total = x
        for i in range(200):
            total = total + ops.tanh(x @ ops.parameter(f"w{i}", (8, 8)))
        g.set_outputs(ops.square(total).sum_all())
    return Study(g, train=True, device="cpu", name="wide").doc.with_view({"depth": 1})


def test_the_zoom_has_a_state_that_can_be_read(page: Page) -> None:
    """It opens with what can be read, however wide; `fit` goes to all of it and back; the wheel leaves both."""
    mount(page, right_to_left())
    assert page.locator('[data-pane="before"] .gd-camera').get_attribute("data-zoom") == "all", "it fits"
    mount(page, wide())
    camera, fit = page.locator('[data-pane="after"] .gd-camera'), page.locator('[data-command="zoom-fit"]').first
    inside = "e => e.querySelector('svg.gd-picture').getBoundingClientRect().width <= e.clientWidth + 1"
    states = []
    for _ in range(3):
        states.append((camera.get_attribute("data-zoom"), camera.evaluate(inside)))
        fit.click()
    assert states == [("readable", False), ("all", True), ("readable", False)]
    fit.click()
    assert camera.evaluate("e => new DOMMatrix(getComputedStyle(e.querySelector('.gd-world')).transform).a") >= 0.75
    camera.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, 30)
    page.wait_for_function("() => document.querySelector('[data-pane=after] .gd-camera').dataset.zoom === 'free'")
    page.keyboard.up("Control")


def test_the_names_of_lanes_stay_in_sight(page: Page) -> None:
    mount(page, wide())
    open_tab(page, "grad")
    camera = page.locator('[data-pane="lanes"] .gd-camera')
    names = camera.locator(".gd-lanenames span")
    names.first.wait_for()  # a worker lays it out
    assert names.all_inner_texts() == ["forward ↓", "adjoint ↑"]
    fit = page.locator('[data-pane="lanes"] [data-command="zoom-fit"]')
    fit.click()
    assert camera.get_attribute("data-zoom") == "all" and box_of(names.first)["height"] > 12
    fit.click()
    camera.evaluate("e => e.scrollTo(0, 900)")
    assert camera.evaluate("e => e.scrollTop") > 0
    assert camera.locator(".gd-lanenames").evaluate(TOP) == camera.evaluate(TOP), "they do not scroll away"
    inset = "(e, i) => e.querySelectorAll('.gd-lane rect')[i].getBoundingClientRect().x"
    for i in range(2):
        assert box_of(names.nth(i))["x"] == pytest.approx(camera.evaluate(inset, i), abs=2)


# Motion --------------------------------------------------------------------------------------------------------------
MOVING = """() => document.getAnimations().filter(a => a.effect.getKeyframes().some(k => 'translate' in k))
  .map(a => [a.effect.target.dataset.entity, a.effect.getTiming().duration])"""
TOP = "e => e.getBoundingClientRect().y"


def toggled(page: Page) -> tuple[Locator, float, list[Any]]:
    """Closes the group of a node that is selected, far down; the node, where it was, and what moves now."""
    mount(page, Study(network(12), train=True, device="cpu", name="blocks").doc.with_view({"depth": 2}))
    written = page.locator('[data-pane="before"]')
    written.locator(".gd-camera").evaluate("e => e.scrollTo(0, 1200)")
    entity = written.locator(".gd-box:has(.gd-sheet)").nth(12).get_attribute("data-entity")
    node = written.locator(f'.gd-box[data-entity="{entity}"]')
    node.click()
    was = node.evaluate(TOP)
    written.locator(".gd-bracket", has_text="block").filter(has_not_text="×").first.dispatch_event("click")
    return node, was, page.evaluate(MOVING)


def test_what_is_selected_stays_and_the_others_glide(page: Page) -> None:
    node, was, moving = toggled(page)
    assert node.evaluate(TOP) == pytest.approx(was, abs=1)
    page.wait_for_timeout(250)
    settled(page)
    assert node.evaluate(TOP) == pytest.approx(was, abs=1)
    assert len(moving) > 5 and {duration for _, duration in moving} == {150}


def test_nothing_moves_where_motion_is_not_wanted(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    node, was, moving = toggled(page)
    assert moving == [] and node.evaluate(TOP) == pytest.approx(was, abs=1)
    assert page.evaluate("document.getAnimations().length") == 0


# The frame -----------------------------------------------------------------------------------------------------------


def test_the_open_tab_is_in_sight_where_not_all_fit(page: Page) -> None:
    mount(page, trained())
    page.set_viewport_size({"width": 555, "height": 800})
    for name in (*TABS, "opt"):
        page.locator(f'[role="tab"][data-tab="{name}"]').dispatch_event("click")
        settled(page)
        bar = box_of(page.locator(".gd-tabs"))
        tab = box_of(page.locator(f'[role="tab"][data-tab="{name}"]'))
        left, right = tab["x"] - bar["x"], bar["x"] + bar["width"] - tab["x"] - tab["width"]
        assert left >= -1 and right >= 23, f"{name}: whole, and not in the shade at the end"
        listed = page.locator(".gd-tabmenu option").evaluate_all("all => all.map(e => e.value)")
        seen = page.locator('.gd-tabs [role="tab"]:visible').evaluate_all("all => all.map(e => e.dataset.tab)")
        assert listed[0] == "" and sorted(listed[1:] + seen) == sorted(TABS), (
            "F9: each stands in the bar or in the menu"
        )
    page.locator(".gd-tabmenu").select_option("session")
    assert page.locator(".gdlab").get_attribute("data-tab") == "session"
    assert page.locator('[role="tab"][data-tab="session"]').is_visible()
    page.set_viewport_size({"width": 1110, "height": 800})
    page.locator(".gd-tabmenu").wait_for(state="hidden")
    assert page.locator('.gd-tabs [role="tab"]:visible').count() == len(TABS)


def test_the_tab_of_the_session_says_how_it_is_doing(page: Page) -> None:
    live(page, trained())
    dot = "e => getComputedStyle(e, '::after').backgroundColor"
    tab, seen = page.locator('[data-tab="session"][role="tab"]'), []
    for step, state in enumerate(("running", "paused", "failed"), 1):
        page.evaluate("([n, state]) => tell(metrics(n, n, [], {state}))", [step, state])
        assert tab.get_attribute("title") == f"the session is {state}"
        seen.append(tab.evaluate(dot))
    assert len(set(seen)) == 3


def test_what_an_output_was_opened_with_outlives_a_newer_document(page: Page) -> None:
    """`--engine`, `--depth`, `--height` hold although the study's newer document knows nothing of them."""
    asked = laid_out(trained(), "layered").with_view({"show": ["grad"], "engine": "layered", "height": 300})
    mount(page, asked)
    places = "() => [...document.querySelectorAll('[data-pane=lanes] .gd-box')].map(e => e.getAttribute('transform'))"
    was = page.evaluate(places)
    page.evaluate("text => view.update({...JSON.parse(text), id: 'newer', rev: 99})", trained().json().decode())
    page.locator('.gdlab[data-doc="newer"]').wait_for()
    assert page.evaluate(places) == was
    assert page.locator(".gdlab").evaluate("e => e.style.getPropertyValue('--gd-height')") == "300px"
    mount(page, trained().with_view({"show": ["grad"]}))
    assert page.evaluate(places) != was


def test_the_arena_names_its_phases_and_keeps_words_off_the_peak(page: Page) -> None:
    mount(page, trained())
    open_tab(page, "arena")
    arena = page.locator('[data-pane="arena"] svg.gd-arena')
    assert arena.locator("text.gd-axis", has_text="backward").count() == 1
    crossed = arena.evaluate("""e => { const x = e.querySelector('.gd-peak line').getBoundingClientRect().x;
      return [...e.querySelectorAll('.gd-interval')].filter(each => each.querySelector('text')).filter(each => {
        const word = each.querySelector('text').getBoundingClientRect(), box = each.getBoundingClientRect();
        return word.left < x && x < word.right && box.right - x > word.width + 20; }).length; }""")
    assert crossed == 0


def in_the_static_picture(document: Document, first: tuple[str, float, float]) -> list[tuple[str, Any, Any]]:
    """Every buffer of the SVG of a plan: top and height of its box, moved to where `first` stands in the page."""
    tree = ElementTree.fromstring(plan_picture(document))
    found = {g.get("data-entity"): g.find("{*}rect") for g in tree.iter("{http://www.w3.org/2000/svg}g")}
    rects = [(f"interval:{i}", found[f"interval:{i}"]) for i in range(document.plan("intervals").count)]
    boxes = [(k, float(rect.get("y", "")), float(rect.get("height", ""))) for k, rect in rects if rect is not None]
    down = first[1] - next(y for entity, y, _ in boxes if entity == first[0])
    return [(k, pytest.approx(y + down, abs=0.2), pytest.approx(height, abs=0.2)) for k, y, height in boxes]


@pytest.mark.parametrize("width", [1110, 560])
def test_what_is_always_there_stands_to_scale_left_of_the_axis(page: Page, width: int) -> None:
    """T7: the column's parts are those of the memory, its heights are their bytes, and no label lies over another."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", init=0)
    study.session.set_adam(1e-3)
    document = study.doc
    study.close()
    mount(page, document)
    page.set_viewport_size({"width": width, "height": 900})
    open_tab(page, "arena")
    arena = page.locator('[data-pane="arena"] svg.gd-arena')
    arena.locator(".gd-slotrow").first.wait_for()
    sums = arena.locator(".gd-sum")
    parts, intervals = document.data["plan"]["memory"]["parts"], list(document.plan("intervals"))
    for name in ("optimizer state", "parameters", "gradients", "inputs"):
        assert sums.get_by_text(f"{name} {nbytes(parts[name])}").count() == 1, sums.all_text_contents()
    always, live = live_bytes(document)
    at = document.data["plan"]["memory"]["peak_group"]
    assert always + live[at] == max(always + each for each in live) == document.data["plan"]["memory"]["peak_bytes"]
    words = arena.locator("text.gd-axis").all_text_contents()
    assert f"always there {nbytes(always)}" in words and words.count(nbytes(always)) == 1
    assert nbytes(always + live[at]) in words, "the height of memory over time"
    boxes = arena.evaluate("""e => [...e.querySelectorAll('.gd-interval')].map(each => {
      const {left, right, height, y} = each.querySelector('.gd-shape').getBoundingClientRect();
      return [each.dataset.entity, left, right, height, y]; })""")
    axis = min(left for entity, left, *_ in boxes if entity.startswith("node:"))
    column = {entity: height for entity, _, right, height, _ in boxes if right < axis}
    assert sorted(column) == sorted(f"interval:{i}" for i, row in enumerate(intervals) if row["pinned"])
    sizes = {entity: intervals[int(entity.split(":")[1])]["padded"] for entity in column}
    unit = max(column.values()) / max(sizes.values())
    assert all(abs(column[each] - max(0.5, unit * size)) < 1 for each, size in sizes.items()), "to scale"
    stood = {entity: (entity, y, height) for entity, *_, height, y in reversed(boxes)}  # the first of each
    stands = [stood[f"interval:{i}"] for i in range(len(intervals))]
    assert stands == in_the_static_picture(document, stands[0])
    crossed = arena.evaluate("""e => { const all = [...e.querySelectorAll('text.gd-axis')].map(
        each => each.getBoundingClientRect()).filter(each => each.width > 0);
      return all.filter((a, i) => all.some((b, j) => i < j && a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 3 && b.top < a.bottom - 3)).length; }""")
    assert crossed == 0
    tensor = arena.locator('.gd-mountain [data-entity^="node:"]').first
    node = tensor.get_attribute("data-entity")
    tensor.click()
    page.locator(f'.gd-mountain [data-entity="{node}"][data-selected]').wait_for()
    assert arena.locator(".gd-slotrow ~ .gd-interval[data-lit]").count() >= 1, "its buffer in the slot is lit"


def test_the_axis_of_the_arena_is_in_sight(page: Page) -> None:
    """Five slots of one size: they are lower, so that the phases at the foot are not cut (F7, a fold of 560 px)."""
    mount(page, Study(view_networks.gated(), train=True, device="cpu", name="gated").doc)
    open_tab(page, "arena")
    foot = box_of(page.locator('[data-pane="arena"] text.gd-axis', has_text="backward"))
    body = box_of(page.locator('[data-pane="arena"] .gd-arenabody'))
    assert foot["y"] + foot["height"] <= body["y"] + body["height"]


def test_a_fold_of_the_arena_opens_by_key(page: Page) -> None:
    mount(page, trained())
    open_tab(page, "arena")
    opener = page.locator('.gd-opener[aria-expanded="false"]', has_text="parameters")
    opener.focus()
    page.keyboard.press("Enter")
    page.locator('.gd-opener[aria-expanded="true"]', has_text="parameters").wait_for()
    page.keyboard.press(" ")  # the focus is on the first that can be opened
    opener.wait_for()


# Scripts and colours -------------------------------------------------------------------------------------------------


def right_to_left() -> Any:
    with Graph() as g:
        x, w = ops.input("x", (4, 8)), ops.parameter("משקל", (8, 8))
        h = ops.relu(x @ w)
        g.set_outputs(ops.mse_loss(h, ops.input("הדף", (4, 8))))
    return Study(g, train=True, device="cpu", name="שלום").doc


# How a name and what stands behind it in the text stand on the screen; None where there is no such text.
ORDER = """([pane, name]) => { const seen = e => e.getClientRects().length > 0;
  const root = document.querySelector(`[data-pane="${pane}"]`);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(name), after = /[)=:\\[(]/.exec(node.data.slice(at + name.length));
    if (at < 0 || !seen(node.parentElement) || node.parentElement.closest('title')) continue;
    const place = (from, to) => { const r = document.createRange(); r.setStart(node, from); r.setEnd(node, to);
      return r.getBoundingClientRect(); };
    const next = at + name.length + (after?.index ?? 0);
    found.push(after ? place(at, at + name.length).right <= place(next, next + 1).left + 1 : true);
  }
  return found; }"""


def test_a_name_from_right_to_left_disturbs_nothing_in_any_pane(page: Page) -> None:
    mount(page, right_to_left())
    shown = {
        "opt": ("before", "after", "source"), "rewrites": ("scrub",), "grad": ("lanes",), "diff": ("diff",),
        "plan": ("plan", "arena"), "arena": ("arena",), "kernels": ("kernels",), "text": ("outline", "text"),
    }  # fmt: skip
    page.locator('[data-command="source"]').click()
    page.set_viewport_size({"width": 1110, "height": 1400})
    for tab, panes in shown.items():
        open_tab(page, tab)
        if tab == "plan":
            page.locator('tr[data-entity="dispatch:0"]').click()
        for pane in panes:
            assert all(page.evaluate(ORDER, [pane, "משקל"])), pane
    assert page.evaluate(ORDER, ["text", "משקל"]) and page.evaluate(ORDER, ["outline", "משקל"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_selection_is_no_family_s_colour_and_everything_can_be_read(page: Page, theme: Any) -> None:
    """F11: border in the colour of the text, halo in accent; text 4.5 : 1, borders and edges 3 : 1, as drawn."""
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    mount(page, trained().with_view({"show": ["grad"]}))
    page.locator('[data-pane="lanes"] .gd-box').first.wait_for()
    found = page.evaluate(COLOURS)
    assert len(found["nodes"]) > 10 and len(found["edges"]) > 10
    for family, (fill, border, texts, ground) in found["nodes"].items():
        assert contrast(border, fill) >= 3 and contrast(border, ground) >= 3, family
        assert min(contrast(text, fill) for text in texts) >= 4.5, family
    grounds = {ground for *_, ground in found["nodes"].values()} | {found["bg"]}
    assert min(contrast(edge, ground) for edge in found["edges"] for ground in grounds) >= 3
    page.locator('[data-pane="lanes"] .gd-box').nth(3).click()
    now = page.evaluate(COLOURS)
    (fill, border, texts, ground) = now["nodes"]["selected"]
    assert border == now["text"] and now["accent"] in now["halo"], "the halo is in accent"
    assert contrast(border, fill) >= 4.5 and min(contrast(text, fill) for text in texts) >= 4.5
    assert contrast(now["accent"], ground) >= 3
    families = {each[1] for name, each in found["nodes"].items()}
    assert border not in families and now["accent"] not in families
    one = page.locator('[data-pane="lanes"] .gd-box').nth(5)
    plain = one.locator(".gd-shape").evaluate("e => getComputedStyle(e).filter")
    one.hover()
    page.locator("[data-pane=lanes] .gd-edge[data-near]").first.wait_for(state="attached")
    lifted = page.locator("[data-pane=lanes] .gd-edge[data-near] .gd-stroke").first
    assert lifted.evaluate("e => getComputedStyle(e).stroke") == one.locator(".gd-shape").evaluate(
        "e => { e.style.stroke = 'var(--gd-accent)'; return getComputedStyle(e).stroke; }"
    ), "and its edges"
    assert one.locator(".gd-shape").evaluate("e => getComputedStyle(e).filter") != plain, "hover lifts the box"


# Colours as they are drawn, in hex; what is mixed is resolved by a canvas.
COLOURS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const hex = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return '#' + [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(v => v.toString(16).padStart(2, '0')).join(''); };
  const pane = document.querySelector('[data-pane="lanes"]'), root = document.querySelector('.gdlab');
  const of = (e, name) => hex(getComputedStyle(e)[name]);
  const probe = document.createElement('i'); root.append(probe);
  const token = name => { probe.style.color = `var(${name})`; return of(probe, 'color'); };
  const lanes = [...pane.querySelectorAll('.gd-lane rect')].map(e => [e.getBoundingClientRect(), of(e, 'fill')]);
  const bg = token('--gd-bg'), nodes = {};
  let halo = '';
  for (const e of pane.querySelectorAll('.gd-node')) {
    const shape = e.querySelector('.gd-shape'), r = shape.getBoundingClientRect();
    const selected = e.hasAttribute('data-selected');
    const lane = lanes.find(([l]) => r.left >= l.left - 1 && r.right <= l.right + 1);
    nodes[selected ? 'selected' : e.dataset.entity] = [of(shape, 'fill'), of(shape, 'stroke'),
      [...e.querySelectorAll('text')].filter(t => t.textContent).map(t => of(t, 'fill')), lane ? lane[1] : bg];
    if (selected) halo = getComputedStyle(shape).filter.replace(/(rgba?|color|oklch)\\([^)]*\\)/g, hex);
  }
  const found = {nodes, edges: [...pane.querySelectorAll('.gd-edge .gd-stroke')].map(e => of(e, 'stroke')), halo, bg,
    text: token('--gd-text'), accent: token('--gd-accent')};
  probe.remove();
  return found; }"""


# What is lit without an outline or a stroke of the system's highlight.
PLAIN = """all => { const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = 'Highlight'; const wanted = getComputedStyle(probe).color; probe.remove();
  return all.filter(e => !e.matches('.gd-call, .gd-edge, .gd-axisdispatch, .gd-tick')).filter(e => {
    const shape = e.querySelector('.gd-shape') ?? e, style = getComputedStyle(shape);
    return style.stroke !== wanted && style.outlineColor !== wanted; }).map(e => e.outerHTML.slice(0, 90)); }"""


def test_forced_colours_show_what_is_selected_in_every_tab(page: Page) -> None:
    """All that is lit has an outline or a stroke of the system's highlight, and words are in the system's colours."""
    page.emulate_media(forced_colors="active")
    live(page, trained())
    page.evaluate("tell(metrics(1, 7, [[6, 0.6], [7, 0.5]]))")
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').click()
    for tab in TABS:
        open_tab(page, tab)
        lit = page.locator("[data-lit]:visible, [data-some]:visible")
        assert lit.count() > 0, tab
        plain = lit.evaluate_all(PLAIN)
        assert plain == [], tab


def test_a_search_that_hit_a_limit_says_so_where_no_rewrite_is(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdlab.rewrite.engine.saturate.Budget.cap", lambda self, nodes: 0)
    with Graph() as g:
        g.set_outputs(ops.input("x", (4, 8)) + ops.input("y", (4, 8)))
    study = Study(g, name="s", device="cpu")
    assert study.report.hit_limit and not study.report.rules_fired
    mount(page, study.doc)
    outcome = study.report.outcome
    open_tab(page, "rewrites")
    texts = page.locator(".gd-panes").get_by_text(outcome)
    assert texts.count() >= 1 and "none made it cheaper" not in page.locator(".gd-panes").inner_text()
    open_tab(page, "opt")
    assert page.locator('[data-pane="report"] .gd-note', has_text=outcome).is_visible()
    assert page.locator('[data-pane="scrub"] .gd-note[data-level="error"]').inner_text() == outcome


def test_empty_places_say_why_and_what_to_do(page: Page) -> None:
    with Graph() as g:
        g.set_outputs(ops.input("x", (4, 8)) + 1.0)
    mount(page, graph_doc(g, "plain"))
    said = {
        "rewrites": "This graph has not been optimized.", "grad": "Study(plain.graph, train=True)",
        "plan": "%graph_plan plain", "arena": "%graph_plan plain", "kernels": "%graph_plan plain",
        "session": "%graph_run plain 100", "diff": "%graph A --diff B",
    }  # fmt: skip
    for tab, text in said.items():
        open_tab(page, tab)
        assert text in page.locator(".gd-panes").inner_text(), tab


def test_without_a_derivative_the_tab_says_how_to_get_one(page: Page) -> None:
    """As the cell that the graph was written in; a model of a file or of a library has no such cell."""
    for cell, text in (
        ("Cell 4", "as in %%graph net --train."),
        ("another cell", "gdlab.Study(net.graph, train=True)"),
    ):
        document = Study(networks.mlp(), device="cpu", name="net").doc
        document.data["sources"] = [
            {"id": "cell0", "kind": "cell", "name": cell, "language": "python", "text": "x", "first_line": 1}
        ]
        mount(page, document)
        open_tab(page, "grad")
        assert text in page.locator(".gd-panes").inner_text()


def test_a_saved_run_says_what_it_was_to_make_and_lists_six_norms_whole(page: Page) -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", init=0, sgd=0.1)
    study.runner.break_at("step 3")
    study.runner.start(10).result()
    document = study.doc
    run = document.data["runs"][-1]
    assert (study.runner.state, run["counters"]["steps"], run["wanted"]) == ("paused", 3, 10)
    study.close()
    norm = {"about": None, "steps": [1, 2], "norms": [1.0, 0.5]}
    run["gradient_norms"] = [{"name": f"w{k}", **norm} for k in range(6)]
    run["counters"]["submissions"] = 1
    mount(page, document)
    open_tab(page, "session")
    pane = page.locator('[data-pane="session"]')
    assert "/ 10" in pane.inner_text() and "1 submission," in pane.inner_text()
    page.set_viewport_size({"width": 640, "height": 900})  # one column
    norms = pane.locator(".gd-norms ul")
    assert norms.locator("li").count() == 6
    assert norms.evaluate("e => e.scrollHeight <= e.clientHeight")


def test_the_panel_tells_the_parts_of_memory_as_the_text_does(page: Page) -> None:
    """view2 §2: inputs, parameters, gradients, optimizer state … in this order, and they add up."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", init=0)
    study.session.set_adam(1e-3)
    study.run(2)
    memory = study.session.memory_summary()
    mount(page, study.doc)
    open_tab(page, "session")
    told = ", ".join(f"{name} {nbytes(size)}" for name, size in memory.parts)
    assert told in page.locator('[data-pane="session"]').inner_text()
    assert sum(size for _, size in memory.parts) == memory.total_buffer_bytes
    study.close()
