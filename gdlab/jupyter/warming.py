"""Import and build the parts that the first picture needs, while the user types its cell: `%load_ext gdlab` begins,
`%unload_ext` ends it.

Importing wgpu and listing the adapters takes half a second, egglog and the cpu device some more. A thread does it and
ends by itself; a cell that is run before finds part of it done.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


def _adapters() -> None:
    from gdlab.devices.wgpu.wgpu_device import listed

    listed()


def _engine() -> None:
    from gdlab.rewrite.engine.saturate import bindings

    bindings()


def _numpy_device() -> None:
    import gdlab.devices.cpu.cpu_device  # noqa: F401 (importing it is the point)


_PARTS: tuple[Callable[[], object], ...] = (_adapters, _engine, _numpy_device)
_left = list(_PARTS)  # in this process; a part that is at hand is never fetched again
_thread: threading.Thread | None = None
_ended = threading.Event()


def begin() -> None:
    """Start the thread, unless everything is loaded already."""
    global _thread
    if _left and _thread is None:
        _ended.clear()
        # No daemon: one that is cut off inside a driver takes the process down with it.
        _thread = threading.Thread(target=_fetch, name="gdlab-warming", daemon=False)
        _thread.start()


def end() -> None:
    """Wait for the part that is being loaded, and skip the others."""
    global _thread
    if _thread is not None:
        _ended.set()
        _thread.join()
        _thread = None


def _fetch() -> None:
    while _left and not _ended.is_set():
        with contextlib.suppress(Exception):  # it fails again, and is told, where it is needed
            _left.pop(0)()
