"""Two engines over one rule table: egglog and the worklist find graphs of equal cost and tell the same of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing import replayed
from optimizing import MANY, PHASES, check_laws, check_replay, graph_of, mlp_with_gate, p, run_alone, transformer
from random_graphs import random_feeds, random_graph
from structure import same_structure

import gdlab.ops as ops
from gdlab.base.errors import UnknownNameError
from gdlab.graph import Graph
from gdlab.rewrite import RULES, Budget, OptimizeReport, optimize
from gdlab.rewrite.engine import saturate as egraph
from gdlab.rewrite.engine import worklist
from gdlab.rewrite.engine.egglog_program import program_of
from gdlab.rewrite.engine.history import NamedNode


@pytest.mark.parametrize("batch", range(4))
def test_both_engines_find_graphs_of_equal_cost(batch: int) -> None:
    for seed in range(batch, max(MANY, 48), 4):
        graph = random_graph(seed)
        _, first = optimize(graph, phase=PHASES[seed % 3])
        _, second = optimize(graph, phase=PHASES[seed % 3], engine="fallback")
        assert (first.engine, second.engine) == ("egglog", "fallback")
        assert second.cost_after <= 1.05 * first.cost_after
        if first.stop_reason == second.stop_reason == "saturated":
            assert second.cost_after == first.cost_after
            assert (second.num_enodes, second.num_eclasses) == (first.num_enodes, first.num_eclasses)
            assert [(r.fired, r.created, r.used) for r in second.rules] == [
                (r.fired, r.created, r.used) for r in first.rules
            ]


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_the_fallback_engine_keeps_every_law(seed: int) -> None:
    graph = random_graph(seed)
    result, report = optimize(graph, phase=PHASES[seed % 3], engine="fallback")
    check_laws(graph, result, report, random_feeds(graph, seed))
    assert sum(i.seconds for i in report.iterations) > 0 or not report.iterations


def test_the_fallback_engine_trains_a_transformer() -> None:
    graph = transformer(2, train=True)
    result, report = optimize(graph, phase="full", engine="fallback")
    other, told = optimize(graph, phase="full")
    assert report.cost_after == told.cost_after and same_structure(result, other)
    check_replay(graph, result, report, random_feeds(graph, 1))


def test_the_fallback_engine_stops_at_its_budget() -> None:
    graph = transformer(2)
    for budget, reason in ((Budget(iterations=1), "iterations"), (Budget(enodes=10), "enodes"),
                           (Budget(seconds=0.0), "time")):  # fmt: skip
        result, report = optimize(graph, phase="forward", engine="fallback", budget=budget)
        assert report.stop_reason == reason and len(report.iterations) == 1
        check_laws(graph, result, report, random_feeds(graph, 1))


def test_an_engine_is_made_anew_after_some_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """egglog keeps a report of every iteration in an e-graph, also when it is popped: 6 KB a run for ever."""
    made = list[str]()
    begin = egraph._Engine.__init__

    def counted(engine: Any, program: Any, files: Any) -> None:
        made.append(program.text)
        begin(engine, program, files)

    monkeypatch.setattr(egraph._Engine, "__init__", counted)
    monkeypatch.setattr(egraph, "RUNS", 2)
    graphs = [optimize(mlp_with_gate(), phase="forward", engine="egglog")[0] for _ in range(7)]
    assert 3 <= len(made) <= 4 and len(set(made)) == 1
    assert len({str(graph) for graph in graphs}) == 1


FOLDERS_MADE = """
import os, sys
from gdlab import ops
from gdlab.graph import Graph
from gdlab.rewrite import optimize
made = []
sys.addaudithook(lambda event, args: made.append(args[0]) if event == "tempfile.mkdtemp" else None)
with Graph() as g:
    g.output(ops.relu(ops.input("x", (2, 2)) * 1.0))
for _ in range(6):
    assert optimize(g, phase="forward", engine="egglog")[1].engine == "egglog"
    if os.path.isdir("/proc/self/fd"):
        print(len(os.listdir("/proc/self/fd")), file=sys.stderr)
print(*made)
"""


def test_a_process_that_is_killed_leaves_no_files_in_memory() -> None:
    """On Linux none has a name, and those of a call are released behind it; elsewhere one folder goes at the exit."""
    run = subprocess.run([sys.executable, "-c", FOLDERS_MADE], capture_output=True, text=True, check=True)
    made, handles = run.stdout.split(), [int(count) for count in run.stderr.split()]
    assert len(made) == (0 if hasattr(os, "memfd_create") else 1) and not any(map(os.path.exists, made))
    assert not handles or handles[-1] < handles[0] + 5, "two a call"


@pytest.mark.parametrize("names", ["/none", egraph.OPEN_FILES])
def test_input_files_lie_in_a_folder_where_open_files_have_no_name(
    names: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(egraph, "OPEN_FILES", names)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = egraph._InputFiles()
    path = files.path("a", "1\n")
    assert Path(path).read_bytes() == b"1\n"
    assert len([*tmp_path.iterdir()]) == (0 if os.path.isdir(names) else 1)
    files.drop()
    assert not [*tmp_path.iterdir()]


def test_an_iteration_is_asked_for_its_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of egglog is a dict of all rules or tables; where nothing is new the tables are as they were."""
    asked, step, new = list[str](), egraph._Engine._step, list[bool]()

    class Noted:
        def __init__(self, of: Any) -> None:
            self.of = of

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self.of, name)

        def run_program(self, *commands: Any) -> Any:
            asked.extend(type(c).__name__ for c in commands)
            return self.of.run_program(*commands)

    def noted(self: egraph._Engine, rules: str) -> Any:
        report = step(self, rules)
        new.extend([report.updated] * (rules == "opt"))
        return Noted(report)

    run = egraph._Engine.run

    def watched(self: egraph._Engine, request: Any) -> Any:
        graph, self.graph = self.graph, Noted(self.graph)
        try:
            return run(self, request)
        finally:
            self.graph = graph

    monkeypatch.setattr(egraph._Engine, "_step", noted)
    monkeypatch.setattr(egraph._Engine, "run", watched)
    _, report = optimize(mlp_with_gate(), phase="forward", engine="egglog")
    assert report.stop_reason == "saturated" and new == [True] * (len(new) - 1) + [False] and len(new) > 1
    assert asked.count("num_matches_per_rule") == len(new) == len(report.iterations)
    assert asked.count("freeze") == sum(new) and "PrintSize" not in asked
    last, before = report.iterations[-1], report.iterations[-2]
    assert (last.enodes, last.eclasses) == (before.enodes, before.eclasses)


def test_an_engine_is_named_as_it_is_spelled() -> None:
    with pytest.raises(UnknownNameError, match="one of auto, egglog, fallback"):
        optimize(mlp_with_gate(), phase="forward", engine="worklist")  # type: ignore[arg-type]


def test_commutative_twins_are_one_for_both() -> None:
    def make() -> Any:
        x, y = p("x", 3), p("y", 3)
        return [ops.tanh(x + y), ops.tanh(y + x)]

    for engine in ("egglog", "fallback"):
        result, report = optimize(graph_of(make), phase="forward", engine=engine)  # type: ignore[arg-type]
        assert [n.op for n in result] == ["parameter", "parameter", "add", "tanh"], engine
        assert (report.num_enodes, report.num_eclasses) == (5, 4)


# any number of operands -----------------------------------------------------------------------------------------------
def variadic_op() -> str | None:
    from gdlab.op import REGISTRY

    return next((op.name for op in REGISTRY.values() if op.variadic and op.kind != "private"), None)


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
def test_rules_work_below_and_above_an_op_of_any_number_of_operands(engine: Any) -> None:
    assert variadic_op() == "concat"

    def make() -> Any:
        x, y = p("x", 2, 3), p("y", 2, 3)
        two = ops.concat([ops.neg(ops.neg(x)), y], axis=0)
        three = ops.concat([x, y, ops.neg(ops.neg(y))], axis=0)
        return [ops.neg(ops.neg(two)), three, ops.concat([x, y], axis=0), ops.concat([x, y], axis=1)]

    graph = graph_of(make)
    result, report = optimize(graph, phase="forward", engine=engine)
    assert [n.op for n in result] == ["parameter", "parameter", "concat", "concat", "concat"]
    assert result.output_ids[0] == result.output_ids[2] and len(set(result.output_ids)) == 3
    check_laws(graph, result, report, random_feeds(graph, 1))


# programs -------------------------------------------------------------------------------------------------------------
def test_a_program_holds_what_a_graph_can_come_to() -> None:
    whole = program_of(list(RULES))
    assert program_of(list(RULES)) is whole and set(program_of(list(RULES), [("neg", 1)]).signatures) < set(
        whole.signatures
    )
    part = program_of(list(RULES), [("mul", 2), ("sigmoid", 1)])
    assert {"mul", "sigmoid", "silu", "swiglu"} <= set(part.signatures)  # silu by a rule, swiglu by one after that
    assert "matmul" not in part.signatures and {r.name for r in part.rules} >= {"fuse_silu", "fuse_swiglu"}


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
def test_the_program_alone_gives_the_same_e_graph(engine: Any) -> None:
    for graph in (mlp_with_gate(), transformer(1, train=True), random_graph(7)):
        report = optimize(graph, phase="full", engine=engine)[1]
        assert run_alone(report) == (report.num_enodes, report.num_eclasses)


# history --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["egglog", "fallback"])
@pytest.mark.parametrize("seed", [2, 5, 11, 17, None])
def test_deltas_replay_to_the_e_graph_of_every_iteration(engine: Any, seed: int | None) -> None:
    graph = transformer(1, train=True) if seed is None else random_graph(seed)
    plain, told = optimize(graph, phase="full", engine=engine)
    result, report = optimize(graph, phase="full", engine=engine, history=True)
    assert same_structure(result, plain) and told.deltas == ()
    assert len(report.deltas) == len(report.iterations) + 1
    assert {n.label for n in report.deltas[0].added} <= {None} and report.deltas[0].merged == ()
    leaves = len(report.node_map) - len([n for n in graph if n.inputs or n.op == "full"])
    for k in range(1, len(report.deltas)):
        nodes = replayed(report.deltas, k)
        assert names_of(nodes) == sorted(names_of(nodes), key=lambda name: (name[0] != "%", int(name[1:])))
        assert len(nodes) == distinct_e_nodes(graph, report, k, engine), k
    last = {n.cls for n in replayed(report.deltas, len(report.deltas) - 1)}
    assert report.num_eclasses - leaves <= len(last) <= report.num_eclasses
    made = {n.label for d in report.deltas[1:] for n in d.added} - {None}
    assert made <= {r.label for r in RULES}
    used = sum(r.used for r in report.rules if r.id not in ("cse", "fold_constant"))
    assert sum(count for d in report.deltas for _, count in d.fired) >= used


def names_of(nodes: frozenset[NamedNode]) -> list[str]:
    return sorted({n.cls for n in nodes}, key=lambda name: (name[0] != "%", int(name[1:])))


def distinct_e_nodes(graph: Graph, report: OptimizeReport, k: int, engine: Any) -> int:
    """E-nodes after k iterations by another way: the search cut short there, both orders of a sum counted once."""
    history: list[Any] = []
    plain = worklist.saturate if engine == "fallback" else egraph.saturate

    def spy(*arguments: Any, **options: Any) -> Any:
        history.append(plain(*arguments, **options))
        return history[-1]

    from gdlab.rewrite import optimizer as pipeline

    where, name = (worklist, "saturate") if engine == "fallback" else (pipeline, "saturate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, spy)
        optimize(graph, phase="full", engine=engine, budget=Budget(iterations=k))
    commutative = {"add", "mul", "maximum", "minimum", "equal"}
    return len({(op, tuple(sorted(args)) if op in commutative else args, attrs, c)
                for op, args, attrs, c in history[0].enodes})  # fmt: skip


def test_deltas_are_small_and_plain() -> None:
    import json

    graph = transformer(4, train=True)
    report = optimize(graph, phase="full", history=True)[1]
    plain = json.dumps([d.to_json() for d in report.deltas], ensure_ascii=False, separators=(",", ":"))
    assert len(plain) < 40 * len(graph) * len(report.deltas)
    first = report.deltas[1].to_json()["added"][0]
    assert set(first) >= {"class", "op", "children", "label"} and first["class"][0] in "%+"


def test_a_merged_class_takes_the_lower_name() -> None:
    graph = graph_of(lambda: ops.tanh(ops.neg(ops.neg(p("x", 3)))))
    report = optimize(graph, phase="forward", history=True)[1]
    assert ("%0", "%2") in report.deltas[1].merged
    assert {n.cls for n in replayed(report.deltas, 1)} == {"%0", "%1", "%3"}


def test_values_of_both_engines_agree() -> None:
    from gdlab.op.reference import evaluate

    graph = random_graph(41)
    feeds = random_feeds(graph, 41)
    got = [optimize(graph, phase="forward", engine=e)[0] for e in ("egglog", "fallback")]  # type: ignore[arg-type]
    for a, b in zip(got[0].output_ids, got[1].output_ids, strict=True):
        assert np.array_equal(evaluate(got[0], feeds)[a], evaluate(got[1], feeds)[b], equal_nan=True)
