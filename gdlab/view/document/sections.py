"""The sections of a document, a record each: stages, passes, plan, runs and all else that is no table.

The JSON schema and the records of the page follow from these (`python labextension/generate.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from gdlab.view.document.tables import (
    BoxRow,
    Count,
    DiffStep,
    DispatchRecord,
    EClassRow,
    EdgeRecord,
    ENodeRow,
    Entity,
    GroupRecord,
    GroupRow,
    Index,
    IntervalRecord,
    Json,
    JsonNumber,
    KernelRecord,
    LaneRecord,
    LineRecord,
    NodeRow,
    OutputRecord,
    PillRecord,
    Positive,
    RailRecord,
    RewriteStep,
    SlotRecord,
    TypeRecord,
    WireRecord,
    form,
    limits,
    optional,
    unread,
)

Row = TypeVar("Row")


class TableOf(Generic[Row]):
    """A type: a table of such rows (docs/graphdoc.md)."""


class ColumnOf(Generic[Row]):
    """A type: a column of such values, in any of its forms."""


Extent = Annotated[int, limits(minimum=0, maximum=65535)]
Base64 = Annotated[str, limits(pattern="^[A-Za-z0-9+/]*={0,2}$")]
Rows = dict[Annotated[str, limits(pattern=r"^\d+$")], Base64]  # by buffer


# where a graph was written --------------------------------------------------------------------------------------------
@form
class SourceRecord:
    """A text that has lines of the document."""

    id: str
    kind: Literal["cell", "file", "generated"]
    name: str
    language: str
    text: str
    first_line: Positive


@form
class RuleSource:
    """The Python source of a rule."""

    name: str
    line: int
    text: str
    math: str = optional()  # of a gradient rule: its line of mathematics


# stages ---------------------------------------------------------------------------------------------------------------
@form
class LayoutSection(BoxRow):
    """The places of everything in a stage; the columns of its boxes are its own fields."""

    engine: Literal["layered", "lanes"]
    engine_version: int
    density: Annotated[int, limits(minimum=0, maximum=3)] = optional()
    seconds: JsonNumber
    pills: TableOf[PillRecord]
    edges: TableOf[EdgeRecord]
    rails: TableOf[RailRecord]
    wires: TableOf[WireRecord]
    lanes: TableOf[LaneRecord]
    width: int
    height: int


@form
class StageSection:
    """A graph on its way through the passes."""

    key: str
    role: Literal["written", "optimized", "derivative", "final"]
    title: str
    parent: Index
    nodes: TableOf[NodeRow]
    outputs: TableOf[OutputRecord]
    groups: TableOf[GroupRow]
    layouts: dict[str, LayoutSection]


# passes ---------------------------------------------------------------------------------------------------------------
@form
class RuleStatForm:
    """A rule in figures."""

    id: str
    label: str
    tag: Literal["exact", "rounding", "reassoc", "approx"]
    phases: list[str]
    doc: str
    matched: int
    fired: int
    created: int
    used: int
    seconds: JsonNumber
    enabled: bool


@form
class MissedForm:
    """A rule or fusion that was not applied."""

    label: str
    node: int
    reason: str
    detail: str
    text: str
    about: Entity | None
    guard: tuple[str, int, str] | None = optional()  # the Python of the condition that refused: file, line, text


@form
class OptimizeReportForm:
    """The report of an optimizer's pass."""

    phase: str
    engine: str
    cost_model: str
    stop_reason: str
    stop_detail: str
    outcome: str = optional()
    nodes_before: int
    nodes_after: int
    dead_nodes_removed: int
    cost_before: JsonNumber
    cost_after: JsonNumber
    num_eclasses: int
    num_enodes: int
    egglog_time: JsonNumber
    extract_time: JsonNumber
    rules: list[RuleStatForm]
    rules_fired: list[tuple[str, int]]
    fusions_applied: list[tuple[str, int]]
    iterations: list[Any]
    missed: list[MissedForm]


@form
class ZeroGradient:
    """A parameter that no gradient reaches."""

    name: str
    reason: str


@form
class DiffReport:
    """The report of a differentiation."""

    wrt: list[str]
    residual_bytes: int
    zero_gradients: list[ZeroGradient]
    summary: str


@form
class GrowthDelta:
    """The growth of the e-graph in one iteration."""

    added: TableOf[ENodeRow]
    merged: list[tuple[str, str]]
    gone: list[Count]
    fired: list[tuple[str, int]]


@form
class PassSection:
    """A pass from one stage to another."""

    key: str
    from_: Count
    to: Index
    options: Json
    sources: dict[str, RuleSource]
    deltas: list[GrowthDelta] | None
    classes: TableOf[EClassRow] | None = optional()
    seconds: JsonNumber | None


@form
class OptimizePass(PassSection):
    """A pass of the optimizer."""

    role: Literal["optimize"]
    report: OptimizeReportForm
    steps: TableOf[RewriteStep]


@form
class DifferentiatePass(PassSection):
    """A differentiation."""

    role: Literal["differentiate"]
    report: DiffReport
    steps: TableOf[DiffStep]


@form
class CompilePass(PassSection):
    """The compilation of the final stage; it has no steps."""

    role: Literal["compile"]
    report: Json
    steps: Json


# the plan -------------------------------------------------------------------------------------------------------------
@form
class MachineForm:
    """The figures of the roofline that predicts a dispatch."""

    name: str
    launch_seconds: float
    bytes_per_second: float
    flops_per_second: float


@form
class PlanMemory:
    """The memory of a whole step in bytes; `parts`: the bytes of each kind of content, by name."""

    logical_bytes: int
    physical_bytes: int
    peak_bytes: int
    peak_group: int
    padding_bytes: int
    parameter_bytes: int
    state_bytes: int
    parts: dict[str, int] = optional()


@form
class PlanForm:
    """The execution plan."""

    stage: int
    updates: int
    optimizer: str | None
    machine: MachineForm = optional()
    kernels: TableOf[KernelRecord]
    dispatches: TableOf[DispatchRecord]
    groups: TableOf[GroupRecord]
    intervals: TableOf[IntervalRecord]
    slots: TableOf[SlotRecord]
    memory: PlanMemory


# links ----------------------------------------------------------------------------------------------------------------
Level = Annotated[str, limits(pattern=r"^(line|dispatch|interval|kernel|wgsl|node:\d+|step:\d+)$")]


@form
class LinkRows:
    """The entities of one level that belong to each of another."""

    start: list[Count]
    ids: list[Count]


@form
class PackedRows(LinkRows):
    """Link rows in a short form; row i is row `index[i]` where rows repeat."""

    index: list[Count] = optional()


@form
class LinkSection:
    """The entities of one level that came from each of another."""

    a: Level
    b: Level
    out: PackedRows
    back: LinkRows = optional()


# runs -----------------------------------------------------------------------------------------------------------------
@form
class Times:
    """The measured seconds per dispatch, the prediction of the roofline of `machine`, and the verdict in words."""

    samples: Positive
    machine: str
    median: list[float]
    p25: list[float]
    p75: list[float]
    predicted: list[float]
    verdict: ColumnOf[str]


@form
class GradientNormsForm:
    """The norm of a parameter's gradient over steps."""

    name: str
    about: str | None
    steps: list[Count]
    norms: list[JsonNumber]


@form
class RunMemory:
    """The memory of a run in words."""

    text: str


@form
class RunEventForm:
    """Something that happened while a run went on."""

    step: int
    dispatch: int
    kind: Literal["nonfinite", "break", "pause", "error", "note"]
    about: Entity | None
    text: str


@form
class HistogramForm:
    """The number of elements in each of 32 equal parts of a range."""

    low: JsonNumber
    high: JsonNumber
    counts: Annotated[list[Count], limits(minItems=32, maxItems=32)]


Side = Annotated[int, limits(minimum=0, maximum=64)]


@form
class ThumbnailForm:
    """A plane of a tensor as at most 64 × 64 cells."""

    rows: Side
    cols: Side
    low: JsonNumber
    high: JsonNumber
    data: Base64


@form
class ValueForm:
    """A tensor after a dispatch, in figures."""

    about: Annotated[str, limits(pattern=r"^node:\d+\.\d+$|^interval:\d+$")]
    name: str
    type: str
    shape: list[Count]
    slice: list[Count]
    step: Count
    dispatch: Index
    place: str
    n: Count
    min: JsonNumber
    max: JsonNumber
    mean: JsonNumber
    std: JsonNumber
    l2: JsonNumber
    nan: Count
    inf: Count
    zero: Count
    histogram: HistogramForm
    thumbnail: ThumbnailForm


@form
class EngineRow:
    """An engine of a run; `cells`: the texts of its row, `share`: its times in percent of the longest,
    without the reduction that was hidden beside steps."""

    engine: Count = unread()
    host: str = unread()
    device: str = unread()
    late: bool
    step_seconds: float = unread()
    reduce_seconds: float = unread()
    hidden_seconds: float = unread()
    wait_seconds: float = unread()
    nbytes: Count = unread()
    loss: JsonNumber = unread()
    cells: Annotated[list[str], limits(minItems=10, maxItems=10)]
    share: tuple[float, float, float]


@form
class EnginesSection:
    """The engines that made the steps of a run."""

    fact: str
    head: list[str]
    rows: Annotated[list[EngineRow], limits(minItems=1)]
    lost: list[str]


@form
class BucketForm:
    """A bucket of a reduction, a row of the plan; `before`: the dispatch that it stands before. `seconds`: measured,
    else predicted; `hidden_seconds`: of those that were measured, beside the step."""

    before: Count
    nbytes: Count
    predicted_seconds: float = unread()
    measured_seconds: float | None = unread()
    hidden_seconds: float = unread()
    seconds: float
    label: str
    told: str


@form
class AllreduceForm:
    """The reduction of gradients over engines, which no dispatch of the plan makes: a row of it for each of `buckets`.
    Seconds are predicted but for `measured_seconds`."""

    engines: Annotated[int, limits(minimum=2)] = unread()
    nbytes: Count = unread()
    accumulate: Positive = unread()
    read_seconds: float = unread()
    ring_seconds: float = unread()
    write_seconds: float = unread()
    measured_seconds: float | None = unread()
    link: str = unread()
    latency: str = unread()
    told: str = unread()
    buckets: Annotated[list[BucketForm], limits(minItems=1)]


@form
class RunRecord:
    """A run of the study. `wanted`: the step count at which it is complete, of a run that ended before."""

    key: str
    device: str
    adapter: str
    label: str = optional()
    seed: int | None
    wanted: Count = optional()
    loss: list[tuple[int, JsonNumber]]
    seconds: list[JsonNumber]
    dispatch_seconds: Times = optional()
    gradient_norms: list[GradientNormsForm] = optional()
    engines: EnginesSection = optional()
    truncated: bool
    counters: dict[str, int]
    memory: RunMemory
    events: list[RunEventForm]
    values: list[ValueForm]


# variants and sweeps --------------------------------------------------------------------------------------------------
@form
class StepSeconds:
    """The measured time of a step."""

    samples: Positive
    median: float
    mad: float


@form
class VariantRow:
    """A study or one of its variants, in figures; `stage` is its optimized graph."""

    name: str
    stage: Count
    nodes: Count
    rewrites: Count
    dispatches: Count
    groups: Count
    bytes_moved: Count
    peak_bytes: Count
    physical_bytes: Count
    step_seconds: StepSeconds | None


@form
class SweepPointForm:
    """A point of a sweep; `cells`: engine, steps, steps/s, loss now, lowest, time."""

    state: Literal["waiting", "running", "done", "failed", "stopped"]
    hue: Count
    settings: list[str]
    label: str
    cells: Annotated[list[str], limits(minItems=6, maxItems=6)]
    steps: Count
    wanted: Positive
    loss: JsonNumber | None
    error: str
    note: str
    retries: Count
    curve: list[tuple[Count, JsonNumber]]


@form
class SweepEventForm:
    """Something that happened while a sweep went on."""

    seconds: float
    text: str


@form
class SweepSection:
    """The newest sweep of a study."""

    key: str
    state: Literal["ready", "running", "paused", "done", "stopped"]
    title: str
    fact: str
    left: str
    seconds: float
    progress: Annotated[float, limits(minimum=0, maximum=1)]
    keys: list[str]
    range: tuple[float, float]
    log: bool
    best: Index
    points: Annotated[list[SweepPointForm], limits(minItems=1)]
    events: list[SweepEventForm]


# compiled graphs ------------------------------------------------------------------------------------------------------
@form
class EdgeInput:
    """An input of a compiled graph: its buffer, its handle, and the output that feeds it after every forward."""

    name: str
    type: str
    value: str  # where its value comes from in the next forward, in words
    interval: int
    handle: Literal["gpu", "host", ""]
    feed: Index  # -1: none


@form
class EdgeOutput:
    """An output of a compiled graph: its buffer, and its place in the arena."""

    name: str
    type: str
    place: str
    interval: int
    byte_offset: Count
    nbytes: Count


@form
class EdgeForm:
    """The sources of the inputs of a compiled graph, and the targets of its outputs, between two forwards."""

    inputs: list[EdgeInput]
    outputs: list[EdgeOutput]
    extent: str
    arena: str
    arena_bytes: Count
    active: tuple[int, int] | None  # the active entries of the bucket axes, and all
    epoch: Count
    counters: dict[str, int]
    memory: dict[str, int]
    lines: list[str]


# a page that runs -----------------------------------------------------------------------------------------------------
@form
class RunDispatch:
    """A dispatch that a page submits: bindings in order, and behind them the scalars where it has some."""

    label: str
    kernel: Count
    workgroups: tuple[Extent, Extent, Extent]
    scalars: bool
    bind: list[tuple[Count, Literal["r", "w"]]]
    writes: list[Count]


@form
class RunBuffer:
    """A buffer of a page, at the beginning of its slot; `bound`: bytes that kernels see."""

    name: str
    kind: str
    shape: list[Count]
    dtype: str
    nbytes: Count
    bound: Positive
    slot: Count


@form
class RunPlan:
    """The plan that a page runs."""

    wgsl: list[str]
    dispatches: list[RunDispatch]
    buffers: list[RunBuffer]
    slots: list[Annotated[int, limits(minimum=4, multipleOf=4)]]
    groups: Count
    updates: Count


@form
class InitialFill:
    """An initial value: the same number everywhere."""

    fill: float


@form
class InitialData:
    """An initial value: its bytes."""

    data: Base64


@form
class Uniform:
    """Uniform numbers between ± bound, by Philox."""

    seed: Count
    stream: Count
    bound: float


@form
class InitialUniform:
    """An initial value: random numbers, exact in float32."""

    uniform: Uniform


Initial = InitialFill | InitialData | InitialUniform


@form
class RunUpdate:
    """The update rule of a page; `first`: the scalars of update 1."""

    rule: str
    text: str
    counts: bool
    numbers: dict[str, float]
    first: Annotated[list[float], limits(minItems=16, maxItems=16)]


@form
class ScalarNames:
    """The scalars that a dispatch reads."""

    dispatch: Count
    names: list[str]


@form
class RandomSeed:
    """The seed of a dispatch that draws random numbers, 64 bits as text."""

    dispatch: Count
    seed: Annotated[str, limits(pattern=r"^\d+$")]


@form
class RunSection:
    """Everything that a page needs to compute the steps itself."""

    plan: RunPlan
    constants: Rows
    initial: dict[str, Initial]
    batches: Annotated[list[dict[str, Base64]], limits(minItems=1)]
    inputs: dict[str, Count]
    update: RunUpdate
    scalars: list[ScalarNames] = unread()
    random: list[RandomSeed] = unread()
    loss: int | None
    outputs: list[Count]
    same: bool  # whether dispatches and buffers have the numbers that they have in the document's own plan
    note: str
    bytes: Count


CLOSED = (RunSection, RunPlan, InitialFill, InitialData, InitialUniform)  # objects without other fields


# the document ---------------------------------------------------------------------------------------------------------
@form
class NoteRecord:
    """A note, one sentence above the picture."""

    level: Literal["info", "warning"]
    text: str
    about: Entity | None


@form
class Bookmark:
    """A named selection."""

    name: str
    tab: str
    entities: list[str]


@form
class ViewSection:
    """The state of the views, and the settings that a person keeps."""

    show: list[str] = optional()
    select: Entity | None = optional()
    map: bool = optional()
    labels: bool = optional()
    bookmarks: list[Bookmark] = optional()


@form
class DocumentForm:
    """A document."""

    format: Literal["gdlab.graph.v1"]
    study: str = optional()
    rev: int = optional()
    id: Annotated[str, limits(pattern="^[0-9a-f]{16}$")]
    title: str
    summary: str
    producer: dict[str, str]
    types: TableOf[TypeRecord]
    sources: list[SourceRecord]
    lines: TableOf[LineRecord]
    stages: Annotated[list[StageSection], limits(minItems=1)]
    passes: list[OptimizePass | DifferentiatePass | CompilePass]
    plan: PlanForm | None
    compiled: EdgeForm = optional()
    links: list[LinkSection]
    wgsl_base: list[Count]
    runs: list[RunRecord]
    run: RunSection = optional()
    variants: list[VariantRow] = optional()
    sweep: SweepSection = optional()
    allreduce: AllreduceForm = optional()
    overlays: list[Any]
    notes: list[NoteRecord]
    view: ViewSection | None
