"""The only formatter: numbers, bytes, durations and plurals as words, tables of text, nearest names.

`labextension/src/doc/format.ts` has the same rules; `labextension/test/words.json` holds both to them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from unicodedata import east_asian_width

MINUS = "\u2212"
_BYTES = ("B", "KB", "MB", "GB", "TB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP")
_LIKE = 0.6  # least likeness of a name that is worth a hint, as in `difflib`


# numbers -------------------------------------------------------------------------------------------------------------
def sig(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits without trailing zeros: 0.148, 12.3, 1,914; 3.1e−5."""
    value = float(value)
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if size >= 10 ** (digits - 1) and size < 1e6:
        return whole(value)
    up = value * (1 + 1e-14)  # a tie goes up, as in JavaScript
    if size and not 1e-4 <= size < 1e6:
        mantissa, _, exponent = f"{up:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    return f"{up:,.{digits}g}".replace("-", MINUS) if size else "0"


def cell(value: float) -> str:
    """Return the number of a column that says its unit: 1.05, .08, and <.01 where more digits would say nothing."""
    if 0 < value < 0.005:
        return "<.01"
    return sig(math.floor(value * 100 + 0.5) / 100 if value < 1 else value).removeprefix("0") or "0"


def natural(text: str) -> int | None:
    """Return the number that 1 to 18 ASCII digits say; None of any other text: `²` is a digit to `isdigit`."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def whole(value: float) -> str:
    """Write a whole number with its thousands apart: 1914 → `1,914`."""
    return f"{value if isinstance(value, int) else math.floor(value + 0.5):,}".replace("-", MINUS)


def nbytes(value: float) -> str:
    """Write a number of bytes with a unit, in powers of ten: 401408 → `401 KB`."""
    return _scaled(value, _BYTES)


def flops(value: float) -> str:
    """Write a number of floating point operations with a unit: 2e13 → `20 TFLOP`."""
    return _scaled(value, _FLOPS)


def _scaled(value: float, units: Sequence[str]) -> str:
    unit = 0
    while unit + 1 < len(units) and value >= 999.5:
        value, unit = value / 1000, unit + 1
    return f"{sig(value) if unit else whole(value)} {units[unit]}"


def duration(seconds: float | None) -> str:
    """Return seconds in the unit that keeps the number between 1 and 1000."""
    if seconds is None or not seconds >= 0:
        return "–"
    if seconds >= 1:
        return f"{sig(seconds)} s"
    return f"{sig(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{sig(seconds * 1e6)} µs"


def plural(count: int, word: str) -> str:
    """Write a count and its noun: `3 nodes`, `1 dispatch`, `2 dispatches`."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "sh", "ch", "x")) else "s"
    return f"{whole(count)} {word}{ending}"


# names ---------------------------------------------------------------------------------------------------------------
_MOST_COMPARED, _LONGEST_COMPARED = 10_000, 400  # names, characters: comparing takes a time that grows with both


def by_likeness(name: str, known: Iterable[str], least: float = _LIKE) -> list[str]:
    """Return the known names that are at least so much like `name` (0 … 1): the most alike first, of equals the first
    known."""
    import difflib  # here: `import gdlab` refuses no name

    names = list(known)
    alike = set(difflib.get_close_matches(name, names, len(names) or 1, least))
    matcher = difflib.SequenceMatcher(None, b=name)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    return sorted((other for other in names if other in alike), key=likeness, reverse=True)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, or ``""`` where none is like it."""
    return next(iter(by_likeness(name, known)), "")


def near_hint(name: str, known: Iterable[str]) -> str:
    """Return `; nearest: w1`, the known name that is nearest, or ``""``."""
    known = list(known)
    near = nearest(name, known) if len(known) <= _MOST_COMPARED and len(name) <= _LONGEST_COMPARED else ""
    return f"; nearest: {clipped(near, 200)}" if near else ""


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return `w1, w2 … (30 in all)`."""
    more = f" … ({whole(len(names))} in all)" if len(names) > most else ""
    return ", ".join(clipped(n, 100) for n in names[:most]) + more


def one_of(name: str, known: Sequence[str], most: int = 20) -> str:
    """Say what is wanted in place of an unknown name: `one of w1, w2 … (30 in all); nearest: w1`."""
    return f"one of {listed(known, most) or 'none: there are none'}{near_hint(name, known)}"


# tables --------------------------------------------------------------------------------------------------------------
def clipped(text: str, characters: int, lines: int = 1_000) -> str:
    """Return the text, cut behind so many characters and lines, with the number of those that are left out."""
    rows = text.split("\n", lines)
    if len(rows) > lines:
        text, more = "\n".join(rows[:lines]), f" … and {whole(rows[lines].count(chr(10)) + 1)} more lines"
    else:
        more = ""
    if len(text) > characters:
        more = f" … and {whole(len(text) - characters)} more characters"
        text = text[:characters]
    return text + more


# tables --------------------------------------------------------------------------------------------------------------
def grid(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = (), indent: str = "  "
) -> list[str]:
    """Return the lines of a table; the columns in `right` are aligned at their end. Line breaks inside a cell are shown
    as spaces."""
    table = [[flat(cell) for cell in row] for row in ([head] if any(head) else []) + [list(row) for row in rows]]
    widths = [max((columns(row[i]) for row in table), default=0) for i in range(len(head))]
    aligned = [[_fit(row[i], width, i in right) for i, width in enumerate(widths)] for row in table]
    return [indent + "  ".join(row).rstrip() for row in aligned]


def columns(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def flat(cell: str) -> str:
    """Return the cell on one line, with control characters made visible, so that no name can steer a terminal."""
    return cell if cell.isprintable() else "".join(_visible(c) for c in cell)


def _visible(c: str) -> str:
    if c in "\t\n\r":
        return " "
    return chr(0x2400 + ord(c)) if ord(c) < 0x20 else "\u2421" if 0x7F <= ord(c) < 0xA0 else c


def _fit(cell: str, width: int, right: bool) -> str:
    space = " " * (width - columns(cell))
    return space + cell if right else cell + space
