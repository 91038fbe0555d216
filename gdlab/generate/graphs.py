"""Turn a language model's graphs into those that `generate` runs: one reads a prompt into the caches, one writes the
next token and its position."""

from __future__ import annotations

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.base.types import TensorType
from gdlab.graph import Graph, Node, Value
from gdlab.op import REGISTRY
from gdlab.op.storage import written_in_place

WHERE = "generate"
TOKEN, POSITION, LENGTH, START = "token_ids", "kv_pos", "prompt_length", "cache_start"  # inputs
LOGITS, NEXT = 0, 1  # outputs of both graphs
NEXT_POSITION, LARGEST = 2, 3  # outputs of the decode graph
LEAVES = frozenset({"parameter", "input", "constant"})


def caches_of(decode: Graph) -> dict[str, TensorType]:
    """Return the parameters that a decode graph writes: its caches of keys and values, by name."""
    written = set(written_in_place(decode).values())
    return {node.name: node.type for node in decode.parameters if node.id in written}


def decode_graph(plain: Graph, length: int) -> Graph:
    """Return a decode graph whose outputs are its logits, the tokens of the largest, u32[rows], the next positions,
    u32[rows], of `length` at most the last, and the largest logits, f32[rows], NaN where one is; a feed copies tokens
    and positions into `token_ids` and `kv_pos`."""
    made = plain.copy()
    position = made.leaf(POSITION)
    if position is None or made.leaf(TOKEN) is None or not caches_of(plain):
        given = f"inputs {[node.name for node in made.inputs]}"
        raise GraphError(WHERE, "decode graph", given, f"{TOKEN} u32[1], {POSITION} u32[1] and caches that it writes")
    logits = _logits(made)
    with made, made.silent():
        following = (made.value(position.id).to_f32() + 1.0).minimum(ops.scalar(length - 1.0)).to_u32()
        largest = ops.max(logits, 1)  # beside the token, in the same barrier groups
        made.set_output_ids([(logits.id, "logits"), (_largest(logits).id, "next"), (following.id, "next_position"),
                             (largest.id, "largest")])  # fmt: skip
    return made


def prefill_graph(plain: Graph, caches: dict[str, TensorType]) -> Graph:
    """Return a prefill graph that writes its keys and values, outputs under the names of caches, into the rows of those
    from `cache_start` on, and whose outputs are the logits of row `prompt_length` − 1 and the token of the largest.
    Rows behind it are padding: attention is causal, and what they leave in the caches lies behind all that is read
    before it is overwritten."""
    made = plain.copy()
    kept = dict(zip(plain.output_names, plain.output_ids, strict=True))
    if missing := sorted(caches.keys() - kept.keys()):
        raise GraphError(WHERE, "prefill graph", f"outputs {sorted(kept)}", f"outputs {missing} for the caches")
    with made, made.silent():
        length, start = ops.input_u32(LENGTH, (1,)), ops.input_u32(START, (1,))
        logits = _last_row(_logits(made), length)
        ends = []
        for name, type in caches.items():
            rows = ops.cache_write(made.value(kept[name]), ops.parameter(name, type.shape, init="zeros"), start)
            ends.append(rows[0:1, 0:1])
        written = ops.concat(ends, 0)  # an output that needs every write
        outputs = [(logits.id, "logits"), (_largest(logits).id, "next"), (written.id, "written")]
        made.set_output_ids(outputs)
    return made


def _logits(graph: Graph) -> Value:
    """Return the output `logits`, f32[rows, vocabulary]."""
    named = dict(zip(graph.output_names, graph.output_ids, strict=True))
    if "logits" not in named:
        raise GraphError(WHERE, "outputs", ", ".join(graph.output_names), "logits among them: a language model")
    return graph.value(named["logits"])


def _largest(logits: Value) -> Value:
    return ops.argmax(logits, 1)


def _last_row(value: Value, length: Value) -> Value:
    """Return row `length` − 1, f32[1, n]: chosen before the layers that work row by row, so that the head computes one
    row."""
    graph, tail, node = value.graph, list[tuple[Node, int]](), value.node
    while (place := _rowwise(graph, node)) is not None:
        tail.append((node, place))
        node = graph.node(node.inputs[place])
    row = ops.prefix_last(graph.value(node.id), length)
    for node, place in reversed(tail):
        operands = [row if i == place else graph.value(id) for i, id in enumerate(node.inputs)]
        row = REGISTRY[node.op](*operands, **dict(node.attrs))
    return row


def _rowwise(graph: Graph, node: Node) -> int | None:
    """Return the index of the operand whose rows become the node's rows, if the node works row by row."""
    op = REGISTRY.get(node.op)
    if op is None or not (op.by_rows or op.family == "elementwise") or node.type.rank != 2:
        return None
    operands = [graph.node(id) for id in node.inputs]
    places = [i for i, n in enumerate(operands) if n.type.rank == 2 and n.op not in LEAVES]
    alike = places == [0] and operands[0].type.shape[0] == node.type.shape[0]
    return 0 if alike and all(_spreads(n, node) for n in operands[1:]) else None


def _spreads(operand: Node, node: Node) -> bool:
    """Return whether an operand without rows of the prompt acts alike on every row."""
    return REGISTRY[node.op].by_rows or operand.type.rank < 2 or operand.type.shape[0] == 1
