"""Compare two graphs: `diff(doc)` of two stages, `diff(a, b)` of two documents, node by node in classes.

`diff_doc(a, b)` is the document in which the page draws the difference of two documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdlab.base.words import flat
from gdlab.view.document.columns import Json, column
from gdlab.view.document.document import Document, document_id, reading

Class = Literal["same", "rewired", "changed", "moved", "removed", "made", "added"]
LETTERS: dict[Class, str] = {
    "same": " ", "rewired": "·", "changed": "~", "moved": ">", "removed": "−", "made": "<", "added": "+",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diff:
    """The class of every node of both graphs: `same`, `rewired` and `changed` nodes are matched and have the same class
    on both sides; `moved` (left) went into `made` ones (right); `removed` nodes are only on the left, `added` ones only
    on the right."""

    left: tuple[Class, ...]
    right: tuple[Class, ...]
    match: dict[int, int]  # left node → right node
    fields: dict[int, str]  # of a changed left node: what differs

    def summary(self) -> str:
        """The number of nodes of each class: `12 same, 3 rewired, 2 changed, 5 moved into 2, 1 removed, 0 added`."""
        n, m = Counter(self.left), Counter(self.right)
        return (
            f"{n['same']} same, {n['rewired']} rewired, {n['changed']} changed, {n['moved']} moved into {m['made']}, "
            f"{n['removed']} removed, {m['added']} added"
        )


@dataclass(frozen=True, slots=True)
class _Side:
    document: Document
    stage: int
    nodes: list[Json]
    types: Sequence[str]

    def own(self, i: int) -> tuple[Any, ...]:
        node = self.nodes[i]
        return node["op"], self.types[node["type"]], node["attrs"] or {}


def diff(
    left: Document, right: Document | None = None, left_stage: int | str = 0, right_stage: int | str | None = None
) -> Diff:
    """Return the classes of two stages: of one document (the default: as written and optimized), or of two documents.
    """
    wanted = right_stage if right_stage is not None else (1 if right is None else 0)
    a, b = _side(left, left_stage), _side(right or left, wanted)
    alone = right is None or right.id == left.id
    match = _by_key(a, b) if alone else _by_content(a, b)
    back = {y: x for x, y in match.items()}
    went, came = (_shared(a, b, match) if _siblings(a, b) else _moves(a, b)) if alone else (set(), set())
    fields = {x: _fields(a.own(x), b.own(y)) for x, y in match.items()}
    of_left: list[Class] = []
    for x, node in enumerate(a.nodes):
        if x not in match:
            of_left.append("moved" if x in went else "removed")
        elif fields[x]:
            of_left.append("changed")
        else:
            inputs = [match.get(i, -1) for i in node["inputs"]]
            of_left.append("same" if inputs == list(b.nodes[match[x]]["inputs"]) else "rewired")
    of_right: list[Class] = [
        of_left[back[y]] if y in back else ("made" if y in came else "added") for y in range(len(b.nodes))
    ]
    return Diff(tuple(of_left), tuple(of_right), match, {x: text for x, text in fields.items() if text})


def _side(document: Document, stage: int | str) -> _Side:
    index = document.data["stages"].index(document.stage(stage))
    return _Side(document, index, list(document.nodes(index)), document.types.column("text"))


def _fields(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    names = ("op", "type", "attributes")
    return "; ".join(f"{n}: {x} → {y}" for n, x, y in zip(names, one, other, strict=True) if x != y)


# matching ------------------------------------------------------------------------------------------------------------
def _by_key(a: _Side, b: _Side) -> dict[int, int]:
    """Match nodes by equal keys; between two results for one graph (a variant) also new nodes: by unique hash, then by
    origins, op, type and attributes, where an operand differs."""
    there = {node["key"]: y for y, node in enumerate(b.nodes)}
    match = {x: there[node["key"]] for x, node in enumerate(a.nodes) if node["key"] in there}
    if not _siblings(a, b):
        return match
    for rule in (_hash, _work):
        taken = set(match.values())
        mine = _unique(a, [x for x in range(len(a.nodes)) if x not in match], rule)
        theirs = _unique(b, [y for y in range(len(b.nodes)) if y not in taken], rule)
        match |= {x: theirs[key] for key, x in mine.items() if key in theirs}
    return dict(sorted(match.items()))


def _siblings(a: _Side, b: _Side) -> bool:
    """Return whether both stages were made from the same stage."""
    one, other = (int(side.document.stage(side.stage)["parent"]) for side in (a, b))
    return one == other >= 0


def _origins(side: _Side, i: int) -> list[int]:
    """Return the nodes of the stage before that a node came from."""
    parent = side.document.stage(side.stage)["parent"]
    return side.document.provenance.behind(f"node:{side.stage}", f"node:{parent}", i)


def _work(side: _Side, i: int) -> Hashable:
    op, type, attrs = side.own(i)
    return (tuple(_origins(side, i)), op, type, repr(sorted(attrs.items()))) if _origins(side, i) else None


def _shared(a: _Side, b: _Side, match: dict[int, int]) -> tuple[set[int], set[int]]:
    """Return the unmatched nodes of two results for one graph that came from the same nodes as unmatched ones of the
    other."""
    left = {x: set(_origins(a, x)) for x in range(len(a.nodes)) if x not in match}
    right = {y: set(_origins(b, y)) for y in set(range(len(b.nodes))) - set(match.values())}
    shared = set().union(*left.values()) & set().union(*right.values())
    return {x for x, of in left.items() if of & shared}, {y for y, of in right.items() if of & shared}


def _hash(side: _Side, i: int) -> Hashable:
    return side.nodes[i]["hash"]  # type: ignore[no-any-return]


def _by_content(a: _Side, b: _Side) -> dict[int, int]:
    """Match nodes by equal hash, else by equal name, op and type, else equal source line and op: each only where it is
    unique."""
    match: dict[int, int] = {}
    taken: set[int] = set()
    lines = {id(side): _lines(side) for side in (a, b)}
    rules: tuple[Callable[[_Side, int], Hashable | None], ...] = (
        _hash,
        lambda s, i: (s.nodes[i]["name"], *s.own(i)[:2]) if s.nodes[i]["name"] else None,
        lambda s, i: (lines[id(s)][i], s.nodes[i]["op"]) if i in lines[id(s)] else None,
    )
    for rule in rules:
        mine = _unique(a, [x for x in range(len(a.nodes)) if x not in match], rule)
        theirs = _unique(b, [y for y in range(len(b.nodes)) if y not in taken], rule)
        for key, x in mine.items():
            if key in theirs:
                match[x] = theirs[key]
                taken.add(theirs[key])
    return dict(sorted(match.items()))


def _unique(side: _Side, nodes: list[int], rule: Callable[[_Side, int], Hashable | None]) -> dict[Hashable, int]:
    keys = [(rule(side, i), i) for i in nodes]
    often = Counter(key for key, _ in keys)
    return {key: i for key, i in keys if key is not None and often[key] == 1}


def _lines(side: _Side) -> dict[int, tuple[str, int]]:
    """Return the source and line number of each node that has one."""
    found = {}
    rows, sources = side.document.lines, side.document.data["sources"]
    for i in range(len(side.nodes)):
        behind = side.document.provenance.behind(f"node:{side.stage}", "line", i)
        if behind:
            row = rows[behind[0]]
            found[i] = sources[row["source"]]["name"], row["line"]
    return found


def _moves(a: _Side, b: _Side) -> tuple[set[int], set[int]]:
    """Return the left nodes from which a right node came, and the right nodes that came from a left one."""
    lit = a.document.select

    def reach(side: _Side, other: _Side) -> set[int]:
        prefix = f"node:{other.stage}."
        return {
            i for i in range(len(side.nodes)) if any(e.startswith(prefix) for e in lit(f"node:{side.stage}.{i}"))
        }

    return reach(a, b), reach(b, a)


# twins ---------------------------------------------------------------------------------------------------------------
@reading
def diff_text(document: Document, right: Document | None = None) -> Iterator[str]:
    """Return every node with its letter, in topological order: the left graph, then those only in the right; and the
    counts."""
    if right is None and len(document.data["stages"]) < 2:
        yield "one graph alone: nothing to compare with"
        return
    shown = (document.data.get("view") or {}).get("diff") or (0, 1)
    left_stage, right_stage = shown if right is None else (0, 0)
    found = diff(document, right, left_stage, right_stage)
    a, b = _side(document, left_stage), _side(right or document, right_stage)
    for x, kind in enumerate(found.left):
        yield f"{LETTERS[kind]} node:{a.stage}.{x} {_told(a, x)}{_more(found, x)}".rstrip()
    for y, kind in enumerate(found.right):
        if kind in ("made", "added"):
            yield f"{LETTERS[kind]} node:{b.stage}.{y} {_told(b, y)}".rstrip()
    yield found.summary()


def _told(side: _Side, i: int) -> str:
    node = side.nodes[i]
    return flat(" ".join(filter(None, (node["op"], node["name"], ":", side.types[node["type"]]))))


def _more(found: Diff, x: int) -> str:
    return f"  ({flat(found.fields[x])})" if x in found.fields else ""


@reading
def diff_doc(left: Document, right: Document) -> Document:
    """Return a document of both graphs as written; matched nodes of the second have the key of the first."""
    found = diff(left, right)
    back = {y: x for x, y in found.match.items()}
    types: dict[str, int] = {}
    rows: list[Json] = []
    stages = []
    for number, document in enumerate((left, right)):
        stage = document.stage(0)
        keys = document.nodes(0).column("key")
        known = left.nodes(0).column("key")
        if number:
            keys = [known[back[i]] if i in back else f"b.{key}" for i, key in enumerate(keys)]
        of = [_row(types, rows, document.types[t]) for t in document.nodes(0).column("type")]
        nodes = {**stage["nodes"], "key": keys, "type": of, "fate": {}}
        title = document.data["title"] or f"graph {number + 1}"
        key = "other" if number else "written"
        stages.append({**stage, "key": key, "parent": -1, "title": title, "nodes": nodes})
    names = [stage["title"] for stage in stages]
    data: Json = {
        **{k: v for k, v in left.data.items() if k not in ("study", "rev")},
        "title": " → ".join(names),
        "summary": f"diff {names[0]} → {names[1]}: {found.summary()}",
        "stages": stages,
        "types": _types(rows),
        "sources": [], "lines": {"count": 0}, "passes": [], "plan": None, "links": [], "wgsl_base": [], "runs": [],
        "notes": [], "overlays": [],
        "view": {"show": ["diff"], "diff": [0, 1]},
    }  # fmt: skip
    data["id"] = document_id(data)
    return Document(data)


def _row(types: dict[str, int], rows: list[Json], type: Json) -> int:
    if type["text"] not in types:
        types[type["text"]] = len(rows)
        rows.append(type)
    return types[type["text"]]


def _types(rows: list[Json]) -> Json:
    names = ("text", "shape", "dtype", "nbytes")
    return {"count": len(rows), **{name: column([row[name] for row in rows], len(rows), None) for name in names}}
