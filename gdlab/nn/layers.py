"""Layers: parameters under the names of public checkpoints, and a `forward` (or a call) that appends their ops.

    with gd.Graph() as g:
        x = gd.input("x", (32, 784))
        logits = gd.nn.Mlp("mlp", 784, 128, 10)(x)

A layer is made inside a current graph (or with `graph=`), declares how each parameter starts, and names the node of its
result after itself. Values come from `session.initialize(seed)`, `set_parameter` or a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

import numpy as np

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph, Value, whole

__all__ = [
    "AttentionConfig", "CausalSelfAttention", "Conv2d", "Embedding", "LayerNorm", "Linear", "Mlp", "RmsNorm",
    "SwiGluFfn", "TransformerBlock", "TransformerBlockConfig",
]  # fmt: skip

Activation = Literal["relu", "gelu", "silu", "sigmoid"]
ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": ops.relu, "gelu": ops.gelu, "silu": ops.silu, "sigmoid": ops.sigmoid,
}  # fmt: skip


def _check_sizes(layer: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise GraphError(layer, name, repr(size), "an int ≥ 1")


def _check_config(layer: str, config: object, kind: type) -> None:
    if not isinstance(config, kind):
        raise GraphError(layer, "config", f"{type(config).__name__} {config!r:.60}", f"a {kind.__name__}")


def _named(init: Callable[..., None]) -> Callable[..., None]:
    """A function that makes a layer, whose parameters' names begin with its own."""

    @wraps(init)
    def call(layer: _Layer, name: str, *args: Any, **kwargs: Any) -> None:
        if not isinstance(name, str):
            raise GraphError(type(layer).__name__, "name", repr(name), "a str")
        init(layer, name, *args, **kwargs)

    return call


class _Layer(ABC):
    """A base class of layers, which may be called like functions. One that cannot be made, or cannot take what it is
    given, leaves no parameter and no op behind."""

    name: str

    def __init_subclass__(cls) -> None:
        cls.__init__, cls.forward = whole(_named(cls.__init__)), whole(cls.forward)  # type: ignore[method-assign]

    @abstractmethod
    def forward(self, x: Value) -> Value:
        """Append the ops of this layer to the graph of `x`."""

    def __call__(self, x: Value) -> Value:
        return self.forward(x)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Linear(_Layer):
    """A linear layer, x · weight + bias: f32[n, in] -> f32[n, out]. Parameters `{name}.weight` [in, out], `{name}.bias`
    [out].

    The weight starts uniform in ±1/√in, the bias at 0.
    """

    def __init__(
        self, name: str, in_features: int, out_features: int, bias: bool = True, *, graph: Graph | None = None
    ) -> None:
        _check_sizes("Linear", in_features=in_features, out_features=out_features)
        self.name = name
        self.weight = ops.parameter(f"{name}.weight", (in_features, out_features), init="uniform", graph=graph)
        self.bias = ops.parameter(f"{name}.bias", (out_features,), init="zeros", graph=graph) if bias else None

    @classmethod
    def no_bias(cls, name: str, in_features: int, out_features: int, *, graph: Graph | None = None) -> Linear:
        """Return a linear layer without a bias."""
        return cls(name, in_features, out_features, bias=False, graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, in] -> f32[n, out]."""
        product = ops.matmul(x, self.weight)
        return (product if self.bias is None else ops.bias_add(product, self.bias)).named(self.name)


class Embedding(_Layer):
    """A table of embeddings, of which rows are read: u32[n] -> f32[n, dim]. Parameter `{name}` [vocabulary, dim], which
    starts normal, σ = 0.02."""

    def __init__(self, name: str, vocab_size: int, embed_dim: int, *, graph: Graph | None = None) -> None:
        _check_sizes("Embedding", vocab_size=vocab_size, embed_dim=embed_dim)
        self.name = name
        self.weight = ops.parameter(name, (vocab_size, embed_dim), init="normal(0.02)", graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: u32[n] -> f32[n, dim]."""
        return ops.embedding(x, self.weight).named(self.name)


class RmsNorm(_Layer):
    """A layer of `rms_norm` over the last axis: f32[..., dim] -> the same. Parameter `{name}` [dim], which starts at 1.
    """

    def __init__(self, name: str, dim: int, eps: float = 1e-5, *, graph: Graph | None = None) -> None:
        _check_sizes("RmsNorm", dim=dim)
        self.name, self.eps = name, eps
        self.weight = ops.parameter(name, (dim,), init="ones", graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[..., dim] -> f32[..., dim]."""
        return ops.rms_norm(x, self.weight, self.eps).named(self.name)


class LayerNorm(_Layer):
    """A layer of `layer_norm` over the last axis: f32[..., dim] -> the same. Parameters `{name}.weight`, `{name}.bias`
    [dim]."""

    def __init__(self, name: str, dim: int, eps: float = 1e-5, *, graph: Graph | None = None) -> None:
        _check_sizes("LayerNorm", dim=dim)
        self.name, self.eps = name, eps
        self.weight = ops.parameter(f"{name}.weight", (dim,), init="ones", graph=graph)
        self.bias = ops.parameter(f"{name}.bias", (dim,), init="zeros", graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[..., dim] -> f32[..., dim]."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps).named(self.name)


class Mlp(_Layer):
    """A perceptron of two layers, fc2(activation(fc1 x)): f32[n, in] -> f32[n, out]. Parameters `{name}.fc1.*` and
    `{name}.fc2.*` of `Linear`."""

    def __init__(
        self, name: str, in_features: int, hidden_features: int, out_features: int, activation: Activation = "relu", *,
        graph: Graph | None = None,
    ) -> None:  # fmt: skip
        _check_sizes("Mlp", in_features=in_features, hidden_features=hidden_features, out_features=out_features)
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise GraphError("Mlp", "activation", repr(activation), f"one of {', '.join(ACTIVATIONS)}")
        self.name, self.activation = name, activation
        self.fc1 = Linear(f"{name}.fc1", in_features, hidden_features, graph=graph)
        self.fc2 = Linear(f"{name}.fc2", hidden_features, out_features, graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, in] -> f32[n, out]."""
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x))).named(self.name)


class SwiGluFfn(_Layer):
    """A gated feed-forward layer, down(silu(gate x) · up x), without biases: f32[n, hidden] -> the same.

    Parameters `{name}.gate_proj.weight`, `{name}.up_proj.weight` [hidden, inter], `{name}.down_proj.weight`.
    """

    def __init__(self, name: str, hidden: int, intermediate: int, *, graph: Graph | None = None) -> None:
        _check_sizes("SwiGluFfn", hidden=hidden, intermediate=intermediate)
        self.name = name
        self.gate_proj = Linear.no_bias(f"{name}.gate_proj", hidden, intermediate, graph=graph)
        self.up_proj = Linear.no_bias(f"{name}.up_proj", hidden, intermediate, graph=graph)
        self.down_proj = Linear.no_bias(f"{name}.down_proj", intermediate, hidden, graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, hidden] -> f32[n, hidden]."""
        return self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x))).named(self.name)


class Conv2d(_Layer):
    """A convolution, `conv2d` plus a bias per channel: f32[n, in, h, w] -> f32[n, out, oh, ow].

    Parameters `{name}.weight` [out, in, k, k], which starts uniform in ±1/√(in·k·k), and `{name}.bias` [out], at 0.
    """

    def __init__(
        self, name: str, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
        bias: bool = True, *, graph: Graph | None = None,
    ) -> None:  # fmt: skip
        _check_sizes("Conv2d", in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        self.name, self.stride, self.padding = name, stride, padding
        shape = out_channels, in_channels, kernel_size, kernel_size
        self.weight = ops.parameter(f"{name}.weight", shape, init="uniform", graph=graph)
        self.bias = ops.parameter(f"{name}.bias", (out_channels,), init="zeros", graph=graph) if bias else None

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, in, h, w] -> f32[n, out, oh, ow]."""
        image = ops.conv2d(x, self.weight, self.stride, self.padding)
        return (image if self.bias is None else ops.add_per_channel(image, self.bias)).named(self.name)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """The extents of `CausalSelfAttention`: `kv_dim` = num_kv_heads · head_dim; num_heads · head_dim may differ from
    `hidden`."""

    hidden: int
    kv_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0


class CausalSelfAttention(_Layer):
    """A layer of causal self-attention, o(attention of rope(q x), rope(k x), v x), without biases: f32[n, hidden] ->
    the same.

    Parameters `{name}.q_proj.weight` [hidden, h·d], `.k_proj.weight` and `.v_proj.weight` [hidden, kv_dim],
    `.o_proj.weight` [h·d, hidden].
    """

    def __init__(self, name: str, config: AttentionConfig, *, graph: Graph | None = None) -> None:
        _check_config("CausalSelfAttention", config, AttentionConfig)
        c = config
        _check_sizes(
            "CausalSelfAttention", hidden=c.hidden, kv_dim=c.kv_dim, num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads, head_dim=c.head_dim,
        )  # fmt: skip
        wanted = c.num_kv_heads * c.head_dim
        if c.kv_dim != wanted:
            formula = f"num_kv_heads · head_dim = {c.num_kv_heads} · {c.head_dim} = {wanted}"
            raise GraphError("CausalSelfAttention", "kv_dim", c.kv_dim, formula)
        if c.num_heads % c.num_kv_heads:
            raise GraphError("CausalSelfAttention", "num_kv_heads", c.num_kv_heads, f"a divisor of {c.num_heads}")
        if c.head_dim % 2:
            raise GraphError("CausalSelfAttention", "head_dim", c.head_dim, "an even number: pairs are turned")
        self.name, self.config = name, config
        width = c.num_heads * c.head_dim
        self.q_proj = Linear.no_bias(f"{name}.q_proj", c.hidden, width, graph=graph)
        self.k_proj = Linear.no_bias(f"{name}.k_proj", c.hidden, c.kv_dim, graph=graph)
        self.v_proj = Linear.no_bias(f"{name}.v_proj", c.hidden, c.kv_dim, graph=graph)
        self.o_proj = Linear.no_bias(f"{name}.o_proj", width, c.hidden, graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, hidden] -> f32[n, hidden]."""
        c = self.config
        q = ops.rope(self.q_proj(x), c.rope_theta, c.head_dim)
        k = ops.rope(self.k_proj(x), c.rope_theta, c.head_dim)
        mixed = ops.causal_attention(q, k, self.v_proj(x), c.num_heads, c.num_kv_heads, c.head_dim)
        return self.o_proj(mixed).named(self.name)


@dataclass(frozen=True, slots=True)
class TransformerBlockConfig:
    """The extents of `TransformerBlock`: those of its attention, of its feed-forward part, and the eps of its norms."""

    hidden: int
    intermediate: int
    kv_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def attention(self) -> AttentionConfig:
        """The configuration of the block's `CausalSelfAttention`."""
        return AttentionConfig(
            self.hidden, self.kv_dim, self.num_heads, self.num_kv_heads, self.head_dim, self.rope_theta
        )


class TransformerBlock(_Layer):
    """A transformer block, h + feed-forward(norm h) with h = x + attention(norm x): f32[n, hidden] -> the same.

    Parameters `{name}.input_layernorm.weight`, `{name}.self_attn.*`, `{name}.post_attention_layernorm.weight`,
    `{name}.mlp.*`.
    """

    def __init__(self, name: str, config: TransformerBlockConfig, *, graph: Graph | None = None) -> None:
        _check_config("TransformerBlock", config, TransformerBlockConfig)
        self.name, self.config = name, config
        hidden, eps = config.hidden, config.rms_eps
        self.input_layernorm = RmsNorm(f"{name}.input_layernorm.weight", hidden, eps, graph=graph)
        self.self_attn = CausalSelfAttention(f"{name}.self_attn", config.attention, graph=graph)
        self.post_attention_layernorm = RmsNorm(f"{name}.post_attention_layernorm.weight", hidden, eps, graph=graph)
        self.mlp = SwiGluFfn(f"{name}.mlp", hidden, config.intermediate, graph=graph)

    def forward(self, x: Value) -> Value:
        """Append the ops of the layer: f32[n, hidden] -> f32[n, hidden]."""
        h = x + self.self_attn(self.input_layernorm(x))
        return (h + self.mlp(self.post_attention_layernorm(h))).named(self.name)
