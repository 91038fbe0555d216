"""The type of a tensor: element type and static shape, `f32[32, 128]`; and NumPy's broadcasting rule."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, ShapeError

MAX_RANK = 6
Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of a storage dtype: `block` elements along `axis` (0, or −1: the last) lie in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int
    axis: int


class DType(Enum):
    """Element types: `f32` for arithmetic, `u32` for indices, and storage dtypes, which only parameters have.

    Storage dtypes are `f16`, `bf16`, gdlab's `q4` and `q8` (blocks of 32 elements along axis 0) and the formats of ggml
    (blocks of 32 or 256 elements along the last axis). `gdlab.base.formats` encodes and decodes them all.
    """

    f32 = "f32"
    u32 = "u32"
    f16 = "f16"
    q4 = "q4"
    q8 = "q8"
    bf16 = "bf16"
    q4_0 = "q4_0"
    q4_1 = "q4_1"
    q5_0 = "q5_0"
    q5_1 = "q5_1"
    q8_0 = "q8_0"
    q2_k = "q2_k"
    q3_k = "q3_k"
    q4_k = "q4_k"
    q5_k = "q5_k"
    q6_k = "q6_k"

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype in which elements go in and come out (of `bf16` and blocks float32)."""
        return _NUMPY[self]

    @property
    def format(self) -> Format | None:
        """The layout of a storage dtype; None of f32 and u32."""
        return FORMATS.get(self)

    @property
    def is_storage(self) -> bool:
        """Whether kernels decode it: only parameters have it."""
        return self not in (DType.f32, DType.u32)

    @property
    def in_blocks(self) -> bool:
        """Whether elements share bytes, so that none of them can be written alone."""
        return self.is_storage and FORMATS[self].block > 1

    @property
    def nbytes(self) -> int:
        """Bytes per element as it goes in and comes out."""
        return int(self.numpy.itemsize)


f32, u32, f16, q4, q8 = DType.f32, DType.u32, DType.f16, DType.q4, DType.q8
HALVES = (DType.f16, DType.bf16)  # two in a word
FORMATS: dict[DType, Format] = {
    DType[name]: Format(name, block, nbytes, axis)
    for name, block, nbytes, axis in (
        ("f16", 1, 2, -1), ("bf16", 1, 2, -1), ("q4", 32, 20, 0), ("q8", 32, 36, 0),
        ("q4_0", 32, 18, -1), ("q4_1", 32, 20, -1), ("q5_0", 32, 22, -1), ("q5_1", 32, 24, -1), ("q8_0", 32, 34, -1),
        ("q2_k", 256, 84, -1), ("q3_k", 256, 110, -1), ("q4_k", 256, 144, -1), ("q5_k", 256, 176, -1),
        ("q6_k", 256, 210, -1),
    )
}  # fmt: skip
_NUMPY: dict[DType, np.dtype[Any]] = dict.fromkeys(DType, np.dtype(np.float32)) | {
    u32: np.dtype(np.uint32), f16: np.dtype(np.float16),
}  # fmt: skip
_TEXT = re.compile(r"(\w+)\[( *[0-9]+ *(?:, *[0-9]+ *)*)\]")


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a tensor; `str` gives `f32[4, 784]` and `TensorType.parse` reads it back.

    Extents are ints ≥ 1 and the rank is 1 … 6 (a scalar is `[1]`): anything else raises `ShapeError`.
    """

    shape: Shape
    dtype: DType = f32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        if not isinstance(self.dtype, DType):
            raise DTypeError("type", "dtype", repr(self.dtype), " or ".join(f"gdlab.{d}" for d in DType))
        if self.dtype is not f32 and self.dtype is not u32:
            _check_blocks(self.shape, FORMATS[self.dtype])

    def __hash__(self) -> int:
        return hash(self.shape) if self.dtype is f32 else hash((self.shape, self.dtype))

    @staticmethod
    def parse(text: str) -> TensorType:
        """Return the type that `text` spells, such as `u32[8]`."""
        match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None or match[1] not in DType.__members__:
            raise ArgumentError("type", "text", repr(text), "a type such as f32[4, 784]")
        return TensorType(tuple(int(n) for n in match[2].split(",")), DType[match[1]])

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def num_elements(self) -> int:
        """The product of the extents."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of a buffer of it: those of the elements, rounded up to 4."""
        return -(-self.data_bytes // 4) * 4

    @property
    def data_bytes(self) -> int:
        """Bytes of the stored elements; of blocks whole ones, the last of each column of `q4` and `q8` padded."""
        if self.dtype is f32 or self.dtype is u32:
            return self.num_elements * 4
        format = FORMATS[self.dtype]
        extent = self.shape[format.axis]
        return self.num_elements // extent * -(-extent // format.block) * format.nbytes

    @cached_property
    def _text(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def _check_blocks(shape: Shape, format: Format) -> None:
    if format.block == 1:
        return
    given = f"{format.name}{list(shape)}"
    if format.axis == 0 and len(shape) != 2:
        raise ShapeError("type", "shape", given, "rank 2: blocks run along axis 0")
    if format.axis == -1 and shape[-1] % format.block:
        raise ShapeError("type", "shape", given, f"a last extent that is a multiple of {format.block}")


def check_shape(shape: Any, where: str = "type") -> Shape:
    """Return `shape` as a tuple of ints, or raise `ShapeError`. An int alone is one extent."""
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        extents = tuple(operator.index(n) for n in given)
    except TypeError:
        raise ShapeError(where, "shape", repr(shape), "a tuple of ints ≥ 1, rank 1 to 6") from None
    if not 1 <= len(extents) <= MAX_RANK or min(extents) < 1:
        raise ShapeError(where, "shape", list(extents), "ints ≥ 1, rank 1 to 6 (a scalar is [1])")
    return extents


def broadcast_shapes(shapes: Iterable[Shape]) -> Shape | None:
    """Return the common shape by NumPy's rule, or None where there is none."""
    shapes = list(shapes)
    rank = max(map(len, shapes))
    out = []
    for axis in range(-rank, 0):
        extents = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(extents) > 1:
            return None
        out.append(extents.pop() if extents else 1)
    return tuple(out)
