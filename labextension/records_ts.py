"""Print the records of a document, and the meaning of absent values in its tables.

`python labextension/records_ts.py > labextension/src/doc/records.ts`
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator
from typing import Any, get_args

from typescript import comment, type_text, wrapped

from gdlab.view.document import sections, tables
from gdlab.view.document.sections import ColumnOf, JsonNumber
from gdlab.view.document.tables import RECORDS, Json, name_of

NAMED: dict[Any, str] = {
    Json: "Json",
    JsonNumber: "number | string",
    ColumnOf[str]: "string[]",
    sections.RunEventForm: "Event",
    sections.ValueForm: "TensorValue",
    sections.Initial: "Initial",
    tables.Place: "Place",
}
IN_TABLES = NAMED | {JsonNumber: "number", JsonNumber | None: "number"}  # a reader turns the words into numbers
OF_TABLES = (tables.FateForm, tables.HazardForm, tables.ResidualForm, tables.BindingForm, tables.CoversForm)
SECTIONS = (
    sections.SourceRecord,
    sections.RuleSource,
    sections.RuleStatForm,
    sections.MissedForm,
    sections.OptimizeReportForm,
    sections.ZeroGradient,
    sections.DiffReport,
    sections.MachineForm,
    sections.PlanMemory,
    sections.Times,
    sections.GradientNormsForm,
    sections.RunMemory,
    sections.EngineRow,
    sections.EnginesSection,
    sections.BucketForm,
    sections.AllreduceForm,
    sections.RunRecord,
    sections.StepSeconds,
    sections.VariantRow,
    sections.SweepPointForm,
    sections.SweepEventForm,
    sections.SweepSection,
    sections.NoteRecord,
    sections.EdgeInput,
    sections.EdgeOutput,
    sections.EdgeForm,
    sections.RunDispatch,
    sections.RunBuffer,
    sections.RunPlan,
    sections.Uniform,
    sections.RunUpdate,
    sections.RunSection,
)
FINITE = (sections.OptimizeReportForm, sections.RuleStatForm)  # costs and times that were added up
HEAD = """// The records of a GraphDoc (docs/graphdoc.md): generated from gdlab/view/document by records_ts.py.

import type { Event, TensorValue } from "../live/messages.ts";

export type Json = Record<string, unknown>;
"""


def ts_name(record: type) -> str:
    """Return the name of a form in TypeScript."""
    return record.__name__.removesuffix("Form")


def fields_of(record: Any) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Yield the fields that the page reads, each with its type."""
    hints = typing.get_type_hints(record, include_extras=True)
    yield from ((each, hints[each.name]) for each in dataclasses.fields(record) if each.metadata.get("page", True))


def interface(record: Any, named: dict[Any, str]) -> str:
    """Return a record as an interface."""
    lines = [*comment(record.__doc__.split("\n\n")[0]), f"export interface {ts_name(record)} {{"]
    for each, wanted in fields_of(record):
        mark = "?" if "optional" in each.metadata else ""
        lines.append(f"  {name_of(each.name)}{mark}: {type_text(wanted, named, ts_name)};")
    return "\n".join([*lines, "}", ""])


def absent(value: Any, wanted: Any) -> str:
    """Return the meaning of an absent value: NaN for a column of numbers without one."""
    return "NaN" if value is None and JsonNumber in get_args(wanted) else json.dumps(value)


def defaults() -> Iterator[str]:
    """Yield the lines with the meaning of absent values in every table, for the columns that the page reads."""
    for name, record in RECORDS.items():
        yield f"export const {name.upper()}: {ts_name(record)} = {{"
        for each, wanted in fields_of(record):
            yield f"  {name_of(each.name)}: {absent(each.metadata['absent'], wanted)},"
        yield "};"


def typescript() -> str:
    """Return the whole file."""
    initial = " | ".join(
        f"{{ {name_of(each.name)}: {type_text(wanted, NAMED, ts_name)} }}"
        for one in get_args(sections.Initial)
        for each, wanted in fields_of(one)
    )
    places = wrapped(f"export type Place = {type_text(tables.Place, {})};")
    parts = [
        HEAD,
        f"/** The part of an operand that an invocation reads. */\n{places}\n",
        *(interface(record, IN_TABLES) for record in (*OF_TABLES, *RECORDS.values())),
        *(interface(record, IN_TABLES if record in FINITE else NAMED) for record in SECTIONS),
        f"/** The value of a stored parameter before the first step. */\nexport type Initial = {initial};\n",
        "// The meaning of absent values in each table.",
        *defaults(),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(typescript())
