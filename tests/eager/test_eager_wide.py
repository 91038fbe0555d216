"""Sessions that compute in float64 or long double: every number keeps the digits that it was written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from op_checks import op_cases, wire

import gdlab as gd
from gdlab import ops
from gdlab.base.errors import DTypeError, GraphError
from gdlab.base.types import u32
from gdlab.eager import Adam, EagerSession, Sgd, TensorRef
from gdlab.op import Elementwise, Op, Sample
from gdlab.op.record import unregister

X = np.array([0.25, -1.5, 2.0])


@pytest.fixture(params=[np.float64, np.longdouble], ids=["float64", "longdouble"])
def s(request: pytest.FixtureRequest) -> Iterator[EagerSession]:
    with closing(EagerSession(scalar=request.param)) as session:
        yield session


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "scale": (lambda x: x * 0.3, lambda x: x * 0.3),
    "reflected": (lambda x: 0.1 - x, lambda x: 0.1 - x),
    "add_scalar": (lambda x: x + 0.1, lambda x: x + 0.1),
    "divided": (lambda x: x / 3, lambda x: x * (1 / 3)),
    "pow_scalar": (lambda x: (x * x) ** 0.7, lambda x: (x * x) ** 0.7),
    "clamp": (lambda x: x.clamp(-0.1, 0.7), lambda x: np.clip(x, -0.1, 0.7)),
    "fill": (lambda x: x * ops.full((3,), 0.3, graph=x.graph), lambda x: x * 0.3),
    "constant": (lambda x: x * ops.constant([0.3], graph=x.graph), lambda x: x * 0.3),
    "const": (lambda x: x * x.session.const([0.3]), lambda x: x * 0.3),
    "rms_norm": (
        lambda x: x.reshape(1, 3).rms_norm(x.session.input(np.ones(3)), 1e-3).reshape(3),
        lambda x: x / np.sqrt((x * x).mean() + 1e-3),
    ),
    "gelu": (lambda x: x.gelu(), gelu),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_in_an_op_keeps_its_digits(name: str, s: EagerSession) -> None:
    build, wanted = NUMBERS[name]
    x = s.input(X)
    y = build(x)
    found, right = y.numpy(), wanted(X.astype(s.opts.scalar))
    np.testing.assert_allclose(found, right, rtol=4e-16)
    assert found.dtype == s.opts.scalar
    with closing(EagerSession(device="cpu")) as narrow:  # and the memo of calls tells the two apart
        got = build(narrow.input(X)).numpy()
    assert got.dtype == np.float32 and not np.array_equal(got, found)
    np.testing.assert_array_equal(build(x).numpy(), found)


@pytest.mark.parametrize("name", ["gelu", "pow_scalar", "rms_norm"])
def test_gradients_keep_them_too(name: str) -> None:
    build, wanted = NUMBERS[name]
    with closing(EagerSession(scalar=np.longdouble)) as s:
        x = s.input(X, requires_grad=True)
        found = s.backward(build(x).sum_all()).numpy(x)
    x, h = X.astype(np.longdouble), np.longdouble(1e-3)
    slope = (-wanted(x + 2 * h) + 8 * wanted(x + h) - 8 * wanted(x - h) + wanted(x - 2 * h)) / (12 * h)
    np.testing.assert_allclose(found, slope, rtol=1e-10)


def test_numbers_that_float32_does_not_hold(s: EagerSession) -> None:
    x = s.input([1.0])
    assert float(x * 1e300) == 1e300 == float(s.const([1e300])) == float(ops.constant([1e300], graph=s.tape))
    with pytest.raises(GraphError, match="scale: factor: given inf, wanted a finite number"):
        x * float("inf")
    with closing(EagerSession(device="cpu")) as narrow, pytest.raises(GraphError, match="given 1e\\+300, wanted a fin"):
        narrow.input([1.0]) * 1e300


def test_what_is_fed_keeps_its_digits(s: EagerSession) -> None:
    s.feed(x=[0.1, 0.2], flat=np.arange(6) / 10, i=[1, 2])
    with s:
        assert gd.input("x", (2,)).numpy().tolist() == [0.1, 0.2]
        assert gd.input("flat", (2, 3)).numpy()[0].tolist() == [0, 0.1, 0.2]
        assert ops.input_u32("i", (2,)).numpy().dtype == np.uint32
        with pytest.raises(gd.ShapeError, match="'x'"):
            s.reset_tape()
            gd.input("x", (3,))


def test_numbers_of_update_rules_keep_theirs(s: EagerSession) -> None:
    def rule(p: Any, g: Any, m: Any, *, lr: float = 0.1) -> Any:
        return p - lr * (0.3 * m + g), 0.7 * m + g

    scalar = s.opts.scalar.type
    p, m, g = s.param([1.0]), scalar(0), scalar(0.1)
    value = scalar(1)
    known = set(gd.plan.rules.RULES)
    for _ in range(3):
        s.step(rule, s.backward_scalar_param_grads((s.use(p) * 0.1).sum_all()))
        s.reset_tape()
        value, m = value - scalar(0.1) * (scalar(0.3) * m + g), scalar(0.7) * m + g
    for added in set(gd.plan.rules.RULES) - known:
        del gd.plan.rules.RULES[added]
    np.testing.assert_allclose(p.value, [value], rtol=4e-16)


def test_an_export_holds_numbers_as_a_plan_does(s: EagerSession) -> None:
    w = s.param(X, "w")
    loss = (s.use(w) * 0.3 * s.const([0.1])).sum_all()
    s.step(Adam(0.1), s.backward_scalar_param_grads(loss))
    graph = s.to_graph(loss).graph
    assert "factor=0.3" in s.tape.text() and "factor=0.3" in graph.text()
    assert [n.attr("factor") for n in graph if n.op == "scale"] == [float(np.float32(0.3))]
    study = s.to_study(loss)
    study.run(1)
    np.testing.assert_allclose(float(study.session.read_loss()), float((w.value * 0.03).sum()), rtol=1e-6)
    study.close()


def test_what_a_loss_does_not_reach_has_the_dtype_of_the_session(s: EagerSession) -> None:
    x, y = s.input(X), s.input(X)
    assert s.vjp((x * 2).sum_all(), [1.0], [y])[0].dtype == s.opts.scalar


def test_a_view_has_its_own_shape(s: EagerSession) -> None:
    p = s.param(np.arange(6.0), "p")
    y = s.use(p).reshape(2, 3)
    assert y.sum(axes=(1,)).numpy().tolist() == [3, 12] and (y @ s.input(np.eye(3))).numpy()[1].tolist() == [3, 4, 5]
    assert (y + s.input([10.0, 20.0, 30.0])).numpy().tolist() == [[10, 21, 32], [13, 24, 35]]
    s.step(Sgd(0.5), s.backward_scalar_param_grads((s.detach(y).reshape(3, 2) * y.reshape(3, 2)).sum_all()))
    np.testing.assert_allclose(p.value, np.arange(6) * 0.5)
    assert p.value.shape == (6,) and s.input([1, 2]).to_f32().numpy().dtype == s.opts.scalar


# every op -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", op_cases())
def test_an_op_keeps_long_doubles(op: Op) -> None:
    with closing(EagerSession(scalar=np.longdouble, checks="off")) as s:
        for sample in op.samples[:2]:
            w = wire(op, sample)
            feeds = {name: np.asarray(data) for name, data in w.feeds.items()}
            refs: list[TensorRef] = []
            for node in w.graph:
                if node.op == "input":
                    data = feeds[node.attr("name")]
                    indices = node.type.dtype is u32
                    data = data.astype(np.uint32 if indices else np.longdouble)
                    refs.append(s.input(data, node.name, requires_grad=not indices))
                    continue
                refs.append(s.tape.append(node.op, tuple(refs[i].id for i in node.inputs), node.attrs, node.type))
                wanted = np.uint32 if node.type.dtype is u32 else np.longdouble
                assert refs[-1].numpy().dtype == wanted, node.op
            loss = refs[w.graph.output_ids[0]]
            if not s.tape.needs_grad[loss.id] or op.no_grad is not None:
                continue
            grads = s.backward(loss)
            assert {grads.numpy(id).dtype for id in grads} <= {np.dtype(np.longdouble)}
            s.reset_tape()


def test_an_op_that_leaves_the_dtype_is_refused_by_name() -> None:
    @gd.op(numpy=lambda x: x.astype(np.float32) * 2, kernel=Elementwise("x * 2.0"), samples=(Sample((3,)),))
    def doubled_narrow(x: gd.Value) -> gd.TensorType:
        """2 x, in float32 alone: f32[...] -> f32[...]."""
        return x.type

    try:
        with closing(EagerSession(scalar=np.float64)) as s:
            x = s.input(X)
            with pytest.raises(
                DTypeError, match=r"eager.doubled_narrow: result: given float32, wanted float64: its ref"
            ):
                doubled_narrow(x)
            assert len(s.tape) == 1
    finally:
        unregister("doubled_narrow")
