"""Write long lists in forms that state a repetition once, and read them back: `restored(shortened(v)) == v`.

A shortened list is an object whose key `~` names its form (docs/graphdoc.md). Lists of fewer than `LARGE` values stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from gdlab.view.document.columns import Json, words

LARGE = 200  # values of a list from which on it is shortened
MOST = 1 << 25  # values that all runs of a document may become when it is read
_FORM = "~"  # no key of a document: attributes and variables of patterns are Python names
_NESTED = (dict, list, tuple)

Ints = npt.NDArray[np.int64]


def shortened(value: Any) -> Any:
    """Return a JSON value in which every long list of numbers, texts, lists or records has its shortest form."""
    if isinstance(value, dict):
        return {name: shortened(each) if isinstance(each, _NESTED) else each for name, each in value.items()}
    if not value or not isinstance(value[0], _NESTED):
        return value if len(value) < LARGE else _plain_list(value)
    kinds = set(map(type, value))
    if len(value) >= LARGE and kinds == {dict}:
        return _records(value)
    if len(value) >= LARGE and not kinds - {list, tuple}:
        lengths = shortened(list(map(len, value)))
        return {_FORM: "lists", "lengths": lengths, "of": shortened(list(chain.from_iterable(value)))}
    return value if kinds.difference(_NESTED) else [shortened(each) for each in value]


def _plain_list(values: Sequence[Any]) -> Any:
    kinds = set(map(type, values))
    if kinds == {int}:
        return _ints(values)
    if kinds == {str} and 2 * len(set(values)) < len(values):
        found = words(values)
        return {_FORM: "words", "words": found["words"], "index": shortened(found["index"])}
    return values


def _records(values: Sequence[Json]) -> Any:
    names = values[0].keys()
    if not names or any(each.keys() != names for each in values):
        return [shortened(each) for each in values]
    columns = {name: shortened([each[name] for each in values]) for name in names}
    return {_FORM: "records", "of": columns}


def _ints(values: Sequence[int]) -> Any:
    """Return integers or their differences, as they are or by runs of equal ones: whichever is the shortest."""
    plain = np.array(values, np.int64)
    changes = np.diff(plain, prepend=0)
    best, least = None, 0.9 * _size(plain)
    for of, differences in ((plain, False), (changes, True)):
        at = np.flatnonzero(np.diff(of, prepend=of[0] - 1))
        lengths = np.diff(at, append=len(of))
        for size, runs in ((_size(of), False), (_size(of[at]) + _size(lengths), True)):
            if size < least:
                best, least = (of, at, lengths, differences, runs), size
    if best is None:
        return values
    of, at, lengths, differences, runs = best
    told: Any = of.tolist()
    if runs:
        told = {_FORM: "runs", "lengths": shortened(lengths.tolist()), "of": shortened(of[at].tolist())}
    return {_FORM: "differences", "of": told} if differences else told


_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


def _size(values: Ints) -> int:
    """Count the characters of these numbers as JSON, commas included."""
    digits = np.searchsorted(_POWERS, np.abs(values), side="right")
    return int(digits.sum() + np.count_nonzero(values < 0)) + 2 * len(values)


# reading -------------------------------------------------------------------------------------------------------------
def restored(value: Any) -> Any:
    """Return the value with every shortened list written out; raise ValueError, LookupError or TypeError where it is
    damaged."""
    return _restored(value, _Room())


@dataclass(slots=True)
class _Room:
    """A limit on the number of values that are still to be written out: a few bytes can state any number of them."""

    left: int = MOST

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError(f"runs of more than {MOST} values")


def _restored(value: Any, room: _Room) -> Any:
    if isinstance(value, dict):
        if _FORM in value:
            return _FORMS[value[_FORM]](value, room)
        return {name: _restored(each, room) if isinstance(each, _NESTED) else each for name, each in value.items()}
    if not value or not isinstance(value[0], _NESTED):
        return value
    return [_restored(each, room) if isinstance(each, _NESTED) else each for each in value]


def _runs(raw: Json, room: _Room) -> list[Any]:
    of, lengths = _restored(raw["of"], room), _restored(raw["lengths"], room)
    room.take(_total(lengths))
    return list(chain.from_iterable([repeat(each, count) for each, count in zip(of, lengths, strict=True)]))


def _differences(raw: Json, room: _Room) -> list[Any]:
    return list(accumulate(_restored(raw["of"], room)))


def _lists(raw: Json, room: _Room) -> list[Any]:
    of, lengths = _restored(raw["of"], room), _restored(raw["lengths"], room)
    if _total(lengths) != len(of):
        raise ValueError(f"lists of {sum(lengths)} values in all hold {len(of)}")
    ends = list(accumulate(lengths, initial=0))
    return [of[start:stop] for start, stop in zip(ends, ends[1:], strict=False)]


def _words(raw: Json, room: _Room) -> list[Any]:
    known = raw["words"]
    return [known[i] for i in _restored(raw["index"], room)]


def _rows(raw: Json, room: _Room) -> list[Any]:
    columns = {name: _restored(each, room) for name, each in raw["of"].items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _total(lengths: Sequence[int]) -> int:
    if min(lengths, default=0) < 0:
        raise ValueError(f"a list of {min(lengths)} values")
    return sum(lengths)


_FORMS: dict[str, Callable[[Json, _Room], list[Any]]] = {
    "runs": _runs, "differences": _differences, "lists": _lists, "words": _words, "records": _rows
}  # fmt: skip
