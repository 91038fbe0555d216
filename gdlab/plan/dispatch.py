"""Record one kernel launch: everything that a device needs to run it, and its name in the field.

The cpu device executes these fields, the kernels room writes WGSL from the same ones, and nobody looks at the graph
again. Buffers are referred to by their index in the plan's `buffers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gdlab.base.types import DType, Shape, TensorType
from gdlab.graph import Attrs
from gdlab.op import Axis

DispatchPhase = Literal["forward", "backward", "update", "copy"]
Access = Literal["full", "row", "column", "scalar"]
KernelName = Literal["pointwise", "reduce", "custom", "matmul", "movement", "update"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A view of a buffer as a dispatch reads it. For element i of the result it reads element
    i (full), i mod extent (row), i div extent (column) or 0 (scalar). `shape` is the viewed shape. In several `parts`,
    which lie one after another, it reads the sum of their elements (full)."""

    buffer: int
    shape: Shape
    access: Access = "full"
    extent: int = 1
    dtype: DType = DType.f32
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Arg:
    """An operand of a point op: operand k of the dispatch, point op k before it, the accumulator, that of the second
    product (`Matmul.dual`), or a literal. Of a result also what a kernel reads as its first operand ("read")."""

    kind: Literal["operand", "op", "acc", "dual", "literal", "read"]
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
class RowNorm:
    """Rows x of a product's first operand that are read as x · w / √(mean x² + eps); w is operand 2 of the dispatch."""

    eps: float
    node: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """out[m, n] = Σ_k a·b; `a` is stored [m, k] or [k, m], `b` [k, n] or [n, k]. Operands 0 and 1 of the dispatch.

    In several `parts` it is out[part, m, n]: every part over some of the steps k, for another dispatch to add. A
    product of few rows, or with K in parts in a workgroup, may normalize those of a: `norm`. It may compute a second
    product of the same extents and layouts, of node `dual`, for the epilogue (a dual GEMM): its factor, like b, is
    operand `dual_operand`; its rows are those of a or, with K in parts and `dual_rows`, operand `rows_operand`.
    """

    m: int
    n: int
    k: int
    a: Literal["mk", "km"]
    b: Literal["kn", "nk"]
    node: int
    parts: int = 1
    norm: RowNorm | None = None
    dual: int | None = None
    dual_rows: bool = False

    @property
    def dual_operand(self) -> int:
        """The operand of the second product's factor, behind the weight of the norm."""
        return 2 if self.norm is None else 3

    @property
    def rows_operand(self) -> int:
        """The operand of the second product's rows: behind its factor, or operand 0."""
        return self.dual_operand + 1 if self.dual_rows else 0


@dataclass(frozen=True, slots=True)
class Custom:
    """The call of a kernel with a shader file of its own: `file` is its WGSL in `shaders/`, `form` names its NumPy
    form, `names[k]` and `results[k]` are the names of operand k and result k + 1 in both, `family` is that of the op.
    The rest is what `gdlab.op.Work` says."""

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
    results: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> int:
        """Return the integer constant of this name."""
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
    """Columns start … stop − 1 of the core's result, which has rows of `width`."""

    start: int
    stop: int
    width: int


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a dispatch writes in full: its buffer, its type, the node whose value it is (−1: of none, a partial
    sum or a state), its `columns` where a product is stored in ranges, and its `value` where that is another than the
    last of the epilogue: what the core computes ("acc", "dual"), a line of the epilogue ("op"), or of a `custom` core
    what it reads as operand 0 ("read")."""

    buffer: int
    type: TensorType
    node: int = -1
    columns: Columns | None = None
    value: Arg | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of columns or rows of a parameter: the elements before `stop`, in every period, that are in no stretch
    before it. They move by `factor` times the rate; `clip` is the buffer of the number that clips their gradients, if
    any does."""

    stop: int
    factor: float = 1.0
    clip: int | None = None


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """One parameter in an update: `touched` are its buffer and those of its state, `gradient` is the buffer of its
    gradient (None: the rule reads none). Element i is in the stretch of i mod period, where the last one stops."""

    type: TensorType
    touched: tuple[int, ...]
    gradient: int | None
    stretches: tuple[Stretch, ...]
    node: int

    @property
    def period(self) -> int:
        """The number of elements after which the stretches repeat."""
        return self.stretches[-1].stop

    @property
    def buffers(self) -> tuple[int, ...]:
        """All buffers that the update of this parameter reads or writes, each once."""
        clips = (s.clip for s in self.stretches if s.clip is not None)
        read = () if self.gradient is None else (self.gradient,)
        return tuple(dict.fromkeys((*self.touched, *read, *clips)))


@dataclass(frozen=True, slots=True)
class UpdateCore:
    """An update rule (a name in `plan/rules/`) on one or more parameters: the first workgroups move the first of them,
    four elements per invocation, the next ones the second, and so on."""

    rule: str
    parameters: tuple[ParameterUpdate, ...]


@dataclass(frozen=True)
class Dispatch:
    """One kernel launch.

    The core (`reduce`, `matmul`, `gather`, `custom`, `update`; none for `pointwise`) reads operand 0 (1 too for a
    product, all of its own for a `custom` one and an `update`), or instead of operand 0 the last value of `prologue`, a
    chain evaluated per element read; `epilogue` is a chain on its result (`acc`), evaluated per element written. A
    `pointwise` dispatch is its `epilogue` alone. Each of `results` is written in full: the first by the epilogue, or
    where they have `columns` each range of columns by it; the others of a `custom` core by its file (`Custom.results`
    are their names there); those with a `value` of their own, behind them, by the epilogue or as the core reads them.
    Columns of no result are not stored. The results of an `update` are its parameters. `in_place` (read and written
    through one binding) occurs in updates and cache writes. `params` are the numbers of the variant: rows and columns
    of a tile, or results and lanes of a group.
    """

    index: int
    kernel: KernelName
    label: str
    phase: DispatchPhase
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    in_place: tuple[int, ...] = ()
    prologue: tuple[PointOp, ...] = ()
    epilogue: tuple[PointOp, ...] = ()
    reduce: Reduce | None = None
    matmul: Matmul | None = None
    gather: Gather | None = None
    custom: Custom | None = None
    update: UpdateCore | None = None
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
        """Buffers that the dispatch reads, each once, in binding order (those written in place included)."""
        return tuple(dict.fromkeys([o.buffer for o in self.operands] + list(self.in_place)))

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """Buffers that the dispatch writes."""
        return tuple(dict.fromkeys((*self.outputs, *self.in_place)))

    @property
    def entry(self) -> str:
        """Name of the kernel; for an update, name of the rule."""
        return self.kernel if self.update is None else self.update.rule

    @property
    def inputs(self) -> tuple[int, ...]:
        """Buffers that the dispatch reads, each once: `reads`."""
        return self.reads

    @property
    def pointwise(self) -> tuple[PointOp, ...] | None:
        """The chain of a dispatch without a core, or None."""
        return self.epilogue if self.kernel == "pointwise" else None

    @property
    def reduction(self) -> Reduce | None:
        """The fold, or None: `reduce`."""
        return self.reduce

    @property
    def weight_format(self) -> DType | None:
        """The reduced storage dtype that the dispatch decodes as it reads, or None."""
        return next((o.dtype for o in self.operands if o.dtype.is_storage), None)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Buffers of its results."""
        return tuple(r.buffer for r in self.results)

    @cached_property
    def stored(self) -> tuple[Result, ...]:
        """The results that the epilogue writes: all in ranges of columns, or the first and those with a value of their
        own, which have its size and dtype."""
        first, *others = self.results
        return first, *(r for r in others if r.columns is not None or (r.value is not None and r.value.kind != "read"))

    @cached_property
    def read_result(self) -> Result | None:
        """The result that a `custom` core stores as it reads operand 0, if any."""
        return next((r for r in self.results if r.value is not None and r.value.kind == "read"), None)

    @property
    def output(self) -> int:
        """The buffer of its first result."""
        return self.results[0].buffer

    @property
    def extra_outputs(self) -> tuple[int, ...]:
        """Buffers of its other results."""
        return self.outputs[1:]

    @property
    def type(self) -> TensorType:
        """The type of its first result; of a result in ranges of columns that of the first range."""
        return self.results[0].type

    @property
    def in_columns(self) -> bool:
        """Whether the results are ranges of columns of the core's result."""
        return self.results[0].columns is not None

    @property
    def num_elements(self) -> int:
        """Number of elements of the first result; where results are ranges, of all columns, stored or not."""
        first = self.results[0]
        return first.type.num_elements if first.columns is None else first.type.shape[0] * first.columns.width

    @cached_property
    def bindings(self) -> tuple[tuple[int, Literal["r", "w"]], ...]:
        """(buffer, access) in binding order: distinct buffers read, then those written, once each (`w` may be read).

        With `scalars` one more read-only binding follows: the per-step scalars, an array<f32> in `SCALARS` order.
        """
        written = {*self.writes}
        read: list[tuple[int, Literal["r", "w"]]] = [(b, "r") for b in self.reads if b not in written]
        write: list[tuple[int, Literal["r", "w"]]] = [(b, "w") for b in self.writes]
        return (*read, *write)


# per-step scalars that kernels read: element i of the scalar buffer; the number of the step as two halves of 16 bits,
# which float32 holds exactly
SCALARS = (
    "lr", "beta1", "beta2", "epsilon", "correction1", "correction2", "decay", "step_low", "step_high",
)  # fmt: skip
# a rule's own numbers lie behind these, in the order in which its dispatches name them
OWN_SCALARS = 7


def scalar_places(names: Sequence[str]) -> dict[str, int]:
    """Return the indices in the scalar buffer of these numbers, which are `Dispatch.scalars` or those of a rule."""
    own = [name for name in names if name not in SCALARS]
    return {n: SCALARS.index(n) if n in SCALARS else len(SCALARS) + own.index(n) for n in names}
