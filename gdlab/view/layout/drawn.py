"""The records that a layout takes and returns, and the widths of its texts.

Everything that a picture shows follows from a `Layout`: both the static SVG and the front end draw this record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdlab.view.layout.metrics import ARROW, ENGINE_VERSION, FIRST_LETTERS, LINE_CUT, PILL_CUT

Kind = Literal["data", "param", "saved", "control"]
Point = tuple[int, int]
Short = Callable[[str, int], str]
"""A function that shortens a long name to a number of code points: `cut`, or `ShortNames` of all names of a picture."""

Density = Literal[0, 1, 2, 3]
"""The texts that are drawn: 0 all; 1 no types on pills; 2 nor on boxes, names below ops; 3 names on pills shortened.

From 1 on, a chain of adjoints of one op is folded into several rows."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One node to lay out, its texts as drawn; its index is its position in the list."""

    op: str
    name: str
    type: str
    inputs: tuple[int, ...]  # indexes, all smaller than its own
    leaf: bool  # input, parameter, constant …: it has no inputs and may be drawn as pills
    lane: str = "forward"  # forward adjoint forward2 adjoint2 … optimizer
    twin: int = -1  # the forward node this one belongs to
    lines: tuple[str, ...] = ()  # of numbers, which stand in the place of the type


@dataclass(frozen=True, slots=True)
class Pill:
    """A leaf beside the op that reads it; an echo repeats an earlier pill of the same leaf by its name alone.

    `via`: the shape ops between the leaf and the reader, in order; the pill stands for the last of them.
    """

    leaf: int
    reader: int
    x: int
    y: int
    w: int
    echo: bool
    via: tuple[int, ...] = ()

    @property
    def node(self) -> int:
        """The node that the reader reads."""
        return self.via[-1] if self.via else self.leaf


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a column, from the source's anchor to the target's.

    Ends at different heights: a curve that is vertical at every point. Ends at one height: straight lines with round
    corners, two points beside each other, four for a hop over what stands between.
    """

    a: int
    b: int
    kind: Kind
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Rail:
    """A long or backward edge: its vertical part in the gutter, from y0 beside the source to y1 beside the target.

    It is joined to the side of each box that faces it: to the bottom of the source if y0 is below the source's top,
    else to the top; to the top of the target if y1 is above the target's bottom, else to the bottom.
    """

    a: int
    b: int
    track: int
    x: int
    y0: int
    y1: int


@dataclass(frozen=True, slots=True)
class Wire:
    """An edge between lanes: straight lines with round corners; wires of one source share their beginning."""

    a: int
    b: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A tinted column with its title."""

    index: int
    title: str
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of everything in a picture; −1 in x, y, w and row for a node that is no box."""

    engine: Literal["layered", "lanes", "dot"]
    seconds: float
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    row: tuple[int, ...]
    pills: tuple[Pill, ...]
    edges: tuple[Edge, ...]
    rails: tuple[Rail, ...]
    wires: tuple[Wire, ...]
    lanes: tuple[Lane, ...]
    width: int
    height: int
    density: Density = 0
    h: tuple[int, ...] = ()  # heights of boxes, where rows hold several lines of numbers

    def to_json(self) -> dict[str, Any]:
        """Return the columnar form that a document stores; all integers but `seconds`."""
        return {
            "engine": self.engine,
            "engine_version": ENGINE_VERSION,
            "seconds": self.seconds,
            "density": self.density,
            "x": list(self.x),
            "y": list(self.y),
            "w": list(self.w),
            "row": list(self.row),
            "pills": {
                **_columns(self.pills, ("leaf", "reader", "x", "y", "w", "echo")),
                "via": {str(i): list(pill.via) for i, pill in enumerate(self.pills) if pill.via},
            },
            "edges": {
                **_columns(self.edges, ("a", "b")),
                "kind": _words([edge.kind for edge in self.edges]),
                "bends": _ragged([edge.points for edge in self.edges]),
            },
            "rails": _columns(self.rails, ("a", "b", "track", "x", "y0", "y1")),
            "wires": {**_columns(self.wires, ("a", "b")), "points": _ragged([wire.points for wire in self.wires])},
            "lanes": {
                **_columns(self.lanes, ("index", "x", "width")),
                "title": _words([lane.title for lane in self.lanes]),
            },
            "width": self.width,
            "height": self.height,
        }


def _columns(rows: Sequence[object], fields: Sequence[str]) -> dict[str, Any]:
    return {"count": len(rows), **{field: [int(getattr(row, field)) for row in rows] for field in fields}}


def _words(texts: Sequence[str]) -> dict[str, Any]:
    words = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return {"words": list(words), "index": [words[text] for text in texts]}


def _ragged(lines: Sequence[tuple[Point, ...]]) -> dict[str, Any]:
    start, ids = [0], []
    for line in lines:
        ids += [value for point in line for value in point]
        start.append(len(ids))
    return {"start": start, "ids": ids}


# Texts: no text is ever measured, the width follows from the number of code points.


def cut(text: str, limit: int) -> str:
    """Return the text, or its beginning and `…`: at most `limit` code points."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def headline(node: Drawn, short: Short = cut) -> tuple[str, str]:
    """Return the first line of a box as drawn: its op and its name; for a leaf only its name (or op)."""
    if node.leaf or not node.name:
        return short((node.leaf and node.name) or node.op, LINE_CUT), ""
    if len(node.op) + 4 > LINE_CUT and len(node.op) + 2 + len(node.name) > LINE_CUT:
        return cut(f"{node.op}  {node.name}", LINE_CUT), ""  # no room for a letter of the name
    return node.op, short(node.name, LINE_CUT - len(node.op) - 2)


def node_width(node: Drawn, density: Density = 0) -> int:
    """Return the width of a box: a multiple of 8, from the longer of its lines."""
    op, name = headline(node)
    if node.lines:
        count = max(len(op) + 2 + len(name) if name else len(op), *map(len, node.lines))
    elif density < 2:
        count = max(len(op) + 2 + len(name) if name else len(op), min(len(node.type), LINE_CUT))
    else:
        count = max(len(op), len(name))
    return max(64, (29 * count // 4 + 24 + 7) // 8 * 8)


def pill_label(node: Drawn, density: Density = 0, short: Short = cut) -> str:
    """Return the name on a pill as drawn; a leaf without a name shows its op."""
    name = node.name or node.op
    return short(name, PILL_CUT) if density < 3 else initials(name)


_NUMBER = re.compile(r"[0-9]{0,2}\Z")  # at the end of a part


def initials(name: str) -> str:
    """Abbreviate a name to a few letters: `u_p` for `up_proj`, `e.w` for `model.embed_tokens.weight`, `tar…` for
    `target`.

    Names of one word keep their first letters, others the first letter of each of their last parts and the number at
    its end: `e.f1` and `e.f2` for `encoder.fc1` and `encoder.fc2`."""
    if len(name) <= FIRST_LETTERS:
        return name
    for mark in (".", "_"):
        parts = [part for part in name.split(mark) if part]
        if len(parts) > 1:
            return mark.join(part[0] + _NUMBER.findall(part[1:])[0] for part in parts[-2:])
    return cut(name, FIRST_LETTERS)


def pill_tail(type: str, via: bool, echo: bool, density: Density = 0) -> str:
    """Return the text behind the name on a pill: its type, or an arrow and the shape that the leaf is brought into."""
    bare = echo or density > 0
    if not via:
        return "" if bare else cut(type, PILL_CUT)
    return ARROW if bare else cut(f"{ARROW} {type[max(0, type.find('[')) :]}", PILL_CUT)


def pill_width(label: str, tail: str) -> int:
    """Return the width of a pill with this text: a multiple of 8."""
    return (7 * len(label) + (64 * len(tail) // 10 + 26 if tail else 20) + 7) // 8 * 8
