"""Mixture of experts (C-19 … C-21): residency that moves memory and no bit, statistics, captured routing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_graphs import graph_of, same, state

from gdlab import ops
from gdlab.base.errors import ArgumentError, CapabilityError, ExpertIndexError, GdlabError, SessionError, ShapeError
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph, build_compiled_graph, load_compiled_graph
from gdlab.graph import Graph, Value

T, D, E, N = 6, 4, 4, 5
X = np.random.default_rng(0).standard_normal((T, D)).astype(np.float32)
MASKS: tuple[Sequence[bool], ...] = (
    [], [False] * E, [True, False, True, False], [False, True], [False, False, False, True], [True] * E
)  # fmt: skip


def given_numbers() -> Graph:
    """y = x @ w[idx] of numbers that are an input."""
    with Graph() as g:
        x, idx = ops.input("x", (T, D)), ops.input_u32("idx", (T,))
        return graph_of({"y": ops.grouped_matmul(x, ops.parameter("w", (E, D, N)), idx)}, g)


def routed(name: str, x: Value, experts: int, k: int = 1) -> Value:
    """A layer with a router: two products, a gate between them."""
    idx = ops.top_k_indices(x @ ops.parameter(f"{name}.r", (D, experts)), k=k).reshape((T * k,))
    rows = x.reshape((T, 1, D)).broadcast_to((T, k, D)).reshape((T * k, D)) if k > 1 else x
    up = ops.grouped_matmul(rows, ops.parameter(f"{name}.up", (experts, D, N)), idx)
    down = ops.grouped_matmul(up.silu() * 2.0, ops.parameter(f"{name}.down", (experts, N, D)), idx)
    return down.reshape((T, k, D)).sum(1) if k > 1 else down


def two_layers() -> Graph:
    with Graph() as g:
        x = ops.input("x", (T, D))
        h = x + routed("a", x, E, 2)
        return graph_of(
            {"y": h + routed("b", h, 3), "other": ops.top_k_indices(h @ ops.parameter("o", (D, E)), k=2)}, g
        )


def filled(graph: Graph, device: str, **options: Any) -> CompiledGraph:
    made = build_compiled_graph(graph, device, **options)
    made.initialize(5)
    return made


# results and memory ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [given_numbers, two_layers])
def test_results_are_bit_equal_for_every_mask(device: str, make: Any) -> None:
    graph = filled(make(), device)
    feed: dict[str, Any] = {"x": X} if make is two_layers else {"x": X, "idx": [0, 0, 1, 3, 3, 3]}
    want, weights = graph.run(feed), {name: graph.read_param(name) for name in graph.param_names}
    for mask in MASKS if device == "cpu" else MASKS[2:4]:  # a plan's kernels are compiled for its pages
        graph.set_moe_resident_experts(mask)
        assert same(graph.run(feed), want), mask
        assert same(graph.run({**feed, "x": X * 2}), graph.run({**feed, "x": X * 2}))
        for name, data in weights.items():
            assert same(graph.read_param(name), data), (mask, name)
    graph.set_moe_resident_experts_per_layer([[False, True]])
    assert same(graph.run(feed), want)


def test_a_product_is_that_of_numpy(device: str) -> None:
    graph, idx = filled(given_numbers(), device), np.array([0, 0, 1, 3, 3, 3])
    w = graph.read_param("w")
    graph.set_moe_resident_experts([True, False, True, False])
    (y,) = graph.run({"x": X, "idx": idx})
    np.testing.assert_allclose(y, np.einsum("ik,ikn->in", X, w[idx]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="index 4 at position 5"):
        graph.run({"x": X, "idx": [0, 0, 0, 0, 0, 4]})


def test_memory_falls_and_a_forward_stops_for_host_experts(device: str) -> None:
    graph, feed = filled(given_numbers(), device), {"x": X, "idx": [0, 0, 1, 3, 3, 3]}
    graph.run(feed)
    whole, before = graph.memory_summary(), graph.plan.memory.physical_bytes
    assert whole["moe_resident_bytes"] == 4 * E * D * N and whole["moe_host_bytes"] == 0
    assert graph.counters()["moe_sync_points"] == 0
    forwards, epoch = graph.counters()["forwards"], graph.epoch
    graph.set_moe_resident_experts([True, False, False, False])
    assert graph.counters()["forwards"] == forwards and graph.epoch == epoch
    graph.run(feed)
    memory = graph.memory_summary()
    assert memory["moe_resident_bytes"] == 4 * 2 * D * N and memory["moe_host_bytes"] == 4 * 3 * D * N
    assert graph.plan.memory.physical_bytes <= before and graph.counters()["moe_sync_points"] == 1
    assert graph.last_run_stats()["moe_sync_points"] == 1
    assert graph.epoch == epoch + 1 and graph.counters()["forwards"] == forwards + 1
    uploads = graph.counters()["upload_bytes"]
    graph.run({**feed, "idx": [0] * T})  # no host expert is asked for
    assert graph.counters()["upload_bytes"] - uploads < 4 * D * N + 4 * (T * D + T + 2 * E)


def test_several_host_experts_at_a_time_and_fewer_bytes(device: str) -> None:
    with Graph() as g:
        x, idx = ops.input("x", (64, 8)), ops.input_u32("idx", (64,))
        graph_of([ops.grouped_matmul(x, ops.parameter("w", (16, 8, 64)), idx).relu()], g)
    graph = filled(g, device, moe_transient=3)
    feed = {"x": np.linspace(-1, 1, 512).reshape(64, 8), "idx": np.arange(64) * 7 % 16}
    want, before = graph.run(feed), graph.plan.memory.physical_bytes
    graph.set_moe_resident_experts([k % 4 == 0 for k in range(16)])
    assert same(graph.run(feed), want) and graph.plan.memory.physical_bytes < before - 4 * 8 * 64 * 8
    assert graph.memory_summary()["moe_resident_bytes"] == 4 * 8 * 64 * 7


RUNS = {
    "run": lambda g, x: g.run(x), "run_raw": lambda g, x: [raw.numpy().copy() for raw in g.run_raw(x)],
    "run_async": lambda g, x: g.run_async(x).result(60), "run_pipelined": lambda g, x: g.run_pipelined([x, x])[1],
    "commit": lambda g, x: (g.commit_no_wait(x), g.sync_pending(), g.read_outputs())[2],
    "some": lambda g, x: g.run_read_outputs(x, [0, 1]), "out": lambda g, x: g.run(x, out=[np.zeros_like(X), None]),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_brings_host_experts(device: str, kind: str) -> None:
    graph = filled(two_layers(), device)
    want = graph.run({"x": X})
    graph.set_moe_resident_experts([False, True])
    assert same(RUNS[kind](graph, {"x": X}), want)
    graph.set_moe_resident_experts([])
    assert same(RUNS[kind](graph, {"x": X}), want)


# parameters -----------------------------------------------------------------------------------------------------------
def test_parameters_go_on_meaning_the_whole(device: str, tmp_path: Path) -> None:
    graph, feed = build_compiled_graph(given_numbers(), device), {"x": X, "idx": [0, 1, 2, 3, 2, 1]}
    graph.set_moe_resident_experts([False, True])
    with pytest.raises(SessionError, match="no value for w"):
        graph.run(feed)
    w = np.random.default_rng(1).standard_normal((E, D, N)).astype(np.float32)
    plain = build_compiled_graph(given_numbers(), device)
    plain.set_param("w", w)
    want = plain.run(feed)
    for put in (
        lambda: graph.set_param("w", w),
        lambda: graph.set_param_typed("w", w.tobytes(), "f32"),
        lambda: graph.load_params({"w": w}),
    ):
        graph.set_param("w", w * 0)
        assert not graph.run(feed)[0].any()
        put()
        assert same(graph.run(feed), want) and same(graph.read_param("w"), w)
    with pytest.raises(ShapeError, match="set_param"):
        graph.set_param("w", w[:3])
    graph.save(tmp_path / "g", weights=True)
    graph.save_checkpoint(tmp_path / "c")
    other = load_compiled_graph(tmp_path / "g")
    assert same(other.run(feed), want)
    other.set_moe_resident_experts([False])
    assert same(other.run(feed), want)
    other.set_param("w", w * 0)
    other.load_checkpoint(tmp_path / "c")
    assert same(other.run(feed), want) and other.experts.masks == ((False,),)
    held = graph.snapshot()
    graph.set_param("w", w * 0)
    graph.restore(held)
    assert same(graph.run(feed), want)


def test_initialize_is_that_of_the_whole(device: str) -> None:
    graph = build_compiled_graph(given_numbers(), device)
    graph.set_moe_resident_experts([False, True, False])
    graph.initialize(5)
    assert same(graph.read_param("w"), filled(given_numbers(), device).read_param("w"))


def test_handles_feeds_and_draws_live_through_a_change(device: str) -> None:
    with Graph() as g:
        x, idx = ops.input("x", (T, D)), ops.input_u32("idx", (T,))
        y = ops.grouped_matmul(x, ops.parameter("w", (E, D, D)), idx).tanh()
        graph_of({"y": y, "r": ops.rand_uniform((3,), seed=1)}, g)
    graph, plain = filled(g, device), filled(g, device)
    for each in (graph, plain):
        each.bind_gpu_handle("x", X)
        each.set_gpu_handle_feed("x", 0)
        each.bind_handle("idx", [0, 1, 2, 3, 0, 1])
    for mask in ([False], [True, False], [], [False] * E):
        graph.set_moe_resident_experts(mask)
        assert same(graph.run(), plain.run()), mask
    assert same(graph.read_gpu_handle("x"), plain.read_gpu_handle("x"))


# copies ---------------------------------------------------------------------------------------------------------------
def test_clones_have_masks_of_their_own(device: str) -> None:
    graph, feed = filled(given_numbers(), device), {"x": X, "idx": [0, 0, 1, 3, 3, 3]}
    want = graph.run(feed)
    graph.set_moe_resident_experts([False, True])
    other = graph.clone()
    assert other.experts.masks == graph.experts.masks and same(other.run(feed), want)
    other.set_moe_resident_experts([])
    other.set_param("w", np.zeros((E, D, N)))
    assert same(graph.run(feed), want) and graph.memory_summary()["moe_host_bytes"] > 0
    graph.clone_from(other)
    assert not graph.run(feed)[0].any() and graph.memory_summary()["moe_host_bytes"] == 0


def test_two_objects_in_two_threads(device: str) -> None:
    graph, feed = filled(two_layers(), device), {"x": X}
    want = graph.run(feed)
    objects, masks, wrong = [graph, graph.clone()], ([False, True], [True, False, False, True]), list[str]()

    def work(mine: CompiledGraph, mask: Sequence[bool]) -> None:
        mine.set_moe_resident_experts(mask)
        first = None
        for _ in range(6):
            if not same(mine.run(feed), want):
                wrong.append("result")
            stats = mine.take_moe_residency_stats()
            first = first or stats
            if stats is None or stats != first or mine.take_moe_residency_stats() is not None:
                wrong.append("stats")

    threads = [threading.Thread(target=work, args=pair) for pair in zip(objects, masks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_parameters_of_several_graphs_stay_where_they_are(device: str) -> None:
    graph = filled(given_numbers(), device)
    context = graph.context()
    with pytest.raises(SessionError, match="set_moe_resident_experts: parameters: given those of .* too"):
        graph.set_moe_resident_experts([False])
    graph.set_moe_resident_experts([True])
    context.close()
    graph.set_moe_resident_experts([False])
    with pytest.raises(SessionError, match="context: experts: given some on the host"):
        graph.context()


# statistics -----------------------------------------------------------------------------------------------------------
def test_statistics_by_hand(device: str) -> None:
    graph, feed = filled(given_numbers(), device), {"x": X, "idx": [0, 0, 1, 3, 3, 3]}
    assert graph.take_moe_residency_stats() is None
    graph.run(feed)
    stats = graph.take_moe_residency_stats()
    assert stats is not None and graph.take_moe_residency_stats() is None
    assert (stats.gpu_expert_calls, stats.cpu_expert_calls, stats.gpu_tokens, stats.cpu_tokens) == (3, 0, 6, 0)
    graph.set_moe_resident_experts([True, False, True, False])
    graph.run(feed)
    stats = graph.take_moe_residency_stats()
    assert stats is not None
    assert (stats.gpu_expert_calls, stats.cpu_expert_calls, stats.gpu_tokens, stats.cpu_tokens) == (1, 2, 2, 4)
    assert len(stats.per_layer) == 1 and stats.per_layer[0].cpu_tokens == 4
    layers = filled(two_layers(), device)
    layers.set_moe_resident_experts_per_layer([[True] * E, [False] * 3])
    layers.run({"x": X})
    both = layers.take_moe_residency_stats()
    assert both is not None and [s.gpu_tokens for s in both.per_layer] == [4 * T, 0]
    assert [s.cpu_tokens for s in both.per_layer] == [0, 2 * T] and both.gpu_tokens + both.cpu_tokens == 6 * T


def test_active_rows_alone_count(device: str) -> None:
    graph = build_compiled_graph(given_numbers(), device, bucket_axes={"x": 0, "idx": 0})
    graph.initialize(5)
    feed: dict[str, Any] = {"x": X, "idx": [1, 1, 2, 3, 3, 3]}
    want = graph.run(feed)[0]
    graph.set_moe_resident_experts([True, False])
    graph.set_active_extent((4, T))
    (y,) = graph.run({**feed, "idx": [1, 1, 2, 3, 0, 0]})
    stats = graph.take_moe_residency_stats()
    np.testing.assert_allclose(y[:4], want[:4], rtol=1e-5, atol=1e-6)  # products of fewer rows, by BLAS
    assert not y[4:].any() and stats is not None
    assert (stats.gpu_expert_calls, stats.cpu_expert_calls, stats.gpu_tokens, stats.cpu_tokens) == (2, 1, 2, 2)


# captures -------------------------------------------------------------------------------------------------------------
def chosen(x: Array, r: Array, k: int) -> Array:
    order: Array = np.argsort(-(x @ r), axis=1, kind="stable")[:, :k].astype(np.uint32)
    return order.reshape(-1)


def test_the_routers_choice_alone_is_captured(device: str) -> None:
    graph = filled(two_layers(), device)
    assert graph.take_moe_topk_capture() is None and graph.enable_moe_topk_capture(7) is False
    graph.run({"x": X})
    assert graph.take_moe_topk_capture() is None
    assert graph.enable_moe_topk_capture(E) is True and graph.take_moe_topk_capture() is None
    _, other = graph.run({"x": X})
    found = graph.take_moe_topk_capture()
    assert found is not None and len(found) == 1 and graph.take_moe_topk_capture() is None
    assert same(found[0], chosen(X, graph.read_param("a.r"), 2)) and not same(found[0], other.reshape(-1))
    assert graph.enable_moe_topk_capture(3) is True
    graph.set_moe_resident_experts([False])
    graph.commit_no_wait({"x": X})
    (second,) = graph.take_moe_topk_capture() or ()
    assert second.shape == (T,) and second.dtype == np.uint32
    graph.disable_moe_topk_capture()
    graph.run({"x": X})
    assert graph.take_moe_topk_capture() is None
    assert filled(given_numbers(), device).enable_moe_topk_capture(E) is False


def test_a_copy_captures_as_its_original(device: str) -> None:
    graph = filled(two_layers(), device)
    graph.enable_moe_topk_capture(E)
    other = graph.clone()
    other.run({"x": X})
    assert graph.take_moe_topk_capture() is None and other.take_moe_topk_capture() is not None


# refusals -------------------------------------------------------------------------------------------------------------
REFUSED: list[tuple[str, tuple[Any, ...], type[GdlabError], str]] = [
    ("set_moe_resident_experts", ([True] * 5,), ArgumentError, "mask: given 5 entries, wanted at most 4"),
    ("set_moe_resident_experts", ([1, 0],), ArgumentError, r"mask: given \[1, 0\], wanted bools"),
    ("set_moe_resident_experts", (None,), ArgumentError, "mask: given None, wanted bools"),
    ("set_moe_resident_experts_per_layer", ([[True], [True]],), ArgumentError, "given 2 masks, wanted a list"),
    ("set_moe_resident_experts_per_layer", ([[True] * 5],), ArgumentError, "mask 0: given 5 entries"),
    ("enable_moe_topk_capture", (True,), ArgumentError, "num_experts: given True, wanted an int"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "kind", "text"), REFUSED)
def test_bad_masks_change_nothing(name: str, given: Any, kind: type[GdlabError], text: str) -> None:
    graph = filled(given_numbers(), "cpu")
    graph.set_moe_resident_experts([False])
    graph.run({"x": X, "idx": [0] * T})
    before, masks = state(graph), graph.experts.masks
    with pytest.raises(kind, match=text):
        getattr(graph, name)(*given)
    assert state(graph) == before and graph.experts.masks == masks


def test_graphs_whose_experts_cannot_be_split() -> None:
    with Graph() as g:
        plain = build_compiled_graph(graph_of([ops.input("x", (T, D)) * 2.0], g), "cpu")
    with pytest.raises(ArgumentError, match="given one without grouped_matmul"):
        plain.set_moe_resident_experts([True])
    with Graph() as g:
        w = ops.parameter("w", (E, D, N)) * 2.0
        graph_of([ops.grouped_matmul(ops.input("x", (T, D)), w, ops.input_u32("idx", (T,)))], g)
    computed = filled(g, "cpu")
    with pytest.raises(CapabilityError, match="experts on the host: given weights of layer 0 that are computed"):
        computed.set_moe_resident_experts([False])
    computed.set_moe_resident_experts([True, True])
    computed.run({"x": X, "idx": [0] * T})
    assert computed.take_moe_residency_stats() is not None


def test_a_number_that_is_computed_wrongly_raises_when_it_is_waited_for(device: str) -> None:
    with Graph() as g:
        x, raw = ops.input("x", (T, D)), ops.input("raw", (T,))
        graph_of([ops.grouped_matmul(x, ops.parameter("w", (E, D, N)), raw.to_u32())], g)
    graph = filled(g, device)
    good, bad = {"x": X, "raw": [0, 1, 2, 3, 0, 1]}, {"x": X, "raw": [0, 1, 9, 3, 0, 1]}
    want = graph.run(good)
    for kind in ("run", "run_raw", "run_async"):
        with pytest.raises(ExpertIndexError, match="layer 0, row 2: given 9") as error:
            made = getattr(graph, kind)(bad)
            made.result(60)
        assert (error.value.row, error.value.index, error.value.experts) == (2, 9, E)
    graph.commit_no_wait(bad)
    with pytest.raises(ExpertIndexError):
        graph.sync_pending()
    assert same(graph.run(good), want)
    y = graph.read_outputs()[0]
    assert y[2].any()


# layers ---------------------------------------------------------------------------------------------------------------
def test_layers_are_numbered_by_appearance_or_by_name() -> None:
    with Graph() as g:
        x, a, b = ops.input("x", (T, D)), ops.input_u32("a", (T,)), ops.input_u32("b", (T,))
        first = ops.grouped_matmul(x, ops.parameter("u", (2, D, D)), a).named("moe:1")
        graph_of([ops.grouped_matmul(first, ops.parameter("v", (3, D, D)), b) + first], g)
    graph = filled(g, "cpu")
    assert [(layer.number, layer.most, layer.weights) for layer in graph.signature.layers] == [
        (0, 3, ("v",)),
        (1, 2, ("u",)),
    ]
    assert graph.input_names == ("x", "a", "b") and graph.output_names == ("out0",)


def test_gradients_stand_behind_the_outputs_and_experts_stay(device: str) -> None:
    with Graph() as g:
        x, idx = ops.input("x", (T, D)), ops.input_u32("idx", (T,))
        graph_of([(ops.grouped_matmul(x, ops.parameter("w", (E, D, N)), idx) * 2.0).mean_all()], g)
    graph = filled(g, device, gradients=True)
    assert graph.output_names == ("out0", "∂w")
    numbers = [0, 0, 1, 3, 3, 3]
    _, gradient = graph.run({"x": X, "idx": numbers})
    want = np.zeros((E, D, N), np.float32)
    np.add.at(want, numbers, (X[:, :, None] * np.full(N, 2 / (T * N))).astype(np.float32))
    np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-7)
    stats = graph.take_moe_residency_stats()
    assert stats is not None and (stats.gpu_expert_calls, stats.gpu_tokens) == (3, T)
    with pytest.raises(CapabilityError, match="wanted f32 parameters .* no gradients"):
        graph.set_moe_resident_experts([False])
