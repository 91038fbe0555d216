"""Expand composites: `graph.decompose()` is the same graph in primitive ops, which the optimizer recognizes again."""

from __future__ import annotations

from gdlab.graph import Graph, Node, Source
from gdlab.op import REGISTRY

__all__ = ["decompose"]


def decompose(graph: Graph) -> Graph:
    """Return a copy in which every op with a body is its body, to the bottom; values, outputs, names and sources stay.
    """
    made, copied = Graph(), list[int]()
    with made, made.silent():
        for node in graph:
            start = len(made)
            inputs = tuple(copied[i] for i in node.inputs)
            copied.append(_expanded(made, node, inputs, graph.source(node.id)))
            if node.name and copied[-1] >= start:
                made.named(made.value(copied[-1]), node.name)
    pairs = zip(graph.output_ids, graph.output_names, strict=True)
    made.set_output_ids([(copied[id], name) for id, name in pairs], graph.num_param_grad_outputs)
    made.zero_gradients = tuple(copied[id] for id in graph.zero_gradients)
    return made


def _expanded(made: Graph, node: Node, inputs: tuple[int, ...], source: Source) -> int:
    """Append the node, or what its body comes to; as deep as composites are made of composites, which is not deep."""
    op = REGISTRY[node.op]
    if op.body is None:
        return made.copy_node(node, inputs, source).id
    body = op.trace(tuple(made.node(i).type for i in inputs), node.attrs)
    places = list(inputs)
    for inner in body.nodes[len(inputs) :]:
        places.append(_expanded(made, inner, tuple(places[i] for i in inner.inputs), source))
    return places[body.output_ids[0]]
