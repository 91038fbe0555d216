"""The execution plan: frozen records of buffers, dispatches, barrier groups and memory, printable without a GPU.

A dispatch says everything that a device needs: the cpu device executes its fields, the kernels room writes its WGSL
from the same fields, and nobody looks at the graph again. Buffers are referred to by their index in `buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Literal

from gdlab.derived import DerivedParam, Part
from gdlab.graph import Attrs, Graph
from gdlab.op import Axis
from gdlab.plan import facts
from gdlab.plan.indices import index_bounds
from gdlab.types import DType, Shape, TensorType

BufferKind = Literal[
    "input", "parameter", "derived", "constant", "intermediate", "gradient", "output", "loss", "state"
]
Place = int | Part  # a buffer, or a range of one
DispatchPhase = Literal["forward", "backward", "update", "copy"]
Access = Literal["full", "row", "column", "scalar"]
KernelName = Literal[
    "pointwise", "reduce", "custom", "matmul", "movement", "sgd", "adam", "adamw", "laprop", "accumulate", "clear"
]
HazardKind = Literal["raw", "war", "waw"]
PlanMode = Literal["training", "inference"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor in memory: `nbytes` is its logical size, `nodes` whose value it holds (aliases included)."""

    id: int
    nbytes: int
    dtype: DType
    shape: Shape
    kind: BufferKind
    name: str
    nodes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its logical size, `nbytes`."""
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Operand:
    """A view of a buffer as a dispatch reads it. For element i of the result it reads element
    i (full), i mod extent (row), i div extent (column) or 0 (scalar). `shape` is the viewed shape."""

    buffer: int
    shape: Shape
    access: Access = "full"
    extent: int = 1
    dtype: DType = DType.f32


@dataclass(frozen=True, slots=True)
class Arg:
    """What a point op reads: operand k of the dispatch, point op k before it, the accumulator, or a literal."""

    kind: Literal["operand", "op", "acc", "literal"]
    index: int = 0
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class PointOp:
    """One line of a pointwise chain: `expr` over `names` (bound to `args` in order) and over the attributes.

    `node` is the node it computes: it gives the WGSL line its provenance.
    """

    op: str
    expr: str
    names: tuple[str, ...]
    args: tuple[Arg, ...]
    attrs: Attrs
    node: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A fold of [outer, length, inner] over `length`: out[o, i] = finish(combine over l of x[o, l, i]).

    `n` of the finish expression is `count`: the length, or of a fold in several stages the product of their lengths.
    """

    combine: Literal["sum", "max", "min"]
    finish: str
    outer: int
    length: int
    inner: int
    count: int
    node: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """out[m, n] = Σ_k a·b; `a` is stored [m, k] or [k, m], `b` [k, n] or [n, k]. Operands 0 and 1 of the dispatch.

    In several `parts` it is out[part, m, n]: every part over some of the steps k, for another dispatch to add.
    """

    m: int
    n: int
    k: int
    a: Literal["mk", "km"]
    b: Literal["kn", "nk"]
    node: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Custom:
    """A kernel of its own: `file` is its WGSL in `shaders/`, `form` names its NumPy form, `names[k]` is what both call
    operand k, `family` that of the op. The rest is what `gdlab.op.Work` says."""

    family: str
    form: str
    file: str
    names: tuple[str, ...]
    units: int
    length: int
    group: int
    integers: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[str, float], ...]
    node: int
    tables: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trips: int = 0

    def __getitem__(self, name: str) -> int:
        """The integer constant of this name."""
        return dict(self.integers)[name]


@dataclass(frozen=True, slots=True)
class Gather:
    """An affine gather into `shape` (see `gdlab.op.Axis`): offset + Σ coordinate·stride, `fill` outside."""

    shape: Shape
    offset: int
    axes: tuple[Axis, ...]
    fill: float
    node: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns start … stop − 1 of a result that is stored in ranges; `node` is what computes them."""

    start: int
    stop: int
    node: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """A result of rows of `width` that is stored in ranges of its columns: range k in `Dispatch.outputs[k]`, whole
    rows of its own. Columns of no range are not stored."""

    width: int
    columns: tuple[Columns, ...]


@dataclass(frozen=True)
class Dispatch:
    """One kernel launch.

    The core (`reduce`, `matmul`, `gather`, `custom`; none for `pointwise`) reads operand 0 (1 too for a product, all of
    its own for a `custom` one), or the last value of `prologue`, a chain evaluated per element read; `epilogue` is a
    chain on its result (`acc`), evaluated per element written. A `pointwise` dispatch is its `epilogue` alone. `output`
    is written in full, and so are `extra_outputs`, which only a result in `ranges` has (`output_type` is then that of
    the first range); `in_place` (read and written through one binding) occurs in updates. `params` are the numbers of
    the variant: rows and columns of a tile, results and lanes of a group, or an update's learning rate multiplier (bits
    of an f32).
    """

    index: int
    kernel: KernelName
    label: str
    phase: DispatchPhase
    operands: tuple[Operand, ...]
    output: int
    output_type: TensorType
    in_place: tuple[int, ...] = ()
    prologue: tuple[PointOp, ...] = ()
    epilogue: tuple[PointOp, ...] = ()
    reduce: Reduce | None = None
    matmul: Matmul | None = None
    gather: Gather | None = None
    custom: Custom | None = None
    ranges: Ranges | None = None
    extra_outputs: tuple[int, ...] = ()
    scalars: tuple[str, ...] = ()
    workgroups: tuple[int, int, int] = (1, 1, 1)
    workgroup_size: tuple[int, int, int] = (64, 1, 1)
    params: tuple[int, ...] = ()
    variant: str = ""
    variant_reason: str = ""
    origin: tuple[int, ...] = ()
    group: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    source_hash: str = ""

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Buffers it reads, each once, in binding order (those written in place included)."""
        return tuple(dict.fromkeys([o.buffer for o in self.operands] + list(self.in_place)))

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """Buffers it writes."""
        return tuple(dict.fromkeys((*self.outputs, *self.in_place)))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Buffers it reads, each once: `reads`."""
        return self.reads

    @property
    def pointwise(self) -> tuple[PointOp, ...] | None:
        """The chain of a dispatch that is nothing else, or None."""
        return self.epilogue if self.kernel == "pointwise" else None

    @property
    def reduction(self) -> Reduce | None:
        """The fold, or None: `reduce`."""
        return self.reduce

    @property
    def weight_format(self) -> DType | None:
        """The reduced storage that it decodes as it reads, or None."""
        return next((o.dtype for o in self.operands if o.dtype.is_storage), None)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Buffers of its results."""
        return self.output, *self.extra_outputs

    @property
    def num_elements(self) -> int:
        """Elements of its result; of one in ranges those of all columns, stored or not."""
        size = self.output_type.num_elements
        return size if self.ranges is None else size // self.output_type.shape[1] * self.ranges.width

    @cached_property
    def bindings(self) -> tuple[tuple[int, Literal["r", "w"]], ...]:
        """(buffer, access) in binding order: distinct buffers read, then those written, once each (`w` may be read).

        With `scalars` one more read-only binding follows: the per-step scalars, an array<f32> in `SCALARS` order.
        """
        read: list[tuple[int, Literal["r", "w"]]] = [(b, "r") for b in self.reads if b not in self.writes]
        write: list[tuple[int, Literal["r", "w"]]] = [(b, "w") for b in self.writes]
        return (*read, *write)


# per-step scalars that kernels read: element i of the scalar buffer; the number of the step as two halves of 16 bits,
# which float32 holds exactly
SCALARS = (
    "lr", "beta1", "beta2", "epsilon", "correction1", "correction2", "decay", "step_low", "step_high",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hazard:
    """Why a group had to end: dispatch `after` conflicts with the earlier `before` on `buffer`."""

    before: int
    after: int
    buffer: int
    kind: HazardKind


@dataclass(frozen=True, slots=True)
class Group:
    """A barrier group: dispatches start … stop − 1 may run in any order; `because`: conflicts with the group before."""

    start: int
    stop: int
    because: tuple[Hazard, ...]

    def __iter__(self) -> Iterator[int]:
        """`start, stop = group`."""
        return iter((self.start, self.stop))


@dataclass(frozen=True, slots=True)
class Slot:
    """One device buffer: its size (a multiple of 256) and its tenants in order of their lives."""

    nbytes: int
    tenants: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size, `nbytes`."""
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Interval:
    """The life of a buffer in dispatch and group numbers (first = −1: written before the step), inclusive."""

    first: int
    last: int
    first_group: int
    last_group: int


def _stored(record: MemoryPlan | ExecutionPlan) -> dict[str, object]:
    """The fields alone, for copies and pickles: what was made of them can be made again."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@dataclass(frozen=True)
class MemoryPlan:
    """Where every buffer lies; `peak_bytes` are alive in group `peak_group`, more than in any other."""

    slot_of: tuple[int, ...]
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
        """Buffer -> why it shares with nobody, in words."""
        return MappingProxyType(dict(self.pins))


@dataclass(frozen=True, slots=True)
class Missed:
    """A plan-level fusion that was not made: which node, into which, and why, in words."""

    label: str
    node: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What `compile` is told of a node: its phase, and the forward node it belongs to (there its own id)."""

    phase: Literal["forward", "backward"]
    forward: int


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Switches of `compile`; none changes a value beyond rounding. `reorder`: dispatches move across the borders of
    phases wherever no conflict holds them, into fewer and wider barrier groups. `tile`: (rows, columns) that every
    product is cut into, one of `variants.TILES`; None: what suits each on the target."""

    fuse_dispatches: bool = True
    alias: bool = True
    serial: bool = False
    pin: tuple[str, ...] = ()
    reorder: bool = False
    tile: tuple[int, int] | None = None


AdapterClass = Literal["hardware", "software", "cpu"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What kernels and bindings must stay within; the defaults are WebGPU's portable ones."""

    workgroups_per_axis: int = 65535
    binding_bytes: int = 128 << 20
    storage_buffers: int = 8
    alignment: int = 256
    workgroup_bytes: int = 16384
    invocations: int = 256


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan is compiled for: kind of device, class of adapter (decides schedules), limits."""

    kind: Literal["wgpu", "cpu"]
    adapter_class: AdapterClass
    limits: Limits

    @staticmethod
    def portable() -> Target:
        """Any WebGPU adapter."""
        return Target("wgpu", "hardware", Limits())


@dataclass(frozen=True)
class ExecutionPlan:
    """Everything one step does, in order. Equality is structural."""

    mode: PlanMode
    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    groups: tuple[Group, ...]
    memory: MemoryPlan
    param_buffers: tuple[tuple[str, Place], ...]  # of a source of a derived parameter its range
    input_buffers: tuple[tuple[str, int], ...]
    constant_buffers: tuple[tuple[int, bytes], ...]
    param_grad_pairs: tuple[tuple[int, int], ...]
    output_buffers: tuple[int, ...]
    loss_buffer: int | None
    places: tuple[tuple[int, int], ...]  # (node, buffer): `node_buffers`
    fates: tuple[tuple[int, int, str], ...]  # (node, dispatch or −1, reason): `fused_nodes`
    missed: tuple[Missed, ...]
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
        dispatches, groups, buffers = len(self.dispatches), len(self.groups), len(self.buffers)
        return f"<ExecutionPlan: {dispatches} dispatches, {groups} groups, {buffers} buffers>"

    @property
    def buffer_sizes(self) -> tuple[int, ...]:
        """Logical bytes of every buffer."""
        return tuple(b.nbytes for b in self.buffers)

    @property
    def phase(self) -> PlanMode:
        """What it was compiled for: `mode`."""
        return self.mode

    @cached_property
    def node_buffers(self) -> Mapping[int, int]:
        """Node of `graph` -> the buffer that holds its value."""
        return MappingProxyType(dict(self.places))

    @cached_property
    def fused_nodes(self) -> Mapping[int, tuple[int, str]]:
        """Node without a buffer of its own -> (the dispatch that it went into or −1, why)."""
        return MappingProxyType({node: (dispatch, why) for node, dispatch, why in self.fates})

    @cached_property
    def node_names(self) -> Mapping[int, str]:
        """Node of `graph` -> its name, of those that have one."""
        return MappingProxyType(facts.names_of(self))

    @cached_property
    def fills(self) -> tuple[tuple[int, float], ...]:
        """(buffer, number) of every buffer that one number fills."""
        return facts.fills_of(self)

    @cached_property
    def weight_buffers(self) -> Mapping[int, tuple[DType, int, int]]:
        """Buffer -> (storage dtype, rows, columns) of every parameter in reduced storage."""
        return MappingProxyType(facts.weights_of(self))

    @cached_property
    def lse_buffers(self) -> tuple[tuple[int, int], ...]:
        """(attention node, buffer) of the logarithms of sums that its derivative reads."""
        return facts.statistics_of(self)

    @cached_property
    def index_bounds(self) -> Mapping[str, int]:
        """Input of indices -> what its elements must lie below."""
        return MappingProxyType(dict(index_bounds(self.graph)))

    @cached_property
    def reads_scalars(self) -> bool:
        """Whether a dispatch of the plan itself (not of an update) reads per-step scalars."""
        return any(d.scalars for d in self.dispatches)

    @property
    def param_types(self) -> dict[str, TensorType]:
        """Logical types of the parameters by name."""
        return {n.name: n.type for n in self.graph.parameters}

    @cached_property
    def derived_params(self) -> tuple[DerivedParam, ...]:
        """The parameters that are the storage of others; their sources lie in ranges of their buffers."""
        return self.graph.derived_params

    @cached_property
    def stored_params(self) -> tuple[tuple[str, int], ...]:
        """(name, buffer) of everything that is trained as one: parameters, a derived one in place of its sources."""
        found = {place if isinstance(place, int) else place.buffer for _, place in self.param_buffers}
        return tuple((self.buffers[b].name, b) for b in sorted(found))

    @property
    def input_types(self) -> dict[str, TensorType]:
        """Logical types of the inputs by name."""
        return {name: TensorType(self.buffers[b].shape, self.buffers[b].dtype) for name, b in self.input_buffers}

    def wgsl(self, index: int) -> tuple[str, LineMap]:
        """The WGSL of dispatch `index`, and (1-based line, node ids) of the lines that compute a node."""
        return JOINER[0](self.dispatches[index], self.target)

    def to_json(self) -> str:
        """The plan and its graph as text, canonical: keys sorted, no spaces."""
        text: str = import_module("gdlab.plan.codec").to_json(self)
        return text

    @staticmethod
    def from_json(text: str) -> ExecutionPlan:
        """The plan that `to_json` wrote, verified and equal to it; `LoadError` for anything else."""
        plan: ExecutionPlan = import_module("gdlab.plan.codec").from_json(text)
        return plan


LineMap = tuple[tuple[int, tuple[int, ...]], ...]


def _joined(dispatch: Dispatch, target: Target) -> tuple[str, LineMap]:
    """The text by `kernels`, which lies further down the list of rooms and is loaded when somebody asks."""
    found: tuple[str, LineMap] = import_module("gdlab.kernels").wgsl(dispatch, target)
    return found


JOINER: list[Callable[[Dispatch, Target], tuple[str, LineMap]]] = [_joined]  # tests put kernels of their own here


def _fields(plan: ExecutionPlan) -> tuple[object, ...]:
    values = [getattr(plan, name) for name in ExecutionPlan.__dataclass_fields__ if name != "graph"]
    return (*values, plan.graph.fingerprint())


@dataclass(frozen=True, slots=True)
class Update:
    """The configured parameter update: its dispatches (phase `update`) and the state buffers they need.

    State buffer ids continue after `ExecutionPlan.buffers`; `moments[parameter buffer] = (m, v)`. The first `early`
    dispatches add up gradients and run in every step, the others in those that update.
    """

    rule: Literal["none", "sgd", "adam", "adamw", "laprop"]
    dispatches: tuple[Dispatch, ...]
    buffers: tuple[Buffer, ...]
    moments: tuple[tuple[int, int, int], ...]
    early: int = 0
