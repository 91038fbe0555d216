"""Record what a runner does: losses, events, the rate of steps, and the runs before a reset."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

EventKind = Literal["nonfinite", "break", "pause", "error", "note"]
_RATE_WINDOW_SECONDS = 1.0
_MOST_EARLIER = 4


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A pause with its reason, a breakpoint, a non-finite loss, an error. `about` is an entity of the study's document,
    `dispatch` the index of the dispatch that it is about (−1: none)."""

    step: int
    kind: EventKind
    text: str
    about: str | None = None
    dispatch: int = -1


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run before a reset: the update rule that it ended with, and its losses."""

    options: str
    losses: tuple[tuple[int, float], ...]


class RunLog:
    """The record of a runner. `uncounted`: steps that the device made before the last reset, or that were taken
    back; `resets`: how often it began anew."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []
        self.earlier: list[Earlier] = []
        self.events: list[LogEvent] = []
        self.uncounted = self.resets = 0
        self._ticks: deque[tuple[float, int]] = deque(maxlen=4096)

    def add(self, step: int, kind: EventKind, text: str, dispatch: int = -1) -> None:
        """Add an event."""
        self.events.append(LogEvent(step, kind, text, f"dispatch:{dispatch}" if dispatch >= 0 else None, dispatch))

    def add_losses(self, pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Add losses by the device's number of the step; return them by that of the session."""
        pairs = [(step - self.uncounted, loss) for step, loss in pairs]
        self.losses += pairs
        return pairs

    def take_back(self, step: int) -> None:
        """Remove the last step, which was taken back."""
        self.losses = [row for row in self.losses if row[0] < step]
        self.uncounted += 1

    def reset(self, options: str) -> None:
        """Begin a new run; the losses so far are those of an earlier one with these options."""
        if self.losses:
            self.earlier = [*self.earlier[1 - _MOST_EARLIER :], Earlier(options, tuple(self.losses))]
        self.losses = []
        self.resets += 1
        self._ticks.clear()
        self.add(0, "note", "reset to the opening state")

    def tick(self, step: int) -> None:
        """Note the time at which a step ended."""
        now = time.perf_counter()
        self._ticks.append((now, step))
        while now - self._ticks[0][0] > _RATE_WINDOW_SECONDS:
            self._ticks.popleft()

    def clear_ticks(self) -> None:
        """Measure the rate anew."""
        self._ticks.clear()

    @property
    def steps_per_second(self) -> float:
        """Rate over the last second of running; 0 before the first two steps."""
        ticks = list(self._ticks)
        if len(ticks) < 2 or ticks[-1][0] <= ticks[0][0]:
            return 0.0
        return (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])
