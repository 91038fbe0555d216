"""Where a node was written: the user's frames, resolved to file, line and columns when somebody asks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType, FrameType

_PACKAGE = __name__.partition(".")[0]
_MAX_STACK = 8


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file or cell: 1-based line, 0-based columns in characters (−1: unknown)."""

    file: str
    line: int
    col: int
    end_line: int
    end_col: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function != "<module>" else "")


Source = tuple[Location, ...]  # innermost user frame first
Frame = tuple[CodeType, int, int]  # resolved to a Location only when somebody asks


def capture() -> tuple[Frame, ...]:
    """The user's frames that lead to this call, innermost first; frames of gdlab are left out."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _MAX_STACK:
        code = frame.f_code
        if not frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            frames.append((code, frame.f_lasti, frame.f_lineno))
            if code.co_name == "<module>":
                break
        frame = frame.f_back
    return tuple(frames)


def here() -> Location | None:
    """The user's line that leads to this call."""
    frames = capture()
    return locate(frames[0]) if frames else None


def locate(frame: Frame) -> Location:
    code, lasti, lineno = frame
    positions = list(code.co_positions())
    line, end_line, col, end_col = positions[lasti // 2] if lasti // 2 < len(positions) else (None,) * 4
    return Location(
        code.co_filename,
        line or lineno,
        _characters(code.co_filename, line or lineno, col),
        end_line or lineno,
        _characters(code.co_filename, end_line or lineno, end_col),
        code.co_name,
    )


def _characters(file: str, line: int, column: int | None) -> int:
    """Python's columns count UTF-8 bytes; people count characters."""
    if column is None:
        return -1
    import linecache

    return len(linecache.getline(file, line).encode()[:column].decode(errors="ignore")) or column
