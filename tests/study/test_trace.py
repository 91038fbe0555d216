"""A trace times steps and puts the session back as it was; with `train` the steps are real."""

from __future__ import annotations

from collections.abc import Callable

import networks
import pytest
from session_state import state_of

from gdlab.study.study import Study

RULES: dict[str, Callable[[Study], object]] = {
    "sgd": lambda study: study.session.set_learning_rate(0.05),
    "adam": lambda study: study.session.set_adam(1e-3),
    "accumulate": lambda study: (study.session.set_adam(1e-3), study.session.set_grad_accumulate(3)),
}


def trained(device: str, rule: str, steps: int) -> Study:
    study = Study(networks.mlp(8), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", init=0)
    RULES[rule](study)
    study.run(steps)
    return study


@pytest.mark.parametrize("rule", RULES)
def test_a_trace_trains_nothing(rule: str, device: str) -> None:
    study, other = trained(device, rule, 4), trained(device, rule, 4)
    before, losses = state_of(study.session), list(study.runner.losses)
    counters = study.doc.data["runs"][-1]["counters"]
    study.trace(2)
    assert study.doc.data["runs"][-1]["counters"] == counters and study.runner.losses == losses
    assert state_of(study.session) == before and study.runner.wanted == study.session.step_count == 4
    for each in (study, other):
        each.run(5)
    assert study.runner.losses == other.runner.losses, "the run goes on as if nobody had timed it"
    study.close()
    other.close()


def test_a_trace_before_the_first_step() -> None:
    study = Study(networks.mlp(8), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", init=0, adam=1e-3)
    for name, array in study.feeds().items():
        if study.session.has_input(name):
            study.session.set_input(name, array)
    study.trace(1)
    assert study.session.step_count == 0 and study.runner.losses == []
    study.run(2)
    assert [step for step, _ in study.runner.losses] == [1, 2]
    study.close()


def test_real_steps_are_asked_for() -> None:
    study = trained("cpu", "adam", 2)
    before = state_of(study.session)
    study.trace(3, train=True)
    assert study.session.step_count == 5 and [step for step, _ in study.runner.losses] == [1, 2, 3, 4, 5]
    assert state_of(study.session) != before
    study.close()
