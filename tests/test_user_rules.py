"""A rule that a person writes in a cell: five lines, checked at once, used by the next graph, undone by its name."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gdlab.ops as ops
from gdlab.errors import OptimizeError
from gdlab.graph import Graph, Value
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
