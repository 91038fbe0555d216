"""Relations that conditions ask of nodes, types and attributes, each with the rows that a graph gives it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdlab.base.types import TensorType
from gdlab.graph import ConstantData, Graph, Node

__all__ = [
    "EQUAL", "TYPE", "AttrValue", "Fact", "Folded", "GraphFacts", "Interner", "Local", "Relation", "Row", "Term",
    "interned", "node_relation", "type_relation",
]  # fmt: skip

Row = tuple[int, ...]
Folded = Mapping[int, float | ConstantData]  # the values of nodes that were folded


# attribute values -----------------------------------------------------------------------------------------------------
def interned(value: Any) -> tuple[Any, ...]:
    """Return a hashable stand-in for an attribute value: equal exactly where the values are the same kind and bits."""
    return (float, struct.pack("<d", value)) if isinstance(value, float) else (type(value), value)


class Interner:
    """Numbers of attribute values: equal numbers exactly where values are equal bit by bit."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = []
        self._ids: dict[Any, int] = {}
        for value in values:
            self(value)

    def __call__(self, value: Any) -> int:
        id = self._ids.setdefault(interned(value), len(self.values))
        if id == len(self.values):
            self.values.append(value)
        return id

    def copy(self) -> Interner:
        """Return a copy that knows the same values; later ones are not shared."""
        other = Interner()
        other.values, other._ids = list(self.values), dict(self._ids)
        return other


# relations ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GraphFacts:
    """A prepared graph as relations read it.

    `nodes` are the kept nodes; `known` those that may hold a known value; `types` their types, each once, and
    `type_of` (node, place among `types`); `uses` counts readers and outputs; `opened` are the ops that rules
    open where they are written.
    """

    graph: Graph
    nodes: Sequence[Node]
    known: Sequence[Node]
    types: Sequence[TensorType]
    type_of: Sequence[Row]
    uses: Mapping[int, int]
    outputs: frozenset[int]
    folded: Folded
    numbers: Interner
    opened: frozenset[str]


@dataclass(frozen=True, eq=False)
class Relation:
    """A named relation. Its first column is a node, a type or an attribute value; `columns` counts all of them.

    `rows` extracts it from a graph. Most conditions are about types, of which there are few: the node has a `TYPE`, and
    a relation of types is asked of that. `spreads`: it is asked of results of ops that rules make, so types must spread
    from operand to result.
    """

    name: str
    subject: Literal["node", "type", "attribute"]
    columns: int
    rows: Callable[[GraphFacts], list[Row]]
    spreads: bool = False


def node_relation(name: str, holds: Callable[[GraphFacts], Iterable[int]]) -> Relation:
    """Return a relation with a node as its only column."""
    return Relation(name, "node", 1, lambda facts: [(id,) for id in holds(facts)])


def type_relation(
    name: str, columns: int, of: Callable[[TensorType, GraphFacts], Iterable[Row]], *, spreads: bool = False
) -> Relation:
    """Return a relation of a type with `columns` values each; `of` gives the rows of one type, without the type."""

    def rows(facts: GraphFacts) -> list[Row]:
        return [(k, *row) for k, type in enumerate(facts.types) for row in of(type, facts)]

    return Relation(name, "type", 1 + columns, rows, spreads)


TYPE = Relation("f_type", "node", 2, lambda facts: list(facts.type_of))
EQUAL = Relation("=", "attribute", 2, lambda facts: [])  # built into the engines


# facts ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Local:
    """A variable of a fact that is no operand and no attribute of the rule."""

    name: str


@dataclass(frozen=True, slots=True)
class AttrValue:
    """A literal attribute value; the engines have a number for it."""

    value: Any


Term = str | int | Local | AttrValue  # a string is the name of an operand, an inner node or an attribute of the rule


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition of an e-graph: `relation` holds of `terms`."""

    relation: Relation
    terms: tuple[Term, ...]

    def with_term(self, old: Term, new: Term) -> Fact:
        """Return the fact with one term in the place of another."""
        return Fact(self.relation, tuple(new if term == old else term for term in self.terms))
