"""Hold a tensor in the bytes of its storage dtype: `Packed`, which a session takes word by word, not converted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.types import Array, DType, Shape, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The bytes of a tensor in a storage dtype. NumPy reads the numbers that they stand for, as float32; a parameter of
    the same type takes the bytes, for blocks that are encoded again are other blocks."""

    dtype: DType
    shape: Shape
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, values: Any, type: TensorType) -> Packed:
        """Return values in the storage dtype of a type; `Packed` ones as they are."""
        from gdlab.base.formats import encode

        if isinstance(values, Packed):
            return values
        return cls.of_words(encode(np.reshape(values, type.shape), type.dtype), type)

    @classmethod
    def of_words(cls, words: Array, type: TensorType) -> Packed:
        """Return what a device's buffer holds of a tensor of this type, as words or as bytes."""
        return cls(type.dtype, type.shape, words.tobytes()[: type.data_bytes])

    @property
    def type(self) -> TensorType:
        """Return the type of the tensor."""
        return TensorType(self.shape, self.dtype)

    @property
    def words(self) -> Array:
        """Return the bytes as u32, as a device's buffer holds them."""
        return np.frombuffer(self.data + bytes(-len(self.data) % 4), np.uint32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        from gdlab.base.formats import decode

        return np.asarray(decode(self.words, self.dtype, self.shape), dtype)


def as_stored(values: Any, type: TensorType) -> Any:
    """Return a parameter as a device holds it: in blocks as their bytes, of 16 bits rounded, others as given."""
    if isinstance(values, Packed) or not type.dtype.is_storage:
        return values
    packed = Packed.of(values, type)
    return packed if type.dtype.in_blocks else np.asarray(packed)


def in_words(values: Any) -> Array:
    """Return a parameter as an array for a file: blocks as their words."""
    return values.words if isinstance(values, Packed) else np.ascontiguousarray(values)


def from_words(data: Any, type: TensorType) -> Any:
    """Return a parameter from a file: the words or bytes of a storage dtype as `Packed`, others as given."""
    stored = type.dtype.is_storage and isinstance(data, np.ndarray) and data.dtype in (np.uint32, np.uint8)
    if not stored or data.ndim != 1 or data.nbytes != type.size_bytes:
        return data
    return Packed.of_words(data, type)
