"""Lanes layout: forward, adjoint, … side by side on common rows, so that the backward pass mirrors the forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gdlab.base.errors import GraphError
from gdlab.view.layout.boxes import (
    Cast,
    LaneColumn,
    Sheet,
    cast,
    chains_of,
    column,
    finished,
    sheet,
    sink,
    write,
)
from gdlab.view.layout.drawn import Density, Drawn, Lane, Layout, Point, Wire
from gdlab.view.layout.metrics import BESIDE, GUTTER, NODE, PITCH, PLACES, ROW, TINT, WIRE_PITCH, WIRE_TRACKS
from gdlab.view.layout.rows import tracks


@dataclass(frozen=True, slots=True)
class _Wiring:
    """The edges between lanes, and the track of each (source, target row) in the gutter right of the source's lane."""

    edges: list[tuple[int, int]]
    place: dict[int, int]  # of each source in its row, from the right
    track: dict[tuple[int, int], int]
    used: dict[int, int]  # tracks in the gutter right of each lane


def lanes(nodes: Sequence[Drawn], density: Density = 0) -> Layout:
    """Lay a differentiated graph out: an adjoint stands on the row of its op, and reads forward values by wires."""
    began = time.perf_counter()
    number = _numbers(nodes)
    who = cast(nodes, [n == 1 for n in number], density)
    number = [n or 1 for n in number]
    row = _rows(who, number)
    if density > 0:
        row = _folded(who, number, row)
    count = max(row.values(), default=-1) + 1
    drawn = sorted({number[u] for u in row})
    columns = {n: _column(who, number, n, row, count) for n in drawn}
    wiring = _wiring(who, number, row, columns)
    page = sheet(who)
    tints, right = _write(page, columns, row, count, wiring)
    wires = _wires(page, number, wiring, {tint.index: tint.x + tint.width for tint in tints})
    return finished(page, "lanes", began, (right, ROW * count), wires, tints)


def _numbers(nodes: Sequence[Drawn]) -> list[int]:
    """Return the lane of every op: the one that the op names, or the next of its kind such that no edge goes left; 0
    for possible pills."""
    pills = chains_of(nodes)
    of_name: dict[str, int] = {}
    for u, node in enumerate(nodes):
        if not node.leaf and node.lane not in of_name:
            of_name[node.lane] = _number(node.lane, u)
    named = [0 if node.leaf or u in pills else of_name[node.lane] for u, node in enumerate(nodes)]
    number: list[int] = []
    for u, node in enumerate(nodes):
        least = max((number[a] for a in node.inputs if a < u), default=0)
        number.append(named[u] if named[u] <= 0 else max(named[u], least + (least - named[u]) % 2))
        if least == _LAST and named[u]:
            number[u] = _LAST
    last = max((n for n in number if n != _LAST), default=0)
    last += 1 + last % 2  # odd, so that it runs downwards
    return [last if n == _LAST else n for n in number]


_LAST = 1 << 30  # the optimizer's lane, until the last one is known


def _number(lane: str, u: int) -> int:
    """Return the number of a lane: forward 1, adjoint 2, forward2 3, adjoint2 4, …"""
    if lane == "optimizer":
        return _LAST
    for word, offset in (("forward", 1), ("adjoint", 0)):
        count = lane.removeprefix(word) or "1"
        if lane.startswith(word) and count.isdecimal() and count.isascii() and 0 < int(count[:6]):
            return 2 * int(count[:6]) - offset
    raise GraphError("layout", f"lane of node {u}", repr(lane), "forward, adjoint, forward2, adjoint2 … or optimizer")


def _title(number: int, last: bool) -> str:
    if last:
        return "optimizer ↓"
    again = str((number + 1) // 2) if number > 2 else ""
    return f"forward{again} ↓" if number % 2 else f"adjoint{again} ↑"


def _rows(who: Cast, number: Sequence[int]) -> dict[int, int]:
    """Return the row of each box: in lane 1 by longest path, in others the row of its twin, or next to its operands."""
    row: dict[int, int] = {}
    boxes = [u for u, is_box in enumerate(who.box) if is_box]
    for u in boxes:
        if number[u] == 1:
            row[u] = max((row[a] + 1 for a in who.inputs[u] if number[a] == 1), default=0)
    sink(who, row, lambda b: number[b] == 1)
    for lane in sorted({number[u] for u in boxes} - {1}):
        for u in boxes:
            if number[u] == lane:
                row[u] = _later_row(who, number, row, u)
    return dict(sorted(row.items()))


def _later_row(who: Cast, number: Sequence[int], row: dict[int, int], u: int) -> int:
    twin = who.nodes[u].twin
    if 0 <= twin < len(who.nodes):
        if not who.box[twin] or who.nodes[twin].leaf:
            found = [row[b] for b in who.readers[twin] if number[b] % 2 and number[b] < number[u] and b in row]
        else:
            found = [row[twin]] if number[twin] < number[u] and twin in row else []
        if found:
            return min(found)
    inside = [row[a] for a in who.inputs[u] if number[a] == number[u]]
    if inside:
        return max(inside) + 1 if number[u] % 2 else max(0, min(inside) - 1)
    return next((row[a] for a in who.inputs[u] if a in row), 0)


def _folded(who: Cast, number: Sequence[int], row: dict[int, int]) -> dict[int, int]:
    """Fold long chains of adjoints inside a row into several rows, from the row of their op upwards."""
    depth: dict[int, int] = {}
    for u in row:
        before = [depth[a] + 1 for a in who.inputs[u] if number[a] == number[u] and row.get(a) == row[u]]
        depth[u] = max(before, default=0) if number[u] % 2 == 0 else 0
    rows = [0] * (max(row.values(), default=-1) + 1)  # that each row takes
    for u, own in row.items():
        rows[own] = max(rows[own], depth[u] // BESIDE + 1)
    last = list(accumulate(rows, initial=-1))[1:]
    return {u: last[own] - depth[u] // BESIDE for u, own in row.items()}


def _column(who: Cast, number: Sequence[int], lane: int, row: dict[int, int], count: int) -> LaneColumn:
    """Place the boxes of one lane; an even lane counts its rows from the bottom, because its edges run upwards."""
    members = [u for u in row if number[u] == lane]
    placed_on = row if lane % 2 else {u: count - 1 - row[u] for u in members}
    quiet = [lane > 1 and not readers for readers in who.readers]
    return column(who, members, placed_on, quiet)


def _wiring(who: Cast, number: Sequence[int], row: dict[int, int], columns: dict[int, LaneColumn]) -> _Wiring:
    edges = [(a, b) for b in row for a in who.inputs[b] if number[a] != number[b]]
    sources: dict[int, list[int]] = {}
    for a in dict.fromkeys(a for a, _ in edges):
        sources.setdefault(row[a], []).append(a)
    place: dict[int, int] = {}
    for found in sources.values():
        found.sort(key=lambda a: (-number[a], -columns[number[a]].left[a] - who.width[a], a))
        place.update({a: min(i, PLACES) for i, a in enumerate(found)})
    track: dict[tuple[int, int], int] = {}
    used: dict[int, int] = {}
    for lane in columns:
        ways = list(dict.fromkeys((a, row[b]) for a, b in edges if number[a] == lane and row[a] != row[b]))
        taken = tracks([(min(row[a], to), max(row[a], to)) for a, to in ways], WIRE_TRACKS)
        track.update(zip(ways, taken, strict=True))
        used[lane] = max(taken, default=-1) + 1
    return _Wiring(edges, place, track, used)


def _write(
    page: Sheet, columns: dict[int, LaneColumn], row: dict[int, int], count: int, wiring: _Wiring
) -> tuple[tuple[Lane, ...], int]:
    """Write the lanes from left to right, each after its gutter; return their tints and the right edge of the last."""
    tints: list[Lane] = []
    right = 0  # of the last tint
    for number, lane in columns.items():
        rails = PITCH * lane.rail_tracks
        if tints:
            at = right - TINT + GUTTER + WIRE_PITCH * wiring.used[tints[-1].index] + rails
        else:
            at = TINT + (rails + PITCH if rails else 0)
        write(page, lane, row, at, number % 2 == 0, (at - TINT - PITCH, -PITCH))
        last = any(page.who.nodes[u].lane == "optimizer" for u in lane.members)
        tints.append(Lane(number, _title(number, last), at - TINT, lane.placed.width + 2 * TINT))
        right = at + lane.placed.width + TINT
    return tuple(tints), right


def _wires(page: Sheet, number: Sequence[int], wiring: _Wiring, edge: dict[int, int]) -> tuple[Wire, ...]:
    """Draw the polylines between lanes, in the gaps below rows; `edge`: x of each tint's right edge."""
    wires = []
    for a, b in wiring.edges:
        offset = WIRE_PITCH * wiring.place[a]
        x0, y0 = page.x[a] + page.who.width[a] - 10, page.y[a] + NODE
        x1, y1 = page.x[b] + 10 + offset, page.y[b] + NODE
        below0, below1 = y0 + 7 + offset, y1 + 7 + offset
        points: list[Point] = [(x0, y0), (x0, below0)]
        if y0 != y1:
            x = edge[number[a]] + 8 + WIRE_PITCH * wiring.track[a, page.row[b]]
            points += [(x, below0), (x, below1)]
        wires.append(Wire(a, b, (*points, (x1, below1), (x1, y1))))
    return tuple(wires)
