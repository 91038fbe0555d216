"""The names of LLaMA's checkpoints, and of the models that are built like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.family import (
    Family,
    Field,
    Fields,
    Source,
    Sources,
    flag,
    natural,
    one_of,
    only,
    optional,
    positive,
    read_fields,
)
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm import LM_MODES, build_lm, parameters

FIELDS: Fields = {
    "vocab_size": Field("vocab_size", natural),
    "hidden_size": Field("hidden_size", natural),
    "num_hidden_layers": Field("num_hidden_layers", natural),
    "num_attention_heads": Field("num_attention_heads", natural),
    "num_key_value_heads": Field("num_key_value_heads", optional(natural), None),
    "head_dim": Field("head_size", optional(natural), None),
    "intermediate_size": Field("intermediate_size", natural),
    "rms_norm_eps": Field("rms_norm_eps", positive, 1e-6),
    "rope_theta": Field("rope_theta", positive, 10_000.0),
    "rope_scaling": Field("", only(None), None),
    "hidden_act": Field("", one_of(silu="silu", swish="silu"), "silu"),
    "attention_bias": Field("", only(False), False),
    "mlp_bias": Field("", only(False), False),
    "tie_word_embeddings": Field("tied", flag, False),
}


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, FIELDS)
    values["num_key_value_heads"] = values["num_key_value_heads"] or values["num_attention_heads"]
    return TransformerLmConfig(**values)


def sources(config: TransformerLmConfig) -> Sources:
    """Return the tensor of every parameter: the names are the same, matrices are [out, in]."""
    return {name: Source(name, transposed=turned) for name, turned in parameters(config)}


FAMILY = Family(("llama",), config, build_lm, sources, LM_MODES, prefix="model.")
