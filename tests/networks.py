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


def decomposed(layers: int = 1, length: int = 32, width: int = 64, inner: int = 128) -> Graph:
    """A transformer in which every part is written out: rms norms by √, rotary positions, softmax, SwiGLU, a last layer
    norm and a loss by log softmax; one head."""
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(width) // 2 * 2 / width)[None, :]
    turn = np.kron(np.eye(width // 2), [[0.0, 1.0], [-1.0, 0.0]])  # (x₀, x₁) -> (−x₁, x₀)
    with Graph() as g:
        x, target = ops.input("x", (length, width)), ops.input("target", (length, width))
        mask = ops.constant(np.triu(np.full((length, length), -1e9, np.float32), 1))
        cos, sin, rotation = (ops.constant(part.astype(np.float32)) for part in (np.cos(angles), np.sin(angles), turn))

        def weight(name: str, *shape: int) -> Value:
            return ops.parameter(name, shape)

        def norm(v: Value, name: str) -> Value:
            return v / ops.sqrt((v * v).sum(-1, keepdims=True) / width + 1e-5) * weight(name, width)

        def softmax_parts(v: Value) -> tuple[Value, Value]:
            shifted = v - v.max(-1, keepdims=True)
            return shifted, ops.exp(shifted).sum(-1, keepdims=True)

        for i in range(layers):
            a = norm(x, f"{i}.norm1")
            q, k, v = (a @ weight(f"{i}.{name}", width, width) for name in ("wq", "wk", "wv"))
            q, k = (t * cos + t @ rotation * sin for t in (q, k))
            shifted, total = softmax_parts(q @ k.T * width**-0.5 + mask)
            x = x + ops.exp(shifted) / total @ v @ weight(f"{i}.wo", width, width)
            b = norm(x, f"{i}.norm2")
            gate, up = b @ weight(f"{i}.gate", width, inner), b @ weight(f"{i}.up", width, inner)
            x = x + gate * ops.sigmoid(gate) * up @ weight(f"{i}.down", inner, width)
        c = x - x.mean(-1, keepdims=True)
        x = c / ops.sqrt((c**2).mean(-1, keepdims=True) + 1e-5) * weight("norm.w", width) + weight("norm.b", width)
        shifted, total = softmax_parts(x)
        g.output(-(target * (shifted - ops.log(total))).mean_all())
    return g


def written_with(nodes: int, count: Callable[[Graph], int]) -> Graph:
    """The transformer for which `count` comes nearest to `nodes`, from below: whole blocks, then elementwise ops."""
    one, two, more = (count(transformer(layers, extra=extra)) for layers, extra in ((1, 0), (2, 0), (1, 1)))
    layers, rest = divmod(nodes - one, two - one)
    return transformer(1 + layers, extra=rest // (more - one))


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
