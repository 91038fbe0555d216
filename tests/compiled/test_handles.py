"""Inputs that stay: host handles, gpu handles and feeds (C-08 … C-11)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, graph_of, ready, recurrence, same, small, state, swap

from gdlab import ops
from gdlab.base.errors import (
    DTypeError,
    MissingInputError,
    OutputIndexError,
    SessionError,
    ShapeError,
    UnknownNameError,
)
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph

H = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
NO_NAMES: tuple[Any, ...] = ([1], {}, None, 1, b"h")
STEPS = [np.full((5, 4), k / 7, np.float32) for k in range(7)]


# C-08 -----------------------------------------------------------------------------------------------------------------
def test_a_host_handle_is_the_default_of_an_input(device: str) -> None:
    graph = ready(small(), device)
    want = graph.run({"x": X})
    source = X.copy()
    assert graph.bind_handle("x", source) is True and graph.read_handle("x") is not None
    source[...] = 9
    assert same(graph.run(), want)
    assert not same(graph.run({"x": X + 1}), want) and same(graph.run(), want)  # a value given is for that run alone
    held = graph.read_handle("x")
    assert held is not None and same(held, X)
    held[...] = 9
    assert same(graph.run(), want)
    graph.bind_handle("x", X + 1)
    assert same(graph.run()[1], X + 1)
    assert graph.read_handle("z") is None and graph.read_handle("out0") is None and graph.read_handle(3) is None  # type: ignore[arg-type]
    assert graph.unbind_handle("x") is True and graph.unbind_handle("x") is False
    with pytest.raises(MissingInputError):
        graph.run()


def test_a_host_handle_that_lies_there_is_not_uploaded_again(device: str) -> None:
    graph = ready(small(), device)
    graph.bind_handle("x", X)
    graph.run()
    before = graph.counters()["uploads"]
    for _ in range(5):
        graph.run()
    assert graph.counters()["uploads"] == before
    graph.run({"x": X})
    graph.run()
    assert graph.counters()["uploads"] == before + 2


def test_outputs_are_collected(device: str) -> None:
    graph = ready(small(), device)
    graph.bind_handle("out0", np.zeros((2, 4)))
    held = graph.read_handle("out0")
    assert held is not None and not held.any()
    for k in range(3):
        want = graph.run({"x": X + k})
        held = graph.read_handle("out0")
        assert held is not None and same(held, want[0])
    graph.run_pipelined([{"x": X}, {"x": X + 5}])
    held = graph.read_handle("out0")
    assert held is not None and same(held, graph.run({"x": X + 5})[0])


def test_handles_of_what_is_not_there_are_refused(device: str) -> None:
    graph = ready(small(), device)
    graph.run_raw({"x": X})
    before = state(graph)
    for name in ("y", "w", "out2", "out-1", "out01", "out", "·extent", 3):
        with pytest.raises(UnknownNameError, match="bind_handle: input or output: given"):
            graph.bind_handle(name, X)  # type: ignore[arg-type]
    for name, data, error in (("x", X[:1], ShapeError), ("out0", X, ShapeError), ("x", ["a"] * 6, DTypeError)):
        with pytest.raises(error, match="bind_handle: '[xy]': given"):
            graph.bind_handle(name, data)
    assert state(graph) == before


def loop(graph: CompiledGraph, name: str, steps: list[Array]) -> list[list[Array]]:
    """Runs of which each gets output 0 of the one before."""
    found, h = [], H
    for x in steps:
        found.append(graph.run({name: h, "x": x}))
        h = found[-1][0]
    return found


@pytest.mark.parametrize("name", NO_NAMES, ids=str)
def test_a_name_that_is_no_string_is_unknown(name: Any) -> None:
    graph = ready(recurrence(), "cpu")
    value, before = np.zeros((5, 4)), state(graph)
    for call in (
        lambda: graph.bind_handle(name, value), lambda: graph.bind_gpu_handle(name, value),
        lambda: graph.set_param(name, value), lambda: graph.read_param(name),
        lambda: graph.clear_gpu_handle_feed(name), lambda: graph.set_gpu_handle_feed(name, 0),
        lambda: graph.set_handle_feed(name, 0), lambda: graph.run_feed_gpu_handle({}, name, 0),
        lambda: graph.set_param_typed(name, b"", "f32"),
    ):  # fmt: skip
        with pytest.raises((UnknownNameError, SessionError)):
            call()
    assert graph.read_handle(name) is None and graph.read_gpu_handle(name) is None
    assert not (graph.has_gpu_handle(name) or graph.unbind_handle(name) or graph.unbind_gpu_handle(name))
    assert state(graph) == before


def test_an_input_named_as_an_output_becomes_it(device: str) -> None:
    want = loop(ready(recurrence("out0"), device), "out0", STEPS)
    graph = ready(recurrence("out0"), device)
    graph.bind_handle("out0", H)
    assert [same(graph.run({"x": x}), y) for x, y in zip(STEPS[:5], want, strict=False)] == [True] * 5
    held = graph.read_handle("out0")
    assert held is not None and same(held, want[4][0])
    graph.bind_handle("out0", H)
    assert same(graph.run_pipelined([{"x": x} for x in STEPS]), want)
    override = graph.run({"out0": H, "x": STEPS[0]})
    assert same(override, want[0]) and same(graph.run({"x": STEPS[1]}), want[1])


def test_an_input_named_as_another_type_is_refused_at_bind(device: str) -> None:
    graph = ready(recurrence("out1"), device)
    with pytest.raises(ShapeError, match=r"bind_handle: output 1 into 'out1': given shape \[5\], wanted \[5, 4\]"):
        graph.bind_handle("out1", H)
    typed = ready(recurrence("out0"), device, boundary={"out0": "i64"})
    typed.bind_handle("out0", np.ones((5, 4)).astype(int))  # input and output have this name: both are i64
    first = typed.run({"x": STEPS[3]})[0]
    second = typed.run({"x": STEPS[3]})[0]
    assert first.dtype == np.int64 and same(second, typed.run({"out0": first, "x": STEPS[3]})[0])


def test_a_host_handle_is_fed_by_any_output(device: str) -> None:
    graph = ready(recurrence(), device)
    want = loop(graph, "h", STEPS)
    with pytest.raises(SessionError, match="set_handle_feed: host handle: given 'h'"):
        graph.set_handle_feed("h", 0)
    graph.bind_handle("h", H)
    with pytest.raises(ShapeError):
        graph.set_handle_feed("h", 1)
    with pytest.raises(OutputIndexError):
        graph.set_handle_feed("h", 2)
    assert graph.set_handle_feed("h", 0) is True
    assert same([graph.run({"x": x}) for x in STEPS], want)
    graph.bind_handle("h", H)  # the feed stays
    assert same(graph.run({"x": STEPS[0]}), want[0]) and same(graph.run({"x": STEPS[1]}), want[1])


# C-09 -----------------------------------------------------------------------------------------------------------------
def test_gpu_handles_are_uploaded_once(device: str) -> None:
    graph = ready(small(), device)
    want = graph.run({"x": X})
    assert not graph.has_gpu_handle("x") and graph.bind_gpu_handle("x", X) is True and graph.has_gpu_handle("x")
    assert graph.has_gpu_handle("z") is False
    before = graph.counters()
    assert all(same(graph.run(), want) for _ in range(100))
    after = graph.counters()
    assert after["uploads"] == before["uploads"] and after["copies"] == before["copies"]
    assert after["readback_bytes"] - before["readback_bytes"] == 100 * 56
    held = graph.read_gpu_handle("x")
    assert held is not None and same(held, X) and graph.read_gpu_handle("z") is None
    graph.bind_gpu_handle("x", X + 1)
    assert same(graph.run()[1], X + 1) and graph.counters()["uploads"] == after["uploads"] + 1
    assert graph.unbind_gpu_handle("x") is True and graph.unbind_gpu_handle("x") is False
    with pytest.raises(MissingInputError):
        graph.run()
    graph.bind_handle("x", X)
    graph.bind_gpu_handle("x", X + 2)
    assert same(graph.run()[1], X + 2)  # before the host handle
    graph.unbind_gpu_handle("x")
    assert same(graph.run(), want)
    for name, data, error in (("y", X, UnknownNameError), ("x", X[:1], ShapeError), ("x", X + 1j, DTypeError)):
        with pytest.raises(error, match="bind_gpu_handle"):
            graph.bind_gpu_handle(name, data)


# C-10 -----------------------------------------------------------------------------------------------------------------
def _slots(g: CompiledGraph, x: Array) -> None:
    g.run_slots([None, x])


def _async(g: CompiledGraph, x: Array) -> None:
    g.run_async({"x": x}).result()


KINDS: dict[str, Callable[[CompiledGraph, Array], Any]] = {
    "run": lambda g, x: g.run({"x": x}),
    "run_raw": lambda g, x: g.run_raw({"x": x}),
    "run_slots": _slots,
    "run_typed": lambda g, x: g.run_typed([("x", x.tobytes(), "f32")]),
    "run_read_outputs": lambda g, x: g.run_read_outputs({"x": x}, [1]),
    "run_feed_gpu_handle": lambda g, x: g.run_feed_gpu_handle({"x": x}, "h", 0),
    "commit_no_wait": lambda g, x: g.commit_no_wait({"x": x}),
    "run_async": _async,
    "run_pipelined": lambda g, x: g.run_pipelined([{"x": x}]),
}


def test_a_recurrence_through_every_kind_of_run(device: str) -> None:
    graph = ready(recurrence(), device)
    want = loop(graph, "h", STEPS)
    for kind, run in KINDS.items():
        graph.bind_gpu_handle("h", H)
        graph.set_gpu_handle_feed("h", 0)
        epoch, before = graph.epoch, graph.counters()["copies"]
        for x in STEPS:
            run(graph, x)
        held = graph.read_gpu_handle("h")
        assert held is not None and same(held, want[-1][0]), kind
        assert graph.epoch == epoch + 7 and graph.counters()["copies"] == before + 7, kind
        assert same(graph.read_outputs(), want[-1]), kind
        graph.unbind_gpu_handle("h")


def test_feeds_are_copies_on_the_device(device: str) -> None:
    graph = ready(recurrence(), device)
    graph.bind_gpu_handle("h", H)
    graph.bind_gpu_handle("x", STEPS[1])
    assert graph.set_gpu_handle_feed("h", 0) is True
    graph.run()
    before = graph.counters()
    for _ in range(10):
        graph.run()
    after = graph.counters()
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    dispatches = len(graph.plan.dispatches)
    assert changed == {
        "forwards": 10, "dispatches": 10 * dispatches, "workgroups": changed["workgroups"], "submissions": 10,
        "readbacks": 20, "readback_bytes": 1000, "copies": 10, "waits": 10,
    }  # fmt: skip
    assert graph.clear_gpu_handle_feed("h") is True and graph.clear_gpu_handle_feed("h") is False
    held, want = graph.read_gpu_handle("h"), graph.run()
    assert held is not None and same(graph.run(), want) and same(graph.read_gpu_handle("h"), held)
    with pytest.raises(UnknownNameError, match="gpu handle: given z"):
        graph.clear_gpu_handle_feed("z")


def test_feeds_are_one_parallel_assignment(device: str) -> None:
    """The outputs (b + 1, a) of the inputs (a, b)."""
    graph = build_compiled_graph(swap(), device)
    graph.bind_gpu_handle("a", [1, 2, 3])
    graph.bind_gpu_handle("b", [10, 20, 30])
    graph.set_gpu_handle_feed("a", 0)
    graph.set_gpu_handle_feed("b", 1)
    a, b = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    for _ in range(5):
        graph.commit_no_wait()
        a, b = b + 1, a
        assert same(graph.read_gpu_handle("a"), a) and same(graph.read_gpu_handle("b"), b)
    graph.set_gpu_handle_feed("b", 0)  # one output into both
    p = graph.run()[0]
    assert same(graph.read_gpu_handle("a"), p) and same(graph.read_gpu_handle("b"), p)


def test_an_output_that_is_the_input_itself(device: str) -> None:
    graph = ready(small(), device)
    graph.bind_gpu_handle("x", X)
    graph.set_gpu_handle_feed("x", 1)
    want = graph.run()
    assert same(graph.run(), want) and same(graph.read_gpu_handle("x"), X)


def test_a_fed_brain_float_is_rounded_in_every_step(device: str) -> None:
    boundary = {"h": "bf16", "out0": "bf16"}
    graph = ready(recurrence(), device, boundary=boundary)
    want = loop(graph, "h", STEPS)
    graph.bind_gpu_handle("h", H)
    graph.set_gpu_handle_feed("h", 0)
    assert same([graph.run({"x": x}) for x in STEPS], want)
    exact = loop(ready(recurrence(), device), "h", STEPS)
    assert not np.array_equal(exact[-1][1], want[-1][1])


# C-11 -----------------------------------------------------------------------------------------------------------------
def test_feeds_that_cannot_be_change_nothing(device: str) -> None:
    with Graph() as g:
        h, i = ops.input("h", (3,)), ops.input("i", (3,))
        graph_of({"y": h + i, "row": (h * i).sum(0, keepdims=True), "whole": h * 2.0}, g)
    graph = build_compiled_graph(g, device, boundary={"whole": "i32", "i": "i32"})
    graph.bind_handle("i", [1, 2, 3])
    with pytest.raises(SessionError, match="gpu handle: given 'h', wanted bind_gpu_handle first: none is bound"):
        graph.set_gpu_handle_feed("h", 0)
    graph.bind_gpu_handle("h", [1, 2, 3])
    graph.bind_gpu_handle("i", [1, 2, 3])
    before = state(graph)
    refused: list[tuple[str, Any, type[Exception], str]] = [
        ("z", 0, SessionError, "gpu handle: given 'z'"), ("h", -1, OutputIndexError, "given -1, wanted 0 … 2"),
        ("h", 3, OutputIndexError, "given 3"), ("h", True, OutputIndexError, "given True"),
        ("h", 0.0, OutputIndexError, "given 0.0"),
        ("h", 1, ShapeError, "output 1 into 'h': given shape [1], wanted [3]"),
        ("h", 2, DTypeError, "output 2 into 'h': given i32, wanted f32"),
        ("i", 2, DTypeError, "given i32 into i32, wanted f32, f16, bf16 or u32 on both sides"),
    ]  # fmt: skip
    for name, index, error, text in refused:
        with pytest.raises(error, match=re.escape(text)):
            graph.set_gpu_handle_feed(name, index)
        with pytest.raises(error, match=re.escape(text)):
            graph.run_feed_gpu_handle({}, name, index)
    with pytest.raises(UnknownNameError):
        graph.run_feed_gpu_handle({"z": 1}, "h", 0)
    assert state(graph) == before


def test_a_fed_run_reads_one_output_alone(device: str) -> None:
    graph = ready(recurrence(), device)
    want = loop(graph, "h", STEPS)
    graph.bind_gpu_handle("h", H)
    before = graph.counters()["readback_bytes"]
    assert same(graph.run_feed_gpu_handle({"x": STEPS[0]}, "h", 0), want[0][0])
    assert graph.counters()["readback_bytes"] - before == 80
    with pytest.raises(MissingInputError):  # nothing runs: the feed of the last call stays
        graph.run_feed_gpu_handle({}, "h", 0)
    assert same(graph.run({"x": STEPS[1]}), want[1]) and same(graph.run({"x": STEPS[2]}), want[2])
    graph.clear_gpu_handle_feed("h")
    with pytest.raises(MissingInputError):
        graph.run_feed_gpu_handle({}, "h", 0)
    assert not graph.handles.feeds
