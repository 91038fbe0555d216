"""Keep a model's weights on a device, and open plans over them: decode plans with caches of their own by buckets of
cache length, prefill plans by buckets of prompt length over the caches of a decode plan."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.compiled.build_compiled import DEFAULT, DEFAULT_LIMITS, Options, build_graph
from gdlab.compiled.compiled_graph import Signature
from gdlab.devices.base import Device
from gdlab.generate.graphs import caches_of, decode_graph, prefill_graph
from gdlab.graph import Graph
from gdlab.plan.records import ExecutionPlan
from gdlab.rewrite import OptimizeReport
from gdlab.session import open_session
from gdlab.session.node_places import Nodes

LEAST = 8  # rows of a prefill plan, positions of a cache
IN_FLIGHT = 8  # steps


class ModelConfig(Protocol):
    """The extents that `generate` reads."""

    @property
    def vocab_size(self) -> int: ...


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
    signature: Signature

    @classmethod
    def of(cls, graph: CompiledGraph) -> Template:
        """Return what `open` needs."""
        return cls(graph.plan, graph.session.nodes, graph.report, graph.signature)

    def open(self, other: CompiledGraph, names: Collection[str] | None) -> CompiledGraph:
        """Return a compiled graph that has the parameters of another (None: all of them), and memory for the rest."""
        device = other.session.loaded.device
        session = open_session(self.plan, device, self.nodes, other.session, names)
        made = CompiledGraph(session, self.report, self.signature)
        made.share(other)
        return made


class Plans:
    """The plans of one model on one device. The first decode plan stays open and holds the weights, which all others
    share; each sequence has caches of its own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._holder: CompiledGraph | None = None
        self._decode: dict[int, Template] = {}  # by cache length
        self._prefill: dict[tuple[int, int], Template] = {}  # by rows and cache length
        self._lock = threading.RLock()

    def decode(self, model: LanguageModel, length: int) -> CompiledGraph:
        """Return a decode plan with caches of `length` positions that begin at zero."""
        with self._lock:
            template = self._decode.get(length) or self._compile_decode(model, length)
            assert self._holder is not None
            weights = [name for name in self._holder.param_names if name not in self._holder.states]
            opened = template.open(self._holder, weights)
        opened.reset_state()
        return opened

    def prefill(self, model: LanguageModel, rows: int, decode: CompiledGraph) -> CompiledGraph:
        """Return a plan that reads a prompt of at most `rows` tokens into the caches of a decode plan."""
        caches = {name: decode.plan.param_types[name] for name in decode.states}
        length = next(iter(caches.values())).shape[0]
        with self._lock:
            template = self._prefill.get((rows, length))
            if template is not None:
                return template.open(decode, None)
            graph = prefill_graph(model.at(mode="prefill", length=rows).graph, caches)
            made = build_compiled_graph(graph, self.device, share_parameters_from=decode)
            self._prefill[rows, length] = Template.of(made)
            return made

    def close(self) -> None:
        """Release the weights; sequences that are open keep theirs."""
        with self._lock:
            holder, self._holder = self._holder, None
            self._decode.clear()
            self._prefill.clear()
        if holder is not None:
            holder.close()

    def _compile_decode(self, model: LanguageModel, length: int) -> Template:
        at = model.at(mode="decode", length=length)
        graph = decode_graph(at.graph)
        if self._holder is None:
            holder = build_compiled_graph(graph, self.device, max_in_flight=IN_FLIGHT)
            try:
                at.set_parameters(holder.session)
                holder.reset_state()
            except BaseException:
                holder.close()
                raise
            self._holder = holder
            template = Template.of(holder)
        else:
            made = _over(graph, self._holder, self.device)
            template = Template.of(made)
            made.close()
        self._decode[length] = template
        return template


def _over(graph: Graph, holder: CompiledGraph, device: Device) -> CompiledGraph:
    """Compile a decode graph of another cache length over the same weights."""
    caches = caches_of(graph)
    weights = [node.name for node in graph.parameters if node.name not in caches]
    options = Options(device, DEFAULT, {}, None, False, False, None)
    return build_graph(graph, options, holder, weights, IN_FLIGHT, *DEFAULT_LIMITS[1:])


def copy_caches(source: CompiledGraph, target: CompiledGraph) -> None:
    """Copy the rows of all caches into longer ones, through the host."""
    for name in source.states:
        longer = np.zeros(target.plan.param_types[name].shape, np.float32)
        rows = source.read_param(name)
        longer[: len(rows)] = rows
        target.set_param(name, longer)
