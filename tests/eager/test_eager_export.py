"""From a tape to a graph, a study and a plan, with the same numbers."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import random_graphs
from eager_tapes import replayed

import gdlab as gd
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, DTypeError, GraphError
from gdlab.eager import Adam, EagerSession, Momentum, Sgd
from gdlab.models.encoder_block import BlockConfig, BlockNames, encoder_block
from gdlab.op.reference import evaluate
from gdlab.plan import CompileOptions
from gdlab.session import SessionConfig, build

UNFUSED = CompileOptions(fuse_dispatches=False)


def batch(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)


def network(s: EagerSession, params: Any, x: Any, t: Any, p: float = 0.0) -> Any:
    h = (s.input(x, "x") @ s.use(params[0]) + s.use(params[1])).tanh()
    h = gd.dropout(h, p, seed=5) if p else h
    return (h @ s.use(params[2]) - s.input(t, "t")).square().mean_all()


def made(s: EagerSession) -> Any:
    rng = np.random.default_rng(0)
    return [s.param(rng.normal(size=shape), name) for name, shape in (("w", (4, 6)), ("b", (6,)), ("v", (6, 3)))]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_have_the_bits_of_their_plan(seed: int, device: str) -> None:
    graph = random_graphs.random_graph(seed)
    feeds = random_graphs.random_feeds(graph, seed)
    s = EagerSession(device=device, checks="off")
    try:
        refs = replayed(s, graph, feeds)
        eager = [refs[id].numpy() for id in graph.output_ids]
        export = s.to_graph([refs[id] for id in graph.output_ids])
    finally:
        s.close()
    config = SessionConfig(mode="inference", device=device, optimize=None, compile=UNFUSED)
    session, _ = build(export.graph, config)
    with session:
        for name, data in export.feeds.items():
            (session.set_input_u32 if data.dtype == np.uint32 else session.set_input)(name, data)
        session.step()
        for i, value in enumerate(eager):
            assert session.read_output_by_index(i).tobytes() == value.tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_in_float64_are_the_reference(seed: int) -> None:
    graph = random_graphs.random_graph(seed)
    feeds = random_graphs.random_feeds(graph, seed)
    values = evaluate(graph, feeds, exact=True)
    with closing(EagerSession(scalar=np.float64, checks="off")) as s:
        refs = replayed(s, graph, feeds)
        for id in graph.output_ids:
            assert refs[id].numpy().dtype == values[id].dtype
            np.testing.assert_allclose(refs[id].numpy(), values[id], rtol=1e-12, atol=1e-12)


def test_a_transformer_block_runs_on_a_tape_as_in_its_study() -> None:
    def build() -> Any:
        x = gd.input("x", (6, 8))
        names = BlockNames(("n1", "n2"), "out", ("up", "down"), packed="qkv")
        return encoder_block(x, "block", BlockConfig(8, 2, 16, names), 2)

    x = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    with closing(EagerSession(device="cpu", seed=5)) as s:
        s.feed(x=x)
        with s:
            y = build()
        export = s.to_graph(y)
        study = gd.Study(export.graph, train=False, device="cpu", weights=export.weights)
        study.run(1, feed={"x": x})
        np.testing.assert_allclose(study.session.read_output_by_index(0), y.numpy(), rtol=2e-5, atol=2e-5)
        study.close()


def test_fifteen_adam_steps_with_dropout_have_the_bits_of_the_session_of_the_export() -> None:
    s = EagerSession(device="cpu")
    params = made(s)
    start = {p.name: p.value for p in params}
    losses, export = [], None
    for step in range(18):
        loss = network(s, params, *batch(step), p=0.5)
        losses.append(float(loss))
        export = export or s.to_graph(loss)
        s.step(Adam(1e-2), s.backward_scalar_param_grads(loss))
        s.reset_tape()
    assert export is not None
    session, _ = build(export.graph, SessionConfig(device="cpu", optimize=None))
    with session:
        for name, value in start.items():
            session.set_parameter(name, value)
        session.set_adam(1e-2)
        for step in range(18):
            x, t = batch(step)
            session.set_input("x", x)
            session.set_input("t", t)
            session.step()
            assert float(session.read_loss()) == losses[step]
        for p in params:
            assert session.read_param(p.name).tobytes() == p.value.tobytes()
    s.close()


def test_a_study_goes_on_where_the_loop_stopped() -> None:
    s = EagerSession(device="cpu")
    params = made(s)
    x, t = batch(3)

    def turn() -> float:
        loss = network(s, params, x, t, p=0.25)
        s.step(Sgd(0.05), s.backward_scalar_param_grads(loss))
        return float(loss)

    for _ in range(4):
        turn()
        s.reset_tape()
    loss = network(s, params, x, t, p=0.25)
    study = s.to_study(loss, "net", disable=[r.name for r in gd.rules if r.name != "cse"])
    assert study.train and study.graph.leaf("w") is not None and study.graph.source(len(study.graph) - 1)
    study.run(5, sgd=0.05)
    s.step(Sgd(0.05), s.backward_scalar_param_grads(loss))
    for _ in range(4):
        s.reset_tape()
        eager = turn()
    assert study.session.read_loss() == eager
    study.close()
    s.close()


def test_names_that_two_values_share_are_refused_with_both_lines() -> None:
    s = EagerSession(device="cpu")
    p = s.param(np.ones(3), "w")
    y = s.use(p)
    s.set_param_host_value(p, np.zeros(3))
    z = s.use(p)
    with pytest.raises(GraphError, match=r"parameters of one name: given 'w' at .*test_eager_export.* and at .*"):
        s.to_graph((y * z).sum_all())
    assert s.to_graph(y.sum_all()).weights["w"].tolist() == [0, 0, 0]
    s.close()


def test_unnamed_inputs_and_unneeded_nodes() -> None:
    s = EagerSession(device="cpu")
    s.input([5.0])
    x = s.input(np.arange(3.0))
    y = x * 2.0
    export = s.to_graph({"double": y})
    assert export.graph.output_names == ("double",) and [n.name for n in export.graph.inputs] == ["x1"]
    assert export.feeds["x1"].tolist() == [0, 1, 2] and export.node_of[y.id] == export.graph.output_ids[0]
    assert differentiate(s.to_graph(y.sum_all()).graph, wrt=None)[1].gradients == ()
    s.close()


def test_grad_of_a_plain_function() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * x * y).sum_all() if float(x.numpy().sum()) > 0 else y.sum_all()

    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert gd.grad(f)(x, y).tolist() == [6, 16]
    assert [g.tolist() for g in gd.grad(f, (0, 1))(x, y)] == [[6, 16], [1, 4]]
    value, slope = gd.value_and_grad(f, 1, scalar=np.float64)(-x, y)
    assert value == 7 and slope.tolist() == [1, 1] and slope.dtype == np.float64
    with pytest.raises(gd.GdlabError, match="argnums"):
        gd.grad(f, 2)(x, y)


@pytest.mark.parametrize("rule", [Adam(0.02), Momentum(0.05), gd.eager.LaProp(0.01)], ids=str)
def test_a_study_goes_on_with_the_moments(rule: Any) -> None:
    s = EagerSession(device="cpu")
    params = made(s)
    x, t = batch(3)

    def turn() -> float:
        loss = network(s, params, x, t, p=0.25)
        s.step(rule, s.backward_scalar_param_grads(loss))
        return float(loss)

    for _ in range(4):
        turn()
        s.reset_tape()
    loss = network(s, params, x, t, p=0.25)
    study = s.to_study(loss, "net", disable=[r.name for r in gd.rules if r.name != "cse"])
    assert study.session.optimizer == rule and study.session.adam_step_count() == s.rules.t
    study.run(5)
    s.step(rule, s.backward_scalar_param_grads(loss))
    for _ in range(4):
        s.reset_tape()
        eager = turn()
    assert study.session.read_loss() == eager
    for p in params:
        assert study.session.read_param(p.name).tobytes() == p.value.tobytes()
    study.close()
    s.close()


def test_a_function_runs_from_a_plan(device: str) -> None:
    with closing(EagerSession(device=device)) as s:
        w, calls = s.param(np.ones((3, 2)), "w"), []

        def f(x: Any, i: Any) -> Any:
            calls.append(x.shape)
            return (x @ s.use(w)).gather(i, 0).tanh().sum_all()

        fast, rng = s.jit(f), np.random.default_rng(0)
        for step in range(3):
            x, i = s.input(rng.normal(size=(4, 3))), s.input([1, step])
            length = len(s.tape)
            got = fast(x * 2, i)
            assert len(s.tape) == length + 2 and not s.tape.needs_grad[got.id]
            np.testing.assert_allclose(float(got), float(f(x * 2, i)), rtol=1e-5)
            s.set_param_host_value(w, rng.normal(size=(3, 2)))
            s.reset_tape()
        assert len(calls) == 1 + 3
        fast(s.input(np.ones((5, 3))), s.input([0, 1]))
        assert len(calls) == 5 and len(fast.planned) == 2
        with pytest.raises(ArgumentError, match="eager.jit: function: given int"):
            s.jit(3)  # type: ignore[arg-type]
        draws = s.jit(lambda x: gd.dropout(x, 0.5, seed=9))
        ones = s.input(np.ones(64))
        first = draws(ones).numpy()
        np.testing.assert_array_equal(first, gd.dropout(ones, 0.5, seed=9).numpy())
        s.reset_tape()
        assert draws(s.input(np.ones(64))).numpy().tobytes() != first.tobytes()
    with closing(EagerSession(scalar=np.float64)) as wide, pytest.raises(DTypeError, match="eager.jit: scalar"):
        wide.jit(f)


@pytest.mark.parametrize("result", ["another value", "the written rows", "a write over a write"])
def test_a_planned_function_writes_caches_as_a_recording_does(device: str, result: str) -> None:
    with closing(EagerSession(device=device)) as s:
        planned, recorded = s.param(np.zeros((4, 3)), "planned"), s.param(np.zeros((4, 3)), "recorded")

        def written(x: Any, row: Any, cache: Any) -> Any:
            rows = gd.cache_write(x, cache, row)
            if result == "a write over a write":
                return gd.cache_write(x + 1, rows, row)
            return x.sum_all() if result == "another value" else rows.sum_all()

        fast = s.jit(lambda x, row: written(x, row, s.use(planned)))
        for step in range(3):
            x, row = s.input(np.full((1, 3), step + 1.0)), s.input([step])
            got = fast(x, row)
            np.testing.assert_array_equal(got.numpy(), written(x, row, s.use(recorded)).numpy())
            assert planned.value[step, 0] and planned.value.tobytes() == recorded.value.tobytes()
            s.reset_tape()
        s.set_param_host_value(planned, np.zeros((4, 3)))
        fast(s.input(np.ones((1, 3))), s.input([1]))
        assert planned.value.any(1).tolist() == [False, True, False, False]
        s.reset_tape()
        s.assert_no_leaks()


def test_control_flow_in_a_planned_function_is_told_once() -> None:
    with closing(EagerSession(device="cpu")) as s:
        halved = s.jit(lambda x: x / 2 if float(x) > 1 else x)
        with pytest.warns(UserWarning, match="eager.jit: the function reads values"):
            assert float(halved(s.input(8.0))) == 4
        assert float(halved(s.input(0.5))) == 0.25  # as it went at 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gd.grad(3), "grad: function: given 3, wanted a function"),
        (lambda: gd.grad(np.sum, None), "grad: argnums: given None, wanted the number of an argument, or several"),
        (lambda: gd.grad(np.sum, "x"), "grad: argnums: given 'x', wanted the number of an argument, or several"),
        (lambda: gd.grad(np.sum)(), "argnums: given 0, wanted arguments: the function was called without any"),
    ],
)
def test_what_has_no_gradient_is_refused_by_name(call: Any, words: str) -> None:
    with pytest.raises(gd.ArgumentError) as refused:
        call()
    assert words in str(refused.value)


def test_a_loss_that_is_no_tensor_is_refused_by_name() -> None:
    with closing(EagerSession(device="cpu")) as s:
        w = s.param(np.ones(3), "w")
        loss = s.use(w).sum_all()
        for given in (None, 3, [loss]):
            with pytest.raises(ArgumentError, match=r"eager.to_study: tensor: given .*, wanted a TensorRef"):
                s.to_study(given)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"eager.sgd_step_scalar_graph: tensor: given None, wanted a TensorRef"):
            s.sgd_step_scalar_graph(0.1, lambda: None)  # type: ignore[arg-type, return-value]
        assert w.value.tolist() == [1, 1, 1]
