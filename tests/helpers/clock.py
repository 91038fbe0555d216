"""Bars on time as ratios of one run: `seconds_there(work) <= 0.4`.

A bar in seconds holds for one machine. A fixed piece of Python is timed beside the work, and so seconds of this machine
become seconds of the one on which the bars were set (`seconds_there`), or the other way about (`seconds_here`).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable

UNIT = 0.0105  # CPU seconds of `fixed_work` where the bars were set: two cores of an EPYC server, 2026-11


def seconds_there(work: Callable[[], object], calls: int = 5, enough: float = 0.0) -> float:
    """Return the processor time of `work` where the bars were set: the least of some calls, each in units of the fixed
    work before and after it, since a shared processor changes its speed from one moment to the next. No further call
    is made once one takes at most `enough`, the bar: the least would be below it too."""
    least = math.inf
    for _ in range(calls):
        before = _cpu_seconds(fixed_work, 2)
        taken = _cpu_seconds(work, 1)
        least = min(least, taken / min(before, _cpu_seconds(fixed_work, 2)) * UNIT)
        if least <= enough:
            break
    return least


def _cpu_seconds(work: Callable[[], object], calls: int) -> float:
    """Return the least time of some calls by the processor's clock: other processes do not count, nor does the
    collection of what other tests left behind."""
    gc.disable()
    try:
        return min(_one_call(work) for _ in range(calls))
    finally:
        gc.enable()


def _one_call(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def fixed_work() -> int:
    """Fill and read dicts, tuples, texts and lists, as the code under test does."""
    total, rows = 0, dict[str, tuple[int, ...]]()
    for i in range(20_000):
        rows[f"n{i % 997}"] = (i, i + 1, total % 7)
        total += sum(rows[f"n{(i * 31) % (min(i, 996) + 1)}"])
    return total + len(sorted(rows))


def seconds_here(seconds: float) -> float:
    """Return the time in which this machine does what took `seconds` where the bars were set."""
    return seconds * _cpu_seconds(fixed_work, 8) / UNIT


def wall_seconds_here(seconds: float) -> float:
    """Return the same for a time that another process measures: whoever uses the cores now slows both."""
    start = time.perf_counter()
    for _ in range(20):
        fixed_work()
    return seconds * (time.perf_counter() - start) / 20 / UNIT
