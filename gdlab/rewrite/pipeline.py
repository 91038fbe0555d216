"""`optimize`: a graph in, an equal and cheaper graph out, and the report of how it came about."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from gdlab.cost import Cost, CostModel, cost_model
from gdlab.errors import OptimizeError, unknown_name
from gdlab.graph import Graph, no_collector
from gdlab.op import ALL_PHASES, Phase, Safety
from gdlab.rewrite.bench import Bench, finish
from gdlab.rewrite.egraph import Budget, EngineFailure, Saturation, saturate
from gdlab.rewrite.explain import Explained, explain
from gdlab.rewrite.extract import Choice, extract
from gdlab.rewrite.load import UNITS, EClasses, Encoded, Firing, Key, Prices, encode, name_classes, problem_of
from gdlab.rewrite.maps import derivations, node_map, origin, rule_table, rules_fired, stays
from gdlab.rewrite.missed import near_misses
from gdlab.rewrite.pattern import Refusal, Rule
from gdlab.rewrite.prepare import Prepared, fold_constant, hash_cons
from gdlab.rewrite.program import Program, program_of, program_text
from gdlab.rewrite.report import Iteration, OptimizeReport
from gdlab.rewrite.rules import CSE, FOLD, RULES
from gdlab.steps import SWEEP, Step, assemble, topological

__all__ = ["optimize"]

TAGS: tuple[Safety, ...] = get_args(Safety)


@dataclass(frozen=True)
class Selection:
    """The rules that take part, all rules, and by id why the others do not."""

    used: tuple[Rule, ...]
    table: tuple[Rule, ...]
    off: dict[str, Refusal]


def optimize(
    graph: Graph,
    *,
    phase: Phase,
    allow: Safety = "rounding",
    cost: str | Cost = "roofline",
    enable: Iterable[str] = (),
    disable: Iterable[str] = (),
    only: Iterable[str] = (),
    budget: Budget = Budget(),  # noqa: B008 (frozen)
) -> tuple[Graph, OptimizeReport]:
    """The cheapest graph that the rules find, equal to `graph` in every output, and the report.

    `allow` is the boldest tag of rules used: exact < rounding < reassoc < approx. `disable`, `enable` (for rules that
    are off by default) and `only` take ids or labels of rules. `cost` names a model of `gdlab.cost` or is a function
    (op, attributes, type, operand types) -> µs. The input graph is not changed; equal inputs give equal results.
    """
    if phase not in ALL_PHASES:
        raise unknown_name("optimize", "phase", str(phase), ALL_PHASES)
    if not isinstance(budget, Budget):
        raise OptimizeError("optimize", "budget", repr(budget), "Budget(iterations=…, enodes=…, seconds=…)")
    if not isinstance(graph, Graph):
        raise OptimizeError("optimize", "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise OptimizeError("optimize", "outputs", "none", "a graph with outputs")
    selection = _select(phase, allow, *(_names(n) for n in (enable, disable, only)))
    with no_collector():
        return _optimize(graph, phase, cost_model(cost), selection, budget)


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Ids and labels as a tuple: one alone, several, or none."""
    if given is None or isinstance(given, str):
        return (given,) if given else ()
    if not isinstance(given, Iterable):
        raise OptimizeError("optimize", "rules", repr(given), "ids or labels of rules")
    return tuple(given)


def _select(
    phase: Phase, allow: Safety, enable: tuple[str, ...], disable: tuple[str, ...], only: tuple[str, ...]
) -> Selection:
    if allow not in TAGS:
        raise unknown_name("optimize", "allow", str(allow), TAGS)
    named = {what: {r.name for r in RULES.named(names, "optimize", what)} for what, names in
             (("enable", enable), ("disable", disable), ("only", only))}  # fmt: skip
    if CSE in named["disable"]:
        raise OptimizeError("optimize", "disable", "CSE", "a rule that can be left out: equal nodes are one e-class")
    table = tuple(RULES)
    off: dict[str, Refusal] = {}
    for rule in table:
        if phase not in rule.phases:
            off[rule.name] = "phase", f"it is for phase {' and '.join(rule.phases)}, this is {phase}"
        elif TAGS.index(rule.safety) > TAGS.index(allow):
            off[rule.name] = "safety", f"it is tagged {rule.safety}, {allow} is allowed"
        elif rule.name in named["disable"] or (only and rule.name not in named["only"] | {CSE}):
            off[rule.name] = "disabled", "it was switched off"
        elif not rule.on and rule.name not in named["enable"]:
            off[rule.name] = "disabled", "it takes part only when enabled"
    return Selection(tuple(r for r in table if r.name not in off), table, off)


@dataclass(frozen=True)
class Searched:
    """The e-graph, what was chosen from it, and how long it took."""

    saturation: Saturation
    encoded: Encoded
    classes: EClasses
    choice: Choice
    chosen: dict[int, Key]
    component: Sequence[int]
    prices: Prices
    folds: int
    engine_seconds: float
    extract_seconds: float


def _optimize(
    graph: Graph, phase: Phase, model: CostModel, selection: Selection, budget: Budget
) -> tuple[Graph, OptimizeReport]:
    prepared = hash_cons(graph)
    bench = Bench(graph, model)
    cost_before = bench.cost
    for duplicate, kept in prepared.merged:
        bench.redirect([duplicate], kept, CSE, "CSE", {"kept": kept}, at=[duplicate])
    program = program_of(selection.used)
    searched, failure = None, ""
    try:
        searched = _search(prepared, program, model, selection, budget)
    except EngineFailure as e:
        failure = str(e)
        warnings.warn(f"optimize: egglog: {failure}; only equal nodes were merged", RuntimeWarning, stacklevel=3)
    begin = time.perf_counter()
    done = Explained()
    if searched is not None:
        fold = next((r for r in selection.table if r.name == FOLD), selection.table[0])
        done = explain(bench, searched.classes, program.rules, searched.chosen, searched.choice.live,
                       searched.component, searched.prices, searched.saturation.first_seen, fold)  # fmt: skip
    result, steps, order = _rebuild(bench, done)
    rebuild_seconds = time.perf_counter() - begin
    moved = node_map(graph, prepared, searched.classes if searched else None, done, order)
    near = near_misses(result, [r for r in selection.table if r.near], selection.off, _over_budget(searched))
    report = OptimizeReport(
        phase=phase,
        cost_model=model.name,
        nodes_before=len(graph),
        nodes_after=len(result),
        dead_nodes_removed=sum(1 for n in graph if prepared.same[n.id] < 0 and not stays(n)),
        cost_before=cost_before / UNITS,
        cost_after=bench.cost / UNITS,
        extract_time=rebuild_seconds,
        rules_fired=rules_fired(steps),
        fusions_applied=tuple((s.label, done.root_of.get(s.at[0], s.at[0])) for s in steps[:-1] if s.at),
        missed=near,
        node_map=moved,
        origin=origin(graph, prepared, done, order, moved),
        steps=steps,
        derivations=derivations(done, order),
        sources={r.name: r.source for r in selection.table},
        stop_reason="engine-unavailable",
        stop_detail=failure,
    )
    if searched is None:
        table = rule_table(selection.table, selection.off, program.rules, None, {}, {}, {}, steps, done)
        return result, replace(report, rules=table)
    return result, _with_engine(report, searched, selection, program, done)


def _with_engine(
    report: OptimizeReport, searched: Searched, selection: Selection, program: Program, done: Explained
) -> OptimizeReport:
    """The report with all that the engine has to tell."""
    found, classes, choice = searched.saturation, searched.classes, searched.choice
    names = [r.name for r in program.rules]
    matched = dict(zip(names, found.matched, strict=True)) | {FOLD: searched.folds}
    fired = {name: len(rows) for name, rows in zip(names, found.fired, strict=True)} | {FOLD: searched.folds}
    seconds = dict(zip(names, found.rule_seconds, strict=True))
    rows, iterations = searched.encoded.rows, len(found.iterations)
    return replace(
        report,
        engine="egglog",
        stop_reason="time" if choice.late else found.stop,
        stop_detail=found.detail,
        num_eclasses=found.iterations[-1][1] if found.iterations else len(classes.enodes),
        num_enodes=found.iterations[-1][0] if found.iterations else rows.count,
        egglog_time=searched.engine_seconds,
        extract_time=report.extract_time + searched.extract_seconds,
        extraction_failures=choice.failures,
        shape_conflicts=classes.shape_conflicts,
        rules=rule_table(selection.table, selection.off, program.rules, classes, matched, fired, seconds, report.steps,
                         done),
        iterations=tuple(Iteration(*i) for i in found.iterations),
        program=lambda: program_text(program, rows, iterations),
    )  # fmt: skip


def _search(prepared: Prepared, program: Program, model: CostModel, selection: Selection, budget: Budget) -> Searched:
    begin = time.perf_counter()
    folded = fold_constant(prepared) if any(r.name == FOLD for r in selection.used) else {}
    encoded = encode(prepared, program, folded)
    found = saturate(program, encoded.rows, budget)
    prices = Prices(model, encoded.numbers, program.signatures)
    classes = name_classes(prepared, encoded, found, program.rules, prices)
    classes.firings += _folds(prepared, classes, folded, encoded)
    between = time.perf_counter()
    problem, keys, component = problem_of(classes, (prepared.same[id] for id in prepared.graph.output_ids), prices)
    choice = extract(problem, component, budget.seconds)
    chosen = {c: keys[choice.enode[c]] for c in choice.live}
    return Searched(found, encoded, classes, choice, chosen, component, prices, len(folded), between - begin,
                    time.perf_counter() - between)  # fmt: skip


def _folds(prepared: Prepared, classes: EClasses, folded: dict[int, float], encoded: Encoded) -> list[Firing]:
    """Folding as firings: a node is equal to a fill."""
    firings = []
    for id, value in folded.items():
        numbers = encoded.numbers(prepared.graph.node(id).type.shape), encoded.numbers(value)
        firings.append(Firing(-1, classes.class_of[id], (), (), (classes.key_of[id],), (("full", (), numbers),)))
    return firings


def _rebuild(bench: Bench, done: Explained) -> tuple[Graph, tuple[Step, ...], Sequence[int]]:
    """The result, the steps that lead to it, and the stable ids of its nodes in order."""
    kept = {id: bench.final(id) for id, node in bench.nodes.items() if bench.alive(id) or stays(node)}
    rank = {id: (done.root_of.get(id, id), id) for id in kept}
    order = topological(kept, rank)
    steps = finish(bench, order, stays, (SWEEP, SWEEP))
    return assemble(bench.graph, kept, bench.outputs, order, done.root_of), steps, order


def _over_budget(searched: Searched | None) -> Refusal | None:
    if searched is None or searched.saturation.stop == "saturated":
        return None
    return "budget", f"the search ended early: {searched.saturation.detail}"
