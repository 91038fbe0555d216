"""The record of a run over engines: a row per engine with its times, the losses, the engines that were lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from gdlab.base.words import duration, grid, nbytes, plural, sig, whole
from gdlab.distributed.clusters import Engine, html_table
from gdlab.distributed.meeting import Wire
from gdlab.distributed.part import EngineReport
from gdlab.session.run.log import RunLog
from gdlab.study.study import Study

_latest: WeakKeyDictionary[Study, DistributedRun] = WeakKeyDictionary()


@dataclass(slots=True)
class EngineProgress:
    """An engine's row of a run: its figures so far; `late`: its own steps take more than 1.5 times the median."""

    engine: Engine
    report: EngineReport = field(default_factory=EngineReport)
    late: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the row's texts: steps, time in steps, in reduction, in reduction beside steps, waiting, bytes
        reduced, last loss."""
        r = self.report
        return (
            whole(r.step), duration(r.seconds), duration(r.reducing), duration(r.hidden), duration(r.waiting),
            nbytes(r.nbytes), sig(r.loss),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LostEngine:
    """An engine that ended in step `step` + 1, and the step from which the run went on again."""

    engine: int
    host: str
    step: int
    again: int

    def __str__(self) -> str:
        again = f"started again from step {self.again}"
        return f"engine {self.engine} on {self.host} ended in step {self.step + 1}: {again}"


@dataclass(slots=True)
class DistributedRun:
    """A run over engines, under way or over: a row per engine, the mean loss of all engines after each update.

    `state`: `running`, `done`, `stopped`, `condition` or `failed`. `lost`: engines that ended, after which the set
    was started again. `checkpoint`: the newest one. `reason`: the condition that ended it. `base`: the steps that the
    session had made before. `points`: (number of the update, loss) in order, as far as they were heard.
    """

    name: str
    wanted: int
    rows: list[EngineProgress]
    folder: str
    state: str = "running"
    losses: list[float] = field(default_factory=list)
    lost: list[LostEngine] = field(default_factory=list)
    checkpoint: str = ""
    seconds: float = 0.0
    base: int = 0
    accumulate: int = 1
    wire: Wire = "f32"
    reason: str = ""
    points: list[tuple[int, float]] = field(default_factory=list, repr=False)
    stopping: bool = False
    _log: RunLog | None = field(default=None, repr=False)
    _resets: int = 0

    @property
    def step(self) -> int:
        """Return the steps that every engine has made."""
        return min((row.report.step for row in self.rows), default=0)

    def stop(self) -> None:
        """Let all engines stop at the end of a step."""
        self.stopping = True

    def fact(self) -> str:
        """Sum up in words: engines, state, steps and time in words."""
        steps = f"{whole(self.step)} of {plural(self.wanted, 'step')}"
        facts = [plural(len(self.rows), "engine"), self.state, steps, duration(self.seconds)]
        return ", ".join([*facts, *([self.wire_words] if self.wire_words else [])])

    @property
    def wire_words(self) -> str:
        """Return the largest error of gradients in 16 bits, in words; empty if they travel in float32."""
        if self.wire == "f32":
            return ""
        worst = max(row.report.error for row in self.rows)
        return f"gradients in 16 bits with a relative error of {sig(worst)}"

    def __repr__(self) -> str:
        return f"<DistributedRun: {self.state}, {plural(self.step, 'step')} on {plural(len(self.rows), 'engine')}>"

    def table(self) -> list[tuple[str, ...]]:
        """Return a head and a row per engine."""
        return [
            HEAD,
            *((str(row.engine.rank), row.engine.host, row.engine.device, *row.cells(), "late" if row.late else "")
              for row in self.rows),
        ]  # fmt: skip

    def __str__(self) -> str:
        head, *rows = self.table()
        lines = [f"{self.name}: {self.state}, {whole(self.step)} of {plural(self.wanted, 'step')}, "
                 f"{duration(self.seconds)}; checkpoints in {self.folder}"]  # fmt: skip
        lines += [words for words in (self.wire_words, self.reason) if words]
        return "\n".join([*lines, *map(str, self.lost), *grid(head, rows, right=NUMBERS)])

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        told = str(self)
        return {"text/plain": told, "text/html": html_table(told.split("\n", 1)[0], self.table(), right=NUMBERS)}


HEAD = ("engine", "host", "device", "steps", "in steps", "in reduction", "beside steps", "waiting", "reduced",
        "loss", "")  # fmt: skip
NUMBERS = (0, 3, 4, 5, 6, 7, 8, 9)  # columns of HEAD
Watcher = Callable[[DistributedRun], None]


def keep_run(study: Study, run: DistributedRun) -> None:
    """Let views of the study show this run, until a reset ends it."""
    run._log, run._resets = study.runner.log, study.runner.log.resets
    _latest[study] = run


def engines_run_of(study: Study) -> DistributedRun | None:
    """Return the newest run over engines of the study's session; None after a reset, or without any."""
    run, opened = _latest.get(study), study.execution.opened
    if run is None or opened is None or opened[1].log is not run._log or opened[1].log.resets != run._resets:
        return None
    return run
