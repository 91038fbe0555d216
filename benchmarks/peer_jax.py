"""The peers in JAX on what it finds, a GPU before the processor: one compiled function for the whole step."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others use the GPU too

import jax
import jax.numpy as jnp

from benchmarks.peer_models import RATES, Arrays, PeerCase, logits_of

jax.config.update("jax_default_matmul_precision", "highest")


def _rms_norm(x: Any, w: Any, eps: float) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w


def _rope(x: Any, theta: float) -> Any:
    rows, _, d = x.shape
    angle = jnp.arange(rows)[:, None] * theta ** (-2.0 * jnp.arange(d // 2) / d)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jnp.einsum("hij,jhd->ihd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


F = SimpleNamespace(relu=jax.nn.relu, silu=jax.nn.silu, rms_norm=_rms_norm, rope=_rope, attention=_attention)


def _loss(p: Arrays, data: Arrays, case: PeerCase) -> Any:
    logits = logits_of(F, case, p, data)
    return -(data["labels"] * jax.nn.log_softmax(logits)).sum() / len(logits)


def _sgd(state: Any, data: Arrays, case: PeerCase) -> Any:
    p, _, _, t = state
    loss, g = jax.value_and_grad(_loss)(p, data, case)
    return (jax.tree.map(lambda a, b: a - RATES["SGD"] * b, p, g), {}, {}, t), loss


def _adam(state: Any, data: Arrays, case: PeerCase) -> Any:
    p, m, v, t = state
    loss, g = jax.value_and_grad(_loss)(p, data, case)
    t = t + 1
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    short, long = 1 - 0.9**t, 1 - 0.999**t
    p = jax.tree.map(lambda a, b, c: a - RATES["Adam"] * (b / short) / (jnp.sqrt(c / long) + 1e-8), p, m, v)
    return (p, m, v, t), loss


class Jax:
    """One case with one rule."""

    def __init__(self, case: PeerCase, rule: str) -> None:
        zeros = {name: jnp.zeros(a.shape) for name, a in case.weights().items()} if rule == "Adam" else {}
        weights = {name: jnp.asarray(a) for name, a in case.weights().items()}
        self.state: Any = (weights, zeros, {name: a + 0 for name, a in zeros.items()}, jnp.float32(0))
        self.data = {name: jnp.asarray(a) for name, a in case.data().items()}
        self.out: Any = None
        if rule == "inference":
            forward = jax.jit(partial(logits_of, F, case))
            self.run = lambda state, data: (state, forward(state[0], data))
        else:
            self.run = jax.jit(partial(_sgd if rule == "SGD" else _adam, case=case), donate_argnums=0)

    def step(self) -> None:
        """Start one."""
        self.state, self.out = self.run(self.state, self.data)

    def wait(self) -> None:
        """Until everything is there."""
        jax.block_until_ready((self.state, self.out))

    def read_loss(self) -> float:
        """Of the last step."""
        return float(self.out)
