"""Groups: the calls that made the nodes, runs of calls that are alike, carried through every pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

from documents import checked
from nested_calls import network

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.document.groups import groups_of
from gdlab.view.document.make import graph_doc


def path(document: Document, stage: Any, node: int) -> list[str]:
    """The labels of the groups around a node, outermost first."""
    groups = document.stage(stage)["groups"]
    label = groups["label"]
    at, found = document.nodes(stage).column("group")[node], []
    while at >= 0:
        found.append(label["words"][label["index"][at]])
        at = groups["parent"][at]
    return found[::-1]


def test_three_calls_alike_are_a_series_and_two_are_not() -> None:
    kinds = {n: Counter((g.label, g.kind) for g in groups_of(network(n)).rows) for n in (2, 3)}
    assert kinds[2] == {("block", "call"): 2, ("half", "call"): 4, ("wide", "call"): 1}
    assert kinds[3] == {("block", "series"): 1, ("block", "call"): 3, ("half", "call"): 6, ("wide", "call"): 1}
    assert [g.repeat for g in groups_of(network(3)).rows if g.kind == "series"] == [3]


def test_every_node_lies_in_the_calls_that_made_it() -> None:
    document = checked(graph_doc(network(4)))
    nodes = document.nodes(0)
    for i, node in enumerate(nodes):
        inside = path(document, 0, i)
        name = node["name"]
        if name.startswith("b"):
            assert inside == ["block", "block", "half"], name
        elif name in ("x", "y") or node["op"] == "mse_loss":
            assert inside == []
    calls = Counter(nodes.column("group"))
    assert sorted(calls.values()) == [1] * 4 + [3] + [4] + [5] * 8


def test_parents_come_first_and_groups_are_carried_to_every_stage() -> None:
    document = checked(Study(network(4), train=True, device="cpu").doc)
    for stage in document.data["stages"]:
        parents = stage["groups"]["parent"]
        assert all(p < i for i, p in enumerate(parents)) and stage["groups"]["count"] == len(parents) == 14
        nodes = document.nodes(stage["key"])
        twins = [(i, n["twin"]) for i, n in enumerate(nodes) if n["lane"] == "adjoint" and n["twin"] >= 0]
        same = [path(document, stage["key"], i) == path(document, stage["key"], t) for i, t in twins]
        assert sum(same) >= 0.8 * len(same)


def test_a_graph_of_one_function_or_of_none_has_no_groups() -> None:
    def whole() -> Graph:
        with Graph() as g:
            g.set_outputs(ops.relu(ops.tanh(ops.input("x", (4, 8)))))
        return g

    assert groups_of(whole()).rows == ()
    document = checked(graph_doc(whole()))
    assert document.data["stages"][0]["groups"]["count"] == 0
