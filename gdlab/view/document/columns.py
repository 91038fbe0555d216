"""Tables in columns: pack lists into the forms of docs/graphdoc.md, and read any of the forms back as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from gdlab.view.document.tables import TABLES
from gdlab.view.document.tables import Json as Json


# packing -------------------------------------------------------------------------------------------------------------
def words(texts: Sequence[str]) -> Json:
    """Return a column of texts that repeat."""
    known = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return {"words": list(known), "index": list(map(known.__getitem__, texts))}


def ragged(lists: Sequence[Sequence[int]]) -> Json:
    """Return a column of int lists."""
    return {"start": list(accumulate(map(len, lists), initial=0)), "ids": list(chain.from_iterable(lists))}


def ragged_words(lists: Sequence[Sequence[str]]) -> Json:
    """Return a column of text lists."""
    flat = words(list(chain.from_iterable(lists)))
    return {"start": list(accumulate(map(len, lists), initial=0)), "ids": flat["index"], "words": flat["words"]}


def sparse(values: Sequence[Any], absent: Any = None) -> Json:
    """Return a mostly empty column: only the values that differ from `absent`."""
    return {str(i): value for i, value in enumerate(values) if value != absent}


# reading -------------------------------------------------------------------------------------------------------------
def column(raw: Any, count: int, absent: Any) -> list[Any]:
    """Return the plain list of values of a column in any form."""
    if raw is None:
        return [absent] * count
    if isinstance(raw, list):
        return raw
    if "start" in raw and "ids" in raw:
        start, ids, known = raw["start"], raw["ids"], raw.get("words")
        parts = [ids[start[i] : start[i + 1]] for i in range(count)]
        return parts if known is None else [[known[k] for k in part] for part in parts]
    if "words" in raw and "index" in raw:
        return [raw["words"][k] for k in raw["index"]]
    return [raw.get(str(i), absent) for i in range(count)]


class Table:
    """A columnar table as a sequence of records: `table[i]` is a dict, `table.column(name)` a list."""

    def __init__(self, raw: Mapping[str, Any] | None, kind: str) -> None:
        self._raw = raw or {}
        self._absent = TABLES[kind]
        self._columns: dict[str, list[Any]] = {}
        self.count = int(self._raw.get("count", 0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Json:
        if not -self.count <= index < self.count:
            raise IndexError(f"row {index} of {self.count}")
        return {name: values[index] for name, values in self._all.items()}

    def __iter__(self) -> Iterator[Json]:
        return (self[i] for i in range(self.count))

    def column(self, name: str) -> list[Any]:
        """Return all values of one column."""
        if name not in self._columns:
            self._columns[name] = column(self._raw.get(name), self.count, self._absent[name])
        return self._columns[name]

    @cached_property
    def _all(self) -> dict[str, list[Any]]:
        return {name: self.column(name) for name in self._absent}
