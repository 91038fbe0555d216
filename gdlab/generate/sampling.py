"""Choose the next token by its logits: temperature, then top-k, then top-p, then a draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.base.types import Array

WHERE = "generate"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of a draw. `temperature` 0: take the first of the largest logits without a draw."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether tokens are chosen without a draw."""
        return self.temperature == 0

    def drawer(self) -> Drawer:
        """Return a drawer for one sequence; each begins with the same seed."""
        return Drawer(self)


class Drawer:
    """A source of tokens with a random state of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling, self.random = sampling, np.random.default_rng(sampling.seed)

    def draw(self, logits: Array) -> int:
        """Return a token for logits f32[vocabulary]; this uses one random number for any logits."""
        ids, weights = weights_of(logits, self.sampling)
        sums = np.cumsum(weights)
        place = int(np.searchsorted(sums, self.random.random() * sums[-1], side="right"))
        return int(ids[min(place, len(ids) - 1)])


def weights_of(logits: Array, sampling: Sampling) -> tuple[Array, Array]:
    """Return the tokens that may be drawn, the likeliest first (of equal ones the smaller first), and their
    probabilities in float64, which sum to 1.

    In this order: logits divided by the temperature; the `top_k` largest; of those the fewest whose probabilities, the
    largest first, reach `top_p`; the softmax of what is left.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    if not math.isfinite(scaled.max()):
        raise SessionError(WHERE, "logits", f"a largest of {scaled.max()}", "finite ones: look at the weights")
    if sampling.top_k is not None and sampling.top_k < len(scaled):
        least = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        ids = np.flatnonzero(scaled >= least)
        ids = ids[np.argsort(-scaled[ids], kind="stable")][: sampling.top_k]
    else:
        ids = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled[ids] - scaled[ids[0]])
    weights /= weights.sum()
    if sampling.top_p is not None and sampling.top_p < 1:
        count = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
        ids, weights = ids[:count], weights[:count] / weights[:count].sum()
    return ids, weights


def checked_sampling(temperature: object, top_k: object, top_p: object, seed: object) -> Sampling:
    """Return the settings of a draw, or raise for one that is out of range."""
    heat = _number("temperature", temperature, "a finite number ≥ 0")
    if heat < 0:
        raise ArgumentError(WHERE, "temperature", repr(temperature), "a finite number ≥ 0")
    share = None if top_p is None else _number("top_p", top_p, "a number in (0, 1]")
    if share is not None and not 0 < share <= 1:
        raise ArgumentError(WHERE, "top_p", repr(top_p), "a number in (0, 1]")
    most = None if top_k is None else whole_number("top_k", top_k, 1)
    return Sampling(heat, most, share, None if seed is None else whole_number("seed", seed, 0))


def whole_number(what: str, given: object, least: int) -> int:
    """Return an int (no bool) of at least `least`, or raise."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (int, np.integer)) or given < least:
        raise ArgumentError(WHERE, what, f"{given!r:.80}", f"an int ≥ {least}")
    return int(given)


def _number(what: str, given: object, wanted: str) -> float:
    numeric = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
    if not numeric or not math.isfinite(given):  # type: ignore[arg-type]
        raise ArgumentError(WHERE, what, f"{given!r:.80}", wanted)
    return float(given)  # type: ignore[arg-type]
