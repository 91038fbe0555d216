"""Remember results up to a number of bytes: `LruCache(4 << 20)`, `@remember(4 << 20, nbytes)`.

`functools.lru_cache` counts entries; one of ours may hold a text of 30 KB or the elements of a large constant.
"""

from __future__ import annotations

from _thread import allocate_lock  # `import gdlab` loads this module, and not `threading`
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")


class LruCache(Generic[K, V]):
    """Values by key, at most `most` bytes of them as their callers count: the least recently used leave first."""

    def __init__(self, most: int) -> None:
        self.most, self.nbytes = most, 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()  # the least recently used first
        self._lock = allocate_lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key, now the most recently used; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, nbytes: int) -> None:
        """Keep a value of so many bytes; one that is larger than the whole cache is not kept."""
        dropped = list[tuple[V, int]]()  # outlives the lock: releasing a value may call anything
        with self._lock:
            self._drop(key, dropped)
            if nbytes > self.most:
                return
            self._entries[key] = value, nbytes
            self.nbytes += nbytes
            while self.nbytes > self.most:
                self._drop(next(iter(self._entries)), dropped)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            entries, self._entries, self.nbytes = self._entries, OrderedDict(), 0
        entries.clear()

    def _drop(self, key: K, dropped: list[tuple[V, int]]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry[1]
            dropped.append(entry)


def remember(most: int, nbytes: Callable[[V], int]) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Decorate a function of hashable positional arguments that never returns None: keep its results up to `most`
    bytes; `nbytes` says how many a result takes with its arguments."""

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        cache: LruCache[Hashable, V] = LruCache(most)

        @wraps(function)
        def remembered(*args: P.args, **kwargs: P.kwargs) -> V:
            assert not kwargs  # positional arguments alone are the key
            value = cache.get(args)
            if value is None:
                value = function(*args)  # type: ignore[call-arg]
                cache.put(args, value, nbytes(value))
            return value

        remembered.cache = cache  # type: ignore[attr-defined]
        return remembered

    return decorate
