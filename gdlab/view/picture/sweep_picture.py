"""The static picture of a sweep: its progress, all curves in one plot, and a row of each point."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdlab.base.words import sig, whole
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.sweeps import sweep_lines
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.axes import BOTTOM, LEFT, RIGHT, TOP, PixelAxis, frame, line, marks
from gdlab.view.picture.draw import UI_FONT, plain
from gdlab.view.picture.palette import INK, LIGHTNESS, Theme, oklch

WIDTH, HEADER, PLOT, ROW, MARGIN = 1070, 36, 300, 22, 14
MOST_ROWS = 40
_COLUMNS = (("engine", 596, False), ("steps", 752, True), ("steps/s", 828, True), ("loss now", 906, True),
            ("lowest", 984, True), ("time", 1056, True))  # fmt: skip
_STATE_AT = 520


def sweep_picture(document: Document, theme: Theme = "light") -> str:
    """Return the sweep of a document as one SVG."""
    data, ink = document.data["sweep"], INK[theme]
    prefix = re.sub(r"[^\w.-]", "-", f"gd-{document.id}-sweep")
    rows = list(_rows(data, HEADER + PLOT, theme))
    height = HEADER + PLOT + ROW * (min(len(data["points"]), MOST_ROWS) + 2) + 6
    return "".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-labelledby="{prefix}-title {prefix}-desc">',
        f'<title id="{prefix}-title">{plain(cut(str(document.data["title"]), 200))}</title>',
        f'<desc id="{prefix}-desc">{plain(cut(sweep_lines(data)[0], 1000))}</desc>',
        f'<rect width="{WIDTH}" height="{height}" fill="{ink.bg}"/>',
        f'<g font-family="{UI_FONT}" font-size="12" fill="{ink.text}">',
        *_header(data, theme), *_plot(data, theme), *rows, "</g></svg>",
    ))  # fmt: skip


def point_colour(hue: int, theme: Theme) -> str:
    """Return the colour of a point's curve."""
    return oklch(LIGHTNESS[theme], 0.15, hue)


def _header(data: Json, theme: Theme) -> Iterator[str]:
    ink = INK[theme]
    fact = ", ".join(part for part in (data["title"], data["fact"], data["left"]) if part)
    yield (
        f'<text x="{MARGIN}" y="23" font-size="12.5"><tspan font-weight="600">Sweep</tspan>'
        f'<tspan dx="8" font-size="11.5" fill="{ink.muted}">{plain(cut(fact, 140))}</tspan></text>'
    )
    yield f'<rect y="{HEADER - 3}" width="{WIDTH}" height="3" fill="{ink.bg3}"/>'
    share = min(1.0, max(0.0, float(data["progress"])))
    yield f'<rect y="{HEADER - 3}" width="{WIDTH * share:.1f}" height="3" fill="{ink.accent}"/>'


def _plot(data: Json, theme: Theme) -> Iterator[str]:
    low, high = (float(each) for each in data["range"])
    y = PixelAxis(low, high, HEADER + PLOT - BOTTOM, HEADER + TOP + 6, bool(data["log"]))
    most = max([1, *(int(point["steps"]) for point in data["points"])])
    x = PixelAxis(0, most, LEFT, WIDTH - RIGHT)
    ink = INK[theme]
    yield f'<text x="{MARGIN}" y="{HEADER + 15}" font-size="10.5" fill="{ink.muted}">loss</text>'
    yield from frame(x, y, [t for t in x.ticks(8) if t == int(t)], y.ticks(5), _label, theme)
    order = sorted(range(len(data["points"])), key=lambda i: i == data["best"])
    for i in order:  # the best one lies on top
        point = data["points"][i]
        curve = [(int(step), loss) for step, loss in point["curve"] if isinstance(loss, (int, float))]
        if not curve:
            continue
        colour = ink.error if point["state"] == "failed" else point_colour(int(point["hue"]), theme)
        wide = 2.6 if i == data["best"] else 1.4
        yield (
            f'<path data-point="{i}" d="{line(curve, x, y)}" fill="none" stroke="{colour}" stroke-width="{wide}" '
            f'stroke-linejoin="round"><title>{plain(_told(i, point))}</title></path>'
        )
        if left := marks(curve, x, y):
            yield f'<path d="{left}" fill="{colour}"/>'


def _rows(data: Json, top: int, theme: Theme) -> Iterator[str]:
    ink = INK[theme]
    yield f'<g font-size="11.5" fill="{ink.muted}">'
    yield _cell(", ".join(data["keys"]), MARGIN + 16, False, top + 16) + _cell("state", _STATE_AT, False, top + 16)
    yield from (_cell(name, at, right, top + 16) for name, at, right in _COLUMNS)
    yield "</g>"
    for i, point in enumerate(data["points"][:MOST_ROWS]):
        yield from _row(i, point, top + ROW * (i + 1), i == data["best"], theme)
    rest = len(data["points"]) - MOST_ROWS
    foot = top + ROW * (min(len(data["points"]), MOST_ROWS) + 1)
    yield f'<path d="M0 {foot}h{WIDTH}" stroke="{ink.line}" stroke-width="2"/>'
    if rest > 0:
        yield f'<g fill="{ink.muted}">{_cell(f"and {whole(rest)} more points", MARGIN, False, foot + 16)}</g>'


def _row(i: int, point: Json, top: int, best: bool, theme: Theme) -> Iterator[str]:
    ink, failed = INK[theme], point["state"] == "failed"
    colour = ink.error if failed else point_colour(int(point["hue"]), theme)
    yield f'<g data-point="{i}"><title>{plain(_told(i, point))}</title>'
    if best:
        yield f'<rect y="{top}" width="{WIDTH}" height="{ROW}" fill="{ink.accent_bg}"/>'
    yield f'<path d="M0 {top}h{WIDTH}" stroke="{ink.line}"/>'
    yield f'<rect x="{MARGIN}" y="{top + 9}" width="10" height="4" rx="2" fill="{colour}"/>'
    yield _cell(cut(", ".join(point["settings"]), 70), MARGIN + 16, False, top + 15)
    state = f'<tspan fill="{ink.error}">failed</tspan>' if failed else plain(point["state"])
    yield f'<text x="{_STATE_AT}" y="{top + 15}">{state}{" (best)" if best else ""}</text>'
    if failed:
        yield f'<g fill="{ink.error}">{_cell(cut(point["error"], 74), _COLUMNS[0][1], False, top + 15)}</g>'
    else:
        yield from (
            _cell(cut(str(text), 18), at, right, top + 15)
            for text, (_, at, right) in zip(point["cells"], _COLUMNS, strict=True)
        )
    yield "</g>"


def _told(i: int, point: Json) -> str:
    loss = point["loss"]
    told = f"point {i}: {point['label']}, {point['state']}"
    told += f", loss {sig(loss)}" if isinstance(loss, (int, float)) else ""
    return f"{told}: {point['error']}" if point["error"] else told


def _label(value: float) -> str:
    return whole(value) if value == int(value) and abs(value) < 1e15 else sig(value)


def _cell(value: str, at: int, right: bool, y: int) -> str:
    anchor = ' text-anchor="end"' if right else ""
    return f'<text x="{at}" y="{y}"{anchor}>{plain(value)}</text>'
