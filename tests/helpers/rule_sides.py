"""One side of a rule as a graph, on operands that fit it, or that nearly do."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import gdlab.ops as ops
from gdlab.base.types import TensorType
from gdlab.graph import AttrVar, Graph, Value
from gdlab.rewrite import RULES, Rule
from gdlab.rewrite.rules.soundness import (
    RuleCase,
    build,
    cases,
    constants_of,
    left_sides,
    matched,
    shapes_of,
    stands,
    values_of,
)

STATED = [r for r in RULES if r.left >= 0]
TRIED = 4  # operand types per rule


def of(rule: Rule) -> str:
    return rule.name


def leaf(graph: Graph, name: str, type: TensorType) -> Value:
    return ops.parameter(name, type.shape, graph=graph)


def side(rule: Rule, case: RuleCase, right: bool = False, swapped: frozenset[int] = frozenset()) -> Graph:
    held = constants_of(rule, case)

    def make(graph: Graph, name: str, type: TensorType) -> Value:
        return ops.constant(held[name], graph=graph) if name in held else leaf(graph, name, type)

    graph, root = build(rule, case, rule.right if right else rule.left, make, swapped)
    graph.set_outputs(Value(graph, root))
    return graph


def tried(rule: Rule) -> list[RuleCase]:
    return list(itertools.islice(cases(rule), TRIED))


def near_sides(rule: Rule) -> Iterator[tuple[dict[str, TensorType], dict[str, Any]]]:
    """Operand types and attributes for which the left side exists: any, or those of a sample with one changed."""
    loose = dataclasses.replace(rule, where=(), samples=())
    if not rule.samples:
        yield from islice(left_sides(loose), 200)
        return
    held = {v.name for node in rule.left_nodes for _, v in node.attrs if isinstance(v, AttrVar)}
    for sample in rule.samples:
        types = dict(zip(rule.variables, (TensorType(s) for s in sample.shapes), strict=True))
        attrs = {name: value for name, value in sample.attrs.items() if name in held}
        changed = [(types, attrs | {name: value}) for name in attrs for value in values_of(loose, name)
                   if not isinstance(value, tuple) or len(value) == len(attrs[name])]  # fmt: skip
        changed += [(types | {name: TensorType(s)}, attrs) for name in types for s in shapes_of(loose)]
        yield from (pair for pair in changed if stands(loose, *pair) and as_built(loose, *pair))


def as_built(rule: Rule, types: dict[str, TensorType], attrs: dict[str, Any]) -> bool:
    """Whether the ops keep these attributes as they are."""
    made = [n for n in build(rule, RuleCase(types, attrs), rule.left)[0] if n.op != "var"]
    given = ([(k, attrs[v.name] if isinstance(v, AttrVar) else v) for k, v in n.attrs] for n in rule.left_nodes)
    return all(list(a.attrs) == b for a, b in zip(made, given, strict=True))


def refusals() -> Iterator[Any]:
    """For every rule and each of its conditions operands that fit the left side, where this condition says no."""
    for r in STATED:
        of_types = [c for c in r.where if c.example is None and not c.text.startswith("is_param")]
        seen: set[str] = set()
        for types, attrs in near_sides(r) if of_types else ():
            unbound = [c for c in r.where if c.binds in r.attr_variables and c.binds not in attrs and not c.example]
            attrs = attrs | {c.binds: c.value(matched(r, types, attrs)) for c in unbound}
            match = matched(r, types, attrs)
            told = ((str(c), refusal) for c in of_types if (refusal := c.check(match)) is not None)
            text, refusal = next(told, ("", None))
            if refusal is not None and text not in seen:
                seen.add(text)
                yield pytest.param(r, RuleCase(types, attrs), refusal, id=f"{r.name}-{text}")
            if len(seen) == len(of_types):
                break
