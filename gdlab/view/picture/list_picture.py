"""The picture of a recorded list: before and after each pass, groups as columns, ranges of memory as the arena draws
them, conflicts as arrows, moves between the stages, and below them the reasons why no node stands further in front."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gdlab.base.words import nbytes, plural, whole
from gdlab.plan.order import Range
from gdlab.record.list_report import Report
from gdlab.record.list_stages import ListConflict, ListStage
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.draw import CODE_FONT, UI_FONT, plain
from gdlab.view.picture.palette import INK, Theme, family_ink

WIDTH, LEFT, MARGIN = 1070, 132, 14
HEADER, HEAD, LINE, BETWEEN = 36, 46, 17, 34  # of a stage, of its columns, of a sentence, between two stages
GAP, WIDEST = 22, 112  # between groups; of a node
TALLEST, THINNEST = 24, 11  # of an allocation
MOST_NODES, MOST_ROWS, MOST_LINES = 48, 24, 12
_numbers = itertools.count(1)


class AllocationRow(NamedTuple):
    """The row of an allocation: the height of its bytes, and its y in a stage."""

    memory: int
    label: str
    top: int
    height: int
    extent: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of allocations and the measures that all stages share, and the number of nodes that fit."""

    rows: Mapping[int, AllocationRow]
    height: int
    nodes: int
    width: float  # of a node, with the space behind it
    gap: float  # between groups
    left_out: int  # allocations


def list_picture(report: Report, theme: Theme = "light") -> str:
    """Return the picture as SVG in the colours of one theme."""
    return _svg(report, f"<style>{_style('.gd-list', theme)}</style>")


def list_html(report: Report) -> str:
    """Return the picture as HTML that follows the theme of JupyterLab."""
    dark = "body[data-jp-theme-light=false] .gd-list"
    return f"<style>{_style('.gd-list', 'light')}{_style(dark, 'dark')}</style>{_svg(report, '')}"


def _svg(report: Report, style: str) -> str:
    frame = _frame(report)
    parts, top = list[str](), 0
    centres: list[float] = []
    for number, stage in enumerate(report.stages):
        if number:
            parts += _moves(stage, centres, _centres(stage, frame), top)
            top += BETWEEN
        parts += _stage(report, stage, frame, top)
        top += HEADER + HEAD + frame.height + 8
        centres = _centres(stage, frame)
    lines = list(_sentences(report, frame))
    for i, line in enumerate(lines):
        parts.append(
            f'<text class="{_tone(line)}" x="{MARGIN}" y="{top + 18 + i * LINE}">{plain(cut(line, 150))}</text>'
        )
    height = top + 18 + LINE * len(lines)
    name = f"gd-list-{next(_numbers)}"
    return (
        f'<svg class="gd-list" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}">{style}'
        f'<title id="{name}">{plain(_spoken(report))}</title>'
        '<defs><marker id="gd-list-arrow" viewBox="0 0 6 6" refX="5.5" refY="3" markerWidth="6" markerHeight="6" '
        'orient="auto"><path class="gd-list-head" d="M0 0L6 3L0 6Z"/></marker></defs>'
        f'<rect class="gd-list-ground" width="{WIDTH}" height="{height}"/>{"".join(parts)}</svg>'
    )


def _spoken(report: Report) -> str:
    first, last = report.stages[0], report.stages[-1]
    moves = f"{plural(report.fusions, 'fusion')}, {plural(report.reordered, 'node')} moved"
    return f"List of {report.finisher}: {first.fact()}; then {last.fact()}; {moves}"


# layout ---------------------------------------------------------------------------------------------------------------
def _frame(report: Report) -> Frame:
    extents = dict[int, int]()
    for placed in report.placed_before:
        for r in (*placed.footprint.reads, *placed.footprint.writes):
            extents[r.memory] = max(extents.get(r.memory, 0), r.stop)
    shown = sorted(extents)[:MOST_ROWS]
    unit = TALLEST / max((extents[m] for m in shown), default=1)
    rows, top = dict[int, AllocationRow](), 0
    for memory in shown:
        height = max(THINNEST, round(extents[memory] * unit))
        label = report.labels.get(memory) or f"allocation {memory}"
        rows[memory] = AllocationRow(memory, label, top, height, extents[memory])
        top += height + 4
    nodes = min(MOST_NODES, max(1, len(report.names_before)))
    groups = max((sum(g.start < nodes for g in stage.groups) for stage in report.stages), default=0)
    room = WIDTH - LEFT - MARGIN
    gap = min(GAP, 0.4 * room / max(1, groups))
    return Frame(rows, top, nodes, min(WIDEST, (room - gap * groups) / nodes), gap, len(extents) - len(shown))


def _edges(stage: ListStage, frame: Frame) -> list[tuple[float, float]]:
    """Return the left and right edge of every shown node."""
    count, width = min(frame.nodes, len(stage.names)), frame.width
    edges, x = list[tuple[float, float]](), float(LEFT)
    for group in stage.groups:
        for _ in range(group.start, min(group.stop, count)):
            edges.append((round(x, 1), round(x + width - 2, 1)))
            x += width
        x += frame.gap
    return edges


def _centres(stage: ListStage, frame: Frame) -> list[float]:
    return [round((left + right) / 2, 1) for left, right in _edges(stage, frame)]


# a stage --------------------------------------------------------------------------------------------------------------
def _stage(report: Report, stage: ListStage, frame: Frame, top: int) -> Iterator[str]:
    edges, body = _edges(stage, frame), top + HEADER + HEAD
    yield f'<path class="gd-list-line" d="M0 {top + HEADER - 0.5}h{WIDTH}"/>'
    rest = len(stage.names) - len(edges)
    fact = stage.fact() + (f"; the first {len(edges)} nodes are drawn" if rest > 0 else "")
    yield (
        f'<text class="gd-list-fact" x="{MARGIN}" y="{top + 23}"><tspan class="gd-list-title">{plain(stage.title)}'
        f'</tspan><tspan dx="8">{plain(fact)}</tspan></text>'
    )
    yield from _groups(stage, frame, edges, top)
    for row in frame.rows.values():
        y = body + row.top
        told = plain(f"{row.label}: {nbytes(row.extent)} of allocation {row.memory}")
        yield f'<g><title>{told}</title><text class="gd-list-row" x="{LEFT - 10}" y="{y + row.height // 2 + 4}">'
        yield f"{plain(cut(row.label, 18))}</text></g>"
        yield f'<path class="gd-list-rule" d="M{LEFT - 4} {y + row.height + 2}H{WIDTH - MARGIN}"/>'
    for k, (left, right) in enumerate(edges):
        yield from _node(stage, frame, k, (left, right), top)
    for hazard in stage.hazards:
        if max(hazard.before, hazard.after) < len(edges) and hazard.memory in frame.rows:
            yield _arrow(stage, frame, hazard, edges, body)
    if stage is report.stages[-1] and 0 < report.chunks[0] < len(edges) and report.chunks[1]:
        x = (edges[report.chunks[0] - 1][1] + edges[report.chunks[0]][0]) / 2
        yield f'<path class="gd-list-cut" d="M{x:g} {top + HEADER + 4}V{body + frame.height}"/>'
        yield f'<text class="gd-list-cuttext" x="{x + 4:g}" y="{body + frame.height + 2}">second submission</text>'


def _groups(stage: ListStage, frame: Frame, edges: list[tuple[float, float]], top: int) -> Iterator[str]:
    """Draw a column for each barrier group."""
    border = min(5, frame.gap / 4)
    for number, group in enumerate(stage.groups):
        if group.start >= len(edges):
            return
        left, right = edges[group.start][0] - border, edges[min(group.stop, len(edges)) - 1][1] + border
        named = ", ".join(f"{i} {stage.names[i]}" for i in group)
        yield (
            f'<g data-group="{number}" data-nodes="{" ".join(map(str, group))}"><title>'
            f"{plain(cut(f'group {number}: {named}', 400))}</title>"
            f'<rect class="gd-list-group" x="{left:g}" y="{top + HEADER + 5}" width="{right - left:g}" '
            f'height="{HEAD + frame.height - 3}" rx="6"/>'
        )
        word = f"group {number}" if right - left > 56 else str(number)
        yield f'<text class="gd-list-number" x="{(left + right) / 2:g}" y="{top + HEADER + 17}">{word}</text></g>'


def _node(stage: ListStage, frame: Frame, k: int, edge: tuple[float, float], top: int) -> Iterator[str]:
    left, right = edge
    placed, middle, body = stage.placed[k], (left + right) / 2, top + HEADER + HEAD
    was = stage.moved.get(k)
    joined = stage.sources[k] if stage.sources and len(stage.sources[k]) > 1 else ()
    tone = " gd-list-moved" if was is not None else " gd-list-fused" if joined else ""
    told = f"node {k}, {stage.names[k]}"
    told += f", was {was}" if was is not None else f", was {' and '.join(map(str, joined))}" if joined else ""
    told += f"\nstays: {stage.stays[k]}" if stage.stays[k] else ""
    state = f' data-was="{was}"' if was is not None else ""
    yield f'<g data-node="{k}"{state}><title>{plain(told)}</title>'
    mark = f"{k} ← {was}" if was is not None and right - left > 36 else str(k)
    if right - left > 13 or k % 4 == 0:
        yield f'<text class="gd-list-index{tone}" x="{middle:g}" y="{top + HEADER + 30}">{mark}</text>'
    letters = int((right - left) / 6)
    if letters > 3:
        name = plain(cut(stage.names[k].replace("elementwise_", ""), letters))
        yield f'<text class="gd-list-name" x="{middle:g}" y="{top + HEADER + 42}">{name}</text>'
    if placed.fence:
        yield f'<path class="gd-list-fence" d="M{left - 3:g} {top + HEADER + 20}V{body + frame.height - 2}"/>'
    writes = set(placed.footprint.writes)
    for r in dict.fromkeys((*placed.footprint.reads, *placed.footprint.writes)):
        if r.memory in frame.rows:
            yield _range(frame.rows[r.memory], r, r in writes, r in placed.footprint.reads, edge, body)
    yield "</g>"


def _range(row: AllocationRow, r: Range, written: bool, read: bool, edge: tuple[float, float], body: int) -> str:
    """Draw a range of an allocation to scale: filled where it is written, an outline where it is read."""
    y, height = _place(row, r, body)
    how = "read and written" if written and read else "written" if written else "read"
    kind = "gd-list-write" if written else "gd-list-read"
    told = plain(f"{row.label}, bytes {whole(r.start)} … {whole(r.stop)}: {how}")
    return (
        f'<rect class="{kind}{" gd-list-both" if written and read else ""}" x="{edge[0]:g}" y="{y:g}" '
        f'width="{edge[1] - edge[0]:g}" height="{height:g}" rx="2"><title>{told}</title></rect>'
    )


def _place(row: AllocationRow, r: Range, body: int) -> tuple[float, float]:
    scale = row.height / max(1, row.extent)
    height = max(4.0, round((r.stop - r.start) * scale, 1))
    return round(min(body + row.top + r.start * scale, body + row.top + row.height - height), 1), height


def _arrow(stage: ListStage, frame: Frame, hazard: ListConflict, edges: list[tuple[float, float]], body: int) -> str:
    """Draw a conflict from the earlier node to the later one, in the row of the bytes that both use."""
    row = frame.rows[hazard.memory]
    ends = list[float]()
    for node in (hazard.before, hazard.after):
        footprint = stage.placed[node].footprint
        mine = [r for r in (*footprint.writes, *footprint.reads) if r.memory == hazard.memory]
        y, height = _place(row, mine[0], body)
        ends.append(y + height / 2)
    x0, x1 = edges[hazard.before][1], edges[hazard.after][0]
    reach = min(18.0, (x1 - x0) / 2)
    told = plain(f"{hazard.kind}: node {hazard.before} → node {hazard.after}, bytes {hazard.words}")
    return (
        f'<path class="gd-list-hazard gd-list-{hazard.kind}" '
        f'data-hazard="{hazard.kind} {hazard.before} {hazard.after}" '
        f'marker-end="url(#gd-list-arrow)" d="M{x0:g} {ends[0]:g}C{x0 + reach:g} {ends[0]:g} {x1 - reach:g} '
        f'{ends[1]:g} {x1:g} {ends[1]:g}"><title>{told}</title></path>'
    )


# between and below ----------------------------------------------------------------------------------------------------
def _moves(stage: ListStage, before: list[float], after: list[float], top: int) -> Iterator[str]:
    """Draw where every node of the stage above went: moved ones and fused pairs stand out."""
    for k, origin in enumerate(stage.sources[: len(after)]):
        for i in origin:
            if i >= len(before):
                continue
            kind = "gd-list-moved" if k in stage.moved else "gd-list-fused" if len(origin) > 1 else "gd-list-kept"
            a, b, half = before[i], after[k], BETWEEN / 2
            yield (
                f'<path class="gd-list-move {kind}" d="M{a:g} {top + 2}C{a:g} {top + half:g} {b:g} {top + half:g} '
                f'{b:g} {top + BETWEEN - 2}"><title>{plain(f"node {i} becomes node {k}")}</title></path>'
            )


def _sentences(report: Report, frame: Frame) -> Iterator[str]:
    yield "Legend: filled bytes are written, outlined ones read; → raw, dashed war and waw; ┃ a fence"
    if frame.left_out:
        yield f"{plural(frame.left_out, 'more allocation')} of these nodes"
    for pair in report.fused[:MOST_LINES]:
        yield f"Fused: node {pair.norm} and node {pair.product}"
    for at, why in report.fusion_misses[:MOST_LINES]:
        yield f"Not fused: node {at}: {why}"
    if report.kept_order:
        yield f"Order kept: {report.kept_order}"
    further = list(report.stages[-1].further())
    if further:
        yield "Why not further in front"
        yield from further[:MOST_LINES]
    if len(further) > MOST_LINES:
        yield f"  and {plural(len(further) - MOST_LINES, 'more node')}: print(session.report) has all"


def _tone(line: str) -> str:
    return "gd-list-code" if line.startswith("  ") else "gd-list-fact" if line.startswith("Legend") else "gd-list-said"


def _style(root: str, theme: Theme) -> str:
    ink, write, norm = INK[theme], family_ink("elementwise", theme), family_ink("index", theme)
    rules = {
        "": f"font-family:{UI_FONT};font-size:12px;max-width:100%;height:auto",
        "text": f"fill:{ink.text}",
        ".gd-list-ground": f"fill:{ink.bg}",
        ".gd-list-line": f"stroke:{ink.line}",
        ".gd-list-rule": f"stroke:{ink.bg3}",
        ".gd-list-title": f"font-weight:600;font-size:12.5px;fill:{ink.text}",
        ".gd-list-fact": f"font-size:11.5px;fill:{ink.muted}",
        ".gd-list-said": "font-weight:600;font-size:12px",
        ".gd-list-code": f"font-family:{CODE_FONT};font-size:11px;white-space:pre",
        ".gd-list-row": f"font-family:{CODE_FONT};font-size:10.5px;fill:{ink.muted};text-anchor:end",
        ".gd-list-group": f"fill:{ink.bg2};stroke:{ink.line}",
        ".gd-list-number": f"font-size:10.5px;fill:{ink.muted};text-anchor:middle",
        ".gd-list-index": "font-size:11px;font-weight:600;text-anchor:middle",
        ".gd-list-name": f"font-family:{CODE_FONT};font-size:10px;fill:{ink.muted};text-anchor:middle",
        "text.gd-list-moved": f"fill:{ink.accent}",
        "text.gd-list-fused": f"fill:{ink.ok}",
        ".gd-list-read": f"fill:{write.fill};stroke:{write.border}",
        ".gd-list-write": f"fill:{write.border};stroke:{write.full}",
        ".gd-list-both": f"stroke:{norm.full};stroke-width:2",
        ".gd-list-hazard": f"fill:none;stroke:{ink.warn};stroke-width:1.3",
        ".gd-list-war": "stroke-dasharray:4 3",
        ".gd-list-waw": "stroke-dasharray:4 3",
        ".gd-list-head": f"fill:{ink.warn}",
        ".gd-list-fence": f"stroke:{ink.text};stroke-width:2",
        ".gd-list-cut": f"stroke:{ink.error};stroke-dasharray:5 4",
        ".gd-list-cuttext": f"font-size:10.5px;fill:{ink.error}",
        ".gd-list-move": "fill:none",
        ".gd-list-kept": f"stroke:{ink.line}",
        "path.gd-list-moved": f"stroke:{ink.accent};stroke-width:1.8",
        "path.gd-list-fused": f"stroke:{ink.ok};stroke-width:1.8",
    }
    return "".join(f"{root}{f' {name}' if name else ''}{{{rule}}}" for name, rule in rules.items())
