"""Read Qwen2 (biases of queries, keys and values) and Qwen3 (norms of the heads of queries and keys)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.models.config_fields import Field, Fields, flag, natural, optional, read_fields
from gdlab.models.lm import TransformerLmConfig
from gdlab.models.names.lm_names import (
    ATTENTION,
    FIELDS,
    IGNORED,
    layer_types,
    lm_config,
    lm_family,
    windows,
)

QWEN2: Fields = FIELDS | {
    "sliding_window": Field("sliding_window", optional(natural), 4096),
    "use_sliding_window": Field("use_sliding_window", flag, False),
    "max_window_layers": Field("max_window_layers", lambda given: given if given == 0 else natural(given), 28),
    "layer_types": Field("layer_types", optional(layer_types), None),
}
QWEN3: Fields = QWEN2 | {
    "head_dim": Field("head_size", natural, 128),
    "attention_bias": Field("attention_bias", flag, False),
}


def _windows(values: dict[str, Any]) -> tuple[int, ...]:
    """Return the windows: by default the layers from `max_window_layers` on have one."""
    used, window, first, kinds = (
        values.pop(n) for n in ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    )
    window = window if used else None
    if kinds is None:
        count = values["num_hidden_layers"]
        kinds = tuple("sliding_attention" if window and i >= first else "full_attention" for i in range(count))
    return windows(values, window, kinds)


def qwen2(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json of Qwen2."""
    values = read_fields(fields, QWEN2, IGNORED)
    return lm_config(values, windows=_windows(values), biases=ATTENTION[:3])


def qwen3(fields: Mapping[str, Any]) -> TransformerLmConfig:
    """Read config.json of Qwen3."""
    values = read_fields(fields, QWEN3, IGNORED)
    biases = ATTENTION if values.pop("attention_bias") else ()
    return lm_config(values, windows=_windows(values), biases=biases, qk_norms=True)


QWEN_2 = lm_family("qwen2", qwen2, "Qwen2, Qwen2.5", "biases of queries, keys and values; windows by layer")
QWEN_3 = lm_family("qwen3", qwen3, "Qwen3", "norms of the heads of queries and keys; windows by layer")
