"""Run a piece of Python in a child process with a time limit: what may wait for ever is tested there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOTS = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]


def run_child(code: str, seconds: float = 60) -> str:
    """Return what the code prints; fail with what it wrote to stderr, or after so many seconds."""
    path = os.pathsep.join([*_ROOTS, os.environ.get("PYTHONPATH", "")])
    try:
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"still running after {seconds} s; it printed {late.stdout!r}") from None
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
