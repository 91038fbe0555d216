"""Attribute values that operands determine by their types: the last axis, a width, 1 / N, the shapes of heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdlab.rewrite.rules.conditions import Condition, Egg, Intern, Match, Measure, Refusal, condition

__all__ = [
    "all_axes", "flat_heads", "flat_rows", "halves", "halves_of", "heads", "heads_apart", "kept", "last_axis",
    "leading_axes", "mean_factor", "one_over", "one_over_root", "one_over_rows", "over_root", "row", "rows_first",
    "width",
]  # fmt: skip


def last_axis(a: str) -> Measure:
    """The last axis of operand `a` as a reduction names it, such as (1,)."""
    value = lambda m: (m.node(a).type.rank - 1,)  # noqa: E731
    return Measure(f"the last axis of {a}", (a,), lambda egg, it: (f"(f_last {egg(a)} {it})",), value)


def kept(a: str) -> Measure:
    """The shape of operand `a` with 1 in place of its last extent: what a reduction that keeps its axis leaves."""
    value = lambda m: (*m.node(a).type.shape[:-1], 1)  # noqa: E731
    return Measure(f"the shape of {a} reduced", (a,), lambda egg, it: (f"(f_kept {egg(a)} {it})",), value)


def leading_axes(a: str) -> Measure:
    """All axes of operand `a` but the last."""
    value = lambda m: tuple(range(m.node(a).type.rank - 1))  # noqa: E731
    return Measure(f"the leading axes of {a}", (a,), lambda egg, it: (f"(f_lead {egg(a)} {it})",), value)


def mean_factor(a: str, s: str) -> Measure:
    """1 / the number of elements of `a` that one element of its sum `s` adds up, as float32 holds it."""

    def facts(egg: Egg, it: str) -> tuple[str, ...]:
        sizes = f"n_{a}", f"n_{s}"
        return f"(f_size {egg(a)} {sizes[0]})", f"(f_size {egg(s)} {sizes[1]})", f"(f_mean {sizes[0]} {sizes[1]} {it})"

    def value(m: Match) -> float:
        return one_over(m.node(a).type.num_elements // m.node(s).type.num_elements)

    return Measure(f"1 / the elements that {s} adds up", (a, s), facts, value)


def width(a: str) -> Measure:
    """The extent of the last axis of operand `a`."""
    value = lambda m: m.node(a).type.shape[-1]  # noqa: E731
    return Measure(f"the width of {a}", (a,), lambda egg, it: (f"(f_width {egg(a)} {it})",), value)


def row(a: str) -> Measure:
    """The shape of a row of operand `a`: its last extent alone."""
    return _shaped(f"the row of {a}", a, "f_last_extent", lambda s: s[-1:])


def all_axes(a: str) -> Measure:
    """All axes of operand `a`."""
    return _shaped(f"all axes of {a}", a, "f_axes", lambda s: tuple(range(len(s))))


def one_over_rows(a: str) -> Measure:
    """1 / (the number of rows of operand `a`), as float32 holds it."""
    return _shaped(f"1 / the rows of {a}", a, "f_over_rows", lambda s: one_over(math.prod(s[:-1])))


# of [heads, rows, d]
def heads(a: str) -> Measure:
    """The heads of operand `a`, [heads, rows, d]."""
    return _shaped(f"the heads of {a}", a, "f_heads", lambda s: s[0])


def rows_first(a: str) -> Measure:
    """The shape [rows, heads, d] for operand `a`, [heads, rows, d]."""
    return _shaped(f"the shape of {a}, rows first", a, "f_rows_first", lambda s: (s[1], s[0], s[2]))


def flat_heads(a: str) -> Measure:
    """The shape [rows, heads · d] for operand `a`, [heads, rows, d]."""
    return _shaped(f"the shape of the rows of {a}", a, "f_flat_heads", lambda s: (s[1], s[0] * s[2]))


def heads_apart(a: str) -> Measure:
    """The shape [heads, 1, rows, d] for operand `a`, [heads, rows, d]: room to repeat every head."""
    return _shaped(f"the shape of {a}, heads apart", a, "f_apart", lambda s: (s[0], 1, s[1], s[2]))


# of [rows, heads, d]
def flat_rows(a: str) -> Measure:
    """The shape [rows, heads · d] for operand `a`, [rows, heads, d]."""
    return _shaped(f"the shape of {a}, heads side by side", a, "f_flat_rows", lambda s: (s[0], s[1] * s[2]))


def _shaped(text: str, a: str, relation: str, of: Callable[[tuple[int, ...]], Any]) -> Measure:
    facts = lambda egg, it: (f"({relation} {egg(a)} {it})",)  # noqa: E731
    return Measure(text, (a,), facts, lambda m: of(m.node(a).type.shape))


def halves_of(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """(start of both, stop of the lower, start of the upper, stop of the upper, steps, axis) of the halves of the last
    axis, as slices and `concat` name them."""
    zeros, half = (0,) * len(shape), shape[-1] // 2
    return zeros, (*shape[:-1], half), (*zeros[1:], half), shape, (1,) * len(shape), len(shape) - 1


def halves(a: str, *names: str) -> Condition:
    """The attributes of these names cut operand `a` into the halves of its last axis, as `halves_of` lists them."""

    def facts(egg: Egg, intern: Intern) -> tuple[str, ...]:
        return (f"(f_halves {' '.join(map(egg, (a, *names)))})",)

    def check(m: Match) -> Refusal | None:
        shape = m.node(a).type.shape
        if shape[-1] % 2:
            return "shape", f"{a} has {shape[-1]} columns, not an even number"
        for name, wanted in zip(names, halves_of(shape), strict=True):
            if m.attrs[name] != wanted:
                return "attributes", f"{name} is {m.attrs[name]}, halves of {a} want {wanted}"
        return None

    return condition(f"attr_eq({', '.join(names)}, halves of {a})", (a, *names), facts, check)


def one_over_root(a: str) -> Measure:
    """1 / √(the extent of the last axis of operand `a`), as float32 holds it: what attention scales by."""
    value = lambda m: over_root(m.node(a).type.shape[-1])  # noqa: E731
    return Measure(f"1 / √(the width of {a})", (a,), lambda egg, it: (f"(f_root {egg(a)} {it})",), value)


def over_root(n: int) -> float:
    """1 / √n as an attribute holds it."""
    return float(np.float32(n**-0.5))


def one_over(n: int) -> float:
    """1 / n as an attribute holds it."""
    return float(np.float32(1 / n))
