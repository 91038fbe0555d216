"""Numbers as people read them: three significant digits, units in words, a true minus; and tables of text."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from unicodedata import east_asian_width

MINUS = "\u2212"


def sig(value: float) -> str:
    """Three significant digits without trailing zeros: 0.148, 12.3, 1,914; 3.1e−5."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if size and not 1e-4 <= size < 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", MINUS)
    if size >= 100:
        return whole(value)
    return f"{float(f'{value:.3g}'):g}".replace("-", MINUS)


def cell(value: float) -> str:
    """In a column that says its unit: 1.05, .08, and <.01 where more digits would say nothing."""
    if 0 < value < 0.005:
        return "<.01"
    return sig(round(value, 2) if value < 1 else value).removeprefix("0") or "0"


def whole(value: float) -> str:
    """1914 → `1,914`."""
    return f"{round(value):,}".replace("-", MINUS)


def nbytes(value: float) -> str:
    """401408 → `401 KB`: powers of ten."""
    unit = 0
    while unit < 4 and value >= 999.5:
        value, unit = value / 1000, unit + 1
    return f"{sig(value) if unit else whole(value)} {('B', 'KB', 'MB', 'GB', 'TB')[unit]}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that keeps the number between 1 and 1000."""
    if seconds is None or not seconds >= 0:
        return "–"
    if seconds >= 1:
        return f"{sig(seconds)} s"
    return f"{sig(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{sig(seconds * 1e6)} µs"


def plural(count: int, word: str) -> str:
    """`3 nodes`, `1 dispatch`, `2 dispatches`."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "sh", "ch", "x")) else "s"
    return f"{whole(count)} {word}{ending}"


def clipped(text: str, characters: int, lines: int = 1_000) -> str:
    """The text, cut behind so many characters and lines, with the number of those that are left out."""
    rows = text.split("\n", lines)
    if len(rows) > lines:
        text, more = "\n".join(rows[:lines]), f" … and {whole(rows[lines].count(chr(10)) + 1)} more lines"
    else:
        more = ""
    if len(text) > characters:
        more = f" … and {whole(len(text) - characters)} more characters"
        text = text[:characters]
    return text + more


# tables of text ------------------------------------------------------------------------------------------------------
def grid(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "  "
) -> list[str]:
    """Aligned columns; those in `right` end in line. Line breaks inside a cell are shown as spaces."""
    table = [[flat(cell) for cell in row] for row in ([head] if any(head) else []) + [list(row) for row in rows]]
    widths = [max((columns(row[i]) for row in table), default=0) for i in range(len(head))]
    aligned = [[_fit(row[i], width, i in right) for i, width in enumerate(widths)] for row in table]
    return [indent + "  ".join(row).rstrip() for row in aligned]


def columns(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def flat(cell: str) -> str:
    """The cell on one line, with control characters made visible, so that no name can steer a terminal."""
    return cell if cell.isprintable() else "".join(_visible(c) for c in cell)


def _visible(c: str) -> str:
    if c in "\t\n\r":
        return " "
    return chr(0x2400 + ord(c)) if ord(c) < 0x20 else "\u2421" if 0x7F <= ord(c) < 0xA0 else c


def _fit(cell: str, width: int, right: bool) -> str:
    space = " " * (width - columns(cell))
    return space + cell if right else cell + space
