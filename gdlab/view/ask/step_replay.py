"""Replay the rewrites of a document: `after(doc, 0, 5)` is the graph after five steps of pass 0; the same as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdlab.base.errors import ArgumentError
from gdlab.base.words import grid, plural, sig
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document, reading
from gdlab.view.document.passes import rewrite_count


@dataclass(frozen=True, slots=True)
class GraphState:
    """A graph between two steps: node records by key, in order (inputs by key), and the keys of its outputs."""

    nodes: dict[str, Json]
    outputs: tuple[str, ...]


def after(document: Document, number: int, count: int) -> GraphState:
    """Return the graph of optimize pass `number` after `count` steps, from the document alone; `ArgumentError` outside
    it."""
    steps = document.steps(number)
    if not 0 <= count <= len(steps):
        raise ArgumentError("explain", "step", str(count), f"0 … {len(steps)}: pass {number} has {len(steps)} steps")
    live, outputs = _start(document, document.data["passes"][number]["from"])
    order = list(live)
    for step in list(steps)[:count]:
        live |= {n["key"]: dict(n) for n in step["added"] or ()}
        for key, port, new in step["rewired"] or ():
            if port < 0:
                outputs[-1 - port] = new
            else:
                inputs = live[key]["inputs"]
                live[key] = {**live[key], "inputs": [*inputs[:port], new, *inputs[port + 1 :]]}
        for key in step["removed"] or ():
            del live[key]
        order = step["order"] or _ordered(live)
    return GraphState({key: live[key] for key in order}, tuple(outputs))


def _start(document: Document, stage: int) -> tuple[dict[str, Json], list[str]]:
    nodes, types = document.nodes(stage), document.types.column("text")
    keys = nodes.column("key")
    found = {
        n["key"]: {**n, "inputs": [keys[i] for i in n["inputs"]], "type": types[n["type"]], "attrs": n["attrs"] or {}}
        for n in nodes
    }
    return found, [keys[i] for i in document.outputs(stage).column("node")]


def _ordered(live: dict[str, Json]) -> list[str]:
    """Order the nodes of a state: inputs before their readers, otherwise as they came."""
    done: dict[str, None] = {}
    waiting = list(reversed(live))
    while waiting:
        key = waiting.pop()
        missing = [i for i in live[key]["inputs"] if i not in done]
        if key in done:
            continue
        if missing:
            waiting += [key, *reversed(missing)]
        else:
            done[key] = None
    return list(done)


@reading
def replay_text(document: Document, count: int, number: int = 0) -> Iterator[str]:
    """Return the graph after `count` steps, the last step in words, and its nodes marked: + added, − removed by it."""
    passes = document.data["passes"]
    _check_pass(document, number)
    moment, steps = after(document, number, count), list(document.steps(number))
    rewrites = rewrite_count(passes[number])
    done = f"{min(count, rewrites)} of {plural(rewrites, 'rewrite')}" + (", swept" if count > rewrites else "")
    yield f"pass {number}, {passes[number]['key']}: after {done}"
    gone: list[Json] = []
    new: set[str] = set()
    if count:
        step = steps[count - 1]
        cost = f"cost {sig(step['cost_before'])} → {sig(step['cost_after'])} µs"
        yield f"  step:{number}.{count - 1}  {step['label']} at {', '.join(step['at']) or '–'}; {cost}"
        before = after(document, number, count - 1).nodes
        gone = [before[key] for key in step["removed"] or ()]
        new = {n["key"] for n in step["added"] or ()}
    rows = [("+" if key in new else "", *_row(n)) for key, n in moment.nodes.items()]
    rows += [("−", *_row(n)) for n in gone]
    yield from grid(("", "key", "op", "name", "inputs", "type"), rows)
    yield f"  outputs: {', '.join(moment.outputs)}"


@reading
def replay_json(document: Document, count: int, number: int = 0) -> Json:
    """Return `replay_text` as JSON: the pass, its first `count` steps, and the records of the graph after them, by
    key."""
    _check_pass(document, number)
    moment = after(document, number, count)
    return {
        "format": document.data["format"], "title": document.data["title"], "pass": number,
        "key": document.data["passes"][number]["key"], "step": count,
        "steps": [dict(step) for step in list(document.steps(number))[:count]],
        "nodes": list(moment.nodes.values()), "outputs": list(moment.outputs),
    }  # fmt: skip


def _check_pass(document: Document, number: int) -> None:
    passes = document.data["passes"]
    if not 0 <= number < len(passes) or passes[number]["role"] != "optimize":
        known = [str(p) for p, one in enumerate(passes) if one["role"] == "optimize"]
        raise ArgumentError("explain", "pass", str(number), f"an optimize pass: one of {', '.join(known) or 'none'}")


def _row(node: Json) -> tuple[str, ...]:
    return node["key"], node["op"], node["name"], ", ".join(node["inputs"]), node["type"]
