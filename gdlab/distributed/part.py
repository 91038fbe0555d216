"""Run one engine's part of a run: its own batches, gradients averaged with those of the other engines, the same update
everywhere."""

from __future__ import annotations

import contextlib
import io
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import GdlabError, MissingInputError
from gdlab.base.files import write_file
from gdlab.base.types import Array
from gdlab.base.words import listed, sig
from gdlab.distributed import engine_feeds
from gdlab.distributed.engine import device_name, interrupts
from gdlab.distributed.meeting import BucketTimes, Meeting, Vote, Wire
from gdlab.graph import Graph
from gdlab.plan import compile as compile_graph
from gdlab.plan.records import PlanMode
from gdlab.plan.target import CompileOptions
from gdlab.session import Session, open_session, resolve_device
from gdlab.session.checkpoint import CheckpointContent
from gdlab.session.run.lookout import Lookout
from gdlab.session.run.nonfinite import Culprit
from gdlab.session.run.nonfinite_watch import NanWatch
from gdlab.session.run.stop_conditions import parse_test
from gdlab.session.steps import Uploads
from gdlab.study.study import Study

EVERY = 0.2  # seconds between two reports
LATE_STEPS = 20  # whose median says which engine is late


@dataclass(frozen=True, slots=True)
class Job:
    """The description of a run that all engines get. `opens`: a function that opens its session, and its arguments
    before the device. `inputs`: those that were set beside the feed. `first`, `steps`: the steps (batches of one
    engine) that are made already, and those that shall be; `base`: the number of the session's step that step 0 is.
    `state`: the checkpoint to begin from, on the host of engine 0 (`state_bytes`: its content, where that is another
    host). `folder`: where engine 0 writes checkpoints."""

    key: str
    opens: tuple[Callable[..., Session], tuple[Any, ...]]
    optimizer: Any
    settings: Any
    feed: engine_feeds.SentFeed
    inputs: Mapping[str, Any]
    first: int
    steps: int
    base: int
    accumulate: int
    check: int
    save_steps: int
    save_seconds: float
    folder: str
    state: str
    state_bytes: bytes | None
    until: str | None = None
    mpi: bool = True
    wire: Wire = "f32"
    bucket_bytes: int | None = None
    nan_watch: NanWatch = "loss"


@dataclass(slots=True)
class EngineReport:
    """An engine's figures so far: steps made, seconds in steps, reductions and waiting, bytes, its own last loss, and
    the median over the last updates of the time that its own step took. `reductions`: how many were made, `hidden`: of
    their seconds those beside its steps; `buckets`: the times of each bucket, `dispatches`: of a step
    before the update; `read` and `write`: seconds in which all
    gradients go to the host and back, measured before the first step; `error`: that of its gradients on the wire, by
    their norm."""

    step: int = 0
    seconds: float = 0.0
    reducing: float = 0.0
    waiting: float = 0.0
    nbytes: int = 0
    loss: float = float("nan")
    median: float = 0.0
    losses: int = 0
    saved: str = ""
    reductions: int = 0
    read: float = 0.0
    write: float = 0.0
    error: float = 0.0
    hidden: float = 0.0
    buckets: tuple[BucketTimes, ...] = ()
    dispatches: int = 0


@dataclass(slots=True)
class EngineEnd:
    """The result of an engine at its end of a run: its figures; from engine 0 also the losses by update and the last
    checkpoint. `failed`: the engines that raised; `differing`: the parameter that is not the same everywhere;
    `stopped`: by a person; `condition`: why a condition ended the run; `nonfinite`: the number of the session's step
    whose loss is not finite, and `culprit` its first bad dispatch, if it was a step of this engine."""

    report: EngineReport
    losses: list[float] = field(default_factory=list)
    checkpoint: str = ""
    failed: tuple[int, ...] = ()
    differing: str = ""
    stopped: bool = False
    condition: str = ""
    nonfinite: int | None = None
    culprit: Culprit | None = None


_KNOWN: dict[str, Session] = {}  # the session of the study that this engine ran last, by the study's key
_HOST: dict[str, tuple[float, float]] = {}  # seconds in which its gradients go to the host and back, by the same key


def run(job: Job) -> EngineEnd:
    """Run this engine's part; called on every engine at once."""
    from mpi4py import MPI

    meeting, stop = Meeting(MPI.COMM_WORLD if job.mpi else MPI.COMM_SELF, job.wire), threading.Event()
    with interrupts(lambda *_: stop.set()), contextlib.closing(meeting):
        return _EnginePart(job, meeting, stop).run()


def losses_from(first: int) -> str:
    """Return the key under which engine 0 publishes losses, of which `first` came before."""
    return f"losses from {first}"


def open_study(
    make: Callable[..., Study], kind: type[Study], graph: Graph, given: Any, opening: Any, device: str
) -> Session:
    """Return the session of a study that is made from its pickle, without weights."""
    return make(kind, graph, {**given, "device": device}, opening).execution.session


def open_plan(graph: Graph, mode: PlanMode, options: CompileOptions, device: str) -> Session:
    """Return a session of a graph that is optimized and differentiated already."""
    chosen = resolve_device(device)
    return open_session(compile_graph(graph, mode=mode, options=options, target=chosen.target), chosen)


class _EnginePart:
    """The part of one engine while it runs. Every engine makes the same collective calls in the same order, whatever
    fails: an error is kept until all have voted."""

    def __init__(self, job: Job, meeting: Meeting, stop: threading.Event) -> None:
        self.job, self.meeting, self.stop = job, meeting, stop
        self.report, self.losses, self.told = EngineReport(step=job.first), list[float](), 0
        self.recent: deque[float] = deque(maxlen=LATE_STEPS)
        self.saved_at, self.saved_step, self.told_at = time.monotonic(), job.first, 0.0
        self.error: BaseException | None = None
        self.kept = [Path(job.state)] if job.first else []  # checkpoints of this run
        self.bad: tuple[int, Mapping[str, Any]] | None = None  # this engine's first step with a bad loss, its batch

    def run(self) -> EngineEnd:
        self._tell(force=True)  # from now on it can be asked to stop
        session = self._attempt(self._session)
        batches = self._attempt(lambda: self._batches())
        outcome = self.meeting.vote(Vote(0.0, False, self.error is not None))
        if self.error is not None:
            raise self.error
        if outcome.failed:
            return EngineEnd(self.report, failed=outcome.failed)
        assert session is not None and batches is not None  # nobody failed
        self._share_state(session)
        self.meeting.agree(session, self.job.bucket_bytes)
        self.report.dispatches = len(session.loaded.plan.dispatches) + session.updates.update.early
        if self.meeting.rank == 0 and self.job.first:
            self.losses = np.load(Path(self.job.state).with_suffix(".npy")).tolist()
        return self._steps(session, batches)

    def _attempt(self, work: Any) -> Any:
        """Call `work` and return its result; keep its error for the vote."""
        if self.error is not None:
            return None
        try:
            return work()
        except BaseException as error:
            self.error = error
            return None

    # the beginning ----------------------------------------------------------------------------------------------------
    def _session(self) -> Session:
        """Return a session of the study, that of the last run if that was of the same study."""
        job = self.job
        session = _KNOWN.get(job.key)
        if session is None or session.closed:
            for old in _KNOWN.values():
                old.close()
            _KNOWN.clear()
            opens, arguments = job.opens
            session = _KNOWN[job.key] = opens(*arguments, device_name())
            _HOST.clear()
        session.updates.adopt("run", job.optimizer, job.settings)
        if job.key not in _HOST:
            _HOST[job.key] = self.meeting.rehearse(session)
        self.report.read, self.report.write = _HOST[job.key]
        session.updates.clear_sums()
        session.values.unset_inputs |= set(session.values.places.inputs)  # what an earlier run has fed
        for name, data in job.inputs.items():
            session.set_input(name, data)
        if self.meeting.rank == 0:
            if job.state_bytes is not None:
                Path(job.state).write_bytes(job.state_bytes)
            session.load_checkpoint(job.state)
        return session

    def _batches(self) -> engine_feeds.Batches:
        session, meeting = _KNOWN[self.job.key], self.meeting
        return engine_feeds.batches_of(self.job.feed, session.loaded.plan.graph, meeting.rank, meeting.size)

    def _share_state(self, session: Session) -> None:
        """Send parameters, moments and counter of engine 0 to all engines."""
        comm, root = self.meeting.comm, self.meeting.rank == 0
        mine = session.snapshot() if root else None
        head = None if mine is None else (
            [(name, data.shape, data.dtype.str) for name, data in mine.tensors.items()], mine.adam_step, mine.adam,
            dict(mine.states),
        )  # fmt: skip
        shapes, adam_step, adam, states = comm.bcast(head)
        tensors = {}
        for name, shape, dtype in shapes:
            data = np.empty(shape, dtype) if mine is None else np.ascontiguousarray(mine.tensors[name])
            comm.Bcast(data)
            tensors[name] = data
        if not root:
            session.restore(CheckpointContent(tensors, adam_step, adam, states))
        session.values.unset_parameters.have(session.param_names())

    # the steps --------------------------------------------------------------------------------------------------------
    def _steps(self, session: Session, batches: engine_feeds.Batches) -> EngineEnd:
        job, made, condition = self.job, self.job.first, ""
        updates, stopped, failed, differing = made // job.accumulate, False, tuple[int, ...](), ""
        nonfinite, culprit = None, None
        until = _Until(job.until, session, self.meeting)
        while made < job.steps:
            begin = time.perf_counter()
            loss = self._attempt(lambda made=made: self._gradients(session, batches, made))
            own = time.perf_counter() - begin
            self.meeting.finish()
            outcome = self.meeting.vote(Vote(np.nan if loss is None else loss, self.stop.is_set(), loss is None))
            if outcome.failed:
                failed = outcome.failed
                break
            if job.nan_watch != "off" and (bad := [k for k, v in enumerate(outcome.losses) if not math.isfinite(v)]):
                nonfinite = job.base + made + job.accumulate
                where = f" on engine {bad[0]}" if self.meeting.size > 1 else ""
                condition = f"loss is {sig(outcome.losses[bad[0]])} at step {nonfinite}{where}"
                culprit = self._culprit(session)
                break  # all engines, before the update
            self._attempt(lambda: self.meeting.write(session))
            begin = time.perf_counter()
            self._attempt(session.steps.make_update)
            made, updates = made + job.accumulate, updates + 1
            mean = sum(outcome.losses) / len(outcome.losses)
            self.losses.append(mean)
            own += time.perf_counter() - begin
            self._count(made, own, float(loss))
            if updates % job.check == 0 and self.meeting.size > 1:
                differing = self.meeting.differing(session) or ""
            condition = job.until or "" if until.holds(made, mean) else ""
            stopped = outcome.stop
            if stopped or differing or condition:
                break
            if self.meeting.rank == 0 and self._due(made):
                self._attempt(lambda made=made: self._save(session, made))
        self._tell(force=True)
        if self.error is not None:
            raise self.error
        ended = EngineEnd(
            self.report, failed=failed, differing=differing, stopped=stopped, condition=condition, nonfinite=nonfinite,
            culprit=culprit,
        )  # fmt: skip
        if self.meeting.rank == 0:
            self.report.saved = ended.checkpoint = self._save(session, made)
            ended.losses = self.losses
        return ended

    def _gradients(self, session: Session, batches: engine_feeds.Batches, made: int) -> float:
        """Make the steps of one update; return the mean of their losses."""
        losses = []
        for step in range(made, made + self.job.accumulate):
            batch = batches(step)
            uploads = session.values.batch("feed", batch)
            session.values.fed(buffer for buffer, _ in uploads)
            if unset := session.unset_inputs:
                raise MissingInputError("run", "feed", f"no value for {listed(unset)}", "one of every input")
            self._draw(session, step)
            self._step(session, uploads, step == made + self.job.accumulate - 1)
            losses += [loss for _, loss in session.take_losses(True)]
            if self.bad is None and losses and not math.isfinite(losses[-1]):
                self.bad = step, batch
        return sum(losses) / len(losses) if losses else 0.0

    def _draw(self, session: Session, step: int) -> None:
        """Let this engine's step of the run draw the random numbers that it has in one session."""
        number = self.job.base + step * self.meeting.size + self.meeting.rank
        session.progress.draw_offset = number - session.progress.steps

    def _culprit(self, session: Session) -> Culprit | None:
        """Return the first bad dispatch of this engine's step with a loss that is not finite. No update came after it.
        """
        if self.bad is None:
            return None
        step, batch = self.bad
        try:
            for name, data in batch.items():
                session.set_input(name, data)
            self._draw(session, step)
            return session.search.first_bad()
        except (GdlabError, MemoryError):
            return None

    def _step(self, session: Session, uploads: Uploads, last: bool) -> None:
        """Make a step; after the last one of an update, send the gradients bucket by bucket."""
        parts = self.meeting.parts(session) if last else []
        try:
            session.steps.make_gradients(uploads, parts, lambda k: self.meeting.send(parts[k].landing))
        finally:
            for part in parts:
                part.landing.release()

    # reports and checkpoints ------------------------------------------------------------------------------------------
    def _count(self, made: int, own: float, loss: float) -> None:
        self.recent.append(own)
        report = self.report
        report.step, report.loss, report.losses = made, loss, len(self.losses)
        report.seconds += own
        meeting = self.meeting
        report.reducing, report.hidden, report.waiting = meeting.reducing, meeting.hidden, meeting.waiting
        report.nbytes, report.reductions, report.error = meeting.nbytes, meeting.reductions, meeting.error
        report.buckets = tuple(meeting.buckets)
        self._tell()

    def _tell(self, force: bool = False) -> None:
        if not force and time.monotonic() - self.told_at < EVERY:
            return
        self.told_at = time.monotonic()
        self.report.median = statistics.median(self.recent) if self.recent else 0.0
        from ipyparallel.datapub import publish_data

        fields: Mapping[str, Any] = {name: getattr(self.report, name) for name in EngineReport.__slots__}
        fresh = self.losses[self.told :] if self.meeting.rank == 0 else []
        # a key of its own: of a key that is published twice before somebody looks the first value would be lost
        publish_data({"report": dict(fields), **({losses_from(self.told): fresh} if fresh else {})})
        self.told += len(fresh)

    def _due(self, made: int) -> bool:
        job = self.job
        by_steps = job.save_steps and made - self.saved_step >= job.save_steps
        return bool(by_steps or (job.save_seconds and time.monotonic() - self.saved_at >= job.save_seconds))

    def _save(self, session: Session, made: int) -> str:
        """Write a checkpoint with the losses so far, whole or not at all; keep the two newest."""
        folder = Path(self.job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{made:09d}.safetensors"
        content = io.BytesIO()
        np.save(content, np.asarray(self.losses))
        write_file("run", path.with_suffix(".npy"), content.getvalue())
        session.save_checkpoint(path)
        self.kept = [*(old for old in self.kept if old != path), path]
        for old in self.kept[:-2]:
            for each in (old, old.with_suffix(".npy")):
                with contextlib.suppress(OSError):
                    os.unlink(each)
        self.kept = self.kept[-2:]
        self.saved_at, self.saved_step, self.report.saved = time.monotonic(), made, str(path)
        return str(path)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The values that the end condition reads: this engine's session, and the mean loss of all engines."""

    lookout: Lookout
    step_count: int
    loss: float

    def read_loss(self) -> float:
        """Return the mean loss of all engines."""
        return self.loss

    def read_tensor(self, name: str) -> Array:
        """Return the newest value of a tensor."""
        return self.lookout.newest(name, self.step_count, -1)


class _Until:
    """The condition that ends a run: engine 0 evaluates it, and tells the others."""

    def __init__(self, text: str | None, session: Session, meeting: Meeting) -> None:
        self.meeting, self.lookout = meeting, Lookout(session)
        self.test = None if text is None else parse_test(text, session)

    def holds(self, step: int, loss: float) -> bool:
        """Return whether the run ends here; the same on every engine."""
        if self.test is None:
            return False
        here = self.meeting.rank == 0 and self.test.holds(_Subject(self.lookout, step, loss))
        return bool(self.meeting.comm.bcast(here))
