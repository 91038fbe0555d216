"""The Sweep tab: all curves, a row per point, what hover and click show; live with a model that the test plays."""

from __future__ import annotations

import re
from typing import Any

import networks
import pytest
from bare_page import AUDIT, CUT, live, mount, open_tab
from playwright.sync_api import Page, expect

from gdlab.study.study import Study
from gdlab.view.document.make import graph_doc
from gdlab.view.picture.sweep_picture import sweep_picture


@pytest.fixture(scope="module")
def swept() -> Any:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.sweep({"sgd": [0.05, 0.1, 1e18], "init": [0, 1]}, steps=120, feed="random:1")
    yield study
    study.close()


def test_a_saved_sweep_is_drawn_without_a_kernel(page: Page, swept: Study) -> None:
    mount(page, swept.doc)
    open_tab(page, "sweep")
    pane = page.locator('[data-pane="sweep"]')
    expect(pane.locator(".gd-curve")).to_have_count(6)
    expect(pane.locator("tr[data-point]")).to_have_count(6)
    expect(pane.locator('tr[data-state="failed"]')).to_have_count(2)
    best = swept.doc.data["sweep"]["best"]
    expect(pane.locator(f'tr[data-best][data-point="{best}"]')).to_have_count(1)
    expect(pane.locator('[data-command="pause"]')).to_be_disabled()
    expect(pane.locator('[data-value="state"]')).to_contain_text("4 of 6 points done, 2 failed")
    pane.locator('tr[data-point="4"] .gd-link').click()
    expect(pane.locator(".gd-curve[data-lit]")).to_have_attribute("data-point", "4")
    expect(pane.locator(".gd-sweeptold")).to_contain_text("not finite")
    pane.locator('tr[data-point="4"] .gd-link').click()
    # over the end of the first curve, in pixels of the plot
    end = pane.locator('.gd-curve[data-point="0"]').evaluate(
        "e => { const p = e.getPointAtLength(e.getTotalLength()), m = e.getScreenCTM();"
        " return [p.x * m.a + m.e, p.y * m.d + m.f]; }"
    )
    page.mouse.move(*end)
    expect(pane.locator(".gd-curve[data-lit]")).to_have_attribute("data-point", "0")
    expect(pane.locator(".gd-sweeptold")).to_contain_text("at step 120")
    page.mouse.click(*end)
    expect(pane.locator("tr[data-selected]")).to_have_attribute("data-point", "0")
    assert page.evaluate(AUDIT) == [] and page.evaluate(CUT) == []


def test_a_curve_that_leaves_the_range_is_broken_and_marked(page: Page, swept: Study) -> None:
    """T5: no flat line at the top of the plot, in the page and in the static picture."""
    document = swept.doc
    point = document.data["sweep"]["points"][4]
    point["curve"] = [[0, 2.0], [20, 1e3], [40, 1e5], [60, 1e7], [80, 1e6], [100, 2.0]]
    document.data["sweep"] |= {"range": [0.0, 3.0], "log": False}
    mount(page, document)
    open_tab(page, "sweep")
    pane = page.locator('[data-pane="sweep"]')
    drawn = str(pane.locator('.gd-curve[data-point="4"]').get_attribute("d"))
    assert (drawn.count("M"), drawn.count("L")) == (2, 2), "down to the border, and back from it"
    assert pane.locator('g[data-point="4"] .gd-outside').count() == 1
    picture = sweep_picture(document)
    path = re.search(r'<path data-point="4" d="([^"]*)"', picture)
    assert path and (path[1].count("M"), path[1].count("L")) == (4, 2)
    marks = path and re.search(r'</path><path d="([^"]*)" fill=', picture[path.start() :])
    assert marks and marks[1].count("h8l-4 -6z") == 1


def test_a_live_sweep_moves_and_its_buttons_send(page: Page, swept: Study) -> None:
    section = swept.doc.data["sweep"]
    cells = ["engine 1", "7 of 120", "9", "2", "2", "–"]
    rows = [{**row, "state": "running", "cells": cells} for row in section["points"]]
    now = {**section, "state": "running", "fact": "1 of 6 points done", "progress": 0.25, "points": rows}
    live(page, swept.doc)
    open_tab(page, "sweep")
    page.evaluate("section => tell({type: 'sweep', section})", now)
    pane = page.locator('[data-pane="sweep"]')
    expect(pane.locator('[data-value="state"]')).to_contain_text("1 of 6 points done")
    expect(pane.locator('tr[data-point="3"]')).to_contain_text("7 of 120")
    pane.locator('[data-command="pause"]').click()
    page.evaluate("section => tell({type: 'sweep', section})", {**now, "state": "paused"})
    pane.get_by_text("Resume").click()
    pane.locator('tr[data-point="3"] [data-command="stop_point"]').click()
    pane.locator('[data-command="stop"]').click()
    page.wait_for_function("() => sent.filter(each => each.name === 'sweep').length === 4")
    sent = page.evaluate(
        "() => sent.filter(each => each.name === 'sweep').map(each => [each.args.do, each.args.point])"
    )
    assert sent == [["pause", None], ["resume", None], ["stop_point", 3], ["stop", None]]


def test_a_document_without_a_sweep_has_no_tab(page: Page) -> None:
    mount(page, graph_doc(networks.mlp()))
    expect(page.locator('[data-tab="session"]')).to_have_count(1)
    expect(page.locator('[data-tab="sweep"]')).to_have_count(0)
