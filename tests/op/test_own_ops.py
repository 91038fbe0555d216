"""Ops of a notebook: parts that are none are refused where they are written, and nothing else is affected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.base.errors import AutodiffError, GdlabError, GraphError, LoadError
from gdlab.op import REGISTRY
from gdlab.op.record import unregister

PARTS: dict[str, Any] = {
    "numpy": np.tanh, "kernel": gd.Elementwise("tanh(x)"), "samples": (gd.Sample((3, 5)),),
}  # fmt: skip


def own_op(x: gd.Value) -> gd.TensorType:
    """tanh(x): f32[...] -> f32[...]."""
    return x.type


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gd.op(**PARTS | {"kernel": "tanh(x)"})(own_op), "own_op: kernel: given str 'tanh(x)', wanted one of "),
        (lambda: gd.op(**PARTS | {"samples": gd.Sample((3,))})(own_op), "samples: given Sample Sample(shapes=((3,),)"),
        (lambda: gd.op(**PARTS | {"samples": ((3, 5),)})(own_op), "wanted several of Sample(shapes…)"),
        (lambda: gd.op(**PARTS)(dict), "op: function: given type <class 'dict'>, wanted def name(x: Value)"),
        (lambda: gd.fused(label=3, samples=PARTS["samples"])(own_op), "label: given int 3, wanted a str, or a mapping"),
    ],
)
def test_parts_that_are_none_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(GraphError) as refused:
        make()
    assert words in str(refused.value) and "own_op" not in REGISTRY


def identity(x: gd.Value) -> gd.Value:
    return x


def number(x: gd.Value) -> Any:
    return 3


def shape(x: gd.Value) -> gd.Value:
    return x.tanh() * x.shape[0]


def unread(x: gd.Value, y: gd.Value) -> gd.Value:
    return x.tanh() * 2


@pytest.mark.parametrize("body", [identity, number, shape, unread])
def test_a_body_that_is_no_pattern_stops_no_other_graph(body: Callable[..., Any]) -> None:
    with pytest.raises(GdlabError):
        gd.fused(label="Body→Op", samples=PARTS["samples"])(body)
    assert body.__name__ not in REGISTRY
    with gd.Graph() as graph:
        graph.output((gd.input("x", (3,)).tanh() * 2).relu().relu())
    assert [node.op for node in gd.optimize(graph, phase="forward")[0]][0] == "input"


def test_a_gradient_rule_with_other_arguments_is_named() -> None:
    made = gd.op(**PARTS)(own_op)
    try:
        with pytest.raises(GraphError, match=r"op own_op: vjp: given int 3, wanted a function"):
            made.vjp(3)  # type: ignore[arg-type]
        made.vjp(lambda g, out: (g,))
        with gd.Graph() as graph:
            graph.output(made(gd.parameter("x", (3,))).sum_all())
        with pytest.raises(AutodiffError) as refused:
            gd.differentiate(graph)
        assert "own_op.vjp: given a function with the arguments (g, out), wanted (g, out, x)" in str(refused.value)
    finally:
        unregister("own_op")


def test_a_text_with_an_unknown_op_names_the_nearest() -> None:
    with pytest.raises(LoadError, match=r"rleu is no op; nearest: relu"):
        gd.parse('%0 = input("x") : f32[3]\n%1 = rleu(%0) : f32[3]\noutputs: %1')
