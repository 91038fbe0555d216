"""The picture beside the WGSL of a kernel (`spec/view2.md` T9): lines and parts light together, the tile under the
pointer is the lit one, nothing is cut; its text twin says the same."""

from __future__ import annotations

from functools import cache
from typing import Any

from bare_page import mount, open_tab
from browser import box_of
from playwright.sync_api import Page, expect

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.text.twin import twin


@cache
def document() -> Any:
    with Graph() as g:
        h = ops.matmul(ops.input("x", (512, 256)), ops.parameter("w", (256, 1024)))
        g.output(ops.softmax(h))
        g.output(ops.exp(ops.input("odd", (37, 50))))
        image, kernels = ops.input("image", (2, 3, 16, 16)), ops.parameter("kernels", (8, 3, 3, 3))
        g.output(ops.conv2d_hw(image, kernels, stride=(1, 1), padding=(1, 1)))
    return Study(g, device="cpu", name="pictures").doc


def opened(page: Page, label: str) -> int:
    """Open the kernel of the first dispatch whose label begins so; returns its index."""
    table = document().plan("dispatches")
    at = next(
        k for k, name in zip(table.column("kernel"), table.column("label"), strict=True) if name.startswith(label)
    )
    page.locator(".gd-kernel").nth(at).click()
    expect(page.locator(".gd-kwhy")).to_have_text(document().plan("kernels")[at]["why"])
    return int(at)


ON = "all => all.map(e => e.dataset.part)"
LINES = "all => all.map(e => Number(e.querySelector('.gd-lineno').textContent))"


def lines_of(kernel: int, part: str) -> list[int]:
    runs = document().plan("kernels")[kernel]["parts"][part]
    return [n for a, b in zip(runs[::2], runs[1::2], strict=True) for n in range(a, b + 1)]


def test_lines_and_parts_light_together(page: Page) -> None:
    mount(page, document())
    open_tab(page, "kernels")
    at = opened(page, "MatMul")
    lit, parts = page.locator(".gd-wgsl [data-part-on]"), page.locator(".gd-kernelpicture [data-part][data-on]")
    rows = page.locator(".gd-wgsl > .gd-line")
    line = lines_of(at, "read 1")[-1]
    rows.nth(line - 1).hover()
    expect(lit.first).to_be_attached()
    assert lit.evaluate_all(LINES) == lines_of(at, "read 1"), "the lines that load B, and no other"
    assert set(parts.evaluate_all(ON)) == {"read 1"}
    for part in ("work", "meet", "store", "loop"):  # by keyboard, too: the list of parts are buttons
        page.locator(f'.gd-kparts [data-part="{part}"]').focus()
        expect(page.locator(f'.gd-kernelpicture [data-part="{part}"]').first).to_have_attribute("data-on", "")
        assert lit.evaluate_all(LINES) == lines_of(at, part), part
    page.locator('.gd-kernelpicture [data-part="read 0"] .gd-kbox').hover(position={"x": 4, "y": 4})
    expect(page.locator('.gd-kparts [data-part="read 0"]')).to_have_attribute("data-on", "")
    assert lit.evaluate_all(LINES) == lines_of(at, "read 0")
    page.mouse.move(2, 2)
    expect(lit).to_have_count(0)
    page.locator('.gd-kparts [data-part="store"]').click()
    expect(rows.nth(lines_of(at, "store")[0] - 1)).to_be_in_viewport()


def test_the_lit_tile_is_the_one_under_the_pointer(page: Page) -> None:
    """512 × 1024 in 64 × 64 tiles: of 16 beside one another a few are drawn; A's band and the number follow."""
    mount(page, document())
    open_tab(page, "kernels")
    at = opened(page, "MatMul")
    covers = document().plan("kernels")[at]["covers"]
    assert covers["shape"] == [covers["loop"][3], 512, 1024]
    picture, strong = page.locator(".gd-kernelpicture"), page.locator(".gd-kstrong")
    expect(strong).to_contain_text("workgroup ")
    across, down = 1024 // covers["cell"][1], 512 // covers["cell"][0]
    expect(picture).to_have_attribute("aria-label", f"{_stack(covers)}512 × 1,024: {_groups(covers)} workgroups, "
                                      f"{covers['cell'][0]} × {covers['cell'][1]} each")  # fmt: skip
    band = page.locator('[data-part="read 0"] .gd-kband')
    before = band.get_attribute("y")
    grid = page.locator('.gd-kernelpicture [data-part="where"] .gd-khit')
    box = box_of(grid)
    grid.hover(position={"x": 2, "y": box["height"] - 2}, force=True)
    expect(strong).to_have_text(f"workgroup {across * (down - 1)} of {_groups(covers)}")
    assert band.get_attribute("y") != before
    grid.hover(position={"x": box["width"] - 2, "y": 2}, force=True)
    expect(strong).to_have_text(f"workgroup {across - 1} of {_groups(covers)}")
    assert across <= 12 or page.locator(".gd-kernelpicture .gd-kgap").count() >= 1


def _stack(covers: dict[str, Any]) -> str:
    return f"{covers['shape'][0]} of " if covers["shape"][0] > 1 else ""


def _groups(covers: dict[str, Any]) -> int:
    batch, rows, columns = covers["shape"]
    return int(batch * -(-rows // covers["cell"][0]) * -(-columns // covers["cell"][1]))


OUTSIDE = """() => {
  const frame = document.querySelector('.gd-kernelside').getBoundingClientRect();
  return [...document.querySelectorAll('.gd-kernelside text, .gd-kernelside rect, .gd-kernelside button')]
    .filter(e => { const r = e.getBoundingClientRect(); return r.left < frame.left - 1 || r.right > frame.right + 1; })
    .map(e => e.textContent || e.getAttribute('class'));
}"""


def test_every_family_has_its_picture_and_nothing_is_cut(page: Page) -> None:
    mount(page, document())
    open_tab(page, "kernels")
    text = twin(document(), "kernels")
    for label, over in (
        ("Softmax", "result 512 × 1,024"),
        ("Pointwise", "result 37 × 50"),
        ("Conv2d", "windows of image"),
    ):
        at = opened(page, label)
        for width in (1110, 700):
            page.set_viewport_size({"width": width, "height": 900})
            expect(page.locator(".gd-kernelpicture")).to_contain_text(over)
            page.wait_for_function(f"({OUTSIDE})().length === 0")
        page.set_viewport_size({"width": 1110, "height": 900})
        kernel = document().plan("kernels")[at]
        assert page.locator(".gd-kparts [data-part]").count() == len(kernel["parts"])
        assert f"  why: {kernel['why']}" in text
    assert "  picture: the result, 37 × 50; a workgroup has 256 elements; 8 workgroups" in text
    assert "  reads operand 1: lines" in text and "  loop: over K, 256 in steps of" in text
