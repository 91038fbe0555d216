"""Describe a family of public checkpoints: its `config.json`, its graph, and where each parameter's values lie.

A family is a file in `models/names/`. Its fields (`models/config_fields.py`) and names are tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.graph import Graph

WHERE = "from_pretrained"
C = TypeVar("C")


# where values lie -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Source:
    """The source of a parameter's values: a tensor of the file, a part of it, and the changes to it, in this order.

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
        """Return the names of the tensors that are read."""
        if self.batch_norm is None:
            return (self.name,)
        layer = self.name.rpartition(".")[0]
        more = (f"{layer}.{part}" for part in ("weight", "running_mean", "running_var"))
        return tuple(dict.fromkeys((self.name, *more)))

    def shape_of(self, given: Shape) -> Shape:
        """Return the shape of the parameter for a tensor of this shape; () if that is no valid one."""
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
        """Return the values of the parameter, f32 in its shape; `turned`: with the axes of the matrix swapped."""
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


# the record of a family -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GraphRequest:
    """A request for a graph: its mode, its positions, and the rows of a batch."""

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
