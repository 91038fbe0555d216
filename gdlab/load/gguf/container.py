"""Read the header of a GGUF file: its fields, and for every tensor shape, format and the place of its bytes.

The `gguf` package has the numbers of value types, tensor types and versions; its own reader makes an array of every
token of a tokenizer (LLaMA 3: 14 s and 690 MB), so the bytes are read here, and lengths are believed only as far as the
file reaches.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from gdlab.base.errors import LoadError
from gdlab.base.files import open_regular
from gdlab.base.types import FORMATS, DType, Shape, TensorType, f32

WHERE = "load_gguf"
MOST_HEADER = 1 << 26  # bytes before the tensors: a tokenizer of a million tokens
MOST_RECORDS = 1 << 16  # fields, tensors
MOST_STRINGS = 1 << 21  # in arrays
LISTED = 1 << 10  # numbers of an array that are read; longer ones belong to tokenizers
MOST_NAME = 1 << 10  # bytes
SCALARS: dict[str, str] = {  # value types of the format as `struct` spells them
    "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i", "UINT64": "Q", "INT64": "q",
    "FLOAT32": "f", "FLOAT64": "d", "BOOL": "B",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """An array of a tokenizer, which is not read; `kind`: the format's name for its elements."""

    kind: str
    count: int


Number = int | float | bool
Field = Number | str | tuple[Number, ...] | Listed


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: its type, with the shape outermost axis first, and the place of its bytes."""

    type: TensorType
    start: int

    @property
    def stop(self) -> int:
        """The offset of the first byte behind the tensor."""
        return self.start + self.type.data_bytes


@dataclass(frozen=True, slots=True)
class Container:
    """The fields and tensors of a file by the file's names."""

    path: Path
    fields: Mapping[str, Field]
    tensors: Mapping[str, GgufTensor]

    def read(self, name: str) -> bytes:
        """Return the bytes of a tensor."""
        tensor = self.tensors[name]
        with open_regular(self.path) as file:
            file.seek(tensor.start)
            data = file.read(tensor.type.data_bytes)
        if len(data) != tensor.type.data_bytes:  # shorter than when it was opened
            wanted = f"{tensor.type.data_bytes} of {self.path}"
            raise LoadError(WHERE, f"tensor {name!r}", f"{len(data)} bytes", wanted)
        return data


def read_container(path: str | os.PathLike[str]) -> Container:
    """Read the header of a file; raise `LoadError` for anything damaged, in time and memory bounded by the file's size.
    """
    try:
        from gguf import GGUF_DEFAULT_ALIGNMENT
    except ImportError:
        raise LoadError(WHERE, "package gguf", "none", "pip install gdlab[gguf]") from None
    with open_regular(path) as file:
        header = _Header(file, os.fstat(file.fileno()).st_size)
        tensors, fields = _counts(header)
        found = dict(header.field() for _ in header.repeated(fields))
        alignment = found.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise LoadError(WHERE, "general.alignment", f"{alignment!r:.60}", "a power of 2, 8 … 1,048,576")
        records = [header.tensor() for _ in header.repeated(tensors)]
        body = -(-file.tell() // alignment) * alignment
        stored = {name: GgufTensor(type, body + start) for name, type, start in records}
        _check_places(stored, body, alignment, header.size)
    if len(found) != fields or len(stored) != tensors:
        raise LoadError(WHERE, "names", "a name of two fields or two tensors", "each name once")
    return Container(Path(path), found, stored)


def _counts(header: _Header) -> tuple[int, int]:
    """Return the numbers of tensors and fields."""
    from gguf import GGUF_MAGIC
    from gguf.constants import GGUF_VERSION

    magic, version = header.unpack("II", "magic and version")
    if magic != GGUF_MAGIC:
        raise LoadError(WHERE, "first bytes", struct.pack("<I", magic), "b'GGUF': a GGUF file")
    if version != GGUF_VERSION and version != 2:
        given = f"{version}, or a big-endian file" if version & 0xFFFF == 0 else str(version)
        raise LoadError(WHERE, "version", given, f"2 or {GGUF_VERSION}, little-endian")
    tensors, fields = header.unpack("QQ", "counts")
    return tensors, fields


def _check_places(tensors: Mapping[str, GgufTensor], body: int, alignment: int, size: int) -> None:
    for name, tensor in tensors.items():
        if (tensor.start - body) % alignment or tensor.stop > size:
            given = f"bytes {tensor.start:,} … {tensor.stop:,} ({tensor.type})"
            wanted = f"a place within the file's {size:,}, a multiple of {alignment} behind {body:,}"
            raise LoadError(WHERE, f"tensor {name!r:.80}", given, wanted)
    placed = sorted(tensors.items(), key=lambda item: item[1].start)
    for (first, a), (second, b) in pairwise(placed):
        if b.start < a.stop:
            given = f"bytes that tensor {first!r:.80} has too, {b.start:,} … {min(a.stop, b.stop):,}"
            raise LoadError(WHERE, f"tensor {second!r:.80}", given, "bytes of its own")


class _Header:
    """The bytes of a file up to its tensors, read one record after the other."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.left = min(size, MOST_HEADER)
        self.strings = MOST_STRINGS

    def take(self, count: int, what: str) -> bytes:
        """Read so many bytes, or raise for a length beyond the file or the limit of a header."""
        if count > self.left:
            at, most = self.file.tell(), min(self.size, MOST_HEADER)
            wanted = f"at most the {most - at:,} up to {most:,}"
            raise LoadError(WHERE, f"{what:.120}", f"{count:,} bytes at {at:,}", wanted)
        data = self.file.read(count)
        if len(data) != count:
            raise LoadError(WHERE, f"{what:.120}", f"{len(data):,} bytes", f"{count:,}: the file became shorter")
        self.left -= count
        return data

    def unpack(self, layout: str, what: str) -> tuple[int, ...]:
        """Read little-endian numbers without gaps."""
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout), what))

    def repeated(self, count: int) -> range:
        """Return a range over so many records, or raise if the header cannot have as many."""
        if count > min(MOST_RECORDS, self.left // 12):
            wanted = f"at most {min(MOST_RECORDS, self.left // 12):,} in {self.left:,} bytes"
            raise LoadError(WHERE, "fields or tensors", f"{count:,}", wanted)
        return range(count)

    def name(self, what: str) -> str:
        """Read a name."""
        (length,) = self.unpack("Q", f"length of {what}")
        if not 0 < length <= MOST_NAME:
            raise LoadError(WHERE, what, f"{length:,} bytes", f"1 … {MOST_NAME:,}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise LoadError(WHERE, what, str(error), "UTF-8") from None

    def field(self) -> tuple[str, Field]:
        """Read a field: its name and its value."""
        name = self.name("name of a field")
        (number,) = self.unpack("I", name)
        kind = _value_type(name, number)
        return name, self.array(name) if kind == "ARRAY" else self.scalar(name, kind)

    def scalar(self, name: str, kind: str) -> Number | str:
        """Read one value of a kind."""
        if kind == "STRING":
            (length,) = self.unpack("Q", f"length of {name}")
            return self.take(length, name).decode("utf-8", "replace")
        (value,) = self.unpack(SCALARS[kind], name)
        if kind == "BOOL" and value > 1:
            raise LoadError(WHERE, f"field {name!r:.80}", value, "0 or 1, a bool")
        return bool(value) if kind == "BOOL" else value

    def array(self, name: str) -> tuple[Number, ...] | Listed:
        """Read a short array of numbers; skip the bytes of any other."""
        number, count = self.unpack("IQ", name)
        kind = _value_type(name, number)
        if kind == "ARRAY":
            raise LoadError(WHERE, f"field {name!r:.80}", "an array of arrays", "numbers or strings")
        if kind == "STRING":
            self.strings -= count
            if self.strings < 0:
                wanted = f"at most {MOST_STRINGS:,} in a file"
                raise LoadError(WHERE, f"field {name!r:.80}", f"{count:,} strings", wanted)
            for _ in range(count):
                (length,) = self.unpack("Q", name)
                self.take(length, name)
            return Listed(kind, count)
        data = self.take(count * struct.calcsize("<" + SCALARS[kind]), name)
        return struct.unpack(f"<{count}{SCALARS[kind]}", data) if count <= LISTED else Listed(kind, count)

    def tensor(self) -> tuple[str, TensorType, int]:
        """Read the record of a tensor: its name, its type and the place of its bytes among the tensors'."""
        name = self.name("name of a tensor")
        (rank,) = self.unpack("I", name)
        if not 1 <= rank <= 4:
            raise LoadError(WHERE, f"tensor {name!r:.80}", f"{rank:,} axes", "1 … 4")
        extents = self.unpack(f"{rank}Q", name)
        if min(extents) < 1 or max(extents) > self.size * 8:
            given = f"extents {list(reversed(extents))}"
            raise LoadError(WHERE, f"tensor {name!r:.80}", given, f"extents ≥ 1 that fit into {self.size:,} bytes")
        number, start = self.unpack("IQ", name)
        return name, _type(name, number, tuple(reversed(extents))), start


def _value_type(name: str, number: int) -> str:
    from gguf import GGUFValueType

    try:
        return GGUFValueType(number).name
    except ValueError:
        wanted = f"0 … {max(GGUFValueType)}: a type of the format"
        raise LoadError(WHERE, f"field {name!r:.80}", f"value type {number}", wanted) from None


def _type(name: str, number: int, shape: Shape) -> TensorType:
    """Return the type of a tensor from the number of its format."""
    from gguf import GGMLQuantizationType

    known = [f32, *(d for d in FORMATS if d not in (DType.q4, DType.q8))]
    try:
        kind = GGMLQuantizationType(number).name.lower()
    except ValueError:
        kind = f"number {number}"
    if kind not in map(str, known):
        raise LoadError(WHERE, f"tensor {name!r:.80}", f"format {kind}", f"one of {', '.join(map(str, known))}")
    dtype = DType[kind]
    block = 1 if dtype.format is None else dtype.format.block
    if shape[-1] % block:
        wanted = f"rows of a multiple of {block} elements"
        raise LoadError(WHERE, f"tensor {name!r:.80}", f"{kind}{list(shape)}", wanted)
    return TensorType(shape, dtype)
