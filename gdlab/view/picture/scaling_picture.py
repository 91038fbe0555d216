"""The static picture of a prediction: speed-up and efficiency over the number of engines, and the sentence below."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from textwrap import wrap

from gdlab.base.words import duration, sig, whole
from gdlab.distributed.scaling import Scaling
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.axes import PixelAxis, frame, line
from gdlab.view.picture.draw import UI_FONT, plain
from gdlab.view.picture.palette import INK, Theme, family_ink

WIDTH, HEADER, PLOT, LINE, MARGIN = 1070, 36, 280, 17, 14
COLUMNS = 150  # of a line of words below
_numbers = itertools.count(1)


def scaling_picture(scaling: Scaling, theme: Theme = "light") -> str:
    """Return a prediction as one SVG."""
    ink, name = INK[theme], f"gd-scaling-{next(_numbers)}"
    said = [*wrap(scaling.sentence, COLUMNS), *wrap(scaling.assumed, COLUMNS)]
    bold = len(wrap(scaling.sentence, COLUMNS))
    height = HEADER + PLOT + 10 + LINE * len(said)
    last = scaling.rows[-1]
    told = f"predicted speed-up {sig(last.speedup)} on {whole(last.engines)} engines; {scaling.sentence}"
    return "".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-labelledby="{name}"><title id="{name}">{plain(told)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="{ink.bg}"/>',
        f'<g font-family="{UI_FONT}" font-size="12" fill="{ink.text}">',
        f'<text x="{MARGIN}" y="23" font-size="12.5"><tspan font-weight="600">Scaling</tspan><tspan dx="8" '
        f'font-size="11.5" fill="{ink.muted}">{plain(cut(f"{scaling.name}, predicted", 150))}'
        f'</tspan></text><path d="M0 {HEADER - 0.5}h{WIDTH}" stroke="{ink.line}"/>',
        *_speedup(scaling, theme), *_efficiency(scaling, theme),
        *(_said(text, k, k < bold, theme) for k, text in enumerate(said)),
        "</g></svg>",
    ))  # fmt: skip


def _said(text: str, k: int, bold: bool, theme: Theme) -> str:
    look = 'font-weight="600"' if bold else f'font-size="11.5" fill="{INK[theme].muted}"'
    return f'<text x="{MARGIN}" y="{HEADER + PLOT + 14 + LINE * k}" {look}>{plain(text)}</text>'


def _axes(
    scaling: Scaling, left: float, right: float, low: float, high: float, log: bool
) -> tuple[PixelAxis, PixelAxis]:
    first, last = scaling.engines[0], scaling.engines[-1]
    x = PixelAxis(first, max(last, first + 1), left, right, log=True)
    return x, PixelAxis(low, high, HEADER + PLOT - 30, HEADER + 34, log)


def _shown(scaling: Scaling) -> list[float]:
    """Return the numbers of engines that have room below the plot."""
    sizes = scaling.engines
    return [float(n) for n in sizes[:: max(1, -(-len(sizes) // 11))]]


def _speedup(scaling: Scaling, theme: Theme) -> Iterator[str]:
    ink, own = INK[theme], family_ink("elementwise", theme).full
    last = float(scaling.engines[-1])
    low = min(1.0, *(row.speedup for row in (*scaling.rows, *scaling.measured)))
    x, y = _axes(scaling, 58, 520, low, max(last, 2.0), True)
    yield f'<text x="{MARGIN}" y="{HEADER + 20}" font-size="11.5" fill="{ink.muted}">speed-up</text>'
    ticks = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n <= last] if last <= 1024 else y.ticks(6)
    yield from frame(x, y, _shown(scaling), ticks, whole, theme)
    ideal = line([(n, n) for n in scaling.engines], x, y)
    yield f'<path d="{ideal}" fill="none" stroke="{ink.muted}" stroke-dasharray="4 3"/>'
    yield from _curve(scaling, [row.speedup for row in scaling.rows], x, y, own, ink.bg)
    told = "dashed: every engine counts in full"
    if scaling.measured:
        told += "; squares: with measured reductions"
        yield from _measured(scaling, [row.speedup for row in scaling.measured], x, y, theme)
    yield f'<text x="66" y="{HEADER + 50}" font-size="10.5" fill="{ink.muted}">{told}</text>'


def _efficiency(scaling: Scaling, theme: Theme) -> Iterator[str]:
    ink, own = INK[theme], family_ink("index", theme).full
    x, y = _axes(scaling, 606, 1056, 0.0, 100.0, False)
    yield f'<text x="562" y="{HEADER + 20}" font-size="11.5" fill="{ink.muted}">efficiency, %</text>'
    yield from frame(x, y, _shown(scaling), y.ticks(5), whole, theme)
    yield from _curve(scaling, [100 * row.efficiency for row in scaling.rows], x, y, own, ink.bg)
    yield from _measured(scaling, [100 * row.efficiency for row in scaling.measured], x, y, theme)
    place = f'x="1056" y="{HEADER + 20}" font-size="11.5" text-anchor="end" fill="{ink.muted}"'
    yield f"<text {place}>over the number of engines</text>"


def _curve(
    scaling: Scaling, values: list[float], x: PixelAxis, y: PixelAxis, colour: str, ground: str
) -> Iterator[str]:
    points = [(float(n), value) for n, value in zip(scaling.engines, values, strict=True)]
    yield f'<path d="{line(points, x, y)}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for row, (n, value) in zip(scaling.rows, points, strict=True):
        told = f"{whole(row.engines)} engines: {sig(row.speedup)} ×, {sig(100 * row.efficiency, 2)} %, update "
        told += f"{duration(row.seconds)}, of it reduction {duration(row.reduction)}"
        spot = f'cx="{x.at(n):g}" cy="{y.at(value):g}" r="3.5" fill="{colour}" stroke="{ground}"'
        yield f"<circle {spot}><title>{plain(told)}</title></circle>"


def _measured(scaling: Scaling, values: list[float], x: PixelAxis, y: PixelAxis, theme: Theme) -> Iterator[str]:
    """Yield a square for each number of engines between which reductions were measured."""
    for row, value in zip(scaling.measured, values, strict=True):
        if not scaling.engines[0] <= row.engines <= max(scaling.engines[-1], 2):
            continue
        told = f"{whole(row.engines)} engines, reduction measured: {sig(row.speedup)} ×, "
        told += f"{sig(100 * row.efficiency, 2)} %, update {duration(row.seconds)}"
        spot = f'x="{x.at(row.engines) - 5:g}" y="{y.at(value) - 5:g}" width="10" height="10"'
        yield f'<rect data-measured="{row.engines}" {spot} fill="none" stroke="{INK[theme].text}" stroke-width="1.5">'
        yield f"<title>{plain(told)}</title></rect>"
