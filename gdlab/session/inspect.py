"""Look into a session: the value of any node, the output of every dispatch, norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from gdlab.base.errors import Aliased, ArgumentError, FusedAway, GraphError, UnknownName, UnknownNode, unknown_name
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.graph import Value, shown_names
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.memory import successors
from gdlab.plan.records import Place
from gdlab.session.loaded import LoadedPlan
from gdlab.session.node_places import Nodes
from gdlab.session.steps import Steps
from gdlab.session.values import Values

Space = Literal["forward", "full"]
Row = TypeVar("Row")
Results = tuple[Array, ...]
_REMEDY = "a session built with SessionConfig.debug(), which keeps every node that the optimizer leaves"


class Inspection:
    """A reader of the values that a session computes. Methods without a docstring are those of `Session`."""

    def __init__(self, loaded: LoadedPlan, nodes: Nodes, values: Values, steps: Steps) -> None:
        self.loaded, self.nodes, self.values, self.steps = loaded, nodes, values, steps

    # nodes ------------------------------------------------------------------------------------------------------------
    def read_node(self, node: int | Value, space: Space) -> Array:
        self.loaded.check_open("read_node")
        if not isinstance(space, str) or space not in ("forward", "full"):
            raise ArgumentError("read_node", "space", repr(space), "'forward' or 'full'")
        graph = self.nodes.written if space == "forward" else self.loaded.plan.graph
        id = self._node_id(node, space)
        self.steps.progress.check_stepped("read_node", f"node {id}")
        compiled = self.nodes.place.get(id) if space == "forward" else id
        if compiled is None:
            raise _fused(id, self.nodes.why.get(id, "the optimizer"))
        return self._value_of(id, compiled).reshape(graph.nodes[id].type.shape)

    def read_node_by_name(self, name: str) -> Array:
        self.loaded.check_open("read_node_by_name")
        known = {shown: id for id, shown in enumerate(shown_names(self.nodes.written)) if shown}
        if not isinstance(name, str) or name not in known:
            error = unknown_name("read_node_by_name", "name", str(name), known)
            raise UnknownName(error.where, error.what, error.given, error.wanted, name=name, known=tuple(known))
        return self.read_node(known[name], "forward")

    def node_names(self) -> list[str]:
        self.loaded.check_open("node_names")
        return [name for name in shown_names(self.nodes.written) if name]

    def _node_id(self, node: Any, space: Space) -> int:
        graph = self.nodes.written if space == "forward" else self.loaded.plan.graph
        if isinstance(node, Value):
            mine = (self.nodes.written, self.nodes.home) if space == "forward" else (graph,)
            if not any(node.graph is g for g in mine):
                raise GraphError("read_node", "node", "a Value of another graph", "one of the graph of this session")
            node = node.id
        if not isinstance(node, (int, np.integer)) or isinstance(node, bool) or not 0 <= node < len(graph):
            wanted = f"0 … {len(graph) - 1}: {plural(len(graph), 'node')}"
            raise UnknownNode("read_node", "node", repr(node), wanted, id=node, count=len(graph))
        return int(node)

    def _value_of(self, id: int, compiled: int) -> Array:
        """Return the value of a node of the compiled graph; `id` is the node that errors name."""
        plan = self.loaded.plan
        buffer, node = plan.node_buffers.get(compiled), plan.graph.nodes[compiled]
        if buffer is None and node.op == "parameter":
            return self.values.read(self.values.places.parameters[node.name])
        if buffer is None:
            dispatch, reason = plan.fused_nodes.get(compiled, (-1, "the planner"))
            if reason.startswith("folded: the literal "):
                value = float(reason.split(",")[0].removeprefix("folded: the literal "))
                return np.full(node.type.shape, value, node.type.dtype.numpy)
            raise _fused(id, f"dispatch {dispatch} ({plan.dispatches[dispatch].label})" if dispatch >= 0 else reason)
        later = successors(plan, buffer)
        if later:
            slot = plan.memory.slot_of[buffer]
            names = tuple(plan.buffers[b].name or f"buffer {b}" for b in later)
            given = f"slot {slot}, which {', '.join(names)} took over"
            raise Aliased("read_node", f"node {id}", given, _REMEDY, node=id, slot=slot, later=names)
        return self.values.read(buffer)

    # outputs of dispatches --------------------------------------------------------------------------------------------
    def dispatch_outputs(self) -> list[tuple[Dispatch, Array]]:
        self.values.check_ready("dispatch_outputs")
        self.steps.progress.check_between_steps("dispatch_outputs")
        return self.each_dispatch(lambda d, results: (d, results[0]))

    def each_dispatch(
        self, row: Callable[[Dispatch, Results], Row], step: int | None = None, *, keep: bool = True
    ) -> list[Row]:
        """Run forward and backward group by group without counting a step, and return `row(dispatch, results)` of each,
        in order (results: `Values.read_results`); the caches that the plan writes are afterwards as before, and with
        `keep` the outputs and gradients of the last step. `step`: the step, from 0, whose random numbers are drawn,
        else the next. Checks nothing."""

        def run() -> list[Row]:
            plan, program = self.loaded.plan, self.loaded.program
            of_step = (*plan.output_buffers, *(gradient for _, gradient in plan.param_grad_pairs)) if keep else ()
            kept = {b: program.download(b) for b in (*(b for d in plan.dispatches for b in d.in_place), *of_step)}
            rows = []
            try:
                for group in plan.groups:
                    program.run(group.start, group.stop, self.steps.scalars(self.steps.updates.adam_steps, step))
                    rows += [row(d, self.values.read_results(d)) for d in plan.dispatches[group.start : group.stop]]
            finally:
                for buffer, data in kept.items():
                    program.upload(buffer, data)
            return rows

        return self.loaded.turn.call(run)

    # norms ------------------------------------------------------------------------------------------------------------
    def param_norms(self) -> list[tuple[str, float]]:
        """Return (name, L2 norm) of every parameter."""
        self.loaded.check_open("read_all_param_norms")
        return self._norms(self.values.places.parameters)

    def grad_norms(self) -> list[tuple[str, float]]:
        """Return (name, L2 norm) of every gradient."""
        self.loaded.check_training("read_all_param_grad_norms")
        self.steps.progress.check_stepped("read_all_param_grad_norms", "gradients")
        places = self.values.places
        return self._norms({n: places.gradients[p] for n, p in places.parameters.items() if p in places.gradients})

    def _norms(self, places: Mapping[str, Place]) -> list[tuple[str, float]]:
        read = self.loaded.turn.call(lambda: [self.values.download(p) for p in places.values()])
        with np.errstate(all="ignore"):
            norms = [float(np.sqrt(np.sum(np.square(data, dtype=np.float64)))) for data in read]
        return list(zip(places, norms, strict=True))

    def dump_grad_summary(self, top_n: int) -> str:
        if not isinstance(top_n, (int, np.integer)) or isinstance(top_n, bool) or top_n < 0:
            raise ArgumentError("dump_grad_summary", "top_n", repr(top_n), "an int ≥ 0")
        gradients, weights = self.grad_norms(), dict(self.param_norms())
        ordered = sorted(gradients, key=lambda pair: (not np.isnan(pair[1]), -pair[1] if pair[1] == pair[1] else 0))
        lines = [f"--- top {min(top_n, len(ordered))} param grads (out of {len(ordered)} with grads) ---"]
        for name, g in ordered[:top_n]:
            w = weights[name]
            lines.append(f"  {name:>40}  ‖g‖={g:.3e}  ‖w‖={w:.3e}  g/w={g / w if w else float('nan'):.3e}")
        text = "\n".join(lines)
        print(text)
        return text


def _fused(id: int, by: str) -> FusedAway:
    return FusedAway("read_node", f"node {id}", f"one that went into {by}", _REMEDY, node=id, by=by)


def by_buffer(d: Dispatch, results: Results) -> Iterator[tuple[int, Array]]:
    """Return (buffer, data) of every buffer that a dispatch wrote, from its results as `each_dispatch` hands them."""
    if not d.in_columns:
        return zip(d.outputs, results, strict=True)
    ends = accumulate((r.type.shape[1] for r in d.results), initial=0)
    return zip(d.outputs, (results[0][:, a:b] for a, b in pairwise(ends)), strict=True)
