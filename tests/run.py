"""Run all tests: three lanes side by side, then the tests that measure time, alone.

    python tests/run.py [arguments of pytest]

The tests with a browser and those that measure time run lavapipe as it is installed. In the others it compiles kernels
with little optimization (tests/helpers/machine.py); `make driver` runs the tests of kernels with all of it.

A lane takes the next group of the table whenever it is free; the tests with a browser, which are the longest group,
begin. Groups of a mark are given the files that may hold such tests (tests/helpers/marked.py). The other groups make
way for these (`nice`): a browser has processes of its own, and beside two lanes that did not its tests took 22:39
minutes instead of 15:18 (2 cores, 2026-11-23). Each group is one pytest, whose closing line says what it found and how
long it took. What failed is said once more at the end, where a reader of a long log looks first. The status is 0 if all
passed. With arguments, which may name files, the rooms are one group.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers.marked import files_with

REPO = Path(__file__).resolve().parents[1]
LANES = 3
MARKS = {"browser": "browser and not clock", "clock": "clock"}
NEITHER = "not browser and not clock"
GROUPS: dict[str, tuple[str, ...]] = {  # of rooms, the longest first; "other rooms" has those that are in none
    "session": ("session", "train"),
    "views": ("view", "study", "rewrite"),
    "other rooms": (),
    "ops": ("ops",),
    "kernels": ("kernels", "models", "load"),
    "doors": ("record", "compiled", "eager"),
    "plan": ("plan",),
}
UNTUNED = {"GALLIVM_PERF": "", "LP_NATIVE_VECTOR_WIDTH": ""}  # lavapipe as it is installed, for the groups in MARKS
THREADS = {"OPENBLAS_DEFAULT_NUM_THREADS": ""}  # as many as it takes, for the clock
NICE = ["nice", "-n", "5"] if shutil.which("nice") else []  # what makes way for a browser; not on Windows
NO_TESTS = 5  # pytest's status when nothing was selected
FAILED = ("FAILED ", "ERROR ", "INTERNALERROR>")  # how such a line of pytest's begins
SUMMARY = 400  # characters of what pytest says of a failed test in its summary


@dataclass
class Tests:
    """The groups that were run: what each is told, and the processes."""

    arguments: list[str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ended: bool = False
    printing: threading.Lock = field(default_factory=threading.Lock)

    def run(self, group: str, places: list[str]) -> None:
        """Run pytest on a group, with a cache of its own: several write at the same time. Show what it printed when it
        has ended."""
        marks = MARKS.get(group, NEITHER)
        command = [
            *([] if group in MARKS else NICE), sys.executable, "-m", "pytest", "-m", marks,
            "-o", f"cache_dir=build/pytest-{group.replace(' ', '-')}", "--durations=15", "--durations-min=1",
            *places, *self.arguments,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as output:
            self._say(f"-- {group}: begun")
            begun = time.monotonic()
            if self.ended:
                return
            given = {**(UNTUNED if group in MARKS else {}), **(THREADS if group == "clock" else {}), **os.environ}
            process = subprocess.Popen(command, cwd=REPO, env=given, stdout=output, stderr=subprocess.STDOUT)
            self.processes.append(process)
            process.wait()
            output.seek(0)
            printed = output.read()
            self._say(f"-- {group}: tests marked {marks}, {time.monotonic() - begun:.0f} s", printed)
        if process.returncode not in self.passed:
            lines = printed.decode(errors="replace").splitlines()
            self.failures.append(f"-- {group}: pytest ended with status {process.returncode}")
            self.failures += [line[:SUMMARY] for line in lines if line.startswith(FAILED)]

    @property
    def passed(self) -> set[int]:
        """The statuses of a group that passed; with arguments a group may be empty."""
        return {0, NO_TESTS} if self.arguments else {0}

    def lane(self, groups: queue.SimpleQueue[tuple[str, list[str]]]) -> None:
        """Run groups until there are none."""
        while not self.ended:
            try:
                group, places = groups.get_nowait()
            except queue.Empty:
                return
            self.run(group, places)

    def end(self) -> None:
        """End what still runs."""
        self.ended = True
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.wait()

    def _say(self, line: str, printed: bytes = b"") -> None:
        with self.printing:
            sys.stdout.buffer.write(f"{line}\n".encode() + printed)
            sys.stdout.flush()


def groups_of(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each group with what pytest is told of its files."""
    if arguments:
        yield from (("browser", []), ("rooms", []))
        return
    yield "browser", files_with("browser")
    named = [f"tests/{room}" for rooms in GROUPS.values() for room in rooms]
    for group, rooms in GROUPS.items():
        yield group, [f"tests/{room}" for room in rooms] or [f"--ignore={place}" for place in named]


def main(arguments: list[str]) -> int:
    """Return 0 if every group passed; say what failed, last."""
    tests = Tests(arguments)
    waiting: queue.SimpleQueue[tuple[str, list[str]]] = queue.SimpleQueue()
    for group in groups_of(arguments):
        waiting.put(group)
    lanes = [threading.Thread(target=tests.lane, args=(waiting,)) for _ in range(LANES)]
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        tests.run("clock", [] if arguments else files_with("clock"))
    finally:
        tests.end()
    print(*tests.failures, sep="\n", end="\n" * bool(tests.failures), flush=True)
    return int(bool(tests.failures))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
