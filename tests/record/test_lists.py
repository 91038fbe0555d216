"""The list of a session: conflicts, barriers, groups; what may be called when; the encoder (S-11, S-12, S-14, S-20)."""

from __future__ import annotations

import gc
import io
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, SessionConsumedError, SessionError, UnderDeclaredWarning
from gdlab.op import REGISTRY
from gdlab.record import Buffer, ConflictTracker, QuantizedMatmulParams, SdpaParams
from gdlab.record.ranges import Tracking


@pytest.fixture
def ex(device: str) -> gd.GraphExecutor:
    return rec.executor(device)


def chain(ex: gd.GraphExecutor, s: gd.GraphSession, count: int, declare: bool = True) -> list[Buffer]:
    made = [rec.zeros(ex, 8) for _ in range(count + 1)]
    for a, b in zip(made, made[1:], strict=False):
        if declare:
            s.barrier_between([a], [b])
        s.gelu(a, b)
    return made


# barriers -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recording", [False, True])
def test_a_chain_has_a_barrier_between_any_two(ex: gd.GraphExecutor, recording: bool) -> None:
    for count in (2, 5, 64):
        s = ex.begin_recorded() if recording else ex.begin()
        chain(ex, s, count)
        assert s.barrier_count() == count - 1 == s.graph.barrier_count() == len(s.barrier_log)
        assert s.graph.node_count() == len(s.graph) == s.graph.dispatch_count() == count
        assert s.predicted_device_barriers() == count - 1
        s.drop()
    s = ex.begin()
    for _ in range(5):
        chain(ex, s, 1)
    assert s.barrier_count() == 0 and s.group_stats().histogram == {"5": 1} and s.predicted_device_barriers() == 0


def test_each_kind_of_conflict_is_in_the_log(ex: gd.GraphExecutor) -> None:
    a, b, c = (rec.zeros(ex, 64) for _ in range(3))
    for first, second, kind, of in (((a, b), (b, c), "raw", b), ((a, b), (c, a), "war", a), ((a, b), (c, b), "waw", b)):
        s = ex.begin_recorded()
        for x, y in (first, second):
            s.barrier_between([x], [y])
            s.gelu(x, y)
        (logged,) = s.barrier_log
        assert (logged.node, logged.kind, logged.new, logged.before, logged.earlier) == (1, kind, of.range, 0, of.range)
        s.drop()
    s = ex.begin_recorded(auto_barrier=True)  # raw is told before waw before war
    s.elementwise_add(a, b, c, 64, gd.f32)
    s.elementwise_add(c, b, a, 64, gd.f32)
    assert [entry.kind for entry in s.barrier_log] == ["raw"]


def test_slices_conflict_where_they_overlap(ex: gd.GraphExecutor) -> None:
    home, out = rec.zeros(ex, 64), rec.zeros(ex, 64)
    for stop, barriers in ((64, 0), (68, 1)):
        s = ex.begin()
        s.barrier_between([], [(home, 0, stop)])
        s.gelu(out.slice_view(0, 4), out.slice_view(64, 4))
        s.barrier_between([home.slice_view(64, 16)], [(out, 128, 192)])
        s.gelu(home.slice_view(64, 16), out.slice_view(128, 16))
        assert s.barrier_count() == barriers
        s.drop()


def test_a_plain_barrier_always_counts_and_ends_the_group(ex: gd.GraphExecutor) -> None:
    s = ex.begin_recorded()
    s.barrier()
    s.barrier()
    assert s.barrier_count() == 2
    chain(ex, s, 1)
    s.barrier()
    chain(ex, s, 1)
    assert s.barrier_count() == 3 and s.group_stats().groups == 2
    assert [n.fence for n in s.graph.nodes] == [True, True] and s.barrier_log == []


def test_groups_are_counted_by_size(ex: gd.GraphExecutor) -> None:
    s = ex.begin()
    for size in (1, 3, 9):
        for _ in range(size):
            chain(ex, s, 1)
        s.barrier()
    stats = s.group_stats()
    assert (stats.dispatches, stats.barriers, stats.groups) == (13, 3, 3) and stats.ratio == pytest.approx(13 / 3)
    assert stats.histogram == {"1": 1, "3": 1, "8+": 1}
    out = io.StringIO()
    s.dump_group_stats(out)
    assert out.getvalue().splitlines() == [
        "  [GROUP_STATS] dispatches=13 barriers=3 groups=3 ratio=4.33",
        "    size 1: 1 groups", "    size 3: 1 groups", "    size 8+: 1 groups",
    ]  # fmt: skip


def test_group_stats_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    rec.direct(rec.executor("cpu")).dump_group_stats()
    assert capsys.readouterr().err.startswith("  [GROUP_STATS] dispatches=0 barriers=0 groups=0 ratio=0.00")


def test_what_is_not_declared_is_told_once_per_kind_and_gets_its_barrier(ex: gd.GraphExecutor) -> None:
    s = ex.begin_recorded()
    a, b, c, d = (rec.zeros(ex, 8) for _ in range(4))
    s.gelu(a, b)
    s.barrier_between([a], [c])  # it reads b
    with pytest.warns(UnderDeclaredWarning, match=r"gelu: declared ranges: given none that cover bytes 0 … 32") as told:
        s.gelu(b, c)
    assert told[0].filename == __file__
    assert s.barrier_count() == 1 and s.barrier_log[0].kind == "raw"
    s.gelu(c, d)  # told before: "other"
    with pytest.warns(UnderDeclaredWarning, match="softmax") as told:
        s.softmax(d, a, 1, 8)
    assert s.barrier_count() == 3 and told[0].filename == __file__
    strict = ex.begin(strict=True)
    strict.gelu(a, b)
    with pytest.raises(SessionError, match="gelu: declared ranges: given raw conflict of bytes 0 … 32 of allocation"):
        strict.gelu(b, c)
    assert strict.graph.node_count() == 1 and strict.barrier_count() == 0
    strict.barrier_between([b], [c])
    strict.gelu(b, c)
    assert strict.barrier_count() == 1


def test_a_declared_range_adds_to_a_node_and_takes_nothing_from_it(ex: gd.GraphExecutor) -> None:
    a, b, c, extra = (rec.zeros(ex, 8) for _ in range(4))
    s = ex.begin_recorded()
    s.barrier_between([(extra, 0, 16)], [])
    s.gelu(a, b)
    (node,) = s.graph.nodes
    assert node.reads == (a.range, (extra.allocation_id, 0, 16)) and node.writes == (b.range,)
    s.barrier_between([], [extra])
    assert s.barrier_count() == 1  # war with what was declared
    s.gelu(c, extra)
    s.drop()
    s = ex.begin_recorded(auto_barrier=True)
    s.gelu(a, b)
    s.track_dispatch([extra], [])
    assert s.graph.nodes[0].reads == (a.range, extra.range) and s.barrier_count() == 0
    s.gelu(c, extra)
    assert s.barrier_count() == 1 and s.barrier_log[0].kind == "war"
    plain = ex.begin(auto_barrier=True)
    plain.gelu(a, b)
    plain.track_dispatch([], [c])
    assert plain.graph.nodes[0].writes == (b.range,)
    plain.gelu(c, extra)
    assert plain.barrier_count() == 1


def test_ranges_are_those_that_an_op_touches(ex: gd.GraphExecutor) -> None:
    k, q, out = rec.zeros(ex, 1, 1, 20, 4), rec.zeros(ex, 8), rec.zeros(ex, 64)
    s = rec.direct(ex)
    s.sdpa(q, k, k, out, SdpaParams(2, 1, 4, 1, 7, 0.5, 20), 1)
    (node,) = s.graph.nodes
    assert node.op_kind == "sdpa" and node.operation.dispatches > 1
    assert [(r.memory, r.start, r.stop) for r in node.reads] == [(q.allocation_id, 0, 32), (k.allocation_id, 0, 112)]
    assert [(r.start, r.stop) for r in node.writes] == [(0, 32)]


def test_tracking_takes_time_that_never_falls(ex: gd.GraphExecutor) -> None:
    s = ex.begin()
    assert s.tracker_overhead_ns() == 0
    last = 0
    for _ in range(5):
        chain(ex, s, 1)
        assert s.tracker_overhead_ns() > last
        last = s.tracker_overhead_ns()
    s.finish()
    assert s.tracker_overhead_ns() >= last


def test_the_tracker_is_that_of_plans() -> None:
    from gdlab.plan.order import ConflictTracker as plans

    assert ConflictTracker is plans


# the life of a session ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recording", [False, True])
def test_buffers_change_when_the_session_is_finished(ex: gd.GraphExecutor, recording: bool) -> None:
    x, out = rec.buffer(ex, rec.data(70)), rec.buffer(ex, rec.data(70, seed=3))
    before = out.read()
    with ex.begin_recorded() if recording else ex.begin() as s:
        assert s.is_recording() is recording and s.device is ex.device and s.executor is ex
        s.gelu(x, out)
        assert np.array_equal(out.read(), before)
        x.write(rec.data(70, seed=8))  # every node sees it
    rec.close(out.read(), rec.gelu(rec.data(70, seed=8)))
    dropped = ex.begin()
    for _ in range(5):
        dropped.gelu(x, before_of(ex))
        dropped.elementwise_add(out, x, out, 70) if dropped.graph.node_count() == 1 else None
    kept = out.read()
    assert dropped.drop() is None
    assert np.array_equal(out.read(), kept)


def before_of(ex: gd.GraphExecutor) -> Buffer:
    return rec.zeros(ex, 70)


def test_an_exception_drops_the_list(ex: gd.GraphExecutor) -> None:
    x, out = rec.buffer(ex, rec.data(8)), rec.zeros(ex, 8)
    with pytest.raises(ZeroDivisionError), ex.begin() as s:
        s.gelu(x, out)
        1 / 0  # noqa: B018
    assert not out.read().any()
    with pytest.raises(SessionConsumedError, match="gelu: session: given one consumed by drop, wanted a new session"):
        s.gelu(x, out)


def test_a_consumed_session_refuses_everything(ex: gd.GraphExecutor) -> None:
    x, out = rec.zeros(ex, 8), rec.zeros(ex, 8)
    s = ex.begin()
    with pytest.raises(SessionError, match="report: session: given one that is not finished"):
        _ = s.report
    s.gelu(x, out)
    s.finish()
    calls: list[Any] = [
        lambda: s.gelu(x, out), s.finish, s.commit, s.drop, s.barrier, lambda: s.barrier_between([], []),
        lambda: s.track_dispatch([], []), s.encoder_mut, lambda: s.encoder.dispatch("relu", [x], out),
        lambda: s.encoder.copy_buffer(x, out), lambda: s.encoder.set_op_kind("other"), s.finish_optimized,
        s.finish_with_timing, lambda: s.quantized_matmul(x, x, x, x, QuantizedMatmulParams(1, 1, 1, 32, 4)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(SessionConsumedError, match="given one consumed by finish, wanted a new session"):
            call()
    assert len(s.graph) == 1 and "consumed by finish" in repr(s) and s.report.finisher == "finish"


def test_two_hundred_sessions_leave_nothing(device: str) -> None:
    ex = gd.GraphExecutor(device)
    x, out = rec.zeros(ex, 64), rec.zeros(ex, 64)
    kept = weakref.WeakSet[Any]()
    for _ in range(200):
        s = ex.begin_recorded()
        s.gelu(x, out)
        kept.add(s.encoder)
        s.drop()
    for _ in range(40):
        s = ex.begin()
        s.gelu(x, out)
        s.commit()  # dropped
    del s
    gc.collect()
    assert not kept
    made = ex.counters()
    ex.begin().finish()
    with ex.begin() as s:
        s.gelu(x, out)
    assert ex.counters()["buffers_created"] <= made["buffers_created"] + 1
    ex.close()


def test_committed_work_is_waited_for_in_any_order_and_twice(ex: gd.GraphExecutor) -> None:
    x, y = rec.buffer(ex, rec.data(64)), rec.zeros(ex, 64)
    first, second = ex.begin(), ex.begin_recorded()
    first.gelu(x, y)
    second.elementwise_add(y, y, x, 64, gd.f32)
    a, b = first.commit(), second.commit()
    assert not a.done and a.encoder is first.encoder
    for work in (b, a, b):
        work.wait_until_completed()
        assert work.done
    rec.close(x.read(), 2 * rec.gelu(rec.data(64)))
    assert ex.begin().commit().done


def test_the_session_keeps_its_buffers(ex: gd.GraphExecutor) -> None:
    out = rec.zeros(ex, 64)
    s = ex.begin()
    s.gelu(rec.buffer(ex, rec.data(64)), out)
    gc.collect()
    rec.zeros(ex, 64).write(np.full(64, 9))
    s.finish()
    rec.close(out.read(), rec.gelu(rec.data(64)))


def test_one_session_is_used_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ex = rec.executor("cpu")
    x, out = rec.zeros(ex, 8), rec.zeros(ex, 8)
    s, inside, leave = ex.begin(), threading.Event(), threading.Event()
    add = Tracking.add

    def waiting(self: Tracking, *args: Any) -> None:
        inside.set()
        assert leave.wait(20)
        add(self, *args)

    monkeypatch.setattr(Tracking, "add", waiting)
    thread = threading.Thread(target=lambda: s.gelu(x, out))
    try:
        thread.start()
        assert inside.wait(20)
        with pytest.raises(SessionError, match="one that another thread uses, wanted one thread at a time"):
            s.gelu(out, x)
    finally:
        leave.set()
        thread.join(20)
    assert len(s.graph) == 1


def test_sessions_of_one_executor_run_in_several_threads(ex: gd.GraphExecutor) -> None:
    outs, errors = [rec.zeros(ex, 64) for _ in range(4)], list[BaseException]()

    def work(out: Buffer, seed: int) -> None:
        try:
            for _ in range(5):
                with ex.begin(auto_barrier=True) as s:
                    s.gelu(rec.buffer(ex, rec.data(64, seed=seed)), out)
                    s.elementwise_add(out, out, out, 64, gd.f32)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(out, i)) for i, out in enumerate(outs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors
    for i, out in enumerate(outs):
        rec.close(out.read(), 2 * rec.gelu(rec.data(64, seed=i)))


def test_a_closed_executor_refuses_and_gives_its_memory_back(device: str) -> None:
    with gd.GraphExecutor(device) as ex:
        x = rec.zeros(ex, 8)
        s = ex.begin()
        s.gelu(x, x)
    ex.close()
    assert not x.is_open and "closed" in repr(ex)
    for call in (lambda: rec.zeros(ex, 8), ex.begin, ex.begin_recorded, s.finish, x.read):
        with pytest.raises(SessionError):
            call()


# the encoder ----------------------------------------------------------------------------------------------------------
def _elementwise() -> list[str]:
    return sorted(n for n, op in REGISTRY.items() if op.family == "elementwise" and op.samples and op.kind != "private"
                  and not op.stores)  # fmt: skip


def test_every_elementwise_op_of_the_registry_is_dispatched_recorded_and_reordered(ex: gd.GraphExecutor) -> None:
    wanted: list[tuple[str, Buffer, Any]] = []
    with ex.begin_recorded(auto_barrier=True) as s:
        for name in _elementwise():
            op = REGISTRY[name]
            sample = op.samples[0]
            arrays = sample.arrays()
            given = [a if a.dtype == np.uint32 else a.astype(np.float32) for a in arrays]
            if any(a.shape != given[0].shape for a in given):
                continue
            reference = op.reference([g if g.dtype == np.uint32 else g.astype(np.float64) for g in given], sample.attrs)
            dtype = gd.u32 if reference.dtype == np.uint32 else gd.f32
            out = ex.alloc_buffer(4 * reference.size, dtype, reference.shape)
            how = op if len(wanted) % 2 else name
            s.encoder_mut().dispatch(how, [rec.buffer(ex, g) for g in given], out, **sample.attrs)
            wanted.append((name, out, reference))
        s.finish_with_fusion_and_reorder()
    assert len(wanted) > 25
    for name, out, reference in wanted:
        got = out.read().astype(np.float64)
        np.testing.assert_allclose(got, reference, rtol=2e-5, atol=2e-5, err_msg=name)


def test_functions_copies_and_kinds_of_the_encoder(ex: gd.GraphExecutor) -> None:
    x, y, out = rec.buffer(ex, rec.data(7, 8)), rec.buffer(ex, rec.data(7, 8, seed=4)), rec.zeros(ex, 7, 8)
    home = rec.buffer(ex, rec.data(40))
    before = home.read()
    with ex.begin_recorded(auto_barrier=True) as s:
        encoder = s.encoder_mut()
        encoder.set_op_kind("sdpa")
        encoder.dispatch(lambda a, b: (a * b).relu(), [x, y], out)
        encoder.copy_buffer(home.slice_view(0, 10), home.slice_view(80, 10))
        encoder.dispatch("scale", [out], out, factor=2.0, opaque=True)
        encoder.dispatch("reshape", [out], x, shape=[8, 7])
        assert [n.op_kind for n in s.graph.nodes] == ["sdpa", "other", "other", "other"]
        assert [n.name for n in s.graph.nodes] == ["<lambda>", "copy_buffer", "scale", "reshape"]
        assert s.barrier_count() == 2 and s.finish_with_fusion_and_reorder() == (0, 0)
        assert "nodes" in repr(encoder) and encoder is s.encoder
    wanted = 2 * np.maximum(rec.data(7, 8) * rec.data(7, 8, seed=4), 0)
    rec.close(out.read(), wanted)
    assert np.array_equal(x.read().reshape(-1), out.read().reshape(-1))
    assert np.array_equal(home.read(), np.concatenate([before[:20], before[:10], before[30:]]))
    with pytest.raises(ArgumentError, match="the number of a step"):
        rec.direct(ex).encoder_mut().dispatch(lambda v: v + gd.rand_uniform((8,), seed=1), [rec.zeros(ex, 8)], home)


def test_a_list_is_encoded_into_another_session(ex: gd.GraphExecutor) -> None:
    x, y, z = rec.buffer(ex, rec.data(64)), rec.zeros(ex, 64), rec.zeros(ex, 64)
    first, second = ex.begin_recorded(), ex.begin()
    first.barrier_between([x], [y])
    first.gelu(x, y)
    first.barrier_between([y], [z])
    first.elementwise_add(y, y, z, 64, gd.f32)
    assert first.graph.encode_sequential(second.encoder_mut()) == 1
    first.drop()
    assert second.barrier_count() == 1 and [n.name for n in second.graph.nodes] == ["gelu", "elementwise_add"]
    second.finish()
    rec.close(z.read(), 2 * rec.gelu(rec.data(64)))
