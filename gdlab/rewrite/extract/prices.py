"""What the classes of a cycle cost each by itself: the e-nodes of their cheapest trees."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["cheapest_trees"]


def cheapest_trees(
    of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]], cost: Sequence[int],
    component: Sequence[int],
) -> dict[int, int]:  # fmt: skip
    """The root of the cheapest tree for every class in a cycle that has several e-nodes: all of these together are
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
