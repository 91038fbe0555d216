"""Find the classes that read each other in a cycle (strongly connected components), and the cheapest trees in one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["cheapest_trees", "classes_below", "components"]


def classes_below(
    of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return for every class the classes that its e-nodes read, each once."""
    return [
        children[enodes[0]] if len(enodes) == 1 else tuple(dict.fromkeys([k for e in enodes for k in children[e]]))
        for enodes in of_class
    ]


def components(below: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the number of each class's strongly connected component, −1 where it is in no cycle; each class reads the
    classes `below` it, by any of its e-nodes.

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
    """Take the component of c off the path; number it and return 1 if it holds a cycle, else 0."""
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


def cheapest_trees(
    of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]], cost: Sequence[int],
    component: Sequence[int],
) -> dict[int, int]:  # fmt: skip
    """Map every class in a cycle that has several e-nodes to the root of its cheapest tree: all of these together are
    acyclic. What is outside of its cycle costs nothing.

    (D. E. Knuth, A generalization of Dijkstra's algorithm, 1977.)
    """
    members = [c for c, group in enumerate(component) if 0 <= group < len(component)]
    if all(len(of_class[c]) < 2 for c in members):
        return {}
    waiting: dict[int, int] = {}
    readers: dict[int, list[tuple[int, int]]] = {}
    heap: list[tuple[float, int, int]] = []
    for c in members:
        for e in of_class[c]:
            within = [k for k in children[e] if component[k] == component[c]]
            waiting[e] = len(within)
            for k in within:
                readers.setdefault(k, []).append((c, e))
            if not within:
                heapq.heappush(heap, (float(cost[e]), c, e))
    settled: dict[int, float] = {}
    chosen: dict[int, int] = {}
    while heap:
        price, c, e = heapq.heappop(heap)
        if c in settled:
            continue
        settled[c], chosen[c] = price, e
        for reader, other in readers.get(c, ()):
            waiting[other] -= 1
            if not waiting[other]:
                whole = cost[other] + sum(settled[k] for k in children[other] if component[k] == component[reader])
                heapq.heappush(heap, (whole, reader, other))
    return {c: e for c, e in chosen.items() if len(of_class[c]) > 1}
