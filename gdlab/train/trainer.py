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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, SessionError, ShapeError, unknown_name
from gdlab.base.threads import Job, wait_for
from gdlab.base.words import sig
from gdlab.session import Optimizer, Session
from gdlab.session.arrays import positive
from gdlab.train.data import Batch, DataLoader

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
        """The optimizer with the rate that counts."""
        return self.optimizer if self.learning_rate is None else replace(self.optimizer, lr=float(self.learning_rate))


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The loss of one step; steps count from 0 in every epoch."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class EpochStats:
    """Mean loss of an epoch's steps (NaN without any), summed in float64."""

    epoch: int
    avg_loss: float
    steps: int


@dataclass(frozen=True, slots=True)
class TrainHistory:
    """The epochs that were finished; `partial`: the one that an interrupt cut short."""

    epochs: list[EpochStats] = field(default_factory=list)
    partial: EpochStats | None = None

    def final_loss(self) -> float | None:
        """Mean loss of the last finished epoch; None before the first."""
        return self.epochs[-1].avg_loss if self.epochs else None


class MetricCallback:
    """Receive the events of training, on the thread that trains: override what you need."""

    def on_step(self, metrics: StepMetrics) -> None:
        """After every step, once."""

    def on_epoch(self, stats: EpochStats) -> None:
        """After every epoch."""


class LossHistory(MetricCallback):
    """Keeps the loss of every step in `losses`."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, metrics: StepMetrics) -> None:
        """Keep it."""
        self.losses.append(metrics.loss)


# training -------------------------------------------------------------------------------------------------------------
class Trainer:
    """Trains one session. With callbacks every step is waited for; without, steps follow each other without a pause."""

    def __init__(
        self, session: Session, config: TrainConfig | None = None, callbacks: Iterable[MetricCallback] = ()
    ) -> None:
        config = TrainConfig() if config is None else config
        if not isinstance(session, Session) or not isinstance(config, TrainConfig):
            given = f"{type(session).__name__}, {type(config).__name__}"
            raise ArgumentError("Trainer", "arguments", given, "a Session and a TrainConfig")
        self._session: Session | None = session
        self.config, self.callbacks = config, list(callbacks)

    @property
    def session(self) -> Session:
        """The session that is trained."""
        if self._session is None:
            raise SessionError("Trainer", "session", "one that was given away by into_session", "a new Trainer")
        return self._session

    def into_session(self) -> Session:
        """The session; the trainer is done with."""
        session, self._session = self.session, None
        return session

    def train(self, loader: DataLoader, epochs: int) -> TrainHistory:
        """Epochs 0 … `epochs` − 1. Ctrl-C ends between two steps, keeps everything, and raises `KeyboardInterrupt` with
        the attribute `history`."""
        if not _is_count(epochs):
            raise ArgumentError("train", "epochs", repr(epochs), "an int ≥ 0")
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
        """One pass over the loader, in the order that belongs to the number `epoch`."""
        session, names = self.session, self._inputs_of(loader)
        session.set_optimizer(self.config.rule)
        loader.shuffle(epoch)
        loader.reset()
        run = _Epoch(session, epoch)
        bar = _bar(self.config, loader, epoch)
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
        log.info("epoch %d: avg_loss = %.4f (%d steps)", epoch, stats.avg_loss, stats.steps)
        for callback in list(self.callbacks):
            callback.on_epoch(stats)
        return stats

    def _steps(self, run: _Epoch, batches: Iterable[Batch | None], names: Mapping[str, str], bar: Any) -> None:
        fed = ([(names[n], data) for n, data in batch.tensors.items()] for batch in batches if batch is not None)
        while chunk := list(islice(fed, 1 if self.callbacks else AHEAD)):
            run.advance(chunk, wait=bool(self.callbacks))
            self._tell(run, bar)
        run.finish()
        self._tell(run, bar)

    def _tell(self, run: _Epoch, bar: Any) -> None:
        """Callbacks, log and bar of the losses that are new."""
        every, first = self.config.log_interval, run.told
        while run.told < len(run.losses):
            step, loss = run.told, run.losses[run.told]
            run.told += 1  # before: a callback that raises has been told
            for callback in list(self.callbacks):
                callback.on_step(StepMetrics(run.epoch, step, loss))
            if every and step % every == 0:
                log.info("epoch %d step %d: loss = %.4f", run.epoch, step, loss)
        if bar is not None and run.told > first:
            bar.set_postfix(loss=sig(run.losses[-1]), refresh=False)
            bar.update(run.told - first)

    def _inputs_of(self, loader: DataLoader) -> dict[str, str]:
        """The input of every stream, checked before anything is changed."""
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
        """One step for each batch of the chunk; between two steps others may read."""
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
        """Every step made so far has run."""
        self.session.loaded.turn.call(lambda: self._collect(True))

    def halt(self) -> None:
        """End behind the step that is under way, and know its loss."""
        self.stopped = True
        with suppress(SessionError):  # closed meanwhile
            self.finish()

    def stats(self) -> EpochStats:
        """Of the steps made so far."""
        steps = len(self.losses)
        return EpochStats(self.epoch, sum(self.losses) / steps if steps else math.nan, steps)


# the progress bar -----------------------------------------------------------------------------------------------------
def _bar(config: TrainConfig, loader: DataLoader, epoch: int) -> Any:
    """A tqdm bar where one is wanted, or None."""
    wanted = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    if not (wanted if config.progress is None else config.progress):
        return None
    from tqdm.auto import tqdm

    return tqdm(total=loader.num_batches(), desc=f"epoch {epoch}", unit="step")


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0
