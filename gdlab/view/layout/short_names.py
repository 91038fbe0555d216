"""Shorten names for a picture where they say least: `short_names(names, 24)["model.embed_tokens.weight"]`.

A layout counts code points alone, so it does not depend on what a long name is shortened to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

_MORE = "…"
_SIGN = "∂"  # before the name of what it is the gradient of
_PATH = "./"
_PARTS = "./_ "  # what separates the parts of a name


def short_names(names: Iterable[str], limit: int) -> Mapping[str, str]:
    """Return each long name with at most `limit` code points, so that different names stay different.

    A path loses its beginning (`…embed_tokens.weight`), another name its middle. Of those that would be equal then,
    the part in which they differ stays (`…0…attn.q_proj.weight`); a number tells apart what is left (`…weight~2`).
    """
    known = list(dict.fromkeys(names))
    taken = {name for name in known if len(name) <= limit}
    alike: dict[str, list[str]] = {}
    for name in known:
        if name not in taken:
            alike.setdefault(_shortened(name, limit), []).append(name)
    found: dict[str, str] = {}
    for text, group in alike.items():
        same = _same_ends(group)
        for name in group:
            tried = [text] if len(group) == 1 else _apart(name, *same, limit)
            short = next((each for each in tried if each not in taken), "") or _numbered(text, taken, limit)
            taken.add(short)
            found[name] = short
    return found


class ShortNames:
    """The names of one picture: `names(text, limit)` returns the text as it is drawn."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._short: dict[int, Mapping[str, str]] = {}

    def __call__(self, name: str, limit: int) -> str:
        if len(name) <= limit:
            return name
        if limit not in self._short:
            self._short[limit] = short_names(self._names, limit)
        return self._short[limit][name]


def _shortened(name: str, limit: int) -> str:
    """Return the last parts of a path; for another name its beginning and its end."""
    if not any(mark in name for mark in _PATH):
        half = limit // 2
        return name[:half] + _MORE + name[len(name) - max(0, limit - half - 1) :]
    sign = _SIGN if name.startswith(_SIGN) else ""
    room = limit - 1 - len(sign)
    return sign + (_long_part(name, room) or _MORE + _end(name, room))


def _long_part(name: str, room: int) -> str:
    """Return the last part of a path, behind the beginning of the part that has to be cut: of
    `post_attention_layernorm.weight` `post_attention….weight`. Empty where whole parts leave half of the room."""
    marks = [i for i, letter in enumerate(name) if letter in _PATH]
    inside = next((i for i in marks if i >= len(name) - room), len(name))
    tail = name[marks[-1] :]
    if 2 * (len(name) - inside - 1) >= room or 2 * len(tail) > room:
        return ""
    start = max((i + 1 for i in marks if i < len(name) - room), default=len(name) - len(name.lstrip(_SIGN)))
    head = name[start : start + room - len(tail)]
    word = head.rfind("_")
    return (head[:word] if 2 * word >= len(head) else head) + _MORE + tail


def _end(name: str, room: int) -> str:
    """Return the end of a name, from the beginning of a part where that leaves half of the room."""
    end = name[len(name) - max(0, room) :]
    at = next((i + 1 for i, letter in enumerate(end) if letter in _PARTS), 0)
    return end[at:] if 2 * (len(end) - at) >= room else end


def _same_ends(group: Sequence[str]) -> tuple[int, int]:
    """Return how many code points all of these names begin with, and end with besides."""
    start = len(os.path.commonprefix((min(group), max(group))))
    turned = [each[start:][::-1] for each in group]
    return start, len(os.path.commonprefix((min(turned), max(turned))))


def _apart(name: str, same: int, tail: int, limit: int) -> Iterator[str]:
    """Yield texts of a name with the part in which it differs from others of its group, and as much of its end as fits;
    then its last letters."""
    start, stop = _begin(name, same), len(name) - tail
    while stop < len(name) and name[stop] not in _PARTS:
        stop += 1
    sign = _SIGN if name.startswith(_SIGN) and start > 0 else ""
    for least in (limit // 2, 0):
        for begin in (start, _begin(name, max(0, start - 1))):
            head = sign + (_MORE if begin > len(sign) else "") + name[max(begin, len(sign)) : stop] + _MORE
            room = limit - len(head)
            if room >= least:
                yield head + _end(name, min(room, len(name) - stop))
    mark = _SIGN if name.startswith(_SIGN) else ""
    yield mark + _MORE + name[len(name) - max(0, limit - 1 - len(mark)) :]


def _begin(name: str, at: int) -> int:
    """Return the start of the part that contains a place of a name."""
    while at > 0 and name[at - 1] not in _PARTS:
        at -= 1
    return at


def _numbered(text: str, taken: set[str], limit: int) -> str:
    number = 2
    while (short := text[: max(0, limit - len(str(number)) - 1)] + f"~{number}") in taken:
        number += 1
    return short
