"""Watches, breakpoints and dispatch steps in real JupyterLab: what the panel shows is what Python says."""

from __future__ import annotations

import json
import re

import pytest
from browser import Server, cell, open_notebook, output, run_cell, shot, theme
from playwright.sync_api import Locator, Page, expect

NET = """%%graph mlp --train --device cpu --show session --show plan --run 2 --feed random:0 --adam 1e-2 --init 0
x = input("x", (16, 24))
y = input("y", (16, 10))
h = relu(bias_add(x @ parameter("w1", (24, 32)), parameter("b1", (32,))))
z = bias_add(h @ parameter("w2", (32, 10)), parameter("b2", (10,)))
cross_entropy_loss(z, y)"""
LOOK = """import json
def look(name):
    f = mlp.look(name, against="reference")
    s = f.summary
    figures = {n: getattr(s, n) for n in ("min", "max", "mean", "std", "l2")}
    return {"figures": figures, "counts": [s.n, s.zero, s.nan, s.inf],
            "rows": f.window.texts(), "difference": f"against {f.difference}"}
"""
ASK = (
    LOOK
    + """r = mlp.runner
print(json.dumps({"watches": [[w.name, w.value, w.step] for w in r.lookout.watches.values()], "reason": r.reason,
 "hits": [b.hits for b in r.lookout.breaks.values()], "dispatch": r.dispatch, "step": mlp.session.step_count,
 "lit": sorted(mlp.doc.select(f"dispatch:{r.dispatch}")), "look": look("h")}))"""
)

ASK_W1 = LOOK + 'print(json.dumps({"look": look("interval:2")}))'


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


def said(page: Page, index: int) -> dict[str, object]:
    """Return Python's figures of the same things, by running the asking cell."""
    run_cell(page, index)
    found: dict[str, object] = json.loads(output(page, index).last.inner_text())
    return found


def enter(panel: Locator, text: str, name: str) -> None:
    panel.locator('[data-command="watchtext"]').fill(text)
    panel.locator(f'[data-command="{name}"]').click()


def look(page: Page, panel: Locator) -> None:
    """B17: the microscope tells what Python tells, of a watched name and of what is selected, against the reference."""
    panel.locator(".gd-watchlist li").first.locator("button", has_text="h").first.click()
    glass = panel.locator(".gd-glass")
    glass.get_by_label("compare with").select_option("reference")
    glass.locator('[data-value="difference"]', has_text="against the reference").wait_for()
    first = told(glass)
    python = said(page, 2)["look"]
    assert first == python
    cell(page, 1).locator('[data-pane="arena"] [data-entity="interval:2"]').first.click()
    panel.locator('[data-command="look"]').click()
    glass.locator(".gd-glassname", has_text="w1").wait_for()
    assert told(glass) == said(page, 3)["look"]
    panel.locator(".gd-watchlist li").first.locator("button", has_text="h").first.click()
    glass.locator(".gd-glassname", has_text="h").wait_for()
    glass.scroll_into_view_if_needed()


def told(glass: Locator) -> dict[str, object]:
    """Return the figures that the microscope shows, in the form in which Python gives them."""
    number = "e => Number(e.dataset.number)"
    figures = {
        n: glass.locator(f'[data-value="glass-{n}"]').evaluate(number) for n in ("min", "max", "mean", "std", "l2")
    }
    rows = glass.locator(".gd-window tr").evaluate_all(
        "all => all.slice(1).map(r => [...r.cells].slice(1).map(c => c.innerText))"
    )
    counts = [
        int(n.replace(",", ""))
        for n in re.findall(r"[\d,]*\d", glass.locator('[data-value="glass-counts"]').inner_text())
    ]
    difference = glass.locator('[data-value="difference"]').inner_text().removesuffix("Show it").strip()
    return {"figures": figures, "counts": counts, "rows": rows, "difference": difference}


def test_the_panel_watches_breaks_and_steps_by_dispatches(lab: Server, page: Page) -> None:
    open_notebook(page, lab, ["%load_ext gdlab", NET, ASK, ASK_W1], "watches.ipynb")
    for i in range(2):
        run_cell(page, i)
    panel = cell(page, 1).locator('[data-pane="session"]')
    rows = panel.locator(".gd-watchlist li")

    # By keyboard: a name watches, words break.
    text = panel.locator('[data-command="watchtext"]')
    text.focus()
    page.keyboard.type("h")
    page.keyboard.press("Enter")
    rows.filter(has_text="step 2").first.wait_for()
    enter(panel, "w1.grad", "watch-add")
    enter(panel, "node h if step == 4 and absmax(h) > 0", "break-add")
    rows.filter(has_text="node h if").wait_for()
    enter(panel, "node h if absmx(h) > 0", "break-add")
    refused = panel.locator('[role="alert"]', has_text="break: test: given absmx(h), wanted one of min, max")
    refused.wait_for()
    assert refused.inner_text().split("\n")[2].index("^") == "  node h if absmx(h)".index("absmx(h)")
    assert rows.count() == 3, "a refused breakpoint changes nothing"

    panel.locator('[data-command="steps"]').fill("10")
    panel.locator('[data-command="run"]').click()
    panel.locator('[data-value="state"]', has_text="paused: breakpoint 3").wait_for()
    python = said(page, 2)
    assert python["reason"] == "breakpoint 3: node h if step == 4 and absmax(h) > 0" and python["step"] == 3
    for name, value, step in python["watches"]:  # type: ignore[attr-defined]
        rows.filter(has_text=name).filter(has_text=f"{value} · step {step}").first.wait_for()
    rows.filter(has_text="node h if").filter(has_text="1 hit").wait_for()

    # The current dispatch is lit everywhere, the play-head stands on it.
    panel.locator('[data-command="step-dispatch"]').click()
    panel.get_by_text("after dispatch 1 (").first.wait_for()
    python = said(page, 2)
    assert python["dispatch"] == 1
    plan = cell(page, 1).locator('[data-pane="arena"]')
    plan.locator('[data-entity="dispatch:1"][data-lit]').first.wait_for(state="attached")
    lit = plan.locator("[data-entity][data-lit]").evaluate_all("all => all.map(each => each.dataset.entity)")
    assert set(lit) <= set(python["lit"]) and "dispatch:1" in lit  # type: ignore[arg-type]

    look(page, panel)
    page.evaluate("document.activeElement.blur()")
    shot(page, "watches-light")
    theme(page, "dark")
    shot(page, "watches-dark")
    theme(page, "light")

    # Back, and on to what is selected.
    panel.locator('[data-command="back"]').click()
    panel.get_by_text("after dispatch 0 (").first.wait_for()
    plan.locator('[data-entity="dispatch:5"]').first.click()
    panel.locator('[data-command="run-to"]').click()
    panel.get_by_text("after dispatch 5 (").first.wait_for()
    assert said(page, 2)["dispatch"] == 5
    panel.get_by_role("button", name="clear h").first.click()
    rows.filter(has_text="w1.grad").first.wait_for()
    panel.locator('[data-command="resume"]').click()
    panel.locator('[data-value="state"]', has_text="ready").wait_for()
    assert said(page, 2)["step"] == 12

    # A reset keeps the curve as a thin line with its rule in the legend.
    panel.get_by_role("button", name="clear node h if step == 4").click()
    rows.filter(has_text="node h if").wait_for(state="detached")
    reset = panel.locator('[data-command="reset"]')
    reset.click()
    reset.filter(has_text="Reset?").click()
    panel.locator('[data-value="step"]', has_text="0").wait_for()
    panel.locator('[data-command="run"]').click()
    panel.locator('[data-value="state"]', has_text="ready").wait_for()
    expect(panel.locator("path.gd-earlier")).to_have_count(2)
    expect(panel.locator("svg", has_text="Adam, lr 0.01")).to_have_count(1)
    shot(page, "watches-earlier")
