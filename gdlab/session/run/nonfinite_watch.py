"""Watch the steps of a run for NaN and infinity, and find the cause when the run has ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from gdlab.base.errors import GdlabError
from gdlab.session import Session
from gdlab.session.run.log import RunLog
from gdlab.session.run.nonfinite import Culprit

NanWatch = Literal["off", "loss", "parameters", "everything"]
_RECENT = 8  # batches that are stored: more than steps are ever in flight


class NonfiniteWatch:
    """Methods that look return why the run must pause, or an empty string; all are called on the owner thread."""

    def __init__(self, session: Session, log: RunLog) -> None:
        self.session, self.log = session, log
        self.mode: NanWatch = "loss"
        self.culprit: Culprit | None = None
        self.bad_step = 0  # the step, from 1, with a result that is not finite: all events of it have its number
        self._recent: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=_RECENT)

    def begin(self) -> None:
        """Forget the bad step and the culprit of an earlier run."""
        self.bad_step, self.culprit = 0, None

    def forget_batches(self) -> None:
        """Forget the inputs of earlier steps, after a reset."""
        self._recent.clear()

    def set_inputs(self, step: int, batch: Mapping[str, Any]) -> None:
        """Set the inputs of a step, and remember them: losses arrive late."""
        self._set_inputs(batch)
        self._recent.append((step, batch))

    def before_step(self) -> str:
        """Look at the output of every dispatch of the next step, if everything is watched."""
        if self.mode != "everything" or (culprit := self.session.search.first_bad()) is None:
            return ""
        step = self.session.step_count + 1
        return self._hit(step, f"step {step} would not be finite", culprit=culprit)

    def after_step(self) -> str:
        """Look at parameters and gradients, if they are watched."""
        if self.mode not in ("parameters", "everything") or not (names := self.session.search.bad_tensors()):
            return ""
        step = self.session.step_count
        return self._hit(step, f"{names[0]} is not finite after step {step}")

    def after_losses(self, pairs: list[tuple[int, float]]) -> str:
        """Look at losses that became readable."""
        if self.mode == "off" or self.bad_step:
            return ""
        bad = next(((step, loss) for step, loss in pairs if not math.isfinite(loss)), None)
        if bad is None:
            return ""
        step, loss = bad
        return self._hit(step, f"non-finite loss {loss} at step {step}", f"loss is {loss} at step {step}")

    def find_cause(self) -> None:
        """Log the first dispatch with a result that is not finite, with the inputs of that step and the parameters as
        they are now; no step is made."""
        if not self.bad_step or self.session.closed:
            return
        step = self.session.step_count
        if self.session.under_way:
            self.log.add(step, "note", "the cause is looked for between two steps: finish the step under way")
            return
        if self.culprit is None:
            with suppress(GdlabError):
                self.culprit = self._first_bad()
        if self.culprit is None:
            now = "all values are finite now (the parameters have changed since)"
            self.log.add(step, "note", f"{now}; watch everything to stop before it happens")
        else:
            self.log.add(self.bad_step, "nonfinite", str(self.culprit), self.culprit.dispatch)

    def _hit(self, step: int, reason: str, text: str = "", culprit: Culprit | None = None) -> str:
        self.bad_step, self.culprit = step, culprit
        self.log.add(step, "nonfinite", text or reason)
        return reason

    def _first_bad(self) -> Culprit | None:
        """Search with the inputs of the bad step, which may be those of a later step by now."""
        search = self.session.search
        batch = next((batch for step, batch in self._recent if step == self.bad_step - 1), None)
        if batch is None or batch is self._recent[-1][1]:
            return search.first_bad()
        self._set_inputs(batch)
        try:
            return search.first_bad()
        finally:
            self._set_inputs(self._recent[-1][1])

    def _set_inputs(self, batch: Mapping[str, Any]) -> None:
        for name, data in batch.items():
            self.session.set_input(name, data)
