"""Keep every finished point of a sweep as a file, so that the same sweep after a restart computes the missing ones.

A file is written whole or not at all, and named by a digest of everything that the point is made from. One that is
damaged, or of another point, is not used: the point is computed again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.files import make_folder, read_regular, write_file
from gdlab.base.formats.packed_bytes import Packed, from_words, in_words
from gdlab.base.types import Array
from gdlab.distributed.content_digest import NoDigestError, digest_of, update, update_array
from gdlab.distributed.point_run import PointResult, PointStart
from gdlab.distributed.points import PointSettings

FORMAT = "gdlab.sweep.point.v1"
SUFFIX = ".gdpoint"
_MOST_BYTES = 16 << 30
_MOST_HEAD = 1 << 20
_PARAMETER = "parameter."


class PointFiles:
    """The files of one sweep in a folder, which is created if missing."""

    def __init__(self, folder: Any, start: PointStart) -> None:
        self.folder = make_folder("sweep", "store", folder)
        self._start = start
        self._digests: dict[int, str] = {}  # of feeds that live as long as this: before a point has called them
        self._types = {node.name: node.type for node in start.graph.parameters}

    @cached_property
    def _common(self) -> bytes:
        return _start_digest(self._start)

    def path(self, settings: PointSettings, steps: int) -> Path:
        """Return the file of a point; raise `NoDigestError` where the content of its feed cannot be compared."""
        values, start = settings.values, self._start
        rows = [(key, digest_of(value)) for key, value in values.items() if key not in ("feed", "steps")]
        feed = values.get("feed", start.feed)
        if id(feed) not in self._digests:
            self._digests[id(feed)] = digest_of([feed, {n: start.inputs[n] for n in start.inputs_beside(feed)}])
        h = hashlib.sha256(self._common)
        update(h, [FORMAT, sorted(rows), int(values.get("steps", steps)), self._digests[id(feed)]])
        if "init" not in values:
            update(h, [digest_of(dict(start.values))])
        if not settings.part(("adam", "sgd")):
            update(h, [repr(start.opening.optimizer)])
        return self.folder / f"{h.hexdigest()[:24]}{SUFFIX}"

    def write(self, settings: PointSettings, steps: int, outcome: PointResult) -> None:
        """Write a finished point that `read` could know again."""
        from safetensors.numpy import save

        try:
            path = self.path(settings, steps)
        except NoDigestError:
            return
        losses = np.array(outcome.losses, np.float64).reshape(-1, 2)
        tensors: dict[str, Array] = {"losses": losses}
        tensors |= {_PARAMETER + name: in_words(data) for name, data in outcome.parameters.items()}
        head = {
            "format": FORMAT, "key": path.stem, "settings": str(settings), "steps": outcome.steps,
            "seconds": outcome.seconds, "note": outcome.note, "digest": _digest(tensors),
        }  # fmt: skip
        content = save({"head": np.frombuffer(json.dumps(head).encode(), np.uint8), **tensors})
        write_file("sweep", path, content)

    def read(self, settings: PointSettings, steps: int) -> tuple[PointResult | None, str]:
        """Return the outcome of a point that a file holds, and the reason why no file can be used."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            path = self.path(settings, steps)
        except NoDigestError as error:
            return None, f"no file is used: {error}"
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
        stored = {name.removeprefix(_PARAMETER): data for name, data in tensors.items()}
        if any(name not in self._types for name in stored):
            raise ValueError("parameters of another graph")
        parameters = {name: from_words(data, self._types[name]) for name, data in stored.items()}
        if any(self._types[n].dtype.in_blocks and not isinstance(p, Packed) for n, p in parameters.items()):
            raise ValueError("blocks as numbers")
        steps, seconds, note = head["steps"], head["seconds"], head["note"]
        whole = isinstance(steps, int) and steps >= 0 and isinstance(note, str)
        if not whole or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ValueError("figures of another form")
        pairs = [(int(step), float(loss)) for step, loss in losses.tolist()]
        return PointResult("done", steps, pairs, parameters, float(seconds), note=note)


def _start_digest(start: PointStart) -> bytes:
    h = hashlib.sha256()
    options, weights = digest_of(dict(start.options)), digest_of(dict(start.weights))
    update(h, [start.graph.text(), options, repr(start.compile), repr(start.opening.settings), weights])
    return h.digest()


def _digest(tensors: Mapping[str, Array]) -> str:
    h = hashlib.sha256()
    for name in sorted(tensors):
        update(h, name)
        update_array(h, tensors[name])
    return h.hexdigest()
