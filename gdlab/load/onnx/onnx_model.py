"""Open an ONNX model as a graph of gdlab, with the values of its parameters.

    model = gd.load_onnx("model.onnx", dims={"batch": 1})
    session = gd.build_inference_session(model.graph)
    for name, values in model.weights.items():
        session.set_parameter(name, values)

Every broadcast is a node, shapes are computed here, and what a model says about its own shapes is folded away. Floats
of any width are f32; masks are f32 of 0 and 1. It needs `pip install gdlab[onnx]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.errors import LoadError, unknown_name
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.graph import Graph
from gdlab.load.onnx.bodies import body_of, has_body
from gdlab.load.onnx.control_flow import controlled, is_control
from gdlab.load.onnx.indexing import INDEXING
from gdlab.load.onnx.numbers import bounds_of_input, rounded, settled
from gdlab.load.onnx.onnx_functions import FUNCTIONS
from gdlab.load.onnx.onnx_layers import LAYERS
from gdlab.load.onnx.onnx_layout import LAYOUT
from gdlab.load.onnx.onnx_math import MATH
from gdlab.load.onnx.proto import WHERE, InputRecord, ModelRecord, Subgraph, captured, read
from gdlab.load.onnx.quantized import QUANTIZED
from gdlab.load.onnx.recurrent import RECURRENT
from gdlab.load.onnx.resizing import RESIZING
from gdlab.load.onnx.tensor import GraphParameters, NodeRecord, OnnxCall, Tensor, Translate, kind_of
from gdlab.load.shared import (
    MOST_NODES,
    Malformed,
    Unsupported,
    check_growth,
    enumerated,
    load_errors,
    open_extents,
    refused,
)

TABLE: dict[str, Translate] = {
    **MATH, **LAYOUT, **LAYERS, **FUNCTIONS, **INDEXING, **RESIZING, **RECURRENT, **QUANTIZED
}  # fmt: skip
WANTED = "an ONNX model"
MANY = 1 << 14
MOST_INSIDE = 1 << 14  # nodes of branches and of all steps of loops
ANYWHERE = ("Gelu", "Silu", "SimplifiedLayerNormalization")  # in every domain they mean the same


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """The graph, and the values of its parameters (float32) by name: `session.set_parameter(name, weights[name])`."""

    graph: Graph
    weights: Mapping[str, Array]
    assumed: Mapping[str, int] = field(default_factory=dict)  # extents that nobody gave, by name
    notes: tuple[str, ...] = ()  # what the graph does otherwise than the file

    def __repr__(self) -> str:
        return f"<OnnxModel: {plural(len(self.graph), 'node')}, {plural(len(self.weights), 'parameter')}>"


def load_onnx(
    source: str | os.PathLike[str] | bytes,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """Return the model in a file, or in bytes. Shapes are static: `dims` gives a number to extents that the model
    names, `shapes` a whole shape to an input. A name without a number is 1 where it is always the first axis of an
    input (`assumed` of the result says so), else `LoadError` lists it.

    Float tensors of rank ≥ 1 become parameters under their names, other tensors constants, integer inputs u32 (so that
    no negative number can be given). All that is not understood is listed in one `LoadError`, which is also what
    anything damaged raises.
    """
    with load_errors(WHERE, "model", WANTED):
        model, numbers, whole = read(source), dict(dims or {}), dict(shapes or {})
        _check_names_of(model.inputs, numbers, whole)
        implied = _implied(model.inputs, whole) | numbers
        assumed = _assumed([i for i in model.inputs if i.name not in whole], implied)
        known = {i.name: numbers if i.name in whole else implied | assumed for i in model.inputs}
        shaped = {i.name: _shape(i, known[i.name], whole.get(i.name)) for i in model.inputs}
        return _built(model, shaped, assumed)


# inputs ---------------------------------------------------------------------------------------------------------------
def _check_names_of(inputs: Sequence[InputRecord], dims: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Raise for names that the model does not have."""
    symbols = {n for i in inputs for n in i.shape or () if isinstance(n, str)}
    for what, given, known in (("dims", dims, symbols), ("shapes", shapes, {i.name for i in inputs})):
        for name in given:
            if name not in known:
                raise unknown_name(WHERE, what, str(name), sorted(known))


def _implied(inputs: Sequence[InputRecord], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the extents by name that the whole shapes of some inputs give, which other inputs may have too."""
    pairs = [pair for i in inputs for pair in zip(i.shape or (), shapes.get(i.name, ()), strict=False)]
    return {name: int(n) for name, n in reversed(pairs) if isinstance(name, str)}


def _assumed(inputs: Sequence[InputRecord], dims: Mapping[str, int]) -> dict[str, int]:
    """Return 1 for each name without a number that only stands for first axes; raise for all others together."""
    places: dict[str, list[tuple[int, str]]] = {}
    for record in inputs:
        for axis, name in enumerate(record.shape or ()):
            if isinstance(name, str) and name not in dims:
                places.setdefault(name, []).append((axis, record.name))
    missing = {name: at for name, at in places.items() if any(axis for axis, _ in at)}
    if missing:
        listed = [
            f"{name} ({', '.join(f'axis {axis} of input {record!r:.60}' for axis, record in at[:4])}"
            f"{f' and {len(at) - 4} more' if len(at) > 4 else ''})"
            for name, at in missing.items()
        ]
        raise open_extents(WHERE, listed, dict.fromkeys(missing, 128))
    return dict.fromkeys(places, 1)


def _shape(record: InputRecord, dims: Mapping[str, int], given: Sequence[int] | None) -> tuple[int, ...]:
    name, what = record.name, f"input {record.name!r}"
    declared = None if record.shape is None else [dims.get(n, n) if isinstance(n, str) else n for n in record.shape]
    if given is not None:
        shape = tuple(int(n) for n in given)
        if not _fits(declared, shape) or min(shape, default=1) < 1:
            raise LoadError(WHERE, what, f"shapes={{{name!r}: {shape}}}", f"{declared}, ints ≥ 1")
        return shape
    if declared is None:
        raise LoadError(WHERE, what, "no shape", f"a static one: load_onnx(…, shapes={{{name!r}: (…)}})")
    if None in declared:
        open_ones = ", ".join("?" if n is None else str(n) for n in declared)
        wanted = f"static extents: load_onnx(…, shapes={{{name!r}: (…)}})"
        raise LoadError(WHERE, what, f"[{open_ones}]", wanted)
    if min((int(n) for n in declared if n is not None), default=1) < 1:
        raise LoadError(WHERE, what, declared, "extents ≥ 1")
    return tuple(int(n) for n in declared if n is not None)


def _fits(declared: Sequence[int | str | None] | None, shape: Sequence[int]) -> bool:
    if declared is None:
        return True
    same = (not isinstance(d, int) or d == n for d, n in zip(declared, shape, strict=False))
    return len(declared) == len(shape) and all(same)


def _slot(record: InputRecord, shape: tuple[int, ...], home: GraphParameters) -> Tensor:
    kind = kind_of(record.dtype)
    make = ops.input_u32 if kind == "int" else ops.input
    bounds = bounds_of_input(record.dtype) if kind == "int" else None
    return rounded(home, Tensor(shape, kind, make(record.name, shape or (1,)), dtype=record.dtype, bounds=bounds))


# nodes ----------------------------------------------------------------------------------------------------------------
def _built(model: ModelRecord, shapes: Mapping[str, tuple[int, ...]], assumed: Mapping[str, int]) -> OnnxModel:
    """Return the graph, node by node."""
    if len(model.nodes) > MANY:  # building so large a graph takes longer than a refusal may
        unknown = [(_label(node), str(node)) for node in model.nodes if not _known(node)]
        if unknown:
            raise refused(WHERE, "operators", unknown, "operators that load_onnx takes")
    home = GraphParameters(frozenset({*model.tensors, *shapes}), model.nbytes)
    with Graph() as graph, graph.silent():
        builder = _OnnxBuilder(graph, home, model)
        for record in model.inputs:
            builder.tensors[record.name] = _slot(record, shapes[record.name], home)
        for i, node in enumerate(model.nodes):
            builder.append(node)
            builder.release(node, i)
            check_growth(graph, len(model.nodes) + builder.inside, node)
        if builder.unsupported:
            raise refused(WHERE, "operators", builder.unsupported, "operators that load_onnx takes")
        for name in model.outputs:
            graph.output(home.value(builder.output(name)), name)
        if not model.outputs:
            raise Malformed("outputs", "none", "at least one")
    notes = [f"both branches are computed, and a condition chooses: {enumerated(builder.chosen, 300)}"]
    return OnnxModel(graph, home.weights, assumed, tuple(notes if builder.chosen else ()))


class _OnnxBuilder:
    """The builder of a graph, which holds a model's tensors by name; None stands for an unsupported result."""

    def __init__(self, graph: Graph, home: GraphParameters, model: ModelRecord) -> None:
        self.graph, self.home = graph, home
        self.tensors: dict[str, Tensor | None] = dict(model.tensors)
        self.unsupported: list[tuple[str, str]] = []  # op, and what is to be said of the node
        self.chosen: list[str] = []  # nodes both of whose branches are computed
        self.last_use = {name: i for i, node in enumerate(model.nodes) for name in (*node.inputs, *captured(node))}
        self.last_use |= dict.fromkeys((*model.outputs, *model.tensors), len(model.nodes))
        self.written = 0  # nodes of operators that ONNX's bodies stand for
        self.inside = 0  # nodes of branches and loops
        self.live = 0  # bytes of constants that later nodes read

    def append(self, node: NodeRecord) -> None:
        """Add the values that a node gives, or note the reason why it gives none."""
        self._check_names(node)
        translate = _translation(node)
        inputs = tuple(self.tensors[name] if name else None for name in node.inputs)
        lost = any(tensor is None and name for tensor, name in zip(inputs, node.inputs, strict=True))
        if is_control(node):
            if not lost:
                self._control(node, inputs)
            return
        if translate is None and not (_known(node) and lost):
            self._write_out(node, inputs)
        if translate is None or lost:
            return
        first = len(self.graph)
        try:
            made = _translated(translate, OnnxCall(node, inputs, self.home))
        except Unsupported as error:
            self.unsupported.append((_label(node), f"{node}: {error}"))
            return
        if any(node.outputs[len(made) :]):
            self.unsupported.append((_label(node), f"{node}: more than {len(made)} outputs"))
        self._count(made)
        for name, tensor in zip(node.outputs, made, strict=False):
            if name:
                self.tensors[name] = tensor
                self._name(tensor, name, first)

    def _control(self, node: NodeRecord, inputs: tuple[Tensor | None, ...]) -> None:
        """Append the nodes of a branch or a loop, and the ops that choose between branches."""
        stem = f"{next(filter(None, node.outputs), node.name)}/"
        try:
            with load_errors(WHERE, str(node), "what the operator takes", Unsupported):
                made = controlled(OnnxCall(node, inputs, self.home), partial(self._inside, node, stem), self.chosen)
        except Unsupported as error:
            self.unsupported.append((_label(node), f"{node}: {error}"))
            return
        self._count(t for t in made if t is not None)
        for name, tensor in zip(node.outputs, made, strict=False):
            if name:
                self.tensors[name] = tensor

    def _inside(
        self, node: NodeRecord, stem: str, part: str, graph: Subgraph, operands: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the results of a graph in an attribute, with these operands; `part`: the part of their own names."""
        scope, nodes = graph.written(stem + part)
        for name, tensor in graph.tensors.items():
            self._enter(node, scope.name(name), tensor)
        for name, operand in zip(graph.inputs, operands, strict=True):
            self._enter(node, scope.name(name), operand)
        for inner in nodes:
            self.inside += 1
            if self.inside > MOST_INSIDE:
                raise Malformed("nodes", f"more than {MOST_INSIDE:,}", "fewer, branches and loops written out")
            self.append(inner)
            check_growth(self.graph, self.inside, node)
        results = [scope.name(name) for name in graph.outputs]
        missing = [name for name in results if name not in self.tensors]
        if missing:
            raise Malformed("result", f"{missing[0]!r:.80}", "a name that a node gives")
        made = [self.tensors[name] for name in results]
        for name in scope.names.values():
            self._forget(name)
        return made

    def _enter(self, node: NodeRecord, name: str, tensor: Tensor | None) -> None:
        if name in self.tensors:
            raise Malformed(f"name {name!r:.80}", "one that is taken", "a new one")
        self.tensors[name] = tensor
        self._count([] if tensor is None else [tensor])

    def _write_out(self, node: NodeRecord, inputs: Sequence[Tensor | None]) -> None:
        """Append the nodes of the body that ONNX defines for an operator; errors in it name the operator's node."""
        body = body_of(node, inputs) if _known(node) else None
        if body is None:
            self.unsupported.append((_label(node), str(node)))
            return
        self.written += len(body)
        if self.written > MOST_NODES:
            raise Malformed(f"{node}: nodes", f"more than {MOST_NODES:,}", "fewer, operators written out")
        refused_before = len(self.unsupported)
        for name in filter(None, node.outputs):
            del self.tensors[name]
        inner: dict[str, None] = {}
        for part in body:
            self.append(part)
            inner |= dict.fromkeys(name for name in part.outputs if name not in node.outputs)
        for name in inner:
            self._forget(name)
        told = [(_label(node), f"{node}: {text}") for _, text in self.unsupported[refused_before:]]
        self.unsupported[refused_before:] = told
        for name in filter(None, node.outputs):
            self.tensors.setdefault(name, None)

    def _forget(self, name: str) -> None:
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.known:
            self.live -= np.asarray(tensor.array).nbytes
            self.tensors[name] = None

    def _count(self, made: Iterable[Tensor]) -> None:
        """Raise if constants take more memory than the file's size allows."""
        self.live += sum(t.array.nbytes for t in made if t.known and t.array is not None)
        if self.live > (most := max(3 << 23, 3 * self.home.nbytes)):
            raise Malformed("constants", f"{self.live:,} bytes at once", f"at most {most:,} while loading")

    def release(self, node: NodeRecord, i: int) -> None:
        """Forget the constants that node i is the last to read, and unread ones."""
        for name in dict.fromkeys((*node.inputs, *captured(node), *node.outputs)):
            if self.last_use.get(name, i) <= i:
                self._forget(name)

    def _check_names(self, node: NodeRecord) -> None:
        for name in filter(None, node.inputs):
            if name not in self.tensors:
                wanted = "an input, a tensor, or what a node before it gives"
                raise Malformed(f"{node}: input {name!r}", "nothing", wanted)
        for name in filter(None, node.outputs):
            if name in self.tensors:
                raise Malformed(f"{node}: output {name!r}", "a name that is taken", "a new one")
            self.tensors[name] = None

    def _name(self, tensor: Tensor, name: str, first: int) -> None:
        """Give a new node the name of its result."""
        if tensor.value is not None and tensor.value.id >= first and not tensor.value.name:
            self.graph.named(tensor.value, name)

    def output(self, name: str) -> Tensor:
        """Return an output of the model."""
        found = self.tensors.get(name)
        if found is None:
            raise Malformed("output", repr(name), "a name that a node gives")
        return found


def _translated(translate: Translate, call: OnnxCall) -> tuple[Tensor, ...]:
    """Return the results of a node; an error names the node."""
    with load_errors(WHERE, str(call.node), "what the operator takes", Unsupported):
        made = translate(call)
        return tuple(settled(call, t) for t in ((made,) if isinstance(made, Tensor) else made))


def _translation(node: NodeRecord) -> Translate | None:
    return TABLE.get(node.op) if not node.domain or node.op in ANYWHERE else None


def _known(node: NodeRecord) -> bool:
    """Return whether a node may be translated: directly, or by the body that ONNX defines."""
    return _translation(node) is not None or has_body(node) or is_control(node)


def _label(node: NodeRecord) -> str:
    """Return the name of the op with its domain."""
    return f"{node.domain}.{node.op}" if node.domain else node.op
