"""What a tensor is: element type and static shape, `f32[32, 128]`; and NumPy's broadcasting rule."""

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


class DType(Enum):
    """Element types: `f32` for arithmetic, `u32` for indices; parameters may be stored as `f16`, or in blocks of 32
    elements along axis 0 as `q4` (f16 step, f16 minimum, 4 bits each) or `q8` (f32 step, 8 bits each)."""

    f32 = "f32"
    u32 = "u32"
    f16 = "f16"
    q4 = "q4"
    q8 = "q8"

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype in which elements go in and come out (of `q4` and `q8` float32)."""
        return _NUMPY[self]

    @property
    def is_storage(self) -> bool:
        """Whether kernels decode it: only parameters have it."""
        return self not in (DType.f32, DType.u32)

    @property
    def nbytes(self) -> int:
        """Bytes per element as it goes in and comes out."""
        return int(self.numpy.itemsize)


f32, u32, f16, q4, q8 = DType
_NUMPY: dict[DType, np.dtype[Any]] = {
    f32: np.dtype(np.float32), u32: np.dtype(np.uint32), f16: np.dtype(np.float16), q4: np.dtype(np.float32),
    q8: np.dtype(np.float32),
}  # fmt: skip
BLOCK = 32  # elements along axis 0 that share a step
BLOCK_BYTES: dict[DType, int] = {q4: 20, q8: 36}
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
        if self.dtype in BLOCK_BYTES and len(self.shape) != 2:
            raise ShapeError("type", "shape", f"{self.dtype}{list(self.shape)}", "rank 2: blocks run along axis 0")

    @staticmethod
    def parse(text: str) -> TensorType:
        """The type that `text` spells, such as `u32[8]`."""
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
        """Product of the extents."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored elements; of blocks whole ones, the last of each column padded."""
        if self.dtype in BLOCK_BYTES:
            return -(-self.shape[0] // BLOCK) * self.shape[1] * BLOCK_BYTES[self.dtype]
        return self.num_elements * self.dtype.nbytes

    @cached_property
    def _text(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def check_shape(shape: Any, where: str = "type") -> Shape:
    """`shape` as a tuple of ints, or `ShapeError`. An int alone is one extent."""
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        extents = tuple(operator.index(n) for n in given)
    except TypeError:
        raise ShapeError(where, "shape", repr(shape), "a tuple of ints ≥ 1, rank 1 to 6") from None
    if not 1 <= len(extents) <= MAX_RANK or min(extents) < 1:
        raise ShapeError(where, "shape", list(extents), "ints ≥ 1, rank 1 to 6 (a scalar is [1])")
    return extents


def broadcast_shapes(shapes: Iterable[Shape]) -> Shape | None:
    """The common shape by NumPy's rule, or None where there is none."""
    shapes = list(shapes)
    rank = max(map(len, shapes))
    out = []
    for axis in range(-rank, 0):
        extents = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(extents) > 1:
            return None
        out.append(extents.pop() if extents else 1)
    return tuple(out)
