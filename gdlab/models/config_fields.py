"""Read the fields of a `config.json` by a table: each field's reader, default, and its name in our configuration.

A field that changes the arithmetic and is in no table is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.errors import LoadError
from gdlab.models.family import WHERE
from gdlab.models.public_checkpoint import NO_ARITHMETIC

LARGEST = 1 << 24  # of a field that counts: layers, widths, words
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of `config.json`: the field of our configuration that it gives ("": it is only checked), the reader of
    its value (`ValueError` states the valid values), and the value that transformers takes where it is left out."""

    ours: str
    read: Callable[[Any], Any]
    default: Any = REQUIRED


Fields = dict[str, Field]


def natural(given: Any) -> int:
    """Read an int ≥ 1."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LARGEST:
        raise ValueError(f"an int in 1 … {LARGEST:,}")
    return given


def positive(given: Any) -> float:
    """Read a finite number above 0."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 1e30:
        raise ValueError("a finite number above 0")
    return float(given)


def flag(given: Any) -> bool:
    """Read a bool."""
    if not isinstance(given, bool):
        raise ValueError("true or false")
    return given


def optional(read: Callable[[Any], Any], without: Any = None) -> Callable[[Any], Any]:
    """Return the reader of a field that may be null, which stands for `without`."""
    return lambda given: without if given is None else read(given)


def one_of(**words: Any) -> Callable[[Any], Any]:
    """Return the reader of one of these words, which gives the word's value."""

    def read(given: Any) -> Any:
        if not isinstance(given, str) or given not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return words[given]

    return read


def only(*wanted: Any) -> Callable[[Any], Any]:
    """Return the reader of a field whose value must be one of these, which the graph implements anyway."""

    def read(given: Any) -> Any:
        if not any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in wanted):
            raise ValueError(" or ".join(map(_json, wanted)))
        return given

    return read


def _json(value: Any) -> str:
    words = {"True": "true", "False": "false", "None": "null"}
    return words.get(repr(value), repr(value))


def anything(given: Any) -> Any:
    """Read a field with any value, because another field decides."""
    return given


def read_fields(config: Mapping[str, Any], table: Fields, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of the fields of `config.json`, by the names of our configuration.

    `LoadError` names a field that is missing, of another kind, or not understood. Fields that say nothing of the
    arithmetic, and unknown ones that are off (false, null, empty), are passed over; so are those in `ignored`.
    """
    for name, given in config.items():
        if name != "model_type" and name not in table and name not in NO_ARITHMETIC and name not in ignored and given:
            wanted = "a field that is understood: others may change what the model computes"
            raise LoadError(WHERE, f"config.json: {name:.80}", f"{given!r:.120}", wanted)
    values: dict[str, Any] = {}
    for name, entry in table.items():
        given = config.get(name, entry.default)
        if given is REQUIRED:
            raise LoadError(WHERE, f"config.json: {name}", "none", "a number, as in every model of this family")
        try:
            value = entry.read(given)
        except ValueError as error:
            raise LoadError(WHERE, f"config.json: {name}", f"{given!r:.120}", str(error)) from None
        if entry.ours:
            values[entry.ours] = value
    return values
