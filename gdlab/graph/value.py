"""A value of a graph, as people hold it, with the operators and methods that the ops give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gdlab.base.binding import bound
from gdlab.base.errors import GraphError
from gdlab.base.types import Shape, TensorType
from gdlab.graph.node import Node

if TYPE_CHECKING:
    from gdlab.graph.graph import Graph


@bound
class Value:
    """A node of a graph as an operand: what builders take and return. Every op is a method too: `x.relu()`, `x @ w`."""

    __slots__ = ("graph", "id")
    __array_ufunc__ = None  # NumPy arrays leave `array + value` to us, and we refuse it with a clear error

    def __init__(self, graph: Graph, id: int) -> None:
        self.graph, self.id = graph, id

    @property
    def node(self) -> Node:
        """The record behind this value."""
        return self.graph._nodes[self.id]

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.graph._nodes[self.id].type

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.type.shape

    @property
    def name(self) -> str:
        """The name a person gave, or ``""``."""
        return self.node.name

    def named(self, name: str) -> Value:
        """Name this node; returns it."""
        return self.graph.named(self, name)

    def __repr__(self) -> str:
        node, label = self.node, f' "{self.name}"' if self.name else ""
        return f"%{self.id}{label} = {node.op} : {node.type}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and other.graph is self.graph and other.id == self.id

    def __hash__(self) -> int:
        return hash((id(self.graph), self.id))

    def __bool__(self) -> bool:
        wanted = "where(condition, a, b): values exist when it runs"
        raise GraphError("value", "truth", f"{self!r} in a condition", wanted)

    def __array__(self, *args: object, **kwargs: object) -> Any:
        wanted = "read_output or read_node of a session: values exist when it runs"
        raise GraphError("value", "array", repr(self), wanted)

    def __iter__(self) -> Iterator[Value]:
        raise GraphError("value", "iteration", repr(self), "slices such as x[0:1]")

    def __pos__(self) -> Value:
        return self

    def __rshift__(self, other: Value) -> Any:
        raise GraphError("rule", ">>", repr(self), "a rule's body: left >> right means something in @rule alone")

    if TYPE_CHECKING:  # bound in gdlab/__init__.py: the ops as methods (`gdlab.op`), operators (`gdlab.ops.operators`)
        T: Value

        def __getattr__(self, name: str) -> Callable[..., Value]: ...
        def __add__(self, other: object) -> Value: ...
        def __radd__(self, other: object) -> Value: ...
        def __sub__(self, other: object) -> Value: ...
        def __rsub__(self, other: object) -> Value: ...
        def __mul__(self, other: object) -> Value: ...
        def __rmul__(self, other: object) -> Value: ...
        def __truediv__(self, other: object) -> Value: ...
        def __rtruediv__(self, other: object) -> Value: ...
        def __pow__(self, other: object) -> Value: ...
        def __rpow__(self, other: object) -> Value: ...
        def __matmul__(self, other: object) -> Value: ...
        def __rmatmul__(self, other: object) -> Value: ...
        def __neg__(self) -> Value: ...
        def __abs__(self) -> Value: ...
        def __getitem__(self, index: object) -> Value: ...
        def __gt__(self, other: object) -> Value: ...
        def __ge__(self, other: object) -> Value: ...
        def __lt__(self, other: object) -> Value: ...
        def __le__(self, other: object) -> Value: ...
