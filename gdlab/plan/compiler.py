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
from gdlab.plan.lower import Lowered, lowered
from gdlab.plan.memory import memory_plan
from gdlab.plan.records import ExecutionPlan, Fate, NodeLane, Place, PlanMode
from gdlab.plan.schedule import groups_of
from gdlab.plan.spread import TILES, is_software
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.terms import Terms
from gdlab.plan.verify import verify

_PORTABLE = Target.portable()
_DEFAULT = CompileOptions()
VERSION = 5


def compile(
    graph: Graph,
    *,
    mode: PlanMode,
    lanes: Sequence[NodeLane] | None = None,
    options: CompileOptions = _DEFAULT,
    target: Target = _PORTABLE,
) -> ExecutionPlan:
    """Compile the plan of one step. `lanes` gives every node's phase; without it nodes that only gradients need are
    backward.

    Raises `CompileError` where no valid plan exists: a tensor beyond the binding limit, an op without kernel and body.
    """
    _check_arguments(graph, mode, lanes, options, target)
    with no_collector():
        return _compile(graph, mode, lanes, options, target)


def _compile(
    graph: Graph, mode: PlanMode, lanes: Sequence[NodeLane] | None, options: CompileOptions, target: Target
) -> ExecutionPlan:
    low = lowered(graph, _backward(graph, mode, lanes), options, target)
    dispatches = tuple(low.dispatches)
    outputs = tuple(map(low.output_buffer, graph.output_ids))
    users = graph.num_user_outputs
    loss = outputs[0] if graph.outputs[0].type == TensorType((1,)) else None
    stored = [low.leaf_buffer(id) for id, _ in trained_parameters(graph)]
    node_buffers = _node_buffers(graph, low)
    return verify(
        ExecutionPlan(
            mode=mode,
            buffers=tuple(low.buffers),
            dispatches=dispatches,
            groups=groups_of(dispatches),
            memory=memory_plan(low.buffers, dispatches, options, target),
            param_buffers=_parameters(graph, low),
            input_buffers=tuple((n.name, low.leaf_buffer(n.id)) for n in graph.inputs),
            constant_buffers=low.constants(),
            param_grad_pairs=tuple(zip(stored, outputs[users:], strict=False)),
            output_buffers=outputs[:users],
            loss_buffer=loss,
            places=tuple(node_buffers.items()),
            fates=_fates(graph, low, node_buffers),
            missed=tuple(low.missed),
            graph=graph,
            options=options,
            target=target,
            fingerprint=_fingerprint(graph, mode, options, target),
            version=VERSION,
            order_before=low.order_before,
            groups_before=low.groups_before,
        )
    )


def _check_arguments(
    graph: Graph, mode: PlanMode, lanes: Sequence[NodeLane] | None, options: CompileOptions, target: Target
) -> None:
    kinds = (("graph", graph, Graph), ("options", options, CompileOptions), ("target", target, Target))
    for what, given, kind in kinds:
        if not isinstance(given, kind):
            raise CompileError("compile", what, type(given).__name__, f"a {kind.__name__}")
    if not graph.output_ids:
        raise GraphError("compile", "outputs", "none", "a graph with outputs: call set_outputs")
    check_caches(graph, "compile")
    if not isinstance(mode, str) or mode not in ("training", "inference"):
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


def _backward(graph: Graph, mode: PlanMode, lanes: Sequence[NodeLane] | None) -> list[bool]:
    if lanes is not None:
        return [lane.phase == "backward" for lane in lanes]
    if mode == "inference":
        return [False] * len(graph)
    forward = reachable(graph, graph.output_ids[: graph.num_user_outputs])
    return [not seen for seen in forward]


def _parameters(graph: Graph, low: Lowered) -> tuple[tuple[str, Place], ...]:
    """Return every parameter with its buffer, or with its range of the derived parameter in which it lies."""
    places: dict[str, Place] = {}
    for id, derived in derived_of(graph).items():
        places |= {name: derived.part(name, low.leaf_buffer(id)) for name, _ in derived.sources}
    return tuple((n.name, places[n.name] if n.name in places else low.leaf_buffer(n.id)) for n in graph.parameters)


def _node_buffers(graph: Graph, low: Lowered) -> dict[int, int]:
    """Return the buffer that holds each node's value; of an output that is an alias of a leaf, that of its copy."""
    terms, outputs = low.terms, set(graph.output_ids)
    found: dict[int, int] = {}
    for node, term in enumerate(terms.term_of):
        base = terms.base[term] if term >= 0 else -1
        if base in low.buffer_of:
            copied = node in outputs and base != term and base in low.copies
            found[node] = low.copies[base] if copied else low.buffer_of[base]
    return found


# fates of nodes without a buffer --------------------------------------------------------------------------------------
def _fates(graph: Graph, low: Lowered, node_buffers: dict[int, int]) -> tuple[Fate, ...]:
    """Return the fate of every node without a buffer of its own."""
    terms = low.terms
    first: dict[int, int] = {}
    for d in low.dispatches:
        for node in d.origin:
            first.setdefault(node, d.index)
    nodes, stored, found = graph.nodes, stored_in(graph), []
    for node, term in enumerate(terms.term_of):
        reason = _fate(nodes, terms, node, term, node in node_buffers)
        if term < 0 and nodes[node].op == "parameter":
            reason = f"aliased: a range of {stored[nodes[node].name]}"
        if reason is None:
            continue
        in_chain = low.dispatch_of.get(term, -1) if term >= 0 else -1
        dispatch = in_chain if in_chain >= 0 else first.get(node, -1)
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
    limits = _values(target.limits)
    facts = mode, _values(options), target.kind, target.adapter_class, limits, target.tuning.digest, target.merges
    h.update(repr(facts).encode())
    return h.hexdigest()


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, f.name) for f in fields(record))
