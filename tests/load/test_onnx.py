"""Whole ONNX models: names, weights, shapes that exporters compute, what is recognized in them, functions, files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import CNN_HELD, IDS, IMAGES, N, X, agree, cnn, f, given, ints, model, scalar, transformer, wanted

import gdlab as gd
from gdlab.load.onnx.proto import Outside, tensor_of
from gdlab.load.shared import Malformed
from gdlab.rewrite import optimize


def test_a_network_of_images_keeps_its_names_and_its_weights() -> None:
    loaded = agree(cnn(), IMAGES)
    assert isinstance(loaded, gd.OnnxModel) and repr(loaded) == f"<OnnxModel: {len(loaded.graph)} nodes, 6 parameters>"
    names = ["conv1.weight", "conv1.bias", "bn.weight.folded", "bn.bias.folded", "fc.weight", "fc.bias"]
    assert [n.name for n in loaded.graph.parameters] == list(loaded.weights) == names
    assert {a.dtype for a in loaded.weights.values()} == {np.dtype(np.float32)}
    for name in ("conv1.weight", "fc.weight", "fc.bias"):
        np.testing.assert_array_equal(loaded.weights[name], CNN_HELD[name])
    factor = CNN_HELD["bn.weight"] / np.sqrt(CNN_HELD["bn.var"] + 1e-5)
    np.testing.assert_allclose(loaded.weights["bn.weight.folded"], factor, rtol=1e-6)
    assert [n.name for n in loaded.graph if n.op in ("relu", "max_pool_2d", "bias_add")] == ["r", "m", "y"]
    assert loaded.graph.output_names == ("y",)


def test_a_network_of_images_runs_and_learns(device: str) -> None:
    data = cnn()
    loaded = gd.load_onnx(data)
    with gd.build_inference_session(loaded.graph, device) as session:
        for name, values in loaded.weights.items():
            session.set_parameter(name, values)
        session.set_input("x", IMAGES["x"])
        session.step()
        np.testing.assert_allclose(session.read_output(), wanted(data, IMAGES)[0], rtol=2e-4, atol=2e-5)
    graph = loaded.graph
    with graph:
        graph.set_outputs(gd.cross_entropy_loss(graph.outputs[0], gd.input("labels", (2, 5))))
    with gd.build_session(graph, "cpu") as session:
        for name, values in loaded.weights.items():
            session.set_parameter(name, values)
        session.set_input("x", IMAGES["x"])
        session.set_input("labels", np.eye(5)[[1, 3]])
        session.set_adam(1e-2)
        session.step()
        first = session.read_loss()
        for _ in range(20):
            session.step()
        assert session.read_loss() < first / 2


def test_a_transformer_as_exporters_write_it_is_understood_and_recognized(device: str) -> None:
    data = transformer()
    loaded = agree(data, IDS)
    assert not [n.op for n in loaded.graph if n.op in ("to_f32", "to_u32")], "what tells shapes is folded"
    result, _ = optimize(loaded.graph, phase="inference")
    ops = [n.op for n in result]
    assert ops.count("rms_norm") == 2 and ops.count("softmax") == 1
    assert any(op.startswith("swiglu") for op in ops) and not {"exp", "sigmoid", "sqrt"} & set(ops)
    with gd.build_inference_session(loaded.graph, device) as session:
        for name, values in loaded.weights.items():
            session.set_parameter(name, values)
        session.set_input("ids", IDS["ids"])
        session.step()
        np.testing.assert_allclose(session.read_output(), wanted(data, IDS)[0], rtol=2e-4, atol=1e-4)


SPELLED: dict[str, tuple[list[Any], str]] = {
    "layer_norm": ([
        N("ReduceMean", ["x"], ["mean"], axes=[-1]), N("Sub", ["x", "mean"], ["d"]), scalar("two", 2.0),
        N("Pow", ["d", "two"], ["sq"]), N("ReduceMean", ["sq"], ["var"], axes=[-1]), scalar("eps", 1e-5),
        N("Add", ["var", "eps"], ["v"]), N("Sqrt", ["v"], ["sd"]), N("Div", ["d", "sd"], ["n"]),
        N("Mul", ["n", "w"], ["s"]), N("Add", ["s", "b"], ["y"]),
    ], "layer_norm"),
    "gelu_erf": ([
        scalar("root", 2**0.5), N("Div", ["x", "root"], ["r"]), N("Erf", ["r"], ["e"]), scalar("one", 1.0),
        N("Add", ["e", "one"], ["p"]), N("Mul", ["x", "p"], ["q"]), scalar("half", 0.5), N("Mul", ["q", "half"], ["y"]),
    ], "gelu_erf"),
    "silu": ([N("Sigmoid", ["x"], ["s"]), N("Mul", ["x", "s"], ["y"])], "silu"),
    "log_softmax": ([
        N("ReduceMax", ["x"], ["t"], axes=[-1]), N("Sub", ["x", "t"], ["d"]), N("Exp", ["d"], ["e"]),
        N("ReduceSum", ["e", "last"], ["z"]), N("Log", ["z"], ["l"]), N("Sub", ["d", "l"], ["y"]),
    ], "log_softmax"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPELLED)
def test_what_exporters_spell_out_is_one_op_again(what: str) -> None:
    nodes, op = SPELLED[what]
    x, held = {"x": f(2, 3, 8)}, {"w": f(8), "b": f(8), "last": ints(-1)}
    loaded = agree(model(nodes, x, held, ["y"]), x)
    result, _ = optimize(loaded.graph, phase="inference")
    assert [n.op for n in result if n.inputs] == [op]


def test_what_other_runtimes_add_is_taken() -> None:
    x, w = f(2, 4), f(4)
    nodes = [
        N("SimplifiedLayerNormalization", ["x", "w"], ["n"], axis=-1, epsilon=1e-3),
        N("Gelu", ["n"], ["g"], domain="com.microsoft"), N("ReduceProd", ["dims"], ["count"], keepdims=0),
        N("Shape", ["x"], ["dims"]), N("Cast", ["count"], ["c"], to=TensorProto.FLOAT), N("Mul", ["g", "c"], ["y"]),
    ]  # fmt: skip
    nodes = [nodes[3], *nodes[:3], *nodes[4:]]
    loaded = gd.load_onnx(model(nodes, {"x": x}, {"w": w}, ["y"]))
    unit = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-3) * w
    want = unit * 8 * 0.5 * (1 + np.vectorize(math.erf)(unit / np.sqrt(2)))
    np.testing.assert_allclose(given(loaded, {"x": x})[0], want, rtol=1e-6, atol=1e-7)


# functions of a model's own -------------------------------------------------------------------------------------------
def with_functions(depth: int) -> bytes:
    """y = swish(x · 2, alpha=1.5) + swish(x): a function with an attribute, called through others."""
    product = N("Mul", ["a", "scaled"], ["out"])
    alpha = N("Constant", [], ["c"])
    alpha.attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="alpha", type=1))
    body = [alpha, N("Mul", ["a", "c"], ["b"]), N("Sigmoid", ["b"], ["scaled"]), product]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    default = [helper.make_attribute("alpha", 1.0)]
    functions = [helper.make_function("own", "swish0", ["a"], ["out"], body, imports, [], default)]
    for i in range(1, depth):
        call = N(f"swish{i - 1}", ["a"], ["out"], domain="own")
        call.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=1))
        functions.append(helper.make_function("own", f"swish{i}", ["a"], ["out"], [call], imports, [], default))
    last = f"swish{depth - 1}"
    nodes = [
        scalar("two", 2.0), N("Mul", ["x", "two"], ["x2"]), N(last, ["x2"], ["s"], domain="own", alpha=1.5),
        N(last, ["x"], ["t"], domain="own"), N("Add", ["s", "t"], ["y"]),
    ]  # fmt: skip
    proto = onnx.load_model_from_string(model(nodes, X, {}, ["y"]))
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return bytes(proto.SerializeToString())


def test_functions_of_a_model_are_written_out() -> None:
    x = X["x"].astype(float)
    for depth in (1, 3):
        loaded = gd.load_onnx(with_functions(depth))
        want = 2 * x / (1 + np.exp(-3 * x)) + x / (1 + np.exp(-x))
        np.testing.assert_allclose(given(loaded, X)[0], want, rtol=1e-6, atol=1e-7)
        assert {n.name for n in loaded.graph} >= {"x2", "s", "t", "y"}
    with pytest.raises(gd.LoadError, match="a function in functions, wanted at most 16 in each other"):
        gd.load_onnx(with_functions(40))


def test_functions_that_call_themselves_are_refused() -> None:
    proto = onnx.load_model_from_string(with_functions(1))
    for _ in range(2):
        proto.functions[0].node.append(N("swish0", ["a"], [f"again{_}"], domain="own"))
    with pytest.raises(gd.LoadError):
        gd.load_onnx(proto.SerializeToString())


# shapes ---------------------------------------------------------------------------------------------------------------
def symbolic(shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> bytes:
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    graph = helper.make_graph([N("Neg", ["x"], ["y"])], "g", inputs, outputs)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def test_open_extents_are_set_by_name_or_by_shape() -> None:
    data = symbolic(["batch", 3, "batch"])
    assert gd.load_onnx(data, dims={"batch": 2}).graph.inputs[0].type.shape == (2, 3, 2)
    assert gd.load_onnx(data, shapes={"x": (4, 3, 5)}).graph.inputs[0].type.shape == (4, 3, 5)
    assert gd.load_onnx(symbolic(None), shapes={"x": [7]}).graph.inputs[0].type.shape == (7,)
    assert gd.load_onnx(symbolic([])).graph.inputs[0].type.shape == (1,), "a scalar is [1]"
    message = r"named extents: given batch \(axis 0 of input 'x', axis 2 of input 'x'\), wanted a number for each"
    with pytest.raises(gd.LoadError, match=message):
        gd.load_onnx(data)
    with pytest.raises(gd.LoadError, match=r"input 'x': given \[\?, 3\], wanted static extents: load_onnx\(…, shapes="):
        gd.load_onnx(symbolic([None, 3]))
    with pytest.raises(gd.LoadError, match=r"input 'x': given no shape, wanted a static one"):
        gd.load_onnx(symbolic(None))
    for shape in ((2, 4, 2), (2, 3), (2, 3, 0)):
        with pytest.raises(gd.LoadError, match="input 'x': given shapes="):
            gd.load_onnx(data, shapes={"x": shape})
    with pytest.raises(gd.LoadError, match="extents ≥ 1"):
        gd.load_onnx(symbolic([0, 2]))
    with pytest.raises(gd.LoadError, match="input 'x'"):
        gd.load_onnx(data, dims={"batch": 0})
    with pytest.raises(gd.UnknownNameError, match="dims: given bacth, wanted one of batch; nearest: batch"):
        gd.load_onnx(data, dims={"bacth": 2})
    with pytest.raises(gd.UnknownNameError, match="shapes: given y"):
        gd.load_onnx(data, shapes={"y": (2,)})
    with pytest.raises(gd.LoadError, match="input 'x': given type 8, wanted floats, ints or bools"):
        gd.load_onnx(symbolic([2], TensorProto.STRING))


def test_outputs_may_be_inputs_parameters_and_constants() -> None:
    nodes = [
        N("Relu", ["x"], ['a "strange"\nname']), N("Identity", ["w"], ["w2"]), N("Identity", ["x"], ["x2"]),
        N("Shape", ["x"], ["s"]), N("Size", ["x"], ["n"]),
    ]  # fmt: skip
    names = ['a "strange"\nname', "w", "w2", "x2", "s", "n"]
    loaded = gd.load_onnx(model(nodes, X, {"w": f(3)}, names))
    assert loaded.graph.output_names == tuple(names) and list(loaded.weights) == ["w"]
    relu, w, w2, x2, shape, size = given(loaded, X)
    np.testing.assert_array_equal(relu, X["x"].clip(0))
    np.testing.assert_array_equal(w, w2)
    assert (x2 == X["x"]).all() and shape.tolist() == [2, 3] and size.tolist() == [6]
    for graph in (loaded.graph, gd.load_onnx(cnn()).graph, gd.load_onnx(transformer()).graph):
        assert gd.parse(graph.text()).fingerprint() == graph.fingerprint()


def test_a_broadcast_is_a_node() -> None:
    data = model([N("Add", ["x", "b"], ["y"])], {"x": f(2, 3, 4)}, {"b": f(3, 1)}, ["y"])
    graph = gd.load_onnx(data).graph
    assert [n.op for n in graph if n.inputs] == ["broadcast_to", "add"]


# files ----------------------------------------------------------------------------------------------------------------
def test_a_model_is_read_from_a_path_and_its_data_from_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(cnn())
    for source in (path, str(path)):
        assert len(gd.load_onnx(source).weights) == 6
    proto = onnx.load_model_from_string(cnn())
    onnx.save_model(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    loaded = gd.load_onnx(path)
    np.testing.assert_array_equal(loaded.weights["fc.weight"], CNN_HELD["fc.weight"])
    with pytest.raises(gd.LoadError, match="data in 'm.bin', wanted the path of the model"):
        gd.load_onnx(path.read_bytes())
    (tmp_path / "m.bin").write_bytes((tmp_path / "m.bin").read_bytes()[:100])
    with pytest.raises(gd.LoadError, match="m.bin"):
        gd.load_onnx(path)
    changed = onnx.load_model(path, load_external_data=False)
    changed.graph.initializer[0].external_data[0].value = "../m.bin"
    path.write_bytes(changed.SerializeToString())
    with pytest.raises(gd.LoadError, match="given '../m.bin', wanted a file beside the model"):
        gd.load_onnx(path)
    for source in (tmp_path / "none.onnx", tmp_path, 3):
        with pytest.raises(gd.LoadError, match="wanted a path or bytes"):
            gd.load_onnx(source)  # type: ignore[arg-type]


def test_every_width_of_numbers_is_read() -> None:
    values = np.array([1.5, -2, 0.25], np.float32)
    brain = (values.view(np.uint32) >> 16).astype(np.int32)
    tensors = [
        numpy_helper.from_array(values.astype(np.float16), "half"),
        numpy_helper.from_array(values.astype(float), "wide"),
        TensorProto(name="brain", data_type=TensorProto.BFLOAT16, dims=[3], int32_data=brain.tolist()),
        TensorProto(name="bits", data_type=TensorProto.FLOAT16, dims=[3],
                    int32_data=values.astype(np.float16).view(np.uint16).astype(int).tolist()),
        TensorProto(name="plain", data_type=TensorProto.FLOAT, dims=[3], float_data=values.tolist()),
    ]  # fmt: skip
    data = model([N("Sum", [t.name for t in tensors], ["y"])], {}, {}, ["y"])
    proto = onnx.load_model_from_string(data)
    proto.graph.initializer.extend(tensors)
    loaded = gd.load_onnx(proto.SerializeToString())
    assert list(loaded.weights) == ["half", "wide", "brain", "bits", "plain"]
    for array in loaded.weights.values():
        np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize(
    ("kind", "field", "given", "dtype", "wanted"),
    [
        ("UINT8", "int32_data", [255, 300, -1], np.uint8, [255, 44, 255]),
        ("INT8", "int32_data", [-1, 200], np.int8, [-1, -56]),
        ("INT16", "int32_data", [-3], np.int16, [-3]),
        ("BOOL", "int32_data", [1, 0, 2], np.bool_, [True, False, True]),
        ("INT64", "int64_data", [-(1 << 40)], np.int64, [-(1 << 40)]),
        ("UINT64", "uint64_data", [1 << 63], np.uint64, [1 << 63]),
        ("DOUBLE", "double_data", [2.5], np.float32, [2.5]),
    ],
)
def test_numbers_in_fields_are_those_of_their_type(kind: str, field: str, given: Any, dtype: Any, wanted: Any) -> None:
    """A number that does not fit its type keeps its low bits, as it does for ONNX."""
    tensor = TensorProto(data_type=getattr(TensorProto, kind), dims=[len(given)], **{field: given})
    array = tensor_of(tensor, Outside(None, 0)).array
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, wanted)
    assert kind != "BOOL" or array.view(np.uint8).max() == 1
    tensor.dims[0] += 1
    with pytest.raises(Malformed) as refused:
        tensor_of(tensor, Outside(None, 0))
    assert refused.value.args[1:] == (f"{len(given)} values", f"{len(given) + 1} ([{len(given) + 1}])")
