"""What a rule says: left and right side as a pattern graph, and conditions from a closed set, each with its refusal.

A condition is stated once: as facts for the e-graph, and as a check in Python whose refusal is shown to people.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from gdlab.errors import OptimizeError
from gdlab.graph import OPERATORS, AttrVar, Graph, Node, Value
from gdlab.op import ALL_PHASES, REGISTRY, Phase, Safety, Sample
from gdlab.types import DType

__all__ = [
    "COMMUTATIVE", "Condition", "Match", "Matrix", "Reason", "Refusal", "Rewrite", "Rule", "attr_compose", "attr_eq",
    "const_eq", "dtype", "interned", "is_param", "matches", "not_output", "rank", "shape_eq", "single_use",
]  # fmt: skip

# C5: both argument orders of these match; nothing is reported of it
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "equal"})

Reason = Literal[
    "multi_use", "is_output", "attributes", "shape", "dtype", "phase", "safety", "disabled", "weight_shared",
    "weight_not_parameter", "cost", "budget",
]  # fmt: skip
Refusal = tuple[Reason, str]  # and the detail, in words
Matrix = Annotated[Value, 2]  # an operand of a rule that has rank 2


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What `left >> right` makes inside a rule."""

    left: Value
    right: Value


OPERATORS["rewrite"] = cast(Callable[..., Value], Rewrite)


# a match in a graph ---------------------------------------------------------------------------------------------------
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


# conditions: facts of the e-graph and a check in Python ---------------------------------------------------------------
Egg = Callable[[str], str]  # the e-graph's variable for a name of the rule
Intern = Callable[[Any], int]  # the number that stands for an attribute value


@dataclass(frozen=True)
class Condition:
    """One condition: its text, the names it speaks of, its facts for the e-graph, and its check (None: it holds)."""

    text: str
    names: tuple[str, ...]
    facts: Callable[[Egg, Intern], tuple[str, ...]]
    check: Callable[[Match], Refusal | None]
    binds: str = ""  # an attribute that the condition determines

    def __str__(self) -> str:
        return self.text


def shape_eq(a: str, b: str, *, last: bool = False) -> Condition:
    """Operands `a` and `b` have one shape; `b` may be an attribute. With `last`, `a` has the shape of b's last axis."""

    def facts(egg: Egg, intern: Intern) -> tuple[str, ...]:
        if egg(b).startswith("a_"):
            return (f"(f_shape {egg(a)} {egg(b)})",)
        return f"(f_shape {egg(a)} s_{a}_{b})", f"({'f_row' if last else 'f_shape'} {egg(b)} s_{a}_{b})"

    def check(m: Match) -> Refusal | None:
        given = m.node(a).type.shape
        wanted = m.attrs[b] if b in m.attrs else m.node(b).type.shape[-1:] if last else m.node(b).type.shape
        if given == wanted:
            return None
        where = f"the last axis of {b}" if last else b
        return "shape", f"{a} has shape {list(given)}, {where} has {list(wanted)}"

    return Condition(f"shape_eq({a}, {b}{', last' if last else ''})", (a, b), facts, check, b)


def rank(a: str, n: int) -> Condition:
    """Operand `a` has `n` axes."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.rank
        return None if found == n else ("shape", f"{a} has rank {found}, not {n}")

    return Condition(f"rank({a}, {n})", (a,), lambda egg, intern: (f"(f_rank {egg(a)} {n})",), check)


def dtype(a: str, wanted: DType) -> Condition:
    """Operand `a` has this dtype."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).type.dtype
        return None if found is wanted else ("dtype", f"{a} is {found}, not {wanted}")

    facts = lambda egg, intern: (f"(f_dtype {egg(a)} {intern(str(wanted))})",)  # noqa: E731
    return Condition(f"dtype({a}, {wanted})", (a,), facts, check)


def is_param(a: str) -> Condition:
    """Operand `a` is a parameter."""

    def check(m: Match) -> Refusal | None:
        found = m.node(a).op
        return None if found == "parameter" else ("weight_not_parameter", f"{a} is a {found}")

    return Condition(f"is_param({a})", (a,), lambda egg, intern: (f"(f_param {egg(a)})",), check)


def single_use(a: str) -> Condition:
    """`a` (an operand, or an inner node by its name) is read exactly once."""

    def check(m: Match) -> Refusal | None:
        found = m.uses[m.nodes[a]]
        return None if found == 1 else ("multi_use", f"{a}, %{m.nodes[a]}, is used {found} times")

    return Condition(f"single_use({a})", (a,), lambda egg, intern: (f"(f_single {egg(a)})",), check)


def not_output(a: str) -> Condition:
    """`a` is no output of the graph."""

    def check(m: Match) -> Refusal | None:
        return ("is_output", f"{a}, %{m.nodes[a]}, is an output") if m.nodes[a] in m.outputs else None

    return Condition(f"not_output({a})", (a,), lambda egg, intern: (f"(f_inner {egg(a)})",), check)


def const_eq(a: str, value: float) -> Condition:
    """Operand `a` is filled with `value`."""

    def check(m: Match) -> Refusal | None:
        node = m.node(a)
        found = node.attr("value") if node.op == "full" else None
        same = found is not None and interned(found) == interned(float(value))
        return None if same else ("attributes", f"{a} is {node.op if found is None else found}, not {value}")

    return Condition(f"const_eq({a}, {value})", (a,), lambda e, i: (f"(f_fill {e(a)} {i(float(value))})",), check)


def attr_eq(a: str, b: str) -> Condition:
    """Attributes `a` and `b` are equal."""

    def check(m: Match) -> Refusal | None:
        same = interned(m.attrs[a]) == interned(m.attrs[b])
        return None if same else ("attributes", f"{a} is {m.attrs[a]!r}, {b} is {m.attrs[b]!r}")

    return Condition(f"attr_eq({a}, {b})", (a, b), lambda egg, intern: (f"(= {egg(a)} {egg(b)})",), check)


def attr_compose(a: str, b: str, c: str) -> Condition:
    """Permutation `c` is `a` after `b`: c[i] = a[b[i]]. It determines `c`."""

    def check(m: Match) -> Refusal | None:
        found = tuple(m.attrs[a][i] for i in m.attrs[b])
        same = m.attrs.get(c, found) == found
        return None if same else ("attributes", f"{a} after {b} is {found}, not {m.attrs[c]}")

    facts = lambda egg, intern: (f"(f_compose {egg(a)} {egg(b)} {egg(c)})",)  # noqa: E731
    return Condition(f"attr_compose({a}, {b}, {c})", (a, b, c), facts, check, c)


def interned(value: Any) -> tuple[Any, ...]:
    """A hashable stand-in for an attribute value: equal exactly where the values are the same kind and bits."""
    return (float, struct.pack("<d", value)) if isinstance(value, float) else (type(value), value)


# the record -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite: `left` and `right` are node ids of `pattern`, a graph whose leaves are `var`s.

    `near`: people want to hear where it almost applied. `function` is what a person wrote; its source is shown. A rule
    without a pattern (`CSE`, folding) is carried out by gdlab itself.
    """

    name: str
    label: str
    safety: Safety
    function: Callable[..., Any]
    pattern: Graph = field(default_factory=lambda: Graph(pattern=True))
    left: int = -1
    right: int = -1
    where: tuple[Condition, ...] = ()
    phases: tuple[Phase, ...] = ALL_PHASES
    near: bool = False
    on: bool = True
    samples: tuple[Sample, ...] = ()

    def __repr__(self) -> str:
        return f"<rule {self.name}: {self.label}, {self.safety}>"

    def __str__(self) -> str:
        conditions = f" where {', '.join(map(str, self.where))}" if self.where else ""
        return f"{self.label}  ({self.name}, {self.safety}){conditions}"

    @property
    def doc(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @cached_property
    def source(self) -> tuple[str, int, str]:
        """(file, first line, text) of the Python that states it; the text is empty where nobody kept it.

        A file of gdlab is named from the package on, so that a saved document names no folder of this machine.
        """
        code, module = self.function.__code__, self.function.__module__
        file = f"{module.replace('.', '/')}.py" if module.startswith("gdlab.") else code.co_filename
        try:
            lines, first = inspect.getsourcelines(self.function)
        except (OSError, TypeError):
            return file, code.co_firstlineno, ""
        return file, first, "".join(lines)

    @property
    def fusion(self) -> bool:
        """Whether the right side is one op that has a decomposition."""
        return self.right >= 0 and getattr(REGISTRY.get(self.pattern.node(self.right).op), "body", None) is not None

    @cached_property
    def left_nodes(self) -> tuple[Node, ...]:
        """The ops of the left side, inputs first, the root last."""
        return self._cone(self.left)

    @cached_property
    def right_nodes(self) -> tuple[Node, ...]:
        """The ops of the right side, inputs first, the root last; none where it is a variable."""
        return self._cone(self.right)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The operands of the left side."""
        return tuple(n.attr("name") for n in self.pattern if n.op == "var" and n.id in self._reached(self.left))

    @cached_property
    def attr_variables(self) -> tuple[str, ...]:
        """The attributes of the left side, then those that conditions determine."""
        found = [v.name for n in self.left_nodes for _, v in n.attrs if isinstance(v, AttrVar)]
        found += [c.binds for c in self.where if c.binds and c.binds not in self.names]
        return tuple(dict.fromkeys(found))

    @cached_property
    def names(self) -> Mapping[str, int]:
        """Pattern node by name: variables, and inner nodes of the left side that were named."""
        reached = self._reached(self.left)
        named = {n.name: n.id for n in self.pattern if n.id in reached and n.op != "var" and n.name}
        return named | {n.attr("name"): n.id for n in self.pattern if n.op == "var"}

    def _reached(self, root: int) -> set[int]:
        if root < 0:
            return set()
        seen = {root}
        for node in reversed(self.pattern.nodes[: root + 1]):
            if node.id in seen:
                seen.update(node.inputs)
        return seen

    def _cone(self, root: int) -> tuple[Node, ...]:
        reached = self._reached(root)
        return tuple(n for n in self.pattern if n.id in reached and n.op != "var")


def check_shape_of(rule: Rule) -> None:
    """Raise `OptimizeError` unless there is an op on the left, and nothing on the right that the left leaves open."""
    where = f"rule {rule.name}"
    if not rule.left_nodes:
        raise OptimizeError(where, "left side", "a variable", "at least one op")
    bound = set(rule.variables)
    for node in rule.right_nodes or (rule.pattern.node(rule.right),):
        free = [rule.pattern.node(i).attr("name") for i in node.inputs if rule.pattern.node(i).op == "var"]
        free += [node.attr("name")] if node.op == "var" else []
        lost = [name for name in free if name not in bound]
        lost += [v.name for _, v in node.attrs if isinstance(v, AttrVar) and v.name not in rule.attr_variables]
        if lost:
            raise OptimizeError(where, "right side", f"{lost[0]}", "only variables of the left side")
    for condition in rule.where:
        lost = [n for n in condition.names if n not in rule.names and n not in rule.attr_variables]
        if lost:
            known = ", ".join([*rule.names, *rule.attr_variables])
            raise OptimizeError(where, str(condition), lost[0], f"one of {known}")


# matching in Python ---------------------------------------------------------------------------------------------------
def matches(rule: Rule, graph: Graph, root: int, uses: list[int], outputs: frozenset[int]) -> Iterator[Match]:
    """Every way in which the left side stands at `root`, without conditions; both orders of commutative ops."""
    pattern, nodes = rule.pattern, graph._nodes
    stack: list[tuple[tuple[tuple[int, int], ...], dict[int, int], dict[str, Any]]] = [(((rule.left, root),), {}, {})]
    while stack:
        pending, bound, attrs = stack.pop()
        if not pending:
            named = {name: bound[id] for name, id in rule.names.items() if id in bound}
            inner = tuple(bound[n.id] for n in reversed(rule.left_nodes))
            yield Match(graph, named, attrs, inner, uses, outputs)
            continue
        (p, id), rest = pending[0], pending[1:]
        want, node = pattern._nodes[p], nodes[id]
        if p in bound:
            if bound[p] == id:
                stack.append((rest, bound, attrs))
            continue
        if want.op == "var":
            stack.append((rest, bound | {p: id}, attrs))
            continue
        if want.op != node.op or len(want.inputs) != len(node.inputs):
            continue
        unified = _unify(want, node, attrs)
        if unified is None:
            continue
        orders = [node.inputs]
        if node.op in COMMUTATIVE and node.inputs[0] != node.inputs[1]:
            orders.append(node.inputs[::-1])
        for inputs in reversed(orders):
            stack.append(((*zip(want.inputs, inputs, strict=True), *rest), bound | {p: id}, unified))


def _unify(want: Node, node: Node, attrs: dict[str, Any]) -> dict[str, Any] | None:
    found = dict(attrs)
    for (name, wanted), (other, value) in zip(want.attrs, node.attrs, strict=True):
        if name != other:
            return None
        if not isinstance(wanted, AttrVar):
            if interned(wanted) != interned(value):
                return None
        elif wanted.name not in found:
            found[wanted.name] = value
        elif interned(found[wanted.name]) != interned(value):
            return None
    return found
