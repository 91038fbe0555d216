"""Time things fairly: the median of five, contestants in turn, and the machine by name."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gdlab.devices.wgpu.wgpu_device import adapters

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, the median with the range, and the bar or ratio beside it."""

    what: str
    figure: str
    beside: str = ""


def seconds_of(work: Callable[[], object], before: Callable[[], object] | None = None) -> list[float]:
    """Wall seconds of each of five calls after one that is not counted; `before` each, untimed."""
    found = []
    for _ in range(ROUNDS + 1):
        if before is not None:
            before()
        gc.collect()
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found[1:]


def rates_of(contestants: Mapping[str, tuple[Callable[[int], object], int]]) -> dict[str, list[float]]:
    """Steps per second of each contestant (a function of a number of steps, and the number), round by round."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for round in range(ROUNDS + 1):
        for name, (steps, count) in contestants.items():
            start = time.perf_counter()
            steps(count)
            if round:
                found[name].append(count / (time.perf_counter() - start))
    return found


def spread(values: list[float], unit: str, factor: float = 1.0, digits: int = 3) -> str:
    """`median unit (least – most)`, to three figures."""
    middle, least, most = (f(v * factor for v in values) for f in (statistics.median, min, max))
    return f"**{_round(middle, digits)}** {unit} ({_round(least, digits)} – {_round(most, digits)})"


def _round(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):,g}" if value < 1e6 else f"{value:,.0f}"


def machine() -> str:
    """Processor, cores, adapters and versions, in one paragraph."""
    found = adapters()
    named = ", ".join(f"{a.name} ({a.adapter_class})" for a in found) or "none"
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "egglog", "wgpu"))
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; adapters: {named}; "
        f"Python {platform.python_version()}, {packages}. Median of {ROUNDS} (least – most)."
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
