"""What goes into a session and comes out of it: checked arrays, initial values, checked numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gdlab.errors import DTypeError, SessionError, ShapeError
from gdlab.types import TensorType, f32

Array = np.ndarray[Any, Any]
_F32_MAX = float(np.finfo(np.float32).max)


def as_array(where: str, name: str, data: Any, type: TensorType) -> Array:
    """`data` as a contiguous array of `type`, itself where it is one; accepted shapes are the declared one and flat."""
    try:
        array = np.asarray(data)
    except ValueError:
        raise ShapeError(where, repr(name), "a ragged sequence", f"shape {list(type.shape)}") from None
    if array.dtype.kind not in "fiub":
        raise DTypeError(where, repr(name), array.dtype, "real numbers")
    if array.shape not in (type.shape, (type.num_elements,)):
        sizes = " x ".join(map(str, type.shape))
        given = f"{array.size} values" if array.size != type.num_elements else f"shape {list(array.shape)}"
        product = f"{sizes} = {type.num_elements}" if type.rank > 1 else sizes
        raise ShapeError(where, repr(name), given, f"{product} ({type})")
    if type.dtype is not f32 and (array.dtype.kind == "f" or not 0 <= int(array.min()) <= int(array.max()) < 2**32):
        given = f"{array.dtype} data" if array.dtype.kind == "f" else f"values {array.min()} … {array.max()}"
        raise DTypeError(where, repr(name), given, "integers in 0 … 2^32 − 1")
    if array.dtype == type.dtype.numpy:
        return np.ascontiguousarray(array).reshape(type.shape)
    with np.errstate(over="ignore"):
        return array.astype(type.dtype.numpy, order="C").reshape(type.shape)


def initial_values(name: str, shape: Sequence[int], seed: int) -> Array:
    """The default initial value of parameter `name`: uniform ±1/√fan-in for rank ≥ 2, zeros for rank 1; float32."""
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    uniform = np.random.Generator(np.random.Philox(key=[seed, word])).random(math.prod(shape))
    return ((2 * uniform - 1) / math.sqrt(shape[-2])).astype(np.float32).reshape(shape)


def into(where: str, name: str, out: Array | None, data: Array) -> Array:
    """`data`, or `out` filled with it (writable, C-contiguous, its dtype, large enough); what lies beyond stays."""
    if out is None:
        return data
    good = isinstance(out, np.ndarray) and out.dtype == data.dtype and out.flags.c_contiguous and out.flags.writeable
    if not good or out.size < data.size:
        given = f"{type(out).__name__} {getattr(out, 'dtype', '')}[{getattr(out, 'size', '?')}]"
        raise SessionError(where, f"{name}: out", given, f"a writable C-contiguous {data.dtype} array of ≥ {data.size}")
    out.reshape(-1)[: data.size] = data.reshape(-1)
    return out


def positive(where: str, **values: float) -> Iterable[float]:
    """The values as floats, when all are finite and ≥ 0."""
    for name, value in values.items():
        if not is_real(value) or value < 0:
            raise SessionError(where, name, repr(value), "a finite number ≥ 0")
    return [float(v) for v in values.values()]


def is_real(value: object) -> bool:
    """Whether `value` is a real number that float32 holds as a finite one."""
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(-_F32_MAX <= value <= _F32_MAX)


def aligned(nbytes: int) -> int:
    """Bytes of a device buffer: the next multiple of 256."""
    return -(-nbytes // 256) * 256
