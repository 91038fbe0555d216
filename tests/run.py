"""Run all tests: three lanes side by side, then the tests that measure time, alone.

    python tests/run.py [arguments of pytest]

The lanes are the tests with a browser, those of the late rooms and those of the early rooms; a browser and a driver
often wait, and two lanes leave a quarter of two cores idle. Each group is one pytest, whose closing line says what it
found and how long it took. The status is 0 if all passed. With arguments, which may name files, the rooms are one
group.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

REPO = Path(__file__).resolve().parents[1]
MARKS = {"rooms": "not browser and not clock", "browser": "browser and not clock", "clock": "clock"}
LATE = tuple(f"tests/{room}" for room in ("rewrite", "session", "study", "train", "view"))
NO_TESTS = 5  # pytest's status when nothing was selected


class Tests:
    """The groups that were run: what each is told, and the processes."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ended = False

    def run(self, group: str, marks: str, more: list[str], output: IO[bytes] | None = None) -> None:
        """Run pytest on a group, with a cache of its own: two may write at the same time. Write to `output`, or show
        what it prints."""
        command = [
            sys.executable, "-m", "pytest", "-m", MARKS[marks], "-o", f"cache_dir=build/pytest-{group}",
            "--durations=15", "--durations-min=1", *more, *self.arguments,
        ]  # fmt: skip
        title = f"-- {group}: tests marked {MARKS[marks]}\n".encode()
        (output or sys.stdout.buffer).write(title)
        (output or sys.stdout.buffer).flush()
        if not self.ended:
            process = subprocess.Popen(command, cwd=REPO, stdout=output, stderr=subprocess.STDOUT if output else None)
            self.processes.append(process)
            process.wait()

    def end(self) -> None:
        """End what still runs."""
        self.ended = True
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.wait()


def main(arguments: list[str]) -> int:
    """Return 0 if every group passed; with arguments a group may be empty."""
    tests, late = Tests(arguments), [] if arguments else list(LATE)
    lanes = [("browser", "browser", []), *([("late-rooms", "rooms", late)] if late else [])]
    try:
        with contextlib.ExitStack() as stack:
            shown_later = [stack.enter_context(tempfile.TemporaryFile()) for _ in lanes]
            beside = [
                threading.Thread(target=tests.run, args=(*lane, output))
                for lane, output in zip(lanes, shown_later, strict=True)
            ]
            for thread in beside:
                thread.start()
            tests.run("early-rooms" if late else "rooms", "rooms", [f"--ignore={path}" for path in late])
            for thread, output in zip(beside, shown_later, strict=True):
                thread.join()
                output.seek(0)
                sys.stdout.buffer.write(output.read())
                sys.stdout.flush()
        tests.run("clock", "clock", [])
    finally:
        tests.end()
    passed = {0, NO_TESTS} if arguments else {0}
    return int(any(process.returncode not in passed for process in tests.processes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
