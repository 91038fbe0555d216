"""Find the mixture-of-experts layers of a graph, and report the experts that the rows of a forward chose.

A layer is all `grouped_matmul` nodes whose numbers of experts have one source. The numbers, and the top-k that they
come from, are hidden outputs behind those of the graph: they lie on the device and are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdlab.base.errors import ArgumentError, ExpertIndexError
from gdlab.base.types import Array, TensorType, u32
from gdlab.compiled.active_extent import HIDDEN
from gdlab.graph import Graph, Node, Value
from gdlab.op import ops_that
from gdlab.ops import input_u32
from gdlab.ops.experts import is_choice, is_product, keeps_order, paged_grouped_matmul

NAMED = "moe:"  # before the number of its layer in the name of a node
INDEX, LIVE = f"{HIDDEN}moe.idx.", f"{HIDDEN}moe.live."  # before the number of a layer in names of hidden outputs
CHOICE, CHOSEN_LIVE = f"{HIDDEN}moe.topk.", f"{HIDDEN}moe.topk.live."
TABLE = f"{HIDDEN}moe.table."  # before the name of the parameter whose pages it numbers


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer: its number, the experts of each of its products in order, the parameters that are their weights (none
    where a weight is no parameter of its own), and whether a router's top-k chooses. `bounded`: no number can be
    outside; `live`: outputs tell which rows are active."""

    number: int
    experts: tuple[int, ...]
    weights: tuple[str, ...]
    routed: bool
    bounded: bool
    live: bool

    @property
    def most(self) -> int:
        """The number of experts of its largest product."""
        return max(self.experts)


@dataclass(frozen=True, slots=True)
class MoeResidencyStats:
    """The experts that had a row in the last forward, and their rows: those on the device and those on the host. An
    expert counts once for each product."""

    gpu_expert_calls: int
    cpu_expert_calls: int
    gpu_tokens: int
    cpu_tokens: int
    per_layer: tuple[MoeResidencyStats, ...] = ()


Mask = tuple[bool, ...]  # by expert, whether it is resident; experts behind are


# the graph ------------------------------------------------------------------------------------------------------------
def with_hidden_outputs(graph: Graph, bucketed: bool) -> tuple[Graph, tuple[ExpertLayer, ...]]:
    """Return the graph with its layers' choices as hidden outputs after its own, and the layers."""
    found = _layers(graph)
    if not found:
        return graph, ()
    made, layers = graph.copy(), []
    user = list(zip(graph.output_ids, graph.output_names, strict=True))
    count, hidden = graph.num_user_outputs, list[tuple[int, str]]()
    with made, made.silent():
        for number, (source, nodes) in enumerate(found):
            choice = _choice(graph, source)
            hidden.append((source, f"{INDEX}{number}"))
            if bucketed:
                hidden.append((_ones(made.value(source)), f"{LIVE}{number}"))
            if choice is not None:
                hidden.append((choice, f"{CHOICE}{number}"))
                if bucketed:
                    hidden.append((_ones(made.value(choice)), f"{CHOSEN_LIVE}{number}"))
            layers.append(_layer(graph, number, source, nodes, choice is not None, bucketed))
    made.set_output_ids([*user[:count], *hidden, *user[count:]], graph.num_param_grad_outputs)
    made.zero_gradients = graph.zero_gradients
    return made, tuple(layers)


def _ones(value: Value) -> int:
    """Return ones where a row is active: a bucket axis makes zeros after it."""
    return (value.to_f32() * 0.0 + 1.0).id


def hidden_last(graph: Graph) -> Graph:
    """Return the graph with its hidden outputs after all others, gradients too."""
    ends = list(zip(graph.output_ids, graph.output_names, strict=True))
    ordered = sorted(ends, key=lambda end: end[1].startswith(HIDDEN))
    if ordered == ends or graph.num_param_grad_outputs:
        return graph
    made = graph.copy()
    made.set_output_ids(ordered)
    return made


def _layers(graph: Graph) -> list[tuple[int, list[int]]]:
    """Return (node of the numbers, products) of each layer, by number."""
    products = [node for node in graph if is_product(node)]
    by_source: dict[int, list[int]] = {}
    for node in products:
        by_source.setdefault(_source(graph, node.inputs[2]), []).append(node.id)
    given = {source: _given_number(graph, nodes) for source, nodes in by_source.items()}
    order = sorted(by_source, key=lambda source: (given[source] is None, given[source] or 0, by_source[source][0]))
    placed: dict[int, int] = {n: source for source, n in given.items() if n is not None and n < len(order)}
    others = iter(source for source in order if source not in placed.values())
    return [(source, by_source[source]) for k in range(len(order)) for source in [placed.get(k) or next(others)]]


def _given_number(graph: Graph, nodes: Iterable[int]) -> int | None:
    """Return the number that a node named `moe:<k>` gives to its layer."""
    for id in nodes:
        digits = graph.node(id).name.removeprefix(NAMED) if graph.node(id).name.startswith(NAMED) else ""
        if digits.isascii() and digits.isdecimal():
            return int(digits)
    return None


def _source(graph: Graph, id: int) -> int:
    while keeps_order(graph.node(id)):
        id = graph.node(id).inputs[0]
    return id


def _layer(graph: Graph, number: int, source: int, nodes: Sequence[int], routed: bool, live: bool) -> ExpertLayer:
    experts = tuple(graph.node(graph.node(id).inputs[1]).type.shape[0] for id in nodes)
    weights = tuple(dict.fromkeys(graph.node(graph.node(id).inputs[1]).name for id in nodes))
    leaves = all(graph.node(graph.node(id).inputs[1]).op == "parameter" for id in nodes)
    bounded = all(most <= min(experts) for most in _bounds(graph, source))
    return ExpertLayer(number, experts, weights if leaves else (), routed, bounded, live)


def check_layer(where: str, number: int, layer: ExpertLayer, graph: Graph) -> None:
    """Raise `ArgumentError` unless a layer of a file has this number, numbers of experts that are extents of the graph,
    and the hidden outputs that it needs."""
    needed = [INDEX] + [LIVE] * layer.live + [CHOICE] * layer.routed + [CHOSEN_LIVE] * (layer.live and layer.routed)
    missing = {f"{name}{number}" for name in needed} - {*graph.output_names}
    extents = {node.type.shape[0] for node in graph}
    if layer.number != number or not layer.experts or missing or not extents.issuperset(layer.experts):
        given, wanted = f"{layer!r:.200}", "the number of its place, its experts, and their numbers as hidden outputs"
        raise ArgumentError(where, f"layer {number}", given, wanted)


def _moved_from(graph: Graph, id: int) -> Iterator[int]:
    """Yield the sources of a u32 node's elements: nodes that movements of elements lead back to."""
    moves, todo, seen = ops_that(lambda op: op.family in ("movement", "index"), graph), [id], set[int]()
    while todo:
        node = graph.node(todo.pop())
        if node.id in seen:
            continue
        seen.add(node.id)
        parts = [i for i in node.inputs if graph.node(i).type.dtype is u32]
        if node.op in moves and parts:
            todo += parts
        else:
            yield node.id


def _bounds(graph: Graph, source: int) -> Iterator[float]:
    """Yield bounds of the numbers of a layer; those of inputs are checked at upload."""
    for id in _moved_from(graph, source):
        node = graph.node(id)
        if is_choice(node):
            yield graph.node(node.inputs[0]).type.shape[1]
        else:
            yield 0 if node.op == "input" else np.inf


def _choice(graph: Graph, source: int) -> int | None:
    """Return the last top-k whose indices reach the numbers of a layer."""
    found = [id for id in _moved_from(graph, source) if is_choice(graph.node(id))]
    return max(found, default=None)


def with_tables(graph: Graph, layers: Sequence[ExpertLayer]) -> Graph:
    """Return a graph without gradients whose products of experts read their matrices through a table, a hidden input
    for each weight, so that some of the matrices may lie elsewhere."""
    pageable = frozenset(name for layer in layers for name in layer.weights) - _read_otherwise(graph)
    if not pageable:
        return graph
    made, image, tables = Graph(), dict[int, int](), dict[str, int]()
    with made, made.silent():
        for node in graph:
            w = graph.node(node.inputs[1]) if is_product(node) else None
            if w is not None and w.op == "parameter" and w.name in pageable:
                if w.name not in tables:
                    tables[w.name] = input_u32(f"{TABLE}{w.name}", (w.type.shape[0],)).id
                operands = (*(made.value(image[i]) for i in node.inputs), made.value(tables[w.name]))
                value = paged_grouped_matmul(*operands)
                image[node.id] = value.named(node.name).id if node.name else value.id
            else:
                image[node.id] = copied(made, node, tuple(image[i] for i in node.inputs), node.type).id
            if graph.source(node.id):
                made.attach_source(image[node.id], graph.source(node.id))
        made.set_output_ids([(image[id], name) for id, name in zip(graph.output_ids, graph.output_names, strict=True)])
    return made


def copied(made: Graph, node: Node, inputs: tuple[int, ...], type: TensorType) -> Value:
    """Append a node as it is, on other operands, to another graph."""
    value = made.append(node.op, inputs, node.attrs, type, node.name)
    if not inputs and node.name:
        made.register_leaf(value)
    return value


def with_pages(graph: Graph, pages: Mapping[str, int]) -> Graph:
    """Return a graph with tables in which the weights have room for this number of matrices."""
    made = Graph()
    for node in graph:
        count = pages.get(node.name) if node.op == "parameter" else None
        type = node.type if count is None else TensorType((count, *node.type.shape[1:]), node.type.dtype)
        copied(made, node, node.inputs, type)
    made.set_output_ids(list(zip(graph.output_ids, graph.output_names, strict=True)))
    return made


def _read_otherwise(graph: Graph) -> frozenset[str]:
    """Return the parameters that are read by other nodes than products of experts."""
    found = set()
    for node in graph:
        for at, id in enumerate(node.inputs):
            if graph.node(id).op == "parameter" and not (is_product(node) and at == 1):
                found.add(graph.node(id).name)
    shown = {graph.node(id).name for id in graph.output_ids if graph.node(id).op == "parameter"}
    return frozenset(found | shown)


# a forward ------------------------------------------------------------------------------------------------------------
def checked_mask(where: str, mask: object, most: int, what: str = "mask") -> Mask:
    """Return a mask as a tuple; refuse one longer than `most`, and entries that are no bools."""
    entries = list(mask) if isinstance(mask, (list, tuple, np.ndarray)) else None
    if entries is None or not all(isinstance(entry, (bool, np.bool_)) for entry in entries):
        raise ArgumentError(where, what, f"{mask!r:.60}", "bools, one for each expert")
    if len(entries) > most:
        raise ArgumentError(where, what, f"{len(entries)} entries", f"at most {most}, one for each expert")
    return tuple(map(bool, entries))


def resident(mask: Mask, experts: int) -> Array:
    """Return, by expert, whether it is on the device."""
    found = np.ones(experts, bool)
    found[: len(mask)] = mask[:experts]
    return found


def counted(layers: Sequence[ExpertLayer], rows: Sequence[Array], masks: Sequence[Mask]) -> MoeResidencyStats:
    """Return the statistics of a forward: `rows` are the numbers of each layer's active rows."""
    each = list[MoeResidencyStats]()
    for layer, numbers, mask in zip(layers, rows, masks, strict=True):
        calls, tokens = [0, 0], [0, 0]
        for experts in layer.experts:
            there = resident(mask, experts)
            chosen, counts = np.unique(numbers[numbers < experts], return_counts=True)
            for host in (0, 1):
                mine = there[chosen] != bool(host)
                calls[host] += int(mine.sum())
                tokens[host] += int(counts[mine].sum())
        each.append(MoeResidencyStats(calls[0], calls[1], tokens[0], tokens[1]))
    return MoeResidencyStats(
        sum(s.gpu_expert_calls for s in each), sum(s.cpu_expert_calls for s in each),
        sum(s.gpu_tokens for s in each), sum(s.cpu_tokens for s in each), tuple(each),
    )  # fmt: skip


def check_numbers(where: str, layer: ExpertLayer, numbers: Array) -> None:
    """Raise `ExpertIndexError` for the first number of an expert that does not exist."""
    experts = min(layer.experts)
    bad = np.flatnonzero(numbers.reshape(-1) >= experts)
    if bad.size:
        row, index = int(bad[0]), int(numbers.reshape(-1)[bad[0]])
        raise ExpertIndexError(
            where, f"layer {layer.number}, row {row}", index, f"0 … {experts - 1}: that row of the result is zero",
            row=row, index=index, experts=experts,
        )  # fmt: skip


def active(numbers: Array, live: Array | None) -> Array:
    """Return the numbers of active rows, flat."""
    flat = numbers.reshape(-1)
    return flat if live is None else flat[live.reshape(-1) != 0]
