"""Read Phi-3: LLaMA's block whose queries, keys and values lie in one matrix, gate and up in another."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from gdlab.models.config_fields import Field, Fields, natural, only, optional, read_fields
from gdlab.models.family import Source, Sources
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import FIELDS, IGNORED, lm_config, lm_family, parameters, windows

PHI3: Fields = FIELDS | {
    "rms_norm_eps": Field("rms_norm_eps", FIELDS["rms_norm_eps"].read, 1e-5),
    "sliding_window": Field("sliding_window", optional(natural), None),
    "attention_bias": Field("", only(False, None), False),
    "original_max_position_embeddings": Field("original_positions", optional(natural), None),
}
PACKED = {  # tensor of the file -> what lies in its rows
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def config(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json."""
    values = read_fields(fields, PHI3, (*IGNORED, "use_flash_attention_2"))
    return lm_config(values, windows=windows(values, values.pop("sliding_window"), None))


def _rows(c: TransformerLmConfig) -> dict[str, tuple[str, tuple[int, int]]]:
    """Return for each packed part its tensor and its rows."""
    extents = {
        "self_attn.qkv_proj": (c.num_attention_heads * c.head_dim, c.kv_dim, c.kv_dim),
        "mlp.gate_up_proj": (c.intermediate_size, c.intermediate_size),
    }
    return {
        part: (tensor, rows)
        for tensor, parts in PACKED.items()
        for part, rows in zip(parts, pairwise(accumulate(extents[tensor], initial=0)), strict=True)
    }


def sources(config: TransformerLmConfig) -> Sources:
    """Return the tensor of every parameter."""
    rows, found = _rows(config), dict[str, Source]()
    for name, turned in parameters(config):
        parts = name.split(".")
        layer, part = ".".join(parts[:3]), ".".join(parts[3:-1])
        found[name] = Source(name, transposed=turned)
        if part in rows:
            tensor, here = rows[part]
            found[name] = Source(f"{layer}.{tensor}.weight", transposed=True, rows=here)
    return found


PHI3_FAMILY = lm_family("phi3", config, "Phi-3", "packed matrices, a window, partial rotation", sources)
