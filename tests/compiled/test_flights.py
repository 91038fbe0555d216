"""Forwards that nobody waits for: commits, futures, pipelined runs (C-22, C-23), steady state (C-26), faults (C-28)."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, ready, recurrence, same, small, state

from gdlab import ops
from gdlab.base.errors import MissingInputError, NoRunError, OutputIndexError, SessionError, ShapeError
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph
from gdlab.graph import Graph

H = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def inputs(k: int) -> Array:
    return np.full((5, 4), k / 50, np.float32)


def fed(device: str, **options: Any) -> CompiledGraph:
    graph = ready(recurrence(), device, **options)
    graph.bind_gpu_handle("h", H)
    graph.set_gpu_handle_feed("h", 0)
    return graph


# C-22 -----------------------------------------------------------------------------------------------------------------
def test_commits_are_runs_that_nobody_waits_for(device: str) -> None:
    want = [fed(device)][0]
    results = [want.run({"x": inputs(k)}) for k in range(50)]
    graph = fed(device)
    with pytest.raises(NoRunError, match="read_outputs: outputs: given no run yet"):
        graph.read_outputs()
    before, x = graph.counters(), np.empty((5, 4), np.float32)
    for k in range(50):
        x[...] = inputs(k)
        graph.commit_no_wait({"x": x})
        x[...] = np.nan  # the call has copied it
        assert graph.pending <= 2
    graph.sync_pending()
    graph.sync_pending()
    after = graph.counters()
    assert graph.pending == 0 and graph.epoch == 50
    assert after["submissions"] - before["submissions"] == after["forwards"] - before["forwards"] == 50
    assert after["readback_bytes"] == before["readback_bytes"]
    assert same(graph.read_outputs(), results[-1])


@pytest.mark.parametrize("most", [1, 5])
def test_so_many_are_in_flight(device: str, most: int) -> None:
    graph = fed(device, max_in_flight=most)
    seen = []
    for k in range(20):
        graph.commit_no_wait({"x": inputs(k)})
        seen.append(len(graph.flights.under_way))
    assert max(seen) <= most
    graph.sync_pending()
    assert graph.pending == 0 and graph.epoch == 20


def test_each_future_has_its_own_outputs(device: str) -> None:
    graph = ready(small(), device)
    want = [graph.run({"x": X + k}) for k in range(5)]
    x = np.empty((2, 3), np.float32)
    futures = []
    for k in range(5):
        x[...] = X + k
        futures.append(graph.run_async({"x": x}))
    graph.set_param("w", np.zeros((3, 4)))  # for forwards called later
    assert all(same(future.result(10), y) for future, y in zip(futures, want, strict=True))
    assert not graph.run({"x": X})[0].any()

    async def waited() -> list[Array]:
        return await asyncio.wrap_future(graph.run_async({"x": X + 1}))

    assert same(asyncio.run(waited()), [want[1][0] * 0, want[1][1]])


def test_callbacks_of_futures_may_run_the_graph(device: str) -> None:
    graph = ready(small(), device)
    want, found, done = graph.run({"x": X + 1}), [], threading.Event()

    def again(_: object) -> None:
        found.append(graph.run({"x": X + 1}))
        done.set()

    graph.run_async({"x": X}).add_done_callback(again)
    assert done.wait(10) and same(found[0], want)


def test_bad_inputs_are_refused_at_the_call(device: str) -> None:
    graph = ready(small(), device)
    graph.run_raw({"x": X})
    before = state(graph)
    for call in (graph.commit_no_wait, graph.run_async):
        with pytest.raises(MissingInputError):
            call({})
        with pytest.raises(ShapeError):
            call({"x": X[:1]})
    assert state(graph) == before and graph.pending == 0


def test_an_error_of_a_pending_forward_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ready(small(), "cpu")
    want, program = graph.run({"x": X}), graph.session.loaded.program
    step, calls = program.step, [0]

    def failing(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise SessionError("step", "device", "an accident", "none")
        step(*args)

    monkeypatch.setattr(program, "step", failing)
    for _ in range(4):
        graph.commit_no_wait({"x": X})
    with pytest.raises(SessionError, match="an accident"):
        graph.sync_pending()
    graph.sync_pending()
    assert graph.pending == 0 and graph.epoch == 4 and same(graph.run({"x": X}), want)
    calls[0] = 0
    first, second, third = (graph.run_async({"x": X}) for _ in range(3))
    assert same(first.result(10), want) and same(third.result(10), want)
    with pytest.raises(SessionError, match="an accident"):
        second.result(10)
    graph.sync_pending()  # the error is the future's alone


def test_a_forward_that_waits_for_its_turn_can_be_withdrawn() -> None:
    graph = ready(small(), "cpu", max_in_flight=8)
    go, began = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        go.wait(10)

    thread = threading.Thread(target=lambda: graph.session.loaded.turn.call(hold))
    thread.start()
    began.wait(10)
    futures = [graph.run_async({"x": X + k}) for k in range(3)]
    assert futures[1].cancel() is True and graph.pending == 3
    go.set()
    thread.join()
    graph.sync_pending()
    assert futures[1].cancelled() and not futures[0].cancel() and graph.epoch == 2 and graph.pending == 0
    assert same(futures[2].result(0)[1], X + 2)


def test_calls_between_commits_keep_their_order(device: str) -> None:
    graph = ready(recurrence(), device)
    graph.bind_handle("x", inputs(1))
    graph.bind_gpu_handle("h", H)
    first = graph.run_async()
    graph.bind_handle("x", inputs(9))
    second = graph.run_async()
    graph.bind_gpu_handle("h", H * 2)
    third = graph.run_async()
    held = graph.read_gpu_handle("h")
    assert held is not None and same(held, H * 2)
    results = [f.result(10) for f in (first, second, third)]
    graph.unbind_gpu_handle("h")
    for (k, h), found in zip(((1, H), (9, H), (9, H * 2)), results, strict=True):
        assert same(graph.run({"h": h, "x": inputs(k)}), found)


# C-23 -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 8, 33])
def test_pipelined_runs_are_runs_one_by_one(device: str, count: int) -> None:
    sets = [{"x": inputs(k)} for k in range(count)]
    one = fed(device)
    want = [one.run(s) for s in sets]
    graph = fed(device)
    before = graph.counters()
    assert same(graph.run_pipelined(sets), want)
    after = graph.counters()
    assert after["waits"] - before["waits"] == 1 and after["forwards"] - before["forwards"] == count
    assert after["submissions"] - before["submissions"] == (count if device == "cpu" else 1)  # short ones go together
    assert same(graph.read_gpu_handle("h"), one.read_gpu_handle("h")) and graph.epoch == count


def test_pipelined_runs_of_nothing_and_of_a_bad_set(device: str) -> None:
    graph = fed(device)
    assert graph.run_pipelined([]) == [] and graph.epoch == 0
    graph.run_raw({"x": inputs(0)})
    before = state(graph)
    sets: list[Any] = [{"x": inputs(k)} for k in range(8)]
    for bad, error in (({"x": X}, ShapeError), ({}, MissingInputError)):
        with pytest.raises(error, match="run_pipelined, set 5"):
            graph.run_pipelined([*sets[:5], bad, *sets[6:]])
    assert state(graph) == before


def test_pipelined_runs_read_back_the_outputs_that_are_asked_for(device: str) -> None:
    whole, graph = fed(device), fed(device)
    sets = [{"x": inputs(k)} for k in range(5)]
    want = whole.run_pipelined(sets)
    last, before = len(graph.outputs) - 1, graph.counters()["readback_bytes"]
    for got, all_of_it in zip(graph.run_pipelined(sets, [last, 0, last]), want, strict=True):
        assert same(got, [all_of_it[last], all_of_it[0], all_of_it[last]])
    outputs = whole.run(sets[0])
    read = graph.counters()["readback_bytes"] - before
    assert read == 5 * (2 * outputs[last].nbytes + outputs[0].nbytes)
    assert graph.run_pipelined(sets, []) == [[]] * 5
    for bad in ([last + 1], [-1], [True]):
        with pytest.raises(OutputIndexError, match="run_pipelined"):
            graph.run_pipelined(sets, bad)
    assert graph.epoch == 10


def test_large_landings_are_drained_in_chunks(device: str) -> None:
    graph, small_graph = fed(device), fed(device, landing_bytes=256)
    sets = [{"x": inputs(k)} for k in range(5)]
    before = small_graph.counters()["waits"]
    assert same(small_graph.run_pipelined(sets), graph.run_pipelined(sets))
    assert small_graph.counters()["waits"] - before == 3  # two sets of 112 bytes at a time


def test_pipelined_sets_in_one_submission_keep_handles_and_extents(device: str) -> None:
    """A value over a host handle, an input named as an output, by the device or by the host, and an extent."""
    with Graph() as g:
        x, h, n = ops.input("x", (2, 3)), ops.input("out0", (2, 3)), ops.input("n", (2, 3))
        after = h * 0.5 + x + n
        g.set_outputs([after, after * 2.0])
    for boundary in ({}, {"out0": "i32"}):
        graph, one = (ready(g, device, boundary=boundary, bucket_axes=True) for _ in range(2))
        for each in (graph, one):
            each.bind_handle("out0", np.ones((2, 3), np.int32))
            each.bind_handle("n", np.full((2, 3), 2))
            each.set_active_extent((1, 2))
        sets = [{"x": X}, {"x": X * 9, "n": X}, {"x": X * 3}, {"x": X, "out0": np.zeros((2, 3), np.int32)}, {"x": X}]
        want = [one.run(s) for s in sets]
        assert same(graph.run_pipelined(sets), want) and same(graph.run({"x": X}), one.run({"x": X}))
        assert graph.epoch == one.epoch == 6 and same(graph.read_handle("out0"), one.read_handle("out0"))


# C-26 -----------------------------------------------------------------------------------------------------------------
def test_a_steady_state_makes_nothing(device: str) -> None:
    graph = ready(small(), device)
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: graph.run({"x": X}), lambda: graph.run_raw({"x": X}), lambda: graph.run_slots([X]),
        lambda: graph.run_typed([("x", X.tobytes(), "f32")]), lambda: graph.run_read_outputs({"x": X}, [0]),
        lambda: graph.commit_no_wait({"x": X}), lambda: graph.run_async({"x": X}).result(10),
        lambda: graph.run_pipelined([{"x": X}] * 3), lambda: graph.read_outputs(),
    )  # fmt: skip
    for kind in kinds:
        for _ in range(2):
            kind()
        graph.sync_pending()
        before = {name: n for name, n in graph.counters().items() if name.endswith("created")}
        for _ in range(40):
            kind()
        graph.sync_pending()
        assert {name: n for name, n in graph.counters().items() if name.endswith("created")} == before


# C-28 -----------------------------------------------------------------------------------------------------------------
def test_a_faulty_recording_is_an_error_and_the_next_run_is_right(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    graph = ready(small(), device)
    want, queue = graph.run({"x": X}), graph.session.loaded.program.queue
    raw = graph.run_raw({"x": X})
    if device == "wgpu":
        monkeypatch.setattr(queue, "encode_transfer", _bad_copy(queue, queue.encode_transfer))
    else:
        monkeypatch.setattr(queue, "_run", _failing)
    for call in (graph.run, graph.run_raw, lambda i: graph.run_pipelined([i])):
        with pytest.raises(SessionError):
            call({"x": X})
    assert raw[0].valid
    with pytest.raises(SessionError):
        graph.run_async({"x": X}).result(10)
    monkeypatch.undo()
    assert graph.epoch == 2
    assert same(graph.run({"x": X}), want) and not raw[0].valid


def _failing(item: object) -> None:
    raise SessionError("step", "recording", "a fault", "none")


def _bad_copy(queue: Any, encode: Any) -> Any:
    """Copies beyond the end of the source: wgpu refuses the command buffer."""

    def faulty(item: Any, encoder: Any) -> None:
        encode(type(item)(item.source, item.start + (1 << 20), item.target, item.at, item.nbytes), encoder)

    return faulty


# threads --------------------------------------------------------------------------------------------------------------
def test_calls_from_several_threads_each_get_their_own_result(device: str) -> None:
    graph = ready(small(), device)
    want = [graph.run({"x": X + k})[0] for k in range(4)]
    wrong = list[int]()

    def work(k: int) -> None:
        for _ in range(25):
            if not same(graph.run({"x": X + k})[0], want[k]):
                wrong.append(k)
            if not same(graph.run_async({"x": X + k}).result(10)[0], want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and graph.epoch == 204
    deadline = time.monotonic() + 10
    while graph.pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert graph.pending == 0


def test_an_interrupt_ends_the_wait_and_the_forward_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ready(small(), "cpu")
    want, program = graph.run({"x": X}), graph.session.loaded.program
    graph.launcher._long = True  # as if it took long: it runs on the device's own thread
    assert same(graph.run({"x": X}), want) and same([r.numpy() for r in graph.run_raw({"x": X})], want)
    step, begun, go_on = program.step, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        begun.set()
        go_on.wait(10)
        step(*args)

    def interrupt() -> None:
        begun.wait(10)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(program, "step", slow)
    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        graph.run({"x": X + 1})
    assert time.perf_counter() - start < 5  # seconds; the step waits for `go_on`
    go_on.set()
    thread.join()
    monkeypatch.undo()
    assert same(graph.run({"x": X}), want) and graph.epoch == 5
