"""Keep the figures of a roofline that were measured on devices: `keep_machine(machine)`, `kept_machine(device)`.

They lie in the user's cache folder. The file is never trusted: what is damaged, too large or no figure of a machine
counts as not there, and is measured again.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdlab.base import words
from gdlab.base.errors import ArgumentError, OptimizeError
from gdlab.base.files import cache_folder, read_regular, write_file

__all__ = [
    "MEASURE", "Machine", "automatic_machine", "calibration_file", "find_machine", "keep_machine", "kept_machine",
    "kept_machines",
]  # fmt: skip

MEASURE = "python -m gdlab bench --calibrate"  # the command that measures the device that "auto" chooses
MOST_BYTES = 64 << 10  # of the file: about 300 machines
MOST_MACHINES, MOST_LETTERS = 100, 200
SECONDS = 1e-10, 10.0  # the least and the most per launch
RATE = 1e3, 1e18  # the least and the most bytes or flops per second


@dataclass(frozen=True, slots=True)
class Machine:
    """The figures of a roofline: seconds per launch, bytes and flops per second; the name says whose."""

    launch_seconds: float = 3e-6
    bytes_per_second: float = 1e12
    flops_per_second: float = 2e13
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'nominal'}: {self.figures}"

    @property
    def figures(self) -> str:
        """`3 µs per launch, 1 TB/s, 20 TFLOP/s`."""
        rates = f"{words.nbytes(self.bytes_per_second)}/s, {words.flops(self.flops_per_second)}/s"
        return f"{words.duration(self.launch_seconds)} per launch, {rates}"

    @property
    def rounded(self) -> Machine:
        """The machine with its figures rounded to powers of √2, so that two measurements of one machine mostly agree.
        """
        return Machine(
            _power(self.launch_seconds), _power(self.bytes_per_second), _power(self.flops_per_second), self.name
        )


def _power(value: float) -> float:
    """Return the power of √2 that is nearest to a value > 0."""
    return float(2.0 ** (round(2 * math.log2(value)) / 2))


def calibration_file() -> Path:
    """Return the file of measured figures: `gdlab/` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).
    Raises `ArgumentError` where the user has no home."""
    try:
        return cache_folder() / "calibration.json"
    except RuntimeError:
        raise ArgumentError("calibrate", "folder", "no home", "XDG_CACHE_HOME, a folder that can be written") from None


def keep_machine(machine: Machine, automatic: bool = False) -> Path:
    """Write a machine's figures down under its name, and return the file; others in it stay. `automatic`: it is the one
    that `device="auto"` chooses here. Raises `ArgumentError` where the file cannot be written."""
    file, (machines, chosen) = calibration_file(), _read()
    known = {m.name: m for m in machines if m.name != machine.name} | {machine.name: machine}
    rows = [asdict(m) for m in list(known.values())[-MOST_MACHINES:]]  # the one measured first goes
    made = {"automatic": machine.name if automatic else chosen, "machines": rows}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        given = f"{file.parent}: {error.strerror}"
        raise ArgumentError("calibrate", "folder", given, "a folder that can be made") from None
    write_file("calibrate", file, (json.dumps(made, indent=1) + "\n").encode())
    return file


def find_machine(device: Any) -> Machine | None:
    """Return the kept figures of a device (a Device, its `info`, or the beginning of its name such as "cpu"), or None.
    """
    info = getattr(device, "info", device)
    if isinstance(info, str):
        alike = (m for m in kept_machines() if m.name == info or m.name.startswith(f"{info}, "))
        return next(alike, None)
    name = f"{getattr(info, 'kind', '')}, {getattr(info, 'name', '')}"
    return next((m for m in kept_machines() if m.name == name), None)


def kept_machine(device: Any) -> Machine:
    """Return the kept figures of a device as `find_machine` does; `OptimizeError` where there are none."""
    machine = find_machine(device)
    if machine is None:
        info = getattr(device, "info", device)
        given = f"{info.kind}, {info.name}" if hasattr(info, "kind") and hasattr(info, "name") else info
        raise OptimizeError("roofline", "device", repr(given), f"one that `{MEASURE}` has measured")
    return machine


def automatic_machine() -> Machine | None:
    """Return the kept figures of the device that `device="auto"` chose here when it was measured, or None."""
    machines, chosen = _read()
    return next((m for m in machines if m.name == chosen), None)


def kept_machines() -> list[Machine]:
    """Return all machines that were measured here, the newest last; none where the file is missing or not ours."""
    return _read()[0]


def _read() -> tuple[list[Machine], str]:
    """Return the machines in the file, and the name of the one that `device="auto"` chooses."""
    try:
        made = json.loads(read_regular(calibration_file(), MOST_BYTES))
        rows, chosen = made["machines"], made["automatic"]
        found = [m for m in map(_machine_of, rows) if m is not None]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, ArgumentError):
        return [], ""
    return found[:MOST_MACHINES], chosen if isinstance(chosen, str) else ""


def _machine_of(row: Any) -> Machine | None:
    """Return the machine of a row of the file, or None where a figure cannot be one of a machine."""
    if not isinstance(row, dict) or row.keys() != {"launch_seconds", "bytes_per_second", "flops_per_second", "name"}:
        return None
    launch, bandwidth, peak, name = (row[key] for key in Machine.__slots__)
    good = _within(SECONDS, launch) and _within(RATE, bandwidth) and _within(RATE, peak)
    named = isinstance(name, str) and 0 < len(name) <= MOST_LETTERS and name.isprintable()
    return Machine(float(launch), float(bandwidth), float(peak), name) if good and named else None


def _within(bounds: tuple[float, float], value: Any) -> bool:
    low, high = bounds
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high  # NaN is in none
