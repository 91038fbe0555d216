"""Write a compiled graph to one file and read it: its plan and signature, and on request its parameters.

The file is a safetensors file. `head` holds the versions and a digest of all the rest, `body` the plan and the edge as
JSON, `parameter/NAME` a stored parameter, in words where its storage is reduced. Nothing of it is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdlab.base.errors import LoadError
from gdlab.base.files import open_regular, write_file
from gdlab.base.types import Array
from gdlab.base.words import clipped
from gdlab.compiled.expert_routing import ExpertLayer
from gdlab.plan.codec import decode, encode, plan_of
from gdlab.plan.plan_cache import versions
from gdlab.plan.records import ExecutionPlan

FORMAT = 1
LOAD = "load_compiled_graph"
PARAMETER = "parameter/"


@dataclass(frozen=True, slots=True)
class SavedBoundary:
    """The signature of a saved graph: boundary dtypes of inputs and outputs in order, states, bucket axes by input and
    their extent, the limits of `build_compiled_graph`, the parameters that have no value in the file, and layers of
    experts with their transient pages."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    axes: tuple[tuple[str, tuple[int, ...]], ...]
    upper: int | None
    max_in_flight: int
    landing_bytes: int
    strict_views: bool
    unset: tuple[str, ...]
    layers: tuple[ExpertLayer, ...]
    moe_transient: int


@dataclass(frozen=True, slots=True, eq=False)
class SavedGraph:
    """The content of a file. `stored`: parameters by the name under which the plan stores them."""

    plan: ExecutionPlan
    edge: SavedBoundary
    stored: Mapping[str, Array]


def write_saved(path: str | os.PathLike[str], saved: SavedGraph) -> None:
    """Write the file, completely or not at all."""
    from safetensors.numpy import save

    body = json.dumps({"plan": encode(saved.plan), "edge": encode(saved.edge)}, separators=(",", ":"), allow_nan=False)
    tensors = {"body": np.frombuffer(body.encode(), np.uint8)}
    tensors |= {PARAMETER + name: np.ascontiguousarray(data) for name, data in saved.stored.items()}
    head = json.dumps({"format": FORMAT, "versions": versions(), "digest": _digest(tensors)})
    write_file("save", Path(path), save({"head": np.frombuffer(head.encode(), np.uint8), **tensors}))


def read_saved(path: str | os.PathLike[str]) -> SavedGraph:
    """Read a file; raise `LoadError` for one that is damaged, or of another version."""
    from safetensors.numpy import load

    with refusing(path):
        with open_regular(path) as file:
            tensors = load(file.read())
        head = json.loads(tensors.pop("head").tobytes())
        _check_head(path, head, tensors)
        body = json.loads(tensors.pop("body").tobytes())
        plan, edge = plan_of(body["plan"]), decode(body["edge"], SavedBoundary)
        return SavedGraph(plan, edge, {name.removeprefix(PARAMETER): data for name, data in tensors.items()})


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise `LoadError` for any error of the block: nobody vouches for what a file holds."""
    try:
        yield
    except Exception as error:
        if isinstance(error, LoadError) and error.where == LOAD:
            raise
        given = f"{type(error).__name__}: {clipped(str(error), 200)}"
        raise _refused(path, given, "what CompiledGraph.save writes") from error


def _check_head(path: str | os.PathLike[str], head: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
    """Raise `LoadError` unless this version wrote the file, and it is whole."""
    found, here = (head["format"], head["versions"]), (FORMAT, versions())
    if found != here:
        told = [f"format {format}, plans {versions}" for format, versions in (found, here)]
        raise _refused(path, f"another version: {told[0]}", f"{told[1]}: save it again")
    if head["digest"] != _digest(tensors):
        raise _refused(path, "bytes that its digest does not belong to", "an undamaged file")


def _refused(path: str | os.PathLike[str], given: str, wanted: str) -> LoadError:
    return LoadError(LOAD, f"file {os.fspath(path)!r}", given, wanted)


def _digest(tensors: Mapping[str, Array]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes."""
    h = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        facts = json.dumps([name, str(array.dtype), array.shape]).encode()
        h.update(len(facts).to_bytes(8, "little") + facts)
        h.update(array.tobytes() if not array.flags.c_contiguous else array.data)
    return h.hexdigest()
