"""Find paths through a graph: `paths(doc, "node:0.1", "node:0.9")` gives the shortest ones, one of each length.

The page finds the same paths (labextension/src/layout/explore.ts); one corpus holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdlab.base.errors import ArgumentError
from gdlab.base.words import flat, plural, whole
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document, reading
from gdlab.view.document.links import parse_entity

MOST = 20  # paths
VISITS = 2_000_000  # of nodes that need the first one, each once for every detour


@dataclass(frozen=True, slots=True)
class PathList:
    """Paths of node indexes from one end to the other, shortest path first; `whole`: there are no other lengths."""

    paths: tuple[tuple[int, ...], ...]
    whole: bool


def paths_between(inputs: Sequence[Sequence[int]], a: int, b: int) -> PathList:
    """Return paths along the edges between two nodes of a graph, in the order of the data, whichever end is given
    first.

    One of each length, at most `MOST`: no enumeration of all. With f the shortest distance from `a`, an edge i → n is
    1 + f(i) - f(n) longer than needed; what is reached from `b` with a detour of d is visited once for each d.
    """
    a, b = min(a, b), max(a, b)
    far = _distances(inputs, a, b)
    order, detours, found, visits = sorted(far, reverse=True), [{b: b}], list[tuple[int, ...]](), 0
    for detour, reached in enumerate(detours):  # grows under way
        if not reached:
            continue
        if len(found) == MOST or visits > VISITS:
            return PathList(tuple(found), False)
        visits += len(order)
        for node in order:
            for i in inputs[node] if node in reached else ():
                if i in far:
                    longer = detour + 1 + far[i] - far[node]
                    detours.extend({} for _ in range(longer + 1 - len(detours)))
                    detours[longer].setdefault(i, node)
        if a in reached:
            found.append(_path(detours, far, a, detour))
    return PathList(tuple(found), True)


def _distances(inputs: Sequence[Sequence[int]], a: int, b: int) -> dict[int, int]:
    """Return the distance from `a` of each node that needs it, up to `b`: inputs have smaller indexes than their
    readers."""
    far = {a: 0}
    for node in range(a + 1, b + 1):
        known = [far[i] for i in inputs[node] if i in far]
        if known:
            far[node] = 1 + min(known)
    return far


def _path(detours: Sequence[dict[int, int]], far: dict[int, int], a: int, detour: int) -> tuple[int, ...]:
    """Return the path from `a` to the end node by node, with this detour."""
    path, node, onwards = [a], a, detours[detour][a]
    while onwards != node:
        detour -= 1 + far[node] - far[onwards]
        path.append(onwards)
        node, onwards = onwards, detours[detour][onwards]
    return tuple(path)


def paths(document: Document, a: str, b: str) -> PathList:
    """Return the paths between two nodes of one stage; `ArgumentError` for anything else."""
    (stage, one), (other_stage, other) = (_node(document, entity) for entity in (a, b))
    if stage != other_stage or one == other:
        raise ArgumentError("paths", "nodes", f"{a} and {b}", "two nodes of one stage")
    return paths_between(document.nodes(stage).column("inputs"), one, other)


def _node(document: Document, entity: str) -> tuple[int, int]:
    document.select(entity)  # refuses what is not there
    kind, at = parse_entity(entity)
    if kind != "node":
        raise ArgumentError("paths", "nodes", entity, "two nodes of one stage, such as node:0.3")
    return at[0], at[1]


@reading
def paths_text(document: Document, a: str, b: str) -> Iterator[str]:
    """Yield the number of paths and their lengths in words, then each path with its nodes."""
    found = paths(document, a, b)
    stage = parse_entity(a)[1][0]
    yield f"{a} – {b}: {path_counts(found)}"
    nodes = document.nodes(stage)
    for path in found.paths:
        steps = (f"node:{stage}.{i} {nodes[i]['op']} {nodes[i]['name']}".rstrip() for i in path)
        yield f"  {plural(len(path) - 1, 'edge')}: {flat(' → '.join(steps))}"


@reading
def paths_json(document: Document, a: str, b: str) -> Json:
    """Return `paths_text` as JSON: entities from end to end, and whether these are all lengths."""
    found, stage = paths(document, a, b), parse_entity(a)[1][0]
    return {
        "format": document.data["format"], "title": document.data["title"], "whole": found.whole,
        "paths": [[f"node:{stage}.{i}" for i in path] for path in found.paths],
    }  # fmt: skip


def path_counts(found: PathList) -> str:
    """Count paths and their edges in words: `3 paths, 4 to 9 edges`."""
    if not found.paths:
        return "no path along the edges" if found.whole else "no path was found in time"
    low, high = (len(found.paths[i]) - 1 for i in (0, -1))
    edges = plural(low, "edge") if low == high else f"{whole(low)} to {plural(high, 'edge')}"
    return f"{plural(len(found.paths), 'path')}, {edges}{'' if found.whole else '; there are longer ones'}"
