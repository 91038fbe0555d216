"""A plan on a device with its state: inputs, parameters, steps, the update rule, what is allocated."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from gdlab.base.binding import bound
from gdlab.base.errors import SessionError, UnknownNameError
from gdlab.base.types import TensorType
from gdlab.base.words import plural
from gdlab.devices.base import Device, Shared, owner
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.update import Recipe, update_of
from gdlab.session.checkpoint import Checkpoints
from gdlab.session.external import External
from gdlab.session.inspect import Inspection
from gdlab.session.node_places import Nodes, nodes_as_compiled
from gdlab.session.optimizer import Optimizer
from gdlab.session.profile import Profiling
from gdlab.session.values import Values


@bound
class Session(Values, Checkpoints, Inspection, Profiling, External):
    """A plan on a device with its state; made by `build_session` and its siblings, closed by `close` or `with`.

    Every failed call raises `SessionError` (or `ShapeError`, `DTypeError`, `UnknownNameError`) and changes nothing.
    """

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("Session(): use build_session(graph), build_inference_session(graph) or Study(graph).session")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Release the device buffers; idempotent. Every later call raises `SessionError`."""
        if not self._closed:
            self._closed = True
            owner().call(self._program.close)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def controls(self) -> Any: ...

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{plural(self._steps, 'step')}, {self._optimizer}"
        dispatches = plural(len(self._plan.dispatches), "dispatch")
        return f"<Session: {self.mode} on {self._device.info}, {dispatches}, {state}>"

    def __getattr__(self, name: str) -> NoReturn:
        hint = "; use step() and wait()" if name == "run" else ""
        raise AttributeError(f"Session has no attribute {name!r}{hint}")


def open_session(
    plan: ExecutionPlan, device: Device, nodes: Nodes | None = None, share_parameters_from: Session | None = None
) -> Session:
    """A session of a plan that is compiled already, on a device. `nodes` tells where the nodes of the written graph
    went; parameters are those of another session where one is given, not copies."""
    session = object.__new__(Session)
    session._closed = True  # until everything below has worked
    session._plan, session._device = plan, device
    shared = None if share_parameters_from is None else _shared(plan, device, share_parameters_from)
    try:
        session._program = owner().call(lambda: device.load(plan, shared))
    except MemoryError as error:
        raise SessionError("session", "memory", str(error), "a plan that this machine holds") from None
    session._nodes = nodes_as_compiled(plan.graph) if nodes is None else nodes
    session._parameters, session._inputs = dict(plan.param_buffers), dict(plan.input_buffers)
    leaves = [plan.buffers[b] for _, b in (*plan.stored_params, *plan.input_buffers)]
    session._types = {b.id: TensorType(b.shape, b.dtype) for b in leaves}
    session._types |= {place: plan.param_types[name] for name, place in plan.param_buffers}
    session._gradients = dict(plan.param_grad_pairs)
    _find_derived(session, plan)
    session._bounds = dict(getattr(plan, "index_bounds", ()))
    session._unset_inputs, session._unset_parameters = set(session._inputs), set(session._parameters)
    if share_parameters_from is not None:
        session._unset_parameters = share_parameters_from._unset_parameters
    session._optimizer, session._update, session._state_buffers = Optimizer(), update_of(plan, Recipe()), ()
    session._multipliers, session._clip, session._accumulate, session._window = {}, None, 1, 0
    session._steps = session._adam_steps = 0
    session._timed_window = session._profiling = session._profile = session._numbers = session._way = None
    session._closed = False
    return session


def _find_derived(session: Session, plan: ExecutionPlan) -> None:
    """Parameters that are the storage of others, and where the gradients of those lie."""
    stored, gradients = dict(plan.stored_params), dict(plan.param_grad_pairs)
    session._derived = {d.name: stored[d.name] for d in plan.derived_params}
    session._shapes = {stored[d.name]: d.shape for d in plan.derived_params}
    for d in plan.derived_params:
        whole = stored[d.name]
        if whole in gradients:
            session._shapes[gradients[whole]] = d.shape
            session._gradients |= {d.part(n, whole): d.part(n, gradients[whole]) for n, _ in d.sources}


def _shared(plan: ExecutionPlan, device: Device, other: Session) -> Shared:
    """The parameters of a plan as buffers of another session on the same device."""
    where = "share_parameters_from"
    if not isinstance(other, Session) or other.closed:
        given = "a closed one" if isinstance(other, Session) else repr(other)
        raise SessionError(where, "session", given, "an open one")
    if other.device.kind != device.info.kind or other.device.name != device.info.name:
        raise SessionError(where, "device", str(other.device), str(device.info))
    theirs = other._plan.param_types
    for name, type in plan.param_types.items():
        if name not in theirs:
            raise UnknownNameError(where, f"parameter {name}", "nothing in the other session", str(type))
        if theirs[name] != type:
            raise SessionError(where, f"parameter {name}", theirs[name], str(type))
    for name in plan.param_types:
        mine, held = (_packed_in(p, name) for p in (plan, other._plan))
        if mine != held:
            raise SessionError(where, f"parameter {name}", f"one stored in {held}", f"one stored in {mine}")
    places = dict(other._plan.stored_params)
    return Shared(other._program, tuple((b, places[name]) for name, b in plan.stored_params))


def _packed_in(plan: ExecutionPlan, name: str) -> str:
    """What a parameter is stored in, with all that lies there, in words."""
    found = (d for d in plan.derived_params if name in dict(d.sources))
    return next((f"{d.name} {d.sources} along axis {d.axis}" for d in found), "a buffer of its own")
