"""Reverse-mode differentiation: a graph in, a graph out, and a report that pairs each forward node with its adjoints.

Formulas live with the ops (`@op.vjp`); here is only the bookkeeping of the reverse sweep (Linnainmaa, 1970; the
cotangents of a node with several readers are added in reverse id order; those of column ranges lie side by side).
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gdlab.base.errors import AutodiffError, ShapeError
from gdlab.base.kinds import is_several, takes
from gdlab.base.types import TensorType, f32
from gdlab.base.words import nbytes, plural
from gdlab.graph import Graph, Node, Value, reachable
from gdlab.op import REGISTRY, Leaf, Op, ops_that
from gdlab.op.storage import trained_parameters
from gdlab.ops.packed import side_by_side

__all__ = ["AutodiffReport", "GradientStep", "ReverseSweep", "differentiate", "report_of", "gradients_as_outputs"]


@dataclass(frozen=True, slots=True)
class GradientStep:
    """The step of the sweep at one forward op. Ids are of the differentiated graph.

    `cotangents`: the terms that arrived, `accumulated`: the adds that joined them, `added`: the nodes that the gradient
    rule of `rule` built, `residuals`: forward values that they read (kept from the forward pass; parameters do not
    count), `reason`: why no gradient flows on, or ``""``.
    """

    node: int
    rule: str
    cotangents: tuple[int, ...]
    accumulated: tuple[int, ...]
    added: tuple[int, ...]
    residuals: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True)
class AutodiffReport:
    """The report of a differentiation: its steps, and the origins of nodes.

    `adjoint_of[id]` is the forward node that a backward node belongs to; `residuals` maps each forward node that the
    backward pass reads to its bytes; `accumulations` are the adds of fan-outs; `zero_gradients` the `wrt` entries that
    the loss does not depend on, with the reason in `reasons`; `origin` maps every id to the forward ids it came from.
    """

    wrt: tuple[int, ...]
    gradients: tuple[int, ...]
    forward_nodes: int
    adjoint_of: dict[int, int]
    residuals: dict[int, int]
    accumulations: tuple[int, ...]
    zero_gradients: tuple[int, ...]
    reasons: dict[int, str]
    origin: dict[int, tuple[int, ...]]
    steps: tuple[GradientStep, ...]

    @property
    def residual_bytes(self) -> int:
        """Bytes of activations that the forward pass keeps for the backward pass."""
        return sum(self.residuals.values())

    def __repr__(self) -> str:
        gradients, adjoints = plural(len(self.gradients), "gradient"), plural(len(self.adjoint_of), "adjoint node")
        return f"<AutodiffReport: {gradients}, {adjoints}>"

    def __str__(self) -> str:
        return (
            f"differentiate: {plural(self.forward_nodes, 'forward node')}, "
            f"{plural(len(self.adjoint_of), 'adjoint node')}, {plural(len(self.gradients), 'gradient')}; "
            f"{nbytes(self.residual_bytes)} of activations saved"
        )


def differentiate(
    graph: Graph, *, wrt: Iterable[Value] | None = None, seed: Value | None = None
) -> tuple[Graph, AutodiffReport]:
    """Return the graph with the gradient of output 0 appended: forward nodes keep their ids, one gradient per `wrt`
    entry follows the user outputs.

    `wrt=None`: all parameters in node order but those of storage dtypes and caches, which are not trained. Output 0
    must be f32[1] unless `seed` (of its shape) is given. Weights that lie packed in one tensor count as that one
    tensor, which has one gradient.

    Raises `AutodiffError` for a loss of another shape, for a `wrt` entry that is no f32 value of this graph, and
    for an op without gradient on a path from `wrt` to the loss.
    """
    if not isinstance(graph, Graph):
        raise AutodiffError("differentiate", "graph", type(graph).__name__, "a Graph")
    loss = _loss(graph, seed)
    wrt = [wrt] if isinstance(wrt, Value) else wrt
    if wrt is not None and not is_several(wrt):
        raise AutodiffError("differentiate", "wrt", type(wrt).__name__, "a value, or several")
    trained = (graph.value(id) for id, _ in trained_parameters(graph))
    targets = [_target(graph, v) for v in (trained if wrt is None else wrt)]
    full = graph.copy()
    with full, full.silent():
        needed = _needed(full, targets, loss)
        sweep = ReverseSweep(full, needed)
        start = REGISTRY["full"]((1,), 1.0) if seed is None else full.value(seed.id)
        if seed is None and loss in needed:
            sweep.adjoint_of[start.id] = loss
        sweep.terms[loss].append(start)
        sweep.run(range(loss, -1, -1))
        gradients, missing = [], []
        for id in targets:
            gradient = sweep.total.get(id)
            if gradient is None:
                missing.append(id)
                gradient = REGISTRY["full"](full.node(id).type.shape, 0.0)
                sweep.adjoint_of[gradient.id] = id
            gradients.append(gradient.id)
    return _finish(graph, full, sweep, targets, gradients, missing)


def gradients_as_outputs(graph: Graph) -> Graph:
    """Return the graph for reading; of a derivative with respect to other nodes than all parameters, a copy whose
    gradients are plain outputs, because none of them is the gradient of the parameter at its place."""
    gradients, trained = graph.output_ids[graph.num_user_outputs :], trained_parameters(graph)
    pairs = zip(trained, gradients, strict=False)
    alike = all(graph.node(p).type == graph.node(i).type for (p, _), i in pairs)
    if not gradients or alike and len(gradients) == len(trained):
        return graph
    made = graph.copy()
    made.num_param_grad_outputs = 0
    return made


def _loss(graph: Graph, seed: Value | None) -> int:
    if not graph.outputs:
        raise AutodiffError("differentiate", "outputs", "none", "a graph whose output 0 is the loss")
    loss = graph.output_at(0)
    if seed is not None and graph.own(seed).type != loss.type:
        raise AutodiffError("differentiate", "seed", seed.type, f"the type of output 0, {loss.type}")
    if seed is None and (loss.shape != (1,) or loss.type.dtype is not f32):
        where = graph.source(loss.id)
        raise AutodiffError(
            "differentiate", "loss", loss.type, "shape [1]", node=loss.id, source=where[0] if where else None
        )
    return loss.id


def _target(graph: Graph, value: Value) -> int:
    if graph.own(value).type.dtype is not f32:
        wanted = "f32 values" + (": a storage dtype is not trained" if value.type.dtype.is_storage else "")
        raise AutodiffError("differentiate", "wrt", repr(value), wanted, node=value.id)
    return value.id


def _needed(graph: Graph, targets: Sequence[int], loss: int) -> set[int]:
    """Return the nodes on a path from a target to the loss: only their cotangents are built."""
    above, from_loss = _above(set(targets), graph), reachable(graph, [loss])
    return {id for id in above if from_loss[id]}


def _above(targets: set[int], nodes: Iterable[Node]) -> set[int]:
    """Return the targets and those of the nodes (in order) that depend on a target."""
    above = set(targets)
    for node in nodes:
        if any(i in above for i in node.inputs):
            above.add(node.id)
    return above


After = Callable[[int, Sequence[Value], int, Sequence[Value]], None]
Arrived = Callable[[int, Value], Value]


class ReverseSweep:
    """The state of one reverse sweep over nodes of a graph, to which it appends: over a graph that is differentiated,
    or over the body of a fused op. `terms` are the cotangents that arrived at a node, `total` is their sum.

    `after(id, terms, first, passed)` is called when a node is done: these terms had arrived at it, nodes from id
    `first` on were appended for it, and the cotangents `passed` went on to its operands. `arrived(id, total)` returns
    what goes on instead of the complete gradient of a node."""

    def __init__(
        self, graph: Graph, needed: Container[int], after: After | None = None, arrived: Arrived | None = None
    ) -> None:
        self.graph, self.needed, self.after, self.arrived = graph, needed, after, arrived
        self.terms: dict[int, list[Value]] = defaultdict(list)
        self.total: dict[int, Value] = {}
        self.adjoint_of: dict[int, int] = {}
        self.accumulations: list[int] = []
        self.steps: list[tuple[int, str, list[int], list[int], range, str]] = []

    def run(self, ids: Iterable[int]) -> None:
        """Visit nodes, last first: add up the terms of each and hand the sum on to its operands."""
        for id in ids:
            start = len(self.graph)
            arrived = self.terms.get(id, ())
            terms = self.add_up(id)
            if not terms:
                continue
            joined = list(range(start, len(self.graph)))
            self.accumulations += joined
            if self.arrived is not None:
                self.total[id] = self.arrived(id, self.total[id])
            node = self.graph.node(id)
            reason, passed = self._pull(node, self.total[id])
            for new in range(start, len(self.graph)):
                self.adjoint_of[new] = id
            if node.inputs:
                made = range(start + len(joined), len(self.graph))
                self.steps.append((id, node.op, [t.id for t in terms], joined, made, reason))
            if self.after is not None:
                self.after(id, arrived, start, passed)

    def add_up(self, id: int) -> list[Value]:
        """Make `total` of the terms of a node; return the values added up, none where no cotangent is needed."""
        terms = self.terms.pop(id, [])
        if not terms or id not in self.needed:
            return []
        together = side_by_side(terms)
        self.total[id], terms = (reduce(REGISTRY["add"], terms), terms) if together is None else together
        return terms

    def _pull(self, node: Node, g: Value) -> tuple[str, list[Value]]:
        """Hand the cotangent of `node` on to its operands; return why not, if it ends here, and the values passed."""
        op = REGISTRY[node.op]
        if isinstance(op.kernel, Leaf) or not node.inputs:
            return "", []
        wanted = [i in self.needed for i in node.inputs]
        if not any(wanted):
            return _IN_PLACE if op.packing == "storage" else "no parameter before it", []
        if op.no_grad == "ends":
            return f"{op.name} is constant almost everywhere: its gradient is zero", []
        if op.no_grad == "stops":
            return f"{op.name} stops the gradient", []
        if op.no_grad == "refuses" or (op.gradient is None and op.body is None):
            where = self.graph.source(node.id)
            raise AutodiffError(
                "differentiate", f"%{node.id} {op.name}", "no gradient", "an op with a gradient on the way to the loss",
                node=node.id, source=where[0] if where else None,
            )  # fmt: skip
        inputs, attrs = [self.graph.value(i) for i in node.inputs], dict(node.attrs)
        if op.gradient is None:
            entries = _pull_body(op, g, inputs, attrs, wanted)
        else:
            out = self.graph.value(node.id)
            entries = _checked(op, _entries(op, g, out, inputs, attrs), inputs, wanted)
        passed = [(i, entry) for i, entry in zip(node.inputs, entries, strict=True) if entry is not None]
        for i, entry in passed:
            self.terms[i].append(entry)
        return "", [entry for _, entry in passed]


def _entries(op: Op, g: Value, out: Value, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Any:
    """Return what the gradient rule of `op` returns; one that takes other arguments is named, with those it gets."""
    assert op.gradient is not None
    given = g, out, *op.spread(inputs)
    try:
        return op.gradient(*given, **attrs)
    except TypeError as error:
        if takes(op.gradient, *given, **attrs):
            raise
        names = ", ".join(["g", "out", *op.operands, *attrs])
        told = f"a function with the arguments {inspect.signature(op.gradient)}"
        raise AutodiffError("differentiate", f"{op.name}.vjp", told, f"({names})") from error


def _checked(op: Op, entries: Any, inputs: Sequence[Value], wanted: Sequence[bool]) -> list[Value | None]:
    """Check the entries that the gradient rule of `op` returned, and return the cotangents of the wanted inputs."""
    if not isinstance(entries, (tuple, list)):
        wanted_tuple = f"a tuple of {len(inputs)}, one per input"
        raise AutodiffError("differentiate", f"{op.name}.vjp", type(entries).__name__, wanted_tuple)
    if len(entries) != len(inputs):
        wanted_count = f"{len(inputs)}, one per input"
        raise AutodiffError("differentiate", f"{op.name}.vjp", f"{len(entries)} entries", wanted_count)
    built = [(e() if callable(e) else e) if w else None for e, w in zip(entries, wanted, strict=True)]
    for entry, value in zip(built, inputs, strict=True):
        if entry is not None and not (isinstance(entry, Value) and entry.graph is value.graph):
            given = "a value of another graph" if isinstance(entry, Value) else repr(entry)
            raise AutodiffError("differentiate", f"{op.name}.vjp", given, "values built from g, out and the operands")
        like = TensorType(value.shape) if value.type.dtype.is_storage else value.type  # cotangents are f32
        if entry is not None and entry.type != like:
            raise ShapeError("differentiate", f"{op.name}.vjp", entry.type, f"the type of the operand, {like}")
    return built


def _pull_body(
    op: Op, g: Value, inputs: Sequence[Value], attrs: dict[str, Any], wanted: Sequence[bool]
) -> list[Value | None]:
    """Compute the default gradient of a fused op: append its body and sweep back over it. Depth of nesting, not of the
    graph, bounds the recursion."""
    graph = g.graph
    assert op.body is not None  # the caller looked
    start = len(graph)
    result = op.body(*inputs, **attrs)
    ids = range(start, len(graph))
    targets = {v.id for v, w in zip(inputs, wanted, strict=True) if w}
    sweep = ReverseSweep(graph, _above(targets, map(graph.node, ids)))
    sweep.terms[result.id].append(g)
    sweep.run(reversed(ids))
    for v in inputs:
        sweep.add_up(v.id)
    # an operand that is read twice gets its whole cotangent once
    return [sweep.total.pop(v.id, None) if w else None for v, w in zip(inputs, wanted, strict=True)]


def _finish(
    graph: Graph, full: Graph, sweep: ReverseSweep, targets: list[int], gradients: list[int], missing: list[int]
) -> tuple[Graph, AutodiffReport]:
    """Drop backward nodes that no gradient reaches, number the rest, and write the report."""
    n = len(graph)
    live = reachable(full, [*graph.output_ids[: graph.num_user_outputs], *gradients])
    new = {id: id for id in range(n)}
    result = graph.copy()
    with result.silent():
        for node in full.nodes[n:]:
            if live[node.id]:
                inputs = tuple(new[i] for i in node.inputs)
                new[node.id] = result.append(node.op, inputs, node.attrs, node.type, node.name).id
    user = list(zip(graph.output_ids, graph.output_names, strict=True))[: graph.num_user_outputs]
    result.set_output_ids([*user, *((new[g], "") for g in gradients)], len(gradients))
    result.zero_gradients = tuple(missing)
    for id, gradient in zip(targets, gradients, strict=True):
        value = result.value(new[gradient])
        if value.id >= n and not value.name and result.node(id).name:
            value.named(f"∂{result.node(id).name}")
    adjoint_of = {new[a]: f for a, f in sweep.adjoint_of.items() if a in new and a >= n}
    return result, _report(result, sweep, n, new, targets, [new[g] for g in gradients], missing, adjoint_of)


def report_of(graph: Graph, sweep: ReverseSweep, n: int, targets: Sequence[int]) -> AutodiffReport:
    """Return the report of a sweep over the first n nodes of a graph that keeps every node. Targets that no gradient
    reached get zeros, which are appended; gradients become the last outputs, and get names."""
    missing = [id for id in targets if id not in sweep.total]
    for id in missing:
        sweep.total[id] = zero = REGISTRY["full"](graph.node(id).type.shape, 0.0, graph=graph)
        sweep.adjoint_of[zero.id] = id
    gradients = [sweep.total[id].id for id in targets]
    for id, gradient in zip(targets, gradients, strict=True):
        if gradient >= n and not graph.node(gradient).name and graph.node(id).name:
            graph.named(graph.value(gradient), f"∂{graph.node(id).name}")
    user = list(zip(graph.output_ids, graph.output_names, strict=True))
    graph.set_output_ids([*user, *((id, "") for id in gradients)], len(gradients))
    graph.zero_gradients = tuple(missing)
    adjoint_of = {a: f for a, f in sweep.adjoint_of.items() if a >= n}
    new = {id: id for id in range(len(graph))}
    return _report(graph, sweep, n, new, list(targets), gradients, missing, adjoint_of)


def _report(
    graph: Graph, sweep: ReverseSweep, n: int, new: dict[int, int], targets: list[int], gradients: list[int],
    missing: list[int], adjoint_of: dict[int, int],
) -> AutodiffReport:  # fmt: skip
    def kept(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(new[i] for i in ids if i in new)

    steps = []
    residuals: dict[int, int] = {}
    not_saved = ops_that(lambda op: not op.saved, graph)
    for node, rule, terms, joined, made, reason in sweep.steps:
        added = kept(made)
        read = {i for a in added for i in graph.node(a).inputs if i < n and graph.node(i).op not in not_saved}
        residuals.update({i: graph.node(i).type.size_bytes for i in sorted(read)})
        cotangents = kept(terms)
        if terms and not cotangents:
            reason = reason or "its cotangent reaches no parameter"
        steps.append(GradientStep(node, rule, cotangents, kept(joined), added, tuple(sorted(read)), reason))
    origin: dict[int, tuple[int, ...]] = {i: (i,) for i in range(n)}
    origin.update({a: (f,) for a, f in sorted(adjoint_of.items())})
    reasons = {id: _why_zero(graph, id, n) for id in missing}
    reasons |= {s.node: s.reason for s in steps if s.reason}
    return AutodiffReport(
        tuple(targets), tuple(gradients), n, dict(sorted(adjoint_of.items())), residuals, kept(sweep.accumulations),
        tuple(missing), reasons, origin, tuple(steps),
    )  # fmt: skip


def _why_zero(graph: Graph, target: int, forward_nodes: int) -> str:
    """Return why no cotangent arrives at a node: the loss does not depend on it, or an op on the way stops it."""
    loss = graph.output_ids[0]
    to_loss = reachable(graph, [loss])
    if not to_loss[target]:
        return "the loss does not depend on it"
    below = {target}
    stops = []
    for node in graph.nodes[:forward_nodes]:
        if below.isdisjoint(node.inputs):
            continue
        if REGISTRY[node.op].no_grad in ("ends", "stops"):
            stops += [f"{node.op} (%{node.id})"] * bool(to_loss[node.id])
        else:
            below.add(node.id)
    return f"its gradient is zero: no cotangent passes {' and '.join(stops[:3])}" if stops else "its gradient is zero"


_IN_PLACE = "it is differentiated in place of the parameters that lie in it"
