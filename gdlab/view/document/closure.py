"""The closure rules of a document: all of it can be followed from the source to the buffers, or says why not."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gdlab.base.statistics import BINS, SIDE
from gdlab.plan.verify import Tenant, clashes
from gdlab.view.document.columns import Table
from gdlab.view.document.growth import faults
from gdlab.view.document.links import Levels, parse_entity
from gdlab.view.document.tables import TABLES

Data = Mapping[str, Any]


# column -> the table that its numbers count in; a table of stages counts in its own stage
_REFERENCES: dict[str, dict[str, str]] = {
    "lines": {"source": "sources"},
    "nodes": {"type": "types", "inputs": "nodes", "after": "nodes", "group": "node_groups"},
    "outputs": {"node": "nodes"},
    "dispatches": {"kernel": "kernels", "reads": "intervals", "writes": "intervals", "group": "barriers"},
    "intervals": {"slot": "slots", "alias_of": "intervals"},
    "slots": {"tenants": "intervals"},
}


def damaged(data: Data) -> str:
    """Return the first fault in the tables of a document that was read: a column of another length than its table, or
    the number of a row that does not exist; an empty text if there is none. May raise on what is no document at all."""
    top = {"types": data["types"], "lines": data["lines"], "sources": {"count": len(data["sources"])}}
    plan = data.get("plan") or {}
    names = {"kernels": "kernels", "dispatches": "dispatches", "groups": "barriers", "intervals": "intervals"}
    top |= {kind: plan[name] for name, kind in (names | {"slots": "slots"}).items() if plan.get(name) is not None}
    tables = [("", kind, raw, top) for kind, raw in top.items() if kind != "sources"]
    for s, stage in enumerate(data["stages"]):
        own = {"nodes": stage["nodes"], "outputs": stage["outputs"], "node_groups": stage.get("groups") or {"count": 0}}
        tables += [(f"stage {s}: ", kind, raw, {**top, **own}) for kind, raw in own.items()]
    return next((found for place, kind, raw, known in tables if (found := _table_damage(place, kind, raw, known))), "")


def _table_damage(place: str, kind: str, raw: Data, known: Mapping[str, Data]) -> str:
    table = Table(raw, kind)
    if table.count < 0:
        return f"{place}{kind}: {table.count} rows"
    for name in TABLES[kind]:
        values = table.column(name)
        if len(values) != table.count:
            return f"{place}{kind}: {len(values)} values of {name} in a table of {table.count}"
        if name in (references := _REFERENCES.get(kind, {})):
            count = int((known.get(references[name]) or {}).get("count", 0))
            flat = [v for row in values for v in (row if isinstance(row, list) else [row])]
            wrong = next((v for v in flat if not isinstance(v, int) or not -1 <= v < count), None)
            if wrong is not None:
                return f"{place}{kind}: {name} {wrong!r:.40}, where there are {count} {references[name]}"
    return ""


def problems(data: Data, own_links: bool = False) -> tuple[str, ...]:
    """Return all breaches of the rules, each beginning with its entity (or level); the first rule that fails hides the
    later ones.

    `own_links`: the links were made by `link` just now, and are sound.
    """
    for rule in _RULES[own_links:]:
        found = tuple(rule(data))
        if found:
            return found
    return ()


def _links(data: Data) -> Iterator[str]:
    """Check rule 1: every link is in range, ascending, without doubles, and its own transpose backwards."""
    counts = Levels.of(data).counts
    for each in data["links"]:
        name, a, b = f"{each['a']}–{each['b']}", each["a"], each["b"]
        if a not in counts or b not in counts:
            yield f"{name}: unknown level"
            continue
        good = all(_rows_fit(each[way], counts[x], counts[y]) for way, x, y in (("out", a, b), ("back", b, a)))
        if not good:
            yield f"{name}: rows out of range or out of order"
        elif sorted((y, x) for x, y in _pairs(each["out"])) != list(_pairs(each["back"])):
            yield f"{name}: back is not the transpose of out"


def _rows_fit(rows: Data, count: int, other: int) -> bool:
    start, ids = rows["start"], rows["ids"]
    if len(start) != count + 1 or start[0] != 0 or start[-1] != len(ids):
        return False
    for i in range(count):
        part = ids[start[i] : start[i + 1]]
        if start[i] > start[i + 1] or any(x >= y for x, y in zip(part, part[1:], strict=False)):
            return False
        if part and not (0 <= part[0] and part[-1] < other):
            return False
    return True


def _pairs(rows: Data) -> Iterator[tuple[int, int]]:
    start, ids = rows["start"], rows["ids"]
    return ((i, ids[k]) for i in range(len(start) - 1) for k in range(start[i], start[i + 1]))


def _dispatches(data: Data) -> Iterator[str]:
    """Check rule 2: every dispatch reaches a line."""
    counts = Levels.of(data).counts
    reached = {level: np.zeros(count, bool) for level, count in counts.items()}
    reached["line"][:] = True
    ways = [
        (reached[each["a"]], reached[each["b"]], np.diff(each["out"]["start"]), np.asarray(each["out"]["ids"], np.intp))
        for each in data["links"] if each["b"] not in ("kernel", "wgsl", "interval")
    ]  # fmt: skip
    before, now = -1, 0
    while before < now:  # links lie in order as a rule: then the second round finds nothing new
        before = now
        for source, target, lengths, ids in ways:
            target[ids[np.repeat(source, lengths)]] = True
        now = sum(int(mask.sum()) for mask in reached.values())
    return (f"dispatch:{k}: reaches no source line" for k in range(counts["dispatch"]) if not reached["dispatch"][k])


def _nodes(data: Data) -> Iterator[str]:
    """Check rule 3: every node reaches each child stage (the compiled one: a dispatch or an interval), or says why not.
    """
    stages = data["stages"]
    linked = {(each["a"], each["b"]): each["out"]["start"] for each in data["links"]}
    compiled = data["plan"]["stage"] if data.get("plan") else -1
    for s, stage in enumerate(stages):
        fates = Table(stage["nodes"], "nodes").column("fate")
        ways = [[linked.get((f"node:{s}", f"node:{c}"))] for c, child in enumerate(stages) if child["parent"] == s]
        if s == compiled:
            ways.append([linked.get((f"node:{s}", level)) for level in ("dispatch", "interval")])
        for starts in ways:
            goes = np.zeros(len(fates), bool)
            for start in starts:
                if start:
                    goes |= np.diff(start) > 0
            lost = [i for i in np.flatnonzero(~goes).tolist() if fates[i] is None]
            yield from (f"node:{s}.{i}: goes nowhere and has no fate" for i in lost)


def _intervals(data: Data) -> Iterator[str]:
    """Check rule 4: every interval is a leaf or is written by a dispatch; every dispatch writes one."""
    plan = data.get("plan")
    found = next((x for x in data["links"] if (x["a"], x["b"]) == ("dispatch", "interval")), None)
    if not plan or found is None:
        return
    first = Table(plan["intervals"], "intervals").column("first")
    out, back = found["out"]["start"], found["back"]["start"]
    yield from (f"interval:{i}: nobody writes it" for i, at in enumerate(first) if at >= 0 and back[i] == back[i + 1])
    yield from (f"dispatch:{k}: writes no interval" for k in range(len(out) - 1) if out[k] == out[k + 1])
    written = {i for i, at in enumerate(first) if at < 0}
    for k, (reads, writes) in enumerate(_accesses(plan)):
        yield from (f"dispatch:{k}: reads interval:{i}, which nothing has written" for i in reads if i not in written)
        written.update(writes)


def _accesses(plan: Data) -> Iterator[tuple[list[int], list[int]]]:
    table = Table(plan["dispatches"], "dispatches")
    return zip(table.column("reads"), table.column("writes"), strict=True)


def _kernels(data: Data) -> Iterator[str]:
    """Check rule 5: every WGSL line has nodes or is listed as boilerplate."""
    plan = data.get("plan")
    if not plan:
        return
    linked = {
        row for x in data["links"] if x["b"] == "wgsl" and x["a"].startswith("node:") for row in _filled(x["back"])
    }
    table = Table(plan["kernels"], "kernels")
    for k, (text, spans) in enumerate(zip(table.column("wgsl"), table.column("boilerplate"), strict=True)):
        plain = {line for first, last in spans or () for line in range(first, last + 1)}
        base = data["wgsl_base"][k] - 1
        for line in range(1, text.count("\n") + 2):
            if line not in plain and base + line not in linked:
                yield f"wgsl:{k}.{line}: has no node and is no boilerplate"


def _filled(rows: Data) -> Iterator[int]:
    start = rows["start"]
    return (i for i in range(len(start) - 1) if start[i] < start[i + 1])


def _tenants(data: Data) -> Iterator[str]:
    """Check the plan: tenants of one slot that share a byte do not live at the same time, unless one is an alias of the
    other."""
    plan = data.get("plan")
    if not plan:
        return
    intervals = Table(plan["intervals"], "intervals")
    first, last, alias = (intervals.column(name) for name in ("first_group", "last_group", "alias_of"))
    start, sizes = intervals.column("offset"), intervals.column("nbytes")
    for s, tenants in enumerate(Table(plan["slots"], "slots").column("tenants")):
        placed = [Tenant(i, first[i], last[i], start[i], start[i] + sizes[i]) for i in tenants]
        for before, i in clashes(placed):
            if i != alias[before] and before != alias[i]:
                yield f"interval:{i}: shares slot {s} with interval:{before} while both live"


def value_faults(data: Data) -> Iterator[str]:
    """Check the runs: a value is about a node or an interval of the document, its parts add up to its elements, its
    thumbnail has its size."""
    counts = Levels.of(data).counts
    for run in data["runs"]:
        for value in run.get("values") or ():
            kind, at = parse_entity(value["about"])
            level = f"node:{at[0]}" if kind == "node" else kind
            if at[-1] >= counts.get(level, 0):
                yield f"{value['about']}: a value of {run['key']} is about what is not there"
            if sum(value["histogram"]["counts"]) + value["nan"] + value["inf"] != value["n"]:
                yield f"{value['about']}: the histogram of a value does not add up to its {value['n']} elements"
            if not _sound(value["thumbnail"], len(value["histogram"]["counts"])):
                yield f"{value['about']}: the thumbnail or histogram of a value has another size than it says"


def _sound(small: Data, bins: int) -> bool:
    try:
        size = len(base64.b64decode(small["data"], validate=True))
    except (binascii.Error, ValueError):
        return False
    return bins == BINS and size == small["rows"] * small["cols"] and max(small["rows"], small["cols"]) <= SIDE


_RULES = (_links, _dispatches, _nodes, _intervals, _kernels, _tenants, faults, value_faults)
