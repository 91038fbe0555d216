"""Updates by hand and multipliers of the rate, against formulas in float64; on both devices."""

from __future__ import annotations

import re

import numpy as np
import pytest
from networks import mlp

from gdlab.errors import GdlabError, SessionError
from gdlab.session import build_inference_session, build_session


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
        (lambda s: s.set_lr_multiplier("w", float("nan")), "set_lr_multiplier: factor: given nan"),
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
