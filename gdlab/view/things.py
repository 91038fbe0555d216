"""Make the document of anything that can be shown: a graph, a report, a plan, a session, a study, a document or a file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.base.words import nbytes, plural
from gdlab.compiled import CompiledGraph
from gdlab.distributed.sweep import Sweep
from gdlab.eager import EagerSession
from gdlab.graph import Graph
from gdlab.plan.records import ExecutionPlan
from gdlab.rewrite import OptimizeReport
from gdlab.session import Session
from gdlab.session.run.runner import Runner
from gdlab.session.stages import WRITTEN, WRITTEN_DERIVATIVE
from gdlab.study.study import Study
from gdlab.view.document.compiled import compiled_document
from gdlab.view.document.document import Document, load_doc
from gdlab.view.document.make import DocumentDraft, graph_doc, graph_summary, run_json
from gdlab.view.document.sweeps import sweep_doc
from gdlab.view.document.tape_document import tape_doc

KINDS = "a graph, report, plan, session, compiled graph, sweep, document or file"


def first_view(thing: Any) -> str:
    """Return the pane that opens first."""
    if isinstance(thing, Session):
        return "session"
    if isinstance(thing, Sweep):
        return "sweep"
    return "plan" if isinstance(thing, (ExecutionPlan, CompiledGraph)) else "opt"


def document_of(thing: Any, name: str = "graph") -> Document:
    """Return the document that shows `thing`; `ArgumentError` for anything else."""
    match thing:
        case Document():
            return thing
        case Study():
            return thing.doc  # type: ignore[no-any-return]
        case Sweep():
            return sweep_doc(thing)
        case EagerSession():
            return tape_doc(thing, name)
        case Graph():
            return graph_doc(thing, name)
        case ExecutionPlan():
            return plan_doc(thing, name)
        case CompiledGraph():
            return compiled_document(thing, name)
        case Session():
            return plan_doc(thing.plan(), name, thing)
        case OptimizeReport() if thing.asked is not None:
            return titled(graph_doc(thing.asked.graph, name), "The result")
        case str() | Path() if str(thing).endswith((".json", ".json.gz")):
            return load_doc(thing)
    raise ArgumentError("show", "thing", type(thing).__name__, KINDS)


def titled(document: Document, title: str) -> Document:
    """Return the document with another title for its first stage, which is not the graph as it was written."""
    first, *others = document.data["stages"]
    return Document({**document.data, "stages": [{**first, "title": title}, *others]})


def plan_doc(plan: ExecutionPlan, name: str, session: Session | None = None) -> Document:
    """Return the compiled graph with its plan, and the runs of its session so far."""
    draft = DocumentDraft(plan.graph, name, plan.mode == "training", {})
    draft.compile(plan, WRITTEN.key, session)
    counts = plural(len(plan.dispatches), "dispatch"), plural(len(plan.groups), "group")
    summary = f"{graph_summary(plan.graph, name)}; plan: {', '.join(counts)}, {nbytes(plan.memory.physical_bytes)}"
    made = session is not None and session.step_count > 0
    runs = [run_json(session, Runner(session), "run0")] if session is not None and made else []
    device = str(session.device) if session is not None else ""
    return titled(draft.document(summary, runs=runs, device=device), "As it is compiled")


def gradient_doc(study: Study, wrt: tuple[str, ...] = (), optimized: bool = False) -> Document:
    """Return the written graph and one derivative of it: of the graph as written, or (`optimized`) the one that
    training runs, differentiated after fusion."""
    draft = DocumentDraft(study.graph, study.name, True, study.source)
    if optimized:
        draft.add(study.stage("optimized"))
        draft.add(replace(study.stage("derivative"), title="Derivative, after fusion"))
    else:
        made = study.differentiate_wrt(wrt) if wrt else study.written_derivative
        draft.add(WRITTEN_DERIVATIVE.made(*made))
    told = f" with respect to {', '.join(wrt)}" if wrt else ""
    return draft.document(f"{graph_summary(study.graph, study.name)}; differentiated{told}")
