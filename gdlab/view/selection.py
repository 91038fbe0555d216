"""What is selected, in all views of a study or in one document alone: `doc.selection` reads and sets it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:  # a document is read without the rooms that make one
    from gdlab.study import Study

_NAME = re.compile(r"(\w+)@(.*)#([\d.]+)", re.DOTALL)
_OF_PASSES = ("step", "rule")


class Selection:
    """Entities by names that hold in every document of a study (`portable`), and who is told of a change."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self.listeners: list[Callable[[list[str]], None]] = []

    def set(self, names: Iterable[str]) -> None:
        """Select these, and nothing else; tells every listener of a change."""
        names = list(dict.fromkeys(names))
        if names != self.names:
            self.names = names
            for listener in list(self.listeners):
                listener(names)


_selections: WeakKeyDictionary[Study, Selection] = WeakKeyDictionary()


def selection_of(study: Study) -> Selection:
    """The selection that all documents and views of a study share."""
    return _selections.setdefault(study, Selection())


def portable(data: Mapping[str, Any], entity: str) -> str:
    """An entity by the key of its stage or pass, as select.ts says it: a later document may have it elsewhere."""
    kind, _, place = entity.partition(":")
    first, dot, rest = place.partition(".")
    table = data[_table(kind)]
    if not dot or kind == "wgsl" or not first.isdigit() or int(first) >= len(table):
        return entity
    return f"{kind}@{table[int(first)]['key']}#{rest}"


def local(data: Mapping[str, Any], name: str) -> str | None:
    """The reverse of `portable`; None where this document has no such stage or pass."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    kind, key, rest = found.groups()
    places = [i for i, each in enumerate(data[_table(kind)]) if each["key"] == key]
    return f"{kind}:{places[0]}.{rest}" if places else None


def _table(kind: str) -> str:
    return "passes" if kind in _OF_PASSES else "stages"
