"""Keep the list of a session, `ComputeGraph`: its nodes and fences, with the passes over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from gdlab.base.errors import ArgumentError, ReorderViolation
from gdlab.base.kinds import FLAG, TEXT, Kind, kinds
from gdlab.base.words import plural
from gdlab.plan.order import ConflictTracker, Footprint, Range
from gdlab.record.buffers import Buffer
from gdlab.record.operation import Operation, OpKind

if TYPE_CHECKING:
    from gdlab.record.encoder import CommandEncoder
    from gdlab.record.fuse import Fusion

ENCODER = Kind("the encoder of a session, `encoder_mut()`", lambda given: hasattr(type(given), "barrier_between"))


class Node:
    """One op call: its operation, the buffers that it keeps alive, and ranges that the caller added. `opaque`: it
    conflicts with everything; `fence`: no pass moves a node from before it to behind it, or back."""

    __slots__ = ("buffers", "declared", "fence", "footprint", "kind", "opaque", "operation")

    def __init__(
        self, operation: Operation, buffers: tuple[Buffer, ...], kind: OpKind, opaque: bool, fence: bool,
        declared: Footprint | None = None,
    ) -> None:  # fmt: skip
        self.operation, self.buffers, self.kind, self.opaque, self.fence = operation, buffers, kind, opaque, fence
        self.declared = declared
        own = operation.footprint
        self.footprint = own if declared is None or declared == own else joined(own, declared)

    def __repr__(self) -> str:
        return f"<Node {self.operation.name}: reads {spelled(self.reads)}, writes {spelled(self.writes)}>"

    @property
    def name(self) -> str:
        """Return the name of its method or op."""
        return self.operation.name

    @property
    def op_kind(self) -> OpKind:
        """Return the kind of the node, by which passes recognize it."""
        return self.kind

    @property
    def reads(self) -> tuple[Range, ...]:
        """Return the ranges that the node reads."""
        return self.footprint.reads

    @property
    def writes(self) -> tuple[Range, ...]:
        """Return the ranges that the node writes."""
        return self.footprint.writes

    def declare(self, more: Footprint) -> None:
        """Add ranges that the caller declared."""
        old = self.declared or Footprint((), ())
        self.declared = joined(old, more)
        self.footprint = joined(self.operation.footprint, self.declared)


def joined(first: Footprint, second: Footprint) -> Footprint:
    """Return the ranges of both, each once."""
    reads, writes = (tuple(dict.fromkeys(a + b)) for a, b in zip(first, second, strict=True))
    return Footprint(reads, writes)


def spelled(ranges: Iterable[Range]) -> str:
    """Return ranges in words: `0 … 256 of 7`."""
    return ", ".join(f"{r.start} … {r.stop} of {r.memory}" for r in ranges) or "nothing"


@dataclass(frozen=True, slots=True)
class Grouping:
    """The barrier groups of a list: the number of nodes in each, and the nodes that a barrier stands before."""

    sizes: tuple[int, ...]
    barriers: tuple[int, ...]


class Labelled(NamedTuple):
    """The label of a buffer, and whether its contents are transient."""

    label: str
    transient: bool


class Sketch(NamedTuple):
    """A node without the memory of its buffers: the data that `to_graph` depends on."""

    operation: Operation
    buffers: tuple[Labelled, ...]


def sketched(nodes: Iterable[Node]) -> tuple[Sketch, ...]:
    """Return nodes without their buffers."""
    return tuple(
        Sketch(n.operation, tuple([Labelled(b.label, b.transient) for b in n.buffers])) for n in nodes
    )  # fmt: skip


class GroupFacts(NamedTuple):
    """The facts of a node in a list on which barrier groups depend."""

    footprint: Footprint
    opaque: bool
    fence: bool


def placed(nodes: Iterable[Node]) -> tuple[GroupFacts, ...]:
    """Return for every node the facts on which barrier groups depend."""
    return tuple([GroupFacts(n.footprint, n.opaque, n.fence) for n in nodes])


def grouping(nodes: Sequence[Node | GroupFacts]) -> Grouping:
    """Return the groups of nodes in this order: a fence, an opaque node or a conflict begins a new group."""
    tracker, sizes, barriers = ConflictTracker(), list[int](), list[int]()
    closed = False  # behind an opaque node
    for i, node in enumerate(nodes):
        footprint, opaque = node.footprint, node.opaque
        apart = node.fence or opaque or closed or tracker.conflicts(footprint)
        if apart and i:
            barriers.append(i)
            tracker.reset()
        if apart or not sizes:
            sizes.append(0)
        sizes[-1] += 1
        closed = opaque
        tracker.add(i, footprint)
    return Grouping(tuple(sizes), tuple(barriers))


@dataclass(slots=True, eq=False)
class ComputeGraph:
    """The nodes of a session in order, `session.graph`. `fuse` and `reorder` change it; what they did is in
    `fusions`, `misses` and `moved`. `fusers`: passes by the name of their rules; `on_change` is told of a pass;
    `settle` appends the calls of the session that are not nodes yet."""

    listed: list[Node] = field(default_factory=list)
    fusers: Mapping[str, Callable[[list[Node]], tuple[list[Node], list[Any], list[Any]]]] = field(default_factory=dict)
    on_change: Callable[[int], None] = lambda nanoseconds: None
    settle: Callable[[], None] = lambda: None
    fusions: list[Fusion] = field(default_factory=list)
    misses: list[tuple[int, str]] = field(default_factory=list)
    moved: int = 0
    order: list[int] = field(default_factory=list)
    kept_order: str = ""
    recorded_barriers: int | None = None  # as they were encoded; None after a pass

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes in order."""
        self.settle()
        return self.listed

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<ComputeGraph: {plural(len(self.nodes), 'node')}, {plural(self.barrier_count(), 'barrier')}>"

    def dispatch_count(self) -> int:
        """Return the number of dispatches of all nodes."""
        return sum(node.operation.dispatches for node in self.nodes)

    def node_count(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes)

    def barrier_count(self) -> int:
        """Return the number of barriers between the nodes: those encoded; after a pass, those derived anew."""
        self.settle()
        if self.recorded_barriers is not None:
            return self.recorded_barriers
        return len(grouping(self.nodes).barriers)

    @kinds(rules=TEXT)
    def fuse(self, rules: str = "norms") -> int:
        """Join every norm with the product that follows it where that changes no result; return the number of pairs.
        `rules="all"`: any node with the one before it whose result it reads, if the compiler makes fewer dispatches of
        both."""
        from gdlab.record.fuse import fuse

        return fuse(self, rules)

    @kinds(exact=FLAG)
    def reorder(self, exact: bool = False) -> int:
        """Move nodes without conflicts into earlier barrier groups; return the number of nodes that moved. `exact`:
        into as few groups as any order has, where the look-ahead of 63 nodes may leave more. Raises `ReorderViolation`
        (a defect of gdlab), then nothing has changed."""
        from gdlab.record.reorder import reorder

        return reorder(self, exact)

    def check_order(self, order: Sequence[int]) -> None:
        """Raise `ReorderViolation` unless every node would read and write the same in this order: `order[k]` is the
        node that runs k-th."""
        from gdlab.record.check import violation

        try:
            given = [index(k) for k in order if not isinstance(k, bool)]
        except TypeError:
            given = []
        if sorted(given) != list(range(len(self.nodes))) or len(given) != len(order):
            raise ArgumentError("check_order", "order", f"{order!r:.80}", f"each of 0 … {len(self.nodes) - 1} once")
        found = violation([(n.reads, n.writes, n.opaque, n.fence) for n in self.nodes], given)
        if found:
            raise ReorderViolation("check_order", "order", found, "the reads and writes of the recorded order")

    @kinds(encoder=ENCODER)
    def encode_sequential(self, encoder: CommandEncoder) -> int:
        """Add the nodes to another session's encoder, in order; return the number of barriers between them."""
        for node in self.nodes:
            encoder.append(node)
        return len(grouping(self.nodes).barriers)
