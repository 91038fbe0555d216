"""Run a study many times with other settings, here one after the other or on the engines of a cluster.

sweep = study.sweep({"adam": [1e-3, 3e-3], "init": range(4)}, steps=1000, feed=batches)
print(sweep); sweep.best("loss").settings; sweep[0].losses; sweep[0].parameters()
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

from gdlab.base.copies import refuse_copies
from gdlab.base.errors import ArgumentError, SessionError, unknown_name
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import Array
from gdlab.base.words import duration, grid, listed, plural, sig, whole
from gdlab.distributed.point_files import PointFiles
from gdlab.distributed.point_run import (
    Losses,
    PointProgress,
    PointResult,
    PointRunner,
    PointStopped,
    check_feed,
    start_of,
)
from gdlab.distributed.points import COMPILE_KEYS, PointSettings, settings_of, value_text, varied
from gdlab.study.study import Study

PointState = Literal["waiting", "running", "done", "failed", "stopped"]
SweepState = Literal["ready", "running", "paused", "done", "stopped"]
BEST = {"loss": 1, "lowest": 1, "seconds": 1, "steps_per_second": -1}  # column -> 1: the least is best, −1: the most

_POLL_SECONDS = 0.05
_latest: WeakKeyDictionary[Study, Sweep] = WeakKeyDictionary()


@dataclass(slots=True)
class SweepPoint:
    """One run of a sweep: its settings, its progress, and its result. `engine`: where it runs or ran; `retries`: how
    often it was queued again because an engine died."""

    index: int
    settings: Mapping[str, Any]
    wanted: int
    study: Study = field(repr=False)
    state: PointState = "waiting"
    engine: str = ""
    steps: int = 0
    losses: Losses = field(default_factory=list, repr=False)
    rate: float = 0.0
    seconds: float = 0.0
    error: str = ""
    note: str = ""
    retries: int = 0
    values: Mapping[str, Array | Packed] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """Return the settings in words."""
        return str(PointSettings(self.settings))

    @property
    def loss(self) -> float | None:
        """Return the newest loss, or None before the first."""
        return self.losses[-1][1] if self.losses else None

    @property
    def lowest(self) -> float | None:
        """Return the lowest finite loss so far, or None."""
        return min((loss for _, loss in self.losses if math.isfinite(loss)), default=None)

    def parameters(self) -> dict[str, Array | Packed]:
        """Return the parameters after the last step, blocks in their bytes. `SessionError` unless the point is done."""
        self._check_done("parameters")
        return dict(self.values)

    def variant(self) -> Study:
        """Return the point as a variant of the study, with the point's rules, compile options and parameters: the Diff
        tab of the study shows it."""
        self._check_done("variant")
        settings, study = PointSettings(self.settings), self.study
        options = {**study.options, **settings.options}
        chosen = {field: getattr(study.compile, field) for field in COMPILE_KEYS} | settings.part(COMPILE_KEYS)
        made = study.variant(f"point {self.index}: {self.label}", **options, compile=type(study.compile)(**chosen))
        made.weights = {**study.weights, **self.values}
        return made

    def _check_done(self, what: str) -> None:
        if self.state != "done":
            told = f": {self.error}" if self.error else ""
            raise SessionError("sweep", f"{what} of point {self.index}", f"{self.state}{told}", "a point that is done")

    def row(self) -> dict[str, Any]:
        """Return the row of `Sweep.table`."""
        return {
            "point": self.index, **self.settings, "state": self.state, "engine": self.engine, "steps": self.steps,
            "steps_per_second": self.rate, "loss": self.loss, "lowest": self.lowest, "seconds": self.seconds,
            "error": self.error,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """Something that happened to a sweep, seconds after it began."""

    seconds: float
    text: str


class Engines(Protocol):
    """The part of a cluster that a sweep uses: its ipyparallel client."""

    @property
    def client(self) -> Any: ...


class Sweep(Sequence[SweepPoint]):
    """The points of a sweep, in the order of their settings, and their progress; made by `Study.sweep`.

    `run()` computes what is missing; `pause`, `resume`, `stop` and `stop_point` may come from another thread while it
    does. Ctrl-C stops the points that run; those that are done stay.
    """

    def __init__(
        self, study: Study, settings: Sequence[PointSettings], steps: int, feed: Any, on: Any, retries: int, store: Any
    ) -> None:
        self.key = secrets.token_hex(8)
        self.study, self.steps, self.on, self.retries = study, steps, on, retries
        self.start = start_of(study, feed)
        self.keys = varied(settings)
        self.files = None if store is None else PointFiles(store, self.start)
        self.points = [
            SweepPoint(index, one.values, int(one.values.get("steps", steps)), study)
            for index, one in enumerate(settings)
        ]
        self.state: SweepState = "ready"
        self.events: list[SweepEvent] = []
        self.changes = 0  # counts what views show
        self.seconds = 0.0
        self._began = 0.0
        self._pause, self._stop = False, False
        self.unwanted: set[int] = set()  # points that somebody stops
        self.lock = threading.Lock()

    __reduce__ = refuse_copies("sweep", "sweep.table(), or the files of store=")

    # -- results -------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: Any) -> Any:
        return self.points[index]

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    def __repr__(self) -> str:
        return f"<Sweep of {self.study.name}: {self.fact()}>"

    def __str__(self) -> str:
        head = ("point", *self.keys, "state", "engine", "steps", "steps/s", "loss now", "lowest", "time")
        rows = [(str(point.index), *point_cells(point, self.keys)) for point in self.points]
        lines = [f"sweep of {self.study.name}: {self.fact()}"]
        lines += grid(head, rows, right={0, *range(len(self.keys) + 3, len(head))}, indent="")
        lines += [f"point {point.index}: {point.error}" for point in self.points if point.error]
        return "\n".join([*lines, *(f"{duration(event.seconds)}: {event.text}" for event in self.events)])

    def fact(self) -> str:
        """Return the state in words: `12 of 20 points done, 1 failed, 2 running`."""
        counts = {state: self.count(state) for state in ("failed", "stopped", "running")}
        told = [f"{whole(self.count('done'))} of {plural(len(self), 'point')} done"]
        told += [f"{whole(count)} {state}" for state, count in counts.items() if count]
        return ", ".join([*told, *(["paused"] if self.state == "paused" else [])])

    def count(self, state: PointState) -> int:
        """Return how many points are in a state."""
        return sum(point.state == state for point in self.points)

    def table(self) -> list[dict[str, Any]]:
        """Return a dict of each point: its settings, state, engine, steps, losses, times and error."""
        return [point.row() for point in self.points]

    def best(self, by: str = "loss") -> SweepPoint:
        """Return the point with the least last `loss`, `lowest` loss or `seconds`, or the most `steps_per_second`,
        among finished points."""
        if by not in BEST:
            raise unknown_name("best", "column", str(by), BEST)
        known = [(point.row()[by], point) for point in self.points if point.state == "done"]
        known = [(value, point) for value, point in known if value is not None and math.isfinite(value)]
        if not known:
            raise SessionError("best", "points", self.fact(), f"a point that is done and has a {by}")
        return min(known, key=lambda pair: BEST[by] * pair[0])[1]

    # -- running -------------------------------------------------------------------------------------------------------
    def run(self) -> Sweep:
        """Compute the missing points; return the sweep. Ctrl-C stops it and raises `KeyboardInterrupt`."""
        if self.state in ("running", "paused"):
            raise SessionError("sweep", "sweep", self.state, "one that does not run")
        for point in self.points:
            if point.state == "stopped":
                self._reset(point)
        self._pause, self._stop, self.unwanted = False, False, set()
        self._began = time.perf_counter() - self.seconds
        self.state = "running"
        try:
            self._take_files()
            self._compute()
        except BaseException:
            self.stop()
            raise
        finally:
            for point in self.points:
                if point.state == "running":
                    point.state = "stopped"
            self.state = "stopped" if self.count("waiting") or self.count("stopped") else "done"
            self.seconds = time.perf_counter() - self._began
            self.changed()
            self.study.execution.rev += 1
        return self

    def _compute(self) -> None:
        if not self.waiting():
            return
        if self.on is None:
            self._run_here()
            return
        from gdlab.distributed.sweep_engines import run_on

        run_on(self, self.on)

    def _run_here(self) -> None:
        runner = PointRunner(self.start, self.study.pipeline)
        while (point := self.next_point()) is not None:
            self.begin(point, "here")
            self.finish(point, runner.run(PointSettings(point.settings), point.wanted, self._teller(point)))

    def _teller(self, point: SweepPoint) -> Any:
        def tell(progress: PointProgress) -> None:
            self.progress(point, progress)
            while self._pause and not self._stop and point.index not in self.unwanted:
                time.sleep(_POLL_SECONDS)
            if self._stop or point.index in self.unwanted:
                raise PointStopped

        return tell

    def _take_files(self) -> None:
        """Read the finished points in the folder."""
        if self.files is None:
            return
        taken, computed = 0, dict[str, list[int]]()
        for point in self.waiting():
            outcome, why = self.files.read(PointSettings(point.settings), point.wanted)
            if why:
                computed.setdefault(why, []).append(point.index)
            if outcome is not None:
                point.engine = "file"
                self._take(point, outcome)
                taken += 1
        for why, (first, *more) in computed.items():
            self.tell(f"point {first}{f' and {whole(len(more))} more' if more else ''}: computed, for {why}")
        if taken:
            self.tell(f"{plural(taken, 'point')} read from {self.files.folder.name}")

    # -- what runs it asks and tells -----------------------------------------------------------------------------------
    def waiting(self) -> list[SweepPoint]:
        """Return the points that have not begun."""
        return [point for point in self.points if point.state == "waiting"]

    def next_point(self) -> SweepPoint | None:
        """Return the next point to begin, waiting while the sweep is paused; None where none is left or it stops."""
        while self._pause and not self._stop:
            time.sleep(_POLL_SECONDS)
        return None if self._stop else next(iter(self.waiting()), None)

    @property
    def held(self) -> bool:
        """Return whether no further point may begin now."""
        return self._pause or self._stop

    @property
    def stopping(self) -> bool:
        """Return whether the sweep is to end."""
        return self._stop

    def begin(self, point: SweepPoint, engine: str) -> None:
        """Note that a point runs."""
        point.state, point.engine = "running", engine
        self.changed()

    def progress(self, point: SweepPoint, progress: PointProgress) -> None:
        """Note the progress of a point."""
        point.losses = [*point.losses, *progress.losses]
        point.steps, point.rate = progress.steps, progress.rate
        self.changed()

    def finish(self, point: SweepPoint, outcome: PointResult) -> None:
        """Note the result of a point, and write its file."""
        self._take(point, outcome)
        if outcome.end == "done" and self.files is not None:
            self.files.write(PointSettings(point.settings), point.wanted, outcome)

    def _take(self, point: SweepPoint, outcome: PointResult) -> None:
        point.losses, point.steps, point.seconds = outcome.losses or point.losses, outcome.steps, outcome.seconds
        point.rate = outcome.steps / outcome.seconds if outcome.seconds > 0 else 0.0
        point.error, point.note, point.values = outcome.error, outcome.note, outcome.parameters
        point.state = outcome.end  # last: who reads a state finds the rest
        self.changed()

    def again(self, point: SweepPoint, why: str) -> None:
        """Queue a point whose engine died again; after `retries` times mark it as failed."""
        if point.retries >= self.retries:
            self._take(
                point, PointResult("failed", error=f"{why}; queued again {plural(point.retries, 'time')} before")
            )
            self.tell(f"{why}: point {point.index} has failed")
            return
        point.retries += 1
        self.tell(f"{why}: point {point.index} is queued again ({point.retries} of {self.retries})")
        self._reset(point)

    def _reset(self, point: SweepPoint) -> None:
        point.losses, point.steps, point.rate, point.engine, point.error = [], 0, 0.0, "", ""
        point.state = "waiting"
        self.changed()

    def tell(self, text: str) -> None:
        """Add an event."""
        self.events.append(SweepEvent(time.perf_counter() - self._began, text))
        self.changed()

    def changed(self) -> None:
        """Note that the sweep has changed, for its views."""
        if self.state in ("running", "paused"):
            self.seconds = time.perf_counter() - self._began
        self.changes += 1

    # -- commands, from any thread -------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Pause the sweep: here at a step's end; on engines no further point begins."""
        if self.state == "running":
            self._pause, self.state = True, "paused"
            self.changed()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.state != "paused":
            raise SessionError("resume", "sweep", self.state, "a paused sweep: run() computes what is missing")
        self.state, self._pause = "running", False
        self.changed()

    def stop(self) -> None:
        """Stop the points that run at a step's end, and begin no other; `run` returns, and may be called again."""
        self._stop = True
        self.changed()

    def at(self, index: Any) -> SweepPoint:
        """Return a point by its number; `ArgumentError` for anything else."""
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self):
            raise ArgumentError("sweep", "point", f"{index!r:.60}", f"0 … {len(self) - 1}")
        return self.points[index]

    def stop_point(self, index: int) -> None:
        """Stop one point: at a step's end where it runs; one that waits does not begin."""
        point = self.at(index)
        if point.state == "waiting":
            point.state, point.note = "stopped", "stopped before its first step"
            self.changed()
        elif point.state == "running":
            self.unwanted.add(index)


def point_cells(point: SweepPoint, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a point's row, as views and texts show them."""
    loss, lowest = (("–" if value is None else sig(value)) for value in (point.loss, point.lowest))
    steps = whole(point.steps) if point.steps >= point.wanted else f"{whole(point.steps)} of {whole(point.wanted)}"
    texts = [value_text(point.settings.get(key)) for key in keys]
    rate = sig(point.rate) if point.rate > 0 else "–"
    time = duration(point.seconds) if point.seconds > 0 else "–"
    return (*texts, point.state, point.engine or "–", steps, rate, loss, lowest, time)


def sweep_of(study: Study) -> Sweep | None:
    """Return the newest sweep of a study, whether it runs, was stopped or is done."""
    return _latest.get(study)


def made_sweep(
    study: Study, grid: Any = None, *, points: Any = None, steps: int, feed: Any = None, on: Any = None,
    retries: int = 2, store: Any = None,
) -> Sweep:  # fmt: skip
    """Return a sweep of a study that has not begun; arguments as those of `sweep`. Everything is checked here."""
    if not study.train:
        raise ArgumentError("sweep", "study", f"{study.name}, for inference", "a study with train=True")
    for name, value, least in (("steps", steps, 1), ("retries", retries, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArgumentError("sweep", name, repr(value), f"an int ≥ {least}")
    settings = settings_of(grid, points)
    for one in settings:
        check_feed(one.values.get("feed"))
    running = sweep_of(study)
    if running is not None and running.state in ("running", "paused"):
        raise SessionError("sweep", f"the sweep of {study.name}", running.state, "one that has ended: stop it first")
    made = Sweep(study, settings, steps, feed, on, retries, store)
    _check_start(made)
    _latest[study] = made
    study.execution.rev += 1
    return made


def _check_start(sweep: Sweep) -> None:
    """Raise for a start with which every point would fail: no feed, or parameters without a value."""
    if sweep.on is not None:
        from gdlab.distributed.sweep_engines import check_on

        check_on(sweep.on)
    start = sweep.start
    if start.feed is None and start.graph.inputs and any("feed" not in point.settings for point in sweep):
        raise ArgumentError("sweep", "feed", "none", 'feed=: a callable step -> dict, a DataLoader, "random:0"')
    unset = [node.name for node in start.graph.parameters if node.name not in start.values]
    if unset and any("init" not in point.settings for point in sweep):
        wanted = '"init" among the keys: {"init": [0]}, or parameters set before'
        raise ArgumentError("sweep", "parameters", f"no value for {listed(unset)}", wanted)


def sweep(
    study: Study, grid: Any = None, *, points: Any = None, steps: int, feed: Any = None, on: Any = None,
    retries: int = 2, store: Any = None,
) -> Sweep:  # fmt: skip
    """Run the study once for each point: of the product of the lists of `grid`, or of `points`, a list of dicts.

    Keys are those of `Study.run` (adam, sgd, init, until, feed, steps), of the optimizer (disable, enable, only, allow)
    and of `CompileOptions`. `on`: None runs them here, one after the other; a cluster, a client of ipyparallel or
    "local" (engines of its own, which end with the sweep) runs them on engines, with the same results. A point whose
    engine dies is queued again up to `retries` times; one that fails keeps its error and the others go on. `store`: a
    folder that keeps every finished point, so that the same call computes only the missing ones.
    """
    return made_sweep(
        study, grid, points=points, steps=steps, feed=feed, on=on, retries=retries, store=store
    ).run()  # fmt: skip
