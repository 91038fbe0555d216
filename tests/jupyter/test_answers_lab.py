"""A check that fails, in JupyterLab: drawn in both themes, not cut, its link selects in the view and in the kernel."""

from __future__ import annotations

import pytest
from browser import Server, cell, open_notebook, output, run_cell, settled, shot, theme
from playwright.sync_api import Page, expect
from shells import BODY

SETUP = """%load_ext gdlab
import numpy as np
from gdlab.devices.cpu import calls
right = calls._KERNELS["matmul"]
def wrong(builder):  # A · Bᵀ, as the gradient of the second layer takes it, is 1 % too large
    right(builder)
    p = builder.d.matmul
    if p.b == "nk":
        out = builder.out((p.m, p.n))
        builder.calls.append((np.multiply, (out, 1.01, out)))
"""
CHECK = 'calls._KERNELS["matmul"] = wrong\n%graph_check mlp --device cpu\ncalls._KERNELS["matmul"] = right'
CELLS = [SETUP, "%%graph mlp --train --device cpu --height 420\n" + BODY, CHECK, "print(mlp.doc.selection)"]
CUT = """e => [e, ...e.querySelectorAll('div')].filter(e => e.scrollWidth > e.clientWidth + 1).length"""
GROUND = """([e, color]) => getComputedStyle(e).backgroundColor === color"""


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


def test_a_failed_check_is_drawn_and_its_link_selects(lab: Server, page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_notebook(page, lab, CELLS)
    for index in range(3):
        run_cell(page, index)
    answer = output(page, 2).locator(".gd-answer")
    expect(answer).to_contain_text("mlp: cpu differs from the reference.")
    assert answer.count() == 1, "the progress stood in the same output"
    assert answer.evaluate(CUT) == 0
    assert answer.locator("td").last.evaluate("e => getComputedStyle(e).textAlign") == "right"
    assert answer.locator("tbody th").first.evaluate("e => getComputedStyle(e).textAlign") == "left"
    for name, color in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 17, 17)")):
        theme(page, name)
        page.wait_for_function(GROUND, arg=[answer.element_handle(), color])
        answer.scroll_into_view_if_needed()
        settled(page)
        shot(page, f"answer-check-{name}")
    theme(page, "light")
    link = answer.get_by_role("button", name="dispatch 7")
    link.focus()
    link.press("Enter")
    expect(cell(page, 1).locator(".gd-status")).to_contain_text("dispatch 7")
    run_cell(page, 3)
    expect(output(page, 3)).to_have_text("['dispatch:7']")
