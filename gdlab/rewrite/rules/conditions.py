"""What a rule may ask for: a closed set of conditions, each with its facts for the e-graph, its check and its refusal.

A condition is stated once: as facts for the e-graph, and as a check in Python whose refusal is shown to people.
"""

from __future__ import annotations

import linecache
import math
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gdlab.base.errors import OptimizeError
from gdlab.base.types import DType, TensorType
from gdlab.graph import Graph, Node

__all__ = [
    "HIDDEN", "Condition", "Egg", "Intern", "Match", "Measure", "Reason", "Refusal", "attr_compose", "attr_eq",
    "composed", "condition", "const_eq", "dtype", "finite", "interned", "is_param", "not_output", "rank", "repeated",
    "repeats", "rows_of", "shape_eq", "single_use", "written",
]  # fmt: skip

Reason = Literal[
    "multi_use", "is_output", "attributes", "shape", "dtype", "phase", "safety", "disabled", "weight_shared",
    "weight_not_parameter", "cost", "budget",
]  # fmt: skip
Refusal = tuple[Reason, str]  # and the detail, in words
Place = tuple[str, int]  # file and line


@dataclass(frozen=True, slots=True)
class Match:
    """A rule's left side found in a graph: `nodes` by variable (or by the name of an inner node), `attrs` by variable.

    `inner` are the matched nodes that are no variables, root first; `uses` counts readers and outputs of every node.
    """

    graph: Graph
    nodes: Mapping[str, int]
    attrs: Mapping[str, Any]
    inner: tuple[int, ...]
    uses: list[int]
    outputs: frozenset[int]

    def node(self, name: str) -> Node:
        """The node that stands for `name`."""
        return self.graph.node(self.nodes[name])


Egg = Callable[[str], str]  # the e-graph's variable for a name of the rule
Intern = Callable[[Any], int]  # the number that stands for an attribute value


# files that make conditions
STATING = {str(Path(__file__).with_name(f"{name}.py")) for name in ("conditions", "constant_conditions", "measures")}


def _here() -> Place:
    """Where a rule states its condition: the first frame outside the files that make them."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in STATING:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(frozen=True)
class Condition:
    """One condition: its text, the names it speaks of, its facts for the e-graph, and its check (None: it holds).

    `binds` is an attribute that it determines, `value` how, from the operands and attributes of a match. `example` is
    an operand that must be a constant, and its elements by shape.
    """

    text: str
    names: tuple[str, ...]
    facts: Callable[[Egg, Intern], tuple[str, ...]]
    check: Callable[[Match], Refusal | None]
    binds: str = ""
    value: Callable[[Match], Any] = lambda m: None
    place: Place = field(default=("", 0), compare=False)
    example: tuple[str, Callable[[tuple[int, ...]], np.ndarray[Any, Any]]] | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def source(self) -> tuple[str, int, str]:
        """(file, line, text) of the Python that states it; a file of gdlab is named from the package on."""
        return _stated(*self.place)


@lru_cache(maxsize=1024)
def _stated(file: str, line: int) -> tuple[str, int, str]:
    package = Path(__file__).parents[2]
    inside = Path(file).is_relative_to(package)
    named = Path(file).relative_to(package.parent).as_posix() if inside else file
    return named, line, linecache.getline(file, line).strip()


def condition(
    text: str,
    names: tuple[str, ...],
    facts: Callable[[Egg, Intern], tuple[str, ...]],
    check: Callable[[Match], Refusal | None],
    binds: str = "",
    value: Callable[[Match], Any] = lambda m: None,
) -> Condition:
    """A condition that knows the line of the rule that states it."""
    return Condition(text, names, facts, check, binds, value, _here())


# shapes and dtypes ----------------------------------------------------------------------------------------------------
def shape_eq(a: str, b: str, *, last: bool = False) -> Condition:
    """Operands `a` and `b` have one shape; `b` may be an attribute. With `last`, `a` is a row [n] or [1, n] along the
    last axis of b, [..., n]."""

    def facts(egg: Egg, intern: Intern) -> tuple[str, ...]:
        if egg(b).startswith("a_"):
            return (f"(f_shape {egg(a)} {egg(b)})",)
        return f"(f_shape {egg(a)} s_{a}_{b})", f"({'f_row' if last else 'f_shape'} {egg(b)} s_{a}_{b})"

    def check(m: Match) -> Refusal | None:
        given = m.node(a).type.shape
        if b not in m.attrs and b not in m.nodes:  # this condition determines it
            return None
        wanted = m.attrs[b] if b in m.attrs else m.node(b).type.shape
        if given == wanted if not last else given in rows_of(m.node(b).type):
            return None
        if last:
            return "shape", f"{a} has shape {list(given)}, the last axis of {b} has {list(wanted[-1:])}"
        return "shape", f"{a} has shape {list(given)}, {b} has {list(wanted)}"

    value = lambda m: m.node(a).type.shape  # noqa: E731
    return condition(f"shape_eq({a}, {b}{', last' if last else ''})", (a, b), facts, check, b, value)


def rows_of(type: TensorType) -> tuple[tuple[int, ...], ...]:
    """The shapes of a row along the last axis."""
    n = type.shape[-1]
    return ((n,), (1, n)) if type.rank > 1 else ((n,),)


def rank(a: str, n: int) -> Condition:
    """Operand `a` has `n` axes."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.rank
        return None if found == n else ("shape", f"{a} has rank {found}, not {n}")

    return condition(f"rank({a}, {n})", (a,), lambda egg, intern: (f"(f_rank {egg(a)} {n})",), check)


def dtype(a: str, wanted: DType) -> Condition:
    """Operand `a` has this dtype."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.dtype
        return None if found is wanted else ("dtype", f"{a} is {found}, not {wanted}")

    facts = lambda egg, intern: (f"(f_dtype {egg(a)} {intern(str(wanted))})",)  # noqa: E731
    return condition(f"dtype({a}, {wanted})", (a,), facts, check)


# what a node is to the graph ------------------------------------------------------------------------------------------
def is_param(a: str) -> Condition:
    """Operand `a` is a parameter."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).op
        return None if found == "parameter" else ("weight_not_parameter", f"{a} is a {found}")

    return condition(f"is_param({a})", (a,), lambda egg, intern: (f"(f_param {egg(a)})",), check)


def single_use(a: str) -> Condition:
    """`a` (an operand, or an inner node by its name) is read exactly once; a gradient of its own reads a parameter."""

    def check(m: Match) -> Refusal | None:
        id, weight = m.nodes[a], m.node(a).op == "parameter"
        reason: Reason = "weight_shared" if weight else "multi_use"
        if m.uses[id] != 1:
            return reason, f"{a}, %{id}, is used {m.uses[id]} times"
        twin = next((name for name, other in m.nodes.items() if weight and other == id and name != a), None)
        return None if twin is None else (reason, f"{a} and {twin} are both %{id}")

    return condition(f"single_use({a})", (a,), lambda egg, intern: (f"(f_single {egg(a)})",), check)


def not_output(a: str) -> Condition:
    """`a` is no output of the graph."""

    def check(m: Match) -> Refusal | None:
        return ("is_output", f"{a}, %{m.nodes[a]}, is an output") if m.nodes[a] in m.outputs else None

    return condition(f"not_output({a})", (a,), lambda egg, intern: (f"(f_inner {egg(a)})",), check)


def const_eq(a: str, value: float) -> Condition:
    """Operand `a` is filled with `value`."""

    def check(m: Match) -> Refusal | None:
        node = m.node(a)
        found = node.attr("value") if node.op == "full" else None
        same = found is not None and interned(found) == interned(float(value))
        return None if same else ("attributes", f"{a} is {node.op if found is None else found}, not {value}")

    facts = lambda egg, intern: (f"(f_fill {egg(a)} {intern(float(value))})",)  # noqa: E731
    example = a, lambda shape: np.full(shape, float(value))
    return replace(condition(f"const_eq({a}, {value})", (a,), facts, check), example=example)


SMALLEST = float(np.finfo(np.float32).tiny)
HIDDEN = -1e8  # what is added to a score that must not count: e to that is 0


def written(a: str) -> Condition:
    """`a` (an inner node by its name) stands in the input graph: no rule made it."""
    return condition(f"written({a})", (a,), lambda egg, intern: (f"(f_written {egg(a)})",), lambda m: None)


# attributes -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measure:
    """An attribute value that operands determine by their types: what `attr_eq` compares with."""

    text: str
    names: tuple[str, ...]
    facts: Callable[[Egg, str], tuple[str, ...]]
    value: Callable[[Match], Any]


def attr_eq(a: str, b: str | Measure) -> Condition:
    """Attributes `a` and `b` are equal; `b` may be what operands determine, such as `last_axis("x")`."""
    if isinstance(b, Measure):
        return _measured(a, b)

    def check(m: Match) -> Refusal | None:
        same = interned(m.attrs[a]) == interned(m.attrs[b])
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b} is {m.attrs[b]!r}")

    return condition(f"attr_eq({a}, {b})", (a, b), lambda egg, intern: (f"(= {egg(a)} {egg(b)})",), check)


def _measured(a: str, b: Measure) -> Condition:
    def check(m: Match) -> Refusal | None:
        wanted = b.value(m)
        same = interned(m.attrs.get(a, wanted)) == interned(wanted)
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b.text} is {wanted!r}")

    facts = lambda egg, intern: b.facts(egg, egg(a))  # noqa: E731
    return condition(f"attr_eq({a}, {b.text})", (a, *b.names), facts, check, a, b.value)


def attr_compose(a: str, b: str, c: str) -> Condition:
    """Attribute `c` is `a` after `b`: of permutations c[i] = a[b[i]], of factors a · b in float32. It determines `c`.

    Where float32 does not hold a product of factors (too large, or too small for its precision), there is no such `c`.
    """

    def check(m: Match) -> Refusal | None:
        found = composed(m.attrs[a], m.attrs[b])
        if found is None:
            return "attributes", f"{m.attrs[a]!r} · {m.attrs[b]!r} is beyond float32"
        same = interned(m.attrs.get(c, found)) == interned(found)
        return None if same else ("attributes", f"{a} after {b} is {found}, not {m.attrs[c]}")

    facts = lambda egg, intern: (f"(f_compose {egg(a)} {egg(b)} {egg(c)})",)  # noqa: E731
    value = lambda m: composed(m.attrs[a], m.attrs[b])  # noqa: E731
    return condition(f"attr_compose({a}, {b}, {c})", (a, b, c), facts, check, c, value)


def composed(a: Any, b: Any) -> Any:
    """Permutation a after b, or the product of two factors as float32 holds it; None where it has no such number."""
    if isinstance(a, tuple):
        return tuple(a[i] for i in b)
    with np.errstate(over="ignore", under="ignore"):
        product = float(np.float32(a * b))
    # one that became 0 or lost digits would be a factor of its own: (1e-30 · (1e-30 · 1e30)) is not 0
    held = math.isfinite(product) and (abs(product) >= SMALLEST or a == 0 or b == 0)
    return product if held else None


def repeats(a: str, b: str) -> Condition:
    """Shape `a` is shape `b` but along axis 1, where b has extent 1."""

    def check(m: Match) -> Refusal | None:
        found = repeated(m.attrs[b], m.attrs[a])
        return None if found else ("attributes", f"{a} is {m.attrs[a]}, more than axis 1 of {m.attrs[b]} repeated")

    facts = lambda egg, intern: (f"(f_repeats {egg(a)} {egg(b)})",)  # noqa: E731
    return condition(f"attr_eq({a}, {b} repeated along axis 1)", (a, b), facts, check)


def repeated(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a broadcast from one shape to the other repeats along axis 1 alone."""
    return len(before) == len(after) > 1 and before[1] == 1 and (*before[:1], after[1], *before[2:]) == after


def finite(a: str, *, above: float | None = None) -> Condition:
    """Attribute `a` is a finite number; with `above=0`, one above 0."""
    if above not in (None, 0):
        raise OptimizeError("finite", "above", above, "None or 0")

    def check(m: Match) -> Refusal | None:
        value = m.attrs.get(a, 1.0)
        if math.isfinite(value) and (above is None or value > above):
            return None
        return "attributes", f"{a} is {value!r}, not a finite number{'' if above is None else f' above {above:g}'}"

    table = "f_finite" if above is None else "f_positive"
    text = f"finite({a}{'' if above is None else f', above={above:g}'})"
    return condition(text, (a,), lambda egg, intern: (f"({table} {egg(a)})",), check)


def interned(value: Any) -> tuple[Any, ...]:
    """A hashable stand-in for an attribute value: equal exactly where the values are the same kind and bits."""
    return (float, struct.pack("<d", value)) if isinstance(value, float) else (type(value), value)
