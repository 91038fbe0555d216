"""The growth of an e-graph as text: the nodes that every iteration added by each rule, the classes it merged, and the
nodes that were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gdlab.base.words import grid, plural, sig, whole
from gdlab.op.cost import priced
from gdlab.rewrite.engine.history import RECORDED
from gdlab.view.document.columns import Json, Table
from gdlab.view.document.document import Document
from gdlab.view.document.egraph import class_names
from gdlab.view.document.growth import ENode, grown, place

Lines = Iterator[str]
Names = Mapping[str, tuple[str, str]]  # class -> entity, what people call it


def egraph(document: Document) -> Lines:
    """Yield the iterations of each optimize pass, and its classes at the end."""
    for p, one in enumerate(document.data["passes"]):
        if one["role"] != "optimize":
            continue
        if one.get("deltas") is None:
            nodes = len(document.nodes(one["from"]))
            yield f"pass {p}: {one['key']}: {not_recorded(nodes)}"
            continue
        yield f"pass {p}: {one['key']}: {summary(one)}"
        names = _names(document, one)
        for k, delta in enumerate(one["deltas"]):
            yield from _iteration(one, k, delta, names)
        yield from _choice(document, one, names)


def not_recorded(nodes: int) -> str:
    """Say why a pass has no deltas, and how to record them."""
    return (
        f"how its e-graph grew was not recorded ({plural(nodes, 'node')}; up to {RECORDED} it is by itself): "
        "%%graph NAME --egraph records it, and so does Study(graph, egraph=True)"
    )


def summary(one: Mapping[str, Any]) -> str:
    """Sum a pass up in one line: iterations, classes, e-nodes, leaves."""
    nodes, count = grown(one), one["classes"]["count"]
    held = len({node.cls for node in nodes})
    leaves = count - held
    return (
        f"e-graph: {plural(len(one['deltas']) - 1, 'iteration')}, {plural(held, 'class')}, "
        f"{plural(len(nodes), 'e-node')} and {'1 leaf' if leaves == 1 else f'{whole(leaves)} leaves'}"
    )


def _names(document: Document, one: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the names of all classes as at the end; a class that was merged keeps the name of its own node."""
    names, count = class_names(document, one), len(document.nodes(one["from"]))
    for delta in reversed(one["deltas"]):
        for new, old in delta["merged"]:
            own = old[0] == "%" and int(old[1:]) < count
            names[old] = f"node:{one['from']}.{old[1:]}" if own else names[new][0], old
    return names


def _iteration(one: Mapping[str, Any], k: int, delta: Json, names: Names) -> Lines:
    came = Table(delta["added"], "enodes")
    fired = ", ".join(f"{label} ×{count}" for label, count in delta["fired"])
    what = ", the graph as it came in" if k == 0 else f", {fired}" if fired else ""
    yield f"iteration {k}{what}: {plural(len(came), 'new e-node') if len(came) or fired else 'nothing new'}"
    rows = []
    for row in came:
        node = ENode(row["class"], row["op"], row["children"], row["attrs"] or {}, row["label"], k, None, None, False)
        entity, called = names[node.cls]
        rows.append((entity, called, call(node, names), node.label))
    if rows:
        yield from grid(("entity", "class", "e-node", "rule"), rows)
    for new, old in delta["merged"]:
        yield f"  {names[old][1]} and {names[new][1]} are one class now"
    if delta["gone"]:
        yield f"  {plural(len(delta['gone']), 'e-node')} became another one"


def call(node: ENode, names: Names) -> str:
    """Return an e-node as a call: with the names that people read for its classes."""
    attrs = [f"{name}={_attr(value)}" for name, value in sorted(node.attrs.items())]
    return f"{node.op}({', '.join([*(names[c][1] for c in node.children), *attrs])})"


def _attr(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("text", value))
    return f'"{value}"' if isinstance(value, str) else str(tuple(value) if isinstance(value, list) else value)


def _choice(document: Document, one: Mapping[str, Any], names: Names) -> Lines:
    """Return each class that is not a leaf with its e-nodes; a star marks the chosen one."""
    report, nodes = one["report"], grown(one)
    why = report["stop_reason"] + (f" ({report['stop_detail']})" if report["stop_detail"] else "")
    chosen = Counter(node.cls for node in nodes if node.chosen).total()
    yield (
        f"the choice: {why}; {plural(chosen, 'e-node')} of {whole(len(nodes))}, cost {sig(report['cost_before'])} → "
        f"{sig(report['cost_after'])} µs, {priced(report['cost_model'])}"
    )
    ways: dict[str, list[ENode]] = {}
    for node in nodes:
        ways.setdefault(node.cls, []).append(node)
    types = {c["name"]: document.types[c["type"]]["text"] for c in Table(one["classes"], "eclasses")}
    rows = []
    for name in sorted(ways, key=place):
        for node in sorted(ways[name], key=lambda n: (not n.chosen, n.more is None, n.more or 0.0)):
            more = "" if node.chosen or node.more is None else f"+{sig(node.more)}"
            cost = "" if node.cost is None else sig(node.cost)
            rows.append((*names[name], types[name], "*" * node.chosen, call(node, names), cost, more, node.label))
    head = ("entity", "class", "type", "", "e-node", "its op, µs", "the whole, µs", "rule")
    yield from grid(head, rows, right={5, 6})
