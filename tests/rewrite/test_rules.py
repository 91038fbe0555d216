"""Every rule of the table: it fires in every argument order, both sides agree, and it refuses with its reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from matrix import MATRIX
from rule_sides import STATED, of, side, tried

import gdlab.ops as ops
from gdlab.base.errors import ArgumentError, GraphError, OptimizeError
from gdlab.base.types import Shape, f32
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Elementwise, Sample, fused, unregister
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.rewrite import (
    RULES,
    Budget,
    Matrix,
    Rewrite,
    Rule,
    attr_eq,
    const_eq,
    dtype,
    finite,
    is_param,
    not_output,
    optimize,
    rank,
    rule,
    shape_eq,
    single_use,
)
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Condition
from gdlab.rewrite.rules.soundness import check_rule, slope_disagreement


def orders(rule: Rule) -> Iterator[frozenset[int]]:
    """Ways to exchange the operands of the commutative ops on the left: of none, of each alone and of all; in
    `make matrix` every way."""
    ids = [n.id for n in rule.left_nodes if n.op in COMMUTATIVE]
    for flags in itertools.product((False, True), repeat=len(ids)):
        if MATRIX or sum(flags) in (0, 1, len(ids)):
            yield frozenset(id for id, flag in zip(ids, flags, strict=True) if flag)


@pytest.fixture
def stated() -> Iterator[list[Rule]]:
    """Rules that a test states; they go with the test."""
    before = {r.name for r in RULES}
    made: list[Rule] = []
    yield made
    for r in list(RULES):
        if r.name not in before:
            RULES.remove(r.name)


# the table ------------------------------------------------------------------------------------------------------------
def test_the_rules_that_are_owed_are_there_with_their_labels() -> None:
    labels = {r.label for r in RULES}
    owed = """Neg∘Neg→x Transpose∘Transpose→x Relu∘Relu→Relu CSE Add+Neg→Sub Sub→Add+Neg Mul+Sigmoid→Silu
    Reshape∘Reshape→Reshape Reshape→x Permute∘Permute→Permute Permute→x BroadcastTo→x Silu+Mul→SwiGLU
    Add+BroadcastTo→BiasAdd Mul+BroadcastTo→BiasMul MatMul+Add→FusedMatMulAdd MatMulAT+Add→FusedMatMulATAdd
    MatMulBT+Add→FusedMatMulBTAdd MatMul+BiasAdd→FusedMatMulAdd MatMulAT+BiasAdd→FusedMatMulATAdd
    MatMulBT+BiasAdd→FusedMatMulBTAdd"""
    assert [label for label in owed.split() if label not in labels] == []
    assert {"Fold Constant", "StopGradient→x", "Mul∘One→x"} <= labels
    assert RULES["neg_neg"].safety == "exact" and RULES["Mul+Sigmoid→Silu"].name == "fuse_silu"


def test_a_rule_knows_the_text_that_states_it() -> None:
    file, line, text = RULES["neg_neg"].source
    assert file == "gdlab/rewrite/rules/plain.py" and line > 1
    assert "def neg_neg" in text and ">> x" in text
    assert "def silu" in RULES["fuse_silu"].source[2]
    assert RULES["neg_neg"].doc == "−(−x) → x"


def test_ids_and_labels_are_told_apart_from_typing_errors() -> None:
    with pytest.raises(OptimizeError, match=re.escape("nearest: neg_neg")):
        RULES["neg_ne"]
    assert "neg_neg" in RULES and "Neg∘Neg→x" in RULES and "nothing" not in RULES


# every rule -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", STATED, ids=of)
def test_both_sides_agree(rule: Rule) -> None:
    found = tried(rule)
    assert found, "no operands fit the left side"
    for case in found:
        left, right = side(rule, case), side(rule, case, right=True)
        rng = np.random.default_rng(3)
        fed = {n.name: rng.uniform(-3, 3, n.type.shape) for n in left.parameters}
        a, b = evaluate(left, fed), evaluate(right, fed)
        m = magnitudes(left, a)[left.output_ids[0]]
        a_out, b_out = a[left.output_ids[0]], b[right.output_ids[0]]
        assert left.outputs[0].type == right.outputs[0].type
        if rule.safety == "exact":
            assert a_out.tobytes() == b_out.tobytes()
        assert compare(b_out, a_out, m, max(rule.rtol, 1e-12)) is None


@pytest.mark.parametrize("rule", [r for r in STATED if "forward" in r.phases], ids=of)
def test_both_sides_have_one_gradient_kinks_included(rule: Rule) -> None:
    for case in tried(rule):
        for seed in range(3):
            assert slope_disagreement(rule, case, seed) is None


@pytest.mark.parametrize("rule", STATED, ids=of)
def test_it_fires_in_every_argument_order(rule: Rule) -> None:
    case = tried(rule)[0]
    for swapped in orders(rule):
        graph = side(rule, case, swapped=swapped)
        result, report = optimize(graph, phase=rule.phases[-1], only=(rule.name,), enable=(rule.name,))
        stat = next(r for r in report.rules if r.id == rule.name)
        assert stat.fired >= 1, swapped
        if report.cost_after < report.cost_before:
            assert (rule.label, 1) in report.rules_fired and stat.used == 1
        fed = {n.name: np.random.default_rng(5).uniform(-2, 2, n.type.shape) for n in graph.parameters}
        want, got = evaluate(graph, fed), evaluate(result, fed)
        m = magnitudes(graph, want)[graph.output_ids[0]]
        assert compare(got[result.output_ids[0]], want[graph.output_ids[0]], m, max(rule.rtol, 1e-12)) is None


def test_fusions_make_the_graph_cheaper() -> None:
    for r in (r for r in STATED if r.name.startswith("fuse_") and r.on):
        made = REGISTRY[r.pattern.node(r.right).op]
        lowered_as_body = made.kernel is None and made.family != "contraction"
        result, report = optimize(side(r, tried(r)[0]), phase=r.phases[-1])
        assert report.cost_after < report.cost_before or lowered_as_body, r.name
        assert [n.op for n in result if n.inputs] == [made.name]


def test_a_rule_of_another_phase_does_not_fire() -> None:
    with Graph() as g:
        g.set_outputs(ops.neg(ops.stop_gradient(ops.neg(ops.parameter("x", (3,))))))
    for phase, left in (("forward", 4), ("inference", 4), ("full", 1)):
        result, _ = optimize(g, phase=phase)  # type: ignore[arg-type]
        assert len(result) == left


# conditions -----------------------------------------------------------------------------------------------------------
def pair(make: Callable[[], Value], other: Callable[[], Value]) -> tuple[Graph, Graph]:
    graphs = []
    for f in (make, other):
        with Graph() as g:
            g.set_outputs(f())
        graphs.append(g)
    return graphs[0], graphs[1]


def p(name: str, *shape: int) -> Value:
    return ops.parameter(name, shape)


def read_twice() -> Value:
    t = ops.tanh(p("x", 3))
    return ops.neg(t) * t


CONDITIONS: list[tuple[Condition, str, Callable[[], Value], Callable[[], Value]]] = [
    (rank("x", 2), "shape", lambda: ops.neg(ops.tanh(p("x", 3, 4))), lambda: ops.neg(ops.tanh(p("x", 3)))),
    (is_param("x"), "weight_not_parameter", lambda: ops.neg(ops.tanh(p("x", 3))),
     lambda: ops.neg(ops.tanh(ops.input("x", (3,))))),
    (single_use("t"), "multi_use", lambda: ops.neg(ops.tanh(p("x", 3))), read_twice),
    (const_eq("x", 0.5), "attributes", lambda: ops.neg(ops.tanh(ops.full((3,), 0.5))),
     lambda: ops.neg(ops.tanh(ops.full((3,), -0.5)))),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "reason", "good", "bad"), CONDITIONS, ids=[str(row[0]) for row in CONDITIONS])
def test_a_condition_lets_pass_and_refuses_with_its_reason(
    condition: Condition, reason: str, good: Callable[[], Value], bad: Callable[[], Value], stated: list[Rule]
) -> None:
    def odd(x: Value) -> Rewrite:
        t = ops.tanh(x).named("t")
        return ops.neg(t) >> ops.tanh(ops.neg(x))

    rule(near=True, where=(condition,))(odd)
    fits, refused = pair(good, bad)
    only = ("odd",)
    _, yes = optimize(fits, phase="forward", only=only)
    _, no = optimize(refused, phase="forward", only=only)
    assert [r.fired for r in yes.rules if r.id == "odd"] == [1]
    assert [r.fired for r in no.rules if r.id == "odd"] == [0]
    missed = [m for m in no.missed if m.label == "odd"]
    assert [m.reason for m in missed] == [reason]
    assert missed[0].text == f"odd was not used at %{missed[0].node}: {missed[0].detail}."


def test_not_output_and_attr_eq_and_dtype(stated: list[Rule]) -> None:
    @rule(near=True, where=(not_output("t"),))
    def odd_inner(x: Value) -> Rewrite:
        return ops.neg(ops.tanh(x).named("t")) >> ops.tanh(ops.neg(x))

    @rule(near=True, where=(attr_eq("f", "g"), dtype("x", f32)))
    def scales(x: Value, f: float, g: float) -> Rewrite:
        return ops.scale(ops.scale(x, f), g) >> ops.scale(ops.scale(x, g), f)

    with Graph() as g:
        t = ops.tanh(p("x", 3))
        g.set_outputs([t, ops.neg(t), ops.scale(ops.scale(t, 2.0), 3.0), ops.scale(ops.scale(t, 5.0), 5.0)])
    _, report = optimize(g, phase="forward", only=("odd_inner", "scales"))
    assert {r.id: r.fired for r in report.rules if r.id in ("odd_inner", "scales")} == {"odd_inner": 0, "scales": 1}
    assert [(m.label, m.reason) for m in report.missed] == [
        ("odd_inner", "is_output"), ("scales", "attributes"), ("scales", "cost"),
    ]  # fmt: skip


def test_dtype_refuses_what_is_no_float(stated: list[Rule]) -> None:
    @rule(near=True, where=(dtype("x", f32),))
    def flat_first(x: Value, s: Shape, t: Shape) -> Rewrite:
        return ops.reshape(ops.reshape(x, s), t) >> ops.reshape(ops.reshape(x, t), t)

    with Graph() as g:
        indices, numbers = ops.input_u32("i", (4, 3)), p("x", 4, 3)
        g.set_outputs([v.reshape((12,)).reshape((3, 4)) for v in (indices, numbers)])
    _, report = optimize(g, phase="forward", only=("flat_first",), budget=Budget(iterations=1))
    assert [r.fired for r in report.rules if r.id == "flat_first"] == [1]
    assert [(m.reason, m.detail) for m in report.missed if m.reason != "budget"] == [("dtype", "x is u32, not f32")]


def test_products_of_factors_stay_finite() -> None:
    with Graph() as g:
        x = p("x", 3)
        g.set_outputs([x.scale(2.0).scale(3.0).scale(0.5), x.scale(1e30).scale(1e30), x.scale(0.1).scale(3.0).neg()])
    result, report = optimize(g, phase="forward")
    outputs = [result.node(i) for i in result.output_ids]
    assert [n.op for n in outputs] == ["scale", "scale", "neg"]
    assert outputs[0].attr("factor") == 3.0 and result.node(outputs[0].inputs[0]).op == "parameter"
    assert [n.attr("factor") for n in result if n.op == "scale"].count(float(np.float32(1e30))) == 2
    assert dict(report.rules_fired)["Scale∘Scale→Scale"] == 3


def test_finite_takes_no_other_bound() -> None:
    with pytest.raises(OptimizeError, match="finite: above: given 2, wanted None or 0"):
        finite("eps", above=2)


def test_a_refusal_shows_the_line_of_its_condition(stated: list[Rule]) -> None:
    @rule(
        near=True,
        where=(
            rank("x", 2),
            single_use("t"),  # this line
        ),
    )
    def odd(x: Value) -> Rewrite:
        return ops.neg(ops.tanh(x).named("t")) >> ops.tanh(ops.neg(x))

    with Graph() as g:
        t = ops.tanh(p("x", 3, 4))
        g.set_outputs([ops.neg(t), t])
    missed = optimize(g, phase="forward", only=("odd",))[1].missed[0]
    assert missed.reason == "multi_use" and missed.guard is not None
    file, line, text = missed.guard
    assert file == __file__ and text == 'single_use("t"),  # this line'
    assert Path(__file__).read_text("utf-8").splitlines()[line - 1].strip() == text


def test_a_bias_must_be_one_row() -> None:
    with Graph() as g:
        x, one, column = p("x", 3, 4), p("one", 1), p("column", 3, 1)
        g.set_outputs([x + one, x + column, x + p("b", 4), x + p("row", 1, 4)])
    result, report = optimize(g, phase="forward")
    assert [n.op for n in result if n.op.startswith("bias")] == ["bias_add", "bias_add"]
    assert [(m.label, m.reason) for m in report.missed] == [("Add+BroadcastTo→BiasAdd", "shape")] * 2


# rules that people state ----------------------------------------------------------------------------------------------
def test_a_stated_rule_takes_part_at_once(stated: list[Rule]) -> None:
    @rule(safety="rounding")
    def transpose_of_product(x: Matrix, y: Matrix) -> Rewrite:
        """The transpose of a product is the product of the transposes, reversed."""
        return ops.transpose(x @ y) >> ops.transpose(y) @ ops.transpose(x)

    with Graph() as g:
        x, y = p("x", 3, 4), p("y", 4, 5)
        g.set_outputs(ops.transpose(ops.transpose(x).T @ y))
    result, report = optimize(g, phase="forward")
    assert report.cost_after <= report.cost_before
    assert [r.fired for r in report.rules if r.id == "transpose_of_product"] == [1]
    RULES.remove("transpose_of_product")
    assert "transpose_of_product" not in RULES


def test_an_unsound_rule_is_refused(stated: list[Rule]) -> None:
    def product_transposed(x: Matrix, y: Matrix) -> Rewrite:
        return ops.transpose(x @ y) >> ops.transpose(x) @ ops.transpose(y)

    def less(x: Value) -> Rewrite:
        return ops.neg(x) >> ops.scale(x, -0.5)

    def log_of_exp(x: Value) -> Rewrite:
        return ops.log(ops.exp(x)) >> x  # overflows on the left alone

    def nothing(x: Value) -> Rewrite:
        return x - x >> ops.scale(x, 0.0)  # 0 and −0

    cases = (
        (product_transposed, "rounding", "given f32[3, 3] and f32[4, 4] for x f32[3, 4], y f32[4, 3]"),
        (less, "rounding", " at [0, 0], where x = 0."),
        (log_of_exp, "rounding", "inf and"),
        (nothing, "exact", "0.0 and -0.0"),
    )
    for stated_rule, safety, text in cases:
        with pytest.raises(OptimizeError, match=re.escape(text)):
            rule(safety=safety)(stated_rule)  # type: ignore[call-overload]
        assert stated_rule.__name__ not in RULES


def test_a_malformed_rule_says_what_is_wrong() -> None:
    def no_arrow(x: Value) -> Rewrite:
        return ops.neg(x)  # type: ignore[return-value]

    def no_op(x: Value) -> Rewrite:
        return x >> ops.neg(x)  # type: ignore[no-any-return]

    def unbound(x: Value, y: Value) -> Rewrite:
        return ops.neg(x) >> ops.neg(y)  # type: ignore[no-any-return]

    def no_such_name(x: Value) -> Rewrite:
        return ops.neg(ops.neg(x)) >> x  # type: ignore[no-any-return]

    for stated_rule, options, text in (
        (no_arrow, {}, "result: given Value, wanted left >> right"),
        (no_op, {}, "left side: given a variable, wanted at least one op"),
        (unbound, {}, "right side: given y, wanted only variables of the left side"),
        (no_such_name, {"where": (rank("q", 2),)}, "rank(q, 2): given q, wanted one of x"),
        (no_such_name, {"safety": "safe"}, "safety: given 'safe', wanted one of exact, rounding, reassoc, approx"),
        (no_such_name, {"phases": ("late",)}, "phases: given 'late'"),
    ):
        with pytest.raises(OptimizeError, match=re.escape(text)):
            rule(**options)(stated_rule)  # type: ignore[call-overload]
        assert stated_rule.__name__ not in RULES


def test_a_rule_reads_no_shapes() -> None:
    def shaped(x: Value) -> Rewrite:
        return ops.neg(x) >> ops.full(x.shape, 0.0)

    with pytest.raises(GraphError, match="reads no shapes"):
        rule(shaped)
    with Graph() as g, pytest.raises(GraphError, match="means something in @rule alone"):
        p("x", 3) >> p("y", 3)
    assert len(g) == 2


def test_a_rule_that_nothing_fits_asks_for_samples(stated: list[Rule]) -> None:
    def odd(x: Value) -> Rewrite:
        return ops.neg(ops.slice(x, (5, 5), (9, 9), (2, 3))) >> ops.slice(ops.neg(x), (5, 5), (9, 9), (2, 3))

    with pytest.raises(OptimizeError, match="samples="):
        rule(odd)
    assert rule(samples=(Sample((10, 12)),))(odd).name == "odd"


def test_a_rule_off_by_default_waits_to_be_enabled(stated: list[Rule]) -> None:
    @rule(on=False, label="Tanh∘Neg→Neg∘Tanh")
    def odd(x: Value) -> Rewrite:
        return ops.tanh(ops.neg(x)) >> ops.neg(ops.tanh(x))

    with Graph() as g:
        g.set_outputs(ops.neg(ops.tanh(ops.neg(p("x", 3)))))
    _, off = optimize(g, phase="forward")
    _, on = optimize(g, phase="forward", enable=("Tanh∘Neg→Neg∘Tanh",))
    assert (off.cost_after, on.cost_after) == (off.cost_before, on.cost_before / 3)


def test_a_new_fused_op_brings_its_rule() -> None:
    @fused(label="Neg+Tanh→Htan", kernel=Elementwise("tanh(-x)"), samples=(Sample((3, 5)),))
    def htan(x: Value) -> Value:
        """tanh(−x)."""
        return ops.tanh(ops.neg(x))

    try:
        with Graph() as g:
            g.set_outputs(ops.tanh(ops.neg(p("x", 3))))
        result, report = optimize(g, phase="forward")
        assert [n.op for n in result] == ["parameter", "htan"]
        assert report.rules_fired == (("Neg+Tanh→Htan", 1),)
    finally:
        unregister("htan")
    assert "fuse_htan" not in RULES


def test_shape_eq_compares_two_operands(stated: list[Rule]) -> None:
    @rule(where=(shape_eq("a", "b"),), near=True)
    def square_only(a: Matrix, b: Matrix) -> Rewrite:
        return ops.neg(a @ b) >> ops.neg(a) @ b

    with Graph() as g:
        x = p("x", 3, 3)
        g.set_outputs([ops.neg(x @ p("y", 3, 3)), ops.neg(x @ p("z", 3, 4))])
    _, report = optimize(g, phase="forward", only=("square_only",), budget=Budget(iterations=2))
    assert [r.fired for r in report.rules if r.id == "square_only"] == [1]
    assert {m.reason for m in report.missed if m.label == "square_only"} == {"shape", "cost"}


def test_a_condition_is_no_name() -> None:
    with pytest.raises(OptimizeError, match="where: given 'x', wanted conditions"):

        @rule(where="x")  # type: ignore[arg-type]
        def named_only(x: Value) -> Rewrite:
            return ops.neg(ops.neg(x)) >> x

    assert "named_only" not in RULES


def test_what_is_no_rule_is_not_checked() -> None:
    for given in (3, "relu_abs", None):
        with pytest.raises(ArgumentError, match=r"check_rule: rule: given \w+, wanted a rule"):
            check_rule(given)  # type: ignore[arg-type]
