"""Residual networks (He, Zhang, Ren, Sun, 2015) under the parameter names of torchvision, or of another checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gdlab import nn, ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph, Value
from gdlab.models.blocks import Mode, check_extents, check_mode, check_multiple, classified
from gdlab.models.encoder_block import FUNCTIONS, function

Block = Literal["basic", "bottleneck"]
EXPANSION: dict[str, int] = {"basic": 1, "bottleneck": 4}  # channels behind a block by those inside


@dataclass(frozen=True, slots=True)
class ResNetNames:
    """The names of the parameters of `residual_network`: (convolution, norm) of the stem, of each convolution of a
    block and of its shortcut, relative to the block; `block` has the places of layer and number, `first` is the number
    of the first layer."""

    stem: tuple[str, str]
    block: str
    parts: tuple[tuple[str, str], ...]
    shortcut: tuple[str, str]
    head: str
    first: int


TORCHVISION = ResNetNames(
    ("conv1", "bn1"), "layer{}.{}", (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")),
    ("downsample.0", "downsample.1"), "fc", 1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """The extents of `residual_network`: `width` channels in the stem and `blocks` of each layer. A layer has `width`
    channels inside its blocks and twice as many in each that follows, unless `widths` gives their numbers behind the
    blocks.

    `block`: `basic` (two convolutions of 3) or `bottleneck` (1, 3, 1, with `groups` and `base_width` of 64 as in
    ResNeXt and wide networks). `stride_first`: a bottleneck strides in its first convolution, as in the paper, not in
    its second. `first_stride`: stride of the first layer. `activation`: of the stem and behind the sum of each block;
    inside blocks it is ReLU. `classes` 0: no head. `trainable`: the loss is a cross entropy.
    """

    image_size: int = 224
    channels: int = 3
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    classes: int = 1000
    block: Block = "basic"
    widths: tuple[int, ...] = ()
    groups: int = 1
    base_width: int = 64
    stride_first: bool = False
    first_stride: int = 1
    activation: str = "relu"
    trainable: bool = True
    names: ResNetNames = TORCHVISION


def resnet18(config: ResNetConfig | None = None, batch: int = 1, mode: Mode = "training") -> Graph:
    """Return the graph of ResNet-18: x f32[batch, channels, size, size] -> logits f32[batch, classes]; training: input
    `labels` f32[batch, classes], output the cross entropy.

    Parameters `conv1.weight`, `bn1.weight`, `bn1.bias`, `layer1.0.conv1.weight` …, `layer2.0.downsample.0.weight` …,
    `fc.weight` [in, out], `fc.bias`. A batch norm is its affine map alone, a factor and an offset per channel: the
    statistics of a checkpoint are folded in by `checkpoint_weights`, and stay as they are in training.
    """
    return _resnet("resnet18", config, batch, mode)


def residual_network(config: ResNetConfig, batch: int = 1, mode: Mode = "training") -> Graph:
    """Return the graph of a residual network of any depth: `ResNetConfig(blocks=(3, 4, 6, 3), block="bottleneck")` is
    ResNet-50. Without classes the outputs are `features` f32[batch, channels, h, w] and `pooler_output` f32[batch,
    channels], their mean."""
    return _resnet("residual_network", config, batch, mode)


def _resnet(where: str, config: ResNetConfig | None, batch: int, mode: Mode) -> Graph:
    c = ResNetConfig() if config is None else config
    _check(where, c, batch, mode)
    with Graph() as g:
        x = ops.input("x", (batch, c.channels, c.image_size, c.image_size))
        x = _activated(c, _convolved(c.names.stem, x, c.width, 7, 2))
        x = ops.max_pool_2d(x, 3, 2, 1)
        for layer, (count, wide) in enumerate(zip(c.blocks, layer_widths(c), strict=True)):
            for at in range(count):
                stride = 1 if at else 2 if layer else c.first_stride
                x = _block(c, c.names.block.format(layer + c.names.first, at), x, wide, stride)
        if not c.classes:
            g.output(x.named("features"), "features")
            g.output(ops.global_avg_pool(x).named("pooler_output"), "pooler_output")
            return g
        x = nn.Linear(c.names.head, x.shape[1], c.classes)(ops.global_avg_pool(x))
        g.output(*classified(x, batch, c.classes, mode))
    return g


def layer_widths(config: ResNetConfig) -> Sequence[int]:
    """Return the number of channels behind the blocks of each layer."""
    expansion = EXPANSION[config.block]
    return config.widths or [(config.width << layer) * expansion for layer in range(len(config.blocks))]


def _check(where: str, c: ResNetConfig, batch: int, mode: Mode) -> None:
    check_mode(where, mode)
    if c.block not in EXPANSION:
        raise GraphError(where, "block", repr(c.block), f"one of {', '.join(EXPANSION)}")
    function(where, c.activation)
    check_extents(where, batch=batch, image_size=c.image_size, channels=c.channels, width=c.width,
                  classes=c.classes if mode == "training" or c.classes else 1, groups=c.groups,
                  base_width=c.base_width, **{f"blocks[{i}]": n for i, n in enumerate(c.blocks)},
                  **{f"widths[{i}]": n for i, n in enumerate(c.widths)})  # fmt: skip
    if c.widths and len(c.widths) != len(c.blocks):
        raise GraphError(where, "widths", f"{len(c.widths)} for {len(c.blocks)} layers", "one of each layer")
    for i, wide in enumerate(c.widths):
        check_multiple(where, f"widths[{i}]", wide, EXPANSION[c.block])


def _activated(c: ResNetConfig, x: Value) -> Value:
    return FUNCTIONS[c.activation](x)


def _convolved(names: tuple[str, str], x: Value, wide: int, size: int, stride: int = 1, groups: int = 1) -> Value:
    """Append a convolution without a bias that keeps the extents (but for its stride), and its norm."""
    return _norm(names[1], _convolution(names[0], x, wide, size, stride, groups))


def _convolution(name: str, x: Value, wide: int, size: int, stride: int, groups: int) -> Value:
    if groups == 1:
        return nn.Conv2d(name, x.shape[1], wide, size, stride, size // 2, bias=False)(x)
    kernel = ops.parameter(f"{name}.weight", (wide, x.shape[1] // groups, size, size), init="uniform")
    return ops.conv2d(x, kernel, stride, size // 2, 1, groups).named(name)


def _norm(name: str, x: Value) -> Value:
    """Append a factor and an offset per channel."""
    channels = x.shape[1]
    factor = ops.parameter(f"{name}.weight", (channels,), init="ones")
    offset = ops.parameter(f"{name}.bias", (channels,), init="zeros")
    return ops.add_per_channel(x * factor.reshape((1, channels, 1, 1)), offset).named(name)


def _block(c: ResNetConfig, name: str, x: Value, wide: int, stride: int) -> Value:
    """Append a block: its convolutions plus its input (through a convolution of its own where extents differ), with
    `wide` channels."""
    narrow = x.shape[1]
    parts = [(f"{name}.{convolution}", f"{name}.{norm}") for convolution, norm in (*c.names.parts, c.names.shortcut)]
    h = _basic(parts, x, wide, stride) if c.block == "basic" else _bottleneck(c, parts, x, wide, stride)
    if stride > 1 or narrow != wide:
        x = _convolved(parts[-1], x, wide, 1, stride)
    return _activated(c, h + x)


Names = Sequence[tuple[str, str]]


def _basic(names: Names, x: Value, wide: int, stride: int) -> Value:
    """Append two convolutions of 3 × 3."""
    h = ops.relu(_convolved(names[0], x, wide, 3, stride))
    return _convolved(names[1], h, wide, 3)


def _bottleneck(c: ResNetConfig, names: Names, x: Value, wide: int, stride: int) -> Value:
    """Append convolutions of 1 × 1, 3 × 3 and 1 × 1, the second over few channels, in groups."""
    inside = wide // EXPANSION["bottleneck"] * c.base_width // 64 * c.groups
    first, second = (stride, 1) if c.stride_first else (1, stride)
    h = ops.relu(_convolved(names[0], x, inside, 1, first))
    h = ops.relu(_convolved(names[1], h, inside, 3, second, c.groups))
    return _convolved(names[2], h, wide, 1)
