"""End processes when another one has ended: `python -m gdlab.distributed.guard PID FILE`, then a process id per line.

A notebook's kernel that is killed runs no code of its own any more; this process outlives it, ends the controller and
`mpiexec` (and with it every rank on every host), removes FILE, the cluster's file, and ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence

EVERY = 0.5  # seconds between two looks


def main() -> None:
    """Wait for the end of a process, then end the others."""
    import psutil

    owner, file = psutil.Process(int(sys.argv[1])), sys.argv[2]
    pids: list[int] = []
    threading.Thread(target=lambda: pids.extend(int(line) for line in sys.stdin), daemon=True).start()
    while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
        time.sleep(EVERY)
    end(pids)
    with contextlib.suppress(OSError):
        os.unlink(file)


def end(pids: Sequence[int]) -> None:
    """End processes and their children: ask them to, and kill them after two seconds."""
    import psutil

    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(found.values()), timeout=2)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=2)


if __name__ == "__main__":
    main()
