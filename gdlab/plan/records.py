"""The execution plan: frozen records of buffers, dispatches, barrier groups and memory, printable without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gdlab.base.binding import bound
from gdlab.base.types import DType, Shape, TensorType
from gdlab.base.words import plural
from gdlab.graph import Graph
from gdlab.op.storage import DerivedParam, SourceRange, derived_parameters
from gdlab.plan import facts
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.indices import index_bounds
from gdlab.plan.target import CompileOptions, Target

BufferKind = Literal[
    "input", "parameter", "derived", "constant", "intermediate", "gradient", "output", "loss", "state"
]
Place = int | SourceRange  # a buffer, or a range of one
HazardKind = Literal["raw", "war", "waw"]
PlanMode = Literal["training", "inference"]


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """One tensor in memory: `nbytes` is its logical size, `nodes` are those whose value it holds (aliases included)."""

    id: int
    nbytes: int
    dtype: DType
    shape: Shape
    kind: BufferKind
    name: str
    nodes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Logical size in bytes, `nbytes`."""
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Hazard:
    """The reason for the end of a group: dispatch `after` conflicts with the earlier `before` on `buffer`."""

    before: int
    after: int
    buffer: int
    kind: HazardKind


@dataclass(frozen=True, slots=True)
class BarrierGroup:
    """A barrier group: dispatches start … stop − 1 may run in any order; `because`: conflicts with the group before."""

    start: int
    stop: int
    because: tuple[Hazard, ...]

    def __iter__(self) -> Iterator[int]:
        """Yield start and stop: `start, stop = group`."""
        return iter((self.start, self.stop))


@dataclass(frozen=True, slots=True)
class Slot:
    """One device buffer: its size (a multiple of 256) and its tenants in order of their first writes."""

    nbytes: int
    tenants: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes, `nbytes`."""
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Interval:
    """The life of a buffer in dispatch and group numbers (first = −1: written before the step), inclusive."""

    first: int
    last: int
    first_group: int
    last_group: int


def _stored(record: MemoryPlan | ExecutionPlan) -> dict[str, object]:
    """Return the fields alone, for copies and pickles: cached properties can be computed again."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@dataclass(frozen=True)
class MemoryPlan:
    """The place of every buffer: its slot, and the byte of it at which the buffer begins (a multiple of 256; 0 where a
    slot has one tenant at a time). `peak_bytes` are alive in group `peak_group`, more than in any other."""

    slot_of: tuple[int, ...]
    offset_of: tuple[int, ...]
    slots: tuple[Slot, ...]
    intervals: tuple[Interval, ...]
    pins: tuple[tuple[int, str], ...]
    logical_bytes: int
    physical_bytes: int
    peak_bytes: int
    peak_group: int

    def __getstate__(self) -> dict[str, object]:
        return _stored(self)

    @cached_property
    def pinned(self) -> Mapping[int, str]:
        """The reason, in words, why a buffer shares its slot with no other, by buffer."""
        return MappingProxyType(dict(self.pins))


@dataclass(frozen=True, slots=True)
class MissedFusion:
    """A fusion that the plan did not make: the node, the dispatch it stayed out of, and the reason in words."""

    label: str
    node: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a node without a buffer of its own: the dispatch that it went into, the result that it is part of
    (−1: none), and the reason in words."""

    node: int
    dispatch: int
    result: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLane:
    """The lane of a node, as `compile` takes it: its phase, and the forward node it belongs to (there its own id)."""

    phase: Literal["forward", "backward"]
    forward: int


@bound
@dataclass(frozen=True)
class ExecutionPlan:
    """Everything one step does, in order. Equality is structural."""

    mode: PlanMode
    buffers: tuple[PlanBuffer, ...]
    dispatches: tuple[Dispatch, ...]
    groups: tuple[BarrierGroup, ...]
    memory: MemoryPlan
    param_buffers: tuple[tuple[str, Place], ...]  # of a source of a derived parameter its range
    input_buffers: tuple[tuple[str, int], ...]
    constant_buffers: tuple[tuple[int, bytes], ...]
    param_grad_pairs: tuple[tuple[int, int], ...]
    output_buffers: tuple[int, ...]
    loss_buffer: int | None
    places: tuple[tuple[int, int], ...]  # (node, buffer): `node_buffers`
    fates: tuple[Fate, ...]  # of the nodes without a buffer of their own
    missed: tuple[MissedFusion, ...]
    graph: Graph
    options: CompileOptions
    target: Target
    fingerprint: str
    passes: int = 1
    version: int = 1
    order_before: tuple[int, ...] = ()  # of a reordered plan: each dispatch's place without, and the number of groups
    groups_before: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionPlan) and _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash((self.fingerprint, len(self.dispatches)))

    def __getstate__(self) -> dict[str, object]:
        return _stored(self)

    def __repr__(self) -> str:
        counts = (self.dispatches, "dispatch"), (self.groups, "group"), (self.buffers, "buffer")
        return f"<ExecutionPlan: {', '.join(plural(len(rows), word) for rows, word in counts)}>"

    @property
    def buffer_sizes(self) -> tuple[int, ...]:
        """Logical bytes of every buffer."""
        return tuple(b.nbytes for b in self.buffers)

    @property
    def phase(self) -> PlanMode:
        """The mode that the plan was compiled for: `mode`."""
        return self.mode

    @cached_property
    def node_buffers(self) -> Mapping[int, int]:
        """The buffer that holds the value of each node of `graph`."""
        return MappingProxyType(dict(self.places))

    @cached_property
    def fused_nodes(self) -> Mapping[int, tuple[int, str]]:
        """The fate of each node without a buffer of its own: (the dispatch that it went into or −1, reason)."""
        return MappingProxyType({fate.node: (fate.dispatch, fate.reason) for fate in self.fates})

    @cached_property
    def node_names(self) -> Mapping[int, str]:
        """Names of the nodes of `graph`, as far as they have one."""
        return MappingProxyType(facts.names_of(self))

    @cached_property
    def fills(self) -> tuple[tuple[int, float], ...]:
        """(buffer, number) of every buffer that one number fills."""
        return facts.fills_of(self)

    @cached_property
    def weight_buffers(self) -> Mapping[int, tuple[DType, int, int]]:
        """(storage dtype, rows, columns) of every parameter in reduced storage, by buffer."""
        return MappingProxyType(facts.weights_of(self))

    @cached_property
    def lse_buffers(self) -> tuple[tuple[int, int], ...]:
        """(attention node, buffer) of the logarithms of sums that its derivative reads."""
        return facts.statistics_of(self)

    @cached_property
    def index_bounds(self) -> Mapping[str, int]:
        """The bound of the elements of each input of indices."""
        return MappingProxyType(dict(index_bounds(self.graph)))

    @cached_property
    def reads_scalars(self) -> bool:
        """Whether a dispatch of the plan itself (not of an update) reads per-step scalars."""
        return any(d.scalars for d in self.dispatches)

    @cached_property
    def param_types(self) -> Mapping[str, TensorType]:
        """Logical types of the parameters by name."""
        return MappingProxyType({n.name: n.type for n in self.graph.parameters})

    @cached_property
    def derived_params(self) -> tuple[DerivedParam, ...]:
        """The parameters that are the storage of others; their sources lie in ranges of their buffers."""
        return derived_parameters(self.graph)

    @cached_property
    def stored_params(self) -> tuple[tuple[str, int], ...]:
        """(name, buffer) of everything trained as one tensor: parameters, a derived one in place of its sources."""
        found = {place if isinstance(place, int) else place.buffer for _, place in self.param_buffers}
        return tuple((self.buffers[b].name, b) for b in sorted(found))

    @property
    def input_types(self) -> dict[str, TensorType]:
        """Logical types of the inputs by name."""
        return {name: TensorType(self.buffers[b].shape, self.buffers[b].dtype) for name, b in self.input_buffers}

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return ExecutionPlan.from_json, (self.to_json(),)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def wgsl(self, index: int) -> tuple[str, LineMap]: ...
        def to_json(self) -> str: ...
        @staticmethod
        def from_json(text: str) -> ExecutionPlan: ...


LineMap = tuple[tuple[int, tuple[int, ...]], ...]


def _fields(plan: ExecutionPlan) -> tuple[object, ...]:
    values = [getattr(plan, name) for name in ExecutionPlan.__dataclass_fields__ if name != "graph"]
    return (*values, plan.graph.fingerprint())


@dataclass(frozen=True, slots=True)
class Update:
    """The configured parameter update: its rule (a name in `plan/rules/`, or `none`), its dispatches (phase `update`)
    and the state buffers they need.

    State buffer ids continue after `ExecutionPlan.buffers`; `moments` are rows of a parameter's buffer and those of its
    state under this rule. The first `early` dispatches add up gradients and run in every step, the others in those that
    update.
    """

    rule: str
    dispatches: tuple[Dispatch, ...]
    buffers: tuple[PlanBuffer, ...]
    moments: tuple[tuple[int, ...], ...]
    early: int = 0
