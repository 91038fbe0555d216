"""Write a laid-out graph, or several side by side, as one static SVG that any viewer shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gdlab.base.words import plural, whole
from gdlab.view.layout.drawn import Drawn, Layout, cut
from gdlab.view.layout.metrics import NODE, ROW
from gdlab.view.layout.short_names import ShortNames
from gdlab.view.picture.draw import (
    CODE_FONT,
    TINT_ABOVE,
    TINT_BELOW,
    UI_FONT,
    NodeStyle,
    Scene,
    edge_parts,
    height_of,
    lane_parts,
    node_parts,
    pill_parts,
    plain,
    wire_parts,
    wires_are_marks,
)
from gdlab.view.picture.palette import INK, Theme

__all__ = ["NodeStyle", "Pane", "svg", "svg_panes"]

MOST_NODES = 300
MOST_BYTES = 300_000
MARGIN = 24
HEADER = 36
NOTE = 20  # a line below the picture
NARROWEST = 280  # pane

Pane = tuple[str, str, Sequence[Drawn], Layout, Sequence[NodeStyle]]  # header, fact, nodes, layout, style


@dataclass(frozen=True, slots=True)
class _View:
    """A scene with the rectangle that it fills and the line of text below it."""

    scene: Scene
    left: int
    top: int
    right: int
    bottom: int
    notes: tuple[str, ...]

    @property
    def width(self) -> int:
        return self.right - self.left + 2 * MARGIN

    @property
    def height(self) -> int:
        return self.bottom - self.top + 2 * MARGIN + NOTE * len(self.notes)


def svg(
    nodes: Sequence[Drawn],
    layout: Layout,
    style: Sequence[NodeStyle],
    *,
    title: str,
    desc: str,
    prefix: str,
    theme: Theme = "light",
) -> str:
    """Return one graph as SVG; beyond 300 nodes or 300 KB its first rows, and a last line that says so."""
    return _fitting([("", "", nodes, layout, style)], title, desc, prefix, theme)


def svg_panes(panes: Sequence[Pane], *, title: str, desc: str, prefix: str, theme: Theme = "light") -> str:
    """Return graphs side by side at one scale as SVG, each below its header and a muted fact."""
    return _fitting(panes, title, desc, prefix, theme)


def _fitting(panes: Sequence[Pane], title: str, desc: str, prefix: str, theme: Theme) -> str:
    most = MOST_NODES // max(1, len(panes))
    while True:
        views = [_view(nodes, layout, style, theme, most) for _, _, nodes, layout, style in panes]
        written = _document([(header, fact) for header, fact, *_ in panes], views, title, desc, prefix, theme)
        if len(written.encode()) <= MOST_BYTES or most == 1:
            return written
        most = most * 3 // 4


def _document(
    headers: Sequence[tuple[str, str]], views: Sequence[_View], title: str, desc: str, prefix: str, theme: Theme
) -> str:
    ink = INK[theme]
    top = HEADER if any(header for header, _ in headers) else 0
    widest = max((view.width for view in views), default=0)
    # Equal panes where that wastes little.
    widths = [max(NARROWEST if top else 0, widest if 5 * view.width > 3 * widest else view.width) for view in views]
    width, height = max(sum(widths), 2 * MARGIN), top + max((view.height for view in views), default=2 * MARGIN)
    prefix = re.sub(r"[^\w.-]", "-", prefix)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-labelledby="{prefix}-title {prefix}-desc">',
        f'<title id="{prefix}-title">{plain(cut(title, 200))}</title>',
        f'<desc id="{prefix}-desc">{plain(cut(desc, 1000))}</desc>',
        f'<rect width="{width}" height="{height}" fill="{ink.bg}"/>',
    ]
    at = 0
    for (header, fact), view, wide in zip(headers, views, widths, strict=True):
        if top:
            parts += _header(header, fact, at, wide, height, theme)
        parts += _content(view, at + (wide - view.width) // 2, top)
        at += wide
    return "".join(parts) + "</svg>"


def _header(header: str, fact: str, at: int, width: int, height: int, theme: Theme) -> list[str]:
    ink = INK[theme]
    rule = f'<path d="M{at} {HEADER - 0.5}h{width}" stroke="{ink.line}"/>'
    if at:
        rule += f'<path d="M{at - 0.5} 0v{height}" stroke="{ink.line}"/>'
    return [
        rule,
        f'<text x="{at + 14}" y="23" font-family="{UI_FONT}" font-size="12.5" fill="{ink.muted}">'
        f'<tspan font-weight="600" fill="{ink.text}">{plain(cut(header, 60))}</tspan>'
        f'<tspan dx="8" font-size="11.5">{plain(cut(fact, 60))}</tspan></text>',
    ]


def _content(view: _View, at: int, top: int) -> list[str]:
    scene, ink = view.scene, INK[view.scene.theme]
    users = _users(scene.nodes)
    parts = [
        f'<g transform="translate({at + MARGIN - view.left} {top + MARGIN - view.top})" font-family="{CODE_FONT}" '
        f'font-size="10.5" fill="{ink.muted}">',
        *lane_parts(scene),
        *edge_parts(scene),
        *wire_parts(scene),
        *pill_parts(scene, users),
        *node_parts(scene, users),
    ]
    y = view.bottom
    for note in view.notes:
        y += NOTE
        parts.append(f'<text x="{view.left}" y="{y}" font-family="{UI_FONT}" font-size="11.5">{plain(note)}</text>')
    return [*parts, "</g>"]


def _users(nodes: Sequence[Drawn]) -> list[int]:
    users = [0] * len(nodes)
    for node in nodes:
        for a in dict.fromkeys(node.inputs):
            users[a] += 1
    return users


def _view(nodes: Sequence[Drawn], layout: Layout, style: Sequence[NodeStyle], theme: Theme, most: int) -> _View:
    shown = _shown(layout, most)
    last = max((i for i in shown), key=lambda i: layout.row[i], default=-1)
    count = layout.row[last] + 1 if shown else 0
    bottom = layout.y[last] + height_of(layout, last) + ROW - NODE if count else 0
    scene = Scene(nodes, layout, style, theme, shown, bottom, ShortNames(n.name or n.op for n in nodes))
    notes = []
    if len(shown) < len(nodes):
        rows, most_rows = count, max(layout.row) + 1
        told = f"{whole(len(shown))} of {plural(len(nodes), 'node')}"
        notes.append(f"showing {told}: to row {whole(rows)} of {whole(most_rows)}")
    if wires_are_marks(scene):
        notes.append(f"{whole(len(layout.wires))} edges between lanes end in marks below their nodes")
    xs = list(_extent(scene))
    top, foot = (-TINT_ABOVE, bottom + TINT_BELOW) if layout.lanes else (0, max(0, bottom - 32))
    return _View(scene, min(xs, default=0), top, max(xs, default=0), foot, tuple(notes))


def _shown(layout: Layout, most: int) -> frozenset[int]:
    """Return the first boxes, row by row, with the leaves beside them: at most so many nodes."""
    beside: dict[int, list[int]] = {}
    for pill in layout.pills:
        beside.setdefault(pill.reader, []).extend((pill.leaf, *pill.via))
    shown: dict[int, None] = {}
    boxes = sorted((row, layout.x[i], i) for i, row in enumerate(layout.row) if row >= 0)
    for _, _, i in boxes:
        if len(shown) >= most:
            break
        more = [leaf for leaf in beside.get(i, ()) if leaf not in shown]
        shown.update(dict.fromkeys([i, *more][: most - len(shown)]))
    return frozenset(shown)


def _extent(scene: Scene) -> list[int]:
    """Return all x at which a part of the scene ends."""
    layout, shown = scene.layout, scene.shown
    xs = [x for i in shown if layout.row[i] >= 0 for x in (layout.x[i], layout.x[i] + layout.w[i])]
    xs += [pill.x for pill in layout.pills if pill.reader in shown and pill.node in shown]
    xs += [x for edge in layout.edges if edge.a in shown and edge.b in shown for x, _ in edge.points]
    xs += [rail.x for rail in layout.rails if rail.a in shown and rail.b in shown]
    xs += [x for lane in layout.lanes for x in (lane.x, lane.x + lane.width)]
    return xs
