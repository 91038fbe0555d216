"""Updates, inspection, checkpoints and training by their documented names alone."""

from __future__ import annotations

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

# 6.4 ------------------------------------------------------------------------------------------------------------------
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("call", [
    lambda s: s.set_learning_rate(-0.1), lambda s: s.set_learning_rate(NAN), lambda s: s.set_learning_rate(INF),
    lambda s: s.set_learning_rate("0.1"), lambda s: s.set_learning_rate(None), lambda s: s.set_learning_rate(1j),
    lambda s: s.set_adam(0.1, 1.0), lambda s: s.set_adam(0.1, -0.1), lambda s: s.set_adam(0.1, 0.9, 1.0),
    lambda s: s.set_adam(0.1, 0.9, 0.99, 0.0), lambda s: s.set_adam(0.1, 0.9, 0.99, -1e-8), lambda s: s.set_adam(NAN),
    lambda s: s.set_adam(0.1, NAN), lambda s: s.set_adam(0.1, epsilon=INF), lambda s: s.set_adamw(0.1, weight_decay=-1),
    lambda s: s.set_adamw(0.1, weight_decay=NAN), lambda s: s.set_laprop(0.1, beta1=2), lambda s: s.sgd_step(-1),
    lambda s: s.sgd_step_cpu(NAN), lambda s: s.adam_step(0.1, 0.9, 0.999, 0), lambda s: s.adam_step(-1),
    lambda s: s.set_lr_multiplier("w", -1), lambda s: s.set_lr_multiplier("w", NAN),
    lambda s: s.set_lr_multiplier("", INF), lambda s: s.set_grad_clip_norm(0), lambda s: s.set_grad_clip_norm(-1),
    lambda s: s.set_grad_clip_norm(NAN), lambda s: s.set_adaptive_grad_clip(-1),
    lambda s: s.set_adaptive_grad_clip(0.1, -1), lambda s: s.set_adaptive_grad_clip(INF),
    lambda s: s.set_grad_accumulate(0), lambda s: s.set_grad_accumulate(-1), lambda s: s.set_grad_accumulate(1.5),
    lambda s: s.set_adam_step_count(-1), lambda s: s.set_adam_step_count(0.5),
])  # fmt: skip
def test_bad_numbers_leave_the_configuration(call: Callable[[gd.Session], object]) -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.set_adam(0.1, 0.5, 0.9, 1e-3)
        s.step()
        refused(s, lambda: call(s), gd.SessionError)
        assert len(s.update_dispatches()) == 2 and s.adam_step_count() == 1


def test_ten_steps_of_each_rule_against_numpy(device: str) -> None:
    for rule, bar in (("sgd", 1e-6), ("adam", 1e-5)):
        with fitted(gd.build_session(line(), device)) as s:
            s.set_learning_rate(0.05) if rule == "sgd" else s.set_adam(0.05, 0.9, 0.999, 1e-8)
            p, m, v = np.float64(W), np.zeros((3, 2)), np.zeros((3, 2))
            b, mb, vb = np.zeros(2), np.zeros(2), np.zeros(2)
            x, y = np.float64(X), np.float64(Y)
            for t in range(1, 11):
                s.step()
                d = 2 * (x @ p + b - y) / 8
                g, gb = x.T @ d, d.sum(0)
                if rule == "sgd":
                    p, b = p - 0.05 * g, b - 0.05 * gb
                    continue
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                mb, vb = 0.9 * mb + 0.1 * gb, 0.999 * vb + 0.001 * gb * gb
                one, two = 1 - 0.9**t, 1 - 0.999**t
                p = p - 0.05 * (m / one) / (np.sqrt(v / two) + 1e-8)
                b = b - 0.05 * (mb / one) / (np.sqrt(vb / two) + 1e-8)
            for got, want in ((s.read_param("w"), p), (s.read_param("b"), b)):
                assert abs(got - want).max() <= bar * max(1, abs(want).max())


def test_the_rule_holds_until_it_is_changed() -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.step()
        np.testing.assert_array_equal(s.read_param("w"), W)
        s.set_adam(0.1)
        s.set_learning_rate(0.1)
        s.step()
        assert s.adam_step_count() == 0 and s.memory_summary().adam_state_bytes == 2 * 256 * 2
        before = s.read_param("w")
        s.step()
        assert not np.array_equal(s.read_param("w"), before)
        s.clear_optimizer()
        kept = s.read_param("w")
        s.step()
        np.testing.assert_array_equal(s.read_param("w"), kept)
        assert s.update_dispatches() == ()


# 6.5 ------------------------------------------------------------------------------------------------------------------
def test_memory_summary_text() -> None:
    summary = gd.MemorySummary(12300000, 8200000, 4, 4100000)
    assert str(summary) == "4 buffers, 12.3 MB total (8.2 MB adam state), largest 4.1 MB"
    with fitted(gd.build_session(line(), "cpu")) as s:
        first = s.memory_summary()
        assert first.adam_state_bytes == 0 and first.total_buffer_bytes == s.plan().memory.physical_bytes
        s.read_adam_m("w")
        s.set_learning_rate(0.1)
        assert s.memory_summary().adam_state_bytes == 0
        s.set_adam(0.1)
        now = s.memory_summary()
        assert now.total_buffer_bytes == first.total_buffer_bytes + now.adam_state_bytes
        assert now.num_buffers == first.num_buffers + 4 and now.grad_accumulator_bytes == now.aux_bytes == 0


def test_nodes_by_id_value_and_name(device: str) -> None:
    with gd.Graph() as g:
        x = gd.input("x", (3, 4))
        h = (x * 2.0).named("h")
        z = (h.tanh() + 1.0).named("z")
        g.set_outputs([z.mean_all()])
    with gd.build(g, SessionConfig.debug(device=device))[0] as s:
        s.set_input("x", np.arange(12.0))
        s.step()
        want = 2 * np.arange(12.0).reshape(3, 4)
        for node in (h, h.id, np.int64(h.id)):
            np.testing.assert_array_equal(s.read_node(node), want)
        np.testing.assert_array_equal(s.read_node_by_name("h"), want)
        np.testing.assert_allclose(s.read_node(z), np.tanh(want) + 1, rtol=1e-5)
        for bad in (-1, len(g), 2.0, None, True):
            error: Any = refused(s, lambda bad=bad: s.read_node(bad), gd.UnknownNode)  # type: ignore[misc]
            assert error.id is bad and error.count == len(g)
        named: Any = refused(s, lambda: s.read_node_by_name("hh"), gd.UnknownName)
        assert named.name == "hh" and set(named.known) == {"x", "h", "z"} and isinstance(named, gd.ReadNodeError)
        with gd.Graph():
            other = gd.input("x", (3, 4))
        refused(s, lambda: s.read_node(other), gd.GraphError)


def test_fused_and_aliased_nodes_say_so() -> None:
    with gd.Graph() as g:
        x = gd.input("x", (64, 64))
        a = x.tanh().named("a")
        b = (a @ x).named("b")
        c = (b @ x).named("c")
        d = (c @ x).named("d")
        g.set_outputs([d.sigmoid().mean_all()])
    with gd.build_inference_session(g, "cpu") as s:
        s.set_input("x", np.eye(64))
        s.step()
        seen: dict[str, Any] = {}
        for name in "abcd":
            try:
                seen[name] = s.read_node_by_name(name)
            except gd.ReadNodeError as error:
                seen[name] = error
                assert "SessionConfig.debug()" in str(error) and error.node == getattr(locals()[name], "id", error.node)
        errors = [e for e in seen.values() if isinstance(e, gd.ReadNodeError)]
        assert any(type(e) is gd.Aliased and e.later and e.slot >= 0 for e in errors)


def test_step_debug_names_the_dispatch(device: str) -> None:
    with gd.Graph() as g:
        x = gd.input("x", (4, 4))
        g.set_outputs([((x - 1.0).log() @ x).sum_inner().mean_all()])
    with gd.build_inference_session(g, device) as s:
        data = np.full((4, 4), 3.0)
        s.set_input("x", data)
        assert s.step_debug().first_bad() is None and s.step_count == 1
        data[2, 1] = 0.5
        s.set_input("x", data)
        report = s.step_debug()
        bad = report.first_bad()
        assert bad is not None and report.skipped_aliased == () and report.anomalies[0] is bad
        log = next(d.index for d in s.plan().dispatches if "log" in d.label)
        assert (bad.dispatch, bad.has_nan, bad.has_inf, bad.first_index) == (log, True, False, 9)
        assert bad.label == s.plan().dispatches[log].label and bad.origin == s.plan().dispatches[log].origin
        assert [a.dispatch for a in report.anomalies] == sorted(a.dispatch for a in report.anomalies)
        assert {row.label for row in s.trace_dispatches(1e6)} == {a.label for a in report.anomalies}


def test_norms_and_the_summary_of_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.step()
        grads, weights = s.read_all_param_grad_norms(), dict(s.read_all_param_norms())
        assert [n for n, _ in grads] == ["w", "b"] and weights["b"] == 0
        assert grads[0][1] == pytest.approx(float(np.linalg.norm(s.read_param_grad("w").astype(float))), rel=1e-12)
        lines = s.dump_grad_summary(1).splitlines()
        assert capsys.readouterr().out.splitlines() == lines
        name, g = max(grads, key=lambda pair: pair[1])
        w = weights[name]
        ratio = g / w if w else math.nan
        assert lines == ["--- top 1 param grads (out of 2 with grads) ---",
                         f"  {name:>40}  ‖g‖={g:.3e}  ‖w‖={w:.3e}  g/w={ratio:.3e}"]  # fmt: skip
        assert "g/w=nan" in s.dump_grad_summary(10)


def test_profiling(device: str) -> None:
    with fitted(gd.build_session(line(), device)) as s:
        s.step()
        off: Any = s.gpu_timings()
        assert off == [] and off.reason
        s.set_profiling(True)
        s.set_adam(0.1)
        s.step()
        rows: Any = s.profiled_dispatch_timings()
        total = len(s.plan().dispatches) + len(s.update_dispatches())
        assert rows.reason or [(i, seconds >= 0) for i, _, seconds in rows] == [(i, True) for i in range(total)]
        s.set_profiling_window(1, 3)
        s.step()
        assert [i for i, *_ in s.gpu_timings()] in ([1, 2], [])
        s.set_profiling(False)
        made = s.capture_profile(samples=2)
        assert made.samples == 2 and s.step_count == 5
        assert made.reason or len(made.dispatches) == total
        for row in made.dispatches:
            assert row.p25 <= row.median <= row.p75 and row.label and row.family and row.phase
        assert {e["ph"] for e in made.to_chrome_trace()["traceEvents"]} <= {"M", "X"}


# 6.6 ------------------------------------------------------------------------------------------------------------------
def trained(device: str = "cpu", rule: str = "adam", steps: int = 2) -> gd.Session:
    s = fitted(gd.build_session(line(), device))
    s.set_adam(0.1) if rule == "adam" else s.set_learning_rate(0.1)
    for _ in range(steps):
        s.step()
    return s


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with trained() as s:
        s.save_checkpoint(path)
        for _ in range(3):
            s.step()
        want = [s.read_param("w"), s.read_adam_v("w")]
        s.load_checkpoint(str(path))
        assert s.adam_step_count() == 2
        for _ in range(3):
            s.step()
        for got, old in zip((s.read_param("w"), s.read_adam_v("w")), want, strict=True):
            np.testing.assert_array_equal(got, old)


def test_a_checkpoint_in_other_sessions(device: str, tmp_path: Path) -> None:
    adam, sgd = tmp_path / "adam", tmp_path / "sgd"
    with trained() as s, trained(rule="sgd") as plain:
        s.save_checkpoint(adam)
        plain.save_checkpoint(sgd)
        w, m = s.read_param("w"), s.read_adam_m("w")
        s.load_checkpoint(sgd)
        assert s.adam_step_count() == 0 and not s.read_adam_m("w").any()
        np.testing.assert_array_equal(s.read_param("w"), plain.read_param("w"))
    with gd.build_session(line(), device) as other, gd.build_inference_session(line(), device) as runs:
        other.load_checkpoint(adam)
        runs.load_checkpoint(adam)
        np.testing.assert_array_equal(other.read_param("w"), w)
        np.testing.assert_array_equal(runs.read_param("w"), w)
        np.testing.assert_array_equal(other.read_adam_m("w"), m)
        assert other.adam_step_count() == 2 and other.memory_summary().adam_state_bytes > 0


def header(data: bytes) -> tuple[int, str]:
    (length,) = struct.unpack_from("<Q", data)
    return length, data[8 : 8 + length].decode()


def rewritten(data: bytes, old: str, new: str) -> bytes:
    length, text = header(data)
    assert old in text
    text = text.rstrip().replace(old, new, 1)
    text += " " * (-len(text.encode()) % 8)
    return struct.pack("<Q", len(text.encode())) + text.encode() + data[8 + length :]


@pytest.mark.parametrize("harm", [
    lambda d: b"", lambda d: d[:4], lambda d: d[:100], lambda d: d[:-1], lambda d: d + b"\0",
    lambda d: struct.pack("<Q", 2**63) + d[8:], lambda d: struct.pack("<Q", 0) + d[8:],
    lambda d: d[:-3] + bytes([d[-3] ^ 4]) + d[-2:], lambda d: rewritten(d, '"adam_step":"2"', '"adam_step":"3"'),
    lambda d: rewritten(d, '"adam_step":"2"', '"adam_step":"-2"'),
    lambda d: rewritten(d, '"adam_step":"2"', '"adam_step":"2.0"'),
    lambda d: rewritten(d, '"gdlab_checkpoint_format":"2"', '"gdlab_checkpoint_format":"3"'),
    lambda d: rewritten(d, '"w":{', '"ww":{'), lambda d: rewritten(d, '"w":{', '"b":{'),
    lambda d: rewritten(d, '"dtype":"F32"', '"dtype":"I32"'), lambda d: rewritten(d, '"shape":[3,2]', '"shape":[2,3]'),
    lambda d: rewritten(d, "adam_m.w", "adam_m.q"), lambda d: rewritten(d, '"data_offsets":[0,', '"data_offsets":[4,'),
    lambda d: b"\x89PNG" + d, lambda d: bytes(len(d)),
])  # fmt: skip
def test_a_damaged_checkpoint_is_refused(harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "run"
    with trained() as s:
        s.save_checkpoint(path)
        path.write_bytes(harm(path.read_bytes()))
        s.step()
        error = refused(s, lambda: s.load_checkpoint(path), gd.CheckpointError)
        assert error.where == "load_checkpoint" and isinstance(error, ValueError)


def test_other_models_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with trained() as s, gd.build_session(packed(), "cpu") as other:
        s.save_checkpoint(path)
        refused(other, lambda: other.load_checkpoint(path), gd.CheckpointError)
        for bad in (tmp_path, tmp_path / "none", "", "\0"):
            refused(s, lambda bad=bad: s.load_checkpoint(bad), gd.CheckpointError)  # type: ignore[misc]
        for bad in (tmp_path, tmp_path / "no" / "file", None, 3.5):
            refused(s, lambda bad=bad: s.save_checkpoint(bad), gd.CheckpointError)  # type: ignore[misc]
        assert [p.name for p in tmp_path.iterdir()] == ["run"]
    with gd.Graph() as g:
        g.set_outputs([gd.parameter("adam_m.w", (2,)).square().mean_all()])
    with gd.build_session(g, "cpu") as s:
        s.initialize()
        refused(s, lambda: s.save_checkpoint(tmp_path / "other"), gd.CheckpointError)


# 7 --------------------------------------------------------------------------------------------------------------------
def loader(n: int = 10, batch: int = 4) -> gd.DataLoader:
    rng = np.random.default_rng(0)
    return gd.DataLoader(rng.normal(size=(n, 3)), rng.normal(size=(n, 2)), 3, 2, batch)


def test_training(device: str) -> None:
    seen = gd.LossHistory()
    told: list[gd.EpochStats] = []

    class Epochs(gd.MetricCallback):
        def on_epoch(self, stats: gd.EpochStats) -> None:
            told.append(stats)

    config = gd.TrainConfig(gd.Optimizer.adam(0.5), learning_rate=0.01, label_input="y", log_interval=0)
    trainer = gd.Trainer(gd.build_session(line(), device), config)
    trainer.callbacks += [seen, Epochs()]
    trainer.session.initialize(seed=0)
    history = trainer.train(loader(), 3)
    assert len(seen.losses) == 6 and [e.steps for e in history.epochs] == [2, 2, 2] and told == history.epochs
    for i, stats in enumerate(history.epochs):
        assert stats.epoch == i and stats.avg_loss == sum(seen.losses[2 * i : 2 * i + 2]) / 2
    assert history.final_loss() == history.epochs[-1].avg_loss and gd.TrainHistory().final_loss() is None
    session = trainer.into_session()
    assert session.optimizer.lr == 0.01 and session.adam_step_count() == 6
    session.close()


def test_defaults_of_training() -> None:
    config = gd.TrainConfig()
    assert config.optimizer == gd.Optimizer.sgd(0.01) and config.learning_rate is None
    assert (config.log_interval, config.data_input, config.label_input) == (100, "x", "labels")
    adam = gd.Optimizer.adam(0.1)
    assert (adam.lr, adam.beta1, adam.beta2, adam.epsilon) == (0.1, 0.9, 0.999, 1e-8)
    with gd.build_session(line(), "cpu") as s:
        s.initialize()
        with pytest.raises(gd.UnknownNameError, match="labels"):
            gd.Trainer(s, config).train(loader(), 1)
        assert s.step_count == 0 and s.optimizer.rule == "none"


def test_an_interrupt_keeps_everything() -> None:
    class Stop(gd.MetricCallback):
        def on_step(self, metrics: gd.StepMetrics) -> None:
            if (metrics.epoch, metrics.step) == (1, 1):
                raise KeyboardInterrupt

    with gd.build_session(line(), "cpu") as s:
        s.initialize()
        trainer = gd.Trainer(s, gd.TrainConfig(label_input="y"), [Stop()])
        with pytest.raises(KeyboardInterrupt) as error:
            trainer.train(loader(), 5)
        history: Any = error.value.history  # type: ignore[attr-defined]
        assert [e.steps for e in history.epochs] == [2] and s.step_count == 4
        s.step()


def test_the_loader() -> None:
    data = loader()
    assert len(data) == 10 and data.num_batches() == 2 and not data.is_empty() and data.input_names() == ["x", "labels"]
    sizes = [batch.get("x").size for batch in data]
    assert sizes == [12, 12]
    data.reset()
    assert data.next_batch() is not None and data.next_batch() is not None and data.next_batch() is None
    streams = [gd.InputStream("a", np.arange(8), 1), gd.InputStream("b", np.arange(16), 2)]
    order = gd.DataLoader.with_streams(streams, 8)
    for seed, want in ((0, [7, 4, 3, 2, 5, 0, 1, 6]), (42, [7, 1, 0, 3, 6, 4, 2, 5]), (0, [7, 4, 3, 2, 5, 0, 1, 6])):
        order.shuffle(seed)
        batch = order.next_batch()
        assert batch is not None and batch.get("a").tolist() == want
        assert batch.get("b").reshape(8, 2)[:, 0].tolist() == [2 * i for i in want]
    for given, size in ((streams, 0), (streams, 9), ([*streams, gd.InputStream("c", np.arange(7), 1)], 1), ([], 1),
                        ([gd.InputStream("c", np.arange(7), 2)], 1), ([streams[0], streams[0]], 1)):  # fmt: skip
        with pytest.raises(gd.ArgumentError):
            gd.DataLoader.with_streams(given, size)
