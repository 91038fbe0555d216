"""Look into a session: the value of any node, a step that reports what is not finite, norms, memory, the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from gdlab.base.errors import Aliased, ArgumentError, FusedAway, GraphError, UnknownName, UnknownNode, unknown_name
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.devices.base import DeviceInfo, owner
from gdlab.graph import Value
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, Place
from gdlab.session.arrays import is_real
from gdlab.session.memory import MemorySummary, summary
from gdlab.session.steps import Steps

Space = Literal["forward", "full"]
Row = TypeVar("Row")
_REMEDY = "a session built with SessionConfig.debug(), which keeps every node that the optimizer leaves"
_EXPONENT, _FRACTION = np.uint32(0x7F800000), np.uint32(0x007FFFFF)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A dispatch whose output holds NaN or an infinity: `max_abs` is of the finite elements (0 if there are none),
    `first_index` the flat index of the first bad one, `origin` the nodes of the compiled graph that it computes.
    `dropped`: which rows a cache write did not write, because they do not fit, or an empty string."""

    dispatch: int
    label: str
    origin: tuple[int, ...]
    has_nan: bool
    has_inf: bool
    max_abs: float
    first_index: int
    dropped: str = ""

    def __str__(self) -> str:
        if not self.has_nan and not self.has_inf:
            return f"dispatch {self.dispatch} ({self.label}): {self.dropped}"
        what = " and ".join(word for word, there in (("NaN", self.has_nan), ("inf", self.has_inf)) if there)
        return f"dispatch {self.dispatch} ({self.label}): {what} from element {self.first_index} on"


@dataclass(frozen=True, slots=True)
class DebugStepReport:
    """What a step that was looked at found, in order of the dispatches. `skipped_aliased` are dispatches whose output
    was overwritten before it could be looked at: none, because groups are run one by one."""

    step: int
    scanned: int
    anomalies: tuple[Anomaly, ...]
    skipped_aliased: tuple[int, ...] = ()

    def first_bad(self) -> Anomaly | None:
        """The first dispatch whose output is not finite, or whose rows were dropped."""
        return self.anomalies[0] if self.anomalies else None

    def __str__(self) -> str:
        if not self.anomalies:
            return f"step {self.step}: {plural(self.scanned, 'output')}, all finite"
        bad = sum(a.has_nan or a.has_inf for a in self.anomalies)
        lost = len(self.anomalies) - bad
        told = [f"{bad} of {plural(self.scanned, 'output')} {'is' if bad == 1 else 'are'} not finite"] if bad else []
        told += [f"{plural(lost, 'cache write')} dropped"] if lost else []
        lines = [f"step {self.step}: {', '.join(told)}"]
        return "\n".join([*lines, *(f"  {a}" for a in self.anomalies)])


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A dispatch whose output is suspicious."""

    index: int
    label: str
    max_abs: float
    nan: bool
    inf: bool


@dataclass(frozen=True, slots=True)
class _Scan:
    nan: bool
    inf: bool
    max_abs: float
    first: int


class Inspection(Steps):
    """`read_node`, `step_debug`, `trace_dispatches`, norms, memory, and what is known of plan and device."""

    # nodes ------------------------------------------------------------------------------------------------------------
    def read_node(self, node: int | Value, space: Space = "forward") -> Array:
        """The value of a node after a step, in its shape: an id or Value of the graph as written, or (`space="full"`)
        of the graph that is compiled, gradients included. A node that was rewritten into an equal one has its value."""
        self._alive("read_node")
        if space not in ("forward", "full"):
            raise ArgumentError("read_node", "space", repr(space), "'forward' or 'full'")
        graph = self._nodes.written if space == "forward" else self._plan.graph
        id = self._node_id(node, space)
        self._stepped("read_node", f"node {id}")
        at = self._nodes.place.get(id) if space == "forward" else id
        if at is None:
            raise self._fused(id, self._nodes.why.get(id, "the optimizer"))
        return self._value_of(id, at).reshape(graph.nodes[id].type.shape)

    def read_node_by_name(self, name: str) -> Array:
        """The value of the last node of that name in the graph as written."""
        self._alive("read_node_by_name")
        known = {n.name: n.id for n in self._nodes.written if n.name}
        if not isinstance(name, str) or name not in known:
            told = unknown_name("read_node_by_name", "name", str(name), known)
            raise UnknownName(told.where, told.what, told.given, told.wanted, name=name, known=tuple(known))
        return self.read_node(known[name])

    def node_names(self) -> list[str]:
        """The names of the graph as written, in node order: what `read_node_by_name` takes."""
        self._alive("node_names")
        return list(dict.fromkeys(n.name for n in self._nodes.written if n.name))

    def _node_id(self, node: Any, space: Space) -> int:
        graph = self._nodes.written if space == "forward" else self._plan.graph
        if isinstance(node, Value):
            mine = (self._nodes.written, self._nodes.home) if space == "forward" else (graph,)
            if not any(node.graph is g for g in mine):
                raise GraphError("read_node", "node", "a Value of another graph", "one of the graph of this session")
            node = node.id
        if not isinstance(node, (int, np.integer)) or isinstance(node, bool) or not 0 <= node < len(graph):
            wanted = f"0 … {len(graph) - 1}: {plural(len(graph), 'node')}"
            raise UnknownNode("read_node", "node", repr(node), wanted, id=node, count=len(graph))
        return int(node)

    def _value_of(self, id: int, at: int) -> Array:
        """The value of node `at` of the compiled graph."""
        buffer = self._plan.node_buffers.get(at)
        if buffer is None and self._plan.graph.nodes[at].op == "parameter":
            return self._download(self._parameters[self._plan.graph.nodes[at].name])
        if buffer is None:
            dispatch, reason = self._plan.fused_nodes.get(at, (-1, "the planner"))
            if reason.startswith("folded: the literal "):
                node = self._plan.graph.nodes[at]
                value = float(reason.split(",")[0].removeprefix("folded: the literal "))
                return np.full(node.type.shape, value, node.type.dtype.numpy)
            label = f"dispatch {dispatch} ({self._plan.dispatches[dispatch].label})" if dispatch >= 0 else reason
            raise self._fused(id, label)
        memory = self._plan.memory
        slot = memory.slot_of[buffer]
        tenants = memory.slots[slot].tenants
        later = tenants[tenants.index(buffer) + 1 :]
        if later:
            names = tuple(self._plan.buffers[b].name or f"buffer {b}" for b in later)
            given = f"slot {slot}, which {', '.join(names)} took over"
            raise Aliased("read_node", f"node {id}", given, _REMEDY, node=id, slot=slot, later=names)
        return self._download(buffer)

    def _fused(self, id: int, by: str) -> FusedAway:
        return FusedAway("read_node", f"node {id}", f"one that went into {by}", _REMEDY, node=id, by=by)

    # steps that are looked at -----------------------------------------------------------------------------------------
    def step_debug(self) -> DebugStepReport:
        """One real step, its update included, that looks at all elements of every dispatch's output, by bits: group by
        group, before anything lies where they lie."""
        self.check_ready("step_debug")
        self._between_steps("step_debug")
        return owner().call(self._step_debug_now)

    def _step_debug_now(self) -> DebugStepReport:
        way, found = self.begin_now(), list[tuple[Dispatch, _Scan, str]]()
        for stop in (*(group.stop for group in self._plan.groups), len(way.dispatches)):
            made = way.dispatches[way.at : stop]
            if not way.over:
                self.advance_now(stop, returns=False)
            found += [(d, _scan(self._result_now(d)), self._dropped(d)) for d in made]
        bad = tuple(
            Anomaly(d.index, d.label, d.origin, s.nan, s.inf, s.max_abs, s.first, dropped)
            for d, s, dropped in found if s.nan or s.inf or dropped
        )  # fmt: skip
        return DebugStepReport(self._steps, len(found), bad)

    def _dropped(self, d: Dispatch) -> str:
        """Which rows a cache write that has just run left out."""
        if d.custom is None or not d.custom.form.startswith("cache_"):
            return ""
        given = {n: int(self._program.download(o.buffer).reshape(-1)[0]) for n, o in zip(d.custom.names, d.operands,
                 strict=False) if n in ("pos", "count")}  # fmt: skip
        start, rows = given["pos"], min(given.get("count", d.custom["NEW"]), d.custom["NEW"])
        if start + rows <= d.custom["ROWS"]:
            return ""
        return f"rows {start} … {start + rows - 1} do not fit in a cache of {d.custom['ROWS']}: nothing is written"

    def dispatch_outputs(self) -> list[tuple[Dispatch, Array]]:
        """Every dispatch with its output, in order, read before anything lies where it lies. Runs forward and backward
        group by group with the values as they are; no update, and no step is counted."""
        self.check_ready("dispatch_outputs")
        self._between_steps("dispatch_outputs")
        return owner().call(lambda: self._kept_now(lambda: list(self._run_read())))

    def _kept_now(self, look: Callable[[], list[Row]]) -> list[Row]:
        """What `look` finds; the caches that the plan writes are then as they were."""
        caches = {b: self._program.download(b) for d in self._plan.dispatches for b in d.in_place}
        found = look()
        for buffer, data in caches.items():
            self._program.upload(buffer, data)
        return found

    def _run_read(self) -> Iterator[tuple[Dispatch, Array]]:
        for group in self._plan.groups:
            self._program.run(group.start, group.stop, self._scalars_now(self._adam_steps))
            for d in self._plan.dispatches[group.start : group.stop]:
                yield d, self._result_now(d)

    def _result_now(self, d: Dispatch) -> Array:
        """What a dispatch has just written; ranges of columns side by side."""
        if d.ranges is None:
            return self._program.download(d.output)
        rows = d.output_type.shape[0]
        return np.concatenate([self._program.download(b).reshape(rows, -1) for b in d.outputs], 1)

    def _run_scanned(self) -> Iterator[tuple[Dispatch, _Scan]]:
        return ((d, _scan(data)) for d, data in self._run_read())

    def trace_dispatches(self, threshold: float = 1e6) -> list[TraceRow]:
        """Dispatches whose output is not finite, above `threshold` somewhere, or all zero with more than 100 elements.
        Runs forward and backward group by group with the values as they are; no update, and no step is counted."""
        self.check_ready("trace_dispatches")
        self._between_steps("trace_dispatches")
        if not is_real(threshold) or threshold < 0:
            raise ArgumentError("trace_dispatches", "threshold", repr(threshold), "a finite number ≥ 0")
        rows = []
        for d, s in owner().call(lambda: self._kept_now(lambda: list(self._run_scanned()))):
            empty = s.max_abs == 0 and d.num_elements > 100
            if s.nan or s.inf or s.max_abs > threshold or empty:
                rows.append(TraceRow(d.index, d.label, s.max_abs, s.nan, s.inf))
        return rows

    # norms ------------------------------------------------------------------------------------------------------------
    def read_all_param_norms(self) -> list[tuple[str, float]]:
        """(name, L2 norm) of every parameter in node order, accumulated in float64."""
        self._alive("read_all_param_norms")
        return self._norms(list(self._parameters.items()))

    def read_all_param_grad_norms(self) -> list[tuple[str, float]]:
        """(name, L2 norm) of every gradient of the last step in node order, accumulated in float64."""
        self._trainable("read_all_param_grad_norms")
        self._stepped("read_all_param_grad_norms", "gradients")
        return self._norms([(n, self._gradients[b]) for n, b in self._parameters.items() if b in self._gradients])

    def _norms(self, buffers: Sequence[tuple[str, Place]]) -> list[tuple[str, float]]:
        read = owner().call(lambda: [self._read_now(b) for _, b in buffers])
        with np.errstate(all="ignore"):
            return [
                (name, float(np.sqrt(np.sum(np.square(data, dtype=np.float64)))))
                for (name, _), data in zip(buffers, read, strict=True)
            ]

    def dump_grad_summary(self, top_n: int = 10) -> str:
        """Print, and return, the parameters with the largest gradients (NaN first), their norms and the ratio."""
        if not isinstance(top_n, (int, np.integer)) or isinstance(top_n, bool) or top_n < 0:
            raise ArgumentError("dump_grad_summary", "top_n", repr(top_n), "an int ≥ 0")
        gradients, weights = self.read_all_param_grad_norms(), dict(self.read_all_param_norms())
        ordered = sorted(gradients, key=lambda pair: (not np.isnan(pair[1]), -pair[1] if pair[1] == pair[1] else 0))
        lines = [f"--- top {min(top_n, len(ordered))} param grads (out of {len(ordered)} with grads) ---"]
        for name, g in ordered[:top_n]:
            w = weights[name]
            lines.append(f"  {name:>40}  ‖g‖={g:.3e}  ‖w‖={w:.3e}  g/w={g / w if w else float('nan'):.3e}")
        text = "\n".join(lines)
        print(text)
        return text

    # what is known ----------------------------------------------------------------------------------------------------
    def memory_summary(self) -> MemorySummary:
        """What is allocated now."""
        self._alive("memory_summary")
        return summary(self._plan, self._state_buffers)

    def plan(self) -> ExecutionPlan:
        """The plan that really runs."""
        self._alive("plan")
        return self._plan

    def num_groups(self) -> int:
        """Barrier groups per step, the update's included."""
        self._alive("num_groups")
        return len(self._plan.groups) + len({d.group for d in self._update.dispatches})

    def device_information(self) -> str:
        """The device in one line."""
        self._alive("device_information")
        return f"{self._device.info}: {self._device.info.reason}"

    @property
    def device(self) -> DeviceInfo:
        """Kind, name and class of the device, and why it was chosen."""
        return self._device.info

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        return self._plan.mode


def by_buffer(d: Dispatch, data: Array) -> Iterator[tuple[int, Array]]:
    """(buffer, what it wrote there) of a dispatch, from what `dispatch_outputs` tells of it."""
    ends = [0] if d.ranges is None else list(accumulate((c.stop - c.start for c in d.ranges.columns), initial=0))
    parts = [data] if d.ranges is None else [data[:, a:b] for a, b in pairwise(ends)]
    return zip(d.outputs, parts, strict=True)


def _scan(data: Array) -> _Scan:
    """By bits: an exponent of all ones is NaN with a fraction, an infinity without."""
    if data.dtype != np.float32:
        return _Scan(False, False, float(data.max(initial=0)), -1)
    bits = data.reshape(-1).view(np.uint32)
    special = (bits & _EXPONENT) == _EXPONENT
    if not special.any():
        return _Scan(False, False, float(np.abs(data).max(initial=0)), -1)
    nan = special & ((bits & _FRACTION) != 0)
    finite = np.abs(data.reshape(-1)[~special]).max(initial=0)
    return _Scan(bool(nan.any()), bool((special & ~nan).any()), float(finite), int(special.argmax()))
