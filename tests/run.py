"""Run all tests: two lanes side by side, then the tests that measure time, alone.

    python tests/run.py [arguments of pytest]

One lane has the tests with a browser and then those of the late rooms, the other one those of the early rooms. Each
group is one pytest, whose closing line says what it found and how long it took. The status is 0 if all passed. With
arguments, which may name files, the rooms are one group.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

REPO = Path(__file__).resolve().parents[1]
MARKS = {"rooms": "not browser and not clock", "browser": "browser and not clock", "clock": "clock"}
LATE = tuple(f"tests/{room}" for room in ("rewrite", "session", "study", "train", "view"))  # about as long as `browser`
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
    try:
        with tempfile.TemporaryFile() as shown_later:

            def beside() -> None:
                tests.run("browser", "browser", [], shown_later)
                if late:
                    tests.run("late-rooms", "rooms", late, shown_later)

            lane = threading.Thread(target=beside)
            lane.start()
            tests.run("early-rooms" if late else "rooms", "rooms", [f"--ignore={path}" for path in late])
            lane.join()
            shown_later.seek(0)
            sys.stdout.buffer.write(shown_later.read())
            sys.stdout.flush()
        tests.run("clock", "clock", [])
    finally:
        tests.end()
    passed = {0, NO_TESTS} if arguments else {0}
    return int(any(process.returncode not in passed for process in tests.processes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
