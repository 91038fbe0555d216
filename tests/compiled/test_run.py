"""`CompiledGraph.run`: values, outputs, refusals, parameters (C-01 … C-04)."""

from __future__ import annotations

import copy
import os
import re
import struct
from typing import Any

import ml_dtypes  # a dependency of jax, which the tests have: NumPy then has bfloat16
import numpy as np
import pytest
from compiled_graphs import W, X, graph_of, ready, same, small, state
from gated import SWIGLU, SWIGLU_BT, Form, ffn
from machine import needs

import gdlab as gd
from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import (
    ArgumentError,
    DTypeError,
    GraphError,
    InputConflictError,
    MissingInputError,
    NoRunError,
    OutputIndexError,
    ParamNotSetError,
    SessionError,
    ShapeError,
    UnknownNameError,
)
from gdlab.compiled import CompiledGraph, OutputSlot, TensorSpec, build_compiled_graph
from gdlab.graph import Graph
from gdlab.op.reference import evaluate
from gdlab.rewrite import optimize


# C-01 -----------------------------------------------------------------------------------------------------------------
def test_runs_compute_the_graph_and_repeat_bit_by_bit(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (7, 13))
        y = (x @ ops.parameter("w", (13, 5)) + ops.parameter("b", (5,))).gelu()
        graph_of([y, y.softmax()], g)
    graph = ready(g, device)
    a, b = (np.random.default_rng(k).standard_normal((7, 13)).astype(np.float32) for k in (1, 2))
    w = {name: graph.read_param(name) for name in graph.param_names}
    found = evaluate(g, {"x": a, **w})
    wanted = [found[id] for id in g.output_ids]
    first = graph.run({"x": a})
    for got, want in zip(first, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert all(same(graph.run({"x": a}), first) for _ in range(3))
    other = graph.run({"x": b})
    assert not same(other, first) and same(graph.run([("x", a.ravel())]), first) and same(graph.run({"x": b}), other)
    assert graph.epoch == 7 == graph.counters()["forwards"]


def test_random_numbers_are_those_of_the_draw(device: str) -> None:
    with Graph() as g:
        graph_of([ops.rand_uniform((40,), seed=3)], g)
    graph = build_compiled_graph(g, device)
    drawn = [graph.run()[0] for _ in range(3)]
    assert graph.draw == 3 and not same(drawn[0], drawn[1]) and not same(drawn[1], drawn[2])
    graph.draw = 1
    assert same(graph.run()[0], drawn[1]) and same(graph.run()[0], drawn[2]) and graph.draw == 3
    for bad in (-1, True, 1.5, 1 << 32):
        with pytest.raises(ArgumentError, match="draw: draw: given"):
            graph.draw = bad  # type: ignore[assignment]
    assert graph.draw == 3


def test_the_graph_is_copied_and_described(device: str) -> None:
    g = small()
    graph = build_compiled_graph(g, device, boundary={"y": "f16"})
    g.set_outputs([g.outputs[1]])
    assert graph.inputs == (TensorSpec("x", (2, 3), "f32"),) and graph.input_names == ("x",)
    assert graph.outputs == (TensorSpec("y", (2, 4), "f16"), TensorSpec("x", (2, 3), "f32"))
    assert graph.params == (TensorSpec("w", (3, 4), "f32"),) and graph.param_names == ("w",)
    assert graph.output_slots == (
        OutputSlot(0, "y", 0, 8, 16, "f16", (2, 4)), OutputSlot(1, "x", 256, 6, 24, "f32", (2, 3)),
    )  # fmt: skip
    assert graph.device.kind == device and graph.states == () and graph.active_extent is None
    assert graph.plan.graph is graph.graph and graph.output_names == ("y", "x") and graph.report is not None
    count = len(graph.plan.dispatches)
    assert repr(graph) == f"<CompiledGraph: {device}, 1 input, 2 outputs, {count} dispatches, run 0>"
    with pytest.raises(TypeError, match="build_compiled_graph"):
        CompiledGraph()
    assert gd.build_compiled_graph is build_compiled_graph and gd.CompiledGraph is CompiledGraph


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"boundary": {"z": "f16"}}, UnknownNameError, "input or output: given z, wanted"),
        ({"boundary": {"x": "f8"}}, DTypeError, "boundary of 'x': given 'f8', wanted one of f32, f16, bf16"),
        ({"boundary": ["x"]}, ArgumentError, "boundary: given list"),
        ({"max_in_flight": 0}, ArgumentError, "max_in_flight: given 0, wanted an int in 1 … 8"),
        ({"max_in_flight": 9}, ArgumentError, "max_in_flight: given 9"),
        ({"landing_bytes": True}, ArgumentError, "landing_bytes: given True"),
        ({"share_parameters_from": 3}, SessionError, "share_parameters_from: compiled graph: given int"),
        ({"gradients": True}, ValueError, "differentiate: loss: given"),
        ({"optimize": 5}, ArgumentError, "optimize: given 5, wanted a dict of allow, budget"),
        ({"optimize": "ab"}, ArgumentError, "optimize: given 'ab', wanted a dict"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        build_compiled_graph(small(), "cpu", **options)


def test_graphs_that_cannot_be_compiled_are_refused() -> None:
    with pytest.raises(GraphError, match="build_compiled_graph: graph: given str, wanted a Graph"):
        build_compiled_graph("x")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="outputs: given none"):
        build_compiled_graph(Graph())
    with Graph() as g:
        graph_of([ops.input("·n", (2,)) + 1.0], g)
    with pytest.raises(ArgumentError, match="names that do not begin with ·"):
        build_compiled_graph(g, "cpu")


@pytest.mark.parametrize("names", [["", "out0"], ["out1", ""], ["y", "y"]])
def test_two_outputs_of_one_name_are_refused(names: list[str]) -> None:
    with Graph() as g:
        x = ops.input("x", (2,))
        g.set_output_ids([(value.id, name) for value, name in zip((x + 1, x * 2), names, strict=True)])
    twice = re.escape(repr(names[0] or names[1]))
    with pytest.raises(GraphError, match=f"build_compiled_graph: output names: given {twice} for outputs 0 and 1"):
        build_compiled_graph(g, "cpu")


# C-02 -----------------------------------------------------------------------------------------------------------------
def test_outputs_stand_in_order_each_in_memory_of_its_own(device: str) -> None:
    with Graph() as g:
        x, w = ops.input("x", (2, 3)), ops.parameter("w", (3, 4))
        y = (x @ w).relu()
        graph_of({"y": y, "x": x, "again": y, "w": w, "view": y.reshape((8,)), "one": ops.full((3,), 1.0)}, g)
    graph = build_compiled_graph(g, device)
    graph.set_param("w", W)
    y, x_out, again, w_out, view, one = graph.run({"x": X})
    want = np.maximum(X @ W, 0)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    assert same(x_out, X) and same(w_out, W) and same(again, y) and same(view, y.reshape(8)) and one.tolist() == [1] * 3
    y[...] = 7
    x_out[...] = 7
    w_out[...] = 7
    assert not (again == 7).any() and not (view == 7).any() and same(graph.read_param("w"), W)
    assert all(a.flags.writeable and a.flags.c_contiguous and a.flags.owndata for a in (again, view, one))
    assert graph.run({"x": X})[0].tobytes() == again.tobytes()


@pytest.mark.parametrize("form", [SWIGLU, SWIGLU_BT], ids=str)
@pytest.mark.parametrize("given", ["option", "differentiated", "packed first"])
def test_gradients_are_outputs_in_the_shape_of_their_parameters(device: str, given: str, form: Form) -> None:
    g, rng = ffn(form), np.random.default_rng(0)
    feeds = {n.name: rng.standard_normal(n.type.shape).astype(np.float32) for n in (*g.inputs, *g.parameters)}
    full, _ = differentiate(g)
    found = evaluate(full, feeds)
    want = [found[id] for id in full.output_ids]
    if given == "option":
        graph = build_compiled_graph(g, device, gradients=True)
    else:
        before = optimize(g, phase="forward")[0] if given == "packed first" else g
        graph = build_compiled_graph(differentiate(before)[0], device)
    graph.load_params({n.name: feeds[n.name] for n in g.parameters})
    names = ("gate", "up", "down", "bias")
    assert graph.output_names == ("loss", "out", *(f"∂{name}" for name in names))
    assert [o.shape for o in graph.outputs[2:]] == [feeds[name].shape for name in names]
    for got, right in zip(graph.run({n.name: feeds[n.name] for n in g.inputs}), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=2e-4, atol=2e-5)


def test_a_call_by_name_gives_one_array_or_a_dict(device: str) -> None:
    graph = ready(small(), device)
    found = graph(x=X)
    assert list(found) == ["y", "x"] and same(found["x"], X)
    with Graph() as g:
        graph_of([ops.input("x", (3,)) * 2.0], g)
    assert build_compiled_graph(g, device)(x=[1, 2, 3]).tolist() == [2, 4, 6]
    with Graph() as g:
        graph_of([ops.input("self", (3,)) * 2.0], g)
    assert build_compiled_graph(g, device)(self=[1, 2, 3]).tolist() == [2, 4, 6]


def test_some_outputs_or_rows_alone_are_read(device: str) -> None:
    graph = ready(small(), device)
    with pytest.raises(NoRunError, match="read_output_row: outputs: given no run yet"):
        graph.read_output_row(0, 0)
    y, x = graph.run({"x": X})
    before = graph.counters()
    found = graph.run_read_outputs({"x": X}, [1])
    assert found[0] is None and same(found[1], x)
    assert graph.counters()["readback_bytes"] - before["readback_bytes"] == 24
    assert same(graph.read_output_row(0, 1), y[1]) and graph.epoch == 2
    assert graph.run_read_outputs({"x": X}, []) == [None, None] and graph.epoch == 3
    for index in (-1, 2, True, "y"):
        with pytest.raises(OutputIndexError, match=r"wanted 0 … 1: 2 outputs"):
            graph.run_read_outputs({"x": X}, [index])  # type: ignore[list-item]
        with pytest.raises(OutputIndexError):
            graph.read_output_row(index, 0)  # type: ignore[arg-type]
    for row in (-1, 2, True):
        with pytest.raises(ArgumentError, match="row: given"):
            graph.read_output_row(0, row)
    assert graph.epoch == 3


def test_outputs_fill_arrays_of_the_caller(device: str) -> None:
    graph = ready(small(), device, boundary={"y": "f16"})
    want = graph.run({"x": X})
    y = np.zeros((2, 4), np.float16)
    found = graph.run({"x": X}, out=[y, None])
    assert found[0] is y and same(found, want)
    before = state(graph)
    frozen = np.zeros((2, 4), np.float16)
    frozen.flags.writeable = False
    for out in ([y], [np.zeros((2, 4), np.float32), None], [np.zeros((4, 2), np.float16), None], [frozen, None], 3,
                [np.zeros((4, 2), np.float16).T, None], [[0] * 8, None]):  # fmt: skip
        with pytest.raises(SessionError, match="run: out"):
            graph.run({"x": X}, out=out)  # type: ignore[arg-type]
    assert state(graph) == before


# C-03 -----------------------------------------------------------------------------------------------------------------
REFUSED: list[tuple[Any, type[Exception], str]] = [
    ({}, MissingInputError, "run: inputs: given no value for x, wanted a value in the call, bind_handle"),
    ({"y": X}, UnknownNameError, "run: input: given y, wanted"),
    ({"x": X, "·extent": 1}, UnknownNameError, "run: input: given ·extent"),
    ([("x", X), ("x", X)], ArgumentError, "run: inputs: given 'x' twice, wanted each name once"),
    ([("x",)], ArgumentError, "run: inputs: given tuple in a sequence"),
    (3, ArgumentError, "run: inputs: given int, wanted a mapping"),
    ("x", ArgumentError, "run: inputs: given str"),
    ({"x": np.zeros((3, 2), np.float32)}, ShapeError, "run: 'x': given shape [3, 2], wanted [2, 3] or flat 6"),
    ({"x": np.zeros(5)}, ShapeError, "run: 'x': given shape [5], wanted [2, 3] or flat 6"),
    ({"x": [[1, 2, 3], [4, 5]]}, ShapeError, "run: 'x': given a ragged sequence"),
    ({"x": np.full(6, 1e300)}, DTypeError, "run: 'x': given 1e+300 at index 0, wanted numbers of at most 3.402"),
    ({"x": X.astype(complex)}, DTypeError, "run: 'x': given complex128"),
    ({"x": np.array(["a"] * 6)}, DTypeError, "run: 'x': given <U1, wanted real numbers"),
    ({"x": np.array([None] * 6)}, DTypeError, "run: 'x': given object"),
]


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize(("inputs", "error", "text"), REFUSED)
def test_inputs_that_do_not_fit_change_nothing(device: str, inputs: Any, error: type[Exception], text: str) -> None:
    graph = ready(small(), device)
    raw = graph.run_raw({"x": X})
    before, bits = state(graph), raw[0].numpy().tobytes()
    with pytest.raises(error, match=re.escape(text)):
        graph.run(inputs)
    assert state(graph) == before and raw[0].valid and raw[0].numpy().tobytes() == bits
    graph.run({"x": X})
    assert graph.epoch == 2 and not raw[0].valid


def test_everything_real_of_the_right_size_is_taken(device: str) -> None:
    graph = ready(small(), device)
    want = graph.run({"x": X})
    frozen = X.copy()
    frozen.flags.writeable = False
    wide = np.zeros((4, 6), np.float32)
    wide[::2, ::2] = X
    for data in (X.astype(np.float64), np.asfortranarray(X), X.ravel(), frozen, wide[::2, ::2], X.tolist()):
        assert same(graph.run({"x": data}), want)
    whole = np.array([[0, 1, 2], [3, 4, 250]])
    exact = graph.run({"x": whole.astype(np.float32)})
    for dtype in (np.uint8, np.int64, np.float16):
        assert same(graph.run({"x": whole.astype(dtype)}), exact)
    assert same(graph.run({"x": whole > 1}), graph.run({"x": (whole > 1).astype(np.float32)}))
    special = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e-42], np.float32)
    assert graph.run({"x": special})[1].ravel().tobytes() == special.tobytes()


def test_indices_lie_below_what_they_index(device: str) -> None:
    with Graph() as g:
        graph_of([ops.embedding(ops.input_u32("t", (4,)), ops.parameter("e", (5, 2)))], g)
    graph = ready(g, device)
    assert same(graph.run({"t": np.array([0, 4, 1, 1], np.int64)})[0], graph.read_param("e")[[0, 4, 1, 1]])
    before = state(graph)
    for data, error, text in (
        ([0, 5, 1, 1], ShapeError, "run: 't': given index 5 at position 1, wanted 0 … 4"),
        ([0, -1, 1, 1], DTypeError, "-1 at index 1"),
        ([0.0, 1, 1, 1], DTypeError, "float64 data"),
        ([0, 1 << 32, 1, 1], DTypeError, "4294967296 at index 1"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            graph.run({"t": data})
    assert state(graph) == before


def test_what_the_caller_gives_and_gets_is_his_own(device: str) -> None:
    graph = ready(small(), device)
    x, w = X.copy(), W.copy()
    graph.set_param("w", w)
    graph.bind_handle("x", x)
    x[...] = 9
    w[...] = 9
    want = graph.run({"x": X})
    found = graph.run()
    assert same(found, want)
    found[1][...] = 5
    assert same(graph.run(), want)


# C-04 -----------------------------------------------------------------------------------------------------------------
def test_parameters_have_a_value_before_a_run(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (3,))
        graph_of([x * ops.parameter("a", (3,)) + ops.parameter("b", (3,)) * ops.parameter("c", (3,))], g)
    graph = build_compiled_graph(g, device)
    graph.set_param("b", [1, 2, 3])
    with pytest.raises(ParamNotSetError, match="run: parameters: given no value for a, c, wanted set_param, i"):
        graph.run({"x": [1, 2, 3]})
    assert graph.epoch == 0
    before = state(graph)
    for name, data, error, text in (
        ("d", [1, 2, 3], UnknownNameError, "set_param: name: given d, wanted"),
        ("b", [1, 2], ShapeError, "set_param: 'b': given 2 values, wanted 3"),
        ("b", [1, 2, 3, 4], ShapeError, "set_param: 'b': given 4 values, wanted 3"),
        ("b", [1e300, 0, 0], DTypeError, "set_param: 'b': given 1e+300 at index 0"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            graph.set_param(name, data)
    with pytest.raises(UnknownNameError):
        graph.load_params({"a": [1, 2, 3], "d": [1]})
    with pytest.raises(ShapeError, match="load_params: 'c'"):
        graph.load_params({"a": [1, 2, 3], "c": [1]})
    assert state(graph) == before
    graph.load_params({"a": [1, 1, 1], "c": [0, 0, 1]})
    assert graph.run({"x": [5, 6, 7]})[0].tolist() == [5, 6, 10]


@pytest.mark.parametrize("form", [SWIGLU, SWIGLU_BT], ids=str)
def test_packed_weights_change_one_by_one(device: str, form: Form) -> None:
    g = ffn(form)
    graph = ready(g, device)
    assert graph.plan.derived_params  # the optimizer stores gate and up in one buffer
    rng = np.random.default_rng(0)
    inputs = {n.name: rng.standard_normal(n.type.shape).astype(np.float32) for n in g.inputs}
    graph.run(inputs)
    p = {name: graph.read_param(name) for name in graph.param_names}
    for name, shape in (("gate", form.weight), ("up", form.weight), ("down", (5, 2))):
        p[name] = rng.standard_normal(shape).astype(np.float32)
        graph.set_param(name, p[name])
        assert all(same(graph.read_param(n), p[n]) for n in p)
        found = evaluate(g, {**inputs, **p})
        np.testing.assert_allclose(graph.run(inputs)[1], found[g.output_ids[1]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ("f16", "bf16", "q8", "q4"))
def test_parameters_are_loaded_from_a_checkpoint_of_a_session(dtype: str, device: str, tmp_path: Any) -> None:
    """In a storage dtype they are bytes there; blocks that were encoded again would be others."""
    with Graph() as g:
        g.output(ops.input("x", (4, 64)) @ ops.parameter("w", (64, 2), dtype=dtype))
    step_1 = np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)  # encoded again, the step would be 5 / 127
    with gd.build_inference_session(g, device) as session:
        session.initialize(1)
        if dtype == "q8":
            session.set_parameter_packed("w", step_1 * 4)
        held = session.read_param("w")
        session.save_checkpoint(tmp_path / "w.safetensors")
    graph = build_compiled_graph(g, device)
    graph.load_params(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(graph.read_param("w"), held)


def test_parameters_are_initialized_and_loaded_from_files(
    device: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import save_file

    graph = build_compiled_graph(small(), device)
    graph.initialize(3)
    first = graph.read_param("w")
    assert first.any()
    graph.initialize(4)  # all have a value
    assert same(graph.read_param("w"), first)
    save_file({"w": W}, tmp_path / "w.safetensors")
    graph.load_params(tmp_path / "w.safetensors")
    assert same(graph.read_param("w"), W)
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(gd.LoadError, match="load_params: file"):
        graph.load_params(tmp_path / "bad")
    header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    (tmp_path / "bad").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    with pytest.raises(gd.LoadError, match=rf"{np.dtype(ml_dtypes.bfloat16)}.*gd.load_safetensors reads BF16"):
        graph.load_params(tmp_path / "bad")
    with monkeypatch.context() as patch:  # what the library does where nothing has imported ml_dtypes
        patch.setattr("safetensors.numpy.load_file", lambda path: np.dtype("bfloat17"))
        with pytest.raises(gd.LoadError, match="bfloat17.*gd.load_safetensors reads BF16"):
            graph.load_params(tmp_path / "bad")
    assert same(graph.read_param("w"), W)


def test_a_pipe_is_not_waited_for_as_a_file_of_parameters(tmp_path: Any) -> None:
    needs("posix")
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(gd.LoadError, match="a pipe, a device or a socket"):
        build_compiled_graph(small(), "cpu").load_params(tmp_path / "w.safetensors")


# life -----------------------------------------------------------------------------------------------------------------
def test_a_closed_graph_refuses_every_call(device: str) -> None:
    with ready(small(), device) as graph:
        array = graph.run_raw({"x": X})[0].numpy()
        kept = array.copy()
    graph.close()
    assert graph.closed and same(array, kept) and repr(graph).endswith("closed>") and graph.pending == 0
    calls: tuple[Any, ...] = (
        lambda: graph.run({"x": X}), lambda: graph.set_param("w", W), lambda: graph.read_param("w"), graph.clone,
        lambda: graph.commit_no_wait({"x": X}), lambda: graph.bind_handle("x", X), graph.sync_pending, graph.context,
        lambda: graph.run_raw({"x": X}), lambda: graph.run_pipelined([{"x": X}]), lambda: copy.copy(graph),
        graph.reset_state, graph.arena_ptr, graph.arena_view, lambda: graph.has_gpu_handle("x"),
        lambda: graph.save("x"), lambda: graph.set_active_extent(None),
        lambda: graph.clear_gpu_handle_feed("x"), graph.capabilities,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(SessionError, match="given closed|a closed one"):
            call()


def test_a_session_and_a_study_are_compiled_over_their_parameters(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (2, 3))
        graph_of([((x @ ops.parameter("w", (3, 4))).square()).mean_all()], g)
    with gd.build_session(g, device) as session:
        session.set_parameter("w", W)
        graph = session.compile()
        np.testing.assert_allclose(graph(x=X), [((X @ W) ** 2).mean()], rtol=1e-5)
        session.set_input("x", X)
        session.set_learning_rate(0.5)
        session.step()
        np.testing.assert_allclose(graph(x=X), [((X @ session.read_param("w")) ** 2).mean()], rtol=1e-5)
        graph.close()
    study = gd.Study(small(), device=device, weights={"w": W})
    fresh = study.compiled()
    np.testing.assert_allclose(fresh.run({"x": X})[0], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
    study.session.set_parameter("w", 2 * W)
    over = study.compiled(boundary={"y": "i32"})
    assert over.run({"x": X})[0].dtype == np.int32 and same(over.read_param("w"), 2 * W)
    assert same(fresh.read_param("w"), W)
    study.close()


def test_a_value_beside_a_gpu_handle_is_refused(device: str) -> None:
    graph = ready(small(), device)
    graph.bind_gpu_handle("x", X)
    want = graph.run()
    before = state(graph)
    with pytest.raises(InputConflictError, match="run: input 'x': given a value beside its gpu handle"):
        graph.run({"x": X})
    assert state(graph) == before and same(graph.run(), want)
