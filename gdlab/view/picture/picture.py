"""The static picture of a document: `picture(doc, "opt")` is one SVG text, drawn from what the document says alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gdlab.base.words import plural
from gdlab.view.document.columns import Json, column
from gdlab.view.document.document import Document
from gdlab.view.layout.drawn import Drawn, Edge, Lane, Layout, Pill, Point, Rail, Wire
from gdlab.view.layout.layered import auto
from gdlab.view.layout.part import around, cut_out
from gdlab.view.picture.draw import NodeStyle
from gdlab.view.picture.palette import Theme
from gdlab.view.picture.plan_picture import plan_picture
from gdlab.view.picture.svg import Pane, svg_panes

# The stages that a view draws side by side, by preference; a stage that is missing is left out.
_PANES: dict[str, tuple[tuple[str, ...], ...]] = {
    "graph": (("written",),),
    "opt": (("written",), ("optimized",)),
    "rewrites": (("written",), ("optimized",)),
    "text": (("written",), ("optimized",)),
    "grad": (("derivative:written", "derivative", "written"),),
}
_OF_PLAN = ("plan", "arena", "kernels", "session")


def picture(document: Document, show: str = "opt", theme: Theme = "light") -> str:
    """The picture of a view: before | after, the lanes of the derivative, or dispatches with their buffers."""
    if show in _OF_PLAN and document.data.get("plan"):
        return plan_picture(document, theme)
    keys = [stage["key"] for stage in document.data["stages"]]
    choices = _PANES.get(show, _PANES["opt"])
    wanted = [next((keys.index(key) for key in choice if key in keys), None) for choice in choices]
    compared = (document.data.get("view") or {}).get("diff") if show == "diff" else None
    panes = [pane(document, s) for s in compared or wanted if s is not None]
    return svg_panes(
        panes,
        title=document.data["title"],
        desc=document.data["summary"],
        prefix=f"gd-{document.id}-{show}",
        theme=theme,
    )


def pane(document: Document, stage: int) -> Pane:
    """One stage with its header, ready for `svg_panes`."""
    raw = document.data["stages"][stage]
    nodes, looks = drawn(document, stage), styles(document, stage)
    fact = plural(len(nodes), "node")
    view = document.data.get("view") or {}
    words = _written_on(document, stage, view.get("overlay"))
    if words:
        nodes = [replace(n, type=words.get(str(i), n.type)) for i, n in enumerate(nodes)]
        return raw["title"], f"{fact}, {view['overlay']}", nodes, auto(nodes), looks
    if view.get("around") and view.get("select"):
        kept = around(document, stage, view["select"], int(view["around"]))
        if kept:
            part = cut_out(nodes, kept)
            return raw["title"], f"{len(kept)} of {fact}", part, auto(part), [looks[i] for i in kept]
    return raw["title"], fact, nodes, layout(document, stage), looks


def _written_on(document: Document, stage: int, overlay: str | None) -> Json:
    """What an overlay in words says of the nodes of a stage: it stands in the place of their types."""
    found = [o["values"] for o in document.data["overlays"] if o["id"] == overlay and o["stage"] == stage]
    return found[0] if found and overlay != "nonfinite" else {}


def layout(document: Document, stage: int) -> Layout:
    """Where everything of a stage stands: as the document says, else laid out now."""
    known = document.data["stages"][stage]["layouts"].get("auto")
    nodes = drawn(document, stage)
    return auto(nodes) if known is None else layout_of(known, len(nodes))


def drawn(document: Document, stage: int) -> list[Drawn]:
    """The nodes of a stage as the layout saw them."""
    nodes, types = document.nodes(stage), document.types.column("text")
    columns = [nodes.column(name) for name in ("op", "name", "label", "type", "inputs", "lane", "twin")]
    return [
        Drawn(op, label or name, types[type], tuple(inputs), not inputs, lane, twin)
        for op, name, label, type, inputs, lane, twin in zip(*columns, strict=True)
    ]


def styles(document: Document, stage: int) -> list[NodeStyle]:
    """How each node of a stage looks."""
    nodes = document.nodes(stage)
    return [
        NodeStyle(family, "fused" in flags, "output" in flags, "loss" in flags, f"node:{stage}.{i}")
        for i, (family, flags) in enumerate(zip(nodes.column("family"), nodes.column("flags"), strict=True))
    ]


# a layout, read back -------------------------------------------------------------------------------------------------
def layout_of(raw: Json, nodes: int) -> Layout:
    """The record that `Layout.to_json` wrote."""

    def row(name: str) -> tuple[int, ...]:
        return tuple(column(raw.get(name), nodes, -1))

    return Layout(
        raw["engine"],
        raw["seconds"],
        row("x"),
        row("y"),
        row("w"),
        row("row"),
        tuple(Pill(a, b, x, y, w, bool(e)) for a, b, x, y, w, e in _rows(raw["pills"], "leaf reader x y w echo")),
        tuple(Edge(a, b, kind, _points(bends)) for a, b, kind, bends in _rows(raw["edges"], "a b kind bends")),
        tuple(Rail(*values) for values in _rows(raw["rails"], "a b track x y0 y1")),
        tuple(Wire(a, b, _points(points)) for a, b, points in _rows(raw["wires"], "a b points")),
        tuple(Lane(i, title, x, w) for i, title, x, w in _rows(raw["lanes"], "index title x width")),
        raw["width"],
        raw["height"],
    )


def _rows(table: Json, names: str) -> list[tuple[Any, ...]]:
    columns = [column(table.get(name), table["count"], 0) for name in names.split()]
    return list(zip(*columns, strict=True))


def _points(flat: Sequence[int]) -> tuple[Point, ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))
