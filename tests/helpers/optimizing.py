"""Graphs to optimize, rules to provoke the optimizer with, and the laws that every call of it must keep."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structure import same_structure

import gdlab.ops as ops
from gdlab.autodiff import differentiate
from gdlab.graph import Graph, Value, reachable
from gdlab.graph.replay import SWEEP, _state, replay
from gdlab.op import Phase
from gdlab.op.cost import Cost, contraction_flops, roofline
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.rewrite import RULES, Matrix, OptimizeReport, Rewrite, rule
from gdlab.rewrite.engine import saturate as egraph

MANY = int(os.environ.get("GDLAB_GRAPHS", "36"))  # random graphs per law; `make laws` asks for 300
PHASES: tuple[Phase, ...] = ("forward", "full", "inference")


def p(name: str, *shape: int) -> Value:
    return ops.parameter(name, shape)


def graph_of(make: Callable[[], Any]) -> Graph:
    with Graph() as g:
        made = make()
        g.set_outputs(made if isinstance(made, (dict, list)) else [made])
    return g


def count(graph: Graph, op: str) -> int:
    return sum(n.op == op for n in graph)


def mlp_with_gate() -> Graph:
    with Graph() as g:
        x, labels = ops.input("x", (8, 6)), ops.input("labels", (8, 5))
        w1, b1, w2, b2, u = p("w1", 6, 7), p("b1", 7), p("w2", 7, 5), p("b2", 5), p("u", 8, 5)
        h = ops.relu(x @ w1 + b1).named("h")
        z = (h @ w2 + b2).named("z")
        gated = (z * ops.sigmoid(z) * u).named("gated")
        g.set_outputs({"loss": ops.cross_entropy_loss(gated, labels), "z": z})
    return g


def transformer(layers: int, *, train: bool = False) -> Graph:
    """Layers in primitives: norms, attention, a gate: what a person writes."""
    with Graph() as g:
        h = ops.input("x", (16, 8))
        for i in range(layers):
            a = norm(h, p(f"n{i}", 8))
            q, k, v = (a @ p(f"w{c}{i}", 8, 8) for c in "qkv")
            h = h + ops.softmax((q @ k.T) * 0.25) @ v @ p(f"wo{i}", 8, 8)
            a = norm(h, p(f"m{i}", 8))
            gate, up = a @ p(f"wg{i}", 8, 16), a @ p(f"wu{i}", 8, 16)
            h = h + (gate * ops.sigmoid(gate) * up @ p(f"wd{i}", 16, 8) + p(f"b{i}", 8))
        g.set_outputs(ops.mean_all(ops.square(h)))
    return differentiate(g)[0] if train else g


def norm(x: Value, w: Value) -> Value:
    return x * ops.rsqrt((x * x).mean((1,), True) + 1e-5) * w


def check_equal(graph: Graph, result: Graph, feeds: dict[str, Any], rtol: float = 1e-11) -> None:
    """Outputs in number, order, names, types and values."""
    want, got = evaluate(graph, feeds), evaluate(result, feeds)
    m = magnitudes(graph, want)
    assert result.output_names == graph.output_names
    assert result.num_param_grad_outputs == graph.num_param_grad_outputs
    for i, (a, b) in enumerate(zip(graph.output_ids, result.output_ids, strict=True)):
        assert graph.node(a).type == result.node(b).type
        problem = compare(got[b], want[a], m[a], rtol)
        assert problem is None, (i, problem)


def tolerance(report: OptimizeReport) -> float:
    """Ten times what the boldest rule used allows: some put constants in float32 in the place of others."""
    used = [r.rtol for r in RULES if any(r.label == label for label, _ in report.rules_fired)]
    return 10 * max([1e-12, *used])


def check_laws(
    graph: Graph, result: Graph, report: OptimizeReport, feeds: dict[str, Any], price: Cost = roofline,
    at_most: int = 1_000_000,
) -> None:  # fmt: skip
    """Check the laws of every call: values, order, interface, costs, counts, and every prefix of the replay; of more
    than `at_most` steps as many are replayed and evaluated."""
    check_equal(graph, result, feeds, tolerance(report))
    live = reachable(result, result.output_ids)
    assert all(live[n.id] or n.op in ("input", "parameter") for n in result)
    assert [n.name for n in result.inputs] == [n.name for n in graph.inputs]
    assert [n.name for n in result.parameters] == [n.name for n in graph.parameters]
    types = [n.type for n in result]
    spent = math.fsum(
        price(n.op, n.attrs, n.type, tuple(types[i] for i in n.inputs)) for n in result if live[n.id]
    )
    assert report.cost_after == pytest.approx(spent, abs=1e-6) and report.cost_after <= report.cost_before
    assert heavy(result) <= heavy(graph)
    assert (report.nodes_before, report.nodes_after) == (len(graph), len(result))
    assert (report.extraction_failures, report.shape_conflicts) == (0, 0)
    assert report.steps[-1].rule == SWEEP and all(s.rule != SWEEP for s in report.steps[:-1])
    assert Counter(s.label for s in report.steps[:-1]) == dict(report.rules_fired)
    assert Counter(label for label, _ in report.fusions_applied) == dict(report.rules_fired)
    for r in report.rules:
        assert r.matched >= r.fired >= r.created >= r.used or r.id == "cse", r
    check_replay(graph, result, report, feeds, at_most)
    check_maps(graph, result, report, feeds)


def heavy(graph: Graph) -> int:
    types = [n.type for n in graph]
    live = reachable(graph, graph.output_ids)
    return sum(contraction_flops(n.op, n.attrs, n.type, tuple(types[i] for i in n.inputs)) for n in graph if live[n.id])


def check_replay(
    graph: Graph, result: Graph, report: OptimizeReport, feeds: dict[str, Any], at_most: int = 1_000_000
) -> None:
    last = len(report.steps) - 1
    sampled = {round(i * last / max(at_most - 1, 1)) for i in range(at_most)} if last >= at_most else range(last + 1)
    assert same_structure(replay(graph, report.steps, 0), graph)
    assert same_structure(replay(graph, report.steps), result)
    assert replay(graph, report.steps).fingerprint() == result.fingerprint()
    present, costs = set(range(len(graph))), [report.cost_before]
    for k, step in enumerate(report.steps):
        assert all(node.id >= len(graph) and node.id not in present for node in step.added)
        present |= {node.id for node in step.added}
        assert set(step.at) | set(step.bindings.values()) <= present
        assert step.cost_before == pytest.approx(costs[-1])
        costs.append(step.cost_after)
        present -= set(step.removed)
        assert step.rule == SWEEP or step.rewired or {node.id for node in step.added} != set(step.removed), step
        if k not in sampled:
            continue
        middle = replay(graph, report.steps, k + 1)
        assert set(_state(graph, report.steps, k + 1)[3]) == present
        assert all(i < node.id for node in middle for i in node.inputs)
        check_equal(graph, middle, feeds, tolerance(report))
    assert costs[-1] == report.cost_after


def check_maps(graph: Graph, result: Graph, report: OptimizeReport, feeds: dict[str, Any]) -> None:
    want, got = evaluate(graph, feeds), evaluate(result, feeds)
    m = magnitudes(graph, want)
    assert set(report.node_map) == set(range(len(graph))) and set(report.origin) == set(range(len(result)))
    for old, new in report.node_map.items():
        if new is not None:
            assert compare(got[new], want[old], m[old], tolerance(report)) is None
            assert old in report.origin[new]
    live = reachable(graph, graph.output_ids)
    reached = set(itertools.chain.from_iterable(report.origin.values()))
    assert [n.id for n in graph if live[n.id] and n.id not in reached] == []
    for new, olds in report.origin.items():
        assert olds and len(set(olds)) == len(olds)
        assert all(report.node_map[old] in (None, new) for old in olds[1:])
    for new, id in enumerate(report.steps[-1].order):
        if id < len(graph):  # kept as it was
            assert report.origin[new][0] == id and result.node(new).op == graph.node(id).op


# rules that no table should hold --------------------------------------------------------------------------------------
def odd_rules() -> Iterator[None]:
    """Rules that lead into cycles and out again, with sides that no sensible cost prefers."""

    @rule
    def neg_in(a: Value, b: Value) -> Rewrite:
        return ops.neg(a + b) >> ops.neg(a) + ops.neg(b)  # type: ignore[no-any-return]

    @rule
    def neg_out(a: Value, b: Value) -> Rewrite:
        return ops.neg(a) + ops.neg(b) >> ops.neg(a + b)  # type: ignore[no-any-return]

    @rule
    def sub_swapped(a: Value, b: Value) -> Rewrite:
        return a - b >> ops.neg(b - a)  # type: ignore[no-any-return]

    @rule
    def tanh_is_odd(a: Value) -> Rewrite:
        return ops.tanh(a) >> ops.neg(ops.tanh(ops.neg(a)))  # type: ignore[no-any-return]

    @rule
    def relu_twice(a: Value) -> Rewrite:
        return ops.relu(a) >> ops.relu(ops.relu(a))  # type: ignore[no-any-return]

    @rule
    def transpose_of_product(x: Matrix, y: Matrix) -> Rewrite:
        return ops.transpose(x @ y) >> ops.transpose(y) @ ops.transpose(x)  # type: ignore[no-any-return]

    names = ("neg_in", "neg_out", "sub_swapped", "tanh_is_odd", "relu_twice", "transpose_of_product")
    yield
    for name in names:
        RULES.remove(name)


def association() -> Iterator[None]:
    """A rule that lets any graph with long sums explode."""

    @rule(safety="reassoc")
    def assoc_add(x: Value, y: Value, z: Value) -> Rewrite:
        """x + (y + z) is (x + y) + z."""
        return x + (y + z) >> x + y + z

    yield
    RULES.remove("assoc_add")


def run_alone(report: OptimizeReport) -> tuple[int, int]:
    """E-nodes and e-classes that egglog finds when it reads the program of a report."""
    found: list[tuple[int, int]] = []

    def alone() -> None:
        bindings = egraph._bindings()
        graph = bindings.EGraph()
        graph.run_program(*graph.parse_program(report.egglog_program))
        tables = graph.freeze().functions
        rows = [r for name in tables if name.startswith("o_") or name == "Leaf" for r in tables[name].rows]
        found.append((len(rows), len({r.output for r in rows})))

    thread = threading.Thread(target=alone)  # its objects are bound to it
    thread.start()
    thread.join()
    return found[0]
