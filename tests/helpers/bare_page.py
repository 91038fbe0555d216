"""Mount the built front end in an empty page, with or without a model whose kernel the test plays."""

from __future__ import annotations

from functools import cache
from typing import Any

import networks
from browser import settled
from places import REPO
from playwright.sync_api import Page

from gdlab.study.study import Study

# The first part of the front end is what a page calls; the second adds its panes to it.
LOAD = """async parts => {
  const [front] = await parts.reduce(async (before, text) => {
    const loaded = await before, url = URL.createObjectURL(new Blob([text], {type: 'text/javascript'}));
    loaded.push(await import(url));
    URL.revokeObjectURL(url);
    return loaded;
  }, []);
  window.front = front;
}"""
MOUNT = """text => {
  document.body.replaceChildren(document.createElement('div'));
  window.began = performance.now();
  window.view = front.mount(document.body.firstChild, JSON.parse(text), null);
}"""


def parts(*names: str) -> list[str]:
    """The texts of the built front end: both parts, or those that are named."""
    folder = REPO / "gdlab" / "static"
    return [(folder / f"{name}.js").read_text(encoding="utf-8") for name in names or ("gdlab", "later")]


@cache
def trained() -> Any:
    return Study(networks.mlp(), train=True, device="cpu", name="mlp").doc


def mount(page: Page, document: Any) -> None:
    page.set_viewport_size({"width": 1110, "height": 900})
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(LOAD, parts())
    page.evaluate(MOUNT, document.json().decode())
    page.locator(".gdlab .gd-frame").wait_for()


def open_tab(page: Page, name: str) -> None:
    """Open a tab as a person does, in the bar or from the menu of those that have no room there, and wait until it is
    drawn: some panes draw once they know their width, a frame later. The bar itself may have to fit a new width first.
    """
    settled(page)
    tab = page.locator(f'[role="tab"][data-tab="{name}"]')
    if tab.is_visible():
        tab.click()
    else:
        page.locator(".gd-tabmenu").select_option(name)
    settled(page)


TABS = ("opt", "rewrites", "grad", "diff", "plan", "arena", "kernels", "session", "text")
# A model that speaks as the kernel does; `tell(content)` is a message of the kernel.
MODEL = """text => {
  const listeners = {};
  window.sent = [];
  window.model = {
    get: name => ({study: 'fake', rev: 0, state: 'none', step: 0})[name],
    on: (event, callback) => (listeners[event] ??= []).push(callback),
    off: (event, callback) => { listeners[event] = (listeners[event] ?? []).filter(each => each !== callback); },
    send: content => window.sent.push(content),
  };
  window.tell = content => (listeners['msg:custom'] ?? []).forEach(callback => callback(content));
  window.end = () => (listeners['comm:close'] ?? []).forEach(callback => callback());
  window.metrics = (frame, step, loss, more = {}) => ({type: 'metrics', frame, state: 'running', reason: '', step,
    wanted: 1e6, loss, counters: {steps: step, dispatches: 4 * step, dispatches_per_step: 4, submissions: step,
    groups: 3, bytes_up: 0, bytes_down: 0, steps_per_second: 1000}, memory: '', device: 'cpu', optimizer: 'SGD, lr 0.1',
    watch: 'loss', full: frame === 1, ...more});
  document.body.replaceChildren(document.createElement('div'));
  window.view = front.mount(document.body.firstChild, JSON.parse(text), front.connect(window.model));
}"""


def live(page: Page, document: Any) -> None:
    """The front end with a model whose kernel the test plays."""
    page.set_viewport_size({"width": 1110, "height": 900})
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(LOAD, parts())
    page.evaluate(MODEL, document.json().decode())
    page.locator(".gdlab .gd-frame").wait_for()


CUT = """() => [...document.querySelectorAll('.gdlab button, .gdlab select, .gdlab h3, .gdlab .gd-number')]
  .filter(e => e.offsetParent && getComputedStyle(e).textOverflow !== 'ellipsis' && e.scrollWidth > e.clientWidth + 1
    && getComputedStyle(e).overflowX !== 'visible')
  .map(e => e.outerHTML.slice(0, 120))"""
AUDIT = """() => {
  const wrong = [], seen = e => e.getClientRects().length > 0 && !e.closest('[hidden]');
  const name = e => (e.getAttribute('aria-label') ?? e.title ?? '').trim() || (e.textContent ?? '').trim();
  for (const e of document.querySelectorAll('.gdlab button, .gdlab input, .gdlab select, .gdlab [role]')) {
    if (!seen(e)) continue;
    const free = ['presentation', 'none', 'note', 'status', 'group', 'toolbar', 'alert'];
    if (!free.includes(e.getAttribute('role')) && !name(e)) wrong.push(['no name', e.outerHTML.slice(0, 120)]);
    if (e.matches('button, input, select') && !e.closest('.gd-status, thead')) {
      const {width, height} = e.getBoundingClientRect();
      if (width < 23.5 || height < 21.5) wrong.push([`small: ${width} x ${height}`, e.outerHTML.slice(0, 120)]);
    }
  }
  for (const pane of document.querySelectorAll('.gdlab .gd-pane')) {
    if (!seen(pane)) continue;
    const stops = [...pane.querySelectorAll('[data-entity][tabindex="0"]')].filter(seen);
    if (stops.length > 1) wrong.push([`${stops.length} tab stops`, pane.dataset.pane]);
    if (!pane.getAttribute('aria-label')) wrong.push(['pane without name', pane.dataset.pane]);
  }
  for (const tab of document.querySelectorAll('[role=tab]'))
    if (!tab.closest('[role=tablist]') || !tab.hasAttribute('aria-selected')) wrong.push(['tab', tab.textContent]);
  const ids = [...document.querySelectorAll('.gdlab [id]')].map(e => e.id);
  if (new Set(ids).size < ids.length) wrong.push(['ids', 'doubled']);
  return wrong;
}"""


FAKE = """() => {
  const on = {};
  const model = window.model = {
    traits: {study: KEY, state: 'none', step: 0, rev: 0, selected: ['node@written#6']}, saved: 0,
    get: name => model.traits[name], set: (name, value) => { model.traits[name] = value; },
    save_changes: () => { model.saved++; }, send: () => {},
    on: (event, call) => { (on[event] ??= new Set()).add(call); },
    off: (event, call) => { on[event]?.delete(call); },
    tell: (name, value) => { model.traits[name] = value; for (const call of on['change:' + name] ?? []) call(); },
  };
  window.host = front.connect(model);
  window.view.goLive(window.host);
}"""
