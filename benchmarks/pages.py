"""Measure the waits of a person at a page: first paint, frames of a moving picture, a selection, a step of the replay.

In headless Chromium, with the front end alone in a page; without Chromium there are no rows but those of its size.
"""

from __future__ import annotations

import gzip
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
import networks
from browser import CHROMIUM_FLAGS
from machine import chromium

from benchmarks.measure import ROUNDS, Row, spread
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.document.make import graph_doc

STATIC = Path(__file__).parents[1] / "gdlab" / "static"
PARTS = ("gdlab", "later")
PAINTED = {500: 100, 2_000: 300, 6_236: 500}  # nodes: ms
SECONDS = 4.0  # of a gesture

PAINT = """async text => {
  document.body.replaceChildren(document.createElement('div'));
  const data = JSON.parse(text), began = performance.now();
  front.mount(document.body.firstChild, data, null);
  while (!document.querySelector('.gd-box')) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""
MOUNT = f"""async ([parts, text]) => {{
  const urls = parts.map(each => URL.createObjectURL(new Blob([each], {{type: 'text/javascript'}})));
  const front = await import(urls[0]);
  await import(urls[1]);
  urls.forEach(URL.revokeObjectURL);
  return ({PAINT})(text);
}}"""
FRAMES = """async seconds => {
  const camera = document.querySelector('[data-pane=before] .gd-camera'), times = [], start = performance.now();
  for (let before = start; before - start < 1000 * seconds;) {
    const now = await new Promise(requestAnimationFrame);
    times.push(now - before);
    before = now;
    camera.scrollTop += 60;
  }
  return times.slice(2);
}"""
# Until the frame after what a click changed has been drawn.
CLICK = """async ([selector, turn]) => {
  const all = [...document.querySelectorAll(selector)], began = performance.now();
  all[turn % all.length].dispatchEvent(new MouseEvent('click', {bubbles: true}));
  await new Promise(requestAnimationFrame);
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""


def page_rows() -> Iterator[Row]:
    """The bars of the view that a page can tell."""
    texts = [(STATIC / f"{name}.js").read_bytes() for name in (*PARTS, "engine")]
    whole, first, second, engine = (len(gzip.compress(each, 9)) / 1024 for each in (b"".join(texts), *texts))
    told = "bar 130 KB; as one text, as an HTML file holds it"
    yield Row("front end in gzip, with its style and the page's engine", f"**{whole:.1f}** KB", told)
    yield Row("its parts, each in gzip", f"{first:.1f}, {second:.1f} KB, engine {engine:.1f} KB", "engine: bar 12 KB")
    found = chromium()
    if found is None:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(CHROMIUM_FLAGS))
        page = browser.new_page(viewport={"width": 1110, "height": 900})
        yield from _painted(page)
        yield from _moved(page)
        yield from _replayed(page)
        browser.close()


def _mount(page: Any, document: Document) -> float:
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    parts = [(STATIC / f"{name}.js").read_text("utf-8") for name in PARTS]
    return float(page.evaluate(MOUNT, [parts, document.json().decode()]))


def _written(nodes: int) -> Graph:
    return networks.written_with(nodes, len)


def _painted(page: Any) -> Iterator[Row]:
    for nodes, bar in PAINTED.items():
        document = graph_doc(_written(nodes), "painted")
        taken = [_mount(page, document) for _ in range(ROUNDS + 1)][1:]
        yield Row(f"first paint, {len(document.nodes()):,} nodes", spread(taken, "ms"), f"bar {bar} ms")


def _moved(page: Any) -> Iterator[Row]:
    """In the largest of the pictures, which stands there still."""
    times = page.evaluate(FRAMES, SECONDS)
    late = statistics.quantiles(times, n=20)[-1]
    yield Row("a frame while it moves", spread(times, "ms"), f"one in twenty over {late:.0f} ms; bars 17 and 33 ms")
    taken = [page.evaluate(CLICK, ["[data-pane=before] .gd-box", 3 * k]) for k in range(ROUNDS + 1)][1:]
    yield Row("a selection in it, all panes lit and drawn", spread(taken, "ms"), "bar 50 ms")


def _replayed(page: Any) -> Iterator[Row]:
    study = Study(_written(2_000), name="replayed")
    _mount(page, study.doc)
    page.locator('[role="tab"][data-tab="rewrites"]').click()
    taken = [page.evaluate(CLICK, ['[data-command="scrub-next"]', 0]) for _ in range(ROUNDS + 1)][1:]
    yield Row(f"a step of the replay, {len(study.graph):,} nodes", spread(taken, "ms"), "bar 30 ms")
    study.close()
