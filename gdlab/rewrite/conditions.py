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

from gdlab.errors import OptimizeError
from gdlab.graph import Graph, Node
from gdlab.types import DType, TensorType

__all__ = [
    "Condition", "Match", "Measure", "Reason", "Refusal", "attr_compose", "attr_eq", "causal_mask", "composed",
    "const_eq", "dtype", "finite", "interned", "is_causal_mask", "is_param", "kept", "last_axis", "leading_axes",
    "mean_factor", "not_output", "one_over_root", "rank", "shape_eq", "single_use", "width", "written",
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


def _here() -> Place:
    """Where a rule states its condition: the first frame outside this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
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
    package = Path(__file__).parents[1]
    inside = Path(file).is_relative_to(package)
    named = Path(file).relative_to(package.parent).as_posix() if inside else file
    return named, line, linecache.getline(file, line).strip()


def _condition(
    text: str,
    names: tuple[str, ...],
    facts: Callable[[Egg, Intern], tuple[str, ...]],
    check: Callable[[Match], Refusal | None],
    binds: str = "",
    value: Callable[[Match], Any] = lambda m: None,
) -> Condition:
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
    return _condition(f"shape_eq({a}, {b}{', last' if last else ''})", (a, b), facts, check, b, value)


def rows_of(type: TensorType) -> tuple[tuple[int, ...], ...]:
    """The shapes of a row along the last axis."""
    n = type.shape[-1]
    return ((n,), (1, n)) if type.rank > 1 else ((n,),)


def rank(a: str, n: int) -> Condition:
    """Operand `a` has `n` axes."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.rank
        return None if found == n else ("shape", f"{a} has rank {found}, not {n}")

    return _condition(f"rank({a}, {n})", (a,), lambda egg, intern: (f"(f_rank {egg(a)} {n})",), check)


def dtype(a: str, wanted: DType) -> Condition:
    """Operand `a` has this dtype."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.dtype
        return None if found is wanted else ("dtype", f"{a} is {found}, not {wanted}")

    facts = lambda egg, intern: (f"(f_dtype {egg(a)} {intern(str(wanted))})",)  # noqa: E731
    return _condition(f"dtype({a}, {wanted})", (a,), facts, check)


# what a node is to the graph ------------------------------------------------------------------------------------------
def is_param(a: str) -> Condition:
    """Operand `a` is a parameter."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).op
        return None if found == "parameter" else ("weight_not_parameter", f"{a} is a {found}")

    return _condition(f"is_param({a})", (a,), lambda egg, intern: (f"(f_param {egg(a)})",), check)


def single_use(a: str) -> Condition:
    """`a` (an operand, or an inner node by its name) is read exactly once; a gradient of its own reads a parameter."""

    def check(m: Match) -> Refusal | None:
        found, weight = m.uses[m.nodes[a]], m.node(a).op == "parameter"
        reason: Reason = "weight_shared" if weight else "multi_use"
        return None if found == 1 else (reason, f"{a}, %{m.nodes[a]}, is used {found} times")

    return _condition(f"single_use({a})", (a,), lambda egg, intern: (f"(f_single {egg(a)})",), check)


def not_output(a: str) -> Condition:
    """`a` is no output of the graph."""

    def check(m: Match) -> Refusal | None:
        return ("is_output", f"{a}, %{m.nodes[a]}, is an output") if m.nodes[a] in m.outputs else None

    return _condition(f"not_output({a})", (a,), lambda egg, intern: (f"(f_inner {egg(a)})",), check)


def const_eq(a: str, value: float) -> Condition:
    """Operand `a` is filled with `value`."""

    def check(m: Match) -> Refusal | None:
        node = m.node(a)
        found = node.attr("value") if node.op == "full" else None
        same = found is not None and interned(found) == interned(float(value))
        return None if same else ("attributes", f"{a} is {node.op if found is None else found}, not {value}")

    facts = lambda egg, intern: (f"(f_fill {egg(a)} {intern(float(value))})",)  # noqa: E731
    example = a, lambda shape: np.full(shape, float(value))
    return replace(_condition(f"const_eq({a}, {value})", (a,), facts, check), example=example)


SMALLEST = float(np.finfo(np.float32).tiny)
HIDDEN = -1e8  # what is added to a score that must not count: e to that is 0


def causal_mask(a: str) -> Condition:
    """Operand `a` is a constant that hides the later keys of every query: 0 up to the diagonal, −1e8 or less above."""

    def check(m: Match) -> Refusal | None:
        node = m.node(a)
        return None if is_causal_mask(node) else ("attributes", f"{a}, a {node.op}, is no causal mask")

    facts = lambda egg, intern: (f"(f_causal {egg(a)})",)  # noqa: E731
    return replace(_condition(f"const_eq({a}, causal mask)", (a,), facts, check), example=(a, _a_causal_mask))


def _a_causal_mask(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.triu(np.full(shape, 10 * HIDDEN), 1)


def is_causal_mask(node: Node) -> bool:
    """Whether a node is a square constant, 0 up to the diagonal and −1e8 or less above."""
    if node.op != "constant" or node.type.rank != 2 or node.type.shape[0] != node.type.shape[1]:
        return False
    elements = node.attr("data").array
    above = np.triu(np.ones(elements.shape, bool), 1)
    return bool(np.all(elements[~above] == 0) and np.all(elements[above] <= HIDDEN))


def written(a: str) -> Condition:
    """`a` (an inner node by its name) stands in the input graph: no rule made it."""
    return _condition(f"written({a})", (a,), lambda egg, intern: (f"(f_written {egg(a)})",), lambda m: None)


# attributes -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measure:
    """An attribute value that operands determine by their types: what `attr_eq` compares with."""

    text: str
    names: tuple[str, ...]
    facts: Callable[[Egg, str], tuple[str, ...]]
    value: Callable[[Match], Any]


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


def attr_eq(a: str, b: str | Measure) -> Condition:
    """Attributes `a` and `b` are equal; `b` may be what operands determine, such as `last_axis("x")`."""
    if isinstance(b, Measure):
        return _measured(a, b)

    def check(m: Match) -> Refusal | None:
        same = interned(m.attrs[a]) == interned(m.attrs[b])
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b} is {m.attrs[b]!r}")

    return _condition(f"attr_eq({a}, {b})", (a, b), lambda egg, intern: (f"(= {egg(a)} {egg(b)})",), check)


def _measured(a: str, b: Measure) -> Condition:
    def check(m: Match) -> Refusal | None:
        wanted = b.value(m)
        same = interned(m.attrs.get(a, wanted)) == interned(wanted)
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b.text} is {wanted!r}")

    facts = lambda egg, intern: b.facts(egg, egg(a))  # noqa: E731
    return _condition(f"attr_eq({a}, {b.text})", (a, *b.names), facts, check, a, b.value)


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
    return _condition(f"attr_compose({a}, {b}, {c})", (a, b, c), facts, check, c, value)


def composed(a: Any, b: Any) -> Any:
    """Permutation a after b, or the product of two factors as float32 holds it; None where it has no such number."""
    if isinstance(a, tuple):
        return tuple(a[i] for i in b)
    with np.errstate(over="ignore", under="ignore"):
        product = float(np.float32(a * b))
    # one that became 0 or lost digits would be a factor of its own: (1e-30 · (1e-30 · 1e30)) is not 0
    held = math.isfinite(product) and (abs(product) >= SMALLEST or a == 0 or b == 0)
    return product if held else None


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
    return _condition(text, (a,), lambda egg, intern: (f"({table} {egg(a)})",), check)


def interned(value: Any) -> tuple[Any, ...]:
    """A hashable stand-in for an attribute value: equal exactly where the values are the same kind and bits."""
    return (float, struct.pack("<d", value)) if isinstance(value, float) else (type(value), value)
