"""Keep the schedules that were measured on an adapter: `tuning-<adapter>.json` in gdlab's cache folder.

A file is never trusted: one that is damaged, too large, of another version or of another adapter counts as not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.base.files import open_regular
from gdlab.base.words import clipped
from gdlab.devices.base import DeviceInfo
from gdlab.op.machines import calibration_file
from gdlab.plan.target import TunedSchedule, Tuning

FORMAT = 1
FASTER = 0.96  # of the rule's time: the same schedule differs from itself by 4 % (NVIDIA H200, 2026-11-23)
_MOST_BYTES, _MOST_KERNELS, _MOST_TRIALS, _MOST_PARAMS, _MOST_TEXT = 16 << 20, 4096, 64, 12, 300
_LONGEST = 10**13  # nanoseconds


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule that was tried: its name, its numbers (`Dispatch.params`), the nanoseconds of one run of all of its
    dispatches, and why it was refused (then the time is 0)."""

    name: str
    params: tuple[int, ...]
    nanoseconds: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """All schedules of a kernel that were tried on an adapter, first that of the rules."""

    kernel: str
    trials: tuple[Trial, ...]

    @property
    def rule(self) -> Trial:
        """The schedule that the rules choose."""
        return self.trials[0]

    @property
    def chosen(self) -> Trial:
        """The fastest schedule, if it is faster than that of the rules by more than the noise; else that one."""
        timed = [trial for trial in self.trials if not trial.refused]
        best = min(timed, key=lambda trial: trial.nanoseconds, default=self.rule)
        return best if best.nanoseconds < FASTER * self.rule.nanoseconds else self.rule


def tuning_path(info: DeviceInfo) -> Path:
    """Return the file of an adapter: beside the measured figures of machines."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", info.name).strip("-")[:80] or "adapter"
    return calibration_file().with_name(f"tuning-{name}.json")


def kept_kernels(info: DeviceInfo) -> dict[str, TunedKernel]:
    """Return what was measured on an adapter, by kernel; nothing (and a warning) where its file cannot be used."""
    try:
        path = tuning_path(info)
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except (OSError, ArgumentError) as error:  # ArgumentError: no home folder
        _warn(f"cannot be read ({error})")
        return {}
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        found = json.loads(data)
        if found["format"] != FORMAT or found["adapter"] != info.name:
            return {}
        return {kernel.kernel: kernel for kernel in map(_kernel, _list(found["kernels"], _MOST_KERNELS))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _warn(f"{str(path)!r} is damaged ({type(error).__name__}: {str(error)[:80]})")
        return {}


def keep_kernels(info: DeviceInfo, kernels: Iterable[TunedKernel]) -> None:
    """Write what was measured into the file of an adapter: whole or not at all, the other kernels in it stay (but those
    that another process writes at the same moment). Warn where that fails."""
    known = kept_kernels(info) | {kernel.kernel: kernel for kernel in kernels}
    rows = [asdict(kernel) for _, kernel in sorted(known.items())][:_MOST_KERNELS]
    text = json.dumps({"format": FORMAT, "adapter": info.name, "kernels": rows}, ensure_ascii=False)
    temporary = None
    try:
        path = tuning_path(info)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        temporary.write_text(text + "\n", "utf-8")
        temporary.replace(path)
    except (OSError, RuntimeError, ValueError) as error:
        if temporary is not None:
            with contextlib.suppress(OSError, ValueError):
                temporary.unlink()
        _warn(f"cannot be written ({error})")


def tuning_of(kernels: Mapping[str, TunedKernel]) -> Tuning:
    """Return the table of a target: the kernels for which another schedule than that of the rules was chosen."""
    chosen = ((kernel, kernel.chosen) for _, kernel in sorted(kernels.items()))
    return Tuning(
        tuple(
            TunedSchedule(kernel.kernel, best.params, best.nanoseconds, kernel.rule.nanoseconds)
            for kernel, best in chosen
            if best is not kernel.rule
        )
    )


# reading what anybody may have written -------------------------------------------------------------------------------
def _kernel(row: Any) -> TunedKernel:
    trials = tuple(map(_trial, _list(row["trials"], _MOST_TRIALS)))
    if not trials or trials[0].refused:
        raise ValueError("no time of the rule's own schedule")
    return TunedKernel(_text(row["kernel"]), trials)


def _trial(row: Any) -> Trial:
    refused = _text(row["refused"], empty=True)
    params = tuple(_whole(n, 0, 1 << 30) for n in _list(row["params"], _MOST_PARAMS))
    return Trial(_text(row["name"]), params, _whole(row["nanoseconds"], 0 if refused else 1, _LONGEST), refused)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"no list of at most {most}")
    return value


def _text(value: Any, empty: bool = False) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MOST_TEXT or not (value or empty):
        raise ValueError("no short text")
    return value


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"no whole number in {least} … {most}")
    return value


def short_reason(error: Exception) -> str:
    """Return an error's text as a reason of one line that the file takes."""
    text = "".join(c if c.isprintable() else " " for c in str(error))
    return clipped(" ".join(text.split()), 200) or type(error).__name__


def _warn(what: str) -> None:
    warnings.warn(f"tuning: file {what}: going on without it", RuntimeWarning, stacklevel=3)
