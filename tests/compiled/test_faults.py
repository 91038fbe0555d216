"""Faults that a compiled graph survives: a lost device, memory that is not there, an end with work pending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from child import run_child
from compiled_graphs import X, ready, recurrence, same, small, state
from machine import needs
from session_state import set_free_bytes

from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph

LOSS = """
import numpy as np
from compiled_graphs import X, W, ready, small
from gdlab.base.errors import SessionError
from gdlab.devices.base import owner
graph = ready(small(), "wgpu")
first = graph.run_raw({"x": X})[0].numpy()
kept = first.copy()
owner().call(graph.session.loaded.program.gpu.device.destroy)
calls = [
    lambda: graph.run({"x": X}), lambda: graph.run_raw({"x": X}), lambda: graph.run_slots([X]), lambda: graph.clone(),
    lambda: graph.run_typed([("x", X.tobytes(), "f32")]), lambda: graph.run_read_outputs({"x": X}, [0]),
    lambda: graph.run_pipelined([{"x": X}] * 3), lambda: graph.run_async({"x": X}).result(20), graph.read_outputs,
    lambda: (graph.commit_no_wait({"x": X}), graph.sync_pending()), lambda: graph.read_param("w"), graph.context,
    lambda: graph.bind_gpu_handle("x", X), lambda: graph.set_param("w", W), lambda: graph.read_output_row(0, 0),
]
quiet = []
for k, call in enumerate(calls * 2):
    try:
        call()
        quiet.append(k)
    except SessionError:
        pass
assert quiet == [], quiet
assert np.array_equal(first, kept)
graph.close(); graph.close()
print(ready(small(), "wgpu").run({"x": X})[1].tolist() == X.tolist())
"""


def test_a_lost_device_is_an_error_of_every_call() -> None:
    needs("wgpu")
    assert run_child(LOSS) == "True\n"


def test_memory_that_is_not_there_is_refused_before_anything_changes(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ready(small(), device)
    want = graph.run({"x": X})
    before = state(graph)
    set_free_bytes(monkeypatch, 16)
    calls: tuple[Callable[[], object], ...] = (graph.clone, graph.context, lambda: ready(recurrence(), device))
    for call in calls:
        with pytest.raises(SessionError, match="memory: given"):
            call()
    assert state(graph) == before
    monkeypatch.undo()
    assert same(graph.run({"x": X}), want)


def test_a_landing_that_cannot_be_made_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ready(recurrence(), device)
    h, x = np.ones((5, 4), np.float32), np.zeros((5, 4), np.float32)
    graph.bind_gpu_handle("h", h)
    graph.set_gpu_handle_feed("h", 0)
    before, queue = state(graph), graph.session.loaded.program.queue

    def refuse(nbytes: int) -> object:
        raise SessionError("readback", "memory", f"{nbytes} bytes", "less")

    monkeypatch.setattr(queue, "readback", refuse)
    calls: tuple[Callable[[], object], ...] = (
        lambda: graph.run({"x": x}), lambda: graph.run_raw({"x": x}), lambda: graph.run_pipelined([{"x": x}] * 2),
        lambda: graph.run_feed_gpu_handle({"x": x}, "h", 0), lambda: graph.run_async({"x": x}).result(20),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(SessionError, match="readback: memory"):
            call()
    monkeypatch.undo()
    assert state(graph) == before and same(graph.read_gpu_handle("h"), h)
    other = ready(recurrence(), device)
    assert same(graph.run({"x": x}), other.run({"h": h, "x": x}))


@pytest.mark.parametrize("end", [CompiledGraph.close, lambda graph: graph.__exit__(None, None, None)])
def test_closing_waits_for_pending_work(device: str, end: Callable[[CompiledGraph], object]) -> None:
    graph, other = ready(recurrence(), device), ready(recurrence(), device)
    given = [{"h": np.full((5, 4), k / 7), "x": np.ones((5, 4))} for k in range(4)]
    futures = [graph.run_async(each) for each in given]
    graph.commit_no_wait(given[0])
    end(graph)
    assert graph.closed and graph.pending == 0
    for future, each in zip(futures, given, strict=True):
        assert same(future.result(20), other.run(each))
    with pytest.raises((SessionError, CancelledError)):
        graph.run_async(given[0]).result(20)


def test_sets_of_an_iterator_may_fill_one_array(device: str) -> None:
    with Graph() as g:
        g.set_outputs([ops.input("x", (2, 3)) * 2.0])
    graph, array = build_compiled_graph(g, device), np.zeros((2, 3), np.float32)

    def sets() -> Iterator[dict[str, Any]]:
        for k in range(4):
            array[:] = k
            yield {"x": array}

    assert [float(out[0][0, 0]) for out in graph.run_pipelined(sets())] == [0, 2, 4, 6]
    graph.draw = 2**32 - 1
    graph.run({"x": array})
    assert graph.draw == 0
