"""Run a piece of Python in a child process with a time limit: what may wait for ever is tested there."""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

_ROOTS = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([*_ROOTS, os.environ.get("PYTHONPATH", "")])}


def run_child(code: str, seconds: float = 60) -> str:
    """Return what the code prints; fail with what it wrote to stderr, or after so many seconds."""
    try:
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            env=_environment(), capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"still running after {seconds} s; it printed {late.stdout!r}") from None
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# one child for many pieces --------------------------------------------------------------------------------------------
_LOOP = """
import contextlib, io, json, sys, traceback

answers = sys.stdout
for line in sys.stdin:
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(json.loads(line), "<string>", "exec"), {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


class _Shared:
    """A child that runs pieces of Python in turn, each in a namespace of its own, until its stdin is closed."""

    def __init__(self) -> None:
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", _LOOP], env=_environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr,
        )  # fmt: skip
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.end)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")  # it has ended

    def run(self, code: str, seconds: float) -> str:
        """Return what the code prints."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"still running after {seconds} s\n{self._errors()}") from None
        assert answer, f"the child ended\n{self._errors()}"
        printed, error = json.loads(answer)
        assert not error, f"{error}\n{self._errors()}"
        return str(printed)

    def _errors(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")

    def end(self) -> None:
        """End the child."""
        atexit.unregister(self.end)
        self.process.kill()
        self.process.wait()


@cache
def _shared() -> _Shared:
    return _Shared()


def run_in_shared_child(code: str, seconds: float = 60) -> str:
    """Do what `run_child` does, in a child that is begun once: to begin one and open a device takes 1 to 3 s of
    processor time. For code that leaves nothing changed; after a failure another child is begun."""
    child = _shared()
    try:
        return child.run(code, seconds)
    except BaseException:
        _shared.cache_clear()
        child.end()
        raise
