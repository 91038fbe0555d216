"""A causal language model of transformer blocks: for training, for reading a prompt, for writing token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from gdlab import nn, ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph, Value
from gdlab.models.lm_block import LmBlock, Rotation, ToCaches, ToRows, norm
from gdlab.models.lm_config import TransformerLmConfig, check_config

__all__ = ["MODES", "Mode", "TransformerLmConfig", "cache_names", "transformer_lm"]

Mode = Literal["training", "prefill", "decode"]


def transformer_lm(config: TransformerLmConfig | None = None, length: int = 64, mode: Mode = "training") -> Graph:
    """Return the graph of a language model with norms, positions, causal attention and feed-forward parts as
    configured; by default RMS norms before them, rotary positions and SwiGLU. Parameters `model.embed_tokens.weight`,
    `model.layers.{i}.*` (of `LmBlock`), `model.norm.*`, not tied `lm_head.weight`, of learned positions
    `model.embed_positions.weight`.

    training: `token_ids` u32[length], `labels` f32[length, vocab] -> `loss`
    prefill:  `token_ids` u32[length] -> `logits` f32[length, vocab], `k.{i}` and `v.{i}` f32[length, kv_dim]
    decode:   `token_ids` u32[1], `kv_pos` u32[1] -> `logits` f32[1, vocab]

    The caches of decode are parameters `k.{i}`, `v.{i}` f32[length, kv_dim], one row per position, that start at 0. A
    step writes row `kv_pos` in place, so they stay on the device from step to step; `session.upload_param` fills them
    with what prefill gave. A session for decoding is one for inference: nothing is derived through a cache.
    """
    config = TransformerLmConfig() if config is None else config
    if mode not in MODES:
        raise GraphError("transformer_lm", "mode", repr(mode), f"one of {', '.join(MODES)}")
    check_config(config, length)
    with Graph() as g:
        MODES[mode](g, _LanguageModel(config), length)
    return g


class _LanguageModel:
    """The layers, made in the current graph."""

    def __init__(self, config: TransformerLmConfig) -> None:
        c = self.config = config
        self.embed = nn.Embedding("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
        self.places: nn.Embedding | None = None
        if c.positions:
            self.places = nn.Embedding("model.embed_positions.weight", c.positions, c.hidden_size)
        self.blocks = [LmBlock(f"model.layers.{i}", c) for i in range(c.num_hidden_layers)]
        self.norm = norm("model.norm", c)
        self.head = None if c.tied else nn.Linear.no_bias("lm_head", c.hidden_size, c.vocab_size)
        self.rotation = Rotation(c)

    def embedded(self, ids: Value) -> Value:
        """Append the embeddings of tokens."""
        x, scale = self.embed(ids), self.config.embedding_scale
        return x if scale == 1 else x.scale(scale)

    def placed(self, x: Value, position: Value | None = None) -> Value:
        """Append learned positions, if there are any: from 0 on, or the one at `position`."""
        if self.places is None:
            return x
        first = ops.constant_u32(np.arange(x.shape[0], dtype=np.uint32)) if position is None else position
        return x + self.places(first)

    def logits(self, x: Value) -> Value:
        """Append the layers behind the last block."""
        x, cap = self.norm(x), self.config.logit_softcap
        logits = ops.matmul_bt(x, self.embed.weight) if self.head is None else self.head(x)
        logits = logits.scale(1 / cap).tanh().scale(cap) if cap else logits
        return logits.named("logits")


def _training(g: Graph, model: _LanguageModel, length: int) -> None:
    x = model.placed(model.embedded(ops.input_u32("token_ids", (length,))))
    for layer, block in enumerate(model.blocks):
        x = block.forward(x, ToRows(model.rotation, layer), named=True)
    labels = ops.input("labels", (length, model.config.vocab_size))
    g.output(ops.cross_entropy_loss(model.logits(x), labels), "loss")


def _prefill(g: Graph, model: _LanguageModel, length: int) -> None:
    kept = list[Value]()
    x = model.placed(model.embedded(ops.input_u32("token_ids", (length,))))
    for layer, block in enumerate(model.blocks):
        x = block.forward(x, ToRows(model.rotation, layer, kept))
    g.output(model.logits(x), "logits")
    for name, value in zip(cache_names(model.config), kept, strict=True):
        g.output(value, name)


def _decode(g: Graph, model: _LanguageModel, length: int) -> None:
    c = model.config
    x, position = model.embedded(ops.input_u32("token_ids", (1,))), ops.input_u32("kv_pos", (1,))
    caches = [ops.parameter(name, (length, c.kv_dim), init="zeros") for name in cache_names(c)]
    x = model.placed(x, position)
    for layer, block in enumerate(model.blocks):
        x = block.forward(x, ToCaches(model.rotation, layer, caches[2 * layer : 2 * layer + 2], position))
    g.output(model.logits(x), "logits")


def cache_names(config: TransformerLmConfig) -> list[str]:
    """Return the names of the caches of keys and values by layer: `k.0`, `v.0`, `k.1` …."""
    return [f"{kind}.{layer}" for layer in range(config.num_hidden_layers) for kind in "kv"]


MODES: dict[str, Callable[[Graph, _LanguageModel, int], None]] = {
    "training": _training, "prefill": _prefill, "decode": _decode,
}  # fmt: skip
