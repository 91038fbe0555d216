"""Finishers: what they return, submissions, errors of the device, steady state (S-15, S-18, S-19, S-22, S-23)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, GraphEncodeError, SessionError
from gdlab.record import Buffer, GraphSession
from gdlab.record.finish import split

TUPLES: dict[str, tuple[str, ...]] = {
    "finish_with_timing": ("encoding_ns", "gpu_wait_ns"),
    "finish_with_fusion_and_timing": ("encoding_ns", "gpu_wait_ns", "fusions"),
    "finish_with_fusion_and_reorder": ("fusions", "reordered"),
    "finish_with_fusion_reorder_and_timing": ("encoding_ns", "gpu_wait_ns", "fusions", "reordered"),
    "finish_optimized": ("fusions", "reordered", "barriers_buf0", "barriers_buf1"),
    "finish_optimized_with_timing": (
        "encoding_ns", "gpu_wait_ns", "fusions", "reordered", "barriers_buf0", "barriers_buf1"),
}  # fmt: skip
FINISHERS = ("finish", "finish_with_fusion", *TUPLES)


@pytest.fixture
def ex(device: str) -> gd.GraphExecutor:
    return rec.executor(device)


def chain(ex: gd.GraphExecutor, s: GraphSession, count: int) -> tuple[Buffer, Buffer]:
    """x → y → x …, `count` nodes, each a half: a barrier between any two."""
    x, y = rec.buffer(ex, np.full(8, 2.0**20)), rec.zeros(ex, 8)
    half = rec.buffer(ex, np.full(8, 0.5))
    for k in range(count):
        a, b = (x, y) if k % 2 == 0 else (y, x)
        s.elementwise_mul(a, half, b, 8, gd.f32)
    return x, y


@pytest.mark.parametrize("finisher", FINISHERS)
@pytest.mark.parametrize("recording", [False, True])
def test_what_finishers_return(ex: gd.GraphExecutor, finisher: str, recording: bool) -> None:
    begin = ex.begin_recorded if recording else ex.begin
    for count in (0, 3):
        before, begun = ex.counters()["submissions"], time.perf_counter_ns()
        s = begin(auto_barrier=True)
        x, y = chain(ex, s, count)
        found = getattr(s, finisher)()
        elapsed = time.perf_counter_ns() - begun
        assert ex.counters()["submissions"] - before == (count > 0)
        assert (y if count else x).read()[0] == 2.0 ** (20 - count)
        if finisher == "finish":
            assert found is None
            continue
        if finisher == "finish_with_fusion":
            assert found == 0
            continue
        assert found._fields == TUPLES[finisher]
        values = found._asdict()
        if "encoding_ns" in values:
            encoding, waiting = values.pop("encoding_ns"), values.pop("gpu_wait_ns")
            assert encoding >= 0 and waiting >= 0 and 0 < encoding + waiting <= elapsed
            assert s.report.timing == (encoding, waiting)
        barriers = values.pop("barriers_buf0", 0)
        assert barriers == (max(count - 1, 0) if recording and finisher.startswith("finish_optimized") else 0)
        assert all(v == 0 for v in values.values())


def test_session_begin_is_a_time_that_has_passed(ex: gd.GraphExecutor) -> None:
    for bad in (1.5, "now", True, -1, time.perf_counter_ns() + 10**12):
        s = ex.begin_recorded()
        with pytest.raises(ArgumentError, match="finish_with_timing: session_begin: given"):
            s.finish_with_timing(bad)  # type: ignore[arg-type]
        s.finish()  # it was not consumed
    begun = time.perf_counter_ns() - 50_000_000
    for finisher in (n for n in FINISHERS if n.endswith("timing")):
        assert getattr(ex.begin_recorded(), finisher)(session_begin=begun).encoding_ns >= 50_000_000


# two submissions ------------------------------------------------------------------------------------------------------
SPLITS = {0: (0, 0), 1: (1, 0), 63: (63, 0), 64: (64, 0), 65: (64, 1), 128: (64, 64), 639: (64, 575), 640: (64, 576),
          650: (65, 585), 1000: (100, 900), 1209: (120, 1089)}  # fmt: skip
BARRIERS = {0: (0, 0), 1: (0, 0), 63: (62, 0), 64: (63, 0), 65: (63, 0), 128: (63, 63), 639: (63, 574), 640: (63, 575),
            650: (64, 584), 1000: (99, 899), 1209: (119, 1088)}  # fmt: skip


@pytest.mark.parametrize("count", SPLITS)
def test_the_table_of_splits(count: int) -> None:
    assert (split(count), count - split(count)) == SPLITS[count]
    ex = rec.executor("cpu")
    s = ex.begin_recorded(auto_barrier=True)
    x, y = chain(ex, s, count)
    before = ex.counters()["submissions"]
    found = s.finish_optimized()
    assert (found.barriers_buf0, found.barriers_buf1) == BARRIERS[count] and s.report.chunks == SPLITS[count]
    assert ex.counters()["submissions"] - before == sum(c > 0 for c in SPLITS[count]) == s.report.submissions
    assert ("submitted in two" in str(s.report)) == (SPLITS[count][1] > 0)
    free = ex.begin_recorded(auto_barrier=True)
    outs = [rec.zeros(ex, 4) for _ in range(min(count, 200))]
    for out in outs:
        free.gelu(half_of(ex), out)
    assert free.finish_optimized()[2:] == (0, 0)


def half_of(ex: gd.GraphExecutor) -> Buffer:
    return rec.zeros(ex, 4)


def test_the_first_part_runs_before_the_second_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from gdlab.devices.wgpu import wgpu_queue as room

    ex = rec.executor("wgpu")
    s = ex.begin_recorded(auto_barrier=True)
    x, _ = chain(ex, s, 80)
    events, record, send = list[str](), room.record_pass, room.WgpuQueue.send

    def noted(gpu: Any, rows: Any, *more: Any) -> None:
        events.append(f"record {len(rows)}")
        record(gpu, rows, *more)

    def sent(self: Any, commands: Any) -> int:
        events.append("submit")
        return send(self, commands)

    monkeypatch.setattr(room, "record_pass", noted)
    monkeypatch.setattr(room.WgpuQueue, "send", sent)
    assert s.finish_optimized() == (0, 0, 63, 15)
    monkeypatch.undo()
    first = events.index("record 64")
    assert events[:first] == ["record 80"]  # the whole list, which was never recorded before, to be refused in time
    assert events[first : first + 4] == ["record 64", "submit", "record 16", "submit"]
    assert x.read()[0] == 2.0**-60


# what a device refuses ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("finisher", [*FINISHERS, "commit"])
def test_a_node_that_the_device_refuses_is_named_and_nothing_runs(
    finisher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ex = rec.executor("wgpu")
    s = ex.begin_recorded(auto_barrier=True)
    x, y = chain(ex, s, 100)
    bad = s.graph.nodes[70]
    items = ex._items

    def broken(node: Any, slot: int) -> Any:
        found = items(node, slot)
        if node is not bad:
            return found
        (bound,) = found
        row = (*bound.run[:2], 1 << 20, 1, 1)  # workgroups that no adapter takes
        return (type(bound)(bound.dispatch, row, bound.keep),)

    monkeypatch.setattr(ex, "_items", broken)
    before = ex.counters()
    with pytest.raises(GraphEncodeError, match=r"submit: node 70 \(elementwise_mul\): given") as refused:
        getattr(s, finisher)()
    assert (refused.value.index, refused.value.op) == (70, "elementwise_mul")
    assert "nothing was submitted" in str(refused.value)
    monkeypatch.undo()
    assert ex.counters()["submissions"] == before["submissions"]
    assert x.read()[0] == 2.0**20 and not y.read().any()
    with ex.begin(auto_barrier=True) as after:
        x, y = chain(ex, after, 3)
    assert y.read()[0] == 2.0**17


def test_a_failure_of_the_second_part_says_that_the_first_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    ex = rec.executor("wgpu")
    s = ex.begin_recorded(auto_barrier=True)
    chain(ex, s, 80)
    submit, calls = ex.queue.submit, list[int]()

    def failing(*args: Any, **more: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise SessionError("submit", "recording", "refused", "a valid one")
        submit(*args, **more)

    rehearse = ex.queue.rehearse

    def refusing(where: str, given: Any) -> None:
        if calls and len(given) > 70:
            raise SessionError("submit", "recording", "refused", "a valid one")
        rehearse(where, given)

    monkeypatch.setattr(ex.queue, "submit", failing)
    monkeypatch.setattr(ex.queue, "rehearse", refusing)
    with pytest.raises(GraphEncodeError, match="after chunk 0 ran") as refused:
        s.finish_optimized()
    assert refused.value.index == 70


def test_a_kernel_that_cannot_be_made_is_named(ex: gd.GraphExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    from gdlab.base.errors import CompileError

    s = ex.begin(auto_barrier=True)
    x, out = rec.zeros(ex, 77), rec.zeros(ex, 77)
    s.gelu(x, out)

    def refuse(*args: Any) -> None:
        raise CompileError("gelu", "kernel", "a bad one", "a good one")

    monkeypatch.setattr(ex.queue, "bind", refuse)
    with pytest.raises(GraphEncodeError, match="node 0") as refused:
        s.finish()
    assert (refused.value.index, refused.value.op) == (0, "gelu") and x.allocation.version == 0


# steady state ---------------------------------------------------------------------------------------------------------
def test_a_steady_state_makes_nothing(device: str) -> None:
    ex = gd.GraphExecutor(device)
    layer = rec.Layer(ex)

    def made() -> dict[str, int]:
        s = ex.begin_recorded(auto_barrier=True)
        layer.encode(s)
        s.finish_optimized()
        return {k: v for k, v in ex.counters().items() if k.endswith("_created")}

    made()
    wanted = made()
    for _ in range(100 if device == "cpu" else 20):
        assert made() == wanted
    before = ex.counters()
    made()
    after = ex.counters()
    assert after["submissions"] == before["submissions"] + 1 and after["dispatches"] > before["dispatches"]
    before["copies"] = 0
    assert ex.counters()["copies"] > 0
    ex.close()


def test_a_list_that_has_run_is_submitted_as_it_was(ex: gd.GraphExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two equal lists looks at no node; bytes, counters, report and barriers are those of the first."""
    x, y, odd = rec.buffer(ex, rec.data(64), label="x"), rec.zeros(ex, 64), rec.zeros(ex, 600).slice_view(12, 64)
    found, read = list[Any](), list[bytes]()
    for repeat in range(3):
        x.write(rec.data(64, seed=repeat // 2))  # the third with other numbers
        before = ex.counters()
        s = ex.begin(auto_barrier=True)
        s.gelu(x, y)
        s.softmax(y, odd, 8, 8)
        s.elementwise_add(y, odd, y, 64)
        if repeat:
            monkeypatch.setattr(ex, "encode", None)
        s.finish()
        after = ex.counters()
        told = s.report
        counted = {k: after[k] - before[k] for k in ("dispatches", "workgroups", "submissions", "copies")}
        page = [line for line in str(told).splitlines() if not line.startswith("time: ")]
        found.append((counted, page, told.labels, s.barrier_count(), s.barrier_log, s.graph.node_count()))
        read.append(y.read().tobytes() + odd.read().tobytes())
        assert y.allocation.version == 2 * (repeat + 1) and not y.allocation.from_host
    assert found[0] == found[1] == found[2] and found[0][0]["dispatches"] == 3 and found[0][3] == 2
    assert read[0] == read[1] != read[2]
    rec.close(y.read() - odd.read().reshape(-1), rec.gelu(rec.data(64, seed=1)))
    s = ex.begin(auto_barrier=True)
    s.gelu(x, y)
    s.softmax(y, odd, 8, 8)
    s.elementwise_add(y, odd, y, 64)
    x.release()
    monkeypatch.undo()
    with pytest.raises(SessionError, match="released"):
        s.finish()


def test_a_list_that_has_run_and_is_refused_now_is_told_by_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    ex = rec.executor("wgpu")
    x, y = rec.buffer(ex, rec.data(64)), rec.zeros(ex, 64)

    def encoded() -> GraphSession:
        s = ex.begin(auto_barrier=True)
        s.gelu(x, y)
        s.softmax(y, x, 8, 8)
        return s

    encoded().finish()
    held, version = x.read(), x.allocation.version

    def refuse(where: str, items: Any, *more: Any) -> None:
        raise SessionError(where, "recording", "refused", "a valid one")

    monkeypatch.setattr(ex.queue, "submit", refuse)
    monkeypatch.setattr(ex.queue, "rehearse", lambda where, items: refuse(where, items) if len(items) > 1 else None)
    s = encoded()
    with pytest.raises(GraphEncodeError, match="node 1") as told:
        s.finish()
    monkeypatch.undo()
    assert told.value.op == "softmax" and x.allocation.version == version and np.array_equal(x.read(), held)
    encoded().finish()
    assert not np.array_equal(x.read(), held)


# the face -------------------------------------------------------------------------------------------------------------
SEED = """rms_norm rms_norm_no_scale_f32 elementwise_add elementwise_mul rope rope_neox_f32 gelu softmax softcap
quantized_matmul quantized_matmul_simd quantized_matmul_ggml quantized_matmul_id_ggml sdpa flash_attn_vec barrier
barrier_between track_dispatch barrier_count tracker_overhead_ns dump_group_stats encoder_mut device is_recording finish
commit finish_with_timing finish_with_fusion finish_with_fusion_and_timing finish_with_fusion_and_reorder
finish_with_fusion_reorder_and_timing finish_optimized finish_optimized_with_timing drop"""


def test_every_name_of_the_seed_is_there() -> None:
    assert not set(SEED.split()) - set(dir(GraphSession))
    assert {"GraphSession", "GraphExecutor"} <= set(dir(gd)) and gd.GraphSession is GraphSession
