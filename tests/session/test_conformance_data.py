"""Builders, data and steps of a session by their documented names alone."""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conforming import packed, refused
from session_state import W, X, Y, fitted, line

import gdlab as gd
from gdlab.session import SessionConfig

F32 = np.float32


# 6.1 ------------------------------------------------------------------------------------------------------------------
def test_signatures_of_the_builders() -> None:
    def names(function: Callable[..., object]) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(gd.build_session) == names(gd.build_inference_session) == ["graph", "device"]
    assert names(gd.build_session_with_report) == ["graph", "device"]
    assert names(gd.build_session_cached) == ["graph", "cache_path", "device"]
    config = ["mode", "device", "optimize", "compile", "cache", "skip_full_optimize", "debug", "share_parameters_from",
              "shared", "tune"]  # fmt: skip
    assert names(SessionConfig) == config
    debug = SessionConfig.debug()
    assert debug.debug is True and not debug.options.fuse_dispatches and not debug.options.alias


def test_what_builders_refuse() -> None:
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (2, 3)).tanh()])
    with pytest.raises(gd.AutodiffError, match=r"f32\[2, 3\]"):
        gd.build_session(g, "cpu")
    for build in (gd.build_session, gd.build_inference_session, gd.build_session_unoptimized):
        with pytest.raises(gd.GraphError, match="outputs"):
            build(gd.Graph(), "cpu")
    with pytest.raises(gd.ArgumentError, match='wanted "auto", "wgpu", .* "cpu" or a Device'):
        gd.build_session(line(), "gpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="build_session"):
        gd.Session(line())


def test_later_edits_of_the_graph_do_not_matter(device: str) -> None:
    g = line()
    with fitted(gd.build_session(g, device)) as s:
        g.output(gd.full((2,), 7.0, graph=g))
        s.step()
        assert s.num_outputs() == 2 and s.read_output().shape == (1,)
        assert s.device.kind == device and s.device.name and s.device.reason
        assert s.device.adapter_class in ("hardware", "software", "cpu")


def test_builders_agree() -> None:
    losses = []
    builds: list[Callable[[], gd.Session]] = [
        lambda: gd.build_session(line(), "cpu"), lambda: gd.build_session_unoptimized(line(), "cpu"),
        lambda: gd.build_session_with_report(line(), "cpu")[0], lambda: gd.build_inference_session(line(), "cpu"),
        lambda: gd.build(line(), SessionConfig.debug(device="cpu"))[0],
        lambda: gd.build(line(), SessionConfig(device="cpu", skip_full_optimize=True))[0],
    ]  # fmt: skip
    for build in builds:
        with fitted(build()) as s:
            s.step()
            losses.append(s.read_loss())
    z = X @ W
    np.testing.assert_allclose(losses, [np.mean((z - Y) ** 2)] * len(losses), rtol=1e-5)


def test_shared_parameters_are_the_same_memory(device: str) -> None:
    with fitted(gd.build_session(line(), device)) as trained:
        config = SessionConfig(mode="inference", device=device, share_parameters_from=trained)
        with gd.build(line(), config)[0] as seen:
            seen.set_input("x", X)
            seen.set_input("y", Y)
            trained.set_learning_rate(0.1)
            trained.step()
            np.testing.assert_array_equal(seen.read_param("w"), trained.read_param("w"))
            assert not np.array_equal(seen.read_param("w"), W)


# 6.2 ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [
    X.tolist(), X.ravel(), X.astype(np.float64), X.astype(np.float16), np.arange(12), np.arange(12, dtype=np.uint8),
    np.ones((4, 3), bool), np.asfortranarray(X), X[::-1], np.full((4, 3), np.nan), np.full(12, np.inf),
    X.astype(">f4"), memoryview(X),
])  # fmt: skip
def test_what_an_input_takes(device: str, data: Any) -> None:
    with fitted(gd.build_session(line(), device)) as s:
        s.set_input("x", data)
        s.step()
        with np.errstate(over="ignore"):
            want = np.asarray(data).astype(F32).reshape(4, 3)
        np.testing.assert_array_equal(s.read_input("x"), want)


@pytest.mark.parametrize("data, kind", [
    (X.ravel()[:11], gd.ShapeError), (X.T, gd.ShapeError), (X[None], gd.ShapeError), (X.reshape(12, 1), gd.ShapeError),
    (3.0, gd.ShapeError), ([], gd.ShapeError), ([[1, 2], [3]], gd.ShapeError), (X + 0j, gd.DTypeError),
    (X.astype(object), gd.DTypeError), (["a"] * 12, gd.DTypeError), (None, gd.DTypeError), ("x", gd.DTypeError),
    (np.zeros((4, 3), "M8[s]"), gd.DTypeError), ({"x": 1}, gd.DTypeError), (b"123456789012", gd.DTypeError),
])  # fmt: skip
def test_what_an_input_and_a_parameter_refuse(data: Any, kind: type[gd.GdlabError]) -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.step()
        assert refused(s, lambda: s.set_input("x", data), kind).where == "set_input"
        for method in (s.set_parameter, s.upload_param):
            refused(s, lambda method=method: method("w", data), kind)  # type: ignore[misc]


def test_the_length_is_told() -> None:
    with gd.Graph() as g:
        x = gd.input("x", (1, 784))
        g.set_outputs([x.mean_all()])
    with gd.build_inference_session(g, "cpu") as s:
        error = refused(s, lambda: s.set_input("x", np.zeros(783)), gd.ShapeError)
        assert error.given == "783 values" and "784" in error.wanted and "[1, 784]" in error.wanted


def picked() -> gd.Graph:
    with gd.Graph() as g:
        table = gd.embedding(gd.input_u32("ids", (3,)), gd.parameter("t", (5, 4)))
        g.set_outputs([table.square().mean_all(), gd.argmax(table, axis=-1)])
    return g


def test_indices(device: str) -> None:
    with gd.build_session(picked(), device) as s:
        s.set_parameter("t", np.arange(20))
        for ids in ([0, 4, 2], np.array([0, 4, 2], np.int64), np.array([[0, 4, 2]]).ravel(), np.array([1, 1, 0], bool)):
            s.set_input_u32("ids", ids)
            s.step()
        for data, kind in (([0, 1, 5], gd.ShapeError), ([0.0, 1, 2], gd.DTypeError), ([0, -1, 2], gd.DTypeError),
                           ([0, 1], gd.ShapeError), ([0, 1, 2**32], gd.DTypeError)):  # fmt: skip
            for method in (s.set_input, s.set_input_u32):
                refused(s, lambda m=method, d=data: m("ids", d), kind)  # type: ignore[misc]
        out = s.read_output_by_index(1)
        assert out.dtype == np.uint32 and out.tolist() == [3, 3, 3]
        assert s.read_param_grad("t").shape == (5, 4)
    with fitted(gd.build_session(line(), "cpu")) as other:
        refused(other, lambda: other.set_input_u32("x", np.zeros((4, 3), np.uint32)), gd.DTypeError)


def test_out_arrays(device: str) -> None:
    with fitted(gd.build_session(line(), device)) as s:
        s.step()
        reads: list[tuple[Callable[..., Any], int]] = [
            (lambda out: s.read_param("w", out), 6), (lambda out: s.get_parameter("w", out=out), 6),
            (lambda out: s.read_param_grad("w", out), 6), (lambda out: s.read_output_by_index(1, out), 8),
            (lambda out: s.wait_read_output(1, out), 8),
        ]  # fmt: skip
        for read, size in reads:
            out = np.full(size + 2, 9, F32)
            assert read(out) is out and out[size:].tolist() == [9, 9] and not (out[:size] == 9).any()
            shaped = np.zeros((2, size // 2), F32)
            assert read(shaped) is shaped and shaped.any()
            fixed = np.zeros(size, F32)
            fixed.setflags(write=False)
            short, strided = np.zeros(size - 1, F32), np.zeros(2 * size, F32)[::2]
            bad: tuple[Any, ...] = (short, np.zeros(size), strided, fixed, [0.0] * size)
            for out in bad:
                refused(s, lambda read=read, out=out: read(out), gd.SessionError)  # type: ignore[misc]


def test_names_and_sizes() -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        assert s.param_names() == ["w", "b"] and s.input_names() == ["x", "y"] and s.param_size("w") == 6
        assert s.has_parameter("w") and not s.has_parameter("x") and s.has_input("x") and not s.has_input("w")
        assert s.has_param_grad("w") and not s.has_param_grad("x") and not s.has_param_grad("nope")
        for call in (lambda: s.read_param("ww"), lambda: s.set_input("xx", X), lambda: s.read_param_grad("x"),
                     lambda: s.param_size("nope"), lambda: s.upload_param("x", X), lambda: s.read_params(["w", "c"]),
                     lambda: s.read_adam_m("x"), lambda: s.set_lr_multiplier("q", 1)):  # fmt: skip
            error = refused(s, call, gd.UnknownNameError)
            assert isinstance(error, KeyError) and "one of" in error.wanted and str(error)[0] not in "'\""
        refused(s, lambda: s.read_param_grad("w"), gd.SessionError)


def test_ranges_of_a_packed_weight(device: str) -> None:
    a, b = np.arange(6.0).reshape(3, 2), -np.arange(6.0).reshape(3, 2)
    with gd.build_session(packed(), device) as s:
        (whole,) = (d.name for d in s.plan().derived_params)
        s.set_parameter("net.gate", a)
        s.set_parameter("net.up", b)
        assert whole == "net.gate+net.up" and s.param_names() == ["net.gate", "net.up"]
        np.testing.assert_array_equal(s.read_param(whole), np.hstack([a, b]))
        s.set_parameter("net.up", 2 * b.ravel())
        np.testing.assert_array_equal(s.read_param("net.gate"), a)
        np.testing.assert_array_equal(s.read_params(["net.up"])["net.up"], 2 * b)
        for part in (b[:, :1], b.ravel()[:3]):
            refused(s, lambda part=part: s.set_parameter("net.up", part), gd.ShapeError)  # type: ignore[misc]
        for name, data in (("x", X), ("y", Y)):
            s.set_input(name, data)
        s.set_lr_multiplier("net.up", 0)
        s.set_learning_rate(0.1)
        s.step()
        np.testing.assert_array_equal(s.read_param("net.up"), 2 * b)
        g = s.read_param_grad("net.gate")
        np.testing.assert_allclose(s.read_param("net.gate"), a - 0.1 * g, rtol=1e-5)


def body(path: Path) -> bytes:
    """The tensors of a safetensors file (its header has no order of its own)."""
    data = path.read_bytes()
    return data[8 + struct.unpack_from("<Q", data)[0] :]


def quantized(kind: Callable[..., gd.Value] = gd.parameter_q8, rows: int = 70) -> gd.Graph:
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (2, rows)) @ kind("q", (rows, 3))])
    return g


@pytest.mark.parametrize("kind, nbytes", [(gd.parameter_q8, 36 * 3 * 3), (gd.parameter_q4, 20 * 3 * 3)])
def test_packed_bytes_are_kept_to_the_letter(device: str, kind: Any, nbytes: int, tmp_path: Path) -> None:
    """Blocks of another quantizer: no code of 127 or 15, an odd step; values do not tell them again."""
    words = np.random.default_rng(2).integers(0, 2**32, nbytes // 4, np.uint32).reshape(9, -1)
    words[:, 0] = np.float32(0.0371).view(np.uint32) if nbytes == 324 else 0x3C012ABC
    words[:, 1:] &= 0x33333333
    step = 0.0371 if nbytes == 324 else np.float64(np.uint16(0x2ABC).view(np.float16))
    build = gd.build_inference_session
    with build(quantized(kind), device) as s, build(quantized(kind), "cpu") as t:
        s.set_parameter_packed("q", words.tobytes())
        held = s.read_param("q")
        block = held[:32, 0].astype(np.float64)
        steps = np.diff(np.unique(block)) / step
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        s.save_checkpoint(tmp_path / "a")
        for into in (s, t):
            into.load_checkpoint(tmp_path / "a")
            np.testing.assert_array_equal(into.read_param("q"), held)
            into.save_checkpoint(tmp_path / "b")
            assert body(tmp_path / "a") == body(tmp_path / "b") == words.tobytes()
        for bad in (words.tobytes()[:-1], words.tobytes() + b"\0", b"", "x", words, None):
            refused(s, lambda bad=bad: s.set_parameter_packed("q", bad), gd.ShapeError)  # type: ignore[misc]
    with fitted(gd.build_session(line(), "cpu")) as other:
        refused(other, lambda: other.set_parameter_packed("w", b"\0" * 24), gd.DTypeError)
        refused(other, lambda: other.set_parameter_packed("q", b""), gd.UnknownNameError)


def test_a_checkpoint_of_blocks_loads_what_was_saved(device: str, tmp_path: Path) -> None:
    with gd.build_inference_session(quantized(), device) as s:
        for seed in range(6):
            s.set_parameter("q", np.random.default_rng(seed).normal(size=(70, 3)))
            held = s.read_param("q")
            s.save_checkpoint(tmp_path / "q")
            s.load_checkpoint(tmp_path / "q")
            np.testing.assert_array_equal(s.read_param("q"), held)
        config = SessionConfig(mode="inference", device=device, share_parameters_from=s)
        with gd.build(quantized(), config)[0] as shared:
            s.set_parameter("q", np.ones(210))
            shared.save_checkpoint(tmp_path / "shared")
            s.save_checkpoint(tmp_path / "q")
            assert body(tmp_path / "q") == body(tmp_path / "shared")


# 6.3 ------------------------------------------------------------------------------------------------------------------
def test_what_is_not_set_is_listed() -> None:
    with gd.build_session(line(), "cpu") as s:
        assert "x, y" in str(refused(s, s.step, gd.SessionError).given)
        s.set_input("x", X)
        s.set_input("y", Y)
        error = refused(s, s.step, gd.SessionError)
        assert "w, b" in str(error.given)
        for remedy in ("initialize(seed)", "initialize(zeros=True)", "set_parameter", "load_checkpoint"):
            assert remedy in error.wanted
        s.initialize(zeros=True)
        for call in (s.read_loss, s.read_output, lambda: s.read_node(0), s.read_all_param_grad_norms):
            refused(s, call, gd.SessionError)
        s.wait()
        s.step()
        s.wait()
        assert s.step_count == 1 and s.adam_step_count() == 0 and s.num_groups() >= 1 and s.num_outputs() == 2
        assert s.read_loss() == pytest.approx(float(np.mean(Y**2)), rel=1e-6)


@pytest.mark.parametrize("index", [2, -1, 10**20, 1.0, None, "0", True])
def test_outputs_by_index(index: Any) -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.step()
        error = refused(s, lambda: s.read_output_by_index(index), gd.OutputIndexError)
        assert isinstance(error, IndexError) and "2 outputs" in error.wanted
        refused(s, lambda: s.wait_read_output(index), gd.OutputIndexError)


def test_there_is_no_run_and_no_loss_is_zero() -> None:
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (2,)).tanh()])
    with gd.build_inference_session(g, "cpu") as s:
        with pytest.raises(AttributeError, match=r"step\(\) and wait\(\)"):
            s.run()  # type: ignore[attr-defined]
        assert s.read_loss() == 0.0
        for call in (lambda: s.set_learning_rate(0.1), lambda: s.set_adam(0.1), s.clear_optimizer, s.zero_grad,
                     lambda: s.set_grad_clip_norm(1), lambda: s.set_grad_accumulate(2), lambda: s.sgd_step(0.1),
                     s.clear_lr_multipliers, lambda: s.set_adam_step_count(1)):  # fmt: skip
            refused(s, call, gd.SessionError)


def test_everything_is_refused_after_close(device: str, tmp_path: Path) -> None:
    s = fitted(gd.build_session(line(), device))
    s.step()
    s.close()
    s.close()
    calls: list[Callable[[], object]] = [
        s.step, s.wait, s.read_loss, s.read_output, s.plan, s.num_groups, s.update_dispatches, s.adam_step_count,
        s.device_information, s.param_names, s.input_names, s.num_outputs, s.memory_summary, s.step_debug, s.node_names,
        s.gpu_timings, s.dump_gpu_timings, s.profiled_dispatch_timings, s.capture_profile, s.read_all_param_norms,
        s.read_all_param_grad_norms, s.dump_grad_summary, s.clear_optimizer, s.zero_grad, s.initialize,
        s.trace_dispatches, s.clear_lr_multipliers, lambda: s.set_input("x", X), lambda: s.set_parameter("w", W),
        lambda: s.read_param("w"), lambda: s.read_param_grad("w"), lambda: s.set_adam(0.1), lambda: s.sgd_step(0.1),
        lambda: s.set_learning_rate(0.1), lambda: s.read_node(0), lambda: s.read_node_by_name("x"),
        lambda: s.save_checkpoint(tmp_path / "c"), lambda: s.load_checkpoint(tmp_path / "c"),
        lambda: s.set_profiling(True), lambda: s.read_adam_m("w"), lambda: s.has_parameter("w"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(gd.SessionError, match="closed"):
            call()


def test_initialize_fills_what_has_no_value(device: str) -> None:
    with gd.build_session(line(), device) as s:
        s.set_parameter("b", [3, 4])
        s.initialize(seed=5)
        w = s.read_param("w")
        assert s.read_param("b").tolist() == [3, 4] and (abs(w) <= 1 / math.sqrt(3)).all() and w.std() > 0.05
        s.initialize(seed=6)
        np.testing.assert_array_equal(s.read_param("w"), w)
        with gd.build_session(line(), "cpu") as other:
            other.initialize(seed=5)
            np.testing.assert_array_equal(other.read_param("w"), w)
            assert other.read_param("b").tolist() == [0, 0]
