"""Every message between the page and the kernel, as frozen records; the TypeScript types are generated from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PROTOCOL = 1

State = Literal["none", "ready", "running", "paused", "failed", "closed"]
CommandName = Literal[
    "open", "step", "run", "pause", "resume", "stop", "reset", "speed", "watch", "break", "clear", "back", "value",
    "why", "optimize", "check", "measure", "trace", "cell", "sweep",
]  # fmt: skip
EventKind = Literal["nonfinite", "break", "pause", "error", "note"]


# front end -> kernel -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a page: the id of the document that it already draws (`have`), so that nothing is sent
    twice."""

    version: int
    host: str
    views: int
    have: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a user. `req` is chosen by the page and unique per model; exactly one `Reply` answers it."""

    name: CommandName
    args: dict[str, Any]
    req: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The acknowledgement that the page has drawn metrics frame `frame` of revision `rev`."""

    rev: int
    frame: int


@dataclass(frozen=True, slots=True)
class Visible:
    """The number of views of this study in the page, and whether any is on screen."""

    views: int
    shown: bool


@dataclass(frozen=True, slots=True)
class Core:
    """The request for the front-end module, once per page; a reply for each of its parts carries that part as a binary
    buffer."""

    req: int


# kernel -> front end -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Doc:
    """A whole document and its revision."""

    rev: int
    doc: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyError:
    """The reason of a refused command: class name, text, and the entity it is about."""

    kind: str
    message: str
    about: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """The one answer to a `Command` or `Core`."""

    req: int
    ok: bool
    result: dict[str, Any] | None
    error: ReplyError | None


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the session was opened; bytes are of uploads and read-backs."""

    steps: int
    dispatches: int
    dispatches_per_step: int
    submissions: int
    groups: int
    bytes_up: int
    bytes_down: int
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class WatchRow:
    """A watched tensor: its newest value in words, the range of its finite elements, the number of others, and the
    means of its last samples; a non-finite number is a word."""

    id: int
    name: str
    value: str
    step: int
    min: float | str
    max: float | str
    nonfinite: int
    course: list[float | str]


@dataclass(frozen=True, slots=True)
class NormRow:
    """The norm of a parameter's gradient, sampled during runs: the newest value, its step, and a course of at most 60
    values, of which the first is from step `first`; a non-finite number is a word."""

    name: str
    about: str
    value: float | str
    step: int
    first: int
    course: list[float | str]


@dataclass(frozen=True, slots=True)
class BreakRow:
    """A breakpoint and how often it stopped a run."""

    id: int
    text: str
    hits: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """The counts of finite elements in 32 equal parts of low … high."""

    low: float | str
    high: float | str
    counts: list[int]


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A picture of at most 64 × 64 bytes in base64, row by row: 0 … 254 between low and high, 255 where something is
    not finite."""

    rows: int
    cols: int
    low: float
    high: float
    data: str


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor as it was, in the fields of a document. `place` says when, `slice` which plane the thumbnail is of."""

    name: str
    about: str
    type: str
    shape: list[int]
    step: int
    dispatch: int
    place: str
    slice: list[int]
    n: int
    min: float | str
    max: float | str
    mean: float | str
    std: float | str
    l2: float | str
    nan: int
    inf: int
    zero: int
    histogram: Histogram
    thumbnail: Thumbnail


@dataclass(frozen=True, slots=True)
class TensorWindow:
    """A window of exact values, as texts, from (row, col) of the slice on."""

    row: int
    col: int
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The distance of a tensor from the one that another executor computed, the place of the largest, and both in
    words."""

    to: str
    error: float | str
    ulp: float | str
    at: list[int]
    got: float | str
    want: float | str
    unlike: int
    text: str


@dataclass(frozen=True, slots=True)
class Looked(TensorValue):
    """The answer to the command `value`: `why` no difference is known, `read` bytes from the device, and everything as
    `text`."""

    window: TensorWindow
    difference: TensorDifference | None
    why: str
    read: int
    text: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """Live figures. `loss` holds [step, loss] points since the last frame (merged to minimum, maximum and last when
    many; non-finite ones as "nan", "inf", "-inf"); `wanted` is the step count at which the present run ends; `watch`
    says which values are checked for NaN. `dispatch` is the current one of a step that is made by dispatches (−1:
    none), `place` says where that is. `under_way` is a sample of the dispatches that a run is going through (−1: none
    runs), `timed` whether the run ends by the clock: then nobody knows `wanted`. `norms` of gradients are null in a
    frame that has none that are new, `norms_left_out` counts parameters without. `engines` is the table of a run over
    engines, as in the document, null without one. Every figure a panel shows is in here."""

    frame: int
    state: State
    reason: str
    step: int
    wanted: int
    loss: list[list[float | str]]
    counters: Counters
    memory: str
    device: str
    optimizer: str
    watch: str
    dispatch: int
    place: str
    under_way: int
    timed: bool
    norms: list[NormRow] | None
    norms_left_out: int
    watches: list[WatchRow]
    breaks: list[BreakRow]
    engines: dict[str, Any] | None
    full: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """The `sweep` section of the document, as it is now."""

    section: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a step, for the event list; `about` is an entity of the document, or null."""

    step: int
    kind: EventKind
    about: str | None
    text: str


TO_KERNEL = (Hello, Command, Ack, Visible, Core)
TO_PAGE = (Doc, Reply, Metrics, Sweep, Event)
