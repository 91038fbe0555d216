"""Every view as text: `twin(doc, "plan")` says in lines what the picture shows; the command line and files print it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gdlab.errors import unknown_name
from gdlab.view.columns import Json, Table
from gdlab.view.document import Document
from gdlab.view.figures import duration, grid, nbytes, plural, sig, whole
from gdlab.view.links import parse_entity

Lines = Iterator[str]


def twin(document: Document, view: str = "opt", at: str | None = None) -> str:
    """The text of a view. `at`: an entity; the view says only what concerns it."""
    if view not in VIEWS:
        raise unknown_name("explain", "view", view, VIEWS)
    lit = None if at is None else document.select(at)
    if view == "links":
        return "\n".join(_links(document, at)) + "\n"
    lines = [line for line in VIEWS[view](document) if lit is None or _concerns(line, lit)]
    return "\n".join(lines) + "\n"


def everything(document: Document) -> str:
    """All views, one after the other."""
    parts = [str(document.data["summary"]), ""]
    for view in ("graph", "opt", "rewrites", "grad", "plan", "arena", "kernels", "session"):
        parts += [f"== {view} ==", twin(document, view)]
    return "\n".join(parts)


def markdown(document: Document) -> str:
    """The summary and the main tables as Markdown."""
    parts = [f"# {_cell(document.data['title'])}", "", _cell(document.data["summary"]), ""]
    for s, stage in enumerate(document.data["stages"]):
        head, rows = ("entity", "op", "name", "type", "inputs"), []
        for node in node_rows(document, s):
            rows.append((node["entity"], node["op"], node["name"], node["type"], ", ".join(node["reads"])))
        parts += [f"## {_cell(stage['title'])}", "", *_table(head, rows), ""]
    if document.data["plan"]:
        parts += ["## Plan", "", *_table(_DISPATCH_HEAD, _dispatch_rows(document)), ""]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]


def _cell(text: str) -> str:
    """Text that Markdown shows as it stands."""
    flat = " ".join(str(text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#&~$" else c for c in flat)


def _concerns(line: str, lit: frozenset[str]) -> bool:
    """Whether a line is about nothing in particular, or about an entity that is lit."""
    word = line.split(maxsplit=1)[0] if line.strip() else ""
    kind = word.partition(":")[0]
    return kind not in ("node", "line", "step", "rule", "kernel", "dispatch", "interval", "wgsl") or ":" not in word or word in lit


# graphs ---------------------------------------------------------------------------------------------------------------------
def node_rows(document: Document, stage: int) -> list[Json]:
    """The nodes of a stage as people read them."""
    nodes, types = document.nodes(stage), document.types.column("text")
    rows = []
    for i, node in enumerate(nodes):
        attrs = ", ".join(f"{k}={_attr(v)}" for k, v in sorted((node["attrs"] or {}).items()))
        reads = [f"%{k}" for k in node["inputs"]]
        fate = node["fate"]
        rows.append({
            "entity": f"node:{stage}.{i}", "op": node["op"], "name": node["name"], "type": types[node["type"]],
            "reads": reads, "flags": node["flags"], "lane": node["lane"],
            "call": f"{node['op']}({', '.join([*reads, attrs] if attrs else reads)})",
            "fate": f"{fate['kind']}: {fate['reason']}" + (f" ({fate['into']})" if fate["into"] else "") if fate else "",
        })  # fmt: skip
    return rows


def _attr(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("text", value))
    return f'"{value}"' if isinstance(value, str) else str(value).replace("[", "(").replace("]", ")")


def _graph(document: Document, stage: int, lanes: bool = False) -> Lines:
    raw, rows = document.data["stages"][stage], node_rows(document, stage)
    yield f"stage {stage}, {raw['title']} ({raw['key']}): {plural(len(rows), 'node')}"
    if not rows:
        return
    table = [
        (r["entity"], f"%{i}", r["name"], r["call"], r["type"], r["lane"] if lanes else "",
         ", ".join(f for f in r["flags"] if f != "leaf"), r["fate"])
        for i, r in enumerate(rows)
    ]  # fmt: skip
    yield from grid(("entity", "id", "name", "op", "type", "lane" if lanes else "", "flags", "fate"), table, right={1})
    outputs = document.outputs(stage)
    named = [f"%{o['node']}" + (f' "{o["name"]}"' if o["name"] else "") + (f" = ∂{o['of']}" if o["of"] else "") for o in outputs]
    yield f"  outputs: {', '.join(named) or 'none'}"


def _stages(document: Document, *keys: str) -> Iterator[int]:
    for s, stage in enumerate(document.data["stages"]):
        if stage["key"] in keys:
            yield s


def _written(document: Document) -> Lines:
    yield from _graph(document, 0)
    yield from _sources(document)


def _sources(document: Document) -> Lines:
    """The calls of the source, each with its line of text."""
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


# reports --------------------------------------------------------------------------------------------------------------------
def _opt(document: Document) -> Lines:
    for s in _stages(document, "written", "optimized"):
        yield from _graph(document, s)
        yield ""
    yield from _reports(document)
    yield from _notes(document)


def _reports(document: Document) -> Lines:
    for p, one in enumerate(document.data["passes"]):
        if one["role"] == "optimize":
            yield from _report(p, one["report"])
            yield ""


def _report(number: int, report: Json) -> Lines:
    yield f"pass {number}: optimize, phase {report['phase']}, {report['engine']}, {report['cost_model']}"
    time = duration(report["egglog_time"] + report["extract_time"])
    yield f"  {whole(report['nodes_before'])} → {whole(report['nodes_after'])} nodes; cost {sig(report['cost_before'])} → {sig(report['cost_after'])} µs"
    detail = f": {report['stop_detail']}" if report.get("stop_detail") else ""
    rounds = plural(len(report["iterations"]), "iteration")
    sizes = f"{whole(report['num_eclasses'])} e-classes, {whole(report['num_enodes'])} e-nodes"
    yield f"  stopped: {report['stop_reason']}{detail}, {rounds}, {sizes}, {time}"
    rows = [
        (f"rule:{number}.{i}", r["label"], r["tag"], whole(r["matched"]), whole(r["created"]), whole(r["used"]),
         duration(r["seconds"]), "" if r["enabled"] else "off")
        for i, r in enumerate(report["rules"])
    ]  # fmt: skip
    yield from grid(("entity", "rule", "safety", "matched", "created", "used", "time", ""), rows, right={3, 4, 5, 6})
    yield "  not fused:" if report["missed"] else "  not fused: nothing; every near match was used"
    for missed in report["missed"]:
        about = f"{missed['about']}  " if missed.get("about") else ""
        yield f"    {about}{missed['label']}: {missed['text'] or missed['reason']}"


def _notes(document: Document) -> Lines:
    for note in document.data["notes"]:
        yield f"{note['level']}: {note['text']}"


def _rewrites(document: Document) -> Lines:
    for p, one in enumerate(document.data["passes"]):
        if one["role"] != "optimize":
            continue
        yield f"pass {p}: {plural(one['steps']['count'], 'step')}, {one['key']}"
        rows = []
        for s, step in enumerate(document.steps(p)):
            added = ", ".join(f"{n['key']} {n['op']}" for n in step["added"] or ())
            cost = f"{sig(step['cost_before'])} → {sig(step['cost_after'])}"
            rows.append((f"step:{p}.{s}", step["label"], ", ".join(step["at"]), ", ".join(step["removed"]), added, cost))
        yield from grid(("entity", "rule", "at", "removed", "added", "cost µs"), rows)


# derivative -----------------------------------------------------------------------------------------------------------------
def _grad(document: Document) -> Lines:
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


# plan -----------------------------------------------------------------------------------------------------------------------
_DISPATCH_HEAD = (
    "entity", "group", "phase", "dispatch", "kernel", "workgroups", "reads", "writes", "MFLOP", "moved"
)  # fmt: skip


def plan_counts(plan: Json) -> str:
    """`9 + 4 dispatches (Adam, lr 0.001), 6 groups, physical 2.1 MB of logical 3.4 MB`."""
    updates = plan["updates"]
    count = plan["dispatches"]["count"] - updates
    shown = f"{whole(count)} + {whole(updates)} dispatches" if updates else plural(count, "dispatch")
    rule = f" ({plan['optimizer']})" if plan["optimizer"] else ""
    memory = plan["memory"]
    sizes = f"physical {nbytes(memory['physical_bytes'])} of logical {nbytes(memory['logical_bytes'])}"
    return f"{shown}{rule}, {plural(plan['groups']['count'], 'group')}, {sizes}"


def _dispatch_rows(document: Document) -> list[tuple[str, ...]]:
    names = _interval_names(document)
    return [
        (f"dispatch:{k}", whole(d["group"]), d["phase"], d["label"], f"kernel:{d['kernel']}",
         "×".join(map(str, d["workgroups"])), ", ".join(names[i] for i in d["reads"]), ", ".join(names[i] for i in d["writes"]),
         sig(d["flops"] / 1e6), nbytes(d["bytes_read"] + d["bytes_written"]))
        for k, d in enumerate(document.plan("dispatches"))
    ]  # fmt: skip


def _interval_names(document: Document) -> list[str]:
    return [name or f"buffer {i}" for i, name in enumerate(document.plan("intervals").column("name"))]


def _plan(document: Document) -> Lines:
    plan = document.data["plan"]
    if not plan:
        yield "no plan"
        yield from _notes(document)
        return
    yield f"plan {document.data['title']}: {plan_counts(plan)}"
    yield from grid(_DISPATCH_HEAD, _dispatch_rows(document), right={1, 8, 9})
    yield from _totals(document.plan("dispatches"))
    names = _interval_names(document)
    for g, group in enumerate(document.plan("groups")):
        hazards = [f"{h['hazard']} {names[h['interval']]} ({h['from']} before {h['to']})" for h in group["because"] or ()]
        why = f": {'; '.join(hazards[:4])}" + (f"; {len(hazards) - 4} more" if len(hazards) > 4 else "") if hazards else ""
        yield f"  group {g}, dispatches {group['start']} … {group['stop'] - 1}{why}"


def _totals(dispatches: Table) -> Lines:
    sums: dict[str, list[int]] = {}
    for d in dispatches:
        for key in (d["phase"], "all"):
            total = sums.setdefault(key, [0, 0, 0])
            for i, value in enumerate((1, d["flops"], d["bytes_read"] + d["bytes_written"])):
                total[i] += value
    sums["all"] = sums.pop("all", [0, 0, 0])
    yield from grid(
        ("total", "dispatches", "MFLOP", "moved"),
        [(key, whole(n), sig(f / 1e6), nbytes(b)) for key, (n, f, b) in sums.items()],
        right={1, 2, 3},
    )


def _arena(document: Document) -> Lines:
    plan = document.data["plan"]
    if not plan:
        yield "no plan"
        return
    memory = plan["memory"]
    sizes = [f"{name.removesuffix('_bytes')} {nbytes(memory[name])}" for name in sorted(memory) if name.endswith("_bytes")]
    yield f"arena {document.data['title']}: {', '.join(sizes)}; peak in group {memory['peak_group']}"
    intervals = list(document.plan("intervals"))
    rows = []
    for s, slot in enumerate(document.plan("slots")):
        for i in slot["tenants"]:
            row = intervals[i]
            life = f"{row['first']} … {row['last']}" if row["first"] >= 0 else f"kept … {row['last']}"
            node = f"node:{plan['stage']}.{row['node']}" if row["node"] >= 0 else ""
            rows.append((f"interval:{i}", whole(s), nbytes(slot["nbytes"]), row["name"], row["kind"], nbytes(row["nbytes"]),
                         life, node, row["pinned"] or ""))  # fmt: skip
    yield from grid(
        ("entity", "slot", "slot size", "name", "kind", "size", "dispatches", "node", "pinned"), rows, right={1, 2, 5}
    )


def _kernels(document: Document) -> Lines:
    if not document.data["plan"]:
        yield "no plan"
        return
    used: dict[int, list[int]] = {}
    for d, kernel in enumerate(document.plan("dispatches").column("kernel")):
        used.setdefault(kernel, []).append(d)
    computes = _nodes_of_lines(document)
    for k, kernel in enumerate(document.plan("kernels")):
        size = "×".join(map(str, kernel["workgroup_size"]))
        runs = ", ".join(map(str, used.get(k, ())))
        yield f"kernel:{k} {kernel['entry']}, workgroup {size}, dispatches {runs}; {kernel['variant']}: {kernel['variant_reason']}"
        for binding in kernel["bindings"] or ():
            yield f"  binding {binding['index']}: {binding['access']}, {binding['role']}"
        rows = [
            (f"wgsl:{k}.{n}", str(n), computes.get((k, n), ""), line)
            for n, line in enumerate(kernel["wgsl"].split("\n"), 1)
        ]
        width = [max(len(row[i]) for row in rows) for i in range(3)]
        for entity, n, nodes, line in rows:  # the text of a kernel keeps its spaces
            yield f"  {entity:{width[0]}}  {n:>{width[1]}}  {nodes:{width[2]}}  {line}".rstrip()


def _nodes_of_lines(document: Document) -> dict[tuple[int, int], str]:
    """The nodes that each WGSL line computes, by (kernel, line)."""
    levels, found = document.provenance.levels, {}
    for each in document.data["links"]:
        if each["b"] == "wgsl" and each["a"].startswith("node:"):
            start, ids = each["back"]["start"], each["back"]["ids"]
            for row in range(len(start) - 1):
                if start[row] < start[row + 1]:
                    kernel, line = parse_entity(levels.name("wgsl", row))[1]
                    found[kernel, line] = ", ".join(f"%{i}" for i in ids[start[row] : start[row + 1]])
    return found


# session and links ------------------------------------------------------------------------------------------------------------
def _session(document: Document) -> Lines:
    runs = document.data["runs"]
    if not runs:
        yield f"no session yet: %graph_run {document.data['title']} 100, or study.run(100)"
    for run in runs:
        counters, loss = run["counters"], run["loss"]
        yield f"{run['key']}: {run['device']}, {run['adapter']}"
        yield f"  {', '.join(f'{name} {whole(counters[name])}' for name in sorted(counters))}"
        yield f"  memory: {run['memory']['text']}"
        if loss:
            (first, low), (last, high) = loss[0], loss[-1]
            yield f"  loss: {_loss(low)} at step {whole(first)} → {_loss(high)} at step {whole(last)}"
        for event in run["events"]:
            yield f"  step {event['step']}: {event['kind']}: {event['text']}"


def _loss(value: float | str) -> str:
    return value if isinstance(value, str) else sig(value)


def _links(document: Document, at: str | None) -> Lines:
    if at is None:
        for each in document.data["links"]:
            count = len(each["out"]["ids"])
            yield f"{each['a']} – {each['b']}: {plural(count, 'pair')}"
        return
    yield from chain(document, at)


def chain(document: Document, at: str) -> Lines:
    """What lights up with an entity, from the source to the WGSL, level by level."""
    lit = document.select(at)
    order = ["line", *(f"node:{s}" for s in range(len(document.data["stages"]))),
             *(f"step:{p}" for p in range(len(document.data["passes"]))), "dispatch", "interval", "kernel", "wgsl"]  # fmt: skip
    yield f"{at}: {plural(len(lit), 'entity').replace('entitys', 'entities')}"
    for level in order:
        listed = sorted((e for e in lit if _level(e) == level), key=lambda e: parse_entity(e)[1])
        yield from (f"  {entity}  {_told(document, entity)}".rstrip() for entity in listed)


def _level(entity: str) -> str:
    kind, at = parse_entity(entity)
    return f"{kind}:{at[0]}" if kind in ("node", "step") else kind


def _told(document: Document, entity: str) -> str:
    """One entity in words."""
    kind, at = parse_entity(entity)
    match kind:
        case "line":
            line = document.lines[at[0]]
            source = document.data["sources"][line["source"]]
            text = source["text"].split("\n")
            row = line["line"] - source["first_line"]
            return f"{source['name']}, line {line['line']}: {text[row].strip() if 0 <= row < len(text) else ''}"
        case "node":
            node = document.nodes(at[0])[at[1]]
            return f"{node['op']} {node['name']} : {document.types[node['type']]['text']}".replace("  ", " ")
        case "step":
            step = document.steps(at[0])[at[1]]
            return str(step.get("label") or f"gradient of {step['rule']}")
        case "dispatch":
            return str(document.plan("dispatches")[at[0]]["label"])
        case "interval":
            row = document.plan("intervals")[at[0]]
            return f"{row['name'] or 'buffer'}, {row['kind']}, {nbytes(row['nbytes'])}"
        case "kernel":
            return str(document.plan("kernels")[at[0]]["entry"])
        case "wgsl":
            return str(document.plan("kernels")[at[0]]["wgsl"].split("\n")[at[1] - 1])
        case _:
            return ""


VIEWS: dict[str, Callable[[Document], Lines]] = {
    "graph": _written,
    "text": _written,
    "opt": _opt,
    "rewrites": _rewrites,
    "grad": _grad,
    "plan": _plan,
    "arena": _arena,
    "kernels": _kernels,
    "session": _session,
    "links": lambda document: _links(document, None),
}
