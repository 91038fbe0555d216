"""Updates by hand and multipliers of the rate, against formulas in float64; on both devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from machine import needs
from networks import mlp
from session_state import W, X, Y, fitted, line, state_of

from gdlab import ops
from gdlab.base.errors import GdlabError, SessionError
from gdlab.graph import Graph
from gdlab.session import Session, build_inference_session, build_session


def trained(device):
    """A session after one step without update, with the gradients and parameters it then has."""
    session = build_session(mlp(), device)
    session.initialize(3)
    rng = np.random.default_rng(0)
    session.set_input("x", rng.normal(size=(64, 64)))
    session.set_input("y", np.eye(10)[rng.integers(0, 10, 64)])
    session.step()
    before = {n: session.read_param(n).astype(np.float64) for n in session.param_names()}
    gradients = {n: session.read_param_grad(n).astype(np.float64) for n in session.param_names()}
    return session, before, gradients


def test_one_update_now_leaves_the_configuration_alone(device):
    session, before, gradients = trained(device)
    with session:
        session.sgd_step(0.5)
        assert str(session.optimizer) == "no update rule" and session.step_count == 1
        for n, p in before.items():
            np.testing.assert_allclose(session.read_param(n), p - 0.5 * gradients[n], rtol=1e-6, atol=1e-7)
        kept = {n: session.read_param(n) for n in before}
        session.step()
        assert all((session.read_param(n) == p).all() for n, p in kept.items()), "a step without a rule updated"
        now = {n: session.read_param_grad(n).astype(np.float64) for n in before}
        session.set_learning_rate(0.0)
        session.adam_step(1e-2)
        assert session.adam_step_count() == 1 and str(session.optimizer) == "SGD, lr 0"
        for n, p in kept.items():
            g = now[n]
            moved = p - 1e-2 * g / (np.abs(g) + 1e-8)  # after one step m̂ = g and √v̂ = |g|
            far = np.abs(g) > 1e-6
            np.testing.assert_allclose(session.read_param(n)[far], moved[far], rtol=1e-4, atol=1e-6)
        assert session.memory_summary().adam_state_bytes > 0


def test_multipliers_go_by_the_longest_prefix(device):
    session, before, gradients = trained(device)
    with session:
        session.set_lr_multiplier("", 2.0)
        session.set_lr_multiplier("w", 0.0)
        session.set_lr_multiplier("w2", 0.5)
        session.sgd_step(0.1)
        for n, k in {"w1": 0.0, "w2": 0.5, "b1": 2.0, "b2": 2.0}.items():
            np.testing.assert_allclose(
                session.read_param(n), before[n] - 0.1 * k * gradients[n], rtol=1e-6, atol=1e-7, err_msg=n
            )
        session.set_learning_rate(0.1)
        session.clear_lr_multipliers()
        w1 = session.read_param("w1").astype(np.float64)
        session.step()
        np.testing.assert_allclose(
            session.read_param("w1"), w1 - 0.1 * session.read_param_grad("w1"), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s: s.sgd_step(-1.0), "sgd_step: lr: given -1.0, wanted a finite number ≥ 0"),
        (lambda s: s.adam_step(1e-3, beta1=1.0), "adam_step: beta1: given 1.0, wanted a number in [0, 1)"),
        (lambda s: s.set_lr_multiplier("w", float("nan")), "set_lr_multiplier: k: given nan"),
        (lambda s: s.set_lr_multiplier("v", 1.0), "set_lr_multiplier: prefix: given v, wanted one of w1, b1, w2, b2"),
    ],
)
def test_updates_that_cannot_be_are_refused(call, text):
    session, before, _ = trained("cpu")
    with session:
        with pytest.raises(GdlabError, match=re.escape(text)):
            call(session)
        assert all((session.read_param(n) == p).all() for n, p in before.items())
    fresh = build_session(mlp(), "cpu")
    with fresh, pytest.raises(SessionError, match="sgd_step: gradients: given no step yet"):
        fresh.sgd_step(0.1)
    with build_inference_session(mlp(), "cpu") as reading, pytest.raises(SessionError, match="an inference session"):
        reading.set_lr_multiplier("w", 0.5)


# every rule against float64 -------------------------------------------------------------------------------------------
Arrays = dict[str, np.ndarray]


def gradients_of(p: Arrays, x: np.ndarray) -> Arrays:
    """The derivative of mse(x·w + b, y), by hand."""
    error = (x.astype(float) @ p["w"] + p["b"] - Y) * 2 / Y.size
    return {"w": x.T.astype(float) @ error, "b": error.sum(0)}


class Loop:
    """The updates by their formulas, in float64."""

    def __init__(self, rule: str, lr: float, decay: float = 0.0, factors: dict[str, float] | None = None) -> None:
        self.rule, self.lr, self.decay, self.t, self.factors = rule, lr, decay, 0, factors or {}
        self.p: Arrays = {"w": W.astype(float), "b": np.zeros(2)}
        self.m, self.v = ({n: np.zeros_like(p) for n, p in self.p.items()} for _ in range(2))

    def update(self, gradients: Arrays) -> None:
        self.t += self.rule != "sgd"
        c1, c2 = (1 / (1 - float(np.float32(b)) ** max(self.t, 1)) for b in (0.9, 0.999))
        for n, g in gradients.items():
            rate = self.lr * self.factors.get(n, 1.0)
            if self.rule == "sgd":
                self.p[n] = self.p[n] - rate * g
                continue
            self.v[n] = 0.999 * self.v[n] + 0.001 * g * g
            if self.rule == "laprop":
                self.m[n] = 0.9 * self.m[n] + 0.1 * g / (np.sqrt(self.v[n] * c2) + 1e-8)
                self.p[n] = self.p[n] - rate * self.m[n] * c1
                continue
            self.m[n] = 0.9 * self.m[n] + 0.1 * g
            moved = self.m[n] * c1 / (np.sqrt(self.v[n] * c2) + 1e-8)
            self.p[n] = self.p[n] - rate * (moved + self.decay * self.p[n])


RULES: dict[str, tuple[Callable[[Session], None], Callable[[], Loop]]] = {
    "sgd": (lambda s: s.set_learning_rate(0.1), lambda: Loop("sgd", 0.1)),
    "adam": (lambda s: s.set_adam(0.05), lambda: Loop("adam", 0.05)),
    "adamw": (lambda s: s.set_adamw(0.05, weight_decay=0.3), lambda: Loop("adamw", 0.05, 0.3)),
    "laprop": (lambda s: s.set_laprop(0.05), lambda: Loop("laprop", 0.05)),
}


def scaled(k: int) -> np.ndarray:
    return (X * (1 + 0.3 * k)).astype(np.float32)


def close(session: Session, loop: Loop, rtol: float = 1e-5) -> None:
    for n, want in loop.p.items():
        np.testing.assert_allclose(session.read_param(n), want, rtol=rtol, atol=rtol * np.abs(want).max(), err_msg=n)


@pytest.fixture
def session(device: str) -> Iterator[Session]:
    with build_session(line(), device) as session:
        yield fitted(session)


@pytest.mark.parametrize("rule", RULES)
def test_ten_updates_are_those_of_the_formula(session: Session, rule: str) -> None:
    configure, loop = RULES[rule][0], RULES[rule][1]()
    configure(session)
    session.set_lr_multiplier("b", 0.5)
    loop.factors = {"b": 0.5}
    for k in range(10):
        session.set_input("x", scaled(k))
        session.step()
        loop.update(gradients_of(loop.p, scaled(k)))
    close(session, loop)
    if rule != "sgd":
        assert session.adam_step_count() == 10
        np.testing.assert_allclose(session.read_adam_m("w"), loop.m["w"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.read_adam_v("w"), loop.v["w"], rtol=1e-4, atol=1e-8)


def test_a_frozen_parameter_stays_and_its_moments_move(session: Session) -> None:
    for configure in (lambda: session.set_adamw(0.1, weight_decay=0.5), lambda: session.set_laprop(0.1)):
        session.set_lr_multiplier("w", 0.0)
        configure()
        before = session.read_adam_m("w")
        session.step()
        assert np.array_equal(session.read_param("w"), W) and not np.array_equal(session.read_adam_m("w"), before)
        assert session.read_param("b").any()


# clipping -------------------------------------------------------------------------------------------------------------
def norm(gradients: Arrays) -> float:
    return float(np.sqrt(sum(np.sum(g * g) for g in gradients.values())))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_gradients_are_clipped_all_together(session: Session, rule: str, limit: float) -> None:
    configure, loop = RULES[rule][0], RULES[rule][1]()
    configure(session)
    session.set_grad_clip_norm(limit)
    for k in range(5):
        session.set_input("x", scaled(k))
        session.step()
        g = gradients_of(loop.p, scaled(k))
        shown = session.read_param_grad("w")
        np.testing.assert_allclose(shown, g["w"], rtol=1e-4, atol=2e-5)  # what is read is not clipped
        factor = min(1.0, limit / norm(g))
        assert (factor < 1) == (limit < 1)
        loop.update({n: a * factor for n, a in g.items()})
    close(session, loop)


def test_gradients_are_clipped_by_the_size_of_their_parameter(session: Session) -> None:
    session.set_learning_rate(0.5)
    session.set_adaptive_grad_clip(0.01, pmin=0.2)
    loop = Loop("sgd", 0.5)
    for k in range(5):
        session.set_input("x", scaled(k))
        session.step()
        clipped = {}
        for n, g in gradients_of(loop.p, scaled(k)).items():
            size = max(0.2, float(np.linalg.norm(loop.p[n])))
            clipped[n] = g * min(1.0, 0.01 * size / float(np.linalg.norm(g)))
        loop.update(clipped)
    close(session, loop)


def test_the_last_way_to_clip_wins_and_none_clears(session: Session) -> None:
    session.set_learning_rate(0.5)
    plain = len(session.update_dispatches())
    session.set_adaptive_grad_clip(0.01)
    session.set_grad_clip_norm(0.05)
    loop = Loop("sgd", 0.5)
    session.step()
    g = gradients_of(loop.p, X)
    loop.update({n: a * min(1.0, 0.05 / norm(g)) for n, a in g.items()})
    close(session, loop)
    assert len(session.update_dispatches()) > plain
    session.set_grad_clip_norm(None)
    assert len(session.update_dispatches()) == plain
    session.step()
    loop.update(gradients_of(loop.p, X))
    close(session, loop)
    session.set_grad_clip_norm(1.0)
    session.set_adaptive_grad_clip(None)
    assert len(session.update_dispatches()) == plain


def test_gradients_of_zero_are_no_reason_for_nan(session: Session) -> None:
    session.set_input("y", X @ W)
    session.set_learning_rate(0.1)
    for clip in (session.set_grad_clip_norm, session.set_adaptive_grad_clip):
        session.set_input("x", np.zeros((4, 3)))
        session.set_input("y", np.zeros((4, 2)))
        clip(0.5)
        session.step()
        assert np.array_equal(session.read_param("w"), W) and not session.read_param("b").any()


def test_many_parameters_are_clipped_together(device: str) -> None:
    """More than a dispatch may bind: their squares are added up in rounds."""
    with Graph() as g:
        x = ops.input("x", (4,))
        total = x
        for k in range(20):
            total = total + ops.parameter(f"p{k}", (4,)) * float(k + 1)
        g.output(ops.sum_all(total * x))
    with build_session(g, device) as many:
        many.initialize(zeros=True)
        many.set_input("x", [1, 2, 3, 4])
        many.set_learning_rate(1.0)
        many.set_grad_clip_norm(2.0)
        many.step()
        moved = {n: many.read_param(n) for n in many.param_names()}
        size = np.sqrt(30 * sum((k + 1) ** 2 for k in range(20)))
        assert np.sqrt(sum(np.sum(np.square(p)) for p in moved.values())) == pytest.approx(2.0, rel=1e-5)
        np.testing.assert_allclose(moved["p19"], -20 * np.arange(1, 5) * 2.0 / size, rtol=1e-5)


def test_an_update_by_hand_is_clipped_too(device: str) -> None:
    session, before, gradients = trained(device)
    with session:
        factor = min(1.0, 0.01 / norm(gradients))
        session.set_grad_clip_norm(0.01)
        session.sgd_step(0.5)
        for n, p in before.items():
            moved = p - 0.5 * factor * gradients[n]
            np.testing.assert_allclose(session.read_param(n), moved, rtol=1e-5, atol=1e-7)


# accumulation ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", RULES)
def test_an_update_takes_the_mean_of_n_steps(session: Session, rule: str) -> None:
    configure, loop = RULES[rule][0], RULES[rule][1]()
    configure(session)
    session.set_grad_accumulate(3)
    for k in range(9):
        if k % 3 == 0:
            window: list[Arrays] = []
        session.set_input("x", scaled(k))
        before = session.read_param("w")
        session.step()
        window.append(gradients_of(loop.p, scaled(k)))
        if k % 3 < 2:
            assert np.array_equal(session.read_param("w"), before)
        else:
            loop.update({n: np.mean([g[n] for g in window], 0) for n in loop.p})
            close(session, loop)
    assert session.adam_step_count() == (0 if rule == "sgd" else 3)


def test_accumulated_gradients_are_clipped_as_one(session: Session) -> None:
    session.set_learning_rate(0.5)
    session.set_grad_clip_norm(0.05)
    session.set_grad_accumulate(2)
    loop = Loop("sgd", 0.5)
    seen = []
    for k in range(4):
        session.set_input("x", scaled(k))
        session.step()
        seen.append(gradients_of(loop.p, scaled(k)))
        if k % 2:
            g = {n: (seen[-1][n] + seen[-2][n]) / 2 for n in loop.p}
            loop.update({n: a * min(1.0, 0.05 / norm(g)) for n, a in g.items()})
    close(session, loop)


def test_zero_grad_begins_the_window_anew(session: Session) -> None:
    session.set_learning_rate(0.1)
    session.set_grad_accumulate(2)
    session.set_input("y", np.full((4, 2), np.nan))
    session.step()
    session.zero_grad()
    session.set_input("y", Y)
    loop = Loop("sgd", 0.1)
    session.step()
    assert np.array_equal(session.read_param("w"), W), "one step of two"
    session.step()
    loop.update(gradients_of(loop.p, X))
    close(session, loop)
    session.step()
    session.set_grad_accumulate(1)
    session.step()
    loop.update(gradients_of(loop.p, X))
    close(session, loop)


def test_traffic_counts_the_dispatches_that_ran(session: Session) -> None:
    session.set_learning_rate(0.1)
    session.set_grad_accumulate(2)
    plan, update = len(session.plan().dispatches), len(session.update_dispatches())
    assert update == 3, "of both parameters: add up, update, clear"
    session.step()
    assert session.traffic.dispatches == plan + 1
    session.step()
    assert session.traffic.dispatches == 2 * plan + 1 + 3


def test_a_changed_rate_compiles_nothing(session: Session) -> None:
    session.set_adam(0.1)
    update = session.update
    session.set_adam(0.2, 0.5, 0.6, 1e-3)
    assert session.update is update


# moments --------------------------------------------------------------------------------------------------------------
def test_moments_are_read_and_written(session: Session) -> None:
    assert not session.read_adam_m("w").any() and session.memory_summary().adam_state_bytes == 0
    session.write_adam_m("w", 2 * W)
    session.write_adam_v("w", (W * W).ravel())
    session.set_adam_step_count(9)
    assert str(session.optimizer) == "no update rule" and session.adam_step_count() == 9
    assert np.array_equal(session.read_adam_m("w"), 2 * W) and np.array_equal(session.read_adam_v("w"), W * W)
    loop = Loop("adam", 0.05)
    loop.t, loop.m["w"], loop.v["w"] = 9, 2.0 * W, W.astype(float) ** 2
    session.set_adam(0.05)
    session.step()
    loop.update(gradients_of(loop.p, X))
    close(session, loop)
    assert session.adam_step_count() == 10


def test_an_update_through_the_host_is_the_update(device: str) -> None:
    session, before, gradients = trained(device)
    with session:
        session.set_lr_multiplier("w2", 0.25)
        session.set_grad_clip_norm(0.01)
        session.sgd_step_cpu(0.5)
        factor = min(1.0, 0.01 / norm(gradients))
        for n, p in before.items():
            k = 0.25 if n == "w2" else 1.0
            want = p - 0.5 * k * factor * gradients[n]
            np.testing.assert_allclose(session.read_param(n), want, rtol=1e-5, atol=1e-7)


# refusals -------------------------------------------------------------------------------------------------------------
NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, tuple[Callable[[Session], object], str]] = {
    "clip of zero": (lambda s: s.set_grad_clip_norm(0), "set_grad_clip_norm: max: given 0, wanted a number > 0"),
    "clip not finite": (lambda s: s.set_grad_clip_norm(INF), "set_grad_clip_norm: max: given inf"),
    "clip no number": (lambda s: s.set_grad_clip_norm("1"), "set_grad_clip_norm: max: given '1'"),  # type: ignore[arg-type]
    "clip below float32": (lambda s: s.set_grad_clip_norm(1e-60), "set_grad_clip_norm: max: given 1e-60"),
    "adaptive": (lambda s: s.set_adaptive_grad_clip(-1.0), "set_adaptive_grad_clip: clip: given -1.0"),
    "adaptive floor": (lambda s: s.set_adaptive_grad_clip(0.1, NAN), "set_adaptive_grad_clip: pmin: given nan"),
    "no steps": (lambda s: s.set_grad_accumulate(0), "set_grad_accumulate: n: given 0, wanted an int ≥ 1"),
    "half a step": (lambda s: s.set_grad_accumulate(1.5), "set_grad_accumulate: n: given 1.5"),  # type: ignore[arg-type]
    "true steps": (lambda s: s.set_grad_accumulate(True), "set_grad_accumulate: n: given True"),
    "decay": (lambda s: s.set_adamw(0.1, weight_decay=-1.0), "set_adamw: weight_decay: given -1.0, wanted a finite"),
    "laprop's beta": (lambda s: s.set_laprop(0.1, 1.0), "set_laprop: beta1: given 1.0, wanted a number in [0, 1)"),
    "moment's name": (lambda s: s.read_adam_m("c"), "read_adam_m: name: given c, wanted one of w, b"),
    "moment's shape": (lambda s: s.write_adam_v("w", W.T), "write_adam_v: 'w': given shape [2, 3]"),
    "counter": (lambda s: s.set_adam_step_count(-1), "set_adam_step_count: t: given -1, wanted an int in 0 … 2^63 − 1"),
    "large counter": (lambda s: s.set_adam_step_count(2**63), "given 9223372036854775808, wanted an int in 0 … 2^63"),
    "multiplier": (lambda s: s.set_lr_multiplier("w", -1.0), "set_lr_multiplier: k: given -1.0"),
    "prefix no name": (lambda s: s.set_lr_multiplier(3, 1.0), "set_lr_multiplier: prefix: given 3"),  # type: ignore[arg-type]
    "host rate": (lambda s: s.sgd_step_cpu(NAN), "sgd_step_cpu: lr: given nan"),
}  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", "wgpu"])
def settled(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "wgpu":
        needs("wgpu")
    with build_session(line(), request.param) as session:
        fitted(session).set_adam(0.1)
        session.set_grad_accumulate(3)
        session.set_grad_clip_norm(0.5)
        for _ in range(4):
            session.step()
        yield session


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_a_refused_configuration_keeps_the_old_one(
    settled: Session, call: Callable[[Session], object], text: str
) -> None:
    before, memory = state_of(settled), settled.memory_summary()
    with pytest.raises(GdlabError, match=re.escape(text)):
        call(settled)
    assert state_of(settled) == before and settled.memory_summary() == memory


def test_an_inference_session_configures_nothing(device: str) -> None:
    calls: list[Callable[[Session], object]] = [
        lambda s: s.set_adamw(0.1), lambda s: s.set_laprop(0.1), lambda s: s.set_grad_clip_norm(1.0),
        lambda s: s.set_adaptive_grad_clip(0.1), lambda s: s.set_grad_accumulate(2), lambda s: s.zero_grad(),
        lambda s: s.clear_lr_multipliers(), lambda s: s.sgd_step_cpu(0.1), lambda s: s.adam_step(0.1),
        lambda s: s.read_adam_m("w"), lambda s: s.write_adam_m("w", W), lambda s: s.set_adam_step_count(1),
    ]  # fmt: skip
    with build_inference_session(line(), device) as session:
        fitted(session).step()
        before = state_of(session)
        for call in calls:
            with pytest.raises(SessionError, match="given an inference session, wanted a training session"):
                call(session)
        assert state_of(session) == before
