"""Hide from a driver's compiler the values of a chain with which it would fold what two ops compute.

WGSL lets a compiler take floats for real numbers that are always finite. NVIDIA's and Mesa's make x of (x + c) − c, 0
of x · 0 and of x − x, x of √x · √x and of x · y / y, x · ∞ of (x · 1e20) · 1e20: a NaN goes unnoticed, an exact zero
becomes one. NVIDIA's makes c of x · c where c is subnormal. (Measured 2026-11-29.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from gdlab.plan.dispatch import Arg, PointOp

SUM = re.compile(r"-?\w+|\w+ [+-] \w+")  # the expressions of lines
PRODUCT = re.compile(r"[\w.]+ [*/] \w+")
INVERSE = {"exp(x)": "log(x)", "log(x)": "exp(x)"}
ROOT = "sqrt(x)"
NORMAL = 2.0**-126  # the smallest number that is not taken for 0
CONSTANT: Literal["constant"] = "constant"  # an operand that is a number of the op

Key = tuple[str, float] | Literal["constant"]


def unfolded(chain: Sequence[PointOp]) -> list[frozenset[int | str]]:
    """Return for each line the places of those arguments, and the names of those attributes, that are to be hidden from
    the compiler.

    Two sums in a row are hidden from each other where they have an operand in common or a number each, and so are two
    products; a product's factor that is 0 or subnormal; one of two equal operands of a difference or a quotient; the
    root in √x · √x; log of exp and exp of log. Ops between them end the search: of x · 2 − x at most the last digit and
    an infinity change.
    """
    hidden: list[frozenset[int | str]] = []
    operands: list[set[Key]] = []  # of each line, those of its sum or product as far as the compiler sees
    for line in chain:
        kind = next((each for each in (SUM, PRODUCT) if each.fullmatch(line.expr)), None)
        seen = [_seen(chain, operands, a, kind) for a in line.args]
        hidden.append(frozenset(_hidden(chain, line, kind, seen)))
        own = [each for k, each in enumerate(seen) if k not in hidden[-1]]
        operands.append(set().union({CONSTANT} if _has_number(line) else (), *own))
    return hidden


def _seen(chain: Sequence[PointOp], operands: Sequence[set[Key]], arg: Arg, kind: re.Pattern[str] | None) -> set[Key]:
    """Return an argument and, where a line of this kind makes it, the operands of that line."""
    if arg.kind == "literal":
        return {CONSTANT}
    alike = arg.kind == "op" and kind is not None and kind.fullmatch(chain[arg.index].expr)
    return {(arg.kind, arg.index), *(operands[arg.index] if alike else ())}


def _hidden(
    chain: Sequence[PointOp], line: PointOp, kind: re.Pattern[str] | None, seen: Sequence[set[Key]]
) -> set[int | str]:
    args, makers = line.args, [chain[a.index].expr if a.kind == "op" else "" for a in line.args]
    if line.expr in INVERSE:
        return {0} if makers[0] == INVERSE[line.expr] else set()
    if kind is None:
        return set()
    hidden = set[int | str]()
    if kind is PRODUCT:
        hidden |= {k for k, a in enumerate(args) if a.kind == "literal" and abs(a.value) < NORMAL}
        hidden |= {name for name, value in line.attrs if isinstance(value, (int, float)) and abs(value) < NORMAL}
    if len(args) == 2 and args[0] == args[1]:
        cancels = " - " in line.expr or " / " in line.expr or (" * " in line.expr and makers[1] == ROOT)
        return {1} if cancels else hidden
    numbers: list[set[Key]] = [{CONSTANT}] if _has_number(line) else []
    groups = [*seen, *numbers]
    for k, arg in enumerate(args):
        others = set[Key]().union(*(group for j, group in enumerate(groups) if j != k))
        if arg.kind == "op" and groups[k] & others:
            hidden.add(k)
    return hidden


def _has_number(line: PointOp) -> bool:
    return bool(line.attrs) or line.expr[0].isdigit()
