"""One encoder block for all encoders: norms before or behind, projections packed or apart, biases, layer scale, mask.

A block takes its sizes from `BlockConfig` and the names of its parameters from `BlockNames`, so that a family of
checkpoints adds a table of names and no block of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gdlab import nn, ops
from gdlab.base.errors import GraphError
from gdlab.graph import Value
from gdlab.models.blocks import attend

Projection = Literal["q", "k", "v", "out", "fc1", "fc2"]
Function = Callable[[Value], Value]
MASKED = -1e4  # added to the scores of masked keys: exp of it is 0 in float32


def quick_gelu(x: Value) -> Value:
    """Append x · sigmoid(1.702 · x), elementwise: f32[...] -> f32[...]."""
    return x * ops.sigmoid(x * 1.702)


FUNCTIONS: dict[str, Function] = {  # by the names of transformers
    "gelu": ops.gelu_erf, "gelu_new": ops.gelu, "gelu_pytorch_tanh": ops.gelu, "gelu_fast": ops.gelu,
    "quick_gelu": quick_gelu, "relu": ops.relu, "silu": ops.silu, "swish": ops.silu, "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names of a block's parameters, relative to the block. `query`, `key` and `value` are projections of their own
    unless `packed` names the one that has all three side by side; `scales` those of layer scale."""

    norms: tuple[str, str]
    out: str
    mlp: tuple[str, str]
    query: str = ""
    key: str = ""
    value: str = ""
    packed: str = ""
    scales: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """The extents and kind of a block: norms before each half (`pre`) or behind its sum (`post`), projections without a
    bias, a factor per channel for each half (`layer_scale`)."""

    width: int
    heads: int
    hidden: int
    names: BlockNames
    eps: float = 1e-5
    norm: Literal["pre", "post"] = "pre"
    activation: str = "gelu"
    without_bias: frozenset[Projection] = frozenset()
    layer_scale: bool = False


def function(model: str, name: str) -> Function:
    """Return the activation that transformers gives this name, or raise for an unknown one."""
    if name not in FUNCTIONS:
        raise GraphError(model, "activation", repr(name), f"one of {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]


def encoder_block(x: Value, name: str, config: BlockConfig, batch: int = 1, mask: Value | None = None) -> Value:
    """Append attention and feed-forward part of block `name`, each added to its input: f32[batch · n, width] -> the
    same.

    `mask` f32[batch, n]: 1 for keys that are attended to, 0 for others.
    """
    return (_pre_norm if config.norm == "pre" else _post_norm)(x, name, config, batch, mask)


def _pre_norm(x: Value, name: str, c: BlockConfig, batch: int, mask: Value | None) -> Value:
    first, second = (f"{name}.{norm}" for norm in c.names.norms)
    x = x + _scaled(_attention(nn.LayerNorm(first, c.width, c.eps)(x), name, c, batch, mask), name, c, 0)
    h = _linear(name, "fc1", c)(nn.LayerNorm(second, c.width, c.eps)(x))
    return x + _scaled(_linear(name, "fc2", c)(FUNCTIONS[c.activation](h)), name, c, 1)


def _post_norm(x: Value, name: str, c: BlockConfig, batch: int, mask: Value | None) -> Value:
    first, second = (f"{name}.{norm}" for norm in c.names.norms)
    x = nn.LayerNorm(first, c.width, c.eps)(x + _scaled(_attention(x, name, c, batch, mask), name, c, 0))
    h = FUNCTIONS[c.activation](_linear(name, "fc1", c)(x))
    return nn.LayerNorm(second, c.width, c.eps)(x + _scaled(_linear(name, "fc2", c)(h), name, c, 1))


def _linear(name: str, part: Projection, c: BlockConfig) -> nn.Linear:
    names, wide = c.names, c.width
    paths: dict[Projection, tuple[str, int, int]] = {
        "q": (names.query, wide, wide), "k": (names.key, wide, wide), "v": (names.value, wide, wide),
        "out": (names.out, wide, wide), "fc1": (names.mlp[0], wide, c.hidden), "fc2": (names.mlp[1], c.hidden, wide),
    }  # fmt: skip
    path, rows, columns = paths[part]
    return nn.Linear(f"{name}.{path}", rows, columns, part not in c.without_bias)


def _projected(h: Value, name: str, c: BlockConfig) -> tuple[Value, ...]:
    """Return queries, keys and values."""
    if not c.names.packed:
        return tuple(_linear(name, part, c)(h) for part in ("q", "k", "v"))
    packed = nn.Linear(f"{name}.{c.names.packed}", c.width, 3 * c.width, "q" not in c.without_bias)
    return tuple(packed(h).split([c.width] * 3, 1))


def _attention(h: Value, name: str, c: BlockConfig, batch: int, mask: Value | None) -> Value:
    q, k, v = _projected(h, name, c)
    out = _linear(name, "out", c)
    return out(attend(q, k, v, batch, c.heads) if mask is None else _masked(q, k, v, mask, c.heads))


def _masked(q: Value, k: Value, v: Value, mask: Value, heads: int) -> Value:
    """Append attention of the rows of each sequence to those of its keys that the mask allows."""
    batch, rows = mask.shape
    head = q.shape[1] // heads
    bias = (mask * -MASKED + MASKED).split([1] * batch, 0)
    parts = (t.split([rows] * batch, 0) for t in (q, k, v))
    mixed = [
        ops.biased_attention(*each, ops.broadcast_to(row.reshape((1, 1, rows)), (heads, rows, rows)), heads, heads,
                             head, head**-0.5, False)
        for row, *each in zip(bias, *parts, strict=True)
    ]  # fmt: skip
    return mixed[0] if batch == 1 else ops.concat(mixed, 0)


def _scaled(x: Value, name: str, c: BlockConfig, half: int) -> Value:
    """Return a half of the block times its factors, if the block has any."""
    if not c.layer_scale:
        return x
    return ops.bias_mul(x, ops.parameter(f"{name}.{c.names.scales[half]}", (c.width,), init="ones"))
