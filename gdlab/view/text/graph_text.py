"""Graphs, reports, rewrites and derivatives as text: the lines of `twin`, each beginning with its entity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from gdlab.base.words import duration, grid, nbytes, plural, sig, whole
from gdlab.op.cost import priced
from gdlab.study.variants import HEAD, StepTime, VariantFigures
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.passes import rewrite_count
from gdlab.view.document.runs import COUNTS

Lines = Iterator[str]


# graphs --------------------------------------------------------------------------------------------------------------
def node_rows(document: Document, stage: int) -> list[Json]:
    """Return the nodes of a stage as people read them."""
    nodes, types = document.nodes(stage), document.types.column("text")
    rows = []
    for i, node in enumerate(nodes):
        attrs = ", ".join(f"{k}={_attr(v)}" for k, v in sorted((node["attrs"] or {}).items()))
        reads = [f"%{k}" for k in node["inputs"]]
        rows.append({
            "entity": f"node:{stage}.{i}", "op": node["op"], "name": node["name"], "type": types[node["type"]],
            "reads": reads, "flags": node["flags"], "lane": node["lane"],
            "call": f"{node['op']}({', '.join([*reads, attrs] if attrs else reads)})",
            "fate": _fate(node["fate"]),
        })  # fmt: skip
    return rows


def _fate(fate: Json | None) -> str:
    if fate is None:
        return ""
    return f"{fate['kind']}: {fate['reason']}" + (f" ({fate['into']})" if fate["into"] else "")


def _attr(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("text", value))
    return f'"{value}"' if isinstance(value, str) else str(tuple(value) if isinstance(value, list) else value)


def _graph(document: Document, stage: int, lanes: bool = False) -> Lines:
    raw, rows = document.data["stages"][stage], node_rows(document, stage)
    yield f"stage {stage}, {raw['title']} ({raw['key']}): {plural(len(rows), 'node')}"
    if not rows:
        return
    said = [o for o in document.data["overlays"] if o["stage"] == stage]
    table = [
        (r["entity"], f"%{i}", r["name"], r["call"], r["type"], *(str(o["values"].get(str(i), "")) for o in said),
         r["lane"] if lanes else "", ", ".join(f for f in r["flags"] if f != "leaf"), r["fate"])
        for i, r in enumerate(rows)
    ]  # fmt: skip
    overlays = (o["id"] for o in said)
    head = ("entity", "id", "name", "op", "type", *overlays, "lane" if lanes else "", "flags", "fate")
    yield from grid(head, table, right={1})
    outputs = document.outputs(stage)
    named = [
        f"%{o['node']}" + (f' "{o["name"]}"' if o["name"] else "") + (f" = ∂{o['of']}" if o["of"] else "")
        for o in outputs
    ]
    yield f"  outputs: {', '.join(named) or 'none'}"


def _stages(document: Document, *keys: str) -> Iterator[int]:
    for s, stage in enumerate(document.data["stages"]):
        if stage["key"] in keys:
            yield s


def written(document: Document) -> Lines:
    yield from _graph(document, 0)
    yield from _sources(document)


def _sources(document: Document) -> Lines:
    """Return the calls of the source, each with its line of text."""
    sources = document.data["sources"]
    for s, source in enumerate(sources):
        yield f"source {s}, {source['name'] or source['kind']}"
        text = source["text"].split("\n")
        rows = []
        for i, line in enumerate(document.lines):
            if line["source"] == s:
                at = line["line"] - source["first_line"]
                cols = f"{line['col']}…{line['end_col']}" if line["col"] >= 0 else ""
                rows.append((f"line:{i}", whole(line["line"]), cols, text[at].strip() if 0 <= at < len(text) else ""))
        yield from grid(("entity", "line", "columns", "text"), rows, right={1})


# reports -------------------------------------------------------------------------------------------------------------
def before_after(document: Document) -> Lines:
    for s in _stages(document, "written", "optimized"):
        yield from _graph(document, s)
        yield ""
    yield from _reports(document)
    yield from comparison(document)
    yield from notes(document)


def comparison(document: Document) -> Lines:
    """Return the table of the variants, as `Study.compare` has it."""
    rows = document.data.get("variants") or []
    if rows:
        yield "what if:"
        cells = [_figures(row).row() for row in rows]
        yield from grid(HEAD, cells, right=set(range(1, len(HEAD))))


def _figures(row: Json) -> VariantFigures:
    step = row["step_seconds"]
    counts = {name: row[name] for name in COUNTS}
    return VariantFigures(row["name"], **counts, step=StepTime(**step) if step else None)


def _reports(document: Document) -> Lines:
    for p, one in enumerate(document.data["passes"]):
        if one["role"] == "optimize":
            yield from _report(p, one["report"])
            yield ""


def _report(number: int, report: Json) -> Lines:
    yield f"pass {number}: optimize, phase {report['phase']}, {report['engine']}, {report['cost_model']}"
    time = duration(report["egglog_time"] + report["extract_time"])
    cost = f"cost {sig(report['cost_before'])} → {sig(report['cost_after'])} µs, {priced(report['cost_model'])}"
    yield f"  {whole(report['nodes_before'])} → {whole(report['nodes_after'])} nodes; {cost}"
    detail = f": {report['stop_detail']}" if report.get("stop_detail") else ""
    rounds = plural(len(report["iterations"]), "iteration")
    sizes = f"{whole(report['num_eclasses'])} e-classes, {whole(report['num_enodes'])} e-nodes"
    yield f"  stopped: {report['stop_reason']}{detail}, {rounds}, {sizes}, {time}"
    if report.get("outcome"):
        yield from wrap(report["outcome"], 116, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    rules = [(f"rule:{number}.{i}", r) for i, r in enumerate(report["rules"])]
    rows = [
        (entity, r["label"], r["tag"], whole(r["matched"]), whole(r["created"]), whole(r["used"]),
         duration(r["seconds"]), "" if r["enabled"] else "off")
        for entity, r in rules if r["matched"] or r["used"]
    ]  # fmt: skip
    yield from grid(("entity", "rule", "safety", "matched", "created", "used", "time", ""), rows, right={3, 4, 5, 6})
    idle = [f"{entity} {r['label']}" for entity, r in rules if not (r["matched"] or r["used"])]
    told = f"{plural(len(idle), 'rule')} without a match{': ' if idle else ''}{', '.join(idle)}"
    yield from wrap(told, 116, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    yield "  not fused:" if report["missed"] else "  not fused: nothing; every near match was used"
    for missed in report["missed"]:
        about = f"{missed['about']}  " if missed.get("about") else ""
        yield f"    {about}{missed['label']}: {missed['text'] or missed['reason']}"


def notes(document: Document) -> Lines:
    for note in document.data["notes"]:
        yield f"{note['level']}: {note['text']}"


def _whose(one: Json) -> str:
    return f"costs {priced(one['report'].get('cost_model', ''))}"


def rewrites(document: Document) -> Lines:
    for p, one in enumerate(document.data["passes"]):
        if one["role"] != "optimize":
            continue
        yield f"pass {p}: {plural(rewrite_count(one), 'rewrite')}, {one['key']}; {_whose(one)}"
        if one.get("deltas") is not None:
            yield f"  e-graph: {plural(len(one['deltas']) - 1, 'iteration')}; the view egraph tells how it grew"
        if one["report"].get("outcome"):
            yield from wrap(one["report"]["outcome"], 116, initial_indent="  ", subsequent_indent="    ",
                            break_on_hyphens=False)  # fmt: skip
        rows = []
        for s, step in enumerate(document.steps(p)):
            added = ", ".join(f"{n['key']} {n['op']}" for n in step["added"] or ())
            cost = f"{sig(step['cost_before'])} → {sig(step['cost_after'])}"
            rows.append(
                (f"step:{p}.{s}", step["label"], ", ".join(step["at"]), ", ".join(step["removed"]), added, cost)
            )
        yield from grid(("entity", "rule", "at", "removed", "added", "cost µs"), rows)
        used = {step["rule"]: step["label"] for step in document.steps(p)}
        yield from _mathematics([(used[r["id"]], r["doc"]) for r in one["report"]["rules"] if r["id"] in used])


def _mathematics(rules: Sequence[tuple[str, str]]) -> Lines:
    """Return the line of mathematics of each rule, below a heading."""
    stated = [(name, line) for name, line in rules if line]
    yield from ["mathematics:", *grid(("", ""), stated)] if stated else ()


# derivative ----------------------------------------------------------------------------------------------------------
def derivative(document: Document) -> Lines:
    found = list(_stages(document, "derivative:written")) or list(_stages(document, "derivative"))
    if not found:
        yield "no derivative: a study for training has one"
    for s in found:
        yield from _graph(document, s, lanes=True)
        for p, one in enumerate(document.data["passes"]):
            if one["role"] == "differentiate" and one["to"] == s:
                yield from _gradient_steps(document, p, s)


def _gradient_steps(document: Document, number: int, stage: int) -> Lines:
    one = document.data["passes"][number]
    yield f"pass {number}: {one['report']['summary']}"
    names = [f"%{i} {op}" for i, op in enumerate(document.nodes(stage).column("op"))]
    kept: set[int] = set()
    rows = []
    for s, step in enumerate(document.steps(number)):
        fresh = [r for r in step["residuals"] or () if r["node"] not in kept]
        kept.update(r["node"] for r in fresh)
        saved = ", ".join(f"{names[r['node']]} {nbytes(r['nbytes'])}" for r in step["residuals"] or ())
        rows.append((
            f"step:{number}.{s}", names[step["node"]], ", ".join(names[i] for i in step["cotangents"]),
            ", ".join(names[i] for i in (*step["accumulated"], *step["added"])), saved, step["reason"],
        ))  # fmt: skip
    yield from grid(("entity", "forward op", "cotangents", "added", "saved", "why no gradient"), rows)
    yield from _mathematics([(rule, source.get("math", "")) for rule, source in one["sources"].items()])
