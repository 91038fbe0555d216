"""Describe a family of public checkpoints: its `config.json`, its graph, and where each parameter's values lie.

A family is a file in `models/names/`. Its fields and names are tables: a field of `config.json` that changes the
arithmetic and is in no table is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from gdlab.base.errors import LoadError
from gdlab.base.types import Array, Shape
from gdlab.graph import Graph
from gdlab.models.public_checkpoint import NO_ARITHMETIC

WHERE = "from_pretrained"
LARGEST = 1 << 24  # of a field that counts: layers, widths, words
C = TypeVar("C")


# where values lie -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Source:
    """The place of a parameter's values: a tensor of the file, a part of it, and what is done to it, in this order.

    `rows` and `columns`: first and end along axes 0 and 1 of the tensor. `batch_norm`: the eps of a batch norm whose
    weight or bias the tensor is; its running statistics are folded in. `transposed`: the graph has the matrix with its
    axes swapped. `offset` is added. `shape`: the same elements in another shape.
    """

    name: str
    transposed: bool = False
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    batch_norm: float | None = None
    offset: float = 0.0
    shape: Shape | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors that are read."""
        if self.batch_norm is None:
            return (self.name,)
        layer = self.name.rpartition(".")[0]
        more = (f"{layer}.{part}" for part in ("weight", "running_mean", "running_var"))
        return tuple(dict.fromkeys((self.name, *more)))

    def shape_of(self, given: Shape) -> Shape:
        """Return the shape of the parameter where the tensor has this one; () where they do not go together."""
        shape = list(given)
        for axis, part in enumerate((self.rows, self.columns)):
            if part is not None and (axis >= len(given) or not 0 <= part[0] < part[1] <= given[axis]):
                return ()
            if part is not None:
                shape[axis] = part[1] - part[0]
        if self.transposed and len(given) != 2:
            return ()
        shape = shape[::-1] if self.transposed else shape
        if self.shape is None:
            return tuple(shape)
        return self.shape if math.prod(self.shape) == math.prod(shape) else ()

    def read(self, tensors: Mapping[str, Array], turned: bool = False) -> Array:
        """Return the values of the parameter, f32 in its shape; `turned`: of a matrix with its axes swapped."""
        data = np.asarray(tensors[self.name])
        if self.batch_norm is not None:
            data = self._folded(data, tensors, self.batch_norm)
        for axis, part in enumerate((self.rows, self.columns)):
            data = data if part is None else np.take(data, range(*part), axis)
        data = data.T if self.transposed != turned else data
        data = data + np.float32(self.offset) if self.offset else data
        data = data if self.shape is None else data.reshape(self.shape)
        return np.ascontiguousarray(data, np.float32)

    def _folded(self, data: Array, tensors: Mapping[str, Array], eps: float) -> Array:
        layer, _, part = self.name.rpartition(".")
        weight, mean, spread = (
            np.asarray(tensors[f"{layer}.{kind}"], np.float64) for kind in ("weight", "running_mean", "running_var")
        )
        factor = weight / np.sqrt(spread + eps)
        return np.asarray(factor if part == "weight" else data - mean * factor)


Sources = Mapping[str, Source]


# fields of config.json ------------------------------------------------------------------------------------------------
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of `config.json`: the field of our configuration that it gives ("": it is only checked), the reader of
    its value (`ValueError` says what is wanted), and the value that transformers takes where it is left out."""

    ours: str
    read: Callable[[Any], Any]
    default: Any = REQUIRED


Fields = dict[str, Field]


def natural(given: Any) -> int:
    """Read an int ≥ 1."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LARGEST:
        raise ValueError(f"an int in 1 … {LARGEST:,}")
    return given


def positive(given: Any) -> float:
    """Read a finite number above 0."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 1e30:
        raise ValueError("a finite number above 0")
    return float(given)


def flag(given: Any) -> bool:
    """Read a bool."""
    if not isinstance(given, bool):
        raise ValueError("true or false")
    return given


def optional(read: Callable[[Any], Any], without: Any = None) -> Callable[[Any], Any]:
    """Return the reader of a field that may be null, which stands for `without`."""
    return lambda given: without if given is None else read(given)


def one_of(**words: Any) -> Callable[[Any], Any]:
    """Return the reader of a word: each with the value that it stands for."""

    def read(given: Any) -> Any:
        if not isinstance(given, str) or given not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return words[given]

    return read


def only(*wanted: Any) -> Callable[[Any], Any]:
    """Return the reader of a field that says what the graph does anyway."""

    def read(given: Any) -> Any:
        if not any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in wanted):
            raise ValueError(" or ".join(map(_json, wanted)))
        return given

    return read


def _json(value: Any) -> str:
    words = {"True": "true", "False": "false", "None": "null"}
    return words.get(repr(value), repr(value))


def anything(given: Any) -> Any:
    """Read a field that another one explains."""
    return given


def read_fields(config: Mapping[str, Any], table: Fields, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values that the fields of `config.json` give, by the names of our configuration.

    `LoadError` names a field that is missing, of another kind, or not understood. Fields that say nothing of the
    arithmetic, and unknown ones that are off (false, null, empty), are passed over; so are those in `ignored`.
    """
    for name, given in config.items():
        if name != "model_type" and name not in table and name not in NO_ARITHMETIC and name not in ignored and given:
            wanted = "a field that is understood: others may change what the model computes"
            raise LoadError(WHERE, f"config.json: {name:.80}", f"{given!r:.120}", wanted)
    values: dict[str, Any] = {}
    for name, entry in table.items():
        given = config.get(name, entry.default)
        if given is REQUIRED:
            raise LoadError(WHERE, f"config.json: {name}", "none", "a number, as in every model of this family")
        try:
            value = entry.read(given)
        except ValueError as error:
            raise LoadError(WHERE, f"config.json: {name}", f"{given!r:.120}", str(error)) from None
        if entry.ours:
            values[entry.ours] = value
    return values


# the record of a family -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GraphRequest:
    """The graph that is asked for: its mode, its positions, and the rows of a batch."""

    mode: str
    length: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Family(Generic[C]):
    """The models of some `model_type`s, as `from_pretrained` opens them.

    `config` reads config.json, `build` makes the graph, `sources` says for every parameter but the caches where its
    values lie. `modes`: what `build` takes, the default first. `prefix`: the beginning of names that some files leave
    out. `harmless`: shell patterns of tensors that change nothing here. `length`: the positions of the graph where
    nothing is said, and `assumed` in words, empty where the model has no other; `at_length` fits the configuration to
    those that are asked for. `renamed`: ends of names, and those
    that older files have instead. `copies`: tensors that repeat another, which must be equal. `named`: whether the
    family has a network of this name, of files that have an `architecture` and no `model_type`. `models` and `parts`
    are what the page of documentation says of it.
    """

    model_types: tuple[str, ...]
    config: Callable[[Mapping[str, Any]], C]
    build: Callable[[C, GraphRequest], Graph]
    sources: Callable[[C], Sources]
    modes: tuple[str, ...]
    prefix: str = ""
    harmless: tuple[str, ...] = ()
    length: Callable[[C], int] = lambda config: 64
    at_length: Callable[[C, int], C] = lambda config, length: config
    assumed: str = "a prompt of {0} positions is"
    renamed: tuple[tuple[str, str], ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    named: Callable[[str], bool] = lambda architecture: False
    models: str = ""
    parts: str = ""
