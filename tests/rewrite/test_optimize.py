"""The promises of `optimize`, row by row, and its options."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from optimizing import (
    check_equal,
    check_laws,
    count,
    graph_of,
    mlp_with_gate,
    p,
)
from random_graphs import random_feeds

import gdlab.ops as ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import OptimizeError, UnknownNameError
from gdlab.graph import Graph, Value
from gdlab.op.cost import flops, seconds
from gdlab.rewrite import Budget, optimize


# the contract, row by row ---------------------------------------------------------------------------------------------
def test_what_a_person_writes_is_fused() -> None:
    graph = mlp_with_gate()
    result, report = optimize(graph, phase="forward")
    assert [n.op for n in result if n.inputs] == [
        "fused_matmul_add", "relu", "fused_matmul_add", "swiglu", "cross_entropy_loss",
    ]  # fmt: skip
    assert result.node(8).name == "h" and result.node(10).name == "gated" and result.output_names == ("loss", "z")
    assert [n.attr("addend") for n in result if n.op == "fused_matmul_add"] == ["row", "row"]
    # gate · σ(gate) · up became swiglu in one call, by way of silu
    derivation = next(d for d in report.derivations if d.node == 10)
    assert derivation.chain == ("Mul+Sigmoid→Silu", "Silu+Mul→SwiGLU") and derivation.consumed == (14, 15, 16)
    assert report.origin[10] == (16, 14, 15) and report.origin[0] == (0,)
    assert [report.node_map[i] for i in (14, 15, 16)] == [None, None, 10]
    check_laws(graph, result, report, random_feeds(graph, 1))


def test_a_fused_node_keeps_the_source_of_its_root() -> None:
    graph = mlp_with_gate()
    result, _ = optimize(graph, phase="forward")
    assert result.source(10) == graph.source(16) != ()
    assert result.source(7) == graph.source(9)


def test_collapses_disappear() -> None:
    graph = graph_of(lambda: ops.tanh(ops.neg(ops.neg(p("x", 3)))))
    result, report = optimize(graph, phase="forward")
    assert [n.op for n in result] == ["parameter", "tanh"]
    assert report.rules_fired == (("Neg∘Neg→x", 1),) and report.fusions_applied == (("Neg∘Neg→x", 2),)
    assert report.origin[0] == (0, 1, 2)


def test_outputs_keep_count_order_and_values_when_they_become_one() -> None:
    def make() -> dict[str, Value]:
        h = p("x", 4, 4) @ p("w", 4, 4)
        return {"a": ops.relu(h), "b": ops.relu(ops.relu(h)), "c": h, "a2": ops.relu(h)}

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward")
    assert result.output_names == ("a", "b", "c", "a2")
    assert result.output_ids[0] == result.output_ids[1] == result.output_ids[3]
    check_laws(graph, result, report, random_feeds(graph, 1))


def test_gradients_stay_outputs_in_their_order() -> None:
    def make() -> Value:
        a, b = p("a", 3, 3), p("b", 3, 3)
        return ops.mean_all(ops.relu(a + b))  # both gradients are one node

    full, _ = differentiate(graph_of(make))
    result, report = optimize(full, phase="full")
    assert len(result.outputs) == 3 and result.num_param_grad_outputs == 2
    assert result.output_ids[1] == result.output_ids[2]
    check_laws(full, result, report, random_feeds(full, 2))


def test_unused_inputs_stay_and_other_dead_nodes_go() -> None:
    with Graph() as g:
        x = ops.input("x", (3,))
        ops.input("unused", (2,))
        p("idle", 5)
        dead = ops.tanh(ops.neg(x))
        ops.constant([1.0, 2.0])
        g.set_outputs(ops.relu(x))
        assert dead.id == 4
    result, report = optimize(g, phase="forward")
    assert [n.name or n.op for n in result] == ["x", "unused", "idle", "relu"]
    assert report.dead_nodes_removed == 3
    assert report.steps[-1].removed == (3, 4, 5) and report.steps[-1].order == (0, 1, 2, 6)


def test_stop_gradient_is_opaque_until_the_gradients_are_there() -> None:
    graph = graph_of(lambda: ops.neg(ops.stop_gradient(ops.neg(p("x", 3)))))
    assert len(optimize(graph, phase="forward")[0]) == 4
    assert len(optimize(graph, phase="full")[0]) == 1
    full = graph_of(lambda: ops.stop_gradient(ops.full((3,), 2.0)) * p("x", 3))
    assert count(optimize(full, phase="forward")[0], "stop_gradient") == 1


def test_attributes_and_constants_take_part_in_equality() -> None:
    def make() -> list[Value]:
        x = p("x", 2, 2)
        nan = np.array([0x7FC00001, 0x7FC00002], np.uint32).view(np.float32)
        return [
            ops.scale(x, 2.0), ops.scale(x, 2.0000002), ops.scale(x, 2.0),
            ops.constant([0.0]), ops.constant([-0.0]), ops.constant([0.0]), *map(ops.constant, (nan[:1], nan[1:])),
            ops.full((1,), 0.0), ops.full((1,), -0.0), ops.add_scalar(x, 0.0), ops.add_scalar(x, -0.0),
            p("w", 2, 2), ops.sum(x, (0,), True), ops.sum(x, (1,), True), ops.sum(x, (0,), False),
        ]  # fmt: skip

    graph = graph_of(make)
    result, report = optimize(graph, phase="full")
    assert len(set(result.output_ids)) == len(graph.outputs) - 2
    assert report.rules_fired == (("CSE", 2),)
    got = [np.float32(n.attr("value")) for n in result if n.op == "full"]
    assert [bool(np.signbit(v)) for v in got] == [False, True]


def test_two_draws_are_never_one() -> None:
    def make() -> list[Value]:
        x = p("x", 4)
        return [ops.dropout(x, 0.5, seed=1), ops.dropout(x, 0.5, seed=1), ops.dropout(x, 0.5, seed=1, call=0)]

    for engine in ("egglog", "fallback"):
        result, _ = optimize(graph_of(make), phase="full", engine=engine)  # type: ignore[arg-type]
        first, second, again = result.output_ids
        assert first != second and first == again  # the third has the number of the first: the same bits


def test_two_norms_that_differ_in_eps_are_never_one() -> None:
    def make() -> list[Value]:
        x, w = p("x", 4, 6), p("w", 6)
        return [ops.rms_norm(x, w, eps=1e-5), ops.rms_norm(x, w, eps=1.0000001e-5), ops.rms_norm(x, w, eps=1e-5)]

    for engine in ("egglog", "fallback"):
        result, _ = optimize(graph_of(make), phase="full", engine=engine)  # type: ignore[arg-type]
        assert len(set(result.output_ids)) == 2 and result.output_ids[0] == result.output_ids[2]


def test_a_shared_chain_is_paid_once() -> None:
    def make() -> Value:
        x = p("x", 2, 2)
        for _ in range(24):
            x = x * x
        return x

    result, report = optimize(graph_of(make), phase="forward")
    assert len(result) == 25 and report.cost_after == report.cost_before


def test_a_product_with_two_readers_is_not_computed_twice() -> None:
    def make() -> list[Value]:
        product = p("a", 4, 2) @ p("b", 2, 4)  # two of them would be cheaper than one more launch
        return [product + p("c", 4, 4), ops.tanh(product)]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward")
    assert (count(result, "matmul"), count(result, "fused_matmul_add")) == (1, 0)
    missed = report.missed[0]
    assert (missed.label, missed.reason) == ("MatMul+Add→FusedMatMulAdd", "multi_use")
    assert missed.text == f"{missed.label} was not used at %{missed.node}: %2 is read by %5 too."
    assert missed.about == 2 and result.node(2).op == "matmul"


def test_of_two_products_the_left_one_takes_the_sum() -> None:
    graph = graph_of(lambda: p("a", 4, 4) @ p("b", 4, 4) + p("c", 4, 4) @ p("d", 4, 4))
    result, _ = optimize(graph, phase="forward")
    fused = next(n for n in result if n.op == "fused_matmul_add")
    assert [result.node(i).name for i in fused.inputs[:2]] == ["a", "b"]


def test_constants_are_folded() -> None:
    def make() -> list[Value]:
        two, third = ops.full((4, 4), 2.0), ops.full((4, 4), float(np.float32(1 / 3)))
        table = ops.tanh(ops.constant([[1.0, -2.0], [0.5, 0.0]])) @ ops.constant([[1.0], [3.0]])
        huge = ops.tanh(ops.constant(np.arange(20_000.0)))  # more than 64 KiB
        lost = ops.exp(ops.constant([1.0, 100.0]))  # float32 does not hold it
        kept = ops.tanh(ops.stop_gradient(ops.constant([1.0, 2.0])))
        big = ops.broadcast_to(ops.full((1,), 3.0), (512, 512))
        padded, same = ops.pad(two, (1, 0), (0, 0)), p("x", 4, 4) * (two - 1)
        return [-two + two * two, ops.sum_rows(two), third * third, big, padded, same, table, huge, lost, kept]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward")
    outputs = [result.node(i) for i in result.output_ids]
    assert [n.op for n in outputs] == [
        "full", "full", "full", "full", "constant", "parameter", "constant", "tanh", "exp", "tanh",
    ]  # fmt: skip
    assert [n.attr("value") for n in outputs if n.op == "full"] == [2.0, 8.0, float(np.float32(1 / 3) ** 2), 3.0]
    assert outputs[4].attr("data").array.tolist() == [[0.0] * 4, *[[2.0] * 4] * 4]
    want = np.tanh([[1.0, -2.0], [0.5, 0.0]]) @ [[1.0], [3.0]]
    assert outputs[6].attr("data").array.tolist() == want.astype(np.float32).tolist()
    assert ("Fold Constant", 6) in report.rules_fired or dict(report.rules_fired)["Fold Constant"] >= 6
    check_laws(graph, result, report, random_feeds(graph, 3))


def test_a_named_node_that_was_merged_is_still_found() -> None:
    def make() -> list[Value]:
        x = p("x", 3)
        return [ops.tanh(x).named("first"), ops.neg(ops.tanh(x).named("second"))]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward")
    assert result.node(1).name == "first" and report.node_map[2] == 1 == report.node_map[1]
    assert report.origin[1] == (1, 2)


def test_costs_and_flops_of_nodes() -> None:
    graph = graph_of(lambda: ops.relu(p("a", 8, 4) @ p("b", 4, 16)))
    product, relu = graph.node(2), graph.node(3)
    assert (flops(product, graph), flops(relu, graph), flops(graph.node(0), graph)) == (2 * 8 * 4 * 16, 128, 0)
    assert seconds(relu, graph) == pytest.approx(3e-6 + 2 * 512 / 1e12)
    assert seconds(graph.node(0), graph) == 0


# options --------------------------------------------------------------------------------------------------------------
def test_rules_are_chosen_by_id_or_label() -> None:
    graph = mlp_with_gate()
    _, report = optimize(graph, phase="forward", disable=("Silu+Mul→SwiGLU", "fuse_matmul_add_row"))
    assert {label for label, _ in report.rules_fired} == {"Add+BroadcastTo→BiasAdd", "Mul+Sigmoid→Silu"}
    assert {(m.label, m.reason) for m in report.missed} == {
        ("Silu+Mul→SwiGLU", "disabled"), ("MatMul+BiasAdd→FusedMatMulAdd", "disabled"),
    }  # fmt: skip
    assert [r.enabled for r in report.rules if r.id == "fuse_swiglu"] == [False]
    _, report = optimize(graph, phase="forward", only=("fuse_silu",))
    assert report.rules_fired == (("Mul+Sigmoid→Silu", 1),)
    _, report = optimize(graph, phase="forward", allow="exact")
    assert {m.reason for m in report.missed} == {"safety"}


def test_bad_options_are_refused() -> None:
    graph = mlp_with_gate()
    for options, error, text in (
        ({"disable": ("fuse_sil",)}, OptimizeError, "disable: given 'fuse_sil', wanted the id or label of a rule"),
        ({"disable": ("fuse_sil",)}, OptimizeError, "; nearest: fuse_silu"),
        ({"only": ("Mul+Sigmoid",)}, OptimizeError, "nearest: Mul+Sigmoid→Silu"),
        ({"disable": ("CSE",)}, OptimizeError, "equal nodes are one e-class"),
        ({"allow": "all"}, UnknownNameError, "one of exact, rounding, reassoc, approx"),
        ({"cost": "rooflin"}, UnknownNameError, "nearest: roofline"),
        ({"phase": "backward"}, UnknownNameError, "one of forward, full, inference"),
        ({"budget": 20}, OptimizeError, "Budget("),
        ({"disable": 3}, OptimizeError, "rules: given 3, wanted ids or labels"),
        ({"disable": "fuse_sil"}, OptimizeError, "disable: given 'fuse_sil', wanted"),
        ({"cost": lambda *_: "cheap"}, OptimizeError, "given cheap, wanted a finite number ≥ 0"),
    ):  # fmt: skip
        with pytest.raises(error, match=re.escape(text)):
            optimize(graph, **({"phase": "forward"} | options))  # type: ignore[arg-type]
    with pytest.raises(OptimizeError, match="a graph with outputs"):
        optimize(Graph(), phase="forward")
    with pytest.raises(OptimizeError, match="graph: given str, wanted a Graph"):
        optimize("mlp", phase="forward")  # type: ignore[arg-type]
    bad: tuple[dict[str, Any], ...] = ({"iterations": 1.5}, {"iterations": None}, {"enodes": -1}, {"seconds": math.nan})
    for limits in bad:
        with pytest.raises(OptimizeError, match="Budget: .* ≥ 0"):
            Budget(**limits)


def test_one_rule_may_be_named_without_a_tuple() -> None:
    graph = mlp_with_gate()
    assert optimize(graph, phase="forward", only="fuse_silu")[1].rules_fired == (("Mul+Sigmoid→Silu", 1),)
    assert optimize(graph, phase="forward", disable=None)[1].rules_fired  # type: ignore[arg-type]


def test_a_cost_of_ones_own_decides() -> None:
    graph = mlp_with_gate()
    result, report = optimize(graph, phase="forward", cost=lambda op, attrs, type, operands: float(op == "swiglu"))
    assert count(result, "swiglu") == 0 and report.cost_after == 0
    _, report = optimize(graph, phase="forward", cost="ast_size")
    assert (report.cost_model, report.cost_before, report.cost_after) == ("ast_size", 109.0, 46.0)
    with pytest.raises(OptimizeError, match="finite number ≥ 0"):
        optimize(graph, phase="forward", cost=lambda op, attrs, type, operands: -1.0)



def test_factors_are_one_only_where_float32_holds_their_product() -> None:
    def chain(*factors: float) -> Graph:
        def scaled() -> Value:
            x = p("x", 2)
            for f in factors:
                x = ops.scale(x, f)
            return x

        return graph_of(scaled)

    # 1e30 · 1e-30 · 1e-30 is 1e-30; with the two small factors as one it would be 0
    kept = {(2.0, 3.0): 1, (1e30, 1e30): 2, (1e-30, 1e-30): 2, (1e-20, 1e-22): 2, (0.0, 3.0): 1}
    for factors, left in kept.items():
        result, _ = optimize(chain(*factors), phase="forward")
        assert count(result, "scale") == left, factors
    graph = chain(1e-30, 1e-30, 1e30)
    feeds = {"x": np.array([1e30, -2e25], np.float32)}
    check_equal(graph, optimize(graph, phase="forward")[0], feeds, 1e-6)


def test_composites_are_taken_apart_after_the_import_alone() -> None:
    code = (
        "import gdlab as gd\n"
        "with gd.Graph() as g: g.set_outputs(gd.gelu(gd.input('x', (2,))))\n"
        "print('gelu' in [n.op for n in g.decompose()])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
