"""Hide from a driver's compiler the values of a chain with which it would fold what two ops compute.

WGSL lets a compiler take floats for real numbers that are always finite. NVIDIA's and Mesa's make x of (x + c) − c, 0
of x · 0 and of x − x, x of √x · √x and of x · y / y, x · ∞ of (x · 1e20) · 1e20: a NaN goes unnoticed, an exact zero
becomes one. NVIDIA's makes c of x · c where c is subnormal. (Measured 2026-11-29.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gdlab.plan.dispatch import Arg, PointOp

SUMS = frozenset({"add", "sub", "neg", "add_scalar", "bias_add"})
PRODUCTS = frozenset({"mul", "div", "scale", "recip", "square", "bias_mul"})
NORMAL = 2.0**-126  # the smallest number that is not taken for 0
INVERSE = {"exp": "log", "log": "exp"}
CONSTANT: Literal["constant"] = "constant"  # an operand that is a number of the op

Key = tuple[str, float] | Literal["constant"]


def unfolded(chain: Sequence[PointOp]) -> list[frozenset[int | str]]:
    """Return for each line the places of those arguments, and the names of those attributes, that are to be hidden from
    the compiler.

    Two sums in a row are hidden from each other where they have an operand in common or a number each, and so are two
    products; a product's factor that is 0 or subnormal; one of two equal operands of `sub` and `div`; the root in
    √x · √x; `log` of `exp` and `exp` of `log`. Ops between them end the search: of x · 2 − x at most the last digit and
    an infinity change.
    """
    found: list[frozenset[int | str]] = []
    for line in chain:
        found.append(frozenset(_hidden(chain, found, line)))
    return found


def _hidden(chain: Sequence[PointOp], before: Sequence[frozenset[int | str]], line: PointOp) -> set[int | str]:
    args, makers = line.args, [chain[a.index] if a.kind == "op" else None for a in line.args]
    if line.op in INVERSE:
        return {0} if makers[0] and makers[0].op == INVERSE[line.op] else set()
    kind = SUMS if line.op in SUMS else PRODUCTS if line.op in PRODUCTS else None
    if kind is None:
        return set()
    hidden = set[int | str]()
    if kind is PRODUCTS:
        hidden |= {k for k, a in enumerate(args) if a.kind == "literal" and abs(a.value) < NORMAL}
        hidden |= {name for name, value in line.attrs if abs(value) < NORMAL}
    if len(args) == 2 and args[0] == args[1]:
        root = makers[1] is not None and makers[1].op == "sqrt"
        return {1} if line.op in ("sub", "div") or (line.op == "mul" and root) else hidden
    reached = [_operands(chain, before, a, kind) for a in args]
    if line.attrs or line.op == "recip":
        reached.append({CONSTANT})
    for k, (arg, operands) in enumerate(zip(args, reached, strict=False)):
        others = set[Key]().union(*(other for j, other in enumerate(reached) if j != k))
        if arg.kind == "op" and operands & others:
            hidden.add(k)
    return hidden


def _operands(
    chain: Sequence[PointOp], before: Sequence[frozenset[int | str]], arg: Arg, kind: frozenset[str]
) -> set[Key]:
    """Return what a sum or a product is made of as far as the compiler sees: itself, and the operands of its sums or
    products."""
    if arg.kind == "literal":
        return {CONSTANT}
    found: set[Key] = {(arg.kind, arg.index)}
    if arg.kind == "op" and chain[arg.index].op in kind:
        line = chain[arg.index]
        if line.attrs or line.op == "recip":
            found.add(CONSTANT)
        for k, each in enumerate(line.args):
            if k not in before[arg.index]:
                found |= _operands(chain, before, each, kind)
    return found
