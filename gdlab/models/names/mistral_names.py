"""Read Mistral: LLaMA's block with a window of keys in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.config_fields import Field, Fields, natural, optional, read_fields
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import FIELDS, IGNORED, lm_config, lm_family, windows

MISTRAL: Fields = FIELDS | {"sliding_window": Field("sliding_window", optional(natural), 4096)}


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, MISTRAL, IGNORED)
    return lm_config(values, windows=windows(values, values.pop("sliding_window"), None))


MISTRAL_FAMILY = lm_family("mistral", config, "Mistral", "a window in every layer")
