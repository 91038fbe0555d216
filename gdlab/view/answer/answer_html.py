"""Draw an answer as one piece of static HTML: it needs no script, follows the theme of its host, and asks no network.

Where the front end is in the page, links select in the study's views (`labextension/src/host/links.ts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from gdlab.base.words import plural, whole
from gdlab.view.answer.answer_record import (
    Answer,
    Bar,
    BarAxis,
    Cell,
    Column,
    Counts,
    Course,
    Level,
    Link,
    Position,
    Section,
    Text,
    VerdictMark,
)
from gdlab.view.answer.axis import LogScale, log_scale, power
from gdlab.view.answer.style import STYLE
from gdlab.view.layout.drawn import cut
from gdlab.view.picture.draw import plain

MOST_ROWS, MOST_SECTIONS, MOST_NOTES = 40, 12, 12
_MOST_WORDS, _MOST_SENTENCE, _MOST_TOLD = 48, 400, 300  # characters of a cell, of one that wraps, of a tooltip
_MOST_PARTS = 96  # of a position; more are drawn as one bar
_WIDTH, _HEIGHT = 120, 14  # of a bar, a course and a histogram
_TICKS, _LETTER = 22, 6.0  # height of an axis, width of a letter of its labels
_MARKS: dict[Level, str] = {"ok": "✓", "note": "–", "bad": "✗"}


def answer_html(answer: Answer) -> str:
    """Return an answer as HTML; labels in it are text, whatever they hold."""
    shown = answer.sections[:MOST_SECTIONS]
    rest = len(answer.sections) - len(shown)
    more = [_note(f"and {plural(rest, 'more section')}")] if rest else []
    parts = [_section(section, answer.study) for section in shown]
    title = f'<span class="gd-answer-title">{_words(answer.title)}</span>' if answer.title else ""
    mark = "" if answer.level == "note" else _mark(answer.level)
    head = f"<p>{title}{mark}{_words(answer.verdict, _MOST_SENTENCE)}</p>"
    name = plain(cut(f"{answer.title}: {answer.verdict}", _MOST_TOLD))
    return (
        f"<style>{STYLE}</style>"
        f'<div class="gd-answer" role="group" aria-label="{name}">{head}{"".join([*parts, *more])}</div>'
    )


# sections -------------------------------------------------------------------------------------------------------------
def _section(section: Section, study: str) -> str:
    section = _without_empty_columns(section)
    rows = section.rows[:MOST_ROWS]
    scale = _scale(section.axis, rows) if section.axis else None
    head = _head(section, scale) if any(c.name for c in section.columns) else ""
    body = "".join(_row(section, row, scale, study) for row in rows)
    rest = len(section.rows) - len(rows)
    notes = [f"… and {whole(rest)} more"] if rest else []
    notes += section.notes[:MOST_NOTES]
    if len(section.notes) > MOST_NOTES:
        notes.append(f"… and {plural(len(section.notes) - MOST_NOTES, 'more note')}")
    fact = f" <small>{_words(section.fact, _MOST_SENTENCE)}</small>" if section.fact else ""
    title = f"<h4>{_words(section.title)}{fact}</h4>" if section.title or fact else ""
    # Bars of several columns stand below their numbers, and also while the first column is there alone.
    stacked = ' class="gd-answer-stacked"' if section.axis and section.axis.limit is not None else ""
    table = f"<div><table{stacked}>{head}<tbody>{body}</tbody></table></div>" if rows else ""
    return f"{title}{table}{''.join(map(_note, notes))}"


def _without_empty_columns(section: Section) -> Section:
    used = [i for i in range(len(section.columns)) if any(row[i] != Text("") for row in section.rows)]
    columns = tuple(section.columns[i] for i in used)
    return replace(section, columns=columns, rows=tuple(tuple(row[i] for i in used) for row in section.rows))


def _note(text: str) -> str:
    return f'<p class="gd-answer-more">{_words(text, _MOST_SENTENCE)}</p>'


def _scale(axis: BarAxis, rows: Sequence[Sequence[Cell]]) -> LogScale:
    bars = [cell for row in rows for cell in row if isinstance(cell, Bar)]
    values = [bar.value for bar in bars] + [bar.mark for bar in bars if bar.mark is not None]
    beyond = [] if axis.limit is None else [axis.limit, 10 * axis.limit]  # the limit is never at the end
    return log_scale([*values, *beyond])


def _head(section: Section, scale: LogScale | None) -> str:
    cells = []
    for i, column in enumerate(section.columns):
        barred = scale is not None and any(isinstance(row[i], Bar) for row in section.rows[:MOST_ROWS])
        ticks = _axis(scale, section.axis) if barred and scale is not None and section.axis is not None else ""
        cells.append(f'<th scope="col"{_class(column)}>{_words(column.name)}{ticks}</th>')
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _class(column: Column) -> str:
    kinds = [f"gd-answer-{kind}" for kind, on in (("right", column.right), ("wide", column.wide)) if on]
    return f' class="{" ".join(kinds)}"' if kinds else ""


def _row(section: Section, row: Sequence[Cell], scale: LogScale | None, study: str) -> str:
    cells = []
    for i, (column, cell) in enumerate(zip(section.columns, row, strict=True)):
        limit = section.axis.limit if section.axis else None
        drawn = _cell(cell, _MOST_SENTENCE if column.wide else _MOST_WORDS, scale, limit, study)
        tag, scope = ("th", ' scope="row"') if i == 0 and isinstance(cell, Text) else ("td", "")
        cells.append(f"<{tag}{scope}{_class(column)}>{drawn}</{tag}>")
    return f"<tr>{''.join(cells)}</tr>"


# cells ----------------------------------------------------------------------------------------------------------------
def _cell(cell: Cell, most: int, scale: LogScale | None, limit: float | None, study: str) -> str:
    match cell:
        case Text(text, tone, code):
            kinds = " ".join(f"gd-answer-{kind}" for kind, on in (("code", code), (tone, tone)) if on)
            return _words(text, most, kinds)
        case Link(text, entity):
            return _link(text, entity, study)
        case VerdictMark(level, text):
            return _mark(level, text)
        case Bar():
            return _bar(cell, scale or log_scale([cell.value]), limit)
        case Course(values, told):
            return _course(values, told)
        case Counts(counts, low, high):
            return _counts(counts, low, high)
        case Position():
            return _position(cell)
        case _:
            assert_never(cell)


def _words(text: str, most: int = _MOST_WORDS, kinds: str = "") -> str:
    """Return a text as HTML that cannot change the direction of the text around it; a text that is cut has its first
    300 characters as tooltip."""
    told = f' title="{plain(cut(text, _MOST_TOLD))}"' if len(text) > most else ""
    kind = f' class="{kinds}"' if kinds else ""
    return f"<bdi{kind}{told}>{plain(cut(text, most))}</bdi>"


def _mark(level: Level, text: str = "") -> str:
    told = plain(cut(text or level, _MOST_TOLD))
    return f'<span class="gd-answer-mark gd-answer-{level}" title="{told}">{_MARKS[level]}</span>'


def _link(text: str, entity: str, study: str) -> str:
    if not entity or not study:
        return _words(text)
    told = plain(cut(f"select {text} in the open views", _MOST_TOLD))
    place = f'data-gdlab-study="{plain(study)}" data-gdlab-entity="{plain(entity)}"'
    # JupyterLab sees keys before anybody, but for elements that say so.
    keys = 'role="button" tabindex="0" data-lm-suppress-shortcuts="true"'
    return f'<span class="gd-answer-link" {keys} {place} title="{told}">{_words(text)}</span>'


def _svg(width: int, height: int, parts: str, name: str = "") -> str:
    """Return a drawing; its name is a tooltip in an attribute, because a host that takes SVG away leaves its texts."""
    told = plain(cut(name, _MOST_TOLD))
    said = f'role="img" aria-label="{told}"' if name else 'aria-hidden="true"'
    drawn = f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" {said}>{parts}</svg>'
    return f'<span title="{told}">{drawn}</span>' if name else drawn


def _line(x: float, top: int, bottom: int, kind: str) -> str:
    return f'<path class="gd-answer-{kind}" d="M{x:.1f} {top}V{bottom}"/>'


def _across(scale: LogScale, value: float) -> float:
    return 0.5 + (_WIDTH - 1) * scale.at(value)


def _axis(scale: LogScale, axis: BarAxis) -> str:
    """Draw a rule with ticks; a label that would touch an earlier one, or that of an end, is left out."""
    parts = [f'<path class="gd-answer-rule" d="M0 {_TICKS - 0.5}H{_WIDTH}"/>']
    labels: list[tuple[float, float, str]] = []
    for exponent in scale.ticks():
        x, label = _across(scale, 10.0**exponent), power(exponent)
        parts.append(_line(x, _TICKS - 4, _TICKS, "rule"))
        wide = _LETTER * len(label)
        left = min(max(0.0, x - wide / 2), _WIDTH - wide)
        if all(left > end + _LETTER or left + wide + _LETTER < begin for begin, end, _ in labels):
            labels.append((left, left + wide, label))
    if axis.limit is not None:
        parts.append(_line(_across(scale, axis.limit), _TICKS - 5, _TICKS, "limit"))
    # Labels in attributes: a host that takes drawings away would leave texts behind.
    ticks = "".join(
        f'<span style="left:{left:.1f}px;width:{end - left:.1f}px" data-label="{label}"></span>'
        for left, end, label in labels
    )
    return f'<span class="gd-answer-axis">{ticks}{_svg(_WIDTH, _TICKS, "".join(parts))}</span>'


def _bar(bar: Bar, scale: LogScale, limit: float | None) -> str:
    filled = _WIDTH * scale.at(bar.value)
    parts = [f'<path class="gd-answer-rule" d="M0 {_HEIGHT - 0.5}H{_WIDTH}"/>']
    if bar.value != 0:
        kind = bar.tone or "bar"
        width = max(1.5, filled)
        parts.append(f'<rect class="gd-answer-{kind}" y="3" width="{width:.1f}" height="{_HEIGHT - 6}" rx="1.5"/>')
    if limit is not None:
        parts.append(_line(_across(scale, limit), 1, _HEIGHT, "limit"))
    if bar.mark is not None and bar.mark > 0:
        parts.append(_line(_across(scale, bar.mark), 0, _HEIGHT, "predicted"))
    drawn = _svg(_WIDTH, _HEIGHT, "".join(parts), bar.told)
    return f'<span class="gd-answer-pair"><span class="gd-answer-number">{plain(bar.text)}</span>{drawn}</span>'


def _course(values: Sequence[float], told: str) -> str:
    finite = [v for v in values if math.isfinite(v)]
    if not values:
        return ""
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    height = _HEIGHT + 8

    def point(i: int) -> str:
        x = 3 + (_WIDTH - 6) * (i / (len(values) - 1) if len(values) > 1 else 1.0)
        y = height - 3 - (height - 6) * ((values[i] - low) / (high - low) if high > low else 0.5)
        return f"{x:.1f} {y:.1f}"

    path, pen = [], "M"
    for i, value in enumerate(values):
        if math.isfinite(value):
            path.append(pen + point(i))
            pen = "L"
        else:
            pen = "M"
    parts = f'<path class="gd-answer-course" d="{"".join(path)}"/>' if path else ""
    if math.isfinite(values[-1]):
        x, y = point(len(values) - 1).split()
        parts += f'<circle class="gd-answer-head" cx="{x}" cy="{y}" r="2.5"/>'
    return _svg(_WIDTH, height, parts, told or f"{len(values)} values")


def _counts(counts: Sequence[int], low: str, high: str) -> str:
    most, height = max(counts, default=0), _HEIGHT + 8
    if not most:
        return ""
    step = _WIDTH / len(counts)
    bars = [(i, max(1.5, (height - 2) * count / most)) for i, count in enumerate(counts) if count]
    parts = "".join(
        f'<rect class="gd-answer-bar" x="{i * step:.1f}" y="{height - 1 - tall:.1f}" width="{max(1, step - 1):.1f}" '
        f'height="{tall:.1f}"/>'
        for i, tall in bars
    )
    rule = f'<path class="gd-answer-rule" d="M0 {height - 0.5}H{_WIDTH}"/>'
    drawn = _svg(_WIDTH, height, parts + rule, f"histogram from {low} to {high}")
    ends = [f'<span class="gd-answer-muted">{plain(cut(end, 16))}</span>' for end in (low, high)]
    return f'<span class="gd-answer-pair">{ends[0]}{drawn}{ends[1]}</span>'


def _position(at: Position) -> str:
    """Draw parts side by side; many parts as one bar. The name of a part is its tooltip."""
    told = f"{whole(at.done)} of {whole(at.of)}"
    if 0 < at.of <= _MOST_PARTS:
        parts = [_part("now" if i == at.now else "done" if i < at.done else "part", at, i) for i in range(at.of)]
    else:
        share = 100 * min(1.0, at.done / at.of) if at.of else 0.0
        parts = [f'<span class="gd-answer-done" style="flex:none;width:{share:.1f}%"></span>']
    return f'<span class="gd-answer-strip" role="img" aria-label="{told}">{"".join(parts)}</span>'


def _part(kind: str, at: Position, i: int) -> str:
    name = f' title="{plain(cut(at.names[i], 80))}"' if i < len(at.names) else ""
    return f'<span class="gd-answer-{kind}"{name}></span>'
