"""Check the fields of a GGUF file of the llama family, one after the other: the model's results follow from them, so an
unknown field is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from gdlab.base.errors import LoadError
from gdlab.load.gguf.container import WHERE, Field
from gdlab.load.gguf.tensor_names import EXTENTS
from gdlab.models import TransformerLmConfig

FAMILY = "llama"
LARGEST = 1 << 31
F32_MAX = float(np.finfo(np.float32).max)
NO_ARITHMETIC = (  # prefixes of fields that say nothing of what the model computes
    "general.", "tokenizer.", "quantize.", "imatrix.", "llama.context_length",
    "llama.rope.scaling.original_context_length", "llama.rope.scaling.finetuned",
)  # fmt: skip
Check = Callable[[TransformerLmConfig, Field], str]  # the value that is wanted; "" where the field fits


def _is(*wanted: Field) -> Check:
    def check(config: TransformerLmConfig, given: Field) -> str:
        return "" if given in wanted else " or ".join(map(repr, wanted))

    return check


def _head_dim(config: TransformerLmConfig, given: Field) -> str:
    return "" if given == config.head_dim else f"{config.head_dim}, the width of a head"


FIXED: dict[str, Check] = {  # fields that change the mathematics, and the one value that the model computes
    "general.architecture": _is(FAMILY),
    "general.type": _is("model"),
    "general.quantization_version": _is(2),
    "split.count": _is(0, 1),
    "split.no": _is(0),
    "llama.attention.key_length": _head_dim,
    "llama.attention.value_length": _head_dim,
    "llama.attention.causal": _is(True),
    "llama.attention.sliding_window": _is(0),
    "llama.attention.clamp_kqv": _is(0.0),
    "llama.attention.max_alibi_bias": _is(0.0),
    "llama.rope.dimension_count": _head_dim,
    "llama.rope.scaling.type": _is("none"),
    "llama.rope.scaling.factor": _is(1.0),
    "llama.rope.scale_linear": _is(1.0),
    "llama.rope.scaling.attn_factor": _is(1.0),
    "llama.expert_count": _is(0),
    "llama.expert_used_count": _is(0),
    "llama.use_parallel_residual": _is(False),
    "llama.tensor_data_layout": _is("Meta AI original pth"),
}


def read_config(fields: Mapping[str, Field], vocabulary: int, tied: bool) -> TransformerLmConfig:
    """Return the extents of the model that the fields describe; `LoadError` names a field that is missing, not
    understood, or contradicts `transformer_lm`."""
    family = fields.get("general.architecture", "none")
    if family != FAMILY:
        raise LoadError(WHERE, "general.architecture", f"{family!r:.80}", repr(FAMILY))
    config = _config(fields, vocabulary, tied)
    for name, given in fields.items():
        if name in FIXED:
            wanted = FIXED[name](config, given)
            if wanted:
                raise LoadError(WHERE, f"field {name!r:.120}", f"{given!r:.120}", wanted)
        elif name.removeprefix(f"{FAMILY}.") not in EXTENTS and not name.startswith(NO_ARITHMETIC):
            wanted = "a field that this reader understands: others may change what the model computes"
            raise LoadError(WHERE, f"field {name!r:.120}", f"{given!r:.120}", wanted)
    return config


def _config(fields: Mapping[str, Field], vocabulary: int, tied: bool) -> TransformerLmConfig:
    given = {ours: fields[f"{FAMILY}.{name}"] for name, ours in EXTENTS.items() if f"{FAMILY}.{name}" in fields}
    given = {ours: _shortest(_uniform(value)) for ours, value in given.items()}
    given.setdefault("num_key_value_heads", given.get("num_attention_heads", 0))
    given.setdefault("rope_theta", 10_000.0)
    given.setdefault("vocab_size", vocabulary)
    theirs = {ours: f"{FAMILY}.{name}" for name, ours in EXTENTS.items()}
    for ours, name in theirs.items():
        _check_number(name, given.get(ours), ours in ("rms_norm_eps", "rope_theta"))
    config = TransformerLmConfig(**given, tied=tied)  # type: ignore[arg-type]
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if config.hidden_size % heads or config.head_dim % 2:
        wanted = f"a divisor of {config.hidden_size} that leaves heads of an even width"
        raise LoadError(WHERE, f"field '{theirs['num_attention_heads']}'", heads, wanted)
    if heads % kv_heads:
        raise LoadError(WHERE, f"field '{theirs['num_key_value_heads']}'", kv_heads, f"a divisor of {heads}")
    if config.vocab_size != vocabulary:
        wanted = f"{vocabulary:,}, as the table of embeddings has rows"
        raise LoadError(WHERE, f"field '{theirs['vocab_size']}'", config.vocab_size, wanted)
    return config


def _uniform(value: Field) -> Field:
    """Return the number of an array that has the same one for every layer; any other value as it is."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _shortest(value: Field) -> Field:
    """Return a number of the file, an f32, as the shortest one that rounds to it: 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) and abs(value) < F32_MAX else value


def _check_number(name: str, given: Field | None, real: bool) -> None:
    wanted = "a finite number above 0" if real else "an int ≥ 1, the same in all layers"
    fits = isinstance(given, float if real else int) and not isinstance(given, bool)
    if not fits or not isinstance(given, (int, float)) or not math.isfinite(given) or not 0 < given < LARGEST:
        raise LoadError(WHERE, f"field '{name}'", "none" if given is None else f"{given!r:.120}", wanted)
