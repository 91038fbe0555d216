"""Check what kind of object an argument is, before a call: `@kinds(indices=SEVERAL, weights=FLAG)`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gdlab.base.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument: what is wanted, in words, and whether an object is of it."""

    wanted: str
    holds: Callable[[Any], bool]


def instance(cls: type | tuple[type, ...], wanted: str) -> Kind:
    """Return the kind of all instances of a class."""
    return Kind(wanted, lambda given: isinstance(given, cls))


def is_several(given: Any) -> bool:
    """Return whether an object can be iterated over (an array without axes cannot)."""
    try:
        iter(given)
    except TypeError:
        return False
    return True


def _is_path(given: Any) -> bool:
    try:
        text = os.fspath(given)
        return isinstance(text, str) and bool(text) and "\0" not in text and bool(os.fsencode(text))
    except (TypeError, UnicodeError):
        return False


FLAG = Kind("True or False", lambda given: isinstance(given, (int, np.bool_)))
INTEGER = Kind("an int", lambda given: isinstance(given, (int, np.integer)) and not isinstance(given, (bool, np.bool_)))
NUMBER = Kind(
    "a number", lambda given: isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
)
TEXT = instance(str, "a str")
SEVERAL = Kind("a list", is_several)
MAPPING = instance(Mapping, "a mapping")
NAMED = Kind(
    "a mapping from names", lambda given: isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
)
FUNCTION = Kind("a function", callable)
PATH = Kind("a path, as a str or a Path", _is_path)
WRITABLE = Kind("an open text file", lambda given: callable(getattr(given, "write", None)))


def takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Return whether a function can be called with these arguments; True where it does not tell, as some in C."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def either(wanted: str, *several: Kind) -> Kind:
    """Return the kind of what is of one of these."""
    return Kind(wanted, lambda given: any(kind.holds(given) for kind in several))


def check_kind(where: str, what: str, given: Any, kind: Kind) -> None:
    """Raise `ArgumentError` for an argument of another kind."""
    if not kind.holds(given):
        shown = repr(given) if isinstance(given, (int, float)) else type(given).__name__
        raise ArgumentError(where, what, shown, kind.wanted)


def kinds(**wanted: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: check these arguments before each call; None passes where it is the default."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        parameters = [*inspect.signature(method).parameters.values()]
        checks = [(i, p.name, wanted[p.name], p.default is None) for i, p in enumerate(parameters) if p.name in wanted]
        assert len(checks) == len(wanted), f"{method.__name__} has no such parameter"

        @wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for place, name, kind, optional in checks:
                if place < len(args) or name in kwargs:
                    given = args[place] if place < len(args) else kwargs[name]
                    if not (optional and given is None):
                        check_kind(method.__name__, name, given, kind)
            return method(*args, **kwargs)

        return checked

    return decorate
