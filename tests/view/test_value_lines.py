"""Numbers on the picture: their lines, the rows that make room for them, and the static picture."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gdlab import ops
from gdlab.base.statistics import array_words
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.layered import auto
from gdlab.view.layout.metrics import LINE
from gdlab.view.layout.stretch import extra_room, stretched
from gdlab.view.layout.value_lines import gradient_lines, value_lines
from gdlab.view.picture.picture import pane, picture

S = "\u00a0"
TWELVE = np.arange(12.0)


@pytest.mark.parametrize(("array", "lines"), [
    (np.float64(0.25).reshape(1), ["0.25"]),
    (np.array([1.0, -2.0, 0.12345]), ["[1, −2, 0.123]"]),
    (TWELVE, ["[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"]),
    (TWELVE.reshape(12, 1)[:3], ["[0, 1, 2]ᵀ"]),
    (TWELVE.reshape(1, 12)[:, :3], ["[0, 1, 2]"]),
    (np.array([[1, -22.5], [0.123456, 4]]), [f"⎡{S * 4}1{S * 2}−22.5⎤", f"⎣0.123{S * 2}{S * 4}4⎦"]),
    (TWELVE.reshape(3, 4), [
        f"⎡0{S * 2}1{S * 2}{S}2{S * 2}{S}3⎤", f"⎢4{S * 2}5{S * 2}{S}6{S * 2}{S}7⎥",
        f"⎣8{S * 2}9{S * 2}10{S * 2}11⎦",
    ]),
    (TWELVE.reshape(2, 3, 2)[:, :2], [f"⎡0{S * 2}1⎤", f"⎣2{S * 2}3⎦", f"⎡6{S * 2}7⎤", f"⎣8{S * 2}9⎦"]),
    (TWELVE[:0], ["[]"]),
    (np.array([np.nan, np.inf]), ["[NaN, ∞]"]),
    (np.linspace(-1.23456, 3, 13), ["−1.235 … 3, mean 0.8827"]),
    (np.array([np.nan, *np.linspace(-1.23456, 3, 13)]), ["−1.235 … 3, mean 0.8827,", "1 not finite"]),
])  # fmt: skip
def test_the_lines_of_a_value(array: np.ndarray, lines: list[str]) -> None:
    assert value_lines(array_words(array)) == lines


def test_up_to_twelve_elements_are_told_in_full_and_long_vectors_as_a_table() -> None:
    values = np.linspace(-1000.5, 0.00012345, 12)
    lines = value_lines(array_words(values))
    assert len(lines) > 1 and len({len(line.rstrip(",]")) for line in lines}) == 1, "elements stand below each other"
    assert all(len(line) <= 48 for line in lines) and "…" not in "".join(lines)
    assert len(re.findall(r"[\d.e−]+", " ".join(lines))) == 12
    assert "…" in array_words(np.arange(13.0)) and "…" not in array_words(TWELVE)
    assert gradient_lines("[[1, 2], [3, 4]]") == [f"∂{S}⎡1{S * 2}2⎤", f"{S * 2}⎣3{S * 2}4⎦"]


def tiny() -> Study:
    with Graph() as g:
        x, y = ops.input("x", (3, 2)), ops.input("y", (3, 2))
        h = ops.tanh(x @ ops.parameter("w1", (2, 4)) + ops.parameter("b1", (4,)))
        g.output(ops.mse_loss(h @ ops.parameter("w2", (4, 2)), y))
    return Study(g, train=True, device="cpu", name="tiny")


def test_the_static_picture_holds_all_numbers_in_boxes_that_do_not_touch() -> None:
    study = tiny()
    numbers = study.values("random:0")
    document = study.doc.with_view({"overlay": "value", "show": ["opt"]})
    _, fact, nodes, layout, _ = pane(document, 0)
    assert fact == f"{len(study.graph)} nodes, value"
    for node, drawn in zip(study.graph, nodes, strict=True):
        want = value_lines(array_words(numbers.value[node.id]))
        want += gradient_lines(array_words(numbers.gradient[node.id])) if node.id in numbers.gradient else []
        assert drawn.lines == tuple(want)
    assert_apart(layout)
    svg = picture(document, theme="dark")
    for node in nodes:
        assert all(line in svg for line in node.lines)
    lanes = [s["key"] for s in document.data["stages"]].index("derivative:written")
    _, _, nodes, layout, _ = pane(document, lanes)
    assert_apart(layout)
    assert not any(line.startswith("∂") for node in nodes for line in node.lines), "a gradient has a box of its own"
    assert all(node.lines for node in nodes)
    study.close()


def assert_apart(layout) -> None:
    boxes = [(layout.x[i], layout.y[i], layout.w[i], layout.h[i]) for i, row in enumerate(layout.row) if row >= 0]
    for k, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[:k]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    for edge in layout.edges:
        (_, y0), (_, y1) = edge.points[0], edge.points[-1]
        ends = {layout.y[edge.a], layout.y[edge.a] + layout.h[edge.a], layout.y[edge.a] + 20}
        assert y0 in ends
        assert y1 in {layout.y[edge.b], layout.y[edge.b] + layout.h[edge.b], layout.y[edge.b] + 20}
    assert layout.height >= max(y + h for _, y, _, h in boxes)


def test_rows_grow_by_the_lines_of_their_tallest_box() -> None:
    nodes = [
        Drawn("input", "x", "f32[1]", (), False, lines=("1", "2", "3")),
        Drawn("relu", "", "f32[1]", (0,), False, lines=("1",)),
        Drawn("neg", "", "f32[1]", (0,), False, lines=("1", "2")),
        Drawn("add", "", "f32[1]", (1, 2), False),
    ]
    before = auto(nodes)
    extra = extra_room(before, nodes)
    assert extra == [2 * LINE, LINE, 0]
    after = stretched(before, extra)
    assert after.h == (40 + 2 * LINE, 40 + LINE, 40 + LINE, 40)
    assert [a - b for a, b in zip(after.y, before.y, strict=True)] == [0, 2 * LINE, 2 * LINE, 3 * LINE]
    assert after.height == before.height + 3 * LINE and after.x == before.x
    plain = auto([replace(node, lines=()) for node in nodes])
    assert stretched(plain, extra_room(plain, nodes[:0] or [replace(n, lines=()) for n in nodes])) is plain
