"""What people hold: a value of a graph, with the operators and methods that the ops give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gdlab.errors import GraphError
from gdlab.graph.node import Node
from gdlab.types import Shape, TensorType

if TYPE_CHECKING:
    from gdlab.graph.graph import Graph

# Rooms further down hang what belongs to a Value here, because imports only go up.
METHODS: dict[str, Callable[..., Value]] = {}
OPERATORS: dict[str, Callable[..., Value]] = {}


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
        if self.graph.pattern:
            raise GraphError("pattern", "type", f"the type of %{self.id}", "a rule or body that reads no shapes")
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
        return f"%{self.id}{label} = {node.op} : {'?' if self.graph.pattern else node.type}"

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

    def __getattr__(self, name: str) -> Callable[..., Value]:
        method = METHODS.get(name)
        if method is None:
            raise AttributeError(f"Value has no method {name!r}; ops are listed by `python -m gdlab ops`")
        return lambda *args, **kwargs: method(self, *args, **kwargs)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *METHODS]

    @property
    def T(self) -> Value:
        """The last two axes swapped."""
        return OPERATORS["T"](self)

    def __add__(self, other: object) -> Value:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: object) -> Value:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: object) -> Value:
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: object) -> Value:
        return OPERATORS["sub"](other, self)

    def __mul__(self, other: object) -> Value:
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: object) -> Value:
        return OPERATORS["mul"](other, self)

    def __truediv__(self, other: object) -> Value:
        return OPERATORS["div"](self, other)

    def __rtruediv__(self, other: object) -> Value:
        return OPERATORS["div"](other, self)

    def __pow__(self, other: object) -> Value:
        return OPERATORS["pow"](self, other)

    def __rpow__(self, other: object) -> Value:
        return OPERATORS["pow"](other, self)

    def __matmul__(self, other: object) -> Value:
        return OPERATORS["matmul"](self, other)

    def __rmatmul__(self, other: object) -> Value:
        return OPERATORS["matmul"](other, self)

    def __neg__(self) -> Value:
        return OPERATORS["neg"](self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return OPERATORS["abs"](self)

    def __getitem__(self, index: object) -> Value:
        return OPERATORS["getitem"](self, index)

    def __gt__(self, other: object) -> Value:
        return OPERATORS["gt"](self, other)

    def __ge__(self, other: object) -> Value:
        return OPERATORS["ge"](self, other)

    def __lt__(self, other: object) -> Value:
        return OPERATORS["lt"](self, other)

    def __le__(self, other: object) -> Value:
        return OPERATORS["le"](self, other)

    def __rshift__(self, other: Value) -> Any:
        if not self.graph.pattern:
            raise GraphError("rule", ">>", repr(self), "a rule's body: left >> right means something in @rule alone")
        return OPERATORS["rewrite"](self, other)
