"""Looking into a session: any node's value, the step that finds what is not finite, norms, memory, profiles."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path

import networks
import numpy as np
import pytest
from session_state import W, X, fitted, line, state_of

from gdlab import ops
from gdlab.base.errors import (
    Aliased,
    ArgumentError,
    FusedAway,
    GdlabError,
    GraphError,
    ReadNodeError,
    SessionError,
    UnknownName,
    UnknownNameError,
    UnknownNode,
)
from gdlab.devices.base import owner
from gdlab.graph import Graph
from gdlab.op import reference
from gdlab.session import MemorySummary, Session, SessionConfig, build, build_inference_session, build_session
from gdlab.session.profile import SessionProfile
from gdlab.study.study import Study


def chain(length: int = 6) -> Graph:
    """Softmax of sums, one after the other: input e<k> enters at sum k, which is named s<k>; inputs x[64], e<k>[64]."""
    with Graph() as g:
        x = ops.input("x", (64,))
        for k in range(length):
            x = (x + ops.input(f"e{k}", (64,))).named(f"s{k}")
            x = ops.softmax(x.reshape((1, 64))).reshape((64,)).named(f"h{k}")
        g.output(ops.sum_all(x))
    return g


@pytest.fixture
def session(device: str) -> Iterator[Session]:
    with build_session(line(), device) as session:
        yield fitted(session)


# nodes ----------------------------------------------------------------------------------------------------------------
def test_every_node_of_a_debug_session_has_its_value(device: str) -> None:
    graph = networks.transformer(length=6, width=8, inner=12)
    config = SessionConfig.debug(device=device, optimize={"only": ("cse",)})
    session, _ = build(graph, config)
    rng = np.random.default_rng(0)
    feeds = {n.name: rng.normal(size=n.type.shape).astype(np.float32) for n in (*graph.inputs, *graph.parameters)}
    with session:
        for name, data in feeds.items():
            (session.set_input if session.has_input(name) else session.set_parameter)(name, data)
        session.step()
        want = reference.evaluate(graph, feeds)
        read = 0
        for node in graph:
            try:
                value = session.read_node(node.id)
            except FusedAway as error:
                assert "went into" in str(error) and "SessionConfig.debug()" in str(error)
                continue
            assert value.shape == node.type.shape
            np.testing.assert_allclose(value, want[node.id], rtol=1e-3, atol=1e-5, err_msg=f"%{node.id} {node.op}")
            read += 1
        assert read > 0.8 * len(graph)


def test_a_rewritten_node_has_the_value_of_its_equal(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 3))
        double = ops.neg(ops.neg(x)).named("same")
        once, again = ops.tanh(x).named("once"), ops.tanh(x).named("again")
        g.set_outputs([double * 2.0, once, again])
    session, _ = build(g, SessionConfig.debug(mode="inference", device=device))
    with session:
        session.set_input("x", X)
        session.step()
        np.testing.assert_array_equal(session.read_node(double), X)
        np.testing.assert_array_equal(session.read_node_by_name("same"), X)
        for name in ("once", "again"):
            np.testing.assert_allclose(session.read_node_by_name(name), np.tanh(X), rtol=1e-5)


def test_errors_of_reading_nodes_say_what_to_do(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 3))
        inside = ops.sigmoid(x).named("inside")
        g.set_outputs([ops.tanh(inside * x)])
    with build_inference_session(g, device) as session:
        with pytest.raises(SessionError, match="read_node: node 0: given no step yet"):
            session.read_node(0)
        session.set_input("x", X)
        session.step()
        before = state_of(session)
        with pytest.raises(UnknownNode, match=f"given {len(g)}, wanted 0 … {len(g) - 1}") as unknown:
            session.read_node(len(g))
        assert (unknown.value.id, unknown.value.count) == (len(g), len(g))
        for bad in (-1, True, "0", 1.0, None):
            with pytest.raises(UnknownNode):
                session.read_node(bad)  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="given insid, wanted one of .*; nearest: inside") as name:
            session.read_node_by_name("insid")
        assert name.value.name == "insid" and "inside" in name.value.known
        assert isinstance(name.value, UnknownNameError) and isinstance(name.value, ReadNodeError)
        text = r"node \d+: given one that went into .*, wanted .*SessionConfig.debug\(\)"
        with pytest.raises(FusedAway, match=text) as gone:
            session.read_node(inside)
        assert gone.value.node == inside.id and gone.value.by
        again = pickle.loads(pickle.dumps(gone.value))
        assert (str(again), again.node, again.by) == (str(gone.value), inside.id, gone.value.by)
        with Graph() as other:
            foreign = ops.input("x", (4, 3))
            other.output(foreign)
        with pytest.raises(GraphError, match="given a Value of another graph"):
            session.read_node(foreign)
        with pytest.raises(ArgumentError, match="space: given 'all', wanted 'forward' or 'full'"):
            session.read_node(0, "all")  # type: ignore[arg-type]
        assert state_of(session) == before


def test_a_node_whose_memory_was_taken_over_is_refused(device: str) -> None:
    """And in a debug session, where nothing is shared, it can be read."""
    graph = chain()
    feeds = {n.name: np.linspace(0, 1, 64, dtype=np.float32) for n in graph.inputs}
    with build_inference_session(graph, device) as session:
        for name, data in feeds.items():
            session.set_input(name, data)
        session.step()
        with pytest.raises(Aliased, match=r"given slot \d+, which .* took over, wanted .*debug") as caught:
            session.read_node_by_name("s0")
        assert caught.value.later and caught.value.slot >= 0
        with pytest.raises(FusedAway, match=r"given one that went into dispatch 1 \(Softmax\[1x64\] \+ add\)"):
            session.read_node_by_name("h0")
        want = {n.name: v for n in graph if n.name for v in [reference.evaluate(graph, feeds)[n.id]]}
    session, _ = build(graph, SessionConfig.debug(mode="inference", device=device))
    with session:
        for name, data in feeds.items():
            session.set_input(name, data)
        session.step()
        for k in range(6):
            np.testing.assert_allclose(session.read_node_by_name(f"h{k}"), want[f"h{k}"], rtol=1e-4)
            np.testing.assert_allclose(session.read_node_by_name(f"s{k}"), want[f"s{k}"], rtol=1e-4)


def test_gradients_are_nodes_of_the_full_graph(session: Session) -> None:
    session.step()
    full = session.plan().graph
    for gradient, name in zip(full.outputs[2:], ("w", "b"), strict=True):
        for node in (gradient, gradient.id):
            read = session.read_node(node, "full").ravel()
            np.testing.assert_array_equal(read, session.read_param_grad(name).ravel())


def test_a_study_reads_nodes_of_the_graph_that_was_written(device: str) -> None:
    graph = line()
    study = Study(graph, train=True, device=device)
    fitted(study.session).step()
    np.testing.assert_allclose(study.session.read_node(graph.outputs[1]), X @ W, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(study.session.read_node(study.graph.outputs[1]), X @ W, rtol=1e-5, atol=1e-6)
    study.close()


# a step that is looked at ---------------------------------------------------------------------------------------------
def test_a_debug_step_is_a_step(device: str) -> None:
    """The same losses, parameters, moments and counters as plain steps give."""
    ends = []
    for debug in (False, True):
        with build_session(networks.mlp(16), device) as session:
            session.initialize(1)
            session.set_input("x", np.linspace(-1, 1, 16 * 64))
            session.set_input("y", np.eye(10)[np.arange(16) % 10])
            session.set_adam(0.01)
            losses = []
            for _ in range(3):
                if debug:
                    report = session.step_debug()
                    assert report.first_bad() is None and report.skipped_aliased == ()
                    assert report.scanned == len(session.plan().dispatches) + len(session.update_dispatches())
                    assert str(report) == f"step {session.step_count}: {report.scanned} outputs, all finite"
                else:
                    session.step()
                losses.append(session.read_loss())
            assert owner().call(lambda: session.take_losses(True)) == list(enumerate(losses, 1))
            ends.append((losses, session.step_count, session.adam_step_count(), session.traffic.forwards,
                         session.traffic.dispatches, state_of(session)[-1]))  # fmt: skip
    assert ends[0] == ends[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("k", range(6))
def test_what_is_injected_at_a_dispatch_is_reported_there(device: str, k: int, bad: float) -> None:
    graph = chain()
    with build_inference_session(graph, device) as session:
        for node in graph.inputs:
            session.set_input(node.name, np.linspace(0, 1, 64))
        poisoned = np.linspace(0, 1, 64)
        poisoned[17] = bad
        session.set_input(f"e{k}", poisoned)
        report = session.step_debug()
        buffer = dict(session.plan().input_buffers)[f"e{k}"]
        reader = next(d for d in session.plan().dispatches if buffer in d.reads)
        first = report.first_bad()
        assert first is not None and (first.dispatch, first.label) == (reader.index, reader.label)
        assert first.origin == reader.origin and (first.has_nan or first.has_inf)
        assert first.first_index == (17 if "Pointwise" in reader.label else first.first_index)
        assert f"dispatch {reader.index} ({reader.label})" in str(report)


def test_an_update_that_overflows_is_found(session: Session) -> None:
    session.set_learning_rate(3e38)
    session.set_input("x", X * 1e3)
    report = session.step_debug()
    first = report.first_bad()
    assert first is not None and first.has_inf and first.dispatch >= len(session.plan().dispatches)
    assert first.label.startswith("SGD") and session.step_count == 1


def test_a_debug_step_refuses_what_a_step_refuses(device: str) -> None:
    with build_session(line(), device) as session:
        session.set_input("x", X)
        before = state_of(session)
        for call in (session.step_debug, session.trace_dispatches, session.capture_profile):
            with pytest.raises(SessionError, match="inputs: given no value for y, wanted set_input"):
                call()
        assert state_of(session) == before


def test_a_look_leaves_the_last_step_as_it_was(device: str) -> None:
    with build_session(line(), device) as session, build_session(line(), device) as other:
        for one in (session, other):
            fitted(one).set_learning_rate(0.1)
            one.step()
        seen = session.read_loss(), session.read_all_param_grad_norms(), session.read_output_by_index(0).tolist()
        for look in (session.trace_dispatches, session.dispatch_outputs):
            look()
            found = session.read_loss(), session.read_all_param_grad_norms(), session.read_output_by_index(0).tolist()
            assert found == seen
        for one in (session, other):
            one.sgd_step(0.1)
        np.testing.assert_array_equal(session.read_param("w"), other.read_param("w"))


def test_a_trace_lists_what_is_suspicious(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (200,))
        big, zero, few = ops.exp(x).named("big"), ops.relu(-x), ops.relu(-ops.input("y", (50,)))
        g.set_outputs([big, zero, few, ops.tanh(x)])
    with build_inference_session(g, device) as session:
        session.set_input("x", np.full(200, 7.0))
        session.set_input("y", np.full(50, 7.0))
        rows = session.trace_dispatches(1000.0)
        values = sorted((round(row.max_abs), row.nan, row.inf) for row in rows)
        assert values == [(0, False, False), (1097, False, False)]
        assert session.step_count == 0 and session.trace_dispatches(1e4) != rows
        session.set_input("x", np.full(200, 100.0))
        assert [row.inf for row in session.trace_dispatches(1e9)].count(True) == 1
        with pytest.raises(ArgumentError, match="threshold: given nan"):
            session.trace_dispatches(math.nan)


# norms ----------------------------------------------------------------------------------------------------------------
def test_norms_are_of_float64(session: Session) -> None:
    with pytest.raises(SessionError, match="read_all_param_grad_norms: gradients: given no step yet"):
        session.read_all_param_grad_norms()
    session.set_parameter("w", W * 1e25)
    norms = dict(session.read_all_param_norms())
    assert list(norms) == ["w", "b"] and norms["b"] == 0
    assert norms["w"] == pytest.approx(np.linalg.norm((W * np.float32(1e25)).astype(np.float64)), rel=1e-12)
    session.set_parameter("w", W)
    session.step()
    for name, norm in session.read_all_param_grad_norms():
        assert norm == pytest.approx(np.linalg.norm(session.read_param_grad(name).astype(float)), rel=1e-12)


def test_the_summary_of_gradients(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    with build_session(line(), device) as session:
        fitted(session).step()
        norms, weights = dict(session.read_all_param_grad_norms()), dict(session.read_all_param_norms())
        text = session.dump_grad_summary(1)
        top = max(norms, key=lambda name: norms[name])
        lines = text.splitlines()
        assert lines[0] == "--- top 1 param grads (out of 2 with grads) ---" and len(lines) == 2
        ratio = norms[top] / weights[top] if weights[top] else math.nan
        want = f"  {top:>40}  ‖g‖={norms[top]:.3e}  ‖w‖={weights[top]:.3e}  g/w={ratio:.3e}"
        assert lines[1] == want and capsys.readouterr().out == text + "\n"
        assert "g/w=nan" in session.dump_grad_summary(5), "the bias is zero"
        session.set_input("y", np.full((4, 2), np.nan))
        session.step()
        assert session.dump_grad_summary(9).splitlines()[1].count("nan") >= 1
        with pytest.raises(ArgumentError, match="top_n: given -1"):
            session.dump_grad_summary(-1)


# memory ---------------------------------------------------------------------------------------------------------------
def test_memory_counts_everything_that_was_allocated(device: str) -> None:
    with build_session(line(), device) as session:
        fitted(session)
        plain = session.memory_summary()
        assert (plain.adam_state_bytes, plain.grad_accumulator_bytes, plain.aux_bytes) == (0, 0, 0)
        session.set_learning_rate(0.1)
        assert session.memory_summary() == plain
        session.set_grad_accumulate(2)
        assert session.memory_summary().grad_accumulator_bytes == 512
        session.set_grad_clip_norm(1.0)
        assert session.memory_summary().aux_bytes > 0 and session.memory_summary().adam_state_bytes == 0
        session.set_adam(0.1)
        full = session.memory_summary()
        assert full.adam_state_bytes == 1024
        parts = full.adam_state_bytes + full.grad_accumulator_bytes + full.aux_bytes
        assert full.total_buffer_bytes == plain.total_buffer_bytes + parts
        assert full.num_buffers == plain.num_buffers + len(session.update.buffers)
        assert isinstance(full, MemorySummary) and " MB adam state), largest " in str(full)


# profiles -------------------------------------------------------------------------------------------------------------
def test_times_of_dispatches(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    with build_session(line(), device) as session:
        fitted(session).set_adam(0.01)
        assert session.gpu_timings() == [] and session.gpu_timings().reason == "profiling is off: set_profiling(True)"
        session.set_profiling(True)
        assert session.gpu_timings().reason == "no step since it is on"
        session.step()
        session.wait()
        rows = session.profiled_dispatch_timings()
        dispatches = (*session.plan().dispatches, *session.update_dispatches())
        assert [(i, label) for i, label, _ in rows] == [(d.index, d.label) for d in dispatches]
        assert all(0 <= seconds < 1 for *_, seconds in rows) and sum(seconds for *_, seconds in rows) > 0
        text = session.dump_gpu_timings()
        assert capsys.readouterr().out == text + "\n" and text.splitlines()[0].startswith(f"--- {len(rows)} dispatches")
        session.set_profiling_window(2, 4)
        loss = session.read_loss()
        session.step()
        assert [i for i, *_ in session.gpu_timings()] == [2, 3] and session.read_loss() != loss
        session.set_profiling(False)
        session.step()
        assert session.traffic.forwards == 3
        for window in ((-1, 3), (3, 3), (0, 5000), (0.0, 3)):
            with pytest.raises(ArgumentError, match="set_profiling_window: window: given"):
                session.set_profiling_window(*window)  # type: ignore[arg-type]


def test_profiling_changes_no_value(device: str) -> None:
    states = []
    for on in (False, True):
        with build_session(line(), device) as session:
            fitted(session).set_adam(0.1)
            session.set_profiling(on)
            for _ in range(4):
                session.step()
            session.set_profiling(False)
            states.append(state_of(session)[-1])
    assert states[0] == states[1]


def test_a_profile_of_several_steps(device: str, tmp_path: Path) -> None:
    with build_session(networks.mlp(8), device) as session:
        session.initialize(0)
        session.set_input("x", np.ones((8, 64)))
        session.set_input("y", np.eye(10)[:8])
        session.set_learning_rate(0.01)
        profile = session.capture_profile(samples=3)
        assert session.step_count == 3 and profile.samples == 3 and profile.reason == ""
        count = len(session.plan().dispatches) + len(session.update_dispatches())
        assert [d.index for d in profile.dispatches] == list(range(count))
        assert sum(d.share for d in profile.dispatches) == pytest.approx(1)
        assert all(d.p25 <= d.median <= d.p75 for d in profile.dispatches)
        assert {d.phase for d in profile.dispatches} >= {"forward", "backward", "update"}
        plain = json.loads(profile.save(tmp_path / "p.json").read_text(encoding="utf-8"))
        assert plain["device"] == str(session.device) and len(plain["dispatches"]) == count
        trace = json.loads(profile.save(tmp_path / "t.json", chrome=True).read_text(encoding="utf-8"))
        check_trace(trace, profile)
        with pytest.raises(ArgumentError, match="samples: given 0, wanted an int ≥ 1"):
            session.capture_profile(0)
        assert session.step_count == 3


def check_trace(trace: dict[str, object], profile: SessionProfile) -> None:
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]  # type: ignore[attr-defined]
    assert [e["name"] for e in events] == [d.label for d in profile.dispatches]
    for before, after in zip(events, events[1:], strict=False):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"]), "one after the other"
    assert all({"pid", "tid", "cat", "args"} <= set(e) for e in events)


# refusals change nothing ----------------------------------------------------------------------------------------------
def test_inspection_of_an_inference_session_refuses_gradients(device: str) -> None:
    with build_inference_session(line(), device) as session:
        fitted(session).step()
        before = state_of(session)
        for call in (session.read_all_param_grad_norms, session.dump_grad_summary):
            with pytest.raises(GdlabError, match="given an inference session, wanted a training session"):
                call()
        assert state_of(session) == before

