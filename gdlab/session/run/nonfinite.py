"""Find NaN and infinity: `session.search.first_bad()` names the first dispatch whose output is not finite.

Outputs are judged by their bits: compilers fold NaN ≠ NaN to false.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.statistics import value_words
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.graph import ConstantData
from gdlab.op import REGISTRY
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, PlanBuffer
from gdlab.plan.update import parts_of
from gdlab.session.arrays import is_real
from gdlab.session.inspect import Inspection, Results, by_buffer

_EXPONENT, _FRACTION = np.uint32(0x7F800000), np.uint32(0x007FFFFF)


# results --------------------------------------------------------------------------------------------------------------
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
    """The anomalies of a scanned step, in order of the dispatches. `skipped_aliased` are dispatches whose output
    was overwritten before it could be looked at: none, because groups are run one by one."""

    step: int
    scanned: int
    anomalies: tuple[Anomaly, ...]
    skipped_aliased: tuple[int, ...] = ()

    def first_bad(self) -> Anomaly | None:
        """Return the first dispatch whose output is not finite, or whose rows were dropped."""
        return self.anomalies[0] if self.anomalies else None

    def __str__(self) -> str:
        if not self.anomalies:
            return f"step {self.step}: {plural(self.scanned, 'output')}, all finite"
        bad = sum(a.has_nan or a.has_inf for a in self.anomalies)
        lost = len(self.anomalies) - bad
        parts = [f"{bad} of {plural(self.scanned, 'output')} {'is' if bad == 1 else 'are'} not finite"] if bad else []
        parts += [f"{plural(lost, 'cache write')} dropped"] if lost else []
        lines = [f"step {self.step}: {', '.join(parts)}"]
        return "\n".join([*lines, *(f"  {a}" for a in self.anomalies)])


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A dispatch whose output is suspicious: not finite, large, or all zero."""

    index: int
    label: str
    max_abs: float
    nan: bool
    inf: bool


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first dispatch whose output is not finite: `nodes` of the compiled graph that it computes, `node` the first
    of them that is not finite, `place` its source line, `first` the flat index of the first bad element, `inputs` what
    it read, in words."""

    dispatch: int
    label: str
    nodes: tuple[int, ...]
    node: int
    op: str
    what: str
    first: int
    place: str
    inputs: tuple[str, ...]
    spoiled: tuple[str, ...]

    def __str__(self) -> str:
        place = f", {self.place}" if self.place else ""
        read = f"; it read {', '.join(self.inputs)}" if self.inputs else ""
        count, names = len(self.spoiled), ", ".join(self.spoiled[:1])
        also = f"; {count} parameter{'s were' if count > 1 else ' was'} not finite before it: {names}"
        also += " first" if count > 1 else ""
        head = f"first {self.what}: dispatch {self.dispatch}, {self.label}"
        return f"{head}: {self.op}{place}, from element {self.first} on{read}{also if self.spoiled else ''}"


# the search -----------------------------------------------------------------------------------------------------------
class NonfiniteSearch:
    """A search that runs a step group by group and scans all elements of every output. Methods without a docstring are
    those of `Session`."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def step_debug(self) -> DebugStepReport:
        self._check("step_debug")
        return self.inspection.loaded.turn.call(self._step_debug)

    def trace_dispatches(self, threshold: float) -> list[TraceRow]:
        self._check("trace_dispatches")
        if not is_real(threshold) or threshold < 0:
            raise ArgumentError("trace_dispatches", "threshold", repr(threshold), "a finite number ≥ 0")
        rows = []
        for d, s in self.inspection.each_dispatch(lambda d, results: (d, scan_all(results))):
            empty = s.max_abs == 0 and d.num_elements > 100
            if s.nan or s.inf or s.max_abs > threshold or empty:
                rows.append(TraceRow(d.index, d.label, s.max_abs, s.nan, s.inf))
        return rows

    def first_bad(self) -> Culprit | None:
        """Return the first dispatch that gives NaN or infinity with the values as they are now, None where all outputs
        are finite. Runs forward and backward once and counts no step."""
        self._check("dispatch_outputs")
        return self._first_bad_output(None)

    def first_bad_of(self, step: int) -> Culprit | None:
        """Search step `step` (from 0) whole, its update included, from the state before it. Counts nothing; the update
        has been made where None is returned, and the caller restores the state. Called on the owner thread."""
        culprit = self._first_bad_output(step)
        if culprit is not None:
            return culprit
        steps, known = self.inspection.steps, len(self.inspection.loaded.plan.dispatches)
        numbers = steps.scalars(steps.updates.next_step()[1], step)
        for k, dispatch in enumerate(steps.dispatches()[known:], known):
            read = {b: self.inspection.loaded.program.download(b) for b in dispatch.reads}
            self.inspection.loaded.program.run(k, k + 1, numbers)
            if (culprit := self.written_bad(dispatch, read)) is not None:
                return culprit
        return None

    def written_bad(self, dispatch: Dispatch, read: Mapping[int, Array] | None = None) -> Culprit | None:
        """Return a dispatch that has just run if one of its results is not finite, else None; `read`: its operands, by
        default as they lie there now."""
        for d in parts_of(dispatch):
            states = [self.inspection.loaded.program.download(b) for b in d.in_place if b not in d.outputs]
            culprit = self._judged(d, (*self.inspection.values.read_results(d), *states), read or {})
            if culprit is not None:
                return culprit
        return None

    def _first_bad_output(self, step: int | None) -> Culprit | None:
        written = dict[int, Array]()
        # what is not finite stays where it is found
        for dispatch, results in self.inspection.each_dispatch(lambda d, results: (d, results), step, keep=False):
            if (culprit := self._judged(dispatch, results, written)) is not None:
                return culprit
            written |= by_buffer(dispatch, results)
        return None

    def _judged(self, dispatch: Dispatch, results: Results, written: Mapping[int, Array]) -> Culprit | None:
        for data in results:
            bad = nonfinite_elements(data)
            if bad.any():
                return self._culprit(dispatch, data, int(bad.argmax()), written)
        return None

    def bad_tensors(self) -> tuple[str, ...]:
        """Return the parameters that are not finite, then the gradients of the last step that are not."""
        names = self.bad_parameters()
        if self.inspection.loaded.plan.mode == "training" and self.inspection.steps.progress.steps:
            norms = self.inspection.grad_norms()
            names += [f"the gradient of {name}" for name, norm in norms if not math.isfinite(norm)]
        return tuple(names)

    def _check(self, where: str) -> None:
        self.inspection.values.check_ready(where)
        self.inspection.steps.progress.check_between_steps(where)

    def _step_debug(self) -> DebugStepReport:
        plan, values, steps = self.inspection.loaded.plan, self.inspection.values, self.inspection.steps
        step, scans = steps.begin(), list[tuple[Dispatch, Scan, str]]()
        count = len(step.dispatches) - step.position
        for stop in (*(group.stop for group in plan.groups), len(step.dispatches)):
            ran = [d for whole in step.dispatches[step.position : stop] for d in parts_of(whole)]
            if not step.over:
                steps.advance(stop, reversible=False)
            scans += [(d, scan_all(values.read_results(d)), self._dropped_rows(d)) for d in ran]
        bad = tuple(
            Anomaly(d.index, d.label, d.origin, s.nan, s.inf, s.max_abs, s.first, dropped)
            for d, s, dropped in scans if s.nan or s.inf or dropped
        )  # fmt: skip
        return DebugStepReport(steps.progress.steps, count, bad)

    def _dropped_rows(self, d: Dispatch) -> str:
        """Return which rows a cache write that has just run left out, in words."""
        if d.custom is None or not d.custom.form.startswith("cache_"):
            return ""
        operands = zip(d.custom.names, d.operands, strict=False)
        read = {n: self.inspection.values.read(o.buffer).ravel() for n, o in operands if n in ("pos", "count")}
        caches = d.custom["CACHES"]
        new, capacity = d.custom["NEW"] // caches, d.custom["ROWS"] // caches
        rows = min(int(read["count"][0]), new) if "count" in read else new
        late = [(own, int(start)) for own, start in enumerate(read["pos"]) if int(start) + rows > capacity]
        if not late:
            return ""
        (own, start), more = late[0], f", nor in {plural(len(late) - 1, 'other')}" if len(late) > 1 else ""
        which = "a cache" if caches == 1 else f"cache {own} of {caches},"
        return f"rows {start} … {start + rows - 1} do not fit in {which} of {capacity}{more}: nothing is written"

    def bad_parameters(self, but: Container[int] = ()) -> list[str]:
        """Return the parameters that are not finite, except those that lie in the buffers `but`."""
        places = self.inspection.values.places.parameters
        rows = [(name, norm, places[name]) for name, norm in self.inspection.param_norms()]
        bad = [(name, place if isinstance(place, int) else place.buffer) for name, norm, place in rows
               if not math.isfinite(norm)]  # fmt: skip
        return [name for name, buffer in bad if buffer not in but]

    def _culprit(self, d: Dispatch, data: Array, first: int, written: Mapping[int, Array]) -> Culprit:
        plan = self.inspection.loaded.plan
        what = "NaN" if np.isnan(data.reshape(-1)[first]) else "infinity"
        reads = {b: written[b] if b in written else self.inspection.values.read(b) for b in dict.fromkeys(d.reads)}
        node = _first_node(plan, d, reads)
        op = plan.graph.nodes[node].op if node >= 0 and d.phase != "update" else d.entry
        source = plan.graph.source(node) if node >= 0 else ()
        place = f"line {source[0].line} of {source[0].file}" if source else ""
        buffers = {b.id: b for b in (*plan.buffers, *self.inspection.steps.updates.state_buffers)}
        inputs = tuple(
            _described(plan, buffers[b], data) for b, data in reads.items() if b not in d.outputs or b in d.in_place
        )
        ours = {b for b in d.in_place if b not in written or not nonfinite_elements(written[b]).any()}
        return Culprit(
            d.index, d.label, d.origin, node, op, what, first, place, inputs, tuple(self.bad_parameters(ours))
        )


def _first_node(plan: ExecutionPlan, d: Dispatch, reads: Mapping[int, Array]) -> int:
    """Return the first node of a dispatch whose value is not finite, by the reference, from the dispatch's operands;
    else its last node; −1 for a dispatch without nodes (an update)."""
    graph, values = plan.graph, dict[int, Array]()
    for buffer, data in reads.items():
        for id in plan.buffers[buffer].nodes:
            if data.size == graph.nodes[id].type.num_elements:
                values[id] = data.reshape(graph.nodes[id].type.shape)
    inside = set(d.origin)
    pending = [i for id in inside for i in graph.nodes[id].inputs]
    while pending:  # literals and views between what was read and what is computed
        id = pending.pop()
        if id not in values and id not in inside:
            inside.add(id)
            pending += graph.nodes[id].inputs
    for id in sorted(inside):
        node = graph.nodes[id]
        if node.op in ("input", "parameter") or id in values or any(i not in values for i in node.inputs):
            continue
        constant = dict(node.attrs).get("data")
        if isinstance(constant, ConstantData):
            values[id] = constant.array
            continue
        with np.errstate(all="ignore"):
            operands = [_widened(values[i]) for i in node.inputs]
            values[id] = np.asarray(REGISTRY[node.op].reference(operands, dict(node.attrs)))
        if id in d.origin and not np.isfinite(values[id]).all():
            return id
    return max(d.origin, default=-1)


def _widened(data: Array) -> Array:
    return data if data.dtype == np.uint32 else data.astype(np.float64)


def _described(plan: ExecutionPlan, b: PlanBuffer, data: Array) -> str:
    """Return the name and range of a tensor, in words."""
    data, named = _in_float32(data), [plan.graph.nodes[i] for i in b.nodes]
    name = b.name or next((n.name or f"%{n.id}" for n in named), f"buffer {b.id}")
    if data.dtype != np.float32:
        return f"{name} {value_words(data.min(initial=0))} … {value_words(data.max(initial=0))}"
    bad = nonfinite_elements(data)
    finite = data.reshape(-1)[~bad]
    extent = f"{value_words(finite.min())} … {value_words(finite.max())}" if finite.size else "nothing finite"
    return f"{name} {extent}" + (f" and {int(bad.sum())} not finite" if bad.any() else "")


# bits -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Scan:
    """An array's NaN and infinities: whether there are any, the largest finite magnitude, and the flat index of the
    first bad element (−1: none)."""

    nan: bool
    inf: bool
    max_abs: float
    first: int


def scan_all(results: Results) -> Scan:
    """Scan all results of a dispatch; the first bad element is that of the first result that has one."""
    scans = [scan(data) for data in results]
    first = next((s.first for s in scans if s.first >= 0), -1)
    return Scan(any(s.nan for s in scans), any(s.inf for s in scans), max(s.max_abs for s in scans), first)


def scan(data: Array) -> Scan:
    """Scan all elements: an exponent of all ones is NaN with a fraction, an infinity without."""
    data = _in_float32(data)
    if data.dtype != np.float32:
        return Scan(False, False, float(data.max(initial=0)), -1)
    bad = nonfinite_elements(data)
    if not bad.any():
        return Scan(False, False, float(np.abs(data).max(initial=0)), -1)
    nan = bad & ((data.reshape(-1).view(np.uint32) & _FRACTION) != 0)
    finite = np.abs(data.reshape(-1)[~bad]).max(initial=0)
    return Scan(bool(nan.any()), bool((bad & ~nan).any()), float(finite), int(bad.argmax()))


def _in_float32(data: Array) -> Array:
    """Convert numbers that are stored in 16 bits to float32."""
    return data.astype(np.float32) if data.dtype == np.float16 else data


def nonfinite_elements(data: Array) -> Array:
    """Return bool[size]: which elements are NaN or infinite."""
    data = _in_float32(data)
    if data.dtype != np.float32:
        return np.zeros(data.size, bool)
    bad: Array = (np.ascontiguousarray(data).reshape(-1).view(np.uint32) & _EXPONENT) == _EXPONENT
    return bad
