"""The configuration of a causal language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gdlab.base.errors import GraphError
from gdlab.models.rope_scaling import RopeScaling

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class TransformerLmConfig:
    """The extents and parts of `transformer_lm`; the defaults are those of LLaMA.

    `tied`: the head is the transposed table of embeddings. `head_size`: the width of a head where it is not
    hidden_size / num_attention_heads. `norm`: "rms" or "layer"; `post_norms`: there are norms behind attention and
    feed-forward part, too; `qk_norms`: rms norms of each head of queries and keys. `biases`: the projections that have
    one. `positions`: rows of a table of learned positions; 0: rotary ones, of the first `rotary_dim` elements of a head
    (None: all) at the rates that `rope_scaling` leaves. `windows`: for each layer the keys that a query sees, 0: all;
    (): all in every layer. `attention_scale`: what scores are multiplied by (None: 1/√head_dim); soft caps bound scores
    and logits (0: none). `gated`: the feed-forward part multiplies its activation by another projection.
    `embedding_scale` multiplies the embeddings.
    """

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
    norm: Literal["rms", "layer"] = "rms"
    post_norms: bool = False
    qk_norms: bool = False
    biases: tuple[str, ...] = ()
    positions: int = 0
    rotary_dim: int | None = None
    rope_scaling: RopeScaling | None = None
    windows: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    activation: Literal["silu", "gelu", "gelu_erf", "relu"] = "silu"
    gated: bool = True
    embedding_scale: float = 1.0

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def kv_dim(self) -> int:
        """The width of keys and values."""
        return self.num_key_value_heads * self.head_dim

    def window(self, layer: int, length: int) -> int:
        """Return the number of keys that a query of a layer attends to, 0 for all of `length`."""
        window = self.windows[layer] if self.windows else 0
        return window if window < length else 0


def check_config(c: TransformerLmConfig, length: int) -> None:
    """Raise for a configuration whose extents contradict each other."""
    if c.head_size is None and c.hidden_size % c.num_attention_heads:
        given = f"{c.num_attention_heads} heads"
        raise GraphError("transformer_lm", "num_attention_heads", given, f"a divisor of {c.hidden_size}")
    if c.num_attention_heads % c.num_key_value_heads:
        wanted = f"a divisor of {c.num_attention_heads}"
        raise GraphError("transformer_lm", "num_key_value_heads", c.num_key_value_heads, wanted)
    turned = c.head_dim if c.rotary_dim is None else c.rotary_dim
    if not c.positions and (turned % 2 or not 2 <= turned <= c.head_dim):
        wanted = f"an even number, at most the head's {c.head_dim}: pairs are turned"
        raise GraphError("transformer_lm", "head_dim" if c.rotary_dim is None else "rotary_dim", turned, wanted)
    if c.rope_scaling is not None:
        _check_scaling(c, c.rope_scaling, turned // 2, length)
    if c.positions and length > c.positions:
        raise GraphError("transformer_lm", "length", length, f"at most the {c.positions:,} positions that are learned")
    if c.windows and (len(c.windows) != c.num_hidden_layers or min(c.windows) < 0):
        raise GraphError("transformer_lm", "windows", c.windows, f"an int ≥ 0 for each of {c.num_hidden_layers} layers")
    unknown = [name for name in c.biases if name not in PROJECTIONS]
    if unknown:
        raise GraphError("transformer_lm", "biases", repr(unknown[0]), f"some of {', '.join(PROJECTIONS)}")


def _check_scaling(c: TransformerLmConfig, scaling: RopeScaling, pairs: int, length: int) -> None:
    if scaling.most is not None and length > scaling.most:
        given, wanted = f"{length:,}", f"at most {scaling.most:,} positions, for which these rates are"
        if scaling.kind == "longrope":
            wanted += f"; from_pretrained(folder, length={length}) takes those of longer texts"
        raise GraphError("transformer_lm", "length", given, wanted)
    if scaling.kind == "longrope" and {len(scaling.short), len(scaling.long)} != {pairs}:
        given = f"{len(scaling.short)} short and {len(scaling.long)} long factors"
        raise GraphError("transformer_lm", "rope_scaling", given, f"{pairs} of each, one for each pair of a head")
    if scaling.kind == "yarn" and c.rope_theta <= 1:
        raise GraphError("transformer_lm", "rope_theta", c.rope_theta, "a number above 1: rates fall from pair to pair")
