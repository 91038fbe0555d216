"""Quantized models: codes, scales and zero points round exactly as ONNX says, on the cpu device."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import given, model, wanted

import gdlab as gd

RNG = np.random.default_rng(2)
N = helper.make_node


def f(*shape: int) -> np.ndarray:
    return RNG.normal(0, 1, shape).astype(np.float32)


def codes(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def on_cpu(data: bytes, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in float32 arithmetic, which rounding depends on."""
    loaded = gd.load_onnx(data)
    session = gd.build_inference_session(loaded.graph, device="cpu")
    for name, values in loaded.weights.items():
        session.set_parameter(name, values)
    for name, values in fed.items():
        session.set_input(name, values)
    session.step()
    return [np.asarray(session.read_output_by_index(i)) for i in range(len(loaded.graph.output_ids))]


def exactly(data: bytes, fed: dict[str, np.ndarray]) -> None:
    for got, want in zip(on_cpu(data, fed), wanted(data, fed), strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want.astype(np.float64))


HALF = np.array([[-1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 200, -200]], np.float32)  # / 0.5: halves


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_codes_are_rounded_half_to_even_and_saturate(dtype: str) -> None:
    held = {"s": np.float32(0.5), "z": np.array(3, dtype)}
    for fed in ({"x": HALF}, {"x": HALF * 1000}):
        exactly(model([N("QuantizeLinear", ["x", "s", "z"], ["y"])], fed, held, ["y"], 21), fed)


def test_codes_by_axis_and_by_block() -> None:
    x = {"x": f(2, 3, 4)}
    held = {"s": np.array([0.1, 0.2, 0.05], np.float32), "z": np.array([1, 2, 3], np.uint8)}
    exactly(model([N("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1)], x, held, ["y"], 21), x)
    held = {"s": np.abs(f(2, 2, 4)) + 0.1, "z": codes("int8", 2, 2, 4)}
    exactly(model([N("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1, block_size=2)], x, held, ["y"], 21), x)


def test_weights_fold_to_a_parameter() -> None:
    held = {"w": codes("int8", 4, 3), "s": np.abs(f(3)) + 0.1, "z": codes("int8", 3)}
    nodes = [N("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1), N("MatMul", ["x", "d"], ["y"])]
    loaded = gd.load_onnx(model(nodes, {"x": f(2, 4)}, held, ["y"], 21))
    want = (held["w"].astype(np.int64) - held["z"].astype(np.int64)).astype(np.float32) * held["s"]
    np.testing.assert_array_equal(loaded.weights["w.dequantized"], want)


@pytest.mark.parametrize("k", [5, 700, 3000])
def test_products_of_integers_are_exact(k: int) -> None:
    """From 517 products of 8 bits on, float32 does not have every partial sum."""
    x = {"x": f(3, k) * 9}
    held = {"w": codes("int8", k, 4), "zw": codes("int8", 4), "s": np.float32(0.01)}
    nodes = [
        N("DynamicQuantizeLinear", ["x"], ["q", "sx", "zx"]),
        N("MatMulInteger", ["q", "w", "zx", "zw"], ["m"]), N("Cast", ["m"], ["y"], to=1),
    ]  # fmt: skip
    exactly(model(nodes, x, held, ["y"], 21), x)


def test_sums_that_are_rounded_go_nowhere_but_to_floats() -> None:
    held = {"w": codes("int8", 700, 4)}
    nodes = [N("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), N("MatMulInteger", ["q", "w", "z"], ["m"]),
             N("Add", ["m", "m"], ["y"])]  # fmt: skip
    with pytest.raises(gd.LoadError, match=r"Add \(y\): integers that may reach 22,848,000, beyond what f32 has"):
        gd.load_onnx(model(nodes, {"x": f(3, 700)}, held, ["y"], 21))


def test_a_convolution_of_codes() -> None:
    x = {"x": f(1, 3, 6, 6)}
    held = {"w": codes("int8", 4, 3, 3, 3), "sw": np.abs(f(4)) * 0.01 + 0.01, "zw": np.zeros(4, np.int8),
            "sx": np.float32(0.02), "zx": np.uint8(120), "sy": np.float32(0.5), "zy": np.uint8(100),
            "b": RNG.integers(-500, 500, 4).astype(np.int32)}  # fmt: skip
    nodes = [N("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
             N("QLinearConv", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["c"], pads=[1, 1, 1, 1]),
             N("DequantizeLinear", ["c", "sy", "zy"], ["y"])]  # fmt: skip
    data = model(nodes, x, held, ["y"], 21)
    quantized = np.clip(np.rint(x["x"] / np.float32(0.02)) + 120, 0, 255) - 120
    padded = np.pad(quantized, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.stack([[(padded[0, :, i : i + 3, j : j + 3] * w).sum() for i in range(6) for j in range(6)]
                     for w in held["w"].astype(np.float64)]).reshape(1, 4, 6, 6)  # fmt: skip
    scale = (np.float32(0.02) * held["sw"] / np.float32(0.5)).reshape(1, 4, 1, 1)
    rounded = np.rint((sums + held["b"].reshape(1, 4, 1, 1)).astype(np.float32) * scale) + 100
    want = (np.clip(rounded, 0, 255) - 100) * 0.5
    np.testing.assert_array_equal(on_cpu(data, x)[0], want)
    integer = [N("QuantizeLinear", ["x", "sx", "zx"], ["q"]), N("Cast", ["c"], ["y"], to=1)]
    integer.insert(1, N("ConvInteger", ["q", "w", "zx"], ["c"], pads=[1, 1, 1, 1]))
    np.testing.assert_array_equal(on_cpu(model(integer, x, held, ["y"], 21), x)[0], sums)


def test_a_product_of_codes() -> None:
    x = {"x": f(4, 5)}
    held = {"w": codes("uint8", 5, 3), "sw": np.float32(0.02), "zw": np.uint8(128), "sx": np.float32(0.03),
            "zx": np.uint8(90), "sy": np.float32(0.2), "zy": np.uint8(100)}  # fmt: skip
    nodes = [N("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
             N("QLinearMatMul", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"])]  # fmt: skip
    exactly(model(nodes, x, held, ["y"], 21), x)


def test_the_reference_agrees_where_nothing_is_half_way() -> None:
    x = {"x": f(2, 4)}
    data = model([N("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], x, {}, ["y", "s", "z"], 21)
    for got, want in zip(given(gd.load_onnx(data), x), wanted(data, x), strict=True):
        np.testing.assert_allclose(got.ravel(), want.ravel(), rtol=1e-6)
