"""Numbers in eleven dtypes at the edge of a compiled graph (C-12)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_graphs import graph_of, ready, same, state

from gdlab import ops
from gdlab.base.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from gdlab.base.formats import BOUNDARY, bf16_numpy, to_bytes
from gdlab.base.types import DType
from gdlab.compiled import CompiledGraph, build_compiled_graph, load_compiled_graph
from gdlab.graph import Graph


def through(device: str, boundary: dict[str, Any], size: int = 4) -> CompiledGraph:
    """y = x + 0, in boundary dtypes."""
    with Graph() as g:
        graph_of({"y": ops.input("x", (size,)) + 0.0}, g)
    return build_compiled_graph(g, device, boundary=boundary)


def bits(words: list[int]) -> np.ndarray:
    return np.array(words, np.uint32).view(np.float32)


def test_every_dtype_goes_in_and_comes_out(device: str) -> None:
    for dtype, numpy in BOUNDARY.items():
        graph = through(device, {"x": dtype, "y": dtype})
        assert graph.inputs[0].dtype == graph.outputs[0].dtype == dtype
        want = [1, 0, 1, 1] if dtype == "bool" else [1, 0, 2, 100]
        (found,) = graph.run({"x": want})
        assert found.dtype == (bf16_numpy() if dtype == "bf16" else numpy)
        if dtype != "bf16":
            assert found.tolist() == want
        data = to_bytes(np.array(want, np.float32), dtype)
        assert graph.run_typed([("x", data, dtype)]) == [(data, dtype)] == graph.run_typed({"x": (data, dtype)})
        for other in BOUNDARY:
            if dtype == "bool" or other != "bool":
                asked = to_bytes(np.array(want, np.float32), other)
                assert graph.run_typed([("x", data, dtype)], [other]) == [(asked, other)], (dtype, other)


def test_brain_floats_are_what_they_were(device: str) -> None:
    graph = through(device, {"x": "bf16"})
    assert graph.run({"x": [1, 2, 3, 4]})[0].tolist() == [1, 2, 3, 4]
    data = np.array([0x3F80, 0x4000, 0x4040, 0x4080], np.uint16).tobytes()
    assert graph.run_typed([("x", data, "bf16")]) == [(np.array([1, 2, 3, 4], np.float32).tobytes(), "f32")]


def test_sixteen_bits_are_rounded_to_the_nearest_even(device: str) -> None:
    x = bits([0x3F808000, 0x3F818000, 0x7F800001, 0x7F7FFFFF])
    (((data, _),),) = [through(device, {"y": "bf16"}).run_typed([("x", x.tobytes(), "f32")])]
    found = np.frombuffer(data, np.uint16)
    assert found[[0, 1, 3]].tolist() == [0x3F80, 0x3F82, 0x7F80]
    assert found[2] & 0x7F80 == 0x7F80 and found[2] & 0x7F
    half = through(device, {"y": "f16"})
    (y,) = half.run({"x": np.array([65519.996, 65520, 2.0**-24, 2.0**-26], np.float32)})
    assert y.dtype == np.float16 and y.tolist() == [65504, np.inf, 2.0**-24, 0]
    (y,) = half.run({"x": [np.inf, -np.inf, np.nan, 0]})
    assert y[:2].tolist() == [np.inf, -np.inf] and np.isnan(y[2])
    with pytest.raises(DTypeError, match="65520.* at index 1, wanted numbers of at most 65504"):
        through(device, {"x": "f16"}).run({"x": [0, 65520.0, 1, 2]})


def test_a_boundary_shows_values_of_its_own_alone(device: str) -> None:
    graph = through(device, {"y": "bf16"})
    x = np.array([1.001, -3.1415926, 1e-3, 7], np.float32)
    near = np.frombuffer(graph.run_typed([("x", x.tobytes(), "f32")], ["f32"])[0][0], np.float32)
    assert not same(near, x) and same(near, (near.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
    assert to_bytes(near, "bf16") == graph.run_typed([("x", x.tobytes(), "f32")])[0][0]
    small = through(device, {"y": "i8"})
    data = np.array([300, -200, 1.9, np.nan], np.float32).tobytes()
    assert np.frombuffer(small.run_typed([("x", data, "f32")], ["f32"])[0][0], np.float32).tolist() == [127, -128, 1, 0]
    assert np.frombuffer(small.run_typed([("x", data, "f32")], ["u8"])[0][0], np.uint8).tolist() == [127, 0, 1, 0]


def test_integers_are_cut_and_saturate(device: str) -> None:
    x = np.array([3e9, -1.5, np.nan, -3e9], np.float32)
    assert through(device, {"y": "i32"}).run({"x": x})[0].tolist() == [2147483647, -1, 0, -2147483648]
    assert through(device, {"y": "u8"}).run({"x": [300, -5, 254.9, np.inf]})[0].tolist() == [255, 0, 254, 255]
    assert through(device, {"y": "bool"}).run({"x": [0, -0.0, np.nan, 1e-40]})[0].tolist()[:3] == [False, False, True]
    assert through(device, {"x": "i64"}).run({"x": [16777217, 0, 0, 0]})[0][0] == 16777216
    with pytest.raises(DTypeError, match="float64 data"):
        through(device, {"x": "i8"}).run({"x": [1.5, 0, 0, 0]})
    with pytest.raises(DTypeError, match="128 at index 2, wanted integers in -128 … 127"):
        through(device, {"x": "i8"}).run({"x": [0, 0, 128, 0]})


def test_odd_counts_of_sixteen_bits(device: str) -> None:
    graph = through(device, {"x": "f16", "y": "f16"}, 7)
    x = np.arange(7, dtype=np.float16)
    assert same(graph.run({"x": x})[0], x)
    assert graph.run_typed([("x", x.tobytes(), "f16")]) == [(x.tobytes(), "f16")]
    raw = graph.run_raw({"x": x})[0]
    assert same(raw.numpy().copy(), x) and raw.mem.format == "B" and bytes(raw.mem) == x.tobytes() and raw.nbytes == 14


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_sixteen_bits_are_packed_on_the_device(device: str, to: str, tmp_path: Path) -> None:
    """Every kind of run reads back two bytes an element, and all of them the same bits."""
    words = [0x7F800001, 0xFFC12345, 0x7F800000, 0x477FEFFF, 0x33800000, 0x80000001, 0x3F808000, 0x3F818000, 0x47000000]
    with Graph() as g:
        y = ops.input("x", (3, 3)) * ops.parameter("w", (3, 3))
        graph_of({"y": y, "again": y, "s": y.sum(1)}, g)
    graph = build_compiled_graph(g, device, boundary={"y": to, "again": to})
    graph.set_param("w", np.ones((3, 3)))
    x = {"x": bits(words).reshape(3, 3)}
    plain = build_compiled_graph(g, device, share_parameters_from=graph).run(x)[0]
    want, each = to_bytes(plain, to), 2 * 2 * 9 + 3 * 4
    runs: dict[str, Callable[[CompiledGraph], list[bytes]]] = {
        "run": lambda g: [a.tobytes() for a in g.run(x)[:2]],
        "out": lambda g: [a.tobytes() for a in g.run(x, out=[np.empty((3, 3), graph.run(x)[0].dtype), None, None])[:2]],
        "run_raw": lambda g: [bytes(raw.mem) for raw in g.run_raw(x)[:2]],
        "run_typed": lambda g: [data for data, _ in g.run_typed([("x", x["x"].tobytes(), "f32")])[:2]],
        "run_async": lambda g: [a.tobytes() for a in g.run_async(x).result()[:2]],
        "run_pipelined": lambda g: [a.tobytes() for a in g.run_pipelined([x])[0][:2]],
    }
    for name, run in runs.items():
        of = build_compiled_graph(g, device, boundary={"y": to, "again": to}, share_parameters_from=graph)
        before = of.counters()["readback_bytes"]
        assert run(of) == [want, want], name
        assert of.counters()["readback_bytes"] - before <= each + 12, name  # an odd one and its filler are a word
        assert [a.tobytes() for a in of.read_outputs()[:2]] == [want, want], name
        assert of.read_output_row(1, 2).tobytes() == want[12:], name
    graph.bind_handle("out0", np.zeros((3, 3)))
    for copy in (graph, graph.clone(), graph.context()):
        assert copy.run(x)[0].tobytes() == want
    assert as_bytes(graph.read_handle("out0")) == want
    graph.save(tmp_path / "packed.gdlab", weights=True)
    assert load_compiled_graph(tmp_path / "packed.gdlab").run(x)[1].tobytes() == want


def as_bytes(array: Any) -> bytes:
    return bytes(array.tobytes())


def test_gradients_and_a_part_of_the_rows_are_packed(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 3))
        graph_of([(x @ ops.parameter("w", (3, 5))).square().mean_all()], g)
    options: dict[str, Any] = {"bucket_axes": {"x": 0}, "gradients": True}
    graph = build_compiled_graph(g, device, boundary={"∂w": "bf16"}, **options)
    plain = build_compiled_graph(g, device, **options)
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    for each in (graph, plain):
        each.set_param("w", np.linspace(-1, 2, 15).reshape(3, 5))
        each.set_active_extent((3, 4))
    (loss, gradient), (same_loss, wide) = graph.run({"x": x}), plain.run({"x": x})
    assert same(loss, same_loss) and gradient.tobytes() == to_bytes(wide, "bf16")


def test_tokens_of_other_integers(device: str) -> None:
    with Graph() as g:
        t = ops.input_u32("t", (3,))
        graph_of({"t2": t, "rows": ops.embedding(t, ops.parameter("e", (5, 2)))}, g)
    graph = ready(g, device, boundary={"t": "i64", "t2": "i32"})
    tokens = np.array([4, 0, 2], np.int64)
    t2, rows = graph.run({"t": tokens})
    assert t2.dtype == np.int32 and t2.tolist() == [4, 0, 2] and same(rows, graph.read_param("e")[tokens])
    before = state(graph)
    for data, error in (([-1, 0, 0], DTypeError), ([5, 0, 0], ShapeError), ([2.0, 0, 0], DTypeError)):
        with pytest.raises(error):
            graph.run({"t": data})
    assert state(graph) == before


def test_typed_calls_refuse_what_does_not_fit(device: str) -> None:
    graph = through(device, {"x": "bf16"})
    good = bytes(8)
    graph.run_typed([("x", good, "bf16")])
    before = state(graph)
    refused: list[tuple[Any, Any, type[Exception], str]] = [
        ([("x", bytes(7), "bf16")], None, ShapeError, "'x': given 7 bytes, wanted 8 (4 elements of bf16)"),
        ([("x", bytes(9), "bf16")], None, ShapeError, "given 9 bytes"),
        ([("x", good, "f8")], None, DTypeError, "given 'f8', wanted one of f32, f16"),
        ([("x", [1, 2], "bf16")], None, DTypeError, "given list, wanted contiguous bytes"),
        ([("y", good, "bf16")], None, UnknownNameError, "input: given y"),
        ([("x", good, "bf16")] * 2, None, ArgumentError, "'x' twice"),
        ([("x", good)], None, ArgumentError, "an entry that is no triple"),
        ({"x": good}, None, ArgumentError, "'x': given bytes, wanted (bytes, dtype)"),
        (3, None, ArgumentError, "inputs: given int"),
        ([("x", good, "bf16")], ["f32", None], ArgumentError, "out_dtypes: given 2 entries"),
        ([("x", good, "bf16")], 5, ArgumentError, "run_typed: out_dtypes: given 5, wanted a list"),
        ([("x", good, "bf16")], ["f8"], DTypeError, "dtype of 'y': given 'f8'"),
    ]
    for inputs, out, error, text in refused:
        with pytest.raises(error, match=re.escape(text)):
            graph.run_typed(inputs, out)
    assert state(graph) == before


def test_parameters_are_set_from_bytes(device: str) -> None:
    with Graph() as g:
        w, h = ops.parameter("w", (3,)), ops.parameter("h", (3,), dtype=DType.f16)
        graph_of([ops.input("x", (3,)) * w + h.to_f32()], g)
    graph = ready(g, device)
    graph.set_param_typed("w", np.array([7, 0, 255], np.uint8).tobytes(), "u8")
    assert graph.read_param("w").tolist() == [7, 0, 255]
    graph.set_param_typed("w", np.array([0x3F80, 0x4000, 0x4040], np.uint16).tobytes(), "bf16")
    assert graph.read_param("w").tolist() == [1, 2, 3]
    graph.set_param_typed("h", np.array([1.5, -2, 0.25], np.float16).tobytes(), "f16")
    assert graph.read_param("h").tolist() == [1.5, -2, 0.25] and graph.params[1].dtype == "f16"
    graph.set_param_typed("h", np.array([4, 5, 6], np.float64).tobytes(), "f64")
    assert graph.run({"x": [1, 1, 1]})[0].tolist() == [5, 7, 9]
    before = state(graph)
    for name, data, dtype, error, text in (
        ("w", bytes(11), "f32", ShapeError, "set_param_typed: 'w': given 11 bytes, wanted 12"),
        ("w", bytes(13), "f32", ShapeError, "given 13 bytes"),
        ("w", bytes(12), "f33", DTypeError, "wanted one of f32"),
        ("v", bytes(12), "f32", UnknownNameError, "parameter: given v"),
        ("h", bytes(5), "f16", ShapeError, "given 5 bytes"),
        ("h", np.full(3, 1e6).tobytes(), "f64", DTypeError, "at most 65504"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            graph.set_param_typed(name, data, dtype)
    assert state(graph) == before
