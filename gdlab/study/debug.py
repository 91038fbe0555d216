"""Debug a study while it runs: watch tensors, break, step by dispatches, run to here, go back, look at a tensor.

study.watch("h", "w1.grad"); study.break_at("nonfinite h"); study.run(100)
study.step_dispatch(); print(study.look("h", against="reference")); study.back(2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gdlab.base.errors import ArgumentError
from gdlab.base.statistics import difference, window
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.lookout import Watched
from gdlab.study.execution import Execution
from gdlab.study.microscope import (
    Against,
    Microscope,
    TensorAtDispatch,
    newest_value,
    other_value,
    value_of,
    values_so_far,
)
from gdlab.study.targets import Targets

_MOST_LOOKED = 256


@dataclass(frozen=True, slots=True)
class Debugger:
    """The debugger of an execution's session; watches, breakpoints and looks are kept by its runner."""

    execution: Execution
    targets: Targets

    # watches and breakpoints ------------------------------------------------------------------------------------------
    def watch(self, *names: str) -> list[Watched]:
        """Watch tensors; all or none."""
        return self.execution.runner.watch(*names)

    def break_at(self, text: str) -> Break:
        """Pause runs at `EVENT [if TEST]`."""
        return self.execution.runner.break_at(text)

    def clear(self, id: int) -> None:
        """Remove a watch or a breakpoint by its number."""
        self.execution.runner.clear(id)

    def watching(self) -> str:
        """Return the watches and breakpoints, a row each."""
        return str(self.execution.runner.lookout)

    # dispatch stepping ------------------------------------------------------------------------------------------------
    def step_dispatch(self, dispatches: int = 1) -> None:
        """Make so many dispatches of the step under way, or of the next one."""
        self.execution.check_ready()
        runner = self.execution.runner
        runner.to_end(lambda: runner.step_dispatch(dispatches))

    def run_to(self, what: int | str) -> None:
        """Run until a dispatch has run: its number, the name of a node that it computes, or any entity."""
        self.execution.check_ready()
        runner, dispatch = self.execution.runner, self.targets.dispatch(what)
        runner.to_end(lambda: runner.run_to(dispatch))

    def back(self, dispatches: int = 1) -> str:
        """Go back in the step that is made by dispatches; says where the replay began."""
        return self.execution.runner.back(dispatches)

    # the microscope ---------------------------------------------------------------------------------------------------
    def look(
        self, name: str, *, row: int = 0, col: int = 0, slice: Sequence[int] = (), against: Against | None = None
    ) -> Microscope:
        """Return a tensor as it is now, and keep its figures for documents."""
        if against is not None and against not in get_args(Against):
            raise ArgumentError("look", "against", repr(against), f"one of {', '.join(get_args(Against))}")
        self.execution.runner.refuse_while_running("a look")
        target = self.targets.find(name)
        taken = newest_value(self.execution, target)
        value = value_of(target, taken, slice)
        compared = None
        if against is not None:
            other = "the reference" if against == "reference" else "cpu"
            compared = difference(taken.data, other_value(self.execution, target, against), other)
        looked = self.execution.runner.lookout.looked
        looked.pop(name, None)
        looked[name] = value
        while len(looked) > _MOST_LOOKED:
            del looked[next(iter(looked))]
        return Microscope(value, window(taken.data, row, col, slice), taken.read, compared)

    def values_so_far(self) -> list[TensorAtDispatch]:
        """Return each tensor that is watched, then those that were looked at."""
        return values_so_far(self.execution, self.targets)
