"""Read GPT-2: layer norms, learned positions, a plain feed-forward part; matrices lie as [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.config_fields import Field, Fields, flag, natural, only, optional, positive, read_fields
from gdlab.models.family import Family, Source, Sources
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import ATTENTION, LM_MODES, activation, build_lm, layers, parameters

GPT2: Fields = {
    "vocab_size": Field("vocab_size", natural, 50257),
    "n_positions": Field("positions", natural, 1024),
    "n_embd": Field("hidden_size", natural, 768),
    "n_layer": Field("num_hidden_layers", layers, 12),
    "n_head": Field("num_attention_heads", natural, 12),
    "n_inner": Field("intermediate_size", optional(natural), None),
    "activation_function": Field("activation", activation, "gelu_new"),
    "layer_norm_epsilon": Field("rms_norm_eps", positive, 1e-5),
    "scale_attn_weights": Field("scaled", flag, True),
    "scale_attn_by_inverse_layer_idx": Field("", only(False), False),
    "reorder_and_upcast_attn": Field("", flag, False),  # it changes no number in float32
    "tie_word_embeddings": Field("tied", flag, True),
}
IGNORED = ("n_ctx", "summary_type", "summary_use_proj", "summary_first_dropout", "summary_proj_to_labels")
OUTER = {"model.embed_tokens": "wte", "model.embed_positions": "wpe", "model.norm": "ln_f"}
LAYER = {  # our part of a layer -> the file's
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")  # columns of attn.c_attn


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, GPT2, IGNORED)
    scale = None if values.pop("scaled") else 1.0
    values["intermediate_size"] = values["intermediate_size"] or 4 * values["hidden_size"]
    return TransformerLmConfig(
        **values, num_key_value_heads=values["num_attention_heads"], norm="layer", gated=False, attention_scale=scale,
        biases=(*ATTENTION, "up_proj", "down_proj"),
    )  # fmt: skip


def _source(name: str, width: int) -> Source:
    module, _, kind = name.rpartition(".")
    if module in OUTER:
        return Source(f"transformer.{OUTER[module]}.{kind}")
    if not module.startswith("model.layers."):
        return Source(name, transposed=True)  # lm_head
    layer, part = module.split(".")[2], module.split(".", 3)[3]
    path = f"transformer.h.{layer}"
    if part not in QKV:
        return Source(f"{path}.{LAYER[part]}.{kind}")
    first = QKV.index(part) * width
    here = first, first + width
    packed = f"{path}.attn.c_attn.{kind}"
    return Source(packed, columns=here) if kind == "weight" else Source(packed, rows=here)


def sources(config: TransformerLmConfig) -> Sources:
    """Return the tensor of every parameter."""
    return {name: _source(name, config.hidden_size) for name, _ in parameters(config)}


GPT2_FAMILY = Family(
    ("gpt2",), config, build_lm, sources, LM_MODES, prefix="transformer.",
    harmless=("*.attn.bias", "*.attn.masked_bias"),  # masks
    models="GPT-2",
    parts="layer norms, learned positions, biases, a plain feed-forward part",
)  # fmt: skip
