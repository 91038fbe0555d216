"""Find the value of a node of the written graph after a step, or say why it lies nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdlab.graph import Graph
from gdlab.rewrite import OptimizeReport


@dataclass(frozen=True)
class Nodes:
    """The places of the written graph's values: `place[id]` is the node of the compiled graph that holds the value of
    node `id` of `written`, None where rewrites left none, and then `why[id]` says which. `home` is the graph whose
    Values people hold."""

    written: Graph
    home: Graph
    place: Mapping[int, int | None] = field(default_factory=dict)
    why: Mapping[int, str] = field(default_factory=dict)


def nodes_of(written: Graph, home: Graph, reports: Sequence[OptimizeReport]) -> Nodes:
    """Follow every node through the passes, in order; differentiation between them keeps ids."""
    place: dict[int, int | None] = {n.id: n.id for n in written}
    why: dict[int, str] = {}
    for report in reports:
        if not report.node_map:  # nothing was optimized
            continue
        swallowed = {old: d.chain[-1] for d in report.derivations for old in d.consumed if d.chain}
        for id, at in place.items():
            if at is None:
                continue
            place[id] = report.node_map.get(at)
            if place[id] is None:
                why[id] = f"rule {swallowed[at]}" if at in swallowed else "the optimizer: nothing needs it any more"
    return Nodes(written, home, place, why)


def nodes_as_compiled(graph: Graph) -> Nodes:
    """Return the nodes of a plan that came without its history: its compiled graph counts as the written one."""
    return Nodes(graph, graph, {n.id: n.id for n in graph})
