"""Check the arrays and numbers that go into a session or come out of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError, SessionError, ShapeError
from gdlab.base.formats import narrowed
from gdlab.base.kinds import NUMBER
from gdlab.base.types import Array, TensorType, f32

_F32 = np.dtype(np.float32)
_F32_MAX = float(np.finfo(np.float32).max)


def as_array(
    where: str, name: str, data: Any, type: TensorType, bound: int | None = None, scalar: np.dtype[Any] = _F32
) -> Array:
    """Return `data` as a contiguous array of `type`, itself where it is one; accepted shapes are the declared one and
    flat. Indices are below `bound`; a finite number that would become infinite raises `DTypeError`. `scalar`: the dtype
    that numbers of f32 tensors have here."""
    usual = data.__class__ is np.ndarray and data.dtype is scalar and type.dtype is f32  # at every step
    if usual and data.flags.c_contiguous:
        if data.shape == type.shape:
            return data  # type: ignore[no-any-return]
        if data.shape == (type.num_elements,):
            return data.reshape(type.shape)  # type: ignore[no-any-return]
    try:
        array = np.asarray(data)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(where, repr(name), "a ragged sequence", f"shape {list(type.shape)}") from None
    if array.dtype.kind not in "fiub":
        raise DTypeError(where, repr(name), array.dtype, "real numbers")
    if array.shape not in (type.shape, (type.num_elements,)):
        sizes = " x ".join(map(str, type.shape))
        given = f"{array.size} values" if array.size != type.num_elements else f"shape {list(array.shape)}"
        product = f"{sizes} = {type.num_elements}" if type.rank > 1 else sizes
        raise ShapeError(where, repr(name), given, f"{product} ({type})")
    if type.dtype.numpy.kind == "u":
        _check_indices(where, name, array, bound)
    if scalar is not _F32 and type.dtype is f32:
        return np.ascontiguousarray(array, scalar).reshape(type.shape)
    return np.ascontiguousarray(narrowed(where, repr(name), array, type.dtype)).reshape(type.shape)


def _check_indices(where: str, name: str, array: Array, bound: int | None) -> None:
    if array.dtype.kind == "f":
        raise DTypeError(where, repr(name), f"{array.dtype} data", "integers in 0 … 2^32 − 1")
    low, high = int(array.min()), int(array.max())
    if not 0 <= low <= high < 2**32:
        raise DTypeError(where, repr(name), f"values {low} … {high}", "integers in 0 … 2^32 − 1")
    if bound is not None and high >= bound:
        flat = array.reshape(-1)
        at = int(np.argmax(flat >= bound))
        raise ShapeError(where, repr(name), f"index {flat[at]} at position {at}", f"0 … {bound - 1}")


def into(where: str, name: str, out: Array | None, data: Array) -> Array:
    """Return `data`, or `out` filled with it (writable, C-contiguous, its dtype, large enough); elements of `out`
    beyond the data stay."""
    if out is None:
        return data
    good = isinstance(out, np.ndarray) and out.dtype == data.dtype and out.flags.c_contiguous and out.flags.writeable
    if not good or out.size < data.size:
        given = f"{type(out).__name__} {getattr(out, 'dtype', '')}[{getattr(out, 'size', '?')}]"
        raise SessionError(where, f"{name}: out", given, f"a writable C-contiguous {data.dtype} array of ≥ {data.size}")
    out.reshape(-1)[: data.size] = data.reshape(-1)
    return out


def positive(where: str, **values: float) -> Iterable[float]:
    """Return the values as floats; `SessionError` unless all are finite and ≥ 0."""
    for name, value in values.items():
        if not is_real(value) or value < 0:
            raise SessionError(where, name, repr(value), "a finite number ≥ 0")
    return [float(v) for v in values.values()]


def is_real(value: object) -> bool:
    """Return whether `value` is a real number that float32 holds as a finite one."""
    return NUMBER.holds(value) and bool(-_F32_MAX <= value <= _F32_MAX)  # type: ignore[operator]


def aligned(nbytes: int) -> int:
    """Return the bytes of a device buffer: the next multiple of 256."""
    return -(-nbytes // 256) * 256
