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
import re
import secrets
import struct
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from gdlab.base.errors import ArgumentError, CheckpointError
from gdlab.base.files import open_regular
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import PATH
from gdlab.base.types import Array, DType, TensorType
from gdlab.base.words import listed, plural
from gdlab.plan.records import Place
from gdlab.plan.rules import RULES
from gdlab.session.loaded import LoadedPlan
from gdlab.session.progress import Progress
from gdlab.session.updates import Updates
from gdlab.session.values import Values

FORMAT, UNNAMED_FORMAT = "2", "1"  # the digest of format 1 covers the bytes of the tensors, and not whose they are
KEYS = ("gdlab_checkpoint_format", "gdlab_digest", "gdlab_logical_layout", "adam_step")
MOMENTS = ("adam_m.", "adam_v.")
STATE = "rule_state."  # before `state.parameter` in the name of a tensor: a state of a rule other than Adam and its kin
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "U32": np.dtype(np.uint32), "U8": np.dtype(np.uint8),
}  # fmt: skip
_NONE: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_STEPS = 2**63  # the Adam counter is below
_MOST_HEADER = 100_000_000  # bytes; the library that writes files reads no longer one


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """An entry of the header: element type, shape, and where its bytes lie behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint; `adam`: the names of the parameters with moments; `states`: those with states of
    other rules, by the name of the state."""

    tensors: dict[str, Array]
    adam_step: int
    adam: tuple[str, ...]
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def held(self, name: str, type: TensorType) -> Array | Packed:
        """Return a parameter of this type as a session takes it bit by bit: bytes, where NumPy has no such dtype."""
        data = self.tensors[name]
        return Packed.of_words(data, type) if _in_words(type) else data


class Checkpoints:
    """Parameters, moments and the Adam counter of a session as one value, in memory or in a file. Methods without a
    docstring are those of `Session`."""

    def __init__(self, loaded: LoadedPlan, values: Values, updates: Updates, progress: Progress) -> None:
        self.loaded, self.values, self.updates, self.progress = loaded, values, updates, progress

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint file of the session as it is now."""
        self.loaded.check_open("save_checkpoint")
        target = _path("save_checkpoint", path)
        _check_names("save_checkpoint", self.values.places.parameters)
        if missing := self.values.parameters_without_value():
            given = f"no value for {listed(missing)}"
            raise CheckpointError("save_checkpoint", "parameters", given, "a value of each")
        if self.updates.adam_steps >= _STEPS:
            raise CheckpointError("save_checkpoint", "adam_step", self.updates.adam_steps, "one below 2^63")
        self.progress.check_between_steps("save_checkpoint")
        snapshot = self.loaded.turn.call(self._snapshot)
        write(target, snapshot, self._layout(snapshot.adam, snapshot.states))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint file into the session."""
        self.loaded.check_open("load_checkpoint")
        parameters = self.values.places.parameters
        _check_names("load_checkpoint", parameters)
        snapshot = read(_path("load_checkpoint", path), self._layout(()))
        training = self.loaded.plan.mode == "training"
        moved = dict.fromkeys((*snapshot.adam, *(n for names in snapshot.states.values() for n in names)))
        untrained = [n for n in moved if training and not self.values.has_param_grad(n)]
        if untrained:
            raise CheckpointError("load_checkpoint", f"moments of {untrained[0]}", "some", "none: it is not trained")
        self.loaded.turn.call(lambda: self._apply(snapshot))
        self.values.unset_parameters.have(parameters)

    def snapshot(self) -> CheckpointContent:
        self.loaded.check_open("snapshot")
        self.progress.check_between_steps("snapshot")
        return self.loaded.turn.call(self._snapshot)

    def restore(self, snapshot: CheckpointContent, steps: int) -> None:
        self.loaded.check_open("restore")
        if not isinstance(snapshot, CheckpointContent):
            raise ArgumentError("restore", "snapshot", type(snapshot).__name__, "what snapshot() of this session gave")
        if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < 0:
            raise ArgumentError("restore", "steps", repr(steps), "an int ≥ 0")
        self._check(snapshot)
        self.loaded.turn.call(lambda: self._apply(snapshot))
        self.progress.steps = steps

    def _check(self, snapshot: CheckpointContent) -> None:
        """Raise `CheckpointError` unless a snapshot has the tensors of this session."""
        found = {name: entry for name, entry, _ in entries_of(snapshot.tensors)}
        try:
            _check_tensors(found, self._layout(())["parameters"], snapshot.adam, snapshot.states)
        except CheckpointError as error:
            raise CheckpointError("restore", error.what, error.given, error.wanted) from None

    def _layout(self, adam: tuple[str, ...], states: Mapping[str, tuple[str, ...]] = _NONE) -> dict[str, Any]:
        places = self.values.places
        types = {name: places.types[p] for name, p in places.parameters.items()}
        rows = [[name, list(t.shape), str(t.dtype).upper()] for name, t in types.items()]
        own = {"states": {state: list(names) for state, names in states.items()}} if states else {}
        return {"parameters": rows, "adam": list(adam), **own}

    def _snapshot(self) -> CheckpointContent:
        tensors = {n: self._download(p) for n, p in self.values.places.parameters.items()}
        for prefix in MOMENTS:
            moments = self.updates.moments(prefix)
            tensors |= {prefix + name: self.values.download(p) for name, p in moments.items()}
        states = dict[str, tuple[str, ...]]()
        for state in self.updates.own_states():
            places = self.updates.moments(f"{state}.")
            tensors |= {f"{STATE}{state}.{name}": self.values.download(p) for name, p in places.items()}
            states[state] = tuple(places)
        return CheckpointContent(tensors, self.updates.adam_steps, tuple(self.updates.moments(MOMENTS[0])), states)

    def _apply(self, snapshot: CheckpointContent) -> None:
        self.progress.partial = None
        training, places = self.loaded.plan.mode == "training", self.values.places
        if snapshot.adam and training:
            self.updates.allocate_moments()  # first: it may find no memory, and nothing has changed yet
        for state in snapshot.states if training else ():
            self.updates.allocate_state(state)
        for name, place in places.parameters.items():
            self._upload(place, snapshot.tensors[name])
        if not training:
            return
        own = ((f"{state}.", f"{STATE}{state}.") for state in self.updates.own_states())
        for prefix, key in (*zip(MOMENTS, MOMENTS, strict=True), *own):
            for name, place in self.updates.moments(prefix).items():
                shape = places.types[places.parameters[name]].shape
                moment = snapshot.tensors.get(key + name, np.zeros(shape, np.float32))
                self.values.upload(place, moment.reshape(shape))
        self.updates.set_adam_steps(snapshot.adam_step)
        self.updates.clear_sums()

    def _download(self, place: Place) -> Array:
        """Return a parameter as it stands in a file: blocks and bf16 as u8[bytes], the others as they are."""
        if isinstance(place, int) and _in_words(self.values.places.types[place]):
            return self.loaded.program.words(place).view(np.uint8)
        return self.values.download(place)

    def _upload(self, place: Place, data: Array) -> None:
        """Write a parameter from its data in a file."""
        type = self.values.places.types[place]
        if isinstance(place, int) and _in_words(type):
            return self.loaded.program.upload_words(place, np.ascontiguousarray(data).view(np.uint32))
        return self.values.upload(place, data.reshape(type.shape))


# files ----------------------------------------------------------------------------------------------------------------
def write(target: Path, snapshot: CheckpointContent, layout: Mapping[str, Any]) -> None:
    """Write the file through a temporary one beside it."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    metadata = {
        "gdlab_checkpoint_format": FORMAT,
        "gdlab_logical_layout": json.dumps(layout, separators=(",", ":")),
        "adam_step": str(snapshot.adam_step),
    }
    of = snapshot.tensors
    ordered = sorted(of, key=lambda name: (-of[name].itemsize, name.encode("utf-8", "surrogatepass")))
    tensors = {name: np.ascontiguousarray(snapshot.tensors[name]) for name in ordered}
    metadata["gdlab_digest"] = digest(metadata, entries_of(tensors))
    temporary = target.parent / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    _remove_abandoned(target)
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
        raise CheckpointError("save_checkpoint", repr(str(target)), _reason(error), wanted) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


_WRITING = threading.Lock()
_ABANDONED_SECONDS = 3600.0  # a save of any size is over by then


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of this target that a killed save has left."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError, ValueError):
        for path in target.parent.iterdir():
            match = pattern.fullmatch(path.name)
            if match and (_ended(int(match[1])) or time.time() - path.stat().st_mtime > _ABANDONED_SECONDS):
                path.unlink()


def _ended(pid: int) -> bool:
    """Return whether no process has this number (False where asking would end it, on Windows)."""
    if os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


@cache
def _wait_at_exit() -> None:
    """At exit, wait for the file that a thread is writing, and let no other begin: a thread that is cut off inside the
    writer's Rust code aborts the process."""
    atexit.register(_WRITING.acquire, timeout=30)


def entries_of(tensors: Mapping[str, Array]) -> Iterator[tuple[str, HeaderEntry, memoryview]]:
    """Return name, header entry and bytes of every tensor, as the writer lays them out in this order."""
    names, at = {dtype: name for name, dtype in _DTYPES.items()}, 0
    for name, array in tensors.items():
        yield name, HeaderEntry(names[array.dtype], array.shape, at, at + array.nbytes), array.data.cast("B")
        at += array.nbytes


def digest(metadata: Mapping[str, str], entries: Iterable[tuple[str, HeaderEntry, memoryview]]) -> str:
    """Return the SHA-256 of the metadata but the digest itself, and, in the order of the header, of every tensor's
    name, element type, shape, offsets and bytes; of format 1 the bytes alone."""
    h = hashlib.sha256()
    for key in KEYS:
        if key != "gdlab_digest":
            value = metadata[key].encode()
            h.update(struct.pack("<Q", len(value)) + value)
    for name, t, data in entries:
        if metadata["gdlab_checkpoint_format"] != UNNAMED_FORMAT:
            entry = json.dumps([name, t.dtype, t.shape, t.start, t.stop], separators=(",", ":")).encode()
            h.update(struct.pack("<Q", len(entry)) + entry)
        h.update(data)
    return h.hexdigest()


def read(path: Path, wanted: Mapping[str, Any]) -> CheckpointContent:
    """Return the content of a checkpoint that fits the layout; everything is checked first, sizes before the tensors
    are read."""
    try:
        with open_regular(path) as file:
            metadata, tensors, size = _header(file)
            adam, states = _check_metadata(metadata, wanted)
            _check_tensors(tensors, wanted["parameters"], adam, states)
            _check_spans(tensors, size)
            body = memoryview(file.read(size))
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise _bad(repr(str(path)), _reason(error), "a checkpoint file") from None
    old, ordered = metadata["gdlab_checkpoint_format"] == UNNAMED_FORMAT, list(tensors.items())
    if old:
        ordered.sort(key=lambda row: row[1].start)
    if digest(metadata, ((name, t, body[t.start : t.stop]) for name, t in ordered)) != metadata["gdlab_digest"]:
        raise _bad("gdlab_digest", "the digest of other bytes", "an undamaged file")
    if old:
        text = f"load_checkpoint: {str(path)!r}: format 1, whose digest does not cover names: save it again"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    arrays = {n: np.frombuffer(body[t.start : t.stop], _DTYPES[t.dtype]).reshape(t.shape) for n, t in tensors.items()}
    return CheckpointContent(arrays, int(metadata["adam_step"]), adam, states)


def _check_metadata(
    metadata: Mapping[str, str], wanted: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Check format, step and layout; return the names of the parameters with moments, and with states of other rules.
    """
    if metadata["gdlab_checkpoint_format"] not in (FORMAT, UNNAMED_FORMAT):
        raise _bad("gdlab_checkpoint_format", repr(metadata["gdlab_checkpoint_format"]), repr(FORMAT))
    step = metadata["adam_step"]
    if not (step.isascii() and step.isdigit() and len(step) < 20 and int(step) < _STEPS and str(int(step)) == step):
        raise _bad("adam_step", repr(step), "an integer ≥ 0")
    return _check_layout(metadata["gdlab_logical_layout"], wanted)


def _header(file: BinaryIO) -> tuple[dict[str, str], dict[str, HeaderEntry], int]:
    """Return (metadata, tensors, the number of bytes behind the header)."""
    start, size = file.read(8), os.fstat(file.fileno()).st_size
    if len(start) < 8:
        raise _bad("header", f"a file of {plural(size, 'byte')}", "a whole safetensors file")
    length = struct.unpack("<Q", start)[0]
    if not 2 <= length <= min(size - 8, _MOST_HEADER):
        raise _bad("header", f"{length} bytes in a file of {size}", "a whole safetensors file")
    try:
        text = file.read(length).decode()
        header = json.loads(text, object_pairs_hook=_pairs)
        canonical = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
        metadata = header.pop("__metadata__")
        tensors = {name: _tensor(name, entry) for name, entry in header.items()}
        for key in KEYS:
            if not isinstance(metadata[key], str):
                raise _bad(key, type(metadata[key]).__name__, "a str")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _bad("header", f"{type(error).__name__}: {error}", "what save_checkpoint writes") from None
    if len(metadata) != len(KEYS) or canonical != text.rstrip(" "):
        raise _bad("header", "other text", "what save_checkpoint writes, to the letter")
    return metadata, tensors, size - 8 - length


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        name = next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))
        raise _bad(name, "the same name twice", "each tensor once")
    return entries


def _tensor(name: str, entry: Any) -> HeaderEntry:
    numbers = [*entry["shape"], *entry["data_offsets"]]
    good = all(type(n) is int and 0 <= n < 2**63 for n in numbers)
    if not good or len(entry) != 3 or len(entry["data_offsets"]) != 2:
        raise _bad(name, "an entry of another form", "dtype, shape, data_offsets")
    if entry["dtype"] not in _DTYPES:
        raise _bad(name, repr(entry["dtype"]), f"one of {', '.join(_DTYPES)}")
    return HeaderEntry(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


def _check_spans(tensors: Mapping[str, HeaderEntry], size: int) -> None:
    """Raise unless the tensors lie one after the other without gaps, and the file ends with the last."""
    at = 0
    for name, t in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        need = int(np.prod([1, *t.shape], dtype=object)) * _DTYPES[t.dtype].itemsize
        if t.start != at or t.stop - t.start != need:
            raise _bad(name, f"bytes {t.start} … {t.stop} ({t})", f"{at} … {at + need}")
        at = t.stop
    if at != size:
        raise _bad("data", f"{size} bytes", f"{at} bytes")


def _check_layout(text: str, wanted: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the names of the parameters with moments, and with states of other rules; `CheckpointError` unless the
    layout is that of the session."""
    try:
        given = json.loads(text)
        rows, adam = {row[0]: row[1:] for row in given["parameters"]}, given["adam"]
        many, adam = len(given["parameters"]), [str(n) for n in adam]
        states = {str(state): tuple(map(str, names)) for state, names in given.get("states", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
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
    if many != len(mine) or any(len({*names}) != len(names) or not {*names} <= mine.keys() for names in
                                (adam, *states.values())):  # fmt: skip
        raise _bad("gdlab_logical_layout", text, "every name once")
    known_states = {state for rule in RULES.values() for state in rule.state}
    for state in states:
        if state not in known_states:
            raise _bad(f"state {state}", "that of an update rule", f"one of {', '.join(sorted(known_states))}")
    return tuple(adam), states


def _layout_text(rest: Any) -> str:
    return " ".join(map(str, reversed(rest)))


def _in_words(type: TensorType) -> bool:
    """Return whether a parameter of this type is written as the bytes of its words, because NumPy has no such dtype."""
    return type.dtype.is_storage and str(type.dtype).upper() not in _DTYPES


def _stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the element type and shape in the file of a parameter of the layout."""
    type = TensorType(shape, DType[dtype.lower()])
    return ("U8", (type.size_bytes,)) if _in_words(type) else (dtype, shape)


def _check_tensors(
    tensors: Mapping[str, HeaderEntry], rows: Any, adam: tuple[str, ...], states: Mapping[str, tuple[str, ...]]
) -> None:
    wanted = {name: _stored(dtype, tuple(shape)) for name, shape, dtype in rows}
    for name in (*adam, *(name for names in states.values() for name in names)):
        if name not in wanted:
            raise _bad(f"moments of {name}", "some", "no such parameter in this session")
    for prefix in MOMENTS:
        wanted |= {prefix + name: ("F32", wanted[name][1]) for name in adam}
    for state, names in states.items():
        wanted |= {f"{STATE}{state}.{name}": ("F32", wanted[name][1]) for name in names}
    for name, (dtype, shape) in wanted.items():
        form = str(HeaderEntry(dtype, shape, 0, 0))
        if name not in tensors:
            raise _bad(name, "nothing", form)
        if str(tensors[name]) != form:
            raise _bad(name, tensors[name], form)
    for name in tensors:
        if name not in wanted:
            raise _bad(name, tensors[name], "no such tensor")


# small things ---------------------------------------------------------------------------------------------------------
def _path(where: str, path: Any) -> Path:
    if not PATH.holds(path):  # Path("") is this folder
        raise CheckpointError(where, "path", repr(path), "a str or a path")
    return Path(path)


def _check_names(where: str, names: Mapping[str, object]) -> None:
    for name in names:
        if name.startswith((*MOMENTS, STATE)) or name == "__metadata__":
            raise CheckpointError(where, f"parameter {name}", "a name of the file's own", "another name")


def _bad(what: object, given: object, wanted: str) -> CheckpointError:
    return CheckpointError("load_checkpoint", str(what), given, wanted)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _flush(path: Path) -> None:
    """Flush a file to the disk (fsync); a folder too, where the system can (not on Windows)."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
