"""Evaluate a small graph to follow it by hand: value and gradient of every node in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError, GraphError
from gdlab.base.statistics import array_words
from gdlab.base.types import Array, f32
from gdlab.base.words import grid, plural
from gdlab.graph import Graph, reachable
from gdlab.op.reference import evaluate
from gdlab.op.storage import trained_parameters
from gdlab.session import PipelineStage

MOST_NODES = 60


@dataclass(frozen=True)
class NodeValues:
    """The values of a graph's nodes: `value[id]` of every node of `graph`, float64; `gradient[id]` = ∂ loss / ∂ node,
    where the loss depends on it; `stages[key][id]` of every node of the stages that passes made, adjoints included."""

    name: str
    graph: Graph
    value: Mapping[int, Array]
    gradient: Mapping[int, Array]
    stages: Mapping[str, Mapping[int, Array]]

    @property
    def adjoint(self) -> Mapping[int, Array]:
        """Return the values of the graph as written with its derivative behind it; empty without one."""
        return self.stages.get("derivative:written", {})

    def __repr__(self) -> str:
        return f"<NodeValues {self.name}: {plural(len(self.value), 'value')}, {plural(len(self.gradient), 'gradient')}>"

    def __str__(self) -> str:
        head = ("node", "op", "name", "type", "value", *(("gradient",) if self.gradient else ()))
        return "\n".join(grid(head, [self._row(n.id)[: len(head)] for n in self.graph], indent=""))

    def _row(self, id: int) -> tuple[str, ...]:
        node = self.graph.nodes[id]
        gradient = array_words(self.gradient[id]) if id in self.gradient else ""
        return f"%{id}", node.op, node.name, str(node.type), array_words(self.value[id]), gradient


def node_values(name: str, stages: Iterable[PipelineStage], feeds: Mapping[str, Any], train: bool) -> NodeValues:
    """Evaluate every stage, the first of which is the graph as written, for these inputs and parameters; `train`: with
    the gradient of every node that the loss depends on.

    `GraphError` above 60 nodes: that is no graph to follow by hand.
    """
    written, *made = stages
    graph = written.graph
    if len(graph) > MOST_NODES:
        raise GraphError(f"graph {name}", "values", plural(len(graph), "node"), f"at most {MOST_NODES}")
    value = evaluate(graph, feeds)
    gradients = _gradients(graph, feeds) if train else {}
    return NodeValues(name, graph, value, gradients, {stage.key: evaluate(stage.graph, feeds) for stage in made})


def _gradients(graph: Graph, feeds: Mapping[str, Any]) -> dict[int, Array]:
    """Return the gradient of every f32 node that the loss depends on; where an op in between has no gradient, of the
    parameters alone."""
    needed = reachable(graph, graph.output_ids[:1])
    every = [n.id for n in graph if needed[n.id] and n.type.dtype is f32]
    for ids in (every, [id for id, _ in trained_parameters(graph)]):
        try:
            full, report = differentiate(graph, wrt=[graph.value(i) for i in ids])
        except AutodiffError:
            continue
        got = evaluate(full, feeds)
        return {i: got[g] for i, g in zip(ids, report.gradients, strict=True)}
    return {}
