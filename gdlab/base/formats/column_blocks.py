"""gdlab's own formats `q4` and `q8`: blocks of 32 elements of a column (along axis 0), the last of a column padded.

Block b of column n is number b · columns + n. A q4 block is a word with its step d (lower half) and minimum m in f16,
then eight codes of 4 bits in each of four words: m + d · code. A q8 block is its step d in f32, then four signed bytes
in each of eight words: d · code. d and m of q4 are rounded to f16 before the codes are chosen.
"""

from __future__ import annotations

import numpy as np

from gdlab.base.types import FORMATS, Array, DType, Shape

_F16_MAX, _F16_NORMAL = 65504.0, 2.0**-14
BLOCK = FORMATS[DType.q4].block


def _blocks(data: Array) -> Array:
    """f64[blocks, 32, columns]; the padding repeats the last row, so that it changes no extremum."""
    rows = -data.shape[0] % BLOCK
    padded: Array = np.pad(np.asarray(data, np.float64), ((0, rows), (0, 0)), "edge")
    return padded.reshape(-1, BLOCK, data.shape[1])


def _codes(data: Array, step: Array, low: int, high: int) -> Array:
    """data / step, rounded and clamped; 0 where there is no step."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.rint(data / step[:, None])
    clamped: Array = np.clip(np.nan_to_num(np.where(step[:, None] == 0, 0, codes)), low, high)
    return clamped


def encode_q4(data: Array) -> Array:
    """Return the words of `q4` blocks."""
    blocks = _blocks(data)
    low = np.clip(blocks.min(1), -_F16_MAX, _F16_MAX).astype(np.float16)
    step = np.clip((blocks.max(1) - blocks.min(1)) / 15, 0, _F16_MAX).astype(np.float16)
    step = np.where(step < _F16_NORMAL, np.float16(0), step)  # too small to be exact: the block is its minimum
    codes = _codes(blocks - low[:, None].astype(np.float64), step.astype(np.float64), 0, 15).astype(np.uint32)
    packed = codes.reshape(len(codes), 4, 8, -1) << (4 * np.arange(8, dtype=np.uint32))[:, None]
    head = step.view(np.uint16).astype(np.uint32) | low.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return _joined(head, np.bitwise_or.reduce(packed, 2))


def encode_q8(data: Array) -> Array:
    """Return the words of `q8` blocks."""
    blocks = _blocks(data)
    step = (np.abs(blocks).max(1) / 127).astype(np.float32)
    codes = _codes(blocks, step.astype(np.float64), -127, 127).astype(np.int8).view(np.uint8).astype(np.uint32)
    packed = codes.reshape(len(codes), 8, 4, -1) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    return _joined(step.view(np.uint32), np.bitwise_or.reduce(packed, 2))


def _joined(head: Array, codes: Array) -> Array:
    """[blocks, columns] and [blocks, words, columns] as words, block by block."""
    return np.ascontiguousarray(np.concatenate([head[:, None], codes], 1).transpose(0, 2, 1)).reshape(-1)


def _apart(words: Array, shape: Shape, per_block: int) -> tuple[Array, Array]:
    """Heads [blocks, columns] and codes [blocks, words, 1, columns]."""
    blocks = words.reshape(-1, shape[1], per_block).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks[:, 0]), blocks[:, 1:, None]


def decode_q4(words: Array, shape: Shape) -> Array:
    """Return what `q4` blocks hold."""
    head, codes = _apart(words, shape, 5)
    step = (head & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float32)
    low = (head >> np.uint32(16)).astype(np.uint16).view(np.float16).astype(np.float32)
    numbers = codes >> (4 * np.arange(8, dtype=np.uint32))[:, None] & np.uint32(15)
    numbers = numbers.reshape(len(head), BLOCK, -1).astype(np.float32)
    return (low[:, None] + step[:, None] * numbers).reshape(-1, shape[1])[: shape[0]]


def decode_q8(words: Array, shape: Shape) -> Array:
    """Return what `q8` blocks hold."""
    head, codes = _apart(words, shape, 9)
    numbers = (codes >> (8 * np.arange(4, dtype=np.uint32))[:, None]).astype(np.uint8).view(np.int8)
    numbers = numbers.reshape(len(head), BLOCK, -1).astype(np.float32)
    return (head.view(np.float32)[:, None] * numbers).reshape(-1, shape[1])[: shape[0]]
