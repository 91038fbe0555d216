"""Small graphs for the tests of recognized composites, and checks that hold wherever something was recognized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.graph import Graph, Value
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.rewrite import optimize


def p(name: str, *shape: int) -> Value:
    return ops.parameter(name, shape)


def graph_of(make: Callable[[], Any]) -> Graph:
    with Graph() as g:
        g.set_outputs(make())
    return g


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.inputs]


def same_values(graph: Graph, result: Graph, rtol: float = 1e-6) -> None:
    rng = np.random.default_rng(0)
    leaves = (*graph.inputs, *graph.parameters)
    feeds = {n.name: rng.uniform(-2, 2, n.type.shape).astype(np.float32) for n in leaves}
    want, got = evaluate(graph, feeds), evaluate(result, feeds)
    m = magnitudes(graph, want)
    for a, b in zip(graph.output_ids, result.output_ids, strict=True):
        assert compare(got[b], want[a], m[a], rtol) is None


def found_in(graph: Graph, phase: Any = "forward") -> tuple[Graph, list[str]]:
    """The optimized graph and its ops; both engines find one graph, it has the values and the gradients of `graph`,
    and there is no more to find in it."""
    result, report = optimize(graph, phase=phase)
    assert (report.shape_conflicts, report.extraction_failures, report.stop_reason) == (0, 0, "saturated")
    assert report.cost_after <= report.cost_before
    assert optimize(graph, phase=phase, engine="fallback")[0].fingerprint() == result.fingerprint()
    assert optimize(result, phase=phase)[1].rules_fired == ()
    same_values(graph, result)
    pair = graph.copy(), result.copy()
    for g in pair:
        g.set_outputs(g.outputs[0].square().mean_all())
    same_values(differentiate(pair[0])[0], differentiate(pair[1])[0])
    return result, ops_of(result)
