"""Search a document: `search(doc, "op:matmul shape:[32,*]")` gives the nodes that every term of the query holds for.

Terms: words of a name, op or type; `op:` `name:` `shape:` `dtype:` `attr:` `flag:` `lane:` `kernel:`; `/regex/`. The
page searches in the same language (labextension/src/doc/query.ts); one corpus holds both to the same answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document, reading

_TERMS = re.compile(r"/(?:[^/\\]|\\.)+/|\S+")
_FIELD = re.compile(r"(\w+):(.+)", re.ASCII | re.DOTALL)
_COMPARED = re.compile(r"(\w+)(<=|>=|<|>|=)(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The subject of a term: a node, its type, the numbers and labels of the kernels that run it."""

    node: Json
    type: Json
    kernels: Sequence[str]


Test = Callable[[Candidate], bool]


@reading
def search(document: Document, query: str, stages: Iterable[int] | None = None) -> list[str]:
    """Return the entities of the nodes that a query finds, stage by stage; raise `ArgumentError` for a bad pattern."""
    tests = parse(query)
    types = list(document.types)
    found = []
    for s in range(len(document.data["stages"])) if stages is None else stages:
        kernels = _kernels(document, s)
        for i, node in enumerate(document.nodes(s)):
            asked = Candidate(node, types[node["type"]], kernels(i))
            if all(test(asked) for test in tests):
                found.append(f"node:{s}.{i}")
    return found


def parse(query: str) -> list[Test]:
    """Return the tests of a query, one per term; all must hold."""
    return [_term(text) for text in _TERMS.findall(query)]


def _term(text: str) -> Test:
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        return _pattern(text[1:-1])
    match = _FIELD.fullmatch(text)
    if match and match[1] in _FIELDS:
        return _FIELDS[match[1]](match[2])
    return lambda a: _has(a.node["op"], text) or _has(a.node["name"], text) or _has(a.type["text"], text)


def _pattern(text: str) -> Test:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ArgumentError("search", "pattern", repr(text), f"a regular expression ({error})") from None
    return lambda a: bool(pattern.search(a.node["op"]) or pattern.search(a.node["name"]))


def _has(text: str, part: str) -> bool:
    return part.lower() in text.lower()


def _shape(wanted: str) -> Test:
    dims = [dim.strip() for dim in wanted.removeprefix("[").removesuffix("]").split(",")]

    def test(a: Candidate) -> bool:
        given = a.type["shape"]
        return len(given) == len(dims) and all(d in ("*", str(n)) for d, n in zip(dims, given, strict=True))

    return test


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: a == b,
}


def _attribute(wanted: str) -> Test:
    match = _COMPARED.fullmatch(wanted)
    name, sign, value = (match[1], match[2], match[3]) if match else (wanted, "", "")

    def test(a: Candidate) -> bool:
        attrs = a.node["attrs"] or {}
        if name not in attrs or not sign:
            return name in attrs
        given = attrs[name]
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return _COMPARE[sign](given, _number(value))
        return sign == "=" and _text(given) == value

    return test


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_FIELDS: dict[str, Callable[[str], Test]] = {
    "op": lambda wanted: lambda a: a.node["op"] == wanted,
    "name": lambda wanted: lambda a: _has(a.node["name"], wanted),
    "shape": _shape,
    "dtype": lambda wanted: lambda a: a.type["dtype"] == wanted,
    "attr": _attribute,
    "flag": lambda wanted: lambda a: wanted in a.node["flags"],
    "lane": lambda wanted: lambda a: a.node["lane"] == wanted,
    "kernel": lambda wanted: lambda a: any(k == wanted or _has(k, wanted) for k in a.kernels),
}


def _kernels(document: Document, stage: int) -> Callable[[int], list[str]]:
    links = [x for x in document.data["links"] if x["a"] == f"node:{stage}" and x["b"] == "dispatch"]
    if not links:
        return lambda node: []
    start, ids = links[0]["out"]["start"], links[0]["out"]["ids"]
    dispatches = document.plan("dispatches")
    kernel, label = dispatches.column("kernel"), dispatches.column("label")
    return lambda node: [word for k in ids[start[node] : start[node + 1]] for word in (str(kernel[k]), label[k])]
