"""Scale the rates of rotary positions for longer texts: linear, dynamic, llama3, YaRN and LongRoPE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A scaling: it divides the rates at which positions rotate, and multiplies the rotated elements by `magnitude`.

    linear: `factor` divides all rates. dynamic: none are divided up to `original` positions; beyond them the rates
    would change with every token, so there are no more. llama3 and yarn: `factor` divides the rates of pairs that turn
    at most `low` times within `original` positions, none of those that turn at least `high` times, and a part of it
    those between: linear in the turns (llama3) or in the number of the pair, whose ends are rounded outwards with
    `truncate` (yarn). longrope: `short` divides them, a number for each pair, or `long` where the model is `extended`
    beyond `original` positions.

    A. Grattafiori et al., The Llama 3 Herd of Models, 2024; B. Peng et al., YaRN: Efficient Context Window Extension of
    Large Language Models, 2023 (dynamic, too); Y. Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million
    Tokens, 2024. Rounding and defaults are those of `modeling_rope_utils` of transformers 4.57.
    """

    kind: Kind
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    magnitude: float = 1.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    extended: bool = False

    @property
    def most(self) -> int | None:
        """Return the largest number of positions for which these rates hold; None if it is not bounded."""
        bounded = self.kind == "dynamic" or (self.kind == "longrope" and not self.extended)
        return self.original if bounded else None

    def divisors(self, theta: float, width: int) -> list[float]:
        """Return the divisor of the rate of each pair of `width` elements."""
        match self.kind:
            case "linear":
                return [self.factor] * (width // 2)
            case "dynamic":
                return [1.0] * (width // 2)
            case "longrope":
                return list(self.long if self.extended else self.short)
            case "llama3":
                turns = [self.original * theta ** (-2 * j / width) / (2 * math.pi) for j in range(width // 2)]
                kept = [(t - self.low) / (self.high - self.low) for t in turns]
            case "yarn":
                first, last = self._pairs(theta, width)
                kept = [1 - (j - first) / (last - first) for j in range(width // 2)]
        shares = [min(max(share, 0.0), 1.0) for share in kept]
        return [1 / ((1 - share) / self.factor + share) for share in shares]

    def _pairs(self, theta: float, width: int) -> tuple[float, float]:
        """Return the last pair that turns `high` times within the original positions, and the first that turns `low`
        times, as real numbers."""
        first, last = (
            width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.high, self.low)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        return first, last + 0.001 if first == last else last
