"""The tools beside the pictures: the overview, bytes on edges; and copies as PNG and as a `%%graph` cell."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import networks
import pytest
import view_networks
from bare_page import mount, open_tab, trained
from browser import Server, box_of, cell, open_notebook, run_cell, settled
from playwright.sync_api import Locator, Page

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.make import graph_doc


@cache
def deep(layers: int = 400) -> Any:
    """A ladder that no pane holds."""
    with Graph() as g:
        x = h = ops.input("x", (8, 8))
        for i in range(layers):
            h = ops.tanh(h @ ops.parameter(f"w{i}", (8, 8))) + x * float(i)
        g.output(h)
    return graph_doc(g)


# The frame stands where the camera looks, but for borders and for being 6 px at least; once a frame was painted.
AGREE = """() => {
  const [e, a, b] = ['.gd-camera', '.gd-map', '.gd-sight'].map(
    all => [...document.querySelectorAll(all)].find(each => each.getClientRects().length > 0));
  const map = a.getBoundingClientRect(), frame = b.getBoundingClientRect();
  return [
    [(frame.x - map.x) / map.width, e.scrollLeft / e.scrollWidth],
    [(frame.y - map.y) / map.height, e.scrollTop / e.scrollHeight],
    [frame.width / map.width, Math.min(1, e.clientWidth / e.scrollWidth)],
    [frame.height / map.height, e.clientHeight / e.scrollHeight],
  ].every(([one, other]) => Math.abs(one - other) < .07);
}"""
TOP = "e => e.scrollTop / e.scrollHeight"


def lone(page: Page, document: Any) -> tuple[Locator, Locator]:
    """A view so narrow that panes are tabs: one picture has all the width; its camera and its map."""
    mount(page, document)
    page.set_viewport_size({"width": 880, "height": 900})
    pane = page.locator('[data-pane="before"]')
    pane.locator(".gd-box").first.wait_for()
    return pane.locator(".gd-camera"), pane.locator(".gd-map")


def test_the_overview_says_where_one_is_and_goes_there(page: Page) -> None:
    camera, map = lone(page, deep())
    map.wait_for()
    page.wait_for_function(AGREE)
    camera.evaluate("e => e.scrollTo(0, e.scrollHeight / 2)")
    page.wait_for_function(AGREE)
    # By pointer: what is pressed comes into the middle, and follows.
    box = box_of(map)
    x, height, part = (
        box["x"] + box["width"] / 2,
        box["height"],
        camera.evaluate("e => e.clientHeight / e.scrollHeight"),
    )
    page.mouse.move(x, box["y"] + 0.2 * height)
    page.mouse.down()
    page.wait_for_function(AGREE)
    assert abs(camera.evaluate(TOP) + part / 2 - 0.2) < 0.02
    page.mouse.move(x, box["y"] + 0.8 * height, steps=4)
    page.mouse.up()
    page.mouse.move(x, box["y"] + 0.1 * height)  # let go: it stays
    page.wait_for_function(AGREE)
    assert abs(camera.evaluate(TOP) + part / 2 - 0.8) < 0.02
    assert page.locator("[data-selected]").count() == 0
    # By keys.
    map.focus()
    before = camera.evaluate(TOP)
    page.keyboard.press("ArrowUp")
    assert 0 < camera.evaluate(TOP) < before
    page.keyboard.press("Home")
    page.wait_for_function(AGREE)
    assert camera.evaluate(TOP) == 0
    page.keyboard.press("End")
    page.wait_for_function(AGREE)
    assert camera.evaluate(TOP) == pytest.approx(1 - part, abs=0.01)


def test_what_is_lit_are_dots_of_the_overview(page: Page) -> None:
    _, map = lone(page, deep())
    map.wait_for()
    dots = map.locator(".gd-there")
    assert not dots.get_attribute("d")
    page.locator('[data-pane="before"] [data-entity="node:0.2"]').first.click()
    assert (dots.get_attribute("d") or "").count("M") == 1
    page.locator('[data-pane="before"] [data-entity="node:0.5"]').first.click(modifiers=["Shift"])
    assert (dots.get_attribute("d") or "").count("M") == 2


def test_it_stands_where_it_helps_and_is_turned_off_for_good(page: Page) -> None:
    newer = "([text, id]) => { view.update({...JSON.parse(text), study: 'live', id}); }"
    camera, map = lone(page, deep())
    page.evaluate(newer, [deep().json().decode(), "one"])
    page.locator('.gdlab[data-doc="one"]').wait_for()
    map.wait_for()
    page.locator(".gdlab").focus()
    page.keyboard.press("0")  # all of it is in sight
    assert camera.get_attribute("data-zoom") == "all"
    map.wait_for(state="hidden")
    page.keyboard.press("0")
    map.wait_for()
    page.keyboard.press("m")
    map.wait_for(state="hidden")
    assert page.locator(".gd-hits").inner_text() == "overview: off"
    page.evaluate(newer, [deep().json().decode(), "two"])  # another document of the study
    page.locator('.gdlab[data-doc="two"]').wait_for()
    page.locator('[data-pane="before"] .gd-box').first.wait_for()
    page.wait_for_timeout(200)
    settled(page)
    assert not map.is_visible()
    page.locator('[data-tool="reach"]').select_option("map")
    map.wait_for()
    page.set_viewport_size({"width": 220, "height": 900})  # a pane without room
    map.wait_for(state="hidden")


COVERED = """map => { const m = map.getBoundingClientRect();
  return [...map.closest('.gd-pane').querySelectorAll('.gd-node .gd-shape')].map(e => e.getBoundingClientRect())
    .filter(r => r.left < m.right && r.right > m.left && r.top < m.bottom && r.bottom > m.top).length; }"""


def test_where_a_part_is_out_of_sight_it_stands_in_a_corner_without_boxes(page: Page) -> None:
    """F10: half of the picture is in sight; where each corner has a box the map comes when asked."""
    camera, map = lone(page, deep(6))
    map.wait_for()
    for top in (0, 40, 4000):
        camera.evaluate("(e, top) => e.scrollTo(0, top)", top)
        settled(page)
        assert map.is_visible() and map.evaluate(COVERED) == 0
    _, map = lone(page, graph_doc(columns(16)).with_view({"depth": 1}))
    page.wait_for_timeout(200)
    settled(page)
    assert not map.is_visible()
    page.locator(".gdlab").focus()
    page.keyboard.press("m")
    assert map.is_visible() and page.locator(".gd-hits").inner_text() == "overview: 1"


def test_narrow_panes_have_one_where_it_hides_nothing(page: Page) -> None:
    """F10 below 460 px: two panes side by side, each with a map in a corner without boxes and words; none at 210 px."""
    mount(page, Study(view_networks.mlp_in_a_loop(), train=True, device="cpu", name="mlp").doc)
    maps = page.locator(".gd-map:visible")
    maps.first.wait_for()
    across = page.locator('[data-pane="before"] .gd-camera').evaluate("e => e.clientWidth")
    assert across < 460 and maps.count() == 2
    words = """map => { const m = map.getBoundingClientRect();
      return [...map.closest('.gd-pane').querySelectorAll('.gd-hole text')].map(e => e.getBoundingClientRect())
        .filter(r => r.left < m.right && r.right > m.left && r.top < m.bottom && r.bottom > m.top).length; }"""
    for k in range(2):
        assert maps.nth(k).evaluate(COVERED) == 0 and maps.nth(k).evaluate(words) == 0
    page.locator(".gdlab").evaluate("e => { e.style.width = '210px'; }")
    page.wait_for_function("() => !document.querySelector('.gd-map')?.checkVisibility()")


def columns(count: int) -> Graph:
    """This many chains beside one another: boxes in every corner."""
    with Graph() as g:
        x = ops.input("x", (4, 8))
        for _ in range(count):
            h = x
            for _ in range(14):
                h = ops.tanh(ops.relu(h))
            g.output(h)
    return g


def test_small_pictures_have_none_and_it_says_so(page: Page) -> None:
    mount(page, trained())
    page.locator(".gdlab").focus()
    page.keyboard.press("m")
    assert page.locator(".gd-map:visible").count() == 0
    assert page.locator(".gd-hits").inner_text() == "overview: no room here, or no need"


# bytes on edges ------------------------------------------------------------------------------------------------------
APART = """() => {
  const pane = document.querySelector('[data-pane="lanes"]');
  const boxes = which => [...pane.querySelectorAll(which)].map(e => e.getBoundingClientRect());
  const labels = boxes('.gd-edgelabel'), nodes = boxes('.gd-node .gd-shape');
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const touches = (a, i) => nodes.some(b => meet(a, b)) || labels.some((b, j) => i < j && meet(a, b));
  return [labels.length, labels.filter(touches).length];
}"""


def test_bytes_stand_beside_edges_and_touch_nothing(page: Page) -> None:
    document = Study(networks.transformer(), train=True, device="cpu", name="block").doc.with_view({"depth": 9})
    mount(page, document)
    open_tab(page, "grad")
    pane = page.locator('[data-pane="lanes"]')
    pane.locator(".gd-box").first.wait_for()
    assert pane.locator(".gd-edgelabel").count() == 0
    page.locator(".gdlab").focus()
    page.keyboard.press("e")
    count, touching = page.evaluate(APART)
    assert count > 10 and touching == 0
    assert page.locator(".gd-hits").inner_text() == f"bytes on edges: {count}"
    page.keyboard.press("e")
    assert pane.locator(".gd-edgelabel").count() == 0


def test_the_bytes_are_those_of_what_flows(page: Page) -> None:
    mount(page, trained())
    page.locator(".gdlab").focus()
    page.keyboard.press("e")
    labels = page.locator('[data-pane="after"] .gd-edgelabel').all_text_contents()
    assert labels == ["16.4 KB", "32.8 KB", "32.8 KB", "2.56 KB"]  # f32 [64, 64], [64, 128] twice, [64, 10]


# copies --------------------------------------------------------------------------------------------------------------
PIXELS = """async base64 => {
  const bytes = Uint8Array.from(atob(base64), letter => letter.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], {type: 'image/png'})), {width, height} = picture;
  const canvas = new OffscreenCanvas(width, height), paint = canvas.getContext('2d');
  paint.drawImage(picture, 0, 0);
  const {data} = paint.getImageData(0, 0, width, height), ground = [...data.slice(0, 4)];
  let other = 0, clear = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 255) clear++;
    if (data[i] !== ground[0] || data[i + 1] !== ground[1] || data[i + 2] !== ground[2]) other++;
  }
  return {width, height, ground, clear, drawn: other / (width * height)};
}"""
GROUND = "() => getComputedStyle(document.querySelector('.gd-frame')).backgroundColor"


def png_of(page: Page) -> Any:
    """Copy the picture as a PNG, which is a file where there is no clipboard, and read it."""
    with page.expect_download() as download:
        page.locator('[data-command="copy"]').select_option("PNG")
    assert download.value.suggested_filename.endswith(".png")
    return page.evaluate(PIXELS, base64.b64encode(download.value.path().read_bytes()).decode())


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_png_is_the_picture_on_its_ground(page: Page, mode: Any) -> None:
    page.emulate_media(color_scheme=mode)
    mount(page, trained())
    found = png_of(page)
    box = page.locator('[data-pane="before"] svg.gd-picture').evaluate("e => e.getAttribute('viewBox')")
    width, height = map(int, box.split()[2:])
    assert (found["width"], found["height"]) == (2 * width, 2 * height) and found["clear"] == 0
    assert page.evaluate(GROUND) == "rgb({}, {}, {})".format(*found["ground"][:3])
    assert (sum(found["ground"][:3]) > 600) == (mode == "light") and 0.05 < found["drawn"] < 0.6
    assert page.locator(".gd-hits").inner_text() == f"saved a PNG of {2 * width} × {2 * height} pixels"


def test_of_a_large_picture_a_png_has_what_is_in_sight(page: Page) -> None:
    camera, _ = lone(page, deep())
    camera.evaluate("e => e.scrollTo(0, e.scrollHeight / 2)")
    page.wait_for_timeout(200)
    settled(page)
    found = png_of(page)
    frame = box_of(camera)
    assert found["width"] <= 2 * frame["width"] and abs(found["height"] - 2 * frame["height"]) <= 60
    assert found["drawn"] > 0.02
    assert ", what is in sight of " in page.locator(".gd-hits").inner_text()


def test_without_a_kernel_a_cell_says_why_not(page: Page) -> None:
    mount(page, trained())
    page.locator('[data-command="copy"]').select_option("%%graph cell")
    said = "copy: wanted a live session: run the cell again, or use gdlab.op.text.to_cell in Python"
    page.wait_for_function("text => document.querySelector('.gd-hits').textContent === text", arg=said)


def test_in_a_notebook_cell_and_png_are_in_the_clipboard(lab: Server, lab_page: Page) -> None:
    page = lab_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    source = """%%graph mlp --train --device cpu
x = input("x", (8, 6))
mse_loss(tanh(x @ parameter("w", (6, 5))) * 2.0, input("y", (8, 5)))"""
    told = "from gdlab.op.text import to_cell; print(to_cell(mlp.optimized, 'mlp', True))"
    open_notebook(page, lab, ["%load_ext gdlab", source, told, "print(mlp.doc.bookmarks)"])
    for index in range(3):
        run_cell(page, index)
    view = cell(page, 1).locator(".gdlab").first
    view.locator('[data-pane="after"] .gd-box').first.click()
    copy, hits = view.locator('[data-command="copy"]'), view.locator(".gd-hits")
    copy.select_option("%%graph cell")
    page.wait_for_function("() => document.querySelector('.gd-hits').textContent.endsWith('of %%graph cell')")
    text = page.evaluate("() => navigator.clipboard.readText()")
    assert text.strip() == cell(page, 2).locator(".jp-OutputArea-output").inner_text().strip()
    assert text.startswith("%%graph mlp --train\n")
    copy.select_option("PNG")
    page.wait_for_function("() => document.querySelector('.gd-hits').textContent.startsWith('copied a PNG')")
    kinds = page.evaluate("async () => (await navigator.clipboard.read()).flatMap(each => each.types)")
    assert kinds == ["image/png"]
    # What was kept in the page is Python's.
    view.locator('[data-command="bookmark"]').fill("first")
    view.locator('[data-command="bookmark"]').press("Enter")
    assert hits.inner_text() == "bookmark first kept"
    run_cell(page, 3)
    selected = view.locator("[data-selected]").first.get_attribute("data-entity")
    assert cell(page, 3).locator(".jp-OutputArea-output").inner_text().strip() == str({"first": [selected]})
