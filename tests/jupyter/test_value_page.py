"""Numbers on the picture in the page: every element of up to twelve, in boxes that hold them, as in the static one."""

from __future__ import annotations

from typing import Any

import pytest
from bare_page import mount, open_tab
from playwright.sync_api import Page

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.picture.picture import pane

BOXES = """pane => [...document.querySelectorAll(`[data-pane="${pane}"] .gd-box`)].map(box => {
  const shape = box.querySelector('.gd-shape').getBoundingClientRect();
  const texts = [...box.querySelectorAll('text')].filter(each => each.textContent);
  const out = texts.filter(text => {
    const {left, right, top, bottom} = text.getBoundingClientRect();
    return left < shape.left - 1 || right > shape.right + 1 || top < shape.top - 1 || bottom > shape.bottom + 1; });
  return {entity: box.dataset.entity, out: out.map(each => each.textContent),
    title: box.querySelector('title')?.textContent,
    lines: [...box.querySelectorAll('.gd-figures-line, .gd-slope')].map(each => each.textContent),
    rect: [shape.left, shape.top, shape.right, shape.bottom]}; })"""


def tiny() -> Graph:
    with Graph() as g:
        x, y = ops.input("x", (3, 2)), ops.input("y", (3, 2))
        h = ops.tanh(x @ ops.parameter("w1", (2, 4)) + ops.parameter("b1", (4,)))
        g.output(ops.mse_loss(h @ ops.parameter("w2", (4, 2)) + ops.parameter("b2", (2,)), y))
    return g


def twelve() -> Graph:
    """Twelve elements in every form, and more than twelve."""
    with Graph() as g:
        v = ops.input("v", (12,))
        column, tall = ops.reshape(v, (12, 1)), ops.reshape(v, (6, 2))
        block = ops.reshape(ops.relu(v), (2, 3, 2))
        product = column @ ops.reshape(v, (1, 12))
        g.output(ops.sum_all(block) + ops.sum_all(tall @ ops.parameter("w", (2, 6))) + ops.sum_all(product))
    return g


def shown(graph: Graph, train: bool) -> Any:
    study = Study(graph, train=train, device="cpu", name="g")
    study.values("random:0")
    return study.doc.with_view({"overlay": "value", "show": ["opt"]})


@pytest.mark.parametrize(("graph", "train"), [(tiny(), True), (twelve(), False)])
def test_every_number_stands_in_its_box(page: Page, graph: Graph, train: bool) -> None:
    document = shown(graph, train)
    keys = [stage["key"] for stage in document.data["stages"]]
    mount(page, document)
    panes = [("opt", "before", "written"), ("opt", "after", "optimized")]
    panes += [("grad", "lanes", "derivative:written")] if train else []
    for tab, name, stage in panes:
        open_tab(page, tab)
        page.locator(f'[data-pane="{name}"] .gd-figures-line').first.wait_for()
        boxes = page.evaluate(BOXES, name)
        _, _, nodes, _, looks = pane(document, keys.index(stage))
        want = {look.entity: list(node.lines) for node, look in zip(nodes, looks, strict=True)}
        assert {box["entity"]: box["lines"] for box in boxes} == want, (
            "the same as in the static picture, none left out"
        )
        assert [box["out"] for box in boxes if box["out"]] == [], "no number leaves its box"
        assert not any("…" in line for box in boxes for line in box["lines"] if line[0] in "[⎡⎢⎣∂")
        for k, box in enumerate(boxes):
            left, top, right, bottom = box["rect"]
            for x0, y0, x1, y1 in (other["rect"] for other in boxes[:k]):
                assert right <= x0 or x1 <= left or bottom <= y0 or y1 <= top, "boxes lie apart"
    if train:
        slopes = [box for box in page.evaluate(BOXES, "before") if any("∂" in line for line in box["lines"])]
        assert len(slopes) > 8, "gradients stand below the values"
        assert "gradient of the loss: [[" in slopes[0]["title"] and "f32[" in slopes[0]["title"]


def test_rows_of_a_comparison_stay_side_by_side(page: Page) -> None:
    document = shown(tiny(), True)
    mount(page, document)
    page.locator('[data-pane="after"] .gd-figures-line').first.wait_for()
    tops = {
        name: {box["title"].split(":")[0]: box["rect"][1::2] for box in page.evaluate(BOXES, name)}
        for name in ("before", "after")
    }
    for head in ("tanh", "mse_loss"):
        assert tops["before"][head] == pytest.approx(tops["after"][head], abs=1), head
