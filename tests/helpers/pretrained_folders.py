"""Small language models of every family with random weights, as folders: config.json and safetensors."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FIXTURE = Path(__file__).parents[1] / "load/pretrained/families.json"
ROWS = (5, 11)  # positions whose logits the fixture has
PROMPT, TOKENS = 12, 64  # positions of the prompt, tokens behind it
SMALL: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 128,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.2], "long_factor": [1.2, 2.0, 4.5, 8.0]}
NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _case(model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SMALL, **NO_TOKENS, **more}


CASES: dict[str, dict[str, Any]] = {
    "llama 2": _case("llama", num_key_value_heads=4, rms_norm_eps=1e-5),
    "llama 3.1": _case("llama", rope_theta=500_000.0, rope_scaling=LLAMA3),
    "llama 3.2": _case("llama", rope_scaling=LLAMA3 | {"factor": 32.0}, tie_word_embeddings=True, head_dim=16),
    "llama, linear rope": _case("llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama, dynamic rope": _case("llama", rope_scaling={"type": "dynamic", "factor": 4.0}),
    "llama, yarn": _case("llama", rope_scaling=YARN | {"mscale": 0.8, "mscale_all_dim": 0.4, "beta_fast": 8.0,
                                                       "beta_slow": 0.5, "truncate": False}),
    "llama, biases": _case("llama", attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "mistral": _case("mistral", sliding_window=5, head_dim=16),
    "mistral, no window": _case("mistral", sliding_window=None),
    "qwen2": _case("qwen2", rope_theta=1e6, tie_word_embeddings=True),
    "qwen2, windows": _case("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen2, yarn": _case("qwen2", rope_scaling=YARN, head_dim=16),
    "qwen3": _case("qwen3", head_dim=16, rope_theta=1e6),
    "gemma": _case("gemma", head_dim=16, num_key_value_heads=1),
    "gemma2": _case("gemma2", head_dim=16, sliding_window=6, query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
                    final_logit_softcapping=1.0),
    "gemma2, no caps": _case("gemma2", head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=None,
                             query_pre_attn_scalar=8, sliding_window=200),
    "phi3": _case("phi3", sliding_window=7),
    "phi3, partial": _case("phi3", head_dim=16, partial_rotary_factor=0.5),
    "phi3, longrope": _case("phi3", rope_scaling=LONGROPE, original_max_position_embeddings=96, sliding_window=None),
    "phi3, longrope, long": _case("phi3", rope_scaling=LONGROPE | {"short_factor": [1.0, 1.3], "long_factor": [1.4, 6]},
                                  original_max_position_embeddings=8, sliding_window=None, partial_rotary_factor=0.5),
    "gpt2": {"model_type": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 80,
             **NO_TOKENS},
}  # fmt: skip


def ids_of(config: Mapping[str, Any]) -> np.ndarray:
    """Return the prompt: u32[12]."""
    return (np.arange(PROMPT, dtype=np.uint32) * 7 + 3) % int(config["vocab_size"])


def random_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return f32 values from a seed that the name gives: norms near 1, others wide enough that all of them matter."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        centre = 1.0 if name.endswith("weight") else 0.0
        return (centre + 0.3 * values).astype(np.float32)
    return (values * (0.15 if "emb" in name or "wte" in name or "wpe" in name else 2.0 / np.sqrt(shape[-1]))).astype(
        np.float32
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """Results of `transformers`: logits of `ROWS`, the largest of all, the tokens that follow the prompt."""

    shapes: dict[str, tuple[int, ...]]
    logits: np.ndarray
    largest: float
    tokens: list[int]


def judged(name: str) -> Judged:
    """Return the fixture of a case."""
    found = json.loads(FIXTURE.read_text())[name]
    logits = np.frombuffer(base64.b64decode(found["logits"]), "<f4").reshape(len(ROWS), -1)
    shapes = {tensor: tuple(shape) for tensor, shape in found["shapes"].items()}
    shapes |= {name.replace(".0.", ".1."): shape for name, shape in shapes.items() if ".0." in name}
    return Judged(shapes, logits, found["largest"], found["tokens"])


def tensors_of(name: str) -> dict[str, np.ndarray]:
    """Return the weights of a case by the file's names."""
    return {tensor: random_tensor(tensor, shape) for tensor, shape in judged(name).shapes.items()}


def written(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """Write a folder: config.json, and the tensors in one file or in shards with their index."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for shard in sorted(set(places.values())):
        save_file({n: t for n, t in tensors.items() if places[n] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def folder_of(name: str, folder: Path, shards: int = 1, **config: Any) -> Path:
    """Write the folder of a case; `config`: fields that are other ones there."""
    return written(folder, CASES[name] | config, tensors_of(name), shards)
