"""Read the entries of the archive that `torch.export.save` writes, and its tensors, each checked against its bytes.

Nothing is unpacked to files, nothing is decompressed: both layouts of the archive store their entries as they are.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gdlab.base.formats import bf16_values, narrowed
from gdlab.base.types import Array, Shape, f32
from gdlab.load.shared import Malformed

WHERE = "load_pt2"
MOST_DIRECTORY = 1 << 22  # bytes of the list of entries: some 40,000
MOST_JSON = 1 << 26
MOST_PARSED = 40 << 20  # bytes of memory for what is parsed, beyond three times the file
LARGE = 1 << 24  # bytes of tensors that may be read beyond twice the file: several tensors may share their elements
END = 22  # bytes of a zip's last record
STORED: dict[str, Any] = {
    "float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "<i1", "uint8": "<u1", "bool": "<u1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArchivedTensor:
    """A tensor in an archive: the entry that holds its elements, and its shape, strides and offset in there."""

    archive: Archive
    entry: str
    dtype: str
    shape: Shape
    strides: Shape
    offset: int

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is equal for tensors of the same elements in the same order."""
        return id(self.archive), self.entry, self.dtype, self.shape, self.strides, self.offset


class Archive:
    """The entries of an uncompressed zip file; `prefix`: the folder that all of them lie in."""

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        self.file, self.nbytes = file, nbytes
        self.left = 2 * nbytes + LARGE  # bytes of tensors that may still be read
        _check_directory(file, nbytes)
        try:
            self.zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, OSError) as error:
            raise Malformed("archive", f"{error}", "a file that torch.export.save wrote") from None
        self.entries = {info.filename: info for info in self.zip.infolist()}
        self._check_entries()

    def _check_entries(self) -> None:
        infos = self.zip.infolist()
        if len(self.entries) != len(infos):
            raise Malformed("archive", "two entries of one name", "each name once")
        for info in infos:
            what = f"entry {info.filename!r:.80}"
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
                raise Malformed(what, "compressed or encrypted", "an entry stored as it is: torch compresses nothing")
            if ".." in info.filename.split("/") or info.filename.startswith("/") or "\\" in info.filename:
                raise Malformed(what, "a path that leaves the archive", "a path inside it")
        total = sum(info.file_size for info in infos)
        if total > self.nbytes:
            raise Malformed("archive", f"{total:,} bytes of entries", f"at most the file's {self.nbytes:,}")

    def ending(self, suffix: str) -> list[str]:
        """Return the names of entries that end with this path."""
        return [name for name in self.entries if name == suffix or name.endswith(f"/{suffix}")]

    def read(self, name: str) -> bytes:
        """Return the bytes of an entry."""
        if name not in self.entries:
            raise Malformed(f"entry {name!r:.80}", "nothing", "an entry of the archive")
        try:
            return self.zip.read(name)
        except (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, ValueError, OSError) as error:
            raise Malformed(f"entry {name!r:.80}", f"{error}", "an undamaged entry") from None

    def document(self, name: str) -> Any:
        """Return the JSON in an entry."""
        text = self.read(name)
        cost = 200 * text.count(b"{") + 80 * text.count(b"[") + 60 * text.count(b",")
        if len(text) > MOST_JSON or cost > MOST_PARSED + 3 * self.nbytes:
            raise Malformed(f"entry {name!r:.80}", f"{len(text):,} bytes of JSON", "a shorter graph")
        try:
            return json.loads(text)
        except RecursionError:
            raise Malformed(f"entry {name!r:.80}", "JSON nested too deeply", "the JSON of a graph") from None
        except ValueError as error:
            raise Malformed(f"entry {name!r:.80}", f"{error!s:.120}", "the JSON of a graph") from None

    def elements(self, name: str, tensor: ArchivedTensor) -> Array:
        """Return the elements of a tensor, `name` for errors: floats of any width as float32, other types as they are.
        """
        shape, strides = tensor.shape, tensor.strides
        dtype, what = np.dtype(STORED[tensor.dtype]), f"tensor {name!r:.80}"
        held = self.entries.get(tensor.entry)
        if held is None:
            raise Malformed(what, f"no entry {tensor.entry!r:.80}", "its elements in the archive")
        count, size = held.file_size // dtype.itemsize, math.prod(shape)
        last = tensor.offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if size else 0
        if size > count or last >= max(count, 1) or held.file_size % dtype.itemsize:
            given = f"{held.file_size:,} bytes"
            raise Malformed(what, given, f"{list(shape)} {tensor.dtype} with strides {list(strides)} in them")
        self.left -= size * dtype.itemsize
        if self.left < 0:
            raise Malformed(what, "more bytes of tensors", f"at most twice the archive's {self.nbytes:,}")
        data = np.frombuffer(self.read(tensor.entry), dtype)
        apart = tuple(step * dtype.itemsize for step in strides)
        view = np.lib.stride_tricks.as_strided(data[tensor.offset :] if size else data, shape, apart, writeable=False)
        return _widened(what, np.ascontiguousarray(view).reshape(shape), tensor.dtype)


def _widened(what: str, data: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return bf16_values(data.reshape(-1)).astype(np.float32).reshape(data.shape)
    if dtype == "bool":
        return np.asarray(data != 0)
    if dtype in ("float16", "float64"):
        return np.asarray(narrowed(WHERE, what, data, f32), np.float32)
    return data


def _check_directory(file: BinaryIO, nbytes: int) -> None:
    """Raise for a list of entries that is too long, before it is parsed."""
    file.seek(max(0, nbytes - END - 76))
    tail = file.read()
    if len(tail) < END or tail[-END:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise Malformed("archive", f"{nbytes:,} bytes that end with no zip record", "what torch.export.save wrote")
    sizes = [struct.unpack("<I", tail[-10:-6])[0]]
    before = tail[:-END]
    if before[-20:-16] == b"PK\6\7" and before[:4] == b"PK\6\6":  # the larger form of the record, which counts
        sizes = [struct.unpack("<Q", before[40:48])[0]]
    elif before[-20:-16] == b"PK\6\7":
        raise Malformed("archive", "a zip record that lies elsewhere", "what torch.export.save wrote")
    if max(sizes) > min(MOST_DIRECTORY, nbytes):
        raise Malformed("archive", f"a list of {max(sizes):,} bytes of entries", f"at most {MOST_DIRECTORY:,}")


def whole_number(value: Any, what: str, least: int = 0) -> int:
    """Return an int of a file, or raise for a bool, a float, or more than 63 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise Malformed(what, f"{value!r:.60}", f"an int in {least} … 2⁶³ − 1")
    return value


def field_of(record: Any, name: str, kind: type, what: str) -> Any:
    """Return a field of a record in JSON, or raise if it has another type."""
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise Malformed(f"{what}: {name}", f"{value!r:.60}", f"{kind.__name__}")
    return value


def numbers_of(values: Any, what: str) -> Shape:
    """Return the ints in a list of `{"as_int": n}`."""
    if not isinstance(values, list):
        raise Malformed(what, f"{values!r:.60}", "a list")
    return tuple(whole_number(v.get("as_int") if isinstance(v, dict) else v, what) for v in values)


Tensors = Mapping[str, ArchivedTensor]


def check_strides(what: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raise for a shape without a stride for each axis."""
    if len(shape) != len(strides) or len(shape) > 16:
        raise Malformed(what, f"shape {list(shape)!s:.80} with strides {list(strides)!s:.80}", "a stride for each axis")
