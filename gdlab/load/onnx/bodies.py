"""Write out an operator by the body that ONNX itself defines: Attention, losses, Celu and all others with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdlab.load.onnx.proto import STANDARD, Functions, Outside, scope_of
from gdlab.load.onnx.tensor import DTYPES, NodeRecord, Tensor

CODES = {name: code for code, name in DTYPES.items()}
RANDOM = frozenset({"Bernoulli"})  # their bodies draw numbers


def has_body(node: NodeRecord) -> bool:
    """Return whether ONNX may define a body of the operator, which may depend on the types of its inputs."""
    from onnx import defs

    if node.domain not in STANDARD or node.op in RANDOM or not defs.has(node.op, node.opset, node.domain):
        return False
    schema: Any = defs.get_schema(node.op, node.opset, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: NodeRecord, inputs: Sequence[Tensor | None]) -> list[NodeRecord] | None:
    """Return the nodes that ONNX defines as the body of a node with inputs of these types, under the caller's names;
    None where the operator has no body in the opset of the node."""
    from onnx import defs

    schema = defs.get_schema(node.op, node.opset, node.domain)
    function = _function(schema, node, inputs)
    if function is None:
        return None
    given = {a.name for a in function.attribute_proto}
    defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name and a.name not in given]
    function.attribute_proto.extend(defaults)
    return list(Functions({}, Outside(None, 0)).called(function, node, scope_of(node.opset)))


def _function(schema: Any, node: NodeRecord, inputs: Sequence[Tensor | None]) -> Any:
    """Return the body as ONNX's FunctionProto: one that fits these types, else one that fits all."""
    from onnx import FunctionProto

    if schema.has_context_dependent_function:
        version = _latest(schema.context_dependent_function_opset_versions, node.opset)
        types = [_type(t).SerializeToString() for t in inputs]
        data = schema.get_context_dependent_function_with_opset_version(version, _proto(node), types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_latest(schema.function_opset_versions, node.opset))
    else:
        return None
    return FunctionProto.FromString(data) if data else None


def _latest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type(t: Tensor | None) -> Any:
    from onnx import TypeProto, helper

    return TypeProto() if t is None else helper.make_tensor_type_proto(CODES[t.dtype], t.shape)


def _proto(node: NodeRecord) -> bytes:
    from onnx import helper, numpy_helper

    attrs = {name: value for name, value in node.attrs.items() if value is not None}
    for name, value in attrs.items():
        if isinstance(value, Tensor):
            attrs[name] = numpy_helper.from_array(np.asarray(value.array))
    made = helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain, **attrs)
    return bytes(made.SerializeToString())
