"""The static picture of a document: `picture(doc, "opt")` is one SVG text, drawn from the document alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gdlab.base.words import plural
from gdlab.view.document.document import Document
from gdlab.view.document.layouts import drawn, layout
from gdlab.view.layout.boxes import chains_of
from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.layered import auto
from gdlab.view.layout.stretch import extra_room, stretched
from gdlab.view.layout.value_lines import gradient_lines, value_lines
from gdlab.view.picture.draw import NodeStyle
from gdlab.view.picture.palette import Theme
from gdlab.view.picture.plan_picture import plan_picture
from gdlab.view.picture.svg import Pane, svg_panes
from gdlab.view.picture.sweep_picture import sweep_picture

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
    """Return the picture of a view: before | after, the lanes of the derivative, or dispatches with their buffers."""
    with document.reading():
        if show == "sweep" and "sweep" in document.data:
            return sweep_picture(document, theme)
        if show in _OF_PLAN and document.data.get("plan"):
            return plan_picture(document, theme)
        panes = [pane(document, s) for s in _pane_stages(document, show)]
        return svg_panes(
            panes,
            title=document.data["title"],
            desc=document.data["summary"],
            prefix=f"gd-{document.id}-{show}",
            theme=theme,
        )


def _pane_stages(document: Document, show: str) -> list[int]:
    keys = [stage["key"] for stage in document.data["stages"]]
    choices = _PANES.get(show, _PANES["opt"])
    wanted = [next((keys.index(key) for key in choice if key in keys), None) for choice in choices]
    compared = (document.data.get("view") or {}).get("diff") if show == "diff" else None
    return [s for s in compared or wanted if s is not None]


def shown_stages(document: Document, show: str) -> list[int]:
    """Return the stages of a view: those that it draws side by side, or the one that it draws and its source; for the
    plan, the graph as written and the compiled stage."""
    plan = document.data.get("plan")
    stages = [0, plan["stage"]] if show in _OF_PLAN and plan else _pane_stages(document, show)
    if len(stages) == 1 and document.data["stages"][stages[0]]["parent"] >= 0:
        stages = [document.data["stages"][stages[0]]["parent"], *stages]
    return sorted(set(stages))


def pane(document: Document, stage: int) -> Pane:
    """Return a stage with its header, ready for `svg_panes`."""
    raw = document.data["stages"][stage]
    nodes, looks = drawn(document, stage), styles(document, stage)
    fact = plural(len(nodes), "node")
    view = document.data.get("view") or {}
    if view.get("overlay") and (told := _written_on(document, stage, view["overlay"])):
        nodes = [replace(n, lines=tuple(told.get(i, ())), leaf=n.leaf and i not in told) for i, n in enumerate(nodes)]
        made = auto(nodes)
        return raw["title"], f"{fact}, {view['overlay']}", nodes, stretched(made, extra_room(made, nodes)), looks
    if view.get("around") and view.get("select"):
        kept = around(document, stage, view["select"], int(view["around"]))
        if kept:
            part = cut_out(nodes, kept)
            return raw["title"], f"{len(kept)} of {fact}", part, auto(part), [looks[i] for i in kept]
    return raw["title"], fact, nodes, layout(document, stage), looks


def _written_on(document: Document, stage: int, overlay: str) -> dict[int, list[str]]:
    """Return the lines of an overlay in words for the nodes of a stage: they stand in the place of their types. Below a
    value stands the gradient, but in lanes, where it has a box of its own."""
    texts = _texts(document, stage, overlay) if overlay != "nonfinite" else {}
    lanes = any(lane.startswith("adjoint") for lane in document.nodes(stage).column("lane"))
    slopes = _texts(document, stage, "gradient") if overlay == "value" and not lanes else {}
    return {
        i: [*value_lines(text), *(gradient_lines(slopes[i]) if i in slopes else ())] for i, text in texts.items()
    }  # fmt: skip


def _texts(document: Document, stage: int, overlay: str) -> dict[int, str]:
    found = [o["values"] for o in document.data["overlays"] if o["id"] == overlay and o["stage"] == stage]
    return {int(i): text for i, text in found[0].items() if isinstance(text, str)} if found else {}


def styles(document: Document, stage: int) -> list[NodeStyle]:
    """Return the look of each node of a stage."""
    nodes = document.nodes(stage)
    return [
        NodeStyle(family, "fused" in flags, "output" in flags, "loss" in flags, f"node:{stage}.{i}")
        for i, (family, flags) in enumerate(zip(nodes.column("family"), nodes.column("flags"), strict=True))
    ]


# a part of a stage ---------------------------------------------------------------------------------------------------
def around(document: Document, stage: int, entity: str, radius: int) -> list[int]:
    """Return the nodes of a stage within `radius` edges of those linked to `entity`, in order; possible pills come
    along with each op that is kept. Empty where nothing of the stage lights up."""
    chains = chains_of(drawn(document, stage))
    inputs = document.nodes(stage).column("inputs")
    readers: list[list[int]] = [[] for _ in inputs]
    for b, of in enumerate(inputs):
        for a in of:
            readers[a].append(b)
    prefix = f"node:{stage}."
    edge = [int(e.removeprefix(prefix)) for e in document.select(entity) if e.startswith(prefix)]
    found = set(edge)
    for _ in range(radius):
        edge = [n for i in edge for n in (*inputs[i], *readers[i]) if n not in found]
        found.update(edge)
    pills = {part for i in found for a in inputs[i] for part in (() if inputs[a] else (a,)) or chains.get(a, ())}
    return sorted(found | pills)


def cut_out(nodes: Sequence[Drawn], kept: Collection[int]) -> list[Drawn]:
    """Return some of the nodes, without the edges to others."""
    place = {old: new for new, old in enumerate(kept)}
    return [
        Drawn(
            n.op, n.name, n.type, tuple(place[i] for i in n.inputs if i in place), n.leaf, n.lane, place.get(n.twin, -1)
        )
        for n in (nodes[i] for i in kept)
    ]
