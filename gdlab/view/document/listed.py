"""Make the document of a recorded list of ops: its graph, and the list before and after each pass, step by step."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import plural
from gdlab.record.list_as_graph import exported
from gdlab.record.list_report import Report
from gdlab.record.list_stages import ListStage
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.make import DocumentDraft, graph_summary
from gdlab.view.document.overlays import overlay_of


def report_document(report: Report, name: str = "list") -> Document:
    """Return the document of a list as it was recorded, with the passes that were made over it: `data["list"]` has the
    list's stages, and in `steps` the changes from each to the next. `GraphError` where ranges overlap in part."""
    made = exported(report.recorded)
    draft = DocumentDraft(made.graph, name, False, {})
    listed = list_json(report)
    draft.notes += [{"level": "info", "text": text, "about": None} for text in listed["lines"]]
    places = _places(report)
    words = {i: places[k] for k, nodes in enumerate(made.made) for i in nodes}
    for step in listed["steps"]:
        step["about"] = [f"node:0.{i}" for k in step["recorded"] for i in made.made[k]]
    summary = f"{graph_summary(made.graph, name)}; {report.finisher}: {report.stages[-1].fact()}"
    overlays = [overlay_of("group", "barrier group", 0, words)]
    return draft.document(summary, extra={"list": listed}, overlays=overlays)


def list_json(report: Report) -> Json:
    """Return the stages of the list, the steps of its passes, and the report's lines."""
    return {
        "finisher": report.finisher,
        "stages": [_stage_json(stage) for stage in report.stages],
        "steps": list(_steps(report)),
        "misses": [{"node": node, "text": text} for node, text in report.fusion_misses],
        "chunks": list(report.chunks),
        "submissions": report.submissions,
        "copies": report.copies,
        "lines": str(report).splitlines()[:-1],  # but for the times
    }


def _stage_json(stage: ListStage) -> Json:
    return {
        "title": stage.title,
        "nodes": list(stage.names),
        "groups": [list(group) for group in stage.groups],
        "barriers": list(stage.grouping.barriers),
        "hazards": [
            {"kind": h.kind, "before": h.before, "after": h.after, "bytes": h.words} for h in stage.hazards
        ],
        "sources": [list(source) for source in stage.sources],
        "stays": list(stage.stays),
    }  # fmt: skip


def _steps(report: Report) -> Iterator[Json]:
    """Yield the fusions, then the moves in the order of the list, each with the nodes as they were recorded."""
    origins: list[tuple[int, ...]] = [(k,) for k in range(len(report.names_before))]
    for number, stage in enumerate(report.stages[1:], 1):
        before = report.stages[number - 1].names
        came = [tuple(i for k in source for i in origins[k]) for source in stage.sources]
        for k, source in enumerate(stage.sources):
            if len(source) > 1:
                joined = " and ".join(f"{i} {before[i]}" for i in source)
                yield _step("fuse", number, f"nodes {joined} become node {k} {stage.names[k]}", came[k])
            elif k in stage.moved:
                was = stage.moved[k]
                yield _step("move", number, f"node {was} {before[was]} moves to place {k}", came[k])
        origins = came
    parts = [plural(count, "node") for count in report.chunks if count]
    if parts:
        yield _step("submit", len(report.stages) - 1, f"submitted: {', then '.join(parts)}", ())


def _step(kind: str, stage: int, text: str, recorded: tuple[int, ...]) -> Json:
    return {"kind": kind, "stage": stage, "text": text, "recorded": list(recorded)}


def _places(report: Report) -> list[str]:
    """Return for every recorded node the place where it ran, in words."""
    words = [""] * len(report.names_before)
    origins: list[tuple[int, ...]] = [(k,) for k in range(len(words))]
    for stage in report.stages[1:]:
        origins = [tuple(i for k in source for i in origins[k]) for source in stage.sources]
    for number, group in enumerate(report.stages[-1].groups):
        for k in group:
            for i in origins[k]:
                words[i] = f"group {number}, place {k}"
    return words
