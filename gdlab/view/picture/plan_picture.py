"""The static picture of a plan: its dispatches as a table in barrier groups, and below it its buffers over time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gdlab.base.words import cell, nbytes, plural, sig, whole
from gdlab.view.document.columns import Json
from gdlab.view.document.dispatches import plan_counts
from gdlab.view.document.document import Document
from gdlab.view.document.engine_runs import allreduce_words
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.draw import CODE_FONT, UI_FONT, plain, text
from gdlab.view.picture.palette import INK, Theme, family_ink

WIDTH = 1070
MARGIN, HEADER, ROW = 14, 36, 26
LEFT = 96  # of the arena: room for the names of its rows
STRIP, GAP = 18, 4
TALLEST, THINNEST = 84, 14
MOST_ROWS = 60  # dispatches in the table
MOST_INTERVALS = 400
FOLD_ABOVE = 4  # pinned buffers of one kind
_KINDS = {"state": "optimizer state", "parameter": "parameters", "derived": "derived", "input": "inputs",
          "gradient": "gradients", "constant": "constants", "output": "outputs", "loss": "loss"}  # fmt: skip
# Column: left edge (text) or right edge (number).
_COLUMNS = (("#", 40, True), ("dispatch", 54, False), ("phase", 560, False), ("group", 720, True), ("MFLOP", 830, True),
            ("moved", 940, True), ("workgroups", 1050, True))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArenaRow:
    """One line of the arena: a slot to scale, a pinned buffer, or the pinned buffers of a kind in equal shares."""

    label: str
    height: int
    intervals: tuple[int, ...]
    slot: bool
    folded: bool


def plan_picture(document: Document, theme: Theme = "light") -> str:
    """Dispatches and arena as one SVG."""
    prefix = re.sub(r"[^\w.-]", "-", f"gd-{document.id}-plan")
    ink, data = INK[theme], document.data
    table = list(_table(document, theme))
    top = HEADER + ROW * (min(document.plan("dispatches").count, MOST_ROWS) + _allreduces(document) + 2) + 8
    arena, bottom = _arena(document, theme, top)
    return "".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom}" viewBox="0 0 {WIDTH} {bottom}" '
        f'role="img" aria-labelledby="{prefix}-title {prefix}-desc">',
        f'<title id="{prefix}-title">{plain(cut(str(data["title"]), 200))}</title>',
        f'<desc id="{prefix}-desc">{plain(cut(str(data["summary"]), 1000))}</desc>',
        f'<rect width="{WIDTH}" height="{bottom}" fill="{ink.bg}"/>',
        f'<g font-family="{UI_FONT}" font-size="12" fill="{ink.text}">', *table, *arena, "</g></svg>",
    ))  # fmt: skip


def _header(title: str, fact: str, top: int, theme: Theme) -> str:
    ink = INK[theme]
    return (
        f'<path d="M0 {top + HEADER - 0.5}h{WIDTH}" stroke="{ink.line}"/>'
        f'<text x="{MARGIN}" y="{top + 23}" font-size="12.5" fill="{ink.muted}">'
        f'<tspan font-weight="600" fill="{ink.text}">{plain(title)}</tspan>'
        f'<tspan dx="8" font-size="11.5">{plain(cut(fact, 120))}</tspan></text>'
    )


# the table -----------------------------------------------------------------------------------------------------------
def _table(document: Document, theme: Theme) -> Iterator[str]:
    ink, data = INK[theme], document.data
    plan = data["plan"]
    yield _header("Plan", plan_counts(plan), 0, theme)
    yield f'<g fill="{ink.muted}" font-size="11.5">'
    yield from (_cell(name, at, right, HEADER + 18) for name, at, right in _COLUMNS)
    yield "</g>"
    dispatches, made, shift = document.plan("dispatches"), data.get("allreduce"), 0
    group = -1
    for k, d in enumerate(dispatches):
        if k == MOST_ROWS:
            break
        if made and k == made["before"]:
            yield from _allreduce(made, HEADER + ROW * (k + 1), theme)
            shift = 1
        top = HEADER + ROW * (k + 1 + shift)
        wide = 2 if d["group"] != group else 1
        yield f'<path d="M0 {top}h{WIDTH}" stroke="{ink.line}" stroke-width="{wide}"/>'
        yield from _dispatch(k, d, top, theme)
        group = d["group"]
    rows = min(len(dispatches), MOST_ROWS)
    if made and not shift:  # behind the last row
        yield from _allreduce(made, HEADER + ROW * (rows + 1), theme)
    foot = HEADER + ROW * (rows + _allreduces(document) + 1)
    yield f'<path d="M0 {foot}h{WIDTH}" stroke="{ink.line}" stroke-width="2"/>'
    moved = sum(dispatches.column("bytes_read")) + sum(dispatches.column("bytes_written"))
    rest = f"showing {MOST_ROWS} of {whole(len(dispatches))} dispatches; " if len(dispatches) > MOST_ROWS else ""
    total = f"{rest}{sig(sum(dispatches.column('flops')) / 1e6)} MFLOP, {nbytes(moved)} moved in all"
    yield f'<g fill="{ink.muted}">{_cell(total, MARGIN, False, foot + 18)}</g>'


def _allreduces(document: Document) -> int:
    return int("allreduce" in document.data)


def _allreduce(made: Json, top: int, theme: Theme) -> Iterator[str]:
    """Yield the row of the reduction over engines."""
    ink, at = INK[theme], _COLUMNS[1][1]
    label = f"allreduce over {plural(made['engines'], 'engine')}"
    values = ("", "", "reduce", "", "", nbytes(made["nbytes"]), "")
    told = f"{label}: {nbytes(made['nbytes'])} of gradients, {allreduce_words(made)}"
    yield f'<path d="M0 {top}h{WIDTH}" stroke="{ink.line}" stroke-width="2"/>'
    yield f'<g data-allreduce="{made["engines"]}"><title>{plain(told)}</title>'
    shown = f"{label}, {allreduce_words(made)}"
    yield text(shown, f'x="{at + 16}" y="{top + 17}"', 7.25 * len(shown), f' font-family="{CODE_FONT}"')
    yield from (_cell(v, at, right, top + 17) for v, (_, at, right) in zip(values, _COLUMNS, strict=True) if v)
    yield "</g>"


def _dispatch(k: int, d: Json, top: int, theme: Theme) -> Iterator[str]:
    values = (
        str(k), "", d["phase"], whole(d["group"]), cell(d["flops"] / 1e6), nbytes(d["bytes_read"] + d["bytes_written"]),
        " × ".join(map(str, d["workgroups"])),
    )  # fmt: skip
    told, at = f"{cut(d['label'], 200)}, {d['phase']}, group {d['group']}", _COLUMNS[1][1]
    yield f'<g data-entity="dispatch:{k}"><title>{plain(told)}</title>'
    yield _rect(at, top + 9, 8, 8, f'rx="2" fill="{family_ink(d["family"], theme).full}"')
    label = cut(d["label"], 64)
    yield text(label, f'x="{at + 16}" y="{top + 17}"', 7.25 * len(label), f' font-family="{CODE_FONT}"')
    yield from (_cell(v, at, right, top + 17) for v, (_, at, right) in zip(values, _COLUMNS, strict=True) if v)
    yield "</g>"


def _cell(value: str, at: int, right: bool, y: int) -> str:
    anchor = ' text-anchor="end"' if right else ""
    return f'<text x="{at}" y="{y}"{anchor}>{plain(value)}</text>'


# the arena -----------------------------------------------------------------------------------------------------------
def rows_of(document: Document) -> tuple[list[ArenaRow], float]:
    """Rows from top to bottom: pinned strips by kind, then slots, largest first; and the height of a byte."""
    intervals, slots = list(document.plan("intervals")), list(document.plan("slots"))
    pinned = [i for i, row in enumerate(intervals) if row["pinned"] is not None or row["first"] < 0]
    kept = set(pinned)
    strips = []
    for kind in dict.fromkeys(intervals[i]["kind"] for i in pinned):
        mine = tuple(i for i in pinned if intervals[i]["kind"] == kind)
        if len(mine) > FOLD_ABOVE:
            strips.append(ArenaRow(_KINDS.get(kind, kind), STRIP, mine, False, True))
        else:
            strips += [ArenaRow(kind, STRIP, (i,), False, False) for i in mine]
    shared = [(s, slot["nbytes"], tuple(i for i in slot["tenants"] if i not in kept)) for s, slot in enumerate(slots)]
    shared = sorted((x for x in shared if x[2]), key=lambda x: -x[1])
    unit = TALLEST / max((size for _, size, _ in shared), default=1)
    heights = [
        (f"slot {s} · {nbytes(size)}", max(THINNEST, round(size * unit)), tenants) for s, size, tenants in shared
    ]
    return strips + [ArenaRow(label, height, tenants, True, False) for label, height, tenants in heights], unit


def _arena(document: Document, theme: Theme, top: int) -> tuple[list[str], int]:
    """The drawing and where it ends."""
    ink, plan = INK[theme], document.data["plan"]
    rows, unit = rows_of(document)
    drawn = 0
    parts = [f'<path d="M0 {top - 0.5}h{WIDTH}" stroke="{ink.line}"/>']
    parts.append(_header("Arena", "slots to scale, x = dispatch; buffers that stay as strips", top, theme))
    y = begin = top + HEADER + 16
    shown: list[str] = []
    for n, row in enumerate(rows):
        if drawn + len(row.intervals) > MOST_INTERVALS:
            rest = plural(len(rows) - n, "more row")
            shown.append(f'<g fill="{ink.muted}">{_cell(f"… {rest}", LEFT, False, y + 14)}</g>')
            y += ROW
            break
        shown += _row(document, row, y, unit, theme)
        drawn += len(row.intervals)
        y += row.height + (GAP if row.slot else 2)
    parts += _bands(plan, document, begin - 6, y, theme) + shown
    parts += _axis(document, y, theme) + _peak(document, begin - 10, y, theme)
    return parts, y + 30


def _x(document: Document, dispatch: float) -> float:
    count = max(1, document.plan("dispatches").count)
    return round(LEFT + (WIDTH - LEFT - MARGIN) * dispatch / count, 1)


def _row(document: Document, row: ArenaRow, y: int, unit: float, theme: Theme) -> list[str]:
    ink, intervals = INK[theme], document.plan("intervals")
    count = document.plan("dispatches").count
    middle = y + min(row.height, 60) // 2 + 3
    parts = [f'<g font-size="10.5" fill="{ink.muted}">{_cell(row.label, LEFT - 8, True, middle)}</g>']
    if row.slot:
        parts.append(_rect(LEFT, y, WIDTH - LEFT - MARGIN, row.height - 2, f'rx="3" fill="{ink.bg2}"'))
    label, from_ = _sum_of(document, row) if row.folded else ("", LEFT)
    for n, i in enumerate(row.intervals):
        each = intervals[i]
        if row.folded:
            share = (WIDTH - from_ - MARGIN) / len(row.intervals)
            left, right = from_ + share * n, from_ + share * (n + 1)
        else:
            left = _x(document, max(0, each["first"]))
            right = _x(document, each["last"] + 1 if row.slot else count)
        height = max(THINNEST - 2, round(each["nbytes"] * unit) - 2) if row.slot else row.height - 2
        parts.append(_interval(i, each, (left, right, y, min(height, row.height - 2)), row, theme))
    if row.folded:
        parts.append(
            f'<text x="{LEFT + 8}" y="{y + 12}" font-size="10.5" font-family="{CODE_FONT}">{plain(label)}</text>'
        )
    return parts


def _sum_of(document: Document, row: ArenaRow) -> tuple[str, float]:
    """The number and size of the buffers that share a strip, and where the first of them stands, behind these words."""
    intervals = document.plan("intervals")
    total = sum(intervals[i]["padded"] for i in row.intervals)
    label = f"{plural(len(row.intervals), 'buffer')}, {nbytes(total)}"
    return label, round(LEFT + 6.4 * len(label) + 18, 1)


def _interval(i: int, each: Json, box: tuple[float, float, int, int], row: ArenaRow, theme: Theme) -> str:
    left, right, y, height = box
    width = max(2.0, round(right - left - 1, 1))
    family, name = family_ink(each["family"], theme), each["name"] or f"buffer {i}"
    label = name if row.slot else f"{name} {nbytes(each['nbytes'])}"
    label = "" if row.folded or 6.4 * len(label) + 14 > width else label
    life = f"dispatches {each['first']} … {each['last']}" if each["first"] >= 0 else "kept from step to step"
    told = f"{cut(name, 200)}: {nbytes(each['nbytes'])}, {each['kind']}, {life}"
    shape = _rect(left, y, width, height, f'rx="3" fill="{family.fill}" stroke="{family.border}"')
    font = f' font-size="10.5" font-family="{CODE_FONT}"'
    name = text(label, f'x="{left + 8:g}" y="{y + height // 2 + 4}"', 6.4 * len(label), font) if label else ""
    return f'<g data-entity="interval:{i}"><title>{plain(told)}</title>{shape}{name}</g>'


def _rect(x: float, y: float, width: float, height: float, attributes: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {attributes}/>'


def _bands(plan: Json, document: Document, top: int, bottom: int, theme: Theme) -> list[str]:
    """Every second barrier group has a ground of its own."""
    parts = []
    for g, group in enumerate(document.plan("groups")):
        if g % 2:
            left, right = _x(document, group["start"]), _x(document, group["stop"])
            ground = f'fill="{INK[theme].bg3}" fill-opacity=".6"'
            parts.append(_rect(left, top, round(right - left, 1), bottom - top, ground))
    return parts


def _axis(document: Document, y: int, theme: Theme) -> list[str]:
    count = document.plan("dispatches").count
    every = max(1, -(-count * 30 // (WIDTH - LEFT - MARGIN)))
    marks = [f'<text x="{_x(document, k + 0.5):g}" y="{y + 15}">{k}</text>' for k in range(0, count, every)]
    return [f'<g font-size="10.5" fill="{INK[theme].muted}" text-anchor="middle">', *marks, "</g>"]


def _peak(document: Document, top: int, bottom: int, theme: Theme) -> list[str]:
    """A dashed line where most is alive."""
    memory, groups = document.data["plan"]["memory"], document.plan("groups")
    if not 0 <= memory["peak_group"] < len(groups):
        return []
    group = groups[memory["peak_group"]]
    x, colour = _x(document, (group["start"] + group["stop"]) / 2), INK[theme].error
    end = x > WIDTH - 130
    return [
        f'<path d="M{x:g} {top}V{bottom}" stroke="{colour}" stroke-dasharray="4 3"/>',
        f'<text x="{x + (-5 if end else 5):g}" y="{top + 6}" font-size="10.5" fill="{colour}"'
        f"{_anchor(end)}>peak {nbytes(memory['peak_bytes'])}</text>",
    ]


def _anchor(end: bool) -> str:
    return ' text-anchor="end"' if end else ""
