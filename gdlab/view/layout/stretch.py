"""Make room in a layout for boxes with several lines: `stretched(layout, extra_room(layout, nodes))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from gdlab.view.layout.drawn import Drawn, Layout, Point
from gdlab.view.layout.metrics import LINE, NODE, ROW


def extra_room(layout: Layout, nodes: Sequence[Drawn]) -> list[int]:
    """Return the room that each row needs for the lines of its boxes, beyond the one that every box has."""
    found = [0] * (max(layout.row, default=-1) + 1)
    for row, node in zip(layout.row, nodes, strict=True):
        if row >= 0:
            found[row] = max(found[row], LINE * (len(node.lines) - 1))
    return found


def stretched(layout: Layout, extra: Sequence[int]) -> Layout:
    """Return the layout with row r taller by extra[r]; points in a row keep their distance from its top, points in the
    gap below it from its foot."""
    if not any(extra):
        return layout
    before = list(accumulate(extra, initial=0))

    def moved(y: int) -> int:
        row = y // ROW
        if row < 0:
            return y
        if row >= len(extra):
            return y + before[-1]
        return y + before[row] + (extra[row] if y - ROW * row >= NODE else 0)

    return replace(
        layout,
        y=tuple(moved(y) if row >= 0 else y for y, row in zip(layout.y, layout.row, strict=True)),
        h=tuple(NODE + extra[row] if row >= 0 else -1 for row in layout.row),
        pills=tuple(replace(pill, y=moved(pill.y)) for pill in layout.pills),
        edges=tuple(replace(edge, points=_bent(edge.points, moved)) for edge in layout.edges),
        rails=tuple(replace(rail, y0=moved(rail.y0), y1=moved(rail.y1)) for rail in layout.rails),
        wires=tuple(replace(wire, points=_bent(wire.points, moved)) for wire in layout.wires),
        height=moved(layout.height),
    )


def _bent(points: Sequence[Point], moved: Callable[[int], int]) -> tuple[Point, ...]:
    return tuple((x, moved(y)) for x, y in points)
