"""Long runs of equal ops are series of a graph: chains, parallel branches, periods of several ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import view_networks
from documents import checked

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.groups import groups_of


def alternating() -> Graph:
    """Chains of two ops, of which one breaks the period in the middle."""
    with Graph() as g:
        h = ops.input("x", (4, 8))
        for i in range(60):
            h = ops.sigmoid(h) if i == 30 else ops.relu(ops.tanh(h))
        g.output(h)
    return g


def nested() -> Graph:
    """Calls alike, in each of which an op is repeated."""

    def part(h):
        for _ in range(20):
            h = ops.tanh(h)
        return ops.relu(h)

    with Graph() as g:
        h = ops.input("x", (4, 8))
        for _ in range(4):
            h = part(h)
        g.output(h)
    return g


RUNS: dict[Callable[[], Graph], list[tuple[int, str, int]]] = {
    view_networks.long_chain: [(-1, "tanh", 1500)],
    view_networks.branches: [(-1, "tanh", 1500)],
    view_networks.input_read_often: [(-1, "tanh, mul, add", 1000)],
    view_networks.deep_mlp: [(-1, "matmul … relu", 60)],
    alternating: [(-1, "tanh, relu", 30), (-1, "tanh, relu", 29)],
    view_networks.unrolled_gru: [(-1, "matmul … add", 3)],
    lambda: view_networks.unrolled_gru(9): [(-1, "matmul … add", 9)],
    nested: [(-1, "part", 4), *[(i, "tanh", 20) for i in range(1, 5)]],
    lambda: view_networks.long_chain(50): [],
    lambda: view_networks.deep_mlp(7): [],
}


@pytest.mark.parametrize("make", RUNS)
def test_runs_of_equal_ops_are_series(make: Callable[[], Graph]) -> None:
    graph = make()
    groups = groups_of(graph)
    found = [(row.parent, row.label, row.repeat) for row in groups.rows if row.kind == "series"]
    assert found == RUNS[make]
    for g, (parent, _, repeat) in enumerate((row.parent, row.label, row.repeat) for row in groups.rows):
        members = [node for node in graph if node.inputs and groups.of_node[node.id] == g]
        if groups.rows[g].kind == "series" and members:
            assert parent < g and len(members) % repeat == 0


def test_a_run_is_carried_to_every_stage_and_to_adjoints() -> None:
    document = checked(Study(view_networks.long_chain(100), train=True, device="cpu").doc)
    for stage in document.data["stages"]:
        nodes = document.nodes(stage["key"])
        tanh = [g for g, op in zip(nodes.column("group"), nodes.column("op"), strict=True) if op == "tanh"]
        assert set(tanh) == {0} and len(tanh) == 100
        adjoints = [node["group"] for node in nodes if node["lane"] == "adjoint" and node["twin"] >= 0]
        assert not adjoints or adjoints.count(0) > 200
