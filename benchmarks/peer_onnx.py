"""The networks of the peers as ONNX models, node by node, for onnxruntime: `runner(graph, weights)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from gdlab.graph import Graph, Node

OPSET = 17
Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(slots=True)
class Writer:
    """An ONNX graph in the making. `made`: its nodes and constants."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def call(self, op: str, *inputs: str, **attrs: object) -> str:
        """Append a node and return the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(import_module("onnx").helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def constant(self, data: Any) -> str:
        """Append a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(import_module("onnx").numpy_helper.from_array(np.asarray(data), name))
        return name

    def floats(self, *numbers: float) -> str:
        """Append f32 constants."""
        return self.constant(np.float32(numbers))

    def ints(self, *numbers: int) -> str:
        """Append i64 constants."""
        return self.constant(np.int64(numbers))


def _rms_norm(w: Writer, node: Node, x: str, weight: str) -> str:
    mean = w.call("ReduceMean", w.call("Pow", x, w.floats(2)), axes=[-1], keepdims=1)
    size = w.call("Sqrt", w.call("Add", mean, w.floats(dict(node.attrs)["eps"])))
    return w.call("Mul", w.call("Div", x, size), weight)


def _rope(w: Writer, node: Node, x: str) -> str:
    """Row t turned by the angles t · θ^(−2i / d), the two halves of a head as pairs."""
    attrs, (rows, width) = dict(node.attrs), node.type.shape
    dim = attrs["head_dim"]
    angles = np.outer(np.arange(rows), attrs["theta"] ** (-np.arange(0, dim, 2) / dim))
    turn = [np.concatenate([part(angles)] * 2, 1).astype(np.float32)[:, None] for part in (np.cos, np.sin)]
    heads = w.call("Reshape", x, w.ints(rows, width // dim, dim))
    low, high = (w.call("Slice", heads, w.ints(a), w.ints(b), w.ints(2)) for a, b in ((0, dim // 2), (dim // 2, dim)))
    other = w.call("Concat", w.call("Neg", high), low, axis=2)
    both = w.call("Add", w.call("Mul", heads, w.constant(turn[0])), w.call("Mul", other, w.constant(turn[1])))
    return w.call("Reshape", both, w.ints(rows, width))


def _attention(w: Writer, node: Node, *operands: str) -> str:
    attrs, (rows, width) = dict(node.attrs), node.type.shape
    dim = attrs["head_dim"]
    q, k, v = (w.call("Reshape", each, w.ints(rows, width // dim, dim)) for each in operands)
    scores = w.call("MatMul", w.call("Transpose", q, perm=[1, 0, 2]), w.call("Transpose", k, perm=[1, 2, 0]))
    mask = np.where(np.tri(rows, dtype=bool), np.float32(0), np.float32(-np.inf))
    masked = w.call("Add", w.call("Mul", scores, w.floats(dim**-0.5)), w.constant(mask))
    mixed = w.call("MatMul", w.call("Softmax", masked, axis=-1), w.call("Transpose", v, perm=[1, 0, 2]))
    return w.call("Reshape", w.call("Transpose", mixed, perm=[1, 0, 2]), w.ints(rows, width))


def _swiglu(w: Writer, node: Node, gate: str, up: str) -> str:
    return w.call("Mul", w.call("Mul", gate, w.call("Sigmoid", gate)), up)


FORMS: Mapping[str, Callable[..., str]] = {
    "matmul": lambda w, node, a, b: w.call("MatMul", a, b),
    "add": lambda w, node, a, b: w.call("Add", a, b),
    "bias_add": lambda w, node, a, b: w.call("Add", a, b),
    "relu": lambda w, node, x: w.call("Relu", x),
    "embedding": lambda w, node, ids, rows: w.call("Gather", rows, ids),
    "rms_norm": _rms_norm, "rope": _rope, "causal_attention": _attention, "swiglu": _swiglu,
}  # fmt: skip


def model_of(graph: Graph, weights: Arrays) -> Any:
    """Return the ONNX model of a graph as written; inputs of indices are i64."""
    onnx = import_module("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    writer, names = Writer(), dict[int, str]()
    for node in graph.nodes:
        operands = [names[i] for i in node.inputs]
        if node.op == "parameter":
            names[node.id] = writer.constant(weights[node.name])
        elif node.op == "input":
            names[node.id] = node.name
        else:
            names[node.id] = FORMS[node.op](writer, node, *operands)
    kind = {"f32": kinds.FLOAT, "u32": kinds.INT64}
    ends = [
        [helper.make_tensor_value_info(names[n.id], kind[str(n.type.dtype)], n.type.shape) for n in nodes]
        for nodes in (graph.inputs, [graph.node(i) for i in graph.output_ids])
    ]
    made = helper.make_graph(writer.nodes, "g", *ends, writer.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def session_of(graph: Graph, weights: Arrays) -> Any:
    """Open the model in onnxruntime, on one thread."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    text = model_of(graph, weights).SerializeToString()
    return runtime.InferenceSession(text, options, providers=["CPUExecutionProvider"])


def runner(session: Any, name: str, x: np.ndarray[Any, Any]) -> Callable[[], object]:
    """Return a call of `InferenceSession.run`."""
    given = {name: as_fed(x)}
    return lambda: session.run(None, given)


def bound_runner(session: Any, name: str, x: np.ndarray[Any, Any]) -> Callable[[], object]:
    """Return a call of `run_with_iobinding`, inputs and outputs bound once."""
    runtime = import_module("onnxruntime")
    binding = session.io_binding()
    binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(as_fed(x)))
    binding.bind_output(session.get_outputs()[0].name)
    return lambda: session.run_with_iobinding(binding)


def as_fed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an input as the model takes it."""
    return x.astype(np.int64) if x.dtype.kind == "u" else x
