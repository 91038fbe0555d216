"""The growth of an e-graph as it was recorded, replayed: `replayed(deltas, k)`."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.rewrite.engine.history import Delta, NamedNode, renamed


def replayed(recorded: Sequence[Delta], k: int) -> frozenset[NamedNode]:
    """Return the e-nodes after iteration k, without labels: the deltas 0 … k applied in order."""
    nodes: set[NamedNode] = set()
    for delta in recorded[: k + 1]:
        moved = {old: new for new, old in delta.merged}
        nodes = {renamed(n, moved) for n in nodes}
        nodes |= {NamedNode(n.cls, n.op, n.children, n.attrs) for n in delta.added}
    return frozenset(nodes)
