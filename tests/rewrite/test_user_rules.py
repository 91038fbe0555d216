"""A rule that a person writes in a cell: five lines, checked at once, used by the next graph, undone by its name."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gdlab.ops as ops
from gdlab.base.errors import OptimizeError
from gdlab.base.types import Shape
from gdlab.graph import Graph, Value
from gdlab.op import Sample
from gdlab.rewrite import RULES, Rewrite, optimize, rule

CELL = '''from gdlab.rewrite import rule
@rule(label="Tanh∘Neg→Neg∘Tanh")
def tanh_is_odd(x: Value) -> Rewrite:
    """tanh(−x) is −tanh(x)."""
    return ops.tanh(-x) >> -ops.tanh(x)
'''


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """The table as it was before."""
    theirs, removed = dict(RULES._theirs), set(RULES._removed)
    yield
    RULES._theirs, RULES._removed = theirs, removed


def run_cell(text: str, name: str = "<cell 1>") -> dict[str, Any]:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"ops": ops, "Value": Value, "Rewrite": Rewrite, "__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    return space


def odd_graph() -> Graph:
    with Graph() as g:
        g.set_outputs(-ops.tanh(-ops.parameter("x", (3,))))
    return g


def test_a_rule_in_a_cell_is_used_at_once_and_undone_by_its_name() -> None:
    assert len(optimize(odd_graph(), phase="forward")[0]) == 4
    run_cell(CELL)
    result, report = optimize(odd_graph(), phase="forward")
    assert [n.op for n in result] == ["parameter", "tanh"]
    assert report.rules_fired[0] == ("Tanh∘Neg→Neg∘Tanh", 1)
    file, line, text = report.sources["tanh_is_odd"]
    assert (file, line) == ("<cell 1>", 2) and "ops.tanh(-x) >>" in text
    RULES.remove("tanh_is_odd")
    assert len(optimize(odd_graph(), phase="forward")[0]) == 4


def test_running_the_cell_again_replaces_the_rule() -> None:
    run_cell(CELL)
    count = len(RULES)
    run_cell(CELL.replace("Neg∘Tanh", "odd"), "<cell 2>")
    assert len(RULES) == count and RULES["tanh_is_odd"].label == "Tanh∘Neg→odd"
    assert RULES["tanh_is_odd"].source[0] == "<cell 2>"
    assert len(optimize(odd_graph(), phase="forward")[0]) == 2


def test_a_failing_cell_leaves_the_rule_that_was_there() -> None:
    run_cell(CELL)
    with pytest.raises(OptimizeError, match="rule tanh_is_odd: sides: given"):
        run_cell(CELL.replace(">> -ops.tanh(x)", ">> ops.tanh(x)"))
    assert RULES["tanh_is_odd"].label == "Tanh∘Neg→Neg∘Tanh" and len(optimize(odd_graph(), phase="forward")[0]) == 2


def test_a_rule_named_like_one_of_gdlab_stands_in_for_it() -> None:
    @rule(label="mine")
    def neg_neg(x: Value) -> Rewrite:
        return ops.neg(ops.neg(x)) >> x  # type: ignore[no-any-return]

    assert RULES["neg_neg"].label == "mine" and "Neg∘Neg→x" not in RULES
    RULES.remove("mine")
    assert RULES["neg_neg"].label == "Neg∘Neg→x"
    RULES.remove("neg_neg")
    assert "neg_neg" not in RULES


def test_one_gradient_is_asked_for_at_kinks_too() -> None:
    def relu_by_maximum(x: Value) -> Rewrite:
        return ops.maximum(x, 0.0) >> ops.relu(x)  # type: ignore[no-any-return]

    told = r"given \S+ and 0.0 for x at .*, where x = 0, for x .*, wanted two sides with one gradient, or phases="
    with pytest.raises(OptimizeError, match=told):
        rule(relu_by_maximum)
    assert "relu_by_maximum" not in RULES
    assert rule(phases=("full", "inference"))(relu_by_maximum).name == "relu_by_maximum"


def test_a_gradient_may_be_wrong_where_values_are_equal() -> None:
    def cut(x: Value) -> Rewrite:
        return ops.tanh(ops.tanh(x)) >> ops.tanh(ops.stop_gradient(ops.tanh(x)))  # type: ignore[no-any-return]

    with pytest.raises(OptimizeError, match=r"rule cut: gradients: given .* for x at \[0, 0\], where x = 0"):
        rule(cut)


def test_a_tolerance_lets_an_approximation_pass() -> None:
    def near_tanh(x: Value) -> Rewrite:
        return ops.tanh(x) >> ops.scale(ops.tanh(x), 0.9999)  # type: ignore[no-any-return]

    with pytest.raises(OptimizeError, match="rule near_tanh: sides"):
        rule(near_tanh)
    assert rule(safety="approx", phases=("inference",))(near_tanh).rtol == 1e-2
    assert rule(tolerance=1e-3, phases=("inference",))(near_tanh).rtol == 1e-3


def test_the_table_prints_and_completes() -> None:
    run_cell(CELL)
    lines = str(RULES).splitlines()
    assert lines[0].split() == ["rule", "label", "tag", "phases", "on", "meaning"]
    assert len(lines) == len(RULES) + 1
    mine = next(line for line in lines if line.startswith("tanh_is_odd"))
    assert re.split(r"  +", mine) == [
        "tanh_is_odd", "Tanh∘Neg→Neg∘Tanh", "rounding", "all", "on", "tanh(−x) is −tanh(x).",
    ]  # fmt: skip
    off = next(line for line in lines if line.startswith("fuse_rms_norm_matmul"))
    assert re.split(r"  +", off)[4] == "off"
    full = next(line for line in lines if line.startswith("drop_stop_gradient"))
    assert re.split(r"  +", full)[3] == "full"
    assert {"tanh_is_odd", "neg_neg", "remove"} <= set(dir(RULES))
    assert {"tanh_is_odd", "Tanh∘Neg→Neg∘Tanh"} <= set(RULES._ipython_key_completions_())
    assert RULES.tanh_is_odd is RULES["tanh_is_odd"]
    with pytest.raises(AttributeError, match="no rule 'tanh_is_od'"):
        _ = RULES.tanh_is_od
    assert repr(RULES) == f"<{len(RULES)} rules>"


# what the check tries -------------------------------------------------------------------------------------------------
def refused(stated: Any, text: str, **options: Any) -> None:
    with pytest.raises(OptimizeError, match=text):
        rule(**options)(stated) if options else rule(stated)
    assert getattr(stated, "__name__", "") not in RULES


def test_no_attribute_stays_what_it_is_in_the_first_cases() -> None:
    def turned_twice(x: Value, p: Shape) -> Rewrite:
        return ops.permute(ops.permute(x, p), p) >> x  # right for two axes, wrong for a turn of three

    def powers_swapped(x: Value, a: float, b: float) -> Rewrite:
        return ops.pow_scalar(ops.pow_scalar(x, a), b) >> ops.pow_scalar(ops.pow_scalar(x, b), a)  # (x²)^½, (x^½)²

    refused(turned_twice, "sides: given")
    refused(powers_swapped, "sides: given .* and nan")


def test_every_sample_is_tried() -> None:
    def last(x: Value, axes: Shape) -> Rewrite:
        return ops.sum(x, axes, True) >> ops.sum_inner(x)

    good = Sample((3, 4), attrs={"axes": (1,)})
    assert rule(samples=(good,))(last).name == "last"
    RULES.remove("last")
    refused(last, "sides: given", samples=(good, good, good, good, Sample((3, 4), attrs={"axes": (0,)})))


def test_sums_in_another_order_are_not_exact_nor_are_large_numbers_left_out() -> None:
    def other_order(x: Value, y: Value, z: Value) -> Rewrite:
        return x + (y + z) >> x + y + z

    def no_clamp(x: Value) -> Rewrite:
        return ops.clamp(x, -1e5, 1e5) >> x

    refused(other_order, "sides: given", safety="exact")
    assert rule(safety="reassoc")(other_order).safety == "reassoc"
    refused(no_clamp, "sides: given", safety="reassoc")


def test_a_gradient_with_a_mean_in_it_may_differ_by_float32() -> None:
    def mean_of_copies(x: Value, s: Shape) -> Rewrite:
        return ops.mean_all(ops.broadcast_to(x, s)) >> ops.mean_all(x)

    assert rule(mean_of_copies).name == "mean_of_copies"


def test_no_rule_looks_through_what_is_opaque() -> None:
    def copied(x: Value) -> Rewrite:
        return ops.materialize(x) >> x

    def stopped(x: Value) -> Rewrite:
        return ops.neg(ops.stop_gradient(x)) >> ops.stop_gradient(ops.neg(x))

    for phases in (("forward",), ("full",)):
        refused(copied, "left side: given materialize, wanted ops that rules may look through", phases=phases)
    refused(stopped, "left side: given stop_gradient", phases=("full", "inference"))
    assert rule(phases="full")(stopped).phases == ("full",)


def test_what_is_no_rule_at_all_is_refused() -> None:
    def fine(x: Value) -> Rewrite:
        return ops.maximum(x, x) >> x

    def several(*xs: Value) -> Rewrite:
        return xs[0] >> xs[1]

    def by_name(x: Value, *, y: Value) -> Rewrite:
        return x + y >> y + x

    def says_nothing(x: Value, c: float) -> Rewrite:
        return ops.scale(ops.neg(x), c) >> ops.scale(ops.neg(x), c)

    refused(lambda x: ops.maximum(x, x) >> x, r"function: given <lambda>, wanted def name")
    refused(3, "function: given 3, wanted def name")
    refused(several, r"parameter: given \*xs")
    refused(by_name, "parameter: given y")
    refused(says_nothing, "right side: given the left side itself")
    refused(fine, "label: given 'a\\\\nb', wanted a text of one line", label="a\nb")
    refused(fine, "label: given 3", label=3)
    refused(fine, "samples: given 'x', wanted Sample", samples=("x",))
    refused(fine, "phases: given none", phases=())
    for tolerance in (-1.0, float("nan"), float("inf")):
        refused(fine, "tolerance: given", tolerance=tolerance)
