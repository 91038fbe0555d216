"""Time the dispatches of a step: seconds per dispatch, as a table, as JSON, and as a Chrome trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.files import write_file
from gdlab.base.threads import end_abandoned_call
from gdlab.base.words import cell, duration, grid, plural
from gdlab.op.machines import Machine
from gdlab.plan.dispatch import Dispatch
from gdlab.session.loaded import LoadedPlan
from gdlab.session.rehearsal import rehearsal
from gdlab.session.roof import machine_of, machine_words, predicted, verdict
from gdlab.session.steps import Steps
from gdlab.session.totals import totals
from gdlab.session.updates import Updates
from gdlab.session.values import Values

WINDOW = 2047  # dispatches that one set of 4096 stamps holds on every adapter

Row = tuple[int, str, float]  # dispatch, label, seconds


class Timings(list[Row]):
    """The timings (dispatch, label, seconds) of one step; where there are none, `reason` says why."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class DispatchProfile:
    """The times of one dispatch over all samples, in seconds; `share` of the sum of all medians; the time that the
    roofline `predicted`, and the `verdict` in words: `memory-bound, 62 % of the roof`."""

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
    """The times of several steps. Those of the dispatches do not add up to that of a step: on a software adapter a
    stamp takes 12-70 µs. `machine`: whose roofline the predictions are of."""

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
        """Return every field as plain JSON values."""
        plain = asdict(self)
        plain["dispatches"] = [d | {"origin": list(d["origin"])} for d in plain["dispatches"]]
        return plain

    def to_chrome_trace(self) -> dict[str, Any]:
        """Return trace events (microseconds), the medians one after the other: chrome://tracing and Perfetto open it.
        """
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
        write_file("save", Path(path), json.dumps(made, indent=1, allow_nan=False).encode())
        return Path(path)

    def __repr__(self) -> str:
        counts = f"{plural(self.samples, 'sample')} of {plural(len(self.dispatches), 'dispatch')}"
        return f"<SessionProfile: {counts} on {self.device}>"

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


def check_samples(where: str, what: str, samples: object) -> int:
    """Return a number of timed steps, or raise if it is no int ≥ 1."""
    if not isinstance(samples, (int, np.integer)) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(where, what, repr(samples), "an int ≥ 1")
    return int(samples)


class Profiling:
    """The timing of steps: whether it is on, of which dispatches, and the last profile. Methods without a docstring are
    those of `Session`."""

    def __init__(self, loaded: LoadedPlan, values: Values, updates: Updates, steps: Steps) -> None:
        self.loaded, self.values, self.updates, self.steps = loaded, values, updates, steps
        self.window: tuple[int, int] | None = None
        self.reason: str | None = None  # None: off; else the reason why there are no timings, or an empty string
        self._profile: SessionProfile | None = None

    def set_profiling(self, on: bool) -> None:
        self.loaded.check_open("set_profiling")
        if not isinstance(on, (int, np.bool_)):
            raise ArgumentError("set_profiling", "on", type(on).__name__, "True or False")
        window = (self.window or (0, WINDOW)) if on else None
        reason = self.loaded.turn.call(lambda: self.loaded.program.profile(window))
        self.reason = reason if on else None

    def set_profiling_window(self, start: int, stop: int) -> None:
        self.loaded.check_open("set_profiling_window")
        numbers = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (start, stop))
        if not numbers or not 0 <= int(start) < int(stop) <= int(start) + WINDOW:
            given, wanted = f"{start!r} … {stop!r}", f"0 ≤ start < stop, at most {WINDOW} dispatches"
            raise ArgumentError("set_profiling_window", "window", given, wanted)
        self.window = int(start), int(stop)
        if self.reason is not None:
            self.set_profiling(True)

    def timings(self) -> Timings:
        """Return the timings of the last completed step that was timed."""
        self.loaded.check_open("profiled_dispatch_timings")
        labels = self._labels()
        times = self.loaded.turn.call(self.loaded.program.timings)
        timings = Timings((i, labels[i], seconds) for i, seconds in times if i < len(labels))
        if not timings:
            off = "profiling is off: set_profiling(True)" if self.reason is None else "no step since it is on"
            timings.reason = self.reason or off
        return timings

    def dump_gpu_timings(self) -> str:
        rows = self.timings()
        total = sum(seconds for *_, seconds in rows)
        count = plural(len(rows), "dispatch")
        lines = [f"--- {count}, {duration(total)} ---" if rows else f"no timings: {rows.reason}"]
        longest_first = sorted(rows, key=lambda row: (-row[2], row[0]))
        cells = [(str(index), cell(seconds * 1e6), label) for index, label, seconds in longest_first]
        text = "\n".join([*lines, *(grid(("dispatch", "µs", "kernel"), cells, right=range(2)) if rows else ())])
        print(text)
        return text

    def capture(self, samples: int, train: bool = True) -> SessionProfile:
        """Make `samples` timed steps (times the windows of a long plan) and sum them up. Without `train` the session is
        then put back as it was before; take the losses of earlier steps first."""
        self.values.check_ready("capture_profile")
        self.steps.progress.check_between_steps("capture_profile")
        if not isinstance(train, (int, np.bool_)):
            raise ArgumentError("capture_profile", "train", type(train).__name__, "True or False")
        count = check_samples("capture_profile", "samples", samples)
        return self.loaded.turn.call(lambda: self.timed(count, train))

    def timed(self, samples: int, train: bool) -> SessionProfile:
        """Do the work of `capture` without its checks, on the thread that owns the device."""
        with nullcontext() if train else rehearsal(self.values, self.updates, self.steps):
            self._profile = self._capture(samples)
        return self._profile

    def last(self) -> SessionProfile | None:
        """Return the last profile, if a step still has the same dispatches."""
        profile = self._profile
        return profile if profile is not None and [d.label for d in profile.dispatches] == self._labels() else None

    def _labels(self) -> list[str]:
        return [d.label for d in (*self.loaded.plan.dispatches, *self.updates.update.dispatches)]

    def _capture(self, samples: int) -> SessionProfile:
        plan, program = self.loaded.plan, self.loaded.program
        dispatches = (*plan.dispatches, *self.updates.update.dispatches)
        seconds: dict[int, list[float]] = {}
        reason = ""
        try:
            for start in range(0, len(dispatches), WINDOW):
                reason = program.profile((start, min(start + WINDOW, len(dispatches))))
                for _ in range(samples):
                    end_abandoned_call()
                    self.steps.make()
                    for index, spent in program.timings() if not reason else ():
                        seconds.setdefault(index, []).append(spent)
        finally:
            program.profile(None if self.reason is None else self.window or (0, WINDOW))
        machine = machine_of(self.loaded.device)
        rows = _rows(machine, dispatches, seconds)
        step = totals(plan, self.updates.update)
        facts = step.groups, plan.passes, step.physical_bytes, reason, machine_words(machine)
        return SessionProfile(str(self.loaded.device.info), plan.mode, samples, *facts, rows)


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
