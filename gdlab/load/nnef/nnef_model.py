"""Open an NNEF 1.0 model as a graph of gdlab, with the values of its variables.

model = gd.load_nnef("folder")          # graph.nnef, and LABEL.dat for every variable
session = gd.build_inference_session(model.graph)
for name, values in model.weights.items():
    session.set_parameter(name, values)
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.files import open_regular, read_regular
from gdlab.base.formats import narrowed
from gdlab.base.types import Array, f32
from gdlab.base.words import plural
from gdlab.graph import Graph, Value
from gdlab.load.nnef.operations import OPERATIONS
from gdlab.load.nnef.syntax import WHERE, Assignment, GraphText, Identifier, parse
from gdlab.load.shared import Malformed, Unsupported, check_growth, load_errors, refused

HEADER = 128
MAGIC = b"\x4e\xef"
MOST_TEXT = 1 << 24  # bytes of graph.nnef
FLOATS: dict[int, str] = {16: "<f2", 32: "<f4", 64: "<f8"}  # bits per item -> elements


@dataclass(frozen=True, slots=True)
class NnefModel:
    """The graph, and the values of its parameters (float32) by label: `session.set_parameter(name, weights[name])`."""

    graph: Graph
    weights: Mapping[str, Array]

    def __repr__(self) -> str:
        return f"<NnefModel: {plural(len(self.graph), 'node')}, {plural(len(self.weights), 'parameter')}>"


def load_nnef(path: str | os.PathLike[str]) -> NnefModel:
    """Return the model in a folder. Variables become parameters under their labels, externals inputs; integer externals
    u32.

    Flat syntax, one operation per line, is taken. All operations that are not understood are listed in one
    `LoadError`, which is also what anything damaged raises.
    """
    with load_errors(WHERE, "model", "a folder with an NNEF model"):
        folder = Path(path)
        return _NnefBuilder(folder).build(parse(_text_of(folder)))


def _text_of(folder: Path) -> str:
    return read_regular(folder / "graph.nnef", MOST_TEXT).decode("utf-8")


class _NnefBuilder:
    """The builder of a graph, which holds the values of identifiers, line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.weights = folder, dict[str, Array]()
        self.files: dict[Path, str] = {}  # of labels
        self.values: dict[str, Value | None] = {}  # None: what came of something unsupported
        self.own: dict[str, Callable[..., Value]] = {"external": self._external, "variable": self._variable}

    def build(self, text: GraphText) -> NnefModel:
        """Return the graph of a text."""
        unsupported: list[tuple[str, str]] = []
        with Graph() as graph, graph.silent():
            for line in text.body:
                self._append(graph, line, text.inputs, unsupported)
                check_growth(graph, len(text.body), f"line {line.line}")
            if unsupported:
                raise refused(WHERE, "operations", unsupported, "operations that load_nnef takes")
            for name in text.inputs:
                if name not in self.values:
                    raise Malformed(f"input {name!r}", "nothing", "an external of that name")
            if not text.outputs:
                raise Malformed("outputs", "none", "at least one")
            for name in text.outputs:
                found = self.values.get(name)
                if found is None:
                    raise Malformed(f"output {name!r}", "nothing", "an identifier that is assigned")
                graph.output(found, name)
        return NnefModel(graph, self.weights)

    def _append(
        self, graph: Graph, line: Assignment, inputs: tuple[str, ...], unsupported: list[tuple[str, str]]
    ) -> None:
        where = f"line {line.line}: {line}"
        if line.target in self.values:
            raise Malformed(where, "a name that is taken", "a new one")
        if line.op == "external" and line.target not in inputs:
            raise Malformed(where, "an external", f"one of the graph's inputs: {', '.join(inputs)}")
        args = tuple(self._operand(a, where) for a in line.args)
        kwargs = {key: self._operand(a, where) for key, a in line.kwargs.items()}
        make, first = self._maker(line), len(graph)
        self.values[line.target] = None
        if make is None:
            unsupported.append((line.op, str(line)))
            return
        if self._lost((*args, *kwargs.values())):
            return
        try:
            with load_errors(WHERE, where, "what the operation takes", Unsupported):
                value = self.values[line.target] = make(*args, **kwargs)
        except Unsupported as error:
            unsupported.append((line.op, f"{line}: {error}"))
            return
        if value.id >= first and not value.name:
            graph.named(value, line.target)

    def _maker(self, line: Assignment) -> Callable[..., Value] | None:
        """Return the function that makes the value of a line; None if there is none."""
        own = self.own.get(line.op)
        return OPERATIONS.get(line.op) if own is None else partial(own, line)

    def _operand(self, given: Any, where: str) -> Any:
        """Return an argument with values for identifiers; None for one that could not be made."""
        if isinstance(given, tuple):
            return tuple(self._operand(v, where) for v in given)
        if not isinstance(given, Identifier):
            return given
        if given.text not in self.values:
            raise Malformed(where, given.text, "an identifier that is assigned before")
        return self.values[given.text]

    def _lost(self, given: tuple[Any, ...]) -> bool:
        """Return whether an argument could not be made, because something was not understood."""
        return any(v is None or (isinstance(v, tuple) and self._lost(v)) for v in given)

    # what brings data in ----------------------------------------------------------------------------------------------
    def _external(self, line: Assignment, shape: tuple[int, ...]) -> Value:
        if line.dtype not in ("scalar", "integer", "logical"):
            raise Unsupported(f"external<{line.dtype}>")
        return (ops.input_u32 if line.dtype == "integer" else ops.input)(line.target, shape or (1,))

    def _variable(self, line: Assignment, shape: tuple[int, ...], label: str) -> Value:
        if line.dtype != "scalar":
            raise Unsupported(f"variable<{line.dtype}>")
        if not isinstance(label, str) or not label:
            raise Malformed("label", repr(label), "the name of a file")
        held = tuple(shape) or (1,)
        value = ops.parameter(label, held)
        if label not in self.weights:
            path = self._file(label)
            if path in self.files:  # one file under many labels would be read as often
                raise Malformed("label", repr(label), f"a file of its own: {self.files[path]!r} is the same")
            self.files[path] = label
            self.weights[label] = read_tensor(path, tuple(shape)).reshape(held)
        return value

    def _file(self, label: str) -> Path:
        """Return the path of LABEL.dat inside the folder."""
        path = (self.folder / f"{label}.dat").resolve()
        if Path(label).is_absolute() or not path.is_relative_to(self.folder.resolve()):
            raise Malformed("label", repr(label), "a file inside the folder")
        return path


def read_tensor(path: Path, shape: tuple[int, ...]) -> Array:
    """Return the floats of a binary tensor file of NNEF 1.0, as float32 of `shape`; the header is checked against the
    file."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(HEADER)
            if len(header) != HEADER or header[:2] != MAGIC or header[2] != 1:
                raise Malformed(path.name, repr(header[:4]), f"a header of {HEADER} bytes that begins 4E EF 01")
            nbytes, rank, *numbers = struct.unpack("<12I", header[4:52])
            extents, (bits, kind) = tuple(numbers[:rank]), numbers[8:10]
            if rank > 8 or extents != shape:
                raise Malformed(path.name, f"rank {rank}, {list(extents)}", f"{list(shape)}, as graph.nnef says")
            if kind != 0 or bits not in FLOATS:
                raise Unsupported(f"{path.name} with items of type {kind} and {bits} bits, where floats are taken")
            if nbytes != math.prod(shape) * bits // 8 or size != HEADER + nbytes:
                given = f"{nbytes} bytes of data in a file of {size}"
                raise Malformed(path.name, given, f"{math.prod(shape) * bits // 8} behind a header of {HEADER}")
            data = np.frombuffer(file.read(nbytes), FLOATS[bits])
    except OSError as error:
        raise Malformed(
            path.name, f"{type(error).__name__}: {error.strerror or error}", "the file of a variable"
        ) from None
    return np.array(narrowed(WHERE, path.name, data.reshape(shape), f32))
