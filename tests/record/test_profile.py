"""Times of the nodes of a list, on the clock of the device, beside what the roofline predicts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, CapabilityError, SessionConsumedError, SessionError
from gdlab.record import ListProfile, SdpaParams
from gdlab.session.roof import machine_of, predicted


@pytest.fixture
def ex(device: str) -> gd.GraphExecutor:
    return rec.executor(device)


def listed(ex: gd.GraphExecutor) -> tuple[gd.GraphSession, Any, Any]:
    """A long sum, attention of several dispatches, a short one in place of 3 elements (a copy behind it)."""
    n = 1 << 20
    x, out = rec.buffer(ex, rec.data(n)), rec.zeros(ex, n)
    q, o = rec.buffer(ex, rec.data(1, 2, 4, 8)), rec.zeros(ex, 1, 2, 4, 8)
    few = rec.buffer(ex, rec.data(7))
    s = ex.begin_recorded(auto_barrier=True)
    s.elementwise_add(x, x, out, n, gd.f32)
    s.sdpa(q, q, q, o, SdpaParams(2, 2, 8, 4, 4, 8**-0.5), 1)
    s.gelu(few, few)
    return s, x, out


def test_every_node_has_its_time_and_a_prediction(ex: gd.GraphExecutor) -> None:
    listed(ex)[0].finish()  # kernels are made
    s, x, out = listed(ex)
    begun = time.perf_counter()
    profile = ex.profile(s)
    whole = time.perf_counter() - begun
    assert isinstance(profile, ListProfile)
    assert [n.name for n in profile.nodes] == ["elementwise_add", "sdpa", "gelu"]
    assert [n.node for n in profile.nodes] == [0, 1, 2]
    np.testing.assert_array_equal(out.read(), 2 * x.read())
    assert all(n.seconds > 0 for n in profile.nodes)
    assert sum(n.seconds for n in profile.nodes) <= profile.span * 1.001 <= whole * 1.5 + 1e-3
    least = np.min([[n.seconds for n in ex.profile(listed(ex)[0]).nodes] for _ in range(5)], axis=0)
    assert least[0] > least[2]  # a million elements against seven
    machine = machine_of(ex.device)
    for node, time_of in zip(s.graph.nodes, profile.nodes, strict=True):
        assert node.operation.piece is not None
        wanted = sum(predicted(machine, d) for d in node.operation.piece.dispatches)
        assert time_of.predicted == wanted and time_of.ratio == time_of.seconds / wanted
    lines = str(profile).splitlines()
    assert lines[0].startswith("3 nodes, ") and "elementwise_add" in lines[1] and lines[-1].startswith("predictions")
    assert repr(profile).startswith("<ListProfile: 3 nodes, ") and s.report.finisher == "profile"


def test_gpu_time_is_the_span_in_nanoseconds(ex: gd.GraphExecutor) -> None:
    s, x, out = listed(ex)
    begun = time.perf_counter_ns()
    found = s.finish_with_gpu_time()
    assert isinstance(found, int) and 0 < found < time.perf_counter_ns() - begun + 1_000_000
    np.testing.assert_array_equal(out.read(), 2 * x.read())
    assert s.report.finisher == "finish_with_gpu_time"
    with pytest.raises(SessionConsumedError):
        s.finish_with_gpu_time()
    assert ex.begin().finish_with_gpu_time() == 0
    copy = ex.begin()
    copy.encoder_mut().copy_buffer(x, out)
    assert copy.finish_with_gpu_time() == 0
    np.testing.assert_array_equal(out.read(), x.read())


def test_an_adapter_without_timestamps_is_an_error_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ex = rec.executor("wgpu")
    s, x, out = listed(ex)
    monkeypatch.setattr(ex.queue.gpu, "no_stamps", "this adapter has no timestamp-query")  # type: ignore[attr-defined]
    for call in (s.finish_with_gpu_time, lambda: ex.profile(s)):
        with pytest.raises(CapabilityError, match="timestamps: given this adapter has no timestamp-query, wanted"):
            call()
    assert len(s.graph) == 3 and not np.any(out.read())
    s.finish()
    np.testing.assert_array_equal(out.read(), 2 * x.read())


def test_more_dispatches_than_stamps_are_refused_and_run_without_them() -> None:
    ex = rec.executor("wgpu")
    x, y = rec.buffer(ex, rec.data(8)), rec.zeros(ex, 8)
    s = ex.begin(auto_barrier=True)
    for _ in range(2048):
        s.gelu(x, y)
    with pytest.raises(SessionError, match="profile: dispatches: given 2,048, wanted at most 2,047 that are timed"):
        ex.profile(s)
    s.finish()
    assert np.any(y.read())


def test_a_session_of_another_executor_is_refused() -> None:
    with gd.GraphExecutor("cpu") as other, pytest.raises(ArgumentError, match="wanted a session of this executor"):
        rec.executor("cpu").profile(other.begin())
