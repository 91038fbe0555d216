"""Run one point of a sweep, here or on an engine: settings in, losses and parameters out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gdlab.base.errors import ArgumentError, GdlabError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import Array
from gdlab.distributed.points import COMPILE_KEYS, PointSettings
from gdlab.graph import Graph
from gdlab.plan.target import CompileOptions
from gdlab.session import DeviceLike, Pipeline
from gdlab.study.execution import Opening
from gdlab.study.study import Study
from gdlab.train.data import DataLoader

End = Literal["done", "failed", "stopped"]
Losses = list[tuple[int, float]]

_TELL_SECONDS = 0.2  # between two reports of a point that runs
_MOST_GROWTH = 4  # of the steps between two reports


@dataclass(frozen=True, slots=True)
class PointStart:
    """Everything that a point begins with, besides its settings. `weights`: parameters that sessions begin with;
    `values`: all parameters as they are now, for a point that initializes nothing; `inputs`: those that have a value
    now, for what a feed does not give."""

    graph: Graph
    device: DeviceLike
    options: Mapping[str, Any]
    compile: CompileOptions
    weights: Mapping[str, Any]
    values: Mapping[str, Any]
    inputs: Mapping[str, Array]
    opening: Opening
    feed: Any

    def inputs_beside(self, feed: Any) -> list[str]:
        """Return the names of `inputs` but those that the feed is known to give; of a callable none is known."""
        match feed:
            case str():
                return []
            case Mapping():
                return [name for name in self.inputs if name not in feed]
            case DataLoader():
                return [name for name in self.inputs if name not in feed.streams()]
        return list(self.inputs)


@dataclass(frozen=True, slots=True)
class PointProgress:
    """The state of a point that runs: the steps made so far, the losses since the last report, steps per second."""

    steps: int
    losses: Losses
    rate: float


@dataclass(frozen=True, slots=True)
class PointResult:
    """The result of a point. `error`: the reason of a failure in one line; `note`: the reason of an end before the last
    step."""

    end: End
    steps: int = 0
    losses: Losses = field(default_factory=list)
    parameters: Mapping[str, Array | Packed] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    note: str = ""


class PointStopped(Exception):
    """An exception that `tell` raises to end a point between two steps."""


def start_of(study: Study, feed: Any) -> PointStart:
    """Return the start of a study's points; `feed`: that of every point without one of its own."""
    execution = study.execution
    opening, device = execution.opening, execution.wanted_device
    feed = opening.feed if feed is None else feed
    check_feed(feed)
    kind = device if isinstance(device, str) or device is None else device.info.kind
    weights, values, inputs = dict(execution.weights), execution.parameters(), execution.inputs()
    opening = replace(opening, feed=None)
    return PointStart(study.graph, kind, study.options, study.compile, weights, values, inputs, opening, feed)


def check_feed(feed: Any) -> None:
    """Raise for a feed that can be read only once: the second point would find it at its end."""
    if hasattr(feed, "__next__"):
        raise ArgumentError("sweep", "feed", type(feed).__name__, "one that every point can begin anew: step -> dict")


class PointRunner:
    """A runner of points from one start; a graph that was optimized for a point serves others with the same options."""

    def __init__(self, start: PointStart, pipeline: Pipeline | None = None, device: DeviceLike = None) -> None:
        self._start, self._device = start, device
        self._pipelines = {} if pipeline is None else {_key(start.options, start.compile): pipeline}

    def study(self, settings: PointSettings, name: str) -> Study:
        """Return a study of its own for a point; the caller closes it."""
        start = self._start
        options = {**start.options, **settings.options}
        compile = replace(start.compile, **settings.part(COMPILE_KEYS))
        key = _key(options, compile)
        weights = start.weights if "init" in settings.values else start.values
        study = Study(
            start.graph, train=True, device=self._device or start.device, name=name, compile=compile, egraph=False,
            weights=weights, pipeline=self._pipelines.get(key), **options,
        )  # fmt: skip
        self._pipelines[key] = study.pipeline
        study.execution.opening = start.opening
        return study

    def run(self, settings: PointSettings, steps: int, tell: Callable[[PointProgress], None]) -> PointResult:
        """Run one point for `steps` steps, or its own; `tell` gets its progress a few times a second and may raise
        `PointStopped`. An error is part of the outcome; an interrupt is the caller's."""
        began = time.perf_counter()
        opened: list[Study] = []
        try:
            outcome = self._outcome(settings, steps, tell, opened)
            return _filled(outcome, opened, time.perf_counter() - began)
        finally:
            for study in opened:
                study.close()

    def _outcome(
        self, settings: PointSettings, steps: int, tell: Callable[[PointProgress], None], opened: list[Study]
    ) -> PointResult:
        try:
            opened.append(self.study(settings, str(settings)))
            end, note = self._steps(opened[0], settings, steps, tell)
        except Exception as error:  # whatever a feed or a device raises is the outcome of this point alone
            return PointResult("failed", error=_line(error))
        return PointResult(end, error=note) if end == "failed" else PointResult(end, note=note)

    def _steps(
        self, study: Study, settings: PointSettings, steps: int, tell: Callable[[PointProgress], None]
    ) -> tuple[End, str]:
        run = settings.part(("adam", "sgd", "init", "until"))
        feed = settings.values.get("feed", self._start.feed)
        study.prepare(feed=feed, **run)
        for name, data in self._start.inputs.items():
            study.session.set_input(name, data)
        study.check_ready()
        wanted, made, count, told = int(settings.values.get("steps", steps)), 0, 1, 0
        runner = study.runner
        while made < wanted:
            began = time.perf_counter()
            runner.run(min(count, wanted - made))
            seconds, before = time.perf_counter() - began, made
            made = study.session.step_count
            losses = runner.losses[told:]
            told += len(losses)
            try:
                tell(PointProgress(made, losses, (made - before) / max(seconds, 1e-9)))
            except PointStopped:
                return "stopped", f"stopped at step {made}"
            if runner.culprit is not None:
                return "failed", f"the loss is not finite at step {made}: {runner.culprit}".replace("\n", " ")
            if runner.state == "paused":
                return "done", runner.reason
            if runner.lookout.ends():  # at the last step of a part, which has nothing to pause
                return "done", f"end of --until: {runner.lookout.until}"
            count = max(1, min(int((made - before) * _TELL_SECONDS / max(seconds, 1e-9)), _MOST_GROWTH * count))
        return "done", ""


def _filled(outcome: PointResult, opened: list[Study], seconds: float) -> PointResult:
    """Return the outcome with the final losses, parameters and figures of the point's session."""
    if not opened or not opened[0].has_session:
        return replace(outcome, seconds=seconds)
    study, parameters = opened[0], dict[str, Array | Packed]()
    losses = list(study.runner.losses)
    if outcome.end == "done":
        try:
            parameters = study.execution.parameters()
        except GdlabError as error:
            outcome = replace(outcome, end="failed", error=_line(error))
    return replace(outcome, steps=study.session.step_count, losses=losses, parameters=parameters, seconds=seconds)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, GdlabError) else f"{type(error).__name__}: {text}"


def _key(options: Mapping[str, Any], compile: CompileOptions) -> tuple[object, ...]:
    plain = {name: tuple(value) if isinstance(value, (list, tuple)) else value for name, value in options.items()}
    return tuple((name, plain[name]) for name in sorted(plain)), compile
