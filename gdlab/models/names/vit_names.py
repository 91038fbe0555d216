"""The names of vision transformers in transformers, timm and torchvision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from gdlab.base.errors import LoadError
from gdlab.graph import Graph
from gdlab.models import blocks
from gdlab.models.config_fields import Field, Fields, anything, flag, natural, only, optional, positive, read_fields
from gdlab.models.encoder_block import BlockNames
from gdlab.models.family import WHERE, Family, GraphRequest, Sources
from gdlab.models.names.encoder_fields import (
    activation,
    depth,
    has_cross_entropy,
    image_classes,
    side,
    timm_fields,
    timm_name,
)
from gdlab.models.names.encoder_names import check_request, sources_of
from gdlab.models.vit import VitConfig, VitNames, vit_encoder

TRANSFORMERS = VitNames(
    "embeddings.cls_token", "embeddings.position_embeddings", "embeddings.patch_embeddings.projection",
    "encoder.layer.{}",
    BlockNames(("layernorm_before", "layernorm_after"), "attention.output.dense",
               ("intermediate.dense", "output.dense"), "attention.attention.query", "attention.attention.key",
               "attention.attention.value"),
    "layernorm", "classifier",
)  # fmt: skip
TORCHVISION = VitNames(
    "class_token", "encoder.pos_embedding", "conv_proj", "encoder.layers.encoder_layer_{}",
    BlockNames(("ln_1", "ln_2"), "self_attention.out_proj", ("mlp.0", "mlp.3"), packed="self_attention.in_proj"),
    "encoder.ln", "heads.head",
)  # fmt: skip
PACKED = {"in_proj.weight": "in_proj_weight", "in_proj.bias": "in_proj_bias"}
FIELDS: Fields = {
    "image_size": Field("image_size", side, 224),
    "patch_size": Field("patch_size", side, 16),
    "num_channels": Field("channels", natural, 3),
    "hidden_size": Field("embed_dim", natural, 768),
    "num_hidden_layers": Field("depth", depth, 12),
    "num_attention_heads": Field("num_heads", natural, 12),
    "intermediate_size": Field("mlp_dim", natural, 3072),
    "layer_norm_eps": Field("eps", positive, 1e-12),
    "hidden_act": Field("activation", activation, "gelu"),
    "qkv_bias": Field("qkv_bias", flag, True),
    "pooler_output_size": Field("pooled", optional(natural), None),
    "pooler_act": Field("pooler_activation", activation, "tanh"),
    "encoder_stride": Field("", anything, 16),  # of another head
    "problem_type": Field("trainable", has_cross_entropy, None),
    "chunk_size_feed_forward": Field("", anything, 0),
}
TIMM_SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16),
              "huge": (1280, 32, 16)}  # fmt: skip
TIMM_NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch(\d{1,3})_(\d{1,4})")
TORCHVISION_SIZES = {"b": (768, 12, 12, 3072), "l": (1024, 24, 16, 4096), "h": (1280, 32, 16, 5120)}
TORCHVISION_NAME = re.compile(r"vit_([blh])_(\d{1,3})")
TIMM_ARGUMENTS: Fields = {
    "img_size": Field("image_size", side), "patch_size": Field("patch_size", side),
    "in_chans": Field("channels", natural), "embed_dim": Field("embed_dim", natural),
    "depth": Field("depth", depth), "num_heads": Field("num_heads", natural),
    "mlp_ratio": Field("mlp_ratio", positive), "qkv_bias": Field("qkv_bias", flag),
    "init_values": Field("layer_scale", optional(positive)), "num_classes": Field("classes", natural),
    "class_token": Field("", only(True)), "global_pool": Field("", only("token")), "qk_norm": Field("", only(False)),
    "pre_norm": Field("", only(False)), "no_embed_class": Field("", only(False)),
    "dynamic_img_size": Field("", anything),
}  # fmt: skip
TORCHVISION_ARGUMENTS: Fields = {
    "image_size": Field("image_size", side), "patch_size": Field("patch_size", side),
    "num_layers": Field("depth", depth), "num_heads": Field("num_heads", natural),
    "hidden_dim": Field("embed_dim", natural), "mlp_dim": Field("mlp_dim", natural),
    "num_classes": Field("classes", natural), "dropout": Field("", anything), "attention_dropout": Field("", anything),
    "representation_size": Field("", only(None)),
}  # fmt: skip


def named(architecture: str) -> bool:
    """Return whether timm or torchvision has a vision transformer of this name that gdlab can build."""
    plain = architecture.partition(".")[0]
    return bool(TIMM_NAME.fullmatch(plain) or TORCHVISION_NAME.fullmatch(plain))


def config(fields: Mapping[str, Any]) -> VitConfig:
    """Read config.json of transformers or, by the name of its architecture, of timm or torchvision."""
    plain = timm_name(fields)
    if timm := TIMM_NAME.fullmatch(plain):
        return _timm(fields, timm)
    if torchvision := TORCHVISION_NAME.fullmatch(plain):
        return _torchvision(fields, torchvision)
    if plain:
        wanted = "a name as vit_base_patch16_224 of timm or vit_b_16 of torchvision"
        raise LoadError(WHERE, "config.json: architecture", f"{plain!r:.80}", wanted)
    classes, values = image_classes(fields, "ViT"), read_fields(fields, FIELDS)
    values["pooled"] = 0 if classes else values["pooled"] or values["embed_dim"]
    return VitConfig(**values, classes=classes, names=TRANSFORMERS)


def _timm(fields: Mapping[str, Any], name: re.Match[str]) -> VitConfig:
    values = read_fields(fields, timm_fields(TIMM_ARGUMENTS, "token"))
    width, depth, heads = TIMM_SIZES[name[1]]
    given = {"embed_dim": width, "depth": depth, "num_heads": heads, "patch_size": int(name[2]),
             "image_size": int(name[3]), "classes": values["classes"], **values["arguments"]}  # fmt: skip
    given["mlp_dim"] = int(given["embed_dim"] * given.pop("mlp_ratio", 4.0))
    given["layer_scale"] = given.get("layer_scale") is not None
    return VitConfig(**given)


def _torchvision(fields: Mapping[str, Any], name: re.Match[str]) -> VitConfig:
    values = read_fields(fields, timm_fields(TORCHVISION_ARGUMENTS, "token"))
    width, depth, heads, wide = TORCHVISION_SIZES[name[1]]
    given = {"embed_dim": width, "depth": depth, "num_heads": heads, "mlp_dim": wide, "patch_size": int(name[2]),
             "classes": values["classes"], **values["arguments"]}  # fmt: skip
    return VitConfig(**given, names=TORCHVISION)


def build(config: VitConfig, request: GraphRequest) -> Graph:
    """Make the graphfor images of the size that the table of positions has."""
    why = "the side of its images: the model has positions for no other"
    check_request(request, config.image_size, why, config.trainable and config.classes > 1)
    return vit_encoder(config, request.batch, cast(blocks.Mode, request.mode))


def sources(config: VitConfig) -> Sources:
    """Return the tensor of every parameter."""
    prefix = "vit." if config.names == TRANSFORMERS else ""
    return sources_of(vit_encoder(config), prefix, (TRANSFORMERS.head,), PACKED if config.names == TORCHVISION else {})


VIT_FAMILY = Family(
    ("vit",), config, build, sources, ("inference", "training"), "vit.",
    ("*pooler.dense.*", "classifier.weight", "classifier.bias", "head.weight", "head.bias"),
    length=lambda config: config.image_size,
    assumed="", named=named,
)  # fmt: skip
