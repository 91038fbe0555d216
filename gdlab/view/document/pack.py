"""Write large documents in less space: `packed(data)` has shorter forms, `unpacked(data)` has plain links again.

A column of repeated numbers becomes `{words, index}`; a link leaves `back` out, which is the transpose of `out`, and
writes rows of `out` that repeat once; lists are shortened. Documents of a few hundred nodes stay as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from gdlab.view.document.columns import Json, column
from gdlab.view.document.links import Levels
from gdlab.view.document.shortened import restored, shortened
from gdlab.view.document.tables import TABLES

LARGE = 500  # rows of a table from which on it is packed
MANY = 1500  # pairs of a link
SHORTENED = 2000  # nodes of all stages from which on long lists are shortened
_PLAN = {
    "kernels": "kernels", "dispatches": "dispatches", "groups": "barriers", "intervals": "intervals", "slots": "slots",
}  # fmt: skip


def packed(data: Json) -> Json:
    """Return the document with every large table, link and list in its shortest form."""
    plan = data.get("plan")
    tables: Json = {
        **data,
        "lines": _table(data["lines"], "lines"),
        "stages": [{**stage, "nodes": _table(stage["nodes"], "nodes")} for stage in data["stages"]],
        "plan": plan and {**plan, **{name: _table(plan[name], kind) for name, kind in _PLAN.items()}},
        "passes": [{**one, "report": _report(one), "steps": _steps(one, data)} for one in data["passes"]],
        "links": [_link(each) for each in data["links"]],
    }
    nodes = sum(stage["nodes"]["count"] for stage in data["stages"])
    return shortened(tables) if nodes >= SHORTENED else tables


def unpacked(data: Json) -> Json:
    """Return the document with `out` and `back` of every link as plain compressed rows, and every sentence written out.
    """
    data = restored(data)
    passes = [{**one, "report": _told(one), "steps": _ordered(one, data)} for one in data["passes"]]
    if all("back" in each for each in data["links"]):
        return {**data, "passes": passes}
    counts = Levels.of(data).counts
    return {**data, "passes": passes, "links": [_plain(each, counts) for each in data["links"]]}


# columns -------------------------------------------------------------------------------------------------------------
def _table(table: Json, kind: str) -> Json:
    if table["count"] < LARGE:
        return table
    absent = TABLES[kind]
    return {
        name: _column(each, table["count"], absent[name]) if name in absent else each for name, each in table.items()
    }


def _column(raw: Any, count: int, absent: Any) -> Any:
    """Return a column in the shortest of its forms; ragged columns, and those with a table of words, stay as they are.
    """
    if not raw or (isinstance(raw, dict) and ("start" in raw or "words" in raw)):
        return raw
    if isinstance(raw, list) and isinstance(raw[0], str) and 10 * len(set(raw)) > 9 * count:
        return raw
    values = column(raw, count, absent)
    keys, texts = _texts(values)
    known = {text: i for i, text in enumerate(dict.fromkeys(texts.values()))}
    shared = sum(map(len, known)) + len(known) + count * (len(str(len(known))) + 1)
    plain = sum(len(texts[key]) * rows for key, rows in Counter(keys).items()) + count
    sparse = sum(len(k) + len(texts[keys[int(k)]]) + 4 for k in raw) if isinstance(raw, dict) else plain
    if 10 * shared < 9 * min(plain, sparse):
        place = {key: known[text] for key, text in texts.items()}
        index = list(map(place.__getitem__, keys))
        first = dict(zip(reversed(index), reversed(values), strict=True))
        return {"words": [first[i] for i in range(len(known))], "index": index}
    return values if plain < sparse else raw


def _texts(values: Sequence[Any]) -> tuple[Sequence[Any], dict[Any, str]]:
    """Return a key of each value, and the JSON of each key: each different value is written once."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {int, str}:  # of other types equal values may be written differently
        write = str if int in kinds else encode_basestring_ascii
        return values, {value: write(value) for value in dict.fromkeys(values)}
    by_id = {id(value): value for value in values}
    spelled = {key: repr(value) for key, value in by_id.items()}  # equal only where the JSON is
    different = dict(zip(spelled.values(), by_id.values(), strict=True))
    texts = {key: "null" if each is None else _ENCODER.encode(each) for key, each in different.items()}
    return [spelled[id(value)] for value in values], texts


_ENCODER = json.JSONEncoder(sort_keys=True)


# passes --------------------------------------------------------------------------------------------------------------
def _report(one: Json) -> Json:
    """Leave out fields that follow from the rest of a report, where many rules were missed."""
    report = one["report"]
    missed = report.get("missed") or []
    if len(missed) < LARGE:
        return report  # type: ignore[no-any-return]
    kept = []
    for m in missed:
        follows = _follows(one, m)
        kept.append({k: v for k, v in m.items() if k not in follows or v != follows[k]})
    return {**report, "missed": kept}


def _told(one: Json) -> Json:
    report = one["report"]
    missed = report.get("missed") or []
    if len(missed) < LARGE:
        return report  # type: ignore[no-any-return]
    return {**report, "missed": [{**_follows(one, m), **m} for m in missed]}


def _follows(one: Json, missed: Json) -> Json:
    """Return the fields of a near miss that follow from its label, node and detail, such as its sentence."""
    label, node, detail = (missed[name] for name in ("label", "node", "detail"))
    if one["role"] == "compile":
        return {"text": f"{label}: {detail}", "about": f"node:{one['from']}.{node}"}
    return {"text": f"{label} was not used at %{node}: {detail}.", "about": f"node:{one['to']}.{node}", "guard": None}


def _steps(one: Json, data: Json) -> Json:
    """Leave out the order of a large graph after the sweep, which is that of the stage it leads to."""
    steps = one["steps"]
    last = str(steps["count"] - 1)
    order = steps.get("order") or {}
    if len(order.get(last, ())) < LARGE or order[last] != data["stages"][one["to"]]["nodes"]["key"]:
        return steps  # type: ignore[no-any-return]
    return {**steps, "order": {**order, last: "stage"}}


def _ordered(one: Json, data: Json) -> Json:
    steps = one["steps"]
    order = steps.get("order") or {}
    if "stage" not in order.values():
        return steps  # type: ignore[no-any-return]
    keys = data["stages"][one["to"]]["nodes"]["key"]
    return {**steps, "order": {k: keys if v == "stage" else v for k, v in order.items()}}


# links ---------------------------------------------------------------------------------------------------------------
def _link(link: Json) -> Json:
    start, ids = link["out"]["start"], link["out"]["ids"]
    if len(ids) < MANY:
        return link
    if len(ids) < 2 * len(start):  # the number of a row would be as long as the row
        return {"a": link["a"], "b": link["b"], "out": link["out"]}
    rows = [tuple(ids[a:b]) for a, b in zip(start, start[1:], strict=False)]
    known = {row: i for i, row in enumerate(dict.fromkeys(rows))}
    out: Json = link["out"]
    if 3 * sum(map(len, known)) < len(ids):
        out = {**_rows(known), "index": [known[row] for row in rows]}
    return {"a": link["a"], "b": link["b"], "out": out}


def _rows(rows: Iterable[Sequence[int]]) -> Json:
    start: list[int] = [0]
    ids: list[int] = []
    for row in rows:
        ids += row
        start.append(len(ids))
    return {"start": start, "ids": ids}


def _plain(link: Json, counts: Mapping[str, int]) -> Json:
    if "back" in link:
        return link
    start, ids = link["out"]["start"], link["out"]["ids"]
    index = link["out"].get("index", range(len(start) - 1))
    rows = [ids[start[i] : start[i + 1]] for i in index]
    back: list[list[int]] = [[] for _ in range(counts[link["b"]])]
    for a, row in enumerate(rows):
        for b in row:
            back[b].append(a)
    return {"a": link["a"], "b": link["b"], "out": _rows(rows), "back": _rows(back)}

