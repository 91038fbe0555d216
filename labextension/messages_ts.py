"""Print the TypeScript form of every message.

`python labextension/messages_ts.py > labextension/src/live/messages.ts`
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from gdlab.jupyter import messages

COLUMNS = 120
LITERALS = {name: value for name, value in vars(messages).items() if get_origin(value) is Literal}
SIMPLE: dict[Any, str] = {
    int: "number", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "unknown",
}


def text(wanted: Any) -> str:
    """The TypeScript type of a Python annotation."""
    if wanted in SIMPLE:
        return SIMPLE[wanted]
    named = next((name for name, value in LITERALS.items() if value == wanted), None)
    if named:
        return named
    parts = [text(part) for part in get_args(wanted)]
    match get_origin(wanted):
        case types.UnionType:
            return " | ".join(parts)
        case origin if origin is list:
            return f"({parts[0]})[]" if " | " in parts[0] else f"{parts[0]}[]"
        case origin if origin is dict:
            return f"Record<{parts[0]}, {parts[1]}>"
        case _:
            return str(wanted.__name__)


def interface(record: type, tagged: bool) -> str:
    hints = typing.get_type_hints(record)
    fields = [f"  {name}: {text(wanted)};" for name, wanted in hints.items()]
    tag = [f'  type: "{record.__name__.lower()}";'] if tagged else []
    return "\n".join([f"export interface {record.__name__} {{", *tag, *fields, "}"])


def alternatives(literal: Any) -> str:
    return " | ".join(json.dumps(word) for word in get_args(literal))


def _wrapped(line: str) -> str:
    """Return a declaration over lines of at most 120 columns."""
    if len(line) <= COLUMNS:
        return line
    head, words = line.split(" = ", 1)
    return "\n  | ".join([f"{head} =", *words.split(" | ")])


def union(name: str, records: Iterable[type]) -> str:
    return f"export type {name} = {' | '.join(record.__name__ for record in records)};"


def typescript() -> str:
    """The whole file: literals, one interface per record, the two unions."""
    tagged = (*messages.TO_KERNEL, *messages.TO_PAGE)
    classes = [value for value in vars(messages).values() if isinstance(value, type)]
    records = [value for value in classes if dataclasses.is_dataclass(value)]
    literals = [_wrapped(f"export type {name} = {alternatives(value)};") for name, value in LITERALS.items()]
    return "\n".join([
        "// Every message between the page and the kernel: generated from gdlab/jupyter/messages.py by messages_ts.py.",
        "",
        f"export const PROTOCOL = {messages.PROTOCOL};",
        "",
        *literals,
        "",
        *(interface(record, record in tagged) + "\n" for record in records),
        union("ToKernel", messages.TO_KERNEL),
        union("ToPage", messages.TO_PAGE),
        "",
    ])


if __name__ == "__main__":
    sys.stdout.write(typescript())
