"""Inputs and outputs in memory of another graph on the same device (C-31, §7)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, graph_of, ready, recurrence, same, small, state, swap

from gdlab import ops
from gdlab.base.errors import DTypeError, ExternalBindError, GdlabError, InputConflictError, MissingInputError
from gdlab.compiled import build_compiled_graph
from gdlab.graph import Graph


def doubling() -> Graph:
    with Graph() as g:
        return graph_of([ops.input("a", (2, 4)) * 2.0], g)


def test_one_graph_reads_what_another_computes_without_a_copy(device: str) -> None:
    first, second = ready(small(), device), ready(doubling(), device)
    assert second.bind_input("a", first.output_buffer(0)) is True and second.has_gpu_handle("a")
    for k in (1, 2):
        (y, _) = first.run({"x": X * k})
        before = second.counters()
        assert same(second.run(), [y * 2])
        after = second.counters()
        assert after["uploads"] == before["uploads"] and after["copies"] == before["copies"]
    with pytest.raises(InputConflictError):
        second.run({"a": y})
    assert second.unbind_gpu_handle("a") is True
    with pytest.raises(MissingInputError):
        second.run()
    assert same(second.run({"a": np.ones((2, 4))}), [np.full((2, 4), 2, np.float32)])
    assert same(first.read_outputs()[0], y)  # nothing was written there


def test_an_output_is_written_where_another_reads(device: str) -> None:
    first, second = ready(small(), device), ready(doubling(), device)
    second.bind_gpu_handle("a", np.zeros((2, 4)))
    assert first.bind_output(0, second.input_buffer("a")) is True
    y, x = first.run({"x": X})
    assert same(second.run(), [y * 2]) and same(x, X) and same(second.read_gpu_handle("a"), y)
    assert first.bind_output(0, None) is True and first.bind_output(0, None) is False
    first.run({"x": -X})
    assert same(second.run(), [y * 2])


def test_a_feed_reaches_memory_of_others_and_a_clone_has_its_own(device: str) -> None:
    graph, other = ready(recurrence(), device), ready(recurrence(), device)
    other.bind_gpu_handle("h", np.ones((5, 4)))
    graph.bind_input("h", other.input_buffer("h"))
    graph.set_gpu_handle_feed("h", 0)
    graph.bind_handle("x", np.full((5, 4), 0.5))
    after, _ = graph.run()
    assert same(other.read_gpu_handle("h"), after)
    twin = graph.clone()
    twin.run()
    assert same(other.read_gpu_handle("h"), after) and same(twin.run(), (graph.run(), graph.run())[1])
    held = other.read_gpu_handle("h")
    graph.clone_from(twin)
    graph.run()
    assert same(other.read_gpu_handle("h"), held)


def test_arrays_of_the_caller_on_cpu() -> None:
    graph = ready(swap(), "cpu")
    a, p = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    graph.bind_input("a", a)
    graph.bind_output(0, p)
    graph.run({"b": [1, 2, 3]})
    assert p.tolist() == [2, 3, 4]
    a[:] = 7
    assert graph.run({"b": [0, 0, 0]})[1].tolist() == [7, 7, 7] and p.tolist() == [1, 1, 1]
    assert graph.input_buffer("a").tolist() == [7, 7, 7] and graph.output_buffer(0).shape == (3,)
    gone = weakref.ref(a)
    graph.unbind_gpu_handle("a")
    del a
    gc.collect()
    assert gone() is None


def test_what_a_step_writes_shares_no_memory(device: str) -> None:
    graph, other = ready(swap(), device), ready(swap(), device)
    inputs = {"a": np.arange(3), "b": -np.arange(3)}
    before = graph.run(inputs)

    def refused(name: str, slot: str | int, memory: Any, text: str) -> None:
        with pytest.raises(ExternalBindError, match=f"{name}: memory for {slot!r}: given that of {text}, wanted"):
            getattr(graph, name)(slot, memory)
        assert same(graph.run(inputs), before)

    refused("bind_output", 0, graph.input_buffer("a"), "input 'a'")
    refused("bind_output", 0, graph.output_buffer(1), "output 1")
    refused("bind_input", "b", graph.output_buffer(0), "output 0")
    own = graph.output_buffer(0)
    graph.bind_output(0, other.input_buffer("a"))
    refused("bind_output", 1, other.input_buffer("a"), "output 0")
    refused("bind_input", "a", own, "output 0")  # to which bind_output(0, None) goes back
    graph.bind_output(0, own)
    graph.bind_output(0, None)
    assert same(graph.run(inputs), before)
    graph.bind_input("a", other.input_buffer("b"))
    graph.bind_input("b", other.input_buffer("b"))  # two inputs are only read
    other.run(inputs)
    assert same(graph.run(), [np.float32([1, 0, -1]), np.float32([0, -1, -2])])


def test_ranges_of_one_array_on_cpu() -> None:
    graph, memory = ready(swap(), "cpu"), np.zeros(12, np.float32)
    graph.bind_output(0, memory[4:])  # of which three elements are used
    for start in (2, 4, 6):
        with pytest.raises(ExternalBindError, match="given that of output 0"):
            graph.bind_output(1, memory[start : start + 3])
    graph.bind_output(1, memory[7:])
    graph.bind_input("a", memory[1:4])
    memory[1:4] = 5
    graph.run({"b": [1, 2, 3]})
    assert memory.tolist() == [0, 5, 5, 5, 2, 3, 4, 5, 5, 5, 0, 0]


REFUSED: list[tuple[str, tuple[Any, ...], type[GdlabError], str]] = [
    ("bind_input", ("z", None), ExternalBindError.UnknownSlot, "bind_input: slot: given z"),
    ("bind_input", ("·extent", None), ExternalBindError.UnknownSlot, "bind_input: slot"),
    ("bind_input", ("x", np.zeros(2, np.float32)), GdlabError, "bind_input: memory for 'x'"),
    ("bind_input", ("x", None), GdlabError, "bind_input: memory for 'x': given NoneType"),
    ("bind_output", (2, None), ExternalBindError.UnknownSlot, "bind_output: slot: given 2"),
    ("bind_output", (True, None), ExternalBindError.UnknownSlot, "bind_output: slot: given True"),
    ("bind_output", (0, [1.0]), GdlabError, "bind_output: memory for 0: given list"),
    ("input_buffer", ("y",), ExternalBindError.UnknownSlot, "input_buffer: slot: given y"),
    ("output_buffer", (-1,), ExternalBindError.UnknownSlot, "output_buffer: slot: given -1"),
]


@pytest.mark.parametrize(("name", "given", "kind", "text"), REFUSED)
def test_what_cannot_be_bound(device: str, name: str, given: Any, kind: type[GdlabError], text: str) -> None:
    graph = build_compiled_graph(small(), device, bucket_axes=True)
    graph.initialize()
    graph.run({"x": X})
    before = state(graph)
    with pytest.raises(kind, match=text):
        getattr(graph, name)(*given)
    assert state(graph) == before and graph.run({"x": X})


def test_memory_that_is_too_small_and_boundaries_that_differ(device: str) -> None:
    graph = ready(small(), device, boundary={"x": "bf16", "y": "i32"})
    other = ready(swap(), device)
    with pytest.raises(DTypeError, match="bind_input: input 'x': given a boundary of bf16"):
        graph.bind_input("x", other.input_buffer("a"))
    with pytest.raises(DTypeError, match="output_buffer: output 0: given a boundary of i32"):
        graph.output_buffer(0)
    if device == "cpu":
        with pytest.raises(ExternalBindError.TooSmall) as error:
            ready(small(), device).bind_input("x", other.input_buffer("a"))
        assert (error.value.required, error.value.got) == (24, 12)
