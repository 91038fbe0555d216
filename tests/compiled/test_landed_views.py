"""Outputs where they landed: `run_raw`, `run_slots`, the arena, and views that never dangle (C-05 … C-07)."""

from __future__ import annotations

import ctypes
import gc
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, graph_of, ready, recurrence, same, small, state

from gdlab import ops
from gdlab.base.errors import (
    ArgumentError,
    InputConflictError,
    MissingInputError,
    NoRunError,
    SessionError,
    ShapeError,
    StaleViewError,
    StaleViewWarning,
)
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph


def several(device: str, **options: Any) -> CompiledGraph:
    """Outputs of f32, f16 (an odd count), u32, bf16, and one twice."""
    with Graph() as g:
        x, t = ops.input("x", (3, 5)), ops.input_u32("t", (3,))
        y = (x * 2.0).tanh()
        graph_of({"y": y, "half": y + 1.0, "t": t, "brain": x - 1.0, "y2": y}, g)
    return build_compiled_graph(g, device, boundary={"half": "f16", "brain": "bf16"}, **options)


INPUTS = {"x": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5), "t": [3, 1, 2]}


# C-05 -----------------------------------------------------------------------------------------------------------------
def test_raw_outputs_are_those_of_run(device: str) -> None:
    graph = several(device)
    want = graph.run(INPUTS)
    raw = graph.run_raw(INPUTS)
    assert [(r.index, r.name, r.dtype, r.shape) for r in raw] == [
        (0, "y", "f32", (3, 5)), (1, "half", "f16", (3, 5)), (2, "t", "u32", (3,)), (3, "brain", "bf16", (3, 5)),
        (4, "y2", "f32", (3, 5)),
    ]  # fmt: skip
    assert [r.mem.format for r in raw] == ["f", "B", "I", "B", "f"] and all(r.mem.readonly for r in raw)
    for r, array in zip(raw, want, strict=True):
        assert r.epoch == 2 and r.valid and r.nbytes == array.nbytes == r.mem.nbytes
        found = r.numpy()
        assert found.tobytes() == array.tobytes() == bytes(r.mem) and found.shape == r.shape
        assert found.ctypes.data == r.address and not found.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1
    assert np.asarray(raw[0]).ctypes.data == raw[0].address and same(np.array(raw[0]), want[0])
    assert raw[3].numpy().dtype == np.uint16


def test_an_output_in_place_is_not_pickled() -> None:
    raw = ready(small(), "cpu").run_raw({"x": X})[0]
    with pytest.raises(SessionError, match=r"copy: output in place: .* wanted numpy\(\).copy\(\)"):
        pickle.dumps(raw)


def test_slots_say_where_outputs_lie_in_the_arena(device: str) -> None:
    graph = several(device)
    want = graph.run(INPUTS)
    slots = graph.run_slots([INPUTS["x"], INPUTS["t"]])
    assert slots is graph.run_slots([INPUTS["x"], INPUTS["t"]])
    assert slots == tuple((s.byte_offset, s.num_elements) for s in graph.output_slots)
    assert all(s.byte_offset % 256 == 0 for s in graph.output_slots)
    view = graph.arena_view()
    assert view.readonly and view.format == "B"
    for slot, array in zip(graph.output_slots, want, strict=True):
        assert ctypes.string_at(graph.arena_ptr() + slot.byte_offset, slot.nbytes) == array.tobytes()
        assert bytes(view[slot.byte_offset : slot.byte_offset + slot.nbytes]) == array.tobytes()


def test_nothing_is_copied_that_is_the_same_inside(device: str) -> None:
    graph = ready(small(), device)
    graph.run({"x": X})
    before = graph.counters()
    graph.run_raw({"x": X})
    after = graph.counters()
    assert after["waits"] - before["waits"] == 1 and after["submissions"] - before["submissions"] == 1
    assert after["readback_bytes"] - before["readback_bytes"] == 56


def test_slots_take_a_value_for_each_input(device: str) -> None:
    graph = ready(recurrence(), device)
    h, x = (np.full((5, 4), k, np.float32) for k in (1, 2))
    graph.run_slots((h, x))
    before = state(graph)
    for inputs, error, text in (
        ([h], ArgumentError, "run_slots: inputs: given 1 value, wanted one for each of h, x"),
        ({"h": h, "x": x}, ArgumentError, "given dict"),
        ([h, None], MissingInputError, "no value for x"),
        ([h, x[:2]], ShapeError, "run_slots: 'x'"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            graph.run_slots(inputs)  # type: ignore[arg-type]
    assert state(graph) == before
    graph.bind_gpu_handle("x", x)
    with pytest.raises(InputConflictError):
        graph.run_slots([h, x])
    graph.run_slots([h, None])
    graph.bind_handle("h", h)
    assert graph.run_slots([None, None]) == ((0, 20), (256, 5)) and graph.epoch == 3


def test_there_is_no_arena_without_a_run_that_fills_it(device: str) -> None:
    graph = ready(small(), device)
    for call in (graph.arena_ptr, graph.arena_view):
        with pytest.raises(NoRunError, match="wanted run_raw or run_slots before it"):
            call()
    graph.run_raw({"x": X})
    graph.arena_ptr()
    graph.run({"x": X})
    with pytest.raises(NoRunError):
        graph.arena_ptr()


# C-06 -----------------------------------------------------------------------------------------------------------------
def test_views_end_with_the_next_run(device: str) -> None:
    graph = ready(small(), device)
    for run in (graph.run, graph.run_raw, lambda i: graph.run_slots([i["x"]]), graph.commit_no_wait,
                lambda i: graph.run_async(i).result(), lambda i: graph.run_pipelined([i])):  # fmt: skip
        (y, _), mem = graph.run_raw({"x": X}), None
        mem, whole = y.mem, graph.arena_view()
        graph.set_param("w", graph.read_param("w"))
        graph.bind_handle("x", X)
        graph.clone().close()
        with pytest.raises(ShapeError):
            graph.run({"x": X[:1]})
        assert y.valid and mem.tobytes() == y.numpy().tobytes() and whole.nbytes == 512
        run({"x": X})
        graph.sync_pending()
        assert not y.valid and y.name == "y" and y.nbytes == 32
        for attribute in ("mem", "address"):
            with pytest.raises(StaleViewError, match=f"run {y.epoch}, after which there was run {y.epoch + 1}, wanted"):
                getattr(y, attribute)
        for call in (y.numpy, lambda y=y: np.asarray(y)):
            with pytest.raises(StaleViewError):
                call()
        for view in (mem, whole):
            with pytest.raises(ValueError, match="released"):
                view[0]
        del y, mem, whole, view
    assert graph.counters()["arenas_retired"] == 0
    (y, _), other = graph.run_raw({"x": X}), graph.clone()
    graph.clone_from(other)
    with pytest.raises(StaleViewError, match=f"run {y.epoch}, after which there was clone_from"):
        y.numpy()


def test_a_warning_of_stale_views_tells_the_line_of_the_call(device: str) -> None:
    graph = ready(small(), device)
    calls: tuple[Callable[[], object], ...] = (
        lambda: graph.run({"x": X}), lambda: graph.run_slots([X]), lambda: graph(x=X),
        lambda: graph.run_async({"x": X}).result(), lambda: graph.run_pipelined([{"x": X}]),
        lambda: (graph.commit_no_wait({"x": X}), graph.sync_pending()),
    )  # fmt: skip
    for call in calls:
        kept = graph.run_raw({"x": X})[0].numpy()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
            graph.run({"x": X})
        assert [w.filename for w in caught] == [__file__]
        del kept


# C-07 -----------------------------------------------------------------------------------------------------------------
def test_arrays_made_from_views_keep_their_values(device: str) -> None:
    graph = ready(small(), device)
    raw = graph.run_raw({"x": X})
    array, part = raw[0].numpy(), np.frombuffer(raw[1].mem[2:4], np.float32)
    slice_ = graph.arena_view()[:16]
    want = array.copy(), part.copy(), bytes(slice_)
    with pytest.warns(StaleViewWarning, match=r"run 1 \(2 outputs: 'y', 'x'\)") as caught:
        for k in range(5):
            graph.run_raw({"x": X + k})
    assert len(caught) == 1 and graph.counters()["arenas_retired"] == 1
    assert same(array, want[0]) and same(part, want[1]) and bytes(slice_) == want[2]
    assert graph.memory_summary()["retired_bytes"] >= 512
    del raw, array, part, slice_
    gc.collect()
    graph.run_raw({"x": X})
    before = graph.counters()["buffers_created"]
    for _ in range(50):
        graph.run_raw({"x": X})
    assert graph.counters()["buffers_created"] == before and graph.memory_summary()["retired_bytes"] == 0


def test_many_retired_arenas_are_all_kept_and_all_return(device: str) -> None:
    graph = ready(small(), device)
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleViewWarning)
        for k in range(6):
            assert graph.last_run_stats()["arenas_retired"] == (k > 1)
            kept.append((graph.run_raw({"x": X * k})[1].numpy(), X * np.float32(k)))
        graph.run({"x": X})
    assert all(same(array, want) for array, want in kept) and graph.counters()["arenas_retired"] == 6
    assert graph.last_run_stats().keys() == {*graph.counters(), "extent"}
    before = graph.counters()["buffers_created"]
    kept.clear()
    gc.collect()
    graph.run({"x": X})
    for _ in range(4):
        graph.run_raw({"x": X})
    assert graph.counters()["buffers_created"] <= before + 1


def test_strict_views_refuse_the_run(device: str) -> None:
    graph = ready(small(), device, strict_views=True)
    raw = graph.run_raw({"x": X})
    array = raw[0].numpy()
    want, before = array.copy(), state(graph)
    for call in (lambda: graph.run({"x": X}), lambda: graph.commit_no_wait({"x": X})):
        with pytest.raises(StaleViewError, match=r"views: given views of run 1 .* in use, wanted none"):
            call()
    assert state(graph) == before and raw[0].valid and same(array, want)
    del array
    graph.run({"x": X})
    assert not raw[0].valid and graph.counters()["arenas_retired"] == 0


def test_views_outlive_a_closed_graph(device: str) -> None:
    graph = ready(small(), device)
    raw = graph.run_raw({"x": X})
    array, want = raw[1].numpy(), X
    graph.close()
    assert same(array, want) and same(raw[1].numpy(), want)
    with pytest.raises(SessionError):
        graph.run_raw({"x": X})
    del graph, raw
    gc.collect()
    assert same(array, want)
