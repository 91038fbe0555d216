"""A part of a stage: what lies within some edges of a node, drawn alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gdlab.view.document.document import Document
from gdlab.view.layout.drawn import Drawn


def around(document: Document, stage: int, entity: str, radius: int) -> list[int]:
    """The nodes of a stage within `radius` edges of what lights up there with `entity`, in order; a leaf comes along
    with every op that is kept. Empty where nothing of the stage lights up."""
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
    leaves = {a for i in found for a in inputs[i] if not inputs[a]}
    return sorted(found | leaves)


def cut_out(nodes: Sequence[Drawn], kept: Collection[int]) -> list[Drawn]:
    """Some nodes alone: edges to others are gone."""
    place = {old: new for new, old in enumerate(kept)}
    return [
        Drawn(
            n.op, n.name, n.type, tuple(place[i] for i in n.inputs if i in place), n.leaf, n.lane, place.get(n.twin, -1)
        )
        for n in (nodes[i] for i in kept)
    ]
