"""Where the time of a step goes: seconds per dispatch, as a table, as JSON, and as a Chrome trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.words import cell, duration, grid, plural
from gdlab.devices.base import owner
from gdlab.op.cost import Machine
from gdlab.plan.dispatch import Dispatch
from gdlab.session.roof import machine_of, machine_words, predicted, verdict
from gdlab.session.steps import Steps

WINDOW = 2047  # dispatches that one set of 4096 stamps holds on every adapter

Row = tuple[int, str, float]  # dispatch, label, seconds


class Timings(list[Row]):
    """(dispatch, label, seconds) of one step; where there are none, `reason` says why."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class DispatchProfile:
    """One dispatch over all samples; seconds; `share` of the sum of all medians; what the roofline `predicted`, and the
    `verdict` in words: `memory-bound, 62 % of the roof`."""

    index: int
    phase: str
    family: str
    label: str
    origin: tuple[int, ...]
    bytes: int
    median: float
    p25: float
    p75: float
    share: float
    predicted: float
    verdict: str


@dataclass(frozen=True, slots=True)
class SessionProfile:
    """Several timed steps. Times per dispatch are not those of a step: on a software adapter a stamp takes 12-70 µs.
    `machine`: whose roofline the predictions are of."""

    device: str
    mode: str
    samples: int
    groups: int
    passes: int
    physical_bytes: int
    reason: str
    machine: str
    dispatches: tuple[DispatchProfile, ...]

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        plain = asdict(self)
        plain["dispatches"] = [d | {"origin": list(d["origin"])} for d in plain["dispatches"]]
        return plain

    def to_chrome_trace(self) -> dict[str, Any]:
        """Trace events (microseconds), the medians one after the other: chrome://tracing and Perfetto open it."""
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": self.device}}
        ]
        at = 0.0
        for d in self.dispatches:
            arguments = {"dispatch": d.index, "family": d.family, "bytes": d.bytes, "nodes": list(d.origin)}
            events.append({
                "name": d.label, "cat": d.phase, "ph": "X", "pid": 1, "tid": 1, "ts": at * 1e6, "dur": d.median * 1e6,
                "args": arguments,
            })  # fmt: skip
            at += d.median
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def save(self, path: str | Path, chrome: bool = False) -> Path:
        """Write JSON, or a Chrome trace."""
        made = self.to_chrome_trace() if chrome else self.to_json()
        Path(path).write_text(json.dumps(made, indent=1, allow_nan=False), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        counts = plural(len(self.dispatches), "dispatch")
        lines = [f"{plural(self.samples, 'sample')} on {self.device}: {counts}"]
        lines += [self.reason] if self.reason else []
        if not self.dispatches:
            return "\n".join(lines)
        head = ("dispatch", "µs", "%", "predicted", "bound", "phase", "kernel")
        longest_first = sorted(self.dispatches, key=lambda d: -d.median)
        rows = [
            (str(d.index), *map(cell, (d.median * 1e6, 100 * d.share, d.predicted * 1e6)), d.verdict, d.phase, d.label)
            for d in longest_first
        ]
        return "\n".join([*lines, *grid(head, rows, right=range(4)), f"  predicted by the roofline of {self.machine}"])


class Profiling(Steps):
    """`set_profiling`, `gpu_timings`, `capture_profile`, `last_profile`."""

    _profile: SessionProfile | None

    def set_profiling(self, on: bool) -> None:
        """Time every step from now on, dispatch by dispatch (off by default): by timestamps of the adapter, on cpu by
        the clock. On a software adapter a stamp itself takes 12–70 µs (measured): believe what is above 100 µs."""
        self._alive("set_profiling")
        window = (self._timed_window or (0, WINDOW)) if on else None
        self._profiling = owner().call(lambda: self._program.profile(window)) if on else None
        if not on:
            owner().call(lambda: self._program.profile(None))

    def set_profiling_window(self, start: int, stop: int) -> None:
        """Time the dispatches start … stop − 1 alone, the update's counted after the plan's. A set of stamps is enough
        for 2,047 at a time: longer plans are timed window by window."""
        self._alive("set_profiling_window")
        numbers = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (start, stop))
        if not numbers or not 0 <= int(start) < int(stop) <= int(start) + WINDOW:
            given, wanted = f"{start!r} … {stop!r}", f"0 ≤ start < stop, at most {WINDOW} dispatches"
            raise ArgumentError("set_profiling_window", "window", given, wanted)
        self._timed_window = int(start), int(stop)
        if self._profiling is not None:
            self.set_profiling(True)

    def profiled_dispatch_timings(self) -> Timings:
        """(dispatch, label, seconds) of the last completed step that was timed; empty, with `.reason`, without one."""
        self._alive("profiled_dispatch_timings")
        labels = [d.label for d in (*self._plan.dispatches, *self._update.dispatches)]
        times = owner().call(self._program.timings)
        found = Timings((i, labels[i], seconds) for i, seconds in times if i < len(labels))
        if not found:
            off = "profiling is off: set_profiling(True)" if self._profiling is None else "no step since it is on"
            found.reason = self._profiling or off
        return found

    gpu_timings = profiled_dispatch_timings

    def dump_gpu_timings(self) -> str:
        """Print, and return, the dispatches of the last timed step, the longest first."""
        rows = self.profiled_dispatch_timings()
        total = sum(seconds for *_, seconds in rows)
        count = plural(len(rows), "dispatch")
        lines = [f"--- {count}, {duration(total)} ---" if rows else f"no timings: {rows.reason}"]
        longest_first = sorted(rows, key=lambda row: (-row[2], row[0]))
        cells = [(str(index), cell(seconds * 1e6), label) for index, label, seconds in longest_first]
        text = "\n".join([*lines, *(grid(("dispatch", "µs", "kernel"), cells, right=range(2)) if rows else ())])
        print(text)
        return text

    def capture_profile(self, samples: int = 3) -> SessionProfile:
        """Make `samples` real steps with the clock on (times the windows of a long plan) and sum them up."""
        self.check_ready("capture_profile")
        self._between_steps("capture_profile")
        if not isinstance(samples, (int, np.integer)) or isinstance(samples, bool) or samples < 1:
            raise ArgumentError("capture_profile", "samples", repr(samples), "an int ≥ 1")
        self._profile = owner().call(lambda: self._capture_now(int(samples)))
        return self._profile

    @property
    def last_profile(self) -> SessionProfile | None:
        """What `capture_profile` found last, of the dispatches that a step still has; else None."""
        made = self._profile
        labels = [d.label for d in (*self._plan.dispatches, *self._update.dispatches)]
        return made if made is not None and [d.label for d in made.dispatches] == labels else None

    def _capture_now(self, samples: int) -> SessionProfile:
        dispatches = (*self._plan.dispatches, *self._update.dispatches)
        seconds: dict[int, list[float]] = {}
        reason = ""
        try:
            for start in range(0, len(dispatches), WINDOW):
                reason = self._program.profile((start, min(start + WINDOW, len(dispatches))))
                for _ in range(samples):
                    self.step_now()
                    for index, spent in self._program.timings() if not reason else ():
                        seconds.setdefault(index, []).append(spent)
        finally:
            self._program.profile(None if self._profiling is None else self._timed_window or (0, WINDOW))
        plan = self._plan
        machine = machine_of(self._device)
        rows = _rows(machine, dispatches, seconds)
        facts = len(plan.groups), plan.passes, plan.memory.physical_bytes, reason, machine_words(machine)
        return SessionProfile(str(self._device.info), plan.mode, samples, *facts, rows)


def _rows(
    machine: Machine, dispatches: Sequence[Dispatch], seconds: dict[int, list[float]]
) -> tuple[DispatchProfile, ...]:
    quartiles = {i: np.percentile(times, (25, 50, 75)) for i, times in seconds.items()}
    total = float(sum(q[1] for q in quartiles.values())) or 1.0
    return tuple(
        DispatchProfile(
            i, dispatches[i].phase, dispatches[i].kernel, dispatches[i].label, dispatches[i].origin,
            dispatches[i].bytes_read + dispatches[i].bytes_written, float(mid), float(low), float(high),
            float(mid) / total, predicted(machine, dispatches[i]), verdict(machine, dispatches[i], float(mid)),
        )
        for i, (low, mid, high) in sorted(quartiles.items())
    )  # fmt: skip
