"""Read from a document how an e-graph grew: the e-nodes after any iteration, by replaying the deltas of a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gdlab.view.document.columns import Json, Table

Data = Mapping[str, Any]


@dataclass(slots=True)
class ENode:
    """An e-node; its classes have the names of the iteration that is asked for. `label`: the rule that made it in
    iteration `since`, "" for those of the graph; `cost`, `more` and `chosen` are those of the end."""

    cls: str
    op: str
    children: list[str]
    attrs: Json
    label: str
    since: int
    cost: float | None
    more: float | None
    chosen: bool


def grown(one: Data, k: int | None = None) -> list[ENode]:
    """Return the e-nodes of a pass after iteration k (None: at the end), in the order in which they came."""
    nodes: list[ENode | None] = []  # None: it became another one
    told = one["deltas"] or []
    for i, delta in enumerate(told if k is None else told[: k + 1]):
        moved = {old: new for new, old in delta["merged"]}
        for node in nodes:
            if moved and node is not None:
                node.cls, node.children = moved.get(node.cls, node.cls), [moved.get(c, c) for c in node.children]
        for gone in delta["gone"]:
            nodes[gone] = None
        nodes += [
            ENode(row["class"], row["op"], list(row["children"]), row["attrs"] or {}, row["label"], i, row["cost"],
                  row["more"], bool(row["chosen"])) for row in Table(delta["added"], "enodes")
        ]  # fmt: skip
    return [node for node in nodes if node is not None]


def place(name: str) -> tuple[bool, int]:
    """Return the sort key of a class name: classes of the graph come first."""
    return name[0] != "%", int(name[1:])


def faults(data: Data) -> Iterator[str]:
    """Check that every class, rule and node that the deltas name exists, and that they hold all chosen nodes; yield the
    faults."""
    for p, one in enumerate(data["passes"]):
        if one.get("deltas") is not None:
            found = list(_names_of(one)) or list(_choice_of(data, one))
            yield from (f"step:{p}: {fault}" for fault in found)


def _names_of(one: Data) -> Iterator[str]:
    labels, size = {rule["label"] for rule in one["report"]["rules"]}, 0
    known = set(Table(one["classes"], "eclasses").column("name"))
    known |= {old for delta in one["deltas"] for _, old in delta["merged"]}
    for k, delta in enumerate(one["deltas"]):
        rows = list(Table(delta["added"], "enodes"))
        named = {c for row in rows for c in (row["class"], *row["children"])}.union(*delta["merged"])
        told = {row["label"] for row in rows if row["label"]} | {label for label, _ in delta["fired"]}
        yield from (f"iteration {k}: names class {name}, which there is not" for name in sorted(named - known))
        yield from (f"iteration {k}: names rule {label}, which there is not" for label in sorted(told - labels))
        yield from (f"iteration {k}: e-node {i} goes before it came" for i in delta["gone"] if i >= size)
        size += len(rows)


def _choice_of(data: Data, one: Data) -> Iterator[str]:
    classes = list(Table(one["classes"], "eclasses"))
    held = {c["name"] for c in classes}
    stages = [data["stages"][one[end]]["nodes"]["count"] for end in ("from", "to")]
    chosen = Counter(node.cls for node in grown(one) if node.chosen)
    for c in classes:
        if any(not 0 <= i < stages[0] for i in c["nodes"]) or not -1 <= c["made"] < stages[1]:
            yield f"class {c['name']}: names a node that there is not"
    yield from (f"class {name}: {n} e-nodes are chosen" for name, n in chosen.items() if n > 1 or name not in held)
