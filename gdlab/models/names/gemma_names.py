"""Read Gemma 1 (scaled embeddings, norms of 1 + weight) and Gemma 2 (soft caps, four norms, windows in turn)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gdlab.base.errors import LoadError
from gdlab.models.config_fields import Field, Fields, flag, natural, optional, positive, read_fields
from gdlab.models.family import WHERE, Sources
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import (
    ATTENTION,
    FIELDS,
    IGNORED,
    activation,
    layer_types,
    lm_config,
    lm_family,
    same_names,
    windows,
)

GEMMA: Fields = FIELDS | {
    "head_dim": Field("head_size", natural, 256),
    "hidden_act": Field("activation", activation, "gelu_pytorch_tanh"),
    "hidden_activation": Field("hidden_activation", optional(activation), None),
    "attention_bias": Field("attention_bias", flag, False),
    "tie_word_embeddings": Field("tied", flag, True),
}
GEMMA2: Fields = GEMMA | {
    "hidden_activation": Field("hidden_activation", activation, "gelu_pytorch_tanh"),
    "query_pre_attn_scalar": Field("query_scalar", positive, 256),
    "sliding_window": Field("sliding_window", optional(natural), 4096),
    "layer_types": Field("layer_types", optional(layer_types), None),
    "final_logit_softcapping": Field("logit_softcap", optional(positive, 0.0), 30.0),
    "attn_logit_softcapping": Field("attention_softcap", optional(positive, 0.0), 50.0),
}


def _config(values: dict[str, Any], **more: Any) -> TransformerLmConfig:
    biases = ATTENTION if values.pop("attention_bias") else ()
    return lm_config(values, embedding_scale=math.sqrt(values["hidden_size"]), biases=biases, **more)


def gemma(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json of Gemma 1."""
    values = read_fields(fields, GEMMA, IGNORED)
    other = values.pop("hidden_activation")
    if other not in (None, values["activation"]):  # transformers say that it overrules hidden_act, and do not do so
        given = f"{fields['hidden_activation']!r:.40} beside hidden_act {fields.get('hidden_act')!r:.40}"
        wanted = "none, or the same: versions of transformers differ in which one they use"
        raise LoadError(WHERE, "config.json: hidden_activation", given, wanted)
    return _config(values)


def gemma2(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json of Gemma 2."""
    values = read_fields(fields, GEMMA2, IGNORED)
    values["activation"] = values.pop("hidden_activation")
    window, kinds, count = values.pop("sliding_window"), values.pop("layer_types"), values["num_hidden_layers"]
    in_turn = tuple("full_attention" if i % 2 else "sliding_attention" for i in range(count))
    scale = values.pop("query_scalar") ** -0.5
    return _config(values, windows=windows(values, window, kinds or in_turn), post_norms=True, attention_scale=scale)


def sources(config: TransformerLmConfig) -> Sources:
    """Return the tensor of every parameter; a norm's factor is 1 + its tensor."""
    named = same_names(config)
    return {name: replace(s, offset=1.0) if name.endswith("norm.weight") else s for name, s in named.items()}


GEMMA_1 = lm_family("gemma", gemma, "Gemma 1", "embeddings times √width, norms of 1 + weight, GeGLU", sources)
GEMMA_2 = lm_family("gemma2", gemma2, "Gemma 2", "the same, four norms a layer, soft caps, windows in turn", sources)
