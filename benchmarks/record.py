"""Measure the door of recorded lists by ratios in one run: `python -m benchmarks record`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gdlab as gd
from gdlab.plan.target import CompileOptions

SHAPE = (32, 64)
OPS, RUNS = 120, 21


def print_table() -> None:
    """Print every ratio, its bar and whether it holds."""
    print("| what | ratio | bar | |\n|---|---|---|---|")
    for device in ("cpu", "wgpu"):
        for name, ratio, bar in rows(device):
            print(f"| {device}: {name} | {ratio:.2f} | ≤ {bar} | {'holds' if ratio <= bar else 'MISSED'} |")


def rows(device: str) -> list[tuple[str, float, float]]:
    """Return (what, ratio, bar) of one device."""
    with gd.GraphExecutor(device) as ex:
        unit = _addition()
        encode, tracked = _encoding(ex, False) / unit, _encoding(ex, True) / unit
        found = [
            ("encode one warm op / np.add", encode, 6.0),
            ("barrier_between and tracking per op / np.add", max(0.0, tracked - encode), 6.0),
            ("fuse, reorder and check per node / encode per node", _passes(ex), 10.0),
            ("100 equal sessions: objects made after the second", float(_made(ex)), 0.0),
        ]
        one, many = _time(lambda: _chain(ex, 1)), _time(lambda: _chain(ex, OPS), runs=5)
        if device == "wgpu":
            found.append((f"{OPS} small ops in one session / in {OPS}", one / many, 0.3))
        found.append((f"{OPS} small ops / step of to_graph()", one / _step(ex), 1.3 if device == "wgpu" else 2.2))
    return found


def _time(call: Callable[[], Any], runs: int = RUNS) -> float:
    call()
    call()
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _addition() -> float:
    """Seconds of `np.add(A, B, out=C)`."""
    a, b, c = (np.ones(SHAPE, np.float32) for _ in range(3))

    def call() -> None:
        for _ in range(1000):
            np.add(a, b, out=c)

    return _time(call) / 1000


def _zeros(ex: gd.GraphExecutor, count: int) -> list[Any]:
    n = SHAPE[0] * SHAPE[1]
    return [ex.alloc_buffer(4 * n, gd.f32, SHAPE) for _ in range(count)]


def _encoding(ex: gd.GraphExecutor, track: bool) -> float:
    """Seconds to encode a warm op, of 64 on ranges of their own; `track`: each declared first."""
    n, buffers = SHAPE[0] * SHAPE[1], _zeros(ex, 48)
    triples = [tuple(buffers[i : i + 3]) for i in range(0, 48, 3)]

    def call() -> float:
        s = ex.begin()
        begun = time.perf_counter()
        for a, b, c in triples:
            if track:
                s.barrier_between([a, b], [c])
            s.elementwise_add(a, b, c, n, gd.f32)
        spent = time.perf_counter() - begun
        s.drop()
        return spent

    call()
    return statistics.median(call() for _ in range(200)) / len(triples)


def _passes(ex: gd.GraphExecutor) -> float:
    """Passes over a list of 12 layers against encoding it."""
    n, rows, width = SHAPE[0] * SHAPE[1], *SHAPE
    w = ex.alloc_buffer(4 * width, gd.f32, (width,))
    x, y, z, *others = _zeros(ex, 40)
    y_ = ex.alloc_buffer(4 * n, gd.f32, SHAPE, transient=True)

    def call() -> tuple[float, float]:
        s = ex.begin_recorded(auto_barrier=True)
        begun = time.perf_counter()
        for k in range(12):
            a, b, c = others[3 * k : 3 * k + 3]
            s.rms_norm(x, w, y_, rows, width)
            s.elementwise_mul(y_, y, z, n, gd.f32)
            s.gelu(z, a)
            s.gelu(z, b)
            s.elementwise_mul(a, b, c, n, gd.f32)
            s.elementwise_add(c, x, x, n, gd.f32)
        s.barrier_count()  # ranges are looked at when somebody asks
        encoded = time.perf_counter()
        s.graph.fuse()
        s.graph.reorder()
        passed = time.perf_counter()
        s.drop()
        return encoded - begun, passed - encoded

    call()
    both = [call() for _ in range(60)]
    return statistics.median(p for _, p in both) / statistics.median(e for e, _ in both)


def _chain(ex: gd.GraphExecutor, sessions_of: int) -> None:
    """OPS small ops in sessions of OPS / sessions_of."""
    each = OPS // sessions_of
    for k in range(sessions_of):
        with ex.begin(auto_barrier=True) as s:
            _encode(s, _few(ex), each, k)


def _encode(s: Any, buffers: Any, count: int, first: int = 0) -> None:
    """A chain of sums of the two results before each."""
    n = SHAPE[0] * SHAPE[1]
    for i in range(first, first + count):
        s.elementwise_add(buffers[i % 3], buffers[(i + 1) % 3], buffers[(i + 2) % 3], n, gd.f32)


_kept: dict[int, Any] = {}


def _few(ex: gd.GraphExecutor) -> Any:
    if id(ex) not in _kept:
        _kept[id(ex)] = _zeros(ex, 3)
    return _kept[id(ex)]


def _step(ex: gd.GraphExecutor) -> float:
    """Seconds of a step of the same list, compiled without rewrites and fusion."""
    s = ex.begin(auto_barrier=True)
    _encode(s, _few(ex), OPS)
    graph = s.to_graph()
    s.drop()
    options = CompileOptions(fuse_dispatches=False)
    config = gd.SessionConfig(mode="inference", device=ex.device, optimize=None, compile=options)
    with gd.build(graph, config)[0] as session:
        for node in graph.inputs:
            session.set_input(node.name, np.ones(node.type.shape, np.float32))

        def call() -> None:
            session.step()
            session.wait()

        return _time(call)


def _made(ex: gd.GraphExecutor) -> int:
    def created() -> int:
        _chain(ex, 1)
        return sum(v for k, v in ex.counters().items() if k.endswith("_created"))

    created()
    before = created()
    for _ in range(100):
        after = created()
    return after - before
