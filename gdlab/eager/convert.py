"""Convert host data to device buffers and back, by dtype: `register_conv(np.longdouble, MyConv())`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError
from gdlab.base.types import Array
from gdlab.eager.params import taken, type_of
from gdlab.eager.references import AnyBuffer

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession


class TensorConv(ABC):
    """A conversion between arrays of one dtype and buffers of a session, and from scalars to floats of the host."""

    @abstractmethod
    def to_any_buffer(self, session: EagerSession, array: Any) -> AnyBuffer:
        """Upload an array; the caller releases the buffer."""

    @abstractmethod
    def of_any_buffer(self, session: EagerSession, buffer: AnyBuffer) -> Array:
        """Download a buffer."""

    @abstractmethod
    def to_float(self, scalar: Any) -> float:
        """Return a scalar as a float of the host."""


@dataclass(frozen=True, slots=True)
class FloatConv(TensorConv):
    """The conversion of real numbers that a device tensor can hold: float64, float32, float16 and Python floats are
    rounded to the nearest f32, integers become u32. Downloads have `dtype`, or that of the session."""

    dtype: Any = None

    def to_any_buffer(self, session: EagerSession, array: Any) -> AnyBuffer:
        """Upload numbers, C-ordered."""
        data = taken("eager.to_any_buffer", "array", array, session.opts.scalar)
        return session.uploaded(type_of(data), data)

    def of_any_buffer(self, session: EagerSession, buffer: AnyBuffer) -> Array:
        """Download numbers."""
        array = session.read_buffer(buffer)
        return array if self.dtype is None else array.astype(self.dtype, copy=False)

    def to_float(self, scalar: Any) -> float:
        """Return the only element."""
        found = taken("eager.to_float", "scalar", scalar, np.dtype(np.float64), floats=True)
        if found.size != 1:
            raise DTypeError("eager.to_float", "scalar", repr(scalar), "one real number")
        return float(found.reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class HostOnlyConv(TensorConv):
    """The conversion of a dtype that no device tensor can hold. Sessions on cpu compute with it."""

    name: str

    def to_any_buffer(self, session: EagerSession, array: Any) -> AnyBuffer:
        """Upload on cpu alone."""
        self.check("eager.to_any_buffer", session)
        return FloatConv().to_any_buffer(session, array)

    def of_any_buffer(self, session: EagerSession, buffer: AnyBuffer) -> Array:
        """Download on cpu alone."""
        self.check("eager.of_any_buffer", session)
        return session.read_buffer(buffer)

    def to_float(self, scalar: Any) -> float:
        """Refuse the conversion: a float of the host is less precise."""
        raise DTypeError("eager.to_float", "dtype", self.name, "float32 or float64")

    def check(self, where: str, session: EagerSession) -> None:
        """Raise where the session is not on cpu."""
        if session.device.kind != "cpu":
            raise DTypeError(where, "dtype", self.name, "float32 or float64 (or a cpu session)")


_FLOATS = (np.float64, np.float32, np.float16)
_INTEGERS = (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
_CONVS: dict[np.dtype[Any], TensorConv] = {
    **{np.dtype(t): FloatConv(t) for t in _FLOATS},
    **{np.dtype(t): FloatConv() for t in _INTEGERS},
}


def register_conv(dtype: Any, conv: TensorConv) -> TensorConv:
    """Register a conversion for a dtype; return the earlier one. Sessions look it up by the dtype of the data."""
    if not isinstance(conv, TensorConv):
        raise ArgumentError("eager.register_conv", "conv", type(conv).__name__, "a TensorConv, such as FloatConv()")
    old = conv_of(dtype)
    _CONVS[np.dtype(dtype).newbyteorder("=")] = conv
    return old


def conv_of(dtype: Any) -> TensorConv:
    """Return the conversion of a dtype; `HostOnlyConv` for one without registration."""
    try:
        key = np.dtype(dtype).newbyteorder("=")
    except (TypeError, ValueError, UnicodeError):
        raise DTypeError("eager", "dtype", f"{dtype!r:.60}", "a dtype of NumPy, or its name") from None
    found = _CONVS.get(key)
    if found is not None:
        return found
    return HostOnlyConv("longdouble" if key == np.dtype(np.longdouble) else str(key))


def dtype_of(data: Any) -> np.dtype[Any]:
    """Return the dtype of data; float64 for data that is no regular array."""
    try:
        return np.asarray(data).dtype
    except (TypeError, ValueError, OverflowError):
        return np.dtype(np.float64)  # the conversion tells what is wrong with it
