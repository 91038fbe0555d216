"""Run a function of tensors from a plan: recorded once for each combination of types, then a `Session`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError
from gdlab.base.types import Array, TensorType
from gdlab.eager.params import Param
from gdlab.eager.tape import TensorRef
from gdlab.eager.tape_as_graph import TapeExport, to_graph
from gdlab.session import Session, SessionConfig, build

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession

ARGUMENT = "jit:"  # before the place of an argument in the name of its input


@dataclass(slots=True)
class _Planned:
    """A recording as a session, with the host array and mirror of each parameter whose value it has. `written`: the
    parameters that a step writes in place."""

    export: TapeExport
    session: Session
    written: Collection[Param]
    seen: dict[Param, tuple[object, object]] = field(default_factory=dict)

    def run(self, values: list[Array], step: int) -> Array:
        """Make one step on these arguments, with current parameters and the random numbers of a recording."""
        for name, param in self.export.params.items():
            host, mirror = self.seen.get(param, (None, None))
            same = mirror is not None and param.mirror is mirror or host is not None and param._host is host
            if not same:
                self.session.set_parameter(name, param.held)
            self.seen[param] = param._host, param.mirror
        for name, data in self.export.feeds.items():
            value = values[int(name[len(ARGUMENT) :])] if name.startswith(ARGUMENT) else data
            put = self.session.set_input_u32 if data.dtype == np.uint32 else self.session.set_input
            put(name, value)
        self.session.progress.draw_offset = step - self.session.step_count
        self.session.step()
        for name, param in self.export.params.items():
            if param in self.written:
                param.session.set_param_host_value(param, self.session.read_param(name))
                self.seen[param] = param._host, param.mirror
        return self.session.read_output_by_index(0)


class Jitted:
    """A function of tensors that runs from a plan. Its result is a leaf: no gradient flows through it."""

    def __init__(self, session: EagerSession, function: Callable[..., TensorRef]) -> None:
        if not callable(function):
            raise ArgumentError("eager.jit", "function", type(function).__name__, "a function of tensors")
        if session.opts.scalar != np.float32:
            raise DTypeError("eager.jit", "scalar", session.opts.scalar, "float32, which plans compute in")
        self.session, self.function, self.told = session, function, False
        self.planned: dict[tuple[TensorType, ...], _Planned] = {}

    def __call__(self, *refs: TensorRef) -> TensorRef:
        """Return the value of the function, recorded at the first call for these types, run from a plan at every call.
        """
        owned = [self.session.own("jit", ref) for ref in refs]
        key = tuple(ref.type for ref in owned)
        values = [ref.numpy() for ref in owned]
        if key not in self.planned:
            self.planned[key] = self._record(values)
        made = self.planned[key].run(values, self.session.step_number)
        return self.session.input(made)

    def _record(self, values: list[Array]) -> _Planned:
        """Run the function on leaves of these values, then cut its nodes off again."""
        session, length, draws = self.session, len(self.session.tape), self.session.tape.draws
        try:
            leaves = [session.input(value, f"{ARGUMENT}{k}") for k, value in enumerate(values)]
            reads = session.counters()["readbacks"]
            with session.tape:
                result = self.function(*leaves)
            if session.counters()["readbacks"] > reads and not self.told:
                self.told = True
                warnings.warn("eager.jit: the function reads values: its control flow is kept as it went", stacklevel=3)
            own = session.own("jit", result)
            written = {param: TensorRef(own.graph, id) for id, param in own.graph.written.items() if id >= length}
            export = session.locked(to_graph, session, [own, *written.values()])
        finally:
            session.tape.draws = draws
            session.tape.cut(length)
        config = SessionConfig(mode="inference", device=session._device)
        return _Planned(export, build(export.graph, config)[0], written.keys())

    def close(self) -> None:
        """Close the sessions of all plans."""
        for planned in self.planned.values():
            planned.session.close()
        self.planned = {}
