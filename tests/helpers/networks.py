"""The networks that the tests and the benchmarks share, each a plain function that returns a fresh graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gdlab import ops
from gdlab.graph import Graph, Value

BATCH, PIXELS, HIDDEN, CLASSES = 64, 64, 128, 10


def mlp(batch: int = BATCH) -> Graph:
    """The tour's network: 64-128-10 with biases and relu, cross entropy against rows that sum to 1."""
    with Graph() as g:
        g.output(ops.cross_entropy_loss(_logits(batch), ops.input("y", (batch, CLASSES))))
    return g


def reader(batch: int) -> Graph:
    """The tour's network for inference: class probabilities of `batch` images."""
    with Graph() as g:
        g.output(ops.softmax(_logits(batch)))
    return g


def _logits(batch: int) -> Value:
    x = ops.input("x", (batch, PIXELS))
    h = ops.relu(x @ ops.parameter("w1", (PIXELS, HIDDEN)) + ops.parameter("b1", (HIDDEN,)))
    return h @ ops.parameter("w2", (HIDDEN, CLASSES)) + ops.parameter("b2", (CLASSES,))


def transformer(layers: int = 1, length: int = 32, width: int = 64, inner: int = 128, extra: int = 0) -> Graph:
    """`layers` blocks written in primitives (normalization, attention, gated feed-forward), and a squared error.

    `extra` elementwise ops follow the last block.
    """
    with Graph() as g:
        x, target = ops.input("x", (length, width)), ops.input("target", (length, width))
        mask = ops.constant(np.triu(np.full((length, length), -1e9, np.float32), 1))
        for layer in range(layers):
            x = _block(x, mask, f"{layer}." if layers > 1 else "", inner)
        for _ in range(extra):
            x = ops.tanh(x)
        g.output(ops.mse_loss(x, target))
    return g


def _block(x: Value, mask: Value, prefix: str, inner: int) -> Value:
    width = x.shape[-1]

    def weight(name: str, *shape: int) -> Value:
        return ops.parameter(prefix + name, shape)

    def norm(v: Value, name: str) -> Value:
        return v * ops.rsqrt((v * v).mean(-1, keepdims=True) + 1e-5) * weight(name, width)

    a = norm(x, "norm1")
    q, k, v = (a @ weight(name, width, width) for name in ("wq", "wk", "wv"))
    attention = ops.softmax(q @ k.T * width**-0.5 + mask)
    r = (attention @ v) @ weight("wo", width, width) + x
    b = norm(r, "norm2")
    g, u = b @ weight("gate", width, inner), b @ weight("up", width, inner)
    return (g * ops.sigmoid(g) * u) @ weight("down", inner, width) + r


def decomposed(layers: int = 1, length: int = 32, width: int = 64, inner: int = 128, heads: int = 4) -> Graph:
    """A transformer in which every part is written out: rms norms by √, heads by reshape and permute, rotary positions
    by halves, causal attention by softmax, SwiGLU, a last layer norm, and cross entropy by log softmax."""
    d = width // heads
    angles = np.tile(np.outer(np.arange(length), 10000.0 ** (-2 * np.arange(d // 2) / d)), 2)
    with Graph() as g:
        x, target = ops.input("x", (length, width)), ops.input("target", (length, width))
        mask = ops.constant(np.triu(np.full((length, length), -1e9, np.float32), 1))
        cos, sin = (ops.constant(part.astype(np.float32)) for part in (np.cos(angles), np.sin(angles)))

        def weight(name: str, *shape: int) -> Value:
            return ops.parameter(name, shape)

        def norm(v: Value, name: str) -> Value:
            return v / ops.sqrt((v * v).sum(-1, keepdims=True) / width + 1e-5) * weight(name, width)

        def apart(v: Value) -> Value:
            return v.reshape((length, heads, d)).permute((1, 0, 2))

        def turned(v: Value) -> Value:
            return v * cos + ops.concat([-v[..., d // 2 :], v[..., : d // 2]], -1) * sin

        def softmax_parts(v: Value) -> tuple[Value, Value]:
            shifted = v - v.max(-1, keepdims=True)
            return shifted, ops.exp(shifted).sum(-1, keepdims=True)

        for i in range(layers):
            a = norm(x, f"{i}.norm1")
            q, k, v = (apart(a @ weight(f"{i}.{name}", width, width)) for name in ("wq", "wk", "wv"))
            shifted, total = softmax_parts(ops.batch_matmul(turned(q), turned(k).T) / np.sqrt(d) + mask)
            each = ops.batch_matmul(ops.exp(shifted) / total, v)
            x = x + each.permute((1, 0, 2)).reshape((length, width)) @ weight(f"{i}.wo", width, width)
            b = norm(x, f"{i}.norm2")
            gate, up = b @ weight(f"{i}.gate", width, inner), b @ weight(f"{i}.up", width, inner)
            x = x + gate * ops.sigmoid(gate) * up @ weight(f"{i}.down", inner, width)
        c = x - x.mean(-1, keepdims=True)
        x = c / ops.sqrt((c**2).mean(-1, keepdims=True) + 1e-5) * weight("norm.w", width) + weight("norm.b", width)
        shifted, total = softmax_parts(x)
        g.output(-(target * (shifted - ops.log(total))).sum(-1).mean())
    return g


def experts(layers: int = 12) -> Graph:
    """21 experts beside each other, layer below layer: with the derivative 6,236 nodes in 12 layers."""
    with Graph() as g:
        h = ops.input("x", (16, 32))
        for layer in range(layers):
            total = h
            for e in range(21):
                up, down, gate = (ops.parameter(f"{layer}_{e}_{n}", (32, 32)) for n in ("up", "down", "gate"))
                total = total + ops.tanh(h @ gate) * (ops.relu(h @ up) @ down)
            h = total
        g.output(ops.mse_loss(ops.tanh(ops.tanh(h)) + 1.0, ops.input("y", (16, 32))))
    return g


def written_with(nodes: int, count: Callable[[Graph], int]) -> Graph:
    """The transformer for which `count` comes nearest to `nodes`, from below: whole blocks, then elementwise ops."""
    one, two, more = (count(transformer(layers, extra=extra)) for layers, extra in ((1, 0), (2, 0), (1, 1)))
    layers, rest = divmod(nodes - one, two - one)
    return transformer(1 + layers, extra=rest // (more - one))


def deep(blocks: int) -> Graph:
    """Residual gated layers, one after the other: ten nodes each with its derivative."""
    with Graph() as g:
        h = ops.input("x", (32, 64))
        for i in range(blocks):
            gate, up = (h @ ops.parameter(f"b{i}.{n}", (64, 64)) for n in "gu")
            h = h + (gate * ops.sigmoid(gate) * up) @ ops.parameter(f"b{i}.d", (64, 64))
        g.set_outputs(ops.mse_loss(h, ops.input("y", (32, 64))))
    return g


def small_mlp() -> Graph:
    """A network of two layers with names, 12-16-4, for a batch of eight."""
    with Graph() as g:
        x, y = ops.input("x", (8, 12)), ops.input("y", (8, 4))
        h = ops.relu(ops.bias_add(x @ ops.parameter("w1", (12, 16)), ops.parameter("b1", (16,)))).named("h")
        z = ops.bias_add(h @ ops.parameter("w2", (16, 4)), ops.parameter("b2", (4,))).named("z")
        g.output(ops.cross_entropy_loss(z, y))
    return g


def dropping() -> Graph:
    """Two layers with dropout, of which each step draws anew."""
    with Graph() as g:
        x, y = ops.input("x", (8, 12)), ops.input("y", (8, 3))
        h = ops.dropout((x @ ops.parameter("a", (12, 20))).relu(), 0.3)
        g.set_outputs([ops.mse_loss(h @ ops.parameter("b", (20, 3)), y)])
    return g


def gated_block() -> Graph:
    """The block of the lesson: two products with a bias, a gate, a product back."""
    with Graph() as g:
        x, p = ops.input("x", (32, 64)), ops.parameter
        gate = (x @ p("wg", (64, 128)) + p("bg", (128,))).named("g")
        up = (x @ p("wu", (64, 128)) + p("bu", (128,))).named("u")
        g.output(((gate * ops.sigmoid(gate) * up) @ p("wd", (128, 64)) + x).named("out"))
    return g


def there_and_back() -> Graph:
    """Twice transposed, twice negated, scaled by one: classes that become one, e-nodes that read their own class."""
    with Graph() as g:
        x, w = ops.input("x", (8, 4)), ops.input("w", (4, 8))
        y = ops.scale(ops.transpose(ops.transpose(ops.neg(ops.neg(ops.tanh(x @ w))))), 1.0)
        g.set_outputs({"a": ops.abs(-y) + ops.abs(y), "b": (w.T @ x.T).T + (ops.scalar(2.0) * 3.0)})
    return g


# the tour's data ------------------------------------------------------------------------------------------------------
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tour's digits in its order: images in 0 … 1, one-hot labels, classes. The first 1,437 rows train."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    classes = data.target[order]
    return (data.data[order] / 16).astype(np.float32), np.eye(CLASSES, dtype=np.float32)[classes], classes


TRAIN = 1437


def batch_rows(size: int = BATCH) -> Iterator[np.ndarray]:
    """The rows of the tour's batches, epoch after epoch, each in its own order."""
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(TRAIN)
        for at in range(TRAIN // size):
            yield order[at * size : (at + 1) * size]
        epoch += 1
