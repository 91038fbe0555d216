"""`Trainer(session, on=cluster)`: engines share the epochs of a loader, with one update for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import loader, regression

import gdlab as gd
from gdlab.distributed import Cluster

CONFIG = gd.TrainConfig(gd.Optimizer.adam(1e-2), progress=False, data_input="x", label_input="y")


def session() -> gd.Session:
    made = gd.build_session(regression().graph, device="cpu")
    made.initialize(seed=0)
    return made


class Heard(gd.LossHistory):
    """The steps and epochs that were told, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_step(self, metrics: gd.StepMetrics) -> None:
        super().on_step(metrics)
        self.told.append((metrics.epoch, metrics.step))

    def on_epoch(self, stats: gd.EpochStats) -> None:
        self.told.append(stats.epoch)


def with_labels(count: int) -> gd.DataLoader:
    streams = loader(count).streams()
    return gd.DataLoader(streams["x"], streams["y"], 16, 4, 8)


def test_epochs_on_two_engines_are_those_of_one_session_that_accumulates(two: Cluster) -> None:
    """Seven batches: three steps an epoch, in the shuffled order of each; callbacks hear of each step once."""
    other, data, heard = session(), with_labels(7), Heard()
    other.set_optimizer(CONFIG.rule)
    other.set_grad_accumulate(2)
    means = []
    for epoch in range(3):
        data.shuffle(epoch)
        for k, batch in enumerate(list(data)[:6]):
            other.set_input("x", batch.get("x"))
            other.set_input("y", batch.get("labels"))
            other.step()
            means += [other.read_loss()] if k % 2 == 0 else []
            if k % 2:
                means[-1] = (means[-1] + other.read_loss()) / 2
    trainer = gd.Trainer(session(), CONFIG, [heard], on=two)
    history = trainer.train(data, epochs=2)
    last = trainer.train_epoch(data, 2)
    assert heard.told == [(0, 0), (0, 1), (0, 2), 0, (1, 0), (1, 1), (1, 2), 1, (2, 0), (2, 1), (2, 2), 2]
    np.testing.assert_allclose(heard.losses, means, rtol=1e-5)
    assert [stats.steps for stats in history.epochs] == [3, 3] and last.steps == 3 and last.epoch == 2
    assert history.final_loss() == pytest.approx(np.mean(means[3:6]))
    for name in "wbv":
        np.testing.assert_allclose(trainer.session.read_param(name), other.read_param(name), rtol=1e-5, atol=1e-7)
    assert trainer.session.step_count == 9 and trainer.session.adam_step_count() == 9


def test_errors_end_a_training_and_leave_the_cluster_usable(two: Cluster) -> None:
    """A callback that raises, and one that is interrupted, end between two steps; too few batches are refused."""
    trainer = gd.Trainer(session(), CONFIG, on=two)
    with pytest.raises(gd.ArgumentError, match=r"^run: feed: given 1 batch in an epoch, wanted at least one for each"):
        trainer.train(with_labels(1), 1)
    with pytest.raises(gd.ArgumentError, match=r"^Trainer: on: given str, wanted a cluster"):
        gd.Trainer(session(), CONFIG, on="two")  # type: ignore[arg-type]

    class Failing(gd.MetricCallback):
        error: type[BaseException] = ValueError

        def on_step(self, metrics: gd.StepMetrics) -> None:
            if metrics.epoch:
                raise self.error("no more")

    trainer.callbacks.append(failing := Failing())
    with pytest.raises(ValueError, match="no more"):
        trainer.train(with_labels(4), 30000)
    made = trainer.session.step_count
    assert 3 <= made < 60000
    failing.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train(with_labels(4), 30000)
    history = caught.value.history  # type: ignore[attr-defined]
    assert made < trainer.session.step_count < made + 60000 and len(history.epochs) >= 1 and history.partial is not None
    trainer.callbacks.clear()
    assert trainer.train(with_labels(4), 1).epochs[0].steps == 2

    unset = gd.build_session(regression().graph, device="cpu")
    with pytest.raises(gd.SessionError, match=r"^train: parameters: given no value for "):
        gd.Trainer(unset, CONFIG, on=two).train(with_labels(4), 1)
    unset.initialize(seed=0)
    unset.set_grad_accumulate(2)
    with pytest.raises(gd.SessionError, match=r"^Trainer: session: given one that accumulates"):
        gd.Trainer(unset, CONFIG, on=two).train(with_labels(4), 1)
