"""Layered layout: rows by longest path, edges downwards. `auto` takes lanes when there is an adjoint."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gdlab.view.layout.boxes import Cast, cast, column, finished, sheet, sink, write
from gdlab.view.layout.drawn import Density, Drawn, Layout
from gdlab.view.layout.lanes import lanes
from gdlab.view.layout.metrics import PITCH, ROW


def layered(nodes: Sequence[Drawn], density: Density = 0) -> Layout:
    """Lay a graph out on rows, every edge downwards; lanes and twins are not looked at."""
    began = time.perf_counter()
    who = cast(nodes, [True] * len(nodes), density)
    row = _rows(who)
    members = list(row)
    stack = column(who, members, row, [False] * len(nodes))
    page = sheet(who)
    right = stack.placed.width
    write(page, stack, row, 0, False, (right + PITCH, PITCH))
    width = right + (PITCH * (stack.rail_tracks + 1) if stack.rail_tracks else 0)
    return finished(page, "layered", began, (width, ROW * (max(page.row, default=-1) + 1)))


def auto(nodes: Sequence[Drawn], density: Density = 0) -> Layout:
    """Lay a differentiated graph out in lanes, any other in layers."""
    lay = lanes if any(node.lane.startswith("adjoint") for node in nodes) else layered
    return lay(nodes, density)


def _rows(who: Cast) -> dict[int, int]:
    """Return the row of each box, by longest path; a box that is not needed so early moves down next to its first user.
    """
    row: dict[int, int] = {}
    for u, inputs in enumerate(who.inputs):
        if who.box[u]:
            row[u] = max((row[a] + 1 for a in inputs), default=0)
    sink(who, row, lambda b: True)
    least = min(row.values(), default=0)
    return {u: r - least for u, r in row.items()}
