"""Write types of Python as TypeScript; what `messages_ts.py`, `records_ts.py` and `ops_ts.py` share."""

from __future__ import annotations

import json
import operator
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

Naming = Callable[[Any], str]
NAME: Naming = operator.attrgetter("__name__")
COLUMNS = 120
SIMPLE: dict[Any, str] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    Any: "unknown",
}


def type_text(wanted: Any, named: Mapping[Any, str], name: Naming = NAME) -> str:
    """Return the TypeScript type of a Python annotation; `named` are the types that have a name of their own, `name`
    gives that of a class."""
    if wanted in named:
        return named[wanted]
    if wanted in SIMPLE:
        return SIMPLE[wanted]
    origin = get_origin(wanted)
    if origin is Literal:
        return " | ".join(json.dumps(word) for word in get_args(wanted))
    if origin is None:
        return name(wanted)
    if origin is Annotated:
        return type_text(get_args(wanted)[0], named, name)
    parts = [type_text(part, named, name) for part in get_args(wanted)]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(parts))
    if origin is list:
        return f"({parts[0]})[]" if re.search(r"^[^[{]* \| ", parts[0]) else f"{parts[0]}[]"
    if origin is tuple:
        return f"[{', '.join(parts)}]"
    if origin is dict:
        return f"Record<{parts[0]}, {parts[1]}>"
    raise TypeError(f"typescript: {wanted}: given no form of JSON, wanted one")


def wrapped(line: str) -> str:
    """Return a declaration of alternatives over lines of at most 120 columns."""
    if len(line) <= COLUMNS:
        return line
    head, words = line.split(" = ", 1)
    return "\n  | ".join([f"{head} =", *words.split(" | ")])


def comment(text: str, indent: str = "") -> list[str]:
    """Return a documentation comment over lines of at most 120 columns."""
    if len(indent) + len(text) + 7 <= COLUMNS:
        return [f"{indent}/** {text} */"]
    lines = textwrap.wrap(text, COLUMNS - len(indent) - 6, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}/** {lines[0]}", *(f"{indent} * {line}" for line in lines[1:-1]), f"{indent} * {lines[-1]} */"]
