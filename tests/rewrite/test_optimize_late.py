"""The fields that a report computes on first access: the same as at once, whatever happens to the graphs meanwhile."""

from __future__ import annotations

import dataclasses
import gc
import json
from typing import Any

import pytest
from optimizing import mlp_with_gate, transformer
from random_graphs import random_graph
from structure import same_structure

import gdlab.ops as ops
from gdlab.graph.replay import replay, topological
from gdlab.rewrite import OptimizeReport, optimize, optimizer
from gdlab.rewrite.engine.egglog_program import GraphRows, RuleProgram, program_of
from gdlab.rewrite.engine.history import deltas
from gdlab.rewrite.engine.saturate import EGraphSnapshot
from gdlab.rewrite.explain.report import LATE
from gdlab.rewrite.rules import RULES
from gdlab.rewrite.rules.relations import Interner, interned


def told(report: OptimizeReport) -> dict[str, Any]:
    found = report.to_json()
    timed = ("egglog_time", "extract_time")
    kept = {k: v for k, v in found.items() if k not in timed}
    for row in (*kept["rules"], *kept["iterations"]):
        del row["seconds"]
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_a_report_tells_of_the_graphs_as_they_were(seed: int) -> None:
    graph = random_graph(seed)
    at_once = told(optimize(graph, phase="full")[1])
    result, report = optimize(graph, phase="full")
    kept = result.copy()
    for held in (graph, result):  # people go on with what they hold
        with held:
            added = ops.parameter("later", (3,))
            held.set_outputs([ops.relu(added)])
    assert json.dumps(told(report)) == json.dumps(at_once)
    assert same_structure(replay(random_graph(seed), report.steps), kept)


def test_what_was_left_is_worked_out_once_for_all_fields() -> None:
    report = optimize(mlp_with_gate(), phase="forward")[1]
    assert not any(name in vars(report) for name in LATE)
    assert report.steps is report.steps
    assert all(name in vars(report) for name in LATE) and "_tell" not in vars(report)


def test_a_field_can_be_replaced_before_it_was_read() -> None:
    report = optimize(mlp_with_gate(), phase="forward")[1]
    changed = dataclasses.replace(report, rules=())
    assert changed.rules == () and changed.steps == report.steps != ()
    assert len(dataclasses.fields(report)) == len(dataclasses.fields(OptimizeReport.empty()))


def test_a_report_has_no_other_attributes() -> None:
    report = optimize(mlp_with_gate(), phase="forward")[1]
    for asked in (report, OptimizeReport.empty()):
        with pytest.raises(AttributeError, match="no attribute 'step'"):
            asked.step  # type: ignore[attr-defined]  # noqa: B018
    assert OptimizeReport.empty().steps == ()


def test_what_others_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "_FROZEN_BY_OTHERS", [])
    gc.collect()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        optimize(mlp_with_gate(), phase="forward")
        assert 0 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
    monkeypatch.setattr(optimizer, "_FROZEN_BY_OTHERS", [])
    optimize(mlp_with_gate(), phase="forward")
    assert gc.get_freeze_count() == 0 and gc.isenabled()
    gc.freeze()  # again what tests/conftest.py froze


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count them takes a visit to each: 20 ms for those of the tests, as long as all the rest of a small call."""
    counted: list[int] = []
    monkeypatch.setattr(optimizer, "_FROZEN_BY_OTHERS", [])
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 7)
    for _ in range(3):
        optimize(mlp_with_gate(), phase="forward")
    assert len(counted) == 1


def test_what_a_call_leaves_behind_has_no_cycles() -> None:
    graph = transformer(2)
    optimize(graph, phase="forward")
    gc.collect()
    gc.disable()
    try:
        for ask in (False, True):
            report = optimize(graph, phase="forward")[1]
            assert not ask or report.steps
            del report
            assert gc.collect() < 10
    finally:
        gc.enable()


# rows -----------------------------------------------------------------------------------------------------------------
def test_facts_that_go_together_are_said_once_and_all_of_them() -> None:
    program = program_of(list(RULES), [("matmul", 2), ("add", 2), ("mul", 2), ("sigmoid", 1), ("parameter", 0)])
    facts: dict[str, list[tuple[int, ...]]] = {
        "f_type": [(0, 0), (1, 0), (2, 1), (3, 1)],
        "f_inner": [(0,), (1,), (3,)],
        "f_single": [(1,), (2,), (3,)],
    }
    rows = GraphRows(facts={name: list(part) for name, part in facts.items()}, count=4)
    said = [line.split("\t") for text in rows.tables(program).values() for line in text.splitlines()]
    assert len(said) == 5  # 0: two of them, 1 and 3: all three, 2: one and one
    assert sorted(_facts(program, said)) == sorted((name, *row) for name, part in facts.items() for row in part)


def _facts(program: RuleProgram, said: list[list[str]]) -> list[tuple[Any, ...]]:
    """The rows of facts that lines stand for."""
    names = {number: name for name, (number, _) in program.inputs.items()}
    found: list[tuple[Any, ...]] = []
    for number, id, *rest in said:
        for name in names[int(number)].split("+"):
            found.append((name, int(id), *map(int, rest if name == "f_type" else ())))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_deltas_do_not_depend_on_how_the_engine_numbers_classes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def kept(*told: Any) -> Any:
        given.append(told)
        return deltas(*told)

    monkeypatch.setattr("gdlab.rewrite.optimizer.deltas", kept)
    plain = optimize(random_graph(seed), phase="full", history=True)[1].deltas
    shots, *others = given[0]
    most = 1 + max(c for shot in shots for c in shot.class_of.values())
    turned = [_renumbered(shot, lambda c: 3 * most - c) for shot in shots]
    assert deltas(turned, *others) == plain
    assert len(plain) > 1


def _renumbered(shot: EGraphSnapshot, turn: Any) -> EGraphSnapshot:
    class_of = {id: turn(c) for id, c in shot.class_of.items()}
    enodes = [(op, tuple(map(turn, args)), attrs, turn(c)) for op, args, attrs, c in shot.enodes]
    fired = [[(tuple(map(turn, env)), attrs, turn(root)) for env, attrs, root in rows] for rows in shot.fired]
    return EGraphSnapshot(class_of, enodes, fired)


# order ----------------------------------------------------------------------------------------------------------------
def test_topological_order_is_by_rank_where_inputs_allow_it() -> None:
    assert topological({0: (2,), 1: (), 2: (1,), 3: ()}) == [1, 2, 0, 3]
    assert topological({0: (), 1: (0,), 2: (0, 0)}) == [0, 1, 2]
    assert topological({0: (), 1: (0,), 2: (0,), 7: (0,)}, {0: 0, 1: 1, 2: 2, 7: 1}) == [0, 1, 7, 2]
    assert topological({0: (), 1: (7,), 2: (0,), 7: (0,)}, {0: 0, 1: 1, 2: 2, 7: 5}) == [0, 2, 7, 1]


def test_interning_keeps_zeros_apart() -> None:
    numbers = Interner()
    assert numbers(0.0) != numbers(-0.0) and interned(1) != interned(True)
