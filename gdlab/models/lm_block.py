"""The block of a causal language model, and its attention to rows of a prompt or to caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gdlab import nn, ops
from gdlab.graph import Value
from gdlab.models.lm_config import TransformerLmConfig


class Attention(Protocol):
    """The part of attention between the projections: an interface of two methods."""

    def turned(self, x: Value) -> Value:
        """Turn queries or keys by their positions."""

    def mixed(self, q: Value, k: Value, v: Value) -> Value:
        """Return for each query the mean of the values of the keys that it attends to."""


GATED: dict[str, Callable[[Value, Value], Value]] = {"silu": ops.swiglu, "gelu": ops.geglu}  # with ops of their own
ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "silu": ops.silu, "gelu": ops.gelu, "gelu_erf": ops.gelu_erf, "relu": ops.relu,
}  # fmt: skip


def norm(name: str, c: TransformerLmConfig) -> nn.RmsNorm | nn.LayerNorm:
    """Make the configuration's norm: parameters `{name}.weight` and, of a layer norm, `{name}.bias`."""
    if c.norm == "layer":
        return nn.LayerNorm(name, c.hidden_size, c.rms_norm_eps)
    return nn.RmsNorm(f"{name}.weight", c.hidden_size, c.rms_norm_eps)


def _linear(path: str, part: str, c: TransformerLmConfig, inner: int, outer: int) -> nn.Linear:
    return nn.Linear(f"{path}.{part}", inner, outer, part in c.biases)


class LmBlock:
    """A block: x + attention(norm x), then its feed-forward part: f32[n, hidden] -> the same.

    Parameters `{name}.input_layernorm.*`, `.self_attn.{q,k,v,o}_proj.*`, `.self_attn.{q,k}_norm.weight`,
    `.post_attention_layernorm.*`, `.mlp.{gate,up,down}_proj.*`. With norms behind both parts, that behind attention is
    `.post_attention_layernorm.*`, those of the feed-forward part are `.pre_feedforward_layernorm.*` and
    `.post_feedforward_layernorm.*`.
    """

    def __init__(self, name: str, config: TransformerLmConfig) -> None:
        c, self.name = config, name
        self.input_layernorm = norm(f"{name}.input_layernorm", c)
        self.self_attn = _Projections(f"{name}.self_attn", c)
        after, before = "post_attention_layernorm", "pre_feedforward_layernorm"
        self.behind_attention = norm(f"{name}.{after}", c) if c.post_norms else None
        self.before_mlp = norm(f"{name}.{before if c.post_norms else after}", c)
        self.behind_mlp = norm(f"{name}.post_feedforward_layernorm", c) if c.post_norms else None
        self.mlp = _FeedForward(f"{name}.mlp", c)

    def forward(self, x: Value, attention: Attention, named: bool = False) -> Value:
        """Append the block with this attention; `named`: give the nodes of its parts and its own their names."""
        mixed = self.self_attn.forward(self.input_layernorm(x), attention, named)
        x = x + (mixed if self.behind_attention is None else self.behind_attention(mixed))
        more = self.mlp.forward(self.before_mlp(x))
        x = x + (more if self.behind_mlp is None else self.behind_mlp(more))
        return x.named(self.name) if named else x


class _Projections:
    """The projections of attention, and the norms of heads."""

    def __init__(self, name: str, c: TransformerLmConfig) -> None:
        self.name, self.config = name, c
        width, hidden = c.num_attention_heads * c.head_dim, c.hidden_size
        self.q_proj, self.k_proj, self.v_proj = (
            _linear(name, part, c, hidden, outer)
            for part, outer in (("q_proj", width), ("k_proj", c.kv_dim), ("v_proj", c.kv_dim))
        )
        self.o_proj = _linear(name, "o_proj", c, width, hidden)
        self.head_norms: tuple[nn.RmsNorm, ...] = ()
        if c.qk_norms:
            parts = ("q_norm", "k_norm")
            self.head_norms = tuple(nn.RmsNorm(f"{name}.{p}.weight", c.head_dim, c.rms_norm_eps) for p in parts)

    def forward(self, x: Value, attention: Attention, named: bool) -> Value:
        """Append the projections and the attention between them."""
        if named:  # in the order of nn.CausalSelfAttention
            q, k = attention.turned(self._query(x)), attention.turned(self._key(x))
            return self.o_proj(attention.mixed(q, k, self.v_proj(x))).named(self.name)
        q, k, v = self._query(x), self._key(x), self.v_proj(x)
        q, k = attention.turned(q), attention.turned(k)
        return self.o_proj(attention.mixed(q, k, v))

    def _query(self, x: Value) -> Value:
        c, q = self.config, self._normed(0, self.q_proj(x))
        scale = 1.0 if c.attention_scale is None else c.attention_scale * math.sqrt(c.head_dim)
        return q if abs(scale - 1) < 1e-12 else q.scale(scale)

    def _key(self, x: Value) -> Value:
        return self._normed(1, self.k_proj(x))

    def _normed(self, which: int, x: Value) -> Value:
        if not self.head_norms:
            return x
        return self.head_norms[which](x.reshape((-1, self.config.head_dim))).reshape(x.shape)


class _FeedForward:
    """The feed-forward part: down(activation(gate x) · up x), or without a gate down(activation(up x))."""

    def __init__(self, name: str, c: TransformerLmConfig) -> None:
        self.name, self.activation = name, c.activation
        hidden, wide = c.hidden_size, c.intermediate_size
        self.gate_proj = _linear(name, "gate_proj", c, hidden, wide) if c.gated else None
        self.up_proj = _linear(name, "up_proj", c, hidden, wide)
        self.down_proj = _linear(name, "down_proj", c, wide, hidden)

    def forward(self, x: Value) -> Value:
        act = ACTIVATIONS[self.activation]
        if self.gate_proj is None:
            inner = act(self.up_proj(x))
        elif self.activation in GATED:
            inner = GATED[self.activation](self.gate_proj(x), self.up_proj(x))
        else:
            inner = act(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(inner).named(self.name)


class Rotation:
    """The rotation of queries and keys by their positions, in the current graph."""

    def __init__(self, config: TransformerLmConfig) -> None:
        c = self.config = config
        self.width = c.head_dim if c.rotary_dim is None else c.rotary_dim
        self.divisors: Value | None = None
        if c.rope_scaling is not None:
            self.divisors = ops.constant(np.array(c.rope_scaling.divisors(c.rope_theta, self.width), np.float32))

    def turned(self, x: Value, position: Value | None) -> Value:
        """Turn the first elements of every head by its position; with learned positions leave them as they are."""
        d = self.config.head_dim
        if self.config.positions:
            return x
        if self.width == d:
            return self._rotated(x, position)
        turning, rest = x.reshape((x.shape[0], -1, d)).split([self.width, d - self.width], 2)
        turned = self._rotated(turning.reshape((x.shape[0], -1)), position)
        return ops.concat([turned.reshape(turning.shape), rest], 2).reshape(x.shape)

    def _rotated(self, x: Value, position: Value | None) -> Value:
        theta, scaling = self.config.rope_theta, self.config.rope_scaling
        if position is None:
            rotated = ops.rope(x, theta, self.width, freq_factors=self.divisors)
        else:
            rotated = ops.rope_dynamic_offset(x, position, theta, self.width, freq_factors=self.divisors)
        return rotated if scaling is None or scaling.magnitude == 1 else rotated.scale(scaling.magnitude)


class ToRows:
    """Causal attention of a layer to the rows of a prompt; `kept` takes their keys and values."""

    def __init__(self, rotation: Rotation, layer: int, kept: list[Value] | None = None) -> None:
        self.rotation, self.layer, self.kept = rotation, layer, kept

    def turned(self, x: Value) -> Value:
        return self.rotation.turned(x, None)

    def mixed(self, q: Value, k: Value, v: Value) -> Value:
        c = self.rotation.config
        heads = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        cap, window = c.attention_softcap, c.window(self.layer, q.shape[0])
        if self.kept is not None:
            self.kept.extend((k, v))
        if cap:
            return ops.softcap_attention(q, k, v, *heads, cap, window)
        if window:
            return ops.sliding_window_attention(q, k, v, *heads, window)
        return ops.causal_attention(q, k, v, *heads)


class ToCaches:
    """Attention of a layer to its caches of keys and values, in which the row at `position` is written first."""

    def __init__(self, rotation: Rotation, layer: int, caches: Sequence[Value], position: Value) -> None:
        self.rotation, self.layer, self.caches, self.position = rotation, layer, caches, position

    def turned(self, x: Value) -> Value:
        return self.rotation.turned(x, self.position)

    def mixed(self, q: Value, k: Value, v: Value) -> Value:
        c, pos = self.rotation.config, self.position
        heads = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        keys, values = (ops.cache_write(new, cache, pos) for new, cache in zip((k, v), self.caches, strict=True))
        cap, window = c.attention_softcap, c.window(self.layer, keys.shape[0])
        if not cap and not window:
            return ops.cached_attention(q, keys, values, pos, *heads)
        one = ops.constant_u32(np.ones(1, np.uint32))  # the queries of a step
        if cap:
            return ops.cached_softcap_attention(q, keys, values, pos, one, *heads, cap, window)
        return ops.cached_block_attention(q, keys, values, pos, one, *heads, window)
