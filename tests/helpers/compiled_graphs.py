"""Graphs for tests of compiled graphs, and what must not change in a call that is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph, Value

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def graph_of(outputs: Mapping[str, Value] | list[Value], graph: Graph) -> Graph:
    graph.set_outputs(outputs)
    return graph


def small() -> Graph:
    """y = relu(x @ w), and x beside it."""
    with Graph() as g:
        x = ops.input("x", (2, 3))
        return graph_of({"y": (x @ ops.parameter("w", (3, 4))).relu(), "x": x}, g)


def swap() -> Graph:
    """(b + 1, a) of (a, b)."""
    with Graph() as g:
        a, b = ops.input("a", (3,)), ops.input("b", (3,))
        return graph_of({"p": b + 1.0, "q": a}, g)


def recurrence(name: str = "h", rows: int = 5) -> Graph:
    """h ← tanh(h w + x), and a second output."""
    with Graph() as g:
        h, x = ops.input(name, (rows, 4)), ops.input("x", (rows, 4))
        after = (h @ ops.parameter("w", (4, 4)) + x).tanh()
        return graph_of([after, after.sum(1)], g)


def ready(graph: Graph, device: str, seed: int = 3, **options: Any) -> CompiledGraph:
    """Compiled, with values for all parameters."""
    made = build_compiled_graph(graph, device, **options)
    generator = np.random.default_rng(seed)
    for spec in made.params:
        made.set_param(spec.name, generator.standard_normal(spec.shape).astype(np.float32))
    return made


def same(a: Any, b: Any) -> bool:
    """Whether arrays, or lists of them, have the same dtype, shape and bits."""
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def state(graph: CompiledGraph) -> tuple[object, ...]:
    """All that a refused call leaves as it is."""
    handles = graph.handles
    host = [(name, h.numbers.tobytes(), h.source) for name, h in sorted(handles.host.items())]
    gpu = sorted(handles.gpu), sorted(handles.feeds.items())
    params: list[Array] = [graph.read_param(name) for name in graph.param_names]
    reads = {"readbacks", "readback_bytes", "waits"}  # of `read_param` here
    counters = [(name, n) for name, n in graph.counters().items() if name not in reads]
    arena = graph.views.current
    view = None if arena is None else (arena.epoch, arena.valid)
    return host, gpu, [p.tobytes() for p in params], counters, graph.epoch, graph.draw, graph.active_extent, view
