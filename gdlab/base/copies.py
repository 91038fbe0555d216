"""Refuse to copy or pickle what owns memory of a device: `__reduce__ = refuse_copies("runner", "one of its own")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from gdlab.base.errors import SessionError


def refuse_copies(what: str, wanted: str) -> Callable[[object], NoReturn]:
    """Return a `__reduce__` that raises `SessionError`: a copy would be a second handle with counters of its own."""

    def __reduce__(self: object) -> NoReturn:
        raise SessionError("copy", what, "one that owns device buffers", wanted)

    return __reduce__
