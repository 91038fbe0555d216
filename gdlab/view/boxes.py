"""What a layout is given and what it returns, who is a box and who a pill, and the drawing of one column of boxes.

Everything that a picture shows follows from a `Layout`: both the static SVG and the front end draw this record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import GraphError
from .rows import GX, Placed, place

Kind = Literal["data", "param", "saved", "control"]
Point = tuple[int, int]

NODE = 40  # height of a node
GY = 32  # gap down
ROW = NODE + GY
PILL = 18  # height of a pill
PITCH = 8  # of rails
LINE_CUT, PILL_CUT = 28, 24  # code points
HOPS = 3  # levels of edges that hop over a box of their row


@dataclass(frozen=True, slots=True)
class Drawn:
    """One node to lay out, its texts as drawn; its index is its position in the list."""

    op: str
    name: str
    type: str
    inputs: tuple[int, ...]  # indexes, all smaller than its own
    leaf: bool  # input, parameter, constant …: it has no inputs and may be drawn as pills
    lane: str = "forward"  # forward adjoint forward2 adjoint2 … optimizer
    twin: int = -1  # the forward node this one belongs to


@dataclass(frozen=True, slots=True)
class Pill:
    """A leaf beside the op that reads it; an echo repeats an earlier pill of the leaf with its name alone."""

    leaf: int
    reader: int
    x: int
    y: int
    w: int
    echo: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a column, from the source's anchor to the target's.

    Ends at different heights: a curve that is vertical at every point. Ends at one height: straight lines with round
    corners, two points beside each other, four for a hop over what stands between.
    """

    a: int
    b: int
    kind: Kind
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Rail:
    """A long or backward edge: its vertical part in the gutter, from y0 beside the source to y1 beside the target.

    It is joined to the side of each box that faces it: to the bottom of the source if y0 is below the source's top,
    else to the top; to the top of the target if y1 is above the target's bottom, else to the bottom.
    """

    a: int
    b: int
    track: int
    x: int
    y0: int
    y1: int


@dataclass(frozen=True, slots=True)
class Wire:
    """An edge between lanes: straight lines with round corners; wires of one source share their beginning."""

    a: int
    b: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A tinted column with its title."""

    index: int
    title: str
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a picture stands; −1 in x, y, w and row for a node that is no box."""

    engine: Literal["layered", "lanes", "dot"]
    seconds: float
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    row: tuple[int, ...]
    pills: tuple[Pill, ...]
    edges: tuple[Edge, ...]
    rails: tuple[Rail, ...]
    wires: tuple[Wire, ...]
    lanes: tuple[Lane, ...]
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        """The columnar form that a document stores; all integers but `seconds`."""
        return {
            "engine": self.engine,
            "engine_version": 1,
            "seconds": self.seconds,
            "x": list(self.x),
            "y": list(self.y),
            "w": list(self.w),
            "row": list(self.row),
            "pills": _columns(self.pills, ("leaf", "reader", "x", "y", "w", "echo")),
            "edges": {
                **_columns(self.edges, ("a", "b")),
                "kind": _words([edge.kind for edge in self.edges]),
                "bends": _ragged([edge.points for edge in self.edges]),
            },
            "rails": _columns(self.rails, ("a", "b", "track", "x", "y0", "y1")),
            "wires": {**_columns(self.wires, ("a", "b")), "points": _ragged([wire.points for wire in self.wires])},
            "lanes": {
                **_columns(self.lanes, ("index", "x", "width")),
                "title": _words([lane.title for lane in self.lanes]),
            },
            "width": self.width,
            "height": self.height,
        }


def _columns(rows: Sequence[object], fields: Sequence[str]) -> dict[str, Any]:
    return {"count": len(rows), **{field: [int(getattr(row, field)) for row in rows] for field in fields}}


def _words(texts: Sequence[str]) -> dict[str, Any]:
    words = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return {"words": list(words), "index": [words[text] for text in texts]}


def _ragged(lines: Sequence[tuple[Point, ...]]) -> dict[str, Any]:
    start, ids = [0], []
    for line in lines:
        ids += [value for point in line for value in point]
        start.append(len(ids))
    return {"start": start, "ids": ids}


# Texts: no text is ever measured, the width follows from the number of code points.


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and `…`: at most `limit` code points."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def headline(node: Drawn) -> tuple[str, str]:
    """The first line of a box as drawn: its op and its name; of a leaf, its name (or op) alone."""
    if node.leaf or not node.name:
        return cut((node.leaf and node.name) or node.op, LINE_CUT), ""
    line = cut(f"{node.op}  {node.name}", LINE_CUT)
    if len(node.op) + 4 > LINE_CUT and len(node.op) + 2 + len(node.name) > LINE_CUT:
        return line, ""  # no room for a letter of the name
    return node.op, line[len(node.op) + 2 :]


def node_width(node: Drawn) -> int:
    """The width of a box: a multiple of 8, from the longer of its two lines."""
    op, name = headline(node)
    count = max(len(op) + 2 + len(name) if name else len(op), min(len(node.type), LINE_CUT))
    return max(64, (29 * count // 4 + 24 + 7) // 8 * 8)


def pill_label(node: Drawn) -> str:
    """The name on a pill as drawn; a leaf without a name shows its op."""
    return cut(node.name or node.op, PILL_CUT)


def pill_width(node: Drawn, echo: bool) -> int:
    """The width of a pill: a multiple of 8; an echo shows the name alone."""
    name = 7 * len(pill_label(node))
    return (name + (20 if echo else 64 * min(len(node.type), PILL_CUT) // 10 + 26) + 7) // 8 * 8


# Who is a box: every op, and the few leaves that must stand on their own.


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is a box and who a pill; `width` and `inputs` run over all nodes, and are used for boxes."""

    nodes: Sequence[Drawn]
    box: list[bool]
    width: list[int]
    inputs: list[tuple[int, ...]]  # boxes it reads, in the order of ports, each once
    pills: list[tuple[tuple[int, int, bool], ...]]  # (leaf, width, echo) beside it, in the order of ports
    readers: list[list[int]]  # of boxes and leaves alike


def cast(nodes: Sequence[Drawn], first_lane: Sequence[bool]) -> Cast:
    """Leaves become pills, but where an op of the first lane has nothing else to stand under an `input` becomes a box.

    An op of parameters and constants alone starts a branch by itself: it stands beside its reader, not at the top.
    """
    box = [not node.leaf for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for b, node in enumerate(nodes):
        _check(nodes, b)
        for a in dict.fromkeys(node.inputs):
            readers[a].append(b)
        if not node.leaf and first_lane[b] and all(nodes[a].leaf for a in node.inputs):
            for a in [a for a in node.inputs if nodes[a].op == "input"][:1]:
                box[a] = True
    box = [known or not readers[i] for i, known in enumerate(box)]
    seen: set[int] = set()
    pills = []
    for node in nodes:
        beside = [a for a in dict.fromkeys(node.inputs) if not box[a]]
        pills.append(tuple((a, pill_width(nodes[a], a in seen), a in seen) for a in beside))
        seen.update(beside)
    inputs = [tuple(a for a in dict.fromkeys(node.inputs) if box[a]) for node in nodes]
    widths = [node_width(node) if box[i] else -1 for i, node in enumerate(nodes)]
    return Cast(nodes, box, widths, inputs, pills, readers)


def _check(nodes: Sequence[Drawn], b: int) -> None:
    node = nodes[b]
    if not node.inputs:
        return
    where = f"layout: node {b} ({node.op})"
    if node.leaf:
        raise GraphError(where, "inputs", f"{len(node.inputs)} of a leaf", "none")
    if not (0 <= min(node.inputs) and max(node.inputs) < b):
        raise GraphError(where, "inputs", list(node.inputs), f"indexes from 0 to {b - 1}")


def kind_of(nodes: Sequence[Drawn], a: int, b: int, saved: bool = False) -> Kind:
    """What an edge between boxes carries; `saved`: it goes from a forward lane into an adjoint lane."""
    if saved and not (nodes[a].leaf and nodes[a].op == "parameter"):
        return "saved"
    return "param" if nodes[a].leaf else "data"


# One column: the core for boxes with their pills, then points for everything inside it.


@dataclass(frozen=True, slots=True)
class Column:
    """The boxes of one lane, placed; `left` is the x of each box without its pills, counted from the column's edge."""

    members: list[int]
    edges: list[tuple[int, int]]
    placed: Placed
    left: dict[int, int]
    rail_tracks: int


def column(who: Cast, members: list[int], row: Mapping[int, int], quiet: Sequence[bool]) -> Column:
    """Place the boxes of one lane on these rows."""
    local = {u: i for i, u in enumerate(members)}
    edges = [(a, b) for b in members for a in who.inputs[b] if a in local]
    margin = [_margin(who.pills[u]) for u in members]
    placed = place(
        [m + who.width[u] for m, u in zip(margin, members, strict=True)],
        [m + who.width[u] // 2 for m, u in zip(margin, members, strict=True)],
        [row[u] for u in members],
        [(local[a], local[b]) for a, b in edges],
        [quiet[u] for u in members],
    )
    left = {u: placed.x[i] + margin[i] for i, u in enumerate(members)}
    return Column(members, edges, placed, left, max((track + 1 for _, track in placed.rails), default=0))


def _margin(pills: Sequence[tuple[int, int, bool]]) -> int:
    """The room that pills take left of their op: two to a column, columns 12 apart."""
    return sum(12 + max(w for _, w, _ in pills[i : i + 2]) for i in range(0, len(pills), 2))


@dataclass(slots=True)
class Sheet:
    """A layout while it is being written."""

    who: Cast
    x: list[int]
    y: list[int]
    row: list[int]
    pills: list[Pill]
    edges: list[Edge]
    rails: list[Rail]


def sheet(who: Cast) -> Sheet:
    """An empty sheet for these nodes."""
    blank = [-1] * len(who.nodes)
    return Sheet(who, blank, blank[:], blank[:], [], [], [])


def finished(
    page: Sheet,
    engine: Literal["layered", "lanes", "dot"],
    began: float,
    size: tuple[int, int],
    wires: tuple[Wire, ...] = (),
    lanes: tuple[Lane, ...] = (),
) -> Layout:
    """The layout that the sheet holds; `began`: the clock when it was started, `size`: width and height."""
    return Layout(
        engine,
        time.perf_counter() - began,
        tuple(page.x),
        tuple(page.y),
        tuple(page.who.width),
        tuple(page.row),
        tuple(page.pills),
        tuple(page.edges),
        tuple(page.rails),
        wires,
        lanes,
        *size,
    )


def write(page: Sheet, lane: Column, row: Mapping[int, int], at: int, up: bool, rails: tuple[int, int]) -> None:
    """Put a placed column on the sheet, its edge at x = `at`.

    `up`: edges run upwards; the column was placed with its rows counted from the bottom. `rails`: x of track 0 and
    the step from track to track.
    """
    for u in lane.members:
        page.x[u], page.y[u], page.row[u] = at + lane.left[u], ROW * row[u], row[u]
    inside = {b for a, b in lane.edges if row[a] == row[b]}
    for u in lane.members:
        _write_pills(page, u, u in inside)
    hops = _hops(page, lane, row)
    for (a, b), way in zip(lane.edges, lane.placed.ways, strict=True):
        if way is not None:
            points = _beside(page, a, b, hops) if row[a] == row[b] else _through(page, a, b, [at + x for x in way], up)
            page.edges.append(Edge(a, b, kind_of(page.who.nodes, a, b), points))
    for e, track in lane.placed.rails:
        a, b = lane.edges[e]
        page.rails.append(_rail(page, a, b, track, rails[0] + rails[1] * track, up))


def _write_pills(page: Sheet, u: int, beside_edge: bool) -> None:
    """The pills of one op, right-aligned in columns; one alone is centred, or makes room for an edge from the left."""
    pills = page.who.pills[u]
    right = page.x[u] - 12
    for i in range(0, len(pills), 2):
        pair = pills[i : i + 2]
        first = 0 if len(pair) == 2 or beside_edge else (NODE - PILL) // 2
        for k, (leaf, w, echo) in enumerate(pair):
            page.pills.append(Pill(leaf, u, right - w, page.y[u] + first + k * (NODE - PILL), w, echo))
        right -= 12 + max(w for _, w, _ in pair)


def _through(page: Sheet, a: int, b: int, way: Sequence[int], up: bool) -> tuple[Point, ...]:
    """From middle to middle; each row that is crossed gives two points, so that the curve bends in the gaps only."""
    step = -1 if up else 1
    near, far = (0, NODE) if up else (NODE, 0)  # where an edge leaves a row, where it comes into the next
    points = [(page.x[a] + page.who.width[a] // 2, page.y[a] + near)]
    for i, x in enumerate(way):
        top = ROW * (page.row[a] + step * (i + 1))
        points += [(x, top + far), (x, top + near)]
    return (*points, (page.x[b] + page.who.width[b] // 2, page.y[b] + far))


def _beside(page: Sheet, a: int, b: int, hops: Mapping[tuple[int, int], int]) -> tuple[Point, ...]:
    """Inside a row: straight from side to side, or in a hop over the boxes between."""
    right = page.x[a] + page.who.width[a]
    top = page.y[a]
    if (a, b) not in hops:
        return (right, top + NODE // 2), (page.x[b], top + NODE // 2)
    over = top - 6 - 4 * hops[a, b]
    return (right - 8, top), (right - 8, over), (page.x[b] + 8, over), (page.x[b] + 8, top)


def _hops(page: Sheet, lane: Column, row: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The edges inside a row with a box between their ends, each with its level; a line through it would mislead."""
    place_in_row = {lane.members[i]: k for boxes in lane.placed.order for k, i in enumerate(boxes)}
    far = [(a, b) for a, b in lane.edges if row[a] == row[b] and place_in_row[b] - place_in_row[a] > 1]
    far.sort(key=lambda edge: (row[edge[0]], page.x[edge[0]], page.x[edge[1]]))
    level: dict[tuple[int, int], int] = {}
    ends: list[tuple[int, int]] = []  # of each level: row, x
    for a, b in far:
        here, left = row[a], page.x[a]
        free = next((k for k, (r, x) in enumerate(ends) if r != here or x <= left), min(len(ends), HOPS - 1))
        ends[free : free + 1] = [(here, page.x[b] + page.who.width[b])]
        level[a, b] = free
    return level


def _rail(page: Sheet, a: int, b: int, track: int, x: int, up: bool) -> Rail:
    """A long edge bends into the gutter within one gap; a backward one turns round inside it."""
    forward = (page.row[b] < page.row[a]) == up
    reach = GY if forward else GX
    if up:
        return Rail(a, b, track, x, page.y[a] - reach, page.y[b] + NODE + reach)
    return Rail(a, b, track, x, page.y[a] + NODE + reach, page.y[b] - reach)
