"""A graph compiled for buckets of extents, run on padded rows (C-16 … C-18)."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from compiled_graphs import graph_of

import gdlab as gd
from gdlab import ops
from gdlab.base.errors import (
    ActiveExtentUnsupported,
    ArgumentError,
    ParamNotSetError,
    SessionError,
    ShapeError,
    UnknownNameError,
)
from gdlab.base.types import Array
from gdlab.compiled import BucketedCompileCache, CacheRunInput
from gdlab.compiled.buckets import pad_rows, slice_rows
from gdlab.graph import Graph

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def rows_graph(n: int) -> Graph:
    """y = x @ w + scale, and the mean over the rows of x."""
    with Graph() as g:
        x, scale = ops.input("x", (n, 4)), ops.input("scale", (3,))
        return graph_of({"y": x @ ops.parameter("w", (4, 3)) + scale, "mean": x.mean(0)}, g)


def positional(n: int) -> Graph:
    with Graph() as g:
        x = ops.input("x", (n, 4)) + ops.parameter("table", (n, 4))
        return graph_of([x @ ops.parameter("w", (4, 3))], g)


def data(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)


def mixed(n: int) -> list[CacheRunInput]:
    return [CacheRunInput("x", data(n).ravel(), 4), CacheRunInput("scale", np.ones(3))]


class Counting:
    """A build function that notes its calls; the first `failing` raise."""

    def __init__(self, build: Any = rows_graph, failing: int = 0) -> None:
        self.build, self.failing, self.calls = build, failing, list[int]()

    def __call__(self, upper: int) -> Any:
        self.calls.append(upper)
        if len(self.calls) <= self.failing:
            raise ValueError("not now")
        return self.build(upper)


# C-16 -----------------------------------------------------------------------------------------------------------------
def test_keys_find_their_buckets_and_each_is_compiled_once() -> None:
    cache, build = BucketedCompileCache.power_of_two_ladder("cpu", 8, 64, params={"w": W}), Counting()
    assert [cache.bucket_for(k) for k in (0, 1, 8, 9, 64, 65)] == [None, 0, 0, 1, 3, None]
    assert cache.total_buckets == 4 and cache.compiled_count == 0 and build.calls == []
    for key, upper in ((0, None), (65, None), (8, 8), (1, 8), (9, 16), (64, 64), (10, 16)):
        found = cache.get_or_compile(key, build)
        assert (None if found is None else found[0]) == upper
    assert build.calls == [8, 16, 64] and cache.compiled_count == 3
    assert repr(cache) == "<BucketedCompileCache: 3 of 4 buckets compiled>"
    assert gd.BucketedCompileCache is BucketedCompileCache
    cache.close()
    assert cache.compiled_count == 0


def test_a_build_that_fails_leaves_its_bucket_uncompiled() -> None:
    cache, build = BucketedCompileCache("cpu", [range(1, 5)], params=lambda: {"w": W}), Counting(failing=1)
    with pytest.raises(ValueError, match="not now"):
        cache.get_or_compile(2, build)
    assert cache.compiled_count == 0
    assert cache.get_or_compile(2, build) is not None and build.calls == [4, 4]
    with pytest.raises(ArgumentError, match="bucket 0: given a graph of 5, wanted of 4"):
        BucketedCompileCache("cpu", [range(1, 5)], bucket_axes={"x": 0}).get_or_compile(1, lambda _: rows_graph(5))
    for options, text in (({"max_resident": 0}, "max_resident"), ({"on_unsupported": "no"}, "'error' or 'exact'")):
        with pytest.raises(ArgumentError, match=text):
            BucketedCompileCache("cpu", [range(1, 5)], **options)  # type: ignore[arg-type]


# C-17 -----------------------------------------------------------------------------------------------------------------
def test_padded_runs_are_runs_of_the_rows_that_there_are(device: str) -> None:
    most = 64 if device == "cpu" else 16
    cache = BucketedCompileCache.power_of_two_ladder(device, 8, most, params={"w": W})
    for n in range(1, most + 1):
        found = cache.run_padded_mixed(n, n, rows_graph, mixed(n), [3])
        assert found is not None
        upper, (y, mean) = found
        assert upper == max(8, 1 << (n - 1).bit_length()) and y.shape == (3 * n,) and mean.shape == (4,)
        np.testing.assert_allclose(y.reshape(n, 3), data(n) @ W + 1, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean, data(n).mean(0), rtol=1e-4, atol=1e-6)
    assert cache.run_padded(99, 99, rows_graph, [("x", data(99), 4)]) is None
    for graph in cache._compiled.values():
        assert graph.active_extent is None
    whole = cache.run_padded_mixed(3, 3, rows_graph, mixed(3))
    assert whole is not None and whole[1][0].shape == (8, 3) and not whole[1][0][3:].any()


def test_rows_that_do_not_fit_are_refused() -> None:
    cache = BucketedCompileCache.power_of_two_ladder("cpu", 4, 8, params={"w": W})
    x, scale = data(3), CacheRunInput("scale", np.ones(3))

    def run(key: int, rows: int, *inputs: CacheRunInput, inners: tuple[int, ...] = ()) -> Any:
        return cache.run_padded_mixed(key, rows, rows_graph, inputs, inners)

    assert run(3, 3, CacheRunInput("x", x, 4), scale) is not None
    _, graph = cache.get_or_compile(3, rows_graph) or (0, None)
    assert graph is not None
    before = graph.counters()
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: run(3, 3, CacheRunInput("x", x.ravel()[:-1], 4), scale), ShapeError, "a multiple of 4"),
        (lambda: run(3, 3, CacheRunInput("x", x, 0), scale), ShapeError, "inner: given 0"),
        (lambda: run(3, 2, CacheRunInput("x", x, 4), scale), ShapeError, "3 rows, wanted 2: actual_rows"),
        (lambda: run(3, 5, CacheRunInput("x", data(5), 4), scale), ShapeError, "exceed upper"),
        (lambda: run(3, 3, CacheRunInput("x", x, 4), scale, inners=(4,)), ShapeError, "'y': given 12 elements, wanted"),
        (
            lambda: run(3, 3, CacheRunInput("x", x, 4), CacheRunInput("scale", [1] * 3, 1)),
            ArgumentError,
            "row_inner",
        ),
        (lambda: run(3, 3, CacheRunInput("z", x, 4)), UnknownNameError, "given z"),
        (lambda: run(3, 3, *[CacheRunInput("x", x, 4)] * 2, scale), ArgumentError, "given 'x' twice"),
        (lambda: run(3, 3, CacheRunInput("x", x, 2), scale), ShapeError, "rows of 2 elements, wanted 4 rows: 16"),
        (lambda: run(3, 3, CacheRunInput("x", [[1], [2, 3]], 4), scale), ShapeError, "data: given a ragged sequence"),
        (lambda: run(3, 3, CacheRunInput("x", x, "4"), scale), ArgumentError, "row_inner of 'x': given str"),  # type: ignore[arg-type]
        (lambda: run(3, -1, CacheRunInput("x", x), scale), ShapeError, "actual_rows: given -1, wanted 0 … 4"),
        (lambda: run(3, 5, CacheRunInput("x", np.zeros((4, 4))), scale), ShapeError, "actual_rows: given 5"),
        (lambda: run(3, 3, CacheRunInput("x", x, 4), scale, inners=(3, 4, 1)), ArgumentError, "given 3 numbers"),
    ]
    for call, error, text in refused:
        with pytest.raises(error, match=re.escape(text)):
            call()
    assert graph.counters() == before and graph.active_extent is None


def test_wrong_kinds_are_refused_by_name() -> None:
    for options, text in (({"max_resident": "2"}, "max_resident: given '2'"), ({"max_resident": 1.5}, "given 1.5"),
                          ({"params": 3}, "params: given 3"), ({"params": {1: W}}, "params: given dict")):  # fmt: skip
        with pytest.raises(ArgumentError, match=re.escape(text)):
            BucketedCompileCache("cpu", [range(1, 9)], **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="buckets: ranges: given 5, wanted a list"):
        BucketedCompileCache("cpu", 5)  # type: ignore[arg-type]
    cache = BucketedCompileCache("cpu", [range(1, 9)])
    for made in (3, (rows_graph(8),), (rows_graph(8), [W]), (rows_graph(8), {1: W})):
        with pytest.raises(ArgumentError, match=re.escape("build(8): given")):
            cache.get_or_compile(2, lambda n, made=made: made)
    with pytest.raises(ArgumentError, match=re.escape("params(): given list, wanted a mapping from names")):
        BucketedCompileCache("cpu", [range(1, 9)], params=lambda: [W]).get_or_compile(2, rows_graph)  # type: ignore[arg-type]
    for call in (lambda: pad_rows(W, "3", 4), lambda: pad_rows(W, 3, None), lambda: slice_rows(W, 3, "1")):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="_rows: .* wanted an int"):
            call()


def test_a_cache_is_not_copied() -> None:
    for again in (pickle.dumps, copy.deepcopy):
        with pytest.raises(SessionError, match="copy: bucketed compile cache: .* wanted another cache"):
            again(BucketedCompileCache("cpu", [range(1, 9)]))


def test_a_closed_cache_compiles_and_runs_nothing() -> None:
    build = Counting()
    with BucketedCompileCache("cpu", [range(1, 9)], params={"w": W}) as cache:
        _, graph = cache.get_or_compile(2, build) or (0, None)
    assert graph is not None and graph.closed and repr(cache) == "<BucketedCompileCache: closed>"
    for call in (lambda: cache.get_or_compile(2, build), lambda: cache.run_padded_mixed(2, 2, build, mixed(2)),
                 lambda: cache.set_param("w", W)):  # fmt: skip
        with pytest.raises(SessionError, match="BucketedCompileCache: cache: given closed, wanted an open one"):
            call()
    assert build.calls == [8] and cache.compiled_count == 0
    cache.close()


def test_there_is_one_copy_of_the_weights(device: str) -> None:
    cache = BucketedCompileCache.power_of_two_ladder(device, 2, 16)
    cache.set_param("w", np.zeros((4, 3)))
    graphs = []
    for key in (2, 4):
        _, graph = cache.get_or_compile(key, rows_graph) or (0, None)
        graphs.append(graph)
    cache.set_param("w", W)
    _, third = cache.get_or_compile(16, lambda n: (rows_graph(n), {"w": W * 9})) or (0, None)
    for graph in (*graphs, third):
        assert graph is not None and np.array_equal(graph.read_param("w"), W)
    unset = BucketedCompileCache(device, [range(1, 3)])
    with pytest.raises(ParamNotSetError, match="run_padded: parameters: given no value for w"):
        unset.run_padded_mixed(2, 2, rows_graph, mixed(2))
    with pytest.raises(UnknownNameError, match="parameter: given v"):
        BucketedCompileCache(device, [range(1, 3)], params={"v": W}).get_or_compile(1, rows_graph)


def test_a_table_of_positions_is_a_buckets_own(device: str) -> None:
    def build(n: int) -> tuple[Graph, dict[str, Array]]:
        return positional(n), {"table": np.full((n, 4), n, np.float32)}

    cache = BucketedCompileCache.power_of_two_ladder(device, 2, 8, params={"w": W})
    for n in (2, 3, 8):
        upper = max(2, 1 << (n - 1).bit_length())
        _, (y,) = cache.run_padded(n, n, build, [("x", data(n), 4)], [3]) or (0, [])
        np.testing.assert_allclose(y.reshape(n, 3), (data(n) + upper) @ W, rtol=1e-4, atol=1e-4)
    with pytest.raises(SessionError, match="parameter table: given one of its own in the buckets 0, 1, 2"):
        cache.set_param("table", np.zeros((2, 4)))


# C-18 -----------------------------------------------------------------------------------------------------------------
def test_the_bucket_used_longest_ago_goes() -> None:
    cache, build = BucketedCompileCache.power_of_two_ladder("cpu", 2, 16, params={"w": W}, max_resident=2), Counting()
    for key in (2, 4, 2, 8):
        cache.get_or_compile(key, build)
    assert cache.compiled_count == 2 and build.calls == [2, 4, 8]
    cache.set_param("w", 2 * W)
    cache.get_or_compile(2, build)
    assert build.calls == [2, 4, 8]
    _, graph = cache.get_or_compile(4, build) or (0, None)
    assert build.calls == [2, 4, 8, 4] and cache.compiled_count == 2
    assert graph is not None and np.array_equal(graph.read_param("w"), 2 * W)


def test_what_cannot_run_on_a_part_is_compiled_at_its_rows() -> None:
    def build(n: int) -> Graph:
        with Graph() as g:
            return graph_of([ops.input("x", (n, 4))[::2] @ ops.parameter("w", (4, 3))], g)

    with pytest.raises(ActiveExtentUnsupported):
        BucketedCompileCache("cpu", [range(1, 9)]).run_padded(5, 5, build, [("x", data(5), 4)])
    cache = BucketedCompileCache("cpu", [range(1, 9)], params={"w": W}, on_unsupported="exact")
    for n in (5, 3, 5):
        rows, (y,) = cache.run_padded(n, n, build, [("x", data(n), 4)]) or (0, [])
        assert rows == n
        np.testing.assert_allclose(y, data(n)[::2] @ W, rtol=1e-4, atol=1e-5)
    assert cache.exact_runs == 3 and cache.compiled_count == 0
    refused: list[tuple[int, tuple[Any, ...], str]] = [
        (3, ("x", data(4), 4), "4 rows"), (3, ("x", data(3), 2), "rows of 2 elements"),
        (9, ("x", data(9), 4), "actual_rows: given 9"),
        (0, ("x", data(0), 4), "actual_rows: given 0, wanted 1 … 8"), (3, ("x", data(3).ravel()[:-1], 4), "given 11"),
    ]  # fmt: skip
    for rows, given, text in refused:
        with pytest.raises(ShapeError, match=text):
            cache.run_padded(5, rows, build, [given])
    with pytest.raises(UnknownNameError, match="given z"):
        cache.run_padded(5, 3, build, [("z", data(3), 4)])
    cache.close()


def test_parameters_of_later_buckets_are_copied() -> None:
    first, later = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
    opened = BucketedCompileCache.power_of_two_ladder("cpu", 4, 8, params={"w": first})
    set_later = BucketedCompileCache.power_of_two_ladder("cpu", 4, 8)
    set_later.set_param("w", later)
    first[:] = later[:] = 7
    for cache in (opened, set_later):
        found = cache.get_or_compile(3, rows_graph)
        assert found is not None
        np.testing.assert_array_equal(found[1].read_param("w"), np.ones((4, 3)))
        cache.close()


def test_an_unknown_parameter_is_refused_once() -> None:
    cache = BucketedCompileCache.power_of_two_ladder("cpu", 4, 8)
    cache.set_param("wieght", W)
    with pytest.raises(UnknownNameError, match="wieght"):
        cache.get_or_compile(3, rows_graph)
    cache.set_param("w", W)
    assert cache.get_or_compile(3, rows_graph) is not None
    cache.close()
