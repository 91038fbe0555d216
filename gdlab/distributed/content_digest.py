"""Digest the content of a value: a feed of the same cell, over the same data, has the same digest after a restart."""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.types import Array

_PACKAGES = (*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1]))
_INSTALLED = ("<frozen", sysconfig.get_path("stdlib"), *_PACKAGES)
_PLAIN = (str, int, float, complex, bool, types.NoneType, types.EllipsisType)
_BY_NAME = (
    types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.MemberDescriptorType, types.GetSetDescriptorType, np.ufunc,
)  # fmt: skip


class NoDigestError(Exception):
    """A value whose content cannot be read, such as a generator; the text names its type."""


def digest_of(value: Any) -> str:
    """Return a digest of the content of a feed or of values: arrays by their bytes, functions by their code with the
    globals that it reads, other objects by what they are pickled from. Code of installed packages counts by its name.
    Raises `NoDigestError`."""
    h = hashlib.sha256()
    seen: dict[int, tuple[int, Any]] = {}  # with the objects: a number of one that is gone would be used again
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if type(one) in _PLAIN:
            update(h, [type(one).__name__, repr(one)])
        elif id(one) in seen:
            update(h, ["again", seen[id(one)][0]])
        else:
            seen[id(one)] = len(seen), one
            todo += _parts(h, one)
    return h.hexdigest()


def update(h: Any, facts: Any) -> None:
    """Add plain facts to a digest."""
    h.update(json.dumps(facts, sort_keys=True, default=str).encode())


def update_array(h: Any, array: Array) -> None:
    """Add an array to a digest: its element type, its shape and its bytes."""
    update(h, ["array", str(array.dtype), array.shape])
    if array.nbytes:
        h.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the globals that a function reads, those in comprehensions and inner functions too."""
    for inner in _codes(code):
        yield from (each.argval for each in dis.get_instructions(inner) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Return a function's code and all code within it."""
    found = [code]
    for one in found:
        found += [each for each in one.co_consts if isinstance(each, types.CodeType)]
    return found


# the parts of each kind of value --------------------------------------------------------------------------------------
def _parts(h: Any, one: Any) -> list[Any]:
    """Add the kind of a value to the digest; return the values that it consists of."""
    kind: Any = type(one)
    if kind in (np.ndarray, np.memmap) and not one.dtype.hasobject:
        update_array(h, one)
        return []
    if kind in (list, tuple, set, frozenset):
        update(h, [kind.__name__, len(one)])
        return list(one) if kind in (list, tuple) else sorted(one, key=repr)
    if kind in (dict, types.MappingProxyType):
        update(h, ["dict", len(one)])
        return [part for key in sorted(one, key=str) for part in (key, one[key])]
    update(h, [kind.__module__, kind.__qualname__])
    match one:
        case bytes() | bytearray() if kind in (bytes, bytearray):
            update(h, len(one))
            h.update(one)
            return []
        case np.generic() if not one.dtype.hasobject:
            update_array(h, np.asarray(one))
            return []
        case types.FunctionType():
            return _function(one)
        case types.CodeType():
            update(h, [one.co_code.hex(), one.co_names, one.co_varnames, one.co_freevars])
            return list(one.co_consts)
        case types.ModuleType():
            return _module(h, one)
        case type():
            return _class(h, one)
        case types.MethodType():
            return [one.__func__, one.__self__]
        case types.CellType():
            return _cell(h, one)
        case property():
            return [one.fget, one.fset]
        case staticmethod() | classmethod():
            return [one.__func__]
        case functools.cached_property():
            return [one.func]
    if isinstance(one, _BY_NAME):
        update(h, [getattr(one, "__qualname__", one.__name__)])
        owner = getattr(one, "__self__", None)
        return [] if owner is None or isinstance(owner, types.ModuleType) else [owner]
    if isinstance(one, functools._lru_cache_wrapper):
        return [one.__wrapped__]  # the rest are values that it has computed
    if hasattr(one, "next_batch") and hasattr(one, "__dict__"):  # every point begins a loader anew
        return [kind, {name: each for name, each in vars(one).items() if name not in ("_order", "_at")}]
    return _pickled(one)


def _function(one: types.FunctionType) -> list[Any]:
    parts = [one.__code__, one.__closure__, one.__defaults__, one.__kwdefaults__, vars(one)]
    return parts if one.__code__.co_filename.startswith(_INSTALLED) else [*parts, *_globals(one)]


def _globals(one: types.FunctionType) -> list[Any]:
    """Return the globals that a function reads; of a module of its author's, what the function names of it."""
    names = dict.fromkeys(global_names(one.__code__))
    attributes = sorted({name for code in _codes(one.__code__) for name in code.co_names})
    found = [one.__globals__[name] for name in names if name in one.__globals__]
    modules = [each for each in found if isinstance(each, types.ModuleType)]
    for module in modules:  # the list grows: a package's modules
        if not _is_installed(module):
            held = [vars(module)[name] for name in attributes if name in vars(module)]
            modules += [each for each in held if isinstance(each, types.ModuleType) and each not in modules]
            found += held
    return found


def _module(h: Any, one: types.ModuleType) -> list[Any]:
    update(h, one.__name__)
    return []


def _is_installed(module: types.ModuleType) -> bool:
    """Return whether a module belongs to Python or to an installed package, not to the author of a feed."""
    file = getattr(module, "__file__", None)
    return module.__name__ != "__main__" and (file is None or file.startswith(_INSTALLED))


def _class(h: Any, one: type) -> list[Any]:
    """Return the bases and the methods and values of a class that the author of the feed wrote."""
    update(h, [one.__module__, one.__qualname__])
    module = sys.modules.get(one.__module__)
    if module is not None and _is_installed(module):
        return []
    members = {name: each for name, each in vars(one).items() if callable(each) or not name.startswith("__")}
    members.pop("_abc_impl", None)  # the caches of an abstract class
    return [one.__bases__, members]


def _cell(h: Any, one: types.CellType) -> list[Any]:
    try:
        return [one.cell_contents]
    except ValueError:
        update(h, "empty")
        return []


def _pickled(one: Any) -> list[Any]:
    """Return what an object is pickled from."""
    try:
        reduced = one.__reduce_ex__(4)
        if isinstance(reduced, str):
            return [reduced]
        made, arguments, *state = reduced
        return [made, arguments, *(list(each) if hasattr(each, "__next__") else each for each in state)]
    except Exception as error:  # whatever an object's own method raises
        raise NoDigestError(f"the content of a {type(one).__name__} cannot be compared") from error
