"""Place boxes that already have a row: their order in it, their x, dummies for long edges, tracks for rails.

The core of both layouts. Integers only, floor division, stable sorts: another language gives the same numbers.
Every list runs over *units*: the boxes first, then the dummies, one per row that a long edge crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdlab.view.layout.metrics import DUMMY, GX, LONG, NEAR, QUIET, TRACKS


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """The places of the boxes of one column: `x` of each, and for each edge its route."""

    x: list[int]
    order: list[list[int]]  # boxes of each row from left to right
    ways: list[list[int] | None]  # per edge: x of its dummies' middles from the top; None: a rail
    rails: list[tuple[int, int]]  # (edge, track)
    width: int


@dataclass(slots=True)
class _Units:
    """The boxes and dummies of one column while they are being placed."""

    width: list[int]
    anchor: list[int]
    row: list[int]
    depth: list[int]
    above: list[list[int]]  # neighbours one row up; `below` leaves quiet ones out where there are others
    below: list[list[int]]
    rows: list[list[int]]
    x: list[int]


def tracks(spans: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """Return the track of each (top row, bottom row): the first that is free there; when all but one are busy, the
    last."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1], i))
    ends: list[int] = []
    result = [0] * len(spans)
    for i in order:
        top, bottom = spans[i]
        track = next((t for t, end in enumerate(ends[: limit - 1]) if end < top), min(len(ends), limit - 1))
        if track == len(ends):
            ends.append(bottom)
        ends[track] = max(ends[track], bottom)
        result[i] = track
    return result


def place(
    widths: Sequence[int],
    anchors: Sequence[int],
    rows: Sequence[int],
    edges: Sequence[tuple[int, int]],
    quiet: Sequence[bool],
) -> PlacedRow:
    """Return x for boxes of these widths on these rows; `anchors` are the offsets at which edges meet them."""
    units, ways, rails = _units(widths, anchors, rows, edges, quiet)
    _order(units)
    _spread(units)
    _straighten(units)
    return _placed(units, len(widths), ways, rails, rows, edges)


def _units(
    widths: Sequence[int],
    anchors: Sequence[int],
    rows: Sequence[int],
    edges: Sequence[tuple[int, int]],
    quiet: Sequence[bool],
) -> tuple[_Units, list[list[int] | None], list[int]]:
    count = len(widths)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    stand: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    depth = _depths(rows, edges, quiet)
    units = _Units(list(widths), list(anchors), list(rows), depth, above, below, stand, [])
    for box, row in enumerate(rows):
        units.rows[row].append(box)
    ways: list[list[int] | None] = []
    rails: list[int] = []
    for e, (a, b) in enumerate(edges):
        span = rows[b] - rows[a]
        if span < 0 or span > LONG:
            rails.append(e)
            ways.append(None)
        elif span == 0:
            ways.append([])
        else:
            ways.append(_dummies(units, a, b))
    for neighbours in units.below[:count]:
        loud = [u for u in neighbours if units.depth[u] < QUIET]
        if loud:
            neighbours[:] = loud
    head = _heads(rows, edges, len(units.width))
    for neighbours in (*above, *below):
        neighbours[:] = [head[v] for v in neighbours]
    for boxes in units.rows:
        boxes.sort(key=units.depth.__getitem__)
    return units, ways, rails


def _depths(rows: Sequence[int], edges: Sequence[tuple[int, int]], quiet: Sequence[bool]) -> list[int]:
    """Return the longest chain of edges inside its row that ends in each box; boxes come in topological order."""
    depth = [0] * len(rows)
    for a, b in edges:  # in the order of b, so a is final
        if rows[a] == rows[b]:
            depth[b] = max(depth[b], depth[a] + 1)
    return [d + QUIET if q else d for d, q in zip(depth, quiet, strict=True)]


def _heads(rows: Sequence[int], edges: Sequence[tuple[int, int]], units: int) -> list[int]:
    """Return the start of the chain inside its row that ends in a box, else the box itself. What another row has to do
    with the chain stands amid its head: a row that is entered at the left and left at the right would push the next one
    aside, and all together would walk across the page."""
    head = list(range(units))
    for a, b in edges:
        if rows[a] == rows[b] and head[b] == b:
            head[b] = head[a]
    return head


def _dummies(units: _Units, a: int, b: int) -> list[int]:
    """Join a with b through one dummy per row between them; return the dummies."""
    made = []
    last = a
    for row in range(units.row[a] + 1, units.row[b]):
        dummy = len(units.width)
        units.width.append(DUMMY)
        units.anchor.append(DUMMY // 2)
        units.row.append(row)
        units.depth.append(QUIET if units.depth[b] >= QUIET else 0)
        units.above.append([last])
        units.below.append([])
        units.rows[row].append(dummy)
        units.below[last].append(dummy)
        made.append(dummy)
        last = dummy
    units.below[last].append(b)
    units.above[b].append(last)
    return made


def _order(units: _Units) -> None:
    """Order each row by depth, then by the middle of its neighbours, in four sweeps: down, up, down, up."""
    at = [0] * len(units.width)
    for row in units.rows:
        for i, u in enumerate(row):
            at[u] = i
    for sweep in range(4):
        up = sweep % 2 == 1
        near = units.below if up else units.above
        for row in reversed(units.rows) if up else units.rows:
            if len(row) > 1:
                row.sort(key=lambda u: (units.depth[u], _middle([at[v] for v in near[u]]) if near[u] else 2 * at[u]))
                for i, u in enumerate(row):
                    at[u] = i


def _middle(values: list[int]) -> int:
    """Return the sum of the two middle values; of an odd number, twice the middle one."""
    count = len(values)
    if count == 1:
        return 2 * values[0]
    values.sort()
    return values[(count - 1) // 2] + values[count // 2]


def _spread(units: _Units) -> None:
    """Move each box towards its neighbours, as far as its row has room, in four passes: down, up, down, up."""
    units.x = [0] * len(units.width)
    for row in units.rows:
        left = -(sum(units.width[u] + GX for u in row) // 2)
        for u in row:
            units.x[u] = left
            left += units.width[u] + GX
    for sweep in range(4):
        up = sweep % 2 == 1
        near = units.below if up else units.above
        for row in reversed(units.rows) if up else units.rows:
            _settle(units, row, _wants(units, row, near))


def _wants(units: _Units, row: list[int], near: list[list[int]]) -> list[int] | None:
    """Return the preferred place of each box of a row; None when none of them has a neighbour."""
    width = units.width
    if len(row) == 1:  # nearly all rows of deep graphs
        return [_want(units, row[0], near[row[0]])] if near[row[0]] else None
    wants: list[int] = []
    first = next((i for i, u in enumerate(row) if near[u]), -1)
    if first < 0:
        return None
    for u in row[first:]:
        # A quiet box stands beside the others: between them it would push them off the spine.
        if near[u] and (not wants or units.depth[u] < QUIET):
            wants.append(_want(units, u, near[u]))
            last = u
        else:
            wants.append(wants[-1] + width[last] + GX)
            last = u
    right = wants[0]
    for u in reversed(row[:first]):
        right -= width[u] + GX
        wants.insert(0, right)
    return wants


def _want(units: _Units, u: int, near: list[int]) -> int:
    """Return the place of a box with its anchor amid those of its neighbours."""
    middle = _middle([2 * (units.x[v] + units.anchor[v]) for v in near])
    # 15/16 pulls to the axis: without it deep graphs drift sideways.
    return (15 * middle // 16 - 4 * units.anchor[u]) // 4


def _settle(units: _Units, row: list[int], wants: list[int] | None) -> None:
    """Place a row at the middle between packing from the left and from the right; as neither overlaps, it does not."""
    if wants is None:
        return
    x, width = units.x, units.width
    if len(row) == 1:
        x[row[0]] = wants[0]
        return
    low = []
    free = wants[0]
    for u, want in zip(row, wants, strict=True):
        free = max(want, free)
        low.append(free)
        free += width[u] + GX
    limit = wants[-1] + width[row[-1]] + GX
    for i in range(len(row) - 1, -1, -1):
        limit = min(wants[i], limit - GX - width[row[i]])
        x[row[i]] = (low[i] + limit) // 2


def _straighten(units: _Units) -> None:
    """Move each box that is nearly below its only upper neighbour exactly below it, where there is room."""
    x, anchor, width = units.x, units.anchor, units.width
    for row in units.rows:
        for i, u in enumerate(row):
            if len(units.above[u]) != 1:
                continue
            over = units.above[u][0]
            left = x[over] + anchor[over] - anchor[u]
            if abs(left - x[u]) > NEAR:
                continue
            fits_left = i == 0 or x[row[i - 1]] + width[row[i - 1]] + GX <= left
            if fits_left and (i + 1 == len(row) or left + width[u] + GX <= x[row[i + 1]]):
                x[u] = left


def _placed(
    units: _Units,
    count: int,
    ways: list[list[int] | None],
    rails: list[int],
    rows: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> PlacedRow:
    shift = min(units.x, default=0)
    x = [left - shift for left in units.x]
    middles = [left + a for left, a in zip(x, units.anchor, strict=True)]
    spans = [(min(rows[edges[e][0]], rows[edges[e][1]]), max(rows[edges[e][0]], rows[edges[e][1]])) for e in rails]
    return PlacedRow(
        x[:count],
        [[u for u in row if u < count] for row in units.rows],
        [None if way is None else [middles[u] for u in way] for way in ways],
        list(zip(rails, tracks(spans, TRACKS), strict=True)),
        max((left + w for left, w in zip(x, units.width, strict=True)), default=0),
    )
