"""The GraphDoc as an object: `doc.data` is JSON, `doc.nodes(stage)[i]` a record, `doc.select(entity)` the lit set."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gdlab.base.binding import bound
from gdlab.base.errors import GdlabError, LoadError, unknown_name
from gdlab.base.files import read_regular
from gdlab.base.kinds import PATH, kinds
from gdlab.base.words import flat
from gdlab.graph import no_collector
from gdlab.op.machines import Machine
from gdlab.view.document.closure import damaged, problems
from gdlab.view.document.columns import Json, Table
from gdlab.view.document.links import Provenance
from gdlab.view.document.pack import packed, unpacked
from gdlab.view.document.selection import Selection, kept_of, local, portable

FORMAT = "gdlab.graph.v1"
MOST_UNPACKED = 1 << 26  # bytes of a document in gzip, and 128 times those that it takes there
_HASHED = ("types", "sources", "lines", "stages", "passes", "plan", "links")
_TIMES = ("seconds", "_time", "ms")
_STEPS = {"optimize": "rewrites", "differentiate": "gradients", "compile": "gradients"}


@bound
class Document:
    """A document; made by `study_doc`, `graph_doc` and `load_doc`. `data` is read, never changed."""

    def __init__(self, data: Json, selection: Selection | None = None, where: str = "") -> None:
        self.data = data
        self.where = where  # the file that it was read from, in words: what such a document holds may be wrong
        view = (data.get("view") or {}) if selection is None else {}
        first = view.get("select")
        self._selection = selection or Selection([portable(data, first)] if isinstance(first, str) else (), view)
        self._tables: dict[tuple[str, int | str], Table] = {}

    def __repr__(self) -> str:
        return f"<Document {self.data['title']}: {len(self.data['stages'])} stages, id {self.data['id']}>"

    def __str__(self) -> str:
        return flat(str(self.data["summary"]))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors that a damaged file causes inside the block into a `LoadError` which names the file."""
        with _reading((self,)):
            yield

    def json(self) -> bytes:
        """Return the document as canonical JSON: UTF-8, sorted keys, no spaces, large tables in their shortest forms.
        """
        with no_collector():
            return canonical(packed(self.data))

    @property
    def id(self) -> str:
        """16 hex digits over everything but layouts, measured times and the state of views."""
        return str(self.data["id"])

    # records
    def stage(self, stage: int | str) -> Json:
        """Return a stage by index or key."""
        stages = self.data["stages"]
        if isinstance(stage, int) and 0 <= stage < len(stages):
            return stages[stage]  # type: ignore[no-any-return]
        for each in stages:
            if each["key"] == stage:
                return each  # type: ignore[no-any-return]
        raise unknown_name("document", "stage", str(stage), [each["key"] for each in stages])

    def nodes(self, stage: int | str = 0) -> Table:
        """Return the nodes of a stage: `doc.nodes("final")[3]["op"]`."""
        return self._table("nodes", stage, lambda: Table(self.stage(stage)["nodes"], "nodes"))

    def outputs(self, stage: int | str = 0) -> Table:
        """Return the outputs of a stage."""
        return Table(self.stage(stage)["outputs"], "outputs")

    def steps(self, number: int) -> Table:
        """Return the steps of a pass."""
        one = self.data["passes"][number]
        return self._table("steps", number, lambda: Table(one["steps"], _STEPS[one["role"]]))

    def plan(self, table: str) -> Table:
        """Return a table of the plan: kernels, dispatches, groups, intervals or slots; empty without a plan."""
        kind = "barriers" if table == "groups" else table
        return self._table("plan", table, lambda: Table((self.data.get("plan") or {}).get(table), kind))

    def _table(self, part: str, which: int | str, make: Callable[[], Table]) -> Table:
        if (part, which) not in self._tables:
            self._tables[part, which] = make()
        return self._tables[part, which]

    @cached_property
    def types(self) -> Table:
        """The tensor types."""
        return Table(self.data["types"], "types")

    @cached_property
    def lines(self) -> Table:
        """The source lines, one row per call."""
        return Table(self.data["lines"], "lines")

    # provenance
    @cached_property
    def provenance(self) -> Provenance:
        """The links, ready to be followed."""
        return Provenance(self.data)

    def select(self, entity: str) -> frozenset[str]:
        """Return all entities that light up with this one, itself included."""
        return self.provenance.select(entity)

    @property
    def selection(self) -> list[str]:
        """The selected entities, such as `["node:0.3"]`: one selection for a study and all its views, live in the page;
        one for each document alone. Set it to an entity, several, or None."""
        return [entity for name in self._selection.names if (entity := local(self.data, name)) is not None]

    @selection.setter
    def selection(self, entities: Any) -> None:
        given = [entities] if isinstance(entities, str) else list(entities or ())
        for entity in given:
            self.select(entity)  # refuses what this document does not have
        self._selection.set(portable(self.data, entity) for entity in given)

    @property
    def bookmarks(self) -> dict[str, list[str]]:
        """The bookmarks: names, and the entities of each. One set for a study and all its views, one
        for each document alone; saved with it. Set it to a mapping."""
        kept = self._selection.kept.get("bookmarks", ())
        return {
            each["name"]: [e for name in each["entities"] if (e := local(self.data, name)) is not None] for each in kept
        }

    @bookmarks.setter
    def bookmarks(self, marks: Mapping[str, Any]) -> None:
        known = {each["name"]: each["tab"] for each in self._selection.kept.get("bookmarks", ())}
        made = []
        for name, entities in marks.items():
            given = [entities] if isinstance(entities, str) else list(entities)
            for entity in given:
                self.select(entity)
            names = [portable(self.data, entity) for entity in given]
            made.append({"name": str(name), "tab": known.get(str(name), "opt"), "entities": names})
        self._selection.keep({**self._selection.kept, "bookmarks": made})

    def check(self) -> tuple[str, ...]:
        """Return the breaches of the closure rules, each beginning with its entity; empty for a sound document."""
        with self.reading():
            return problems(self.data)

    # copies
    def changed(self, **fields: Any) -> Document:
        """Return the same document with other fields at its top level."""
        return self.replaced({**self.data, **fields})

    def replaced(self, data: Json) -> Document:
        """Return another document with the same selection."""
        return Document(data, self._selection, self.where)

    def with_view(self, view: Mapping[str, Any] | None) -> Document:
        """Return the same document with another state of its views; bookmarks and pins stay."""
        state = None if view is None else {**view, **self._selection.kept}
        return Document({**self.data, "view": state}, self._selection, self.where)

    def with_notes(self, *texts: str) -> Document:
        """Return the same document with more warnings."""
        notes = [{"level": "warning", "text": text, "about": None} for text in texts]
        return Document({**self.data, "notes": [*self.data["notes"], *notes]}, self._selection, self.where)

    def portable(self, timeless: bool = False) -> Document:
        """Return the document as a file holds it, without a tie to a live study; `timeless`: measured times are 0."""
        data = {k: v for k, v in self.data.items() if k not in ("study", "rev")}
        if self._selection.kept:
            data["view"] = {**(data["view"] or {}), **self._selection.kept}
        return Document(_timeless(data) if timeless else data, where=self.where)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def save(self, path: str | Path, timeless: bool = False, runnable: bool = False) -> Path: ...


# canonical form ------------------------------------------------------------------------------------------------------
def canonical(value: Any) -> bytes:
    """Return a value as canonical JSON; non-finite floats become the words nan, inf, -inf."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")  # a lone surrogate in a name has no UTF-8


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return value


def document_id(data: Mapping[str, Any], links: Mapping[int, str] | None = None) -> str:
    """Return the `id` of a document: a hash of its canonical JSON. `links`: that of some of its links, by their `id()`.
    """
    hashed = {key: data[key] for key in _HASHED}
    hashed["stages"] = [
        {**{k: v for k, v in stage.items() if k != "layouts"}, "nodes": {**stage["nodes"], "cost_seconds": None}}
        for stage in data["stages"]
    ]
    hashed["passes"] = [
        {**one, "seconds": None, "report": _without_times(one["report"], drop=True)} for one in data["passes"]
    ]
    hashed["plan"] = _without_machine(hashed["plan"])
    made = hashlib.sha256()
    for start, key in zip(("{", *[","] * len(hashed)), sorted(hashed), strict=False):
        made.update(f'{start}"{key}":'.encode())
        if key == "links" and links:
            texts = [links[id(each)].encode() if id(each) in links else canonical(each) for each in hashed["links"]]
            made.update(b"[" + b",".join(texts) + b"]")
        else:
            made.update(canonical(hashed[key]))
    made.update(b"}")
    return made.hexdigest()[:16]


def machine_json(machine: Machine) -> Json:
    """Return the figures that predict the dispatches of a plan; of the nominal ones the name is `nominal`."""
    return asdict(machine) | {"name": machine.name or "nominal"}


def _without_machine(plan: Json | None) -> Json | None:
    """Return the plan of a document with the nominal machine, wherever it was made."""
    return {**plan, "machine": machine_json(Machine())} if plan and "machine" in plan else plan


CLOCKED = ("dispatch_seconds", "gradient_norms", "engines")  # of a run: what was measured, or sampled by the clock


def _timeless(data: Json) -> Json:
    """Return a document without measurements: the times of passes, layouts and runs are 0, the machine is nominal."""
    stages = [
        {**stage, "layouts": {key: {**layout, "seconds": 0} for key, layout in stage["layouts"].items()}}
        for stage in data["stages"]
    ]
    passes = [_without_times({**one, "steps": None}, drop=False) | {"steps": one["steps"]} for one in data["passes"]]
    runs = [{k: v for k, v in run.items() if k not in CLOCKED} for run in data["runs"]]
    timed: Json = {"runs": _without_times(runs, drop=False)}
    if "variants" in data:
        timed["variants"] = [{**row, "step_seconds": None} for row in data["variants"]]
    if "allreduce" in data:
        timed["allreduce"] = _without_allreduce_times(data["allreduce"])
    if "sweep" in data:
        timed["sweep"] = _without_sweep_times(data["sweep"])
    return {**data, "stages": stages, "passes": passes, "plan": _without_machine(data["plan"]), **timed}


def _without_allreduce_times(made: Json) -> Json:
    """Return a reduction over engines without times, and without the figures behind its prediction."""
    timeless = _without_times(made, drop=False)
    buckets = [{**each, "told": "", "label": each["label"].partition(",")[0]} for each in timeless["buckets"]]
    return {**timeless, "link": "", "latency": "", "told": "", "buckets": buckets}


def _without_sweep_times(sweep: Json) -> Json:
    """Return a sweep without the times of its points, and without their engines."""
    points = [{**point, "cells": ["–", point["cells"][1], "–", *point["cells"][3:5], "–"]} for point in sweep["points"]]
    events = [{**event, "seconds": 0} for event in sweep["events"]]
    return {**sweep, "points": points, "events": events, "seconds": 0, "left": "", "key": ""}


def _without_times(value: Any, drop: bool) -> Any:
    """Return `value` with measured times dropped, or set to 0."""
    if isinstance(value, list):
        return [_without_times(v, drop) if isinstance(v, (list, dict)) else v for v in value]
    if not isinstance(value, dict):
        return value
    found: Json = {}
    for key, each in value.items():
        if not key.endswith(_TIMES):
            found[key] = _without_times(each, drop) if isinstance(each, (list, dict)) else each
        elif not drop:
            found[key] = _zero(each)
    return found


def _zero(value: Any) -> Any:
    if isinstance(value, list):
        return [_zero(v) for v in value]
    return 0 if isinstance(value, (int, float)) else value


# reading -------------------------------------------------------------------------------------------------------------
@kinds(path=PATH)
def load_doc(path: str | Path) -> Document:
    """Return the document in a `.gdlab.json` or `.gdlab.json.gz` file; `LoadError` names the fault of a damaged one."""
    path = Path(path)
    where = f"document {path.name}"
    try:
        raw = read_regular(path, 1 << 31)
        text = _unpacked(raw) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text)
    except OSError as error:
        raise LoadError(where, "file", error.strerror or str(error), "a file that can be read") from None
    except (ValueError, RecursionError, zlib.error) as error:
        raise LoadError(where, "content", str(error), "JSON, or JSON in gzip") from None
    return read_doc(data, where)


def _unpacked(raw: bytes) -> bytes:
    """Return the content of a gzip file; `ValueError` for one that is cut short, or would fill the memory."""
    reader, most = zlib.decompressobj(wbits=31), MOST_UNPACKED + 128 * len(raw)
    text = reader.decompress(raw, most)
    if reader.unconsumed_tail:
        raise ValueError(f"gzip of more than {most:,} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("gzip that does not end where the file does")
    return text


DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@contextmanager
def _reading(documents: Sequence[Document]) -> Iterator[None]:
    try:
        yield
    except GdlabError:
        raise
    except DAMAGE as error:
        files = [document for document in documents if document.where]
        if not files:  # made in this process: the fault is gdlab's
            raise
        blamed = files[0] if len(files) == 1 else next((each for each in files if _is_damaged(each)), files[0])
        raise _damage_error(blamed.where, error) from None


def _is_damaged(document: Document) -> bool:
    try:
        return bool(problems(document.data))
    except DAMAGE:
        return True


P = ParamSpec("P")
R = TypeVar("R")


def reading(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a function that reads documents: an error that a damaged file causes is a `LoadError` which names
    the file. What the function yields is made at once."""

    @wraps(function)
    def read(*given: P.args, **named: P.kwargs) -> R:
        with _reading([each for each in (*given, *named.values()) if isinstance(each, Document)]):
            result: Any = function(*given, **named)
            return iter(list(result)) if isinstance(result, Iterator) else result  # type: ignore[return-value]

    return read


def _damage_error(where: str, error: Exception) -> LoadError:
    return LoadError(where, "content", f"{type(error).__name__}: {error}"[:200], "an undamaged document")


def read_doc(data: Any, where: str = "document") -> Document:
    """Return a document from parsed JSON: the document itself, or the envelope `{format, study, gz, kept}` of an
    output."""
    given = data.get("format") if isinstance(data, dict) else None
    if given != FORMAT:
        raise LoadError(where, "format", json.dumps(given), json.dumps(FORMAT))
    if "gz" in data and "stages" not in data:
        try:
            found = read_doc(json.loads(_unpacked(base64.b64decode(data["gz"]))), where)
        except (TypeError, ValueError, RecursionError, zlib.error, binascii.Error) as error:
            raise LoadError(where, "gz", str(error), "base64 of gzip") from None
        kept = kept_of(data.get("kept"))  # what a person kept since the document was written
        view = {**(found.data.get("view") or {}), **kept}
        return Document({**found.data, "view": view}, where=where) if kept else found
    if "picture" in data and "stages" not in data:
        wanted = "an output with its graph: draw less of it, or read the file that save wrote"
        raise LoadError(where, "content", "an output of which the picture alone was kept", wanted)
    missing = [key for key in ("title", "summary", "stages", "passes", "links", "notes", *_HASHED) if key not in data]
    if missing:
        raise LoadError(where, "fields", f"no {missing[0]}", "a whole document")
    try:
        document = Document(unpacked(data), where=where)
        damage = damaged(document.data)
    except DAMAGE as error:
        raise _damage_error(where, error) from None
    if damage:
        raise LoadError(where, "content", damage, "an undamaged document")
    return document
