"""Write small language models with random weights as folders of config.json and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "max_position_embeddings": 256,
}  # fmt: skip


def llama_folder(folder: Path, seed: int = 0, **fields: Any) -> Path:
    """Write a LLaMA of these extents; the norms of its weights are such that greedy tokens vary."""
    c = {**CONFIG, **fields}
    random, hidden, inner = np.random.default_rng(seed), c["hidden_size"], c["intermediate_size"]
    kv = hidden // c["num_attention_heads"] * c["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    tensors = {"model.embed_tokens": (c["vocab_size"], hidden), "lm_head": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        tensors |= {f"model.layers.{i}.{name}": shape for name, shape in shapes.items()}
    weights = {f"{name}.weight": random.normal(size=shape) / shape[-1] ** 0.5 for name, shape in tensors.items()}
    weights["model.embed_tokens.weight"] *= 8
    norms = ["model.norm"]
    for i in range(c["num_hidden_layers"]):
        norms += [f"model.layers.{i}.input_layernorm", f"model.layers.{i}.post_attention_layernorm"]
    weights |= {f"{name}.weight": 1 + random.normal(size=hidden) / 8 for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c), encoding="utf-8")
    save_file({name: data.astype(np.float32) for name, data in weights.items()}, folder / "model.safetensors")
    return folder
