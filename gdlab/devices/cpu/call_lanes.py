"""Run lists of NumPy calls at the same time: NumPy releases the interpreter while it computes.

A lane is a thread that waits for lists. To hand a list over takes about 25 µs, and calls of two lanes that end often
wait for the interpreter: lanes gain where a call takes longer than that, which are 65,536 elements and more (EPYC, 2
cores, 2026-11-24).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

import numpy as np

from gdlab.base.blas import cores, threads
from gdlab.op.numpy_form import NumpyCall

MOST_LANES = 4  # more wait for the interpreter, and for memory
WORTH = 1 << 21  # work of the other lanes from which on lists are handed over: some 500 µs
_own = threading.local()  # `is_lane`: of the thread of a lane


def lane_count() -> int:
    """Return the number of lanes: one per core that this process may use, up to `MOST_LANES`, and no more than the
    threads that BLAS is told to take."""
    return max(1, min(cores(), threads(), MOST_LANES))


def run(calls: Iterable[NumpyCall]) -> None:
    """Call one after the other."""
    for function, args in calls:
        function(*args)


@dataclass(slots=True)
class CallList:
    """Calls for one lane. `work`: the elements that each call computes, summed over the calls."""

    calls: list[NumpyCall] = field(default_factory=list)
    work: int = 0


class Part:
    """A list for another lane, handed over once, and how its run ended."""

    def __init__(self, list: CallList) -> None:
        self.list = list
        self._error: BaseException | None = None
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()

    def withdraw(self) -> bool:
        """Return whether the run has not begun; then no lane begins it."""
        return self._begun.acquire(blocking=False)

    def run(self) -> None:
        """Run the calls, in the thread of a lane."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            run(self.list.calls)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.release()

    def wait(self) -> BaseException | None:
        """Wait for the end, whatever is raised here meanwhile; return what was, here or there."""
        raised: BaseException | None = None
        while True:
            try:
                self._ended.acquire()
                break
            except BaseException as error:  # an interrupt: the memory of the calls is still in use
                raised = error
        found, self._error = self._error or raised, None
        return found


class Beside:
    """Lists that touch nothing of one another, called as one: the first runs in the caller's thread."""

    def __init__(self, lists: Sequence[CallList]) -> None:
        self.lists = lists

    @property
    def is_worth_it(self) -> bool:
        """Whether the others have enough to do."""
        return sum(list.work for list in self.lists[1:]) >= WORTH

    def in_turn(self) -> list[NumpyCall]:
        """Return all calls as one list."""
        return [call for list in self.lists for call in list.calls]

    def __call__(self) -> None:
        if not self.is_worth_it or getattr(_own, "is_lane", False):  # a lane could wait for itself
            run(self.in_turn())
            return
        error: BaseException | None = None
        parts, handed = [Part(list) for list in self.lists[1:] if list.calls], 0
        try:
            for part in parts:
                _lane(os.getpid(), handed).put(part)
                handed += 1
            run(self.lists[0].calls)
        except BaseException as raised:
            error = raised
        for at, part in enumerate(parts):
            if at < handed or not part.withdraw():  # an interrupt may come between `put` and the count
                error = part.wait() or error
        if error is not None:
            raise error


def beside(lists: Sequence[CallList]) -> list[NumpyCall]:
    """Return the call of lists that touch nothing of one another; of one list its calls."""
    return [(Beside(lists), ())] if len(lists) > 1 else lists[0].calls


def spread(calls: Iterable[tuple[NumpyCall, int]]) -> list[CallList]:
    """Return calls that touch nothing of one another as lists for lanes; with each call goes the work that it is."""
    lists = [CallList() for _ in range(lane_count())]
    for call, work in calls:
        least = min(lists, key=lambda list: list.work)
        least.calls.append(call)
        least.work += work
    return lists


def joined(calls: Iterable[NumpyCall]) -> list[NumpyCall]:
    """Return calls that all touch nothing of one another, with neighbours that are lists beside each other as one."""
    found: list[NumpyCall] = []
    for are_lists, some in groupby(calls, key=lambda call: isinstance(call[0], Beside)):
        if not are_lists:
            found += some
            continue
        besides = [call.lists for call, _ in some if isinstance(call, Beside)]
        found.append((Beside([_one(lists) for lists in zip(*besides, strict=True)]), ()))
    return found


def _one(lists: Iterable[CallList]) -> CallList:
    """Return the calls of all lists as one list."""
    listed = [*lists]
    return CallList([call for list in listed for call in list.calls], sum(list.work for list in listed))


def is_worth_it(call: Callable[..., object]) -> bool:
    """Return whether a call is lists beside each other that are long enough for lanes."""
    return isinstance(call, Beside) and call.is_worth_it


def flat(calls: Iterable[NumpyCall]) -> list[NumpyCall]:
    """Return the calls; in place of lists that are too short for lanes all that is in them."""
    found: list[NumpyCall] = []
    for call, args in calls:
        if isinstance(call, Beside) and not call.is_worth_it:
            found += call.in_turn()
        else:
            found.append((call, args))
    return found


@cache
def _lane(pid: int, number: int) -> queue.SimpleQueue[Part]:
    """Return what a lane of this process takes its lists from; its thread begins with the first."""
    parts: queue.SimpleQueue[Part] = queue.SimpleQueue()

    def serve() -> None:
        _own.is_lane = True
        with np.errstate(all="ignore"):
            while True:
                parts.get().run()

    threading.Thread(target=serve, name=f"gdlab-lane-{number + 1}", daemon=True).start()
    return parts
