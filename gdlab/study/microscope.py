"""Look at a tensor of a study: its value and age, in numbers, and the same tensor by another executor.

target = targets.find("node:0.5")
value_of(target, newest_value(execution, target)); other_value(execution, target, "cpu")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gdlab.base.errors import SessionError
from gdlab.base.statistics import Difference, Summary, Window, summarize
from gdlab.base.types import Array
from gdlab.base.words import nbytes
from gdlab.devices.choose import device as choose_device
from gdlab.op.reference import evaluate
from gdlab.ops.random import at_step
from gdlab.session import Session, by_buffer
from gdlab.session.run.stop_conditions import NoValue
from gdlab.session.tensors import SessionTensor, find_tensor, initial_leaves, read_tensor, tensor_at
from gdlab.study.execution import Execution
from gdlab.study.targets import Targets, TensorTarget

Against = Literal["reference", "cpu"]
_NO_STEP = "a step by dispatches: the last one has changed the parameters"


@dataclass(frozen=True, slots=True)
class TensorAtDispatch:
    """The figures of a tensor as it was after dispatch `dispatch` (−1: after all) of step `step` (0: before the first).
    `place` says it in words, `slice` which plane of more than two axes is drawn."""

    name: str
    about: str
    type: str
    shape: tuple[int, ...]
    step: int
    dispatch: int
    place: str
    slice: tuple[int, ...]
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        """Return the fields that a document holds."""
        return {
            "name": self.name, "about": self.about, "type": self.type, "shape": list(self.shape), "step": self.step,
            "dispatch": self.dispatch, "place": self.place, "slice": list(self.slice), **self.summary.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Microscope:
    """A tensor under the microscope: its figures, a window of exact values, a difference. `read`: bytes that were read
    from the device for it; only the summary and the window go on from there. `why`: why there is no difference, where
    one was asked for and none can be."""

    value: TensorAtDispatch
    window: Window
    read: int
    difference: Difference | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Return the name of the tensor."""
        return self.value.name

    @property
    def place(self) -> str:
        """Return the point of the run at which the tensor is looked at."""
        return self.value.place

    @property
    def summary(self) -> Summary:
        """Return the whole tensor in numbers."""
        return self.value.summary

    def to_json(self) -> dict[str, Any]:
        """Return for the page the summary of a document, the window as texts, the difference, and the text of `str`."""
        found = None if self.difference is None else self.difference.to_json()
        rest = {"window": self.window.to_json(), "difference": found, "why": self.why, "read": self.read}
        return {**self.value.to_json(), **rest, "text": str(self)}

    def __repr__(self) -> str:
        return f"<Microscope: {self.name}, {self.value.type}, {self.place}>"

    def __str__(self) -> str:
        value = self.value
        plane = f", slice {list(value.slice)}" if value.slice else ""
        read = f"; {nbytes(self.read)} read from the device" if self.read else ""
        lines = [f"{value.name} : {value.type}, {value.place}{plane}{read}"]
        lines += value.summary.lines()
        if self.difference is not None or self.why:
            lines.append(f"against {self.difference or self.why}")
        return "\n  ".join([*lines, *str(self.window).split("\n"), *value.summary.picture()])


# its value ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class DatedValue:
    """A value and its age, as in `TensorAtDispatch`; `read`: bytes that were read for it."""

    data: Array
    step: int
    dispatch: int
    place: str
    read: int


def newest_value(execution: Execution, target: TensorTarget) -> DatedValue:
    """Return the newest value of a target; for a target without memory of its own that of the reference, from the state
    at the start of the step."""
    if target.tensor is None:
        return _by_reference(execution, target)
    session, lookout = execution.session, execution.runner.lookout
    now = moment(session)
    tensor = next((w.tensor for w in lookout.watches.values() if w.tensor.place == target.tensor.place), target.tensor)
    try:
        if _unset(session, target.tensor):
            raise NoValue
        step, dispatch, data = lookout.dated(tensor, *now)
    except NoValue:
        given = "no value now" if session.step_count or session.under_way else "no value yet"
        wanted = "a step by dispatches up to it: step --to it"
        raise SessionError("look", target.name, given, wanted) from None
    kept = (step, dispatch) != now  # since its memory is taken over, or before that
    dispatch = now[1] if step == now[0] else dispatch
    older = f"after dispatch {dispatch} of step {step}"
    place = execution.runner.place or f"after step {step}" if step == now[0] else older
    read = 0 if kept else _bytes_read(session, tensor)
    return DatedValue(np.asarray(data).reshape(target.type.shape), step, dispatch, place, read)


def moment(session: Session) -> tuple[int, int]:
    """Return the step and the last dispatch of it that has run; −1 between steps."""
    return session.step_count + (session.position > 0), session.position - 1


def value_of(target: TensorTarget, taken: DatedValue, slice: Sequence[int] = ()) -> TensorAtDispatch:
    """Return a value in numbers, with its name and age."""
    shape = target.type.shape
    return TensorAtDispatch(
        target.name, target.about, str(target.type), shape, taken.step, taken.dispatch, taken.place,
        tuple(slice) or (0,) * max(0, len(shape) - 2), summarize(taken.data, slice),
    )  # fmt: skip


def values_so_far(execution: Execution, targets: Targets) -> list[TensorAtDispatch]:
    """Return each tensor that is watched, as it lies there or as a finished run left it; then the tensors that were
    looked at, as they were. Nothing that hangs on when a run was sampled: the same run tells the same."""
    runner, found = execution.runner, dict[tuple[str, str], TensorAtDispatch]()
    for watched in list(runner.lookout.watches.values()) if runner.state != "running" else ():
        target = targets.find(watched.name)
        with suppress(SessionError):  # it has no value now
            if runner.lookout.lies(watched.tensor, *moment(execution.session)) or _ended(execution):
                found[target.name, target.about] = value_of(target, newest_value(execution, target))
    for value in list(runner.lookout.looked.values()):
        found.setdefault((value.name, value.about), value)
    return list(found.values())


def _ended(execution: Execution) -> bool:
    """Return whether a run is over: then every watched tensor was read in its last step."""
    return not execution.session.under_way and execution.session.step_count >= execution.runner.wanted


def _unset(session: Session, tensor: SessionTensor) -> bool:
    """Return whether a tensor is the storage of parameters of which some have no value yet."""
    waiting = set(session.unset_parameters)
    whole = (d for d in session.plan().derived_params if d.name == tensor.name)
    return any(name in waiting for d in whole for name, _ in d.sources)


def _bytes_read(session: Session, tensor: SessionTensor) -> int:
    """Return the bytes that a read of the tensor takes: for a part of a buffer, those of the whole buffer."""
    if isinstance(tensor.place, int):
        return tensor.type.size_bytes
    return session.plan().buffers[tensor.place.buffer].nbytes


def _by_reference(execution: Execution, target: TensorTarget) -> DatedValue:
    session = execution.session
    feeds = None if {*session.unset_inputs, *session.unset_parameters} else initial_leaves(session)
    if feeds is None:
        given = f"no memory of its own: it went into {target.went}"
        raise SessionError("look", target.name, given, f"its value by the reference, which takes {_NO_STEP}")
    step = session.step_count + session.under_way
    place = f"by the reference in float64, for it went into {target.went}"
    return DatedValue(_reference(execution, target, feeds), step, -1, place, 0)


# the same by another executor -----------------------------------------------------------------------------------------
def other_value(execution: Execution, target: TensorTarget, against: Against) -> Array:
    """Return the same tensor by another executor, from the same inputs and parameters; `SessionError` where those are
    gone."""
    session = execution.session
    what = f"difference of {target.name}"
    if target.tensor is None:
        raise SessionError("look", what, "a value of the reference", "one that a device has computed")
    feeds = initial_leaves(session)
    if feeds is None:
        raise SessionError("look", what, "a step that is over", _NO_STEP)
    if target.graph is None:
        raise SessionError("look", what, "memory that holds no value of a node", "the value of a node")
    node = target.graph.nodes[target.node]
    if not node.inputs and node.name in feeds:
        return np.asarray(feeds[node.name]).reshape(target.type.shape)
    found = _reference(execution, target, feeds) if against == "reference" else _on_cpu(execution, target, feeds)
    return found.reshape(target.type.shape)


def _made_at(execution: Execution) -> int:
    """Return the step whose random numbers the present values come from."""
    session = execution.session
    return session.step_count - (not session.under_way and session.step_count > 0)


def _reference(execution: Execution, target: TensorTarget, feeds: Mapping[str, Any]) -> Array:
    graph = target.graph
    assert graph is not None  # the caller has looked
    wanted = {n.name for n in (*graph.inputs, *graph.parameters)}
    with at_step(_made_at(execution)), np.errstate(all="ignore"):
        return evaluate(graph, {name: data for name, data in feeds.items() if name in wanted})[target.node]


def _on_cpu(execution: Execution, target: TensorTarget, feeds: Mapping[str, Any]) -> Array:
    with execution.open_on(choose_device("cpu"), feeds) as other:
        other.restore(other.snapshot(), _made_at(execution))
        return _by_dispatches(other, _same_on(other, target))


def _same_on(other: Session, target: TensorTarget) -> SessionTensor:
    """Return the target as it lies in another session of the same study, whose plan may differ."""
    if target.at < 0:
        assert target.tensor is not None  # the caller has looked
        return find_tensor(other, "look", target.tensor.name)
    buffer = other.plan().node_buffers.get(target.at)
    if buffer is None:
        raise SessionError("look", f"difference of {target.name}", "no memory of its own on cpu", "the reference")
    return tensor_at(other, "look", buffer)


def _by_dispatches(session: Session, tensor: SessionTensor) -> Array:
    made = session.inspection.each_dispatch(lambda d, results: (d, results))
    writers = tensor.writers([d for d, _ in made])
    if not isinstance(tensor.place, int) or not writers:
        return read_tensor(session, tensor)
    data: Array = np.asarray(dict(by_buffer(*made[writers[0]]))[tensor.place]).reshape(tensor.shape)
    return data
