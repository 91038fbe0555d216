"""Write the list of a session as a graph: `session.to_graph()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.base.formats import decode
from gdlab.base.types import Array, TensorType, u32
from gdlab.graph import Graph, Value
from gdlab.plan.order import Range
from gdlab.record.buffers import Buffer
from gdlab.record.compute_graph import Labelled, Node, Sketch
from gdlab.record.op_methods import copied
from gdlab.record.operation import STORING, OperandRange
from gdlab.record.products import expert_product

if TYPE_CHECKING:
    from gdlab.record.graph_session import GraphSession

WHERE = "to_graph"


@dataclass(slots=True, eq=False)
class Exported:
    """A graph of a list; `read` gives for every input the node of the list that reads it, and the tensor. `made[k]`:
    the nodes of the graph that node k of the list became."""

    graph: Graph
    read: Mapping[str, tuple[int, OperandRange]]
    made: tuple[range, ...]

    def feed(self, nodes: Sequence[Node]) -> dict[str, Array]:
        """Return the present contents of the buffers of its inputs, by name; blocks decoded."""
        return {name: _contents(nodes[k].buffers[part.buffer], part) for name, (k, part) in self.read.items()}


def to_graph(session: GraphSession) -> Graph:
    """Return the list as a graph: ranges are values, each write makes a new version, reads take the last.

    Ranges that are read before they are written are inputs, by their label (without one `b{allocation}_{offset}`);
    weights in blocks are f32 inputs. The outputs are the last versions of ranges that are not transient, in order of
    their first write. Raises `GraphError` where two ranges overlap in part.
    """
    return exported(session.graph.nodes).graph


def exported(nodes: Sequence[Node | Sketch]) -> Exported:
    """Return the graph of a list, with the places of its inputs."""
    made = list[range]()
    with Graph() as graph:
        writer = _GraphWriter(graph)
        for number, node in enumerate(nodes):
            count = len(graph)
            writer.node(number, node)
            made.append(range(count, len(graph)))
        outputs = [writer.versions[r] for r, kept in writer.written.items() if kept]
        if not outputs:
            raise GraphError(WHERE, "outputs", "none", "a node that writes a buffer that is not transient")
        graph.set_outputs(outputs)
    return Exported(graph, writer.read, tuple(made))


@dataclass(slots=True, eq=False)
class _GraphWriter:
    graph: Graph
    versions: dict[Range, Value] = field(default_factory=dict)
    written: dict[Range, bool] = field(default_factory=dict)  # in order of the first write: whether it is an output
    read: dict[str, tuple[int, OperandRange]] = field(default_factory=dict)
    stored: dict[tuple[Range, TensorType], Value] = field(default_factory=dict)
    ranges: dict[int, list[Range]] = field(default_factory=dict)
    undefined: set[Range] = field(default_factory=set)
    number: int = 0  # of the node

    def node(self, number: int, node: Node | Sketch) -> None:
        """Append the values of one node."""
        self.number, operation = number, node.operation
        values = [self._operand(node, p) for p in operation.operands]
        for range in operation.footprint.writes[len(operation.results) :]:
            self._check(range)
            self.undefined.add(range)
        if operation.numbers:
            values.append(ops.constant_u32(np.array(operation.numbers, np.uint32)))
        attrs = dict(operation.attrs)
        if operation.build is expert_product:
            attrs["stride"] = 0  # decoded matrices are close together
        (result,) = operation.results
        value = values[0] if operation.copy or operation.build is copied else operation.build(*values, **attrs)
        self._check(result.range)
        self.versions[result.range] = value
        self.undefined.discard(result.range)
        buffer = node.buffers[result.buffer]
        self.written.setdefault(result.range, not buffer.transient)
        self.stored = {key: v for key, v in self.stored.items() if not key[0].overlaps(result.range)}

    def _operand(self, node: Node | Sketch, part: OperandRange) -> Value:
        self._check(part.range)
        buffer = node.buffers[part.buffer]
        if part.range in self.undefined:
            raise GraphError(
                WHERE, node.operation.name, f"{_words(part.range)}, with undefined contents", "a range with contents"
            )
        if part.words:
            return self._stored(buffer, part)
        if part.range not in self.versions:
            made = self._input(buffer, part, part.type.dtype is u32)
            self.versions[part.range] = STORING.get(part.type.dtype, _itself)(made)
        value = self.versions[part.range]
        return value if value.shape == part.type.shape else value.reshape(part.type.shape)

    def _stored(self, buffer: Buffer | Labelled, part: OperandRange) -> Value:
        if part.range in self.written:
            raise GraphError(WHERE, "weight", "blocks that a node of the list writes", "blocks that the host wrote")
        key = part.range, part.type
        if key not in self.stored:
            self.stored[key] = self._input(buffer, part, False)
        return self.stored[key]

    def _input(self, buffer: Buffer | Labelled, part: OperandRange, integers: bool) -> Value:
        name = base = buffer.label or f"b{part.range.memory}_{part.range.start}"
        number = 1
        while name in self.read:
            number += 1
            name = f"{base}_{number}"
        self.read[name] = self.number, part
        return (ops.input_u32 if integers else ops.input)(name, part.type.shape)

    def _check(self, range: Range) -> None:
        """Refuse a range that overlaps another one in part."""
        known = self.ranges.setdefault(range.memory, [])
        for other in known:
            if other != range and other.overlaps(range):
                given = f"{_words(other)} and {range.start} … {range.stop}"
                raise GraphError(WHERE, "ranges", given, "ranges that are equal or disjoint")
        if range not in known:
            known.append(range)


def _itself(value: Value) -> Value:
    return value


def _words(r: Range) -> str:
    return f"bytes {r.start} … {r.stop} of allocation {r.memory}"


def _contents(buffer: Buffer, part: OperandRange) -> Array:
    count = (part.range.stop - part.range.start) // 4
    if not part.words:
        return buffer.read().reshape(-1)[: part.type.num_elements].reshape(part.type.shape)
    words = buffer.read().reshape(-1)[:count]
    if not part.stride:
        return decode(words, part.type.dtype, part.type.shape)
    found = np.empty(part.type.shape, np.float32)
    matrix = TensorType(part.type.shape[1:], part.type.dtype)
    for i, into in enumerate(found):
        stored = words.view(np.uint8)[i * part.stride :][: matrix.data_bytes]
        into[...] = decode(np.pad(stored, (0, -len(stored) % 4)).view(np.uint32), matrix.dtype, matrix.shape)
    return found
