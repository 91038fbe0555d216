"""The node of a graph: a frozen record of op, inputs, attributes, type and name."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gdlab.base.types import DType, Shape, TensorType


@dataclass(frozen=True)
class ConstantData:
    """The elements of a constant: dtype, shape and raw bytes, compared by value (so −0.0 ≠ 0.0 and a NaN equals
    itself)."""

    dtype: DType
    shape: Shape
    raw: bytes

    @cached_property
    def digest(self) -> str:
        """Return 12 hex digits over dtype, shape and bytes."""
        return hashlib.sha256(repr((self.dtype, self.shape)).encode() + self.raw).hexdigest()[:12]

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The elements, read-only."""
        return np.frombuffer(self.raw, self.dtype.numpy).reshape(self.shape)

    def __repr__(self) -> str:
        flat = self.array.ravel()
        shown = ", ".join(_number(v) for v in flat[:8].tolist())
        return f"[{shown}]" if flat.size <= 8 else f"[{shown}, … ({flat.size} values)]"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else str(np.float32(value))


@dataclass(frozen=True, slots=True)
class AttrVar:
    """An attribute of a pattern: stands for any value."""

    name: str


Attr = Any  # bool | int | float | str | tuple[int, ...] | ConstantData | AttrVar
Attrs = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: a pure record. `inputs` are ids of earlier nodes, `attrs` pairs sorted by name; one result per
    node."""

    id: int
    op: str
    inputs: tuple[int, ...]
    attrs: Attrs
    type: TensorType
    name: str = ""

    def __init__(
        self, id: int, op: str, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, name: str = ""
    ) -> None:
        # what a dataclass writes here takes twice as long (0.65 µs of each node, 2026-11-23)
        _set_id(self, id)
        _set_op(self, op)
        _set_inputs(self, inputs)
        _set_attrs(self, attrs)
        _set_type(self, type)
        _set_name(self, name)

    def attr(self, name: str) -> Attr:
        """Return the attribute `name`; `KeyError` where the op has none."""
        return dict(self.attrs)[name]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for two nodes exactly when they compute the same: op, attributes bit by bit, inputs, type."""
        return self.op, attrs_key(self.attrs), self.inputs, self.type


_set_id, _set_op, _set_inputs, _set_attrs, _set_type, _set_name = (
    vars(Node)[name].__set__ for name in ("id", "op", "inputs", "attrs", "type", "name")
)


def attrs_key(attrs: Attrs) -> Attrs:
    """Return `attrs` with floats as their 8 bytes, so that equality is equality of bits."""
    return tuple((k, struct.pack("<d", v) if isinstance(v, float) else v) for k, v in attrs)
