"""Storage dtypes as bytes: `encode` an array as `f16`, `bf16`, `q4`, `q8` or a format of ggml, `decode` it again; and
the conversions of numbers that enter and leave."""

from __future__ import annotations

from collections.abc import Callable

from gdlab.base.formats import column_blocks, ggml
from gdlab.base.formats.boundary import BOUNDARY, bf16_numpy, check_boundary, entered, from_bytes, landed, to_bytes
from gdlab.base.formats.round16 import (
    bf16_bits,
    bf16_values,
    decode_bf16,
    decode_f16,
    encode_bf16,
    encode_f16,
    narrowed,
    round_bf16,
    round_f16,
)
from gdlab.base.types import Array, DType, Shape

__all__ = [
    "BOUNDARY",
    "bf16_bits",
    "bf16_numpy",
    "bf16_values",
    "check_boundary",
    "decode",
    "encode",
    "entered",
    "from_bytes",
    "landed",
    "narrowed",
    "round_bf16",
    "round_f16",
    "to_bytes",
]

_CODECS: dict[DType, tuple[Callable[[Array], Array], Callable[[Array, Shape], Array]]] = {
    DType.f16: (encode_f16, decode_f16),
    DType.bf16: (encode_bf16, decode_bf16),
    DType.q4: (column_blocks.encode_q4, column_blocks.decode_q4),
    DType.q8: (column_blocks.encode_q8, column_blocks.decode_q8),
}


def encode(data: Array, dtype: DType) -> Array:
    """Return the words of an array, u32[...]; what does not fill the last word is padded with 0."""
    return _CODECS[dtype][0](data) if dtype in _CODECS else ggml.encode(data, dtype)


def decode(words: Array, dtype: DType, shape: Shape) -> Array:
    """Return the f32 array of this shape that the words hold."""
    return _CODECS[dtype][1](words, shape) if dtype in _CODECS else ggml.decode(words, dtype, shape)
