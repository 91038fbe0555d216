"""Write plans as JSON and read them back: `from_json(to_json(plan)) == plan`; every record goes through one codec."""

from __future__ import annotations

import base64
import json
import math
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gdlab.base.errors import LoadError
from gdlab.base.types import DType, TensorType
from gdlab.graph import ConstantData, Graph
from gdlab.op.storage import SourceRange
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, MemoryPlan, Place, PlanBuffer, Slot
from gdlab.plan.verify import verify

Json = Any
_JSON_NAMES: dict[tuple[type, str], str] = {  # fields that JSON names otherwise than the attribute
    (PlanBuffer, "nbytes"): "bytes", (Slot, "nbytes"): "bytes", (MemoryPlan, "pins"): "pinned",
    (Dispatch, "operands"): "inputs",
}  # fmt: skip
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(plan: ExecutionPlan) -> str:
    """Write the plan and its graph as canonical text: keys sorted, no spaces."""
    return json.dumps(encode(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> ExecutionPlan:
    """Read the plan that `text` holds, and verify it; `LoadError` where it holds none."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError) as error:
        raise LoadError("plan", "JSON", f"{type(error).__name__}: {error}", "the text of to_json") from None
    return plan_of(data)


def plan_of(data: Json) -> ExecutionPlan:
    """Read a plan from JSON that is parsed already."""
    try:
        plan = decode(data, ExecutionPlan)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        given = f"{type(error).__name__}: {error}"
        raise LoadError("plan", "JSON", given, "the text of to_json") from None
    assert isinstance(plan, ExecutionPlan)  # decode makes what it is asked for
    return verify(plan)


def _json_name(kind: Any, field: str) -> str:
    return _JSON_NAMES.get((kind, field), field)


# encoding -------------------------------------------------------------------------------------------------------------
def encode(value: Any) -> Json:
    """Encode any record as plain JSON."""
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if isinstance(value, TensorType):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Graph):
        return _encode_graph(value)
    if is_dataclass(value):
        return {
            _json_name(type(value), name): (
                _encode_attrs(getattr(value, name)) if name == "attrs" else encode(getattr(value, name))
            )
            for name in _hints(value.__class__)
        }
    raise TypeError(f"no JSON form of {type(value).__name__}")


def _encode_graph(graph: Graph) -> Json:
    return {
        "nodes": [[n.op, list(n.inputs), _encode_attrs(n.attrs), str(n.type), n.name] for n in graph],
        "outputs": [[id, name] for id, name in zip(graph.output_ids, graph.output_names, strict=True)],
        "gradients": graph.num_param_grad_outputs,
        "zero_gradients": list(graph.zero_gradients),
    }


def _encode_attrs(attrs: tuple[tuple[str, Any], ...]) -> Json:
    """Encode attributes with a letter for their kind: an int and a float of equal value are different attributes."""
    return [[name, *_encode_attr(value)] for name, value in attrs]


def _encode_attr(value: Any) -> tuple[str, Json]:
    if isinstance(value, ConstantData):
        return "c", [value.dtype.name, list(value.shape), encode(value.raw)]
    if isinstance(value, tuple):
        return "t", list(value)
    return {bool: "b", int: "i", float: "f", str: "s"}[type(value)], encode(value)


# decoding -------------------------------------------------------------------------------------------------------------
def decode(data: Json, kind: Any) -> Any:
    """Decode the value of type `kind` that `data` holds."""
    return _decoder(kind)(data)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> Callable[[Json], Any]:
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType):
        inner = _decoder(next(a for a in args if a is not type(None)))
        return lambda data: None if data is None else inner(data)
    if origin is tuple and args[-1] is Ellipsis:
        item = _decoder(args[0])
        return lambda data: tuple(map(item, data))
    if origin is tuple:
        items = [_decoder(a) for a in args]
        return lambda data: tuple(item(v) for item, v in zip(items, data, strict=True))
    if is_dataclass(kind):
        return _record(kind)
    raise TypeError(f"no decoder of {kind}")


def _record(kind: Any) -> Callable[[Json], Any]:
    decoders = {n: _decode_attrs if n == "attrs" else _decoder(hint) for n, hint in _hints(kind).items()}
    rows = [(name, _json_name(kind, name), decoder) for name, decoder in decoders.items()]
    return lambda data: kind(**{name: decoder(data[key]) for name, key, decoder in rows})


def _one_of(allowed: tuple[Any, ...]) -> Callable[[Json], Any]:
    def decoded(data: Json) -> Any:
        if data not in allowed:
            raise ValueError(f"{data!r}, not one of {allowed}")
        return data

    return decoded


def _strict(kind: type) -> Callable[[Json], Any]:
    def decoded(data: Json) -> Any:
        if type(data) is not kind:
            raise TypeError(f"{data!r:.40}, not {kind.__name__}")
        return data

    return decoded


def _float(data: Json) -> float:
    return _SPECIAL[data] if isinstance(data, str) else float(data)


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    """Return field names and types of a record, in order."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _decode_graph(data: Json) -> Graph:
    graph = Graph()
    for op, inputs, attrs, type, name in data["nodes"]:
        if any(not 0 <= i < len(graph) for i in inputs):
            raise ValueError(f"inputs {inputs} of node {len(graph)}")
        value = graph.append(op, tuple(inputs), _decode_attrs(attrs), TensorType.parse(type), name)
        if not inputs and name:
            graph.register_leaf(value)
    graph.set_output_ids([(id, name) for id, name in data["outputs"]], data["gradients"])
    graph.zero_gradients = tuple(data["zero_gradients"])
    return graph


def _decode_attrs(data: Json) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _ATTR[letter](value)) for name, letter, value in data)


_ATTR: dict[str, Callable[[Json], Any]] = {
    "b": bool,
    "i": int,
    "f": _float,
    "s": str,
    "t": tuple,
    "c": lambda v: ConstantData(DType[v[0]], tuple(v[1]), base64.b64decode(v[2])),
}
_PLAIN: dict[Any, Callable[[Json], Any]] = {
    int: _strict(int),
    str: _strict(str),
    bool: _strict(bool),
    float: _float,
    bytes: base64.b64decode,
    TensorType: TensorType.parse,
    DType: lambda name: DType[name],
    Graph: _decode_graph,
    Place: lambda data: SourceRange(*map(_strict(int), data)) if isinstance(data, list) else _strict(int)(data),
}
