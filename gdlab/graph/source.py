"""Locate a node in the source: the user's frames, resolved to file, line and columns when somebody asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

_PACKAGE = __name__.partition(".")[0]
_MODELS = f"{_PACKAGE}.models."
_MODEL_FILES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "models", "")
_MAX_STACK = 8
_OWN: set[int] = set()  # ids of the globals of gdlab's modules: most frames of a call are theirs


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
Position = tuple[int | None, int | None, int | None, int | None]  # line, end line, column, end column
Frame = tuple[CodeType, int]  # and the place of its instruction: resolved to a Location only when somebody asks


def capture(models: bool = False) -> tuple[Frame, ...]:
    """Return the user's frames that lead to this call, innermost first; frames of gdlab are left out, but with `models`
    those of its example networks."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _MAX_STACK:
        scope = frame.f_globals
        if id(scope) in _OWN:
            frame = frame.f_back
            continue
        code, name = frame.f_code, scope.get("__name__", "")
        if name.startswith(_PACKAGE) and not (models and name.startswith(_MODELS)):
            module = sys.modules.get(name)
            if module is not None and module.__dict__ is scope and not name.startswith(_MODELS):
                _OWN.add(id(scope))  # a loaded module's names live as long as the process
        else:
            frames.append((code, frame.f_lasti))
            if code.co_name == "<module>":
                break
        frame = frame.f_back
    return tuple(frames)


def without_models(chain: Source) -> Source:
    """Return the places of a chain that are the user's own: not those of gdlab's example networks."""
    if not any(in_models(at.file) for at in chain):
        return chain
    return tuple(at for at in chain if not in_models(at.file))


def in_models(file: str) -> bool:
    """Return whether a file is one of gdlab's example networks."""
    return file.startswith(_MODEL_FILES)


def stack_level() -> int:
    """Return the `stacklevel` at which a warning of the caller tells the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def here() -> Location | None:
    """Return the user's line that leads to this call."""
    frames = capture()
    return locate(frames[0]) if frames else None


def located(chains: Iterable[tuple[Frame, ...] | Source]) -> list[Source]:
    """Return the places of many nodes: a place that several share is one object, found once."""
    # id(): codes compare by what they do, whatever their file. Whoever holds the chains keeps the codes alive.
    known: dict[tuple[int, int], Location] = {}
    positions: dict[int, list[Position]] = {}
    found = []
    for chain in chains:
        places = []
        for frame in chain:
            if isinstance(frame, Location):
                places.append(frame)
                continue
            code, lasti = frame
            key = id(code), lasti
            place = known.get(key)
            if place is None:
                if id(code) not in positions:
                    positions[id(code)] = list(code.co_positions())
                place = known[key] = _place(frame, positions[id(code)])
            places.append(place)
        found.append(tuple(places))
    return found


def locate(frame: Frame) -> Location:
    return _place(frame, list(frame[0].co_positions()))


def _place(frame: Frame, positions: Sequence[Position]) -> Location:
    code, lasti = frame
    line, end_line, col, end_col = positions[lasti // 2] if lasti // 2 < len(positions) else (None,) * 4
    line = line or code.co_firstlineno
    end_line = end_line or line
    return Location(
        code.co_filename,
        line,
        _characters(code.co_filename, line, col),
        end_line,
        _characters(code.co_filename, end_line, end_col),
        code.co_name,
    )


def _characters(file: str, line: int, column: int | None) -> int:
    """Python's columns count UTF-8 bytes; people count characters."""
    if column is None:
        return -1
    import linecache

    return len(linecache.getline(file, line).encode()[:column].decode(errors="ignore")) or column
