"""Check the gradient rule of one op against central differences in float64: `print(study.check_gradient("h"))`.

The op alone, on the values that its operands have in the study, under a random cotangent; and how large the gradient is
that really arrives at it: a dead, vanishing, exploding or non-finite one is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.base.errors import AutodiffError, GraphError
from gdlab.base.types import Array, f32
from gdlab.base.words import natural, plural, sig
from gdlab.graph import Graph, Node, shown_names
from gdlab.op import REGISTRY
from gdlab.op.cost import flops
from gdlab.op.reference import evaluate
from gdlab.study.execution import Execution
from gdlab.study.parity import node_words

STEP, SLOPE = 1e-6, 1e-5  # of the difference, and what a gradient may be off: SLOPE · (1 + |gradient|)
SAMPLES, WORK = 16, 2e8  # elements of each operand that are moved; fewer where that took more flops
ROUNDING = 4e-16  # of the larger of two float64 that are subtracted
VANISHING, EXPLODING = 1e-7, 1e3  # l2 of the gradient of a loss


@dataclass(frozen=True, slots=True)
class OperandCheck:
    """The comparison of one operand: how many of its elements were moved, the largest absolute error among them and the
    one allowed there, the flat index of the worst, and `note`: why nothing was compared."""

    name: str
    type: str
    samples: int = 0
    error: float = 0.0
    allowed: float = 0.0
    at: int = -1
    problem: str = ""
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"{self.name} {self.type}: {self.note}"
        told = f"{plural(self.samples, 'sample')}, largest error {sig(self.error)} (allowed {sig(self.allowed)})"
        return f"{self.name} {self.type}: {told}{f'; {self.problem}' if self.problem else ''}"


@dataclass(frozen=True)
class GradientCheck:
    """The report of `Study.check_gradient`: `ok`, `error` (the largest), `verdict` (one sentence), `operands`; `norm`
    is the l2 norm of the loss's gradient at the op's result (None: none arrives), `flag` says what is wrong with it."""

    node: int
    what: str
    operands: tuple[OperandCheck, ...]
    norm: float | None
    flag: str

    @property
    def ok(self) -> bool:
        """Return whether every gradient that was compared is the slope."""
        return not any(o.problem for o in self.operands)

    @property
    def error(self) -> float:
        """Return the largest absolute error of all operands."""
        return max((o.error for o in self.operands), default=0.0)

    @property
    def samples(self) -> int:
        """Return the number of elements that were moved."""
        return sum(o.samples for o in self.operands)

    @property
    def verdict(self) -> str:
        """Return the result in one sentence."""
        if bad := next((o for o in self.operands if o.problem), None):
            return f"{self.what}: the gradient of {bad.name} is not the slope: {bad.problem}."
        if not self.samples:
            return f"{self.what}: nothing to compare: {'; '.join(dict.fromkeys(o.note for o in self.operands))}."
        largest = f"largest error {sig(self.error)} in {plural(self.samples, 'sample')}"
        return f"{self.what}: the gradient is the slope: {largest}."

    def to_json(self) -> dict[str, Any]:
        """Return every figure and the words of `str`, for the page."""
        norm = self.norm if self.norm is not None and np.isfinite(self.norm) else None  # JSON has no NaN
        return {
            "ok": self.ok, "error": self.error, "samples": self.samples, "norm": norm, "flag": self.flag,
            "text": self.verdict, "told": "\n".join(self._lines()),
        }  # fmt: skip

    def _lines(self) -> list[str]:
        return [*map(str, self.operands), f"the gradient that arrives: {norm_words(self.norm, self.flag)}"]

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {line}" for line in self._lines())])


def norm_words(norm: float | None, flag: str) -> str:
    """Write the norm of a gradient in words: `l2 norm 0.12`, `vanishing: l2 norm 3.1e-09`."""
    if norm is None:
        return flag
    return f"{flag}: l2 norm {sig(norm)}" if flag else f"l2 norm {sig(norm)}"


# one op ---------------------------------------------------------------------------------------------------------------
def check_node(execution: Execution, wanted: Any, optimized: bool = False) -> GradientCheck:
    """Return the result of `Study.check_gradient`."""
    pipeline = execution.pipeline
    graph = pipeline.stage("optimized" if optimized else "written").graph
    node = find_node(graph, wanted, f"graph {execution.name}")
    if not node.inputs:
        raise AutodiffError("check_gradient", "node", f"%{node.id} {node.op}, a leaf", "an op with operands")
    feeds = execution.feeds()
    values = evaluate(graph, feeds)
    operands = check_op(graph, node, [values[i] for i in node.inputs])
    norm, flag = None, "a study for inference has none"
    if pipeline.mode == "training":
        derivative = pipeline.stage("derivative" if optimized else "derivative:written")
        values = evaluate(derivative.graph, feeds)
        norm, flag = gradient_at(node.id, derivative.autodiff_report, values)
    return GradientCheck(node.id, node_words(graph, node), operands, norm, flag)


def find_node(graph: Graph, node: Any, where: str) -> Node:
    """Return a node by id, Value, Node or name; `3` and `%3` are ids too. `where`: the graph, in errors."""
    id = getattr(node, "id", node)
    if isinstance(id, str):
        number = natural(id.removeprefix("%"))
        named = {name: i for i, name in enumerate(shown_names(graph)) if name}
        id = named.get(str(node), id if number is None else number)
    if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < len(graph):
        wanted = f"a name, or an id 0 … {len(graph) - 1}"
        raise GraphError(where, "check_gradient", repr(node), wanted)
    return graph.nodes[id]


def check_op(graph: Graph, node: Node, operands: Sequence[Array]) -> tuple[OperandCheck, ...]:
    """Compare the gradient rule of a node's op on these operands with differences, one row per operand."""
    alone, out = Graph(), graph.nodes[node.id]
    for i, id in enumerate(out.inputs):
        alone.append("input", (), (("name", f"operand {i}"),), graph.nodes[id].type, f"operand {i}")
    result = alone.append(out.op, tuple(range(len(out.inputs))), out.attrs, out.type)
    seed = alone.append("input", (), (("name", "cotangent"),), out.type, "cotangent")
    alone.set_outputs([result])
    names = REGISTRY[out.op].operand_names(len(out.inputs))
    rows = [OperandCheck(name, str(graph.nodes[id].type)) for name, id in zip(names, out.inputs, strict=True)]
    smooth = [i for i, id in enumerate(out.inputs) if graph.nodes[id].type.dtype is f32]
    if out.type.dtype is not f32 or not smooth:
        return tuple(_with(row, f"no slope: the result is {out.type}") for row in rows)
    full, report = differentiate(alone, wrt=[alone.value(i) for i in smooth], seed=seed)
    rng = np.random.default_rng(0)
    cotangent = rng.choice([-1.0, 1.0], out.type.shape) * rng.uniform(0.5, 2.0, out.type.shape)
    values = _run(full, [*map(_wide, operands), cotangent], len(out.inputs))
    samples = int(np.clip(WORK / max(1, flops(node, graph) + out.type.num_elements), 2, SAMPLES))
    why = report.steps[0].reason if report.steps else ""
    for i, gradient in zip(smooth, report.gradients, strict=True):
        if i in report.zero_gradients:
            rows[i] = _with(rows[i], why or "no gradient flows to it, by its rule")
        else:
            rows[i] = _compared(rows[i], out, values, i, values[gradient], cotangent, samples, rng)
    return tuple(row if k in smooth else _with(row, "no slope: not f32") for k, row in enumerate(rows))


def _with(row: OperandCheck, note: str) -> OperandCheck:
    return OperandCheck(row.name, row.type, note=note)


def _wide(data: Array) -> Array:
    return data if data.dtype == np.uint32 else np.asarray(data, np.float64)


def _run(graph: Graph, leaves: Sequence[Array], operands: int) -> list[Array]:
    """Return all values in float64; the leaves unrounded, in the order of their nodes."""
    values: list[Array] = []
    for node in graph:
        if node.id < operands:
            values.append(leaves[node.id])
        elif node.op == "input":
            values.append(leaves[-1])
        elif node.op == "constant":
            values.append(_wide(dict(node.attrs)["data"].array))
        else:
            values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs)))
    return values


def _compared(
    row: OperandCheck, out: Node, values: Sequence[Array], which: int, gradient: Array, cotangent: Array, samples: int,
    rng: np.random.Generator,
) -> OperandCheck:  # fmt: skip
    """Move some elements of operand `which` by ± STEP · max(1, |x|); a kink between has no slope."""
    operands, attrs = list(values[: len(out.inputs)]), dict(out.attrs)
    middle, base = values[len(out.inputs)], values[which].reshape(-1)
    worst, seen = _with(row, "every sample is at a kink, not finite, or too large for a difference"), 0
    for at in rng.permutation(base.size)[:samples].tolist():
        by = STEP * max(1.0, abs(float(base[at])))
        up, down = (_moved(out, operands, attrs, which, at, sign * by) for sign in (1, -1))
        with np.errstate(all="ignore"):
            got = float(np.sum(cotangent * (up - down))) / (2 * by)
            bend = abs(float(np.sum(cotangent * (up - 2 * middle + down)))) / by
            noise = ROUNDING * float(np.sum(np.abs(cotangent * middle)[up != down])) / by  # x + 1e9 forgets a step of x
        want = float(gradient.reshape(-1)[at])
        error, allowed = abs(got - want), SLOPE * (1 + abs(want))
        if not np.isfinite(error) or noise > allowed or (error > allowed and bend > allowed):
            continue
        seen += 1
        if worst.note or error / allowed > worst.error / worst.allowed:
            unlike = f"{sig(want, 6)} by the rule, {sig(got, 6)} by differences, at element {at}"
            problem = unlike if error > allowed else ""
            worst = OperandCheck(row.name, row.type, 0, error, allowed, at, problem)
    if not seen:
        return worst
    return OperandCheck(row.name, row.type, seen, worst.error, worst.allowed, worst.at, worst.problem)


def _moved(out: Node, operands: list[Array], attrs: dict[str, Any], which: int, at: int, by: float) -> Array:
    moved = operands[which].copy()
    moved.reshape(-1)[at] += by
    return REGISTRY[out.op].reference([moved if k == which else x for k, x in enumerate(operands)], attrs)


# the gradient at a node -----------------------------------------------------------------------------------------------
def gradient_at(node: int, report: AutodiffReport, values: Mapping[int, Array]) -> tuple[float | None, str]:
    """Return the l2 norm of the gradient of the loss at a node's result, and its flag (`dead` …), or ``""``."""
    step = next((s for s in report.steps if s.node == node), None)
    if step is None or not step.cotangents:
        return None, "none: the loss does not depend on it through a parameter"
    total = values[step.accumulated[-1] if step.accumulated else step.cotangents[0]]
    norm = float(np.linalg.norm(total.reshape(-1)))
    return norm, flag_of(norm)


def flag_of(norm: float) -> str:
    """Return `dead`, `vanishing`, `exploding`, `not finite`, or ``""``."""
    if not np.isfinite(norm):
        return "not finite"
    if norm == 0:
        return "dead"
    return "vanishing" if norm < VANISHING else "exploding" if norm > EXPLODING else ""
