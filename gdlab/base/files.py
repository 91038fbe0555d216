"""Open files that others wrote: regular files alone, of a size that is bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read its bytes; `OSError` for anything else: a pipe would wait for ever."""
    file = open(os.fspath(path), "rb", opener=_without_waiting)  # the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("a pipe, a device or a socket, where a regular file is read")
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a regular file of at most `most` bytes; `OSError` for anything else."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{size:,} bytes in {Path(path).name}, where at most {most:,} are read")
        return file.read(most)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
