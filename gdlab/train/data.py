"""Feed training: named streams of samples in batches, shuffled alike on every machine; the MNIST files.

    loader = gd.DataLoader(images, labels, 784, 10, batch_size=32)      # streams "x" and "labels"
    loader = gd.DataLoader.with_streams([gd.InputStream("tokens", ids, 64)], batch_size=1)
    loader.shuffle(epoch)
    for batch in loader:
        session.set_input("x", batch.get("x"))
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, LoadError, unknown_name
from gdlab.base.files import open_regular
from gdlab.base.formats import narrowed
from gdlab.base.kinds import PATH, kinds
from gdlab.base.types import Array, f32
from gdlab.base.words import plural

__all__ = ["Batch", "DataLoader", "InputStream", "MnistDataset"]


def __dir__() -> list[str]:
    return sorted(__all__)


_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, 2**64 - 1  # Knuth's MMIX generator


# streams --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class InputStream:
    """The samples for the input `name`, one after the other: `data` has `sample_size` elements for each, in any shape.
    """

    name: str
    data: Any
    sample_size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError("InputStream", "name", repr(self.name), "the name of an input")
        _check_count(f"InputStream {self.name!r}", "sample_size", self.sample_size)

    def rows(self) -> Array:
        """Return the data as [samples, sample_size]; real numbers as float32, integers as they are. `DTypeError` names
        the first number that float32 cannot hold."""
        where = f"stream {self.name!r}"
        try:
            data = np.asarray(self.data)
        except (TypeError, ValueError) as error:
            raise ArgumentError("DataLoader", where, str(error), "an array") from None
        if data.dtype.kind not in "fiub":
            raise DTypeError("DataLoader", where, data.dtype, "real numbers")
        if data.size % self.sample_size:
            given = f"{data.size} values"
            raise ArgumentError("DataLoader", where, given, f"a multiple of the sample size {self.sample_size}")
        return (narrowed("DataLoader", where, data, f32) if data.dtype.kind == "f" else data).reshape(
            -1, self.sample_size
        )


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch: the samples of each stream, flat, `batch_size · sample_size` elements."""

    tensors: Mapping[str, Array]

    def get(self, name: str) -> Array:
        """Return the samples of stream `name`; `UnknownNameError` for another."""
        if name not in self.tensors:
            raise unknown_name("Batch.get", "name", str(name), self.tensors)
        return self.tensors[name]


class DataLoader:
    """A source of batches from streams of equally many samples; samples that do not fill a last batch are left out.

    `DataLoader(data, labels, sample_size, label_size, batch_size)` has the streams `x` and `labels`. A fresh loader
    goes through the samples in their order. Iterating begins anew and gives every batch once.
    """

    def __init__(self, data: Any, labels: Any, sample_size: int, label_size: int, batch_size: int) -> None:
        streams = [InputStream("x", data, sample_size), InputStream("labels", labels, label_size)]
        self._begin(streams, batch_size)

    @classmethod
    def with_streams(cls, streams: Sequence[InputStream], batch_size: int) -> DataLoader:
        """Return a loader of streams that carry the names of the graph's inputs."""
        loader = cls.__new__(cls)
        loader._begin(streams, batch_size)
        return loader

    def _begin(self, streams: Sequence[InputStream], batch_size: int) -> None:
        streams = list(streams)
        if not streams or not all(isinstance(s, InputStream) for s in streams):
            raise ArgumentError("DataLoader", "streams", repr(streams), "one InputStream or more")
        self._rows = {s.name: s.rows() for s in streams}
        if len(self._rows) != len(streams):
            raise ArgumentError("DataLoader", "streams", ", ".join(s.name for s in streams), "each name once")
        first, n = streams[0].name, len(self._rows[streams[0].name])
        for name, rows in self._rows.items():
            if len(rows) != n:
                raise ArgumentError("DataLoader", f"stream {name!r}", f"{len(rows)} samples", f"{n}, as {first!r} has")
        _check_count("DataLoader", f"batch_size of stream {first!r}", batch_size, most=n)
        self.batch_size, self._order, self._at = int(batch_size), np.arange(n), 0

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        counts = f"{plural(len(self), 'sample')}, {plural(self.num_batches(), 'batch')}"
        return f"<DataLoader: {', '.join(self._rows)}: {counts}>"

    def is_empty(self) -> bool:
        """Return whether there is no sample."""
        return len(self) == 0

    def num_batches(self) -> int:
        """Return the number of whole batches in one pass."""
        return len(self) // self.batch_size

    def input_names(self) -> list[str]:
        """Return the names of the streams."""
        return list(self._rows)

    def batch_elements(self) -> dict[str, int]:
        """Return the number of elements of one batch of every stream."""
        return {name: self.batch_size * rows.shape[1] for name, rows in self._rows.items()}

    def streams(self) -> dict[str, Array]:
        """Return the samples of every stream, [samples, sample_size]."""
        return dict(self._rows)

    def shuffle(self, seed: int) -> None:
        """Begin the order that belongs to `seed` at its first batch, whatever the order was before."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ArgumentError("shuffle", "seed", repr(seed), "an int ≥ 0")
        self._order, self._at = np.array(shuffled(len(self), int(seed)), np.intp), 0

    def reset(self) -> None:
        """Begin again at the first batch, in the same order."""
        self._at = 0

    def next_batch(self) -> Batch | None:
        """Return the next whole batch, None behind the last."""
        if self._at + self.batch_size > len(self):
            return None
        rows = self._order[self._at : self._at + self.batch_size]
        self._at += self.batch_size
        return Batch({name: data.take(rows, 0).reshape(-1) for name, data in self._rows.items()})

    def __iter__(self) -> Iterator[Batch]:
        self.reset()
        while (batch := self.next_batch()) is not None:
            yield batch


def shuffled(n: int, seed: int) -> list[int]:
    """Return 0 … n − 1 in the order of `seed`: Fisher and Yates from the back, with a 64-bit congruential generator."""
    order = list(range(n))
    picks = (_states(n - 1, seed + 1) >> np.uint64(33)) % np.arange(n, 1, -1, dtype=np.uint64)
    for i, j in zip(range(n - 1, 0, -1), picks.tolist(), strict=True):
        order[i], order[j] = order[j], order[i]
    return order


def _states(count: int, start: int) -> Array:
    """Return the generator's states behind `start`, u64[count], all at once: k + m steps are m steps behind k steps."""
    factor, offset = (np.full(max(count, 1), number, np.uint64) for number in (_MULTIPLIER, _INCREMENT))
    known = 1
    while known < count:  # state k + 1 is factor[k]·start + offset[k]
        more = slice(known, min(2 * known, count))
        first = slice(0, more.stop - known)
        last = slice(known - 1, known)
        offset[more] = factor[first] * offset[last] + offset[first]
        factor[more] = factor[first] * factor[last]
        known = more.stop
    return (factor * np.array([start & _MASK], np.uint64) + offset)[:count]


def _check_count(where: str, what: str, given: object, most: int | None = None) -> None:
    good = isinstance(given, (int, np.integer)) and not isinstance(given, bool) and given >= 1
    if not good or (most is not None and given > most):  # type: ignore[operator]
        wanted = "an int ≥ 1" if most is None else f"1 … {most}: it has {most} samples"
        raise ArgumentError(where, what, repr(given), wanted)


# MNIST ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class MnistDataset:
    """The MNIST digits: images f32[n, rows·columns] in 0 … 1 and labels f32[n, 10], one-hot."""

    images: Array
    labels: Array

    @classmethod
    @kinds(images=PATH, labels=PATH)
    def load(cls, images: str | os.PathLike[str], labels: str | os.PathLike[str]) -> MnistDataset:
        """Read two IDX files (LeCun and others, 1998), plain or gzip; `LoadError` for anything else."""
        pixels, classes = _idx(images, 0x803), _idx(labels, 0x801)
        if len(pixels) != len(classes):
            raise LoadError("MnistDataset", os.fspath(labels), f"{len(classes)} labels", f"{len(pixels)}, as images")
        if classes.size and classes.max() > 9:
            at = int(np.argmax(classes > 9))
            raise LoadError("MnistDataset", os.fspath(labels), f"label {classes[at]} at {at}", "0 … 9")
        scaled = pixels.reshape(len(pixels), math.prod(pixels.shape[1:])).astype(np.float32) / np.float32(255)
        return cls(scaled, np.eye(10, dtype=np.float32)[classes])

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n(self) -> int:
        """The number of images."""
        return len(self.images)

    def loader(self, batch_size: int) -> DataLoader:
        """Return a `DataLoader` with the streams `x` and `labels`."""
        return DataLoader(self.images, self.labels, self.images.shape[1], 10, batch_size)


def _idx(path: str | os.PathLike[str], magic: int) -> Array:
    """Return the bytes of an IDX file of unsigned bytes, in the shape that its header says."""
    name = os.fspath(path)
    try:
        with open_regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw) as file:
                    return _idx_from(name, file, magic)
            return _idx_from(name, raw, magic)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError("MnistDataset", name, str(error) or type(error).__name__, "an IDX file") from None


def _idx_from(name: str, file: Any, magic: int) -> Array:
    rank = magic & 0xFF
    header = np.frombuffer(_exactly(name, file, 4 + 4 * rank, "header"), ">u4")
    if header[0] != magic:
        raise LoadError("MnistDataset", f"{name}: magic number", f"{int(header[0]):#x}", f"{magic:#x}")
    shape = tuple(int(n) for n in header[1:])
    body = _exactly(name, file, math.prod(shape), f"data {list(shape)}")
    if file.read(1):
        raise LoadError("MnistDataset", f"{name}: data {list(shape)}", "more bytes", f"{math.prod(shape)} bytes")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _exactly(name: str, file: BinaryIO, nbytes: int, what: str) -> bytes:
    """Read `nbytes` bytes of a file in pieces: a header may promise more than any memory holds."""
    pieces, missing = [], nbytes
    while missing and (piece := file.read(min(missing, 1 << 20))):
        pieces.append(piece)
        missing -= len(piece)
    if missing:
        raise LoadError("MnistDataset", f"{name}: {what}", f"{nbytes - missing} bytes", f"{nbytes} bytes")
    return b"".join(pieces)
