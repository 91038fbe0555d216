"""The graph: an append-only list of nodes in topological order, plus outputs; and where each node was written."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.errors import ArgumentError, GdlabError, GraphError, OutputIndexError
from gdlab.base.kinds import INTEGER, is_several
from gdlab.base.types import TensorType
from gdlab.base.words import plural
from gdlab.graph.node import Attrs, ConstantData, Node, attrs_key
from gdlab.graph.source import Frame, Location, Source, capture, here, locate, located, without_models
from gdlab.graph.value import Value

_current: ContextVar[Graph | None] = ContextVar("gdlab_current_graph", default=None)


@bound
class Graph:
    """A computation: `with Graph() as g:` makes it the current one, ops append to it, `g.set_outputs(...)` ends it."""

    value_class: type[Value] = Value
    typed = True  # whether its nodes have types
    exact = False  # whether numbers in attributes keep all digits; elsewhere they are those that float32 holds

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._frames: dict[int, tuple[Frame, ...] | Source] = {}
        self._outputs: list[tuple[int, str]] = []
        self._leaves: dict[str, int] = {}
        self._tokens: list[Token[Graph | None]] = []
        self.num_param_grad_outputs = 0
        self.zero_gradients: tuple[int, ...] = ()
        self.records_sources = True
        self.sealed = ""  # why nothing may be appended any more, in words
        self._draws: tuple[int, dict[int, int]] = 0, {}  # nodes looked at, the highest call by seed

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Append nodes without a source inside the block: `origin` tells where passes, gradients and bodies have them
        from."""
        before, self.records_sources = self.records_sources, False
        try:
            yield
        finally:
            self.records_sources = before

    def __enter__(self) -> Self:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._tokens.pop())

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __repr__(self) -> str:
        return f"<Graph: {plural(len(self), 'node')}, {plural(len(self._outputs), 'output')}>"

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def text(self) -> str: ...
        def decompose(self) -> Graph: ...

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes; every input id is smaller than its reader's."""
        return tuple(self._nodes)

    def node(self, id: int) -> Node:
        """Return the node with this id."""
        return self._nodes[self._check_id(id)]

    def value(self, id: int) -> Value:
        """Return the node with this id, as an operand."""
        return self.value_class(self, self._check_id(id))

    def source(self, id: int) -> Source:
        """Return the place of node `id` in the source, innermost user frame first; empty for a node that a pass
        made."""
        found = tuple(f if isinstance(f, Location) else locate(f) for f in self._frames.get(self._check_id(id), ()))
        if found:
            self._frames[id] = found
        return without_models(found)

    def sources(self, models: bool = False) -> list[Source]:
        """Return `source(id)` of every node, much faster than one by one; with `models` also the places in gdlab's
        example networks, which stand before those that called them."""
        self._frames.update(zip(self._frames, located(self._frames.values()), strict=True))
        found: list[Source] = [self._frames.get(id, ()) for id in range(len(self._nodes))]  # type: ignore[misc]
        return found if models else [without_models(chain) for chain in found]

    def attach_source(self, id: int, source: Source) -> None:
        """Say where node `id` was written; for a graph that came from a file without its sources."""
        self._frames[self._check_id(id)] = source

    # building
    def append(
        self,
        op: str,
        inputs: tuple[int, ...],
        attrs: Attrs,
        type: TensorType,
        name: str = "",
        source: tuple[Frame, ...] | Source = (),
    ) -> Value:
        """Append a node as it is. For passes; people call ops, which check shapes first."""
        if self.sealed:
            self._check_open(op)
        id = len(self._nodes)
        self._nodes.append(Node(id, op, inputs, attrs, type, name))
        if source:
            self._frames[id] = source
        return self.value_class(self, id)

    def copy_node(self, node: Node, inputs: tuple[int, ...], source: Source = ()) -> Value:
        """Append a copy of `node` of another graph that reads `inputs`; leaves keep their unique names."""
        value = self.append(node.op, inputs, node.attrs, node.type, node.name, source)
        if not inputs and node.name:
            self._leaves[node.name] = value.id
        return value

    def cut(self, length: int) -> None:
        """Remove all nodes from id `length` on, which a failed call appended."""
        for node in self._nodes[length:]:
            self._frames.pop(node.id, None)
            if not node.inputs and self._leaves.get(node.name) == node.id:
                del self._leaves[node.name]
        del self._nodes[length:]
        if self._draws[0] > length:
            self._draws = 0, {}

    def next_draw(self, seed: int, draws: Callable[[Iterable[Node]], Iterable[Node]]) -> int:
        """Return the first number that no draw with this seed has; `draws` chooses those among nodes. Each node is
        looked at once."""
        looked, highest = self._draws
        if looked < len(self._nodes):
            for node in draws(self._nodes[looked:]):
                attrs = dict(node.attrs)
                highest[attrs["seed"]] = max(attrs["call"], highest.get(attrs["seed"], -1))
            self._draws = len(self._nodes), highest
        return 1 + highest.get(seed, -1)

    def make_leaf(self, kind: str, attrs: Attrs, type: TensorType, name: str) -> Value:
        """Append an input or parameter of a new name. A graph that holds values finds that of the leaf here."""
        source = capture(True) if self.records_sources else ()
        return self.register_leaf(self.append(kind, (), attrs, type, name, source))

    def make_constant(self, held: ConstantData, given: np.ndarray[Any, Any]) -> Value:
        """Append a constant. A graph that holds values takes those `given`, which are not rounded yet."""
        source = capture(True) if self.records_sources else ()
        return self.append("constant", (), (("data", held),), TensorType(held.shape, held.dtype), source=source)

    def leaf(self, name: str) -> Node | None:
        """Return the input or parameter of this name."""
        id = self._leaves.get(name)
        return None if id is None else self._nodes[id]

    def register_leaf(self, value: Value) -> Value:
        """Reserve the name of an input or parameter; returns it."""
        self._leaves[value.name] = value.id
        return value

    def named(self, value: Value, name: str) -> Value:
        """Name a node (names need not be unique, except those of inputs and parameters, which are fixed); returns
        it."""
        self._check_open("named")
        node = self.own(value).node
        if not isinstance(name, str):
            raise GraphError("named", "name", repr(name), "a str")
        if not node.inputs and node.name and name != node.name:
            raise GraphError("named", "name", f"{name!r} for {node.op} {node.name!r}", "the name it was made with")
        self._nodes[value.id] = replace(node, name=name)
        return value

    def node_name(self, value: Value) -> str:
        """Return the name of a node, or ``""``."""
        return self.own(value).name

    def operand(self, given: Any) -> Any:
        """Return the operand that stands for `given`: itself. A graph that holds values takes more than values."""
        return given

    def own(self, value: Value, where: str = "") -> Value:
        """Return `value` if it belongs to this graph, else raise `GraphError`. `where`: the op that reads it."""
        if not isinstance(value, Value):
            raise GraphError("graph", "value", f"{type(value).__name__} {value!r}", "a value of this graph")
        if value.graph is not self:
            raise GraphError("graph", "value", f"{value!r} of another graph", "a value of this graph")
        return value

    # outputs
    def set_outputs(self, outputs: Value | Sequence[Value] | Mapping[str, Value]) -> None:
        """Replace the outputs by one value, several, or `{name: value}`. Output 0 is the loss for training."""
        self._check_open("set_outputs")
        if isinstance(outputs, Value):
            outputs = [outputs]
        if not is_several(outputs):
            raise GraphError("set_outputs", "outputs", type(outputs).__name__, "a value, several, or {name: value}")
        pairs = list(outputs.items()) if isinstance(outputs, Mapping) else [("", v) for v in outputs]
        for name, _ in pairs:
            _check_output_name("set_outputs", name)
        if not pairs:
            raise GraphError("set_outputs", "outputs", "none", "at least one value")
        self._outputs = [(self.own(v).id, n) for n, v in pairs]
        self.num_param_grad_outputs = 0

    def output(self, value: Value, name: str | None = None) -> Value:
        """Append an output; names are unique. Returns the value."""
        self._check_open("output")
        self.own(value)
        _check_output_name("output", name or "")
        if name and name in self.output_names:
            raise GraphError("output", "name", repr(name), "a name that no other output has")
        self._outputs.append((value.id, name or ""))
        return value

    def set_output_ids(self, outputs: Iterable[tuple[int, str]], gradients: int = 0) -> None:
        """Replace the outputs by (id, name) pairs, the last `gradients` of which are parameter gradients. For
        passes."""
        self._outputs = list(outputs)
        self.num_param_grad_outputs = gradients

    @property
    def outputs(self) -> tuple[Value, ...]:
        """User outputs, then one gradient per parameter."""
        return tuple(self.value(id) for id, _ in self._outputs)

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Ids of `outputs`."""
        return tuple(id for id, _ in self._outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of `outputs` (``""`` where none was given)."""
        return tuple(name for _, name in self._outputs)

    @property
    def num_user_outputs(self) -> int:
        """Outputs that are not parameter gradients."""
        return len(self._outputs) - self.num_param_grad_outputs

    def is_output(self, value: Value) -> bool:
        """Return whether `value` is among the outputs."""
        return self.own(value).id in self.output_ids

    def output_at(self, index: int) -> Value:
        """Return output `index`, 0 … n − 1; `OutputIndexError` otherwise."""
        if not INTEGER.holds(index) or not 0 <= index < len(self._outputs):
            raise OutputIndexError("output", "index", repr(index), f"0 … {len(self._outputs) - 1}")
        return self.value(self._outputs[index][0])

    # whole graphs
    @property
    def parameters(self) -> tuple[Node, ...]:
        """All parameters, in node order."""
        return tuple(n for n in self._nodes if n.op == "parameter")

    @property
    def inputs(self) -> tuple[Node, ...]:
        """All inputs, in node order."""
        return tuple(n for n in self._nodes if n.op == "input")

    def __getstate__(self) -> dict[str, object]:
        """Return what a pickle holds: source locations as text, because frames refer to code objects."""
        self.sources()
        return {name: value for name, value in vars(self).items() if name not in ("_tokens", "_draws")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _tokens=[], _draws=(0, {}))

    def copy(self) -> Graph:
        """Return a graph that is equal in every field and shares nothing with this one."""
        other = type(self)()
        other._nodes, other._frames = list(self._nodes), dict(self._frames)
        other._outputs, other._leaves = list(self._outputs), dict(self._leaves)
        other.num_param_grad_outputs, other.zero_gradients = self.num_param_grad_outputs, self.zero_gradients
        return other

    def fingerprint(self) -> str:
        """Return a hex digest of nodes, names and outputs; source locations do not count."""
        h = hashlib.sha256(b"gdlab graph 1")
        for n in self._nodes:
            attrs = tuple((k, v.digest if isinstance(v, ConstantData) else v) for k, v in attrs_key(n.attrs))
            h.update(repr((n.op, attrs, n.inputs, str(n.type), n.name)).encode())
        h.update(repr((self._outputs, self.num_param_grad_outputs)).encode())
        return h.hexdigest()

    def _check_open(self, where: str) -> None:
        if self.sealed:
            raise GraphError(where, "operand", f"a value of {self.sealed}", "a value of the graph that is being built")

    def _check_id(self, id: int) -> int:
        if not isinstance(id, (int, np.integer)) or not 0 <= id < len(self._nodes):
            raise ArgumentError("graph", "node id", id, f"0 … {len(self._nodes) - 1}")
        return int(id)


def _check_output_name(where: str, name: object) -> None:
    if not isinstance(name, str):
        raise GraphError(where, "name", repr(name), "a str")


Builder = TypeVar("Builder", bound=Callable[..., Any])


def whole(builder: Builder) -> Builder:
    """Decorator of what appends several nodes: a call that fails leaves none, and its error tells the user's line."""

    @wraps(builder)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Value):
            home: Any = args[0].graph
        else:
            home = _home(args) or _home(kwargs.values()) or kwargs.get("graph") or _current.get()
        start = len(home._nodes) if isinstance(home, Graph) else 0
        try:
            return builder(*args, **kwargs)
        except BaseException as error:
            if isinstance(home, Graph):
                home.cut(start)
                place(error, home)
            raise

    return call  # type: ignore[return-value]


def _home(given: Iterable[Any]) -> Graph | None:
    """The graph of the first value among operands, or of a list of them."""
    for v in given:
        first = v[0] if isinstance(v, (list, tuple)) and v else v
        if isinstance(first, Value):
            return first.graph
    return None


def place(error: BaseException, home: Graph) -> None:
    """Tell the user's line in an error of a call that was to append to `home`."""
    if isinstance(error, GdlabError) and error.source is None and home.records_sources:
        error.source = here()


def current_graph(where: str, graph: Graph | None = None) -> Graph:
    """Return `graph`, else the current graph; `GraphError` where there is none."""
    found = graph if graph is not None else _current.get()
    if found is None:
        raise GraphError(where, "graph", "no current graph", "a `with Graph():` block, a %%graph cell, or graph=")
    if not isinstance(found, Graph):
        raise GraphError(where, "graph", type(found).__name__, "a Graph")
    return found


def replace_current(old: Graph, new: Graph) -> None:
    """Make `new` the current graph where `old` is."""
    if _current.get() is old:
        _current.set(new)


@contextmanager
def scratch() -> Iterator[Graph]:
    """Make a new graph the current one inside the block, and give it."""
    with Graph() as graph:
        yield graph


@contextmanager
def no_collector() -> Iterator[None]:
    """Turn the cyclic garbage collector off inside the block: it would walk through the many small records of a pass
    again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
