"""A small U-Net that predicts the noise in an image (Ho, Jain, Abbeel, 2020), under the parameter names of diffusers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gdlab import nn, ops
from gdlab.graph import Graph, Value
from gdlab.models.blocks import Mode, attend, check_extents, check_mode, check_multiple


@dataclass(frozen=True, slots=True)
class UnetConfig:
    """The extents of `unet_small`, by the names of diffusers' `UNet2DModel`: images of `sample_size`, halved between
    the levels of `block_out_channels`; `norm_num_groups` divides all of these."""

    sample_size: int = 32
    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (32, 64, 128)
    layers_per_block: int = 1
    attention_head_dim: int = 8
    norm_num_groups: int = 8
    norm_eps: float = 1e-5


def unet_small(config: UnetConfig | None = None, batch: int = 1, mode: Mode = "training") -> Graph:
    """Return the graph of a U-Net: x f32[batch, in, size, size], timestep f32[batch] -> `sample` f32[batch, out, size,
    size]; training: input `target` of that shape, output the mean squared error.

    Parameters `conv_in.*`, `time_embedding.linear_1.*`, `down_blocks.{i}.resnets.{j}.norm1.*` (`.conv1.*`,
    `.time_emb_proj.*`, `.norm2.*`, `.conv2.*`, `.conv_shortcut.*`), `down_blocks.{i}.downsamplers.0.conv.*`,
    `mid_block.resnets.{j}.*`, `mid_block.attentions.0.group_norm.*` (`.to_q.*`, `.to_k.*`, `.to_v.*`, `.to_out.0.*`),
    `up_blocks.{i}.*`, `up_blocks.{i}.upsamplers.0.conv.*`, `conv_norm_out.*`, `conv_out.*`; matrices are [in, out].
    """
    c = UnetConfig() if config is None else config
    check_mode("unet_small", mode)
    _check(c, batch)
    with Graph() as g:
        x = ops.input("x", (batch, c.in_channels, c.sample_size, c.sample_size))
        sample = _Unet(c, batch).forward(x, ops.input("timestep", (batch,)))
        if mode == "inference":
            g.output(sample, "sample")
        else:
            g.output(ops.mse_loss(sample, ops.input("target", sample.shape)), "loss")
    return g


def _check(c: UnetConfig, batch: int) -> None:
    widths = {f"block_out_channels[{i}]": n for i, n in enumerate(c.block_out_channels)}
    check_extents(
        "unet_small", batch=batch, sample_size=c.sample_size, in_channels=c.in_channels, out_channels=c.out_channels,
        layers_per_block=c.layers_per_block, attention_head_dim=c.attention_head_dim, levels=len(widths),
        norm_num_groups=c.norm_num_groups, **widths,
    )  # fmt: skip
    check_multiple("unet_small", "sample_size", c.sample_size, 2 ** (len(widths) - 1))
    for name, n in widths.items():
        check_multiple("unet_small", name, n, c.norm_num_groups)
    check_multiple("unet_small", "block_out_channels[0]", c.block_out_channels[0], 2)
    check_multiple("unet_small", "block_out_channels[-1]", c.block_out_channels[-1], c.attention_head_dim)


class _Unet:
    """The layers, made in the current graph as they are used."""

    def __init__(self, config: UnetConfig, batch: int) -> None:
        self.config, self.batch = config, batch

    def forward(self, x: Value, timestep: Value) -> Value:
        """Append the way down, the middle, and the way up, which reads the values of the way down."""
        c, widths = self.config, self.config.block_out_channels
        time, last = ops.silu(self._time(timestep)), len(widths) - 1
        kept = [self._conv("conv_in", x, widths[0])]
        for i, width in enumerate(widths):
            for j in range(c.layers_per_block):
                kept.append(self._resnet(f"down_blocks.{i}.resnets.{j}", kept[-1], time, width))
            if i < last:
                kept.append(self._conv(f"down_blocks.{i}.downsamplers.0.conv", kept[-1], width, 2))
        x = self._resnet("mid_block.resnets.0", kept[-1], time, widths[-1])
        x = self._attention("mid_block.attentions.0", x)
        x = self._resnet("mid_block.resnets.1", x, time, widths[-1])
        for i, width in enumerate(reversed(widths)):
            for j in range(c.layers_per_block + 1):
                x = ops.concat([x, kept.pop()], 1)
                x = self._resnet(f"up_blocks.{i}.resnets.{j}", x, time, width)
            if i < last:
                x = self._conv(f"up_blocks.{i}.upsamplers.0.conv", ops.upsample_2x(x), width)
        x = ops.silu(self._norm("conv_norm_out", x))
        return self._conv("conv_out", x, c.out_channels).named("sample")

    def _conv(self, name: str, x: Value, wide: int, stride: int = 1) -> Value:
        return nn.Conv2d(name, x.shape[1], wide, 3, stride, 1)(x)

    def _norm(self, name: str, x: Value) -> Value:
        w = ops.parameter(f"{name}.weight", x.shape[1:2], init="ones")
        b = ops.parameter(f"{name}.bias", x.shape[1:2], init="zeros")
        return ops.group_norm(x, w, b, self.config.norm_num_groups, self.config.norm_eps).named(name)

    def _time(self, timestep: Value) -> Value:
        """Append cosines and sines of the time at falling rates, and two matrices: f32[batch, 4 · width]."""
        width = self.config.block_out_channels[0]
        rates = np.exp(-math.log(10000.0) * np.arange(width // 2) / (width // 2))
        angles = timestep.reshape((self.batch, 1)) * ops.constant(rates[None].astype(np.float32))
        x = ops.concat([ops.cos(angles), ops.sin(angles)], 1)
        x = ops.silu(nn.Linear("time_embedding.linear_1", width, 4 * width)(x))
        return nn.Linear("time_embedding.linear_2", 4 * width, 4 * width)(x)

    def _resnet(self, name: str, x: Value, time: Value, wide: int) -> Value:
        """Append two convolutions with the time between them, plus their input."""
        h = self._conv(f"{name}.conv1", ops.silu(self._norm(f"{name}.norm1", x)), wide)
        h = h + nn.Linear(f"{name}.time_emb_proj", time.shape[1], wide)(time).reshape((self.batch, wide, 1, 1))
        h = self._conv(f"{name}.conv2", ops.silu(self._norm(f"{name}.norm2", h)), wide)
        if x.shape[1] != wide:
            x = nn.Conv2d(f"{name}.conv_shortcut", x.shape[1], wide, 1)(x)
        return (x + h).named(name)

    def _attention(self, name: str, x: Value) -> Value:
        """Append attention among all pixels of an image."""
        n, width, h, w = x.shape
        rows = ops.transpose(self._norm(f"{name}.group_norm", x).reshape((n, width, h * w))).reshape((-1, width))
        q, k, v = (nn.Linear(f"{name}.to_{part}", width, width)(rows) for part in "qkv")
        mixed = attend(q, k, v, self.batch, width // self.config.attention_head_dim)
        mixed = nn.Linear(f"{name}.to_out.0", width, width)(mixed)
        return x + ops.transpose(mixed.reshape((n, h * w, width))).reshape(x.shape)
