"""Return the JSON schema of documents and the tables of docs/graphdoc.md, both made from the records."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from gdlab.view.document.sections import CLOSED, ColumnOf, DocumentForm, TableOf
from gdlab.view.document.tables import RECORDS, Count, Json, JsonNumber, name_of

SIMPLE: dict[Any, Json] = {
    Any: {},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    JsonNumber: {"$ref": "#/$defs/number"},
}
DESCRIPTION = (
    "The form of the one document that every view draws; docs/graphdoc.md says what its fields mean. "
    "Shortened lists are written out before it is applied."
)


class Schema:
    """The definitions of a JSON schema, each made when it is first needed."""

    def __init__(self) -> None:
        self.defs: Json = {
            "number": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
            "sparse": {"type": "object", "propertyNames": {"pattern": r"^\d+$"}},
        }

    def of(self, wanted: Any) -> Json:
        """Return the schema of a type."""
        if wanted in SIMPLE:
            return SIMPLE[wanted]
        if dataclasses.is_dataclass(wanted):
            return self._define(_name(wanted), lambda: self._object(wanted))
        origin, parts = get_origin(wanted), get_args(wanted)
        if origin is Annotated:
            return self.of(parts[0]) | dict(parts[1])
        if origin is Literal:
            return {"const": parts[0]} if len(parts) == 1 else {"enum": list(parts)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(part) for part in parts]}
        if origin is TableOf:
            return self._define(f"{parts[0].__name__}Table", lambda: self._table(parts[0]))
        if origin is ColumnOf:
            return self.column(parts[0])
        return self._container(origin, parts)

    def _container(self, origin: Any, parts: tuple[Any, ...]) -> Json:
        if origin is list:
            return {"type": "array", "items": self.of(parts[0])}
        if origin is tuple:
            of_each = [self.of(part) for part in parts]
            return {"type": "array", "prefixItems": of_each, "minItems": len(parts), "maxItems": len(parts)}
        if origin is dict:
            key, value = self.of(parts[0]), self.of(parts[1])
            names = {"propertyNames": {"pattern": key["pattern"]}} if "pattern" in key else {}
            return {"type": "object", **names, **({"additionalProperties": value} if value else {})}
        raise TypeError(f"schema: {origin}: given no form of JSON, wanted one")

    def _define(self, name: str, make: Any) -> Json:
        if name not in self.defs:
            self.defs[name] = {}  # its place, in the order of first use
            self.defs[name] = make()
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, record: Any) -> Json:
        required, properties = [], {}
        for each, wanted in hinted(record):
            if record.__name__ == "LayoutSection" and "absent" in each.metadata:
                properties[each.name] = self.column(wanted)
                required.append(each.name)
                continue
            properties[name_of(each.name)] = self.of(wanted)
            if "optional" not in each.metadata:
                required.append(name_of(each.name))
        closed = {"additionalProperties": False} if record in CLOSED else {}
        return {"type": "object", "required": sorted(required), **closed, "properties": properties}

    def _table(self, record: Any) -> Json:
        columns = {name_of(each.name): self.column(wanted) for each, wanted in hinted(record)}
        required = sorted(["count", *(name_of(e.name) for e, _ in hinted(record) if e.metadata["required"])])
        return {"type": "object", "required": required, "properties": {"count": self.of(Count), **columns}}

    def column(self, wanted: Any) -> Json:
        """Return the schema of a column of such values, in any form that a column takes."""
        made = self._column(wanted)
        return self._define(f"{form_name(wanted)}Column", lambda: made)

    def _column(self, wanted: Any) -> Json:
        plain = self.of(wanted)
        ids = {"type": "array", "items": self.of(int)}
        rows: Json = {"type": "array", "items": self.of(Count)}
        if get_origin(wanted) is list:
            lists = {"start": rows, "ids": ids}
            if wanted == list[str]:
                lists["words"] = {"type": "array", "items": self.of(str)}
            other: Json = {"type": "object", "required": sorted(lists), "properties": lists}
        else:
            known = {"words": {"type": "array", "items": plain}, "index": rows}
            other = {"type": "object", "required": sorted(known), "properties": known}
        return {"anyOf": [{"type": "array", "items": plain}, other, {"$ref": "#/$defs/sparse"}]}


def hinted(record: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the fields of a form, each with its type."""
    hints = typing.get_type_hints(record, include_extras=True)
    yield from ((each, hints[each.name]) for each in dataclasses.fields(record))


def _name(record: Any) -> str:
    return str(record.__name__).removesuffix("Form")


def form_name(wanted: Any) -> str:
    """Return the name of a type: `intList`, `jsonOrNull`."""
    plain = {str: "text", Any: "any", Json: "json", JsonNumber: "number"}
    if wanted in plain:
        return plain[wanted]
    if isinstance(wanted, type) and get_origin(wanted) is None:
        name = _name(wanted)
        return name[:1].lower() + name[1:]
    parts = get_args(wanted)
    if get_origin(wanted) in (Union, types.UnionType):
        return f"{form_name(parts[0])}OrNull"
    return f"{form_name(parts[-1])}{'List' if get_origin(wanted) is list else 'Map'}"


def json_schema() -> Json:
    """Return the JSON schema of documents."""
    schema = Schema()
    schema.of(DocumentForm)
    top = schema.defs.pop("Document")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "gdlab.graph.v1", "title": "GraphDoc v1"}
    return {**head, "description": DESCRIPTION, **top, "$defs": schema.defs}


def schema_text() -> str:
    """Return the JSON schema as text, a line for each field."""
    return _lines(json_schema(), 3) + "\n"


def _lines(value: Any, depth: int, indent: str = "") -> str:
    """Write JSON over lines down to a depth."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    rows = [f"{inner}{json.dumps(k)}: {_lines(v, depth - 1, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


# docs/graphdoc.md -----------------------------------------------------------------------------------------------------
MARKED = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def doc_table(name: str) -> str:
    """Return the table of docs/graphdoc.md for the columns of a table."""
    record = RECORDS[name]
    rows = [
        f"| `{name_of(each.name)}` | {_holds(wanted)} | {_absent(each.metadata['absent'])} | {each.metadata['says']} |"
        for each, wanted in hinted(record)
    ]
    return "\n".join(
        ["| column | holds | absent | |", "|---|---|---|---|", *(re.sub(r" +\|$", " |", row) for row in rows)]
    )


def _holds(wanted: Any) -> str:
    """Describe a type in the words of docs/graphdoc.md."""
    plain = {str: "text", int: "int", JsonNumber: "number", Any: "any", Json: "object"}
    if wanted in plain:
        return plain[wanted]
    parts = get_args(wanted)
    if get_origin(wanted) in (Union, types.UnionType):
        return f"{_holds(parts[0])} or null"
    if get_origin(wanted) is list:
        return {int: "ints", str: "texts"}.get(parts[0], "list")
    return "object"


def _absent(value: Any) -> str:
    return (
        '`""`'
        if value == ""
        else f"`{json.dumps(value)}`"
        if isinstance(value, (str, list))
        else json.dumps(value).replace("-", "−")
    )


def with_tables(page: str) -> str:
    """Return the page with the tables between its marks replaced by those of the records."""
    return MARKED.sub(lambda found: f"<!-- table {found[1]} -->\n{doc_table(found[1])}\n<!-- end -->", page)
