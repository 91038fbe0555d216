"""Hooks, matrices of derivatives, and steps in wide dtypes and by rules of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab import ops
from gdlab.base.errors import ArgumentError, EagerError, GdlabError, SessionError, ShapeError
from gdlab.eager import Adadelta, AdaGrad, Adam, AdamW, EagerSession, LaProp, Momentum, RmsProp, Sgd
from gdlab.plan.rules import RULES


@pytest.fixture
def s(device: str) -> Iterator[EagerSession]:
    session = EagerSession(device=device)
    yield session
    session.close()


@pytest.fixture(autouse=True)
def _own_rules() -> Iterator[None]:
    known = dict(RULES)
    yield
    for name in RULES.keys() - known.keys():
        del RULES[name]


# hooks ----------------------------------------------------------------------------------------------------------------
def test_a_hook_sees_the_complete_gradient_before_it_flows_on(s: EagerSession) -> None:
    x = s.input([1.0, 2.0], "x", requires_grad=True)
    y = x * 3
    z = (y + y * y).sum_all()  # the gradient of y is 1 + 2 y, of two readers
    seen: list[Any] = []
    remove = s.hook(y, lambda ref, g: seen.append((ref, g.numpy().tolist())))
    length = len(s.tape)
    assert s.backward(z).numpy(x).tolist() == [21, 39] and seen == [(y, [7, 13])]
    doubled = s.hook(y, lambda _, g: g * 2)
    halved = s.hook(x, lambda _, g: g.numpy() / 2)
    live = s.engine.live_bytes
    grads = s.backward(z)
    assert grads.numpy(x).tolist() == [21, 39] and len(seen) == 2 and len(s.tape) == length
    assert grads.numpy(x).tolist() == x.grad.tolist()
    for remover in (doubled, halved, remove, remove):
        remover()
    grads.release()
    assert s.backward(z).numpy(x).tolist() == [21, 39] and len(seen) == 2
    assert s.engine.live_bytes <= live + 8


def test_a_hook_that_fails_changes_nothing(s: EagerSession) -> None:
    x = s.input([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum_all()
    first = s.backward(loss)
    before = len(s.tape), s.tape.text(), s.engine.live_bytes, x.grad.tolist()

    def breaks(ref: Any, g: Any) -> None:
        _ = g * 2
        raise RuntimeError("mine")

    wrong: list[tuple[Any, type[Exception], str]] = [
        (breaks, RuntimeError, "mine"),
        (lambda _, g: [1.0], ShapeError, r"hook of %0: given f32\[1\], wanted f32\[2\] or None"),
        (lambda _, g: "text", GdlabError, "hook of %0"), (lambda _, g: g.sum_all(), ShapeError, "hook of %0"),
    ]  # fmt: skip
    for function, kind, text in wrong:
        remove = s.hook(x, function)
        with pytest.raises(kind, match=text):
            s.backward(loss)
        remove()
        assert (len(s.tape), s.tape.text(), s.engine.live_bytes, x.grad.tolist()) == before
    with pytest.raises(ArgumentError, match="eager.hook: function: given int"):
        s.hook(x, 3)  # type: ignore[arg-type]
    first.release()
    s.hook(x, breaks)
    s.reset_tape()
    with pytest.raises(EagerError, match="stale handle"):
        s.hook(x, print)
    y = s.input([1.0], requires_grad=True)
    assert s.backward(y * 2).numpy(y).tolist() == [2]


# matrices of derivatives ----------------------------------------------------------------------------------------------
def test_jacobians_and_hessians(s: EagerSession) -> None:
    a = np.float32([[1, 2, 0], [0, -1, 3]])
    x = s.input([0.5, -1.0, 2.0], "x")
    y = s.input(a) @ x.reshape(3, 1)
    cubes = x * x * x
    length = len(s.tape)
    for jacobian in (s.jacrev, s.jacfwd):
        np.testing.assert_allclose(jacobian(y, x), a.reshape(2, 1, 3), rtol=1e-6)
        np.testing.assert_allclose(jacobian(cubes, x), np.diag([0.75, 3, 12]), rtol=1e-6)
    loss = (cubes + x * 2).sum_all() * x.sum_all()
    total, slope = 1.5, np.float64([0.75, 3, 12]) + 2
    wanted = np.diag(np.float64([3, -6, 12]) * total) + slope[:, None] + slope[None]
    np.testing.assert_allclose(s.hessian(loss, x), wanted, rtol=1e-5)
    assert len(s.tape) == loss.id + 1 > length
    kink = s.input([0.0, 0.0, -1.0, 2.0])
    np.testing.assert_array_equal(s.jacrev(kink.relu(), kink), s.jacfwd(kink.relu(), kink))


# steps in wide dtypes -------------------------------------------------------------------------------------------------
EVERY = (Sgd(0.1), Adam(0.1), AdamW(0.1), LaProp(0.1), Momentum(0.1), Momentum(0.1, nesterov=True), AdaGrad(0.1),
         RmsProp(0.1), Adadelta())  # fmt: skip


def descent(s: EagerSession, rule: Any, steps: int = 5) -> Any:
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    w, b = s.param(rng.normal(size=(4, 2)), "w"), s.param(np.zeros(2), "b")
    for _ in range(steps):
        loss = ((s.input(x) @ s.use(w) + s.use(b)).tanh() - s.input(t)).square().mean_all()
        s.step(rule, s.backward_scalar_param_grads(loss))
        s.reset_tape()
    s.assert_no_leaks()
    return w.value, b.value


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_steps_in_wide_dtypes_follow_those_of_float32(rule: Any) -> None:
    found = []
    for scalar in (np.float32, np.float64, np.longdouble):
        s = EagerSession(device="cpu", scalar=scalar)
        found.append(descent(s, rule))
        assert found[-1][0].dtype == scalar
        s.close()
        assert s.engine.live_bytes == 0
    for narrow, wide, widest in zip(*found, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(wide, np.float64(widest), rtol=1e-10, atol=1e-12)


def test_adam_in_float64_is_that_of_the_formula() -> None:
    s = EagerSession(scalar=np.float64)
    p, value, m, v = s.param([1.0]), 1.0, 0.0, 0.0
    for t in range(1, 8):
        g = 2 * value - 0.25
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = s.use(p)
        s.step(Adam(0.01), s.backward_scalar_param_grads((x * x - x * 0.25).sum_all()))
        s.reset_tape()
        value -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert p.value[0] == pytest.approx(value, rel=1e-14)
    state = s.state_dict()
    before = p.value.tobytes()
    with pytest.raises(EagerError, match="not finite"):
        s.step(Adam(0.01), s.backward_scalar_param_grads((s.use(p) * s.input([np.inf])).sum_all()))
    after = s.state_dict()
    assert p.value.tobytes() == before and all(np.array_equal(state[name], after[name]) for name in state)
    s.close()


# rules of the user ----------------------------------------------------------------------------------------------------
def lion(p: Any, g: Any, m: Any, *, lr: float = 0.1, beta: float = 0.5) -> Any:
    return p - lr * ops.sign(beta * m + (1 - beta) * g), 0.9 * m + 0.1 * g


def test_a_function_in_op_notation_is_a_rule(device: str) -> None:
    for scalar in (np.float32, np.float64) if device == "cpu" else (np.float32,):
        s = EagerSession(device=device, scalar=scalar)
        p, m, value = s.param(np.full((3, 2), 1.0), "p"), 0.0, 1.0
        for slope in (0.5, -0.2, -2.0):
            s.step(lion, s.backward_scalar_param_grads((s.use(p) * slope).sum_all()))
            value -= 0.1 * np.sign(0.5 * m + 0.5 * slope)
            m = 0.9 * m + 0.1 * slope
            s.reset_tape()
            np.testing.assert_allclose(p.value, value, rtol=1e-6)
        s.assert_no_leaks()
        assert len(s.rules.buffers()) == 1
        s.close()


def test_rules_of_functions_are_told_by_what_they_compute(s: EagerSession) -> None:
    same = gd.eager.rule(lambda p, g: p - 0.5 * g)
    assert same == gd.eager.rule(lambda p, g: p - 0.5 * g) != gd.eager.rule(lambda p, g: p - 0.25 * g)
    assert gd.eager.rule(lion).lr == 0.1 and gd.eager.rule(lion, lr=0.2).numbers == {"lr": 0.2, "beta": 0.5}
    for wrong in (lambda p: p, lambda p, g: (p, g), lambda p, g: p.sum_all(), lambda p, *rest: p, 3):
        with pytest.raises(GdlabError):
            gd.eager.rule(wrong)
    with pytest.raises(SessionError):
        gd.eager.rule(lion, lr=-1.0)
    with gd.Graph() as graph:
        graph.output((gd.parameter("w", (3,)) * gd.input("x", (3,))).sum_all())
    with gd.build_session(graph, device=s.device.kind) as session:
        session.set_parameter("w", np.ones(3, np.float32))
        session.set_input("x", np.float32([2, -1, 0.5]))
        session.set_optimizer(same)
        session.step()
        assert session.read_param("w").tolist() == [0, 1.5, 0.75]
