"""Runs make several steps in one submission where nothing looks between two: the same bits, stops and causes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from counting import ONE, counter, made

from gdlab import ops
from gdlab.base.errors import GdlabError
from gdlab.graph import Graph
from gdlab.session.run.stepping import Stepper
from gdlab.study.study import Study
from gdlab.train.data import Batch, DataLoader, InputStream

STEPS = 150
RULES: dict[str, dict[str, Any]] = {"sgd": {"sgd": 0.1}, "adam": {"adam": 1e-2}, "accumulated": {"sgd": 0.1}}


def dropped() -> Graph:
    """Two layers with draws of their own in every step."""
    with Graph() as g:
        h = ops.dropout((ops.input("x", (8, 12)) @ ops.parameter("a", (12, 20))).relu(), 0.3)
        g.output(ops.mse_loss(h @ ops.parameter("b", (20, 3)), ops.input("y", (8, 3))))
    return g


def falling() -> Graph:
    """log of a parameter that falls by `x` in every step, from 20."""
    with Graph() as g:
        w = ops.parameter("w", (1,))
        g.output((ops.log(w) * 1e-6 + w * ops.input("x", (1,))).sum())
    return g


def study_of(graph: Graph, device: str, **options: Any) -> Study:
    study = Study(graph, train=True, device=device, name="net")
    study.prepare(**{"init": 0, **options})
    return study


def result(study: Study) -> tuple[Any, ...]:
    session = study.session
    values = [session.read_param(name).tobytes() for name in session.param_names()]
    return study.runner.losses, values, session.step_count, session.adam_step_count()


@pytest.mark.parametrize("rule", RULES)
def test_the_same_bits_in_fewer_submissions(device: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def study() -> Study:
        made = study_of(dropped(), device, feed="random:1", **RULES[rule])
        made.session.set_grad_accumulate(3 if rule == "accumulated" else 1)
        return made

    many = study()
    many.run(STEPS)
    many.run(2)
    monkeypatch.setattr(Stepper, "_several", lambda self, most: 1)
    one = study()
    one.run(STEPS + 2)
    found = result(many)
    assert found == result(one) and len(found[0]) == STEPS + 2 == found[2]
    assert many.session.traffic.forwards == STEPS + 2
    assert (many.session.traffic.submissions < STEPS) == (device == "wgpu")


def watch(study: Study) -> None:
    study.runner.watch("w")


def break_at(study: Study) -> None:
    study.runner.break_at("step 10000")


def until(study: Study) -> None:
    study.runner.set_until("loss < -1e9")


def everything(study: Study) -> None:
    study.runner.set_watch("parameters")


def speed(study: Study) -> None:
    study.runner.set_speed(1e6)


def asked(study: Study) -> None:
    def feed(step: int) -> Mapping[str, Any]:
        assert made(study) == step
        return ONE

    study.prepare(feed=feed)


@pytest.mark.parametrize("look", [watch, break_at, until, everything, speed, asked])
def test_whoever_looks_at_each_step_sees_each(
    device: str, look: Callable[[Study], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, calls = counter(device), list[int]()
    monkeypatch.setattr(type(study.session.steps), "make_together", lambda self, parts: calls.append(len(parts)))
    look(study)
    study.run(12)
    assert not calls and made(study) == study.session.step_count == 12
    study.close()


@pytest.mark.parametrize("rule", [{"sgd": 1.0}, {"adam": 1.0}])
@pytest.mark.parametrize("at", [3, 20, 140])
def test_a_loss_that_is_not_finite_is_found_in_its_step(device: str, rule: dict[str, float], at: int) -> None:
    study = study_of(falling(), device, feed={"x": np.ones(1, np.float32)}, **rule)
    study.session.set_parameter("w", np.full(1, at - 0.5, np.float32))
    study.run(400)
    first = next(step for step, loss in study.runner.losses if not np.isfinite(loss))
    assert study.runner.reason == f"loss is NaN at step {first}" and abs(first - at - 1) <= 1
    culprit = study.runner.culprit
    assert culprit is not None and "log" in culprit.label
    assert study.session.step_count <= first + 200
    study.close()


@pytest.mark.clock
def test_a_pause_waits_for_few_steps(device: str) -> None:
    study = counter(device)
    for _ in range(3):
        future = study.runner.start(10**8)
        time.sleep(0.2)
        began = time.perf_counter()
        study.runner.pause()
        future.result()
        assert time.perf_counter() - began < 0.1
    assert made(study) == study.session.step_count
    study.close()


def test_steps_of_others_are_no_part_of_the_run(device: str) -> None:
    study = counter(device)
    future = study.runner.start(2000)
    threads = [threading.Thread(target=lambda: [study.session.step() for _ in range(25)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    future.result()
    study.runner.read_losses()
    assert made(study) == study.session.step_count == 2050
    assert [step for step, _ in study.runner.losses] == [*range(1, 2051)]
    study.close()


def test_paused_and_resumed_it_makes_its_steps(device: str) -> None:
    study = counter(device)
    future = study.runner.start(3000)
    while study.session.step_count < 20:
        time.sleep(0.001)
    study.runner.pause()
    future.result()
    if study.runner.state == "paused":
        study.session.step()
        study.runner.resume().result()
    assert made(study) == study.session.step_count == 3000
    study.close()


def rows(count: int) -> list[dict[str, np.ndarray]]:
    """Inputs that differ from step to step."""
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=(8, 12)), "y": rng.normal(size=(8, 3)).astype(np.float32)} for _ in range(count)]


def of_list(batches: list[dict[str, np.ndarray]]) -> Any:
    return batches


def of_tuple(batches: list[dict[str, np.ndarray]]) -> Any:
    return tuple(batches)


def of_loader(batches: list[dict[str, np.ndarray]]) -> Any:
    streams = [InputStream(name, np.concatenate([b[name] for b in batches]).astype(np.float32), size)
               for name, size in (("x", 12), ("y", 3))]  # fmt: skip
    return DataLoader.with_streams(streams, 8)


class Reusing:
    """A loader that gives the same array each time, with other numbers."""

    def __init__(self, batches: list[dict[str, np.ndarray]]) -> None:
        self.batches, self.at, self.asked = batches, 0, 0
        self.x, self.y = np.zeros((8, 12), np.float32), np.zeros((8, 3), np.float32)

    def shuffle(self, epoch: int) -> None:
        self.at = 0

    def num_batches(self) -> int:
        return len(self.batches)

    def next_batch(self) -> Batch:
        batch = self.batches[self.at]
        self.x[...], self.y[...] = batch["x"], batch["y"]
        self.at += 1
        self.asked += 1
        return Batch({"x": self.x, "y": self.y})


@pytest.mark.parametrize("feed", [of_list, of_tuple, of_loader, Reusing])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_what_may_be_read_ahead_is_fed_in_few_submissions(
    device: str, rule: str, feed: Callable[[list[dict[str, np.ndarray]]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = rows(STEPS)
    many = study_of(dropped(), device, feed=feed(batches), **RULES[rule])
    many.run(STEPS - 20)
    many.run(20)
    monkeypatch.setattr(Stepper, "_several", lambda self, most: 1)
    one = study_of(dropped(), device, feed=feed(batches), **RULES[rule])
    one.run(STEPS)
    assert result(many) == result(one)
    assert many.session.traffic.upload_bytes - one.session.traffic.upload_bytes < 4096  # the numbers of Adam
    assert (many.session.traffic.submissions < STEPS) == (device == "wgpu")
    np.testing.assert_array_equal(many.session.read_input("x"), one.session.read_input("x"))


def test_a_loader_is_asked_for_each_step_once(device: str) -> None:
    loader = Reusing(rows(STEPS))
    study = study_of(dropped(), device, feed=loader, sgd=0.1)
    study.run(STEPS)
    assert loader.asked == STEPS


@pytest.mark.parametrize("bad", [40, 97])
@pytest.mark.parametrize("fault", [{"x": np.zeros((7, 12))}, {"z": np.zeros(3)}, None, "end"])
def test_a_refused_batch_ends_the_run_at_its_step(device: str, bad: int, fault: Any) -> None:
    batches: list[Any] = rows(STEPS)
    batches[bad : bad + (fault != "end" or STEPS)] = [] if fault == "end" else [fault]
    study = study_of(dropped(), device, feed=batches, sgd=0.1)
    with pytest.raises(GdlabError):
        study.run(STEPS)
    assert study.session.step_count == bad == len(study.runner.losses)
    if fault != "end":
        study.run(10)  # with those after it
        assert study.session.step_count == bad + 10


@pytest.mark.parametrize("at", [30, 90])
def test_a_nan_in_a_batch_read_ahead_is_found_in_its_step(device: str, at: int) -> None:
    batches = rows(STEPS)
    batches[at]["x"] = np.full((8, 12), np.nan)
    study = study_of(dropped(), device, feed=batches, sgd=0.01)
    study.run(STEPS)
    assert study.runner.reason == f"loss is NaN at step {at + 1}"
    assert study.runner.culprit is not None
    study.close()


def test_a_generator_is_asked_when_the_step_before_is_made(device: str) -> None:
    study = counter(device)

    def batches() -> Iterator[Mapping[str, Any]]:
        for step in range(40):
            assert made(study) == step
            yield ONE

    study.run(40, feed=batches())
    assert made(study) == 40
    study.close()
