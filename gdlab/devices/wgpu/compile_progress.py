"""Log once a second the progress of compiling and warming up: `logging`, "gdlab.devices", level INFO."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 1.0


def logged_progress(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items; work on them of more than a second logs `{what}: 12 of 40`, and at its end its time."""
    began = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - last >= EVERY_SECONDS:
            logging.getLogger("gdlab.devices").info("%s: %d of %d", what, done, len(items))
            last = now
        yield item
    if last > began:
        seconds = time.monotonic() - began
        logging.getLogger("gdlab.devices").info("%s: all %d in %.1f s", what, len(items), seconds)
