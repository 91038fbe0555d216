"""Read an ONNX file as plain records; every tensor is checked against its bytes.

The `onnx` package reads the outer format; it is loaded at first use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import LoadError
from gdlab.base.files import open_regular, read_regular
from gdlab.base.formats import bf16_values, narrowed
from gdlab.base.types import Array, f32
from gdlab.load.onnx.tensor import DTYPES, Kind, NodeRecord, Tensor
from gdlab.load.shared import MOST_NODES, Malformed, Unsupported

WHERE = "load_onnx"
STANDARD = ("", "ai.onnx")
GRAPH = 5  # AttributeProto.AttributeType
EXTERNAL = 1  # TensorProto.DataLocation
BOOL, BFLOAT16 = 9, 16  # TensorProto.DataType
DEEPEST = 16  # functions in functions
MOST_BYTES = (1 << 31) - 1  # of a model; protobuf has no more
MOST_NAMES = 1 << 24  # characters of the names in functions that are written out


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input: its extents, as numbers, as names of open ones, or None if unknown; the shape may be missing."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model: its inputs, its tensors by name, its nodes in order, the names of its outputs, the size of its files."""

    inputs: tuple[InputRecord, ...]
    tensors: Mapping[str, Tensor]
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[str, ...]
    nbytes: int


def read(source: Any) -> ModelRecord:
    """Return the records of a model in a file, or in bytes."""
    try:
        import onnx
    except ImportError:
        raise LoadError(WHERE, "package onnx", "none", "pip install gdlab[onnx]") from None
    data, folder = _bytes_of(source)
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # of the protobuf package, which is not ours to import
        raise LoadError(WHERE, "model", f"{len(data)} bytes: {error}", "an ONNX model") from None
    outside = Outside(folder, len(data))
    del data  # the tensors are copied out of `model`
    return _model(model, outside)


def _bytes_of(source: Any) -> tuple[bytes, Path | None]:
    """Return (bytes of the model, the folder of its file)."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), None
    try:
        return read_regular(source, MOST_BYTES), Path(source).parent
    except (OSError, TypeError, ValueError) as error:
        raise LoadError(WHERE, f"{source!r:.80}", f"{type(error).__name__}: {error}", "a path or bytes") from None


def _model(model: Any, outside: Outside) -> ModelRecord:
    opset = _opset(model)
    if opset < 1:
        raise LoadError(WHERE, "opset_import", "no opset of ai.onnx", "opset 1 or later")
    graph = model.graph
    functions = Functions({(f.domain, f.name): f for f in model.functions}, outside)
    functions.check_count(graph.node)
    tensors: dict[str, Tensor] = {}
    for proto in graph.initializer:
        if not proto.name or proto.name in tensors:
            raise Malformed("initializer", repr(proto.name), "a name of its own")
        tensors[proto.name] = _named(proto.name, proto, outside)
    inputs = tuple(_input(v) for v in graph.input if v.name not in tensors)
    nodes = tuple(functions.nodes(functions.body(graph.node), scope_of(opset)))
    return ModelRecord(inputs, tensors, nodes, tuple(v.name for v in graph.output), outside.nbytes)


def _opset(proto: Any) -> int:
    """Return the version of the standard operators that a model or function imports; 0 if it imports none."""
    return max((int(o.version) for o in proto.opset_import if o.domain in STANDARD), default=0)


def _named(name: str, proto: Any, outside: Outside) -> Tensor:
    """Return an initializer: floats of rank ≥ 1 are parameters under its name, the rest constants."""
    try:
        data, dtype = _elements_of(proto, outside)
    except Unsupported as error:
        raise LoadError(WHERE, f"initializer {name!r}", error, "floats, ints or bools") from None
    tensor = _whole(data, dtype)
    if tensor.kind != "float" or not tensor.shape or not tensor.size:
        return tensor
    if data.dtype.kind == "f":
        narrowed(WHERE, f"initializer {name!r}", data, f32)
    return replace(tensor, parameter=name)


def _input(info: Any) -> InputRecord:
    if info.type.WhichOneof("value") != "tensor_type":
        raise LoadError(WHERE, f"input {info.name!r}", info.type.WhichOneof("value") or "no type", "a tensor")
    declared = info.type.tensor_type
    if declared.elem_type not in DTYPES:
        raise LoadError(WHERE, f"input {info.name!r}", f"type {declared.elem_type}", "floats, ints or bools")
    shape = tuple(map(_extent, declared.shape.dim)) if declared.HasField("shape") else None
    return InputRecord(info.name, DTYPES[declared.elem_type], shape)


def _extent(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    return None if kind is None else (dim.dim_param or None) if kind == "dim_param" else int(dim.dim_value)


# nodes ----------------------------------------------------------------------------------------------------------------
_FORMS: dict[int, Any] = {  # AttributeProto.AttributeType
    1: lambda a, outside: float(a.f), 2: lambda a, outside: int(a.i), 3: lambda a, outside: a.s.decode("utf-8"),
    4: lambda a, outside: tensor_of(a.t, outside), 6: lambda a, outside: tuple(map(float, a.floats)),
    7: lambda a, outside: tuple(map(int, a.ints)), 8: lambda a, outside: tuple(s.decode("utf-8") for s in a.strings),
}  # fmt: skip


def _attribute(proto: Any, outside: Outside) -> Any:
    """Return the value of an attribute; None if it is no graph, number, text or tensor of numbers."""
    try:
        if proto.type == GRAPH:
            return Subgraph.read(proto.g, outside)
        return _FORMS[proto.type](proto, outside) if proto.type in _FORMS else None
    except Unsupported:
        return None


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that nodes see: those of the graph, of a call of one of the model's own functions, or of a graph in an
    attribute, which sees those outside too."""

    opset: int
    attrs: Mapping[str, Any]  # of the call
    names: Mapping[str, str]  # of operands and results, as the caller calls them
    prefix: str = ""
    outer: _Scope | None = None

    def name(self, name: str) -> str:
        """Return the graph's name for a name of the scope."""
        if self.outer is not None and name not in self.names:
            return self.outer.name(name)
        return self.names.get(name, f"{self.prefix}{name}" if name else "")


def scope_of(opset: int) -> _Scope:
    """Return the scope of the graph of a model with this opset."""
    return _Scope(opset, {}, {})


Key = tuple[str, str]  # domain and name of a function
Body = Iterable[tuple[NodeRecord, Mapping[str, str]]]  # nodes as they are written; attributes that stand for the call's


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph as an attribute of a node, such as a branch: its inputs, tensors, nodes as written, and outputs;
    `captured`: the graph's names for values that it reads from outside."""

    inputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    body: Body
    outputs: tuple[str, ...]
    captured: tuple[str, ...]
    functions: Functions | None = None
    scope: _Scope | None = None

    @classmethod
    def read(cls, proto: Any, outside: Outside) -> Subgraph:
        """Return the records of a graph."""
        tensors = {t.name: _whole(*_elements_of(t, outside)) for t in proto.initializer}
        inputs = tuple(v.name for v in proto.input if v.name not in tensors)
        body, outputs = tuple(Functions({}, outside).body(proto.node)), tuple(v.name for v in proto.output)
        own = {*tensors, *inputs, *(name for node, _ in body for name in node.outputs)}
        used = [name for node, _ in body for name in (*node.inputs, *captured(node))]
        free = tuple(name for name in dict.fromkeys((*used, *outputs)) if name and name not in own)
        return cls(inputs, tensors, body, outputs, free)

    def within(self, functions: Functions, scope: _Scope) -> Subgraph:
        """Return the graph in a node of this scope."""
        return replace(self, captured=tuple(map(scope.name, self.captured)), functions=functions, scope=scope)

    def written(self, prefix: str) -> tuple[_Scope, Iterator[NodeRecord]]:
        """Return the scope and the nodes of the graph, its own names behind a prefix."""
        assert self.functions is not None and self.scope is not None  # `within` a node
        own = [*self.tensors, *self.inputs, *(name for node, _ in self.body for name in node.outputs)]
        names = {name: f"{prefix}{name}" for name in own if name}
        inner = _Scope(self.scope.opset, self.scope.attrs, names, prefix, self.scope)
        return inner, self.functions.nodes(self.body, inner)


def captured(node: NodeRecord) -> list[str]:
    """Return the names that graphs in attributes of a node read from outside."""
    return [name for value in node.attrs.values() if isinstance(value, Subgraph) for name in value.captured]


class Functions:
    """The model's own functions, and the nodes of a body with theirs in place of their calls."""

    def __init__(self, protos: Mapping[Key, Any], outside: Outside) -> None:
        self.protos, self.outside = protos, outside
        self.bodies: dict[Key, Body] = {}  # each is read once, however often it is called
        self.sizes: dict[Key, tuple[int, int]] = {}
        self.characters = 0

    def check_count(self, nodes: Any) -> None:
        """Raise for more nodes and calls than a graph may have, before any is written out."""
        if self._size(nodes, 0)[0] > MOST_NODES:
            raise Malformed("nodes", f"more than {MOST_NODES:,}", "fewer, functions written out")

    def _size(self, nodes: Any, depth: int) -> tuple[int, int]:
        """Return (nodes and calls, functions in each other) when all functions are written out."""
        total, deep = len(nodes), 0
        if total > MOST_NODES:
            return total, 0
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == GRAPH:
                    if depth >= DEEPEST:
                        given = f"{node.op_type}: a graph in graphs"
                        raise Malformed("graphs", given, f"at most {DEEPEST} in each other")
                    total += self._size(attribute.g.node, depth + 1)[0]
            key = node.domain, node.op_type
            if not node.domain or key not in self.protos:
                continue
            if key not in self.sizes and depth < DEEPEST:
                self.sizes[key] = self._size(self.protos[key].node, depth + 1)
            size, inside = self.sizes.get(key, (0, DEEPEST))
            total, deep = total + size, max(deep, inside + 1)
            if depth + deep > DEEPEST:
                given = f"{node.domain}.{node.op_type}: a function in functions"
                raise Malformed("functions", given, f"at most {DEEPEST} in each other")
        return total, deep

    def body(self, protos: Any) -> Body:
        """Return nodes as they are written."""
        for proto in protos:
            domain = "" if proto.domain in STANDARD else str(proto.domain)
            attrs = {a.name: _attribute(a, self.outside) for a in proto.attribute if not a.ref_attr_name}
            given = {a.name: a.ref_attr_name for a in proto.attribute if a.ref_attr_name}
            names = tuple(proto.input), tuple(proto.output)
            yield NodeRecord(proto.op_type, proto.name, domain, *names, attrs, 0), given

    def nodes(self, body: Body, scope: _Scope) -> Iterator[NodeRecord]:
        """Return the nodes in order, with the bodies of functions in place of their calls."""
        for node, given in body:
            own = {name: scope.attrs[call] for name, call in given.items() if call in scope.attrs}
            attrs = {**node.attrs, **own} if own else node.attrs
            inputs, outputs = (tuple(map(scope.name, names)) for names in (node.inputs, node.outputs))
            if scope.prefix:
                self._count_names(node, (*inputs, *outputs))
            attrs = {name: v.within(self, scope) if isinstance(v, Subgraph) else v for name, v in attrs.items()}
            node = replace(node, inputs=inputs, outputs=outputs, attrs=attrs, opset=scope.opset)
            function = self.protos.get((node.domain, node.op)) if node.domain else None
            if function is None:
                yield node
            else:
                yield from self.called(function, node, scope)

    def called(self, function: Any, node: NodeRecord, scope: _Scope) -> Iterator[NodeRecord]:
        """Return the nodes of a function's body in place of a node that calls it."""
        key = node.domain, node.op
        if key not in self.bodies:
            self.bodies[key] = tuple(self.body(function.node))
        names = dict.fromkeys(function.input, "") | dict(zip(function.input, node.inputs, strict=False))
        names |= {own: name for own, name in zip(function.output, node.outputs, strict=False) if name}
        defaults = {a.name: _attribute(a, self.outside) for a in function.attribute_proto}
        prefix = f"{next(filter(None, node.outputs), '')}/"
        inner = _Scope(_opset(function) or scope.opset, {**defaults, **node.attrs}, names, prefix)
        yield from self.nodes(self.bodies[key], inner)

    def _count_names(self, node: NodeRecord, names: Sequence[str]) -> None:
        self.characters += sum(map(len, names))
        if self.characters > MOST_NAMES:
            given = f"more than {MOST_NAMES:,} characters"
            raise Malformed(f"{node.op}: names", given, "shorter ones, functions written out")


# tensors --------------------------------------------------------------------------------------------------------------
def tensor_of(proto: Any, outside: Outside) -> Tensor:
    """Return the elements of a tensor; floats as float32, whatever their width in the file."""
    return _whole(*_elements_of(proto, outside))


def _elements_of(proto: Any, outside: Outside) -> tuple[Array, str]:
    """Return the elements of a tensor as they lie in the file (bfloat16 as float32), and the file's name for their
    type."""
    if proto.data_type not in DTYPES:
        raise Unsupported(f"tensor type {proto.data_type}")
    name = DTYPES[proto.data_type]
    shape, dtype = tuple(map(int, proto.dims)), np.dtype("<u2" if name == "bfloat16" else name).newbyteorder("<")
    count = math.prod(shape)
    if min(shape, default=0) < 0:
        raise Malformed(f"tensor {proto.name!r}", list(shape), "extents ≥ 0")
    if proto.data_location == EXTERNAL:
        data = np.frombuffer(outside.read(proto, count * dtype.itemsize), dtype)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
        if len(raw) != count * dtype.itemsize:
            wanted = f"{count * dtype.itemsize} ({list(shape)})"
            raise Malformed(f"tensor {proto.name!r}", f"{len(raw)} bytes", wanted)
        data = np.frombuffer(raw, dtype)
    else:
        return _listed(proto, shape), name
    if name == "bfloat16":  # the upper half of a float32
        data = bf16_values(data)
    return data.reshape(shape), name


def _listed(proto: Any, shape: tuple[int, ...]) -> Array:
    """Return the elements of a tensor that lie in one of its fields of numbers."""
    from onnx import helper, numpy_helper

    count, listed = math.prod(shape), getattr(proto, helper.tensor_dtype_to_field(proto.data_type))
    if len(listed) != count:
        raise Malformed(f"tensor {proto.name!r}", f"{len(listed)} values", f"{count} ({list(shape)})")
    with np.errstate(all="ignore"):
        data: Array = numpy_helper.to_array(proto)
    if proto.data_type == BOOL:  # whatever stands for true
        return data.view(np.uint8).astype(np.bool_)
    return data.astype(np.float32) if proto.data_type == BFLOAT16 else data


def _whole(data: Array, name: str) -> Tensor:
    """Return the elements of a tensor of the file, of any size; integers keep their type."""
    kind: Kind = "bool" if name == "bool" else "int" if data.dtype.kind in "iu" else "float"
    stored: dict[Kind, Any] = {"float": np.dtype(np.float32), "int": data.dtype.newbyteorder("="), "bool": np.bool_}
    with np.errstate(all="ignore"):  # float64 beyond float32
        return Tensor(data.shape, kind, array=np.asarray(data).astype(stored[kind], copy=False), dtype=name)


class Outside:
    """The files beside a model that hold its tensors. `nbytes`: of the model and of all of them."""

    def __init__(self, folder: Path | None, nbytes: int) -> None:
        self.folder, self.nbytes = folder, nbytes
        self.sizes: dict[Path, int] = {}
        self.read_so_far = 0

    def read(self, proto: Any, nbytes: int) -> bytes:
        """Return the bytes of a tensor."""
        entries = {e.key: e.value for e in proto.external_data}
        what, name = f"tensor {proto.name!r}", entries.get("location", "")
        if self.folder is None:
            raise LoadError(WHERE, what, f"bytes of a model with data in {name!r}", "the path of the model")
        path = (self.folder / name).resolve()
        if not name or Path(name).is_absolute() or not path.is_relative_to(self.folder.resolve()):
            raise LoadError(WHERE, what, repr(name), "a file beside the model")
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", nbytes))
        if offset < 0 or length != nbytes:
            raise LoadError(WHERE, what, f"{length} bytes at {offset}", f"{nbytes} bytes at 0 or behind")
        try:
            with open_regular(path) as file:
                self._count(what, path, file.seek(0, 2), nbytes)
                file.seek(min(offset, self.sizes[path]))
                data: bytes = file.read(min(nbytes, self.sizes[path]))
        except OSError as error:
            raise LoadError(WHERE, what, str(error), f"{nbytes} bytes of {name}") from None
        if len(data) != nbytes:
            raise LoadError(WHERE, what, f"{len(data)} bytes at {offset}", f"{nbytes} of {name}")
        return data

    def _count(self, what: str, path: Path, size: int, nbytes: int) -> None:
        """Raise for tensors that overlap so much that together they are twice as large as their files."""
        if path not in self.sizes:
            self.sizes[path] = size
            self.nbytes += size
        self.read_so_far += min(nbytes, size)
        if self.read_so_far > 2 * sum(self.sizes.values()):
            raise LoadError(WHERE, what, f"{self.read_so_far:,} bytes of tensors", f"{sum(self.sizes.values()):,}")
