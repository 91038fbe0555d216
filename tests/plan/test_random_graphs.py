"""Random graphs through the whole chain: reference = cpu = wgpu, fused or not, aliased or not, slots poisoned."""

from __future__ import annotations

from typing import Any

import numpy as np
import plans
import pytest
from machine import needs
from matrix import count
from random_graphs import random_feeds, random_graph

from gdlab.autodiff import differentiate
from gdlab.devices.base import Device, owner
from gdlab.devices.choose import device
from gdlab.graph import Graph
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.plan.target import CompileOptions

GRAPHS = count(150, 300)
BATCH = 10  # graphs of one test
OPTIONS = {
    "fused, aliased": CompileOptions(),
    "fused": CompileOptions(alias=False),
    "aliased": CompileOptions(fuse_dispatches=False),
    "plain": CompileOptions(fuse_dispatches=False, alias=False),
}
RTOL = {"cpu": 1e-5, "wgpu": 2e-4}
Wanted = list[tuple[Any, Any]]


def judged(graph: Graph, feeds: dict[str, Any]) -> Wanted:
    """Value and error scale of every output."""
    values = evaluate(graph, feeds)
    scales = magnitudes(graph, values)
    return [(values[i], scales[i]) for i in graph.output_ids]


def check(on: Device, graph: Graph, feeds: dict[str, Any], wanted: Wanted, which: str) -> list[Any]:
    """Run the graph on the device, compare with the reference, and return the device's values."""
    got = owner().call(lambda: plans.run(on, graph, feeds, "training", OPTIONS[which]))
    for i, (a, (want, m)) in enumerate(zip(got, wanted, strict=True)):
        failure = compare(a, want, m, RTOL[on.info.kind])
        node = graph.node(graph.output_ids[i])
        assert failure is None, f"output {i}, %{node.id} = {node.op}, {which}: {failure}\n{graph}"
    return got


def cases(graphs: int) -> list[Any]:
    return [pytest.param(range(i, i + BATCH), id=f"{i}-{i + BATCH - 1}") for i in range(0, graphs, BATCH)]


@pytest.mark.parametrize("seeds", cases(GRAPHS))
def test_values_and_gradients_on_cpu(seeds: range) -> None:
    cpu = device("cpu")
    for seed in seeds:
        graph = differentiate(random_graph(seed, scalar_loss=True, every_op=True))[0]
        feeds = random_feeds(graph, seed)
        wanted = judged(graph, feeds)
        got = {which: check(cpu, graph, feeds, wanted, which) for which in OPTIONS}
        for a, b in (("fused, aliased", "fused"), ("aliased", "plain")):
            assert [x.tobytes() for x in got[a]] == [x.tobytes() for x in got[b]], f"seed {seed}: {a} and {b}"


@pytest.mark.parametrize("seeds", cases(count(50, 150)))
def test_values_and_gradients_on_wgpu(seeds: range) -> None:
    needs("wgpu")
    gpu = device("wgpu")
    for seed in seeds:
        graph = differentiate(random_graph(seed, scalar_loss=True, every_op=True))[0]
        feeds = random_feeds(graph, seed)
        wanted = judged(graph, feeds)
        for which in ("fused, aliased", *(("plain",) if seed % 5 == 0 else ())):
            check(gpu, graph, feeds, wanted, which)


def test_random_graphs_hold_ops_of_every_table() -> None:
    """An op that no random graph holds is judged by the tests of single ops alone."""
    held = {node.op for seed in range(GRAPHS) for node in random_graph(seed, scalar_loss=True, every_op=True)}
    for name in ("exp", "log", "recip", "div", "sqrt", "rsqrt", "square", "pow", "pow_scalar", "concat", "embedding",
                 "softmax", "causal_attention", "rope", "layer_norm", "cross_entropy_loss", "max"):  # fmt: skip
        assert name in held, name


def test_random_graphs_share_values_and_have_several_outputs() -> None:
    graphs = [random_graph(seed, scalar_loss=True, every_op=True) for seed in range(40)]
    assert all(5 <= len(g) <= 80 for g in graphs)
    assert sum(len(g.outputs) > 2 for g in graphs) > 20
    readers = [np.bincount([i for n in g for i in n.inputs], minlength=len(g)).max() for g in graphs]
    assert np.median(readers) >= 3
