"""Graphs that a rule does not match, in both engines: its conditions refuse, or it would read two values as one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from rule_sides import refusals, side

import gdlab.ops as ops
from gdlab.base.types import TensorType
from gdlab.graph import Graph, Value
from gdlab.rewrite import RULES, Rule, optimize
from gdlab.rewrite.rules.pattern import Refusal
from gdlab.rewrite.rules.soundness import RuleCase, _append, cases, constants_of

SEVERAL = 12  # mutants of a rule
REFUSALS = list(refusals())


@pytest.mark.parametrize(("rule", "case", "refusal"), REFUSALS)
def test_a_rule_refuses_with_the_reason_of_its_condition(rule: Rule, case: RuleCase, refusal: Refusal) -> None:
    graph = side(rule, case)
    _, report = optimize(graph, phase=rule.phases[-1], only=(rule.name,), enable=(rule.name,))
    assert next(r.fired for r in report.rules if r.id == rule.name) == 0
    if rule.near:
        missed = [m for m in report.missed if m.label == rule.label]
        assert [(m.reason, m.detail) for m in missed] == [refusal]
        file, line, text = missed[0].guard or ("", 0, "")
        assert file.startswith("gdlab/rewrite/") and line > 1 and text


def test_most_conditions_were_seen_to_refuse() -> None:
    # those that nothing can break for a left side alone: `written`, products that stay finite, compositions that exist
    seen = {param.id.partition("-")[0] for param in REFUSALS}
    assert {"broadcast_to_bias_add", "recognize_mean", "recognize_rms_norm", "permute_identity"} <= seen
    assert {"reshape_to_own_shape", "mean_over_the_last_axis", "recognize_mean_of_rows"} <= seen


# what is read twice ---------------------------------------------------------------------------------------------------
def repeated(rule: Rule) -> list[tuple[int, int]]:
    """(node, operand) of the left side for every reading of what the left side reads elsewhere too."""
    reads = Counter(i for node in rule.left_nodes for i in node.inputs)
    return [(node.id, at) for node in rule.left_nodes for at, i in enumerate(node.inputs) if reads[i] > 1]


def instance(
    rule: Rule, case: RuleCase, graph: Graph, suffix: str, swap: tuple[int, int] = (-1, -1),
    other: dict[int, Value] | None = None,
) -> dict[int, Value]:  # fmt: skip
    """The left side on leaves of its own; the operand `swap` is read from another instance."""
    held, made = constants_of(rule, case), dict[int, Value]()
    for name, type in case.types.items():
        made[rule.names[name]] = leaf(graph, name, suffix, type, held)
    for node in rule.left_nodes:
        operands = [(other or made)[i] if (node.id, at) == swap else made[i] for at, i in enumerate(node.inputs)]
        made[node.id] = _append(graph, node, operands, case.attrs)
    return made


def leaf(graph: Graph, name: str, suffix: str, type: TensorType, held: dict[str, Any]) -> Value:
    if name in held:
        return ops.constant(held[name], graph=graph)
    known = [n for n in graph.inputs if n.name == name + suffix]
    return graph.value(known[0].id) if known else ops.input(name + suffix, type.shape, graph=graph)


def counted(rule: Rule) -> bool:
    """Whether it asks how often something is used, or whether it was written: a second instance changes that."""
    return any(c.text.startswith(("single_use", "written")) for c in rule.where)


WITH_REPEATS = [r for r in RULES if r.left >= 0 and repeated(r) and not counted(r)]


@pytest.mark.parametrize("rule", WITH_REPEATS, ids=lambda r: r.name)
def test_what_is_read_twice_is_one_value(rule: Rule) -> None:
    case = next(cases(rule))
    graph = Graph()
    one, two = (instance(rule, case, graph, suffix) for suffix in ("1", "2"))
    roots = [one[rule.left], two[rule.left]]
    true = fired(rule, graph, roots, "egglog")
    for swap in itertools.islice(repeated(rule), SEVERAL):
        roots.append(instance(rule, case, graph, "1", swap, two)[rule.left])
    counts = [fired(rule, graph, roots, engine) for engine in ("egglog", "fallback")]
    assert counts[0] == counts[1] >= true >= 2


def fired(rule: Rule, graph: Graph, roots: list[Value], engine: Any) -> int:
    graph.set_outputs(roots)
    _, report = optimize(graph, phase=rule.phases[-1], only=(rule.name,), enable=(rule.name,), engine=engine)
    return next(r.fired for r in report.rules if r.id == rule.name)
