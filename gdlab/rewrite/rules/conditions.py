"""State conditions of rules, each as one record: facts for the e-graph, a check in Python, a refusal in words.

A relation that the facts speak of stands beside the condition, with the rows that a graph gives it.
"""

from __future__ import annotations

import linecache
import math
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
from gdlab.rewrite.rules.relations import (
    EQUAL,
    AttrValue,
    Fact,
    GraphFacts,
    Local,
    Relation,
    Row,
    interned,
    node_relation,
    type_relation,
)

__all__ = [
    "HIDDEN", "MEASURED", "WRITTEN", "Condition", "Match", "Measure", "Reason", "Refusal", "attr_eq", "condition",
    "const_eq", "dtype", "finite", "is_param", "not_output", "rank", "repeats", "shape_eq", "single_use", "written",
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
        """Return the node that stands for `name`."""
        return self.graph.node(self.nodes[name])


# files that make conditions
MODULES = ("conditions", "constant_conditions", "compositions", "measures")
STATING = {str(Path(__file__).with_name(f"{name}.py")) for name in MODULES}


def _here() -> Place:
    """Return the place where a rule states its condition: the first frame outside the files that make conditions."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in STATING:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(frozen=True)
class Condition:
    """One condition: its text, the names it is about, its facts for the e-graph, and its check (None: it holds).

    `of_graph`: it is about what an operand is in a graph (a parameter, a constant), and not about its type alone.
    `binds` is an attribute that it determines, `value` how, from the operands and attributes of a match. `example` is
    an operand that must be a constant, and its elements by shape.
    """

    text: str
    names: tuple[str, ...]
    facts: tuple[Fact, ...]
    check: Callable[[Match], Refusal | None]
    binds: str = ""
    value: Callable[[Match], Any] = lambda m: None
    place: Place = field(default=("", 0), compare=False)
    example: tuple[str, Callable[[tuple[int, ...]], np.ndarray[Any, Any]]] | None = None
    of_graph: bool = False

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
    facts: tuple[Fact, ...],
    check: Callable[[Match], Refusal | None],
    binds: str = "",
    value: Callable[[Match], Any] = lambda m: None,
) -> Condition:
    """Return a condition that knows the line of the rule that states it."""
    return Condition(text, names, facts, check, binds, value, _here())


# shapes and dtypes ----------------------------------------------------------------------------------------------------
def _rows_along(type: TensorType) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that a row along the last axis may have."""
    n = type.shape[-1]
    return ((n,), (1, n)) if type.rank > 1 else ((n,),)


def _rows_in_graph(facts: GraphFacts) -> list[Row]:
    shapes = {type.shape for type in facts.types}
    pairs = ((k, shape) for k, type in enumerate(facts.types) for shape in _rows_along(type))
    return [(k, facts.numbers(shape)) for k, shape in pairs if shape in shapes]


SHAPE = type_relation("f_shape", 1, lambda t, facts: [(facts.numbers(t.shape),)])  # of an attribute: it is that shape
ROW = Relation("f_row", "type", 2, _rows_in_graph)
RANK = type_relation("f_rank", 1, lambda t, facts: [(t.rank,)])
DTYPE = type_relation("f_dtype", 1, lambda t, facts: [(facts.numbers(str(t.dtype)),)])


def shape_eq(a: str, b: str, *, last: bool = False) -> Condition:
    """Operands `a` and `b` have one shape; `b` may be an attribute. With `last`, `a` is a row [n] or [1, n] along the
    last axis of b, [..., n]."""

    def check(m: Match) -> Refusal | None:
        given = m.node(a).type.shape
        if b not in m.attrs and b not in m.nodes:  # this condition determines it
            return None
        wanted = m.attrs[b] if b in m.attrs else m.node(b).type.shape
        if given == wanted if not last else given in _rows_along(m.node(b).type):
            return None
        if last:
            return "shape", f"{a} has shape {list(given)}, the last axis of {b} has {list(wanted[-1:])}"
        return "shape", f"{a} has shape {list(given)}, {b} has {list(wanted)}"

    shape = Local(f"s_{a}_{b}")
    facts = Fact(SHAPE, (a, shape)), Fact(ROW if last else SHAPE, (b, shape))
    text = f"shape_eq({a}, {b}{', last' if last else ''})"
    return condition(text, (a, b), facts, check, b, lambda m: m.node(a).type.shape)


def rank(a: str, n: int) -> Condition:
    """Operand `a` has `n` axes."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.rank
        return None if found == n else ("shape", f"{a} has rank {found}, not {n}")

    return condition(f"rank({a}, {n})", (a,), (Fact(RANK, (a, n)),), check)


def dtype(a: str, wanted: DType) -> Condition:
    """Operand `a` has this dtype."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.dtype
        return None if found is wanted else ("dtype", f"{a} is {found}, not {wanted}")

    return condition(f"dtype({a}, {wanted})", (a,), (Fact(DTYPE, (a, AttrValue(str(wanted)))),), check)


# the role of a node in the graph --------------------------------------------------------------------------------------
def _filled(facts: GraphFacts) -> list[Row]:
    rows: list[Row] = [(n.id, facts.numbers(n.attr("value"))) for n in facts.nodes if n.op == "full"]
    return rows + [(id, facts.numbers(value)) for id, value in facts.folded.items() if isinstance(value, float)]


PARAM = node_relation("f_param", lambda facts: [n.id for n in facts.nodes if n.op == "parameter"])
SINGLE = node_relation("f_single", lambda facts: [id for id, count in facts.uses.items() if count == 1])
INNER = node_relation("f_inner", lambda facts: [n.id for n in facts.nodes if n.id not in facts.outputs])
WRITTEN = node_relation("f_written", lambda facts: [n.id for n in facts.nodes if n.op in facts.opened])
FILL = Relation("f_fill", "node", 2, _filled)


def is_param(a: str) -> Condition:
    """Operand `a` is a parameter."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).op
        return None if found == "parameter" else ("weight_not_parameter", f"{a} is a {found}")

    return replace(condition(f"is_param({a})", (a,), (Fact(PARAM, (a,)),), check), of_graph=True)


def single_use(a: str) -> Condition:
    """`a` (an operand, or an inner node by its name) is read exactly once; a gradient of its own reads a parameter."""

    def check(m: Match) -> Refusal | None:
        id, weight = m.nodes[a], m.node(a).op == "parameter"
        reason: Reason = "weight_shared" if weight else "multi_use"
        if m.uses[id] != 1:
            return reason, f"{a}, %{id}, is used {m.uses[id]} times"
        twin = next((name for name, other in m.nodes.items() if weight and other == id and name != a), None)
        return None if twin is None else (reason, f"{a} and {twin} are both %{id}")

    return condition(f"single_use({a})", (a,), (Fact(SINGLE, (a,)),), check)


def not_output(a: str) -> Condition:
    """`a` is no output of the graph."""

    def check(m: Match) -> Refusal | None:
        return ("is_output", f"{a}, %{m.nodes[a]}, is an output") if m.nodes[a] in m.outputs else None

    return condition(f"not_output({a})", (a,), (Fact(INNER, (a,)),), check)


def const_eq(a: str, value: float) -> Condition:
    """Operand `a` is filled with `value`."""

    def check(m: Match) -> Refusal | None:
        node = m.node(a)
        found = node.attr("value") if node.op == "full" else None
        same = found is not None and interned(found) == interned(float(value))
        return None if same else ("attributes", f"{a} is {node.op if found is None else found}, not {value}")

    facts = (Fact(FILL, (a, AttrValue(float(value)))),)
    example = a, lambda shape: np.full(shape, float(value))
    return replace(condition(f"const_eq({a}, {value})", (a,), facts, check), example=example, of_graph=True)


HIDDEN = -1e8  # the addend of a score that must not count: e to that is 0


def written(a: str) -> Condition:
    """`a` (an inner node by its name) stands in the input graph: no rule made it."""
    return condition(f"written({a})", (a,), (Fact(WRITTEN, (a,)),), lambda m: None)


# attributes -----------------------------------------------------------------------------------------------------------
MEASURED = Local("measured")


@dataclass(frozen=True)
class Measure:
    """An attribute value that the types of operands determine, for `attr_eq`. Its facts name it `MEASURED`."""

    text: str
    names: tuple[str, ...]
    facts: tuple[Fact, ...]
    value: Callable[[Match], Any]


def attr_eq(a: str, b: str | Measure) -> Condition:
    """Attributes `a` and `b` are equal; `b` may be what operands determine, such as `last_axis("x")`."""
    if isinstance(b, Measure):
        return _measured(a, b)

    def check(m: Match) -> Refusal | None:
        same = interned(m.attrs[a]) == interned(m.attrs[b])
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b} is {m.attrs[b]!r}")

    return condition(f"attr_eq({a}, {b})", (a, b), (Fact(EQUAL, (a, b)),), check)


def _measured(a: str, b: Measure) -> Condition:
    def check(m: Match) -> Refusal | None:
        wanted = b.value(m)
        same = interned(m.attrs.get(a, wanted)) == interned(wanted)
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b.text} is {wanted!r}")

    facts = tuple(fact.with_term(MEASURED, a) for fact in b.facts)
    return condition(f"attr_eq({a}, {b.text})", (a, *b.names), facts, check, a, b.value)


def repeats(a: str, b: str) -> Condition:
    """Shape `a` is shape `b` but along axis 1, where b has extent 1."""

    def check(m: Match) -> Refusal | None:
        found = _repeated(m.attrs[b], m.attrs[a])
        return None if found else ("attributes", f"{a} is {m.attrs[a]}, more than axis 1 of {m.attrs[b]} repeated")

    return condition(f"attr_eq({a}, {b} repeated along axis 1)", (a, b), (Fact(REPEATS, (a, b)),), check)


def _repeated(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a broadcast from one shape to the other repeats along axis 1 alone."""
    return len(before) == len(after) > 1 and before[1] == 1 and (*before[:1], after[1], *before[2:]) == after


def _repetitions(facts: GraphFacts) -> list[Row]:
    broadcasts = (n for n in facts.nodes if n.op == "broadcast_to")
    pairs = {(facts.graph._nodes[n.inputs[0]].type.shape, n.type.shape) for n in broadcasts}
    rows: list[Row] = [(facts.numbers(b), facts.numbers(a)) for a, b in pairs if _repeated(a, b)]
    return sorted(rows)


def _finite_numbers(facts: GraphFacts) -> list[tuple[int, float]]:
    return [(i, v) for i, v in enumerate(facts.numbers.values) if isinstance(v, float) and math.isfinite(v)]


REPEATS = Relation("f_repeats", "attribute", 2, _repetitions)
FINITE = Relation("f_finite", "attribute", 1, lambda facts: [(i,) for i, _ in _finite_numbers(facts)])
POSITIVE = Relation("f_positive", "attribute", 1, lambda facts: [(i,) for i, v in _finite_numbers(facts) if v > 0])


def finite(a: str, *, above: float | None = None) -> Condition:
    """Attribute `a` is a finite number; with `above=0`, one above 0."""
    if above not in (None, 0):
        raise OptimizeError("finite", "above", above, "None or 0")

    def check(m: Match) -> Refusal | None:
        value = m.attrs.get(a, 1.0)
        if math.isfinite(value) and (above is None or value > above):
            return None
        return "attributes", f"{a} is {value!r}, not a finite number{'' if above is None else f' above {above:g}'}"

    text = f"finite({a}{'' if above is None else f', above={above:g}'})"
    return condition(text, (a,), (Fact(FINITE if above is None else POSITIVE, (a,)),), check)
