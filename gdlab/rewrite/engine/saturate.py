"""Saturate a graph under rules with egglog: rows in, rows out, on the one thread that owns every e-graph.

The compiled bindings are used alone (the Python layer of egglog takes seconds on graphs of this size), and its
extractor never. A graph is loaded as rows of relations, one iteration is one call, growth is predicted before the next.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from gdlab.base.errors import OptimizeError, SessionError
from gdlab.base.threads import Job, OwnerThread, wait_for
from gdlab.base.words import duration, plural, sig, whole
from gdlab.rewrite.engine.egglog_program import GraphRows, RuleProgram
from gdlab.rewrite.rules.pattern import COMMUTATIVE

__all__ = ["Budget", "ENode", "EngineFailure", "Firing", "BudgetCheck", "Saturation", "EGraphSnapshot", "saturate"]

ENGINES_KEPT = 16  # small ones: each holds the ops and rules of one kind of graph
RUNS = 64  # of one engine: its e-graph keeps a report of every iteration, 6 KB a run, which Pop does not remove
BELIEVED = 0.02  # of our own clock: egglog 14 accounts for a third of it, egglog 13 for a thousandth
OPEN_FILES = "/proc/self/fd"  # the names of this process's open files, where the system has them
SLICE_SECONDS = 0.05  # the longest wait for Ctrl-C
Stop = Literal["saturated", "iterations", "enodes", "time"]


class EngineFailure(Exception):
    """The failure of egglog, or its absence, as text. Everything it held is dropped."""


@dataclass(frozen=True)
class Budget:
    """Limits of a saturation: iterations, e-nodes (None: max(20000, 10·n)) and seconds (None: no limit)."""

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
        """Return the e-node limit for a graph of `nodes` nodes."""
        return max(20_000, 10 * nodes) if self.enodes is None else self.enodes


ENode = tuple[str, tuple[int, ...], tuple[int, ...], int]  # op, operand classes, attribute numbers, class
Firing = tuple[tuple[int, ...], tuple[int, ...], int]  # classes of the variables, attribute numbers, class of the root


@dataclass
class EGraphSnapshot:
    """The e-graph at one moment, with arbitrary class numbers: the class of every node, all e-nodes, and the firings so
    far of each rule of the program."""

    class_of: dict[int, int] = field(default_factory=dict)
    enodes: list[ENode] = field(default_factory=list)
    fired: list[list[Firing]] = field(default_factory=list)


@dataclass
class Saturation:
    """The result of an engine: the e-graph at the end (`history`: at the start and after every iteration, on request),
    and counts of its work."""

    last: EGraphSnapshot = field(default_factory=EGraphSnapshot)
    history: list[EGraphSnapshot] = field(default_factory=list)
    first_seen: list[int | None] = field(default_factory=list)  # per rule: the iteration of all its firings, if one
    matched: list[int] = field(default_factory=list)
    rule_seconds: list[float] = field(default_factory=list)
    iterations: list[tuple[int, int, int, float]] = field(default_factory=list)  # e-nodes, e-classes, matches, seconds
    stop: Stop = "saturated"
    detail: str = ""

    @property
    def class_of(self) -> dict[int, int]:
        """The class of every node at the end."""
        return self.last.class_of

    @property
    def enodes(self) -> list[ENode]:
        """The e-nodes at the end."""
        return self.last.enodes

    @property
    def fired(self) -> list[list[Firing]]:
        """The firings of every rule."""
        return self.last.fired


class BudgetCheck:
    """The check of the budget after every iteration; it also guesses the size after the next one."""

    def __init__(self, nodes: int, budget: Budget) -> None:
        self.budget, self.cap, self.begin = budget, budget.cap(nodes), time.perf_counter()
        self.size, self.grown, self.rounds = max(nodes, 1), 1.0, 0
        self.stop: Stop = "iterations"
        self.detail = f"stopped after {plural(budget.iterations, 'iteration')}"

    def closed(self, enodes: int, updated: bool) -> bool:
        """Return whether saturation ends with this iteration; `stop` and `detail` say why."""
        self.rounds += 1
        ratio = enodes / self.size
        guess = enodes * ratio * max(1.0, ratio / self.grown) ** 2
        self.size, self.grown = max(enodes, 1), ratio
        seconds, allowed = time.perf_counter() - self.begin, self.budget.seconds
        if not updated:
            self.stop, self.detail = "saturated", ""
        elif enodes > self.cap:
            self.stop, self.detail = "enodes", f"{plural(enodes, 'e-node')}, {whole(self.cap)} allowed"
        elif self.rounds > 1 and ratio > 1.3 and guess > self.cap:
            growth = f"growing {sig(ratio)} times: about {whole(guess)} next"
            self.stop, self.detail = "enodes", f"{plural(enodes, 'e-node')}, {growth}, {whole(self.cap)} allowed"
        elif allowed is not None and seconds > allowed:
            self.stop, self.detail = "time", f"{duration(seconds)}, {duration(allowed)} allowed"
        return self.stop != "iterations"


# the owner thread -----------------------------------------------------------------------------------------------------
class _InputFiles:
    """Files for egglog to read. On Linux they lie in memory (a busy disk would hold every call up) and in no folder (a
    process that is killed leaves none); elsewhere in a temporary folder."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.folder = ""

    def path(self, name: str, text: str) -> str:
        """Write a file and return the path by which this process can read it."""
        if os.path.isdir(OPEN_FILES) and hasattr(os, "memfd_create"):
            self.handles.append(os.memfd_create(name))
            path = f"{OPEN_FILES}/{self.handles[-1]}"
        else:
            # a TemporaryDirectory would be emptied at exit before the thread ends
            self.folder = self.folder or tempfile.mkdtemp(prefix="gdlab-")
            path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        return path

    def close(self) -> None:
        """Release the memory; files of a folder are written over by the next ones."""
        while self.handles:
            os.close(self.handles.pop())

    def drop(self) -> None:
        """Remove all."""
        self.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class _Engines:
    """The e-graphs that are ready for use, the latest last, their input files, and the one thread that makes, uses and
    drops them: egglog's objects are bound to their thread."""

    def __init__(self) -> None:
        self.files = _InputFiles()
        self.ready: OrderedDict[RuleProgram, _Engine] = OrderedDict()
        self.owner = OwnerThread("egglog", self._drop)

    def run(self, program: RuleProgram, request: _Request) -> Job[Saturation | EngineFailure]:
        """Saturate on the owner thread. An error is returned as text: a traceback would keep e-graphs alive."""
        try:
            return self._of(program).run(request)
        except BaseException as e:  # a Rust panic is no Exception
            kind = "" if isinstance(e, EngineFailure) else f"{type(e).__name__}: "
            self.ready.clear()
            return EngineFailure(f"{kind}{e}".strip().partition("\n")[0])
        finally:
            request.begun.set()
        yield

    def clean(self) -> Job[None]:
        """Empty the engine that was used last: a job of its own after every run, so that no caller waits for it."""
        try:
            self.files.close()
            for engine in reversed(self.ready.values()):
                return engine.clean()
        except BaseException:
            self.ready.clear()
        yield

    def _of(self, program: RuleProgram) -> _Engine:
        engine = self.ready.pop(program, None)
        if engine is None or engine.runs >= RUNS:
            engine = _Engine(program, self.files)
        self.ready[program] = engine
        while len(self.ready) > ENGINES_KEPT:
            self.ready.popitem(last=False)
        return engine

    def _drop(self) -> None:
        self.ready.clear()
        self.files.drop()


@dataclass(frozen=True, slots=True)
class _Request:
    """A graph to saturate. `begun`: the owner is inside egglog, so the caller may compute without delaying it."""

    rows: GraphRows
    budget: Budget
    history: bool
    begun: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)


_engines: _Engines | None = None
_lock = threading.Lock()


def saturate(
    program: RuleProgram,
    rows: GraphRows,
    budget: Budget,
    *,
    history: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Saturation:
    """Load `rows`, saturate, decode; call `meanwhile` while egglog works. Raises `EngineFailure`; Ctrl-C stops it at
    the next iteration."""
    global _engines
    if _forked or (_engines is not None and _engines.owner.pid != os.getpid()):  # its workers are gone: it would hang
        raise EngineFailure("egglog was imported before this process was forked off; start processes with spawn")
    request = _Request(rows, budget, history)
    with _lock:
        if _engines is None or not _engines.owner.open:
            _engines = _Engines()
        future = _engines.owner.post(_engines.run(program, request))
        _engines.owner.post(_engines.clean())
    try:
        request.begun.wait(SLICE_SECONDS)
        meanwhile()
        result = wait_for(future)
    except SessionError as error:
        raise EngineFailure(str(error)) from None
    except BaseException:
        request.cancelled.set()
        raise
    if isinstance(result, EngineFailure):
        raise result
    return result


# the engine, on the owner's thread only -------------------------------------------------------------------------------
_MODULE = "egglog.bindings"
Tables = Mapping[str, Sequence[Any]]  # egglog's rows by table
_forked = False  # from a process that had imported egglog, whoever did


def _note_fork() -> None:
    global _forked
    _forked |= _MODULE in sys.modules


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_note_fork)


_importing = threading.Lock()


def bindings() -> Any:
    """Import egglog's compiled module alone: importing the package takes a second.

    Once per process, and under its own name, because initialising it a second time panics (egglog 14.0.0).
    """
    with _importing:
        return _bindings()


def _bindings() -> Any:
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
    """One e-graph with schema and rules; every graph is loaded between a push and a pop. It waits pushed."""

    def __init__(self, program: RuleProgram, files: _InputFiles) -> None:
        self.program, self.egg, self.files, self.runs = program, bindings(), files, 0
        self.at, self.graph = self.egg.RustSpan("", 0, 0), self.egg.EGraph()
        self.enodes = ["Leaf", *(s.egg for s in program.constructors.values())]
        self.fired = [f"F_{j}" for j in range(len(program.rules))]
        self.rule_at = {f"r_{j}": j for j in range(len(program.rules))}
        self.graph.run_program(self.egg.Include(self.at, files.path("program.egg", program.text)))
        self.graph.run_program(self.egg.Push(1))

    def run(self, request: _Request) -> Saturation:
        """Saturate one graph; `clean` before the next. An engine whose run failed is dropped."""
        self.runs += 1
        self._load(request.rows, request.begun)
        return self._iterate(request.rows.count, request.budget, request.cancelled, request.history)

    def clean(self) -> None:
        """Forget the graph."""
        self.graph.run_program(self.egg.Pop(self.at, 1), self.egg.Push(1))

    def _load(self, rows: GraphRows, begun: threading.Event) -> None:
        tables = rows.tables(self.program).items()
        inputs = [self.egg.Input(self.at, name, self.files.path(name, text)) for name, text in tables]
        begun.set()
        # one call: between two the owner would wait until the caller, who computes meanwhile, lets it go on
        self.graph.run_program(*inputs, self._once("ingest"))

    def _once(self, rules: str) -> Any:
        return self.egg.RunSchedule(self.egg.Run(self.at, self.egg.RunConfig(rules, None)))

    def _step(self, rules: str) -> Any:
        return self.graph.run_program(self._once(rules))[0].report

    def _iterate(self, nodes: int, budget: Budget, cancelled: threading.Event, history: bool) -> Saturation:
        rules = range(len(self.program.rules))
        found = Saturation(matched=[0 for _ in rules], rule_seconds=[0.0 for _ in rules])
        check, sizes = BudgetCheck(nodes, budget), [[0] * len(rules)]
        frozen: list[Tables] = []  # the tables after every iteration, with history after loading too
        if history or not budget.iterations:
            frozen.append(self._tables())
        for _ in range(budget.iterations):
            start = time.perf_counter()
            report = self._step("opt")
            seconds = time.perf_counter() - start
            matches = report.num_matches_per_rule  # each access makes a dict of all rules
            self._count(found, matches, report.search_and_apply_time_per_rule, seconds)
            frozen.append(self._tables() if report.updated or not frozen else frozen[-1])
            now = sum([len(frozen[-1][name]) for name in self.enodes])
            sizes.append([len(frozen[-1][name]) for name in self.fired])
            found.iterations.append((now, 0, sum(matches.values()), seconds))
            if cancelled.is_set():
                raise EngineFailure("cancelled")
            if check.closed(now, report.updated):
                break
        found.stop, found.detail = check.stop, check.detail
        found.first_seen = list(map(_one_iteration, zip(*sizes, strict=True)))
        found.last, classes = self._decode(frozen[-1])
        if found.stop != "saturated":
            found.last = _merged(found.last)
        if history:
            found.history = [found.last if t is frozen[-1] else _merged(self._decode(t)[0]) for t in frozen]
        self._count_classes(found, frozen[-len(found.iterations) :] if found.iterations else [], classes)
        return found

    def _tables(self) -> Tables:
        """Return the rows of the tables that are read: node ids, e-nodes and firings."""
        functions = self.graph.freeze().functions
        return {name: functions[name].rows for name in ("N", *self.enodes, *self.fired)}

    def _count(
        self, found: Saturation, matches: Mapping[str, int], spent: Mapping[str, timedelta], seconds: float
    ) -> None:
        """Add matches and time per rule: the iteration by our clock, divided in proportion to egglog's times.

        egglog 13 reports times a thousand times too small, in whole microseconds: where they add up to next to nothing,
        matches share instead.
        """
        times = {n: t.total_seconds() for n, t in spent.items() if t}
        believable = sum(times.values()) > BELIEVED * seconds
        shares: Mapping[str, float] = times if believable else matches
        whole = sum(shares.values()) or 1.0
        for name in self.rule_at.keys() & matches.keys():
            j = self.rule_at[name]
            found.matched[j] += matches[name]
            found.rule_seconds[j] += seconds * shares.get(name, 0) / whole

    def _count_classes(self, found: Saturation, frozen: Sequence[Tables], last: int) -> None:
        """Fill in the number of classes after every iteration; the last was counted when it was decoded."""
        for k, tables in enumerate(frozen):
            counted = tables is frozen[-1]
            count = last if counted else len({row.output for name in self.enodes for row in tables[name]})
            enodes, _, matches, seconds = found.iterations[k]
            found.iterations[k] = enodes, count, matches, seconds

    def _decode(self, tables: Tables) -> tuple[EGraphSnapshot, int]:
        """Return the tables as a snapshot, and the number of classes."""
        classes: defaultdict[Any, int] = defaultdict(itertools.count().__next__)
        numbers = _Numbers(self.graph.value_to_i64)
        class_of, number = classes.__getitem__, numbers.__getitem__
        seen = EGraphSnapshot()
        seen.class_of = {number(row.inputs[0]): class_of(row.output) for row in tables["N"]}
        for (op, n), s in self.program.constructors.items():
            rows = tables[s.egg]
            if not s.attrs:
                seen.enodes += [(op, tuple(map(class_of, row.inputs)), (), class_of(row.output)) for row in rows]
                continue
            for row in rows:
                inputs = row.inputs
                attrs = tuple(map(number, inputs[n:]))
                seen.enodes.append((op, tuple(map(class_of, inputs[:n])), attrs, class_of(row.output)))
        for name, rule in zip(self.fired, self.program.rules, strict=True):
            n = len(rule.variables)
            seen.fired.append([_firing(row.inputs, n, class_of, number) for row in tables[name]])
        return seen, len(classes)


def _merged(shot: EGraphSnapshot) -> EGraphSnapshot:
    """Merge the classes that hold one e-node of a commutative op in two orders of its operands.

    Turning operands around is a rule here: before the iteration that applies it, x + y and y + x may be two classes.
    """
    while same := _two_orders(shot):
        class_of = {id: same.get(c, c) for id, c in shot.class_of.items()}
        enodes = [(op, tuple([same.get(k, k) for k in operands]), attrs, same.get(c, c))
                  for op, operands, attrs, c in shot.enodes]  # fmt: skip
        fired = [[(tuple([same.get(k, k) for k in env]), attrs, same.get(root, root)) for env, attrs, root in rows]
                 for rows in shot.fired]  # fmt: skip
        shot = EGraphSnapshot(class_of, list(dict.fromkeys(enodes)), [list(dict.fromkeys(rows)) for rows in fired])
    return shot


def _two_orders(shot: EGraphSnapshot) -> dict[int, int]:
    """Map every class that is to be merged to the class that stays: the lowest of those with an e-node in common.

    All e-nodes are looked at: those of other ops become equal when the classes of their operands are merged.
    """
    home: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    stays: dict[int, int] = {}

    def root(c: int) -> int:
        while c in stays:
            c = stays[c]
        return c

    for op, operands, attrs, c in shot.enodes:
        key = op, tuple(sorted(operands)) if op in COMMUTATIVE else operands, attrs
        a, b = root(home.setdefault(key, c)), root(c)
        if a != b:
            stays[max(a, b)] = min(a, b)
    return {c: root(c) for c in stays}


class _Numbers(dict[Any, int]):
    """i64 values of the e-graph as ints, each decoded once."""

    def __init__(self, decode: Callable[[Any], int]) -> None:
        self.decode = decode

    def __missing__(self, value: Any) -> int:
        found = self[value] = self.decode(value)
        return found


def _firing(
    row: Sequence[Any], variables: int, class_of: Callable[[Any], int], number: Callable[[Any], int]
) -> Firing:
    return tuple(map(class_of, row[:variables])), tuple(map(number, row[variables:-1])), class_of(row[-1])


def _one_iteration(sizes: Sequence[int]) -> int | None:
    """Return the iteration (from 1) in which all of a count's growth from 0 happened; None where it took several."""
    grown = [k for k, (a, b) in enumerate(itertools.pairwise(sizes), 1) if a != b]
    return grown[0] if len(grown) == 1 else None
