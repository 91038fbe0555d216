"""Turn a decode graph into one that writes a token of several sequences in each step: products read the weights once
for all rows, and the caches of the sequences lie one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.generate.graphs import POSITION, TOKEN, WHERE
from gdlab.graph import Graph, Node, Value
from gdlab.op import REGISTRY
from gdlab.op.storage import written_in_place


def batched(plain: Graph, rows: int) -> Graph:
    """Return the decode graph of `rows` sequences: `token_ids` u32[rows], `kv_pos` u32[rows] -> `logits` f32[rows,
    vocabulary]; row i is the plain graph's result from rows i·length … of the caches. An op that does not work row by
    row is there once for each sequence."""
    if rows == 1:
        return plain.copy()
    with Graph() as made, made.silent():
        copy = _Copy(plain, made, rows)
        for node in plain:
            copy.add(node)
    outputs = zip(plain.output_ids, plain.output_names, strict=True)
    with made, made.silent():
        made.set_output_ids([(copy.together(id).id, name) for id, name in outputs])
    return made


@dataclass(slots=True)
class _Copy:
    """The copy as it grows. A node that is the same for all sequences is in `shared`; others are in `whole`, [rows, …],
    or in `parts`, one value for each sequence, or in both. `stacked`: caches, which are in `whole`, [rows · length, …].
    """

    plain: Graph
    made: Graph
    rows: int
    shared: dict[int, Value] = field(default_factory=dict)
    whole: dict[int, Value] = field(default_factory=dict)
    parts: dict[int, Sequence[Value]] = field(default_factory=dict)
    stacked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        written = written_in_place(self.plain)
        self.stacked = {*written, *written.values()}

    def add(self, node: Node) -> None:
        """Copy a node whose operands are copied."""
        if node.op == "input" and node.name in (TOKEN, POSITION):
            self.whole[node.id] = ops.input_u32(node.name, (self.rows,))
        elif node.op == "parameter" and node.id in self.stacked:
            length, *width = node.type.shape
            self.whole[node.id] = ops.parameter(node.name, (self.rows * length, *width), init="zeros")
        elif all(id in self.shared for id in node.inputs):
            inputs = tuple(self.shared[id].id for id in node.inputs)
            self.shared[node.id] = self.made.copy_node(node, inputs, self.plain.source(node.id))
        elif self._rows_together(node):
            self.whole[node.id] = self._together(node)
        elif node.id in self.stacked:
            given = "a cache that is not written row by row"
            raise GraphError(WHERE, f"%{node.id} {node.op}", given, f"one whose row {POSITION} is")
        else:
            self.parts[node.id] = [self._part(node, row) for row in range(self.rows)]

    def _rows_together(self, node: Node) -> bool:
        """Return whether an op works row by row, so that one op can compute the rows of all sequences."""
        op = REGISTRY.get(node.op)
        rowwise = op is not None and (op.by_rows or op.by_position or op.family == "elementwise")
        operands = [self.plain.node(id) for id in node.inputs if id not in self.shared and id not in self.stacked]
        result = [] if node.id in self.stacked else [node]
        shared = [self.plain.node(id) for id in node.inputs if id in self.shared]
        if not rowwise or not all(n.type.rank and n.type.shape[0] == 1 for n in (*result, *operands)):
            return False
        return REGISTRY[node.op].by_rows or all(n.type.rank < node.type.rank or n.type.shape[0] == 1 for n in shared)

    def _together(self, node: Node) -> Value:
        operands = [self.shared[id] if id in self.shared else self.together(id) for id in node.inputs]
        attrs = dict(node.attrs)
        return REGISTRY[REGISTRY[node.op].by_position or node.op](*operands, **attrs)

    def together(self, id: int) -> Value:
        """Return the rows of all sequences as one value."""
        if id not in self.whole:
            self.whole[id] = self.shared[id] if id in self.shared else ops.concat(list(self.parts[id]), 0)
        return self.whole[id]

    def _part(self, node: Node, row: int) -> Value:
        inputs = tuple(self.part(id, row).id for id in node.inputs)
        return self.made.copy_node(node, inputs, self.plain.source(node.id))

    def part(self, id: int, row: int) -> Value:
        """Return the value of one sequence, of the plain graph's type."""
        if id in self.shared:
            return self.shared[id]
        if id not in self.parts:
            whole, each = self.whole[id], self.plain.node(id).type.shape[0]
            self.parts[id] = [whole[row * each : (row + 1) * each] for row in range(self.rows)]
        return self.parts[id][row]
