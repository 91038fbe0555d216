"""The tables of a document, a record each: its columns, their content, and the meaning of absent values.

From these records follow the defaults of readers in Python (`TABLES`) and in the page, the JSON schema, and the tables
of docs/graphdoc.md (`python labextension/generate.py` writes them). A new column is a field here and its values where
the table is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

Json = dict[str, Any]
T = TypeVar("T")


def limits(**said: int | str) -> tuple[tuple[str, int | str], ...]:
    """Return the limits that the JSON schema states for a type, besides its kind."""
    return tuple(said.items())


# A type of a field, and what the JSON schema says of it besides.
Count = Annotated[int, limits(minimum=0)]
Positive = Annotated[int, limits(minimum=1)]
Index = Annotated[int, limits(minimum=-1)]
ENTITY = r"^(line|kernel|dispatch|interval):\d+$|^(node|step|rule|wgsl):\d+\.\d+$|^edge:\d+\.\d+\.\d+$"
Entity = Annotated[str, limits(pattern=ENTITY)]
Cell = tuple[Positive, Positive]  # rows, columns
Plane = tuple[Count, Count, Count]  # batch, rows, columns
Place = Literal["same", "row", "column", "scalar", "a", "b", "keys", "moved", "window", "any"]

RECORDS: dict[str, type] = {}


def form(record: type[T]) -> type[T]:
    """Decorator of the form of a JSON object. Its fields say what the object holds; nobody makes one of it."""
    return dataclass(init=False, repr=False, eq=False)(record)


def table(name: str) -> Callable[[type[T]], type[T]]:
    """Decorator of the form of a table's rows, which readers find by `name`."""

    def register(record: type[T]) -> type[T]:
        RECORDS[name] = form(record)
        return record

    return register


def optional() -> Any:
    """Return a field that an object may leave out."""
    return field(default=None, metadata={"optional": True})


def unread() -> Any:
    """Return a field that the page does not read."""
    return field(metadata={"page": False})


def column(absent: Any, says: str = "", *, page: bool = True, required: bool = False) -> Any:
    """Return a column: its value where a row has none, the value of rows without one, its documentation, whether the
    page reads it, and whether every table has it."""
    about = {"absent": absent, "says": says, "page": page, "required": required}
    return field(default_factory=lambda: absent, metadata=about)


def name_of(field_name: str) -> str:
    """Return the name of a column in JSON, without the `_` behind a keyword of Python."""
    return field_name.removesuffix("_")


class JsonNumber:
    """A JSON number, or one of the words that stand for one that is not finite."""


# values of columns ----------------------------------------------------------------------------------------------------
@form
class FateForm:
    """The reason why a node has no image in the next stage."""

    kind: Literal["folded", "literal", "operand", "aliased", "fused", "dead", "leaf"]
    into: str | None
    reason: str


@form
class HazardForm:
    """A conflict of two dispatches over a buffer."""

    from_: int
    to: int
    interval: int
    hazard: Literal["raw", "war", "waw"]


@form
class ResidualForm:
    """A node that a gradient saves, and its bytes."""

    node: int
    nbytes: int


@form
class BindingForm:
    """A buffer that a kernel binds."""

    index: int
    access: Literal["read", "read_write"]
    role: str


@form
class CoversForm:
    """The part of the result that each workgroup of a kernel has (docs/graphdoc.md)."""

    over: Literal["result", "input", "product", "parameters", "pieces"]
    shape: Plane
    cell: Cell
    per: Positive = optional()
    share: Positive = optional()
    each: Cell = optional()
    flip: Literal[1] = optional()
    loop: tuple[Literal["k", "cell", "keys", "window"], int, int, int, int] = optional()
    reads: list[tuple[int, Place, int, int]] = optional()
    map: list[int] = optional()
    window: list[int] = optional()
    sizes: list[int] = optional()


# the graph ------------------------------------------------------------------------------------------------------------
@table("types")
class TypeRecord:
    """The types of tensors."""

    text: str = column("", "as it is written: `f32[3, 4]`")
    shape: list[int] = column([])
    dtype: str = column("")
    nbytes: int = column(0)


@table("lines")
class LineRecord:
    """The source lines, a row for each call."""

    source: int = column(-1, "index into sources")
    line: int = column(0, "1-based")
    col: int = column(-1, "0-based, −1 unknown, as the next two")
    end_line: int = column(-1)
    end_col: int = column(-1)
    stack: list[int] = column([], "line indexes of the callers")


@table("nodes")
class NodeRow:
    """The nodes of a stage."""

    key: str = column(
        "",
        "a node of `written` is `n{index}`, a survivor keeps its key, a made one is `{pass}.{step}.{ordinal}`",
    )
    hash: str = column("", "12 hex digits")
    op: str = column("")
    family: str = column("", "`leaf elementwise contraction reduction loss movement index random update`")
    name: str = column("", "as displayed: a second `h` is `h#2`")
    label: str = column(
        "",
        "what a box or pill says for the name, where that differs: without the path of the module around it",
    )
    type: int = column(-1, "row of `types`")
    inputs: list[int] = column([], "node indexes, each smaller than its own")
    after: list[int] = column([])
    attrs: Json | None = column(None, "a constant is `{constant: digest, text}`")
    lane: str = column("forward", "`forward adjoint forward2 … optimizer`")
    twin: int = column(-1)
    group: int = column(-1)
    flags: list[str] = column([], "of the words `output loss gradient saved leaf fused parameter`")
    fate: FateForm | None = column(None, "`{kind, into: entity or null, reason}`")
    flops: int = column(0)
    bytes_moved: int = column(0)
    cost_seconds: JsonNumber = column(0)


@table("outputs")
class OutputRecord:
    """The outputs of a stage."""

    node: int = column(-1)
    name: str = column("")
    kind: str = column("user", "`user` or `gradient`")
    of: str = column("", "parameter name, of a gradient")


@table("node_groups")
class GroupRow:
    """The groups of a stage; may be empty."""

    key: str = column("")
    parent: int = column(-1)
    label: str = column("")
    kind: str = column(
        "",
        "`call`: of a person's own function; `module`: what the dotted names of parameters say, where there is no "
        "call; `series`: groups in a row that are alike",
    )
    repeat: int = column(1)


# a layout -------------------------------------------------------------------------------------------------------------
@table("boxes")
class BoxRow:
    """The boxes of a layout, a row for each node: columns of the layout itself."""

    x: int = column(-1)
    y: int = column(-1)
    w: int = column(-1)
    row: int = column(-1)


@table("pills")
class PillRecord:
    """The pills of a layout."""

    leaf: int = column(-1, "node index, as `reader`")
    reader: int = column(-1)
    x: int = column(0)
    y: int = column(0)
    w: int = column(0)
    echo: int = column(0, "0 or 1: an echo shows the name alone")
    via: list[int] = column(
        [],
        "mostly empty: the shape ops between the leaf and its reader; the pill is the last of them, its name the leaf",
    )


@table("edges")
class EdgeRecord:
    """The edges of a layout."""

    a: int = column(-1, "source")
    b: int = column(-1, "reader")
    kind: str = column("data", "`data param saved control`")
    bends: list[int] = column(
        [],
        "flattened x, y of every point from the source's side to the reader's side, both included",
    )


@table("rails")
class RailRecord:
    """The rails of a layout."""

    a: int = column(-1)
    b: int = column(-1)
    track: int = column(0)
    x: int = column(0)
    y0: int = column(0)
    y1: int = column(0)


@table("wires")
class WireRecord:
    """The wires of a layout: values saved for the backward pass."""

    a: int = column(-1)
    b: int = column(-1)
    points: list[int] = column([], "flattened x, y: orthogonal, corner radius 4, dashed")


@table("lanes")
class LaneRecord:
    """The lanes of a layout."""

    index: int = column(0)
    title: str = column("", "stands 30 above row 0")
    x: int = column(0, "of the tint, which has the full height")
    width: int = column(0)


# passes ---------------------------------------------------------------------------------------------------------------
@table("rewrites")
class RewriteStep:
    """The steps of an optimizer's pass."""

    rule: str = column("", "its id")
    label: str = column("")
    at: list[str] = column([], "node keys")
    bindings: Json | None = column(None, "variable → key")
    removed: list[str] = column([], "node keys")
    added: list[Json] | None = column(
        None, "node records `{key, op, inputs: [keys], attrs, type, name}`, `family` at the first that is removed"
    )
    rewired: list[Any] | None = column(None, "list of `[node key, port, new input key]`; port −1 − i is output i")
    cost_before: JsonNumber = column(0, "µs, as `cost_after`")
    cost_after: JsonNumber = column(0)
    iteration: int | None = column(None)
    order: Any = column(None, "of the last step, `sweep`: the keys of the result in order", page=False)


@table("gradients")
class DiffStep:
    """The steps of a differentiation, in reverse order over forward ops."""

    node: int = column(-1, "index in `from`")
    line: int = column(-1, "index of lines")
    rule: str = column("", "source key")
    cotangents: list[int] = column([], "node indexes in `to`, as the next two")
    added: list[int] = column([])
    accumulated: list[int] = column([])
    residuals: list[ResidualForm] | None = column(None, "list of `{node, nbytes}`, indexes in `to`")
    reason: str = column("", "why no gradient flows")


@table("enodes")
class ENodeRow:
    """The e-nodes that an iteration added."""

    class_: str = column("", "name of its class", required=True)
    op: str = column("", required=True)
    family: str = column("")
    children: list[str] = column([], "class names; those of commutative ops in one order")
    attrs: Json | None = column(None)
    label: str = column("", "of the rule that made it; empty: the graph's own")
    cost: JsonNumber | None = column(
        None,
        "of its op alone, µs; null where it is no choice: it reads its own class, or it became another e-node",
    )
    more: JsonNumber | None = column(
        None,
        "what the whole would cost more with it, all else as chosen, µs; null where nobody needs its class, where "
        "it would lead back to it, and where it computes more products",
    )
    chosen: int = column(0, "0 or 1", required=True)


@table("eclasses")
class EClassRow:
    """The e-classes of the end."""

    name: str = column("", required=True)
    type: int = column(-1, "row of `types`", required=True)
    nodes: list[int] = column([], "all nodes of `from` in it", required=True)
    made: int = column(-1, "the node of `to` that it became", required=True)


# the plan -------------------------------------------------------------------------------------------------------------
@table("kernels")
class KernelRecord:
    """The different kernels of a plan."""

    key: str = column("")
    entry: str = column("", "kind of kernel")
    family: str = column("")
    wgsl: str = column("", "each text once, without the last line break")
    workgroup_size: list[int] = column([])
    constants: Json | None = column(None)
    bindings: list[BindingForm] | None = column(None, '`{index, access: "read" or "read_write", role}`')
    variant: str = column("")
    variant_reason: str = column("")
    boilerplate: list[Any] | None = column(None, "`[first, last]` WGSL lines", page=False)
    covers: CoversForm | None = column(None, "the picture, below")
    parts: dict[str, list[int]] | None = column(
        None,
        'which lines do which part of the work: `{"read 0": [first, last, first, last …], "loop": …, "work": …, '
        '"meet": …, "store": …, "where": …}`',
    )
    why: str = column("", "the reason of the schedule in sentences")


@table("dispatches")
class DispatchRecord:
    """The dispatches of a plan, in order."""

    label: str = column("")
    phase: str = column("", "`forward backward update copy`")
    kernel: int = column(-1)
    workgroups: list[int] = column([])
    reads: list[int] = column([], "interval indexes, as `writes`")
    writes: list[int] = column([])
    group: int = column(-1)
    flops: int = column(0)
    bytes_read: int = column(0)
    bytes_written: int = column(0)
    family: str = column("")


@table("barriers")
class GroupRecord:
    """The barrier groups of a plan."""

    start: int = column(0, "its first dispatch")
    stop: int = column(0, "behind its last dispatch")
    because: list[HazardForm] | None = column(None, '`{from, to, interval, hazard: "raw", "war" or "waw"}`')


@table("intervals")
class IntervalRecord:
    """The buffers of a plan over its dispatches."""

    name: str = column(
        "",
        "what has no name of its own is named by its op, behind the path of the module that it lies in "
        "(`layers.2.mlp.relu`)",
    )
    node: int = column(-1)
    kind: str = column("", "`input parameter derived constant intermediate gradient output loss scratch state`")
    slot: int = column(-1)
    offset: int = column(0, "the byte of its slot at which it begins")
    nbytes: int = column(0)
    padded: int = column(0)
    first: int = column(-1, "dispatch index; of a leaf −1")
    last: int = column(-1, "dispatch index")
    first_group: int = column(-1)
    last_group: int = column(-1)
    pinned: str | None = column(None, "the reason")
    alias_of: int = column(-1)
    family: str = column("")


@table("slots")
class SlotRecord:
    """The ranges of memory of a plan."""

    nbytes: int = column(0)
    tenants: list[int] = column([], "interval indexes")


# Every table: its columns, each with what an absent value means.
TABLES: dict[str, Json] = {
    name: {name_of(each.name): each.metadata["absent"] for each in fields(record)} for name, record in RECORDS.items()
}
