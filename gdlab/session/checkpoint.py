"""Save and load parameters and moments as one safetensors file, whole or not at all.

Tensors are those of the written graph, so a file depends on neither device nor fusion. A load looks at everything
before it changes anything: header, layout, sizes, and a digest over all metadata and bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import secrets
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import CheckpointError
from gdlab.base.types import BLOCK_BYTES, Array, DType, TensorType
from gdlab.devices.base import owner
from gdlab.plan.records import Place
from gdlab.session.updates import Updates

FORMAT = "1"
KEYS = ("gdlab_checkpoint_format", "gdlab_digest", "gdlab_logical_layout", "adam_step")
MOMENTS = ("adam_m.", "adam_v.")
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "U32": np.dtype(np.uint32), "U8": np.dtype(np.uint8),
}  # fmt: skip
_STEPS = 2**63  # the Adam counter is below


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry of the header: element type, shape, and where its bytes lie behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds."""

    tensors: dict[str, Array]
    adam_step: int
    adam: tuple[str, ...]


class Checkpoints(Updates):
    """`save_checkpoint` and `load_checkpoint`."""

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, moments and the Adam counter, after everything submitted. The file at `path` is the old or
        the new one, whole, at every moment. Not saved: the rule and its rates, inputs, where a loader is."""
        self._alive("save_checkpoint")
        target = _path("save_checkpoint", path)
        _check_names("save_checkpoint", self._parameters)
        if self.unset_parameters:
            given = f"no value for {', '.join(self.unset_parameters)}"
            raise CheckpointError("save_checkpoint", "parameters", given, "a value of each")
        self._between_steps("save_checkpoint")
        snapshot = owner().call(self._snapshot_now)
        write(target, snapshot, self._layout(snapshot.adam))

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Take parameters, moments and the Adam counter from a file that `save_checkpoint` wrote, on any device.
        `CheckpointError` names the first tensor that does not fit, and then nothing has changed. An inference session
        takes a training file and leaves the moments. Sums of gradients under way are dropped."""
        self._alive("load_checkpoint")
        _check_names("load_checkpoint", self._parameters)
        snapshot = read(_path("load_checkpoint", path), self._layout(()))
        unknown = [n for n in snapshot.adam if self._plan.mode == "training" and not self.has_param_grad(n)]
        if unknown:
            raise CheckpointError("load_checkpoint", f"moments of {unknown[0]}", "some", "none: it is not trained")
        owner().call(lambda: self._apply_now(snapshot))
        self._unset_parameters.difference_update(self._parameters)

    def snapshot(self) -> Snapshot:
        """Parameters, moments and the Adam counter as they are now, in memory: what `restore` takes."""
        self._alive("snapshot")
        self._between_steps("snapshot")
        return owner().call(self._snapshot_now)

    def restore(self, snapshot: Snapshot, steps: int = 0) -> None:
        """Go back to a snapshot of this session, and count steps from `steps` on."""
        self._alive("restore")
        owner().call(lambda: self._apply_now(snapshot))
        self._steps = steps

    # inside -----------------------------------------------------------------------------------------------------------
    def _layout(self, adam: tuple[str, ...]) -> dict[str, Any]:
        types = {name: self._types[b] for name, b in self._parameters.items()}
        rows = [[name, list(t.shape), str(t.dtype).upper()] for name, t in types.items()]
        return {"parameters": rows, "adam": list(adam)}

    def _snapshot_now(self) -> Snapshot:
        tensors = {n: self._stored_now(b) for n, b in self._parameters.items()}
        for prefix in MOMENTS:
            tensors |= {prefix + name: self._read_now(b) for name, b in self._state_named(prefix).items()}
        return Snapshot(tensors, self._adam_steps, tuple(self._state_named(MOMENTS[0])))

    def _stored_now(self, place: Place) -> Array:
        """A parameter as it stands in a file: blocks of `q4` and `q8` as u8[bytes], the others as they are."""
        if isinstance(place, int) and self._types[place].dtype in BLOCK_BYTES:
            return self._program.words(place).view(np.uint8)
        return self._read_now(place)

    def _store_now(self, place: Place, data: Array) -> None:
        """The inverse."""
        if isinstance(place, int) and self._types[place].dtype in BLOCK_BYTES:
            return self._program.upload_words(place, np.ascontiguousarray(data).view(np.uint32))
        return self._put_now(place, data.reshape(self._types[place].shape))

    def _apply_now(self, snapshot: Snapshot) -> None:
        self._way = None
        if snapshot.adam and self._plan.mode == "training":
            self._make_moments_now()  # first: it may find no memory, and nothing has changed yet
        for name, buffer in self._parameters.items():
            self._store_now(buffer, snapshot.tensors[name])
        if self._plan.mode != "training":
            return
        for prefix in MOMENTS:
            for name, buffer in self._state_named(prefix).items():
                shape = self._types[self._parameters[name]].shape
                held = snapshot.tensors.get(prefix + name, np.zeros(shape, np.float32))
                self._put_now(buffer, held.reshape(shape))
        self._set_adam_steps_now(snapshot.adam_step)
        self._clear_sums_now()


# files ----------------------------------------------------------------------------------------------------------------
def write(target: Path, snapshot: Snapshot, layout: Mapping[str, Any]) -> None:
    """The file, through a temporary one beside it."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    metadata = {
        "gdlab_checkpoint_format": FORMAT,
        "gdlab_logical_layout": json.dumps(layout, separators=(",", ":")),
        "adam_step": str(snapshot.adam_step),
    }
    ordered = sorted(snapshot.tensors, key=lambda name: (-snapshot.tensors[name].itemsize, name.encode()))
    tensors = {name: np.ascontiguousarray(snapshot.tensors[name]) for name in ordered}
    metadata["gdlab_digest"] = digest(metadata, (array.data.cast("B") for array in tensors.values()))
    temporary = target.parent / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    _wait_at_exit()
    try:
        with _WRITING:
            save_file(tensors, temporary, metadata)
        _flush(temporary)
        os.replace(temporary, target)
        _flush(target.parent)
    except (OSError, ValueError, SafetensorError) as error:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink()
        wanted = "a file that can be written"
        raise CheckpointError("save_checkpoint", repr(str(target)), _told(error), wanted) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


_WRITING = threading.Lock()


@cache
def _wait_at_exit() -> None:
    """A thread of the user's own that is cut off inside the writer's Rust takes the process down with an abort: at exit
    the file in hand is waited for, and no other is begun."""
    atexit.register(_WRITING.acquire, timeout=30)


def digest(metadata: Mapping[str, str], parts: Any) -> str:
    """SHA-256 of the metadata but the digest itself, and of the bytes of all tensors in the order of the header."""
    h = hashlib.sha256()
    for key in KEYS:
        if key != "gdlab_digest":
            value = metadata[key].encode()
            h.update(struct.pack("<Q", len(value)) + value)
    for part in parts:
        h.update(part)
    return h.hexdigest()


def read(path: Path, wanted: Mapping[str, Any]) -> Snapshot:
    """The content of a checkpoint that fits the layout; everything is checked first."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise _bad(repr(str(path)), _told(error), "a checkpoint file") from None
    metadata, tensors, body = _header(data)
    if metadata["gdlab_checkpoint_format"] != FORMAT:
        raise _bad("gdlab_checkpoint_format", repr(metadata["gdlab_checkpoint_format"]), repr(FORMAT))
    step = metadata["adam_step"]
    if not (step.isascii() and step.isdigit() and len(step) < 20 and int(step) < _STEPS and str(int(step)) == step):
        raise _bad("adam_step", repr(step), "an integer ≥ 0")
    adam = _check_layout(metadata["gdlab_logical_layout"], wanted)
    _check_tensors(tensors, wanted["parameters"], adam)
    _check_spans(tensors, len(body))
    ordered = sorted(tensors.values(), key=lambda t: t.start)
    if digest(metadata, (body[t.start : t.stop] for t in ordered)) != metadata["gdlab_digest"]:
        raise _bad("gdlab_digest", "bytes that it does not belong to", "an undamaged file")
    arrays = {n: np.frombuffer(body[t.start : t.stop], _DTYPES[t.dtype]).reshape(t.shape) for n, t in tensors.items()}
    return Snapshot(arrays, int(step), adam)


def _header(data: bytes) -> tuple[dict[str, str], dict[str, Tensor], memoryview]:
    """(metadata, tensors, the bytes behind the header)."""
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else -1
    if not 2 <= length <= len(data) - 8:
        raise _bad("header", f"{length} bytes in a file of {len(data)}", "a whole safetensors file")
    try:
        text = data[8 : 8 + length].decode()
        found = json.loads(text, object_pairs_hook=_pairs)
        canonical = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
        metadata = found.pop("__metadata__")
        tensors = {name: _tensor(name, entry) for name, entry in found.items()}
        for key in KEYS:
            if not isinstance(metadata[key], str):
                raise _bad(key, type(metadata[key]).__name__, "a str")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _bad("header", f"{type(error).__name__}: {error}", "what save_checkpoint writes") from None
    if len(metadata) != len(KEYS) or canonical != text.rstrip(" "):
        raise _bad("header", "other text", "what save_checkpoint writes, to the letter")
    return metadata, tensors, memoryview(data)[8 + length :]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        name = next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))
        raise _bad(name, "the same name twice", "each tensor once")
    return found


def _tensor(name: str, entry: Any) -> Tensor:
    numbers = [*entry["shape"], *entry["data_offsets"]]
    good = all(type(n) is int and 0 <= n < 2**63 for n in numbers)
    if not good or len(entry) != 3 or len(entry["data_offsets"]) != 2:
        raise _bad(name, "an entry of another form", "dtype, shape, data_offsets")
    if entry["dtype"] not in _DTYPES:
        raise _bad(name, repr(entry["dtype"]), f"one of {', '.join(_DTYPES)}")
    return Tensor(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


def _check_spans(tensors: Mapping[str, Tensor], size: int) -> None:
    """Every tensor has its bytes, one after the other, and the file ends with the last."""
    at = 0
    for name, t in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        need = int(np.prod([1, *t.shape], dtype=object)) * _DTYPES[t.dtype].itemsize
        if t.start != at or t.stop - t.start != need:
            raise _bad(name, f"bytes {t.start} … {t.stop} ({t})", f"{at} … {at + need}")
        at = t.stop
    if at != size:
        raise _bad("data", f"{size} bytes", f"{at} bytes")


def _check_layout(text: str, wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the parameters with moments, when the layout is that of the session."""
    try:
        given = json.loads(text)
        rows, adam = {row[0]: row[1:] for row in given["parameters"]}, given["adam"]
        many, known = len(given["parameters"]), {str(n) for n in adam}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _bad("gdlab_logical_layout", f"{type(error).__name__}: {error}", "names, shapes, dtypes") from None
    mine = {name: rest for name, *rest in wanted["parameters"]}
    for name, rest in mine.items():
        if name not in rows:
            raise _bad(name, "nothing", _layout_text(rest))
        if rows[name] != rest:
            raise _bad(name, _layout_text(rows[name]), _layout_text(rest))
    for name in rows:
        if name not in mine:
            raise _bad(str(name), _layout_text(rows[name]), "no such parameter in this session")
    if many != len(mine) or len(known) != len(adam) or not known <= mine.keys():
        raise _bad("gdlab_logical_layout", text, "every name once")
    return tuple(adam)


def _layout_text(rest: Any) -> str:
    return " ".join(map(str, reversed(rest)))


def _stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Element type and shape in the file of a parameter of the layout."""
    type = TensorType(shape, DType[dtype.lower()])
    return ("U8", (type.size_bytes,)) if type.dtype in BLOCK_BYTES else (dtype, shape)


def _check_tensors(tensors: Mapping[str, Tensor], rows: Any, adam: tuple[str, ...]) -> None:
    wanted = {name: _stored(dtype, tuple(shape)) for name, shape, dtype in rows}
    for prefix in MOMENTS:
        wanted |= {prefix + name: ("F32", wanted[name][1]) for name in adam}
    for name, (dtype, shape) in wanted.items():
        form = str(Tensor(dtype, shape, 0, 0))
        if name not in tensors:
            raise _bad(name, "nothing", form)
        if str(tensors[name]) != form:
            raise _bad(name, tensors[name], form)
    for name in tensors:
        if name not in wanted:
            raise _bad(name, tensors[name], "no such tensor")


# small things ---------------------------------------------------------------------------------------------------------
def _path(where: str, path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise CheckpointError(where, "path", repr(path), "a str or a path") from None


def _check_names(where: str, names: Mapping[str, object]) -> None:
    for name in names:
        if name.startswith(MOMENTS) or name == "__metadata__":
            raise CheckpointError(where, f"parameter {name}", "a name of the file's own", "another name")


def _bad(what: object, given: object, wanted: str) -> CheckpointError:
    return CheckpointError("load_checkpoint", str(what), given, wanted)


def _told(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _flush(path: Path) -> None:
    """Down to the disk; a folder too, where the system can (not on Windows)."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
