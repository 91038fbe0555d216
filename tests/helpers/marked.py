"""Find the files that hold tests of a mark by a word in them: to ask pytest means to import every file there is."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
WORDS = {"browser": ("playwright", "mark.browser"), "clock": ("mark.clock",)}


def is_candidate(path: Path, mark: str) -> bool:
    """Return whether a file may hold a test of this mark."""
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in WORDS[mark])


def files_with(mark: str) -> list[str]:
    """Return the files that may hold a test of this mark, below the repository."""
    found = [path for path in sorted(TESTS.glob("*/test_*.py")) if is_candidate(path, mark)]
    return [path.relative_to(TESTS.parent).as_posix() for path in found]
