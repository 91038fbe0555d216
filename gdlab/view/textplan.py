"""Plan, buffers, kernels and runs as text: the lines of `twin`, each beginning with its entity."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.view.columns import Json, Table
from gdlab.view.document import Document
from gdlab.view.figures import cell, grid, nbytes, plural, sig, whole
from gdlab.view.links import parse_entity
from gdlab.view.textgraph import notes

Lines = Iterator[str]


# plan ----------------------------------------------------------------------------------------------------------------
DISPATCH_HEAD = (
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


def dispatch_rows(document: Document) -> list[tuple[str, ...]]:
    names = _interval_names(document)
    return [
        (f"dispatch:{k}", whole(d["group"]), d["phase"], d["label"], f"kernel:{d['kernel']}",
         "×".join(map(str, d["workgroups"])), ", ".join(names[i] for i in d["reads"]),
         ", ".join(names[i] for i in d["writes"]),
         cell(d["flops"] / 1e6), nbytes(d["bytes_read"] + d["bytes_written"]))
        for k, d in enumerate(document.plan("dispatches"))
    ]  # fmt: skip


def _interval_names(document: Document) -> list[str]:
    return [name or f"buffer {i}" for i, name in enumerate(document.plan("intervals").column("name"))]


def plan_table(document: Document) -> Lines:
    plan = document.data["plan"]
    if not plan:
        yield "no plan"
        yield from notes(document)
        return
    yield f"plan {document.data['title']}: {plan_counts(plan)}"
    yield from grid(DISPATCH_HEAD, dispatch_rows(document), right={1, 8, 9})
    yield from _totals(document.plan("dispatches"))
    names = _interval_names(document)
    for g, group in enumerate(document.plan("groups")):
        hazards = [
            f"{h['hazard']} {names[h['interval']]} ({h['from']} before {h['to']})" for h in group["because"] or ()
        ]
        why = (
            f": {'; '.join(hazards[:4])}" + (f"; {len(hazards) - 4} more" if len(hazards) > 4 else "")
            if hazards
            else ""
        )
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
        [(key, whole(n), cell(f / 1e6), nbytes(b)) for key, (n, f, b) in sums.items()],
        right={1, 2, 3},
    )


def arena(document: Document) -> Lines:
    plan = document.data["plan"]
    if not plan:
        yield "no plan"
        return
    memory = plan["memory"]
    parts = [
        f"{name.removesuffix('_bytes')} {nbytes(memory[name])}" for name in sorted(memory) if name.endswith("_bytes")
    ]
    yield f"arena {document.data['title']}: {', '.join(parts)}; peak in group {memory['peak_group']}"
    intervals = list(document.plan("intervals"))
    rows = []
    for s, slot in enumerate(document.plan("slots")):
        for i in slot["tenants"]:
            row = intervals[i]
            life = f"{row['first']} … {row['last']}" if row["first"] >= 0 else f"kept … {row['last']}"
            node = f"node:{plan['stage']}.{row['node']}" if row["node"] >= 0 else ""
            sizes = nbytes(slot["nbytes"]), row["name"], row["kind"], nbytes(row["nbytes"])
            rows.append((f"interval:{i}", whole(s), *sizes, life, node, row["pinned"] or ""))
    yield from grid(
        ("entity", "slot", "slot size", "name", "kind", "size", "dispatches", "node", "pinned"), rows, right={1, 2, 5}
    )


def kernels(document: Document) -> Lines:
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
        why = f"{kernel['variant']}: {kernel['variant_reason']}"
        yield f"kernel:{k} {kernel['entry']}, workgroup {size}, dispatches {runs}; {why}"
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


# session and links ---------------------------------------------------------------------------------------------------
def session(document: Document) -> Lines:
    runs = document.data["runs"]
    if not runs:
        yield f"no session yet: %graph_run {document.data['title']} 100, or study.run(100)"
    for run in runs:
        counters, loss = run["counters"], run["loss"]
        label = f"; {run['label']}" if run.get("label") else ""
        yield f"{run['key']}: {run['device']}, {run['adapter']}{label}"
        yield f"  {', '.join(f'{name} {whole(counters[name])}' for name in sorted(counters))}"
        yield f"  memory: {run['memory']['text']}"
        if loss:
            (first, low), (last, high) = loss[0], loss[-1]
            yield f"  loss: {_loss(low)} at step {whole(first)} → {_loss(high)} at step {whole(last)}"
        for event in run["events"]:
            yield f"  step {event['step']}: {event['kind']}: {event['text']}"


def _loss(value: float | str) -> str:
    return value if isinstance(value, str) else sig(value)
