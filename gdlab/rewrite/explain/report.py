"""The report of `optimize`, rule by rule: `print(report)`, `report.to_text()`, `report.why(node)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from gdlab.base.errors import OptimizeError
from gdlab.base.words import cell, grid, plural, whole
from gdlab.graph import Attrs, ConstantData, Node
from gdlab.graph.replay import Step
from gdlab.rewrite.engine.history import Delta
from gdlab.rewrite.explain.answers import AnswerData, RuleAnswer
from gdlab.rewrite.explain.classes import EClass
from gdlab.rewrite.explain.near_misses import Missed

__all__ = ["LATE", "LIMITS", "Derivation", "Iteration", "OptimizeReport", "RuleStat"]

StopReason = Literal["saturated", "iterations", "enodes", "time", "off", "cache-hit", "engine-unavailable"]
LIMITS: Mapping[StopReason, tuple[str, str]] = {  # the limit in words, the field of `Budget`
    "iterations": ("iterations", "iterations"), "enodes": ("e-nodes", "enodes"), "time": ("time", "seconds"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleStat:
    """One row of the table of rules; rules that found nothing have one too.

    `matched`: matches of the engine, also those found again (an effort); `fired`: distinct firings; `created`: those
    that brought a new e-node or made different nodes equal; `used`: those behind a step.
    `seconds`: its share of the engine's time: our own clock around every iteration, shared out by egglog's times per
    rule, or where those are all 0 (egglog 13 reports them a thousand times too small) by its matches.
    """

    id: str
    label: str
    tag: str
    phases: tuple[str, ...]
    doc: str
    matched: int = 0
    fired: int = 0
    created: int = 0
    used: int = 0
    seconds: float = 0.0
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Iteration:
    """The e-graph after one iteration, with its matches and seconds."""

    enodes: int
    eclasses: int
    matches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Derivation:
    """The derivation of a node of the result: the root it replaced, the nodes it consumed, the labels in order."""

    node: int
    root: int
    consumed: tuple[int, ...]
    chain: tuple[str, ...]


@dataclass(frozen=True)
class OptimizeReport:
    """The record of a call of `optimize`. Costs are µs of `cost_model`, times seconds; ids are of input and result.

    `origin[new]` are the nodes a new node stands for: first the one that gave its name and source (itself, when it was
    kept), then what was merged or fused into it. `node_map[old]` is where a value lies now, None where it was fused
    away or dead. `steps` replay the whole (`gdlab.graph.replay.replay`).
    `deltas[k]` is what iteration k added to the e-graph (0: the graph itself), and `classes` is what it held at the end
    with what was chosen, where `history` was asked for.
    The fields in `LATE` are computed when one of them is first read, all at once.
    """

    phase: str = ""
    engine: str = "none"
    cost_model: str = ""
    stop_reason: StopReason = "cache-hit"
    stop_detail: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    dead_nodes_removed: int = 0
    cost_before: float = 0.0
    cost_after: float = 0.0
    num_eclasses: int = 0
    num_enodes: int = 0
    egglog_time: float = 0.0
    extract_time: float = 0.0
    extraction_failures: int = 0
    shape_conflicts: int = 0
    rules: tuple[RuleStat, ...] = field(default_factory=tuple)
    rules_fired: tuple[tuple[str, int], ...] = field(default_factory=tuple)
    fusions_applied: tuple[tuple[str, int], ...] = field(default_factory=tuple)
    iterations: tuple[Iteration, ...] = ()
    node_map: Mapping[int, int | None] = field(default_factory=dict)
    origin: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    steps: tuple[Step, ...] = field(default_factory=tuple)
    derivations: tuple[Derivation, ...] = field(default_factory=tuple)
    sources: Mapping[str, tuple[str, int, str]] = field(default_factory=dict)
    phases: tuple[OptimizeReport, ...] = ()
    deltas: tuple[Delta, ...] = ()
    classes: tuple[EClass, ...] = ()
    asked: AnswerData | None = field(default=None, repr=False, compare=False)
    program: Callable[[], str] = field(default=str, repr=False, compare=False)
    near: Callable[[], tuple[Missed, ...]] = field(default=tuple, repr=False, compare=False)

    def with_late_fields(self, compute: Callable[[], Mapping[str, Any]]) -> OptimizeReport:
        """Return this report, with its `LATE` fields left to a function that computes them by name."""
        for name in LATE:
            object.__delattr__(self, name)
        object.__setattr__(self, "_compute", compute)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field that was left to `with_late_fields`."""
            compute = self.__dict__.get("_compute")
            if compute is not None and name in LATE:
                self.__dict__.update(compute())
                self.__dict__.pop("_compute", None)  # its data is no longer needed
            if name in self.__dict__:
                return self.__dict__[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields, computed; the graph in which questions are answered is left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        left = {"asked": None, "near": partial(tuple, self.missed), "program": partial(str, self.egglog_program)}
        return partial(type(self), **values | left), ()

    def __copy__(self) -> OptimizeReport:
        return self

    def __deepcopy__(self, memo: object) -> OptimizeReport:
        return self

    @staticmethod
    def empty() -> OptimizeReport:
        """Return a report of zeros: the plan came from the cache, and nothing was optimized."""
        return OptimizeReport()

    @staticmethod
    def off(nodes: int, phase: str = "") -> OptimizeReport:
        """Return the report of a graph of `nodes` nodes that was not optimized."""
        return OptimizeReport(phase=phase, stop_reason="off", stop_detail="switched off", nodes_before=nodes,
                              nodes_after=nodes)  # fmt: skip

    def why(self, node: Any) -> RuleAnswer:
        """Return the rewrites that made a node of the result (its id, its Value, or its name), in words and steps."""
        return self._answers().why(self.steps, node)

    def why_not(self, a: Any, b: Any = None) -> RuleAnswer:
        """Return why two neighbouring nodes of the result were not fused, or a rule (id or label) was not used."""
        answers, missed = self._answers(), self.missed
        return answers.why_not_rule(self.steps, missed, a) if b is None else answers.why_not_pair(missed, a, b)

    def _answers(self) -> AnswerData:
        if self.asked is None:
            raise OptimizeError("report", "question", "a report without a graph (a cache hit, or switched off)",
                                "the report of a call of optimize")  # fmt: skip
        return self.asked

    @property
    def egglog_program(self) -> str:
        """The search as egglog text; run alone, it gives the same e-graph. Written on first access."""
        return self.program()

    @cached_property
    def missed(self) -> tuple[Missed, ...]:
        """Near matches that were not used, each with its reason. Computed on first access: a tenth of the call."""
        return self.near()

    @property
    def fused_away(self) -> int:
        """The number of nodes fewer than before, dead ones included."""
        return max(0, self.nodes_before - self.nodes_after)

    @property
    def hit_limit(self) -> bool:
        """Whether the search ended by a limit of its `Budget`: there may be a cheaper graph that was not found."""
        return self.stop_reason in LIMITS

    @property
    def outcome(self) -> str:
        """Return in words why the search ended and its findings: a limit with its numbers, matches, rewrites."""
        if self.stop_reason in ("off", "cache-hit"):
            return f"Not searched: {self.stop_detail or 'the plan came from the cache'}."
        end = f"Saturated after {plural(len(self.iterations), 'iteration')}"
        if self.hit_limit:
            detail = f" ({self.stop_detail})" if self.stop_detail and self.stop_reason != "iterations" else ""
            limit = LIMITS[self.stop_reason][0]
            end = f"Stopped by the limit on {limit}{detail} after {plural(len(self.iterations), 'iteration')}"
        elif self.stop_reason == "engine-unavailable":
            end = f"egglog did not run ({self.stop_detail})"
        text = f"{end}: {self._findings()}."
        if self.hit_limit:
            text += f" A cheaper graph may exist: Budget({LIMITS[self.stop_reason][1]}=…) allows a longer search,"
            text += " and `disable` leaves out a rule."
        return text

    def _findings(self) -> str:
        """Return the number of matches, the rule with most of them, and the number of rewrites, in words."""
        met = sorted((r for r in self.rules if r.matched), key=lambda r: -r.matched)
        rewrites = sum(count for _, count in self.rules_fired)
        if not met and not rewrites:
            return "no match so far" if self.hit_limit else "no rule matched"
        matches = f"{plural(sum(r.matched for r in met), 'match')} of {plural(len(met), 'rule')}"
        if len(met) > 1:
            matches += f", most of {met[0].label} ({whole(met[0].matched)})"
        if rewrites:
            return f"{matches}; {plural(rewrites, 'rewrite')}"
        return f"{matches}; none {'has made' if self.hit_limit else 'made'} the graph cheaper"

    def merge(self, full: OptimizeReport) -> OptimizeReport:
        """Return the report of a training build, from this one (forward graph) and `full` (differentiated graph)."""
        fired: dict[str, int] = {}
        for label, count in (*self.rules_fired, *full.rules_fired):
            fired[label] = fired.get(label, 0) + count
        return replace(
            full,
            rules_fired=tuple(fired.items()),
            fusions_applied=self.fusions_applied + full.fusions_applied,
            nodes_before=full.nodes_before + self.nodes_before - self.nodes_after,
            phases=(self, full),
        )

    def __repr__(self) -> str:
        return (
            f"<OptimizeReport: {self.phase or 'empty'}, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{plural(sum(n for _, n in self.rules_fired), 'rewrite')}, {self.stop_reason}>"
        )

    def __str__(self) -> str:
        lines = ["=== Optimization Report ==="]
        ms = self.egglog_time * 1e3
        lines += [f"Egglog saturation: {ms:.1f}ms ({self.num_eclasses} e-classes, {self.num_enodes} e-nodes)"]
        if self.rules_fired:
            lines += ["Rules fired:", *(f"  {label}  x{count}" for label, count in self.rules_fired)]
        lines += [f"Graph: {self.nodes_before} nodes -> {self.nodes_after} active nodes ({self.fused_away} fused away)"]
        if self.fusions_applied:
            lines += ["Fusions: " + ", ".join(f"{label} @node{id}" for label, id in self.fusions_applied)]
        return "\n".join([*lines, f"Extract time: {self.extract_time * 1e3:.1f}ms"])

    def to_text(self) -> str:
        """Return the full text: `str`, then engine, costs, the rules that matched, and near misses."""
        stop = f"{self.stop_reason} ({plural(len(self.iterations), 'iteration')})"
        lines = [str(self), f"Phase: {self.phase}  Engine: {self.engine}  Stop: {stop}"]
        lines += [f"  {self.outcome if self.hit_limit else self.stop_detail}"] if self.stop_detail else []
        lines += [f"Cost: {self.cost_before:.1f} -> {self.cost_after:.1f} us ({self.cost_model})"]  # golden
        lines += _table([r for r in self.rules if r.matched])
        if self.missed:
            lines += ["Missed:", *(f"  {m.label} @node{m.node}: {m.reason} ({m.detail})" for m in self.missed)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return every field as plain JSON values; nodes by id."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {
            "outcome": self.outcome,
            "rules": [_record(r) for r in self.rules],
            "rules_fired": [list(pair) for pair in self.rules_fired],
            "fusions_applied": [list(pair) for pair in self.fusions_applied],
            "iterations": [_record(i) for i in self.iterations],
            "missed": [_record(m) for m in self.missed],
            "node_map": {str(k): v for k, v in self.node_map.items()},
            "origin": {str(k): list(v) for k, v in self.origin.items()},
            "derivations": [_record(d) for d in self.derivations],
            "steps": [_step(s) for s in self.steps],
            "sources": {k: {"name": v[0], "line": v[1], "text": v[2]} for k, v in self.sources.items()},
            "phases": [p.to_json() for p in self.phases],
            "deltas": [d.to_json() for d in self.deltas],
            "classes": [c.to_json() for c in self.classes],
        }


LATE = ("rules", "rules_fired", "fusions_applied", "node_map", "origin", "steps", "derivations")
_PLAIN = (
    "phase", "engine", "cost_model", "stop_reason", "stop_detail", "nodes_before", "nodes_after", "dead_nodes_removed",
    "cost_before", "cost_after", "num_eclasses", "num_enodes", "egglog_time", "extract_time", "extraction_failures",
    "shape_conflicts", "egglog_program",
)  # fmt: skip


def _table(rules: list[RuleStat]) -> list[str]:
    if not rules:
        return []
    head = ("rule", "tag", "matched", "created", "used", "ms")
    rows = [(r.label, r.tag, *map(whole, (r.matched, r.created, r.used)), cell(r.seconds * 1e3)) for r in rules]
    return grid(head, rows, right=range(2, 6), indent="")


def _record(value: Any) -> dict[str, Any]:
    fields = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in fields}


def _step(step: Step) -> dict[str, Any]:
    return _record(step) | {
        "bindings": dict(step.bindings),
        "added": [_node(n) for n in step.added],
        "rewired": [list(change) for change in step.rewired],
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id, "op": node.op, "inputs": list(node.inputs), "attrs": plain_attrs(node.attrs),
        "type": str(node.type), "name": node.name,
    }  # fmt: skip


def plain_attrs(attrs: Attrs) -> dict[str, Any]:
    """Return attributes as JSON values: tuples as lists, constants by their digest."""
    plain: dict[str, Any] = {}
    for name, value in attrs:
        shown = value.digest if isinstance(value, ConstantData) else value
        plain[name] = list(shown) if isinstance(shown, tuple) else shown
    return plain
