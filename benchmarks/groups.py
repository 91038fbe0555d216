"""The time of a step on the GPU alone, and of each group between two barriers: medians of stamps of the device.

A stamp between two groups takes some microseconds itself (5 on an NVIDIA H200), so times of groups are to be compared
with one another, and the pass as a whole is timed by the stamps at its ends.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import gdlab
from benchmarks.peer_models import CASES, PeerCase
from benchmarks.peers import RULES, Ours, waited
from gdlab.base.words import duration
from gdlab.devices.base import Copy
from gdlab.devices.wgpu.pass_recording import record_pass
from gdlab.devices.wgpu.stamps import MOST, Stamps
from gdlab.devices.wgpu.transitions import group_starts, uses_of
from gdlab.devices.wgpu.wgpu_queue import WgpuRecorded

ROUNDS, WARM_SECONDS, SHOWN = 20, 2.0, 12


class StampedStep:
    """The dispatches of a step, recorded with stamps. All methods are called in the turn of the device."""

    def __init__(self, program: Any) -> None:
        self.gpu, self.queue, self.stamps = program.gpu, program.queue, Stamps(program.gpu)
        self.recorded: WgpuRecorded = program._whole(True)
        self.starts = group_starts([uses_of(bound) for bound in self.recorded.bounds])

    def groups(self) -> list[tuple[str, float]]:
        """The dispatches of each group in words, and its seconds."""
        bounds, ends = self.recorded.bounds, [*self.starts[1:], len(self.recorded.bounds)]
        times = [np.diff(self._run(self._between, len(self.starts) + 1)) for _ in range(ROUNDS)]
        labels = [
            " + ".join(
                f"{count} × {label}" if count > 1 else label
                for label, count in Counter(b.dispatch.label for b in bounds[start:stop]).items()
            )
            for start, stop in zip(self.starts, ends, strict=True)
        ]
        return list(zip(labels, np.median(times, axis=0).tolist(), strict=True))

    def whole(self, named: bool) -> float:
        """Seconds of the pass; `named`: with the reads of a group named at its begin."""
        rows = self.recorded.rows if named else [bound.run for bound in self.recorded.bounds]

        def encode(encoder: Any) -> None:
            record_pass(self.gpu, rows, encoder, described=self.gpu.stamped_pass(self.stamps.handle, 0))

        return statistics.median(float(np.diff(self._run(encode, 2))[0]) for _ in range(ROUNDS))

    def _run(self, encode: Callable[[Any], None], count: int) -> Any:
        """Seconds of `count` stamps that `encode` records."""
        gpu, resolved = self.gpu, self.stamps.resolved
        readback = self.queue.readback(8 * count)

        def all_of_it(encoder: Any) -> None:
            encode(encoder)
            gpu.raw.CommandEncoderResolveQuerySet(encoder, self.stamps.handle, 0, count, resolved._internal, 0)
            self.queue.encode_transfer(Copy(resolved, 0, readback, 0, 8 * count), encoder)

        submission = self.queue.send(gpu.record("groups", all_of_it))
        with gpu.checked("groups"):
            readback.request("groups", submission)
        readback.wait()
        ticks = np.frombuffer(readback.view(), np.uint64, count).astype(np.int64)
        readback.release()
        return ticks * gpu.stamp_seconds()

    def _between(self, encoder: Any) -> None:
        raw, rows, places = self.gpu.raw, self.recorded.rows, self.recorded.starts
        one_pass = raw.CommandEncoderBeginComputePass(encoder, self.gpu.null)
        for number, (start, stop) in enumerate(
            zip(self.starts, [*self.starts[1:], len(self.recorded.bounds)], strict=True)
        ):
            raw.ComputePassEncoderWriteTimestamp(one_pass, self.stamps.handle, number)
            for pipeline, group, x, y, z in rows[places[start] : places[stop]]:
                raw.ComputePassEncoderSetPipeline(one_pass, pipeline)
                raw.ComputePassEncoderSetBindGroup(one_pass, 0, group, 0, self.gpu.null)
                raw.ComputePassEncoderDispatchWorkgroups(one_pass, x, y, z)
        raw.ComputePassEncoderWriteTimestamp(one_pass, self.stamps.handle, len(self.starts))
        raw.ComputePassEncoderEnd(one_pass)
        raw.ComputePassEncoderRelease(one_pass)


def measured(case: PeerCase, rule: str) -> Iterator[str]:
    """The lines of one case."""
    runner = Ours(case, rule, "wgpu")
    until = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < until:
        waited(runner, 1)
    program: Any = runner.session.loaded.program

    def stamped() -> tuple[list[tuple[str, float]], float, float, int]:
        step = StampedStep(program)
        found = step.groups() if program.gpu.stamps_inside and len(step.starts) < MOST else []
        return found, step.whole(True), step.whole(False), len(step.starts)

    groups, named, unnamed, count = program.turn.call(stamped)
    runner.close()
    dispatches = len(program.plan.dispatches) + len(program.update.dispatches)
    took = f"{duration(named)} on the GPU, {duration(unnamed)} with barriers where wgpu puts them"
    yield f"\n{case.name} {rule}: {dispatches} dispatches in {count} groups; {took}"
    yield from _table(groups)


def _table(groups: Sequence[tuple[str, float]]) -> Iterator[str]:
    """The dearest groups, equal ones in a row."""
    alike: dict[str, list[float]] = {}
    for label, seconds in groups:
        alike.setdefault(label, []).append(seconds)
    for label, times in sorted(alike.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        mean = duration(sum(times) / len(times))
        yield f"  {duration(sum(times)):>9} = {len(times)} × {mean:>8}  {label[:110]}"


def names() -> list[str]:
    """The cases that `--only` chooses among."""
    return list(CASES)


def print_table(only: str = "") -> None:
    """Every case, or that of this name."""
    device: Any = gdlab.device("wgpu")
    if device.gpu.no_stamps:
        print(device.gpu.no_stamps)
        return
    for case in CASES.values():
        for rule in RULES if only in ("", case.name) else ():
            for line in measured(case, rule):
                print(line)
            sys.stdout.flush()
