"""The trainer: what it configures, feeds and tells, in which order; interrupts; the bar."""

from __future__ import annotations

import io
import logging
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from session_state import W, X, Y, fitted, line, state_of

import gdlab as gd
from gdlab.session import Session, build_inference_session, build_session
from gdlab.session.run.runner import runner_of
from gdlab.train import trainer as room

N = 40


@pytest.fixture
def session(device: str) -> Iterator[Session]:
    with build_session(line(), device) as made:
        yield fitted(made)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3)).astype(np.float32)
    return x, (x @ W + 1).astype(np.float32)


def test_an_epoch_that_is_refused_changes_nothing(device: str) -> None:
    with build_session(line(), device) as session:
        for epoch, text in ((0, "no value for"), (-1, "seed: given -1")):
            before = state_of(session)
            with pytest.raises(gd.GdlabError, match=text):
                config = gd.TrainConfig(gd.Optimizer.adam(0.1), label_input="y")
                gd.Trainer(session, config).train_epoch(loader(), epoch)
            assert state_of(session) == before and session.optimizer.rule == "none"
            session.set_parameter("w", W)
            session.set_parameter("b", [0, 0])


def loader(batch: int = 4) -> gd.DataLoader:
    x, y = data()
    return gd.DataLoader(x, y, 3, 2, batch)


def config(optimizer: gd.Optimizer | None = None, **more: Any) -> gd.TrainConfig:
    return gd.TrainConfig(optimizer or gd.Optimizer.sgd(0.1), label_input="y", **more)


def by_hand(lr: float, epochs: int) -> list[float]:
    """Losses of SGD in float64, in the loader's order."""
    x, y = (part.astype(np.float64) for part in data())
    w, b, losses = W.astype(np.float64), np.zeros(2), []
    for epoch in range(epochs):
        order = gd.data.shuffled(N, epoch)
        for at in range(0, N, 4):
            rows = order[at : at + 4]
            error = x[rows] @ w + b - y[rows]
            losses.append(float(np.mean(error**2)))
            d = 2 * error / error.size
            w, b = w - lr * x[rows].T @ d, b - lr * d.sum(0)
    return losses


class Recorder(gd.MetricCallback):
    """Everything that it is told, and where the session stood then."""

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, list[Any]()

    def on_step(self, metrics: gd.StepMetrics) -> None:
        assert metrics.loss == self.session.read_loss(), "told when the step is over"
        self.told.append((metrics.epoch, metrics.step, self.session.step_count))

    def on_epoch(self, stats: gd.EpochStats) -> None:
        self.told.append(stats)


# what is trained ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("watched", [False, True])
def test_losses_are_those_of_a_loop_by_hand(session: Session, watched: bool) -> None:
    trainer, losses = gd.Trainer(session, config()), gd.LossHistory()
    if watched:
        trainer.callbacks.append(losses)
    history, want = trainer.train(loader(), epochs=2), by_hand(0.1, 2)
    assert [e.steps for e in history.epochs] == [10, 10] and [e.epoch for e in history.epochs] == [0, 1]
    means = [np.mean(want[:10]), np.mean(want[10:])]
    np.testing.assert_allclose([e.avg_loss for e in history.epochs], means, rtol=2e-4)
    assert history.final_loss() == history.epochs[1].avg_loss and history.partial is None
    if watched:
        np.testing.assert_allclose(losses.losses, want, rtol=2e-4, atol=1e-6)
    assert session.step_count == 20


def test_callbacks_hear_every_step_once_in_order(session: Session) -> None:
    heard = Recorder(session)
    history = gd.Trainer(session, config(), [heard]).train(loader(), epochs=2)
    steps = [(e, k, 10 * e + k + 1) for e in range(2) for k in range(10)]
    assert heard.told == [*steps[:10], history.epochs[0], *steps[10:], history.epochs[1]]


def test_watching_changes_no_bit() -> None:
    states = []
    for watched in (False, True):
        with build_session(line(), "cpu") as session:
            trainer = gd.Trainer(fitted(session), config(gd.Optimizer.adam(1e-2)))
            trainer.callbacks += [gd.LossHistory()] * watched
            history = trainer.train(loader(), epochs=3)
            states.append((history, session.read_param("w").tobytes(), session.adam_step_count()))
    assert states[0] == states[1] and states[0][2] == 30


def test_earlier_steps_do_not_count(session: Session) -> None:
    session.set_input("y", np.full((4, 2), 1e6))
    for _ in range(3):
        session.step()
    stats = gd.Trainer(session, config(learning_rate=0.0)).train_epoch(loader(), 0)
    assert stats.steps == 10 and stats.avg_loss < 100


class Stepper(gd.LossHistory):
    """Steps the session itself, by hand or with its runner, after each step of the trainer."""

    def __init__(self, session: Session, by_hand: bool) -> None:
        super().__init__()
        self.session, self.by_hand = session, by_hand

    def on_step(self, metrics: gd.StepMetrics) -> None:
        super().on_step(metrics)
        self.session.set_input("y", np.full((4, 2), 1e6))
        if self.by_hand:
            self.session.step()
            self.session.step()
        else:
            runner_of(self.session).run(2)

    def on_epoch(self, stats: gd.EpochStats) -> None:
        self.session.step()


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by a run"])
def test_steps_that_a_callback_makes_do_not_count(session: Session, by_hand: bool) -> None:
    plain = gd.LossHistory()
    wanted = gd.Trainer(session, config(learning_rate=0.0), [plain]).train(loader(), 2)
    stepper = Stepper(session, by_hand)
    history = gd.Trainer(session, config(learning_rate=0.0), [stepper]).train(loader(), 2)
    assert history == wanted and stepper.losses == plain.losses and len(plain.losses) == 20
    assert session.step_count == 20 + 20 * 3 + 2


def test_steps_that_another_thread_makes_do_not_count(session: Session) -> None:
    wanted = gd.Trainer(session, config(learning_rate=0.0)).train(loader(), 5)
    made, over = [0], threading.Event()

    def step() -> None:
        while not over.is_set():
            session.step()
            made[0] += 1

    thread = threading.Thread(target=step)
    thread.start()
    history = gd.Trainer(session, config(learning_rate=0.0)).train(loader(), 5)
    over.set()
    thread.join()
    assert history == wanted and session.step_count == 100 + made[0]


def test_the_mean_is_taken_in_float64() -> None:
    run = object.__new__(room._Epoch)
    run.epoch, run.losses = 3, [1e16, 1.0, -1e16] * 2
    assert run.stats() == gd.EpochStats(3, sum([1e16, 1.0, -1e16] * 2) / 6, 6)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_the_learning_rate_of_the_config_counts(session: Session, rule: str) -> None:
    optimizer = getattr(gd.Optimizer, rule)(0.5)
    gd.Trainer(session, config(optimizer, learning_rate=0.0)).train(loader(), 1)
    np.testing.assert_array_equal(session.read_param("w"), W)
    assert session.optimizer == getattr(gd.Optimizer, rule)(0.0)
    gd.Trainer(session, config(optimizer)).train(loader(), 1)
    assert session.optimizer == optimizer and not np.array_equal(session.read_param("w"), W)


def test_what_a_config_says_by_itself() -> None:
    default = gd.TrainConfig()
    assert (default.optimizer, default.learning_rate, default.log_interval) == (gd.Optimizer.sgd(0.01), None, 100)
    assert (default.data_input, default.label_input) == ("x", "labels")
    adam = gd.Optimizer.adam(0.25)
    assert (adam.lr, adam.beta1, adam.beta2, adam.epsilon) == (0.25, 0.9, 0.999, 1e-8)
    assert gd.TrainConfig(adam, 0.5).rule == gd.Optimizer.adam(0.5) and gd.TrainConfig(adam).rule == adam
    with pytest.raises(gd.SessionError, match="learning_rate: given -1"):
        gd.TrainConfig(learning_rate=-1)
    for wrong in ({"optimizer": "adam"}, {"log_interval": -1}, {"log_interval": 0.5}):
        with pytest.raises(gd.ArgumentError, match="TrainConfig"):
            gd.TrainConfig(**wrong)  # type: ignore[arg-type]


# streams and inputs ---------------------------------------------------------------------------------------------------
def test_streams_with_names_of_inputs_are_taken_as_they_are(session: Session) -> None:
    x, y = data()
    streams = [gd.InputStream("y", y, 2), gd.InputStream("x", x, 3)]
    trainer = gd.Trainer(session, gd.TrainConfig(gd.Optimizer.sgd(0.1)))
    history = trainer.train(gd.DataLoader.with_streams(streams, 4), 1)
    np.testing.assert_allclose(history.final_loss(), np.mean(by_hand(0.1, 1)), rtol=2e-4)


def test_a_network_with_indices_is_trained() -> None:
    config = gd.models.TransformerLmConfig(16, 8, 1, 2, 1, 12)
    ids = np.random.default_rng(0).integers(0, 16, (20, 6)).astype(np.uint32)
    labels = np.eye(16, dtype=np.float32)[np.roll(ids, -1, 1)]
    streams = [gd.InputStream("token_ids", ids, 6), gd.InputStream("labels", labels, 6 * 16)]
    with build_session(gd.models.transformer_lm(config, 6), "cpu") as session:
        session.initialize(0)
        trainer = gd.Trainer(session, gd.TrainConfig(gd.Optimizer.adam(1e-2)))
        losses = [e.avg_loss for e in trainer.train(gd.DataLoader.with_streams(streams, 1), 4).epochs]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("loader_of", "settings", "error", "text"),
    [
        (loader, {"label_input": "labels"}, gd.UnknownNameError, "input of stream 'labels': given labels"),
        (loader, {"data_input": "y"}, gd.ArgumentError, "streams of input 'y'"),
        (lambda: loader(5), {}, gd.ShapeError, r"stream 'x' for input 'x': given 15 values a batch, wanted 12"),
        (lambda: gd.DataLoader(np.zeros(12), np.zeros(24), 3, 6, 4), {}, gd.ShapeError, "'labels' for input 'y'"),
    ],
    ids=["unknown input", "two for one", "batch size", "label size"],
)
def test_a_loader_that_does_not_fit_changes_nothing(
    session: Session, loader_of: Any, settings: dict[str, str], error: type[Exception], text: str
) -> None:
    before = state_of(session)
    trainer = gd.Trainer(session, gd.TrainConfig(**{"label_input": "y", **settings}))  # type: ignore[arg-type]
    with pytest.raises(error, match=text):
        trainer.train(loader_of(), 1)
    assert state_of(session) == before


def test_what_is_no_session_and_no_count_is_refused(session: Session) -> None:
    with pytest.raises(gd.ArgumentError, match="wanted a Session and a TrainConfig"):
        gd.Trainer(line())  # type: ignore[arg-type]
    for epochs in (-1, 1.5, True):
        with pytest.raises(gd.ArgumentError, match="epochs"):
            gd.Trainer(session, config()).train(loader(), epochs)  # type: ignore[arg-type]
    with build_inference_session(line(), "cpu") as reader, pytest.raises(gd.SessionError, match="training session"):
        gd.Trainer(fitted(reader), config()).train(loader(), 1)


def test_what_is_no_loader_and_no_callback_is_refused(session: Session) -> None:
    before, trainer = state_of(session), gd.Trainer(session)
    for loader in (3, None, [1], {"x": X}):
        with pytest.raises(gd.ArgumentError, match=r"Trainer: loader: given \w+, wanted a DataLoader"):
            trainer.train(loader, 2)  # type: ignore[arg-type]
    with pytest.raises(gd.ArgumentError, match=r"Trainer: callback: given function, wanted a MetricCallback"):
        gd.Trainer(session, None, [lambda metrics: None])  # type: ignore[list-item]
    with pytest.raises(gd.ArgumentError, match=r"Trainer: callbacks: given LossHistory, wanted a list"):
        gd.Trainer(session, None, gd.LossHistory())  # type: ignore[arg-type]
    assert state_of(session) == before
    assert repr(trainer) == f"<Trainer: {session!r}, 0 callbacks>"


def test_no_epochs_and_no_batch() -> None:
    class Empty(gd.DataLoader):
        def next_batch(self) -> None:
            return None

    with build_session(line(), "cpu") as session:
        trainer = gd.Trainer(fitted(session), config())
        assert trainer.train(loader(), 0) == gd.TrainHistory() and gd.TrainHistory().final_loss() is None
        x, y = data()
        with pytest.warns(UserWarning, match="epoch 2: no batch"):
            stats = trainer.train_epoch(Empty(x, y, 3, 2, 4), 2)
        assert (stats.epoch, stats.steps) == (2, 0) and math.isnan(stats.avg_loss)


def test_the_session_is_given_back(session: Session) -> None:
    trainer = gd.Trainer(session, config())
    trainer.train(loader(), 1)
    assert trainer.session is session and trainer.into_session() is session
    with pytest.raises(gd.SessionError, match="into_session"):
        trainer.train(loader(), 1)
    session.step()


def test_a_loss_that_is_not_finite_does_not_end_training(session: Session) -> None:
    x, y = data()
    x[20] = np.nan
    history = gd.Trainer(session, config()).train(gd.DataLoader(x, y, 3, 2, 4), 1)
    assert history.epochs[0].steps == 10 and math.isnan(history.final_loss())  # type: ignore[arg-type]


# interrupts -----------------------------------------------------------------------------------------------------------
class Stops(gd.MetricCallback):
    """Ctrl-C after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, metrics: gd.StepMetrics) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_everything(session: Session) -> None:
    kept = gd.LossHistory()
    trainer = gd.Trainer(session, config(), [kept, Stops(13)])
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train(loader(), 5)
    history = caught.value.history  # type: ignore[attr-defined]
    assert [e.steps for e in history.epochs] == [10] and session.step_count == len(kept.losses) == 13
    np.testing.assert_allclose(history.final_loss(), np.mean(kept.losses[:10]), rtol=1e-12)
    assert history.partial == gd.EpochStats(1, sum(kept.losses[10:]) / 3, 3)
    trainer.callbacks.clear()
    assert trainer.train(loader(), 1).epochs[0].steps == 10, "the session and the trainer go on"


def test_an_interrupt_between_steps_of_a_chunk_ends_with_a_whole_step(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = room.wait_for

    def interrupted(future: Any) -> Any:
        monkeypatch.setattr(room, "wait_for", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        gd.Trainer(session, config()).train(loader(), 1)
    partial = caught.value.history.partial  # type: ignore[attr-defined]
    assert partial.steps == session.step_count <= 10
    session.step()
    assert session.step_count == partial.steps + 1


# the bar and the log --------------------------------------------------------------------------------------------------
def test_the_bar_shows_loss_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    with build_session(line(), "cpu") as session:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        trainer = gd.Trainer(fitted(session), config(progress=True))
        loss = trainer.train(loader(), 2).final_loss()
        drawn = sys.stderr.getvalue()  # type: ignore[attr-defined]
        assert "epoch 1: 100%" in drawn and "10/10" in drawn and "step/s" in drawn and "loss=" in drawn and loss
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # ipyparallel, of other tests, imports it
        gd.Trainer(session, config(progress=False)).train(loader(), 1)
        gd.Trainer(session, config()).train(loader(), 1)
        assert sys.stderr.getvalue() == "", "nobody looks at a stream that is no terminal"  # type: ignore[attr-defined]


def test_the_log_has_every_nth_loss(caplog: pytest.LogCaptureFixture) -> None:
    with build_session(line(), "cpu") as session, caplog.at_level(logging.INFO, "gdlab.train"):
        gd.Trainer(fitted(session), config(log_interval=4)).train(loader(), 1)
        lines = [record.getMessage() for record in caplog.records]
        assert [text.partition(":")[0] for text in lines] == [*(f"epoch 0 step {k}" for k in (0, 4, 8)), "epoch 0"]
        caplog.clear()
        gd.Trainer(session, config(log_interval=0)).train(loader(), 1)
        assert len(caplog.records) == 1, "0: of the epoch alone"


def test_inputs_that_no_stream_feeds_keep_their_values(session: Session) -> None:
    session.set_input("y", Y)
    streams = [gd.InputStream("x", np.tile(X, (2, 1)), 3)]
    history = gd.Trainer(session, config(learning_rate=0.0)).train(gd.DataLoader.with_streams(streams, 4), 1)
    assert history.epochs[0].steps == 2
    np.testing.assert_array_equal(session.read_param("w"), W)
