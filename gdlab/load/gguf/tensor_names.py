"""Translate the names of tensors and extents in a GGUF file of the llama family into ours."""

from __future__ import annotations

OUTER: dict[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER: dict[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EXTENTS: dict[str, str] = {  # fields, behind "llama.", that are fields of TransformerLmConfig
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
ROTATED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}  # whose rows the format reorders by head


def our_name(name: str) -> str | None:
    """Return our name of a tensor, `blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`; None for one that
    the model does not have."""
    stem, dot, kind = name.rpartition(".")
    if kind != "weight" or not dot:
        return None
    if stem in OUTER:
        return f"{OUTER[stem]}.weight"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    plain = layer.isascii() and layer.isdigit() and str(int(layer[:9])) == layer
    return f"model.layers.{layer}.{LAYER[part]}.weight" if block == "blk" and plain and part in LAYER else None


def rotated_by(name: str) -> str | None:
    """Return the extent, a field of the configuration, that counts the heads of a tensor whose rows are reordered."""
    return ROTATED.get(name.removesuffix(".weight").rpartition(".")[2])
