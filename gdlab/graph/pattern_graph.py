"""Patterns: graphs without types, in which rewrite rules and the bodies of fused ops are traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from gdlab.base.errors import GraphError
from gdlab.base.types import TensorType
from gdlab.graph.graph import Graph
from gdlab.graph.value import Value

_UNTYPED = TensorType((1,))  # stored in every node of a pattern; reading it through a value raises


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The two sides of a rule: the result of `left >> right`."""

    left: Value
    right: Value


class PatternValue(Value):
    """A node of a pattern as an operand: it has no type, and `left >> right` makes a `Rewrite`."""

    __slots__ = ()

    @property
    def type(self) -> NoReturn:
        """Refuse: a pattern has no types."""
        raise GraphError("pattern", "type", f"the type of %{self.id}", "a rule or body that reads no shapes")

    def __repr__(self) -> str:
        node, label = self.node, f' "{self.name}"' if self.name else ""
        return f"%{self.id}{label} = {node.op} : ?"

    def __rshift__(self, other: Value) -> Rewrite:
        return Rewrite(self, other)


class PatternGraph(Graph):
    """A graph in which ops skip shape rules and broadcasting; its leaves are `var` nodes, its attributes `AttrVar`s."""

    value_class = PatternValue
    typed = False

    def __init__(self) -> None:
        super().__init__()
        self.records_sources = False

    @property
    def untyped(self) -> TensorType:
        """The type that every node of a pattern stores; nothing reads it."""
        return _UNTYPED
