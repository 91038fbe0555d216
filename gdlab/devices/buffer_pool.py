"""Keep released memory for later requests of its size: `Pool(make, most=64 << 20)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from typing import Generic, TypeVar

M = TypeVar("M")
SMALLEST = 256  # bytes; every size is a multiple of it


@lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """Round a request up to its size class: four steps between two powers of two, multiples of 256, so that at most a
    fifth is wasted and requests of almost one size share a class."""
    if nbytes <= SMALLEST:
        return SMALLEST
    step = max(SMALLEST, 1 << ((nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


class Pool(Generic[M]):
    """Free memory, by size class. The one made first is used first, so that lists of work meet the same memory again;
    beyond `most` bytes what is released is dropped."""

    def __init__(self, make: Callable[[int], M], most: int) -> None:
        self._make, self.most = make, most
        self.free_bytes, self.created = 0, 0
        self._free: dict[int, list[tuple[int, M]]] = {}  # a heap each

    def take(self, nbytes: int) -> tuple[int, M]:
        """Return (its number, memory of exactly `nbytes` bytes), the free one that was made first, or a new one."""
        free = self._free.get(nbytes)
        if free:
            self.free_bytes -= nbytes
            return heappop(free)
        made = self._make(nbytes)  # may raise: then nothing has changed
        self.created += 1
        return self.created, made

    def give(self, nbytes: int, number: int, memory: M) -> bool:
        """Add free memory to the pool; beyond `most` bytes it is dropped. Return whether this is."""
        if self.free_bytes + nbytes > self.most:
            return False
        heappush(self._free.setdefault(nbytes, []), (number, memory))
        self.free_bytes += nbytes
        return True

    def clear(self) -> int:
        """Drop all free memory, and return its bytes."""
        dropped, self.free_bytes = self.free_bytes, 0
        self._free.clear()
        return dropped
