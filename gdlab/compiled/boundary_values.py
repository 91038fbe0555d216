"""Convert numbers at the edge of a compiled graph, both ways, by the boundary dtypes of `base/formats`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, OutputIndexError, SessionError, ShapeError
from gdlab.base.formats import (
    BOUNDARY,
    bf16_bits,
    bf16_numpy,
    bf16_values,
    entered,
    from_bytes,
    landed,
    to_bytes,
)
from gdlab.base.kinds import is_several
from gdlab.base.types import Array, DType, Shape
from gdlab.base.words import plural

ALIGNMENT = 256  # of the outputs in an arena
PACKED = "·packed."  # before the number of an output in the name of the hidden one that holds its 16-bit elements
DIRECT = (("f32", "f32"), ("u32", "u32"))  # (dtype inside, boundary) of what is the same inside and outside
FEEDABLE = (*DIRECT, ("f32", "f16"), ("f32", "bf16"))  # an output of it has a 16-bit boundary rounded already


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, shape and boundary dtype of an input, an output or a parameter."""

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """The place of an output in the arena of `run_raw` and `run_slots`."""

    index: int
    name: str
    byte_offset: int
    num_elements: int
    nbytes: int
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output inside the graph: its dtype there (f32 or u32), its buffer of the plan, and for an input of
    indices their bound. `packed`: the buffer of an output's 16-bit elements, two in a word, which are what is read
    back. `size`: its elements; `nbytes`: of its buffer; `kind`: its dtype inside, and that of its boundary; `direct`:
    whether its bytes are the same inside and outside. `landed`: the buffer that is read back and its bytes."""

    spec: TensorSpec
    dtype: DType
    buffer: int
    bound: int | None = None
    packed: int | None = None
    size: int = field(init=False)  # these are computed once: every call reads them
    nbytes: int = field(init=False)
    kind: tuple[str, str] = field(init=False)
    direct: bool = field(init=False)
    landed: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        size, kind = math.prod(self.spec.shape), (str(self.dtype), self.spec.dtype)
        landed = (self.buffer, 4 * size) if self.packed is None else (self.packed, -(-size // 2) * 4)
        derived = {"size": size, "nbytes": 4 * size, "kind": kind, "direct": kind in DIRECT, "landed": landed}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of the returned array."""
        return bf16_numpy() if self.spec.dtype == "bf16" else BOUNDARY[self.spec.dtype]


def with_packed(outputs: Iterable[Port], hidden: Mapping[str, Port]) -> Iterator[Port]:
    """Yield outputs with the hidden ones that hold their 16-bit elements."""
    for index, port in enumerate(outputs):
        packed = hidden.get(f"{PACKED}{index}")
        yield port if packed is None else replace(port, packed=packed.buffer)


# in -------------------------------------------------------------------------------------------------------------------
def named_values(where: str, inputs: Any) -> dict[str, Any]:
    """Return a mapping, or a sequence of (name, data) pairs, as a dict; a name given twice is refused."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    wanted = "a mapping of names, or (name, data) pairs"
    if isinstance(inputs, (str, bytes)) or not is_several(inputs):
        raise ArgumentError(where, "inputs", type(inputs).__name__, wanted)
    found: dict[str, Any] = {}
    for pair in inputs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(where, "inputs", f"{type(pair).__name__} in a sequence", wanted)
        name, data = pair
        if str(name) in found:
            raise ArgumentError(where, "inputs", f"{name!r} twice", "each name once")
        found[str(name)] = data
    return found


def accept(where: str, port: Port, data: Any) -> Array:
    """Return data for an input as f32 or u32 numbers in its shape, C-contiguous; without a copy if it is that."""
    shape, what = port.spec.shape, repr(port.spec.name)
    usual = data.__class__ is np.ndarray and data.dtype == np.float32 and port.kind == ("f32", "f32")
    numbers = data if usual else entered(where, what, data, port.spec.dtype, port.dtype)
    if numbers.shape not in (shape, (port.size,)):
        raise ShapeError(where, what, f"shape {list(numbers.shape)}", f"{list(shape)} or flat {port.size}")
    if port.bound is not None:
        _check_indices(where, what, numbers, port.bound)
    return np.ascontiguousarray(numbers).reshape(shape)


def _check_indices(where: str, what: str, numbers: Array, bound: int) -> None:
    if numbers.size and int(numbers.max()) >= bound:
        flat = numbers.reshape(-1)
        at = int(np.argmax(flat >= bound))
        raise ShapeError(where, what, f"index {flat[at]} at position {at}", f"0 … {bound - 1}")


def accept_bytes(where: str, port: Port, data: Any, dtype: str) -> Array:
    """Decode little-endian bytes of `dtype` to numbers for an input, as `accept` does."""
    return accept(where, port, from_bytes(where, repr(port.spec.name), data, dtype, port.size))


# out ------------------------------------------------------------------------------------------------------------------
def given_out(port: Port, numbers: Array) -> Array:
    """Convert f32 or u32 numbers, or 16-bit elements, to a fresh array of the boundary dtype."""
    if port.direct:
        return numbers.copy()
    if numbers.itemsize == 2:
        return numbers.view(port.numpy).copy()
    made = landed(numbers, port.spec.dtype)
    return made.copy() if np.may_share_memory(made, numbers) else made


def typed_out(port: Port, numbers: Array, asked: str) -> bytes:
    """Convert f32 or u32 numbers, or 16-bit elements, to little-endian bytes of `asked`, through the boundary dtype."""
    own = port.spec.dtype
    if numbers.itemsize == 2:
        if asked == own:
            return numbers.tobytes()
        values = bf16_values(numbers) if own == "bf16" else numbers.view(np.float16)
        return to_bytes(values.astype(np.float64), asked)
    if asked == own:
        return to_bytes(numbers, own)
    shown = bf16_values(bf16_bits(numbers)) if own == "bf16" else landed(numbers, own)
    return to_bytes(shown.astype(np.float64), asked)


def check_index(where: str, index: Any, count: int) -> int:
    """Return the number of an output, or raise `OutputIndexError`."""
    if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not 0 <= index < count:
        raise OutputIndexError(where, "index", repr(index), f"0 … {count - 1}: {plural(count, 'output')}")
    return int(index)


def check_targets(where: str, out: Any, ports: Sequence[Port]) -> list[Array | None]:
    """Return the arrays to fill, one for each output, None where a fresh one is wanted."""
    given = list(out) if isinstance(out, (list, tuple)) else None
    if given is None or len(given) != len(ports):
        wanted = f"a list of {plural(len(ports), 'array')}, None where a fresh one is wanted"
        raise SessionError(where, "out", type(out).__name__ if given is None else f"{len(given)} entries", wanted)
    for array, port in zip(given, ports, strict=True):
        shape = port.spec.shape
        good = array is None or (
            isinstance(array, np.ndarray) and array.dtype == port.numpy and array.shape == shape
            and array.flags.c_contiguous and array.flags.writeable
        )  # fmt: skip
        if not good:
            told = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            wanted = f"a writable C-contiguous {port.numpy}{list(shape)}, or None"
            raise SessionError(where, f"out of {port.spec.name!r}", told, wanted)
    return given


# places of outputs ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OutputLayout:
    """The places of outputs in the memory that they are copied to: (output, byte offset) pairs, and the bytes in all.
    `pieces`: (buffer, bytes, byte offset) of what is copied."""

    places: tuple[tuple[Port, int], ...]
    nbytes: int
    pieces: tuple[tuple[int, int, int], ...] = field(init=False)  # computed once: every call reads them

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple((*port.landed, at) for port, at in self.places))


def layout_of(ports: Iterable[Port], start: int = 0, alignment: int = 16) -> OutputLayout:
    """Place the parts of outputs that are read back, one after the other."""
    places, at = [], start
    for port in ports:
        places.append((port, at))
        at = -(-(at + port.landed[1]) // alignment) * alignment
    return OutputLayout(tuple(places), at)


def slots_of(ports: Sequence[Port]) -> tuple[OutputSlot, ...]:
    """Place outputs, in their boundary dtypes, at multiples of 256 bytes."""
    slots, at = [], 0
    for index, port in enumerate(ports):
        nbytes = port.size * BOUNDARY[port.spec.dtype].itemsize
        slots.append(OutputSlot(index, port.spec.name, at, port.size, nbytes, port.spec.dtype, port.spec.shape))
        at = -(-(at + nbytes) // ALIGNMENT) * ALIGNMENT
    return tuple(slots)
