"""Bars on time as ratios of one run: `cpu_seconds(work) <= seconds_here(0.4)`.

A bar in seconds holds for one machine. `seconds_here` times a fixed piece of Python at that moment, and so turns
seconds of the machine on which the bars were set into seconds of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

UNIT = 0.0105  # CPU seconds of `fixed_work` where the bars were set: two cores of an EPYC server, 2026-11


def cpu_seconds(work: Callable[[], object], calls: int = 2) -> float:
    """Return the least time of some calls by the processor's clock: other processes do not count."""
    taken = []
    for _ in range(calls):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def fixed_work() -> int:
    """Fill and read dicts, tuples, texts and lists, as the code under test does."""
    total, rows = 0, dict[str, tuple[int, ...]]()
    for i in range(20_000):
        rows[f"n{i % 997}"] = (i, i + 1, total % 7)
        total += sum(rows[f"n{(i * 31) % (min(i, 996) + 1)}"])
    return total + len(sorted(rows))


def seconds_here(seconds: float) -> float:
    """Return the time in which this machine does what took `seconds` where the bars were set."""
    return seconds * cpu_seconds(fixed_work, 8) / UNIT


def wall_seconds_here(seconds: float) -> float:
    """Return the same for a time that another process measures: whoever uses the cores now slows both."""
    start = time.perf_counter()
    for _ in range(20):
        fixed_work()
    return seconds * (time.perf_counter() - start) / 20 / UNIT
