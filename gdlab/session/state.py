"""What a session holds, and the few checks and transfers that all of its methods are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from gdlab.base.errors import SessionError, unknown_name
from gdlab.base.types import Array, Shape, TensorType
from gdlab.devices.base import Device, Program, owner
from gdlab.op.storage import Part
from gdlab.plan.records import Buffer, ExecutionPlan, Place, Update
from gdlab.plan.update import Clip, Recipe, update_of
from gdlab.session.arrays import as_array
from gdlab.session.node_places import Nodes
from gdlab.session.optimizer import Optimizer
from gdlab.session.partial_step import Way

T = TypeVar("T")


class State:
    """The fields of a session. Methods that end in `_now`, and those that say so, run on the owner thread."""

    _plan: ExecutionPlan
    _device: Device
    _program: Program
    _nodes: Nodes
    _parameters: dict[str, Place]
    _derived: dict[str, int]  # parameters that are the storage of others
    _inputs: dict[str, int]
    _types: dict[Place, TensorType]  # of parameters and inputs, by where they lie
    _shapes: dict[int, Shape]  # of derived parameters and of their gradients
    _bounds: Mapping[str, int]  # of what an index input may hold
    _gradients: dict[Place, Place]
    _unset_inputs: set[str]
    _unset_parameters: set[str]  # one set of all sessions that share parameters
    _optimizer: Optimizer
    _update: Update
    _multipliers: dict[str, float]  # by prefix of a parameter's name
    _clip: Clip | None
    _accumulate: int
    _window: int  # steps whose gradients are added up so far
    _state_buffers: tuple[Buffer, ...]
    _steps: int
    _way: Way | None  # the step that is, or was last, made in parts
    _adam_steps: int
    _numbers: tuple[object, Array] | None  # what the kernels of the last step read besides tensors, and made of what
    _timed_window: tuple[int, int] | None
    _profiling: str | None  # None: off; else why there are no timings, or an empty string
    _closed: bool

    # what has a value -------------------------------------------------------------------------------------------------
    @property
    def unset_inputs(self) -> list[str]:
        """Inputs that have no value yet."""
        return [n for n in self._inputs if n in self._unset_inputs]

    @property
    def unset_parameters(self) -> list[str]:
        """Parameters that have no value yet."""
        return [n for n in self._parameters if n in self._unset_parameters]

    def has_param_grad(self, name: str) -> bool:
        """Whether a gradient of this parameter is computed."""
        self._alive("has_param_grad")
        return self._parameters.get(name, self._derived.get(name, -1)) in self._gradients

    # checks and transfers ---------------------------------------------------------------------------------------------
    def _alive(self, where: str) -> None:
        if self._closed:
            raise SessionError(where, "session", "closed", "an open session")

    def _between_steps(self, where: str) -> None:
        way = self._way
        if way is not None and not way.over:
            given = f"a step of which {way.at} of {len(way.dispatches)} dispatches are made"
            raise SessionError(where, "session", given, "its end first: step()")

    def _trainable(self, where: str) -> None:
        self._alive(where)
        if self._plan.mode != "training":
            raise SessionError(where, "session", "an inference session", "a training session")

    def _stepped(self, where: str, what: str) -> None:
        if self._steps == 0:
            raise SessionError(where, what, "no step yet", "a step before it")

    def _lookup(self, where: str, name: str, known: Mapping[str, Place]) -> Place:
        self._alive(where)
        if known is self._parameters and isinstance(name, str) and name in self._derived:
            return self._derived[name]
        if not isinstance(name, str) or name not in known:
            raise unknown_name(where, "name", str(name), known)
        return known[name]

    def _do(self, function: Callable[[], T]) -> T:
        """Run what must not fall between others: on the owner thread, or here where the device allows it."""
        return owner().here(function) if self._device.anywhere else owner().call(function)

    def _write(self, where: str, name: str, data: Any, known: Mapping[str, Place]) -> None:
        buffer = self._lookup(where, name, known)
        bound = self._bounds.get(name) if known is self._inputs else None
        array = as_array(where, name, data, self._types[buffer], bound)
        self._do(lambda: self._put_now(buffer, array))

    def _download(self, buffer: Place) -> Array:
        return self._do(lambda: self._read_now(buffer))

    def _read_now(self, place: Place) -> Array:
        """A buffer, or a copy of the range of one."""
        if isinstance(place, int):
            return self._program.download(place)
        return np.ascontiguousarray(self._whole_now(place)[_range(place)])

    def _put_now(self, place: Place, data: Array) -> None:
        """Write a buffer, or a range of one: the rest of it stays as it is."""
        if isinstance(place, int):
            return self._program.upload(place, data)
        whole = self._whole_now(place).copy()
        whole[_range(place)] = data
        self._program.upload(place.buffer, whole)

    def _whole_now(self, part: Part) -> Array:
        """The derived parameter, its gradient or its moment that `part` lies in; a gradient may be stored flat."""
        data = self._program.download(part.buffer)
        rows, columns = self._shapes[part.buffer] if part.buffer in self._shapes else data.shape
        return data.reshape(rows, columns)

    # the update, on the owner thread ----------------------------------------------------------------------------------
    def _recipe(self, optimizer: Optimizer, accumulate: int) -> Recipe:
        return Recipe(optimizer.rule, self._factors(), self._clip, accumulate)

    def _factors(self) -> dict[str, float]:
        """The factor of the rate by parameter name, where it is not 1."""
        by_length = sorted(self._multipliers, key=len)
        return {n: self._multipliers[p] for p in by_length for n in self._parameters if n.startswith(p)}

    def _load_update(self, optimizer: Optimizer) -> None:
        """The update as everything is configured now, with this rule; state buffers that are new start at zero."""
        update = update_of(self._plan, self._recipe(optimizer, self._accumulate), self._state_buffers)
        self._program.configure(update)
        self._update, self._state_buffers = update, update.buffers

    def _state_named(self, prefix: str) -> dict[str, Place]:
        """Where the state of each parameter lies, in node order."""
        found: dict[str, Place] = dict(self._state_stored(prefix))
        for d in self._plan.derived_params:
            whole = found.get(d.name)
            if isinstance(whole, int):
                found |= {name: d.part(name, whole) for name, _ in d.sources}
        return {name: found[name] for name in self._parameters if name in found}

    def _state_stored(self, prefix: str) -> dict[str, int]:
        """State buffers by the parameter, a derived one in place of its sources, that they belong to."""
        found = ((b.name, b.id) for b in self._state_buffers if b.name.startswith(prefix))
        return {name.removeprefix(prefix): id for name, id in found}


def _range(part: Part) -> tuple[slice, ...]:
    return (slice(None),) * part.axis + (slice(part.start, part.stop),)
