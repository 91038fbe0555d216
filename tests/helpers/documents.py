"""Help tests with documents: `checked(doc)` holds each to its rules, `brute(doc, entity)` selects the slow way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import fastjsonschema
import networks
import pytest

from gdlab.study.study import Study
from gdlab.view.document.columns import Table
from gdlab.view.document.make import Document
from gdlab.view.document.shortened import restored

STAGES = ["written", "optimized", "derivative", "final", "derivative:written"]


def _schema() -> Any:
    return json.loads((files("gdlab.view.document") / "schema.json").read_text(encoding="utf-8"))


@cache
def validator() -> Any:
    """The JSON Schema of documents, itself checked."""
    import jsonschema  # not above: every run of pytest would take 3 s of processor time for it

    schema = _schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@cache
def compiled_schema() -> Callable[[Any], Any]:
    """The same schema as one Python function, which raises: 0.02 s for a document that `validator` takes 0.7 s for."""
    return fastjsonschema.compile(_draft_7(_schema()))  # type: ignore[no-any-return]


def _draft_7(schema: Any) -> Any:
    """The schema in the words of the draft that `fastjsonschema` knows, which has another for `prefixItems`."""
    if isinstance(schema, list):
        return [_draft_7(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    old = {key: _draft_7(value) for key, value in schema.items() if key not in ("$id", "$schema")}
    if "prefixItems" in old:
        old |= {"additionalItems": old.pop("items", True), "items": old.pop("prefixItems")}
    return old


def holds_form(data: Any) -> bool:
    """Return whether the document has the form of its schema."""
    try:
        compiled_schema()(data)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


def faults_of_form(data: Any) -> list[tuple[str, str]]:
    """Return where the document breaks its schema, and how."""
    if holds_form(data):
        return []
    faults = [("/".join(map(str, e.path)), e.message[:200]) for e in validator().iter_errors(data)]
    return faults or [("", "only the compiled schema refuses it")]


def plan_holds(document: Document) -> None:
    """Assert of a plan all that its reader may rely on (view.md 2.3), without the code of `check`."""
    intervals, dispatches = list(document.plan("intervals")), list(document.plan("dispatches"))
    written = {i for i, interval in enumerate(intervals) if interval["first"] < 0}
    for k, dispatch in enumerate(dispatches):
        assert dispatch["writes"] and set(dispatch["reads"]) <= written, f"dispatch:{k}"
        written |= set(dispatch["writes"])
    for slot, one in enumerate(document.plan("slots")):
        tenants = [(i, intervals[i]) for i in one["tenants"]]
        for n, (i, a) in enumerate(tenants):
            assert a["slot"] == slot and a["offset"] >= 0 and a["offset"] + a["nbytes"] <= one["nbytes"]
            for j, b in tenants[n + 1 :]:
                apart = a["last_group"] < b["first_group"] or b["last_group"] < a["first_group"]
                apart |= a["offset"] + a["nbytes"] <= b["offset"] or b["offset"] + b["nbytes"] <= a["offset"]
                assert apart or a["alias_of"] == j or b["alias_of"] == i, f"interval:{i} and interval:{j}"
    edges = [(group["start"], group["stop"]) for group in document.plan("groups")]
    assert [k for start, stop in edges for k in range(start, stop)] == list(range(len(dispatches)))


def checked(document: Document, schema: bool = True) -> Document:
    """The document, once it has kept every rule of documents; with `schema` also the form of every field."""
    assert document.check() == ()
    data = restored(json.loads(document.json()))
    assert [note for note in data["notes"] if "breaks a rule" in note["text"]] == []
    if schema:
        assert faults_of_form(data) == []
    return document


def keeps_its_size(document: Document) -> None:
    """Hold a large document to 130 bytes for each node of all its stages, 32 in gzip."""
    written = document.json()
    count = sum(stage["nodes"]["count"] for stage in document.data["stages"])
    assert count > 15_000
    assert len(written) <= 130 * count and len(gzip.compress(written)) <= 32 * count


def doc_of(study: Study, schema: bool = True) -> Document:
    """The checked document of a study."""
    return checked(study.doc, schema)


def pairs(rows: dict[str, list[int]]) -> Iterator[tuple[int, int]]:
    """(row, id) of a compressed link."""
    for i, (start, stop) in enumerate(zip(rows["start"], rows["start"][1:], strict=False)):
        for k in range(start, stop):
            yield i, rows["ids"][k]


@lru_cache(maxsize=2)
def neighbours(document: Document) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the links of each entity, down and up."""
    data = document.data
    base = data["wgsl_base"]
    texts = [k["wgsl"].split("\n") for k in Table((data["plan"] or {}).get("kernels"), "kernels")]
    names = {base[k] + n: f"wgsl:{k}.{n + 1}" for k, lines in enumerate(texts) for n in range(len(lines))}

    def name(level: str, row: int) -> str:
        return names[row] if level == "wgsl" else f"{level}.{row}" if ":" in level else f"{level}:{row}"

    down: dict[str, set[str]] = {}
    up: dict[str, set[str]] = {}
    for each in data["links"]:
        for a, b in pairs(each["out"]):
            x, y = name(each["a"], a), name(each["b"], b)
            down.setdefault(x, set()).add(y)
            up.setdefault(y, set()).add(x)
    return down, up


def brute(document: Document, entity: str) -> set[str]:
    """Select by the words of the contract, without any index."""
    data = document.data
    down, up = neighbours(document)

    def closure(start: str, ways: dict[str, set[str]], whole_kernels: bool) -> set[str]:
        found, waiting = {start}, [start]
        while waiting:
            one = waiting.pop()
            for other in ways.get(one, ()):
                own_text = not (one.startswith("kernel:") and other.startswith("wgsl:"))
                if other not in found and (own_text or whole_kernels):
                    found.add(other)
                    waiting.append(other)
        return found

    def lit(one: str) -> set[str]:
        found = closure(one, down, one.startswith("dispatch:")) | closure(one, up, False)
        if not one.startswith("interval:"):
            return found
        reads = enumerate(document.plan("dispatches").column("reads"))
        return found | {f"dispatch:{k}" for k, row in reads if int(one[9:]) in row}

    kind, _, rest = entity.partition(":")
    at = [int(n) for n in rest.split(".")]
    if kind == "edge":
        stage, reader, port = at
        source = document.nodes(stage)[reader]["inputs"][port]
        others = [f"node:{stage}.{reader}", f"node:{stage}.{source}"]
    elif kind == "rule":
        rule = data["passes"][at[0]]["report"]["rules"][at[1]]["id"]
        others = [f"step:{at[0]}.{i}" for i, s in enumerate(document.steps(at[0])) if s["rule"] == rule]
    elif kind == "kernel":
        others = [f"dispatch:{d}" for d, k in enumerate(document.plan("dispatches").column("kernel")) if k == at[0]]
    elif kind == "wgsl":
        others = [x for x in up.get(entity, ()) if x.startswith("node:")]
    else:
        return lit(entity)
    return {entity}.union(*(lit(other) for other in others))


def entities(document: Document) -> list[str]:
    """Every entity of a document."""
    data = document.data
    found = [f"line:{i}" for i in range(len(document.lines))]
    for s in range(len(data["stages"])):
        for i, node in enumerate(document.nodes(s)):
            found.append(f"node:{s}.{i}")
            found += [f"edge:{s}.{i}.{port}" for port in range(len(node["inputs"]))]
    for p, one in enumerate(data["passes"]):
        found += [f"step:{p}.{i}" for i in range(one["steps"]["count"])]
        found += [f"rule:{p}.{i}" for i in range(len(one["report"].get("rules", ())))]
    for name in ("kernel", "dispatch", "interval"):
        table = {"kernel": "kernels", "dispatch": "dispatches", "interval": "intervals"}[name]
        found += [f"{name}:{i}" for i in range(len(document.plan(table)))]
    for k, kernel in enumerate(document.plan("kernels")):
        found += [f"wgsl:{k}.{n}" for n in range(1, kernel["wgsl"].count("\n") + 2)]
    return found


# fixtures of every test (tests/conftest.py)
@pytest.fixture(scope="module")
def trained() -> Iterator[Study]:
    """The tour's network after three steps of Adam."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.run(3, feed="random:0", adam=1e-3, init=0)
    yield study
    study.close()


@pytest.fixture(scope="module")
def mlp(trained: Study) -> Document:
    return doc_of(trained)
