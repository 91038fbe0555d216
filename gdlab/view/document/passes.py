"""The passes of a document: their replays in node keys, and the origins of all nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.autodiff import AutodiffReport
from gdlab.graph import Graph, Node
from gdlab.graph.replay import SWEEP
from gdlab.op import REGISTRY
from gdlab.rewrite import OptimizeReport
from gdlab.view.document.columns import Json, ragged, ragged_words, sparse, words
from gdlab.view.document.sources import function_source
from gdlab.view.document.stage_table import Fates, attr_json, family

Pairs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a pass: keys of the result; index pairs (node before, step), (step, node after), (before, after)."""

    keys: list[str]
    consumed: Pairs
    produced: Pairs
    images: Pairs


# optimize ------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Ids:
    """Stable ids of a replay: the key of each, the original nodes behind it, and the steps that led to it."""

    key: dict[int, str]
    behind: dict[int, set[int]]
    through: dict[int, set[int]]


def optimize_trace(number: int, keys: Sequence[str], report: OptimizeReport, after: Graph) -> Trace:
    """Follow the steps of pass `number` over a graph with these keys."""
    ids = _Ids(dict(enumerate(keys)), {i: {i} for i in range(len(keys))}, {})
    consumed: Pairs = []
    order: Sequence[int] = range(len(after))
    for s, step in enumerate(report.steps):
        for k, node in enumerate(step.added):
            ids.key[node.id] = f"{number}.{s}.{k}"
        if step.label == SWEEP:
            order = step.order
            continue
        taken = dict.fromkeys((*step.at, *step.removed))
        behind = set().union(*(ids.behind.get(i, ()) for i in taken))
        through = set().union(*(ids.through.get(i, ()) for i in taken), (s,))
        consumed += [(i, s) for i in sorted(behind)]
        for made in [n.id for n in step.added] or list(dict.fromkeys(new for _, _, new in step.rewired)):
            ids.behind[made] = ids.behind.get(made, set()) | behind
            ids.through[made] = ids.through.get(made, set()) | through
    produced = [(s, i) for i, id in enumerate(order) for s in sorted(ids.through.get(id, ()))]
    images = [(old, new) for new, olds in report.origin.items() for old in olds]
    return Trace([ids.key[id] for id in order], consumed, produced, images)


def rewrite_count(one: Json) -> int:
    """Return the number of rewrites of a pass of a document: its steps without the sweep."""
    return sum(count for _, count in one["report"].get("rules_fired", ()))


def rewrites_to_plan(data: Json) -> int:
    """Return the number of rewrites on the way to the compiled stage of a document; a variant's are its own."""
    return sum(rewrite_count(one) for one in data["passes"] if not one["key"].startswith("optimize:variant:"))


def optimize_fates(before: Graph, trace: Trace) -> Fates:
    """Return the reason for each node without an image after the pass: nothing needed it (merged and fused nodes have
    an image)."""
    with_image = {old for old, _ in trace.images}
    dead: Json = {"kind": "dead", "into": None, "reason": "no output depends on it"}
    return {node.id: dead for node in before if node.id not in with_image}


def optimize_steps(report: OptimizeReport, number: int, keys: Sequence[str]) -> Json:
    """Return the replay as a table; nodes are named by key."""
    key = dict(enumerate(keys))
    for s, step in enumerate(report.steps):
        key.update({node.id: f"{number}.{s}.{k}" for k, node in enumerate(step.added)})
    steps = report.steps
    gone, told = {i for step in steps for i in step.removed}, set[str]()
    return {
        "count": len(steps),
        "rule": words([step.rule for step in steps]),
        "label": words([step.label for step in steps]),
        "at": ragged_words([[key[i] for i in step.at] for step in steps]),
        "bindings": [{name: key[i] for name, i in sorted(step.bindings.items())} for step in steps],
        "removed": ragged_words([[key[i] for i in step.removed] for step in steps]),
        "added": [[_record(node, key, node.id in gone, told) for node in step.added] for step in steps],
        "rewired": [[[key[i], port, key[new]] for i, port, new in step.rewired] for step in steps],
        "cost_before": [step.cost_before for step in steps],
        "cost_after": [step.cost_after for step in steps],
        "iteration": [step.iteration for step in steps],
        "order": {str(s): [key[i] for i in step.order] for s, step in enumerate(steps) if step.order},
    }


def optimize_report(report: OptimizeReport, stage: int) -> Json:
    """Return the report as a document holds it; stage `stage` is the result. Steps, origins and program are told
    elsewhere."""
    found: Json = {name: getattr(report, name) for name in _PLAIN}
    return found | {
        "outcome": report.outcome,
        "rules": [_fields(rule) for rule in report.rules],
        "rules_fired": [list(pair) for pair in report.rules_fired],
        "fusions_applied": [list(pair) for pair in report.fusions_applied],
        "iterations": [_fields(i) for i in report.iterations],
        "missed": [{**_fields(m), "about": f"node:{stage}.{m.node}"} for m in report.missed],
    }


_PLAIN = (
    "phase", "engine", "cost_model", "stop_reason", "stop_detail", "nodes_before", "nodes_after", "dead_nodes_removed",
    "cost_before", "cost_after", "num_eclasses", "num_enodes", "egglog_time", "extract_time",
)  # fmt: skip


def _fields(record: Any) -> Json:
    return {name: clean(getattr(record, name)) for name in record.__dataclass_fields__}


def rule_sources(report: OptimizeReport) -> Json:
    """Return the Python source of every rule, by id."""
    return {rule: {"name": name, "line": line, "text": text} for rule, (name, line, text) in report.sources.items()}


def _record(node: Node, key: Mapping[int, str], gone: bool, told: set[str]) -> Json:
    """Return a node that a step adds. One that a later step removes is in no stage: the first of its op says its
    family."""
    says = gone and node.op not in told
    told |= {node.op} if gone else set()
    return {
        "key": key[node.id],
        "op": node.op,
        "inputs": [key[i] for i in node.inputs],
        "attrs": {k: attr_json(v) for k, v in node.attrs},
        "type": str(node.type),
        "name": node.name,
        **({"family": family(node.op)} if says else {}),
    }


# differentiate -------------------------------------------------------------------------------------------------------
def differentiate_trace(number: int, keys: Sequence[str], report: AutodiffReport, after: Graph) -> Trace:
    """Return keys and links of a derivative: forward nodes keep their keys, adjoints are named by the step that made
    them."""
    made: dict[int, str] = {}
    consumed: Pairs = []
    produced: Pairs = []
    for s, step in enumerate(report.steps):
        consumed.append((step.node, s))
        for k, id in enumerate((*step.accumulated, *step.added)):
            made[id] = f"{number}.{s}.{k}"
            produced.append((s, id))
    rest = [id for id in range(report.forward_nodes, len(after)) if id not in made]  # the seed, gradients that are zero
    made |= {id: f"{number}.{len(report.steps)}.{k}" for k, id in enumerate(rest)}
    images = [(old, new) for new, olds in report.origin.items() for old in olds]
    return Trace([*keys, *(made[id] for id in range(report.forward_nodes, len(after)))], consumed, produced, images)


def differentiate_steps(report: AutodiffReport, after: Graph, lines: Sequence[int]) -> Json:
    """Return one row per forward op, backwards; `lines`: the line row of each forward node."""
    steps = report.steps
    return {
        "count": len(steps),
        "node": [step.node for step in steps],
        "line": [lines[step.node] for step in steps],
        "rule": words([step.rule for step in steps]),
        "cotangents": ragged([step.cotangents for step in steps]),
        "added": ragged([step.added for step in steps]),
        "accumulated": ragged([step.accumulated for step in steps]),
        "residuals": [[{"node": i, "nbytes": after.node(i).type.size_bytes} for i in step.residuals] for step in steps],
        "reason": sparse([step.reason for step in steps], ""),
    }


def differentiate_report(report: AutodiffReport, after: Graph) -> Json:
    """Return the summary of a derivative."""
    return {
        "wrt": [after.node(i).name for i in report.wrt],
        "residual_bytes": report.residual_bytes,
        "zero_gradients": [
            {"name": after.node(i).name, "reason": report.reasons.get(i, "")} for i in report.zero_gradients
        ],
        "summary": str(report),
    }


def gradient_sources(rules: Iterable[str]) -> Json:
    """Return the Python source of the gradient rule of each op, and its line of mathematics; without a rule of its own,
    the body that is differentiated."""
    found = {}
    for rule in dict.fromkeys(rules):
        op = REGISTRY.get(rule)
        function = (op.gradient or op.body) if op is not None else None
        source = function_source(function) if function is not None else None
        if op is not None and source is not None:
            found[rule] = source | {"math": _first_line(op.gradient)} if op.gradient else _of_body(source)
    return found


def _of_body(source: Json) -> Json:
    """Return the source of a body from its `def` on, without its decorators, which say nothing about the derivative."""
    decorator, begin, body = source["text"].partition("\ndef ")
    after = {"line": source["line"] + decorator.count("\n") + 1, "text": f"def {body}"} if begin else {}
    return source | after | {"math": ""}


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def carried_lines(lines: Sequence[int], images: Pairs, count: int) -> list[int]:
    """Return a line row for each node of a result: the first among those of the nodes that it came from, else −1."""
    found = [-1] * count
    for old, new in images:
        if lines[old] >= 0 and (found[new] < 0 or lines[old] < found[new]):
            found[new] = lines[old]
    return found


def clean(value: Any) -> Any:
    """Return a report as plain JSON: tuples as lists, keys as text, non-finite floats as words."""
    if type(value) in _PLAIN_TYPES:
        return value
    match value:
        case dict():
            return {str(k): clean(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [clean(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
        case float():
            return number(value)
        case bool() | int() | str() | None:
            return value
        case _:
            return str(value)


_PLAIN_TYPES = frozenset({bool, int, str, type(None)})


def number(value: float) -> float | str:
    """Return a float as a document holds it."""
    if value != value:
        return "nan"
    return value if abs(value) != float("inf") else ("inf" if value > 0 else "-inf")
