"""Read files that others wrote (regular files alone, of a bounded size); write files whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from gdlab.base.errors import ArgumentError


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
        return file.read(size)  # `most` bytes would be allocated first


def cache_folder() -> Path:
    """Return the folder of what gdlab can make anew: `gdlab/` in `XDG_CACHE_HOME`, else in `~/.cache`. A relative path
    counts as none, as the XDG base directory specification says. Raises `RuntimeError` where the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "gdlab"


def check_folder(where: str, path: Path) -> None:
    """Refuse a file whose folder does not exist."""
    if not path.parent.is_dir():
        wanted = f"a folder that exists: {path.parent} does not"
        raise ArgumentError(where, "file", f"{path.name} in {path.parent}", wanted)


def make_folder(where: str, argument: str, given: str | os.PathLike[str]) -> Path:
    """Create a folder if it is missing; return its absolute path."""
    try:
        folder = Path(given).absolute()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(where, argument, f"{given}: {reason}", "a folder that can be written") from None
    return folder


def write_file(where: str, path: Path, content: bytes) -> None:
    """Write a file by a temporary one beside it and a rename: a reader sees the old file or the whole new one."""
    check_folder(where, path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArgumentError(where, "file", f"{path.name}: {error.strerror}", "a folder that can be written") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
