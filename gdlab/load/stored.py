"""Keep parameters of a graph in storage formats: matrices as [out, in], as in files, decoded by the products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gdlab import ops
from gdlab.base.types import Array, TensorType
from gdlab.graph import Graph, Node


class Settable(Protocol):
    """A target of parameter values by name, such as a `Session`."""

    def set_parameter(self, name: str, data: Array) -> None: ...
    def set_parameter_packed(self, name: str, data: bytes) -> None: ...


def factors(graph: Graph) -> set[int]:
    """Return the nodes that are right factors of products."""
    return {node.inputs[1] for node in graph if node.op == "matmul"}


def with_formats(plain: Graph, kept: Mapping[str, TensorType], turned: set[int]) -> Graph:
    """Return a copy whose parameters have these types; products read the matrices `turned` by `matmul_bt`."""
    made, copied = Graph(), list[int]()

    def copy(node: Node) -> int:
        inputs = tuple(copied[i] for i in node.inputs)
        source = plain.source(node.id)
        if node.op == "parameter" and node.name in kept:
            return made.register_leaf(made.append(node.op, (), node.attrs, kept[node.name], node.name, source)).id
        if node.op == "matmul" and plain.node(node.inputs[1]).name in kept:
            product = ops.matmul_bt(*(made.value(i) for i in inputs))
            return (product.named(node.name) if node.name else product).id
        return made.copy_node(node, inputs, source).id

    with made, made.silent():
        for node in plain:
            copied.append(copy(node))
    made.set_output_ids([(copied[id], name) for id, name in zip(plain.output_ids, plain.output_names, strict=True)])
    return made


DECODED: dict[str, int] = {"matmul": 1, "matmul_bt": 1, "embedding": 1}  # op -> the operand that may lie in a format


def decoded_matrices(graph: Graph) -> list[Node]:
    """Return the matrices of the graph's parameters that are read only by ops that decode formats."""
    others = {i for node in graph for at, i in enumerate(node.inputs) if DECODED.get(node.op) != at}
    read = {i for node in graph for i in node.inputs} - others
    return [node for node in graph.parameters if node.id in read and node.type.rank == 2]
