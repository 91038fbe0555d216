"""Networks whose pages are run: the tour, attention by hand, a gated layer, convolutions with dropout, a small one."""

from __future__ import annotations

from collections.abc import Callable

import networks
import view_networks

from gdlab import ops
from gdlab.graph import Graph


def small_cnn() -> Graph:
    """A convolution, a pool and a classifier, with dropout."""
    with Graph() as g:
        x, y = ops.input("x", (4, 1, 8, 8)), ops.input("y", (4, 5))
        h = ops.relu(ops.conv2d(x, ops.parameter("kernel", (6, 1, 3, 3)), padding=1))
        h = ops.max_pool_2d(h, (2, 2), (2, 2)).reshape((4, 6 * 16))
        h = ops.dropout(h, 0.25, seed=7)
        g.output(ops.cross_entropy_loss(h @ ops.parameter("w", (96, 5)) + ops.parameter("b", (5,)), y))
    return g


def own() -> Graph:
    """Two layers, with a named value between them."""
    with Graph() as g:
        x, y = ops.input("x", (16, 12)), ops.input("y", (16, 4))
        hidden = ops.tanh(x @ ops.parameter("w1", (12, 24)) + ops.parameter("b1", (24,))).named("hidden")
        g.output(ops.cross_entropy_loss(hidden @ ops.parameter("w2", (24, 4)), y))
    return g


def adapters() -> Graph:
    """Adapters of low rank beside a weight in blocks, which stays."""
    with Graph() as g:
        x, y = ops.input("x", (16, 32)), ops.input("y", (16, 4))
        h = ops.tanh(x @ ops.parameter("first", (32, 32)))
        h = ops.matmul_bt(h, ops.parameter("w", (24, 32), dtype="q4_0")) + h @ ops.parameter("down", (32, 2)) @ (
            ops.parameter("up", (2, 24))
        )
        g.output(ops.cross_entropy_loss(ops.relu(h) @ ops.parameter("last", (24, 4), dtype="bf16"), y))
    return g


NETWORKS: dict[str, Callable[[], Graph]] = {
    "tour": networks.mlp, "attention": view_networks.attention, "gated": view_networks.gated, "cnn": small_cnn,
    "own": own, "adapters": adapters,
}  # fmt: skip
