"""Attribute values that operands determine by their types: the last axis, a width, 1 / N, the shapes of heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.base.types import Shape, TensorType
from gdlab.rewrite.rules.conditions import MEASURED, Condition, Match, Measure, Refusal, condition
from gdlab.rewrite.rules.relations import Fact, GraphFacts, Local, Relation, Row, type_relation

__all__ = [
    "all_axes", "flat_heads", "flat_rows", "halves", "halves_of", "heads", "heads_apart", "kept", "last_axis",
    "leading_axes", "mean_factor", "one_over", "one_over_root", "one_over_rows", "row", "rows_first", "width",
]  # fmt: skip


def over_root(n: int) -> float:
    """Return 1 / √n as an attribute holds it."""
    return float(np.float32(n**-0.5))


def one_over(n: int) -> float:
    """Return 1 / n as an attribute holds it."""
    return float(np.float32(1 / n))


# of a shape -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ShapeFunction:
    """A value that a shape determines, and the relation of types that holds it."""

    relation: Relation
    of: Callable[[Shape], Any]

    def measure(self, a: str, text: str) -> Measure:
        """Return the measure of operand `a`."""
        return Measure(text, (a,), (Fact(self.relation, (a, MEASURED)),), lambda m: self.of(m.node(a).type.shape))


def _of_shape(
    name: str, of: Callable[[Shape], Any], rank: int | None = None, *, spreads: bool = False
) -> ShapeFunction:
    """Return a function of shapes; with `rank`, of shapes of this rank alone."""

    def rows(type: TensorType, facts: GraphFacts) -> list[Row]:
        return [(facts.numbers(of(type.shape)),)] if rank in (None, type.rank) else []

    return ShapeFunction(type_relation(name, 1, rows, spreads=spreads), of)


LAST = _of_shape("f_last", lambda s: (len(s) - 1,))
KEPT = _of_shape("f_kept", lambda s: (*s[:-1], 1))
LEAD = _of_shape("f_lead", lambda s: tuple(range(len(s) - 1)))
WIDTH = _of_shape("f_width", lambda s: s[-1])
LAST_EXTENT = _of_shape("f_last_extent", lambda s: s[-1:])
AXES = _of_shape("f_axes", lambda s: tuple(range(len(s))))
OVER_ROWS = _of_shape("f_over_rows", lambda s: one_over(math.prod(s[:-1])))
ROOT = _of_shape("f_root", lambda s: over_root(s[-1]))
HEADS = _of_shape("f_heads", lambda s: s[0], 3)
ROWS_FIRST = _of_shape("f_rows_first", lambda s: (s[1], s[0], s[2]), 3)
FLAT_HEADS = _of_shape("f_flat_heads", lambda s: (s[1], s[0] * s[2]), 3, spreads=True)
APART = _of_shape("f_apart", lambda s: (s[0], 1, s[1], s[2]), 3)
FLAT_ROWS = _of_shape("f_flat_rows", lambda s: (s[0], s[1] * s[2]), 3, spreads=True)


def last_axis(a: str) -> Measure:
    """The last axis of operand `a` as a reduction names it, such as (1,)."""
    return LAST.measure(a, f"the last axis of {a}")


def kept(a: str) -> Measure:
    """The shape of operand `a` with 1 in place of its last extent: what a reduction that keeps its axis leaves."""
    return KEPT.measure(a, f"the shape of {a} reduced")


def leading_axes(a: str) -> Measure:
    """All axes of operand `a` but the last."""
    return LEAD.measure(a, f"the leading axes of {a}")


def width(a: str) -> Measure:
    """The extent of the last axis of operand `a`."""
    return WIDTH.measure(a, f"the width of {a}")


def row(a: str) -> Measure:
    """The shape of a row of operand `a`: its last extent alone."""
    return LAST_EXTENT.measure(a, f"the row of {a}")


def all_axes(a: str) -> Measure:
    """All axes of operand `a`."""
    return AXES.measure(a, f"all axes of {a}")


def one_over_rows(a: str) -> Measure:
    """1 / (the number of rows of operand `a`), as float32 holds it."""
    return OVER_ROWS.measure(a, f"1 / the rows of {a}")


def one_over_root(a: str) -> Measure:
    """1 / √(the extent of the last axis of operand `a`), as float32 holds it: what attention scales by."""
    return ROOT.measure(a, f"1 / √(the width of {a})")


# of [heads, rows, d]
def heads(a: str) -> Measure:
    """The heads of operand `a`, [heads, rows, d]."""
    return HEADS.measure(a, f"the heads of {a}")


def rows_first(a: str) -> Measure:
    """The shape [rows, heads, d] for operand `a`, [heads, rows, d]."""
    return ROWS_FIRST.measure(a, f"the shape of {a}, rows first")


def flat_heads(a: str) -> Measure:
    """The shape [rows, heads · d] for operand `a`, [heads, rows, d]."""
    return FLAT_HEADS.measure(a, f"the shape of the rows of {a}")


def heads_apart(a: str) -> Measure:
    """The shape [heads, 1, rows, d] for operand `a`, [heads, rows, d]: room to repeat every head."""
    return APART.measure(a, f"the shape of {a}, heads apart")


# of [rows, heads, d]
def flat_rows(a: str) -> Measure:
    """The shape [rows, heads · d] for operand `a`, [rows, heads, d]."""
    return FLAT_ROWS.measure(a, f"the shape of {a}, heads side by side")


# of two operands ------------------------------------------------------------------------------------------------------
def _mean_factors(facts: GraphFacts) -> list[Row]:
    """Return (elements of an operand, elements of its sum, 1 / their ratio) where the graph holds that factor."""
    sizes = sorted({n.type.num_elements for n in facts.nodes})
    ratios = [(a, b, a // b) for a in sizes for b in sizes if a % b == 0]
    numbers = {value: i for i, value in enumerate(facts.numbers.values) if isinstance(value, float)}
    return [(a, b, numbers[one_over(n)]) for a, b, n in ratios if one_over(n) in numbers]


SIZE = type_relation("f_size", 1, lambda t, facts: [(t.num_elements,)])
MEAN = Relation("f_mean", "attribute", 3, _mean_factors)


def mean_factor(a: str, s: str) -> Measure:
    """1 / the number of elements of `a` that one element of its sum `s` adds up, as float32 holds it."""
    whole, part = Local(f"n_{a}"), Local(f"n_{s}")
    facts = Fact(SIZE, (a, whole)), Fact(SIZE, (s, part)), Fact(MEAN, (whole, part, MEASURED))

    def value(m: Match) -> float:
        return one_over(m.node(a).type.num_elements // m.node(s).type.num_elements)

    return Measure(f"1 / the elements that {s} adds up", (a, s), facts, value)


# halves ---------------------------------------------------------------------------------------------------------------
def halves_of(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return (start of both, stop of the lower, start of the upper, stop of the upper, steps, axis) of the halves of
    the last axis, as slices and `concat` name them."""
    zeros, half = (0,) * len(shape), shape[-1] // 2
    return zeros, (*shape[:-1], half), (*zeros[1:], half), shape, (1,) * len(shape), len(shape) - 1


def _halves(type: TensorType, facts: GraphFacts) -> list[Row]:
    return [] if type.shape[-1] % 2 else [tuple(map(facts.numbers, halves_of(type.shape)))]


HALVES = type_relation("f_halves", 6, _halves)


def halves(a: str, *names: str) -> Condition:
    """The attributes of these names cut operand `a` into the halves of its last axis, as `halves_of` lists them."""

    def check(m: Match) -> Refusal | None:
        shape = m.node(a).type.shape
        if shape[-1] % 2:
            return "shape", f"{a} has {shape[-1]} columns, not an even number"
        for name, wanted in zip(names, halves_of(shape), strict=True):
            if m.attrs[name] != wanted:
                return "attributes", f"{name} is {m.attrs[name]}, halves of {a} want {wanted}"
        return None

    text = f"attr_eq({', '.join(names)}, halves of {a})"
    return condition(text, (a, *names), (Fact(HALVES, (a, *names)),), check)
