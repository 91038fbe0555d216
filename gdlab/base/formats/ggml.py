"""The block formats of ggml: 32 or 256 elements of a row (along the last axis) in a block of little-endian bytes.

Layouts and decoders are those of `block_*` in ggml-common.h and `dequantize_row_*` in ggml-quants.c (G. Gerganov,
I. Kawrakow and others, ggml, MIT): the same float32 numbers, to the bit. `q4_0 q4_1 q5_0 q5_1 q8_0` are encoded as by
`quantize_row_*_ref` there. The encoders of `q2_k … q6_k` round each step, minimum and code once, without ggml's search
for better ones. NaN is encoded as 0; what a block cannot hold, infinities too, becomes the largest that it can.

`d` and `dmin` are steps in f16; `m` a minimum in f16; `qs`, `ql` the lower bits of the codes, `qh`, `hmask` the upper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdlab.base.types import FORMATS, Array, DType, Shape

_MANY = 1 << 16  # elements that are decoded or encoded at a time: they stay in the cache
_F32, _U8, _HALF = np.float32, np.uint8, "<f2"
_F16_MAX, _F32_MAX = np.float32(65504), float(np.finfo(np.float32).max)
_HALVES = np.array([0, 4], np.uint8)[:, None]  # shifts to the two codes of a byte
_QUARTERS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]


class Codec(NamedTuple):
    """Fields of a block; blocks[n] -> f32[n, elements], and back."""

    layout: np.dtype[Any]
    decode: Callable[[Array], Array]
    encode: Callable[[Array, Array], None]


def decode(words: Array, dtype: DType, shape: Shape) -> Array:
    """Return the f32 array of this shape that the words hold."""
    codec, block = CODECS[dtype], FORMATS[dtype].block
    count = int(np.prod(shape)) // block
    stored = words.view(np.uint8)[: count * codec.layout.itemsize].view(codec.layout)
    out, many = np.empty((count, block), _F32), _MANY // block
    with np.errstate(invalid="ignore", over="ignore"):  # bytes of somebody else may hold steps that are infinite
        for start in range(0, count, many):
            out[start : start + many] = codec.decode(stored[start : start + many])
    return out.reshape(shape)


def encode(data: Array, dtype: DType) -> Array:
    """Return the words of an array, u32[...]; what does not fill the last word is padded with 0."""
    codec, block = CODECS[dtype], FORMATS[dtype].block
    flat = np.asarray(data, order="C").reshape(-1, block)
    raw = np.zeros(-(-len(flat) * codec.layout.itemsize // 4) * 4, _U8)
    stored, many = raw[: len(flat) * codec.layout.itemsize].view(codec.layout), _MANY // block
    with np.errstate(over="ignore"):
        for start in range(0, len(flat), many):
            part = np.asarray(flat[start : start + many], _F32)
            codec.encode(np.nan_to_num(part, posinf=_F32_MAX, neginf=-_F32_MAX), stored[start : start + many])
    return raw.view(np.uint32)


# blocks of 32 ---------------------------------------------------------------------------------------------------------
def _step(blocks: Array, name: str = "d") -> Array:
    """Return a step of each block, f32[n, 1]."""
    return np.asarray(blocks[name], _F32).reshape(-1, 1)


def _nibbles(blocks: Array) -> Array:
    """Return the codes of 4 bits, u8[n, 32]: the lower halves of 16 bytes, then their upper ones."""
    qs = blocks["qs"][:, None]
    return np.asarray(qs >> _HALVES & _U8(15)).reshape(-1, 32)


def _fives(blocks: Array) -> Array:
    """Return the codes of 5 bits, u8[n, 32]; bit e of `qh` is the upper one of element e."""
    upper: Array = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    return np.asarray(_nibbles(blocks) | upper << _U8(4))


def _scaled(blocks: Array, codes: Array) -> Array:
    """Return d · code of codes[n, 32]."""
    out: Array = _step(blocks) * codes
    return out


def _q4_0(blocks: Array) -> Array:
    return _scaled(blocks, _nibbles(blocks).view(np.int8) - np.int8(8))


def _q4_1(blocks: Array) -> Array:
    return _scaled(blocks, _nibbles(blocks)) + _step(blocks, "m")


def _q5_0(blocks: Array) -> Array:
    return _scaled(blocks, _fives(blocks).view(np.int8) - np.int8(16))


def _q5_1(blocks: Array) -> Array:
    return _scaled(blocks, _fives(blocks)) + _step(blocks, "m")


def _q8_0(blocks: Array) -> Array:
    return _scaled(blocks, blocks["qs"])


def _inverse(step: Array) -> Array:
    """Return 1 / step, and 0 where that is no number."""
    with np.errstate(divide="ignore"):
        inverse = _F32(1) / step
    return np.where(np.isinf(inverse), _F32(0), inverse)


def _set_step(blocks: Array, name: str, step: Array) -> Array:
    """Store steps[n]; return those that are worked with, which ggml does not round to f16."""
    kept = np.clip(step, -_F16_MAX, _F16_MAX)
    blocks[name] = kept.astype(_HALF)
    return kept[:, None]


def _set_nibbles(blocks: Array, codes: Array) -> None:
    pairs = (codes & _U8(15)).reshape(-1, 2, 16)
    blocks["qs"] = pairs[:, 0] | pairs[:, 1] << _U8(4)


def _largest(x: Array) -> Array:
    """Return the element of the largest size along the last axis, with its sign; the first of several."""
    at = np.abs(x).argmax(-1)[..., None]
    return np.take_along_axis(x, at, -1)[..., 0]


def _encode_signed(bits: int) -> Callable[[Array, Array], None]:
    """Encoder of d · (code − 2^(bits − 1)): the element of the largest size is code 0."""
    middle = 1 << bits - 1

    def encode(x: Array, blocks: Array) -> None:
        step = _set_step(blocks, "d", _largest(x) / _F32(-middle))
        codes = np.clip(x * _inverse(step) + _F32(middle + 0.5), 0, 2 * middle - 1).astype(_U8)
        _set_codes(blocks, codes, bits)

    return encode


def _encode_above_minimum(bits: int) -> Callable[[Array, Array], None]:
    """Encoder of d · code + m."""
    most = (1 << bits) - 1

    def encode(x: Array, blocks: Array) -> None:
        low = _set_step(blocks, "m", x.min(1))
        step = _set_step(blocks, "d", (x.max(1)[:, None] - low)[:, 0] / _F32(most))
        codes = np.clip((x - low) * _inverse(step) + _F32(0.5), 0, most).astype(_U8)
        _set_codes(blocks, codes, bits)

    return encode


def _set_codes(blocks: Array, codes: Array, bits: int) -> None:
    _set_nibbles(blocks, codes)
    if bits == 5:
        blocks["qh"] = np.packbits(codes >> _U8(4), axis=1, bitorder="little")


def _encode_q8_0(x: Array, blocks: Array) -> None:
    step = _set_step(blocks, "d", np.abs(x).max(1) / _F32(127))
    scaled = x * _inverse(step)
    whole = np.trunc(scaled)
    whole += np.trunc(2 * (scaled - whole))  # C's roundf: ties away from 0
    blocks["qs"] = np.clip(whole, -127, 127).astype(np.int8)


# blocks of 256 with a minimum: d · scale · code − dmin · minimum ------------------------------------------------------
def _affine(blocks: Array, scales: Array, minima: Array, codes: Array) -> Array:
    """`scales`, `minima` u8[n, parts], `codes` u8[n, parts, elements]."""
    step, low = _step(blocks) * scales, _step(blocks, "dmin") * minima
    out = step[:, :, None] * codes
    out -= low[:, :, None]
    return out.reshape(-1, 256)


def _sixes(s: Array) -> tuple[Array, Array]:
    """Return scales and minima of 6 bits, u8[n, 8] each, of 12 bytes."""
    first, second, last = s[:, :4], s[:, 4:8], s[:, 8:]
    scales = np.concatenate([first & _U8(63), last & _U8(15) | first >> _U8(6) << _U8(4)], 1)
    return scales, np.concatenate([second & _U8(63), last >> _U8(4) | second >> _U8(6) << _U8(4)], 1)


def _joined_sixes(scales: Array, minima: Array) -> Array:
    """Return the 12 bytes that `_sixes` takes apart."""
    upper = [a[:, :4] | a[:, 4:] >> _U8(4) << _U8(6) for a in (scales, minima)]
    return np.concatenate([*upper, scales[:, 4:] & _U8(15) | minima[:, 4:] << _U8(4)], 1)


def _wide_nibbles(blocks: Array) -> Array:
    """Return codes of 4 bits, u8[n, 8, 32]: of each 32 bytes the lower halves, then the upper ones."""
    qs = blocks["qs"].reshape(-1, 4, 1, 32)
    return (qs >> _HALVES & _U8(15)).reshape(-1, 8, 32)


def _q4_k(blocks: Array) -> Array:
    return _affine(blocks, *_sixes(blocks["scales"]), _wide_nibbles(blocks))


def _q5_k(blocks: Array) -> Array:
    upper = blocks["qh"][:, None] >> _BITS & _U8(1)
    return _affine(blocks, *_sixes(blocks["scales"]), _wide_nibbles(blocks) | upper << _U8(4))


def _twos(blocks: Array) -> Array:
    """Return codes of 2 bits, u8[n, 2, 4, 32]: of each 32 bytes the lowest two bits, then the next."""
    return blocks["qs"].reshape(-1, 2, 1, 32) >> _QUARTERS & _U8(3)


def _q2_k(blocks: Array) -> Array:
    s = blocks["scales"]
    return _affine(blocks, s & _U8(15), s >> _U8(4), _twos(blocks).reshape(-1, 16, 16))


def _fit_affine(x: Array, blocks: Array, most: int, most_scale: int) -> tuple[Array, Array, Array]:
    """Scales, minima [n, parts] and codes of parts x[n, parts, elements], for codes 0 … most; d and dmin are set."""
    low = np.minimum(x.min(2), 0)
    step = (np.maximum(x.max(2), 0) - low) / _F32(most)
    scales, d = _fit_scales(blocks, "d", step, step.max(1) / _F32(most_scale), 0, most_scale)
    minima, dmin = _fit_scales(blocks, "dmin", -low, -low.min(1) / _F32(most_scale), 0, most_scale)
    shifted = x + (dmin * minima)[:, :, None]
    codes = np.clip(np.rint(shifted * _inverse(d * scales)[:, :, None]), 0, most)
    return scales.astype(_U8), minima.astype(_U8), codes.astype(_U8)


def _fit_scales(blocks: Array, name: str, steps: Array, unit: Array, low: int, high: int) -> tuple[Array, Array]:
    """Set a unit[n] of steps[n, parts]; return the steps in units, f32, and the units as they are stored."""
    _set_step(blocks, name, unit)
    stored = _step(blocks, name)
    return np.clip(np.rint(steps * _inverse(stored)), low, high), stored


def _encode_q4_k(x: Array, blocks: Array) -> None:
    scales, minima, codes = _fit_affine(x.reshape(-1, 8, 32), blocks, 15, 63)
    blocks["scales"] = _joined_sixes(scales, minima)
    _set_wide_nibbles(blocks, "qs", codes, 4)


def _encode_q5_k(x: Array, blocks: Array) -> None:
    scales, minima, codes = _fit_affine(x.reshape(-1, 8, 32), blocks, 31, 63)
    blocks["scales"] = _joined_sixes(scales, minima)
    _set_wide_nibbles(blocks, "qs", codes & _U8(15), 4)
    blocks["qh"] = np.bitwise_or.reduce((codes >> _U8(4)) << _BITS, 1)


def _encode_q2_k(x: Array, blocks: Array) -> None:
    scales, minima, codes = _fit_affine(x.reshape(-1, 16, 16), blocks, 3, 15)
    blocks["scales"] = scales | minima << _U8(4)
    _set_twos(blocks, "qs", codes)


def _set_wide_nibbles(blocks: Array, name: str, codes: Array, parts: int) -> None:
    pairs = codes.reshape(len(codes), parts, 2, -1)
    blocks[name] = (pairs[:, :, 0] | pairs[:, :, 1] << _U8(4)).reshape(len(codes), -1)


def _set_twos(blocks: Array, name: str, codes: Array) -> None:
    quarters = codes.reshape(-1, 2, 4, 32) << _QUARTERS
    blocks[name] = np.bitwise_or.reduce(quarters, 2).reshape(-1, 64)


# blocks of 256 around zero: d · scale · code --------------------------------------------------------------------------
def _signed(blocks: Array, scales: Array, codes: Array) -> Array:
    """`scales` i8[n, 16], `codes` i8[n, 256]."""
    step = _step(blocks) * scales
    return (step[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)


def _q6_k(blocks: Array) -> Array:
    low = (blocks["ql"].reshape(-1, 2, 1, 64) >> _HALVES & _U8(15)).reshape(-1, 2, 4, 32)
    high = blocks["qh"].reshape(-1, 2, 1, 32) >> _QUARTERS & _U8(3)
    return _signed(blocks, blocks["scales"], (low | high << _U8(4)).view(np.int8) - np.int8(32))


def _q3_k(blocks: Array) -> Array:
    s = blocks["scales"]
    low = np.concatenate([s[:, :8] & _U8(15), s[:, :8] >> _U8(4)], 1)
    high = (s[:, None, 8:] >> _QUARTERS & _U8(3)).reshape(-1, 16)
    upper = (blocks["hmask"][:, None] >> _BITS & _U8(1)).reshape(-1, 2, 4, 32)
    codes = (_twos(blocks) | upper << _U8(2)).view(np.int8) - np.int8(4)
    return _signed(blocks, (low | high << _U8(4)).view(np.int8) - np.int8(32), codes)


def _fit_signed(x: Array, blocks: Array, most: int, most_scale: int) -> tuple[Array, Array]:
    """Scales and codes [n, 16, 16] of parts x[n, 16, 16], for codes −most … most − 1 and scales −most_scale …
    most_scale − 1: the element of the largest size has the code −most, the part of the largest step the scale
    −most_scale. d is set."""
    steps = _largest(x) / _F32(-most)
    scales, d = _fit_scales(blocks, "d", steps, _largest(steps) / _F32(-most_scale), -most_scale, most_scale - 1)
    codes = np.clip(np.rint(x * _inverse(d * scales)[:, :, None]), -most, most - 1)
    return scales.astype(np.int8), codes.astype(np.int8)


def _encode_q6_k(x: Array, blocks: Array) -> None:
    scales, codes = _fit_signed(x.reshape(-1, 16, 16), blocks, 32, 128)
    blocks["scales"] = scales
    lifted = (codes + np.int8(32)).view(_U8).reshape(-1, 2, 4, 32)
    _set_wide_nibbles(blocks, "ql", lifted & _U8(15), 2)
    _set_twos(blocks, "qh", lifted >> _U8(4))


def _encode_q3_k(x: Array, blocks: Array) -> None:
    scales, codes = _fit_signed(x.reshape(-1, 16, 16), blocks, 4, 32)
    six = (scales + np.int8(32)).view(_U8)
    low = six[:, :8] & _U8(15) | six[:, 8:] << _U8(4)
    high = np.bitwise_or.reduce((six >> _U8(4)).reshape(-1, 4, 4) << _QUARTERS, 1)
    blocks["scales"] = np.concatenate([low, high], 1)
    lifted = (codes + np.int8(4)).view(_U8)
    _set_twos(blocks, "qs", lifted & _U8(3))
    blocks["hmask"] = np.bitwise_or.reduce((lifted >> _U8(2)).reshape(-1, 8, 32) << _BITS, 1)


# the table ------------------------------------------------------------------------------------------------------------
_D, _M, _DMIN = ("d", _HALF), ("m", _HALF), ("dmin", _HALF)
_QS16, _QH4, _SIXES, _QH32, _QS128 = (
    ("qs", "u1", 16), ("qh", "u1", 4), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128),
)  # fmt: skip
CODECS: dict[DType, Codec] = {
    DType.q4_0: Codec(np.dtype([_D, _QS16]), _q4_0, _encode_signed(4)),
    DType.q4_1: Codec(np.dtype([_D, _M, _QS16]), _q4_1, _encode_above_minimum(4)),
    DType.q5_0: Codec(np.dtype([_D, _QH4, _QS16]), _q5_0, _encode_signed(5)),
    DType.q5_1: Codec(np.dtype([_D, _M, _QH4, _QS16]), _q5_1, _encode_above_minimum(5)),
    DType.q8_0: Codec(np.dtype([_D, ("qs", "i1", 32)]), _q8_0, _encode_q8_0),
    DType.q2_k: Codec(np.dtype([("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN]), _q2_k, _encode_q2_k),
    DType.q3_k: Codec(np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), _SIXES, _D]), _q3_k, _encode_q3_k),
    DType.q4_k: Codec(np.dtype([_D, _DMIN, _SIXES, _QS128]), _q4_k, _encode_q4_k),
    DType.q5_k: Codec(np.dtype([_D, _DMIN, _SIXES, _QH32, _QS128]), _q5_k, _encode_q5_k),
    DType.q6_k: Codec(
        np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D]), _q6_k, _encode_q6_k
    ),
}  # fmt: skip
