"""Write a value as the lines that stand on a node's box: a number, a vector, a matrix in tall brackets, or words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gdlab.view.layout.metrics import ELEMENTS_CUT, WORDS_CUT

_SPACE = "\u00a0"  # SVG draws several plain spaces as one


def value_lines(text: str) -> list[str]:
    """Return the lines of a value as a document has it (`array_words`). Of more than two axes the last two are
    matrices, one below the other; a column is a vector with ᵀ; range and mean are words."""
    if not text.startswith("["):
        return _wrapped(text.split(", "))
    rows = [row.split(", ") for row in re.findall(r"\[([^\[\]]*)\]", text)]
    depth = len(text) - len(text.lstrip("["))
    if len(rows) < 2:
        return _vector(rows[0] if rows else [], "")
    if all(len(row) == 1 for row in rows):
        return _vector([cell for row in rows for cell in row], "ᵀ" if depth == 2 else "")
    if depth == 2:
        return _matrix(rows)
    blocks = text.count("]], [[") + 1
    tall = len(rows) // blocks
    parts = [rows[i * tall : (i + 1) * tall] for i in range(blocks)]
    return [line for part in parts for line in (_matrix(part) if tall > 1 else _vector(part[0], ""))]


def gradient_lines(text: str) -> list[str]:
    """Return the lines of a node's gradient, which stand below those of its value."""
    return [f"{_SPACE if i else '∂'}{_SPACE}{line}" for i, line in enumerate(value_lines(text))]


def _wrapped(pieces: Sequence[str]) -> list[str]:
    """Join pieces by `, `, as many on each line as fit."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 2 + len(piece) <= WORDS_CUT:
            lines[-1] = f"{lines[-1]}, {piece}"
        else:
            lines.append(piece)
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def _vector(cells: Sequence[str], sign: str) -> list[str]:
    """Return a vector on one line, or on several with as many elements each, below each other."""
    plain = f"[{', '.join(cells)}]{sign}"
    if len(plain) <= ELEMENTS_CUT:
        return [plain]
    width = max(map(len, cells))
    each = math.ceil(len(cells) / max(2, math.ceil(len(cells) * (width + 2) / ELEMENTS_CUT)))
    rows = [", ".join(cell.rjust(width, _SPACE) for cell in cells[i : i + each]) for i in range(0, len(cells), each)]
    ends = [","] * (len(rows) - 1) + [f"]{sign}"]
    return [f"{_SPACE if i else '['}{row}{end}" for i, (row, end) in enumerate(zip(rows, ends, strict=True))]


def _matrix(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a matrix below each other, its columns too, in tall brackets."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ends = [("⎡", "⎤"), *[("⎢", "⎥")] * (len(rows) - 2), ("⎣", "⎦")]
    return [
        left + (2 * _SPACE).join(cell.rjust(width, _SPACE) for cell, width in zip(row, widths, strict=True)) + right
        for row, (left, right) in zip(rows, ends, strict=True)
    ]
