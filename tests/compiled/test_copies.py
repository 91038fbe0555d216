"""Clones, contexts, and parameters that are those of another graph (C-24, C-25, C-27)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graphs import W, X, graph_of, ready, recurrence, same, small, state

from gdlab import ops
from gdlab.base.errors import MissingInputError, ParamNotSetError, SessionError, UnknownNameError
from gdlab.base.types import Array, DType
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph

H = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
D, LENGTH = 8, 6


def counting() -> Graph:
    """A state that grows by x in every run: cache rows written at a position."""
    with Graph() as g:
        cache = ops.parameter("cache", (4, 3))
        rows = ops.cache_write(ops.input("x", (1, 3)), cache, ops.input_u32("at", (1,)))
        return graph_of([rows * ops.parameter("w", (3,)), ops.rand_uniform((3,), seed=1)], g)


# C-24 -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [CompiledGraph.clone, copy.copy, copy.deepcopy])
def test_a_clone_is_a_copy_by_value(device: str, make: Any) -> None:
    graph = ready(recurrence(), device)
    graph.bind_handle("x", H / 2)
    graph.bind_gpu_handle("h", H)
    graph.set_gpu_handle_feed("h", 0)
    graph.run()
    raw = graph.run_raw()
    array = raw[0].numpy().copy()
    graph.commit_no_wait()
    raw = graph.run_raw()
    other = make(graph)
    assert raw[0].valid and graph.pending == 0 and other.epoch == 0 and other.counters()["forwards"] == 0
    assert other.counters()["pipelines_created"] == 0 and other.draw == graph.draw and not same(array, raw[0].numpy())
    before = state(graph)
    twin = make(graph)
    assert same([other.run() for _ in range(3)], [twin.run() for _ in range(3)])
    other.set_param("w", np.zeros((4, 4)))
    other.bind_handle("x", H)
    other.clear_gpu_handle_feed("h")
    other.bind_gpu_handle("h", H)
    other.close()
    assert state(graph) == before and raw[0].valid
    fresh = make(graph)
    assert same(fresh.run(), graph.run()) and same(fresh.read_gpu_handle("h"), graph.read_gpu_handle("h"))


def test_a_clone_has_states_storage_and_draws_of_its_own(device: str) -> None:
    graph = ready(counting(), device)
    assert graph.states == ("cache",)
    graph.reset_state()
    for k in range(2):
        graph.run({"x": [[1, 2, 3 + k]], "at": [k]})
    other = graph.clone()
    a, b = (g.run({"x": [[4, 4, 4]], "at": [2]}) for g in (graph, other))
    assert same(a, b)
    other.reset_state("cache")
    assert not other.read_param("cache").any() and graph.read_param("cache")[:3].all()
    with pytest.raises(UnknownNameError, match="reset_state: state: given w"):
        graph.reset_state("w")
    with Graph() as g:
        graph_of([ops.input("x", (2, 4)) @ ops.parameter("w", (4, 64), dtype=DType.f16).to_f32()], g)
    packed = ready(g, device)
    x = {"x": np.ones((2, 4), np.float32)}
    assert same(packed.clone().run(x), packed.run(x))


def test_an_unset_parameter_is_unset_in_the_copy(device: str) -> None:
    with Graph() as g:
        graph_of([ops.input("x", (2,)) * ops.parameter("a", (2,)) + ops.parameter("b", (2,))], g)
    graph = build_compiled_graph(g, device)
    graph.set_param("a", [1, 2])
    other = graph.clone()
    with pytest.raises(ParamNotSetError, match="given no value for b,"):
        other.run({"x": [1, 1]})
    other.set_param("b", [1, 2])
    assert other.run({"x": [1, 1]})[0].tolist() == [2, 4]
    other.clone_from(graph)
    with pytest.raises(ParamNotSetError):
        other.run({"x": [1, 1]})


def test_values_are_taken_over_from_a_graph_of_the_same_plan(device: str) -> None:
    a, b = ready(small(), device, 1), ready(small(), device, 2)
    b.bind_handle("x", X)
    want = b.run()
    raw = a.run_raw({"x": X + 1})
    a.clone_from(b)
    assert not raw[0].valid and same(a.run(), want) and same(a.read_param("w"), b.read_param("w"))
    a.clone_from(a)
    before = state(a)
    closed = ready(small(), device)
    closed.close()
    with Graph() as g:
        graph_of([ops.input("x", (2, 3)) @ ops.parameter("w", (3, 4))], g)
    for other in (ready(g, device), ready(small(), device, boundary={"y": "i32"}), closed, 3):
        with pytest.raises(SessionError, match="clone_from: compiled graph: given"):
            a.clone_from(other)  # type: ignore[arg-type]
    assert state(a) == before


def test_a_context_has_inputs_and_states_of_its_own_over_the_same_weights(device: str) -> None:
    graph = ready(counting(), device)
    graph.reset_state()
    graph.bind_handle("at", [1])
    graph.run({"x": [[1, 2, 3]]})
    other = graph.context()
    assert not other.read_param("cache").any()
    with pytest.raises(MissingInputError, match="x, at"):
        other.run()
    other.run({"x": [[7, 8, 9]], "at": [0]})
    assert graph.read_param("cache")[1].tolist() == [1, 2, 3] and not graph.read_param("cache")[0].any()
    assert other.read_param("cache")[0].tolist() == [7, 8, 9]
    other.set_param("w", [2, 2, 2])
    assert graph.read_param("w").tolist() == [2, 2, 2]
    third = other.context()
    graph.close()
    third.set_param("w", [3, 3, 3])
    (rows, _) = other.run({"x": [[1, 1, 1]], "at": [3]})
    assert rows[3].tolist() == [3, 3, 3] and rows[0].tolist() == [21, 24, 27]


# C-25 -----------------------------------------------------------------------------------------------------------------
def test_contexts_in_threads_give_right_results(device: str) -> None:
    graph = ready(small(), device)
    contexts = [graph, graph.context()]
    want = [graph.run({"x": X + k})[0] for k in range(6)]
    wrong, runs = list[int](), 200 if device == "cpu" else 40

    def work(k: int) -> None:
        for _ in range(runs):
            if not same(contexts[k % 2].run({"x": X + k})[0], want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and contexts[0].epoch == 3 * runs + 6 and contexts[1].epoch == 3 * runs


def test_contexts_come_and_go_while_others_run(device: str) -> None:
    """Every thread makes contexts, calls them in every way and closes them; each forward has its own states."""
    with Graph() as g:
        x, at = ops.input("x", (2, 4)), ops.input_u32("at", (1,))
        y = x @ ops.parameter("w", (4, 4))
        graph_of([y, ops.cache_write(y, ops.parameter("mem", (6, 4)), at)], g)
    graph, wrong = ready(g, device), list[str]()
    weights = graph.read_param("w")
    ways: tuple[Callable[[CompiledGraph, dict[str, Any]], Array], ...] = (
        lambda c, d: c.run(d)[0], lambda c, d: c.run_raw(d)[0].numpy().copy(), lambda c, d: c.run_async(d).result()[0],
        lambda c, d: c.run_pipelined([d] * 3)[2][0], lambda c, d: (c.commit_no_wait(d), c.read_outputs())[1][0],
        lambda c, d: (c.bind_gpu_handle("x", d.pop("x")), c.run(d), c.unbind_gpu_handle("x"))[1][0],
    )  # fmt: skip

    def work(k: int) -> None:
        for i in range(3):
            with graph.context() if k % 2 else graph.clone() as own:
                for n, way in enumerate(ways):
                    x = np.full((2, 4), 10 * k + n + i, np.float32)
                    y = way(own, {"x": x, "at": [n % 5]})
                    state = own.read_param("mem")[n % 5 : n % 5 + 2]
                    if not (np.allclose(y, x @ weights, rtol=1e-5, atol=1e-4) and np.array_equal(state, y)):
                        wrong.append(f"thread {k}, round {i}, way {n}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        graph.set_param("w", weights)
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_a_forward_of_one_context_waits_for_no_other() -> None:
    """J5: on cpu each has a turn of its own, so that two really run at the same time."""
    graph = ready(small(), "cpu")
    other, begun, end = graph.context(), threading.Event(), threading.Event()
    got = list[Array]()

    def hold() -> None:
        begun.set()
        assert end.wait(30)

    busy = threading.Thread(target=lambda: graph.launcher.exclusively(hold))
    busy.start()
    assert begun.wait(30)
    free = threading.Thread(target=lambda: got.append(other.run({"x": X})[0]))
    free.start()
    free.join(20)
    finished = not free.is_alive()
    end.set()
    busy.join()
    free.join()
    assert finished and same(got[0], graph.run({"x": X})[0])


def test_no_forward_runs_while_shared_parameters_are_written() -> None:
    """A parameter of one number, many times: a result of two numbers would be a torn write."""
    with Graph() as g:
        graph_of([ops.input("x", (1, 1)) @ ops.parameter("w", (1, 300_000))], g)
    graph = ready(g, "cpu")
    graph.set_param("w", np.zeros((1, 300_000), np.float32))
    other, torn, end = graph.context(), list[Any](), threading.Event()

    def work() -> None:
        while not end.is_set():
            y = other.run({"x": [[1]]})[0]
            if y.min() != y.max():
                torn.append((y.min(), y.max()))

    thread = threading.Thread(target=work)
    thread.start()
    values = [np.full((1, 300_000), k, np.float32) for k in range(2)]
    for k in range(60):
        graph.set_param("w", values[k % 2])
    end.set()
    thread.join()
    assert not torn


# C-27 -----------------------------------------------------------------------------------------------------------------
def decoder(rows: int) -> Graph:
    """Attention over a cache, of `rows` new tokens at a position."""
    with Graph() as g:
        x, at = ops.input("x", (rows, D)), ops.input_u32("at", (1,))
        q = x @ ops.parameter("wq", (D, D))
        k, v = (
            ops.cache_write(x @ ops.parameter(f"w{n}", (D, D)), ops.parameter(f"cache_{n}", (LENGTH, D)), at)
            for n in "kv"
        )
        return graph_of([ops.cached_block_attention(q, k, v, at, ops.input_u32("n", (1,)), 2, 2, 4)], g)


def shared_pair(device: str) -> tuple[CompiledGraph, CompiledGraph]:
    prefill = ready(decoder(4), device)
    prefill.reset_state()
    return prefill, build_compiled_graph(decoder(1), device, share_parameters_from=prefill)


def reference(p: dict[str, Array], x: Array) -> Array:
    q, k, v = (x @ p[f"w{n}"] for n in "qkv")
    out = []
    for head in range(2):
        part = slice(head * 4, head * 4 + 4)
        scores = q[:, part] @ k[:, part].T / np.sqrt(4)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out.append(weights / weights.sum(1, keepdims=True) @ v[:, part])
    return np.concatenate(out, 1)


def test_prefill_and_decode_over_one_cache(device: str) -> None:
    prefill, decode = shared_pair(device)
    x = np.random.default_rng(1).standard_normal((LENGTH, D)).astype(np.float32)
    want = reference({n: prefill.read_param(n).astype(np.float64) for n in prefill.param_names}, x)
    rows = list(prefill.run({"x": x[:4], "at": [0], "n": [4]})[0])
    for k in (4, 5):
        rows += list(decode.run({"x": x[k : k + 1], "at": [k], "n": [1]})[0])
    np.testing.assert_allclose(rows, want, rtol=2e-4, atol=2e-5)
    decode.reset_state()
    assert not prefill.read_param("cache_k").any()


def test_shared_parameters_that_differ_are_refused_by_name(device: str) -> None:
    graph = ready(small(), device)
    with Graph() as g:
        graph_of([ops.input("x", (2, 3)) @ ops.parameter("v", (3, 4))], g)
    with pytest.raises(UnknownNameError, match="share_parameters_from: parameter v"):
        build_compiled_graph(g, device, share_parameters_from=graph)
    with Graph() as g:
        graph_of([ops.input("x", (2, 3)) @ ops.parameter("w", (3, 5))], g)
    with pytest.raises(SessionError, match="parameter w: given f32.3, 4., wanted f32.3, 5."):
        build_compiled_graph(g, device, share_parameters_from=graph)
    unset = build_compiled_graph(small(), device)
    other = build_compiled_graph(small(), device, share_parameters_from=unset)
    with pytest.raises(ParamNotSetError):
        other.run({"x": X})
    unset.set_param("w", W)
    assert same(other.run({"x": X}), unset.run({"x": X}))
    graph.close()
    with pytest.raises(SessionError, match="share_parameters_from: session: given a closed one"):
        build_compiled_graph(small(), device, share_parameters_from=graph)
