"""Read Mistral: LLaMA's block with a window of keys in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.family import Family, Field, Fields, natural, optional, read_fields
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import FIELDS, IGNORED, LM_MODES, at_length, build_lm, lm_config, same_names, windows

MISTRAL: Fields = FIELDS | {"sliding_window": Field("sliding_window", optional(natural), 4096)}


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, MISTRAL, IGNORED)
    return lm_config(values, windows=windows(values, values.pop("sliding_window"), None))


MISTRAL_FAMILY = Family(
    ("mistral",),
    config,
    build_lm,
    same_names,
    LM_MODES,
    prefix="model.",
    at_length=at_length,
    models="Mistral",
    parts="a window in every layer",
)
