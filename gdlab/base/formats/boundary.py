"""Conversions at the edge of a graph, the same for every door: inside are f32 and u32, outside eleven boundary dtypes.

`entered` takes numbers in, `landed` gives them out, `from_bytes` and `to_bytes` do so for little-endian bytes. A tensor
with a boundary dtype shows values of that dtype alone.

| boundary | in | out |
|---|---|---|
| f32 f16 bf16 f64 | nearest, ties to even; a finite number that becomes infinite: `DTypeError` | nearest, ±inf beyond |
| i8 u8 i16 i32 u32 i64 | integers and bools of its range, else `DTypeError` | cut toward 0, saturated, NaN → 0 |
| bool | x ≠ 0, NaN → 1 | x ≠ 0, NaN → True |
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError, ShapeError
from gdlab.base.formats.round16 import bf16_bits, bf16_values, narrowed
from gdlab.base.types import Array, DType
from gdlab.base.words import plural

# The NumPy dtype of the elements; of bf16 that of their bits.
BOUNDARY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2"), "f64": np.dtype("<f8"),
    "i8": np.dtype("i1"), "u8": np.dtype("u1"), "i16": np.dtype("<i2"), "i32": np.dtype("<i4"),
    "u32": np.dtype("<u4"), "i64": np.dtype("<i8"), "bool": np.dtype("?"),
}  # fmt: skip
_ROUNDED = {"f32": DType.f32, "f16": DType.f16, "bf16": DType.bf16}
_INDICES = "integers in 0 … 2^32 − 1"


def check_boundary(where: str, what: str, name: object) -> str:
    """Return the name of a boundary dtype (a `DType` is taken by its name), or raise `DTypeError` that lists all."""
    text = str(name) if isinstance(name, DType) else name
    if not isinstance(text, str) or text not in BOUNDARY:
        raise DTypeError(where, what, repr(name), f"one of {', '.join(BOUNDARY)}")
    return text


@cache
def bf16_numpy() -> np.dtype[Any]:
    """Return the NumPy dtype of bf16 results: that of ml_dtypes where it is installed, else u16 for the bits."""
    if find_spec("ml_dtypes") is None:
        return BOUNDARY["bf16"]
    found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    return found


# in -------------------------------------------------------------------------------------------------------------------
def entered(where: str, what: str, data: Any, boundary: str, dtype: DType) -> Array:
    """Return numbers for a tensor of `dtype` (f32 or u32) that shows values of `boundary`, in the shape of `data`.

    Floats may lose precision and nothing else; `DTypeError` names the first element that cannot be held. Elements of
    NumPy's u16 are numbers, never bits of bf16.
    """
    array = _real(where, what, data)
    if boundary == "bool":
        array = array != 0  # NaN too
    elif boundary in _ROUNDED:
        array = _rounded(where, what, array, boundary)
    elif boundary != "f64":
        _check_integers(where, what, array, *_limits(boundary))
    if dtype is DType.f32:
        return narrowed(where, what, array, DType.f32)
    _check_integers(where, what, array, 0, 2**32 - 1)
    return array.astype(np.uint32, copy=False)


def _real(where: str, what: str, data: Any) -> Array:
    """Return an array of real numbers or bools; bfloat16 elements as float32."""
    try:
        array = np.asarray(data)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(where, what, "a ragged sequence", "an array") from None
    if array.dtype.name == "bfloat16":
        return bf16_values(array.view(np.uint16))
    if array.dtype.kind not in "fiub":
        raise DTypeError(where, what, array.dtype, "real numbers")
    return array


def _rounded(where: str, what: str, array: Array, boundary: str) -> Array:
    """Return numbers of a float boundary; integers for a u32 tensor stay integers until they are rounded."""
    near = narrowed(where, what, array, _ROUNDED[boundary])
    return bf16_values(bf16_bits(array if array.dtype.kind == "f" else near)) if boundary == "bf16" else near


def _limits(boundary: str) -> tuple[int, int]:
    limits = np.iinfo(BOUNDARY[boundary])
    return int(limits.min), int(limits.max)


def _check_integers(where: str, what: str, array: Array, low: int, high: int) -> None:
    """`DTypeError` unless all are integers (bools too) in low … high."""
    wanted = _INDICES if (low, high) == (0, 2**32 - 1) else f"integers in {low} … {high}"
    if array.dtype.kind == "f":
        raise DTypeError(where, what, f"{array.dtype} data", wanted)
    if array.dtype.kind == "b" or not array.size or low <= int(array.min()) <= int(array.max()) <= high:
        return
    flat = array.reshape(-1)
    limits = np.iinfo(array.dtype)  # a Python int that the dtype lacks cannot be compared with it
    outside = (flat < max(low, int(limits.min))) | (flat > min(high, int(limits.max)))
    at = int(np.argmax(outside))
    raise DTypeError(where, what, f"{flat[at]} at index {at}", wanted)


def from_bytes(where: str, what: str, data: Any, boundary: str, count: int) -> Array:
    """Return the `count` numbers that bytes hold, for `entered`; of bf16 as float32, a bool is any byte but 0."""
    dtype = BOUNDARY[boundary]
    try:
        view = memoryview(data).cast("B")
    except TypeError:
        raise DTypeError(where, what, type(data).__name__, "contiguous bytes") from None
    if view.nbytes != count * dtype.itemsize:
        wanted = f"{count * dtype.itemsize} ({plural(count, 'element')} of {boundary})"
        raise ShapeError(where, what, f"{view.nbytes} bytes", wanted)
    if boundary == "bool":
        return np.not_equal(np.frombuffer(view, np.uint8), 0)
    elements = np.frombuffer(view, dtype)
    return bf16_values(elements) if boundary == "bf16" else elements


# out ------------------------------------------------------------------------------------------------------------------
def landed(data: Array, boundary: str) -> Array:
    """Return f32 or u32 numbers in the NumPy dtype of a boundary, in their shape; of bf16 that of `bf16_numpy`."""
    if boundary == "bool":
        return np.asarray(data != 0)
    if boundary == "bf16":
        return bf16_bits(data).view(bf16_numpy())
    dtype = BOUNDARY[boundary]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return data.astype(dtype, copy=False)
    return _saturated(data, dtype)


def _saturated(data: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    if data.dtype.kind != "f":
        return np.minimum(data, np.uint32(min(high, 2**32 - 1))).astype(dtype, copy=False)
    over, under = data >= float(high) + 1, data < low  # both bounds are powers of 2 or 0: exact
    inside = np.where(over | under | np.isnan(data), 0, data).astype(dtype)  # cut toward 0
    inside[over], inside[under] = high, low
    return inside


def to_bytes(data: Array, boundary: str) -> bytes:
    """Return the little-endian bytes of what `landed` gives."""
    stored = landed(data, boundary)
    return stored.tobytes() if boundary == "bf16" else stored.astype(BOUNDARY[boundary], copy=False).tobytes()
