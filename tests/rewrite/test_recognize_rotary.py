"""Rotary positions that people write out are found again: of rows, of heads, by halves, with tables of any base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from recognizing import found_in, graph_of, p

from gdlab import ops
from gdlab.base.types import f32
from gdlab.graph import ConstantData, Value
from gdlab.rewrite import optimize
from gdlab.rewrite.rules.constant_conditions import LAYOUTS, AngleLayout, turn_of

S, H = 5, 3  # rows, heads
THETA = 10000.0


def table(
    f: Callable[[Any], Any], rows: int = S, d: int = 8, theta: float = THETA, *, twice: bool = True, first: int = 0
) -> np.ndarray:
    angles = np.outer(np.arange(first, first + rows), theta ** (-2 * np.arange(d // 2) / d))
    return np.tile(f(angles), 1 + twice).astype(np.float32)


def turn(x: Value, cos: Value, sin: Value) -> Value:
    half = x.shape[-1] // 2
    return x * cos + ops.concat([-x[..., half:], x[..., :half]], -1) * sin


def turn_halves(x: Value, cos: Value, sin: Value) -> Value:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return ops.concat([low * cos - high * sin, sin * low + cos * high], -1)


def tables(shape: tuple[int, ...] = (), **more: Any) -> list[Value]:
    return [ops.constant(table(f, **more).reshape(shape or table(f, **more).shape)) for f in (np.cos, np.sin)]


def computed() -> list[Value]:
    """Tables from positions and rates, in the graph."""
    angles = ops.constant(np.arange(S)[:, None]) * ops.constant(THETA ** (-np.arange(4) / 4))
    return [ops.concat([t, t], 1) for t in (ops.cos(angles), ops.sin(angles))]


ROTARY: dict[str, tuple[Callable[[], Value], float]] = {
    "rows": (lambda: turn(p("x", S, 8), *tables()), THETA),
    "rows, the sine first": (lambda: (lambda x, c, s: ops.concat([-x[:, 4:], x[:, :4]], 1) * s + c * x)(
        p("x", S, 8), *tables()), THETA),
    "rows by halves": (lambda: turn_halves(p("x", S, 8), *tables(twice=False)), THETA),
    "heads": (lambda: turn(p("x", H, S, 8), *tables()), THETA),
    "heads by halves": (lambda: turn_halves(p("x", H, S, 8), *tables(twice=False)), THETA),
    "heads beside each other": (lambda: turn(p("x", S, H, 8), *tables((S, 1, 8))), THETA),
    "heads beside each other by halves": (lambda: turn_halves(p("x", S, H, 8), *tables((S, 1, 4), twice=False)), THETA),
    "tables of every head": (lambda: turn(p("x", H, S, 8), *(ops.constant(np.broadcast_to(table(f), (H, S, 8)))
                                                              for f in (np.cos, np.sin))), THETA),
    "computed tables": (lambda: turn(p("x", S, 8), *computed()), THETA),
    "another base": (lambda: turn(p("x", S, 8), *tables(theta=500000.0)), 500000.0),
    "a small base": (lambda: turn(p("x", S, 8), *tables(theta=2.5)), 2.5),
    "one pair": (lambda: turn(p("x", S, 2), *tables(d=2)), THETA),
}  # fmt: skip


@pytest.mark.parametrize("form", ROTARY)
def test_rotary_positions_are_recognized(form: str) -> None:
    make, theta = ROTARY[form]
    result, found = found_in(graph_of(make))
    assert set(found) <= {"rope", "permute", "reshape"} and found.count("rope") == 1
    node = next(n for n in result if n.op == "rope")
    assert (node.attr("theta"), node.attr("head_dim")) == (theta, graph_of(make).outputs[0].shape[-1])


NO_ROPE: dict[str, tuple[Callable[[], Value], str]] = {
    "two bases": (lambda: turn(p("x", S, 8), tables()[0], tables(theta=500.0)[1]), "sin has θ = 500, not 10000"),
    "tables from outside": (lambda: turn(p("x", S, 8), p("cos", S, 8), tables()[1]), "cos, a parameter, does not hold"),
    "positions from 1": (lambda: turn(p("x", S, 8), *tables(first=1)), "cos, a constant, does not hold cosines of"),
    "sine for cosine": (lambda: turn(p("x", S, 8), *tables()[::-1]), "cos, a constant, does not hold cosines of"),
    "a table that is a little off": (lambda: turn(p("x", S, 8), *(ops.constant(table(f) * (1 + 1e-6))
                                                                  for f in (np.cos, np.sin))), "cos, a constant"),
    "one row": (lambda: turn(p("x", 1, 8), *tables(rows=1)), "cos, a constant, does not hold cosines of"),
    "unequal parts": (lambda: (lambda x, c, s: x * c + ops.concat([-x[:, 6:], x[:, :6]], 1) * s)(
        p("x", S, 8), *tables()), "middle is (5, 6), halves of x want (5, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("form", NO_ROPE)
def test_what_only_looks_like_rotary_positions_is_left_alone(form: str) -> None:
    make, detail = NO_ROPE[form]
    graph = graph_of(make)
    assert "rope" not in found_in(graph)[1]
    missed = [m for m in optimize(graph, phase="forward")[1].missed if m.label == "Recognize RoPE"]
    assert [m.reason for m in missed] == ["attributes"] and detail in missed[0].detail


def test_the_other_sense_of_rotation_is_not_rotary_positions() -> None:
    def back(x: Value, cos: Value, sin: Value) -> Value:
        return x * cos + ops.concat([x[:, 4:], -x[:, :4]], 1) * sin

    assert "rope" not in found_in(graph_of(lambda: back(p("x", S, 8), *tables())))[1]


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6, 12345.0, 7.0])
@pytest.mark.parametrize("d", [4, 8, 64, 128])
def test_a_table_tells_its_base(theta: float, d: int) -> None:
    for layout in LAYOUTS:
        for f in (np.cos, np.sin):
            data = table(f, 64, d, theta, twice=layout.twice).reshape((64, *(1,) * (layout.rows - 2), -1))
            held = ConstantData(f32, data.shape, data.tobytes())
            shape = (3, *data.shape[1:]) if layout.rows == 3 else data.shape
            assert turn_of(held, shape, layout, f is np.sin) == (theta if layout.rows == 2 else None)
            assert turn_of(held, data.shape, layout, f is np.sin) == theta
            assert turn_of(held, data.shape, layout, f is np.cos) is None
            assert turn_of(held, data.shape, AngleLayout(layout.rows, not layout.twice), f is np.sin) is None
