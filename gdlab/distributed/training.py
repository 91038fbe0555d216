"""Train a session over epochs of a loader on engines: `Trainer(session, on=cluster).train(loader, 5)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gdlab.base.errors import SessionError
from gdlab.distributed import engine_feeds
from gdlab.distributed.clusters import Cluster
from gdlab.distributed.run import RunSettings, check_settings, run_subject, subject_of_session
from gdlab.distributed.run_record import DistributedRun
from gdlab.session import Session
from gdlab.train.data import DataLoader

Tell = Callable[[Sequence[float]], None]


def train_on(cluster: Cluster, session: Session, loader: DataLoader, epochs: range, tell: Tell) -> None:
    """Make the steps of these epochs on all engines. `tell` gets the mean losses of the updates in order, as soon as
    they are known."""
    each = engine_feeds.epoch_steps(loader.num_batches(), len(cluster))
    settings = RunSettings(each * len(epochs))
    check_settings(cluster, settings)
    if session.mode != "training" or session.updates.settings.accumulate != 1:
        kind = "one that accumulates" if session.mode == "training" else f"one for {session.mode}"
        raise SessionError("Trainer", "session", kind, "a training session: each engine's batch counts for an update")
    session.values.check_ready("train", inputs=False)
    told = _Losses(tell)
    given = replace(engine_feeds.to_send(loader), epoch=epochs.start)
    run, interrupted = run_subject(cluster, subject_of_session(session), given, settings, told.watch)
    told.rest(run)
    if interrupted:
        raise KeyboardInterrupt


class _Losses:
    """A watcher that passes on the losses of a run in order, each once."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._told = tell, 0

    def watch(self, run: DistributedRun) -> None:
        """Pass on the losses that are known."""
        fresh = run.points[self._told :]
        if fresh:
            self._told += len(fresh)
            self._tell([loss for _, loss in fresh])

    def rest(self, run: DistributedRun) -> None:
        """Pass on the remaining losses of a run that has ended."""
        fresh = run.losses[self._told :]
        self._told += len(fresh)
        self._tell(fresh)
