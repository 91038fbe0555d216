"""The record of a rule: left and right side as a pattern graph, and conditions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from gdlab.base.errors import OptimizeError
from gdlab.graph import AttrVar, Node, PatternGraph, Rewrite, Value
from gdlab.op import ALL_PHASES, COMMUTATIVE, REGISTRY, Phase, Safety, Sample
from gdlab.rewrite.rules.conditions import WRITTEN, Condition, Match, Reason, Refusal
from gdlab.rewrite.rules.relations import interned

__all__ = [
    "COMMUTATIVE", "TOLERANCE", "Condition", "Match", "Matrix", "Reason", "Refusal", "Rewrite", "Rule",
    "check_shape_of", "is_opaque",
]  # fmt: skip

# the largest distance of the two sides in float64, relative to the error scale
TOLERANCE: Mapping[Safety, float] = {"exact": 0.0, "rounding": 1e-12, "reassoc": 1e-9, "approx": 1e-2}
F32_CONSTANTS = 1e-7  # of rules that put a constant in float32 in the place of others
Matrix = Annotated[Value, 2]  # an operand of a rule that has rank 2


def is_opaque(op: str) -> bool:
    """Return whether rules may not look through an op: its node stays as it is."""
    return REGISTRY[op].opaque


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
    pattern: PatternGraph = field(default_factory=PatternGraph)
    left: int = -1
    right: int = -1
    where: tuple[Condition, ...] = ()
    phases: tuple[Phase, ...] = ALL_PHASES
    near: bool = False
    on: bool = True
    samples: tuple[Sample, ...] = ()
    tolerance: float | None = None  # None: that of the tag
    math: str = ""  # of a rule that no function states: its line of mathematics

    @property
    def rtol(self) -> float:
        """The distance allowed between the sides in float64, relative to the error scale."""
        return TOLERANCE[self.safety] if self.tolerance is None else self.tolerance

    def __repr__(self) -> str:
        return f"<rule {self.name}: {self.label}, {self.safety}>"

    def __str__(self) -> str:
        conditions = f" where {', '.join(map(str, self.where))}" if self.where else ""
        return f"{self.label}  ({self.name}, {self.safety}){conditions}"

    @cached_property
    def doc(self) -> str:
        """Its line of mathematics (docs/add_a_rule.md): the first line of its docstring."""
        return self.math or (inspect.getdoc(self.function) or "").partition("\n")[0]

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
        """Whether the right side is one op that has a decomposition; a rule that opens such an op is no fusion."""
        if self.right < 0 or any(fact.relation is WRITTEN for c in self.where for fact in c.facts):
            return False
        return getattr(REGISTRY.get(self.pattern.node(self.right).op), "body", None) is not None

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
    if _same_sides(rule):
        raise OptimizeError(where, "right side", "the left side itself", "another expression of equal value")
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
        lost += [condition.binds] if _is_idle(rule, condition) else []
        if lost:
            known = ", ".join(n for n in (*rule.names, *rule.attr_variables) if n not in lost)
            raise OptimizeError(where, str(condition), lost[0], f"one of {known}")


def _is_idle(rule: Rule, condition: Condition) -> bool:
    """Return whether a condition determines an attribute that nothing reads: its name was mistyped."""
    name = condition.binds
    if not name or name in rule.names:
        return False
    read = [v.name for n in (*rule.left_nodes, *rule.right_nodes) for _, v in n.attrs if isinstance(v, AttrVar)]
    read += [n for other in rule.where if other is not condition for n in other.names]
    return name not in read


def _same_sides(rule: Rule) -> bool:
    number: dict[int, int] = {}
    known: dict[Any, int] = {}
    for node in rule.pattern:
        attrs = tuple((name, interned(value)) for name, value in node.attrs)
        number[node.id] = known.setdefault((node.op, attrs, tuple(number[i] for i in node.inputs)), len(known))
    return number[rule.left] == number[rule.right]
