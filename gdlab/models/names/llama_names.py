"""Read LLaMA 2, 3, 3.1 and 3.2, whose names are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.config_fields import Field, Fields, flag, read_fields
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import (
    ATTENTION,
    FEED_FORWARD,
    FIELDS,
    IGNORED,
    lm_config,
    lm_family,
)

LLAMA: Fields = FIELDS | {
    "attention_bias": Field("attention_bias", flag, False),
    "mlp_bias": Field("mlp_bias", flag, False),
}


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, LLAMA, IGNORED)
    attention, feed_forward = values.pop("attention_bias"), values.pop("mlp_bias")
    return lm_config(values, biases=(ATTENTION if attention else ()) + (FEED_FORWARD if feed_forward else ()))


LLAMA_FAMILY = lm_family(
    "llama", config, "LLaMA 2, 3, 3.1, 3.2, and what has their layers",
    "RMS norms, rotary positions, grouped heads, SwiGLU; biases",
)  # fmt: skip
