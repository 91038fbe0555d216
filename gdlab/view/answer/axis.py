"""The logarithmic axis of a section: whole decades around its numbers, and at most six ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gdlab.base.words import MINUS

_MOST_TICKS = 6
_MOST_DECADES = 24
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale over the decades `low` … `high` (exponents of ten)."""

    low: int
    high: int

    def at(self, value: float) -> float:
        """Return the place of a number, 0 … 1; one that lies outside, or is 0 or not finite, stands at an end."""
        if not value > 0:
            return 1.0 if math.isnan(value) else 0.0
        if math.isinf(value):
            return 1.0
        return min(1.0, max(0.0, (math.log10(value) - self.low) / (self.high - self.low)))

    def ticks(self) -> list[int]:
        """Return the exponents that have a tick, the outermost first: both ends, and multiples of a step between."""
        step = -(-(self.high - self.low) // (_MOST_TICKS - 1))
        between = [e for e in range(self.low + 1, self.high) if e % step == 0]
        return [self.high, self.low, *between]


def log_scale(values: Iterable[float]) -> LogScale:
    """Return the whole decades that hold all numbers > 0, at least one and at most 24 (the largest)."""
    exponents = [math.log10(v) for v in values if v > 0 and math.isfinite(v)]
    low, high = (math.floor(min(exponents)), math.ceil(max(exponents))) if exponents else (-1, 0)
    return LogScale(max(low if low < high else high - 1, high - _MOST_DECADES), high)


def power(exponent: int) -> str:
    """Write a power of ten: 0.1, 1, 10, 100 and 10⁻⁵."""
    if -2 <= exponent <= 3:
        return f"{10**exponent:g}".replace("-", MINUS)
    return "10" + str(exponent).translate(_SUPERSCRIPT)
