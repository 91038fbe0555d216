"""Read tensors of safetensors files, whole or in shards, as float32.

weights = gd.load_safetensors("model.safetensors")       # or model.safetensors.index.json, or their folder
session.set_parameter("fc1.weight", weights.tensor_f32_transposed("fc1.weight"))
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError, LoadError, ShapeError, unknown_name
from gdlab.base.files import open_regular, read_regular
from gdlab.base.formats import bf16_values
from gdlab.base.types import Array
from gdlab.base.words import plural

WHERE = "load_safetensors"
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
MOST_HEADER = 1 << 23  # bytes of a header or an index: 50,000 tensors
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The shape and dtype (as the file calls it, such as `BF16`) of a tensor, and where its bytes lie."""

    shape: tuple[int, ...]
    dtype: str
    path: Path
    start: int
    nbytes: int


class SafeTensorsModel(Mapping[str, Array]):
    """The tensors of one file or of all shards by name; bytes are read when they are asked for."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Array:
        return self.tensor_f32(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # Mapping's reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<SafeTensorsModel: {plural(len(self), 'tensor')}>"

    def tensor_names(self) -> list[str]:
        """Return the names, in the order of the files."""
        return list(self._tensors)

    def tensor_info(self, name: str) -> TensorInfo:
        """Return shape and dtype of tensor `name`."""
        if name not in self._tensors:
            raise unknown_name("tensor_info", "tensor", str(name), self._tensors)
        return self._tensors[name]

    def tensor_f32(self, name: str) -> Array:
        """Return tensor `name` as float32 of its shape; F32, F16 and BF16 are read exactly; raise `DTypeError` for
        others."""
        info = self.tensor_info(name)
        if info.dtype not in DTYPES:
            raise DTypeError("tensor_f32", f"tensor {name!r}", info.dtype, f"one of {', '.join(DTYPES)}")
        data = np.frombuffer(_bytes(name, info), DTYPES[info.dtype])
        if info.dtype == "BF16":  # the upper half of a float32
            data = bf16_values(data)
        widened: Array = data.astype(np.float32)
        return widened.reshape(info.shape)

    def tensor_f32_transposed(self, name: str) -> Array:
        """Return matrix `name` with its axes swapped, contiguous: layers of PyTorch keep [out, in], ours [in, out]."""
        info = self.tensor_info(name)
        if len(info.shape) != 2:
            raise ShapeError("tensor_f32_transposed", f"tensor {name!r}", list(info.shape), "a matrix")
        return np.ascontiguousarray(self.tensor_f32(name).T)


def load_safetensors(path: str | os.PathLike[str]) -> SafeTensorsModel:
    """Return the tensors of a `.safetensors` file, of the shards that an `.index.json` names, or of a folder with
    either; raise `LoadError` for anything damaged: headers are checked, and every offset against the file."""
    try:
        home = Path(path)
        if home.is_dir():
            home = home / (WHOLE if (home / WHOLE).exists() else INDEX)
        return SafeTensorsModel(_sharded(home) if home.suffix == ".json" else _tensors(home))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(WHERE, repr(str(path)), f"{type(error).__name__}: {error}", "a safetensors file") from None


def _tensors(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one file. The library checks the header (its length, that tensors lie one behind the other
    and end with the file, that shapes fit bytes); then it is read here, for bfloat16, which NumPy does not have."""
    from safetensors import SafetensorError, safe_open

    with open_regular(path) as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > MOST_HEADER:
            raise LoadError(WHERE, repr(str(path)), f"a header of {length:,} bytes", f"at most {MOST_HEADER:,}")
        try:
            with safe_open(path, framework="np"):
                pass
        except SafetensorError as error:
            raise LoadError(WHERE, repr(str(path)), str(error), "a safetensors file") from None
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    by_place = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return {name: _info(path, 8 + length, entry) for name, entry in by_place}


def _info(path: Path, body: int, entry: Mapping[str, Any]) -> TensorInfo:
    start, stop = entry["data_offsets"]
    return TensorInfo(tuple(entry["shape"]), entry["dtype"], path, body + start, stop - start)


def _sharded(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors that an index names, each from its shard beside the index, then the others of these shards."""
    index = json.loads(read_regular(path, MOST_HEADER))
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise LoadError(WHERE, f"{path}: weight_map", repr(places), "names of tensors with the file of each")
    for name, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise LoadError(WHERE, f"{path}: shard of {name!r}", repr(shard), "a file beside the index")
    shards = {shard: _tensors(path.with_name(shard)) for shard in dict.fromkeys(places.values())}
    for name, shard in places.items():
        if name not in shards[shard]:
            raise LoadError(WHERE, f"{path}: tensor {name!r}", f"nothing in {shard}", "what the index says")
    found = {name: shards[shard][name] for name, shard in places.items()}
    for shard, tensors in shards.items():
        for name, info in tensors.items():
            if found.setdefault(name, info) is not info and name not in places:
                given = f"not in the index, but in {found[name].path.name} and {shard}"
                raise LoadError(WHERE, f"{path}: tensor {name!r}", given, "one place, or one that the index names")
    return found


def _bytes(name: str, info: TensorInfo) -> bytes:
    try:
        with open_regular(info.path) as file:
            file.seek(info.start)
            data = file.read(info.nbytes)
    except OSError as error:
        raise LoadError("tensor_f32", f"tensor {name!r}", str(error), f"{info.nbytes} bytes of {info.path}") from None
    if len(data) != info.nbytes:  # shorter than when it was opened
        raise LoadError("tensor_f32", f"tensor {name!r}", f"{len(data)} bytes", f"{info.nbytes} of {info.path}")
    return data
