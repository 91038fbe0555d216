"""Two ops in a row give the numbers of two ops, on any adapter: no NaN is lost, nothing is multiplied out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from machine import needs

from gdlab import ops
from gdlab.graph import Graph, Value
from gdlab.kernels.unfolded import unfolded
from gdlab.plan.dispatch import Arg, PointOp
from gdlab.session import Session, SessionConfig, build

X = np.array([1.25, -2.5, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 1000.0], np.float32)
Y = np.array([3.0, 7.0, 0.0, 1e30, np.inf, 1.0, 2.0, 1e30, np.nan], np.float32)
FORMULAS: dict[str, Callable[[Value, Value], Value]] = {
    "zero": lambda x, y: x * 0.0,
    "a subnormal factor": lambda x, y: x * 1e-40,
    "a subnormal operand": lambda x, y: ops.relu(x) * ops.scalar(1e-40),
    "zero of a chain": lambda x, y: (x + y) * 0.0,
    "by a zero": lambda x, y: x * ops.scalar(0.0),
    "zero over": lambda x, y: ops.scalar(0.0) / x,
    "less itself": lambda x, y: x - x,
    "over itself": lambda x, y: x / x,
    "values less themselves": lambda x, y: (x * y) - (x * y),
    "two factors": lambda x, y: (x * 1e20) * 1e20,
    "three factors": lambda x, y: ((x * 1e30) * 1e10) * 1e-40,
    "two terms": lambda x, y: (x + 8388608.0) - 8388608.0,
    "large terms": lambda x, y: (x + 1e30) - 1e30,
    "there and back": lambda x, y: (x + y) - y,
    "back and there": lambda x, y: (x - y) + y,
    "from behind": lambda x, y: y - (y - x),
    "over a term": lambda x, y: ((x + y) + 1.0) - y,
    "times and over": lambda x, y: (x * y) / y,
    "over and times": lambda x, y: (x / y) * y,
    "its inverse": lambda x, y: (1.0 / (x + y)) * (x + y),
    "its square": lambda x, y: (x * x) / x,
    "roots": lambda x, y: ops.sqrt(x) * ops.sqrt(x),
    "plus its negative": lambda x, y: x + (-x),
    "exp of log": lambda x, y: ops.exp(ops.log(x)),
    "log of exp": lambda x, y: ops.log(ops.exp(x)),
}


def made(formula: Callable[[Value, Value], Value], device: str) -> Session:
    with Graph() as g:
        x, y = ops.input("x", X.shape), ops.input("y", Y.shape)
        g.output(formula(x, y))
    return build(g, SessionConfig("inference", device))[0]


@pytest.mark.parametrize("name", FORMULAS)
def test_what_two_ops_compute_is_not_folded(name: str) -> None:
    needs("wgpu")
    results = []
    for device in ("cpu", "wgpu"):
        with made(FORMULAS[name], device) as session:
            for key, data in (("x", X), ("y", Y)):
                if session.has_input(key):
                    session.set_input(key, data)
            session.step()
            results.append(session.read_output_by_index(0))
    told = ~np.isinf(X) | ("subnormal" not in name)  # an adapter may take them for 0, and 0 · ∞ is NaN
    np.testing.assert_allclose(results[1][told], results[0][told], rtol=2e-5, atol=2.0**-120)  # of exp, of log


def test_ordinary_chains_hide_nothing() -> None:
    with Graph() as g:
        x, h, b = ops.input("x", (4, 8)), ops.input("h", (4, 8)), ops.parameter("b", (8,))
        z = ops.sigmoid(x.bias_add(b))
        g.output((z * h + (1.0 - z) * ops.tanh(x) + h).scale(0.5) * x)
    with build(g, SessionConfig("inference", "cpu"))[0] as session:
        chains = [d.epilogue for d in session.loaded.plan.dispatches]
        assert any(len(chain) > 3 for chain in chains)
        assert not any(hidden for chain in chains for hidden in unfolded(chain))


def test_a_long_chain_is_searched_once() -> None:
    """Each line reads the one before twice: 2^200 ways through it."""
    line = PointOp("add", "a + b", ("a", "b"), (Arg("operand"), Arg("operand")), (), 0)
    chain = [line, *(replace(line, args=(Arg("op", i), Arg("op", i))) for i in range(200))]
    last = replace(line, expr="a - b", args=(Arg("op", 200), Arg("operand")))
    assert unfolded([*chain, last]) == [frozenset()] * 201 + [frozenset({0})]


def test_what_is_hidden_is_not_searched() -> None:
    """((x + 1) + 2) + x: the compiler sees no x in the sum of what it does not know and 2."""
    line = PointOp("add_scalar", "x + value", ("x",), (Arg("operand"),), (("value", 1.0),), 0)
    last = PointOp("add", "a + b", ("a", "b"), (Arg("op", 1), Arg("operand")), (), 0)
    assert unfolded([line, replace(line, args=(Arg("op", 0),)), last]) == [frozenset(), frozenset({0}), frozenset()]
