"""Streams of random numbers that outlive recordings: `RngState(42)`, and children that are independent of it."""

from __future__ import annotations

import numpy as np

from gdlab.base import philox
from gdlab.base.errors import ArgumentError

SPLITS = 1  # the domain of the counter: keys of children meet no numbers that are drawn


class RngState:
    """A stream: its draws are those of the registry with `seed=key`, numbered by `call`; `splits` counts children."""

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise ArgumentError("RngState", "seed", repr(seed), "an int in 0 … 2^64 − 1")
        self.key, self.call, self.splits = split_key(int(seed), 0), 0, 0

    def split(self) -> RngState:
        """Return the next child; this stream's own draws stay as they were."""
        self.splits += 1
        child = RngState(0)
        child.key = split_key(self.key, self.splits)
        return child

    def __repr__(self) -> str:
        return f"RngState key {self.key}, call {self.call}, splits {self.splits}"


def split_key(key: int, n: int) -> int:
    """Return the key of child n: words 0 and 1 of its Philox block."""
    low, high = philox.words(2, key, domain=SPLITS, call=n).tolist()
    return int(low) | int(high) << 32


def split_rng(state: RngState) -> RngState:
    """Return the next child of a stream."""
    return state.split()
