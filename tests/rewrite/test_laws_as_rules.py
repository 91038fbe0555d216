"""Laws of algebra as a person's own rules, the e-graph recorded: sums and products of 2 to 8 terms, both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from growing import replayed
from matrix import also

import gdlab.ops as ops
from gdlab.graph import Graph, Value
from gdlab.op.reference import evaluate
from gdlab.rewrite import RULES, Rewrite, optimize, rule
from gdlab.rewrite.engine.history import NamedNode
from gdlab.rewrite.engine.saturate import Budget
from gdlab.study.study import Study

BUDGET = Budget(enodes=600)  # enough to saturate six terms; seven and eight hit the limit


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """The table as it was before."""
    theirs, removed = dict(RULES._theirs), set(RULES._removed)
    yield
    RULES._theirs, RULES._removed = theirs, removed


def associativity() -> None:
    @rule(label="Add assoc")
    def assoc(x: Value, y: Value, z: Value) -> Rewrite:
        return (x + y) + z >> x + (y + z)  # type: ignore[no-any-return]


def commutativity() -> None:
    @rule(label="Sub swapped")
    def swapped(x: Value, y: Value) -> Rewrite:
        return x - y >> -(y - x)  # type: ignore[no-any-return]


def distributivity() -> None:
    @rule(label="Distribute", safety="reassoc")
    def distribute(x: Value, y: Value, z: Value) -> Rewrite:
        return x * (y + z) >> x * y + x * z  # type: ignore[no-any-return]


def product_associativity() -> None:
    @rule(label="Mul assoc")
    def mul_assoc(x: Value, y: Value, z: Value) -> Rewrite:
        return (x * y) * z >> x * (y * z)  # type: ignore[no-any-return]


def matmul_associativity() -> None:
    @rule(label="Matmul assoc", safety="reassoc")
    def matmul_assoc(x: Value, y: Value, z: Value) -> Rewrite:
        return (x @ y) @ z >> x @ (y @ z)  # type: ignore[no-any-return]


def total(terms: Sequence[Value], op: Callable[[Any, Any], Any]) -> Value:
    result = terms[0]
    for term in terms[1:]:
        result = op(result, term)
    return result


FORMS: dict[str, Callable[[Sequence[Value]], Value]] = {
    "sum": lambda xs: total(xs, lambda a, b: a + b),
    "differences": lambda xs: total(xs, lambda a, b: a - b),
    "product of a sum": lambda xs: xs[0] * total(xs, lambda a, b: a + b),
    "product": lambda xs: total(xs, lambda a, b: a * b),
    "matmuls": lambda xs: total(xs, lambda a, b: a @ b),
}
CASES: dict[str, tuple[str, tuple[Callable[[], None], ...]]] = {
    "associativity": ("sum", (associativity,)),
    "commutativity": ("differences", (commutativity,)),
    "distributivity": ("product of a sum", (distributivity,)),
    "all three": ("product of a sum", (associativity, commutativity, distributivity)),
    "of products": ("product", (product_associativity,)),
    "of matmuls": ("matmuls", (matmul_associativity,)),
}


def graph_of(form: str, terms: int) -> Graph:
    with Graph() as g:
        xs = [ops.input(f"x{i}", (3, 3)) for i in range(terms)]
        g.set_outputs(FORMS[form](xs))
    return g


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
@pytest.mark.parametrize("terms", also([2, 3, 6, 7], 4, 5, 8))
@pytest.mark.parametrize("case", CASES)
def test_a_law_as_a_rule_is_recorded_to_the_end(case: str, terms: int, engine: Any) -> None:
    form, rules = CASES[case]
    for make in rules:
        make()
    graph = graph_of(form, terms)
    result, report = optimize(graph, phase="forward", engine=engine, history=True, budget=BUDGET, allow="reassoc")
    assert len(report.deltas) == len(report.iterations) + 1
    last = replayed(report.deltas, len(report.deltas) - 1)
    check_congruent(last)
    assert {way.node for c in report.classes for way in c.ways} == last
    assert report.to_json()["deltas"]
    check_values(graph, result)


@pytest.mark.parametrize("iterations", also([1, 2, 4, 8], 3, 5, 6, 7))
@pytest.mark.parametrize("case", ["associativity", "all three"])
def test_a_search_cut_short_is_recorded_as_well(case: str, iterations: int) -> None:
    form, rules = CASES[case]
    for make in rules:
        make()
    graph = graph_of(form, 4)
    budget = Budget(iterations=iterations)
    result, report = optimize(graph, phase="forward", history=True, budget=budget, allow="reassoc")
    for k in range(len(report.deltas)):
        check_congruent(replayed(report.deltas, k))
    check_values(graph, result)


def check_congruent(nodes: frozenset[NamedNode]) -> None:
    """No e-node is in two classes, and every operand is a class with an e-node, or a leaf of the graph."""
    home: dict[Any, str] = {}
    for n in nodes:
        assert home.setdefault((n.op, n.children, n.attrs), n.cls) == n.cls
    assert all(k[0] == "%" or k in home.values() for n in nodes for k in n.children)


def check_values(graph: Graph, result: Graph) -> None:
    generator = np.random.default_rng(1)
    feeds: Any = {n.name: generator.normal(size=n.type.shape).astype(np.float32) for n in graph.inputs}
    a, b = (evaluate(g, feeds)[g.output_ids[0]] for g in (graph, result))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("terms", [4, 6])
def test_a_study_of_a_sum_has_its_e_graph_with_an_associativity_rule(terms: int) -> None:
    associativity()
    study = Study(graph_of("sum", terms), name="s", device="cpu")
    assert not study.doc.check()
    assert study.report.deltas and study.report.stop_reason == "saturated"
