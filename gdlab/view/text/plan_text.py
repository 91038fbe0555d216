"""Plan, buffers, kernels and runs as text: the lines of `twin`, each beginning with its entity."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from gdlab.base.statistics import Summary, bars
from gdlab.base.words import cell, duration, grid, nbytes, plural, sig, whole
from gdlab.session.totals import parts_words
from gdlab.view.document.columns import Json, Table
from gdlab.view.document.dispatches import plan_counts
from gdlab.view.document.document import Document
from gdlab.view.document.links import parse_entity
from gdlab.view.document.runs import times_of
from gdlab.view.text.compiled_text import counted, edge
from gdlab.view.text.engines_text import allreduce_lines, allreduce_rows, engine_lines
from gdlab.view.text.graph_text import notes

Lines = Iterator[str]
_WIDE = 30  # times the least norm is the greatest


# plan ----------------------------------------------------------------------------------------------------------------
_HEAD = ("entity", "group", "phase", "dispatch", "kernel", "workgroups", "reads", "writes", "MFLOP", "moved")
_TIMED = ("µs", "predicted µs", "verdict")
_FEW = 6  # dispatches that are named where there may be thousands


def dispatch_head(document: Document) -> tuple[str, ...]:
    """Return the columns of `dispatch_rows`: three more where the dispatches were timed."""
    return (*_HEAD, *_TIMED) if times_of(document) else _HEAD


def dispatch_rows(document: Document) -> list[tuple[str, ...]]:
    """Return the dispatches as people read them."""
    names, times = _interval_names(document), times_of(document)
    rows = [
        (f"dispatch:{k}", whole(d["group"]), d["phase"], d["label"], f"kernel:{d['kernel']}",
         "×".join(map(str, d["workgroups"])), ", ".join(names[i] for i in d["reads"]),
         ", ".join(names[i] for i in d["writes"]),
         cell(d["flops"] / 1e6), nbytes(d["bytes_read"] + d["bytes_written"]), *_time_cells(times, k))
        for k, d in enumerate(document.plan("dispatches"))
    ]  # fmt: skip
    if made := document.data.get("allreduce"):
        for before, row in reversed(allreduce_rows(made, times is not None)):
            rows.insert(before, row)
    return rows


def _time_cells(times: Mapping[str, Any] | None, k: int) -> tuple[str, ...]:
    if times is None:
        return ()
    return cell(times["median"][k] * 1e6), cell(times["predicted"][k] * 1e6), times["verdict"][k]


def _interval_names(document: Document) -> list[str]:
    return [name or f"buffer {i}" for i, name in enumerate(document.plan("intervals").column("name"))]


def plan_table(document: Document) -> Lines:
    plan = document.data["plan"]
    if not plan:
        yield "no plan"
        yield from notes(document)
        return
    yield from edge(document)
    yield f"plan {document.data['title']}: {plan_counts(plan)}"
    yield from grid(dispatch_head(document), dispatch_rows(document), right={1, 8, 9, 10, 11})
    times = times_of(document)
    if times:
        yield f"  µs: median of {plural(times['samples'], 'step')}; predicted by the roofline of {times['machine']}"
    yield from allreduce_lines(document)
    yield from _totals(document.plan("dispatches"), times)
    yield from _apart(document)
    names = _interval_names(document)
    basis, widths = widths_of(document)
    if basis == "predicted":
        yield f"  predicted for {machine_name(plan['machine'])}"
    for g, group in enumerate(document.plan("groups")):
        total = sum(widths[group["start"] : group["stop"]])
        width = f"{nbytes(total)} moved" if basis == "bytes" else f"{duration(total)} {basis}"
        hazards = [
            f"{h['hazard']} {names[h['interval']]} ({h['from']} before {h['to']})" for h in group["because"] or ()
        ]
        why = (
            f": {'; '.join(hazards[:4])}" + (f"; {len(hazards) - 4} more" if len(hazards) > 4 else "")
            if hazards
            else ""
        )
        yield f"  group {g}, dispatches {group['start']} … {group['stop'] - 1}, {width}{why}"


def _totals(dispatches: Table, times: Mapping[str, Any] | None) -> Lines:
    """Return sums per phase, per family, per kernel of several dispatches, and of all."""
    sums: dict[str, list[float]] = {}
    for k, d in enumerate(dispatches):
        seconds = times["median"][k] if times else 0.0
        for key in (d["phase"], f"family {d['family']}", f"kernel:{d['kernel']}", "all"):
            total = sums.setdefault(key, [0, 0, 0, 0.0])
            for i, value in enumerate((1, d["flops"], d["bytes_read"] + d["bytes_written"], seconds)):
                total[i] += value
    shown = [key for key, (count, *_) in sums.items() if count > 1 or not key.startswith("kernel:")]
    order = sorted(shown, key=lambda key: (key == "all", key.startswith("kernel:"), key.startswith("family ")))
    head = ("total", "dispatches", "MFLOP", "moved", *(("µs",) if times else ()))
    rows = [(key, *_total(sums[key])[: len(head) - 1]) for key in order]
    yield from grid(head, rows, right={1, 2, 3, 4})


def _total(sums: Sequence[float]) -> tuple[str, ...]:
    count, flops, moved, seconds = sums
    return whole(count), cell(flops / 1e6), nbytes(moved), cell(seconds * 1e6)


def _apart(document: Document) -> Lines:
    """List the fusions that the plan did not make, each at every dispatch of its node."""
    compiled = next((one for one in document.data["passes"] if one["role"] == "compile"), None)
    if not compiled or not compiled["report"]["missed"]:
        return
    readers = _readers(document)
    for missed in compiled["report"]["missed"]:
        for entity in sorted(e for e in document.select(missed["about"]) if e.startswith("dispatch:")):
            yield f"  {entity}  {apart_words(document, missed, readers)} ({missed['about']})"


def _readers(document: Document) -> Mapping[int, Sequence[str]]:
    """Return the ops that read each node of the compiled stage."""
    found: dict[int, list[str]] = {}
    for node in document.nodes(document.data["plan"]["stage"]):
        for i in node["inputs"]:
            found.setdefault(i, []).append(node["op"])
    return found


def apart_words(document: Document, missed: Json, readers: Mapping[int, Sequence[str]]) -> str:
    """Say why a fusion was not made: `not fused with relu_grad: h is also read by dispatch 9`."""
    at, second = int(missed["node"]), missed["label"].rpartition("+")[2]
    node = document.nodes(document.data["plan"]["stage"])[at]
    op = next((op for op in readers.get(at, ()) if op.replace("_", "") == second.lower()), second)
    it = node["name"] or node["op"]
    also = re.fullmatch(r"(%\d+) reads it in another dispatch", missed["detail"])
    shared = also and missed["reason"] == "multi_use"
    why = f"{it} is also read by {also[1]}" if also and shared else _IT.sub(lambda _: it, missed["detail"], count=1)
    return f"not fused with {op}: {_with_dispatches(document, why)}"


_IT = re.compile(r"\bit\b")


def _with_dispatches(document: Document, detail: str) -> str:
    """Replace the ids of nodes in a refusal by the dispatches that compute them."""

    def dispatch(found: re.Match[str]) -> str:
        lit = document.select(f"node:{document.data['plan']['stage']}.{found[1]}")
        ks = [int(e.partition(":")[2]) for e in lit if e.startswith("dispatch:")]
        return f"dispatch {min(ks)}" if ks else found[0]

    return re.sub(r"%(\d+)", dispatch, detail)


def machine_name(machine: Mapping[str, Any]) -> str:
    """Return the name of the machine whose roofline predicts the times of a plan."""
    return "a nominal GPU" if machine["name"] == "nominal" else str(machine["name"])


def widths_of(document: Document) -> tuple[str, list[float]]:
    """Return the best known measure of the dispatches, its name and values: seconds measured, seconds predicted, or
    bytes moved."""
    times, machine = times_of(document), document.data["plan"].get("machine")
    if times:
        return "measured", list(times["median"])
    moved = [(d["bytes_read"] + d["bytes_written"], d["flops"]) for d in document.plan("dispatches")]
    if not machine:
        return "bytes", [float(nbytes) for nbytes, _ in moved]
    launch, bandwidth, peak = (machine[name] for name in ("launch_seconds", "bytes_per_second", "flops_per_second"))
    return "predicted", [launch + max(nbytes / bandwidth, flops / peak) for nbytes, flops in moved]


_ARENA_HEAD = (
    "entity", "slot", "slot size", "name", "kind", "size", "dispatches", "written by", "read by", "node", "pinned",
)  # fmt: skip


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
    if memory.get("parts"):
        yield f"  it holds {parts_words(memory['parts'].items())}"
    yield f"  {reuse_words(memory)}"
    yield from _over_time(document)
    intervals = list(document.plan("intervals"))
    rows = []
    writers, readers = _users(document)
    for s, slot in enumerate(document.plan("slots")):
        for i in slot["tenants"]:
            row = intervals[i]
            life = f"{row['first']} … {row['last']}" if row["first"] >= 0 else f"kept … {row['last']}"
            node = f"node:{plan['stage']}.{row['node']}" if row["node"] >= 0 else ""
            sizes = nbytes(slot["nbytes"]), row["name"], row["kind"], nbytes(row["nbytes"])
            uses = few(writers.get(i, ())), few(readers.get(i, ()))
            place = f"{whole(s)} + {nbytes(row['offset'])}" if row["offset"] else whole(s)
            rows.append((f"interval:{i}", place, *sizes, life, *uses, node, row["pinned"] or ""))
    yield from grid(_ARENA_HEAD, rows, right={1, 2, 5})
    yield from edge(document)
    yield from _peak_rows(document)


def live_bytes(document: Document) -> tuple[int, list[int]]:
    """Return the bytes that are always there, and those of reusable memory that live in each barrier group."""
    intervals = list(document.plan("intervals"))
    always = sum(row["padded"] for row in intervals if _always(row))
    change = [0] * (document.plan("groups").count + 1)
    for row in intervals:
        if not _always(row):
            change[row["first_group"]] += row["padded"]
            change[row["last_group"] + 1] -= row["padded"]
    return always, list(accumulate(change[:-1]))


def _always(interval: Json) -> bool:
    return interval["pinned"] is not None or interval["first"] < 0


_BAR = 24  # characters, of the peak


def _over_time(document: Document) -> Lines:
    """Draw memory over time: the live bytes of each barrier group above the permanent ones."""
    always, live = live_bytes(document)
    yield f"  always there {nbytes(always)}; in use, group by group:"
    most = max(live, default=0) or 1
    for (g, size), group in zip(enumerate(live), document.plan("groups"), strict=True):
        span = f"{group['start']} … {group['stop'] - 1}"
        peak = "  peak" if g == document.data["plan"]["memory"]["peak_group"] else ""
        bar = "█" * round(_BAR * size / most)
        yield f"  group {g:>3}, dispatches {span:>9}  {nbytes(always + size):>8} {bar}{peak}"


def _users(document: Document) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the dispatches that write each interval, and those that read it."""
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    table = document.plan("dispatches")
    for column, users in (("writes", writers), ("reads", readers)):
        for k, intervals in enumerate(table.column(column)):
            for i in intervals:
                users.setdefault(i, []).append(k)
    return writers, readers


def few(numbers: Sequence[int]) -> str:
    """Write the first numbers, and how many more there are."""
    more = len(numbers) - _FEW
    return ", ".join(map(str, numbers[:_FEW])) + (f" and {more} more" if more > 0 else "")


def reuse_words(memory: Json) -> str:
    """Say how much reuse saves: `reuse saves 75.4 KB: without it 243 KB`."""
    without = memory["logical_bytes"] + memory["padding_bytes"]
    return f"reuse saves {nbytes(without - memory['physical_bytes'])}: without it {nbytes(without)}"


def at_peak(document: Document) -> list[int]:
    """Return the intervals that are in memory at the peak, largest first: pinned ones, the state of the optimizer among
    them, and those alive in its group."""
    peak = document.data["plan"]["memory"]["peak_group"]
    rows = list(document.plan("intervals"))
    alive = [
        i for i, row in enumerate(rows)
        if row["pinned"] is not None or row["first_group"] <= peak <= row["last_group"]
    ]  # fmt: skip
    return sorted(alive, key=lambda i: -rows[i]["nbytes"])


def _peak_rows(document: Document) -> Lines:
    """Return the buffers alive at the peak, with the node and the source line of each."""
    plan, rows = document.data["plan"], list(document.plan("intervals"))
    found = at_peak(document)
    yield f"  at the peak, in group {plan['memory']['peak_group']}: {plural(len(found), 'buffer')}"
    told = []
    for i in found:
        node = f"node:{plan['stage']}.{rows[i]['node']}" if rows[i]["node"] >= 0 else ""
        where = ", ".join(f"line:{line}" for line in own_lines(document, node)) if node else ""
        told.append((f"interval:{i}", rows[i]["name"], nbytes(rows[i]["nbytes"]), node, where))
    yield from grid(("entity", "name", "size", "node", "lines"), told, right={2})


def own_lines(document: Document, entity: str) -> list[int]:
    """Return the lines that an entity came from, without those that only called the others."""
    lit = sorted(int(e.removeprefix("line:")) for e in document.select(entity) if e.startswith("line:"))
    callers = {caller for line in lit for caller in document.lines[line]["stack"]}
    return [line for line in lit if line not in callers]


def kernels(document: Document) -> Lines:
    if not document.data["plan"]:
        yield "no plan"
        return
    used: dict[int, list[int]] = {}
    for d, kernel in enumerate(document.plan("dispatches").column("kernel")):
        used.setdefault(kernel, []).append(d)
    computes, times = _nodes_of_lines(document), times_of(document)
    for k, kernel in enumerate(document.plan("kernels")):
        size = "×".join(map(str, kernel["workgroup_size"]))
        runs = ", ".join(map(str, used.get(k, ())))
        why = f"{kernel['variant']}: {kernel['variant_reason']}"
        took = f", {cell(sum(times['median'][d] for d in used.get(k, ())) * 1e6)} µs" if times else ""
        yield f"kernel:{k} {kernel['entry']}, workgroup {size}, dispatches {runs}{took}; {why}"
        for binding in kernel["bindings"] or ():
            yield f"  binding {binding['index']}: {binding['access']}, {binding['role']}"
        yield from _picture(kernel)
        rows = [
            (f"wgsl:{k}.{n}", str(n), computes.get((k, n), ""), line)
            for n, line in enumerate(kernel["wgsl"].split("\n"), 1)
        ]
        width = [max(len(row[i]) for row in rows) for i in range(3)]
        for entity, n, nodes, line in rows:  # the text of a kernel keeps its spaces
            yield f"  {entity:{width[0]}}  {n:>{width[1]}}  {nodes:{width[2]}}  {line}".rstrip()


_OVER = {
    "result": "the result", "input": "what is folded", "product": "the product", "parameters": "the parameters",
    "pieces": "pieces of work",
}  # fmt: skip
_WALKS = {"k": "K", "cell": "it", "keys": "the keys", "window": "the window"}
_PARTS = {"where": "finds its place", "loop": "loops", "work": "computes", "meet": "exchanges", "store": "writes"}


def _picture(kernel: Json) -> Lines:
    """Return the picture of a kernel in words: the part of the result of a workgroup, the parts of its lines, and the
    reasons."""
    covers = kernel["covers"]
    if not covers:
        return
    (batch, rows, columns), (high, wide) = covers["shape"], covers["cell"]
    per, share, loop = covers.get("per", 1), covers.get("share", 1), covers.get("loop")
    cells = batch * -(-rows // high) * -(-columns // wide)
    stack = f"{whole(batch)} of " if batch > 1 else ""
    one = "element" if (high, wide) == (1, 1) else f"tile of {whole(high)} × {whole(wide)}"
    has = f"{plural(per, one)}" if per > 1 else f"one {one}"
    many = f"{share} workgroups share one {one}" if share > 1 else f"a workgroup has {has}"
    yield (
        f"  picture: {_OVER[covers['over']]}, {stack}{whole(rows)} × {whole(columns)}; {many}; "
        f"{plural(-(-cells // per) * share, 'workgroup')}"
    )
    if loop:
        over, length, step, split, side = loop
        turns = -(-length // (step * split * (side if over == "k" else 1)))
        parts = f", in {split} parts with workgroups of their own" if split > 1 else ""
        beside = f", {side} side by side" if side > 1 else ""
        yield f"  loop: over {_WALKS[over]}, {whole(length)} in steps of {step}: {plural(turns, 'turn')}{parts}{beside}"
    for part, runs in (kernel["parts"] or {}).items():
        lines = ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in zip(runs[::2], runs[1::2], strict=True))
        said = _PARTS.get(part) or f"reads operand {part.removeprefix('read ')}"
        yield f"  {said}: {'line' if len(runs) == 2 and runs[0] == runs[1] else 'lines'} {lines}"
    yield f"  why: {kernel['why']}"


def _nodes_of_lines(document: Document) -> dict[tuple[int, int], str]:
    """Return the nodes that each WGSL line computes, by (kernel, line)."""
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
    runs, plan = document.data["runs"], document.data["plan"]
    if document.data.get("compiled"):
        yield from (*edge(document), *counted(document))
    elif not runs:
        yield f"no session yet: %graph_run {document.data['title']} 100, or study.run(100)"
    for run in runs:
        counters, loss = run["counters"], run["loss"]
        label = f"; {run['label']}" if run.get("label") else ""
        yield f"{run['key']}: {run['device']}, {run['adapter']}{label}"
        yield f"  {', '.join(f'{name} {whole(counters[name])}' for name in sorted(counters))}"
        yield f"  memory: {run['memory']['text']}"
        if plan and plan["memory"].get("parts"):
            yield f"  of it: {parts_words(plan['memory']['parts'].items())}"
        if loss:
            (first, low), (last, high) = loss[0], loss[-1]
            yield f"  loss: {_loss(low)} at step {whole(first)} → {_loss(high)} at step {whole(last)}"
        yield from engine_lines(run)
        yield from _norms(run)
        for event in run["events"]:
            yield f"  step {event['step']}: {event['kind']}: {event['text']}"
        yield from _values(run)


def _loss(value: float | str) -> str:
    return value if isinstance(value, str) else sig(value)


def _norms(run: Json) -> Lines:
    """Return the norms of gradients as sparklines; each line begins with its parameter."""
    rows = run.get("gradient_norms") or ()
    if rows:
        yield "  norm of each parameter's gradient, sampled during the run:"
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        (first, *_, last), norms = (row["steps"][0], row["steps"][-1]), row["norms"]
        told = f"{_loss(norms[0])} at step {whole(first)}"
        if len(norms) > 1:
            told += f" → {_loss(norms[-1])} at step {whole(last)}"
        sparkline, scale = _sparkline([float(norm) for norm in norms])
        yield f"{row['about'] or 'run'}   ‖∂{row['name']}‖{'':{width - len(row['name'])}}  {sparkline}  {told}{scale}"


def _sparkline(norms: Sequence[float]) -> tuple[str, str]:
    """Return the bars of norms, and a note on their scale: logarithmic where a straight one would show the beginning
    alone."""
    known = [norm for norm in norms if math.isfinite(norm)]
    if known and min(known) > 0 and max(known) > _WIDE * min(known):
        return bars([math.log(norm) if math.isfinite(norm) else norm for norm in norms]), ", logarithmic"
    return bars(norms), ""


def _values(run: Json) -> Lines:
    """Return the values of a run in numbers, bars and characters; each line begins with its entity."""
    for value in run.get("values") or ():
        summary, about = Summary.from_json(value), value["about"]
        plane = f", slice {value['slice']}" if value["slice"] else ""
        yield f"{about} {value['name']} : {value['type']}, {value['place']}{plane}"
        yield from (f"{about}   {line}" for line in (*summary.lines(), *summary.picture()))
