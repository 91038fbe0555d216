"""The report of `optimize`: what happened, in numbers and words, and why not more."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from typing import Any

import pytest
from optimizing import (
    check_laws,
    graph_of,
    mlp_with_gate,
    p,
    transformer,
)
from random_graphs import random_feeds

import gdlab.ops as ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, OptimizeError
from gdlab.graph import Graph, Value
from gdlab.graph.replay import replay
from gdlab.rewrite import RULES, OptimizeReport, optimize

# the report -----------------------------------------------------------------------------------------------------------
GOLDEN = """\
=== Optimization Report ===
Egglog saturation: 3.1ms (18 e-classes, 30 e-nodes)
Rules fired:
  Add+BroadcastTo→BiasAdd  x2
  MatMul+BiasAdd→FusedMatMulAdd  x2
  Mul+Sigmoid→Silu  x1
  Silu+Mul→SwiGLU  x1
Graph: 18 nodes -> 12 active nodes (6 fused away)
Fusions: Add+BroadcastTo→BiasAdd @node9, MatMul+BiasAdd→FusedMatMulAdd @node9, Add+BroadcastTo→BiasAdd @node13, \
MatMul+BiasAdd→FusedMatMulAdd @node13, Mul+Sigmoid→Silu @node15, Silu+Mul→SwiGLU @node16
Extract time: 0.2ms"""


def timeless(report: OptimizeReport) -> OptimizeReport:
    rules = tuple(dataclasses.replace(r, seconds=0.0) for r in report.rules)
    rounds = tuple(dataclasses.replace(i, seconds=0.0) for i in report.iterations)
    return dataclasses.replace(report, egglog_time=0.0031, extract_time=0.0002, rules=rules, iterations=rounds)


def test_the_report_reads_as_agreed() -> None:
    report = timeless(optimize(mlp_with_gate(), phase="forward")[1])
    assert str(report) == GOLDEN
    text = report.to_text()
    assert text.startswith(GOLDEN + "\nPhase: forward  Engine: egglog  Stop: saturated (3 iterations)\n")
    assert re.search(r"^Cost: 39\.\d -> 21\.\d us \(roofline\)$", text, re.M)
    assert re.search(r"^rule +tag +matched +created +used +ms$", text, re.M)
    assert re.search(r"^Mul\+Sigmoid→Silu +rounding +1 +1 +1 +0$", text, re.M)
    assert repr(report) == "<OptimizeReport: forward, 18 -> 12 nodes, 6 rewrites, saturated>"


def test_a_report_where_nothing_happened_leaves_its_lists_out() -> None:
    graph = graph_of(lambda: ops.tanh(p("x", 3)))
    report = timeless(optimize(graph, phase="forward")[1])
    assert str(report).split("\n")[2:] == ["Graph: 2 nodes -> 2 active nodes (0 fused away)", "Extract time: 0.2ms"]
    assert [r.matched for r in report.rules] == [0] * len(RULES)
    assert len(report.rules) == len(RULES)


def test_missed_lines_name_rule_node_and_reason() -> None:
    report = optimize(mlp_with_gate(), phase="forward", disable=("fuse_swiglu",))[1]
    node = report.missed[0].node
    line = f"  Silu+Mul→SwiGLU @node{node}: disabled (it was switched off)"
    assert report.to_text().split("\n")[-2:] == ["Missed:", line]


def test_the_empty_report() -> None:
    report = OptimizeReport.empty()
    assert (report.stop_reason, report.nodes_before, report.rules) == ("cache-hit", 0, ())
    assert "Graph: 0 nodes -> 0 active nodes (0 fused away)" in str(report)


def test_a_training_build_joins_both_reports() -> None:
    graph = mlp_with_gate()
    forward, first = optimize(graph, phase="forward")
    full, _ = differentiate(forward)
    _, second = optimize(full, phase="full")
    both = first.merge(second)
    assert both.phases == (first, second)
    assert both.nodes_before == second.nodes_before + 18 - 12 and both.nodes_after == second.nodes_after
    assert Counter(dict(both.rules_fired)) == Counter(dict(first.rules_fired)) + Counter(dict(second.rules_fired))
    assert both.fusions_applied == first.fusions_applied + second.fusions_applied
    assert both.cost_after == second.cost_after


def test_the_report_as_json_holds_everything() -> None:
    report = optimize(mlp_with_gate(), phase="forward")[1]
    plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert plain["rules_fired"][0] == ["Add+BroadcastTo→BiasAdd", 2]
    step = plain["steps"][-2]
    assert step["label"] == "Silu+Mul→SwiGLU" and step["at"] == [16] and step["added"][0]["op"] == "swiglu"
    assert plain["steps"][-1]["order"][-1] == 17
    assert plain["sources"]["neg_neg"]["text"].startswith("@rule(")
    asked = {"program", "near", "asked"}  # what answers only when asked
    assert set(plain) >= {f.name for f in dataclasses.fields(report)} - asked | {"missed"}
    assert plain["origin"]["10"] == [16, 14, 15]
    told = optimize(mlp_with_gate(), phase="forward", history=True)[1].to_json()["classes"]
    swiglu = next(way for c in json.loads(json.dumps(told)) for way in c["ways"] if way["op"] == "swiglu")
    assert swiglu["chosen"] and swiglu["more"] == 0 and swiglu["cost"] > 0


def test_iterations_and_times_are_told() -> None:
    report = optimize(transformer(2), phase="forward")[1]
    assert report.stop_reason == "saturated" and report.stop_detail == ""
    assert [i.enodes for i in report.iterations] == sorted(i.enodes for i in report.iterations)
    assert report.iterations[-1].enodes == report.num_enodes >= report.num_eclasses == report.iterations[-1].eclasses
    assert report.egglog_time > 0 and report.extract_time > 0
    assert {s.iteration for s in report.steps} <= {None, 1, 2, 3} and {s.iteration for s in report.steps} != {None}


def test_replay_refuses_a_step_that_is_not_there() -> None:
    graph = mlp_with_gate()
    steps = optimize(graph, phase="forward")[1].steps
    with pytest.raises(ArgumentError, match="wanted 0 … 7"):
        replay(graph, steps, 8)


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
@pytest.mark.parametrize("form", ["x·(σ·x)", "x·(x·σ)", "x·x·σ", "x·x·σ, written out", "differentiated"])
def test_every_step_changes_something(form: str, engine: Any) -> None:
    # x·(Sigmoid·u)→Silu·u at x · (σ(x) · x) made a silu that nothing read: cost 9 → 9
    with Graph() as graph:
        x = ops.parameter("x", (4, 4))
        s = ops.recip(ops.exp(-x) + 1.0) if "written" in form else ops.sigmoid(x)
        y = x * (s * x) if form == "x·(σ·x)" else x * (x * s) if form == "x·(x·σ)" else x * x * s
        graph.set_outputs(ops.mean_all(y) if form == "differentiated" else y)
    if form == "differentiated":
        graph = differentiate(graph)[0]
    result, report = optimize(graph, phase="full", engine=engine)
    check_laws(graph, result, report, random_feeds(graph, 3))  # of every step as well
    if form != "differentiated":
        assert [n.op for n in result] == ["parameter", "swiglu"]
        costs = [step.cost_after for step in report.steps[:-1]]
        assert costs == sorted(set(costs), reverse=True), report.steps


def test_a_step_whose_nodes_nothing_reads_is_left_out() -> None:
    # silu is dear and σ(x) · x is an output: swiglu stands on a silu that takes nobody's place
    def dear(op: str, attrs: Any, type: Any, operands: Any) -> float:
        return {"silu": 100.0, "swiglu": 0.5, "parameter": 0.0}.get(op, 1.0)

    with Graph() as graph:
        x = ops.parameter("x", (4, 4))
        inner = ops.sigmoid(x) * x
        graph.set_outputs({"inner": inner, "outer": x * inner})
    result, report = optimize(graph, phase="forward", cost=dear)
    assert all(step.rewired or step.removed != tuple(n.id for n in step.added) for step in report.steps[:-1])
    check_laws(graph, result, report, random_feeds(graph, 3), dear)


def test_rules_that_worked_took_time() -> None:
    for engine in ("egglog", "fallback"):
        report = optimize(transformer(2), phase="forward", engine=engine)[1]  # type: ignore[arg-type]
        spent = {r.id: r.seconds for r in report.rules if r.matched and r.id not in ('cse', 'fold_constant')}
        assert spent and all(seconds > 0 for seconds in spent.values()), engine
        whole = sum(i.seconds for i in report.iterations)
        assert sum(spent.values()) <= whole <= report.egglog_time


def test_all_rules_off_is_off() -> None:
    graph = mlp_with_gate()
    report = optimize(graph, phase="forward", only=("cse",))[1]
    assert (report.stop_reason, report.stop_detail) == ("off", "no rule takes part")
    left = OptimizeReport.off(18, "full")
    assert (left.stop_reason, left.nodes_before, left.nodes_after, left.phase) == ("off", 18, 18, "full")


# why, and why not -----------------------------------------------------------------------------------------------------
def test_why_tells_the_chain_of_rewrites_that_made_a_node() -> None:
    graph = mlp_with_gate()
    result, report = optimize(graph, phase="forward")
    for node in (10, "gated", result.nodes[10], Value(result, 10)):
        answer = report.why(node)
        assert [s.label for s in answer.steps] == ["Mul+Sigmoid→Silu", "Silu+Mul→SwiGLU"]
    assert str(answer) == repr(answer) == (
        "%10 swiglu 'gated' was made by 2 rewrites:\n"
        "  1. Mul+Sigmoid→Silu at %15: 27 -> 24 µs\n"
        "  2. Silu+Mul→SwiGLU at %16: 24 -> 21 µs"
    )
    assert str(report.why("h")) == "%8 relu 'h' is as it was written: no rewrite made it."
    for bad in (12, -1, "nobody", 1.5, True):
        with pytest.raises(OptimizeError, match="an id 0 … 11 or a name of the result"):
            report.why(bad)


def test_why_not_of_two_neighbours() -> None:
    def make() -> list[Value]:
        product = p("a", 4, 2) @ p("b", 2, 4)
        return [product + p("c", 4, 4), ops.tanh(product)]

    report = optimize(graph_of(make), phase="forward")[1]
    answer = report.why_not(2, 4)
    assert answer.missed == (report.missed[0],)
    assert answer.text.split("\n")[0] == "MatMul+Add→FusedMatMulAdd was not used at %4: %2 is read by %5 too."
    assert str(report.why_not(4, 2)) == str(answer)
    assert str(report.why_not(0, 4)) == "%0 parameter 'a' and %4 add are no neighbours: neither reads the other."
    assert str(report.why_not(2, 5)) == "No rule joins matmul and tanh."


def test_why_not_names_the_first_part_of_a_pattern_that_failed() -> None:
    graph = graph_of(lambda: ops.neg(p("x", 3)) * ops.sigmoid(p("y", 3)))
    report = optimize(graph, phase="forward")[1]
    assert "Mul+Sigmoid→Silu" in str(report.why_not(3, 4))
    assert "which the pattern names twice" in str(report.why_not("fuse_silu"))


def test_why_not_of_a_rule() -> None:
    report = optimize(mlp_with_gate(), phase="forward", disable=("fuse_swiglu",))[1]
    missed = next(m for m in report.missed if m.label == "Silu+Mul→SwiGLU")
    assert str(report.why_not("fuse_swiglu")) == str(report.why_not("Silu+Mul→SwiGLU")) == missed.text
    assert str(report.why_not("fuse_silu")) == "Mul+Sigmoid→Silu was used at %15."
    assert str(report.why_not("neg_neg")) == "Neg∘Neg→x found no neg in the graph."
    exact = optimize(mlp_with_gate(), phase="forward", allow="exact")[1]
    assert "it is tagged rounding, exact is allowed" in str(exact.why_not("fuse_silu"))
    with pytest.raises(OptimizeError, match="given 'fuse_sil', wanted the id or label of a rule"):
        report.why_not("fuse_sil")
    with pytest.raises(OptimizeError, match="a report without a graph"):
        OptimizeReport.empty().why(0)


def test_why_not_answers_for_every_rule_and_every_pair() -> None:
    with Graph() as g:
        x, w, b = ops.input("x", (3, 4)), ops.parameter("w", (4, 5)), ops.parameter("b", (5,))
        h = x @ w
        g.set_outputs([h, h + b, ops.relu(h + b)])  # a bias that no product takes: `bias_add_opened` stands there
    result, report = optimize(g, phase="forward")
    assert "bias_add" in [n.op for n in result]
    for r in RULES:
        assert str(report.why_not(r.name))
    for a in result.nodes:
        assert str(report.why(a.id))
        for b_id in (n.id for n in result.nodes if n.id in a.inputs):
            assert str(report.why_not(b_id, a.id))


def test_near_misses_are_those_of_the_result_as_it_was() -> None:
    """They are looked for when first asked for, and what people append to the result meanwhile does not count."""
    with Graph() as g:
        x, b = ops.input("x", (3, 4)), ops.input("b", (4, 1))
        g.set_outputs([x.T + ops.broadcast_to(b, (4, 3))])
    result, report = optimize(g, phase="full")
    again = optimize(g, phase="full")[1].missed
    value = result.outputs[0]
    for _ in range(3):
        value = value + ops.broadcast_to(result.value(result.leaf("b").id), (4, 3))  # type: ignore[union-attr]
    result.set_outputs([value])
    assert [m.text for m in report.missed] == [m.text for m in again] != []
    assert report.missed is report.missed
