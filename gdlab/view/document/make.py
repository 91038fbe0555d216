"""Make the document of a study or of a bare graph, which every view draws."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

from gdlab.autodiff import AutodiffReport
from gdlab.base.errors import GdlabError
from gdlab.base.words import plural, whole
from gdlab.devices.base import Device
from gdlab.graph import Graph, no_collector, reachable
from gdlab.op.machines import Machine
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.update import update_of
from gdlab.rewrite import OptimizeReport
from gdlab.session import Session
from gdlab.session.roof import known_machine
from gdlab.session.run.log import Earlier
from gdlab.session.run.runner import Runner
from gdlab.session.stages import WRITTEN, PipelineStage
from gdlab.study.study import Study
from gdlab.view.document import passes
from gdlab.view.document.closure import problems
from gdlab.view.document.columns import Json
from gdlab.view.document.dispatches import Labels, PlanSection, plan_section
from gdlab.view.document.document import CLOCKED, FORMAT, Document, document_id, load_doc, read_doc
from gdlab.view.document.egraph import growth_json
from gdlab.view.document.engine_runs import allreduce_json, engines_json
from gdlab.view.document.groups import groups_of
from gdlab.view.document.links import link
from gdlab.view.document.overlays import overlays_of
from gdlab.view.document.passes import Pairs, Trace
from gdlab.view.document.runs import norms_json, times_json, values_json, variants_json
from gdlab.view.document.selection import selection_of
from gdlab.view.document.sources import Sources, function_source, sources_of
from gdlab.view.document.stage_table import (
    SharedTables,
    Stage,
    carried_lanes,
    carried_names,
    derivative_lanes,
    stage_json,
)
from gdlab.view.document.sweeps import sweep_json
from gdlab.view.document.thinned import decimated

__all__ = ["FORMAT", "Document", "graph_doc", "load_doc", "read_doc", "study_doc"]

_MOST_EARLIER_LOSSES = 400
_MOST_LOSSES = 20_000
_layouts: WeakKeyDictionary[Study, dict[str, Json]] = WeakKeyDictionary()  # a study's graphs do not change


def study_doc(study: Study) -> Document:
    """Return the document of a study: every stage, the plan on its device, and the runs so far."""
    with no_collector():
        return _study_doc(study)


def _study_doc(study: Study) -> Document:
    draft = DocumentDraft(study.graph, study.name, study.train, study.source, layouts=_layouts.setdefault(study, {}))
    try:
        _pipeline(draft, study)
    except GdlabError as error:  # what exists is shown, and what is missing is said
        draft.note(str(error), None if error.node is None else f"node:{len(draft.stages) - 1}.{error.node}")
    draft.notes += [{"level": "info", "text": text, "about": None} for text in study.notes]
    summary = study.summary() if draft.plan is not None else graph_summary(study.graph, study.name)
    keys = [stage.key for stage in draft.stages]
    live = {"study": study.key, "rev": study.rev, **variants_json(study, keys), **sweep_json(study)}
    live |= allreduce_json(study)
    overlays = overlays_of(study, keys)
    made = draft.document(summary, runs=_runs(study, draft), extra=live, device=_device(study), overlays=overlays)
    document = Document(made.data, selection_of(study))
    failed = problems(document.data, own_links=True)
    return document.with_notes(f"this document breaks a rule of documents: {failed[0]}") if failed else document


def graph_doc(graph: Graph, name: str = "graph") -> Document:
    """Return the document of a graph alone, as it was written (or as a pass made it)."""
    return DocumentDraft(graph, name, graph.num_param_grad_outputs > 0, {}).document(graph_summary(graph, name))


def graph_summary(graph: Graph, name: str) -> str:
    """Return one line: nodes, parameters, outputs."""
    values = sum(p.type.num_elements for p in graph.parameters)
    counts = f"{plural(len(graph), 'node')}, {plural(len(graph.parameters), 'parameter')}"
    return f"graph {name}: {counts} ({plural(values, 'value')}), {plural(len(graph.outputs), 'output')}"


def _pipeline(draft: DocumentDraft, study: Study) -> None:
    """Put every stage and pass of the study on the draft, in pipeline order; then the variants."""
    for key in study.pipeline.keys[1:]:
        draft.add(study.pipeline.stage(key))
    session = study.session if study.has_session else None
    draft.compile(study.plan, study.pipeline.compiled.key, session, study.device)
    for stage in study.variants.stages():
        draft.add(stage)


@dataclass(slots=True)
class DocumentDraft:
    """A document while it is being made."""

    graph: Graph
    name: str
    loss: bool
    cells: Mapping[str, str]
    stages: list[Stage] = field(default_factory=list)
    passes: list[Json] = field(default_factory=list)
    links: list[Json] = field(default_factory=list)
    notes: list[Json] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)  # per stage, one line row of each node
    plan: PlanSection | None = None
    sources: Sources = field(default_factory=Sources)
    shared: SharedTables = field(default_factory=SharedTables)
    layouts: dict[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self.sources = sources_of(graph, self.cells)
        keys = [f"n{i}" for i in range(len(graph))]
        written = Stage.forward(WRITTEN.key, WRITTEN.role, WRITTEN.title, -1, graph, keys, self.loss)
        if graph.num_param_grad_outputs:
            forward = reachable(graph, graph.output_ids[: graph.num_user_outputs])
            written.lane = ["forward" if f or not n.inputs else "adjoint" for f, n in zip(forward, graph, strict=True)]
        written.groups = groups_of(graph)
        self.stages.append(written)
        self.lines.append([rows[0] for rows in self.sources.of_node])

    def note(self, text: str, about: str | None = None) -> None:
        """Add a sentence to the document's notes."""
        self.notes.append({"level": "warning", "text": text, "about": about})

    # passes
    def add(self, stage: PipelineStage) -> None:
        """Add a stage that a pass made, the pass, and the fates of the nodes before it."""
        parent = self.position(stage.parent)
        match stage.report:
            case OptimizeReport():
                self._optimize(stage, stage.report, parent)
            case AutodiffReport():
                self._differentiate(stage, stage.report, parent)

    def position(self, key: str) -> int:
        """Return the number of a stage in the document."""
        return next(i for i, stage in enumerate(self.stages) if stage.key == key)

    def _optimize(self, made: PipelineStage, report: OptimizeReport, parent: int) -> None:
        before, number, graph = self.stages[parent], len(self.passes), made.graph
        trace = passes.optimize_trace(number, before.keys, report, graph)
        lane, twin = carried_lanes(before, report.origin, len(graph))
        steps = passes.optimize_steps(report, number, before.keys)
        if report.hit_limit:
            self.note(f"{made.title}: {report.outcome}")
        name = made.key if ":" in made.key else report.phase  # of a variant its own: phases repeat
        self._pass(f"optimize:{name}", "optimize", parent, len(self.stages), {
            "options": passes.clean({"phase": report.phase, **(made.options or {})}),
            "report": passes.optimize_report(report, len(self.stages)),
            "steps": steps,
            "sources": passes.rule_sources(report),
            "seconds": report.egglog_time + report.extract_time,
            **growth_json(report, self.shared),
        })  # fmt: skip
        stage = Stage(made.key, made.role, made.title, parent, graph, trace.keys, lane, twin, self.loss)
        self._stage(stage, trace, steps["count"])
        before.fates |= passes.optimize_fates(before.graph, trace)

    def _differentiate(self, made: PipelineStage, report: AutodiffReport, parent: int) -> None:
        before, number, graph = self.stages[parent], len(self.passes), made.graph
        trace = passes.differentiate_trace(number, before.keys, report, graph)
        lane, twin = derivative_lanes(len(graph), report.forward_nodes, report.adjoint_of)
        steps = passes.differentiate_steps(report, graph, self.lines[parent])
        self._pass(f"differentiate:{before.key}", "differentiate", parent, len(self.stages), {
            "options": {"wrt": [graph.node(i).name for i in report.wrt]},
            "report": passes.differentiate_report(report, graph),
            "steps": steps,
            "sources": passes.gradient_sources(step.rule for step in report.steps),
            "seconds": None,
        })  # fmt: skip
        stage = Stage(made.key, made.role, made.title, parent, graph, trace.keys, lane, twin, self.loss)
        self._stage(stage, trace, steps["count"])

    def compile(
        self, plan: ExecutionPlan, key: str, session: Session | None = None, device: Device | None = None
    ) -> None:
        """Add the plan that was compiled from a stage, with the update that the session runs behind it. `device`: the
        one that it will run on, where there is no session yet."""
        stage = self.position(key)
        update = session.update if session is not None else None
        rule = str(session.optimizer) if session is not None and session.optimizer.rule != "none" else None
        device = device if session is None else session.loaded.device
        machine = Machine() if device is None else known_machine(device)
        names, groups = self.stages[stage].names, self.stages[stage].groups
        paths = groups.paths() if groups is not None else [""] * len(names)
        self.plan = plan_section(plan, update, stage, rule, Labels(names, paths), machine)
        self.stages[stage].fates |= self.plan.fates
        self._pass("compile", "compile", stage, -1, {
            "options": passes.clean(asdict(plan.options)),
            "report": {
                "mode": plan.mode, "target": f"{plan.target.kind}, {plan.target.adapter_class}",
                "fingerprint": plan.fingerprint,
                "missed": [
                    {"label": m.label, "node": m.node, "reason": m.reason, "detail": m.detail,
                     "text": f"{m.label}: {m.detail}", "about": f"node:{stage}.{m.node}"}
                    for m in plan.missed
                ],
            },
            "steps": {"count": 0}, "sources": {}, "seconds": None,
        })  # fmt: skip
        if session is not None and self.plan.plan["updates"]:
            self._update_lines(session.optimizer.rule, self.plan.plan)

    def _pass(self, key: str, role: str, start: int, stop: int, rest: Json) -> None:
        self.passes.append({"key": key, "role": role, "from": start, "to": stop, "deltas": None, **rest})

    def _stage(self, stage: Stage, trace: Trace, steps: int) -> None:
        number, index = len(self.passes) - 1, len(self.stages)
        before, after = f"node:{stage.parent}", f"node:{index}"
        parent = self.stages[stage.parent]
        counts = len(parent.graph), len(stage.graph)
        stage.names = carried_names(parent, trace.images, stage.graph)
        if parent.groups is not None and parent.groups.rows:
            first = dict(reversed([(new, old) for old, new in trace.images]))
            stage.groups = parent.groups.carried([first.get(i, -1) for i in range(counts[1])])
        self.stages.append(stage)
        self.lines.append(passes.carried_lines(self.lines[stage.parent], trace.images, counts[1]))
        self.links += [
            link(before, f"step:{number}", trace.consumed, counts[0], steps),
            link(f"step:{number}", after, trace.produced, steps, counts[1]),
            link(before, after, trace.images, *counts),
        ]

    def _update_lines(self, rule: str, plan: Json) -> None:
        """Link the WGSL of the update to the Python function that made it."""
        found = function_source(update_of) or {"name": f"{rule} update", "text": f"{rule} update", "line": 1}
        source = self.sources.add("generated", found["name"], found["text"], found["line"])
        row = self.sources.line(source, found["line"])
        count, updates = plan["dispatches"]["count"], plan["updates"]
        pairs = [(row, k) for k in range(count - updates, count)]
        self.links.append(link("line", "dispatch", pairs, len(self.sources.rows), count))

    # the whole
    def document(
        self,
        summary: str,
        runs: Sequence[Json] = (),
        extra: Mapping[str, Any] | None = None,
        device: str = "",
        overlays: Sequence[Json] = (),
    ) -> Document:
        """Return the finished document."""
        pairs: Pairs = [(row, i) for i, rows in enumerate(self.sources.of_node) for row in rows]
        written = link("line", "node:0", pairs, len(self.sources.rows), len(self.graph))
        data: Json = {
            **(extra or {}),
            "format": FORMAT,
            "title": self.name,
            "summary": summary,
            "producer": {**_versions(), "device": device},
            "stages": [stage_json(stage, self.shared, self.layouts) for stage in self.stages],
            "types": self.shared.table(),
            "sources": self.sources.listed,
            "lines": self.sources.lines(),
            "passes": self.passes,
            "plan": self.plan.plan if self.plan else None,
            "links": [written, *self.links, *(self.plan.links if self.plan else ())],
            "wgsl_base": self.plan.wgsl_base if self.plan else [],
            "runs": list(runs),
            "overlays": list(overlays),
            "notes": self.notes,
            "view": None,
        }
        data["id"] = document_id(data, self.plan.texts if self.plan else None)
        return Document(data)


# facts around it -----------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("gdlab", "numpy", "egglog", "wgpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _device(study: Study) -> str:
    try:
        return str(study.device.info)
    except GdlabError as error:
        return str(error)


def _runs(study: Study, draft: DocumentDraft) -> list[Json]:
    """Return the runs of the study's session that a reset ended, then the present run if it made a step, or if tensors
    of it were read."""
    if not study.has_session:
        return []
    values, count = values_json(study)
    if count > len(values):
        draft.note(f"{len(values)} of {whole(count)} tensors that were watched or looked at are kept here: the newest")
    measured = {"values": values, **norms_json(study), **engines_json(study)}
    runner, now = study.runner, [run_json(study.session, study.runner, f"run{study.rev}") | measured]
    runs = [_earlier_json(now[0], run, f"earlier{i}") for i, run in enumerate(runner.earlier)]
    shown = study.session.step_count or values or "engines" in now[0]
    return runs + (now if shown else [])


def _earlier_json(now: Json, run: Earlier, key: str) -> Json:
    """Return a run that a reset ended: its losses, and the update rule as its `label`."""
    losses = decimated(run.losses, _MOST_EARLIER_LOSSES)
    return {name: value for name, value in now.items() if name not in (*CLOCKED, "wanted")} | {
        "key": key,
        "label": run.options,
        "loss": [[step, passes.number(loss)] for step, loss in losses],
        "truncated": len(losses) < len(run.losses),
        "counters": dict.fromkeys(now["counters"], 0) | {"steps": run.losses[-1][0]},
        "events": [],
        "values": [],
    }


_COUNTERS = {
    "steps": "forwards", "dispatches": "dispatches", "submissions": "submissions", "bytes_up": "upload_bytes",
    "bytes_down": "readback_bytes",
}  # fmt: skip


def run_json(session: Session, runner: Runner, key: str) -> Json:
    """Return the present run of a session; beyond 20,000 losses the lowest and highest of each bucket of steps."""
    memory, traffic, wanted = session.memory_summary(), session.traffic, runner.wanted
    losses = decimated(runner.losses, _MOST_LOSSES)
    return {
        "key": key,
        "device": session.device.kind,
        "adapter": session.device.name,
        "seed": None,
        **({"wanted": wanted} if wanted > session.step_count else {}),
        "loss": [[step, passes.number(loss)] for step, loss in losses],
        "seconds": [],
        "truncated": len(losses) < len(runner.losses),
        "counters": {name: getattr(traffic, total) for name, total in _COUNTERS.items()},
        "memory": {"text": memory.text, **asdict(memory), "parts": dict(memory.parts)},
        **times_json(session),
        "events": [
            {"step": e.step, "dispatch": e.dispatch, "kind": e.kind, "about": e.about, "text": e.text}
            for e in runner.events
        ],
        "values": [],
    }
