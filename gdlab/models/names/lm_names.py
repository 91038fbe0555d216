"""The common parts of the tables of language models: fields of config.json, their graph, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.graph import Graph
from gdlab.models.config_fields import Field, Fields, flag, natural, one_of, optional, positive
from gdlab.models.family import WHERE, Family, GraphRequest, Source, Sources
from gdlab.models.lm import Mode, TransformerLmConfig, cache_names, transformer_lm
from gdlab.models.names.rope_fields import completed, extended, rotary, share

LM_MODES = ("prefill", "decode", "training")
MOST_LAYERS = 512
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
LAYER_TYPES = ("full_attention", "sliding_attention")
activation = one_of(
    silu="silu", swish="silu", gelu="gelu_erf", gelu_new="gelu", gelu_pytorch_tanh="gelu", gelu_tanh="gelu", relu="relu"
)


# readers of fields ----------------------------------------------------------------------------------------------------
def layers(given: Any) -> int:
    """Read a number of layers."""
    if natural(given) > MOST_LAYERS:
        raise ValueError(f"at most {MOST_LAYERS} layers")
    return int(given)


def layer_types(given: Any) -> tuple[str, ...]:
    """Read the kinds of attention of the layers."""
    if not isinstance(given, list) or not all(isinstance(kind, str) and kind in LAYER_TYPES for kind in given):
        raise ValueError(f"a list of {' and '.join(LAYER_TYPES)}")
    return tuple(given)


FIELDS: Fields = {  # of all families that name their fields as LLaMA does
    "vocab_size": Field("vocab_size", natural),
    "hidden_size": Field("hidden_size", natural),
    "num_hidden_layers": Field("num_hidden_layers", layers),
    "num_attention_heads": Field("num_attention_heads", natural),
    "num_key_value_heads": Field("num_key_value_heads", optional(natural), None),
    "intermediate_size": Field("intermediate_size", natural),
    "head_dim": Field("head_size", optional(natural), None),
    "rms_norm_eps": Field("rms_norm_eps", positive, 1e-6),
    "rope_theta": Field("rope_theta", positive, 10_000.0),
    "rope_scaling": Field("rope_scaling", optional(rotary), None),
    "rope_parameters": Field("rope_parameters", optional(rotary), None),
    "max_position_embeddings": Field("max_positions", optional(natural), None),
    "partial_rotary_factor": Field("rotary_share", optional(share), None),
    "hidden_act": Field("activation", activation, "silu"),
    "tie_word_embeddings": Field("tied", flag, False),
}
IGNORED = ("cache_implementation", "_attn_implementation_autoset")


def windows(values: Mapping[str, Any], window: int | None, kinds: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return the window of each layer: in all layers, or in those of the kind with a window."""
    count = values["num_hidden_layers"]
    if kinds is not None and len(kinds) != count:
        raise LoadError(WHERE, "config.json: layer_types", f"{len(kinds):,} kinds", f"{count:,}, one for each layer")
    if kinds is not None and "sliding_attention" in kinds and not window:
        raise LoadError(WHERE, "config.json: sliding_window", "none", "a number: layer_types has sliding_attention")
    if not window:
        return ()
    return tuple(window if kinds is None or kind == "sliding_attention" else 0 for kind in kinds or [""] * count)


def lm_config(values: dict[str, Any], **more: Any) -> TransformerLmConfig:
    """Return the configuration from the values of `FIELDS` and these."""
    values["num_key_value_heads"] = values["num_key_value_heads"] or values["num_attention_heads"]
    given = [values.pop(name) for name in ("rope_scaling", "rope_parameters")]
    for found in given:
        values |= found or {}
    positions, original = values.pop("max_positions"), values.pop("original_positions", None)
    if "rope_scaling" in values:
        values["rope_scaling"] = completed(values["rope_scaling"], positions, original)
    part = values.pop("rotary_share", None)
    config = TransformerLmConfig(**values, **more)
    if part in (None, 1.0):
        return config
    return TransformerLmConfig(**values, **more, rotary_dim=int(config.head_dim * part))


def at_length(config: TransformerLmConfig, length: int) -> TransformerLmConfig:
    """Return the configuration of a model for so many positions: LongRoPE has other rates for long texts, and a cache
    holds keys of one rate only."""
    if config.rope_scaling is None:
        return config
    return replace(config, rope_scaling=extended(config.rope_scaling, length))


# the graph and its parameters -----------------------------------------------------------------------------------------
def build_lm(config: TransformerLmConfig, request: GraphRequest) -> Graph:
    """Make the graph of a language modelof one sequence."""
    if request.batch != 1:
        raise ArgumentError(WHERE, "batch", request.batch, "1: a language model reads one sequence")
    return transformer_lm(config, request.length, cast(Mode, request.mode))


def parameters(config: TransformerLmConfig) -> list[tuple[str, bool]]:
    """Return the name of each parameter but the caches, and whether it is a right factor of a product: [in, out] here,
    [out, in] in most files."""
    graph, caches = transformer_lm(config, 1, "decode"), set(cache_names(config))
    turned = {node.inputs[1] for node in graph if node.op == "matmul"}
    return [(node.name, node.id in turned) for node in graph.parameters if node.name not in caches]


def same_names(config: TransformerLmConfig) -> Sources:
    """Return the tensor of every parameter for files with our names; their matrices are [out, in]."""
    return {name: Source(name, transposed=turned) for name, turned in parameters(config)}


def lm_family(
    model_type: str,
    config: Callable[[Mapping[str, Any]], TransformerLmConfig],
    models: str,
    parts: str,
    sources: Callable[[TransformerLmConfig], Sources] = same_names,
) -> Family[TransformerLmConfig]:
    """Return the family of a language model with LLaMA's block; `sources`: its tensors, if their names are not ours."""
    return Family(
        (model_type,), config, build_lm, sources, LM_MODES, prefix="model.", at_length=at_length, models=models,
        parts=parts,
    )  # fmt: skip
