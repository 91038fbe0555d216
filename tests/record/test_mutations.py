"""Every public body of the door is noticed when it does nothing: replaced by `return None`, `True` or `self` (S-22)."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import GdlabError, ReorderViolation, SessionConsumedError, SessionError
from gdlab.base.formats import encode
from gdlab.base.types import DType
from gdlab.record import (
    Buffer,
    CommandEncoder,
    ComputeGraph,
    FlashAttnVecParams,
    GgmlQuantizedMatmulIdParams,
    GgmlQuantizedMatmulParams,
    GraphExecutor,
    GraphSession,
    ListProfile,
    Node,
    PendingWork,
    QuantizedMatmulParams,
    Report,
    SdpaParams,
)
from gdlab.record.scaled_attention import tmp_buffer_bytes

CLASSES = (Buffer, CommandEncoder, ComputeGraph, GraphExecutor, GraphSession, Node, PendingWork, Report)
# What a caller cannot tell from its absence, and why.
INERT = {
    "GraphExecutor.__enter__:self": "it returns self",
    "GraphSession.__enter__:self": "it returns self",
    "CommandEncoder.check_usable": "its callers are noticed: see test_lists.py, a consumed session refuses everything",
    "CommandEncoder.append": "of encode_sequential",
    "GraphExecutor.keep": "the next list is made ready again: test_finish.py, a list that has run",
    "GraphExecutor.submit_known:None": "as above",
    "GraphExecutor.check_timed": "on cpu everything can be timed: test_profile.py has it on wgpu",
}  # fmt: skip


def known(value: Any, *types: type) -> Any:
    """A value of exactly one of these types (True is no int here)."""
    assert type(value) in types, value
    return value


@contextlib.contextmanager
def raising(error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def exercise() -> None:
    """Use everything once, and look at what came of it."""
    with gd.GraphExecutor("cpu") as ex:
        assert type(ex) is GraphExecutor and ex.device.info.kind == "cpu" and "cpu" in repr(ex)
        _buffers(ex)
        _ops(ex)
        _products(ex)
        _lists(ex)
        _finishers(ex)
        _passes(ex)
        counters = known(ex.counters(), dict)
        assert counters["submissions"] > 10 and counters["copies"] > 0
        kept = rec.zeros(ex, 4)
    assert not ex.open and not kept.is_open
    with raising(SessionError):
        ex.begin()
    with raising(SessionError):
        ex.write(kept, np.zeros(4))
    other = gd.GraphExecutor("cpu")
    other.close()
    with raising(SessionError):
        other.begin_recorded()


def _buffers(ex: GraphExecutor) -> None:
    b = known(ex.alloc_buffer(48, gd.f32, (3, 4), label="b", transient=True), Buffer)
    assert not b.read().any() and (b.label, b.transient, b.element_count) == ("b", True, 12)
    assert known(b.transient, bool) and known(b.element_count, int) == 12
    plain = rec.zeros(ex, 2)
    assert plain.transient is False and plain.allocation_id != b.allocation_id and known(b.allocation_id, int)
    b.write(np.arange(12))
    v = known(b.slice_view(8, 2), Buffer)
    assert v.read().tolist() == [2, 3] and "allocation" in repr(b) and b.is_open is True
    assert v.byte_offset == 8 and v.uid != b.uid
    v.release()
    assert b.is_open is False
    with raising(SessionError):
        b.read()
    with raising(SessionError):
        b.write(np.arange(12))
    held = ex.allocation(256)
    assert held.memory.nbytes >= 256
    ex.release(held)
    assert held.memory is None


def _run(ex: GraphExecutor, encode: Callable[[GraphSession], Any]) -> None:
    with ex.begin(auto_barrier=True) as s:
        encode(s)
        assert len(s.graph) >= 1


def _ops(ex: GraphExecutor) -> None:
    a, w = rec.data(2, 8), rec.data(8)
    x, weight, positions = rec.buffer(ex, a), rec.buffer(ex, w), rec.buffer(ex, np.arange(2, dtype=np.uint32))
    i = np.arange(4)
    cases: tuple[tuple[Callable[[GraphSession, Buffer], Any], Any], ...] = (
        (lambda s, o: s.rms_norm(x, weight, o, 2, 8), rec.rms(a, w)),
        (lambda s, o: s.rms_norm_no_scale_f32(x, o, 2, 8), rec.rms(a)),
        (lambda s, o: s.elementwise_add(x, x, o, 16), a + a),
        (lambda s, o: s.elementwise_mul(x, x, o, 16), a * a),
        (lambda s, o: s.gelu(x, o), rec.gelu(a)),
        (lambda s, o: s.softmax(x, o, 2, 8), rec.softmax(a)),
        (lambda s, o: s.softcap(x, o, 2.0), 2 * np.tanh(a / 2)),
        (lambda s, o: s.rope(x, o, positions, 2, 8),
         rec.turned(a, 2 * i, 2 * i + 1, np.arange(2), 10000.0 ** (-i / 4))),
        (lambda s, o: s.rope_neox_f32(x, o, positions, None, 2, 1, 8, 8),
         rec.turned(a, i, i + 4, np.arange(2), 10000.0 ** (-i / 4))),
        (lambda s, o: s.encoder_mut().dispatch("square", [x], o), a * a),
        (lambda s, o: s.encoder_mut().copy_buffer(x, o), a),
    )  # fmt: skip
    for call, wanted in cases:
        out = rec.zeros(ex, 2, 8)
        s = ex.begin()
        assert call(s, out) is None and len(s.graph) == 1
        assert s.finish() is None
        rec.close(out.read(), wanted)


def _products(ex: GraphExecutor) -> None:
    k, values = 32, rec.data(2, 32)
    words = encode(values, DType.q8_0)
    x, w = rec.buffer(ex, rec.data(1, k, seed=1)), rec.raw(ex, words.tobytes())
    out, ids = rec.zeros(ex, 1, 2), rec.buffer(ex, np.zeros(1, np.uint32))
    q, cache = rec.buffer(ex, rec.data(1, 4)), rec.buffer(ex, rec.data(3, 4))
    tmp, seen = rec.zeros(ex, tmp_buffer_bytes(1, 4) // 4), rec.zeros(ex, 1, 4)
    _run(ex, lambda s: s.quantized_matmul_ggml(x, w, out, GgmlQuantizedMatmulParams(1, 2, k, "Q8_0")))
    assert out.read().any()
    again = rec.zeros(ex, 1, 2)
    experts = GgmlQuantizedMatmulIdParams(1, 1, 2, k, 1, 68, "Q8_0")
    _run(ex, lambda s: s.quantized_matmul_id_ggml(x, w, ids, again, experts))
    rec.close(again.read(), out.read())
    for flash in (True, False):
        with ex.begin() as s:
            if flash:
                s.flash_attn_vec(q, cache, cache, seen, tmp, FlashAttnVecParams(1, 1, 4, 3, 3, 0.5))
            else:
                s.sdpa(q, cache, cache, seen, SdpaParams(1, 1, 4, 1, 3, 0.5), 1)
        assert seen.read().any()
        seen.write(np.zeros(4))
    ones = rec.raw(ex, np.full(8, 0x3F80, np.uint16).tobytes())
    codes = rec.raw(ex, bytes(range(256)) * 8)
    for name in ("quantized_matmul", "quantized_matmul_simd"):
        s = ex.begin()
        assert s.last_route == ""
        found = known(getattr(s, name)(rec.buffer(ex, np.ones((1, 256))), codes, codes, ones,
                                       QuantizedMatmulParams(1, 32, 8, 32, 4)), Buffer)  # fmt: skip
        assert known(s.last_route, str) and found.shape == (1, 8)
        s.finish()
        assert s.report.routes


def _lists(ex: GraphExecutor) -> None:
    a, b, c, d = (rec.zeros(ex, 4) for _ in range(4))
    s = known(ex.begin_recorded(), GraphSession)
    assert s.is_recording() is True and ex.begin().is_recording() is False and s.device is ex.device
    assert known(s.tracker_overhead_ns(), int) == 0 and known(s.barrier_count(), int) == 0
    s.barrier_between([a], [b])
    s.gelu(a, b)
    s.barrier_between([b], [c])
    s.gelu(b, c)
    assert s.barrier_count() == 1 and known(s.barrier_log, list)[0].kind == "raw"
    s.track_dispatch([d], [])
    assert d.range in s.graph.nodes[-1].reads
    s.barrier_between([a], [d])
    assert s.barrier_count() == 2 and s.tracker_overhead_ns() > 1
    s.encoder_mut().set_op_kind("sdpa")
    s.gelu(a, d)
    s.barrier()
    assert s.barrier_count() == 3 and known(s.predicted_device_barriers(), int) == 1
    assert s.group_stats().groups == 3 and "GraphSession" in repr(s)
    out = io.StringIO()
    s.dump_group_stats(out)
    assert "GROUP_STATS" in out.getvalue()
    graph = known(s.graph, ComputeGraph)
    assert (known(graph.node_count(), int), known(graph.dispatch_count(), int), len(graph)) == (3, 3, 3)
    assert known(graph.barrier_count(), int) == 3 and "3 nodes" in repr(graph)
    node = graph.nodes[2]
    assert (node.name, node.op_kind, node.reads, node.writes) == ("gelu", "sdpa", (a.range,), (d.range,))
    assert "gelu" in repr(node) and "3 nodes" in repr(s.encoder) and known(s.encoder_mut(), CommandEncoder)
    second = ex.begin(auto_barrier=True)
    assert known(graph.encode_sequential(second.encoder), int) == 2 and len(second.graph) == 3
    assert s.to_graph().outputs and s.to_study().graph.outputs
    assert s.drop() is None and len(s.graph) == 0
    with raising(SessionConsumedError):
        s.gelu(a, b)
    with contextlib.suppress(ZeroDivisionError), ex.begin() as broken:
        broken.gelu(a, b)
        1 / 0  # noqa: B018
    with raising(SessionConsumedError):
        broken.finish()
    with raising(SessionError):
        _ = second.report
    x, y = rec.buffer(ex, rec.data(4)), rec.zeros(ex, 4)
    with ex.begin() as plain:
        plain.gelu(x, y)
    assert y.read().any()


def _finishers(ex: GraphExecutor) -> None:
    for name in ("finish_with_timing", "finish_with_fusion", "finish_with_fusion_and_timing", "finish_optimized",
                 "finish_with_fusion_and_reorder", "finish_with_fusion_reorder_and_timing",
                 "finish_optimized_with_timing"):  # fmt: skip
        x, w, s_, y, out = _norm(ex)
        s = ex.begin_recorded(auto_barrier=True)
        begun = time.perf_counter_ns()
        s.rms_norm(x, w, y, 2, 4)
        s.elementwise_mul(y, s_, out, 8)
        found = getattr(s, name)(begun) if name.endswith("timing") else getattr(s, name)()
        fusions = found if name == "finish_with_fusion" else getattr(found, "fusions", 1)
        assert known(fusions, int) == 1 and (name == "finish_with_fusion" or isinstance(found, tuple))
        rec.close(out.read(), rec.rms(rec.data(2, 4), rec.data(4)) * rec.data(2, 4, seed=3))
        assert s.report.finisher == name and "group 0" in str(s.report) and "Report" in repr(s.report)
        assert len(known(s.report.hazards(), list)) == (name == "finish_with_timing")
        assert known(s.report.groups(), list)
        assert known(s.report.predicted_device_barriers, int) == (name == "finish_with_timing")
        assert s.report.timed(1, 2).timing == (1, 2)
        assert s.report.doc.data["list"]["finisher"] == name
    x, w, s_, y, out = _norm(ex)
    s = ex.begin()
    s.elementwise_mul(x, x, out, 8)
    work = known(s.commit(), PendingWork)
    assert work.done is False and "submitted" in repr(work)
    work.wait_until_completed()
    assert work.done is True and out.read().any()
    s = ex.begin()
    s.elementwise_add(x, x, out, 8)
    assert [n.name for n in known(ex.profile(s), ListProfile).nodes] == ["elementwise_add"]
    s = ex.begin()
    s.elementwise_mul(x, x, out, 8)
    assert known(s.finish_with_gpu_time(), int) > 0
    rec.close(out.read(), x.read() ** 2)


def _norm(ex: GraphExecutor) -> tuple[Buffer, ...]:
    x, w, s = rec.buffer(ex, rec.data(2, 4)), rec.buffer(ex, rec.data(4)), rec.buffer(ex, rec.data(2, 4, seed=3))
    return x, w, s, rec.zeros(ex, 2, 4, transient=True), rec.zeros(ex, 2, 4)


def _passes(ex: GraphExecutor) -> None:
    x, w, s_, y, out = _norm(ex)
    s = ex.begin_recorded(auto_barrier=True)
    s.rms_norm(x, w, y, 2, 4)
    s.elementwise_mul(y, s_, out, 8)
    with raising(ReorderViolation):
        s.graph.check_order([1, 0])
    s.gelu(rec.zeros(ex, 8), rec.zeros(ex, 8))
    assert known(s.graph.reorder(), int) == 2
    s.drop()
    s = ex.begin_recorded(auto_barrier=True)
    s.rms_norm(x, w, y, 2, 4)
    s.elementwise_mul(y, s_, out, 8)
    assert known(s.graph.fuse(), int) == 1
    s.drop()


def bodies() -> list[tuple[type, str]]:
    """(class, name) of every body that a caller reaches."""
    special = {"__enter__", "__exit__", "__repr__", "__str__", "__len__"}
    found = []
    for cls in CLASSES:
        for name, value in vars(cls).items():
            public = not name.startswith("_") or name in special
            if public and (callable(value) or isinstance(value, property)) and not isinstance(value, type):
                found.append((cls, name))
    return found


MUTANTS: dict[str, Callable[..., Any]] = {
    "None": lambda self, *args, **more: None,
    "True": lambda self, *args, **more: True,
    "self": lambda self, *args, **more: self,
}


def test_the_exercise_passes_as_things_are() -> None:
    exercise()
    assert len(bodies()) > 70


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_body_that_does_nothing_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unnoticed = []
    for cls, name in bodies():
        label = f"{cls.__name__}.{name}"
        if label in INERT or f"{label}:{mutant}" in INERT:
            continue
        body: Any = MUTANTS[mutant]
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patched.setattr(cls, name, property(body) if isinstance(vars(cls)[name], property) else body)
            try:
                exercise()
            except (Exception, GdlabError):
                continue
        unnoticed.append(label)
    assert unnoticed == []
