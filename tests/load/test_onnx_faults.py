"""ONNX models that are refused: operators that are missing, models that make no sense, damaged files."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import N, X, cnn, f, ints, model, transformer

import gdlab as gd


def test_all_that_is_not_taken_is_listed_at_once() -> None:
    nodes = [
        N("Det", ["x"], ["a"], name="first"), N("Relu", ["a"], ["b"]), N("Unique", ["b"], ["c"]),
        N("Relu", ["x"], ["d"], domain="acme"), N("Resize", ["x", "", "s"], ["e"], name="grow", mode="lanczos"),
        N("Dropout", ["x", "r", "t"], ["k"], name="drop"), N("Loop", ["x"], ["l"]),
    ]  # fmt: skip
    held = {"s": np.array([2, 2], np.float32), "r": np.float32(0.5), "t": np.bool_(True)}
    data = model(nodes, {"x": f(2, 2)}, held, ["c", "d", "e", "k", "l"])
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(data)
    listed = str(caught.value.given).split("; ")
    assert listed == [
        "Det (first)", "Unique (c)", "acme.Relu (d)",
        "Resize (grow): mode=lanczos, where nearest, linear and cubic are taken",
        "Dropout (drop): dropout while training", "Loop (l)",
    ]  # fmt: skip
    assert str(caught.value).startswith("load_onnx: operators: given Det (first); Unique (c); ")


BAD: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a missing input": ([N("Relu", ["nothing"], ["y"])], {}, "Relu (y): input 'nothing'"),
    "a later input": ([N("Relu", ["b"], ["y"]), N("Relu", ["x"], ["b"])], {}, "Relu (y): input 'b'"),
    "a name twice": ([N("Relu", ["x"], ["y"]), N("Neg", ["x"], ["y"])], {}, "Neg (y): output 'y'"),
    "no operand": ([N("Add", ["x"], ["y"])], {}, "Add (y): inputs: given 1, wanted input 1"),
    "shapes": ([N("MatMul", ["x", "x"], ["y"])], {}, "MatMul (y): operands: given f32[2, 3] and f32[2, 3]"),
    "broadcast": ([N("Add", ["x", "c"], ["y"])], {"c": f(4)}, "Add (y): operands: given [2, 3] and [4]"),
    "a reshape": ([N("Reshape", ["x", "c"], ["y"])], {"c": ints(4, 2)}, "Reshape (y): shape: given [4, 2], wanted 6"),
    "an axis": ([N("Softmax", ["x"], ["y"], axis=5)], {}, "Softmax (y): axis: given 5, wanted -2 … 1"),
    "an attribute": ([N("Softmax", ["x"], ["y"], axis=1.5)], {}, "Softmax (y): axis: given 1.5, wanted int"),
    "an output": ([N("Relu", ["x"], ["z"])], {}, "output: given 'y'"),
    "rank 7": ([N("Reshape", ["x", "c"], ["y"])], {"c": ints(1, 1, 1, 1, 1, 2, 3)}, "rank 1 to 6"),
    "an empty slice": ([N("Slice", ["x", "a", "b"], ["y"])], {"a": ints(1), "b": ints(1)}, "slice: given no element"),
    "memory": ([N("Expand", ["c", "s"], ["y"])], {"c": ints(1), "s": ints(2**40)}, "while loading"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_model_that_makes_no_sense_is_refused(what: str) -> None:
    nodes, held, message = BAD[what]
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(model(nodes, X, held, ["y"]))
    assert message in str(caught.value)


def test_a_model_without_an_opset_and_training_forms_are_refused() -> None:
    proto = onnx.load_model_from_string(model([N("Relu", ["x"], ["y"])], X, {}, ["y"]))
    proto.opset_import[0].domain = "acme"
    with pytest.raises(gd.LoadError, match="opset_import: given no opset of ai.onnx"):
        gd.load_onnx(proto.SerializeToString())
    names = ["x", "a", "b", "c", "d"]
    held = {name: np.ones(3, np.float32) for name in names[1:]}
    for opset, attrs, message in ((6, {}, "is_test=0"), (15, {"training_mode": 1}, "training_mode=1")):
        data = model([N("BatchNormalization", names, ["y"], name="bn", **attrs)], X, held, ["y"], opset)
        with pytest.raises(gd.LoadError, match=rf"BatchNormalization \(bn\): {message}"):
            gd.load_onnx(data)


def test_a_huge_constant_fill_needs_no_memory() -> None:
    nodes = [N("ConstantOfShape", ["s"], ["c"]), N("ReduceMax", ["c"], ["m"], keepdims=0), N("Add", ["m", "x"], ["y"])]
    graph = gd.load_onnx(model(nodes, X, {"s": ints(2**20, 2**10)}, ["y"])).graph
    assert [n.op for n in graph if not n.inputs] == ["input", "full"]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(gd.LoadError, match=r"package onnx: given none, wanted pip install gdlab\[onnx\]"):
        gd.load_onnx(b"")


@pytest.mark.parametrize("which", ["cnn", "transformer"])
def test_damaged_bytes_give_a_load_error_and_nothing_else(which: str) -> None:
    good = {"cnn": cnn, "transformer": transformer}[which]()
    rng = np.random.default_rng(7)
    refused = 0
    for trial in range(200):
        data = bytearray(good)
        if trial % 4 == 3:
            data = data[: rng.integers(0, len(data))]
        for _ in range(rng.integers(1, 4)):
            if data:
                data[rng.integers(0, len(data))] = rng.integers(0, 256)
        try:
            gd.load_onnx(bytes(data))
        except gd.LoadError:
            refused += 1
    assert refused > 50
    for size in range(0, len(good), len(good) // 40):
        with pytest.raises(gd.LoadError):
            gd.load_onnx(good[:size])
