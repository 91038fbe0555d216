"""Check whether the optimizer or a device broke the model: `print(study.check())` is a table of errors and a verdict.

Reference, optimized reference, cpu and wgpu side by side for every output and gradient, and for every parameter the
gradient against a central difference. A difference is traced to the first node that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.errors import DeviceUnavailableError
from gdlab.base.types import Array, f32
from gdlab.base.words import grid, plural, sig, whole
from gdlab.devices.choose import device as choose_device
from gdlab.graph import Graph, Node
from gdlab.op import REGISTRY, ops_that
from gdlab.op.doubt import Doubts, doubts
from gdlab.op.reference import compare, evaluate, magnitudes, tolerance
from gdlab.op.storage import derived_parameters, trained_parameters
from gdlab.rewrite import RULES, OptimizeReport
from gdlab.session import Pipeline, Session, by_buffer
from gdlab.study.execution import Execution

RTOL = {"cpu": 1e-5, "wgpu": 2e-4}
_EXACT = 1e-12  # of rewrites, relative to the error scale; a rule that puts constants in float32 says more
_STEP, _SLOPE = 1e-6, 1e-5  # of the central difference, and what it may be off
_MOST_DIFFERENCES = 64  # parameters


@dataclass(frozen=True, slots=True)
class ParityCell:
    """The comparison of one executor at one output: the largest absolute error, the largest distance in float32 steps,
    and the problem (empty: within the tolerance; `note`: why nothing was compared). `share`: the largest error as a
    multiple of what is allowed there. `doubted`: elements that are right only because a jump within rounding may have
    gone the other way (`gdlab/op/doubt.py`)."""

    error: float = 0.0
    ulp: float = 0.0
    problem: str = ""
    note: str = ""
    share: float = 0.0
    doubted: int = 0

    def __str__(self) -> str:
        if self.note:
            return self.note
        steps = f" ({whole(self.ulp)} ulp)" if 0.5 <= self.ulp < 1e6 else ""
        return f"{sig(self.error)}{steps}{'  ✗' if self.problem else ''}"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The row of an output or a gradient: how far each executor is from the float64 reference of the written graph.
    `blind`: the reference has no finite number there, so that agreement tells nothing."""

    what: str
    type: str
    cells: Mapping[str, ParityCell]
    blind: bool = False


@dataclass(frozen=True)
class Check:
    """The result of `Study.check`: `ok`, `verdict` (one sentence), `rows`, and `first`: by executor the first node or
    dispatch that differs, in words; `places` has the same by executor as entities of the study's document, and `about`
    is the first of them, or empty."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[CheckRow, ...]
    first: Mapping[str, str]
    notes: tuple[str, ...] = ()
    about: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether everything agrees."""
        return not any(cell.problem for row in self.rows for cell in row.cells.values())

    @property
    def blind(self) -> tuple[str, ...]:
        """The results in which the reference has no finite number, so that agreement tells nothing."""
        return tuple(row.what for row in self.rows if row.blind)

    @property
    def verdict(self) -> str:
        """Say in one sentence that nothing broke, or which executor differs first, and where."""
        if self.ok:
            seen = [row.what for row in self.rows if not row.blind]
            agree = f"{_listed(seen)} {'agrees' if len(seen) == 1 else 'agree'} with the reference"
            but = f"the reference has no finite number in {_listed(self.blind)}, where agreement tells nothing"
            if not seen:
                return f"{self.name}: nothing to compare: {but}."
            return f"{self.name}: nothing broke: {agree}{f'; {but}' if self.blind else ''}."
        executor = next(c for c in self.columns if any(r.cells[c].problem for r in self.rows if c in r.cells))
        row = next(r for r in self.rows if executor in r.cells and r.cells[executor].problem)
        if executor == "differences":
            return (
                f"{self.name}: the gradient of {row.what} is not the slope of the loss: {row.cells[executor].problem}."
            )
        where = self.first.get(executor) or f"at {row.what}: {row.cells[executor].problem}"
        return f"{self.name}: {executor} differs from the reference, first {where}."

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        found = "nothing broke" if len(self.blind) < len(self.rows) else "nothing to compare"
        return f"<Check {self.name}: {found if self.ok else 'something differs'}>"

    def __str__(self) -> str:
        rows = [(r.what, r.type, *(str(r.cells.get(c, "")) for c in self.columns)) for r in self.rows]
        return "\n".join([*grid(("", "type", *self.columns), rows, indent=""), *self.notes, self.verdict])


def _listed(whats: Iterable[str]) -> str:
    names = list(whats)
    gradients = sum(name.startswith("∂") for name in names)
    parts = [(len(names) - gradients, "output"), (gradients, "gradient")]
    return " and ".join(plural(n, word) for n, word in parts if n)


# the whole ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CheckProgress:
    """The state of a check under way: the rows so far, how many of `of` executors are `done`, and the `executor` at
    work."""

    so_far: Check
    done: int
    of: int
    executor: str


def check_execution(
    execution: Execution, feeds: Mapping[str, Any], devices: Sequence[str],
    tell: Callable[[CheckProgress], None] = lambda progress: None,
) -> Check:  # fmt: skip
    """Return the result of `Study.check`, for one value of every input and parameter; `tell` is called before each
    executor begins."""
    pipeline, graph = execution.pipeline, execution.pipeline.graph
    training = pipeline.mode == "training"
    written = pipeline.stage("derivative:written").graph if training else graph
    whats = _whats(pipeline)
    targets = dict(zip(whats, written.output_ids, strict=training))  # gradients alone are none of a study to read
    types = {what: str(written.nodes[id].type) for what, id in targets.items()}
    cells: dict[str, dict[str, ParityCell]] = {what: {} for what in whats}
    first: dict[str, str] = {}
    places: dict[str, str] = {}
    notes: list[str] = []
    blind: set[str] = set()
    columns = ["optimized", *devices, *(["differences"] if training else [])]

    def check() -> Check:
        rows = tuple(CheckRow(what, types[what], dict(cells[what]), what in blind) for what in whats)
        about = next((place for place in places.values() if place), "")
        return Check(execution.name, tuple(columns), rows, dict(first), tuple(notes), about, dict(places))

    executors = ["reference", *columns]

    def begin(executor: str) -> None:
        tell(CheckProgress(check(), executors.index(executor), len(executors), executor))

    begin("reference")
    want = evaluate(written, feeds)
    scale = magnitudes(written, want)
    blind.update(what for what, id in targets.items() if want[id].size and not np.isfinite(want[id]).any())

    begin("optimized")
    got = evaluate(pipeline.compiled.graph, feeds)
    rtol = rewrite_tolerance(pipeline.reports)
    made = _results(pipeline, got)

    def compare_all(executor: str, made: Mapping[str, Array], rtol: float) -> None:
        jumping = doubts(written, want, scale, rtol)
        for what, id in targets.items():
            cells[what][executor] = cell_of(made[what], want[id], scale[id], rtol, jumping.amount[id])
        if any(cells[what][executor].doubted for what in whats):
            notes.append(doubt_words(executor, {what: cells[what][executor] for what in whats}, written, jumping))

    compare_all("optimized", made, rtol)
    if any(cells[what]["optimized"].problem for what in whats):
        first["optimized"], at = first_node(graph, want, got, pipeline.nodes(graph).place, rtol)
        places["optimized"] = pipeline.entity("written", at) if at >= 0 else ""

    for kind in devices:
        begin(kind)
        try:
            chosen = choose_device(kind)
            with execution.open_on(chosen, feeds) as session:
                session.step()
                compare_all(kind, _results_of(session, whats), RTOL[chosen.info.kind])
                if any(cells[what][kind].problem for what in whats):
                    first[kind], places[kind] = first_dispatch(session, got, RTOL[chosen.info.kind])
        except DeviceUnavailableError as error:
            notes.append(f"{kind}: not compared: {error.given}")
            columns = [c for c in columns if c != kind]

    if training:
        begin("differences")
        gradients = {what.removeprefix("∂"): want[id] for what, id in targets.items() if what.startswith("∂")}
        for name, cell in differences(graph, feeds, gradients).items():
            cells[f"∂{name}"]["differences"] = cell
    return check()


def _whats(pipeline: Pipeline) -> list[str]:
    """Return the labels of all results: outputs by name or number, then ∂ and the parameter's name for each gradient.
    """
    graph, training = pipeline.graph, pipeline.mode == "training"
    names = graph.output_names[: graph.num_user_outputs]
    outputs = [name or ("loss" if training and i == 0 else f"output {i}") for i, name in enumerate(names)]
    return outputs + ([f"∂{name}" for name in _trained(graph)] if training else [])


def _trained(graph: Graph) -> list[str]:
    """Return the parameters that have a gradient, in node order; of packed ones the sources."""
    packed = {d.name: dict(d.sources) for d in derived_parameters(graph)}
    names = {source for _, name in trained_parameters(graph) for source in packed.get(name, (name,))}
    return [p.name for p in graph.parameters if p.name in names]


def _results(pipeline: Pipeline, values: Mapping[int, Array]) -> dict[str, Array]:
    """Return every output and gradient of the compiled graph; the gradient of a packed weight is cut into those of its
    sources."""
    final = pipeline.compiled.graph
    ids, users = final.output_ids, final.num_user_outputs
    found = dict(zip(_whats(pipeline), (values[i] for i in ids[:users]), strict=False))
    packed = {d.name: d for d in derived_parameters(final)}
    training = pipeline.mode == "training"
    for (_, name), id in zip(trained_parameters(final), ids[users:], strict=True) if training else ():
        if name not in packed:
            found[f"∂{name}"] = values[id]
            continue
        whole = values[id].reshape(packed[name].shape)
        for source, _ in packed[name].sources:
            _, axis, start, stop = packed[name].part(source, 0)
            found[f"∂{source}"] = whole[start:stop] if axis == 0 else whole[:, start:stop]
    return found


def _results_of(session: Session, whats: Sequence[str]) -> dict[str, Array]:
    """Return every output and gradient of the session's step."""
    outputs = session.num_outputs()
    found = {what: session.read_output_by_index(i) for i, what in enumerate(whats[:outputs])}
    return found | {what: session.read_param_grad(what.removeprefix("∂")) for what in whats[outputs:]}


# one comparison -------------------------------------------------------------------------------------------------------
def cell_of(got: Any, want: Array, scale: Array, rtol: float, doubt: Any = 0.0) -> ParityCell:
    """Measure how far `got` is from the reference; a problem is an error above the tolerance (8.2 of the
    specification), or more than `doubt` beyond it."""
    got = np.asarray(got, np.float64).reshape(want.shape)
    problem = compare(got, want, scale, rtol, doubt=doubt) or ""
    with np.errstate(all="ignore"):
        off = np.abs(got - want)
        spacing = np.spacing(np.abs(np.asarray(want, np.float32)).clip(np.finfo(np.float32).tiny))
        steps = off / spacing
        rounding = tolerance(np.broadcast_to(np.asarray(scale, np.float64), want.shape), rtol)
        allowed = rounding + doubt
        shares = np.where(off == 0, 0.0, off / allowed)
    finite = np.isfinite(off)
    doubted = int(np.count_nonzero(finite & (off > rounding) & (off <= allowed)))
    share = float(shares[finite].max(initial=0.0))
    if problem and share <= 1:  # of kind or sign: no multiple says it
        share = float("inf")
    elif not problem:  # below the smallest normal number an error counts as 0
        share = min(share, 1.0)
    error, ulp = float(off[finite].max(initial=0.0)), float(steps[finite].max(initial=0.0))
    return ParityCell(error, ulp, problem, share=share, doubted=doubted)


def doubt_words(executor: str, cells: Mapping[str, ParityCell], graph: Graph, jumping: Doubts) -> str:
    """Say how many elements were allowed a larger error because of a doubt, in which results, and at which node the
    doubt begins."""
    count = sum(cell.doubted for cell in cells.values())
    whats = [what for what, cell in cells.items() if cell.doubted]
    where = whats[0] if len(whats) == 1 else f"{whats[0]} and {plural(len(whats) - 1, 'other result')}"
    node, near = next(iter(jumping.jumps.items()))
    words = node_words(graph, graph.nodes[node])
    return (
        f"{executor}: {plural(count, 'element')} of {where} had the benefit of the doubt: off by more than rounding, "
        f"but by no more than a jump within rounding may move {'it' if count == 1 else 'them'}. The first such jump is "
        f"at {words}: {plural(near, 'element')}."
    )


def rewrite_tolerance(reports: Sequence[OptimizeReport]) -> float:
    """Return ten times the largest `rtol` of the rules that were used, relative to the error scale."""
    used = {label for report in reports for label, _ in report.rules_fired}
    return 10 * max([_EXACT, *(rule.rtol for rule in RULES if rule.label in used)])


def first_node(
    graph: Graph, want: Mapping[int, Array], got: Mapping[int, Array], place: Mapping[int, int | None], rtol: float
) -> tuple[str, int]:
    """Return the first node of the written graph whose image in the optimized one has another value, in words and its
    id; an empty string and −1 where every image agrees."""
    scale = magnitudes(graph, dict(want))
    amount = doubts(graph, dict(want), scale, rtol).amount
    for node in graph:
        at = place.get(node.id)
        if at is None or want[node.id].size != got[at].size:
            continue
        id, made = node.id, got[at].reshape(want[node.id].shape)
        problem = compare(made, want[id], scale[id], rtol, doubt=amount[id])
        if problem is not None:
            return f"at {node_words(graph, node)}: {problem}", id
    return "", -1


def first_dispatch(session: Session, want: Mapping[int, Array], rtol: float) -> tuple[str, str]:
    """Return the first dispatch whose output differs from the reference of the compiled graph, in words and as an
    entity."""
    plan = session.plan()
    scale = magnitudes(plan.graph, dict(want))
    amount = doubts(plan.graph, dict(want), scale, rtol).amount
    made = session.inspection.each_dispatch(lambda d, results: (d, results))
    written = ((d, b, part) for d, results in made for b, part in by_buffer(d, results))
    for dispatch, buffer, data in written:
        for id in plan.buffers[buffer].nodes:
            if id not in dispatch.origin or want[id].size != data.size:
                continue
            problem = compare(data.reshape(want[id].shape), want[id], scale[id], rtol, doubt=amount[id])
            if problem is not None:
                words = node_words(plan.graph, plan.graph.nodes[id])
                return (
                    f"in dispatch {dispatch.index} ({dispatch.label}), {words}: {problem}",
                    f"dispatch:{dispatch.index}",
                )
    return "", ""


def node_words(graph: Graph, node: Node) -> str:
    """Name a node with its op and line: `node %5 (relu h), line 4`."""
    source = graph.source(node.id)
    named = f"{node.op} {node.name}".rstrip()
    return f"node %{node.id} ({named})" + (f", line {source[0].line}" if source else "")


# gradients against differences ----------------------------------------------------------------------------------------
def differences(graph: Graph, feeds: Mapping[str, Any], gradients: Mapping[str, Array]) -> dict[str, ParityCell]:
    """Compare for each parameter Σ gradient · d with (L(p + h d) − L(p − h d)) / 2h in float64, d = ± max(1, |p|) at
    random.

    Where the two sides of L disagree there is a kink within h, and a difference says nothing.
    """
    stops = sorted(ops_that(lambda op: op.no_grad == "stops", graph))
    if stops:
        return {name: ParityCell(note=stops[0]) for name in gradients}
    values = evaluate(graph, feeds)
    rng = np.random.default_rng(0)
    found: dict[str, ParityCell] = {}
    for node in graph.parameters:
        if node.name not in gradients or node.type.dtype is not f32:
            continue
        if len(found) == _MOST_DIFFERENCES:
            break
        way = rng.choice([-1.0, 1.0], node.type.shape) * np.maximum(1.0, np.abs(values[node.id]))
        found[node.name] = _difference(graph, values, node, way, float(np.sum(gradients[node.name] * way)))
    return found


def _difference(graph: Graph, values: Mapping[int, Array], node: Node, way: Array, want: float) -> ParityCell:
    loss = float(values[graph.output_ids[0]].reshape(-1)[0])
    up, down = (_loss_at(graph, values, node.id, values[node.id] + sign * _STEP * way) for sign in (1, -1))
    got = (up - down) / (2 * _STEP)
    if not np.isfinite([got, want]).all():
        return ParityCell(note="not finite")
    bend = abs(up - 2 * loss + down) / _STEP
    allowed = _SLOPE * (1 + abs(want)) + 1e-15 * abs(loss) / _STEP
    if abs(got - want) > allowed and bend > allowed:
        return ParityCell(note="kink")
    problem = f"{sig(want, 6)} by the gradient, {sig(got, 6)} by differences" if abs(got - want) > allowed else ""
    return ParityCell(abs(got - want), 0.0, problem, share=abs(got - want) / allowed)


def _loss_at(graph: Graph, values: Mapping[int, Array], id: int, moved: Array) -> float:
    """Return output 0 after node `id` is given another value; only its readers are computed again."""
    fresh: dict[int, Array] = {id: moved}
    for node in graph.nodes[id + 1 :]:
        if any(i in fresh for i in node.inputs):
            operands = [fresh.get(i, values[i]) for i in node.inputs]
            fresh[node.id] = REGISTRY[node.op].reference(operands, dict(node.attrs))
    loss = graph.output_ids[0]
    return float(np.asarray(fresh.get(loss, values[loss])).reshape(-1)[0])
