"""The front end comes in two parts: what is drawn with the first, with the second late or lost, and what they weigh."""

from __future__ import annotations

import gzip
from typing import Any

import nbformat
import pytest
from bare_page import LOAD, MOUNT, TABS, open_tab, parts, trained
from browser import PYTHON, Watch, cell, visit, wait_idle
from places import REPO
from playwright.sync_api import Page, expect

from gdlab.jupyter.display import bundle

STATIC = REPO / "gdlab" / "static"
# What brings the second part: `bring(text)` brings it, `lose()` says why it does not come.
HELD = """() => {
  window.asked = 0;
  (window.gdlab.later ??= {})[front.version] = () => new Promise((done, fail) => {
    window.asked++;
    window.lose = () => fail(new Error('the network is down'));
    window.bring = text => import(URL.createObjectURL(new Blob([text], {type: 'text/javascript'}))).then(done, fail);
  });
}"""
EMPTY = """() => [...document.querySelectorAll('.gdlab .gd-pane')].filter(e => e.getClientRects().length > 0)
  .filter(e => e.dataset.rail === undefined && !e.querySelector('.gd-node') && e.innerText.trim().length < 40)
  .map(e => e.dataset.pane)"""


def weight(*names: str) -> int:
    return sum(len(gzip.compress((STATIC / f"{name}.js").read_bytes(), 9)) for name in names)


def test_the_front_end_keeps_its_size() -> None:
    """view2 §6, in gzip: 130 KB with its style and the page's engine, which may take 12, as one text, as an HTML file
    holds it. Parts that are packed one by one know nothing of each other's words: 1.4 KB more."""
    names = ("gdlab", "later", "engine")
    assert len(gzip.compress(b"".join((STATIC / f"{name}.js").read_bytes() for name in names), 9)) <= 130 * 1024
    assert weight(*names) <= 134_600
    assert weight("engine") <= 12 * 1024
    assert (STATIC / "loader.js").stat().st_size <= 6_000


def first_alone(page: Page, document: Any) -> None:
    """A page with the first part of the front end, whose second part the test holds back."""
    page.set_viewport_size({"width": 1110, "height": 900})
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(LOAD, parts("gdlab"))
    page.evaluate(HELD)
    page.evaluate(MOUNT, document.json().decode())
    page.locator(".gdlab .gd-frame").wait_for()


def test_a_pane_shows_its_text_until_its_part_comes_and_when_it_is_lost(page: Page) -> None:
    first_alone(page, trained())
    expect(page.locator('[data-pane="before"] .gd-box')).to_have_count(7)
    expect(page.locator('[data-pane="after"] .gd-box').first).to_be_visible()
    report = page.locator('[data-pane="report"]')
    expect(report).to_contain_text("Loading OptimizeReport; until it is here, as text:")
    expect(report).to_contain_text("= relu(%")
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').click()
    for name in TABS:
        open_tab(page, name)
        assert page.evaluate(EMPTY) == [], f"no pane of {name} is blank"
    open_tab(page, "plan")
    plan = page.locator('[data-pane="plan"]')
    expect(plan).to_contain_text("MFLOP")
    assert page.evaluate("asked") == 1, "for all panes together"
    page.evaluate("lose()")
    expect(plan).to_contain_text("Plan could not be loaded (the network is down); here it is as text.")
    expect(plan).to_contain_text("MFLOP")
    plan.locator('[data-command="retry"]').click()
    expect(plan).to_contain_text("Loading Plan")
    assert page.evaluate("asked") == 2
    page.evaluate("text => bring(text)", parts("later")[0])
    expect(page.locator('[data-pane="plan"] tr[data-entity="dispatch:0"]')).to_be_visible()
    expect(page.locator(".gd-standin")).to_have_count(0)
    open_tab(page, "opt")
    expect(page.locator('[data-pane="report"] [data-entity]').first).to_be_visible()
    expect(page.locator('[data-pane="before"] [data-selected]')).to_have_attribute("data-entity", "node:0.6")


def test_a_view_that_has_gone_asks_for_nothing_and_the_next_has_both_parts(page: Page) -> None:
    first_alone(page, trained())
    expect(page.locator('[data-pane="report"] .gd-standin')).to_be_visible()
    page.evaluate("view.destroy()")
    page.evaluate("text => bring(text)", parts("later")[0])
    page.evaluate(MOUNT, trained().json().decode())
    expect(page.locator('[data-pane="report"] [data-entity]').first).to_be_visible()
    assert page.locator(".gd-standin").count() == 0 and page.evaluate("asked") == 1


# in a widget, where the host has no extension -------------------------------------------------------------------------
# A widget of the loader, whose kernel the test plays: `part(name, text)` is a reply that carries a part.
WIDGET = """async text => {
  const {default: widget} = await import(URL.createObjectURL(new Blob([text], {type: 'text/javascript'})));
  const listeners = {};
  window.sent = [];
  const model = {
    get: name => ({study: 'fake', rev: 0, state: 'none', step: 0})[name],
    on: (event, callback) => (listeners[event] ??= []).push(callback),
    off: (event, callback) => { listeners[event] = (listeners[event] ?? []).filter(each => each !== callback); },
    send: content => window.sent.push(content),
  };
  const tell = (content, buffers) => (listeners['msg:custom'] ?? []).forEach(callback => callback(content, buffers));
  const reply = more => ({type: 'reply', req: window.sent.findLast(each => each.type === 'core').req, ...more});
  window.part = (name, text) => tell(reply({ok: true, result: {part: name}, error: null}),
    [new DataView(new TextEncoder().encode(text).buffer)]);
  window.refuse = () => tell(reply({ok: false, result: null, error: {kind: 'x', message: 'x', about: null}}), []);
  window.doc = text => tell({type: 'doc', rev: 1, doc: JSON.parse(text)}, []);
  document.body.replaceChildren(document.createElement('div'));
  widget.initialize({model});
  widget.render({model, el: document.body.firstChild});
}"""


def test_a_widget_shows_its_picture_then_each_part_as_it_comes(page: Page) -> None:
    page.set_viewport_size({"width": 1110, "height": 900})
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(WIDGET, parts("loader")[0])
    page.evaluate("refuse()")
    said = page.get_by_text("gdlab: the interactive view could not be loaded (the kernel has no front end).")
    expect(said).to_be_visible()
    said.get_by_role("button", name="Retry").click()
    expect(said).to_have_count(0)
    data, _ = bundle(trained(), ["opt"])
    page.evaluate("text => part('picture', text)", data["image/svg+xml"])
    still = page.locator("img.gd-still")
    expect(still).to_be_visible()
    page.evaluate("text => part('gdlab', text)", parts("gdlab")[0])
    page.wait_for_function("() => sent.some(each => each.type === 'hello')")
    expect(still).to_be_visible()
    page.evaluate("text => doc(text)", trained().json().decode())
    expect(page.locator('[data-pane="before"] .gd-box')).to_have_count(7)
    expect(still).to_have_count(0)
    report = page.locator('[data-pane="report"]')
    expect(report).to_contain_text("Loading OptimizeReport")
    page.evaluate("refuse()")
    expect(report).to_contain_text("OptimizeReport could not be loaded (the kernel has no front end)")
    asked = page.evaluate("sent.filter(each => each.type === 'core').length")
    report.locator('[data-command="retry"]').click()
    page.wait_for_function("n => sent.filter(each => each.type === 'core').length === n + 1", arg=asked)
    page.evaluate("text => part('later', text)", parts("later")[0])
    expect(report.locator("[data-entity]").first).to_be_visible()


# in the files of the extension ----------------------------------------------------------------------------------------
FILES = REPO / "gdlab" / "labextension" / "static"


def file_with(text: str) -> str:
    """The one file of the extension that holds these letters."""
    (found,) = (path.name for path in FILES.glob("*.js") if text in path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_an_output_shows_its_picture_before_what_draws_it_is_there(
    app: str, request: pytest.FixtureRequest, fresh_page: Page, watch: Watch
) -> None:
    """At most 30 KB are loaded before the first picture is painted (view2 §6); each part comes at a Retry."""
    page, host = fresh_page, request.getfixturevalue(app)
    data, metadata = bundle(trained(), ["opt"])
    shown = nbformat.v4.new_output("display_data", data, metadata=metadata)
    cells = [nbformat.v4.new_code_cell("%graph mlp", outputs=[shown], execution_count=1)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=PYTHON), host.root / "parts.ipynb")
    loaded: list[str] = []
    page.on("requestfinished", lambda made: loaded.append(made.url.rpartition("/")[2].partition("?")[0]))
    watch.allow("console error: Failed to load resource: net::ERR_FAILED")
    first, later = (f"**/gdlab/static/{file_with(text)}*" for text in ("gd-heighthandle", "graph_sweep"))
    for held in (first, later):
        page.route(held, lambda route: route.abort())
    visit(page, host, "parts.ipynb")
    output = cell(page, 0)
    expect(output.locator("img.gd-picture")).to_be_visible()
    assert output.locator("img.gd-picture").evaluate("e => e.decode().then(() => e.naturalWidth)") > 100
    said = output.locator(".gd-still [role=status]")
    expect(said).to_contain_text("gdlab: the interactive view could not be loaded (")
    parts = [path for path in FILES.glob("*.js") if path.name in loaded]
    assert len(parts) > 2 and sum(len(gzip.compress(path.read_bytes(), 9)) for path in parts) <= 30 * 1024
    page.unroute(first)
    said.locator("button").click()
    expect(output.locator('[data-pane="before"] .gd-box').first).to_be_visible()
    expect(output.locator(".gd-still")).to_have_count(0)
    report = output.locator('[data-pane="report"]')
    expect(report).to_contain_text("OptimizeReport could not be loaded (")
    expect(report).to_contain_text("= relu(%")
    page.unroute(later)
    report.locator('[data-command="retry"]').click()
    expect(report.locator("[data-entity]").first).to_be_visible()
    wait_idle(page)  # a server that is ended while its kernel starts does not end
