"""Draw the parts of a layout as SVG text: nodes, pills, edges, rails, wires, lanes. Presentation attributes only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdlab.base.words import plural
from gdlab.view.layout.boxes import kind_of
from gdlab.view.layout.drawn import (
    Drawn,
    Edge,
    Lane,
    Layout,
    Pill,
    Point,
    Rail,
    Wire,
    cut,
    headline,
    pill_label,
    pill_tail,
)
from gdlab.view.layout.metrics import EVERY_WIRE, LINE, LINE_CUT, NODE, PILL
from gdlab.view.layout.short_names import ShortNames
from gdlab.view.picture.palette import INK, Theme, family_ink, lane_tint

CODE_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
UI_FONT = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"
CORNER = 4
TINT_ABOVE, TITLE_ABOVE = 48, 28  # of row 0: the top of a lane's tint, the foot of its title
TINT_BELOW = 8  # the last row's gap
_BAR = "M6 0A6 6 0 0 0 0 6V{foot}A6 6 0 0 0 6 {end}A3 6 0 0 1 3 {foot}V6A3 6 0 0 1 6 0Z"


@dataclass(frozen=True, slots=True)
class NodeStyle:
    """The look of a node besides its texts, and the entity that it stands for."""

    family: str
    fused: bool
    output: bool
    loss: bool
    entity: str  # "node:0.3"


@dataclass(frozen=True, slots=True)
class Scene:
    """One layout to draw, in one theme."""

    nodes: Sequence[Drawn]
    layout: Layout
    style: Sequence[NodeStyle]
    theme: Theme
    shown: frozenset[int]  # boxes and leaves that are drawn
    bottom: int  # of the last row that is drawn, with the gap below it
    short: ShortNames


# Texts


def plain(text: str) -> str:
    """Escape a text for an SVG element or attribute; control characters become visible."""
    return text.translate(_SHOWN)


_SHOWN: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # control pictures
    **dict.fromkeys(range(0x7F, 0xA0), "\u2421"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # halves of pairs
    **dict.fromkeys((plane + end for plane in range(0, 0x110000, 0x10000) for end in (0xFFFE, 0xFFFF)), "\ufffd"),
    ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;",
}  # fmt: skip


def text(content: str, at: str, width: float, attributes: str = "") -> str:
    """Return a text element; letters that are not one column wide are squeezed, right-to-left ones isolated from the
    text around."""
    if not content.isascii():
        if any(unicodedata.east_asian_width(c) in "WF" for c in content):
            attributes += f' textLength="{width:g}" lengthAdjust="spacingAndGlyphs"'
        if any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in content):
            attributes += ' direction="ltr" unicode-bidi="isolate"'
    return f"<text {at}{attributes}>{plain(content)}</text>"


_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI", "PDF", "PDI"))


def spoken(nodes: Sequence[Drawn], users: int, i: int, style: NodeStyle) -> str:
    """Return the accessible name of a node: `matmul h, f32 32 by 128, 2 inputs, 3 users, lane forward`."""
    node = nodes[i]
    parts = [f"{cut(node.op, 200)} {cut(node.name, 200)}".rstrip(), _spoken_type(node.type)]
    if not node.leaf:
        parts.append(plural(len(node.inputs), "input"))
    parts += [plural(users, "user"), f"lane {node.lane}"]
    return ", ".join(parts + ["output"] * style.output + ["loss"] * style.loss)


def _spoken_type(text: str) -> str:
    match = re.fullmatch(r"(\w+)\[([\d, ]*)\]", text)
    if match is None:
        return cut(text, 200)
    return f"{match[1]} {match[2].replace(', ', ' by ') or 'scalar'}"


# Paths


def smooth(points: Sequence[Point]) -> str:
    """Return a curve through the points, vertical at each of them."""
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    for to_x, to_y in rest:
        middle = f"{(y + to_y) / 2:g}"
        parts.append(f"V{to_y}" if to_x == x else f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        x, y = to_x, to_y
    return "".join(parts)


def square(points: Sequence[Point]) -> str:
    """Return horizontal and vertical lines through the points, with round corners."""
    corners = [points[0]]
    for i in range(1, len(points)):
        if points[i] != corners[-1]:
            corners.append(points[i])
    parts = ["M{} {}".format(*corners[0])]
    for before, here, after in zip(corners, corners[1:], corners[2:], strict=False):
        into, out = _towards(here, before), _towards(here, after)
        parts.append("L{:g} {:g}Q{} {} {:g} {:g}".format(*into, *here, *out))
    return "".join(parts) + "L{} {}".format(*corners[-1])


def _towards(corner: Point, end: Point) -> tuple[float, float]:
    """Return the point where the rounding of a corner begins: CORNER away, or halfway to a near end."""
    dx, dy = end[0] - corner[0], end[1] - corner[1]
    length = abs(dx) + abs(dy)
    part = min(CORNER, length / 2) / length
    return corner[0] + dx * part, corner[1] + dy * part


def edge_path(edge: Edge) -> str:
    """Return the path data of an edge of a column."""
    return square(edge.points) if edge.points[0][1] == edge.points[-1][1] else smooth(edge.points)


def rail_path(layout: Layout, rail: Rail) -> str:
    """Return the path data of a rail with its joins: a smooth one forward, square corners where it turns back."""
    (x0, y0), (x1, y1) = rail_ends(layout, rail)
    if (rail.y1 > rail.y0) == (rail.y0 > y0):
        return smooth(((x0, y0), (rail.x, rail.y0), (rail.x, rail.y1), (x1, y1)))
    return square(((x0, y0), (x0, rail.y0), (rail.x, rail.y0), (rail.x, rail.y1), (x1, rail.y1), (x1, y1)))


def height_of(layout: Layout, i: int) -> int:
    """Return the height of a box."""
    return layout.h[i] if layout.h else NODE


def rail_ends(layout: Layout, rail: Rail) -> tuple[Point, Point]:
    """Return the points where a rail leaves its source and meets its target."""
    a, b = rail.a, rail.b
    y0 = layout.y[a] + (height_of(layout, a) if rail.y0 > layout.y[a] else 0)
    y1 = layout.y[b] + (0 if rail.y1 < layout.y[b] + height_of(layout, b) else height_of(layout, b))
    return (layout.x[a] + layout.w[a] // 2, y0), (layout.x[b] + layout.w[b] // 2, y1)


# Parts


def lane_parts(scene: Scene) -> Iterable[str]:
    """Draw the tinted columns with their titles."""
    for lane in scene.layout.lanes:
        yield (
            f'<rect x="{lane.x}" y="{-TINT_ABOVE}" width="{lane.width}" '
            f'height="{scene.bottom + TINT_ABOVE + TINT_BELOW}" rx="8" fill="{lane_tint(_tint(lane), scene.theme)}"/>'
        )
    if scene.layout.lanes:
        yield f'<g font-family="{UI_FONT}" font-size="11" font-weight="600">'
        yield from (text(lane.title, f'x="{lane.x + 14}" y="{-TITLE_ABOVE}"', 0) for lane in scene.layout.lanes)
        yield "</g>"


def _tint(lane: Lane) -> str:
    return next(word for word in ("forward", "adjoint", "optimizer") if lane.title.startswith(word))


def edge_parts(scene: Scene) -> Iterable[str]:
    """Draw the edges and rails between drawn boxes; backward rails and the edges of adjoints have arrow heads."""
    layout, edge_ink = scene.layout, INK[scene.theme].edge
    heads = []
    yield f'<g fill="none" stroke="{edge_ink}" stroke-width="1.3">'
    for edge in layout.edges:
        if edge.a in scene.shown and edge.b in scene.shown:
            yield f'<path d="{edge_path(edge)}"{_line(scene, edge.a, edge.b)}/>'
            if _adjoint(layout, edge.b):
                heads.append(_head(edge.points[-2], edge.points[-1]))
    for rail in layout.rails:
        if rail.a in scene.shown and rail.b in scene.shown:
            yield f'<path d="{rail_path(layout, rail)}"{_line(scene, rail.a, rail.b)}/>'
            (_, y0), (x1, y1) = rail_ends(layout, rail)
            if (rail.y1 > rail.y0) != (rail.y0 > y0) or _adjoint(layout, rail.b):
                heads.append(f"M{x1} {y1}l-3.5 {-6 if rail.y1 < y1 else 6}h7Z")
    yield "</g>"
    if heads:
        yield f'<path d="{"".join(heads)}" fill="{edge_ink}"/>'


def _head(before: Point, end: Point) -> str:
    """Return the arrow head of an edge: flat for one along a row, else upright."""
    (x0, y0), (x1, y1) = before, end
    if y0 == y1:
        return f"M{x1} {y1}l{-6 if x0 < x1 else 6} -3.5v7Z"
    return f"M{x1} {y1}l-3.5 {-6 if y0 < y1 else 6}h7Z"


def _adjoint(layout: Layout, i: int) -> bool:
    return any(_inside(layout, i, lane) and lane.title.startswith("adjoint") for lane in layout.lanes)


def _line(scene: Scene, a: int, b: int) -> str:
    """Return the attributes of an edge: its entity, and dots where it carries no data; the edge of an input is the head
    of the data spine."""
    nodes = scene.nodes
    reader = scene.style[b].entity.removeprefix("node:")
    dots = ' stroke-dasharray="1.5 2.5"' if kind_of(nodes, a, b) == "param" and nodes[a].op != "input" else ""
    return f' data-entity="{plain(f"edge:{reader}.{nodes[b].inputs.index(a)}")}"{dots}'


def wire_parts(scene: Scene) -> Iterable[str]:
    """Draw the wires between lanes, one path per source, so that shared parts are drawn once; in large pictures as
    marks."""
    ink = INK[scene.theme]
    wires = [wire for wire in scene.layout.wires if wire.a in scene.shown and wire.b in scene.shown]
    marks = wires_are_marks(scene)
    for kind, colour, dash in (("data", ink.edge, ""), ("param", ink.edge, "1.5 2.5"), ("saved", ink.warn, "4 3")):
        lines = _wire_lines([wire for wire in wires if _wire_kind(scene, wire) == kind], marks)
        if lines:
            style = 'stroke-width="4" stroke-linecap="round"' if marks else 'stroke-width="1.3"'
            dashes = f' stroke-dasharray="{dash}"' if dash and not marks else ""
            yield f'<g fill="none" stroke="{colour}" {style}{dashes}>'
            yield from (f'<path d="{line}"/>' for line in lines)
            yield "</g>"


def wires_are_marks(scene: Scene) -> bool:
    """Return whether the wires of this picture end in marks."""
    return bool(scene.layout.wires) and len(scene.shown) > EVERY_WIRE


def _wire_kind(scene: Scene, wire: Wire) -> str:
    lanes = scene.layout.lanes
    titles = {i: lane.title for lane in lanes for i in (wire.a, wire.b) if _inside(scene.layout, i, lane)}
    saved = titles.get(wire.a, "").startswith("forward") and titles.get(wire.b, "").startswith("adjoint")
    return kind_of(scene.nodes, wire.a, wire.b, saved)


def _inside(layout: Layout, i: int, lane: Lane) -> bool:
    return lane.x <= layout.x[i] < lane.x + lane.width


def _wire_lines(wires: Sequence[Wire], marks: bool) -> list[str]:
    if marks:
        ends = dict.fromkeys(point for wire in wires for point in (wire.points[0], wire.points[-1]))
        return ["".join(f"M{x} {y + 3}v2" for x, y in ends)] if ends else []
    by_source: dict[int, list[str]] = {}
    for wire in wires:
        by_source.setdefault(wire.a, []).append(square(wire.points))
    return ["".join(dict.fromkeys(lines)) for lines in by_source.values()]


def pill_parts(scene: Scene, users: Sequence[int]) -> Iterable[str]:
    """Draw the leaves beside their readers, each with a short dotted edge."""
    ink, layout = INK[scene.theme], scene.layout
    pills = [pill for pill in layout.pills if pill.reader in scene.shown and pill.node in scene.shown]
    if pills:
        lines = "".join(_pill_line(layout, pill) for pill in pills)
        yield f'<path d="{lines}" fill="none" stroke="{ink.edge}" stroke-width="1.3" stroke-dasharray="1.5 2.5"/>'
    yield from (_pill(scene, pill, users[pill.node]) for pill in pills)


def _pill_line(layout: Layout, pill: Pill) -> str:
    """Return the path data from a pill to its reader; from an outer column through the gap between the pills of the
    inner one."""
    right, middle = pill.x + pill.w, pill.y + PILL // 2
    end = layout.x[pill.reader]
    gap = layout.y[pill.reader] + NODE // 2
    if end - right <= 12 or middle == gap:
        return f"M{right} {middle}H{end}"
    return f"M{right} {middle}C{right + 6} {middle} {right + 6} {gap} {right + 12} {gap}H{end}"


def _pill(scene: Scene, pill: Pill, users: int) -> str:
    leaf, style = scene.nodes[pill.leaf], scene.style[pill.node]
    family, ink = family_ink(scene.style[pill.leaf].family, scene.theme), INK[scene.theme]
    density = scene.layout.density
    label = pill_label(leaf, density, scene.short)
    tail = pill_tail(scene.nodes[pill.node].type, bool(pill.via), pill.echo, density)
    # The name of a leaf that goes through shape ops stands for the leaf, the pill for the last of them.
    own = f' data-entity="{plain(scene.style[pill.leaf].entity)}"' if pill.via else ""
    name = text(label, 'x="10" y="13"', 6.6 * len(label), f'{own} font-weight="600" fill="{ink.text}"')
    if tail:
        name += text(tail, f'x="{16 + 13 * len(label) // 2}" y="13"', 6.3 * len(tail))
    return (
        f'<g transform="translate({pill.x} {pill.y})" data-entity="{plain(style.entity)}">'
        f"<title>{plain(_pill_title(scene, pill, users))}</title>"
        f'<rect width="{pill.w}" height="{PILL}" rx="{PILL // 2}" fill="{family.fill}" stroke="{family.border}"/>'
        f"{name}</g>"
    )


def _pill_title(scene: Scene, pill: Pill, users: int) -> str:
    """Return the accessible name of a pill: `parameter b0, f32 256, 1 user, lane forward; broadcast_to, f32 32 by 256,
    1 input, 1 user, lane forward`."""
    return "; ".join(spoken(scene.nodes, users, i, scene.style[i]) for i in (pill.leaf, *pill.via))


def node_parts(scene: Scene, users: Sequence[int]) -> Iterable[str]:
    """Draw the boxes, in index order."""
    layout = scene.layout
    for i in range(len(scene.nodes)):
        if i in scene.shown and layout.row[i] >= 0:
            yield (
                f'<g transform="translate({layout.x[i]} {layout.y[i]})" data-entity="{plain(scene.style[i].entity)}">'
                f"<title>{plain(spoken(scene.nodes, users[i], i, scene.style[i]))}</title>"
                f"{''.join(_frame(scene, i))}{''.join(_lines(scene, i))}</g>"
            )


def _frame(scene: Scene, i: int) -> Iterable[str]:
    """Draw the shape of a box: round ends for a leaf, a bar at the left of an op, two borders if fused, a thick one for
    outputs."""
    style, w, leaf = scene.style[i], scene.layout.w[i], scene.nodes[i].leaf
    height = height_of(scene.layout, i)
    family = family_ink(style.family, scene.theme)
    thick = style.output or style.loss
    border = f'stroke="{family.full}" stroke-width="2.5"' if thick else f'stroke="{family.border}"'
    yield f'<rect width="{w}" height="{height}" rx="{NODE // 2 if leaf else 6}" fill="{family.fill}" {border}/>'
    if style.fused:
        yield (
            f'<rect x="4" y="3" width="{w - 7}" height="{height - 6}" rx="3.5" fill="none" stroke="{family.border}" '
            'stroke-width=".8"/>'
        )
    if not leaf:
        yield f'<path d="{_BAR.format(foot=height - 6, end=height)}" fill="{family.full}"/>'


def _lines(scene: Scene, i: int) -> Iterable[str]:
    """Draw the texts of a box: op, name at the right, type, and the letter of its family."""
    node, w = scene.nodes[i], scene.layout.w[i]
    ink, family = INK[scene.theme], family_ink(scene.style[i].family, scene.theme)
    op, name = headline(node, scene.short)
    left = 16 if node.leaf else 12
    typed = scene.layout.density < 2
    top = 17 if typed or name else 24
    yield text(op, f'x="{left}" y="{top}"', 7.25 * len(op), f' font-size="12" font-weight="600" fill="{ink.text}"')
    if name:
        place = f'x="{w - 9}" y="17" text-anchor="end"' if typed else f'x="{left}" y="32"'
        style = f' font-size="12" font-weight="600" font-style="italic" fill="{family.full}"'
        yield text(name, place, 7.25 * len(name), style)
    for k, line in enumerate(node.lines):
        yield text(line, f'x="{left}" y="{31 + LINE * k}"', 6.35 * len(line))
    if typed and not node.lines:
        kind = cut(node.type, LINE_CUT)
        yield text(kind, f'x="{left}" y="31"', 6.35 * len(kind))
    if not node.leaf:  # a leaf is told by its shape
        y = 32 if typed or len(name) in range(1, len(op)) else 13
        letter = f'font-size="9" font-weight="600" text-anchor="end" fill="{family.full}"'
        yield f'<text x="{w - 9}" y="{y}" {letter}>{family.letter}</text>'
