"""Debug a study while it runs: watch tensors, break, step by dispatches, run to here, go back, look at a tensor.

study.watch("h", "w1.grad"); study.break_at("nonfinite h"); study.run(100)
study.step_dispatch(); print(study.look("h", against="reference")); study.back(2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gdlab.device import device as choose_device
from gdlab.errors import ArgumentError, SessionError
from gdlab.op import Array
from gdlab.ops.random import at_step
from gdlab.reference import evaluate
from gdlab.runner import Runner
from gdlab.session import Session
from gdlab.session.tensors import GRADIENT, Tensor, dispatch_of, find_tensor, leaves, read_tensor
from gdlab.summary import Difference, Summary, Window, bars, difference, summarize, window
from gdlab.until import Break, NoValue, Watched

if TYPE_CHECKING:
    from gdlab.study import Study

Against = Literal["reference", "cpu"]


@dataclass(frozen=True, slots=True)
class Microscope:
    """A tensor under the microscope: `place` says at which point of the run it was looked at."""

    name: str
    type: str
    place: str
    summary: Summary
    window: Window
    difference: Difference | None = None

    def to_json(self) -> dict[str, Any]:
        """For the page: the summary of a document, the window as text, and what `str` says."""
        return {"name": self.name, "type": self.type, "text": str(self), **self.summary.to_json()}

    def __str__(self) -> str:
        s = self.summary
        lines = [
            f"{self.name} : {self.type}, {self.place}",
            f"  {s}",
            f"  std {s.std:.4g}, l2 {s.l2:.4g}; {s.n} elements, {s.zero} zero, {s.nan} NaN, {s.inf} infinite",
            f"  {s.histogram.low:.4g} {bars(s.histogram.counts)} {s.histogram.high:.4g}",
        ]
        if self.difference is not None:
            lines.append(f"  against {self.difference}")
        lines.append("\n".join(f"  {line}" for line in str(self.window).split("\n")))
        return "\n".join(lines)


class Debugging:
    """What a `Study` knows of debugging; the study owns runner and session."""

    # watches and breakpoints ------------------------------------------------------------------------------------------
    def watch(self: Any, *names: str) -> list[Watched]:
        """Watch tensors: named nodes, parameters, gradients `w.grad`, `%7`; all or none."""
        return self.runner.watch(*names)  # type: ignore[no-any-return]

    def break_at(self: Any, text: str) -> Break:
        """Pause runs at `EVENT [if TEST]`: `node h if absmax(h) > 1e3`, `nonfinite`, `loss rises 3`, `write w1`."""
        return self.runner.break_at(text)  # type: ignore[no-any-return]

    def clear(self: Any, id: int) -> None:
        """Remove a watch or a breakpoint by its number."""
        self.runner.clear(id)

    def watching(self: Any) -> str:
        """The watches and breakpoints, a row each."""
        return str(self.runner.lookout)

    # dispatch stepping ------------------------------------------------------------------------------------------------
    def step_dispatch(self: Any, dispatches: int = 1) -> None:
        """Make so many dispatches of the step under way, or of the next one; the values are those of a whole step."""
        self.check_ready()
        self.runner.wait(self.runner.step_dispatch(dispatches))

    def run_to(self: Any, what: int | str) -> None:
        """Run until a dispatch has run: its number, the name of a node that it computes, or any entity of the document
        (`line:3`, `node:0.5`, `kernel:2`, `interval:4`), of which the first dispatch counts."""
        self.check_ready()
        self.runner.wait(self.runner.run_to(self.dispatch_at(what)))

    def back(self: Any, dispatches: int = 1) -> str:
        """Go back in the step that is made by dispatches; says where the replay began."""
        return self.runner.back(dispatches)  # type: ignore[no-any-return]

    def dispatch_at(self: Any, what: int | str) -> int:
        """The dispatch that a number, a node's name or an entity means."""
        if not isinstance(what, str):
            return what
        if what.isdigit():
            return int(what)
        if ":" not in what:
            return dispatch_of(self.session, "run_to", what)
        found = [int(e.split(":")[1]) for e in self.doc.select(what) if e.startswith("dispatch:")]
        if not found:
            raise ArgumentError("run_to", "entity", what, "one that a dispatch belongs to")
        return min(found)

    # the microscope ---------------------------------------------------------------------------------------------------
    def look(
        self: Any, name: str, *, row: int = 0, col: int = 0, slice: Sequence[int] = (), against: Against | None = None
    ) -> Microscope:
        """A tensor as it is now: figures, histogram, exact values of a window of at most 16 × 16 from (row, col) on,
        and the difference to the float64 reference or the cpu device, from what this step began with."""
        if against is not None and against not in get_args(Against):
            raise ArgumentError("look", "against", repr(against), f"one of {', '.join(get_args(Against))}")
        runner, session = self.runner, self.session
        runner.refuse_while_running("a look")
        tensor = find_tensor(session, "look", name)
        data = _value(runner, tensor)
        found = None
        if against is not None:
            other = "the reference" if against == "reference" else "cpu"
            found = difference(data, _other(self, tensor, against), other)
        place = runner.place or f"after step {session.step_count}"
        kind = str(tensor.type)
        return Microscope(name, kind, place, summarize(data, slice), window(data, row, col, slice), found)


def _value(runner: Runner, tensor: Tensor) -> Array:
    session = runner.session
    step = session.step_count + session.under_way
    try:
        return runner.lookout.newest(tensor.name, step, session.position - 1 if session.under_way else -1)
    except NoValue:
        given = "no value now" if session.step_count or session.under_way else "no value yet"
        wanted = "a step by dispatches up to it: step --to it"
        raise SessionError("look", tensor.name, given, wanted) from None


def _other(study: Study, tensor: Tensor, against: Against) -> Array:
    """The same tensor by another executor, from the same inputs and parameters."""
    session = study.session
    feeds = leaves(session)
    if feeds is None:
        wanted = "a step by dispatches: the last one has changed the parameters"
        raise SessionError("look", f"difference of {tensor.name}", "a step that is over", wanted)
    step = session.step_count - (not session.under_way and session.step_count > 0)
    if tensor.leaf:
        return feeds[study.graph.nodes[tensor.node].name]
    if against == "cpu":
        return _on_cpu(study, tensor, feeds, step)
    with at_step(step):
        if tensor.node >= 0:
            return evaluate(study.graph, feeds)[tensor.node]
        graph, report = study.written_derivative
        trained = [name for _, name in study.graph.trained_parameters]
        values = evaluate(graph, feeds)
        return values[report.gradients[trained.index(tensor.name.removesuffix(GRADIENT))]]


def _on_cpu(study: Study, tensor: Tensor, feeds: Mapping[str, Array], step: int) -> Array:
    with study.open_on(choose_device("cpu")) as other:
        for name, data in feeds.items():
            (other.set_input if other.has_input(name) else other.set_parameter)(name, data)
        other.restore(other.snapshot(), step)
        return _by_dispatches(other, find_tensor(other, "look", tensor.name))


def _by_dispatches(session: Session, tensor: Tensor) -> Array:
    made = session.dispatch_outputs()
    writers = tensor.writers([d for d, _ in made])
    if not isinstance(tensor.place, int) or not writers:
        return read_tensor(session, tensor)
    data: Array = np.asarray(made[writers[0]][1]).reshape(tensor.shape)
    return data
