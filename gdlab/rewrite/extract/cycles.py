"""Which classes read each other in a circle: the strongly connected components of an e-graph."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["classes_below", "components", "cyclic_classes"]


def classes_below(
    of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Per class the classes that its e-nodes read, each once."""
    return [
        children[enodes[0]] if len(enodes) == 1 else tuple(dict.fromkeys([k for e in enodes for k in children[e]]))
        for enodes in of_class
    ]


def cyclic_classes(of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]]) -> list[int]:
    """Per class the number of its strongly connected component, all e-nodes as edges; −1 where it is in no cycle."""
    return components(classes_below(of_class, children))


def components(below: Sequence[tuple[int, ...]]) -> list[int]:
    """`cyclic_classes` of classes that read the classes `below` them.

    (R. Tarjan, Depth-first search and linear graph algorithms, 1972; iterative.)
    """
    index, low, component = [-1] * len(below), [0] * len(below), [-1] * len(below)
    path: list[int] = []
    on_path = bytearray(len(below))
    counter = groups = 0
    for root in range(len(below)):
        if index[root] >= 0:
            continue
        index[root] = low[root] = counter
        counter += 1
        path.append(root)
        on_path[root] = 1
        work = [(root, iter(below[root]))]
        while work:
            c, rest = work[-1]
            for k in rest:
                if index[k] < 0:
                    index[k] = low[k] = counter
                    counter += 1
                    path.append(k)
                    on_path[k] = 1
                    work.append((k, iter(below[k])))
                    break
                if on_path[k] and index[k] < low[c]:
                    low[c] = index[k]
            else:
                work.pop()
                if work and low[c] < low[work[-1][0]]:
                    low[work[-1][0]] = low[c]
                if low[c] == index[c]:
                    groups += _pop_component(c, path, on_path, component, groups, below)
    return component


def _pop_component(
    c: int, path: list[int], on_path: bytearray, component: list[int], group: int, below: Sequence[tuple[int, ...]]
) -> int:
    """Take the component of c off the path; number it if it holds a cycle. The answer is 1 if it does."""
    if path[-1] == c and c not in below[c]:
        on_path[path.pop()] = 0
        return 0
    start = len(path) - 1
    while path[start] != c:
        start -= 1
    members = path[start:]
    del path[start:]
    cyclic = len(members) > 1 or c in below[c]
    for k in members:
        on_path[k] = 0
        if cyclic:
            component[k] = group
    return int(cyclic)
