"""What an ONNX file says, as plain records; every tensor is checked against its bytes.

The `onnx` package reads the outer format; it is loaded at first use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import LoadError
from gdlab.base.types import Array
from gdlab.load.onnx.tensor import Kind, NodeRecord, Tensor
from gdlab.load.shared import Malformed, Unsupported

WHERE = "load_onnx"
STANDARD = ("", "ai.onnx")
EXTERNAL = 1  # TensorProto.DataLocation
DEEPEST, MOST_NODES = 16, 1 << 17  # functions in functions; nodes with all functions written out

# TensorProto.DataType -> (elements in raw bytes, the field that holds them otherwise, kind)
TYPES: dict[int, tuple[str, str, Kind]] = {
    1: ("<f4", "float_data", "float"), 2: ("u1", "int32_data", "int"), 3: ("i1", "int32_data", "int"),
    4: ("<u2", "int32_data", "int"), 5: ("<i2", "int32_data", "int"), 6: ("<i4", "int32_data", "int"),
    7: ("<i8", "int64_data", "int"), 9: ("?", "int32_data", "bool"), 10: ("<f2", "int32_data", "float"),
    11: ("<f8", "double_data", "float"), 12: ("<u4", "uint64_data", "int"), 13: ("<u8", "uint64_data", "int"),
    16: ("<u2", "int32_data", "float"),
}  # fmt: skip
BITS = (10, 16)  # in int32_data they lie as their bits
BFLOAT16 = 16
KINDS: dict[int, Kind] = {number: entry[2] for number, entry in TYPES.items()}


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input: extents, names of extents that are left open, or None where nothing is said; a shape may be missing."""

    name: str
    kind: Kind
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model: its inputs, its tensors by name, its nodes in order, the names of its outputs."""

    inputs: tuple[InputRecord, ...]
    tensors: Mapping[str, Tensor]
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[str, ...]


def read(data: bytes, folder: Path | None) -> ModelRecord:
    """The records of a serialized model; tensors outside of it lie in `folder`."""
    try:
        import onnx
    except ImportError:
        raise LoadError(WHERE, "package onnx", "none", "pip install gdlab[onnx]") from None
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # of the protobuf package, which is not ours to import
        raise LoadError(WHERE, "model", f"{len(data)} bytes: {error}", "an ONNX model") from None
    return _model(model, folder)


def _model(model: Any, folder: Path | None) -> ModelRecord:
    opset = _opset(model)
    if opset < 1:
        raise LoadError(WHERE, "opset_import", "no opset of ai.onnx", "opset 1 or later")
    graph = model.graph
    tensors: dict[str, Tensor] = {}
    for proto in graph.initializer:
        if not proto.name or proto.name in tensors:
            raise Malformed("initializer", repr(proto.name), "a name of its own")
        tensors[proto.name] = _named(proto.name, proto, folder)
    inputs = tuple(_input(v) for v in graph.input if v.name not in tensors)
    functions = {(f.domain, f.name): f for f in model.functions}
    nodes = tuple(islice(_nodes(graph.node, folder, functions, _Scope(opset, {}, {})), MOST_NODES + 1))
    if len(nodes) > MOST_NODES:
        raise Malformed("nodes", f"more than {MOST_NODES}", "fewer, functions written out")
    return ModelRecord(inputs, tensors, nodes, tuple(v.name for v in graph.output))


def _opset(proto: Any) -> int:
    """The version of the standard operators that a model or function imports; 0 where it imports none."""
    return max((int(o.version) for o in proto.opset_import if o.domain in STANDARD), default=0)


def _named(name: str, proto: Any, folder: Path | None) -> Tensor:
    """An initializer: floats of rank ≥ 1 are parameters under its name, the rest constants."""
    try:
        tensor = tensor_of(proto, folder)
    except Unsupported as error:
        raise LoadError(WHERE, f"initializer {name!r}", error, "floats, ints or bools") from None
    trained = tensor.kind == "float" and tensor.shape and tensor.size
    return Tensor(tensor.shape, tensor.kind, array=tensor.array, parameter=name) if trained else tensor


def _input(info: Any) -> InputRecord:
    if info.type.WhichOneof("value") != "tensor_type":
        raise LoadError(WHERE, f"input {info.name!r}", info.type.WhichOneof("value") or "no type", "a tensor")
    declared = info.type.tensor_type
    if declared.elem_type not in KINDS:
        raise LoadError(WHERE, f"input {info.name!r}", f"type {declared.elem_type}", "floats, ints or bools")
    shape = tuple(map(_extent, declared.shape.dim)) if declared.HasField("shape") else None
    return InputRecord(info.name, KINDS[declared.elem_type], shape)


def _extent(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    return None if kind is None else (dim.dim_param or None) if kind == "dim_param" else int(dim.dim_value)


# nodes ----------------------------------------------------------------------------------------------------------------
_FORMS: dict[int, Any] = {  # AttributeProto.AttributeType
    1: lambda a, folder: float(a.f), 2: lambda a, folder: int(a.i), 3: lambda a, folder: a.s.decode("utf-8"),
    4: lambda a, folder: tensor_of(a.t, folder), 6: lambda a, folder: tuple(map(float, a.floats)),
    7: lambda a, folder: tuple(map(int, a.ints)), 8: lambda a, folder: tuple(s.decode("utf-8") for s in a.strings),
}  # fmt: skip


def _node(proto: Any, folder: Path | None, opset: int, given: Mapping[str, Any]) -> NodeRecord:
    """A node; inside a function attributes may stand for those `given` in the call."""
    domain = "" if proto.domain in STANDARD else str(proto.domain)
    attrs: dict[str, Any] = {}
    for a in proto.attribute:
        if not a.ref_attr_name:
            attrs[a.name] = _attribute(a, folder)
        elif a.ref_attr_name in given:
            attrs[a.name] = given[a.ref_attr_name]
    return NodeRecord(proto.op_type, proto.name, domain, tuple(proto.input), tuple(proto.output), attrs, opset)


def _attribute(proto: Any, folder: Path | None) -> Any:
    """The value of an attribute; None for what is no number, text or tensor of numbers."""
    try:
        return _FORMS[proto.type](proto, folder) if proto.type in _FORMS else None
    except Unsupported:
        return None


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where nodes stand: in the graph, or in a call of one of the model's own functions."""

    opset: int
    attrs: Mapping[str, Any]  # of the call
    names: Mapping[str, str]  # of operands and results, as the caller calls them
    prefix: str = ""
    depth: int = 0

    def name(self, name: str) -> str:
        """A name of the scope as the graph has it."""
        return self.names.get(name, f"{self.prefix}{name}" if name else "")


def _nodes(protos: Any, folder: Path | None, functions: Mapping[Any, Any], scope: _Scope) -> Iterator[NodeRecord]:
    """Nodes in order, with the bodies of the model's own functions in place of their calls."""
    for proto in protos:
        node = _node(proto, folder, scope.opset, scope.attrs)
        inputs, outputs = (tuple(map(scope.name, names)) for names in (node.inputs, node.outputs))
        node = replace(node, inputs=inputs, outputs=outputs)
        function = functions.get((node.domain, node.op)) if node.domain else None
        if function is None:
            yield node
            continue
        if scope.depth >= DEEPEST:
            raise Malformed(str(node), "a function in functions", f"at most {DEEPEST} in each other")
        names = dict.fromkeys(function.input, "") | dict(zip(function.input, inputs, strict=False))
        names |= {own: name for own, name in zip(function.output, outputs, strict=False) if name}
        defaults = {a.name: _attribute(a, folder) for a in function.attribute_proto}
        prefix = f"{next(filter(None, outputs), '')}/"
        inner = _Scope(_opset(function) or scope.opset, {**defaults, **node.attrs}, names, prefix, scope.depth + 1)
        yield from _nodes(function.node, folder, functions, inner)


# tensors --------------------------------------------------------------------------------------------------------------
def tensor_of(proto: Any, folder: Path | None) -> Tensor:
    """The elements of a tensor, floats as float32, whatever their width in the file."""
    if proto.data_type not in TYPES:
        raise Unsupported(f"tensor type {proto.data_type}")
    form, field, kind = TYPES[proto.data_type]
    shape, dtype = tuple(map(int, proto.dims)), np.dtype(form)
    count = math.prod(shape)
    if min(shape, default=0) < 0:
        raise Malformed(f"tensor {proto.name!r}", list(shape), "extents ≥ 0")
    if proto.data_location == EXTERNAL:
        data = np.frombuffer(_outside(proto, folder, count * dtype.itemsize), dtype)
    elif proto.HasField("raw_data"):
        if len(proto.raw_data) != count * dtype.itemsize:
            given = f"{len(proto.raw_data)} bytes"
            raise Malformed(f"tensor {proto.name!r}", given, f"{count * dtype.itemsize} ({list(shape)})")
        data = np.frombuffer(proto.raw_data, dtype)
    else:
        data = _listed(proto, field, dtype)
        if data.size != count:
            raise Malformed(f"tensor {proto.name!r}", f"{data.size} values", f"{count} ({list(shape)})")
    if proto.data_type == BFLOAT16:  # the upper half of a float32
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return _whole(data.reshape(shape), kind)


def _listed(proto: Any, field: str, dtype: np.dtype[Any]) -> Array:
    """Elements of one of the fields of numbers."""
    given = np.array(getattr(proto, field))
    if proto.data_type in BITS:
        bits: Array = given.astype(np.uint16)
        return bits.view(dtype)
    with np.errstate(all="ignore"):
        cast: Array = given.astype(dtype)
    return cast


def _whole(data: Array, kind: Kind) -> Tensor:
    """A tensor of the file, of any size."""
    stored: dict[Kind, Any] = {"float": np.float32, "int": np.int64, "bool": np.bool_}
    with np.errstate(all="ignore"):  # float64 beyond float32
        return Tensor(data.shape, kind, array=np.asarray(data).astype(stored[kind], copy=False))


def _outside(proto: Any, folder: Path | None, nbytes: int) -> bytes:
    """The bytes of a tensor that lies in a file beside the model."""
    entries = {e.key: e.value for e in proto.external_data}
    what, name = f"tensor {proto.name!r}", entries.get("location", "")
    if folder is None:
        raise LoadError(WHERE, what, f"bytes of a model with data in {name!r}", "the path of the model")
    path = (folder / name).resolve()
    if not name or Path(name).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise LoadError(WHERE, what, repr(name), "a file beside the model")
    offset, length = int(entries.get("offset", 0)), int(entries.get("length", nbytes))
    if offset < 0 or length != nbytes:
        raise LoadError(WHERE, what, f"{length} bytes at {offset}", f"{nbytes} bytes at 0 or behind")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(min(offset, size))
            data: bytes = file.read(min(nbytes, size))
    except OSError as error:
        raise LoadError(WHERE, what, str(error), f"{nbytes} bytes of {name}") from None
    if len(data) != nbytes:
        raise LoadError(WHERE, what, f"{len(data)} bytes at {offset}", f"{nbytes} of {name}")
    return data
