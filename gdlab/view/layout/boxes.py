"""Decide which node is a box and which a pill, and lay one column of boxes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gdlab.base.errors import GraphError
from gdlab.view.layout.drawn import (
    Density,
    Drawn,
    Edge,
    Kind,
    Lane,
    Layout,
    Pill,
    Point,
    Rail,
    Wire,
    node_width,
    pill_label,
    pill_tail,
    pill_width,
)
from gdlab.view.layout.metrics import GX, GY, HOPS, LONG, NODE, PILL, ROW, SHAPE_OPS
from gdlab.view.layout.rows import PlacedRow, place

# Who is a box: every op, and the few leaves that must stand on their own.


@dataclass(frozen=True, slots=True)
class PillSize:
    """A pill before it has a place: the node that is read, the width, whether an earlier pill shows the same."""

    node: int
    width: int
    echo: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """The split of the nodes into boxes and pills; `width` and `inputs` run over all nodes, and are used for boxes."""

    nodes: Sequence[Drawn]
    density: Density
    box: list[bool]
    width: list[int]
    inputs: list[tuple[int, ...]]  # boxes it reads, in the order of ports, each once
    pills: list[tuple[PillSize, ...]]  # beside it, in the order of ports
    readers: list[list[int]]  # of boxes and leaves alike; through shape ops that are part of a pill
    chains: Mapping[int, tuple[int, ...]]  # of a shape op that is part of a pill: the leaf, the ops, itself at last


def chains_of(nodes: Sequence[Drawn]) -> dict[int, tuple[int, ...]]:
    """Return the shape ops between a parameter or constant and its reader, each with the chain from the leaf to itself.
    """
    found: dict[int, tuple[int, ...]] = {}
    for i, node in enumerate(nodes):
        if node.op in SHAPE_OPS and len(node.inputs) == 1 and 0 <= node.inputs[0] < i:
            (a,) = node.inputs
            if a in found or (nodes[a].leaf and nodes[a].op != "input"):
                found[i] = (*found.get(a, (a,)), i)
    if found:
        read = {a for node in nodes for a in node.inputs}
        found = {i: chain for i, chain in found.items() if i in read}
    return found


def cast(nodes: Sequence[Drawn], first_lane: Sequence[bool], density: Density = 0) -> Cast:
    """Split the nodes into boxes and pills: leaves become pills, but an `input` that an op of the first lane has
    nothing else to stand below becomes a box.

    An op of parameters and constants alone starts a branch by itself: it stands beside its reader, not at the top.
    """
    for b in range(len(nodes)):
        _check(nodes, b)
    chains = chains_of(nodes)
    box = [not node.leaf and i not in chains for i, node in enumerate(nodes)]
    readers: list[list[int]] = [[] for _ in nodes]
    for b, node in enumerate(nodes):
        if b in chains:
            continue
        for i in dict.fromkeys(i for a in node.inputs for i in chains.get(a, (a,))):
            readers[i].append(b)
        if not node.leaf and first_lane[b] and all(nodes[a].leaf or a in chains for a in node.inputs):
            for a in [a for a in node.inputs if nodes[a].op == "input"][:1]:
                box[a] = True
    box = [known or not readers[i] for i, known in enumerate(box)]
    seen: set[int] = set()
    pills = []
    for b, node in enumerate(nodes):
        beside = [] if b in chains else [a for a in dict.fromkeys(node.inputs) if not box[a]]
        pills.append(tuple(_size(nodes, chains, a, a in seen, density) for a in beside))
        seen.update(beside)
    inputs = [tuple(a for a in dict.fromkeys(node.inputs) if box[a]) for node in nodes]
    widths = [node_width(node, density) if box[i] else -1 for i, node in enumerate(nodes)]
    return Cast(nodes, density, box, widths, inputs, pills, readers, chains)


def _size(
    nodes: Sequence[Drawn], chains: Mapping[int, tuple[int, ...]], a: int, echo: bool, density: Density
) -> PillSize:
    label = pill_label(nodes[chains.get(a, (a,))[0]], density)
    return PillSize(a, pill_width(label, pill_tail(nodes[a].type, a in chains, echo, density)), echo)


def sink(who: Cast, row: dict[int, int], within: Callable[[int], bool]) -> None:
    """Move boxes down to stand above the first of their readers `within` the lane: branches that depend on no input,
    inputs themselves, and boxes that are read only far below. `row`: in index order."""
    loose: dict[int, bool] = {}  # whether what reads it may be loose, too
    for u in row:
        if all(loose.get(a, False) for a in who.inputs[u]):
            loose[u] = not who.nodes[u].leaf
    for u in reversed(row):
        first = min((row[b] for b in who.readers[u] if within(b)), default=row[u] + 1)
        if u in loose or first - row[u] > LONG:
            row[u] = first - 1


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
    """Return the kind of an edge between boxes, by the data that it carries; `saved`: it goes from a forward lane into
    an adjoint lane."""
    if saved and not (nodes[a].leaf and nodes[a].op == "parameter"):
        return "saved"
    return "param" if nodes[a].leaf else "data"


# One column: the core for boxes with their pills, then points for everything inside it.


@dataclass(frozen=True, slots=True)
class LaneColumn:
    """The placed boxes of one lane; `left` is the x of each box without its pills, counted from the column's edge."""

    members: list[int]
    edges: list[tuple[int, int]]
    placed: PlacedRow
    left: dict[int, int]
    rail_tracks: int


def column(who: Cast, members: list[int], row: Mapping[int, int], quiet: Sequence[bool]) -> LaneColumn:
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
    return LaneColumn(members, edges, placed, left, max((track + 1 for _, track in placed.rails), default=0))


def _margin(pills: Sequence[PillSize]) -> int:
    """Return the room that pills take left of their op: two to a column, columns 12 apart."""
    return sum(12 + max(pill.width for pill in pills[i : i + 2]) for i in range(0, len(pills), 2))


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
    """Return an empty sheet for these nodes."""
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
    """Return the layout that the sheet holds; `began`: the clock when it was started, `size`: width and height."""
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
        page.who.density,
    )


def write(page: Sheet, lane: LaneColumn, row: Mapping[int, int], at: int, up: bool, rails: tuple[int, int]) -> None:
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
    """Place the pills of one op, right-aligned in columns; a single pill is centred, or makes room for an edge from the
    left."""
    pills = page.who.pills[u]
    right = page.x[u] - 12
    for i in range(0, len(pills), 2):
        pair = pills[i : i + 2]
        first = 0 if len(pair) == 2 or beside_edge else (NODE - PILL) // 2
        for k, pill in enumerate(pair):
            leaf, *via = page.who.chains.get(pill.node, (pill.node,))
            top = page.y[u] + first + k * (NODE - PILL)
            page.pills.append(Pill(leaf, u, right - pill.width, top, pill.width, pill.echo, tuple(via)))
        right -= 12 + max(pill.width for pill in pair)


def _through(page: Sheet, a: int, b: int, way: Sequence[int], up: bool) -> tuple[Point, ...]:
    """Draw an edge from middle to middle; each row that is crossed gives two points, so that the curve bends in the
    gaps only."""
    step = -1 if up else 1
    near, far = (0, NODE) if up else (NODE, 0)  # where an edge leaves a row, where it comes into the next
    points = [(page.x[a] + page.who.width[a] // 2, page.y[a] + near)]
    for i, x in enumerate(way):
        top = ROW * (page.row[a] + step * (i + 1))
        points += [(x, top + far), (x, top + near)]
    return (*points, (page.x[b] + page.who.width[b] // 2, page.y[b] + far))


def _beside(page: Sheet, a: int, b: int, hops: Mapping[tuple[int, int], int]) -> tuple[Point, ...]:
    """Draw an edge inside a row: straight from side to side, or in a hop over the boxes between."""
    right = page.x[a] + page.who.width[a]
    top = page.y[a]
    if (a, b) not in hops:
        return (right, top + NODE // 2), (page.x[b], top + NODE // 2)
    over = top - 6 - 4 * hops[a, b]
    return (right - 8, top), (right - 8, over), (page.x[b] + 8, over), (page.x[b] + 8, top)


def _hops(page: Sheet, lane: LaneColumn, row: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """Return the edges inside a row with a box between their ends, each with its level, through which a straight line
    would mislead."""
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
    """Return the rail of a long edge, which bends into the gutter within one gap; a backward one turns round inside it.
    """
    forward = (page.row[b] < page.row[a]) == up
    reach = GY if forward else GX
    if up:
        return Rail(a, b, track, x, page.y[a] - reach, page.y[b] + NODE + reach)
    return Rail(a, b, track, x, page.y[a] + NODE + reach, page.y[b] - reach)
