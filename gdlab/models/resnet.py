"""ResNet-18 (He, Zhang, Ren, Sun, 2015) under the parameter names of torchvision."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab import nn, ops
from gdlab.graph import Graph, Value
from gdlab.models.blocks import Mode, check_extents, check_mode, classified


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Extents of `resnet18`: `width` channels in the first of the layers, twice as many in each that follows, and
    `blocks` of two convolutions in each."""

    image_size: int = 224
    channels: int = 3
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    classes: int = 1000


def resnet18(config: ResNetConfig | None = None, batch: int = 1, mode: Mode = "training") -> Graph:
    """x f32[batch, channels, size, size] -> logits f32[batch, classes]; training: input `labels` f32[batch, classes],
    output the cross entropy.

    Parameters `conv1.weight`, `bn1.weight`, `bn1.bias`, `layer1.0.conv1.weight` …, `layer2.0.downsample.0.weight` …,
    `fc.weight` [in, out], `fc.bias`. A batch norm is its affine map alone, a factor and an offset per channel: the
    statistics of a checkpoint are folded in by `checkpoint_weights`, and stay as they are in training.
    """
    c = ResNetConfig() if config is None else config
    check_mode("resnet18", mode)
    check_extents("resnet18", batch=batch, image_size=c.image_size, channels=c.channels, width=c.width,
                  classes=c.classes, **{f"blocks[{i}]": n for i, n in enumerate(c.blocks)})  # fmt: skip
    with Graph() as g:
        x = ops.input("x", (batch, c.channels, c.image_size, c.image_size))
        x = ops.relu(_norm("bn1", nn.Conv2d("conv1", c.channels, c.width, 7, 2, 3, bias=False)(x)))
        x = ops.max_pool_2d(x, 3, 2, 1)
        for layer, count in enumerate(c.blocks):
            for at in range(count):
                x = _block(f"layer{layer + 1}.{at}", x, c.width << layer, 2 if layer and not at else 1)
        x = nn.Linear("fc", x.shape[1], c.classes)(ops.global_avg_pool(x))
        g.output(*classified(x, batch, c.classes, mode))
    return g


def _norm(name: str, x: Value) -> Value:
    """A factor and an offset per channel."""
    channels = x.shape[1]
    factor = ops.parameter(f"{name}.weight", (channels,), init="ones")
    offset = ops.parameter(f"{name}.bias", (channels,), init="zeros")
    return ops.add_per_channel(x * factor.reshape((1, channels, 1, 1)), offset).named(name)


def _block(name: str, x: Value, wide: int, stride: int) -> Value:
    """Two convolutions, and what came in, by a convolution of its own where extents differ."""
    narrow = x.shape[1]
    h = ops.relu(_norm(f"{name}.bn1", nn.Conv2d(f"{name}.conv1", narrow, wide, 3, stride, 1, bias=False)(x)))
    h = _norm(f"{name}.bn2", nn.Conv2d(f"{name}.conv2", wide, wide, 3, 1, 1, bias=False)(h))
    if stride > 1 or narrow != wide:
        shortcut = nn.Conv2d(f"{name}.downsample.0", narrow, wide, 1, stride, bias=False)
        x = _norm(f"{name}.downsample.1", shortcut(x))
    return ops.relu(h + x)
