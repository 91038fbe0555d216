"""The axes of static plots: round numbers, scales, and the lines and labels of a frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gdlab.view.picture.draw import plain
from gdlab.view.picture.palette import INK, Theme

LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 26


@dataclass(frozen=True, slots=True)
class PixelAxis:
    """A line from `start` to `stop` pixels for numbers from low to high; `log`: by their logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a number; one outside stands at the end."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        share = (min(high, max(low, value)) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.stop - self.start), 1)

    def holds(self, value: float) -> bool:
        """Whether a number is in the range."""
        return self.low <= value <= self.high

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, most: int) -> list[float]:
        """Return round numbers between the ends: 1, 2, 2.5 or 5 times a power of ten apart; on a logarithmic axis
        powers of ten."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            apart = max(1, -(-(last - first) // most))
            powers = [10.0**k for k in range(first, last + 1, apart)]
            return powers if len(powers) > 1 else [self.low, self.high]
        if not self.high > self.low:
            return [self.low]
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def frame(
    x: PixelAxis, y: PixelAxis, xs: Sequence[float], ys: Sequence[float], label: Callable[[float], str], theme: Theme
) -> Iterator[str]:
    """Yield grid lines and labels of a plot; `x` grows to the right, `y` upwards."""
    ink = INK[theme]
    yield f'<g font-size="10.5" fill="{ink.muted}">'
    for tick in ys:
        yield f'<path d="M{x.start:g} {y.at(tick):g}H{x.stop:g}" stroke="{ink.bg3}"/>'
        yield f'<text x="{x.start - 8:g}" y="{y.at(tick) + 4:g}" text-anchor="end">{plain(label(tick))}</text>'
    for tick in xs:
        yield f'<text x="{x.at(tick):g}" y="{y.start + 17:g}" text-anchor="middle">{plain(label(tick))}</text>'
    yield "</g>"


def line(points: Sequence[tuple[float, float]], x: PixelAxis, y: PixelAxis) -> str:
    """Return the path data of a curve; it is broken between two points that are both out of the range of `y`."""
    broken = [not (y.holds(b) or y.holds(before)) for (_, before), (_, b) in pairwise(points)]
    return "".join(
        f"{'M' if starts else 'L'}{x.at(a):g} {y.at(b):g}"
        for (a, b), starts in zip(points, [True, *broken], strict=False)
    )


def marks(points: Sequence[tuple[float, float]], x: PixelAxis, y: PixelAxis) -> str:
    """Return the path data of a triangle at each place where a curve leaves the range of `y`."""
    inside = [True, *(y.holds(b) for _, b in points)]
    leaving = [point for point, was, now in zip(points, inside, inside[1:], strict=False) if was and not now]
    placed = [(x.at(a), y.at(b), 6 if b > y.high else -6) for a, b in leaving]
    return "".join(f"M{left - 4:g} {top + tall:g}h8l-4 {-tall}z" for left, top, tall in placed)
