"""Find a tensor by name, where it lies and which dispatches write it: `find_tensor(session, "watch", "h")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gdlab.base.errors import ArgumentError, unknown_name
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import TEXT, check_kind
from gdlab.base.types import Array, Shape, TensorType
from gdlab.base.words import natural
from gdlab.graph import shown_names
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.memory import successors
from gdlab.plan.records import ExecutionPlan, Place
from gdlab.session.session import Session
from gdlab.session.tensor_places import slices_of

GRADIENT = ".grad"


@dataclass(frozen=True, slots=True)
class SessionTensor:
    """A tensor of a session: `place` is the buffer that holds it, `stays` whether it lies there until the next step
    (others may come to lie there); `node` of the graph as written (−1: a gradient), `leaf`: an input or a parameter."""

    name: str
    type: TensorType
    place: Place
    stays: bool
    node: int
    leaf: bool

    @property
    def shape(self) -> Shape:
        """The tensor's extents in the graph."""
        return self.type.shape

    def writers(self, dispatches: Sequence[Dispatch]) -> list[int]:
        """Return the dispatches of a step, by their place in it, that write it."""
        buffer = self.place if isinstance(self.place, int) else self.place.buffer
        return [k for k, d in enumerate(dispatches) if buffer in d.writes]


def tensor_names(session: Session) -> list[str]:
    """Return the names that `find_tensor` knows: named nodes in node order, other parameters, and `w.grad` of each
    parameter that has a gradient."""
    parameters = session.param_names()
    gradients = [p + GRADIENT for p in parameters if session.mode == "training" and session.has_param_grad(p)]
    return list(dict.fromkeys([*nodes_by_name(session), *parameters, *gradients]))


def nodes_by_name(session: Session) -> dict[str, int]:
    """Return the named nodes of the graph as written, in order: of several of one name `h` is the last, earlier ones
    are `h#1`, `h#2`, as in views."""
    return {name: id for id, name in enumerate(shown_names(session.nodes.written)) if name}


def node_of(session: Session, where: str, name: str) -> int:
    """Return the node of the graph as written that `name` (`h`, `h#1`) or `%id` says."""
    written = session.nodes.written
    number = natural(name[1:]) if name[:1] == "%" else None
    if number is not None and number < len(written):
        return number
    known = nodes_by_name(session)
    if name not in known:
        raise unknown_name(where, "node", name, known)
    return known[name]


def find_tensor(session: Session, where: str, name: str) -> SessionTensor:
    """Return the tensor of this name (`w`, `w.grad`, `%7`). The error names the nearest known name; for a
    node without a value of its own, where it went."""
    session.loaded.check_open(where)
    check_kind(where, "tensor", name, TEXT)
    places = session.values.places
    parameter = places.parameters.get(name.removesuffix(GRADIENT), -1)
    if name.endswith(GRADIENT) and parameter in places.gradients:
        return SessionTensor(name, places.types[parameter], places.gradients[parameter], True, -1, False)
    if name in places.parameters:
        place = places.parameters[name]
        nodes = {n.name: n.id for n in session.nodes.written if n.op == "parameter"}
        return SessionTensor(name, places.types[place], place, True, nodes.get(name, -1), True)
    if not name.startswith("%") and name not in nodes_by_name(session):
        raise unknown_name(where, "tensor", name, tensor_names(session))
    return _of_node(session, where, name, node_of(session, where, name))


def _of_node(session: Session, where: str, name: str, id: int) -> SessionTensor:
    node, at = session.nodes.written.nodes[id], session.nodes.place.get(id)
    plan = session.plan()
    if node.op == "parameter":
        return find_tensor(session, where, node.name)
    buffer = None if at is None else plan.node_buffers.get(at)
    if buffer is None:
        wanted = "a tensor of its own: a session built with SessionConfig.debug() keeps every node"
        raise ArgumentError(where, "tensor", f"{name}, which went into {_why(session, id, at)}", wanted)
    return SessionTensor(name, node.type, buffer, _stays(plan, buffer), id, node.op == "input")


def tensor_at(session: Session, where: str, buffer: int) -> SessionTensor:
    """Return the tensor in a buffer, by its number in the plan (behind those of the plan stand those of the update)."""
    session.loaded.check_open(where)
    plan = session.plan()
    buffers = (*plan.buffers, *session.updates.state_buffers)
    if not 0 <= buffer < len(buffers):
        raise ArgumentError(where, "interval", str(buffer), f"0 … {len(buffers) - 1}: {len(buffers)} buffers")
    b = buffers[buffer]
    if b.kind == "parameter":
        return find_tensor(session, where, b.name)
    leaf = b.kind in ("input", "derived", "constant", "state")
    stays = leaf or _stays(plan, buffer)
    return SessionTensor(b.name or f"buffer {buffer}", TensorType(b.shape, b.dtype), buffer, stays, -1, leaf)


def _stays(plan: ExecutionPlan, buffer: int) -> bool:
    """Return whether no later buffer reuses this buffer's memory within a step."""
    return buffer in plan.memory.pinned or not successors(plan, buffer)


def _why(session: Session, id: int, at: int | None) -> str:
    """Return the rule or dispatch that a node went into, in words."""
    if at is None:
        return session.nodes.why.get(id, "the optimizer")
    dispatch, reason = session.plan().fused_nodes.get(at, (-1, "the planner"))
    return f"dispatch {dispatch} ({session.plan().dispatches[dispatch].label})" if dispatch >= 0 else reason


def dispatch_of(session: Session, where: str, name: str) -> int:
    """Return the dispatch of a step that computes the node `name` (the one after which its value is whole)."""
    id = node_of(session, where, name)
    node, at = session.nodes.written.nodes[id], session.nodes.place.get(id)
    plan = session.plan()
    if node.op in ("input", "parameter"):
        raise ArgumentError(where, "node", f"{name}, an {node.op}" if node.op == "input" else f"{name}, a parameter",
                            "one that is computed (write NAME for a parameter)")  # fmt: skip
    computing = [k for k, d in enumerate(plan.dispatches) if at in d.origin]
    if at is None or not computing:
        wanted = "a node that a dispatch computes"
        raise ArgumentError(where, "node", f"{name}, which went into {_why(session, id, at)}", wanted)
    buffer = plan.node_buffers.get(at)
    return next((k for k in computing if buffer in plan.dispatches[k].outputs), computing[0])


def read_tensor(session: Session, tensor: SessionTensor) -> Array:
    """Return the data at the tensor's place now, in its shape."""
    shaped: Array = session.values.read(tensor.place).reshape(tensor.shape)
    return shaped if shaped.dtype == np.uint32 else shaped.astype(np.float32, copy=False)


def initial_leaves(session: Session) -> dict[str, Array | Packed] | None:
    """Return inputs and parameters at the start of the current partial step; without one as they are now, blocks in
    their bytes. None where they have changed since."""
    partial, places = session.progress.partial, session.values.places
    changes = session.optimizer.rule != "none" or any(d.in_place for d in session.plan().dispatches)
    if partial is None and changes and session.step_count:
        return None
    if partial is not None and not partial.reversible:
        return None
    initial = {} if partial is None else partial.initial
    arrays: dict[str, Array | Packed] = {name: session.read_input(name) for name in places.inputs}
    for name, place in places.parameters.items():
        buffer = place if isinstance(place, int) else place.buffer
        data = initial.get(buffer)
        if data is None:
            arrays[name] = session.values.held(name)
        elif isinstance(place, int):
            arrays[name] = data.reshape(places.types[place].shape)
        else:
            arrays[name] = data.reshape(places.shapes[buffer])[slices_of(place)]
    return arrays
