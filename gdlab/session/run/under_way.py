"""Sample which dispatch of a step is under way, for a picture of a run: `UnderWay(session).sample()`."""

from __future__ import annotations

import time
from bisect import bisect_right
from itertools import accumulate

from gdlab.session import Session
from gdlab.session.roof import known_machine, predicted
from gdlab.session.run.log import RunLog

_SWEEP = 40  # samples in which a fast run is shown going through a step


class UnderWay:
    """A sampler of the dispatch that is under way in a running session; a sample costs the run nothing.

    Where steps have ended since the last sample every dispatch has run meanwhile, and the samples go through them in
    order, as a stroboscope shows a wheel: a fast run in slow motion. In a step that takes longer, cpu says how far it
    is; a GPU does not, and is told by the clock, with the times that the roofline predicts.
    """

    def __init__(self, session: Session, log: RunLog) -> None:
        self.session, self.log = session, log
        self._steps = -1
        self._at = -1
        self._began = 0.0
        self._ends: tuple[object, list[float]] | None = None

    def sample(self) -> int:
        """Return the place of a dispatch in its step, the update's behind the plan's; −1 where there is none."""
        session = self.session
        dispatches = session.step_dispatches()
        if not dispatches:
            return -1
        if session.under_way:
            return min(session.position, len(dispatches) - 1)
        if session.step_count != self._steps:
            self._steps, self._began = session.step_count, time.perf_counter()
            self._at = (self._at + max(1, len(dispatches) // _SWEEP)) % len(dispatches)
            return self._at
        self._at = self._exact(len(dispatches))
        return self._at

    def _exact(self, count: int) -> int:
        known = self.session.loaded.program.dispatch_under_way()
        if known is not None:
            return min(known, count - 1)
        rate = self.log.steps_per_second
        passed = (time.perf_counter() - self._began) * rate if rate else 0.0
        ends = self._shares()
        return min(bisect_right(ends, passed % 1.0), count - 1)

    def _shares(self) -> list[float]:
        """Return the share of a step's predicted time that has passed at the end of each dispatch."""
        dispatches = self.session.step_dispatches()
        if self._ends is None or self._ends[0] is not self.session.update:
            rates = known_machine(self.session.loaded.device)
            sums = list(accumulate(predicted(rates, d) for d in dispatches))
            self._ends = self.session.update, [value / sums[-1] for value in sums]
        return self._ends[1]
