"""Train a session over a loader: epochs, losses, callbacks, a progress bar; Ctrl-C keeps everything.

    trainer = gd.Trainer(gd.build_session(graph), gd.TrainConfig(gd.Optimizer.adam(1e-3)))
    trainer.session.initialize(seed=0)
    history = trainer.train(loader, epochs=5)
    print(history.final_loss())
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from gdlab.base.errors import ArgumentError, SessionError, ShapeError, unknown_name
from gdlab.base.kinds import SEVERAL, Kind, check_kind
from gdlab.base.threads import Job, wait_for
from gdlab.base.words import plural, sig
from gdlab.session import Optimizer, Session
from gdlab.session.arrays import positive
from gdlab.train.data import Batch, DataLoader, InputStream

__all__ = [
    "EpochStats", "LossHistory", "MetricCallback", "Optimizer", "StepMetrics", "TrainConfig", "TrainHistory", "Trainer",
]  # fmt: skip

log = logging.getLogger("gdlab.train")
AHEAD = 16  # steps that go to the device's thread at once when nobody asks for the loss of each
Pairs = list[tuple[str, Any]]


# what goes in, what comes out -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The settings of a training. `learning_rate`, when given, replaces the rate of `optimizer`. `data_input` and
    `label_input` are the inputs that take the loader's streams `x` and `labels`; other streams carry the name of their
    input. The loss of every `log_interval`-th step is logged (`logging`, "gdlab.train"; 0: none). `progress`: a bar
    with the loss and steps per second; None: in a notebook or a terminal."""

    optimizer: Optimizer = field(default_factory=Optimizer.sgd)
    learning_rate: float | None = None
    log_interval: int = 100
    data_input: str = "x"
    label_input: str = "labels"
    progress: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise ArgumentError("TrainConfig", "optimizer", repr(self.optimizer), "Optimizer.sgd(lr) or .adam(lr)")
        if self.learning_rate is not None:
            positive("TrainConfig", learning_rate=self.learning_rate)
        if not _is_count(self.log_interval):
            raise ArgumentError("TrainConfig", "log_interval", repr(self.log_interval), "an int ≥ 0")

    @property
    def rule(self) -> Optimizer:
        """The optimizer, with `learning_rate` in place of its own where that is given."""
        return self.optimizer if self.learning_rate is None else replace(self.optimizer, lr=float(self.learning_rate))


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The loss of one step; steps count from 0 in every epoch."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class EpochStats:
    """The mean loss of an epoch's steps (NaN without any), summed in float64."""

    epoch: int
    avg_loss: float
    steps: int


@dataclass(frozen=True, slots=True)
class TrainHistory:
    """The epochs that were finished; `partial`: the one that an interrupt cut short."""

    epochs: list[EpochStats] = field(default_factory=list)
    partial: EpochStats | None = None

    def final_loss(self) -> float | None:
        """Return the mean loss of the last finished epoch; None before the first."""
        return self.epochs[-1].avg_loss if self.epochs else None


class MetricCallback:
    """A receiver of the events of training, on the thread that trains: override what you need."""

    def on_step(self, metrics: StepMetrics) -> None:
        """Receive the loss of a step, once after every step."""

    def on_epoch(self, stats: EpochStats) -> None:
        """Receive the figures of an epoch after its end."""


class LossHistory(MetricCallback):
    """A callback that keeps the loss of every step in `losses`."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, metrics: StepMetrics) -> None:
        """Append the step's loss."""
        self.losses.append(metrics.loss)


class RemoteTrainer(Protocol):
    """Engines that train a session elsewhere, one step of each for every update: a cluster of `gdlab.distributed`."""

    def __len__(self) -> int: ...

    def train(
        self, session: Session, loader: DataLoader, epochs: range, tell: Callable[[Sequence[float]], None]
    ) -> None:
        """Train over these epochs, each engine with its part of every epoch, and leave the state in the session; `tell`
        gets the losses in order, as they are known. Ctrl-C ends between two steps and raises `KeyboardInterrupt`."""


CALLBACK = Kind(
    "a MetricCallback", lambda given: all(callable(getattr(given, name, None)) for name in ("on_step", "on_epoch"))
)
LOADER = Kind("a DataLoader", lambda given: callable(getattr(given, "input_names", None)))


# training -------------------------------------------------------------------------------------------------------------
class Trainer:
    """A trainer of one session. With callbacks every step is waited for; without, steps follow each other without a
    pause.

    `on`: a cluster, whose engines each take their part of every epoch, with one update for all; a step is then one of
    every engine, its loss the mean over them, and callbacks hear of steps a little later, in order.
    """

    def __init__(
        self, session: Session, config: TrainConfig | None = None, callbacks: Iterable[MetricCallback] = (),
        on: RemoteTrainer | None = None,
    ) -> None:  # fmt: skip
        config = TrainConfig() if config is None else config
        if not isinstance(session, Session) or not isinstance(config, TrainConfig):
            given = f"{type(session).__name__}, {type(config).__name__}"
            raise ArgumentError("Trainer", "arguments", given, "a Session and a TrainConfig")
        if on is not None and not callable(getattr(on, "train", None)):
            raise ArgumentError("Trainer", "on", type(on).__name__, "a cluster: gdlab.distributed.cluster(…)")
        check_kind("Trainer", "callbacks", callbacks, SEVERAL)
        self._session: Session | None = session
        self.on = on
        self.config, self.callbacks = config, list(callbacks)
        for callback in self.callbacks:
            check_kind("Trainer", "callback", callback, CALLBACK)

    def __repr__(self) -> str:
        return f"<Trainer: {self._session or 'no session'}, {plural(len(self.callbacks), 'callback')}>"

    @property
    def session(self) -> Session:
        """The session that is trained."""
        if self._session is None:
            raise SessionError("Trainer", "session", "one that was given away by into_session", "a new Trainer")
        return self._session

    def into_session(self) -> Session:
        """Return the session; the trainer cannot be used afterwards."""
        session, self._session = self.session, None
        return session

    def train(self, loader: DataLoader, epochs: int) -> TrainHistory:
        """Train epochs 0 … `epochs` − 1. Ctrl-C ends between two steps, keeps everything, and raises
        `KeyboardInterrupt` with the attribute `history`."""
        if not _is_count(epochs):
            raise ArgumentError("train", "epochs", repr(epochs), "an int ≥ 0")
        if self.on is not None:
            return self._train_on(self.on, loader, range(int(epochs)))
        history = TrainHistory()
        for epoch in range(epochs):
            try:
                history.epochs.append(self.train_epoch(loader, epoch))
            except KeyboardInterrupt as interrupt:
                whole = getattr(interrupt, "history", TrainHistory())
                interrupt.history = replace(history, partial=whole.partial)  # type: ignore[attr-defined]
                raise
        return history

    def train_epoch(self, loader: DataLoader, epoch: int) -> EpochStats:
        """Train one pass over the loader, in the order that belongs to the number `epoch`."""
        if self.on is not None:
            loader.shuffle(epoch)  # refuses what is no number
            return self._train_on(self.on, loader, range(int(epoch), int(epoch) + 1)).epochs[0]
        session, names = self.session, self._inputs_of(loader)
        session.check_ready("train", inputs=False)
        loader.shuffle(epoch)
        loader.reset()
        session.set_optimizer(self.config.rule)
        run = _Epoch(session, epoch)
        bar = _bar(self.config, loader.num_batches(), epoch)
        try:
            self._steps(run, iter(loader.next_batch, None), names, bar)
        except KeyboardInterrupt as interrupt:
            run.halt()
            self._tell(run, bar)
            interrupt.history = TrainHistory(partial=run.stats())  # type: ignore[attr-defined]
            raise
        finally:
            if bar is not None:
                bar.close()
        stats = run.stats()
        if not stats.steps:
            warnings.warn(f"epoch {epoch}: no batch, so no step and no loss", UserWarning, stacklevel=2)
        self.ended(stats)
        return stats

    def _train_on(self, on: RemoteTrainer, loader: DataLoader, epochs: range) -> TrainHistory:
        """Train over epochs on engines."""
        names = self._inputs_of(loader)
        self.session.set_optimizer(self.config.rule)
        streams = [InputStream(names[name], rows, rows.shape[1]) for name, rows in loader.streams().items()]
        told = _RemoteEpochs(self, epochs.start, loader.num_batches() // len(on))
        try:
            on.train(self.session, DataLoader.with_streams(streams, loader.batch_size), epochs, told.take)
        except KeyboardInterrupt as interrupt:
            interrupt.history = replace(told.history, partial=told.stats())  # type: ignore[attr-defined]
            raise
        finally:
            told.close()
        return told.history

    def ended(self, stats: EpochStats) -> None:
        """Write a finished epoch to the log, and tell the callbacks."""
        log.info("epoch %d: avg_loss = %.4f (%d steps)", stats.epoch, stats.avg_loss, stats.steps)
        for callback in list(self.callbacks):
            callback.on_epoch(stats)

    def stepped(self, metrics: StepMetrics) -> None:
        """Write a step to the log, and tell the callbacks."""
        for callback in list(self.callbacks):
            callback.on_step(metrics)
        if self.config.log_interval and metrics.step % self.config.log_interval == 0:
            log.info("epoch %d step %d: loss = %.4f", metrics.epoch, metrics.step, metrics.loss)

    def _steps(self, run: _Epoch, batches: Iterable[Batch | None], names: Mapping[str, str], bar: Any) -> None:
        fed = ([(names[n], data) for n, data in batch.tensors.items()] for batch in batches if batch is not None)
        while chunk := list(islice(fed, 1 if self.callbacks else AHEAD)):
            run.advance(chunk, wait=bool(self.callbacks))
            self._tell(run, bar)
        run.finish()
        self._tell(run, bar)

    def _tell(self, run: _Epoch, bar: Any) -> None:
        """Tell callbacks, log and bar the losses that are new."""
        first = run.told
        while run.told < len(run.losses):
            step, loss = run.told, run.losses[run.told]
            run.told += 1  # before: a callback that raises has been told
            self.stepped(StepMetrics(run.epoch, step, loss))
        if bar is not None and run.told > first:
            bar.set_postfix(loss=sig(run.losses[-1]), refresh=False)
            bar.update(run.told - first)

    def _inputs_of(self, loader: DataLoader) -> dict[str, str]:
        """Return the input of every stream, checked before anything is changed."""
        check_kind("Trainer", "loader", loader, LOADER)
        known = self.session.plan().input_types
        renamed = {"x": self.config.data_input, "labels": self.config.label_input}
        names = {stream: renamed.get(stream, stream) for stream in loader.input_names()}
        for stream, name in names.items():
            if name not in known:
                raise unknown_name("Trainer", f"input of stream {stream!r}", name, known)
            if list(names.values()).count(name) > 1:
                raise ArgumentError("Trainer", f"streams of input {name!r}", ", ".join(names), "one stream")
            given = loader.batch_elements()[stream] if isinstance(loader, DataLoader) else known[name].num_elements
            if given != known[name].num_elements:
                wanted = f"{known[name].num_elements} ({known[name]})"
                raise ShapeError("Trainer", f"stream {stream!r} for input {name!r}", f"{given} values a batch", wanted)
        return names


class _Epoch:
    """The steps of one epoch as they are made on the owner's thread, and their losses."""

    def __init__(self, session: Session, epoch: int) -> None:
        self.session, self.epoch, self.losses, self.told, self.stopped = session, epoch, list[float](), 0, False
        self._made = set[int]()  # own steps by the device's number whose loss is not known yet
        session.loaded.turn.call(lambda: session.take_losses(True))  # those of earlier steps

    def advance(self, chunk: list[Pairs], wait: bool) -> None:
        """Make one step for each batch of the chunk; between two steps others may read."""
        wait_for(self.session.loaded.turn.post(self._job(chunk, wait)))

    def _job(self, chunk: list[Pairs], wait: bool) -> Job[None]:
        session = self.session
        for batch in chunk:
            if self.stopped:
                return
            for name, data in batch:
                session.set_input(name, data)
            session.check_ready("train")
            session.steps.make()
            self._made.add(session.traffic.forwards)
            self._collect(wait)
            yield

    def _collect(self, wait: bool) -> None:
        for step, loss in self.session.take_losses(wait):
            if step in self._made:  # others, callbacks among them, step the session too
                self._made.discard(step)
                self.losses.append(loss)

    def finish(self) -> None:
        """Wait until every step made so far has run."""
        self.session.loaded.turn.call(lambda: self._collect(True))

    def halt(self) -> None:
        """End behind the step that is under way, and know its loss."""
        self.stopped = True
        with suppress(SessionError):  # closed meanwhile
            self.finish()

    def stats(self) -> EpochStats:
        """Return the figures of the steps made so far."""
        return stats_of(self.epoch, self.losses)


def stats_of(epoch: int, losses: Sequence[float]) -> EpochStats:
    """Return the figures of an epoch with these losses: their mean and number."""
    return EpochStats(epoch, sum(losses) / len(losses) if losses else math.nan, len(losses))


class _RemoteEpochs:
    """The epochs, of `each` steps, that engines train: each loss and each finished epoch is passed to the trainer."""

    def __init__(self, trainer: Trainer, epoch: int, each: int) -> None:
        self.trainer, self.epoch, self.each = trainer, epoch, each
        self.history, self.losses = TrainHistory(), list[float]()
        self.bar: Any = None

    def take(self, losses: Sequence[float]) -> None:
        """Take the next losses."""
        for loss in losses:
            if not self.losses:
                self.bar = _bar(self.trainer.config, self.each, self.epoch)
            self.losses.append(loss)  # before: a callback that raises has been told
            if self.bar is not None:
                self.bar.set_postfix(loss=sig(loss), refresh=False)
                self.bar.update(1)
            self.trainer.stepped(StepMetrics(self.epoch, len(self.losses) - 1, loss))
            if len(self.losses) == self.each:
                self._end_epoch()

    def _end_epoch(self) -> None:
        stats = self.stats()
        self.close()
        self.epoch, self.losses = self.epoch + 1, []
        self.history.epochs.append(stats)
        self.trainer.ended(stats)

    def stats(self) -> EpochStats:
        """Return the figures of the epoch under way."""
        return stats_of(self.epoch, self.losses)

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


# the progress bar -----------------------------------------------------------------------------------------------------
def _bar(config: TrainConfig, steps: int, epoch: int) -> Any:
    """Return a tqdm bar where one is wanted, or None."""
    wanted = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    if not (wanted if config.progress is None else config.progress):
        return None
    from tqdm.auto import tqdm

    return tqdm(total=steps, desc=f"epoch {epoch}", unit="step")


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0
