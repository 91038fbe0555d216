"""A causal language model of pre-norm transformer blocks: to train, to read a prompt, to write token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gdlab import nn, ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph, Value

Mode = Literal["training", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class TransformerLmConfig:
    """Extents of `transformer_lm`. `tied`: the head is the transposed table of embeddings. `head_size`: the width of a
    head where it is not hidden_size / num_attention_heads."""

    vocab_size: int = 256
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 1024
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tied: bool = False
    head_size: int | None = None

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def kv_dim(self) -> int:
        """Width of keys and values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def block(self) -> nn.TransformerBlockConfig:
        """The part that each block takes."""
        return nn.TransformerBlockConfig(
            self.hidden_size, self.intermediate_size, self.kv_dim, self.num_attention_heads, self.num_key_value_heads,
            self.head_dim, self.rms_norm_eps, self.rope_theta,
        )  # fmt: skip


def transformer_lm(config: TransformerLmConfig | None = None, length: int = 64, mode: Mode = "training") -> Graph:
    """RMS norms, rotary positions, causal attention, SwiGLU; parameters `model.embed_tokens.weight`,
    `model.layers.{i}.*` (of `nn.TransformerBlock`), `model.norm.weight` and, not tied, `lm_head.weight`.

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
    if config.head_size is None and config.hidden_size % config.num_attention_heads:
        given = f"{config.num_attention_heads} heads"
        raise GraphError("transformer_lm", "num_attention_heads", given, f"a divisor of {config.hidden_size}")
    with Graph() as g:
        MODES[mode](g, _Model(config), length)
    return g


class _Model:
    """The layers, made in the current graph."""

    def __init__(self, config: TransformerLmConfig) -> None:
        c = self.config = config
        self.embed = nn.Embedding("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
        self.blocks = [nn.TransformerBlock(f"model.layers.{i}", c.block) for i in range(c.num_hidden_layers)]
        self.norm = nn.RmsNorm("model.norm.weight", c.hidden_size, c.rms_norm_eps)
        self.head = None if c.tied else nn.Linear.no_bias("lm_head", c.hidden_size, c.vocab_size)

    def logits(self, x: Value) -> Value:
        """Append the layers behind the last block."""
        x = self.norm(x)
        return (ops.matmul_bt(x, self.embed.weight) if self.head is None else self.head(x)).named("logits")


Attention = Callable[[Value, Value, Value], Value]  # of q, k, v before the rotation


def _block(block: nn.TransformerBlock, x: Value, attend: Attention) -> Value:
    """`block.forward` with another attention between its projections."""
    a, h = block.self_attn, block.input_layernorm(x)
    x = x + a.o_proj(attend(a.q_proj(h), a.k_proj(h), a.v_proj(h)))
    return x + block.mlp(block.post_attention_layernorm(x))


def _training(g: Graph, model: _Model, length: int) -> None:
    x = model.embed(ops.input_u32("token_ids", (length,)))
    for block in model.blocks:
        x = block(x)
    labels = ops.input("labels", (length, model.config.vocab_size))
    g.output(ops.cross_entropy_loss(model.logits(x), labels), "loss")


def _prefill(g: Graph, model: _Model, length: int) -> None:
    c, kept = model.config, list[Value]()
    x = model.embed(ops.input_u32("token_ids", (length,)))

    def attend(q: Value, k: Value, v: Value) -> Value:
        q, k = ops.rope(q, c.rope_theta, c.head_dim), ops.rope(k, c.rope_theta, c.head_dim)
        kept.extend((k, v))
        return ops.causal_attention(q, k, v, c.num_attention_heads, c.num_key_value_heads, c.head_dim)

    for block in model.blocks:
        x = _block(block, x, attend)
    g.output(model.logits(x), "logits")
    for name, value in zip(cache_names(c), kept, strict=True):
        g.output(value, name)


def _decode(g: Graph, model: _Model, length: int) -> None:
    c = model.config
    x, position = model.embed(ops.input_u32("token_ids", (1,))), ops.input_u32("kv_pos", (1,))
    caches = iter([ops.parameter(name, (length, c.kv_dim), init="zeros") for name in cache_names(c)])

    def attend(q: Value, k: Value, v: Value) -> Value:
        q, k = (ops.rope_dynamic_offset(t, position, c.rope_theta, c.head_dim) for t in (q, k))
        keys, values = (ops.cache_write(new, next(caches), position) for new in (k, v))
        heads = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        return ops.cached_attention(q, keys, values, position, *heads)

    for block in model.blocks:
        x = _block(block, x, attend)
    g.output(model.logits(x), "logits")


def cache_names(config: TransformerLmConfig) -> list[str]:
    """`k.0`, `v.0`, `k.1` …: the caches of keys and values, by layer."""
    return [f"{kind}.{layer}" for layer in range(config.num_hidden_layers) for kind in "kv"]


MODES: dict[str, Callable[[Graph, _Model, int], None]] = {
    "training": _training, "prefill": _prefill, "decode": _decode,
}  # fmt: skip
