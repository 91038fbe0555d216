"""The encoder of Whisper (Radford and others, 2022) under the parameter names of OpenAI's checkpoints, or others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab import nn, ops
from gdlab.graph import Graph, Value
from gdlab.models.blocks import check_extents, check_multiple
from gdlab.models.encoder_block import BlockConfig, BlockNames, encoder_block, function


@dataclass(frozen=True, slots=True)
class WhisperNames:
    """The names of the parameters of `whisper_encoder`; `block` has the place of the number. Without `positions` their
    table is a constant of sines, as in every checkpoint of Whisper."""

    convolutions: tuple[str, str]
    block: str
    parts: BlockNames
    norm: str
    positions: str = ""


OPENAI = WhisperNames(
    ("encoder.conv1", "encoder.conv2"), "encoder.blocks.{}",
    BlockNames(("attn_ln", "mlp_ln"), "attn.out", ("mlp.0", "mlp.2"), "attn.query", "attn.key", "attn.value"),
    "encoder.ln_post",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The extents of `whisper_encoder`, by the names of checkpoints; the defaults are those of `tiny`. `mlp_dim` 0:
    four times the width. `activation`: of the blocks, the convolutions have GELU."""

    n_mels: int = 80
    n_audio_ctx: int = 1500
    n_audio_state: int = 384
    n_audio_head: int = 6
    n_audio_layer: int = 4
    mlp_dim: int = 0
    activation: str = "gelu"
    names: WhisperNames = OPENAI

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block."""
        hidden = self.mlp_dim or 4 * self.n_audio_state
        return BlockConfig(self.n_audio_state, self.n_audio_head, hidden, self.names.parts,
                           activation=self.activation, without_bias=frozenset(("k",)))  # fmt: skip


def whisper_encoder(config: WhisperConfig | None = None, batch: int = 1) -> Graph:
    """Return the graph of the encoder: mel f32[batch, n_mels, 2 · n_audio_ctx] -> `features` f32[batch, n_audio_ctx,
    n_audio_state].

    Parameters `encoder.conv1.weight` [state, mels, 3] and `.bias`, `encoder.conv2.*`, `encoder.ln_post.*`, and of each
    `encoder.blocks.{i}` `.attn.query.*`, `.attn.key.weight`, `.attn.value.*`, `.attn.out.*`, `.attn_ln.*`, `.mlp.0.*`,
    `.mlp.2.*`, `.mlp_ln.*`; matrices are [in, out]. `encoder.positional_embedding`, a table of sines that is not
    trained, is a constant.
    """
    c = WhisperConfig() if config is None else config
    check_extents("whisper_encoder", batch=batch, n_mels=c.n_mels, n_audio_ctx=c.n_audio_ctx,
                  n_audio_state=c.n_audio_state, n_audio_head=c.n_audio_head,
                  n_audio_layer=c.n_audio_layer)  # fmt: skip
    check_multiple("whisper_encoder", "n_audio_state", c.n_audio_state, c.n_audio_head)
    check_multiple("whisper_encoder", "n_audio_state", c.n_audio_state, 2)
    function("whisper_encoder", c.activation)
    with Graph() as g:
        x = ops.input("mel", (batch, c.n_mels, 2 * c.n_audio_ctx)).reshape((batch, c.n_mels, 1, -1))
        x = ops.gelu_erf(_conv(c.names.convolutions[0], x, c.n_audio_state, 1))
        x = ops.gelu_erf(_conv(c.names.convolutions[1], x, c.n_audio_state, 2))
        x = ops.transpose(x.reshape((batch, c.n_audio_state, c.n_audio_ctx)))
        x = (x + _positions(c)).reshape((-1, c.n_audio_state))
        for i in range(c.n_audio_layer):
            x = encoder_block(x, c.names.block.format(i), c.block, batch)
        x = nn.LayerNorm(c.names.norm, c.n_audio_state)(x)
        g.output(x.reshape((batch, c.n_audio_ctx, c.n_audio_state)).named("features"), "features")
    return g


def _positions(c: WhisperConfig) -> Value:
    if not c.names.positions:
        return ops.constant(sinusoids(c.n_audio_ctx, c.n_audio_state))
    return ops.parameter(c.names.positions, (c.n_audio_ctx, c.n_audio_state), init="normal(0.02)")


def sinusoids(length: int, channels: int) -> np.ndarray[Any, Any]:
    """Return f32[length, channels]: sines of position / 10000^(i / (channels/2 − 1)) and behind them their cosines."""
    half = channels // 2
    rates = np.exp(-np.log(10000.0) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def _conv(name: str, x: Value, wide: int, stride: int) -> Value:
    """Append a convolution of three along the last axis; its kernel has the checkpoint's three axes."""
    kernel = ops.parameter(f"{name}.weight", (wide, x.shape[1], 3), init="uniform")
    bias = ops.parameter(f"{name}.bias", (wide,), init="zeros")
    image = ops.conv2d_hw(x, kernel.reshape((wide, x.shape[1], 1, 3)), (1, stride), (0, 1))
    return ops.add_per_channel(image, bias).named(name)
