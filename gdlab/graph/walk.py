"""Walk a graph, by loops because graphs are deep: what is reachable, who reads what, whether two are alike."""

from __future__ import annotations

from collections.abc import Iterable

from gdlab.graph.graph import Graph


def reachable(graph: Graph, roots: Iterable[int]) -> bytearray:
    """Return a 1 for every node that a root depends on (roots included), and a 0 for each of the rest."""
    seen = bytearray(len(graph))
    for id in roots:
        seen[id] = 1
    for node in reversed(graph._nodes):
        if seen[node.id]:
            for i in node.inputs:
                seen[i] = 1
    return seen


def shown_names(graph: Graph) -> list[str]:
    """Return for every node the name that means it alone, "" if it has none. As in Python, `h` is the last node of that
    name, or the parameter where one has it; the others are `h#1`, `h#2` in order."""
    owner = {node.name: node.id for node in graph._nodes if node.name}
    owner |= {node.name: node.id for node in graph._nodes if node.name and node.op == "parameter"}
    count = dict.fromkeys(owner, 0)
    names = []
    for node in graph._nodes:
        name = node.name
        if name and owner[name] != node.id:
            while name in owner:  # also where somebody wrote a name with its number
                count[node.name] += 1
                name = f"{node.name}#{count[node.name]}"
        names.append(name)
    return names


def users(graph: Graph) -> list[list[tuple[int, int]]]:
    """Return for every node the (reader, port) pairs that read it, in order."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(len(graph))]
    for node in graph._nodes:
        for port, i in enumerate(node.inputs):
            found[i].append((node.id, port))
    return found
