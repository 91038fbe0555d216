"""Cases that `make test` leaves to `make matrix`: more sizes, seeds and pairs of what the first ones test already.

A kernel form, a branch and a dtype have a case among the first ones, which run everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

MATRIX = bool(os.environ.get("GDLAB_MATRIX"))


def also(first: Iterable[T], *further: T) -> list[T]:
    """Return the first cases, and in `make matrix` the further ones too."""
    return [*first, *further] if MATRIX else list(first)


def only(names: Iterable[str], cases: dict[str, T]) -> dict[str, T]:
    """Return the cases of these names, and in `make matrix` all of them."""
    chosen = {name: cases[name] for name in names}
    return cases if MATRIX else chosen


def count(first: int, all: int) -> int:
    """Return how many random cases there are."""
    return all if MATRIX else first
