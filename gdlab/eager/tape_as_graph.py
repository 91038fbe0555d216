"""Turn a recording into a graph: the same nodes, attributes and sources, parameters and inputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import ArgumentError, GraphError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import FUNCTION, INTEGER, is_several, kinds
from gdlab.base.types import Array
from gdlab.eager.params import Param
from gdlab.eager.tape import Tape, TensorRef
from gdlab.graph import Graph, Node, reachable
from gdlab.op import REGISTRY

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession


@dataclass(frozen=True)
class TapeExport:
    """A recording as a graph: `node_of` is the node of each tensor by its id, `feeds` the arrays of inputs and `params`
    the parameters by name, `step` the number of the recording, whose random numbers it drew."""

    graph: Graph
    node_of: dict[int, int]
    feeds: dict[str, Array]
    params: dict[str, Param]
    step: int

    @property
    def weights(self) -> dict[str, Array | Packed]:
        """Return the current values of the parameters, blocks in their bytes."""
        return {name: p.held for name, p in self.params.items()}


def to_graph(session: EagerSession, outputs: TensorRef | Sequence[TensorRef] | Mapping[str, TensorRef]) -> TapeExport:
    """Return the part of the recording that the outputs need."""
    named = outputs if isinstance(outputs, Mapping) else {}
    given = list(named.values()) if named else [outputs] if isinstance(outputs, TensorRef) else list(outputs)
    refs = [session.own("to_graph", ref) for ref in given]
    if not refs:
        raise ArgumentError("eager.to_graph", "outputs", "none", "at least one tensor")
    tape, graph = session.tape, Graph()
    needed = reachable(tape, [ref.id for ref in refs])
    node_of: dict[int, int] = {}
    feeds: dict[str, Array] = {}
    params: dict[str, Param] = {}
    for node in tape.nodes:
        if not needed[node.id]:
            continue
        made = _leaf(tape, node) if node.op in ("input", "parameter") else node
        if made is not node:
            _check_name(tape, graph, node, made.name)
        inputs = tuple(node_of[i] for i in node.inputs)
        if tape.exact:
            made = _in_f32(made)
        node_of[node.id] = graph.copy_node(made, inputs, tape.source(node.id)).id
        param = tape.facts[node.id].param if node.id in tape.facts else None
        if param is not None:
            params[made.name] = param
        elif node.op == "input":
            tape.check_live("to_graph", node.id)
            buffer = tape.buffers[node.id]
            feeds[made.name] = session.engine.download(buffer.block, buffer.type)
    values = [graph.value(node_of[ref.id]) for ref in refs]
    graph.set_outputs(dict(zip(named, values, strict=True)) if named else values)
    return TapeExport(graph, node_of, feeds, params, session.step_number)


def _leaf(tape: Tape, node: Node) -> Node:
    """Return an input or parameter under its name, as a new record."""
    return Node(node.id, node.op, node.inputs, node.attrs, node.type, str(node.attr("name")))


def _in_f32(node: Node) -> Node:
    """Return a node of a wide session as it is in a plan: its numbers rounded to float32."""
    record = REGISTRY.get(node.op)
    attrs = node.attrs if record is None else tuple(sorted(record.rounded(dict(node.attrs)).items()))
    return replace(node, attrs=attrs)


def _check_name(tape: Tape, graph: Graph, node: Node, name: str) -> None:
    old = graph.leaf(name)
    if old is None:
        return
    lines = [str(source[0]) if source else "?" for source in (graph.source(old.id), tape.source(node.id))]
    given = f"{name!r} at {lines[0]} and at {lines[1]}"
    raise GraphError("eager.to_graph", f"{node.op}s of one name", given, "one value of each name in a recording")


# plain functions ------------------------------------------------------------------------------------------------------
@kinds(function=FUNCTION)
def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, **options: Any
) -> Callable[..., Any]:
    """Return a function of arrays that returns (value, gradients) of a scalar `function` of tensors, in a new session
    for each call: `options` are those of the session."""
    from gdlab.eager.eager_session import EagerSession

    several = not isinstance(argnums, int)
    wanted = [argnums] if isinstance(argnums, int) else list(argnums) if is_several(argnums) else []
    if not wanted or not all(INTEGER.holds(i) for i in wanted):
        raise ArgumentError("grad", "argnums", f"{argnums!r:.40}", "the number of an argument, or several")

    def called(*args: Any) -> tuple[float, Any]:
        session = EagerSession(**options)
        try:
            for i in wanted:
                if not -len(args) <= i < len(args):
                    most = f"0 … {len(args) - 1}" if args else "arguments: the function was called without any"
                    raise ArgumentError("grad", "argnums", i, most)
            places = {i % len(args) for i in wanted}
            with session:
                refs = [_argument(session, a, i in places) for i, a in enumerate(args)]
                loss = function(*refs)
                grads = session.backward(session.own("grad", loss))
                found = [grads.numpy(refs[i]) if refs[i] in grads else np.zeros(refs[i].shape) for i in wanted]
            return float(loss), tuple(found) if several else found[0]
        finally:
            session.close()

    return called


@kinds(function=FUNCTION)
def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0, **options: Any) -> Callable[..., Any]:
    """Return a function of arrays that returns the gradient of a scalar `function` of tensors."""
    both = value_and_grad(function, argnums, **options)
    return lambda *args: both(*args)[1]


def _argument(session: EagerSession, value: Any, differentiable: bool) -> TensorRef:
    array = np.asarray(value)
    if differentiable and array.dtype.kind in "iub":
        array = array.astype(session.opts.scalar)
    return session.input(array, requires_grad=differentiable)
