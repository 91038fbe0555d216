"""Number types of ONNX: integers wrap or are refused, halves are rounded, and a few edges of operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import N, given, ints

import gdlab as gd

TYPES: dict[str, int] = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
RNG = np.random.default_rng(2)


def built(nodes: list[Any], fed: dict[str, np.ndarray], held: dict[str, np.ndarray], opset: int = 18) -> bytes:
    inputs = [helper.make_tensor_value_info(n, TYPES[a.dtype.name], a.shape) for n, a in fed.items()]
    results = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString())


def result(nodes: list[Any], fed: dict[str, np.ndarray], held: dict[str, np.ndarray], opset: int = 18) -> np.ndarray:
    loaded = gd.load_onnx(built(nodes, fed, held, opset))
    feeds = {n: a.astype(np.uint32 if a.dtype.kind in "iu" else np.float32) for n, a in fed.items()}
    return given(loaded, feeds)[0]


def refusal(nodes: list[Any], fed: dict[str, np.ndarray], held: dict[str, np.ndarray]) -> str:
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(built(nodes, fed, held))
    return str(caught.value)


# integers -------------------------------------------------------------------------------------------------------------
BINARY: dict[str, Any] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("fold", [False, True])
def test_narrow_integers_wrap(op: str, dtype: str, fold: bool) -> None:
    most = int(np.iinfo(dtype).max)
    a = np.array([0, 1, 2, 3, most, most - 1, most // 2, 100], dtype)
    b = np.array([1, 3, most, 5, most, 2, most, 100], dtype)
    nodes = [N(op, ["a", "b"], ["y"])]
    if "16" in dtype and op == "Mul" and not fold:
        assert "that may reach" in refusal(nodes, {"a": a, "b": b}, {})
        return
    got = result(nodes, {} if fold else {"a": a}, {"b": b} | ({"a": a} if fold else {}))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.astype(np.float64), BINARY[op](a, b).astype(np.float64))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_a_cast_to_a_narrow_integer_wraps(dtype: str) -> None:
    x = np.array([0, 1, 127, 128, 255, 256, 300, 40_000, 70_000], np.int64)
    nodes = [N("Cast", ["x"], ["y"], to=TYPES[dtype])]
    for fed, held in (({"x": x}, {}), ({}, {"x": x})):
        np.testing.assert_array_equal(result(nodes, fed, held).astype(np.int64), x.astype(dtype).astype(np.int64))
    np.testing.assert_array_equal(result(nodes, {}, {"x": -x}).astype(np.int64), (-x).astype(dtype).astype(np.int64))


def test_what_wraps_behind_other_ops_wraps_too() -> None:
    x = np.array([[200, 100, 3], [255, 255, 255]], np.uint8)
    for nodes, want in (
        ([N("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], x.sum(1, dtype=np.uint8)),
        ([N("Sum", ["x", "x", "x"], ["y"])], x * np.uint8(3)),
        ([N("Identity", ["x"], ["i"]), N("Add", ["i", "x"], ["s"]), N("Transpose", ["s"], ["y"])], (x + x).T),
    ):
        np.testing.assert_array_equal(result(nodes, {"x": x}, {"axes": ints(1)}).astype(np.uint8), want)
    low = np.array([-128, -1, 127], np.int8)
    for op, want in (("Neg", -low), ("Abs", np.abs(low))):
        np.testing.assert_array_equal(result([N(op, ["x"], ["y"])], {}, {"x": low}), want)


@pytest.mark.parametrize(("nodes", "dtype", "message"), [
    ([N("Mul", ["x", "x"], ["y"])], "int32", "integers that may reach 17,592,186,044,416"),
    ([N("Mul", ["x", "big"], ["y"])], "int64", "that may reach"),
    ([N("Add", ["x", "odd"], ["y"])], "int64", "the integer 33554433, which f32 does not have"),
    ([N("Equal", ["x", "odd"], ["y"])], "int64", "the integer 33554433, which f32 does not have"),
    ([N("Neg", ["odd"], ["y"])], "int64", "model: given the integer -33554433, which f32 does not have"),
    ([N("Sub", ["x", "x"], ["y"])], "uint32", "a number that may fall to -4,194,304, where uint32 wraps"),
    ([N("Sub", ["x", "x"], ["y"])], "uint64", "where uint64 wraps"),
    ([N("ReduceMean", ["x"], ["y"])], "int32", "integers that are computed in the graph"),
    ([N("ReduceSumSquare", ["x"], ["y"])], "int32", "that may reach"),
    ([N("Pow", ["x", "x"], ["y"])], "int32", "a power of integers"),
])  # fmt: skip
def test_integers_that_f32_does_not_have_are_refused(nodes: list[Any], dtype: str, message: str) -> None:
    x = np.array([1, 2, 3], dtype)
    held = {"big": np.array([1 << 20], dtype), "odd": np.array([(1 << 25) + 1], dtype)}
    assert message in refusal(nodes, {"x": x}, held)


def test_integers_that_are_small_enough_are_computed() -> None:
    ids = np.array([1, 5, 9], np.int64)
    nodes = [N("Equal", ["x", "pad"], ["m"]), N("Cast", ["m"], ["c"], to=7), N("Sub", ["one", "c"], ["k"]),
             N("Mul", ["x", "k"], ["p"]), N("Add", ["p", "two"], ["y"])]  # fmt: skip
    held = {"pad": ints(5), "one": ints(1), "two": ints(2)}
    np.testing.assert_array_equal(result(nodes, {"x": ids}, held), [3, 2, 11])
    nodes = [N("ArgMax", ["f"], ["a"], axis=0, keepdims=0), N("Sub", ["a", "two"], ["y"])]
    np.testing.assert_array_equal(result(nodes, {"f": np.float32([0, 0, 0, 1, 0])}, {"two": np.int64(7)}), [-4])


def test_constants_fold_in_their_own_type() -> None:
    with np.errstate(all="ignore"):
        for dtype in ("int32", "int64", "uint8", "uint32"):
            x = np.array([np.iinfo(dtype).max, 7, 1], dtype)
            for op in BINARY:
                nodes = [N(op, ["x", "x"], ["s"]), N("Cast", ["s"], ["y"], to=1)]
                np.testing.assert_array_equal(result(nodes, {}, {"x": x}), BINARY[op](x, x).astype(np.float32))
    large = np.array([(1 << 62) + 3], np.int64)
    nodes = [N("Div", ["x", "two"], ["d"]), N("Sub", ["d", "half"], ["y"])]
    got = result(nodes, {}, {"x": large, "two": ints(2), "half": ints(1 << 61)})
    np.testing.assert_array_equal(got, [1])


# halves ---------------------------------------------------------------------------------------------------------------
VALUES = np.array([1 / 3, 1.0009765625, 257.0, -2049.0, 65519.0, 65520.0, 3e-8, 1e-9, -0.0, 3.39e38], np.float32)
HALVES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("like", [False, True])
def test_a_cast_to_a_half_rounds(dtype: str, fold: bool, like: bool) -> None:
    held = {"like": np.zeros(1, HALVES[dtype])}
    cast = N("CastLike", ["x", "like"], ["h"]) if like else N("Cast", ["x"], ["h"], to=TYPES[dtype])
    nodes = [cast, N("Cast", ["h"], ["y"], to=1)]
    with np.errstate(all="ignore"):
        want = VALUES.astype(HALVES[dtype]).astype(np.float32)
    got = result(nodes, {} if fold else {"x": VALUES}, held | ({"x": VALUES} if fold else {}), 19)
    if fold:  # floats of rank 1 are parameters, which round in the graph
        assert got.shape == want.shape
    np.testing.assert_array_equal(got.astype(np.float32), want)


@pytest.mark.parametrize("dtype", HALVES)
def test_results_of_halves_are_halves(dtype: str) -> None:
    half = HALVES[dtype]
    a, b = RNG.normal(size=(2, 40)).astype(np.float32).astype(half)
    wide = {"a": a.astype(np.float32), "b": b.astype(np.float32)}
    for op, fold in (("Add", np.add), ("Mul", np.multiply), ("Sub", np.subtract)):
        data = built([N(op, ["a", "b"], ["y"])], {"a": a, "b": b}, {})
        got = given(gd.load_onnx(data), wide)[0].astype(np.float32)
        np.testing.assert_array_equal(got, fold(wide["a"], wide["b"]).astype(half).astype(np.float32))
    data = built([N("Neg", ["a"], ["n"]), N("Max", ["n", "b"], ["y"])], {"a": a, "b": b}, {})
    rounded = [n.op for n in gd.load_onnx(data).graph]
    assert rounded.count("round_to") == 2, "of the inputs: nothing else needs it"
    data = built([N("Exp", ["a"], ["y"])], {"a": np.full(3, 20, half)}, {})
    got = given(gd.load_onnx(data), {"a": np.full(3, 20, np.float32)})[0]
    assert np.isinf(got).all() == (dtype == "float16")


def test_halves_are_rounded_on_devices(device: str) -> None:
    data = built([N("Cast", ["x"], ["h"], to=10), N("Cast", ["h"], ["y"], to=1)], {"x": VALUES}, {})
    with gd.build_inference_session(gd.load_onnx(data).graph, device) as session:
        session.set_input("x", VALUES)
        session.step()
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(session.read_output(), VALUES.astype(np.float16).astype(np.float32))


# edges of operators ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "want"), [
    ("ReduceSum", lambda x: x), ("ReduceMean", lambda x: x), ("ReduceMax", lambda x: x), ("ReduceMin", lambda x: x),
    ("ReduceL1", np.abs), ("ReduceL2", np.abs), ("ReduceSumSquare", np.square), ("ReduceLogSumExp", lambda x: x),
])  # fmt: skip
@pytest.mark.parametrize("axes", ["none", "empty", "scalar"])
def test_no_axis_skips_the_reduction_alone(op: str, want: Any, axes: str) -> None:
    x = np.array(-1.5, np.float32) if axes == "scalar" else RNG.normal(size=(2, 3)).astype(np.float32)
    names = ["x", "axes"] if axes == "empty" else ["x"]
    nodes = [N(op, names, ["y"], noop_with_empty_axes=int(axes != "scalar"))]
    got = result(nodes, {"x": x}, {"axes": np.zeros(0, np.int64)})
    np.testing.assert_allclose(got, want(x).reshape(x.shape or (1,)), rtol=1e-6)


@pytest.mark.parametrize("names", [["x"], ["x", ""], ["x", "", ""], ["x", "low"], ["x", "", "high"]])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_clip_without_a_bound_ends_at_the_last_number(names: list[str], dtype: str) -> None:
    x = np.array([-np.inf, -3, 0, 3, np.inf, np.nan], dtype)
    held = {"low": np.array(-1, dtype), "high": np.array(1, dtype)}
    most = np.finfo(dtype).max
    low = held["low"] if "low" in names else -most
    high = held["high"] if "high" in names else most
    with np.errstate(all="ignore"):
        got = result([N("Clip", names, ["y"])], {"x": x}, held)
        np.testing.assert_array_equal(got.astype(np.float32), np.clip(x, low, high).astype(np.float32))
    attrs = {name: float(held[name]) for name in names[1:] if name}
    renamed = {{"low": "min", "high": "max"}[name]: number for name, number in attrs.items()}
    got = result([N("Clip", ["x"], ["y"], **renamed)], {"x": x}, {}, 6)
    np.testing.assert_array_equal(got.astype(np.float32), np.clip(x, low, high).astype(np.float32))


def test_clip_of_integers_needs_no_bound() -> None:
    x = np.array([0, 5, 90], np.int64)
    held = {"low": np.int64(2), "most": np.int64(np.iinfo(np.int64).max)}
    np.testing.assert_array_equal(result([N("Clip", ["x", "low"], ["y"])], {"x": x}, held), [2, 5, 90])
    np.testing.assert_array_equal(result([N("Clip", ["x", "low", "most"], ["y"])], {"x": x}, held), [2, 5, 90])
