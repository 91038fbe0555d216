"""Round to 16 bits, and refuse numbers that a dtype does not hold.

All rounding is to the nearest, ties to even, once: a float64 does not become a float32 on its way to 16 bits.
"""

from __future__ import annotations

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, DType, Shape

LARGEST: dict[DType, str] = {DType.f32: "3.4028235e+38", DType.f16: "65504", DType.bf16: "3.3895314e+38"}


def round_f16(data: Array) -> Array:
    """Return the nearest float16 of each element, in the array's own type; ±inf beyond 65504."""
    with np.errstate(over="ignore"):
        return np.asarray(data.astype(np.float16).astype(data.dtype))


def round_bf16(data: Array) -> Array:
    """Return the nearest bfloat16 of each element, in the array's own type; ±inf beyond 3.3895314e38."""
    return bf16_values(bf16_bits(data)).astype(data.dtype, copy=False)


def bf16_bits(data: Array) -> Array:
    """Return the nearest bfloat16 of each element as its bits, u16; NaN stays NaN, made quiet."""
    bits = _bits(np.asarray(data))
    near = bits >> np.uint32(16)  # an array, of no axes too
    near = near & np.uint32(1)
    near += np.uint32(0x7FFF)
    near += bits  # a NaN may wrap: it is replaced below
    near >>= np.uint32(16)
    nan = np.isnan(bits.view(np.float32))
    if nan.any():
        near = np.where(nan, bits >> np.uint32(16) | np.uint32(0x40), near)
    return np.asarray(near, np.uint16)


def bf16_values(bits: Array) -> Array:
    """Return the float32 numbers of bfloat16 bits."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def _bits(data: Array) -> Array:
    """Return float32 bits that lie on the same side of every tie of bfloat16 as the numbers do: what float32 does not
    hold exactly is cut, and its last bit set ("round to odd")."""
    with np.errstate(over="ignore"):
        near = np.asarray(data, np.float32, order="C")
    bits = near.view(np.uint32)
    if data.dtype.kind != "f" or data.dtype.itemsize <= 4:
        return bits
    inexact = near != data  # NaN too, whose bits stay those of a NaN
    if not inexact.any():
        return bits
    with np.errstate(over="ignore", invalid="ignore"):
        larger = np.abs(near) > np.abs(data)
    return np.where(inexact & ~np.isnan(data), bits - larger | np.uint32(1), bits)


# range ----------------------------------------------------------------------------------------------------------------
def narrowed(where: str, what: str, data: Array, dtype: DType) -> Array:
    """Return real numbers in the NumPy dtype in which `dtype` goes in, rounded to the nearest; infinities and NaN pass.

    `DTypeError` names the first number that is finite and would become infinite. Elements of that NumPy dtype are
    returned as they are, unread (but those of `bf16`).
    """
    wanted = dtype.numpy
    if data.dtype == wanted and dtype is not DType.bf16:
        return data
    with np.errstate(over="ignore"):
        near = data.astype(wanted, order="C")
    held = near if dtype is not DType.bf16 else round_bf16(data if data.dtype.kind == "f" else near)
    if held.dtype.kind == "f" and (infinite := np.isinf(held)).any():
        _check_infinite(where, what, data, infinite, dtype)
    return near


def _check_infinite(where: str, what: str, data: Array, infinite: Array, dtype: DType) -> None:
    lost = (infinite & np.isfinite(data)).reshape(-1)
    if lost.any():
        at, kind = int(np.argmax(lost)), dtype if dtype in LARGEST else DType.f32
        given = f"{data.reshape(-1)[at]} at index {at}"
        raise DTypeError(where, what, given, f"numbers of at most {LARGEST[kind]}, the largest of {kind}")


# words ----------------------------------------------------------------------------------------------------------------
def encode_f16(data: Array) -> Array:
    """Return the words of float16 elements."""
    with np.errstate(over="ignore"):
        return _words(np.asarray(data, np.float16))


def decode_f16(words: Array, shape: Shape) -> Array:
    """Return what `encode_f16` has encoded."""
    return words.view(np.float16)[: int(np.prod(shape))].reshape(shape).astype(np.float32)


def encode_bf16(data: Array) -> Array:
    """Return the words of bfloat16 elements."""
    return _words(bf16_bits(data))


def decode_bf16(words: Array, shape: Shape) -> Array:
    """Return what `encode_bf16` has encoded."""
    return bf16_values(words.view(np.uint16)[: int(np.prod(shape))].reshape(shape))


def _words(halves: Array) -> Array:
    flat = halves.reshape(-1)
    return np.pad(flat, (0, flat.size % 2)).view(np.uint32)
