"""ONNX models of a few nodes, and what ONNX's own reference says that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gdlab as gd
from gdlab.op.reference import evaluate

Arrays = Mapping[str, np.ndarray]
TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "u": TensorProto.INT64, "b": TensorProto.BOOL}


def type_of(array: np.ndarray) -> int:
    return TYPES[array.dtype.kind]


def model(
    nodes: Sequence[Any], fed: Arrays, held: Arrays, outputs: Sequence[str], opset: int = 17, **more: Any
) -> bytes:
    """Nodes, the inputs with their examples, the initializers."""
    inputs = [helper.make_tensor_value_info(n, type_of(a), a.shape) for n, a in fed.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, results, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)
    return bytes(made.SerializeToString())


def wanted(data: bytes, fed: Arrays) -> list[np.ndarray]:
    """The outputs by `onnx.reference`."""
    import onnx

    with np.errstate(all="ignore"):
        return [np.asarray(a) for a in ReferenceEvaluator(onnx.load_model_from_string(data)).run(None, dict(fed))]


def given(loaded: gd.OnnxModel, fed: Arrays) -> list[np.ndarray]:
    """The outputs by gdlab's reference."""
    feeds = {n.name: fed[n.name] for n in loaded.graph.inputs} | dict(loaded.weights)
    values = evaluate(loaded.graph, feeds)
    return [np.asarray(values[i]) for i in loaded.graph.output_ids]


def agree(data: bytes, fed: Arrays, rtol: float = 1e-5, **options: Any) -> gd.OnnxModel:
    """The model as gdlab loads it; its outputs are those of ONNX."""
    loaded = gd.load_onnx(data, **options)
    for got, want in zip(given(loaded, fed), wanted(data, fed), strict=True):
        assert got.shape == (want.shape or (1,))
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=rtol, atol=rtol)
    return loaded


RNG = np.random.default_rng(4)
N = helper.make_node


def f(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = {"x": f(2, 3)}


# a small network of images --------------------------------------------------------------------------------------------
IMAGES = {"x": f(2, 3, 8, 8)}
CNN_HELD = {
    "conv1.weight": f(6, 3, 3, 3), "conv1.bias": f(6), "bn.weight": f(6), "bn.bias": f(6), "bn.mean": f(6),
    "bn.var": np.abs(f(6)) + 0.5, "fc.weight": f(5, 6), "fc.bias": f(5), "shape": ints(0, -1),
}  # fmt: skip


def cnn(**options: Any) -> bytes:
    nodes = [
        N("Conv", ["x", "conv1.weight", "conv1.bias"], ["c"], name="/conv1/Conv", pads=[1, 1, 1, 1]),
        N("BatchNormalization", ["c", "bn.weight", "bn.bias", "bn.mean", "bn.var"], ["b"], name="/bn"),
        N("Relu", ["b"], ["r"]),
        N("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        N("GlobalAveragePool", ["m"], ["p"]),
        N("Reshape", ["p", "shape"], ["flat"]),
        N("Gemm", ["flat", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]
    return model(nodes, IMAGES, CNN_HELD, ["y"], **options)


# a transformer as exporters write it ----------------------------------------------------------------------------------
S, H, D, V = 5, 2, 4, 11
IDS = {"ids": RNG.integers(0, V, (1, S))}


def scalar(name: str, value: float) -> Any:
    return N("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.float32)))


def transformer() -> bytes:
    """Shapes read from tensors, heads split by a computed reshape, norms, softmax and SwiGLU written out."""
    width, wide = H * D, 12
    held = {
        "embed": f(V, width), "norm1": f(width), "norm2": f(width), "wq": f(width, width), "wk": f(width, width),
        "wv": f(width, width), "wo": f(width, width), "gate": f(width, wide), "up": f(width, wide),
        "down": f(wide, width), "head": f(V, width), "two": ints(H), "heads_dim": ints(D), "minus": ints(-1),
        "zero": np.int64(0), "one": np.int64(1), "axis0": ints(0), "last": ints(-1),
    }  # fmt: skip
    nodes = [
        scalar("eps", 1e-5), scalar("exponent", 2.0), scalar("scale", D**-0.5), scalar("unit", 1.0),
        scalar("low", -1e9), N("Gather", ["embed", "ids"], ["h"]), N("Shape", ["ids"], ["dims"]),
        N("Gather", ["dims", "one"], ["length"]), N("Unsqueeze", ["length", "axis0"], ["length1"]),
        N("Gather", ["dims", "zero"], ["batch"]), N("Unsqueeze", ["batch", "axis0"], ["batch1"]),
        N("Concat", ["batch1", "length1", "two", "heads_dim"], ["split"], axis=0),
        N("Concat", ["batch1", "length1", "minus"], ["merged"], axis=0),
        N("Concat", ["length1", "length1"], ["square"], axis=0),
        N("ConstantOfShape", ["square"], ["ones"], value=numpy_helper.from_array(np.array([1.0], np.float32))),
        N("Trilu", ["ones"], ["lower"], upper=0), N("Cast", ["lower"], ["keep"], to=TensorProto.BOOL),
    ]  # fmt: skip
    for i, (x, w) in enumerate((("h", "norm1"), ("r", "norm2"))):
        n = f"n{i}_"
        nodes += [
            N("Pow", [x, "exponent"], [n + "sq"]), N("ReduceMean", [n + "sq"], [n + "mean"], axes=[-1]),
            N("Add", [n + "mean", "eps"], [n + "var"]), N("Sqrt", [n + "var"], [n + "root"]),
            N("Div", ["unit", n + "root"], [n + "inv"]), N("Mul", [x, n + "inv"], [n + "unit"]),
            N("Mul", [n + "unit", w], [n + "out"]),
        ]  # fmt: skip
        if i == 0:
            for name in ("q", "k", "v"):
                nodes += [
                    N("MatMul", ["n0_out", f"w{name}"], [name]),
                    N("Reshape", [name, "split"], [f"{name}s"]),
                    N("Transpose", [f"{name}s"], [f"{name}t"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
                ]
            nodes += [
                N("MatMul", ["qt", "kt"], ["scores"]), N("Mul", ["scores", "scale"], ["scaled"]),
                N("Where", ["keep", "scaled", "low"], ["masked"]),
                N("ReduceMax", ["masked"], ["top"], axes=[-1]), N("Sub", ["masked", "top"], ["shifted"]),
                N("Exp", ["shifted"], ["e"]), N("ReduceSum", ["e", "last"], ["total"]),
                N("Div", ["e", "total"], ["weights"]), N("MatMul", ["weights", "vt"], ["mixed"]),
                N("Transpose", ["mixed"], ["mixt"], perm=[0, 2, 1, 3]), N("Reshape", ["mixt", "merged"], ["cat"]),
                N("MatMul", ["cat", "wo"], ["attn"]), N("Add", ["h", "attn"], ["r"]),
            ]  # fmt: skip
    nodes += [
        N("MatMul", ["n1_out", "gate"], ["g"]), N("Sigmoid", ["g"], ["sg"]), N("Mul", ["g", "sg"], ["silu"]),
        N("MatMul", ["n1_out", "up"], ["u"]), N("Mul", ["silu", "u"], ["gated"]),
        N("MatMul", ["gated", "down"], ["ff"]),
        N("Add", ["r", "ff"], ["out"]), N("Transpose", ["head"], ["headt"]), N("MatMul", ["out", "headt"], ["logits"]),
    ]  # fmt: skip
    return model(nodes, IDS, held, ["logits"])
