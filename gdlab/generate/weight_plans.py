"""Keep a model's weights on a device, and open plans over them: decode plans with caches of their own by buckets of
cache length, prefill plans by buckets of prompt length over the caches of a decode plan."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gdlab.base.closing import Closing
from gdlab.base.types import TensorType
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.compiled.build_compiled import DEFAULT, DEFAULT_LIMITS, CompiledOptions, build_graph
from gdlab.compiled.compiled_graph import GraphSignature
from gdlab.devices.base import Device, SharedBuffers
from gdlab.generate.batched_decode import batched
from gdlab.generate.graphs import POSITION, caches_of, decode_graph, prefill_graph
from gdlab.graph import Graph
from gdlab.plan.records import ExecutionPlan
from gdlab.rewrite import OptimizeReport
from gdlab.session import Session
from gdlab.session.loaded import LoadedPlan
from gdlab.session.node_places import Nodes

LEAST = 8  # rows of a prefill plan, positions of a cache
IN_FLIGHT = 8  # steps
MOST_SEQUENCES = 8  # sequences of a decode plan at most


@runtime_checkable
class LanguageModel(Protocol):
    """A model that has graphs to read a prompt and to write token by token, over the same weights. `positions`: the
    most that it was made for, None where it does not say; `end_tokens`: those that end a text."""

    @property
    def graph(self) -> Graph: ...
    @property
    def config(self) -> Any: ...
    @property
    def folder(self) -> Any: ...
    @property
    def positions(self) -> int | None: ...
    @property
    def end_tokens(self) -> tuple[int, ...]: ...
    def at(self, mode: Any = ..., length: Any = ...) -> LanguageModel: ...
    def set_parameters(self, session: Any) -> None: ...


def bucket(count: int, most: int | None = None) -> int:
    """Return the power of two ≥ `count` and ≥ 8, or `most` where that is less."""
    power = max(LEAST, 1 << (count - 1).bit_length())
    return power if most is None else min(power, most)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A compiled graph without its memory."""

    plan: ExecutionPlan
    nodes: Nodes
    report: OptimizeReport
    signature: GraphSignature

    @classmethod
    def of(cls, graph: CompiledGraph) -> Template:
        """Return the template of a compiled graph."""
        return cls(graph.plan, graph.session.nodes, graph.report, graph.signature)

    def open(self, other: CompiledGraph, names: Mapping[str, str]) -> CompiledGraph:
        """Return a compiled graph with memory of its own but for some parameters: `names` has the parameter of another
        graph for each of these."""
        loaded, holders = other.session.loaded, other.session.values.unset_parameters.holders
        theirs, plan = dict(loaded.plan.stored_params), self.plan
        packed = {d.name: d.name for d in plan.derived_params}
        homes = {**names, **packed}  # a packed parameter is the same in all plans of the weights
        pairs = tuple((buffer, theirs[homes[name]]) for name, buffer in plan.stored_params if name in homes)
        common = {ours: holders[name] for ours, name in names.items()}
        made = Session(LoadedPlan(plan, loaded.device, SharedBuffers(loaded.program, pairs)), self.nodes, common)
        compiled = CompiledGraph(made, self.report, self.signature)
        compiled.share(other)
        return compiled


class Plans(Closing):
    """The plans of one model on one device. The first decode plan stays open and holds the weights, which all others
    share; the caches of its sequences lie one behind the other."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._holder: CompiledGraph | None = None
        self._decode: dict[tuple[int, int], Template] = {}  # by cache length and sequences
        self._prefill: dict[tuple[int, int, int], Template] = {}  # by rows, cache length and sequences
        self._widest = 0  # elements of a row of the widest cache
        self._lock = threading.RLock()

    def together(self, model: LanguageModel, positions: int) -> int:
        """Return the most sequences of a decode plan whose caches of so many positions a kernel can bind."""
        if not self._widest:
            self._widest = max(type.shape[1] for type in caches_of(model.at(mode="decode", length=1).graph).values())
        room = self.device.target.limits.binding_bytes // (4 * self._widest * bucket(positions, model.positions))
        return max(1, min(MOST_SEQUENCES, room))

    def decode(self, model: LanguageModel, length: int, sequences: int = 1) -> CompiledGraph:
        """Return a decode plan of so many sequences, each with caches of `length` positions that begin at zero."""
        with self._lock:
            template = self._decode.get((length, sequences)) or self._compile_decode(model, length, sequences)
            assert self._holder is not None
            weights = {name: name for name in self._holder.param_names if name not in self._holder.states}
            opened = template.open(self._holder, weights)
        opened.session.values.unset_parameters.have(opened.states)  # memory of a plan that is opened is zero
        return opened

    def prefill(self, model: LanguageModel, rows: int, decode: CompiledGraph) -> CompiledGraph:
        """Return a plan that reads a prompt of at most `rows` tokens into the caches of a decode plan, from row
        `cache_start` on: those of sequence i begin at row i · `cache_length`."""
        key = rows, cache_length(decode), sequences_of(decode)
        with self._lock:
            template = self._prefill.get(key) or self._compile_prefill(model, *key)
        return template.open(decode, {name: name for name in template.plan.param_types})

    def close(self) -> None:
        """Release the weights; open sequences keep theirs."""
        with self._lock:
            holder, self._holder = self._holder, None
            self._decode.clear()
            self._prefill.clear()
        if holder is not None:
            holder.close()

    def _compile_decode(self, model: LanguageModel, length: int, sequences: int) -> Template:
        at = model.at(mode="decode", length=length)
        graph = decode_graph(batched(at.graph, sequences), length)
        if self._holder is None:
            self._holder = _filled(build_compiled_graph(graph, self.device, max_in_flight=IN_FLIGHT), at)
            made = Template.of(self._holder)
        else:
            made = self._template(graph, caches_of(graph))
        self._decode[length, sequences] = made
        return made

    def _compile_prefill(self, model: LanguageModel, rows: int, length: int, sequences: int) -> Template:
        caches = {
            name: TensorType((sequences * length, type.shape[1]))
            for name, type in caches_of(model.at(mode="decode", length=length).graph).items()
        }
        graph = prefill_graph(model.at(mode="prefill", length=rows).graph, caches)
        made = self._prefill[rows, length, sequences] = self._template(graph, caches)
        return made

    def _template(self, graph: Graph, caches: Collection[str]) -> Template:
        """Compile a graph over the same weights."""
        weights = [node.name for node in graph.parameters if node.name not in caches]
        options = CompiledOptions(self.device, DEFAULT, {}, None, False, False, None)
        with build_graph(graph, options, self._holder, weights, IN_FLIGHT, *DEFAULT_LIMITS[1:]) as made:
            return Template.of(made)


def _filled(holder: CompiledGraph, model: LanguageModel) -> CompiledGraph:
    """Give a decode plan the weights; release it if that fails."""
    try:
        model.set_parameters(holder.session)
        holder.reset_state()
    except BaseException:
        holder.close()
        raise
    return holder


def sequences_of(decode: CompiledGraph) -> int:
    """Return the sequences that a decode plan writes."""
    return decode.plan.input_types[POSITION].shape[0]


def cache_length(decode: CompiledGraph) -> int:
    """Return the positions of each sequence in the caches of a decode plan."""
    return int(decode.plan.param_types[decode.states[0]].shape[0]) // sequences_of(decode)


def copy_caches(source: CompiledGraph, target: CompiledGraph) -> None:
    """Copy the rows of all caches into longer ones, through the host."""
    sequences = sequences_of(source)
    for name in source.states:
        longer = np.zeros(target.plan.param_types[name].shape, np.float32)
        rows = source.read_param(name)
        by_sequence = longer.reshape(sequences, -1, rows.shape[1])
        by_sequence[:, : len(rows) // sequences] = rows.reshape(sequences, -1, rows.shape[1])
        target.set_param(name, longer)
