"""Rules that find rotary positions in a graph of simpler ops: halves of a head turned by cosine and sine tables.

Of [rows, d], of [heads, rows, d] and of [rows, heads, d]; the pairs are columns j and j + d/2, as in `rope`.
J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import concat, permute, reshape, rope, slice
from gdlab.rewrite.rules.conditions import Condition, attr_eq, rank, shape_eq
from gdlab.rewrite.rules.constant_conditions import AngleLayout, cosines, sines
from gdlab.rewrite.rules.measures import flat_heads, flat_rows, halves, halves_of, rows_first, width
from gdlab.rewrite.rules.pattern import Rewrite
from gdlab.rewrite.rules.rule_table import recognizes

__all__: list[str] = []

SWAP = (1, 0, 2)  # [heads, rows, d] <-> [rows, heads, d]
CUTS = ("from_", "middle", "half", "to", "one", "axis")
CUT = halves("x", *CUTS)


def turned(x: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int) -> Value:
    """Return (−upper half, lower half) of the last axis: the part that the sine multiplies."""
    return concat([-slice(x, half, to, one), slice(x, from_, middle, one)], axis)


def rotated(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int
) -> Value:
    """Return (lower · cos − upper · sin, upper · cos + lower · sin) of the halves of the last axis."""
    lower, upper = slice(x, from_, middle, one), slice(x, half, to, one)
    return concat([lower * cos - upper * sin, upper * cos + lower * sin], axis)


def angles(rows: int, twice: bool) -> tuple[Condition, ...]:
    """Require one θ of both tables; their rows are this axis from the end; `twice`: angles stand in both halves."""
    layout = AngleLayout(rows, twice)
    return cosines("cos", "theta", layout), sines("sin", "theta", layout), attr_eq("d", width("x"))


def samples(shape: Shape, twice: bool, **more: Shape) -> tuple[Sample, ...]:
    """Return samples of x and both tables for a rule."""
    table = shape if twice else (*shape[:-1], shape[-1] // 2)
    attrs = dict(zip(CUTS, halves_of(shape), strict=True)) | {"theta": 10000.0, "d": shape[-1], **more}
    return (Sample(shape, table, table, attrs=attrs),)


# [rows, d] ------------------------------------------------------------------------------------------------------------
@recognizes("RoPE", where=(rank("x", 2), CUT, *angles(2, True)), samples=samples((3, 8), True))
def recognize_rope(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int,
) -> Rewrite:  # fmt: skip
    """x · cos + concat([−upper, lower], axis) · sin → rope(x, theta, d) with [lower, upper] = x

    Of one head [rows, d].
    """
    return x * cos + turned(x, from_, middle, half, to, one, axis) * sin >> rope(x, theta, d)


@recognizes("RoPE", where=(rank("x", 2), CUT, *angles(2, False)), samples=samples((3, 8), False))
def recognize_rope_by_halves(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int,
) -> Rewrite:  # fmt: skip
    """concat([a · cos − b · sin, b · cos + a · sin], axis) → rope(x, theta, d) with [a, b] = x

    Of one head [rows, d].
    """
    return rotated(x, cos, sin, from_, middle, half, to, one, axis) >> rope(x, theta, d)


# [heads, rows, d] -----------------------------------------------------------------------------------------------------
HEADS = (attr_eq("s", flat_heads("x")), attr_eq("t", rows_first("x")))


def heads_turned(x: Value, theta: float, d: int, s: Shape, t: Shape) -> Value:
    """Apply `rope` to heads side by side: s is [rows, heads · d], t is [rows, heads, d]."""
    return permute(reshape(rope(reshape(permute(x, SWAP), s), theta, d), t), SWAP)


@recognizes(
    "RoPE", where=(rank("x", 3), CUT, *angles(2, True), *HEADS),
    samples=samples((2, 3, 8), True, s=(3, 16), t=(3, 2, 8)),
)  # fmt: skip
def recognize_rope_of_heads(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int, s: Shape, t: Shape,
) -> Rewrite:  # fmt: skip
    """x · cos + concat([−upper, lower], axis) · sin → rope(x, theta, d) with [lower, upper] = x

    Of [heads, rows, d].
    """
    return x * cos + turned(x, from_, middle, half, to, one, axis) * sin >> heads_turned(x, theta, d, s, t)


@recognizes(
    "RoPE", where=(rank("x", 3), CUT, *angles(2, False), *HEADS),
    samples=samples((2, 3, 8), False, s=(3, 16), t=(3, 2, 8)),
)  # fmt: skip
def recognize_rope_of_heads_by_halves(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int, s: Shape, t: Shape,
) -> Rewrite:  # fmt: skip
    """concat([a · cos − b · sin, b · cos + a · sin], axis) → rope(x, theta, d) with [a, b] = x

    Of [heads, rows, d].
    """
    return rotated(x, cos, sin, from_, middle, half, to, one, axis) >> heads_turned(x, theta, d, s, t)


# [rows, heads, d] -----------------------------------------------------------------------------------------------------
ROWS = (attr_eq("s", flat_rows("x")), shape_eq("x", "t"))


@recognizes(
    "RoPE", where=(rank("x", 3), CUT, *angles(3, True), *ROWS), samples=samples((3, 2, 8), True, s=(3, 16), t=(3, 2, 8))
)
def recognize_rope_of_rows(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int, s: Shape, t: Shape,
) -> Rewrite:  # fmt: skip
    """x · cos + concat([−upper, lower], axis) · sin → rope(x, theta, d) with [lower, upper] = x

    Of [rows, heads, d].
    """
    whole = x * cos + turned(x, from_, middle, half, to, one, axis) * sin
    return whole >> reshape(rope(reshape(x, s), theta, d), t)


@recognizes(
    "RoPE", where=(rank("x", 3), CUT, *angles(3, False), *ROWS),
    samples=samples((3, 2, 8), False, s=(3, 16), t=(3, 2, 8)),
)  # fmt: skip
def recognize_rope_of_rows_by_halves(
    x: Value, cos: Value, sin: Value, from_: Shape, middle: Shape, half: Shape, to: Shape, one: Shape, axis: int,
    theta: float, d: int, s: Shape, t: Shape,
) -> Rewrite:  # fmt: skip
    """concat([a · cos − b · sin, b · cos + a · sin], axis) → rope(x, theta, d) with [a, b] = x

    Of [rows, heads, d].
    """
    return rotated(x, cos, sin, from_, middle, half, to, one, axis) >> reshape(rope(reshape(x, s), theta, d), t)
