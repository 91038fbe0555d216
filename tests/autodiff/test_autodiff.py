"""Differentiation of whole graphs; the gradient of every op by itself is in test_ops.py."""

import numpy as np
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError
from gdlab.graph import Graph, reachable, users
from gdlab.op.reference import evaluate


def values(graph, feeds):
    known = {n.name for n in (*graph.inputs, *graph.parameters)}
    got = evaluate(graph, {k: v for k, v in feeds.items() if k in known})
    return [got[i] for i in graph.output_ids]


def feeds_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {n.name: rng.uniform(-1, 1, n.type.shape).astype(np.float32) for n in (*graph.inputs, *graph.parameters)}


def check_by_differences(graph, names, seed=0):
    """Every gradient of output 0 against a central difference along a random direction, in float64."""
    full, _ = differentiate(graph)
    feeds = feeds_of(graph, seed)
    found = values(full, feeds)[graph.num_user_outputs :]
    gradients = dict(zip([p.name for p in graph.parameters], found, strict=True))
    rng = np.random.default_rng(seed + 1)
    for name in names:
        # a step that float32 feeds hold exactly
        direction = rng.choice([-1.0, 1.0], feeds[name].shape) * 2.0**-13
        up, down = dict(feeds), dict(feeds)
        up[name], down[name] = (np.float32(feeds[name] + s * direction) for s in (1, -1))
        change = values(graph, up)[0][0] - values(graph, down)[0][0]
        moved = np.float64(up[name]) - np.float64(down[name])
        assert change == pytest.approx(float(np.sum(gradients[name] * moved)), rel=2e-5, abs=1e-10)


def mlp():
    with Graph() as g:
        x, y = ops.input("x", (5, 4)), ops.input("y", (5, 3))
        h = ops.tanh(x @ ops.parameter("w1", (4, 6)) + ops.parameter("b1", (6,)))
        z = h @ ops.parameter("w2", (6, 3)) + ops.parameter("b2", (3,))
        g.output(ops.mse_loss(z, y))
    return g


def test_an_mlp():
    check_by_differences(mlp(), ["w1", "b1", "w2", "b2"])


def test_fan_out_accumulates():
    with Graph() as g:
        w = ops.parameter("w", (3, 3))
        s = w @ w  # one parameter, two operands of one op
        t = ops.mul(s, s) + s.T + w
        g.output(ops.mean_all(t * ops.sigmoid(t)))
    check_by_differences(g, ["w"])
    _, report = differentiate(g)
    assert len(report.accumulations) >= 4


def test_forward_ids_stay_and_nothing_dead_is_appended():
    g = mlp()
    full, report = differentiate(g)
    assert full.nodes[: len(g)] == g.nodes
    assert all(reachable(full, full.output_ids)[len(g) :])
    assert set(report.adjoint_of) == set(range(len(g), len(full)))
    assert all(f < len(g) for f in report.adjoint_of.values())
    assert full.num_param_grad_outputs == 4 and full.num_user_outputs == 1
    assert [full.node(i).name for i in full.output_ids[1:]] == ["∂w1", "∂b1", "∂w2", "∂b2"]


def test_steps_tell_what_happened():
    g = mlp()
    full, report = differentiate(g)
    assert [s.node for s in report.steps] == sorted((s.node for s in report.steps), reverse=True)
    made = [a for s in report.steps for a in (*s.accumulated, *s.added)]
    assert len(made) == len(set(made))
    readers = users(full)
    for step in report.steps:
        for r in step.residuals:
            assert any(reader in step.added for reader, _ in readers[r])
    assert report.residual_bytes == sum(full.node(i).type.size_bytes for i in report.residuals)


def test_a_loss_that_is_no_scalar():
    with Graph() as g:
        g.output(ops.relu(ops.parameter("w", (3, 2))))
    with pytest.raises(AutodiffError, match=r"loss: given f32\[3, 2\], wanted shape \[1\]"):
        differentiate(g)
    with g:
        seed = ops.full((3, 2), 2.0)
    full, _ = differentiate(g, seed=seed)
    w = np.array([[1, -1], [2, 0], [-3, 4]], np.float32)
    assert values(full, {"w": w})[1].tolist() == [[2, 0], [2, 0], [0, 2]]


def test_blocked_and_absent_paths():
    with Graph() as g:
        a, b, c = (ops.parameter(n, (2,)) for n in "abc")
        g.output(ops.mean_all(ops.stop_gradient(a) * b))
        _ = c
    full, report = differentiate(g)
    feeds = {"a": [3.0, 4.0], "b": [1.0, 1.0], "c": [5.0, 5.0]}
    grads = [v.tolist() for v in values(full, feeds)[1:]]
    assert grads == [[0, 0], [1.5, 2], [0, 0]]
    assert full.zero_gradients == (0, 2) and set(report.zero_gradients) == {0, 2}
    assert "does not depend" in report.reasons[2]


def test_wrt_inputs_and_intermediates():
    with Graph() as g:
        x = ops.input("x", (3,))
        h = ops.square(x)
        g.output(ops.sum_all(ops.square(h)))
    full, _ = differentiate(g, wrt=[x, h])
    _, dx, dh = values(full, {"x": [1.0, 2.0, 3.0]})
    assert dh.tolist() == [2, 8, 18] and dx.tolist() == [4, 32, 108]
    with Graph() as other, pytest.raises(Exception, match="another graph"):
        differentiate(g, wrt=[ops.input("x", (3,))])
    assert len(other) == 1


def test_second_order_is_the_difference_of_gradients():
    g = mlp()
    first, _ = differentiate(g)
    with first:
        total = None
        for p, d in zip(first.parameters, first.outputs[1:], strict=True):
            term = ops.sum_all(d * ops.input(f"v_{p.name}", p.type.shape))
            total = term if total is None else total + term
    first.set_outputs(total)
    second, _ = differentiate(first)
    feeds = feeds_of(second)
    products = values(second, feeds)[1:]
    step = 2.0**-12
    up, down = dict(feeds), dict(feeds)
    for p in g.parameters:
        up[p.name], down[p.name] = (np.float32(feeds[p.name] + s * step * feeds[f"v_{p.name}"]) for s in (1, -1))
    full, _ = differentiate(g)
    rise = [a - b for a, b in zip(values(full, up)[1:], values(full, down)[1:], strict=True)]
    for got, want in zip(products, rise, strict=True):
        np.testing.assert_allclose(got, want / (2 * step), rtol=2e-3, atol=2e-4)


def test_deep_chains_do_not_recurse():
    with Graph() as g:
        v = ops.parameter("w", (2,))
        for _ in range(5000):
            v = ops.tanh(v)
        g.output(ops.mean_all(v))
    full, _ = differentiate(g)
    assert len(full) > 15000


@pytest.mark.parametrize(
    ("vjp", "given"),
    [
        (lambda g, out, x: None, "NoneType"),
        (lambda g, out, x: g, "Value"),
        (lambda g, out, x: (3.0,), "3.0"),
        (lambda g, out, x: (Graph().append("input", (), (), x.type),), "a value of another graph"),
    ],
)
def test_a_broken_vjp_is_named(vjp, given, monkeypatch):
    monkeypatch.setattr(ops.tanh, "gradient", vjp)
    with pytest.raises(AutodiffError, match=rf"^differentiate: tanh.vjp: given {given}, wanted"):
        differentiate(mlp())


def test_one_value_is_a_wrt_too():
    g = mlp()
    assert differentiate(g, wrt=g.value(0))[0].outputs[1].shape == (5, 4)
    with pytest.raises(AutodiffError, match="graph: given int, wanted a Graph"):
        differentiate(3)


def test_a_fused_op_may_read_one_value_several_times():
    with Graph() as g:
        w = ops.parameter("w", (3, 3))
        g.output(ops.mean_all(ops.fused_matmul_at_add(w, w, w)))
    check_by_differences(g, ["w"])
