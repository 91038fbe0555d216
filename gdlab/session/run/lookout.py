"""Look at a run while it goes on: watched tensors, breakpoints, and the condition that ends it.

A step is made whole unless somebody looks inside it. Where a tensor's memory is taken over by others within the step,
it is read right after the dispatch that writes it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.statistics import array_words, bars
from gdlab.base.types import Array
from gdlab.base.words import grid
from gdlab.plan.dispatch import Dispatch
from gdlab.session import Session
from gdlab.session.run.breakpoints import Break, parse_break
from gdlab.session.run.nonfinite import nonfinite_elements
from gdlab.session.run.stop_conditions import NoValue, StopTest, parse_test
from gdlab.session.tensors import SessionTensor, find_tensor, read_tensor

_SAMPLE_SECONDS = 0.05
_SHARE = 20  # a sample costs at most one part in so many of the time
_MOST_SAMPLES = 240
_SHOWN_SAMPLES = 40


@dataclass(slots=True)
class Watched:
    """A watched tensor: statistics of its newest value, and the history of its mean as (step, value)."""

    id: int
    tensor: SessionTensor
    step: int = -1
    value: str = ""
    min: float = float("nan")
    max: float = float("nan")
    mean: float = float("nan")
    nonfinite: int = 0
    history: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    def take(self, step: int, data: Array) -> None:
        """Note the tensor's value in a step."""
        finite = data[np.isfinite(data)]
        self.step, self.value, self.nonfinite = step, array_words(data), int(data.size - finite.size)
        if finite.size:
            self.min, self.max = float(finite.min()), float(finite.max())
            self.mean = float(finite.mean(dtype=np.float64))
        else:
            self.min = self.max = self.mean = float("nan")
        while self.history and self.history[-1][0] >= step:
            self.history.pop()
        self.history.append((step, self.mean))

    def forget(self) -> None:
        """Forget the value."""
        self.step, self.value, self.nonfinite = -1, "", 0
        self.min = self.max = self.mean = float("nan")

    def row(self) -> tuple[str, ...]:
        """Return one line of the table."""
        line = bars([v for _, v in list(self.history)[-_SHOWN_SAMPLES:]])
        at = f"step {self.step}" if self.step >= 0 else "no value yet"
        return str(self.id), self.name, str(self.tensor.type), self.value, at, line if len(self.history) > 1 else ""


@dataclass(frozen=True, slots=True)
class Moment:
    """The values that a test reads: those after dispatch `dispatch` (−1: behind the step) of step `step`."""

    lookout: Lookout
    step_count: int
    dispatch: int

    def read_loss(self) -> float:
        """Return the newest loss; `NoValue` before the first."""
        session = self.lookout.session
        buffer = session.plan().loss_buffer
        if buffer is None:
            return 0.0
        first = next((k for k, d in enumerate(session.plan().dispatches) if buffer in d.writes), -1)
        if session.step_count == 0 and self.dispatch < first:
            raise NoValue
        return float(session.read_buffer(buffer).reshape(-1)[0])

    def read_tensor(self, name: str) -> Array:
        """Return the newest value of a tensor; `NoValue` before the first."""
        return self.lookout.newest(name, self.step_count, self.dispatch)


class Lookout:
    """Watches, breakpoints and the end condition of one runner. Commands come from any thread, the rest is called on
    the owner's between dispatches and steps."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.breaks: dict[int, Break] = {}
        self.watches: dict[int, Watched] = {}
        self.until: StopTest | None = None
        self.looked: dict[str, Any] = {}  # what was under the microscope last, by entity
        self._ids = 1
        self._stored: dict[str, list[tuple[int, int, Array]]] = {}
        self._due = 0.0
        self._sampling = False  # in the step under way
        self._key: Any = None
        self._events: dict[int, list[Break]] = {}  # by dispatch of a step
        self._writes: dict[int, list[SessionTensor]] = {}

    def __bool__(self) -> bool:
        """Return whether there is any watch, breakpoint or end condition."""
        return bool(self.breaks or self.watches or self.until is not None)

    # commands ---------------------------------------------------------------------------------------------------------
    def watch(self, names: Sequence[str]) -> list[Watched]:
        """Watch these tensors from now on, all or none; a tensor that is watched already is returned again."""
        tensors = [find_tensor(self.session, "watch", name) for name in names]
        made = []
        for tensor in tensors:
            known = next((w for w in self.watches.values() if w.name == tensor.name), None)
            watched = known or Watched(self._next_id(), tensor)
            self.watches[watched.id] = watched
            if not self.session.under_way and self.lies(tensor, self.session.step_count, -1):
                watched.take(self.session.step_count, read_tensor(self.session, tensor))
            made.append(watched)
        return made

    def break_at(self, text: str) -> Break:
        """Pause runs where the breakpoint says (`gdlab.session.run.breakpoints` has the grammar)."""
        breakpoint = parse_break(self._ids, text, self.session)
        self.breaks[self._next_id()] = breakpoint
        return breakpoint

    def clear(self, id: int) -> None:
        """Remove a watch or breakpoint."""
        if not isinstance(id, (int, np.integer)) or (id not in self.breaks and id not in self.watches):
            known = ", ".join(map(str, sorted({*self.breaks, *self.watches}))) or "none: there are none"
            raise ArgumentError("clear", "id", str(id), f"one of {known}")
        self.breaks.pop(id, None)
        self.watches.pop(id, None)

    def set_until(self, text: str | None) -> None:
        """End runs when a condition holds; None: never."""
        self.until = None if text is None else parse_test(text, self.session)

    def reset(self) -> None:
        """Forget every value; watches and breakpoints stay."""
        self._stored.clear()
        self.looked.clear()
        for watched in list(self.watches.values()):
            watched.history.clear()
            watched.forget()

    def go_back(self, step: int, dispatch: int) -> None:
        """Drop values from after this point: these dispatches were taken back."""
        for rows in self._stored.values():
            rows[:] = [row for row in rows if row[:2] <= (step, dispatch)]
        for watched in list(self.watches.values()):
            try:
                watched.take(step, self.newest(watched.name, step, dispatch))
            except NoValue:
                watched.forget()

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids - 1

    # a run, on the owner's thread -------------------------------------------------------------------------------------
    @property
    def reads_losses(self) -> bool:
        """Whether a breakpoint needs the loss of every step; inside a step the device is waited for anyhow."""
        return any(b.when.kind == "loss" or b.when.inside for b in list(self.breaks.values()))

    def looks_inside(self, last: bool) -> bool:
        """Return whether the next step must be looked into; `last`: it ends the run, so watches want its values."""
        self._sampling = bool(self.watches) and (last or time.monotonic() >= self._due)
        return any(b.when.inside for b in list(self.breaks.values())) or bool(self._wanted(False))

    def stops(self, begin: int, goal: int, stepping: bool) -> list[int]:
        """Return where to stop between two positions of the step under way: after dispatches that are looked at; the
        last is `goal`. `stepping`: a person steps, watches want every value."""
        self._prepare(self.session.step_dispatches(), stepping)
        looked = {k + 1 for k in (*self._events, *self._writes)}
        return [*sorted(k for k in looked if begin < k < goal), goal]

    def after_dispatch(self, k: int, dispatch: Dispatch, step: int) -> list[Break]:
        """Store the watched tensors that were written, and return the breakpoints that this dispatch hits."""
        fresh = {t.name: read_tensor(self.session, t) for t in self._writes.get(k, ())}
        for name, data in fresh.items():
            self._stored[name] = [*self._stored.get(name, ())[-1:], (step, k, data)]
        for watched in list(self.watches.values()):
            if watched.name in fresh:
                watched.take(step, fresh[watched.name])
        moment = Moment(self, step, k)
        return [b for b in self._events.get(k, ()) if b.id in self.breaks and self._hit(b, moment, k, dispatch)]

    def after_step(self, losses: Sequence[tuple[int, float]]) -> list[Break]:
        """Sample the watched tensors, and return the breakpoints that the end of a step hits."""
        step = self.session.step_count
        if self._sampling:
            self._sample(step)
        moment = Moment(self, step, -1)
        outside = [b for b in list(self.breaks.values()) if not b.when.inside]
        return [b for b in outside if self._reached(b, step, losses) and self._holds(b, moment, -1)]

    def ends(self) -> bool:
        """Return whether the run's end condition holds."""
        return self.until is not None and self.until.holds(Moment(self, self.session.step_count, -1))

    def newest(self, name: str, step: int, dispatch: int) -> Array:
        """Return the newest value of a tensor; `NoValue` where none was stored and none lies there."""
        return self.dated(find_tensor(self.session, "read", name), step, dispatch)[2]

    def dated(self, tensor: SessionTensor, step: int, dispatch: int) -> tuple[int, int, Array]:
        """Return the newest value of a tensor, with its step and dispatch; `NoValue` as above."""
        rows = self._stored.get(tensor.name, [])
        if rows and rows[-1][0] == step:
            return rows[-1]
        if self.lies(tensor, step, dispatch):
            return step, dispatch, read_tensor(self.session, tensor)
        if rows:
            return rows[-1]
        raise NoValue

    # inside -----------------------------------------------------------------------------------------------------------
    def lies(self, tensor: SessionTensor, step: int, dispatch: int) -> bool:
        """Return whether a tensor's memory holds its value now."""
        if tensor.leaf:
            unset = {*self.session.unset_inputs, *self.session.unset_parameters}
            return tensor.name not in unset
        if dispatch < 0:
            return tensor.stays and step > 0
        first = min(tensor.writers(self.session.step_dispatches()), default=-1)
        return dispatch >= first and self._alive(tensor, dispatch)

    def _alive(self, tensor: SessionTensor, dispatch: int) -> bool:
        memory, buffer = self.session.plan().memory, tensor.place
        if not isinstance(buffer, int):
            return True
        return tensor.stays or memory.intervals[buffer].last > dispatch

    def _wanted(self, stepping: bool) -> list[SessionTensor]:
        """Return the tensors that must be read after the dispatch that writes them."""
        needed: dict[str, SessionTensor] = {}
        tests = [(b.test, b.when.inside) for b in list(self.breaks.values()) if b.test is not None]
        tests += [(self.until, False)] if self.until is not None else []
        for test, inside in tests:
            for name in test.tensors if test is not None else ():
                tensor = find_tensor(self.session, "read", name)
                if inside or not tensor.stays:
                    needed[name] = tensor
        for watched in list(self.watches.values()):
            if stepping or (self._sampling and not watched.tensor.stays):
                needed[watched.name] = watched.tensor
        return list(needed.values())

    def _prepare(self, dispatches: Sequence[Dispatch], stepping: bool) -> None:
        """Find which dispatches are looked at, and for which breakpoints and tensors."""
        wanted, breaks = self._wanted(stepping), [b for b in list(self.breaks.values()) if b.when.inside]
        key = self.session.update, len(dispatches), [t.name for t in wanted], [b.id for b in breaks]
        if key != self._key:
            self._key = key
            self._events = _by_dispatch((k, b) for b in breaks for k in b.when.dispatches(dispatches))
            self._writes = _by_dispatch((k, t) for t in wanted for k in t.writers(dispatches))

    def _hit(self, b: Break, moment: Moment, k: int, dispatch: Dispatch) -> bool:
        if b.when.kind == "nonfinite":
            again = b.last_step == moment.step_count and b.last_dispatch < k  # once in a step
            if again or not self._nonfinite(b, dispatch):
                return False
        return self._holds(b, moment, k)

    def _nonfinite(self, b: Break, dispatch: Dispatch) -> bool:
        tensor = b.when.tensor
        session = self.session
        read = session.values.read_results(dispatch) if tensor is None else (read_tensor(session, tensor),)
        return any(nonfinite_elements(data).any() for data in read)

    def _holds(self, b: Break, moment: Moment, k: int) -> bool:
        if b.test is not None and not b.test.holds(moment):
            return False
        b.hits, b.last_step, b.last_dispatch = b.hits + 1, moment.step_count, k
        return True

    def _reached(self, b: Break, step: int, losses: Sequence[tuple[int, float]]) -> bool:
        if b.when.kind == "step":
            return step == b.when.number
        rises, at = 0, len(losses) - 1
        while at > 0 and losses[at][1] > losses[at - 1][1]:
            rises, at = rises + 1, at - 1
        return rises > 0 and rises % b.when.number == 0

    def _sample(self, step: int) -> None:
        began = time.monotonic()
        for watched in list(self.watches.values()):
            if self.lies(watched.tensor, step, -1):
                watched.take(step, read_tensor(self.session, watched.tensor))
        now = time.monotonic()
        self._due = now + max(_SAMPLE_SECONDS, _SHARE * (now - began))

    # text -------------------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        rows = [w.row() for w in self.watches.values()]
        lines = grid([""] * len(rows[0]), rows, indent="") if rows else []
        lines += [str(b) for b in self.breaks.values()]
        return "\n".join(lines) or "no watches and no breakpoints"


def _by_dispatch(pairs: Iterable[tuple[int, Any]]) -> dict[int, list[Any]]:
    by_dispatch: dict[int, list[Any]] = {}
    for k, thing in pairs:
        by_dispatch.setdefault(k, []).append(thing)
    return by_dispatch
