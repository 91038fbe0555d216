"""Hold tensors that ops read and write: `Buffer`, a typed range of an allocation, with `write`, `read` and views."""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.copies import refuse_copies
from gdlab.base.errors import ArgumentError, DTypeError, SessionError, ShapeError
from gdlab.base.formats import decode, encode, entered
from gdlab.base.types import HALVES, Array, DType, Shape, TensorType, check_shape, f32, u32
from gdlab.base.words import plural, sig
from gdlab.plan.order import Range

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

_numbers, _uids = itertools.count(1), itertools.count(1)
SHARED_WORD = "an even number, because two elements lie in a word, or"
DTYPES = (f32, u32, *HALVES)
F32_MAX, F32_NORMAL = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
INVERTIBLE = 1 / F32_NORMAL  # the largest number whose inverse is normal


class Allocation:
    """Device memory of one `alloc_buffer`, which returns to the pool with its last buffer. `version` counts its writes,
    `from_host` tells whether the host made the last one."""

    __slots__ = (
        "__weakref__",
        "_give_back",
        "from_host",
        "label",
        "memory",
        "nbytes",
        "number",
        "transient",
        "version",
    )

    def __init__(self, memory: Any, nbytes: int, label: str, transient: bool, freed: deque[Any]) -> None:
        self.memory, self.nbytes, self.label, self.transient = memory, nbytes, label, transient
        self.number, self.version, self.from_host = next(_numbers), 0, True
        self._give_back = weakref.finalize(self, freed.append, memory)
        self._give_back.atexit = False

    def release(self) -> None:
        """Release the memory now."""
        self._give_back()
        self.memory = None


class Buffer:
    """A tensor in device memory, from `GraphExecutor.alloc_buffer`, or a range of one, from `slice_view`.

    `nbytes` are its own, `byte_offset` counts from the beginning of its allocation; views share the allocation and
    `allocation_id`, which is never used again. Bytes behind an allocation's last element, up to a multiple of 256,
    belong to nobody and may be overwritten. Elements of 16 bits lie two in a word, and views of them begin at a word.
    """

    __slots__ = ("__weakref__", "allocation", "byte_offset", "dtype", "executor", "nbytes", "range", "shape", "uid")
    __reduce__ = refuse_copies("buffer", "read() for its elements, and write() into another buffer")

    def __init__(
        self, executor: GraphExecutor, allocation: Allocation, byte_offset: int, dtype: DType, shape: Shape
    ) -> None:
        self.executor, self.allocation, self.byte_offset = executor, allocation, byte_offset
        self.dtype, self.shape, self.nbytes = dtype, shape, _itemsize(dtype) * math.prod(shape)
        self.range = Range(allocation.number, byte_offset, byte_offset + -(-self.nbytes // 4) * 4)
        self.uid = next(_uids)

    def __repr__(self) -> str:
        name = f" {self.label}" if self.label else ""
        start, stop = self.byte_offset, self.byte_offset + self.nbytes
        return (
            f"<Buffer{name} {self.dtype}{list(self.shape)}, bytes {start} … {stop} of allocation {self.allocation_id}>"
        )

    @property
    def allocation_id(self) -> int:
        """Return the number of the allocation."""
        return self.allocation.number

    @property
    def element_count(self) -> int:
        """Return the number of elements."""
        return self.nbytes // _itemsize(self.dtype)

    @property
    def label(self) -> str:
        """Return the label of the allocation."""
        return self.allocation.label

    @property
    def transient(self) -> bool:
        """Return whether its contents are undefined after a session."""
        return self.allocation.transient

    @property
    def is_open(self) -> bool:
        """Return whether it has memory."""
        return self.allocation.memory is not None

    def write(self, array: Any) -> None:
        """Write all elements; sessions that are not submitted yet read the new ones. A u32 buffer also takes bytes and
        uint8 arrays, padded with zeros to 4."""
        data = self._words(array) if _is_raw(array) else self._elements(array)
        self._check_open("write")
        self.executor.write(self, data)

    def read(self) -> Array:
        """Return a copy of the elements, in their shape, after everything submitted; of bf16 as float32."""
        self._check_open("read")
        if self.dtype in HALVES:
            words = np.empty((self.range.stop - self.range.start) // 4, np.uint32)
            self.executor.read(self, words.view(np.uint8).data)
            return decode(words, self.dtype, self.shape).astype(self.dtype.numpy, copy=False)
        out = np.empty(self.shape, self.dtype.numpy)
        self.executor.read(self, out.reshape(-1).view(np.uint8).data)
        return out

    def slice_view(self, byte_offset: int, n_elements: int) -> Buffer:
        """Return a view of n elements from a byte offset (a multiple of 4) on."""
        where = "slice_view"
        self._check_open(where)
        start = integer(where, "byte_offset", byte_offset, 0)
        count = integer(where, "n_elements", n_elements)
        if start % 4:
            raise ArgumentError(where, "byte_offset", start, "a multiple of 4")
        stop = start + _itemsize(self.dtype) * count
        if stop > self.nbytes:
            raise ShapeError(where, "range", f"bytes {start} … {stop}", f"a range of 0 … {self.nbytes}")
        if stop % 4 and stop != self.nbytes:
            raise ArgumentError(where, "n_elements", count, f"{SHARED_WORD} all up to the end")
        return Buffer(self.executor, self.allocation, self.byte_offset + start, self.dtype, (count,))

    def release(self) -> None:
        """Release the memory now, views included; work that was submitted still runs. Idempotent."""
        if self.is_open:
            self.executor.release(self.allocation)

    def _check_open(self, where: str) -> None:
        if not self.is_open:
            raise SessionError(where, "buffer", f"{self!r}, which was released", "an open buffer")

    def _words(self, given: Any) -> Array:
        if self.dtype is not u32:
            raise DTypeError("write", f"data of {self!r}", "bytes", f"{self.dtype} elements")
        if isinstance(given, memoryview) and not given.c_contiguous:
            given = given.tobytes()
        raw = np.frombuffer(given, np.uint8) if not isinstance(given, np.ndarray) else given.reshape(-1)
        if -(-raw.size // 4) * 4 != self.nbytes:
            raise ShapeError("write", f"data of {self!r}", plural(raw.size, "byte"), f"{self.nbytes}")
        return np.pad(raw, (0, -raw.size % 4)).view(np.uint32)

    def _elements(self, given: Any) -> Array:
        what = f"data of {self!r}"
        data = entered("write", what, given, str(self.dtype), u32 if self.dtype is u32 else f32)
        if data.size != self.element_count:
            raise ShapeError("write", what, plural(data.size, "element"), f"{self.element_count}")
        if self.dtype in HALVES:
            return encode(data, self.dtype)
        return np.ascontiguousarray(data, self.dtype.numpy)


def _itemsize(dtype: DType) -> int:
    return 2 if dtype in HALVES else 4


def _is_raw(given: Any) -> bool:
    return isinstance(given, (bytes, bytearray, memoryview)) or (
        isinstance(given, np.ndarray) and given.dtype == np.uint8
    )


def integer(where: str, what: str, given: Any, least: int = 1) -> int:
    """Return an int of at least `least`, or raise `ArgumentError`."""
    wanted = f"an int ≥ {least}"
    if isinstance(given, (bool, np.bool_)):
        raise ArgumentError(where, what, given, wanted)
    try:
        number = operator.index(given)
    except TypeError:
        raise ArgumentError(where, what, repr(given), wanted) from None
    if number < least:
        raise ArgumentError(where, what, number, wanted)
    return number


def real(where: str, what: str, given: Any, wanted: str, holds: Any = None) -> float:
    """Return a number that float32 holds as a finite one, and of which `holds` is true, or raise `ArgumentError`."""
    good = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, (bool, np.bool_))
    if not good or not abs(given) <= F32_MAX or (holds is not None and not holds(given)):
        raise ArgumentError(where, what, given if good else repr(given), wanted)
    return float(given)


def positive(where: str, what: str, given: Any, most: float = F32_MAX) -> float:
    """Return a number above 0 that kernels do not round to 0: at least the smallest normal number of float32."""
    wanted = f"a finite number > 0: {sig(F32_NORMAL)} … {sig(most)} in float32"
    return real(where, what, given, wanted, lambda v: F32_NORMAL <= v <= most)


def checked_dtype(where: str, given: Any) -> DType:
    """Return the dtype of a buffer, given as one or by name."""
    found = DType.__members__.get(given) if isinstance(given, str) else given
    if not isinstance(found, DType) or found not in DTYPES:
        raise DTypeError(where, "dtype", repr(given), "f32, u32, f16 or bf16 (raw blocks lie in u32 buffers)")
    return found


def checked_layout(where: str, nbytes: Any, dtype: Any, shape: Any) -> tuple[DType, Shape]:
    """Return dtype and shape of a buffer of `nbytes` bytes."""
    found, extents = checked_dtype(where, dtype), check_shape(shape, where)
    size = integer(where, "nbytes", nbytes)
    if size != TensorType(extents, found).data_bytes:
        wanted = f"{TensorType(extents, found).data_bytes}, those of {found}{list(extents)}"
        raise ShapeError(where, "nbytes", size, wanted)
    return found, extents
