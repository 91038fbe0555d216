"""The names of residual networks in transformers, timm and torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from gdlab.base.errors import LoadError
from gdlab.graph import Graph
from gdlab.models import blocks
from gdlab.models.config_fields import Field, Fields, anything, flag, natural, one_of, only, read_fields
from gdlab.models.family import WHERE, Family, GraphRequest, Sources
from gdlab.models.names.encoder_fields import (
    activation,
    depths,
    has_cross_entropy,
    image_classes,
    numbers,
    timm_fields,
    timm_name,
)
from gdlab.models.names.encoder_names import BATCH_NORM, check_training, sources_of
from gdlab.models.resnet import ResNetConfig, ResNetNames, residual_network

PARTS = tuple((f"layer.{i}.convolution", f"layer.{i}.normalization") for i in range(3))
TRANSFORMERS = ResNetNames(
    ("embedder.embedder.convolution", "embedder.embedder.normalization"), "encoder.stages.{}.layers.{}", PARTS,
    ("shortcut.convolution", "shortcut.normalization"), "classifier.1", 0,
)  # fmt: skip
ARCHITECTURES: dict[str, ResNetConfig] = {  # by the names that torchvision and timm share
    "resnet18": ResNetConfig(),
    "resnet34": ResNetConfig(blocks=(3, 4, 6, 3)),
    "resnet50": ResNetConfig(blocks=(3, 4, 6, 3), block="bottleneck"),
    "resnet101": ResNetConfig(blocks=(3, 4, 23, 3), block="bottleneck"),
    "resnet152": ResNetConfig(blocks=(3, 8, 36, 3), block="bottleneck"),
    "wide_resnet50_2": ResNetConfig(blocks=(3, 4, 6, 3), block="bottleneck", base_width=128),
    "wide_resnet101_2": ResNetConfig(blocks=(3, 4, 23, 3), block="bottleneck", base_width=128),
    "resnext50_32x4d": ResNetConfig(blocks=(3, 4, 6, 3), block="bottleneck", groups=32, base_width=4),
    "resnext101_32x8d": ResNetConfig(blocks=(3, 4, 23, 3), block="bottleneck", groups=32, base_width=8),
    "resnext101_64x4d": ResNetConfig(blocks=(3, 4, 23, 3), block="bottleneck", groups=64, base_width=4),
}
FIELDS: Fields = {
    "num_channels": Field("channels", natural, 3),
    "embedding_size": Field("width", natural, 64),
    "hidden_sizes": Field("widths", numbers, [256, 512, 1024, 2048]),
    "depths": Field("blocks", depths, [3, 4, 6, 3]),
    "layer_type": Field("block", one_of(basic="basic", bottleneck="bottleneck"), "bottleneck"),
    "hidden_act": Field("activation", activation, "relu"),
    "downsample_in_first_stage": Field("first_stride", lambda given: 2 if flag(given) else 1, False),
    "downsample_in_bottleneck": Field("stride_first", flag, False),
    "problem_type": Field("trainable", has_cross_entropy, None),
    **{name: Field("", anything, None) for name in ("out_features", "out_indices", "stage_names")},  # of a backbone
}
ARGUMENTS: Fields = {
    "block": Field("block", one_of(basic="basic", bottleneck="bottleneck")), "layers": Field("blocks", depths),
    "num_classes": Field("classes", natural), "in_chans": Field("channels", natural), "width": Field("width", natural),
    "groups": Field("groups", natural), "cardinality": Field("groups", natural),
    "width_per_group": Field("base_width", natural), "base_width": Field("base_width", natural),
    "zero_init_residual": Field("", anything), "zero_init_last": Field("", anything),
    "norm_layer": Field("", only(None)), "replace_stride_with_dilation": Field("", only(None)),
    "drop_rate": Field("", anything), "output_stride": Field("", only(32)), "global_pool": Field("", only("avg")),
}  # fmt: skip


def named(architecture: str) -> bool:
    """Return whether timm or torchvision has a residual network of this name that gdlab can build."""
    return architecture.partition(".")[0] in ARCHITECTURES


def config(fields: Mapping[str, Any]) -> ResNetConfig:
    """Read config.json of transformers or, by the name of its architecture, of timm or torchvision."""
    plain = timm_name(fields)
    if plain in ARCHITECTURES:
        values = read_fields(fields, timm_fields(ARGUMENTS, "avg"))
        return replace(ARCHITECTURES[plain], **{"classes": values["classes"], **values["arguments"]})
    if plain:
        wanted = f"one of {', '.join(ARCHITECTURES)}"
        raise LoadError(WHERE, "config.json: architecture", f"{plain!r:.80}", wanted)
    classes = image_classes(fields, "ResNet")
    return ResNetConfig(**read_fields(fields, FIELDS), classes=classes, names=TRANSFORMERS)


def build(config: ResNetConfig, request: GraphRequest) -> Graph:
    """Make the graph for images of side `length`."""
    check_training(request, config.trainable and config.classes > 1)
    return residual_network(replace(config, image_size=request.length), request.batch, cast(blocks.Mode, request.mode))


def sources(config: ResNetConfig) -> Sources:
    """Return the tensor of every parameter; statistics of batch norms are folded into their factors and offsets."""
    ours = config.names == TRANSFORMERS
    found = sources_of(residual_network(config, 1, "inference"), "resnet." if ours else "", (TRANSFORMERS.head,))
    return {
        name: replace(source, batch_norm=BATCH_NORM) if _is_norm(config.names, name) else source
        for name, source in found.items()
    }


def _is_norm(names: ResNetNames, name: str) -> bool:
    layer = name.rpartition(".")[0]
    return any(layer.endswith(norm) for _, norm in (names.stem, *names.parts, names.shortcut))


RESNET_FAMILY = Family(
    ("resnet",), config, build, sources, ("inference", "training"), "resnet.",
    ("fc.weight", "fc.bias", "classifier.1.weight", "classifier.1.bias"),
    length=lambda config: config.image_size,
    assumed="images of {0} × {0} are", named=named,
)  # fmt: skip
