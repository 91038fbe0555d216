"""Products of one operand made by one (F14): what is packed, what is refused and why, gradients, random graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attending import ENABLED, ROWS, Heads, K, forms, layer, loaded, products, ran
from matrix import also
from optimizing import PHASES, check_laws, count, graph_of, p, run_alone, transformer
from plans import feeds_of

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import GraphError
from gdlab.devices.choose import device as device_of
from gdlab.graph import Graph, Value
from gdlab.op.reference import evaluate
from gdlab.op.storage import DerivedParam, derived_parameters
from gdlab.ops.packed import among_columns, columns, packed
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.rewrite import RULES, optimize
from gdlab.rewrite.rules.packing import PRODUCTS
from gdlab.session import SessionConfig
from gdlab.session.builders import compiled

engines = pytest.mark.parametrize("engine", ["egglog", "fallback"])


# the rule -------------------------------------------------------------------------------------------------------------
@forms
@engines
def test_three_products_become_one_by_either_engine(heads: Heads, engine: Any) -> None:
    graph = layer(heads)
    result, report = optimize(graph, phase="forward", engine=engine, enable=[heads.rule])
    label = RULES[heads.rule].label
    assert dict(report.rules_fired)[label] == 1 and not any("×n" in m.label for m in report.missed)
    products = tuple(n.id for n in graph if n.name in ("qq", "kk", "vv"))
    assert [n for label_, n in report.fusions_applied if label_ == label] == [products[0]]
    (step,) = (s for s in report.steps if s.label == label)
    assert step.at == products and len(step.added) == 5 and step.cost_after <= step.cost_before - 2 * 2.9
    width = heads.wide + 2 * heads.narrow
    assert [n.type.shape for n in result if n.op in ("matmul", "matmul_bt")] == [(ROWS, width)]
    cuts = [(n.name, n.attr("start"), n.attr("stop")) for n in result if n.op == "columns"]
    a, b = heads.wide, heads.wide + heads.narrow
    assert cuts == [("qq", 0, a), ("kk", a, b), ("vv", b, width)]
    shape = (width, K) if heads.turned else (K, width)
    sources = tuple(heads.widths.items())
    assert derived_parameters(result) == (DerivedParam("q+k+v", sources, heads.axis, shape, "concat"),)
    assert [n.name for n in result.parameters] == [n.name for n in graph.parameters]
    check_laws(graph, result, report, feeds_of(graph))
    assert report.cost_after <= optimize(graph, phase="forward")[1].cost_after - 2 * 3  # two launches


@pytest.mark.parametrize(
    ("engine", "phase"),
    also(
        [*(("egglog", phase) for phase in PHASES), ("fallback", "full")],
        *(("fallback", phase) for phase in PHASES if phase != "full"),
    ),
)
def test_layers_are_packed_in_every_phase(phase: Any, engine: Any) -> None:
    graph = transformer(2)
    result, report = optimize(graph, phase=phase, engine=engine, enable=PRODUCTS)
    assert [d.name for d in derived_parameters(result)] == ["wq0+wk0+wv0", "wg0+wu0", "wq1+wk1+wv1", "wg1+wu1"]
    check_laws(graph, result, report, feeds_of(graph))
    again, twice = optimize(result, phase=phase, engine=engine, enable=PRODUCTS)
    assert twice.rules_fired == () and again.fingerprint() == result.fingerprint()


def test_it_takes_part_only_when_enabled() -> None:
    graph = layer()
    for options in ({}, {"enable": PRODUCTS, "allow": "exact"}, {"enable": PRODUCTS, "disable": PRODUCTS}):
        result, report = optimize(graph, phase="forward", **options)  # type: ignore[arg-type]
        assert count(result, "columns") == count(result, "packed") == 0
        (row,) = (r for r in report.rules if r.id == "pack_products")
        assert (row.matched, row.fired, row.created, row.used) == (0, 0, 0, 0)
    reason = [(m.reason, m.detail) for m in optimize(graph, phase="forward")[1].missed if "×n" in m.label]
    assert reason == [("disabled", "it takes part only when enabled")]
    off = optimize(graph, phase="forward", disable=PRODUCTS)[1].missed  # somebody knows
    assert not any("×n" in m.label for m in off)
    assert [d.name for d in derived_parameters(optimize(graph, phase="forward", enable=["MatMul×n→PackedMatMul"])[0])]


def test_the_report_tells_who_made_what() -> None:
    graph = layer()
    result, report = optimize(graph, phase="forward", **ENABLED)  # type: ignore[arg-type]
    (row,) = (r for r in report.rules if r.id == "pack_products")
    assert (row.matched, row.fired, row.created, row.used) == (1, 1, 1, 1)
    key = next(n for n in result if n.name == "kk")
    assert "MatMul×n→PackedMatMul" in str(report.why(key))
    first = report.steps[0]
    assert [n.op for n in first.added] == ["packed", "matmul", "columns", "columns", "columns"]
    assert set(first.bindings) == {"h", "w1", "w2", "w3"}
    products = [n.id for n in graph if n.name in ("qq", "kk", "vv")]
    assert [report.node_map[i] for i in products] == [n.id for n in result if n.op == "columns"]
    (wide,) = (n.id for n in result if n.op == "matmul" and n.type.shape == (ROWS, 32))
    assert set(report.origin[wide]) <= set(products)
    assert RULES["pack_products"].doc.startswith("[h · a, h · b] → columns(h · packed([a, b], 1))")
    assert RULES["pack_products"].source[0] == "gdlab/rewrite/rules/packing.py"


def test_the_program_of_the_report_says_all_of_it() -> None:
    for graph in (layer(), transformer(1)):
        report = optimize(graph, phase="forward", enable=PRODUCTS, engine="egglog")[1]
        assert run_alone(report) == (report.num_enodes, report.num_eclasses)


def test_the_search_can_be_watched() -> None:
    graph = layer()
    result, report = optimize(graph, phase="forward", enable=PRODUCTS, history=True)
    assert result.fingerprint() == optimize(graph, phase="forward", enable=PRODUCTS)[0].fingerprint()
    assert "columns" in {n.op for d in report.deltas for n in d.added}


def missed(make: Callable[..., Any], **shapes: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return the reasons that kept products of h apart, (reason, detail) by product; nothing is packed."""
    given = {"a": (K, 4), "b": (K, 8)} | shapes
    graph = graph_of(lambda: make(ops.input("x", (ROWS, K)), *(p(n, *s) for n, s in given.items())))
    result, report = optimize(graph, phase="forward", enable=PRODUCTS)
    assert derived_parameters(result) == () and count(result, "columns") == 0
    found = [m for m in report.missed if m.label == "MatMul×n→PackedMatMul"]
    assert all(m.guard is not None and m.guard[0] == "gdlab/rewrite/rules/packing.py" for m in found)
    assert all(f"was not used at %{m.node}: {m.detail}" in m.text for m in found)
    return [(m.reason, m.detail) for m in found]


def test_a_refusal_says_why_in_words() -> None:
    assert missed(lambda x, a, b: [x @ a, x @ b, ops.exp(b)]) == [("weight_shared", "w, %2, is used 2 times")]
    assert missed(lambda x, a, b: [x @ a, x @ ops.exp(b)]) == [("weight_not_parameter", "w is a exp")]
    assert missed(lambda x, a, b: [x @ a, x @ b, b]) == [("is_output", "w, %2, is an output")]
    assert missed(lambda x, a, b: [x @ a, (x * 2) @ b]) == []  # of different operands
    assert missed(lambda x, a, b: [x @ ops.exp(a), x @ ops.exp(b)]) == []

    def stored() -> list[Value]:
        x = ops.input("x", (ROWS, K))
        return [x @ p("a", K, 4), x @ ops.parameter_f16("b", (K, 4))]

    report = optimize(graph_of(stored), phase="forward", enable=PRODUCTS)[1]
    assert [m.reason for m in report.missed if "×n" in m.label] == ["dtype"]


def test_the_others_are_packed_without_the_refused_one() -> None:
    def make() -> list[Value]:
        x, b = ops.input("x", (ROWS, K)), p("b", K, 3)
        return [x @ p("a", K, 4), x @ b, x @ p("c", K, 2), ops.exp(b)]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward", enable=PRODUCTS)
    assert [d.name for d in derived_parameters(result)] == ["a+c"]
    check_laws(graph, result, report, feeds_of(graph))
    assert [m.reason for m in report.missed if "×n" in m.label] == ["weight_shared"]


def test_weights_with_gradients_of_their_own_stay_apart() -> None:
    full, _ = differentiate(layer())
    result, report = optimize(full, phase="full", enable=PRODUCTS)
    assert derived_parameters(result) == ()
    assert {m.reason for m in report.missed if "×n" in m.label} == {"weight_shared"}
    compile(result, mode="training")


def test_more_than_a_dispatch_can_write_are_made_by_several() -> None:
    graph = products(ROWS, K, 1, 2, 3, 1, 2, 3, 1, 2)
    result, report = optimize(graph, phase="inference", enable=PRODUCTS)
    assert [len(d.sources) for d in derived_parameters(result)] == [4, 4]
    check_laws(graph, result, report, feeds_of(graph))
    assert [len(d.outputs) for d in compile(result, mode="inference").dispatches] == [4, 4]


def test_a_product_that_is_worth_more_fused_stays() -> None:
    """x·a + y is one launch; of a packed product it would be two."""

    def make() -> list[Value]:
        x, y = ops.input("x", (ROWS, K)), ops.input("y", (ROWS, 4))
        return [x @ p("a", K, 4) + y, x @ p("b", K, 4) + y]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward", enable=PRODUCTS)
    assert count(result, "fused_matmul_add") == 2 and derived_parameters(result) == ()
    check_laws(graph, result, report, feeds_of(graph))


def test_gate_and_up_of_the_same_operand_join_query_key_and_value() -> None:
    def make() -> list[Value]:
        h = ops.input("x", (ROWS, K))
        q, k, v = (h @ p(n, K, 8) for n in "qkv")
        mixed = ops.causal_attention(q, k, v, 1, 1, 8)
        return [mixed, ops.swiglu(h @ p("gate", K, 4), h @ p("up", K, 4))]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward", enable=PRODUCTS)
    assert [d.name for d in derived_parameters(result)] == ["q+k+v+gate+up"]
    check_laws(graph, result, report, feeds_of(graph))
    assert len(compile(result, mode="inference").dispatches) == 3


# gradients ------------------------------------------------------------------------------------------------------------
def widened(make: Callable[[Value], Any]) -> tuple[Graph, Graph]:
    """A loss of a product with a packed weight, and its derivative."""
    graph = graph_of(lambda: make(ops.input("x", (3, 4)) @ packed([p("a", 4, 2), p("b", 4, 3)], 1)))
    return graph, differentiate(graph)[0]


def weighed(x: Value, scale: float) -> Value:
    return (x * x * ops.constant(scale * (1.0 + np.arange(np.prod(x.shape)))).reshape(*x.shape)).sum_all()


def test_the_cotangents_of_ranges_lie_side_by_side() -> None:
    graph, full = widened(lambda y: weighed(columns(y, 2, 5), 0.1) + weighed(columns(y, 0, 2), 0.2))
    assert (count(full, "concat"), count(full, "among_columns"), count(full, "matmul_at")) == (1, 0, 1)
    (step,) = (s for s in differentiate(graph)[1].steps if s.rule == "matmul")
    assert [full.node(i).type.shape for i in step.cotangents] == [(3, 2), (3, 3)]
    assert [full.node(i).op for i in step.accumulated] == ["concat"]


@pytest.mark.parametrize(
    ("ranges", "ops_made"),
    [
        ([(0, 2), (2, 5)], {"concat": 1}),
        ([(0, 1), (3, 5)], {"concat": 1, "full": 1}),
        ([(1, 2), (3, 4)], {"concat": 1, "full": 3}),
        ([(1, 4)], {"among_columns": 1}),
        ([(0, 3), (2, 5)], {"among_columns": 2}),
    ],
)
def test_gradients_of_ranges_are_those_of_slices(
    ranges: list[tuple[int, int]], ops_made: dict[str, int]
) -> None:
    """Also with columns that nobody reads, or two read: value, gradient, and the gradient of that."""
    found = []
    for cut in (columns, lambda y, a, b: y[:, a:b]):

        def make(y: Value, cut: Any = cut) -> Value:
            parts = [weighed(cut(y, a, b), 0.1 * (i + 1)) for i, (a, b) in enumerate(ranges)]
            return sum(parts[1:], parts[0])

        graph, full = widened(make)
        feeds = feeds_of(graph)
        with full:
            total = full.outputs[1]
            seconds = (total * total).sum_all()
        full.set_outputs([seconds])
        twice = differentiate(full)[0]
        values = evaluate(twice, feeds)
        found.append([values[i] for i in (total.id, *twice.output_ids)])
        if cut is columns:
            fresh = differentiate(graph)[0]
            plain = {op: count(fresh, op) - count(graph, op) for op in ops_made}
            assert {op: n for op, n in plain.items() if op != "full"} == {
                op: n for op, n in ops_made.items() if op != "full"
            }
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_layer_takes_two_contractions_back_instead_of_six() -> None:
    found = {}
    for options in ({}, ENABLED):
        forward, _ = optimize(layer(), phase="forward", **options)  # type: ignore[arg-type]
        full, _ = optimize(differentiate(forward)[0], phase="full", **options)  # type: ignore[arg-type]
        found[bool(options)] = [sum("matmul" in n.op for n in full), count(full, "concat"), count(full, "add")]
    assert found == {False: [12, 0, 0], True: [6, 1, 0]}  # and o, forward and back twice


def test_ranges_are_refused_outside() -> None:
    with pytest.raises(GraphError, match="columns: range: given 3:6, wanted 0 ≤ start < stop ≤ 5"):
        graph_of(lambda: columns(ops.input("x", (2, 5)), 3, 6))
    with pytest.raises(GraphError, match="among_columns: start: given 3 of 4, wanted room for 2 columns"):
        graph_of(lambda: among_columns(ops.input("x", (2, 2)), 3, 4))


# at random ------------------------------------------------------------------------------------------------------------
def tangle(seed: int) -> Graph:
    """Products of a few operands with weights of any width; some weights are shared or outputs, some products too."""
    rng = np.random.default_rng(seed)
    with Graph() as g:
        operands = [ops.input("x", (3, 4))]
        operands.append(ops.rms_norm(operands[0], p("n", 4), 1e-5))
        operands.append(operands[0].exp())
        weights: list[Value] = []
        sums, outputs = [], list[Value]()
        for i in range(9):
            turned, width = bool(rng.integers(2)), int(rng.integers(1, 6))
            again = weights and rng.random() < 0.15
            w = weights[rng.integers(len(weights))] if again else p(f"w{i}", *((width, 4) if turned else (4, width)))
            weights.append(w)
            h = operands[rng.integers(3)]
            y = h @ w if w.shape[0] == 4 and not turned else ops.matmul_bt(h, w) if w.shape[1] == 4 else h @ w
            y = [y, y.tanh(), y * 2 + 1, y.relu()][rng.integers(4)]
            sums.append((y * y).sum_all())
            if rng.random() < 0.2:
                outputs.append([y, w][rng.integers(2)])
        g.set_outputs([sum(sums[1:], sums[0]), *dict.fromkeys(outputs)])
    return g


@pytest.mark.parametrize("part", range(4))
def test_random_products_keep_their_values_and_gradients(part: int) -> None:
    done = 0
    for seed in range(part, 12, 4):
        graph = tangle(seed)
        feeds = feeds_of(graph)
        result, report = optimize(graph, phase="forward", enable=PRODUCTS, engine=("egglog", "fallback")[seed % 2])
        check_laws(graph, result, report, feeds)
        other, _ = optimize(graph, phase="forward", enable=PRODUCTS, engine=("fallback", "egglog")[seed % 2])
        assert other.fingerprint() == result.fingerprint(), seed
        done += len(derived_parameters(result))
        packed_plan, plain = (
            compiled(graph, SessionConfig(optimize=o), device_of("cpu").target).plan  # type: ignore[arg-type]
            for o in (ENABLED, {})
        )
        found = [gradients_of(plan, feeds) for plan in (packed_plan, plain)]
        assert found[0].keys() == found[1].keys()
        for name, want in found[1].items():
            np.testing.assert_allclose(found[0][name], want, rtol=1e-4, atol=1e-4, err_msg=f"{seed} {name}")
    assert done >= 3


def gradients_of(plan: ExecutionPlan, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by number and gradients by the name of each source, by the cpu device."""
    found: dict[str, np.ndarray] = {str(i): value for i, value in enumerate(ran(plan, feeds))}
    program = loaded(plan, feeds, "cpu")
    program.step(None)
    whole = {plan.buffers[a].name: program.download(b) for a, b in plan.param_grad_pairs}
    for d in plan.derived_params:
        data = whole.pop(d.name).reshape(d.shape)
        for name, _ in d.sources:
            part = d.part(name, 0)
            found[name] = data[:, part.start : part.stop] if d.axis else data[part.start : part.stop]
    program.close()
    return found | {name: data.reshape(plan.param_types[name].shape) for name, data in whole.items()}
