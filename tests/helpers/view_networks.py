"""The test networks of the picture (view2 §1): what people write, as plain functions that return a fresh graph."""

from __future__ import annotations

from collections.abc import Callable

import networks

from gdlab import models, ops
from gdlab.graph import Graph


def mlp_in_a_loop() -> Graph:
    """Three layers `h @ w + b` in a loop, and cross entropy."""
    sizes = (256, 256, 128, 10)
    with Graph() as g:
        h, y = ops.input("x", (32, 256)), ops.input("y", (32, 10))
        for i in range(3):
            w, b = ops.parameter(f"w{i}", sizes[i : i + 2]), ops.parameter(f"b{i}", sizes[i + 1 : i + 2])
            z = h @ w + b
            h = ops.relu(z) if i < 2 else z
        g.output(ops.cross_entropy_loss(h, y))
    return g


def attention() -> Graph:
    """One head written by hand, with its residual sum."""
    with Graph() as g:
        x, target = ops.input("x", (32, 64)), ops.input("target", (32, 64))
        q, k, v = (x @ ops.parameter(name, (64, 64)) for name in ("wq", "wk", "wv"))
        mixed = ops.softmax(q @ k.T * 0.125) @ v
        g.output(ops.mse_loss(mixed @ ops.parameter("wo", (64, 64)) + x, target))
    return g


def gated() -> Graph:
    """A gated layer with biases: 14 ops with names of some length."""
    with Graph() as g:
        x, target = ops.input("x", (64, 256)), ops.input("target", (64, 256))
        gate = x @ ops.parameter("gate_proj", (256, 512)) + ops.parameter("gate_bias", (512,))
        up = x @ ops.parameter("up_proj", (256, 512)) + ops.parameter("up_bias", (512,))
        h = gate * ops.sigmoid(gate) * up
        g.output(ops.mse_loss(h @ ops.parameter("down_proj", (512, 256)) + x, target))
    return g


def input_read_often(times: int = 2000) -> Graph:
    """A flat chain in which one input is read this many times."""
    with Graph() as g:
        x = h = ops.input("x", (4, 8))
        for i in range(times):
            h = ops.tanh(h + x) if i % 2 else ops.tanh(h) * x
        g.output(ops.square(h).sum_all())
    return g


def branches(count: int = 1500) -> Graph:
    """An input that this many ops read, and nobody these."""
    with Graph() as g:
        x = ops.relu(ops.input("x", (4, 8)))
        for _ in range(count):
            g.output(ops.tanh(x))
    return g


def long_chain(count: int = 1500) -> Graph:
    """One op again and again, each on what the one before it made."""
    with Graph() as g:
        h = ops.input("x", (4, 8)) * ops.parameter("w", (4, 8))
        for _ in range(count):
            h = ops.tanh(h)
        g.output(h.square().mean_all())
    return g


def deep_mlp(count: int = 60) -> Graph:
    """Layers `relu(h @ w + b)` in a loop, without modules."""
    with Graph() as g:
        h = ops.input("x", (4, 8))
        for i in range(count):
            h = ops.relu(h @ ops.parameter(f"w{i}", (8, 8)) + ops.parameter(f"b{i}", (8,)))
        g.output(h.square().mean_all())
    return g


NETWORKS: dict[str, Callable[[], Graph]] = {
    "tour": networks.mlp,
    "mlp_in_a_loop": mlp_in_a_loop,
    "attention": attention,
    "gated": gated,
    "transformer_lm": models.transformer_lm,
    "resnet18": models.resnet18,
}
