"""`compile`: a graph in, an execution plan out; needs no device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from gdlab.base.errors import CompileError, GraphError, unknown_name
from gdlab.base.types import TensorType
from gdlab.graph import Graph, Node, no_collector, reachable
from gdlab.op import Alias, Elementwise, Fill, Leaf, Movement
from gdlab.op.storage import check_caches, derived_of, stored_in, trained_parameters
from gdlab.plan.chains import Clusters, needs_of
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.lower import Lowered, Lowering
from gdlab.plan.memory import memory_plan
from gdlab.plan.records import ExecutionPlan, Fate, Lane, Place, PlanMode
from gdlab.plan.schedule import before_reordering, groups_of, numbered, scheduled
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.terms import Terms, terms_of
from gdlab.plan.variants import TILES, is_software
from gdlab.plan.verify import verify

_PORTABLE = Target.portable()
_DEFAULT = CompileOptions()
VERSION = 2


def compile(
    graph: Graph,
    *,
    mode: PlanMode,
    lanes: Sequence[Lane] | None = None,
    options: CompileOptions = _DEFAULT,
    target: Target = _PORTABLE,
) -> ExecutionPlan:
    """The plan of one step. `lanes` gives every node's phase; without it nodes that only gradients need are backward.

    Raises `CompileError` where no valid plan exists: a tensor beyond the binding limit, an op without kernel and body.
    """
    _check_arguments(graph, mode, lanes, options, target)
    with no_collector():
        return _compile(graph, mode, lanes, options, target)


def _compile(
    graph: Graph, mode: PlanMode, lanes: Sequence[Lane] | None, options: CompileOptions, target: Target
) -> ExecutionPlan:
    backward = _backward(graph, mode, lanes)
    terms = terms_of(graph, backward)
    needs = needs_of(terms, tuple(terms.term_of[i] for i in graph.output_ids))
    _check_sizes(graph, terms, needs.needed, target)
    clusters = Clusters(terms, needs, options, target.limits)
    lowered = Lowering(graph, terms, target, options.tile).run(clusters.assign(), needs.needed)
    order, groups = scheduled(lowered.dispatches, options.serial, options.reorder)
    before = before_reordering(lowered.dispatches, order) if options.reorder else ((), 0)
    dispatches = numbered(lowered.dispatches, order, groups)
    place = {old: new for new, old in enumerate(order)}
    outputs = tuple(_buffer_of(terms, lowered, i) for i in graph.output_ids)
    users = graph.num_user_outputs
    loss = outputs[0] if graph.outputs[0].type == TensorType((1,)) else None
    inputs = tuple((n.name, lowered.buffer_of[terms.term_of[n.id]]) for n in graph.inputs)
    stored = [lowered.buffer_of[terms.term_of[id]] for id, _ in trained_parameters(graph)]
    node_buffers = _node_buffers(graph, terms, lowered)
    return verify(
        ExecutionPlan(
            mode=mode,
            buffers=tuple(lowered.buffers),
            dispatches=dispatches,
            groups=groups_of(dispatches),
            memory=memory_plan(lowered.buffers, dispatches, options, target.limits.alignment),
            param_buffers=_parameters(graph, terms, lowered),
            input_buffers=inputs,
            constant_buffers=_constants(terms, lowered),
            param_grad_pairs=tuple(zip(stored, outputs[users:], strict=False)),
            output_buffers=outputs[:users],
            loss_buffer=loss,
            places=tuple(node_buffers.items()),
            fates=_fates(graph, terms, lowered, dispatches, place, node_buffers),
            missed=tuple(clusters.missed),
            graph=graph,
            options=options,
            target=target,
            fingerprint=_fingerprint(graph, mode, options, target),
            version=VERSION,
            order_before=before[0],
            groups_before=before[1],
        )
    )


def _check_arguments(
    graph: Graph, mode: PlanMode, lanes: Sequence[Lane] | None, options: CompileOptions, target: Target
) -> None:
    kinds = (("graph", graph, Graph), ("options", options, CompileOptions), ("target", target, Target))
    for what, given, kind in kinds:
        if not isinstance(given, kind):
            raise CompileError("compile", what, type(given).__name__, f"a {kind.__name__}")
    if not graph.output_ids:
        raise GraphError("compile", "outputs", "none", "a graph with outputs: call set_outputs")
    check_caches(graph, "compile")
    if mode not in ("training", "inference"):
        raise CompileError("compile", "mode", repr(mode), "training or inference")
    if lanes is not None and len(lanes) != len(graph):
        raise CompileError("compile", "lanes", f"{len(lanes)} lanes", f"{len(graph)}, one per node")
    if not isinstance(options.pin, tuple):
        raise CompileError("compile", "pin", repr(options.pin), "a tuple of node names")
    tiles = TILES[is_software(target)]
    if options.tile is not None and options.tile not in tiles:
        wanted = f"None or one of {', '.join(map(str, tiles))} on this target"
        raise CompileError("compile", "tile", repr(options.tile), wanted)
    names = {n.name: None for n in graph if n.name}
    for name in options.pin:
        if name not in names:
            raise unknown_name("compile", "pin", str(name), names)
    gradients, stored = graph.num_param_grad_outputs, len(trained_parameters(graph))
    if gradients not in (0, stored):
        raise CompileError("compile", "gradients", gradients, f"{stored}, one per trained parameter, or none")


def _check_sizes(graph: Graph, terms: Terms, needed: bytearray, target: Target) -> None:
    """A tensor that no binding can hold is refused by name."""
    for id in graph.output_ids:
        type = graph.nodes[id].type
        if type.dtype.is_storage:
            raise CompileError("compile", f"output %{id}", str(type), "f32 or u32: to_f32(x) decodes f16", node=id)
    most = target.limits.binding_bytes
    for term in terms.terms:
        if needed[term.id] and term.type.size_bytes > most:
            name = graph.nodes[term.node].name or f"%{term.node}, {term.op.name}"
            given = f"{term.type.size_bytes} bytes"
            wanted = f"at most {most}, the largest binding of this device"
            raise CompileError("compile", f"tensor {name} {term.type}", given, wanted, node=term.node)


def _backward(graph: Graph, mode: PlanMode, lanes: Sequence[Lane] | None) -> list[bool]:
    if lanes is not None:
        return [lane.phase == "backward" for lane in lanes]
    if mode == "inference":
        return [False] * len(graph)
    forward = reachable(graph, graph.output_ids[: graph.num_user_outputs])
    return [not seen for seen in forward]


def _buffer_of(terms: Terms, lowered: Lowered, output: int) -> int:
    term = terms.base[terms.term_of[output]]
    return lowered.copies.get(term, lowered.buffer_of[term])


def _parameters(graph: Graph, terms: Terms, lowered: Lowered) -> tuple[tuple[str, Place], ...]:
    """Every parameter and its buffer, or its range of the derived one that it lies in."""
    places: dict[str, Place] = {}
    for id, derived in derived_of(graph).items():
        buffer = lowered.buffer_of[terms.term_of[id]]
        places |= {name: derived.part(name, buffer) for name, _ in derived.sources}
    return tuple(
        (n.name, places[n.name] if n.name in places else lowered.buffer_of[terms.term_of[n.id]])
        for n in graph.parameters
    )


def _constants(terms: Terms, lowered: Lowered) -> tuple[tuple[int, bytes], ...]:
    return tuple(
        (b, dict(terms.terms[term].attrs)["data"].raw)
        for term, b in lowered.buffer_of.items()
        if terms.terms[term].op.name == "constant"
    )


def _node_buffers(graph: Graph, terms: Terms, lowered: Lowered) -> dict[int, int]:
    """The buffer that holds each node's value; an output that is only an alias of a leaf lies in its copy."""
    found: dict[int, int] = {}
    outputs = set(graph.output_ids)
    for node, term in enumerate(terms.term_of):
        base = terms.base[term] if term >= 0 else -1
        if base in lowered.buffer_of:
            copied = node in outputs and base != term and base in lowered.copies
            found[node] = lowered.copies[base] if copied else lowered.buffer_of[base]
    return found


# what became of the other nodes ---------------------------------------------------------------------------------------
def _fates(
    graph: Graph,
    terms: Terms,
    lowered: Lowered,
    dispatches: Sequence[Dispatch],
    place: dict[int, int],
    node_buffers: dict[int, int],
) -> tuple[Fate, ...]:
    """Return the fate of every node without a buffer of its own."""
    first: dict[int, int] = {}
    for d in dispatches:
        for node in d.origin:
            first.setdefault(node, d.index)
    nodes, stored, found = graph.nodes, stored_in(graph), []
    for node, term in enumerate(terms.term_of):
        reason = _fate(nodes, terms, node, term, node in node_buffers)
        if term < 0 and nodes[node].op == "parameter":
            reason = f"aliased: a range of {stored[nodes[node].name]}"
        if reason is None:
            continue
        in_chain = lowered.dispatch_of.get(term, -1) if term >= 0 else -1
        dispatch = place[in_chain] if in_chain >= 0 else first.get(node, -1)
        place_words = f", in dispatch {dispatch}" if dispatch >= 0 else ""
        found.append(Fate(node, dispatch, min(dispatch, 0), reason + place_words))
    return tuple(found)


def _fate(nodes: Sequence[Node], terms: Terms, node: int, term: int, held: bool) -> str | None:
    if term < 0:
        return "dead: no output needs it"
    record, view = terms.terms[term], terms.views[term]
    kernel = record.op.kernel
    if held and terms.base[term] != term:
        return f"aliased: the elements of %{terms.terms[terms.base[term]].node}, in its buffer"
    if held:
        merged = record.node != node and nodes[node].op == record.op.name
        return f"merged: equal to %{record.node}" if merged else None
    if view.is_literal and isinstance(kernel, (Fill, Leaf, Movement, Alias, Elementwise)):
        return f"folded: the literal {view.value:g}"
    if isinstance(kernel, Leaf):
        return "dead: no output needs it"
    if isinstance(kernel, (Movement, Alias)) and view.term != term:
        how = "aliased: whole" if view.access == "full" else f"operand view: by {view.access}"
        return f"{how}, reads %{terms.terms[view.term].node}"
    return "fused"


def _fingerprint(graph: Graph, mode: PlanMode, options: CompileOptions, target: Target) -> str:
    h = hashlib.sha256(f"gdlab plan {VERSION}".encode())
    h.update(graph.fingerprint().encode())
    h.update(repr((mode, _values(options), target.kind, target.adapter_class, _values(target.limits))).encode())
    return h.hexdigest()


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, f.name) for f in fields(record))
