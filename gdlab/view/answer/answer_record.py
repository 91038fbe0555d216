"""An answer to draw: titled sections of rows, whose cells are texts, links, verdicts, bars, courses or positions.

Answer("check", "ok", "nothing broke", str(check), (Section("Errors", (Column(""), Column("cpu")), rows),))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "muted", "ok", "warn", "error"]
Level = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text; `code`: in the code font."""

    text: str
    tone: Tone = ""
    code: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A text that selects an entity of the study's document in its open views."""

    text: str
    entity: str


@dataclass(frozen=True, slots=True)
class VerdictMark:
    """A check mark, a dash or a cross; `text` says it to a screen reader."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A number ≥ 0 on the section's axis, written as `text`; `mark`: another number on it, such as a prediction."""

    value: float
    text: str
    mark: float | None = None
    tone: Tone = ""
    told: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """A number over time as a line; a value that is not finite is a gap."""

    values: tuple[float, ...]
    told: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram: its counts from low to high."""

    counts: tuple[int, ...]
    low: str = ""
    high: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """`done` of `of` parts, of which part `now` (−1: none) is the current one; `names` of the parts, or none."""

    done: int
    of: int
    now: int = -1
    names: tuple[str, ...] = ()


Cell = Text | Link | VerdictMark | Bar | Course | Counts | Position


@dataclass(frozen=True, slots=True)
class Column:
    """The header of a column; `right`: a column of numbers, `wide`: one of sentences, which wrap."""

    name: str
    right: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class BarAxis:
    """The logarithmic axis that all bars of a section share; `limit`: the place of its dashed line, and its name."""

    name: str
    limit: float | None = None
    limit_name: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title and a muted fact; without columns its rows have no header. `notes` stand below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    fact: str = ""
    axis: BarAxis | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict in a sentence and its sections. `text` is its twin, which a terminal shows (None: of an answer that is
    not complete); `study` the key of the study whose views its links select in (empty: none)."""

    title: str
    level: Level
    verdict: str
    text: str | None
    sections: tuple[Section, ...] = ()
    study: str = ""
