"""Run the points of a sweep on the engines of a cluster, through the load-balanced scheduler of ipyparallel."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gdlab.base.errors import ArgumentError, SessionError, unknown_name
from gdlab.base.words import plural
from gdlab.distributed import engine_points
from gdlab.distributed.clusters import KINDS, Cluster, call, cluster, parallel
from gdlab.distributed.point_run import PointProgress, PointResult
from gdlab.distributed.sweep import Sweep, SweepPoint

_POLL_SECONDS = 0.02
_SIGNAL_SECONDS = 1.0  # between two interrupts of a point that is to stop
_STOP_SECONDS = 20.0  # within which the points of a stopped sweep end
_EMPTY_SECONDS = 10.0  # without any engine
_LOST_SECONDS = 1.0  # within which a task whose engine has left may still answer
_LOST = ("EngineError", "TaskAborted")


@dataclass(slots=True)
class Task:
    """A point that was submitted to the scheduler. `news`: how many messages of it were read; `engine`: None until it
    began."""

    point: SweepPoint
    answer: Any
    news: int = 0
    engine: int | None = None
    signalled: float = 0.0
    left: float | None = None  # when its engine was first seen to be gone


def run_on(sweep: Sweep, on: Any) -> None:
    """Compute the missing points of a sweep on the engines of `on`."""
    if isinstance(on, str):
        with cluster(engines=on) as own:  # type: ignore[arg-type]  # it is checked there
            EngineSweep(sweep, own).run()
    else:
        EngineSweep(sweep, on).run()


def check_on(on: Any) -> None:
    """Raise unless `on` is a kind of engines, a cluster, or a client of ipyparallel."""
    if isinstance(on, str):
        if on not in KINDS:
            raise unknown_name("sweep", "on", on, KINDS)
        parallel()
    else:
        client_of(on)


def client_of(on: Any) -> Any:
    """Return the client of ipyparallel behind a cluster, or the client itself."""
    client = on if hasattr(on, "load_balanced_view") else getattr(on, "client", None)
    if not hasattr(client, "load_balanced_view"):
        raise ArgumentError("sweep", "on", type(on).__name__, 'a cluster (gdlab.distributed.cluster), or "local"')
    return client


class EngineSweep:
    """One sweep that is computed on engines. At most one point per engine is under way, so that Pause holds the rest.
    """

    def __init__(self, sweep: Sweep, on: Any) -> None:
        self.sweep, self.on = sweep, on
        self.payload = engine_points.payload_of(sweep.start, "sweep", "feed or options", "one")
        self.tasks: list[Task] = []
        self._restarts = 0
        self._empty_since: float | None = None
        self._connect()

    def _connect(self) -> None:
        self.client = client_of(self.on)
        self.view = self.client.load_balanced_view()
        self.engines: dict[tuple[str, int], int] = {}  # host and process -> id
        self._ranks = {each.id: each.rank for each in self.on.engines} if isinstance(self.on, Cluster) else {}

    def run(self) -> None:
        """Submit, listen and collect until nothing is left; on an interrupt stop the points that run first."""
        self._adopt(self.client.ids)
        try:
            while self.tasks or (self.sweep.waiting() and not self.sweep.stopping):
                self._turn()
        except BaseException:
            self.sweep.stop()
            self._end()
            raise

    def _end(self) -> None:
        until = time.monotonic() + _STOP_SECONDS
        while self.tasks and time.monotonic() < until:
            self._turn()

    def _turn(self) -> None:
        self._submit()
        for task in list(self.tasks):
            self._listen(task)
            self._stop_unwanted(task)
            if task.answer.ready():
                self.tasks.remove(task)
                self._collect(task)
            elif self._is_lost(task):
                self.tasks.remove(task)
                self.sweep.again(task.point, self._death(task))
        time.sleep(_POLL_SECONDS)

    def _is_lost(self, task: Task) -> bool:
        """Return whether the engine of a task has left; the scheduler reports that only some seconds later."""
        if task.engine is None or task.engine in self.client.ids:
            task.left = None
            return False
        task.left = time.monotonic() if task.left is None else task.left
        return time.monotonic() - task.left > _LOST_SECONDS

    # -- out -----------------------------------------------------------------------------------------------------------
    def _adopt(self, ids: Any) -> None:
        """Send the start of the points to engines."""
        ids = list(ids)
        if ids:
            found = call(self.client[ids], engine_points.adopt, self.sweep.key, self.payload)
            self.engines |= {tuple(who): id for who, id in zip(found, ids, strict=True)}

    def _submit(self) -> None:
        ids = list(self.client.ids)
        if not ids:
            self._without_engines()
            return
        self._empty_since = None
        for point in self.sweep.waiting():
            if self.sweep.held or len(self.tasks) >= len(ids):
                return
            settings = engine_points.payload_of(dict(point.settings), "sweep", f"point {point.index}", "a setting")
            answer = self.view.apply_async(engine_points.run_point, self.sweep.key, settings, point.wanted)
            self.tasks.append(Task(point, answer))
            self.sweep.begin(point, "")

    def _without_engines(self) -> None:
        """Wait a little for an engine, then give up; finished points stay."""
        now = time.monotonic()
        self._empty_since = now if self._empty_since is None else self._empty_since
        if self.tasks:
            return
        if isinstance(self.on, Cluster) and self.on.owned and self._restarts < max(1, self.sweep.retries):
            self._restarts += 1
            self.sweep.tell("no engine lives: the set of engines is started again")
            self.on.restart()
            self._connect()
            self._adopt(self.client.ids)
        elif now - self._empty_since > _EMPTY_SECONDS:
            raise SessionError("sweep", "engines", "none that runs", "a new cluster: run() computes what is missing")

    def _stop_unwanted(self, task: Task) -> None:
        wanted = not self.sweep.stopping and task.point.index not in self.sweep.unwanted
        now = time.monotonic()
        if wanted or task.answer.ready() or now - task.signalled < _SIGNAL_SECONDS:
            return
        task.signalled = now
        if task.engine is None:
            self.client.abort(task.answer.msg_ids, block=False)
        else:
            self.client.send_signal("SIGINT", targets=task.engine, block=False)

    # -- in ------------------------------------------------------------------------------------------------------------
    def _listen(self, task: Task) -> None:
        """Read the news of a task that runs."""
        told = task.answer.data
        told = told[0] if isinstance(told, list) else told
        while (news := (told or {}).get(f"news{task.news}")) is not None:
            task.news += 1
            if isinstance(news, PointProgress):
                self.sweep.progress(task.point, news)
            else:
                task.engine = self.engines.get(tuple(news))
                self.sweep.begin(task.point, self._name(task.engine))

    def _collect(self, task: Task) -> None:
        """Take the result of a task that ended, or queue its point again."""
        point = task.point
        unwanted = self.sweep.stopping or point.index in self.sweep.unwanted
        try:
            outcome = task.answer.get(timeout=10)
        except Exception as error:  # whatever came from far is the outcome of this point
            kind = getattr(error, "ename", type(error).__name__)
            if kind in _LOST and unwanted:
                outcome = PointResult("stopped", note="stopped")
            elif kind in _LOST:
                self.sweep.again(point, self._death(task))
                return
            else:
                outcome = PointResult("failed", error=f"{kind}: {getattr(error, 'evalue', error)}")
        if task.engine is None and outcome is not None:  # the answer was faster than its news
            task.engine = task.answer.engine_id
            point.engine = self._name(task.engine)
        if outcome is None:  # an engine that came later
            point.state = "waiting"
            self._adopt(self.client.ids)
            return
        if outcome.end == "stopped":
            outcome = PointResult("stopped", point.steps, point.losses, note=outcome.note)
        self.sweep.finish(point, outcome)

    def _name(self, id: int | None) -> str:
        return "" if id is None else f"engine {self._ranks.get(id, id)}"

    def _death(self, task: Task) -> str:
        if task.engine is None:
            return "an engine died"
        host, process = next((who for who, id in self.engines.items() if id == task.engine), ("?", 0))
        left = plural(len(self.client.ids), "engine")
        return f"{self._name(task.engine)} (process {process} on {host}) died, {left} left"
