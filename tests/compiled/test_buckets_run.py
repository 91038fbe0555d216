"""Compiled graphs at an active extent of their bucket axes, with NaN in the padding (C-13 … C-15 through the door)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from compiled_graphs import graph_of, same, state

from gdlab import ops
from gdlab.base.errors import ActiveExtentUnsupported, ArgumentError, UnknownNameError
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph, Value

UPPER, WIDTH = 8, 4
Build = Callable[[int], Mapping[str, Value]]


def made(build: Build, n: int) -> Graph:
    with Graph() as g:
        return graph_of(dict(build(n)), g)


def x_of(n: int) -> Value:
    return ops.input("x", (n, WIDTH))


def linear(n: int) -> dict[str, Value]:
    return {"y": (x_of(n) @ ops.parameter("w", (WIDTH, 3)) + ops.parameter("b", (3,))).relu()}


def folds(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {"sum": x.sum(0), "max": x.max(0), "min": x.min(0), "mean": x.mean(0), "all": x.mean_all(), "rows": x.sum(1)}


def mixed(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {"soft": x.T.softmax(), "gram": x.T @ x, "scores": x @ x.T}


def attention(n: int) -> dict[str, Value]:
    x = x_of(n)
    q, k, v = (x @ ops.parameter(name, (WIDTH, WIDTH)) for name in "qkv")
    return {"y": ops.causal_attention(q, k, v, 2, 2, 2)}


KINDS: tuple[Build, ...] = (linear, folds, mixed, attention)


def bucketed(build: Build, device: str, **options: Any) -> CompiledGraph:
    graph = build_compiled_graph(made(build, UPPER), device, bucket_axes={"x": 0}, **options)
    graph.initialize(5)
    return graph


def padded(x: Array) -> Array:
    return np.concatenate([x, np.full((UPPER - len(x), WIDTH), np.nan, np.float32)])


def data(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)


# C-13 -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("build", KINDS)
def test_a_run_at_an_extent_is_one_of_the_graph_of_that_extent(device: str, build: Build) -> None:
    graph = bucketed(build, device)
    for n in (1, 3, 5, UPPER):
        exact = build_compiled_graph(made(build, n), device)
        exact.load_params({name: graph.read_param(name) for name in graph.param_names})
        want = exact.run({"x": data(n)})
        graph.set_active_extent((n, UPPER))
        assert graph.active_extent == (None if n == UPPER else (n, UPPER))
        for got, right in zip(graph.run({"x": padded(data(n))}), want, strict=True):
            part = tuple(slice(0, extent) for extent in right.shape)
            np.testing.assert_allclose(got[part], right, rtol=1e-4, atol=1e-5)
            behind = got.copy()
            behind[part] = 0
            assert not behind.any()
        assert graph.last_run_stats()["extent"] == n


def test_an_extent_of_nothing(device: str) -> None:
    graph = bucketed(folds, device)
    graph.set_active_extent((0, UPPER))
    sum_, max_, min_, mean, all_, rows = graph.run({"x": padded(data(0))})
    assert not sum_.any() and (max_ == -np.inf).all() and (min_ == np.inf).all() and not rows.any()
    assert np.isnan(mean).all() and np.isnan(all_).all()


# C-14 -----------------------------------------------------------------------------------------------------------------
def loss(n: int) -> dict[str, Value]:
    y = (x_of(n) @ ops.parameter("w", (WIDTH, 3))).tanh()
    return {"loss": (y.square().mean_all() * 0.125), "y": y}


def test_losses_and_gradients_at_an_extent(device: str) -> None:
    graph = bucketed(loss, device, gradients=True)
    assert graph.output_names == ("loss", "y", "∂w")
    for n in (1, 5, UPPER):
        exact = build_compiled_graph(made(loss, n), device, gradients=True)
        exact.load_params({"w": graph.read_param("w")})
        want = exact.run({"x": data(n)})
        graph.set_active_extent((n, UPPER))
        got = graph.run({"x": padded(data(n))})
        for a, b in zip((got[0], got[1][:n], got[2]), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# C-15 -----------------------------------------------------------------------------------------------------------------
def test_bad_extents_change_nothing(device: str) -> None:
    graph = bucketed(linear, device)
    graph.set_active_extent((3, UPPER))
    raw = graph.run_raw({"x": padded(data(3))})
    before = state(graph)
    for extent in ((9, 8), (-1, 8), (3, 7), (3, 16), (3.0, 8), (True, 8), (3, True), 3, (3,), (1, 2, 3), "ab"):
        with pytest.raises(ArgumentError, match="set_active_extent: (extent|upper|actual): given"):
            graph.set_active_extent(extent)  # type: ignore[arg-type]
    assert state(graph) == before and raw[0].valid
    graph.set_active_extent(None)
    assert graph.active_extent is None
    whole = data(UPPER)
    assert same(graph.run({"x": whole}), graph.run({"x": whole})) and graph.last_run_stats()["extent"] == UPPER
    assert graph.input_names == ("x",)


def test_what_has_no_bucket_axes_says_so() -> None:
    graph = build_compiled_graph(made(linear, 8), "cpu")
    with pytest.raises(ActiveExtentUnsupported, match=r"given one without bucket axes, wanted build_compiled_graph\(…"):
        graph.set_active_extent((3, 8))
    for axes, error, text in (
        ({"z": 0}, UnknownNameError, "bucket_axes: input: given z"), ({"x": 2}, ArgumentError, "axis of 'x': given 2"),
        ({}, ArgumentError, "at least one axis"),
    ):  # fmt: skip
        with pytest.raises(error, match=re.escape(text)):
            build_compiled_graph(made(linear, 8), "cpu", bucket_axes=axes)
    with pytest.raises(ActiveExtentUnsupported, match="test_buckets_run.py"):
        build_compiled_graph(made(lambda n: {"y": x_of(n)[2:5]}, 8), "cpu", bucket_axes=True)


def test_an_extent_is_that_of_the_call(device: str) -> None:
    graph = bucketed(linear, device)
    futures, want = [], []
    for n in (1, 8, 3, 5, 2):
        graph.set_active_extent((n, UPPER))
        want.append(graph.run({"x": padded(data(n))}))
        futures.append(graph.run_async({"x": padded(data(n))}))
    graph.set_active_extent(None)
    assert all(same(future.result(10), right) for future, right in zip(futures, want, strict=True))


def test_an_extent_costs_four_bytes_where_it_changes(device: str) -> None:
    graph = bucketed(linear, device)
    x = data(UPPER)
    graph.run({"x": x})
    before = graph.counters()["upload_bytes"]
    graph.run({"x": x})
    assert graph.counters()["upload_bytes"] - before == x.nbytes
    graph.set_active_extent((3, UPPER))
    graph.run({"x": x})
    assert graph.counters()["upload_bytes"] - before == 2 * x.nbytes + 4
    other = graph.clone()
    assert other.active_extent == (3, UPPER) and same(other.run({"x": x}), graph.run({"x": x}))
    assert graph.context().active_extent is None
