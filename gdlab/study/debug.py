"""Debug a study while it runs: watch tensors, break, step by dispatches, run to here, go back, look at a tensor.

study.watch("h", "w1.grad"); study.break_at("nonfinite h"); study.run(100)
study.step_dispatch(); print(study.look("h", against="reference")); study.back(2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from gdlab.base.errors import ArgumentError
from gdlab.base.statistics import difference, window
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.lookout import Watched
from gdlab.session.tensors import dispatch_of
from gdlab.study.microscope import Against, Microscope, Value, other_value, take, value_of
from gdlab.study.targets import target_of

__all__ = ["Against", "Debugging", "Microscope"]

_MOST_LOOKED = 256


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
        and the difference to the float64 reference or the cpu device, from what this step began with.

        `name`: as in `watch`, or any entity of the document (`node:0.5`, `edge:0.6.0`, `interval:4`, `dispatch:2`); of
        more than two axes `slice` picks the leading ones. A node that has no memory of its own is told by the
        reference. The document of the study tells what was looked at.
        """
        if against is not None and against not in get_args(Against):
            raise ArgumentError("look", "against", repr(against), f"one of {', '.join(get_args(Against))}")
        self.runner.refuse_while_running("a look")
        target = target_of(self, name)
        taken = take(self, target)
        value = value_of(target, taken, slice)
        found = None
        if against is not None:
            other = "the reference" if against == "reference" else "cpu"
            found = difference(taken.data, other_value(self, target, against), other)
        self._remember(name, value)
        return Microscope(value, window(taken.data, row, col, slice), taken.read, found)

    def _remember(self: Any, name: str, value: Value) -> None:
        """The newest look at each tensor is told in documents; those of long ago are forgotten."""
        looked = self.runner.lookout.looked
        looked.pop(name, None)
        looked[name] = value
        while len(looked) > _MOST_LOOKED:
            del looked[next(iter(looked))]
