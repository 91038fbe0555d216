"""Bind names of a class or a module whose work lies in a later room: `gdlab/__init__.py` states which, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

Class = TypeVar("Class")

# class or module -> attribute -> "room.module:function"; `gdlab/__init__.py` fills it
BINDINGS: dict[str, Mapping[str, str]] = {}


def bound(cls: type[Class]) -> type[Class]:
    """Decorator: give the class the attributes that `BINDINGS` states for it. Each is imported at its first use."""
    for name, target in BINDINGS.get(cls.__name__, {}).items():
        setattr(cls, name, LateAttribute(cls, name, target))
    return cls


def bound_module(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module for the names that `BINDINGS` states for it. Each is imported at its first
    use."""

    def late(name: str) -> Any:
        target = BINDINGS.get(module, {}).get(name)
        if target is None:
            raise AttributeError(f"module 'gdlab.{module}' has no attribute {name!r}")
        room, _, attribute = target.partition(":")
        return getattr(import_module(f"gdlab.{room}"), attribute)

    return late


class LateAttribute:
    """An attribute that imports its function at the first access and then takes its place in the class."""

    __slots__ = ("name", "owner", "target")

    def __init__(self, owner: type, name: str, target: str) -> None:
        self.owner, self.name, self.target = owner, name, target

    def __get__(self, instance: object, owner: type) -> Any:
        kind, _, path = self.target.rpartition(" ")
        module, _, function = path.partition(":")
        made: Any = getattr(import_module(f"gdlab.{module}"), function)
        if kind == "property":
            made = property(made)
        elif kind == "static":
            made = staticmethod(made)
        setattr(self.owner, self.name, made)
        return made.__get__(instance, owner)

    def __call__(self, instance: object, *args: Any, **kwargs: Any) -> Any:
        """The call of a special method that Python looks up without its descriptor."""
        return self.__get__(instance, type(instance))(*args, **kwargs)
