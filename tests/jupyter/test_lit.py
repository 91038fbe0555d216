"""B6 in a bare page: after a click on any kind of thing, every pane lights what `doc.select` says, no less."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from bare_page import mount, open_tab
from playwright.sync_api import Page

from gdlab.jupyter.cell import run_cell
from gdlab.study.study import Study

CELL = """x = input("x", (32, 16))
y = input("y", (32, 4))
h = silu(x @ parameter("w1", (16, 32)) + parameter("b1", (32,)))
z = (h * 2.0) @ parameter("w2", (32, 4)) + parameter("b2", (4,))
cross_entropy_loss(z, y)
"""
TAB_OF = {
    "line": "opt", "node": "opt", "step": "rewrites", "kernel": "kernels", "dispatch": "plan", "interval": "arena",
    "wgsl": "kernels",
}  # fmt: skip
TABS = ("opt", "rewrites", "grad", "plan", "arena", "kernels")
SEEN = """() => {
  const found = {};
  for (const pane of document.querySelectorAll('[data-pane]')) {
    if (pane.hidden) continue;
    const all = [...pane.querySelectorAll('[data-entity]')].filter(e => !e.closest('[data-gone]'));
    found[pane.dataset.pane] = {
      drawn: [...new Set(all.map(e => e.dataset.entity))],
      lit: [...new Set(all.filter(e => e.hasAttribute('data-lit')).map(e => e.dataset.entity))],
      chosen: [...new Set(all.filter(e => e.hasAttribute('data-selected')).map(e => e.dataset.entity))],
    };
  }
  return found;
}"""


@cache
def document() -> Any:
    program = run_cell("net", "%%graph net --train", CELL, {}, 1)
    return Study(program.graph, train=True, device="cpu", name="net", source={program.file: program.text}).doc


def rows_of(entities: Any) -> set[str]:
    """A row of the source pane stands for all calls that were written in it; an edge is lit with both of its ends."""
    lines = document().data["lines"]["line"]
    return {f"row:{lines[int(e[5:])]}" if e.startswith("line:") else e for e in entities if not e.startswith("edge:")}


@pytest.mark.parametrize("kind", TAB_OF)
def test_b6_every_pane_lights_what_the_links_say(page: Page, kind: str) -> None:
    mount(page, document())
    page.locator('[data-command="source"]').first.click()
    open_tab(page, TAB_OF[kind])
    told = "[title^=from]" if kind == "wgsl" else ""  # a line of boilerplate lights itself alone
    things = page.locator(f'[data-entity^="{kind}:"]{told}:visible')
    thing = things.nth(min(1, things.count() - 1))
    name = str(thing.get_attribute("data-entity"))
    thing.click()
    wanted = rows_of(document().select(name))
    compared = 0
    for tab in TABS:
        open_tab(page, tab)
        for pane, seen in page.evaluate(SEEN).items():
            drawn, lit = rows_of(seen["drawn"]), rows_of(seen["lit"])
            stands = {e for e in drawn if e.startswith("rule:")}  # a rule stands for its steps, and lights with none
            assert lit - stands == (wanted & drawn) - stands, (tab, pane, name)
            assert set(seen["chosen"]) <= {name} or kind == "line"
            compared += len(lit)
    assert compared > 5
