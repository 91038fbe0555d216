"""Run one study on all engines of a cluster: `study.run(1000, feed=feed, adam=1e-3, on=cluster)`."""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gdlab.base.errors import ArgumentError, EngineLostError, SessionError, unknown_name
from gdlab.base.files import make_folder
from gdlab.base.words import plural
from gdlab.distributed import engine_feeds, part
from gdlab.distributed.allreduce import keep_measured
from gdlab.distributed.calibration import calibration_of
from gdlab.distributed.clusters import Cluster, call
from gdlab.distributed.engine import host_name
from gdlab.distributed.meeting import Wire
from gdlab.distributed.part import EngineEnd, EngineReport, Job
from gdlab.distributed.run_record import DistributedRun, EngineProgress, LostEngine, Watcher, keep_run
from gdlab.session import Session
from gdlab.session.run.runner import NanWatch, Runner, runner_of
from gdlab.session.updates import UpdateSettings
from gdlab.study.execution import SETTINGS
from gdlab.study.study import Study

POLL, LOOK, DROP = 0.05, 0.25, 10  # seconds between two looks for the end, for dead engines; to remove files
NAMING, NAMELESS = 10, 2  # seconds in which mpiexec says which engine ended first, on a busy machine too; other engines
ASK = 0.5  # seconds between two wishes to stop
LATE, LEAST = 1.5, 1e-3  # times the median of all engines, and at least so many seconds more
MOST_BUCKET_BYTES = 256 << 20
DIED = re.compile(r"process rank (\d+) .*?exited on", re.S)
EVERY = re.compile(r"(\d+(?:\.\d+)?)\s*s")


@dataclass(frozen=True, slots=True)
class Subject:
    """The session that engines run, and its runner. `opens`: a function that opens one like it on an engine, and its
    arguments before the device; equal `key`s mean the same. `study`: whose views show the run."""

    name: str
    session: Session
    runner: Runner
    key: str
    opens: tuple[Callable[..., Session], tuple[Any, ...]]
    study: Study | None = None


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run over engines: those of `Study.run(…, on=cluster)`."""

    steps: int
    until: str | None = None
    accumulate: int = 1
    check: int = 100
    resume: int = 0
    save_every: int | str = "30s"
    store: str | Path | None = None
    wire: Wire = "f32"
    bucket_bytes: int | None = None
    nan_watch: NanWatch = "off"


def run_on(
    cluster: Cluster, study: Study, steps: int, *, feed: Any = None, sgd: float | None = None,
    adam: float | None = None, init: int | None = None, until: str | None = None, accumulate: int = 1,
    check: int = 100, resume: int = 0, save_every: int | str = "30s", store: str | Path | None = None,
    wire: Wire = "f32", bucket_bytes: int | None = None, watch: Watcher | None = None, **unknown: object,
) -> DistributedRun:  # fmt: skip
    """Make `steps` steps of the study on every engine, the gradients of each `accumulate` steps averaged over all
    engines; then engine 0's parameters, moments and counters are the study's. `wire="f16"`: gradients travel in 16
    bits, half the bytes, and the record has the error that this makes. `bucket_bytes`: gradients are reduced in
    buckets of so many bytes, each when its last gradient is written, beside the rest of the step (4 MiB on a hardware
    adapter, else 64 MiB). `watch` is called about five times per second."""
    for name in unknown:
        own = ("accumulate", "bucket_bytes", "check", "resume", "save_every", "store", "watch", "wire")
        raise unknown_name("run", "setting", name, (*SETTINGS, *own))
    if not study.train:
        raise SessionError(f"graph {study.name}", "on", "a study for inference", "train=True: gradients meet")
    watched = study.runner.nan_watch
    settings = RunSettings(steps, until, accumulate, check, resume, save_every, store, wire, bucket_bytes, watched)
    check_settings(cluster, settings)
    given = engine_feeds.to_send(study.execution.opening.feed if feed is None else feed)
    study.prepare(sgd=sgd, adam=adam, init=init)
    study.runner.refuse_while_running("a run on a cluster")
    study.check_ready(feed=True)
    if until is not None:
        study.runner.set_until(until)  # refuses what cannot be read
        study.runner.set_until(None)
    given = replace(given, first=study.session.step_count)
    run, interrupted = run_subject(cluster, subject_of(study), given, settings, watch)
    if interrupted:
        raise KeyboardInterrupt
    return run


def subject_of(study: Study) -> Subject:
    """Return the session of a study as engines run it."""
    made, (kind, graph, options, opening) = study.__reduce__()
    arguments = made, kind, graph, {**options, "weights": {}}, type(opening)()  # the job has feed and update
    return Subject(study.name, study.session, study.runner, study.key, (part.open_study, arguments), study)


def subject_of_session(session: Session) -> Subject:
    """Return a session as engines run it: from the graph that its plan was compiled from."""
    plan = session.loaded.plan
    opens = part.open_plan, (plan.graph, plan.mode, plan.options)
    return Subject("session", session, runner_of(session), f"plan {plan.fingerprint}", opens)


def run_subject(
    cluster: Cluster, subject: Subject, given: engine_feeds.SentFeed, settings: RunSettings, watch: Watcher | None
) -> tuple[DistributedRun, bool]:
    """Run on all engines, and take engine 0's state over; return the record, and whether it was interrupted. An error
    of `watch` ends the run at the end of a step and is raised then."""
    session, steps = subject.session, int(settings.steps)
    folder = _folder(settings.store)
    start = folder / f"start-{time.time_ns()}.safetensors"
    rows = [EngineProgress(engine) for engine in cluster.engines]
    more: dict[str, Any] = {"base": session.step_count, "accumulate": int(settings.accumulate), "wire": settings.wire}
    run = DistributedRun(subject.name, steps, rows, str(folder), **more)
    failed = list[Exception]()
    tell = _teller(subject.runner, watch, failed)
    try:
        session.save_checkpoint(start)
        job = _job(cluster, subject, given, settings, str(folder), str(start))
        link = calibration_of(cluster) if len(cluster) > 1 else None
        if subject.study is not None:
            keep_run(subject.study, run)
        begin = time.perf_counter()
        subject.runner.nonfinite_watch.begin()
        with subject.runner.elsewhere(steps, f"on {plural(len(rows), 'engine')}", run.stop):
            ended, interrupted = _to_end(cluster, job, run, int(settings.resume), tell)
            run.seconds = time.perf_counter() - begin
            _adopt(cluster, subject, job, run, ended)
    finally:
        run.state = "failed" if run.state == "running" else run.state
        start.unlink(missing_ok=True)
        if settings.store is None:
            with contextlib.suppress(OSError):  # it holds checkpoints
                folder.rmdir()
    if subject.study is not None and link is not None:
        keep_measured(subject.study, run, link.link, link.latency, (link.link_words, link.latency_words))
    tell(run)
    if failed:
        raise failed[0]
    return run, interrupted


def _folder(store: str | Path | None) -> Path:
    """Return the folder of the checkpoints: absolute, for engines that work elsewhere."""
    return Path(tempfile.mkdtemp(prefix="gdlab-run-")) if store is None else make_folder("run", "store", store)


def _teller(runner: Runner, watch: Watcher | None, failed: list[Exception]) -> Watcher:
    """Return a watcher that notes the rate of the steps, and stops the run if `watch` fails."""

    def tell(run: DistributedRun) -> None:
        runner.log.tick(run.base + run.step)
        if watch is None or failed:
            return
        try:
            watch(run)
        except Exception as error:
            failed.append(error)
            run.stop()

    return tell


def check_settings(cluster: Cluster, settings: RunSettings) -> None:
    """Raise for settings that no run over these engines can have."""
    cluster.check_alive("run")
    for name, least in (("steps", 0), ("accumulate", 1), ("check", 1), ("resume", 0)):
        value = getattr(settings, name)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
            raise ArgumentError("run", name, repr(value), f"an int ≥ {least}")
    steps, accumulate, resume = settings.steps, settings.accumulate, settings.resume
    if steps % accumulate:
        raise ArgumentError("run", "steps", f"{steps} with accumulate={accumulate}", "a multiple of accumulate")
    if cluster.kind != "mpi" and len(cluster) > 1:
        raise SessionError("run", "on", f"{len(cluster)} engines without MPI", 'cluster(engines="mpi")')
    if resume and not cluster.owned:
        raise ArgumentError("run", "resume", f"{resume} on engines that ran before", "engines that cluster() started")
    if settings.wire not in get_args(Wire):
        raise ArgumentError("run", "wire", f"{settings.wire!r:.40}", f"one of {', '.join(get_args(Wire))}")
    nbytes = settings.bucket_bytes
    whole = isinstance(nbytes, (int, np.integer)) and not isinstance(nbytes, bool)
    if nbytes is not None and not (whole and 4 <= nbytes <= MOST_BUCKET_BYTES):
        wanted = f"bytes from 4 to {MOST_BUCKET_BYTES >> 20} MiB, or None"
        raise ArgumentError("run", "bucket_bytes", f"{nbytes!r:.40}", wanted)
    _saves(settings.save_every)


def _saves(given: int | str) -> tuple[int, float]:
    """Return the steps and the seconds after which a checkpoint is due; 0: never."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given, 0.0
    found = EVERY.fullmatch(given) if isinstance(given, str) else None
    if found is None or float(found[1]) <= 0:
        raise ArgumentError("run", "save_every", repr(given), 'a number of steps, or seconds such as "30s"')
    return 0, float(found[1])


def _job(
    cluster: Cluster, subject: Subject, given: engine_feeds.SentFeed, settings: RunSettings, folder: str, start: str
) -> Job:  # fmt: skip
    """Return the run as it is sent to the engines."""
    session = subject.session
    inputs = {n: session.read_input(n) for n in session.input_names() if n not in session.unset_inputs}
    accumulate = int(settings.accumulate)
    update: UpdateSettings = replace(session.updates.settings, accumulate=accumulate)
    return Job(
        subject.key, subject.opens, session.optimizer, update, given, inputs, 0, int(settings.steps),
        session.step_count, accumulate, int(settings.check), *_saves(settings.save_every), folder, start, None,
        settings.until, cluster.kind == "mpi", settings.wire, settings.bucket_bytes, settings.nan_watch,
    )  # fmt: skip


# waiting --------------------------------------------------------------------------------------------------------------
def _to_end(
    cluster: Cluster, job: Job, run: DistributedRun, resume: int, watch: Watcher
) -> tuple[list[EngineEnd], bool]:
    """Run to the end; if an engine is lost, begin again from the last checkpoint, at most `resume` times."""
    given = job.feed
    while True:
        try:
            placed = _placed(cluster, given)
            try:
                return _once(cluster, replace(job, feed=placed), run, watch)
            finally:
                _drop(cluster, placed)
        except EngineLostError as error:
            if len(run.lost) >= resume:
                run.state = "failed"
                raise
            watch(run)
            cluster.restart()
            if error.saved is not None:
                job = replace(job, first=_step_of(Path(error.saved)), state=error.saved)
            run.lost.append(LostEngine(error.engine, error.host, error.step, job.first))
            run.rows = [EngineProgress(engine) for engine in cluster.engines]


def _placed(cluster: Cluster, given: engine_feeds.SentFeed) -> engine_feeds.SentFeed:
    """Send a loader's arrays once per host."""
    if given.loader is None:
        return given
    hosts = {engine.host: engine.id for engine in reversed(cluster.engines)}
    streams, folders = given.loader[0], dict[str, str]()
    try:
        for host, id in hosts.items():
            folders[host] = call(cluster.client[id], engine_feeds.keep_loader, streams)
    except BaseException:
        _drop(cluster, engine_feeds.in_folders(given, folders))
        raise
    return engine_feeds.in_folders(given, folders)


def _drop(cluster: Cluster, given: engine_feeds.SentFeed) -> None:
    """Remove the files that `_placed` wrote for a loader."""
    hosts = {engine.host: engine.id for engine in reversed(cluster.engines)}
    for host, folder in given.loader[0].items() if given.loader is not None else ():
        if host == host_name():  # whose engines may be gone
            engine_feeds.drop_loader(folder)
            continue
        with contextlib.suppress(Exception):
            cluster.client[hosts[host]].apply_async(engine_feeds.drop_loader, folder).get(timeout=DROP)


def _once(cluster: Cluster, job: Job, run: DistributedRun, watch: Watcher) -> tuple[list[EngineEnd], bool]:
    """Run once on all engines, and watch them until they have ended."""
    if cluster.engines[0].host != host_name():
        job = replace(job, state_bytes=Path(job.state).read_bytes())
    result = cluster.view.apply_async(part.run, job)
    interrupted, asked, looked, shown = False, 0.0, 0.0, 0.0
    heard = _PublishedFigures(run)
    while not result.ready():
        try:
            result.wait(POLL)
            now = time.monotonic()
            listening = heard.take(result.data)
            if now - looked > LOOK:
                looked = now
                if cluster.died():
                    _lost(cluster, run, job)
            if now - shown > 0.2:
                shown = now
                watch(run)
            if run.stopping and listening and now - asked > ASK:
                asked = now
                cluster.client.send_signal(signal.SIGINT, [cluster.engines[0].id])
        except KeyboardInterrupt:
            interrupted = True
            run.stop()
    heard.take(result.data)
    return _ended(cluster, result, run, job), interrupted


class _PublishedFigures:
    """The figures that engines have published during a run, taken over into its record."""

    def __init__(self, run: DistributedRun) -> None:
        self.run, self.losses = run, 0

    def take(self, data: Any) -> bool:
        """Take over new figures, and say which engines are late; return whether engine 0 has published anything."""
        published, run = data if isinstance(data, list) else [data], self.run
        for row, told in zip(run.rows, published, strict=False):
            if told and "report" in told:
                row.report = EngineReport(**told["report"])
        while fresh := published[0].get(part.losses_from(self.losses)):
            known = run.points[-1][0] if run.points else 0  # before a restart too
            run.points += [(k, loss) for k, loss in enumerate(fresh, self.losses + 1) if k > known]
            self.losses += len(fresh)
        medians = [row.report.median for row in run.rows if row.report.losses >= part.LATE_STEPS]
        if len(medians) == len(run.rows) > 1:
            usual = float(np.median(medians)) if len(medians) > 2 else min(medians)
            for row in run.rows:
                row.late = row.report.median > max(LATE * usual, usual + LEAST)
        return bool(published[0])


def _lost(cluster: Cluster, run: DistributedRun, job: Job) -> None:
    """Raise `EngineLostError` of the engine that ended first."""
    deadline = time.monotonic() + (NAMING if cluster.kind == "mpi" else NAMELESS)
    while (named := DIED.search(cluster.log())) is None and time.monotonic() < deadline:
        time.sleep(POLL)  # until mpiexec has said which one it was
    dead = cluster.died()
    rank = int(named[1]) if named and int(named[1]) < len(cluster) else dead[0].rank
    engine, saved = cluster.engines[rank], _newest(run.folder, job)
    step = max(run.rows[rank].report.step, 0 if saved is None else _step_of(saved))
    words = "nothing yet" if saved is None else f"step {_step_of(saved)} in {saved}"
    owned = "resume=1 starts the engines again and goes on from there" if cluster.owned else "new engines"
    raise EngineLostError(
        "run", f"engine {rank} on {engine.host}", f"its end in step {step + 1}; saved: {words}", owned,
        engine=rank, host=engine.host, step=step, saved=None if saved is None else str(saved),
    )  # fmt: skip


def _newest(folder: str, job: Job) -> Path | None:
    """Return the newest checkpoint of this run whose losses lie beside it."""
    found = sorted(Path(folder).glob("step-*.safetensors"))
    found = [p for p in found if p.with_suffix(".npy").exists() and p.stat().st_mtime_ns >= _begun(job)]
    return max(found, key=lambda p: p.stat().st_mtime_ns, default=None)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.partition("-")[2])


def _begun(job: Job) -> int:
    path = Path(job.state)
    return path.stat().st_mtime_ns if path.exists() else 0


def _ended(cluster: Cluster, result: Any, run: DistributedRun, job: Job) -> list[EngineEnd]:
    """Return the engines' results; raise the error of those that failed."""
    answers: Sequence[Any] = result.get(return_exceptions=True)
    errors = [(k, a) for k, a in enumerate(answers) if isinstance(a, BaseException)]
    if errors:
        run.state = "failed"
        if cluster.died():
            _lost(cluster, run, job)
        first, error = errors[0]
        told: Any = error  # ipyparallel's RemoteError shows this text as its traceback
        words = [f"{getattr(a, 'ename', type(a).__name__)}: {getattr(a, 'evalue', a)}" for _, a in errors]
        same = [
            f"engine {k} on {cluster.engines[k].host}: {'the same' if said == words[0] else said}"
            for (k, _), said in zip(errors[1:], words[1:], strict=True)
        ]
        told.traceback = "\n".join([f"{told.traceback}", f"engine {first} on {cluster.engines[first].host}", *same])
        raise error
    return list(answers)


def _adopt(cluster: Cluster, subject: Subject, job: Job, run: DistributedRun, ended: list[EngineEnd]) -> None:
    """Load engine 0's state into the session, and count its steps."""
    first = ended[0]
    for row, each in zip(run.rows, ended, strict=True):
        row.report = each.report
    path = Path(first.checkpoint)
    if cluster.engines[0].host != host_name():
        content = call(cluster.client[cluster.engines[0].id], Path.read_bytes, path)
        path = Path(run.folder) / path.name
        path.write_bytes(content)
    subject.session.load_checkpoint(path)
    run.checkpoint, run.losses = str(path), first.losses
    made = first.report.step
    base = job.base
    losses = [(base + (k + 1) * job.accumulate, loss) for k, loss in enumerate(first.losses)]
    subject.runner.adopt_steps(made, losses)
    for lost in run.lost:
        subject.runner.log.add(base + made, "note", str(lost))
    if subject.study is not None:
        subject.study.execution.rev += 1
    run.state = "stopped" if first.stopped else "condition" if first.condition else "done"
    run.reason = first.condition
    if first.nonfinite is not None:
        culprit = next((each.culprit for each in ended if each.culprit is not None), None)
        subject.runner.nonfinite_watch.bad_step, subject.runner.nonfinite_watch.culprit = first.nonfinite, culprit
        log = subject.runner.log
        log.add(first.nonfinite, "nonfinite", first.condition)
        if culprit is None:
            log.add(first.nonfinite, "note", "the cause is not known: no engine found it when it repeated the step")
        else:
            log.add(first.nonfinite, "nonfinite", str(culprit), culprit.dispatch)
    if first.differing:
        run.state = "failed"
        given = f"different values on the engines after step {made}"
        wanted = "the same bits everywhere: engines of one kind of device"
        raise SessionError("run", f"parameter {first.differing}", given, wanted)
