"""Compile a graph to a function: `build_compiled_graph(graph)`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, GraphError, LoadError, SessionError, unknown_name
from gdlab.base.formats import check_boundary
from gdlab.base.kinds import FLAG, NAMED, PATH, kinds
from gdlab.base.types import DType, TensorType
from gdlab.base.words import listed, plural
from gdlab.compiled.active_extent import (
    EXTENT,
    HIDDEN,
    bounded,
    bounded_with_gradients,
    bucket_extent,
    resolve_bucket_axes,
)
from gdlab.compiled.boundary_values import PACKED, Port, TensorSpec, with_packed
from gdlab.compiled.compiled_graph import CompiledGraph, GraphSignature
from gdlab.compiled.expert_routing import ExpertLayer, check_layer, hidden_last, with_hidden_outputs, with_tables
from gdlab.compiled.saved import SavedBoundary, read_saved, refusing
from gdlab.graph import Graph, Value
from gdlab.op.storage import derived_parameters, trained_parameters, written_in_place
from gdlab.ops import pack16, round_to
from gdlab.ops import slice as slice_of
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target
from gdlab.rewrite import OptimizeReport
from gdlab.session import DeviceLike, Session, SessionConfig, build, open_session, resolve_device
from gdlab.session.arrays import aligned
from gdlab.session.values import Values

WHERE = "build_compiled_graph"
DEFAULT: Mapping[str, Any] = MappingProxyType({})
MOST_IN_FLIGHT = 8
DEFAULT_LIMITS = (2, 256 << 20, False)  # max_in_flight, landing_bytes, strict_views
BucketAxes = bool | Mapping[str, int | Sequence[int]]


@kinds(boundary=NAMED, gradients=FLAG, bucket_random=FLAG, strict_views=FLAG)
def build_compiled_graph(
    graph: Graph,
    device: DeviceLike = "auto",
    *,
    optimize: Mapping[str, Any] | None = DEFAULT,
    boundary: Mapping[str, str | DType] | None = None,
    bucket_axes: BucketAxes | None = None,
    gradients: bool = False,
    share_parameters_from: CompiledGraph | Session | None = None,
    max_in_flight: int = 2,
    moe_transient: int = 1,
    landing_bytes: int = 256 << 20,
    strict_views: bool = False,
    bucket_random: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> CompiledGraph:
    """Compile a copy of the graph for a device, and return it as a function to be called.

    `optimize` and `cache` are those of `SessionConfig`. `boundary`: dtypes of inputs and outputs outside, by name;
    inside are f32 and u32. `bucket_axes`: axes of inputs of which a run uses the first entries (`set_active_extent`),
    `{"x": 0, "mask": (2, 3)}`, or True: axis 0 of every input as long as the first; `bucket_random`: random numbers
    along another axis than the leading one may differ then. `gradients`: after the outputs stands the gradient of
    output 0, f32[1], with respect to each parameter. `share_parameters_from`: an open compiled graph or session on the
    same device, whose parameters these are. `max_in_flight`: forwards outstanding, 1 … 8. `moe_transient`: the
    experts that a layer brings from the host at a time (`set_moe_resident_experts`). `landing_bytes`: the most
    that outputs of `run_pipelined` take at a time. `strict_views`: a run is refused while views of the last one are in
    use.
    """
    limits = _checked_limits(max_in_flight, landing_bytes, moe_transient)
    options = CompiledOptions(device, optimize, boundary or {}, bucket_axes, gradients, bucket_random, cache)
    return build_graph(graph, options, share_parameters_from, None, *limits[:2], bool(strict_views), limits[2])


@dataclass(frozen=True, slots=True, eq=False)
class CompiledOptions:
    """The arguments of `build_compiled_graph` that determine the compiled code."""

    device: DeviceLike
    optimize: Mapping[str, Any] | None
    boundary: Mapping[str, str | DType]
    bucket_axes: BucketAxes | None
    gradients: bool
    bucket_random: bool
    cache: str | os.PathLike[str] | None


def build_graph(
    graph: Graph, options: CompiledOptions, other: CompiledGraph | Session | None, shared: Collection[str] | None,
    max_in_flight: int, landing_bytes: int, strict_views: bool, moe_transient: int = 1,
) -> CompiledGraph:  # fmt: skip
    """Compile a graph; `shared`: the parameters that it shares with `other` (None: all)."""
    written, axes, upper, layers = _written(graph, options)
    boundary = _checked_boundary(written, options.boundary)
    given: Any = options.optimize  # `build` checks it
    optimize = dict(given) if isinstance(given, Mapping) else given
    config = SessionConfig(
        "inference", options.device, optimize, cache=options.cache, share_parameters_from=_session_of(other),
        shared=shared,
    )  # fmt: skip
    final = _rounded(written, boundary)
    final = final if options.gradients or graph.num_param_grad_outputs else with_tables(final, layers)
    session, report = build(final, config)
    inputs = _input_ports(session.values, boundary)
    outputs, hidden = _output_ports(final, session, _output_dtypes(final, boundary))
    stored = session.plan().param_types.items()
    params = tuple(TensorSpec(name, type.shape, str(type.dtype)) for name, type in stored)
    caches = set(written_in_place(final).values())
    states = tuple(node.name for node in final.parameters if node.id in caches)
    limits = max_in_flight, landing_bytes, strict_views
    signature = GraphSignature(inputs, outputs, params, states, axes, upper, *limits, layers, hidden, moe_transient)
    made = CompiledGraph(session, report, signature)
    if isinstance(other, CompiledGraph):
        made.share(other)
    elif other is not None:
        made.kin.add(other)
    return made


def compile_session(session: Session, **options: Any) -> CompiledGraph:
    """Return a session's graph as a compiled graph over the same parameters, on the same device; `options` are those of
    `build_compiled_graph`."""
    given = {"device": session.loaded.device, "share_parameters_from": session, **options}
    return build_compiled_graph(session.nodes.written, **given)


@kinds(path=PATH)
def load_compiled_graph(path: str | os.PathLike[str], device: DeviceLike = "auto") -> CompiledGraph:
    """Load the compiled graph that `CompiledGraph.save` wrote; nothing is optimized or lowered. `"auto"`: the kind of
    device that it was compiled for. A file that is damaged, of another version, or of another target than the device
    raises `LoadError`, and nothing is opened."""
    saved = read_saved(path)
    plan, edge = saved.plan, saved.edge
    opened = resolve_device(plan.target.kind if device == "auto" else device)
    what = f"file {os.fspath(path)!r}"
    if opened.target != plan.target:
        told = [f"{t.kind}, {t.adapter_class}, {_digest(t)}" for t in (plan.target, opened.target)]
        raise LoadError("load_compiled_graph", what, f"a plan for {told[0]}", f"one for this device: {told[1]}")
    with refusing(path):
        _check_edge(plan, edge)
        if saved.stored and saved.stored.keys() != dict(plan.stored_params).keys():
            raise LoadError("load_compiled_graph", what, f"parameters {sorted(saved.stored)}", "those of its plan")
        session = open_session(plan, opened)
        try:
            made = CompiledGraph(session, OptimizeReport.empty(), _signature(session, edge))
            made.load_stored(saved.stored, edge.unset)
        except BaseException:
            session.close()
            raise
    return made


def _check_edge(plan: ExecutionPlan, edge: SavedBoundary) -> None:
    """Check the signature of a file against its plan, which is checked already: a run relies on both."""
    where, outputs = "signature", _visible_names(plan.graph)
    inputs = {name: type for name, type in plan.input_types.items() if not name.startswith(HIDDEN)}
    if plan.mode != "inference" or plan.param_grad_pairs:
        raise ArgumentError(where, "plan", f"one for {plan.mode}", "one for inference, without gradients")
    for what, dtypes, names in (("inputs", edge.inputs, list(inputs)), ("outputs", edge.outputs, outputs)):
        if len(dtypes) != len(names):
            raise ArgumentError(where, what, plural(len(dtypes), "dtype"), f"one for each of {listed(names)}")
        for name, dtype in zip(names, dtypes, strict=True):
            check_boundary(where, f"boundary of {name!r}", dtype)
    need = sum(aligned(TensorType(b.shape, b.dtype).size_bytes) for b in plan.buffers)
    if (given := sum(slot.nbytes for slot in plan.memory.slots)) > need:
        raise ArgumentError(where, "memory", f"{given} bytes", f"at most {need}, those of all buffers")
    for value, buffer in zip(plan.graph.outputs, plan.output_buffers, strict=True):
        if value.type.size_bytes != plan.buffers[buffer].nbytes:
            raise ArgumentError(where, "output", str(value.type), f"{plan.buffers[buffer].nbytes} bytes")
    _checked_limits(edge.max_in_flight, edge.landing_bytes, edge.moe_transient)
    for name in (*edge.states, *edge.unset, *(weight for layer in edge.layers for weight in layer.weights)):
        if name not in plan.param_types:
            raise unknown_name(where, "parameter", name, plan.param_types)
    axes, upper = bucket_extent(inputs, dict(edge.axes)) if edge.axes else ({}, None)
    if axes != dict(edge.axes) or upper != edge.upper or (EXTENT in plan.input_types) != (upper is not None):
        raise ArgumentError(where, "bucket axes", f"{edge.axes} of extent {edge.upper}", "those of its plan")
    for number, layer in enumerate(edge.layers):
        check_layer(where, number, layer, plan.graph)


def _digest(target: Target) -> str:
    """Return 8 digits that differ between targets."""
    return hashlib.sha256(repr(target).encode()).hexdigest()[:8]


def _signature(session: Session, edge: SavedBoundary) -> GraphSignature:
    """Return the signature of a graph that is loaded from a file."""
    graph, plan = session.plan().graph, session.plan()
    names = [name for name in session.values.places.inputs if not name.startswith(HIDDEN)]
    inputs = _input_ports(session.values, dict(zip(names, edge.inputs, strict=True)))
    own = [str(value.type.dtype) for value in graph.outputs]
    outputs, hidden = _output_ports(graph, session, [*edge.outputs, *own[len(edge.outputs) :]])
    params = tuple(TensorSpec(name, type.shape, str(type.dtype)) for name, type in plan.param_types.items())
    limits = edge.max_in_flight, edge.landing_bytes, edge.strict_views
    of = inputs, outputs, params, edge.states, dict(edge.axes), edge.upper
    return GraphSignature(*of, *limits, edge.layers, hidden, edge.moe_transient)


# checks ---------------------------------------------------------------------------------------------------------------
def _checked_limits(max_in_flight: object, landing_bytes: object, moe_transient: object) -> tuple[int, int, int]:
    numbers = []
    limits = (
        ("max_in_flight", max_in_flight, MOST_IN_FLIGHT), ("landing_bytes", landing_bytes, 1 << 62),
        ("moe_transient", moe_transient, 1 << 31),
    )  # fmt: skip
    for name, given, most in limits:
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 1 <= given <= most:
            wanted = f"an int in 1 … {most}" if most == MOST_IN_FLIGHT else "an int of 1 or more"
            raise ArgumentError(WHERE, name, repr(given), wanted)
        numbers.append(int(given))
    return numbers[0], numbers[1], numbers[2]


def _checked_boundary(graph: Graph, boundary: Mapping[str, str | DType]) -> dict[str, str]:
    if not isinstance(boundary, Mapping):
        raise ArgumentError(WHERE, "boundary", type(boundary).__name__, "a dict of dtypes by input or output name")
    known = [*(node.name for node in graph.inputs if not node.name.startswith(HIDDEN)), *_visible_names(graph)]
    for name in boundary:
        if name not in known:
            raise unknown_name(WHERE, "input or output", str(name), known)
    return {name: check_boundary(WHERE, f"boundary of {name!r}", dtype) for name, dtype in boundary.items()}


def _session_of(other: CompiledGraph | Session | None) -> Session | None:
    if other is None or isinstance(other, Session):
        return other
    if not isinstance(other, CompiledGraph):
        wanted = "a compiled graph or a session"
        raise SessionError("share_parameters_from", "compiled graph", type(other).__name__, wanted)
    return other.session


# the graph ------------------------------------------------------------------------------------------------------------
def _written(
    graph: Graph, options: CompiledOptions
) -> tuple[Graph, Mapping[str, tuple[int, ...]], int | None, tuple[ExpertLayer, ...]]:
    """Return the graph whose outputs are all that runs return, with hidden ones after them; its bucket axes by input,
    their extent, and its layers of experts."""
    if not isinstance(graph, Graph):
        raise GraphError(WHERE, "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise GraphError(WHERE, "outputs", "none", "graph.set_outputs(...) first")
    for node in graph.inputs:
        if node.name.startswith(HIDDEN):
            raise ArgumentError(WHERE, "input", repr(node.name), f"names that do not begin with {HIDDEN}")
    for name in graph.output_names:
        if name.startswith(HIDDEN):
            raise ArgumentError(WHERE, "output", repr(name), f"names that do not begin with {HIDDEN}")
    if options.gradients and graph.num_param_grad_outputs:
        raise ArgumentError(WHERE, "gradients", "True, of a differentiated graph", "False: it has its gradients")
    if options.bucket_axes is None or options.bucket_axes is False:
        graph, layers = with_hidden_outputs(graph, False)
        plain = _with_plain_gradients(differentiate(graph)[0] if options.gradients else graph)
        return hidden_last(plain), {}, None, layers
    axes, upper = resolve_bucket_axes(graph, options.bucket_axes)
    graph, layers = with_hidden_outputs(graph, True)
    bucket_random = options.bucket_random
    if options.gradients:
        made, _ = bounded_with_gradients(graph, axes, upper, bucket_random=bucket_random)
    else:
        made, _ = bounded(graph, axes, upper, bucket_random=bucket_random)
    return hidden_last(_with_plain_gradients(made)), axes, upper, layers


def _with_plain_gradients(graph: Graph) -> Graph:
    """Return the graph with its gradients as plain outputs `∂{parameter}`, one for each weight of a packed one."""
    gradients = graph.output_ids[graph.num_user_outputs :]
    if not gradients:
        return graph
    trained = trained_parameters(graph)
    alike = len(trained) == len(gradients) and all(
        graph.node(p).type == graph.node(g).type for (p, _), g in zip(trained, gradients, strict=True)
    )
    names = [name for _, name in trained] if alike else [graph.node(g).name.removeprefix("∂") for g in gradients]
    made, packed = graph.copy(), {d.name: d for d in derived_parameters(graph)}
    order = {node.name: node.id for node in graph.parameters}
    found: list[tuple[int, int, str]] = []  # (of the parameter, of the gradient, name)
    with made, made.silent():
        for name, id in zip(names, gradients, strict=True):
            if name not in packed:
                found.append((order.get(name, len(graph)), id, f"∂{name}" if name else ""))
                continue
            whole, derived = made.value(id), packed[name]
            for source, _ in derived.sources:
                part = derived.part(source, 0)
                starts = tuple(part.start if axis == part.axis else 0 for axis in range(whole.type.rank))
                stops = tuple(part.stop if axis == part.axis else n for axis, n in enumerate(whole.shape))
                value = slice_of(whole, starts, stops)
                found.append((order[source], value.id, f"∂{source}"))
    user = list(zip(graph.output_ids, graph.output_names, strict=True))[: graph.num_user_outputs]
    ordered = sorted(found, key=lambda row: row[0]) if alike else found
    made.set_output_ids([*user, *((id, name) for _, id, name in ordered)])
    return made


def _names(graph: Graph) -> list[str]:
    """Return the names of the outputs, `out{i}` for one without a name; `GraphError` if two are the same."""
    names = [name or f"out{i}" for i, name in enumerate(graph.output_names)]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        places = " and ".join(str(i) for i, name in enumerate(names) if name == twice)
        raise GraphError(WHERE, "output names", f"{twice!r} for outputs {places}", "each name once (out{i}: no name)")
    return names


def _visible_names(graph: Graph) -> list[str]:
    """Return the names of the outputs that are not hidden."""
    return [name for name in _names(graph) if not name.startswith(HIDDEN)]


def _rounded(graph: Graph, boundary: Mapping[str, str]) -> Graph:
    """Return the graph with outputs of 16-bit boundaries rounded, so that the device holds the values returned, and
    with their elements in 16 bits as hidden outputs after all others, so that half the bytes are read back."""
    halves = {name for name, dtype in boundary.items() if dtype in ("f16", "bf16")}
    if not halves & set(_names(graph)):
        return graph
    made, ends = graph.copy(), list[tuple[int, str]]()
    rounded: dict[tuple[int, str], Value] = {}
    packed: dict[int, int] = {}  # of an output
    with made, made.silent():
        for index, (id, name, shown) in enumerate(
            zip(graph.output_ids, graph.output_names, _names(graph), strict=True)
        ):
            key = id, boundary.get(shown, "")
            if shown in halves and made.node(id).type.dtype is DType.f32:
                if key not in rounded:
                    rounded[key] = round_to(made.value(id), to=key[1])
                id = rounded[key].id
                packed[index] = pack16(rounded[key], to=key[1]).id
            ends.append((id, name))
    made.set_output_ids([*ends, *((id, f"{PACKED}{index}") for index, id in packed.items())])
    return made


# its edge -------------------------------------------------------------------------------------------------------------
def _input_ports(values: Values, boundary: Mapping[str, str]) -> dict[str, Port]:
    places, found = values.places, {}
    for name, buffer in places.inputs.items():
        if not name.startswith(HIDDEN):
            type = places.types[buffer]
            spec = TensorSpec(name, type.shape, boundary.get(name, str(type.dtype)))
            found[name] = Port(spec, type.dtype, buffer, places.index_bounds.get(name))
    return found


def _output_dtypes(graph: Graph, boundary: Mapping[str, str]) -> list[str]:
    """Return the boundary dtypes of the outputs."""
    pairs = zip(_names(graph), graph.outputs, strict=True)
    return [boundary.get(name, str(value.type.dtype)) for name, value in pairs]


def _output_ports(graph: Graph, session: Session, dtypes: Sequence[str]) -> tuple[tuple[Port, ...], dict[str, Port]]:
    """Return the outputs in order, and after them the hidden ones by name."""
    rows = zip(graph.outputs, _names(graph), session.plan().output_buffers, dtypes, strict=True)
    ports = [Port(TensorSpec(name, v.shape, dtype), v.type.dtype, buffer) for v, name, buffer, dtype in rows]
    count = len(_visible_names(graph))
    hidden = {port.spec.name: port for port in ports[count:]}
    return tuple(with_packed(ports[:count], hidden)), hidden
