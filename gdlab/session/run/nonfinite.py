"""Find where NaN or infinity begins: `first_bad(session)` names the first dispatch whose result is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gdlab.base.statistics import value_words
from gdlab.base.types import Array
from gdlab.graph import ConstantData
from gdlab.op import REGISTRY
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan
from gdlab.session import Session, by_buffer

_EXPONENT = np.uint32(0x7F800000)  # all ones: NaN or infinity


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


def first_bad(session: Session) -> Culprit | None:
    """The first dispatch that gives NaN or infinity with the values as they are now, None where all are finite.

    Runs forward and backward once and makes no step. An update may have spoiled parameters already: then `spoiled` says
    which.
    """
    plan, made = session.plan(), dict[int, Array]()
    for dispatch, data in session.dispatch_outputs():
        bad = _bad_elements(data)
        if bad.any():
            return _culprit(session, plan, dispatch, data, int(bad.argmax()), made)
        made |= by_buffer(dispatch, data)
    return None


def spoiled(session: Session) -> tuple[str, ...]:
    """The parameters that are not finite, then the gradients of the last step that are not."""
    names = [name for name, norm in session.read_all_param_norms() if not math.isfinite(norm)]
    if session.mode == "training" and session.step_count:
        norms = session.read_all_param_grad_norms()
        names += [f"the gradient of {name}" for name, norm in norms if not math.isfinite(norm)]
    return tuple(names)


def _culprit(
    session: Session, plan: ExecutionPlan, d: Dispatch, data: Array, first: int, made: Mapping[int, Array]
) -> Culprit:
    what = "NaN" if np.isnan(data.reshape(-1)[first]) else "infinity"
    parameters = tuple(name for name, norm in session.read_all_param_norms() if not math.isfinite(norm))
    read = tuple(_told(session, plan, buffer, made) for buffer in dict.fromkeys(d.reads) if buffer not in d.outputs)
    node = _first_node(session, plan, d, made)
    op, place = plan.graph.nodes[node].op if node >= 0 else d.kernel, _place(plan, node)
    return Culprit(d.index, d.label, d.origin, node, op, what, first, place, read, parameters)


def _first_node(session: Session, plan: ExecutionPlan, d: Dispatch, made: Mapping[int, Array]) -> int:
    """The first node of a dispatch whose value is not finite, by the reference, from what the dispatch read; else its
    last node; −1 for a dispatch without nodes (an update)."""
    graph, values = plan.graph, dict[int, Array]()
    for buffer in d.reads:
        data = made[buffer] if buffer in made else session.read_buffer(buffer)
        for id in plan.buffers[buffer].nodes:
            if data.size == graph.nodes[id].type.num_elements:
                values[id] = data.reshape(graph.nodes[id].type.shape)
    mine = set(d.origin)
    waiting = [i for id in mine for i in graph.nodes[id].inputs]
    while waiting:  # literals and views between what was read and what is computed
        id = waiting.pop()
        if id not in values and id not in mine:
            mine.add(id)
            waiting += graph.nodes[id].inputs
    for id in sorted(mine):
        node = graph.nodes[id]
        if node.op in ("input", "parameter") or id in values or any(i not in values for i in node.inputs):
            continue
        held = dict(node.attrs).get("data")
        if isinstance(held, ConstantData):
            values[id] = held.array
            continue
        with np.errstate(all="ignore"):
            operands = [_widened(values[i]) for i in node.inputs]
            values[id] = np.asarray(REGISTRY[node.op].reference(operands, dict(node.attrs)))
        if id in d.origin and not np.isfinite(values[id]).all():
            return id
    return max(d.origin, default=-1)


def _widened(data: Array) -> Array:
    return data if data.dtype == np.uint32 else data.astype(np.float64)


def _place(plan: ExecutionPlan, node: int) -> str:
    source = plan.graph.source(node) if node >= 0 else ()
    return f"line {source[0].line} of {source[0].file}" if source else ""


def _told(session: Session, plan: ExecutionPlan, buffer: int, made: Mapping[int, Array]) -> str:
    b = plan.buffers[buffer]
    data = made[buffer] if buffer in made else session.read_buffer(buffer)
    named = [plan.graph.nodes[i] for i in b.nodes]
    name = b.name or next((n.name or f"%{n.id}" for n in named), f"buffer {buffer}")
    if data.dtype != np.float32:
        return f"{name} {value_words(data.min(initial=0))} … {value_words(data.max(initial=0))}"
    bad = _bad_elements(data)
    finite = data.reshape(-1)[~bad]
    held = f"{value_words(finite.min())} … {value_words(finite.max())}" if finite.size else "nothing finite"
    return f"{name} {held}" + (f" and {int(bad.sum())} not finite" if bad.any() else "")


def _bad_elements(data: Array) -> Array:
    """By bits: an exponent of all ones; NaN ≠ NaN is folded away by some compilers."""
    if data.dtype != np.float32:
        return np.zeros(data.size, bool)
    bits = np.ascontiguousarray(data).reshape(-1).view(np.uint32)
    bad: Array = (bits & _EXPONENT) == _EXPONENT
    return bad
