"""The selection and the bookmarks, in all views of a study or in one document alone: `doc.selection`,
`doc.bookmarks`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gdlab.base.words import natural

if TYPE_CHECKING:  # a document is read without the rooms that make one
    from gdlab.study.study import Study

_NAME = re.compile(r"(\w+)@(.*)#([\d.]+)", re.DOTALL)
_MOST = 200  # bookmarks
_OF_PASSES = ("step", "rule")


class Selection:
    """Entities by names that hold in every document of a study (`portable`), with listeners for changes.

    `kept` is what a person wants to find again, the part of a document's `view` that is no more than that: bookmarks,
    whether the overview and the labels of edges are shown, and the widths of panes.
    """

    def __init__(self, names: Iterable[str] = (), kept: object = None) -> None:
        self.names = list(names)
        self.kept = kept_of(kept)
        self.listeners: list[Callable[[list[str]], None]] = []
        self.keepers: list[Callable[[dict[str, Any]], None]] = []

    def set(self, names: Iterable[str]) -> None:
        """Select these, and nothing else; tell every listener of a change."""
        names = list(dict.fromkeys(names))
        if names != self.names:
            self.names = names
            for listener in list(self.listeners):
                listener(names)

    def keep(self, kept: object) -> None:
        """Keep these fields of a view, and nothing else; ill-formed ones are skipped. Tells every keeper of a change.
        """
        known = kept_of(kept)
        if known != self.kept:
            self.kept = known
            for keeper in list(self.keepers):
                keeper(known)


def kept_of(view: object) -> dict[str, Any]:
    """Return the part of a view that is kept, as far as it is well formed."""
    if not isinstance(view, Mapping):
        return {}
    found: dict[str, Any] = {name: view[name] for name in ("map", "labels") if isinstance(view.get(name), bool)}
    if isinstance(view.get("bookmarks"), (list, tuple)):
        found["bookmarks"] = [dict(each) for each in view["bookmarks"][:_MOST] if _is_bookmark(each)]
    if isinstance(view.get("columns"), Mapping):
        found["columns"] = {name: list(row) for name, row in view["columns"].items() if _is_row(name, row)}
    return found


def _is_row(name: object, row: object) -> bool:
    """Return whether this is a row of panes and their shares of the width: a name, and a few numbers ≥ 0."""
    if not isinstance(name, str) or not isinstance(row, (list, tuple)) or not 1 < len(row) < 9:
        return False
    return all(isinstance(each, (int, float)) and 0 <= each < 1e6 for each in row) and any(row)


def _is_bookmark(each: object) -> bool:
    return (
        isinstance(each, Mapping)
        and each.keys() == {"name", "tab", "entities"}
        and all(isinstance(each[part], str) for part in ("name", "tab"))
        and isinstance(each["entities"], (list, tuple))
        and all(isinstance(entity, str) for entity in each["entities"])
    )


_selections: WeakKeyDictionary[Study, Selection] = WeakKeyDictionary()


def selection_of(study: Study) -> Selection:
    """Return the selection that all documents and views of a study share."""
    return _selections.setdefault(study, Selection())


def portable(data: Mapping[str, Any], entity: str) -> str:
    """Return an entity by the key of its stage or pass, as select.ts does, because a later document may number the
    entity differently."""
    kind, _, place = entity.partition(":")
    first, dot, rest = place.partition(".")
    table = data[_table(kind)]
    row = natural(first)
    if not dot or kind == "wgsl" or row is None or row >= len(table):
        return entity
    return f"{kind}@{table[row]['key']}#{rest}"


def local(data: Mapping[str, Any], name: str) -> str | None:
    """Return the reverse of `portable`; None where this document has no such stage or pass."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    kind, key, rest = found.groups()
    places = [i for i, each in enumerate(data[_table(kind)]) if each["key"] == key]
    return f"{kind}:{places[0]}.{rest}" if places else None


def _table(kind: str) -> str:
    return "passes" if kind in _OF_PASSES else "stages"
