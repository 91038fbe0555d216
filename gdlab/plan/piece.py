"""Lower an op, or a function in op notation, on operands of given types: `piece(ops.matmul, types, target)`.

The doors that run ops one by one bind the buffers of a piece to memory of their own.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from gdlab.base.errors import GraphError
from gdlab.base.memo import LruCache
from gdlab.base.types import TensorType
from gdlab.graph import Attrs, Graph, Value, attrs_key, scratch
from gdlab.op import Op
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.lower import lowered
from gdlab.plan.records import PlanBuffer
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.verify import verify_dispatches

PIECES = 4096  # kept, the most recently used
Build = Op | Callable[..., Value | Sequence[Value]]


class PieceCounter(Protocol):
    """A count of the pieces that were made for one caller."""

    pieces_created: int


@dataclass(frozen=True, eq=False)
class Piece:
    """A small graph as dispatches on numbered buffers, which lie nowhere yet.

    `operands` and `results` are buffers in the order of the call; no result is an operand, but results of equal value
    may be one buffer. `scratch` buffers hold nothing before and after; `constants` hold these bytes. Groups and indices
    of dispatches count from 0, their nodes are those of the traced graph: what a piece was bound for knows its own
    provenance. There is one piece per graph, options and target, so identity is equality.
    """

    dispatches: tuple[Dispatch, ...]
    buffers: tuple[PlanBuffer, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    scratch: tuple[int, ...]
    constants: tuple[tuple[int, bytes], ...]

    def __repr__(self) -> str:
        return f"<Piece: {'; '.join(d.label for d in self.dispatches)}>"


_by_call: LruCache[Hashable, Piece] = LruCache(PIECES)
# Functions that trace the same graph share its piece for as long as a call of one of them keeps it.
_by_graph: WeakValueDictionary[tuple[str, bool, Target], Piece] = WeakValueDictionary()
_lock = allocate_lock()


def piece(
    build: Build,
    types: tuple[TensorType, ...],
    target: Target,
    attrs: Attrs = (),
    *,
    fuse: bool = False,
    counter: PieceCounter | None = None,
) -> Piece:
    """Return the piece of `build` on operands of these types, made at the first such call and then cached.

    `build` is an op, whose attributes `attrs` are as a node stores them, or a pure function `(*values, **attrs)` that
    returns one value or several. Kernels and schedules are those of a plan of the same nodes on the same target, its
    tuning included, with `fuse_dispatches=fuse`. A piece that had to be made is counted in `counter`.
    Raises what the op raises, `GraphError` for a function that makes inputs or parameters, and `CompileError`.
    """
    call = build, types, attrs_key(attrs), fuse, target
    found = _by_call.get(call)
    if found is None:
        found = _shared(_traced(build, types, attrs), fuse, target, counter)
        _by_call.put(call, found, 1)
    return found


def fusions_missed(build: Build, types: tuple[TensorType, ...], target: Target, attrs: Attrs = ()) -> list[str]:
    """Return the reasons why the compiler keeps dispatches of a function apart, as in a plan's `missed`."""
    graph = _traced(build, types, attrs)
    low = lowered(graph, [False] * len(graph), CompileOptions(fuse_dispatches=True), target)
    return [f"{m.label}: {m.detail}" for m in low.missed]


def _shared(graph: Graph, fuse: bool, target: Target, counter: PieceCounter | None) -> Piece:
    """Return the cached piece of a graph; threads that make it at the same time get one, counted once."""
    key = graph.fingerprint(), fuse, target
    found = _by_graph.get(key)
    if found is not None:
        return found
    made = _piece_of(graph, fuse, target)
    with _lock:
        found = _by_graph.setdefault(key, made)
        if found is made and counter is not None:
            counter.pieces_created += 1
    return found


def _traced(build: Build, types: tuple[TensorType, ...], attrs: Attrs) -> Graph:
    """Return the graph of a call: its operands x0, x1, … and the nodes built on them."""
    with scratch() as graph, graph.silent():
        names = [f"x{i}" for i in range(len(types))]
        operands = [
            graph.register_leaf(graph.append("input", (), (("name", name),), type, name))
            for name, type in zip(names, types, strict=True)
        ]
        graph.set_outputs(
            _node(graph, build, operands, attrs) if isinstance(build, Op) else build(*operands, **dict(attrs))
        )
    for n in graph.nodes[len(types) :]:
        if n.op in ("input", "parameter"):
            raise GraphError("piece", n.op, repr(n.name), "a function of its operands alone")
    return graph


def _node(graph: Graph, op: Op, operands: Sequence[Value], attrs: Attrs) -> Value:
    """Append the node itself: a call of the op would also append nodes for its operands, such as broadcasts."""
    return graph.append(op.name, tuple(v.id for v in operands), attrs, op.infer(operands, dict(attrs)))


def _piece_of(graph: Graph, fuse: bool, target: Target) -> Piece:
    low = lowered(graph, [False] * len(graph), CompileOptions(fuse_dispatches=fuse), target)
    verify_dispatches(low.dispatches, low.buffers, target.limits)
    operands = tuple(low.leaf_buffer(n.id) for n in graph.inputs)
    results = tuple(map(low.output_buffer, graph.output_ids))
    constants = low.constants()
    held = {*operands, *results, *(b for b, _ in constants)}
    others = tuple(b.id for b in low.buffers if b.id not in held)
    return Piece(tuple(low.dispatches), tuple(low.buffers), operands, results, others, constants)
