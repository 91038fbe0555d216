"""The static picture of a plan: its dispatches as a table in barrier groups, and below it its buffers over time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdlab.base.words import cell, nbytes, sig, whole
from gdlab.view.document.columns import Json
from gdlab.view.document.dispatches import plan_counts
from gdlab.view.document.document import Document
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.arena_picture import arena_parts
from gdlab.view.picture.draw import CODE_FONT, UI_FONT, plain, text
from gdlab.view.picture.palette import INK, Theme, family_ink

WIDTH = 1070
MARGIN, HEADER, ROW = 14, 36, 26
MOST_ROWS = 60  # dispatches in the table
# Column: left edge (text) or right edge (number).
_COLUMNS = (("#", 40, True), ("dispatch", 54, False), ("phase", 560, False), ("group", 720, True), ("MFLOP", 830, True),
            ("moved", 940, True), ("workgroups", 1050, True))  # fmt: skip


def plan_picture(document: Document, theme: Theme = "light") -> str:
    """Return dispatches and arena as one SVG."""
    prefix = re.sub(r"[^\w.-]", "-", f"gd-{document.id}-plan")
    ink, data = INK[theme], document.data
    table = list(_table(document, theme))
    top = HEADER + ROW * (min(document.plan("dispatches").count, MOST_ROWS) + len(_buckets(document)) + 2) + 8
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
    dispatches, group = document.plan("dispatches"), -1
    buckets, shift = _buckets(document), 0
    for k, d in enumerate(dispatches):
        if k == MOST_ROWS:
            break
        while shift < len(buckets) and buckets[shift]["before"] <= k:
            yield from _allreduce(buckets[shift], HEADER + ROW * (k + 1 + shift), theme)
            shift += 1
        top = HEADER + ROW * (k + 1 + shift)
        wide = 2 if d["group"] != group else 1
        yield f'<path d="M0 {top}h{WIDTH}" stroke="{ink.line}" stroke-width="{wide}"/>'
        yield from _dispatch(k, d, top, theme)
        group = d["group"]
    rows = min(len(dispatches), MOST_ROWS)
    for k in range(shift, len(buckets)):  # behind the last row
        yield from _allreduce(buckets[k], HEADER + ROW * (rows + 1 + k), theme)
    foot = HEADER + ROW * (rows + len(buckets) + 1)
    yield f'<path d="M0 {foot}h{WIDTH}" stroke="{ink.line}" stroke-width="2"/>'
    moved = sum(dispatches.column("bytes_read")) + sum(dispatches.column("bytes_written"))
    rest = f"showing {MOST_ROWS} of {whole(len(dispatches))} dispatches; " if len(dispatches) > MOST_ROWS else ""
    total = f"{rest}{sig(sum(dispatches.column('flops')) / 1e6)} MFLOP, {nbytes(moved)} moved in all"
    yield f'<g fill="{ink.muted}">{_cell(total, MARGIN, False, foot + 18)}</g>'


def _buckets(document: Document) -> list[Json]:
    """Return the buckets of the reduction over engines, at most as many as rows of dispatches."""
    return (document.data.get("allreduce") or {"buckets": []})["buckets"][:MOST_ROWS]  # type: ignore[no-any-return]


def _allreduce(bucket: Json, top: int, theme: Theme) -> Iterator[str]:
    """Yield the row of a bucket of the reduction over engines."""
    ink, at = INK[theme], _COLUMNS[1][1]
    values, shown = ("", "", "reduce", "", "", nbytes(bucket["nbytes"]), ""), bucket["label"]
    yield f'<path d="M0 {top}h{WIDTH}" stroke="{ink.line}" stroke-width="2"/>'
    yield f'<g data-allreduce="{bucket["before"]}"><title>{plain(bucket["told"] or shown)}</title>'
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
def _arena(document: Document, theme: Theme, top: int) -> tuple[list[str], int]:
    """Return the drawing of the arena and the y of its end."""
    memory = document.data["plan"]["memory"]
    fact = f"{nbytes(memory['physical_bytes'])} in device memory for {nbytes(memory['logical_bytes'])} of values; "
    fact += "left what is always there, right what has a lifetime, in one scale"
    parts, height = arena_parts(document, WIDTH, top + HEADER, theme)
    line = f'<path d="M0 {top - 0.5}h{WIDTH}" stroke="{INK[theme].line}"/>'
    return [line, _header("Arena", fact, top, theme), *parts], top + HEADER + height


def _rect(x: float, y: float, width: float, height: float, attributes: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {attributes}/>'
