"""Keep every finished point of a sweep as a file, so that the same sweep after a restart computes the missing ones.

A file is written whole or not at all, and named by a digest of everything that the point is made from. One that is
damaged, or of another point, is not used: the point is computed again.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.files import read_regular, write_file
from gdlab.base.types import Array
from gdlab.distributed.point_run import PointResult, PointStart
from gdlab.distributed.points import PointSettings, value_text

FORMAT = "gdlab.sweep.point.v1"
SUFFIX = ".gdpoint"
_MOST_BYTES = 16 << 30
_MOST_HEAD = 1 << 20
_PARAMETER = "parameter."


class PointFiles:
    """The files of one sweep in a folder, which is created if missing."""

    def __init__(self, folder: Any, start: PointStart) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            given = f"{self.folder}: {error.strerror}"
            raise ArgumentError("sweep", "store", given, "a folder that can be written") from None
        self._start = start
        self._common = _start_digest(start)
        self._shapes = {node.name: tuple(node.type.shape) for node in start.graph.parameters}

    def path(self, settings: PointSettings, steps: int) -> Path:
        """Return the file of a point."""
        rows = [(key, value_text(value)) for key, value in settings.values.items() if key not in ("feed", "steps")]
        h = hashlib.sha256(self._common)
        feed = settings.values.get("feed", self._start.feed)
        _update(h, [FORMAT, sorted(rows), int(settings.values.get("steps", steps)), digest_of(feed)])
        if "init" not in settings.values:
            _update(h, [digest_of(dict(self._start.values))])
        if not settings.part(("adam", "sgd")):
            _update(h, [repr(self._start.opening.optimizer)])
        return self.folder / f"{h.hexdigest()[:24]}{SUFFIX}"

    def write(self, settings: PointSettings, steps: int, outcome: PointResult) -> None:
        """Write a finished point."""
        from safetensors.numpy import save

        path = self.path(settings, steps)
        losses = np.array(outcome.losses, np.float64).reshape(-1, 2)
        tensors: dict[str, Array] = {"losses": losses}
        tensors |= {_PARAMETER + name: np.ascontiguousarray(data) for name, data in outcome.parameters.items()}
        head = {
            "format": FORMAT, "key": path.stem, "settings": str(settings), "steps": outcome.steps,
            "seconds": outcome.seconds, "note": outcome.note, "digest": _digest(tensors),
        }  # fmt: skip
        content = save({"head": np.frombuffer(json.dumps(head).encode(), np.uint8), **tensors})
        write_file("sweep", path, content)

    def read(self, settings: PointSettings, steps: int) -> tuple[PointResult | None, str]:
        """Return the outcome of a point that a file holds, and the reason why an existing file was not used."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.path(settings, steps)
        if not path.exists():
            return None, ""
        try:
            tensors = dict(load(read_regular(path, _MOST_BYTES)))
            return self._checked(path.stem, tensors), ""
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return None, f"{path.name} is not used: {type(error).__name__}: {str(error)[:80]}"

    def _checked(self, key: str, tensors: dict[str, Array]) -> PointResult:
        """Return the outcome that a file holds; raise for any breach of the form."""
        raw = tensors.pop("head")
        if raw.dtype != np.uint8 or raw.ndim != 1 or raw.size > _MOST_HEAD:
            raise ValueError("a head of another form")
        head = json.loads(raw.tobytes())
        if head["format"] != FORMAT or head["key"] != key:
            raise ValueError("the file of another point")
        if head["digest"] != _digest(tensors):
            raise ValueError("bytes that its digest does not belong to")
        losses = tensors.pop("losses")
        if losses.dtype != np.float64 or losses.ndim != 2 or losses.shape[1] != 2:
            raise ValueError("losses of another form")
        parameters = {name.removeprefix(_PARAMETER): data for name, data in tensors.items()}
        shapes = {name: data.shape for name, data in parameters.items()}
        if any(name not in self._shapes for name in shapes):
            raise ValueError("parameters of another graph")
        steps, seconds, note = head["steps"], head["seconds"], head["note"]
        whole = isinstance(steps, int) and steps >= 0 and isinstance(note, str)
        if not whole or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ValueError("figures of another form")
        pairs = [(int(step), float(loss)) for step, loss in losses.tolist()]
        return PointResult("done", steps, pairs, parameters, float(seconds), note=note)


def _start_digest(start: PointStart) -> bytes:
    h = hashlib.sha256()
    rules = sorted((name, value_text(value)) for name, value in start.options.items())
    _update(
        h,
        [start.graph.text(), rules, repr(start.compile), repr(start.opening.settings), digest_of(dict(start.weights))],
    )
    return h.digest()


def _update(h: Any, facts: Any) -> None:
    h.update(json.dumps(facts, sort_keys=True, default=str).encode())


def _digest(tensors: Mapping[str, Array]) -> str:
    h = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        _update(h, [name, str(array.dtype), array.shape])
        h.update(array.data if array.size else b"")
    return h.hexdigest()


def digest_of(value: Any) -> str:
    """Return a digest of the content of a feed or of values: arrays by their bytes, functions by their code with the
    arrays and numbers that it names; the same cell gives the same digest after a restart."""
    h = hashlib.sha256()
    seen: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, np.ndarray) and one.dtype != object:
            _update(h, ["array", str(one.dtype), one.shape])
            h.update(np.ascontiguousarray(one).data if one.size else b"")
            continue
        if one is None or isinstance(one, (str, int, float, bytes, bool)):
            _update(h, [type(one).__name__, repr(one)])
            continue
        if id(one) in seen:
            continue
        seen.add(id(one))
        todo += _parts(h, one)
    return h.hexdigest()


def _parts(h: Any, one: Any) -> Iterable[Any]:
    """Add the kind of a value to the digest; return the values that it consists of."""
    match one:
        case types.FunctionType():
            code, names = one.__code__, one.__globals__
            cells = [cell.cell_contents for cell in one.__closure__ or ()]
            used = [names[name] for name in code.co_names if name in names]
            return [code, *cells, *(one.__defaults__ or ()), *used]
        case types.CodeType():
            _update(h, ["code", one.co_code.hex(), one.co_names, one.co_varnames])
            return list(one.co_consts)
        case types.ModuleType():
            _update(h, ["module", one.__name__])
            return []
        case dict():
            _update(h, ["dict", len(one)])
            return [part for key in sorted(one, key=str) for part in (str(key), one[key])]
        case list() | tuple() | frozenset() | set():
            _update(h, [type(one).__name__, len(one)])
            return list(one) if isinstance(one, (list, tuple)) else sorted(one, key=repr)
        case type():
            _update(h, ["class", one.__module__, one.__qualname__])
            return []
        case types.MethodType():
            return [one.__func__, one.__self__]
    _update(h, ["object", type(one).__module__, type(one).__qualname__])
    held = dict(getattr(one, "__dict__", {}))
    if hasattr(one, "next_batch"):  # where a loader stands is no part of its data: every point begins it anew
        held = {name: each for name, each in held.items() if name not in ("_order", "_at")}
    return [held]
