"""Classic widgets for a session: `session.controls()` gives buttons, a slider and a label, with traits to link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
import traitlets

from gdlab.base.errors import GdlabError
from gdlab.base.words import plural, sig
from gdlab.jupyter.widget import report_to
from gdlab.session import Session
from gdlab.session.run.runner import runner_of

_MOST_STEPS = 1000  # of the slider


class Controls(ipywidgets.VBox):
    """The widgets of a session: Step, Run, Pause or Resume, Stop; `slider` is the number of steps that Run makes,
    `label` the state in words.

    Traits to observe and to link: `state`, `step`, `loss` (NaN before the first step), and `slider.value`. They follow
    the session whoever drives it: these buttons, a magic, the study's own view or a script.
    """

    want_full = False  # the reporter's word to panels
    state = traitlets.Unicode("ready")
    step = traitlets.Int(0)
    loss = traitlets.Float(float("nan"))

    def __init__(self, session: Session) -> None:
        runner = self.runner = runner_of(session)
        self.slider = ipywidgets.IntSlider(100, 1, _MOST_STEPS, description="steps")
        self.label = ipywidgets.Label()
        self.buttons = {
            "step": self._button("Step", lambda: runner.step(1)),
            "run": self._button("Run", lambda: runner.start(self.slider.value)),
            "pause": self._button("Pause", lambda: runner.resume() if runner.state == "paused" else runner.pause()),
            "stop": self._button("Stop", runner.stop),
        }
        row = ipywidgets.HBox([*self.buttons.values(), self.slider])
        super().__init__([row, self.label])
        self.refused = ""
        self.report()
        report_to(self)

    def _button(self, text: str, press: Callable[[], object]) -> Any:
        def pressed(_: Any) -> None:
            self.refused = ""
            try:
                press()
            except GdlabError as error:  # what cannot be done now is said, and changes nothing
                self.refused = str(error)
            self.report()
            report_to(self)

        button = ipywidgets.Button(description=text)
        button.on_click(pressed)
        return button

    # -- what the reporter asks ----------------------------------------------------------------------------------------
    @property
    def idle(self) -> bool:
        """Whether nothing changes until the next command."""
        return self.runner.state != "running"

    @property
    def closed(self) -> bool:
        """Whether the session is closed, and the widgets show it."""
        return self.state == "closed"

    def report(self, now: float = 0.0) -> None:
        """Update the traits, the label and the buttons from the session's state."""
        runner = self.runner
        state = "closed" if runner.session.closed else runner.state
        loss = runner.last_loss
        known = "" if loss is None else f", loss {sig(loss)}"
        why = self.refused or (runner.reason if state in ("paused", "failed") else "")
        with self.hold_trait_notifications():
            self.step, self.state = runner.session.step_count, state
            self.loss = float("nan") if loss is None else loss
        self.label.value = f"{state}, {plural(self.step, 'step')}{known}{f': {why}' if why else ''}"
        for name, button in self.buttons.items():
            button.disabled = state not in _ENABLED[name]
        self.buttons["pause"].description = "Resume" if state == "paused" else "Pause"


_ENABLED = {
    "step": ("ready", "paused"), "run": ("ready", "paused"), "pause": ("running", "paused"),
    "stop": ("running", "paused"),
}  # fmt: skip


def controls(session: Session) -> Controls:
    """Return the widgets of one session."""
    return Controls(session)
