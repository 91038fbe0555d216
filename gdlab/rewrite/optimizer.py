"""`optimize`: a graph in, an equal and cheaper graph out, and the report of how it came about."""

from __future__ import annotations

import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from gdlab.base.errors import OptimizeError, unknown_name
from gdlab.graph import Graph, no_collector
from gdlab.graph.replay import assemble, topological
from gdlab.op import ALL_PHASES, Phase, Safety
from gdlab.op.cost import Cost, CostModel, cost_model
from gdlab.rewrite.engine import worklist
from gdlab.rewrite.engine.eclasses import EClasses, ENodeTypes, distinct, fold_firings, name_classes, packed_firings
from gdlab.rewrite.engine.egglog_program import RuleProgram, program_of, program_text
from gdlab.rewrite.engine.encoded_rows import Encoded, Key, encode, ops_of
from gdlab.rewrite.engine.history import Delta, deltas
from gdlab.rewrite.engine.saturate import Budget, EngineFailure, Saturation, saturate
from gdlab.rewrite.explain.answers import AnswerData
from gdlab.rewrite.explain.classes import EClass, Priced, eclasses
from gdlab.rewrite.explain.lazy_report import LazyReport
from gdlab.rewrite.explain.mutable_graph import MutableGraph, stays
from gdlab.rewrite.explain.near_misses import WHEN_ENABLED, near_misses
from gdlab.rewrite.explain.report import Iteration, OptimizeReport, StopReason
from gdlab.rewrite.explain.rewrite_steps import Explained, explain
from gdlab.rewrite.extract.choice import Choice, extract
from gdlab.rewrite.extract.problem import UNITS, Prices, problem_of
from gdlab.rewrite.rules import RULES
from gdlab.rewrite.rules.packing import PACKED_PRODUCT, Siblings, siblings_of
from gdlab.rewrite.rules.pattern import Refusal, Rule
from gdlab.rewrite.rules.prepare import CSE, FOLD, Folded, Prepared, fold_constant, hash_cons

__all__ = ["optimize"]

Engine = Literal["auto", "egglog", "fallback"]
TAGS: tuple[Safety, ...] = get_args(Safety)


@dataclass(frozen=True)
class RuleSelection:
    """The rules that take part, the table of all rules, and by id why the others take no part."""

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
    engine: Engine = "auto",
    history: bool = False,
) -> tuple[Graph, OptimizeReport]:
    """Return the cheapest graph that the rules find, equal to `graph` in every output, and the report.

    `allow` is the boldest tag of rules used: exact < rounding < reassoc < approx. `disable`, `enable` (for rules that
    are off by default) and `only` take ids or labels of rules. `cost` names a model of `gdlab.op.cost` or is a function
    (op, attributes, type, operand types) -> µs; `"device"` is the roofline of the device that `device="auto"` chooses,
    by figures that were kept when it was measured. With `history` the report holds the e-graph's `deltas` as well.
    Where egglog is missing or fails, `engine="auto"` warns and goes on with the fallback engine; the other two are a
    choice. The input graph is not changed; equal inputs give equal results.
    """
    if not isinstance(phase, str) or phase not in ALL_PHASES:
        raise unknown_name("optimize", "phase", str(phase), ALL_PHASES)
    if not isinstance(engine, str) or engine not in get_args(Engine):
        raise unknown_name("optimize", "engine", str(engine), get_args(Engine))
    if not isinstance(budget, Budget):
        raise OptimizeError("optimize", "budget", repr(budget), "Budget(iterations=…, enodes=…, seconds=…)")
    if not isinstance(graph, Graph):
        raise OptimizeError("optimize", "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise OptimizeError("optimize", "outputs", "none", "a graph with outputs")
    selection = _select(phase, allow, *(_names(n) for n in (enable, disable, only)))
    with no_collector():
        result, report = _optimize(graph, phase, cost_model(cost), selection, budget, engine, history)
        _grow_old()
    if report.stop_reason == "engine-unavailable":
        warnings.warn(f"optimize: egglog: {report.stop_detail}", RuntimeWarning, stacklevel=2)
    return result, report


def _grow_old() -> None:
    """Move the objects of a call to the collector's oldest generation: else its next run would visit all of them.
    Nothing is moved where others have frozen objects, which would be thawed, or had at an earlier call."""
    if _FROZEN_BY_OTHERS:
        return
    frozen = getattr(gc, "get_freeze_count", lambda: 1)()
    if frozen:
        _FROZEN_BY_OTHERS.append(frozen)
        return
    gc.freeze()
    gc.unfreeze()


# The first count above 0. It is not asked for again: to count half a million objects takes 20 ms (2 cores, 2026-11-28).
_FROZEN_BY_OTHERS: list[int] = []


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return ids and labels as a tuple, given as one string, several, or none."""
    if given is None or isinstance(given, str):
        return (given,) if given else ()
    if not isinstance(given, Iterable):
        raise OptimizeError("optimize", "rules", repr(given), "ids or labels of rules")
    return tuple(given)


def _select(
    phase: Phase, allow: Safety, enable: tuple[str, ...], disable: tuple[str, ...], only: tuple[str, ...]
) -> RuleSelection:
    if allow not in TAGS:
        raise unknown_name("optimize", "allow", str(allow), TAGS)
    named = {what: {r.name for r in RULES.named(names, "optimize", what)} if names else set() for what, names in
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
            off[rule.name] = "disabled", WHEN_ENABLED
    return RuleSelection(tuple(r for r in table if r.name not in off), table, off)


@dataclass(frozen=True)
class Searched:
    """The result of a search: e-graph, choice, engine and seconds. `failure`: why it was not egglog."""

    rewritten: MutableGraph
    saturation: Saturation
    engine: str
    failure: str
    encoded: Encoded
    classes: EClasses
    choice: Choice
    chosen: dict[int, Key]
    component: Sequence[int]
    prices: Prices
    given: dict[str, int]  # firings of the rules without a pattern
    priced: Priced
    engine_seconds: float
    extract_seconds: float


def _optimize(
    graph: Graph,
    phase: Phase,
    model: CostModel,
    selection: RuleSelection,
    budget: Budget,
    engine: Engine,
    history: bool,
) -> tuple[Graph, OptimizeReport]:
    prepared = hash_cons(graph)
    names = {r.name for r in selection.used}
    dropped = ("stop_gradient",) if "drop_stop_gradient" in names else ()
    folded = fold_constant(prepared, dropped) if FOLD in names else {}
    siblings = siblings_of(prepared, selection.used)
    program = program_of(selection.used, ops_of(prepared, folded, siblings))
    given = _without_pattern(selection)
    searched = _search(prepared, folded, siblings, given, program, model, budget, engine, history)
    rewritten, classes = searched.rewritten, searched.classes
    cost_before = rewritten.cost
    for duplicate, kept in prepared.merged:
        rewritten.redirect([duplicate], kept, CSE, "CSE", {"kept": kept}, at=[duplicate])
    begin = time.perf_counter()
    done = explain(rewritten, classes, program.rules, searched.chosen, searched.choice.live,
                   searched.component, searched.prices, searched.saturation.first_seen, given)  # fmt: skip
    result, order = _rebuild(rewritten, done)
    rebuild_seconds = time.perf_counter() - begin
    early = _over_budget(searched.saturation)
    seen = result.copy()  # as it is now: people may append to what they get
    near = [r for r in selection.table if r.near]
    saturation, rows = searched.saturation, searched.encoded.rows
    iterations = None if saturation.stop == "saturated" else len(saturation.iterations)
    reason, detail = _stop(searched, selection)
    recorded, at_end = _growth(searched, program, prepared, given, done.rep, order) if history else ((), ())
    report = OptimizeReport(
        phase=phase,
        engine=searched.engine,
        cost_model=model.name,
        stop_reason=reason,
        stop_detail=detail,
        nodes_before=len(graph),
        nodes_after=len(result),
        dead_nodes_removed=sum(not stays(graph._nodes[id]) for id, kept in enumerate(prepared.same) if kept < 0),
        cost_before=cost_before / UNITS,
        cost_after=rewritten.cost / UNITS,
        num_eclasses=saturation.iterations[-1][1] if saturation.iterations else len(classes.enodes),
        num_enodes=saturation.iterations[-1][0] if saturation.iterations else rows.count,
        egglog_time=searched.engine_seconds,
        extract_time=searched.extract_seconds + rebuild_seconds,
        extraction_failures=searched.choice.failures,
        shape_conflicts=classes.shape_conflicts,
        iterations=tuple(Iteration(*i) for i in saturation.iterations),
        near=lambda: near_misses(seen, near, selection.off, early),
        sources={r.name: r.source for r in selection.table},
        deltas=recorded,
        classes=at_end,
        asked=AnswerData(result, order, selection.table, selection.off, early),
        program=partial(program_text, program, rows.texts or rows, iterations),
    )
    late = LazyReport(rewritten.log(), prepared.same, classes.class_of, classes.key_of, classes.firings, done, order,
                      selection.table, selection.off, program.rules, given, _counts(searched, program))  # fmt: skip
    return result, report.with_late_fields(late)


def _counts(searched: Searched, program: RuleProgram) -> tuple[dict[str, int], dict[str, int], dict[str, float]]:
    """Return matches, firings and seconds by rule."""
    found, names = searched.saturation, [r.name for r in program.rules]
    matched = dict(zip(names, found.matched, strict=True)) | searched.given
    fired = {name: len(rows) for name, rows in zip(names, found.fired, strict=True)} | searched.given
    return matched, fired, dict(zip(names, found.rule_seconds, strict=True))


def _stop(searched: Searched, selection: RuleSelection) -> tuple[StopReason, str]:
    """Return why the search ended, and the numbers that caused it."""
    found = searched.saturation
    if searched.failure:
        how = f"ended by its limit on {found.stop}: {found.detail}" if found.detail else "saturated"
        return "engine-unavailable", f"{searched.failure}; the fallback engine took over and {how}"
    if searched.choice.late:
        return "time", found.detail or "extraction ran out of time"
    if all(r.name == CSE for r in selection.used):
        return "off", "no rule takes part"
    return found.stop, found.detail


def _without_pattern(selection: RuleSelection) -> dict[int, Rule]:
    """Return the rules without a pattern, which gdlab carries out itself, by the number of their firings."""
    known = {r.name: r for r in selection.table}
    names = (FOLD, *PACKED_PRODUCT)
    return {-k: known.get(name, selection.table[0]) for k, name in enumerate(names, 1)}


def _search(
    prepared: Prepared, folded: Mapping[int, Folded], siblings: Sequence[Siblings], given: Mapping[int, Rule],
    program: RuleProgram, model: CostModel, budget: Budget, engine: Engine, history: bool,
) -> Searched:  # fmt: skip
    begin = time.perf_counter()
    encoded = encode(prepared, program, folded, siblings)
    inference = ENodeTypes(encoded.numbers, program.signatures, prepared.types)
    prices = Prices(model, inference)
    rewritten = MutableGraph(prepared, prices, encoded.attrs)
    found, used, failure = _saturated(program, encoded, budget, engine, history, rewritten.load)
    classes = name_classes(prepared, encoded, found, program, inference)
    number = {rule.name: j for j, rule in given.items()}
    classes.firings += fold_firings(prepared, classes, folded, encoded, number[FOLD])
    classes.firings += packed_firings(siblings, classes, encoded, number)
    between = time.perf_counter()
    problem, keys, component = problem_of(classes, (prepared.same[id] for id in prepared.graph.output_ids), prices)
    choice = extract(problem, component, budget.seconds)
    chosen = {c: keys[choice.enode[c]] for c in choice.live}
    carried_out = Counter(f.rule for f in distinct(f for f in classes.firings if f.rule < 0))
    return Searched(rewritten, found, used, failure, encoded, classes, choice, chosen, component, prices,
                    {rule.name: carried_out[j] for j, rule in given.items()}, Priced(problem, keys, component, choice),
                    between - begin, time.perf_counter() - between)  # fmt: skip


def _saturated(
    program: RuleProgram, encoded: Encoded, budget: Budget, engine: Engine, history: bool, meanwhile: Callable[[], None]
) -> tuple[Saturation, str, str]:
    """Return the result of the engine, its name, and why it is not the one preferred."""
    failure = ""
    if engine != "fallback":
        try:
            return saturate(program, encoded.rows, budget, history=history, meanwhile=meanwhile), "egglog", ""
        except EngineFailure as e:
            failure = str(e)
        if engine == "egglog":
            raise OptimizeError("optimize", "engine", failure, 'a working egglog, or engine="fallback"')
    meanwhile()
    return worklist.saturate(program, encoded.rows, budget, history=history), "fallback", failure


def _growth(
    searched: Searched, program: RuleProgram, prepared: Prepared, given: Mapping[int, Rule], rep: Mapping[int, int],
    order: Sequence[int],
) -> tuple[tuple[Delta, ...], tuple[EClass, ...]]:  # fmt: skip
    """Return the e-graph through time, and its classes at the end."""
    numbers, classes = searched.encoded.numbers, searched.classes
    recorded = deltas(searched.saturation.history, program.rules, program.signatures, numbers)
    labels = {j: rule.label for j, rule in given.items()}
    new = {id: i for i, id in enumerate(order)}
    made = {c: new[id] for c, id in rep.items() if id in new}
    return recorded, eclasses(recorded, classes, searched.priced, numbers, prepared.same, made, labels)


def _rebuild(rewritten: MutableGraph, done: Explained) -> tuple[Graph, Sequence[int]]:
    """Return the result as a Graph, and the stable ids of its nodes in order."""
    kept = {id: rewritten.inputs[id] for id, node in enumerate(rewritten.nodes) if rewritten.reads[id] or stays(node)}
    order = topological(kept, {id: done.root_of.get(id, id) for id in kept})
    return assemble(rewritten.graph, rewritten.nodes, kept, rewritten.outputs, order, done.root_of), order


def _over_budget(saturation: Saturation) -> Refusal | None:
    return None if saturation.stop == "saturated" else ("budget", f"the search ended early: {saturation.detail}")
