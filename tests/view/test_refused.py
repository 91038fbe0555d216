"""A refused op shows the graph so far with the op in red, and the same as text."""

from __future__ import annotations

import pickle
from typing import Any
from xml.etree import ElementTree

import pytest
from shells import run

from gdlab import ops
from gdlab.base.errors import ShapeError
from gdlab.graph import Graph
from gdlab.view.picture.palette import INK
from gdlab.view.picture.refused import refused_operands, refused_picture, refused_text

CELL = """%%graph bad
x = input("x", (3, 5))
h = relu(x @ parameter("w", (5, 4)))
{line}"""


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ('y = h @ parameter("u", (5, 7))', "matmul(%3: f32[3, 4], %4: f32[5, 7]): wanted a[m, k] and b[k, n]"),
        ("y = h + x", "add(%3: f32[3, 4], %0: f32[3, 5]): wanted shapes that broadcast to one"),
        ("y = reshape(h, (5, 5))", "reshape(%3: f32[3, 4]): wanted "),
    ],
)
def test_a_refused_op_is_shown_in_red(shell: Any, line: str, call: str) -> None:
    out, error = run(shell, CELL.format(line=line))
    assert error is not None and "bad" not in shell.user_ns
    (shown,) = out.outputs
    assert shown.data["text/plain"].split("\n")[:4] == [
        '%0 = input("x") : f32[3, 5]',
        '%1 = parameter("w") : f32[5, 4]',
        "%2 = matmul(%0, %1) : f32[3, 4]",
        '%3 "h" = relu(%2) : f32[3, 4]',
    ]
    assert shown.data["text/plain"].split("\n")[-1].startswith(f"✗ {call}")
    root = ElementTree.fromstring(shown.data["image/svg+xml"])
    red = [g for g in root.iter() if g.get("data-entity") == "refused"]
    assert len(red) == 1 and any(INK["light"].error in e.attrib.values() for e in red[0].iter())
    others = [g for g in root.iter() if (g.get("data-entity") or "").startswith("node:")]
    assert others and not any(INK["light"].error in e.attrib.values() for g in others for e in g.iter())


@pytest.mark.parametrize("line", ["y = 1 / 0", "y = nothing_like_that(h)", "[1, 2]", 'parameter("w", (5, 4))', "h +"])
def test_other_errors_show_no_picture(shell: Any, line: str) -> None:
    out, error = run(shell, CELL.format(line=line))
    if error is not None:
        assert out.outputs == []


def test_an_error_of_an_op_knows_what_was_given_and_can_be_pickled() -> None:
    with Graph() as g, pytest.raises(ShapeError) as caught:
        ops.input("</script><b>", (3, 5)) @ ops.input("y", (4, 5))
    assert [v.id for v in refused_operands(caught.value)] == [0, 1] and refused_operands(caught.value)[0].graph is g
    svg = refused_picture(caught.value)
    ElementTree.fromstring(svg)
    assert "<b>" not in svg and "</script><b>" in refused_text(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and refused_operands(again) == () and refused_operands(ValueError()) == ()
