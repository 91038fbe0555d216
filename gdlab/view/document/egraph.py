"""Describe the e-graph of a pass in a document: its growth, its nodes at the end, and those that were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gdlab.op import REGISTRY
from gdlab.rewrite import OptimizeReport
from gdlab.rewrite.engine.egglog_program import attr_names
from gdlab.rewrite.engine.history import Delta, NamedNode, renamed
from gdlab.rewrite.explain.classes import PricedNode
from gdlab.view.document.columns import Json, Table, ragged, ragged_words, sparse, words
from gdlab.view.document.document import Document
from gdlab.view.document.stage_table import SharedTables, attr_json


# writing -------------------------------------------------------------------------------------------------------------
def growth_json(report: OptimizeReport, shared: SharedTables) -> Json:
    """Return the fields `deltas` and `classes` of a pass; null where they were not recorded."""
    if not report.deltas:
        return {"deltas": None, "classes": None}
    ways, gone = _followed(report)
    return {
        "deltas": [_delta_json(*each) for each in zip(report.deltas, ways, gone, strict=True)],
        "classes": {
            "count": len(report.classes),
            "name": [c.name for c in report.classes],
            "type": [shared.types.setdefault(c.type, len(shared.types)) for c in report.classes],
            "nodes": ragged([c.nodes for c in report.classes]),
            "made": [c.made for c in report.classes],
        },
    }


Ways = list[PricedNode | None]


def _followed(report: OptimizeReport) -> tuple[list[Ways], list[list[int]]]:
    """Return per iteration the form at the end of each e-node that was added (None: it was merged into another, or is
    none), and the numbers of those that were merged."""
    at_end = {way.node: way for c in report.classes for way in c.ways}
    now: dict[NamedNode, tuple[int, int, int]] = {}
    ways: list[Ways] = []
    gone: list[list[int]] = []
    count = 0
    for k, delta in enumerate(report.deltas):
        moved = {old: new for new, old in delta.merged}
        before, now = now, {}
        gone.append([])
        for node, at in before.items():
            if now.setdefault(renamed(node, moved) if moved else node, at) != at:
                gone[k].append(at[2])
        for row, n in enumerate(delta.added):
            now[NamedNode(n.cls, n.op, n.children, n.attrs)] = k, row, count + row
        count += len(delta.added)
        ways.append([None] * len(delta.added))
    for node, (k, row, _) in now.items():
        ways[k][row] = at_end.get(node)
    return ways, gone


def _delta_json(delta: Delta, ways: Ways, gone: Sequence[int]) -> Json:
    added = delta.added
    attrs = [{k: attr_json(v) for k, v in zip(attr_names(n.op), n.attrs, strict=True)} or None for n in added]
    return {
        "added": {
            "count": len(added),
            "class": words([n.cls for n in added]),
            "op": words([n.op for n in added]),
            "family": words([REGISTRY[n.op].family for n in added]),
            "children": ragged_words([n.children for n in added]),
            "attrs": sparse(attrs),
            "label": words([n.label or (w.given if w else "") for n, w in zip(added, ways, strict=True)]),
            "cost": sparse([w and w.cost for w in ways]),
            "more": sparse([w and w.more for w in ways]),
            "chosen": [int(w is not None and w.chosen) for w in ways],
        },
        "merged": [list(pair) for pair in delta.merged],
        "gone": list(gone),
        "fired": [list(pair) for pair in delta.fired],
    }


# reading -------------------------------------------------------------------------------------------------------------
def class_names(document: Document, one: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return for every class of a pass its entity (its first node with a name, else its first, else the class it
    became, else "") and the name that people read: that of one of its nodes, else that of the class."""
    names, found = document.nodes(one["from"]).column("name"), {}
    for c in Table(one["classes"], "eclasses"):
        became = f"node:{one['to']}.{c['made']}" if c["made"] >= 0 else ""
        first = next((i for i in c["nodes"] if names[i]), next(iter(c["nodes"]), -1))
        called = names[first] if first >= 0 and names[first] else c["name"]
        found[c["name"]] = f"node:{one['from']}.{first}" if first >= 0 else became, called
    return found
