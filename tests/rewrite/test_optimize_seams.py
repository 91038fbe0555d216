"""Meetings of parts of the optimizer: recognition and sharing, folding and infinity, reports that travel, bad rules."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_forms import MASKED, heads, keys_first
from optimizing import check_laws, count, graph_of, mlp_with_gate, p, run_alone
from random_graphs import random_feeds

import gdlab.ops as ops
from gdlab.base.errors import OptimizeError, UnknownNameError
from gdlab.graph import Graph, Value
from gdlab.op import Phase
from gdlab.op.storage import derived_parameters
from gdlab.rewrite import RULES, Budget, OptimizeReport, Rewrite, optimize, rule
from gdlab.rewrite.rules.compositions import attr_compose
from gdlab.rewrite.rules.conditions import shape_eq, single_use

engines = pytest.mark.parametrize("engine", ["egglog", "fallback"])


def lawful(graph: Graph, engine: Any, phase: Phase = "forward", **options: Any) -> tuple[Graph, OptimizeReport]:
    """The result and its report, by all laws; there is no more to gain in it."""
    result, report = optimize(graph, phase=phase, engine=engine, **options)
    check_laws(graph, result, report, random_feeds(graph, 0), at_most=4)
    again = optimize(result, phase=phase, engine=engine, **options)[1]
    assert again.cost_after == report.cost_after, again.rules_fired
    return result, report


# recognition where parts are read elsewhere ---------------------------------------------------------------------------
@engines
@pytest.mark.parametrize("form", ["rows scaled", "keys scaled"])
def test_any_part_of_attention_may_be_read_elsewhere(form: str, engine: Any) -> None:
    """Of a class that rules alone made, the e-node was taken that stands on the very step that asked for it."""
    found = 0
    for inner in range(3, 17):
        graph = graph_of(lambda: keys_first(form))
        graph.set_outputs([*graph.outputs, graph.value(inner)])
        found += count(lawful(graph, engine)[0], "causal_attention")
    assert found >= 8


# factors --------------------------------------------------------------------------------------------------------------
@engines
def test_factors_of_both_operands_meet(engine: Any) -> None:
    def scaled(query: float, key: float, score: float) -> Value:
        return ops.softmax((p("q", 5, 16) * query) @ (p("k", 5, 16) * key).T * score) @ p("v", 5, 16)

    for factors in ((0.5, 0.5, 1.0), (0.5, 1.0, 0.5), (1.0, 0.5, 0.5), (0.5, 0.25, 2.0)):
        result, _ = lawful(graph_of(lambda: scaled(*factors)), engine)  # noqa: B023
        assert count(result, "full_attention") == 1 and count(result, "scale") == 0, factors
    assert count(lawful(graph_of(lambda: scaled(0.5, 0.5, 2.0)), engine)[0], "full_attention") == 0


@engines
def test_a_factor_that_comes_out_of_a_product_meets_the_next(engine: Any) -> None:
    def nested() -> list[Value]:
        x = p("x", 3, 4)
        return [x + (x * 0.044715 * x) * 0.5, ops.square(x).sin()]

    result, _ = lawful(graph_of(nested), engine, phase="inference")
    assert count(result, "scale") == 1


# folding --------------------------------------------------------------------------------------------------------------
@engines
@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_what_is_not_finite_is_folded_to_its_shape(value: float, engine: Any) -> None:
    """A fill of ±inf gave a NaN of one element for a tensor of any shape."""

    def made() -> list[Value]:
        low = ops.full((2, 3), value)
        return [ops.neg(low), ops.sin(low), low * 0, ops.where(ops.constant(np.eye(3)[:2]), low + low, p("x", 2, 3))]

    result, _ = lawful(graph_of(made), engine)
    assert [v.shape for v in result.outputs] == [(2, 3)] * 4
    folded = [np.broadcast_to(n.attr("data").array, (2, 3)) for n in result if n.op == "constant" and n.type.rank == 2]
    assert any(np.isnan(data).all() for data in folded)
    large, _ = optimize(graph_of(lambda: ops.sin(ops.full((300, 300), value))), phase="forward", engine=engine)
    assert large.outputs[0].node.op == "sin"  # NaN is no fill, and 90,000 of them are no constant


def test_constants_behind_stop_gradient_are_folded_once_it_goes() -> None:
    graph = graph_of(lambda: ops.stop_gradient(ops.constant([1.0, 2.0])).neg().exp() * p("x", 2))
    result, _ = lawful(graph, "egglog", "full")
    assert [n.op for n in result if n.inputs] == ["mul"]
    assert count(lawful(graph, "egglog", "forward")[0], "stop_gradient") == 1
    kept = optimize(graph, phase="full", disable="StopGradient→x")[0]
    assert [n.op for n in kept if n.inputs] == ["stop_gradient", "neg", "exp", "mul"]


@engines
def test_one_weight_for_gate_and_up_is_no_pack(engine: Any) -> None:
    graph = graph_of(lambda: ops.swiglu(p("h", 3, 4) @ p("w", 4, 5), p("h", 3, 4) @ p("w", 4, 5)))
    for cost in ("roofline", "ast_size"):
        result, report = optimize(graph, phase="forward", engine=engine, cost=cost)
        assert [n.op for n in result if n.inputs] == ["matmul", "swiglu"] and not derived_parameters(result)
        assert [(m.reason, m.detail) for m in report.missed] == [("weight_shared", "gate and up are both %1")]


# reports that travel --------------------------------------------------------------------------------------------------
def test_a_report_can_be_pickled_and_copied_before_and_after_it_was_read() -> None:
    report = optimize(mlp_with_gate(), phase="forward", history=True)[1]
    sent = pickle.loads(pickle.dumps(report))
    assert copy.copy(report) is report and copy.deepcopy(report) is report
    assert json.dumps(sent.to_json()) == json.dumps(report.to_json())
    assert sent.to_text() == report.to_text() and sent.steps == report.steps and sent == report
    both = pickle.loads(pickle.dumps(sent.merge(sent)))
    assert json.dumps(both.to_json()) == json.dumps(report.merge(report).to_json())
    with pytest.raises(OptimizeError, match="report: question: given a report without a graph"):
        sent.why(0)
    assert pickle.loads(pickle.dumps(OptimizeReport.empty())) == OptimizeReport.empty()


def test_a_value_of_another_graph_is_not_taken_for_one_of_the_result() -> None:
    graph = mlp_with_gate()
    result, report = optimize(graph, phase="forward")
    for name in ("gated", "z"):
        new = next(v for v in map(result.value, range(len(result))) if v.name == name)
        assert str(report.why(new)) == str(report.why(new.id)) == str(report.why(name)) == str(report.why(new.node))
        old = next(v for v in map(graph.value, range(len(graph))) if v.name == name)
        with pytest.raises(OptimizeError, match="report: node: given"):
            report.why(old)
    low = next(n for n in graph if n.op == "matmul")
    with pytest.raises(OptimizeError, match="of the result"):
        report.why_not(graph.value(low.id), result.outputs[0])


# faults of what people hand over --------------------------------------------------------------------------------------
def test_a_cost_that_raises_says_of_what() -> None:
    def price(op: str, *_: Any) -> float:
        return 1 / 0 if op == "silu" else 1.0

    with pytest.raises(OptimizeError, match=r"cost of silu of f32\[8, 5\]: given ZeroDivisionError") as caught:
        optimize(mlp_with_gate(), phase="forward", cost=price)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(OptimizeError, match="given TypeError"):
        optimize(mlp_with_gate(), phase="forward", cost=lambda op: 1.0)  # type: ignore[arg-type, misc]


def test_an_unknown_rule_is_an_unknown_name() -> None:
    graph = mlp_with_gate()
    report = optimize(graph, phase="forward")[1]
    for ask in (
        lambda: optimize(graph, phase="forward", enable=("fuse_matmul_ad",)),
        lambda: optimize(graph, phase="forward", only="fuse_matmul_ad"),
        lambda: report.why_not("fuse_matmul_ad"),
        lambda: RULES.remove("fuse_matmul_ad"),
    ):
        for kind in (OptimizeError, UnknownNameError):
            with pytest.raises(kind, match="given 'fuse_matmul_ad', wanted the id or label of a rule; nearest: fuse_"):
                ask()


def test_what_a_rule_does_wrong_is_told_of_the_rule() -> None:
    def counted(x: Value, c: float) -> Rewrite:
        return ops.scale(x, c) >> ops.scale(x, c + 1)  # type: ignore[no-any-return]

    def divided(x: Value) -> Rewrite:
        return ops.relu(x) >> 1 / 0  # type: ignore[operator, no-any-return]

    def negated(x: Value, y: Value) -> Rewrite:
        return ops.neg(x) + y >> y - x  # type: ignore[no-any-return]

    cases: tuple[tuple[Callable[..., Rewrite], dict[str, Any], str], ...] = (
        (counted, {}, "rule counted: function: given TypeError(\"unsupported operand type(s) for +: 'AttrVar'"),
        (divided, {}, "rule divided: function: given ZeroDivisionError('division by zero')"),
        (negated, {"where": 5}, "rule negated: where: given 5, wanted conditions"),
        (negated, {"samples": 5}, "rule negated: samples: given 5, wanted Sample("),
        (negated, {"where": shape_eq("x", "z")}, "rule negated: shape_eq(x, z): given z, wanted one of x, y"),
    )
    for stated, options, text in cases:
        with pytest.raises(OptimizeError, match=re.escape(text)):
            rule(**options)(stated)
        assert stated.__name__ not in RULES


def test_one_condition_needs_no_tuple() -> None:
    @rule(where=single_use("s"))
    def neg_of_sum(x: Value, y: Value) -> Rewrite:
        return ops.neg((x + y).named("s")) >> ops.neg(x) - y  # type: ignore[no-any-return]

    try:
        assert [str(c) for c in RULES["neg_of_sum"].where] == ["single_use(s)"]
    finally:
        RULES.remove("neg_of_sum")


def test_what_a_condition_determines_for_another_is_no_idle_name() -> None:
    @rule(where=(attr_compose("a", "b", "c"), attr_compose("c", "a", "d")), tolerance=1e-6)
    def three(x: Value, a: float, b: float, c: float, d: float) -> Rewrite:
        return ops.scale(ops.scale(ops.scale(x, a), b), a) >> ops.scale(x, d)  # type: ignore[no-any-return]

    RULES.remove("three")


# the program of a report ----------------------------------------------------------------------------------------------
@engines
def test_the_program_goes_on_until_nothing_is_new(engine: Any) -> None:
    """The fallback engine needs fewer rounds than egglog, which stopped short of the last e-node."""
    graph = graph_of(lambda: heads(MASKED["an addend first"]))
    assert count(graph, "broadcast_to") == 1
    report = optimize(graph, phase="full", engine=engine)[1]
    assert report.stop_reason == "saturated" and run_alone(report) == (report.num_enodes, report.num_eclasses)
    short = optimize(graph, phase="full", engine="egglog", budget=Budget(iterations=3))[1]
    assert short.stop_reason == "iterations" and run_alone(short) == (short.num_enodes, short.num_eclasses)
    assert short.num_enodes < report.num_enodes
