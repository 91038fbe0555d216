"""A graph written by functions that call functions: its groups are their calls."""

from __future__ import annotations

from gdlab import ops
from gdlab.graph import Graph, Value


def half(h: Value, name: str) -> Value:
    return ops.relu(ops.rms_norm(h, ops.parameter(f"{name}.n", (8,)), eps=1e-5) @ ops.parameter(f"{name}.w", (8, 8)))


def block(h: Value, name: str) -> Value:
    a = half(h, name + ".a")
    return h + half(a, name + ".b")


def wide(h: Value, name: str) -> Value:
    return ops.tanh(h @ ops.parameter(f"{name}.w", (8, 8))) * 2.0


def network(blocks: int) -> Graph:
    with Graph() as g:
        h = ops.input("x", (4, 8))
        for i in range(blocks):
            h = block(h, f"b{i}")
        h = wide(h, "w")
        g.set_outputs(ops.mse_loss(h, ops.input("y", (4, 8))))
    return g
