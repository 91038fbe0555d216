"""Saturate a graph under rules with egglog: rows in, rows out, on the one thread that owns every e-graph.

The compiled bindings are used alone (the Python layer of egglog takes seconds on graphs of this size), and its
extractor never. A graph is loaded as rows of relations, one iteration is one call, growth is predicted before the next.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import queue
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gdlab.errors import OptimizeError
from gdlab.rewrite.program import Program, Rows

__all__ = ["Budget", "EngineFailure", "Saturation", "saturate", "stop_engine"]

ENGINES_KEPT = 4
SLICE_SECONDS = 0.05  # how long Ctrl-C waits at most
Stop = Literal["saturated", "iterations", "enodes", "time"]


class EngineFailure(Exception):
    """egglog is missing, or it failed; the text says how. Everything it held is dropped."""


@dataclass(frozen=True)
class Budget:
    """When saturation stops: after so many iterations, e-nodes (None: max(20000, 10·n)) or seconds (None: no limit)."""

    iterations: int = 20
    enodes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("iterations", int), ("enodes", int), ("seconds", (int, float))):
            value = getattr(self, name)
            if value is None and name != "iterations":
                continue
            if not isinstance(value, kinds) or isinstance(value, bool) or not value >= 0:
                raise OptimizeError("Budget", name, repr(value), f"{'a number' if name == 'seconds' else 'an int'} ≥ 0")

    def cap(self, nodes: int) -> int:
        """The e-node limit for a graph of `nodes` nodes."""
        return max(20_000, 10 * nodes) if self.enodes is None else self.enodes


@dataclass
class Saturation:
    """What egglog found, with classes as numbers of no meaning: `class_of[node]`, e-nodes as (op, operand classes,
    attribute numbers, class), and per rule its firings (classes of variables, attribute numbers, class of the root)."""

    class_of: dict[int, int] = field(default_factory=dict)
    enodes: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    fired: list[list[tuple[tuple[int, ...], tuple[int, ...], int]]] = field(default_factory=list)
    first_seen: list[int | None] = field(default_factory=list)  # per rule: the iteration of all its firings, if one
    matched: list[int] = field(default_factory=list)
    rule_seconds: list[float] = field(default_factory=list)
    iterations: list[tuple[int, int, int, float]] = field(default_factory=list)  # e-nodes, e-classes, matches, seconds
    stop: Stop = "saturated"
    detail: str = ""


# the owner thread -----------------------------------------------------------------------------------------------------
class _Job:
    """A closure for the owner, and the way back. An error comes back as text: a traceback would carry e-graphs."""

    def __init__(self, work: Callable[[OrderedDict[Program, Any], threading.Event], Saturation]) -> None:
        self.work, self.cancelled, self.done = work, threading.Event(), threading.Event()
        self.result: Saturation | None = None
        self.failure = ""

    def run(self, engines: OrderedDict[Program, Any]) -> None:
        try:
            self.result = self.work(engines, self.cancelled)
        except BaseException as e:  # a Rust panic is no Exception
            self.failure = f"{type(e).__name__}: {e}".strip().partition("\n")[0]
            engines.clear()
        self.done.set()

    def wait(self) -> Saturation:
        try:
            while not self.done.wait(SLICE_SECONDS):
                pass
        except BaseException:
            self.cancelled.set()
            raise
        if self.result is None:
            raise EngineFailure(self.failure)
        return self.result


class _Owner:
    """The thread that makes, uses and drops every e-graph: egglog's objects are bound to their thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="gdlab-egglog", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        engines: OrderedDict[Program, Any] = OrderedDict()
        while (job := self.jobs.get()) is not None:
            job.run(engines)
            del job
        engines.clear()

    def stop(self) -> None:
        if self.pid == os.getpid():
            self.jobs.put(None)
            self.thread.join(10)


_owner: _Owner | None = None
_lock = threading.Lock()


def saturate(program: Program, rows: Rows, budget: Budget) -> Saturation:
    """Load `rows`, saturate, decode. Raises `EngineFailure`; Ctrl-C stops it at the next iteration."""
    global _owner
    if _owner is not None and _owner.pid != os.getpid():  # egglog's own workers are gone too: it would wait for ever
        raise EngineFailure("egglog was used before this process was forked off; start processes with spawn")
    with _lock:
        if _owner is None or not _owner.thread.is_alive():
            if _owner is None:
                atexit.register(stop_engine)
            _owner = _Owner()
        job = _Job(lambda engines, cancelled: _engine(engines, program).run(rows, budget, cancelled))
        _owner.jobs.put(job)
    return job.wait()


def stop_engine() -> None:
    """End the owner thread, which drops every e-graph; the next call of `saturate` starts another."""
    if _owner is not None:
        _owner.stop()


def _engine(engines: OrderedDict[Program, Any], program: Program) -> _Engine:
    engine = engines.pop(program, None) or _Engine(program)
    engines[program] = engine
    while len(engines) > ENGINES_KEPT:
        engines.popitem(last=False)
    return engine


# the engine, on the owner's thread only -------------------------------------------------------------------------------
_MODULE = "egglog.bindings"


def _bindings() -> Any:
    """egglog's compiled module alone: importing the package takes a second.

    Once per process, and under its own name, because initialising it a second time panics (egglog 14.0.0).
    """
    found = importlib.util.find_spec("egglog")
    if found is None or not found.submodule_search_locations:
        raise EngineFailure("egglog is not installed")
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    folder = Path(next(iter(found.submodule_search_locations)))
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for path in sorted(folder.glob(f"bindings*{suffix}")):
            spec = importlib.util.spec_from_file_location(_MODULE, path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                sys.modules[_MODULE] = module
                return module
    raise EngineFailure(f"egglog has no compiled module in {folder.name}")


class _Engine:
    """One e-graph with schema and rules; every graph is loaded between a push and a pop."""

    def __init__(self, program: Program) -> None:
        self.program, self.egg = program, _bindings()
        self.at, self.graph = self.egg.RustSpan("", 0, 0), self.egg.EGraph()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "program.egg")
            path.write_text(program.text, encoding="utf-8")
            self.graph.run_program(self.egg.Include(self.at, str(path)))

    def run(self, rows: Rows, budget: Budget, cancelled: threading.Event) -> Saturation:
        self.graph.run_program(self.egg.Push(1))
        try:
            self._load(rows)
            found = self._iterate(rows.count, budget, cancelled)
            self._decode(found)
            return found
        finally:
            self.graph.run_program(self.egg.Pop(self.at, 1))

    def _load(self, rows: Rows) -> None:
        with tempfile.TemporaryDirectory() as folder:
            commands: list[Any] = []
            for name, lines in rows.tables(self.program).items():
                path = Path(folder, f"{len(commands)}.tsv")
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
                commands.append(self.egg.Input(self.at, name, str(path)))
            self.graph.run_program(*commands)
        self._step("ingest")

    def _step(self, rules: str) -> Any:
        run = self.egg.Run(self.at, self.egg.RunConfig(rules, None))
        return self.graph.run_program(self.egg.RunSchedule(run))[0].report

    def _iterate(self, nodes: int, budget: Budget, cancelled: threading.Event) -> Saturation:
        rules = range(len(self.program.rules))
        found = Saturation(matched=[0 for _ in rules], rule_seconds=[0.0 for _ in rules], stop="iterations")
        sizes: list[list[int]] = []
        size, grown, cap, begin = max(nodes, 1), 1.0, budget.cap(nodes), time.perf_counter()
        found.detail = f"stopped after {budget.iterations} iterations"
        for k in range(budget.iterations):
            start = time.perf_counter()
            report = self._step("opt")
            seconds = time.perf_counter() - start
            self._count(found, report, seconds)
            counts = dict(self.graph.run_program(self.egg.PrintSize(self.at, None))[0].sizes)
            sizes.append([counts.get(f"F_{j}", 0) for j in rules])
            now = sum(counts.get(s.egg, 0) for s in self.program.signatures.values()) + counts.get("Leaf", 0)
            ratio = now / size
            guess = now * ratio * max(1.0, ratio / grown) ** 2
            matches = sum(report.num_matches_per_rule.values())
            classes = self._classes() if report.updated or k == 0 else found.iterations[-1][1]
            found.iterations.append((now, classes, matches, seconds))
            size, grown = now, ratio
            if cancelled.is_set():
                raise EngineFailure("cancelled")
            if not report.updated:
                found.stop, found.detail = "saturated", ""
            elif now > cap:
                found.stop, found.detail = "enodes", f"{now} e-nodes, {cap} allowed"
            elif k >= 1 and ratio > 1.3 and guess > cap:
                found.stop = "enodes"
                found.detail = f"{now} e-nodes, growing {ratio:.1f} times: about {guess:.0f} next, {cap} allowed"
            elif budget.seconds is not None and time.perf_counter() - begin > budget.seconds:
                found.stop, found.detail = "time", f"{time.perf_counter() - begin:.2f} s, {budget.seconds} allowed"
            else:
                continue
            break
        found.first_seen = [_one_iteration([row[j] for row in sizes]) for j in rules]
        return found

    def _count(self, found: Saturation, report: Any, seconds: float) -> None:
        """Matches and time per rule. egglog 13 reports times a thousand times too small, so only their shares count."""
        shares = {n: t.total_seconds() for n, t in report.search_and_apply_time_per_rule.items()}
        whole = sum(shares.values()) or 1.0
        for j in range(len(self.program.rules)):
            found.matched[j] += report.num_matches_per_rule.get(f"r_{j}", 0)
            found.rule_seconds[j] += seconds * shares.get(f"r_{j}", 0.0) / whole

    def _classes(self) -> int:
        tables = self.graph.freeze().functions
        names = ["Leaf", *(s.egg for s in self.program.signatures.values())]
        return len({row.output for name in names for row in tables[name].rows})

    def _decode(self, found: Saturation) -> None:
        tables = self.graph.freeze().functions
        classes: dict[Any, int] = {}
        numbers: dict[Any, int] = {}
        decode = self.graph.value_to_i64

        def number(value: Any) -> int:
            if value not in numbers:
                numbers[value] = decode(value)
            return numbers[value]

        def class_of(value: Any) -> int:
            return classes.setdefault(value, len(classes))

        for row in tables["N"].rows:
            found.class_of[number(row.inputs[0])] = class_of(row.output)
        for op, s in self.program.signatures.items():
            for row in tables[s.egg].rows:
                inputs = row.inputs
                operands = tuple([class_of(v) for v in inputs[: s.inputs]])
                attrs = tuple([number(v) for v in inputs[s.inputs :]])
                found.enodes.append((op, operands, attrs, class_of(row.output)))
        for j, rule in enumerate(self.program.rules):
            n = len(rule.variables)
            found.fired.append(
                [
                    (tuple(map(class_of, r.inputs[:n])), tuple(map(number, r.inputs[n:-1])), class_of(r.inputs[-1]))
                    for r in tables[f"F_{j}"].rows
                ]
            )


def _one_iteration(sizes: Sequence[int]) -> int | None:
    """The iteration (from 1) in which a count went from 0 to where it stayed; None where it took several."""
    grown = [k for k, (a, b) in enumerate(zip([0, *sizes], sizes, strict=False), 1) if a != b]
    return grown[0] if len(grown) == 1 else None
