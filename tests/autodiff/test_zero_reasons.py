"""The reasons why a gradient is zero and a step of the derivative has no cotangent are given, and are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gdlab as gd
from gdlab.graph import Value

STOPS: dict[str, tuple[Callable[[Value], Value], str]] = {
    "stop_gradient": (lambda h: gd.stop_gradient(h), "stop_gradient (%4)"),
    "greater": (lambda h: h > 0.5, "greater (%5)"),
    "stop_gradient twice": (lambda h: gd.stop_gradient(gd.stop_gradient(h).relu()), "stop_gradient (%4)"),
}


@pytest.mark.parametrize("way", STOPS)
def test_a_parameter_behind_an_op_that_stops_gradients(way: str) -> None:
    stop, op = STOPS[way]
    with gd.Graph() as graph:
        x, w, v = gd.input("x", (4, 3)), gd.parameter("w", (3, 2)), gd.parameter("v", (4, 2))
        graph.output((stop(x @ w) * v).mean_all())
    _, report = gd.differentiate(graph)
    assert report.zero_gradients == (w.id,)
    assert report.reasons[w.id] == f"its gradient is zero: no cotangent passes {op}"


def test_a_parameter_that_the_loss_does_not_read() -> None:
    with gd.Graph() as graph:
        x, w = gd.input("x", (4, 3)), gd.parameter("w", (4, 3))
        unread = gd.parameter("unread", (4, 3))
        unread.relu()
        graph.output((x * w).mean_all())
    _, report = gd.differentiate(graph)
    assert report.reasons[unread.id] == "the loss does not depend on it"


def test_every_step_without_cotangent_has_a_reason() -> None:
    with gd.Graph() as graph:
        x, y, w, v = gd.input("x", (4, 3)), gd.input("y", (4, 2)), gd.parameter("w", (3, 2)), gd.parameter("v", (2, 2))
        graph.output(gd.mse_loss((gd.stop_gradient(x @ w) * y) @ v, y))
    _, report = gd.differentiate(graph)
    assert [s.rule for s in report.steps if not s.cotangents and not s.reason] == []
    assert next(s.reason for s in report.steps if s.rule == "mul") == "its cotangent reaches no parameter"
