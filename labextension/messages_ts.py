"""Print the TypeScript form of every message.

`python labextension/messages_ts.py > labextension/src/live/messages.ts`
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterable
from typing import Any, Literal, get_origin

from typescript import type_text, wrapped

from gdlab.jupyter import messages

LITERALS = {name: value for name, value in vars(messages).items() if get_origin(value) is Literal}
NAMED: dict[Any, str] = {value: name for name, value in LITERALS.items()}


def interface(record: type, tagged: bool) -> str:
    hints = typing.get_type_hints(record)
    fields = [f"  {name}: {type_text(wanted, NAMED)};" for name, wanted in hints.items()]
    tag = [f'  type: "{record.__name__.lower()}";'] if tagged else []
    return "\n".join([f"export interface {record.__name__} {{", *tag, *fields, "}"])


def union(name: str, records: Iterable[type]) -> str:
    return f"export type {name} = {' | '.join(record.__name__ for record in records)};"


def typescript() -> str:
    """Return the whole file: literals, one interface per record, the two unions."""
    tagged = (*messages.TO_KERNEL, *messages.TO_PAGE)
    classes = [value for value in vars(messages).values() if isinstance(value, type)]
    records = [value for value in classes if dataclasses.is_dataclass(value)]
    literals = [wrapped(f"export type {name} = {type_text(value, {})};") for name, value in LITERALS.items()]
    return "\n".join(
        [
            "// Every message between the page and the kernel: "
            "generated from gdlab/jupyter/messages.py by messages_ts.py.",
            "",
            f"export const PROTOCOL = {messages.PROTOCOL};",
            "",
            *literals,
            "",
            *(interface(record, record in tagged) + "\n" for record in records),
            union("ToKernel", messages.TO_KERNEL),
            union("ToPage", messages.TO_PAGE),
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(typescript())
