"""Write the ops as a table: `markdown()` is docs/ops.md, `listing()` the same for a terminal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import gdlab.ops as public
from gdlab.op import (
    REGISTRY,
    Alias,
    Contraction,
    Elementwise,
    Family,
    Fill,
    Kernel,
    Leaf,
    Movement,
    Op,
    Reduction,
    Shader,
)

PRIVATE = "private"  # the section of ops that only gradients build
HEAD = """# Ops

Written by `python -m gdlab.ops.table`; do not edit. Every op is a function of `gdlab.ops` and, when it has operands, a
method of a value. Operators: `+ - * / ** @`, unary `-`, `>`, `x.T`, `x[:, 1:3]`; a number on either side makes
`add_scalar`, `scale`, `recip`, `square`, `pow_scalar`.
"""


@dataclass(frozen=True, slots=True)
class OpRow:
    """The row of one op in the table."""

    family: str
    name: str
    call: str
    meaning: str
    gradient: str
    kernel: str


def rows() -> list[OpRow]:
    """Return all ops by family and name; private ones last."""
    functions = [name for name in public.__all__ if name not in REGISTRY]
    found = [_row(op) for op in REGISTRY.values()] + [_function(name) for name in functions]
    order = [*get_args(Family), PRIVATE]
    return sorted(found, key=lambda row: (order.index(row.family), row.name))


def markdown() -> str:
    """Return the table as in docs/ops.md."""
    parts = [HEAD]
    for family, members in _by_family():
        parts.append(f"\n## {family}\n\n| op | meaning | gradient | kernel |\n|---|---|---|---|\n")
        parts += [f"| `{r.call}` | {_cell(r.meaning)} | {r.gradient} | {_cell(f'`{r.kernel}`')} |\n" for r in members]
    return "".join(parts)


def listing() -> str:
    """Return the table for a terminal."""
    lines = []
    for family, members in _by_family():
        width = max(len(r.call) for r in members)
        lines += [family, *(f"  {r.call:{width}}  {r.meaning}" for r in members), ""]
    return "\n".join(lines)


def _by_family() -> Iterator[tuple[str, list[OpRow]]]:
    table = rows()
    for family in dict.fromkeys(row.family for row in table):
        yield family, [row for row in table if row.family == family]


def _row(op: Op) -> OpRow:
    family = PRIVATE if op.kind == "private" else op.family
    return OpRow(family, op.name, _call(op.name, op.rule), _meaning(op.rule), _gradient(op), _kernel(op.kernel))


def _function(name: str) -> OpRow:
    function = getattr(public, name)
    return OpRow("leaf", name, _call(name, function), _meaning(function), "", "a call of other ops")


def _call(name: str, function: Callable[..., Any]) -> str:
    """Return the call without annotations: `sum(x, axes=None, keepdims=False)`."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for n, p in signature.parameters.items() if n != "graph"]
    return name + str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _meaning(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def _gradient(op: Op) -> str:
    if isinstance(op.kernel, (Leaf, Fill)):
        return ""
    if op.no_grad is not None:
        return {"ends": "the path ends", "stops": "the path ends", "refuses": "an error"}[op.no_grad]
    return "its own" if op.gradient is not None else "of its body"


def _kernel(kernel: Kernel | None) -> str:
    match kernel:
        case None:
            return "of its body"
        case Elementwise(expr, choices):
            return " or ".join(choices.values()) or expr
        case Fill(expr):
            return expr
        case Reduction(combine, finish):
            return combine if finish == "acc" else f"{combine}, {finish}"
        case Contraction(a, b):
            return f"{a} · {b}"
        case Shader(file):
            return file
        case Leaf() | Alias() | Movement():
            return type(kernel).__name__.lower()


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    print(markdown(), end="")
