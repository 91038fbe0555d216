"""Make of a decode graph one that writes a token of several sequences in each step: products read the weights once for
all rows, and every sequence has caches of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gdlab import ops
from gdlab.generate.graphs import POSITION, TOKEN, caches_of
from gdlab.graph import Graph, Node, Value
from gdlab.op import REGISTRY


def cache_name(name: str, row: int, rows: int) -> str:
    """Return the name of a sequence's cache in a decode graph of so many."""
    return name if rows == 1 else f"{name}·{row}"


def batched(plain: Graph, rows: int) -> Graph:
    """Return the decode graph of `rows` sequences: `token_ids` u32[rows], `kv_pos` u32[rows] -> `logits` f32[rows,
    vocabulary]; row i is what the plain graph computes of caches `k.0·i`, `v.0·i` … An op that does not work row by
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
    """The copy as it grows. A node that is no row of a sequence is in `shared`; others are in `whole`, [rows, …], or in
    `parts`, one value for each sequence, or in both."""

    plain: Graph
    made: Graph
    rows: int
    shared: dict[int, Value] = field(default_factory=dict)
    whole: dict[int, Value] = field(default_factory=dict)
    parts: dict[int, Sequence[Value]] = field(default_factory=dict)
    caches: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.caches = frozenset(caches_of(self.plain))

    def add(self, node: Node) -> None:
        """Copy a node whose operands are copied."""
        if node.op == "input" and node.name in (TOKEN, POSITION):
            self.whole[node.id] = ops.input_u32(node.name, (self.rows,))
        elif node.op == "parameter" and node.name in self.caches:
            names = [cache_name(node.name, row, self.rows) for row in range(self.rows)]
            self.parts[node.id] = [ops.parameter(name, node.type.shape, init="zeros") for name in names]
        elif all(id in self.shared for id in node.inputs):
            inputs = tuple(self.shared[id].id for id in node.inputs)
            self.shared[node.id] = self.made.copy_node(node, inputs, self.plain.source(node.id))
        elif self._rows_together(node):
            self.whole[node.id] = self._together(node)
        else:
            self.parts[node.id] = [self._part(node, row) for row in range(self.rows)]

    def _rows_together(self, node: Node) -> bool:
        """Whether an op works row by row on operands that have one row in the plain graph."""
        op = REGISTRY.get(node.op)
        rowwise = op is not None and (op.by_rows or op.by_position or op.family == "elementwise")
        operands = [self.plain.node(id) for id in node.inputs if id not in self.shared]
        shared = [self.plain.node(id) for id in node.inputs if id in self.shared]
        if not rowwise or not all(n.type.rank and n.type.shape[0] == 1 for n in (node, *operands)):
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
            whole = self.whole[id]
            self.parts[id] = [whole[row : row + 1] for row in range(self.rows)]
        return self.parts[id][row]
