"""`session.controls()`: classic widgets that drive a session and follow it, whoever drives it."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import networks
import pytest
import traitlets

from gdlab.session import build_session
from gdlab.session.run.runner import runner_of
from gdlab.study.study import Study


@pytest.fixture
def study() -> Iterator[Study]:
    made = Study(networks.mlp(batch=4), train=True, device="cpu", name="mlp")
    made.prepare(feed="random:0", sgd=0.1, init=0)
    yield made
    made.close()


def until(holds: Callable[[], bool]) -> None:
    """The reporter tells within a second at most."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_buttons_step_run_pause_and_stop(study: Study) -> None:
    controls = study.session.controls()
    assert controls.runner is study.runner  # one for the panel, the magics and this
    assert (controls.state, controls.step, controls.label.value) == ("ready", 0, "ready, 0 steps")
    assert math.isnan(controls.loss)
    controls.buttons["step"].click()
    until(lambda: controls.step == 1 and controls.state == "ready")
    assert controls.loss == study.runner.last_loss and controls.label.value.startswith("ready, 1 step, loss 2.")
    controls.slider.value = 1000
    study.runner.set_speed(50)
    controls.buttons["run"].click()
    until(lambda: controls.step > 2)
    assert controls.buttons["run"].disabled and controls.buttons["pause"].description == "Pause"
    controls.buttons["pause"].click()
    until(lambda: controls.state == "paused")
    assert controls.buttons["pause"].description == "Resume" and controls.label.value.endswith(": by you")
    controls.buttons["stop"].click()
    until(lambda: controls.state == "ready")
    assert controls.step == study.session.step_count < 1000


def test_it_follows_what_others_do_and_links(study: Study) -> None:
    class Mine(traitlets.HasTraits):
        steps = traitlets.Int(7)
        loss = traitlets.Float(0.0)

    controls, mine = study.session.controls(), Mine()
    traitlets.link((mine, "steps"), (controls.slider, "value"))
    traitlets.dlink((controls, "loss"), (mine, "loss"))
    controls.buttons["run"].click()
    until(lambda: controls.step == 7)
    study.run(3)
    until(lambda: controls.step == 10)
    assert mine.loss == study.runner.last_loss
    controls.slider.value = 20
    assert mine.steps == 20
    study.session.close()
    until(lambda: controls.state == "closed")
    assert all(button.disabled for button in controls.buttons.values())


def test_what_cannot_be_done_is_said_and_changes_nothing(study: Study) -> None:
    controls = study.session.controls()
    study.runner.set_speed(5)
    future = study.runner.start(100)
    controls.buttons["step"].click()  # the page may be late: the button was not grey yet
    until(lambda: "wanted a ready or paused session" in controls.label.value)
    study.runner.stop()
    study.runner.wait(future)
    assert study.session.step_count < 100


def test_a_session_alone_has_one_runner() -> None:
    with build_session(networks.mlp(batch=4), device="cpu") as session:
        first = session.controls()
        assert first.runner is session.controls().runner is runner_of(session)
        assert first.runner.session is session


def test_nothing_of_it_is_loaded_before() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/helpers'); import networks; from gdlab.session import build_session\n"
        "session = build_session(networks.mlp(batch=4), device='cpu'); assert 'ipywidgets' not in sys.modules\n"
        "session.controls(); assert 'ipywidgets' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
