"""Draw the arena as static SVG: permanent buffers as a column to scale, reusable slots, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from gdlab.base.words import nbytes, plural
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.layout.arena import ABOVE, Arrangement, Band, Segment, SlotRow, Stratum, arrange, mountain
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.draw import CODE_FONT, plain, text
from gdlab.view.picture.palette import INK, Ink, Theme, family_ink

KINDS = {"state": "optimizer state", "parameter": "parameters", "input": "inputs", "gradient": "gradients",
         "constant": "constants", "derived": "derived", "output": "outputs"}  # fmt: skip
BAR, WIDE, SLOTS = 216, 36, 112  # where the column begins, its width, room for the labels of the slots
_TOP, _MOUNTAIN = 20, 66
_RIGHT = 14
_FOOT = _TOP + ABOVE - 10  # of the mountain
_LETTER, _AXIS_LETTER = 6.4, 5.8
MOST_INTERVALS = 400  # drawn one by one


@dataclass(frozen=True, slots=True)
class _Arena:
    """The document and its arrangement, read by every part of the drawing."""

    document: Document
    arrangement: Arrangement
    top: int
    width: int
    theme: Theme

    @property
    def ink(self) -> Ink:
        return INK[self.theme]

    @property
    def count(self) -> int:
        return max(1, self.document.plan("dispatches").count)

    @property
    def left(self) -> int:
        """The x of dispatch 0."""
        return (BAR + WIDE if self.arrangement.strata else 0) + SLOTS

    def x(self, dispatch: float) -> float:
        return round(self.left + (self.width - self.left - _RIGHT) * dispatch / self.count, 1)

    def interval(self, i: int) -> Json:
        return self.document.plan("intervals")[i]


def arena_parts(document: Document, width: int, top: int, theme: Theme) -> tuple[list[str], int]:
    """Return the drawing below `top`, and its height."""
    intervals, slots = list(document.plan("intervals")), list(document.plan("slots"))
    arena = _Arena(document, arrange(intervals, slots), top + _TOP, width, theme)
    bottom = arena.top + arena.arrangement.height
    parts = _bands(arena, bottom)
    budget = MOST_INTERVALS
    for stratum in arena.arrangement.strata:
        budget -= len(stratum.segments)
        parts += _stratum(arena, stratum, budget >= 0)
    if arena.arrangement.strata:
        told = f"always there {nbytes(arena.arrangement.always)}"
        parts.append(_label(arena, told, BAR + WIDE, arena.top - 5, "end"))
    bands = mountain(intervals, list(document.plan("groups")), document.plan("dispatches").count)
    parts += _memory_over_time(arena, bands, budget > 0)
    for n, row in enumerate(arena.arrangement.rows):
        budget -= len(row.tenants)
        if budget < 0:
            rest = f"… {plural(len(arena.arrangement.rows) - n, 'more slot')}"
            parts.append(_label(arena, rest, arena.left - 8, arena.top + row.top + 11, "end"))
            break
        parts += _row(arena, row)
    parts += [*_axis(arena, bottom), *_peak(arena, bottom)]
    return parts, _TOP + arena.arrangement.height + 30


def _label(arena: _Arena, told: str, x: float, y: float, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="10.5" fill="{arena.ink.muted}" text-anchor="{anchor}"'
    return f"<text {place}>{plain(told)}</text>"


def _rect(x: float, y: float, width: float, height: float, attributes: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {attributes}/>'


def _named(arena: _Arena, i: int) -> str:
    return arena.interval(i)["name"] or f"buffer {i}"


def _buffer(arena: _Arena, i: int, told: str, inside: str) -> str:
    each = arena.interval(i)
    title = f"{cut(_named(arena, i), 200)}: {nbytes(each['nbytes'])}, {each['kind']}, {told}"
    return f'<g data-entity="interval:{i}"><title>{plain(title)}</title>{inside}</g>'


def _shape(arena: _Arena, family: str, x: float, y: float, width: float, height: float, corner: int = 0) -> str:
    ink = family_ink(family, arena.theme)
    round_ = f'rx="{corner}" ' if corner else ""
    box = round(x, 1), round(y, 1), round(width, 1), round(height, 2)
    return _rect(*box, f'{round_}fill="{ink.fill}" stroke="{ink.border}"')


# what is always there -------------------------------------------------------------------------------------------------
def _stratum(arena: _Arena, stratum: Stratum, one_by_one: bool) -> list[str]:
    """Draw the buffers of a kind with their sum; where they are too many, as one part."""
    name, segments = KINDS.get(stratum.kind, stratum.kind), stratum.segments
    parts = []
    if one_by_one:
        alone = f"{stratum.kind} " if len(segments) == 1 and stratum.kind != _named(arena, segments[0].index) else ""
        parts += [_segment(arena, each, alone) for each in segments]
    else:
        height = segments[-1].top + segments[-1].height - segments[0].top
        family = arena.interval(segments[0].index)["family"]
        parts.append(_shape(arena, family, BAR, arena.top + segments[0].top, WIDE, height))
    if stratum.label is not None:
        y = arena.top + stratum.label
        if segments[0].label is None:
            parts.append(_leader(arena, y, arena.top + segments[0].top + stratum.nbytes * arena.arrangement.unit / 2))
        parts.append(_label(arena, f"{name} {nbytes(stratum.nbytes)}", BAR - 12, y + 4, "end"))
    return parts


def _segment(arena: _Arena, segment: Segment, alone: str) -> str:
    each, y = arena.interval(segment.index), arena.top + segment.top
    inside = _shape(arena, each["family"], BAR, y, WIDE, max(0.5, segment.height))
    if segment.label is not None:
        middle, size = arena.top + segment.label, f" {nbytes(each['nbytes'])}"
        room = int((BAR - 16) / _AXIS_LETTER) - len(size)
        inside += _leader(arena, middle, y + segment.height / 2)
        inside += _label(arena, cut(alone + _named(arena, segment.index), room) + size, BAR - 12, middle + 4, "end")
    return _buffer(arena, segment.index, "always there", inside)


def _leader(arena: _Arena, y: float, part: float) -> str:
    return f'<path d="M{BAR - 9} {y:g}L{BAR} {part:.1f}" fill="none" stroke="{arena.ink.line}"/>'


# what has a lifetime --------------------------------------------------------------------------------------------------
def _row(arena: _Arena, row: SlotRow) -> list[str]:
    y = arena.top + row.top
    parts = [
        _label(arena, row.label, arena.left - 8, y + min(row.height, 60) // 2 + 3, "end"),
        _rect(arena.left, y, arena.width - arena.left - _RIGHT, row.height - 2, f'rx="3" fill="{arena.ink.bg2}"'),
    ]
    return parts + [_tenant(arena, i, row) for i in row.tenants]


def _tenant(arena: _Arena, i: int, row: SlotRow) -> str:
    each, unit = arena.interval(i), arena.arrangement.unit
    left, right = arena.x(each["first"]), arena.x(min(arena.count, each["last"] + 1))
    width = max(3.0, round(right - left - 1, 1))
    height = min(max(row.least, int(each["nbytes"] * unit + 0.5) - 2), row.height - 2)
    y = arena.top + row.top + int(each["offset"] * unit + 0.5)
    inside = _shape(arena, each["family"], left, y, width, height, 3)
    letters = int((width - 14) / _LETTER)
    if letters > 3 and height > 9:
        name = _named(arena, i)
        name = name if len(name) <= letters else f"…{name[1 - letters :]}"
        font = f' font-size="10.5" font-family="{CODE_FONT}"'
        at = _label_at(arena, left, width, _LETTER * len(name) + 8)
        inside += text(name, f'x="{at:g}" y="{y + height // 2 + 4}"', _LETTER * len(name), font)
    return _buffer(arena, i, f"written by dispatch {each['first']}, last read by {each['last']}", inside)


def _label_at(arena: _Arena, left: float, width: float, long: float) -> float:
    """Place the label beside the line of the peak where there is room, never under it."""
    peak = (_peak_at(arena) or -1000.0) + 6
    return peak if left + 8 < peak < left + 20 + long and peak + long < left + width else left + 8


def _memory_over_time(arena: _Arena, bands: list[Band], one_by_one: bool) -> list[str]:
    """Draw the live bytes per dispatch, tensor upon tensor, above the permanent buffers; where they are too many, the
    outline alone."""
    tops = [0] * arena.count
    for band in bands:
        for k, under in enumerate(band.below, band.start):
            tops[k] = max(tops[k], under + band.nbytes)
    most = max(tops)
    if most == 0:
        return []
    foot, high = arena.top - _TOP + _FOOT, _MOUNTAIN / most
    if not one_by_one:
        bands = [Band(bands[0].index, top, k, (0,)) for k, top in enumerate(tops) if top]
    parts = [f'<path d="M{arena.left} {foot}H{arena.width - _RIGHT}" stroke="{arena.ink.line}"/>']
    for band in bands:
        ink = family_ink(arena.interval(band.index)["family"], arena.theme)
        path = _outline(arena, band, foot, high)
        parts.append(f'<path d="{path}" fill="{ink.fill}" stroke="{ink.border}" stroke-width=".7"/>')
    always = arena.arrangement.always
    said = (
        (nbytes(always + most), foot - _MOUNTAIN + 4),
        ("in use", foot - _MOUNTAIN // 2 + 4),
        (nbytes(always), foot + 4),
    )
    return parts + [_label(arena, words, arena.left - 8, y, "end") for words, y in said]


def _outline(arena: _Arena, band: Band, foot: int, high: float) -> str:
    """Return the outline of a tensor, with a step wherever the bytes under it change: over it to the right, under it
    back."""
    over, under = list[str](), list[str]()
    end = band.start
    for below, same in groupby(band.below):
        start, end = end, end + len(list(same))
        left, right = arena.x(start), arena.x(end)
        over.append(f"{'L' if over else 'M'}{left:g} {foot - (below + band.nbytes) * high:.1f}H{right:g}")
        under.append(f"L{right:g} {foot - below * high:.1f}H{left:g}")
    return "".join((*over, *reversed(under), "Z"))


# around it ------------------------------------------------------------------------------------------------------------
def _bands(arena: _Arena, bottom: int) -> list[str]:
    """Draw a ground behind every second barrier group."""
    parts = []
    for group in list(arena.document.plan("groups"))[1::2]:
        left, right = arena.x(group["start"]), arena.x(group["stop"])
        ground = f'fill="{arena.ink.bg3}" fill-opacity=".6"'
        parts.append(_rect(left, arena.top - 6, round(right - left, 1), bottom - arena.top + 6, ground))
    return parts


def _axis(arena: _Arena, y: int) -> list[str]:
    every = max(1, -(-arena.count * 30 // (arena.width - arena.left - _RIGHT)))
    marks = [f'<text x="{arena.x(k + 0.5):g}" y="{y + 15}">{k}</text>' for k in range(0, arena.count, every)]
    words = _label(arena, "dispatch", arena.left - 8, y + 15, "end")
    return [f'<g font-size="10.5" fill="{arena.ink.muted}" text-anchor="middle">', *marks, "</g>", words]


def _peak(arena: _Arena, bottom: int) -> list[str]:
    """Draw a dashed line where most bytes are alive."""
    x, colour, top = _peak_at(arena), arena.ink.error, arena.top - _TOP + 4
    if x is None:
        return []
    peak = nbytes(arena.document.data["plan"]["memory"]["peak_bytes"])
    end = x > arena.width - 110
    return [
        f'<path d="M{x:g} {top}V{bottom}" stroke="{colour}" stroke-dasharray="4 3"/>',
        f'<text x="{x + (-5 if end else 5):g}" y="{top + 8}" font-size="10.5" fill="{colour}"'
        f' text-anchor="{"end" if end else "start"}">peak {peak}</text>',
    ]


def _peak_at(arena: _Arena) -> float | None:
    """Return the x of the middle of the group with the most live bytes."""
    number, groups = arena.document.data["plan"]["memory"]["peak_group"], arena.document.plan("groups")
    if not 0 <= number < len(groups):
        return None
    return arena.x((groups[number]["start"] + groups[number]["stop"]) / 2)
