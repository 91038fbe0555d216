"""Builders and their options, initial values by declaration, shared parameters, memory that is not there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs
from session_state import W, X, Y, fitted, line, set_free_bytes, state_of

from gdlab import ops
from gdlab.base.errors import (
    ArgumentError,
    CompileError,
    DTypeError,
    GdlabError,
    GraphError,
    SessionError,
    ShapeError,
    UnknownNameError,
)
from gdlab.base.formats import encode
from gdlab.devices import fit
from gdlab.devices.choose import device as choose_device
from gdlab.devices.wgpu import wgpu_device
from gdlab.graph import Graph
from gdlab.plan.target import CompileOptions
from gdlab.session import (
    SessionConfig,
    build,
    build_inference_session,
    build_session,
    build_session_unoptimized,
    build_session_with_report,
    compile_training_graph,
    initial_values,
)


# options --------------------------------------------------------------------------------------------------------------
def test_the_general_builder_builds_what_the_others_build(device: str) -> None:
    graph = networks.mlp(8)
    plans = [s.plan() for s in (build_session(graph, device), build(graph, SessionConfig(device=device))[0])]
    assert plans[0] == plans[1]
    session, report = build_session_with_report(graph, device)
    assert session.plan() == plans[0] and report.rules_fired and len(report.phases) == 2
    inference = build(graph, SessionConfig(mode="inference", device=device))[0]
    assert inference.mode == "inference" and inference.plan() == build_inference_session(graph, device).plan()


def test_a_plan_needs_no_device() -> None:
    plan = compile_training_graph(networks.mlp(8))
    assert plan.mode == "training" and plan.param_grad_pairs and plan.target.kind == "wgpu"
    cpu = choose_device("cpu")
    assert compile_training_graph(networks.mlp(8), cpu.target) == build_session(networks.mlp(8), cpu).plan()


def test_configurations_change_the_plan_and_no_value() -> None:
    graph = networks.transformer(length=8, width=16, inner=24)
    feeds = {n.name: np.random.default_rng(1).normal(size=n.type.shape) for n in graph.inputs}
    configs = {
        "plain": SessionConfig(device="cpu"),
        "debug": SessionConfig.debug(device="cpu"),
        "skipped": SessionConfig(device="cpu", skip_full_optimize=True),
        "disabled": SessionConfig(device="cpu", optimize={"only": ("cse",)}),
        "serial": SessionConfig(device="cpu", compile=CompileOptions(serial=True)),
    }
    sessions = {name: build(graph, config)[0] for name, config in configs.items()}
    sessions["unoptimized"] = build_session_unoptimized(graph, "cpu")
    losses = {}
    for name, session in sessions.items():
        session.initialize(3)
        session.set_learning_rate(0.01)
        for k, data in feeds.items():
            session.set_input(k, data)
        for _ in range(3):
            session.step()
        losses[name] = session.read_loss()
    np.testing.assert_allclose(list(losses.values()), losses["plain"], rtol=1e-4)
    count = {name: len(session.plan().dispatches) for name, session in sessions.items()}
    assert count["plain"] < count["debug"] and count["plain"] < count["unoptimized"]
    assert sessions["serial"].num_groups() > sessions["plain"].num_groups()
    memory = sessions["debug"].plan().memory
    assert all(len(slot.tenants) == 1 for slot in memory.slots)


def test_debug_is_a_configuration_and_a_field() -> None:
    config = SessionConfig.debug(mode="inference", device="cpu")
    assert config.debug is True and config.mode == "inference" and SessionConfig().debug is False
    assert config == SessionConfig(mode="inference", device="cpu", debug=True)
    assert (config.options.fuse_dispatches, config.options.alias) == (False, False)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ArgumentError, match="build: config: given dict, wanted a SessionConfig"):
        build(line(), {"mode": "training"})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="build: mode: given 'testing'"):
        build(line(), SessionConfig(mode="testing", device="cpu"))  # type: ignore[arg-type]
    for bad, what in (({"speed": 3}, "optimize"), (("cse",), "optimize")):
        with pytest.raises(ArgumentError, match=f"build: {what}: given .*, wanted a dict of allow, budget, cost"):
            build(line(), SessionConfig(device="cpu", optimize=bad))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"build: compile: given dict, wanted CompileOptions\(...\)"):
        build(line(), SessionConfig.debug(device="cpu", compile={}))
    with pytest.raises(ArgumentError, match="build: cache: given 3, wanted a path"):
        build(line(), SessionConfig(device="cpu", cache=3))  # type: ignore[arg-type]
    flags: list[dict[str, Any]] = [{"debug": "x"}, {"debug": None}, {"skip_full_optimize": []}]
    for flag in flags:
        with pytest.raises(ArgumentError, match=f"build: {next(iter(flag))}: given .*, wanted True or False"):
            build(line(), SessionConfig(device="cpu", **flag))
    for shared in ("w", 1, [1]):
        with pytest.raises(ArgumentError, match="build: shared: given .*, wanted a list of names of parameters"):
            build(line(), SessionConfig(device="cpu", shared=shared))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"build: shared: given \['w'\], wanted share_parameters_from=SESSION"):
        build(line(), SessionConfig(device="cpu", shared=["w"]))
    with pytest.raises(GraphError, match="session: outputs: given none"):
        build(Graph(), SessionConfig(device="cpu"))
    with pytest.raises(GdlabError, match="allow|given"):
        build(line(), SessionConfig(device="cpu", optimize={"disable": ("no such rule",)}))


# data -----------------------------------------------------------------------------------------------------------------
def test_several_parameters_come_from_one_moment(device: str) -> None:
    with build_session(line(), device) as session:
        fitted(session)
        read = session.read_params(["b", "w"])
        assert list(read) == ["b", "w"] and np.array_equal(read["w"], W)
        session.upload_param("b", [3, 4])
        assert session.read_param("b").tolist() == [3, 4]
        ref = dict(session.plan().input_buffers)["x"]
        assert np.array_equal(session.read_buffer(ref), X)
        before = state_of(session)
        for bad in (-1, len(session.plan().buffers), True, "x"):
            with pytest.raises(ArgumentError, match="read_buffer: ref: given"):
                session.read_buffer(bad)  # type: ignore[arg-type]
        with pytest.raises(UnknownNameError, match="read_params: name: given c"):
            session.read_params(["w", "c"])
        with pytest.raises(ShapeError, match="upload_param: 'b': given 3 values"):
            session.upload_param("b", [1, 2, 3])
        assert state_of(session) == before


def test_inputs_of_indices_have_a_setter_of_their_own(device: str) -> None:
    with Graph() as g:
        g.set_outputs([ops.input_u32("i", (3,)).reshape((3, 1)), ops.input("x", (2,)).reshape((2, 1))])
    with build_inference_session(g, device) as session:
        session.set_input_u32("i", [1, 2, 3])
        assert session.unset_inputs == ["x"]
        before = state_of(session)
        with pytest.raises(DTypeError, match=r"set_input_u32: 'x': given an input of f32\[2\], wanted an input of u32"):
            session.set_input_u32("x", [1, 2])
        with pytest.raises(DTypeError, match="set_input_u32: 'i': given float64 data"):
            session.set_input_u32("i", [1.0, 2.0, 3.0])
        with pytest.raises(UnknownNameError, match="set_input_u32: name: given j"):
            session.set_input_u32("j", [1])
        assert state_of(session) == before


@pytest.mark.parametrize("dtype", ["q8", "q4", "bf16", "q4_0", "q8_0", "q4_k", "q6_k", "q3_k"])
@pytest.mark.parametrize("m", [3, 40])
def test_gradients_pass_a_frozen_weight(m: int, dtype: str, device: str) -> None:
    """A layer before a weight in blocks and an adapter of low rank beside it train; the weight stays."""
    n, k, random = 72, 256, np.random.default_rng(4)
    op = "matmul" if dtype in ("q8", "q4") else "matmul_bt"
    shapes = {"w": (k, n) if op == "matmul" else (n, k), "before": (k, k), "down": (k, 4), "up": (4, n)}
    values = {name: random.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    x = random.standard_normal((m, k)).astype(np.float32)
    with Graph() as g:
        before, down, up = (ops.parameter(name, shapes[name]) for name in ("before", "down", "up"))
        h = ops.tanh(ops.input("x", (m, k)) @ before)
        y = getattr(ops, op)(h, ops.parameter("w", shapes["w"], dtype=dtype)) + h @ down @ up
        g.output((y * y).sum_all())
    with build_session(g, device) as session:
        session.set_input("x", x)
        for name, value in values.items():
            session.set_parameter(name, value)
        held = session.read_param("w")
        session.set_learning_rate(1e-3)
        session.step()
        grads = {name: session.read_param_grad(name) for name in ("before", "down", "up")}
        assert np.array_equal(session.read_param("w"), held) and 0 < np.abs(held - values["w"]).max() < 0.1
    w, b, d, u = (each.astype(np.float64) for each in (held, values["before"], values["down"], values["up"]))
    w = w if op == "matmul" else w.T
    h64 = np.tanh(x @ b)
    gy = 2 * (h64 @ w + h64 @ d @ u)
    wanted = {"before": x.T @ ((gy @ w.T + gy @ u.T @ d.T) * (1 - h64**2)), "down": h64.T @ gy @ u.T,
              "up": (h64 @ d).T @ gy}  # fmt: skip
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, wanted[name], rtol=1e-4, atol=1e-4 * np.abs(wanted[name]).max())


@pytest.mark.parametrize("dtype", ["bf16", "q4_0", "q5_1", "q8_0", "q4_k", "q6_k"])
@pytest.mark.parametrize("rows, repeat, n", [(3, 1, 72), (8, 4, 31)])
def test_gradients_pass_experts_in_blocks(rows: int, repeat: int, n: int, dtype: str, device: str) -> None:
    experts, k, random = 4, 256, np.random.default_rng(5)
    shapes = {"before": (k, k), "w": (experts, n, k)}
    values = {name: random.standard_normal(shape).astype(np.float32) / 16 for name, shape in shapes.items()}
    x = random.standard_normal((rows, k)).astype(np.float32)
    chosen = random.integers(0, experts, rows * repeat).astype(np.uint32)
    with Graph() as g:
        h = ops.input("x", (rows, k)) @ ops.parameter("before", (k, k))
        w = ops.parameter("w", shapes["w"], dtype=dtype)
        y = ops.grouped_matmul_bt(h, w, ops.input_u32("chosen", (rows * repeat,)), repeat=repeat)
        g.output((y * y).sum_all())
    with build_session(g, device) as session:
        session.set_input("x", x)
        session.set_input_u32("chosen", chosen)
        for name, value in values.items():
            session.set_parameter(name, value)
        session.step()
        grad, held = session.read_param_grad("before"), session.read_param("w").astype(np.float64)[chosen]
    to_y = 2 * np.einsum("mk,mnk->mn", np.repeat(x @ values["before"].astype(np.float64), repeat, 0), held)
    wanted = x.T @ np.einsum("mn,mnk->mk", to_y, held).reshape(rows, repeat, k).sum(1)
    np.testing.assert_allclose(grad, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("make", ["parameter_f16", "parameter_q4", "parameter_q8"])
def test_parameters_in_reduced_storage_go_through_checkpoints(make: str, device: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32)
    with Graph() as g:
        g.output(ops.input("x", (2, 70)) @ getattr(ops, make)("w", (70, 3)))
    with build_inference_session(g, device) as session:
        session.set_parameter("w", values)
        held = session.read_param("w")
        assert held.dtype == np.float32 and 0 < np.abs(held - values).max() < 0.3
        session.save_checkpoint(tmp_path / "a")
        type = session.values.places.types[session.values.places.parameters["w"]]
        raw = encode(held, type.dtype).tobytes()[: type.size_bytes]
        session.set_parameter("w", np.zeros((70, 3)))
        session.load_checkpoint(tmp_path / "a")
        assert np.array_equal(session.read_param("w"), held)
        session.set_parameter("w", np.zeros((70, 3)))
        session.set_parameter_packed("w", raw)
        assert np.array_equal(session.read_param("w"), held)
        before = state_of(session)
        for data in (raw[:-1], raw + b"1", [1, 2], None):
            with pytest.raises(ShapeError, match="set_parameter_packed: 'w': given .*, wanted [0-9]+ bytes"):
                session.set_parameter_packed("w", data)  # type: ignore[arg-type]
        assert state_of(session) == before
    with build_inference_session(line(), device) as session:
        with pytest.raises(DTypeError, match=r"given a parameter of f32\[3, 2\], wanted one of f16, bf16, q4, q8"):
            session.set_parameter_packed("w", bytes(24))


# initial values -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("init", "shape", "bound", "deviation"),
    [
        ("uniform", (64, 128), 1 / 8, 1 / 8 / 3**0.5),
        ("kaiming_uniform", (64, 128), (6 / 64) ** 0.5, (2 / 64) ** 0.5),
        ("kaiming_normal", (64, 128), None, (2 / 64) ** 0.5),
        ("xavier_uniform", (64, 128), (6 / 192) ** 0.5, (2 / 192) ** 0.5),
        ("xavier_normal", (64, 128), None, (2 / 192) ** 0.5),
        ("normal(0.02)", (64, 128), None, 0.02),
        ("normal", (64, 128), None, 1.0),
        ("kaiming_uniform", (32, 8, 3, 3), (6 / 72) ** 0.5, (2 / 72) ** 0.5),
    ],
)
def test_initializers_have_their_spread(
    init: str, shape: tuple[int, ...], bound: float | None, deviation: float
) -> None:
    values = initial_values("w", shape, 5, init)
    assert values.dtype == np.float32 and values.shape == shape
    assert values.std() == pytest.approx(deviation, rel=0.05) and abs(values.mean()) < 0.1 * deviation
    if bound is not None:
        assert 0.98 * bound < np.abs(values).max() <= bound


def test_constant_initializers() -> None:
    assert not initial_values("b", (3, 4), 0, "zeros").any()
    assert (initial_values("b", (4,), 0, "ones") == 1).all()
    assert (initial_values("b", (4,), 0, "constant(-0.5)") == -0.5).all()
    for bad in ("gaussian", "normal(", "normal(a)", "normal(1, 2)", "constant", "zeros(1)", "normal(nan)", "", 3):
        with pytest.raises(ArgumentError, match="one of zeros, ones"):
            initial_values("b", (4,), 0, bad)  # type: ignore[arg-type]


def test_a_parameter_is_filled_as_it_was_declared(device: str) -> None:
    with Graph() as g:
        declared = (("a", (4, 3), "ones"), ("b", (5,), "normal(0.5)"), ("c", (4, 3), None), ("d", (3,), None))
        for name, shape, init in declared:
            ops.parameter(name, shape, init=init)
        g.output(ops.sum_all(ops.parameter("a", (4, 3)) * 2.0))
    with build_inference_session(g, device) as session:
        session.initialize(9)
        for name, shape, init in (("a", (4, 3), "ones"), ("b", (5,), "normal(0.5)"), ("c", (4, 3), "uniform")):
            assert np.array_equal(session.read_param(name), initial_values(name, shape, 9, init))
        assert not session.read_param("d").any() and (session.read_param("a") == 1).all()
    with build_inference_session(g, device) as session:
        session.initialize(9, zeros=True)
        assert not any(session.read_param(name).any() for name in "abcd")


@pytest.mark.parametrize("init", ["gaussian(3)", "normal(-1)", "normal(1, 2)", "normal(nan)"])
def test_a_declaration_that_nobody_knows_fills_nothing(init: str, device: str) -> None:
    with Graph() as g:
        ops.parameter("a", (2, 2))
        g.output(ops.sum_all(ops.parameter("w", (4, 3), init=init) * 2.0))
    with build_inference_session(g, device) as session:
        before, wanted = state_of(session), re.escape(f"initialize: init of w: given {init!r}, wanted one of zeros")
        with pytest.raises(ArgumentError, match=wanted):
            session.initialize(0)
        assert state_of(session) == before and session.unset_parameters == ["a", "w"]


def test_initial_values_are_the_same_on_every_device() -> None:
    needs("wgpu")
    read = []
    for name in ("cpu", "wgpu"):
        with build_session(networks.mlp(8), name) as session:
            session.initialize(11)
            read.append(session.read_params(session.param_names()))
    assert all(np.array_equal(read[0][n], read[1][n]) for n in read[0])


# sharing --------------------------------------------------------------------------------------------------------------
def test_an_inference_session_reads_the_parameters_that_are_trained(device: str) -> None:
    with build_session(line(), device) as training:
        config = SessionConfig(mode="inference", device=device, share_parameters_from=training)
        reading, _ = build(line(), config)
        assert reading.unset_parameters == ["w", "b"]
        fitted(training).set_learning_rate(0.1)
        assert reading.unset_parameters == []
        reading.set_input("x", X)
        reading.set_input("y", Y)
        for _ in range(3):
            training.step()
            reading.step()
            w, b = training.read_param("w"), training.read_param("b")
            assert np.array_equal(reading.read_param("w"), w)
            np.testing.assert_allclose(reading.read_output_by_index(1), X @ w + b, rtol=1e-4, atol=1e-6)
        reading.set_parameter("b", [7, 8])
        assert training.read_param("b").tolist() == [7, 8]
        training.step()
        reading.close()
        training.step()
        assert training.step_count == 5


def test_some_parameters_are_shared_by_name(device: str) -> None:
    with build_session(line(), device) as first:
        config = SessionConfig(mode="inference", device=device, share_parameters_from=first, shared=("w",))
        second, _ = build(line(), config)
        third, _ = build(line(), replace(config, share_parameters_from=second))
        first.set_parameter("w", np.ones((3, 2)))
        assert first.unset_parameters == second.unset_parameters == third.unset_parameters == ["b"]
        second.set_parameter("b", [1, 2])
        assert (first.unset_parameters, second.unset_parameters, third.unset_parameters) == (["b"], [], ["b"])
        first.set_parameter("b", [3, 4])
        third.set_parameter("b", [5, 6])
        third.set_parameter("w", np.full((3, 2), 7))
        assert [s.read_param("b").tolist() for s in (first, second, third)] == [[3, 4], [1, 2], [5, 6]]
        assert all((s.read_param("w") == 7).all() for s in (first, second, third))
        with pytest.raises(UnknownNameError, match="share_parameters_from: parameter: given v"):
            build(line(), replace(config, shared=("v",)))


def test_sessions_that_do_not_fit_share_nothing() -> None:
    with Graph() as g:
        g.output(ops.sum_all(ops.input("x", (2,)) * ops.parameter("w", (2,))))
    other, _ = build(line(), SessionConfig(device="cpu"))
    for graph, error, text in (
        (g, SessionError, r"parameter w: given f32\[3, 2\], wanted f32\[2\]"),
        (networks.mlp(8), UnknownNameError, "parameter w1: given nothing in the other session"),
    ):
        with pytest.raises(error, match=text):
            build(graph, SessionConfig(device="cpu", share_parameters_from=other))
    other.close()
    with pytest.raises(SessionError, match="share_parameters_from: session: given a closed one"):
        build(line(), SessionConfig(device="cpu", share_parameters_from=other))


# memory that is not there ---------------------------------------------------------------------------------------------
def test_a_plan_beyond_the_free_memory_is_refused_before_it_is_allocated(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build_session(line(), device) as other:
        fitted(other).step()
        before = state_of(other)
        set_free_bytes(monkeypatch, 60_000)
        with pytest.raises(SessionError) as caught:
            build_session(networks.mlp(64), device)
        assert re.match(r"session: memory: given \d+ KB, of which [\d.]+ KB are for tensor ", str(caught.value))
        assert str(caught.value).endswith("wanted at most 60 KB, the free memory of this machine")
        assert state_of(other) == before
        set_free_bytes(monkeypatch, 16)
        with pytest.raises(SessionError, match="session: memory: given [1-9]\\S* K?B, of which .* tensor adam_m.w"):
            other.set_adam(0.1)
        assert state_of(other) == before
        other.step()


def test_free_memory_is_known_here() -> None:
    free, physical = fit.free_bytes(), fit.physical_bytes()
    assert free is not None and physical is not None and 1 << 20 < free <= physical


@pytest.mark.parametrize("kind", ["CPU", "DiscreteGPU"])
def test_an_adapter_of_software_has_the_memory_of_the_machine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgpu_device, "free_bytes", lambda: 12)
    adapter: Any = SimpleNamespace(adapter=SimpleNamespace(info={"adapter_type": kind}))
    assert wgpu_device.Gpu.free_bytes(adapter) == (12 if kind == "CPU" else None)


def test_a_tensor_beyond_the_largest_binding_is_refused_by_name(device: str) -> None:
    with Graph() as g:
        g.output(ops.sum_all(ops.parameter("giant", (1 << 20, 1 << 20))))
    with build_session(line(), device) as other:
        fitted(other).step()
        before = state_of(other)
        with pytest.raises(CompileError, match=r"tensor giant .*: given 4398046511104 bytes, wanted at most"):
            build_session(g, device)
        assert state_of(other) == before
        other.step()
