"""Run all tests in three groups: those with a browser beside the others, then those that measure time, alone.

    python tests/run.py [arguments of pytest]

Each group is one pytest, whose closing line says what it found and how long it took. The status is 0 if all passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

REPO = Path(__file__).resolve().parents[1]
GROUPS = {  # marks of the tests of each
    "others": "not browser and not clock",
    "browser": "browser and not clock",
    "clock": "clock",
}
NO_TESTS = 5  # pytest's status when nothing was selected


def start(group: str, arguments: list[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start pytest on a group of tests, with a cache of its own: two may write at the same time."""
    options = ["-m", GROUPS[group], "-o", f"cache_dir=build/pytest-{group}", "--durations=15", "--durations-min=1"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.Popen(command, cwd=REPO, stdout=output, stderr=subprocess.STDOUT if output else None)


def head(group: str) -> None:
    print(f"-- {group}: tests marked {GROUPS[group]}", flush=True)


def main(arguments: list[str]) -> int:
    """Return 0 if every group passed; with arguments a group may be empty."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with tempfile.TemporaryFile() as shown_later:
            processes.append(start("browser", arguments, shown_later))
            head("others")
            processes.append(start("others", arguments))
            for process in processes:
                process.wait()
            shown_later.seek(0)
            head("browser")
            sys.stdout.buffer.write(shown_later.read())
            sys.stdout.flush()
        head("clock")
        processes.append(start("clock", arguments))
        processes[-1].wait()
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    passed = {0, NO_TESTS} if arguments else {0}
    return int(any(process.returncode not in passed for process in processes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
