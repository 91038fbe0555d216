"""Layouts of a document: read the nodes to lay out, read a layout back, and lay all stages out by another engine:
`laid_out(doc, "layered")`, `lanes`, or `dot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdlab.view.document.columns import Json, column
from gdlab.view.document.document import Document
from gdlab.view.layout.dot import DotFailure, dot_layout
from gdlab.view.layout.drawn import Drawn, Edge, Lane, Layout, Pill, Point, Rail, Wire
from gdlab.view.layout.lanes import lanes
from gdlab.view.layout.layered import auto, layered

ENGINES: tuple[str, ...] = ("auto", "lanes", "layered", "dot")
_OWN: Mapping[str, Callable[[Sequence[Drawn]], Layout]] = {"lanes": lanes, "layered": layered}


def drawn(document: Document, stage: int) -> list[Drawn]:
    """Return the nodes of a stage as a layout takes them."""
    nodes, types = document.nodes(stage), document.types.column("text")
    columns = [nodes.column(name) for name in ("op", "name", "label", "type", "inputs", "lane", "twin")]
    return [
        Drawn(op, label or name, types[type], tuple(inputs), not inputs, lane, twin)
        for op, name, label, type, inputs, lane, twin in zip(*columns, strict=True)
    ]


def layout(document: Document, stage: int) -> Layout:
    """Return the layout of a stage: read from the document, else laid out now."""
    known = document.data["stages"][stage]["layouts"].get("auto")
    nodes = drawn(document, stage)
    return auto(nodes) if known is None else layout_of(known, len(nodes))


def laid_out(document: Document, engine: str) -> Document:
    """Return the document with this engine's layout of every stage in the place of its own; a dot that is missing,
    fails or is late is a note, and the automatic layout stays."""
    if engine == "auto":
        return document
    stages, notes = [], list[str]()
    for s, stage in enumerate(document.data["stages"]):
        nodes = drawn(document, s)
        try:
            made = _OWN[engine](nodes) if engine in _OWN else dot_layout(nodes)
        except DotFailure as failure:
            other = "lanes" if any(n.lane.startswith("adjoint") for n in nodes) else "layered"
            notes.append(f"dot: {failure}; drawn with {other}")
            stages.append(stage)
            continue
        stages.append({**stage, "layouts": {**stage["layouts"], "auto": made.to_json()}})
    return Document({**document.data, "stages": stages}, where=document.where).with_notes(*dict.fromkeys(notes))


# a layout, read back -------------------------------------------------------------------------------------------------
def layout_of(raw: Json, nodes: int) -> Layout:
    """Read a layout back that `Layout.to_json` wrote."""

    def row(name: str) -> tuple[int, ...]:
        return tuple(column(raw.get(name), nodes, -1))

    return Layout(
        raw["engine"],
        raw["seconds"],
        row("x"),
        row("y"),
        row("w"),
        row("row"),
        tuple(_pill(*values) for values in _rows(raw["pills"], "leaf reader x y w echo via")),
        tuple(Edge(a, b, kind, _points(bends)) for a, b, kind, bends in _rows(raw["edges"], "a b kind bends")),
        tuple(Rail(*values) for values in _rows(raw["rails"], "a b track x y0 y1")),
        tuple(Wire(a, b, _points(points)) for a, b, points in _rows(raw["wires"], "a b points")),
        tuple(Lane(i, title, x, w) for i, title, x, w in _rows(raw["lanes"], "index title x width")),
        raw["width"],
        raw["height"],
        raw.get("density", 0),
    )


def _pill(leaf: int, reader: int, x: int, y: int, w: int, echo: int, via: Sequence[int] | int) -> Pill:
    return Pill(leaf, reader, x, y, w, bool(echo), tuple(via) if isinstance(via, (list, tuple)) else ())


def _rows(table: Json, names: str) -> list[tuple[Any, ...]]:
    columns = [column(table.get(name), table["count"], 0) for name in names.split()]
    return list(zip(*columns, strict=True))


def _points(flat: Sequence[int]) -> tuple[Point, ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))
