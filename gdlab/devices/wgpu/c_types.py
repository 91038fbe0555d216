"""Let cffi read the name of a C type without parsing every typedef of its library: `read_types_quickly(ffi)`."""

from __future__ import annotations

import copy
import re
from typing import Any

__all__ = ["read_types_quickly"]


def read_types_quickly(ffi: Any) -> None:
    """Make an `FFI` parse a type with the typedefs that it names alone.

    For each type that it has not seen ("WGPUBindGroupEntry[]"), cffi parses the typedefs of the whole library: 430 of
    wgpu, 25 to 35 ms, for 40 types until a first plan has run (cffi 2.1, 2 cores, 2026-11-28). A typedef that a
    text does not name never changes what it means. An `FFI` that is made otherwise stays as it is.
    """
    parser: Any = getattr(ffi, "_parser", None)  # private: an FFI in C has none
    if not hasattr(parser, "_declarations") or not hasattr(parser, "_parse") or "_parse" in vars(parser):
        return
    parse: Any = type(parser)._parse

    def parse_with_named(source: str) -> Any:
        declared, names = parser._declarations, set(re.findall(r"\w+", source))
        few = copy.copy(parser)  # a copy: other threads look functions up in the declarations
        few._declarations = {key: declared[key] for name in names if (key := f"typedef {name}") in declared}
        return parse(few, source)

    parser._parse = parse_with_named
