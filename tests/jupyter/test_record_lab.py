"""`%graph_record` in JupyterLab: the picture is drawn in the colours of both themes, and fits a laptop's width."""

from __future__ import annotations

import pytest
from browser import Server, box_of, open_notebook, output, run_cell, shot, theme
from playwright.sync_api import Page

CELL = """
%load_ext gdlab
import gdlab as gd
ex = gd.GraphExecutor("cpu")
names = "x w y scale out a b c d soft".split()
x, w, y, scale, out, a, b, c, d, soft = (
    ex.alloc_buffer(256 if n == "w" else 1024, gd.f32, (64,) if n == "w" else (4, 64), label=n, transient=n == "y")
    for n in names
)
s = ex.begin_recorded(auto_barrier=True)
s.rms_norm(x, w, y, 4, 64)
s.elementwise_mul(y, scale, out, 256, gd.f32)
for source, target in ((out, a), (a, b), (x, c), (c, d)):
    s.gelu(source, target)
s.barrier()
s.elementwise_add(b, d, out, 256, gd.f32)
s.softmax(out, soft, 4, 64)
s.gelu(x, a)
s.finish_with_fusion_and_reorder()
%graph_record s
"""


@pytest.fixture
def page(app_page: Page) -> Page:
    """The page of JupyterLab that tests share."""
    return app_page


def wait_ground(page: Page, color: str) -> None:
    """Wait until the picture's ground has this color: a theme's styles come after its name."""
    fill = "getComputedStyle(document.querySelector('.gd-list-ground')).fill"
    page.wait_for_function(f"color => {fill} === color", arg=color)


def test_a_list_is_drawn_in_both_themes(lab: Server, page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_notebook(page, lab, [CELL])
    theme(page, "light")
    run_cell(page, 0)
    picture = output(page, 0).locator("svg.gd-list")
    picture.wait_for()
    assert picture.locator("[data-group]").count() == 7 + 6 + 5
    assert picture.locator("[data-was]").count() == 6
    box = box_of(picture)
    room = box_of(output(page, 0).last)
    assert box["width"] <= room["width"] + 0.5
    wait_ground(page, "rgb(255, 255, 255)")
    picture.scroll_into_view_if_needed()
    shot(page, "record-light")
    theme(page, "dark")
    wait_ground(page, "rgb(20, 23, 27)")
    shot(page, "record-dark")
    theme(page, "light")
