"""The sources of a graph: cells, files and generated text as sources, and one row per call in the table of lines."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from types import CodeType
from typing import Any

from gdlab.graph import Graph, Location
from gdlab.graph.source import in_models
from gdlab.view.document.columns import Json, ragged

_NEAR = 3  # lines: used lines this close are shown with what lies between them
_CELL = re.compile(r"cell (\d+)>$")
_PROCESS = re.compile(r"ipykernel_\d+")


@dataclass(slots=True)
class Sources:
    """The sources and lines of one document; `of_node[i]` are the line rows of written node i, innermost first."""

    listed: list[Json] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, tuple[int, ...]]] = field(default_factory=list)
    of_node: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, kind: str, name: str, text: str, first_line: int = 1, language: str = "python") -> int:
        """Append a source; return its index."""
        index = len(self.listed)
        self.listed.append(
            {
                "id": f"{kind}{index}",
                "kind": kind,
                "name": name,
                "language": language,
                "text": text,
                "first_line": first_line,
            }
        )
        return index

    def line(self, source: int, line: int) -> int:
        """Append a whole line of a source; return its row."""
        self.rows.append((source, line, -1, line, -1, ()))
        return len(self.rows) - 1

    def lines(self) -> Json:
        """Return the table of lines."""
        names = ("source", "line", "col", "end_line", "end_col")
        columns = {name: [row[i] for row in self.rows] for i, name in enumerate(names)}
        return {"count": len(self.rows), **columns, "stack": ragged([row[5] for row in self.rows])}


def sources_of(graph: Graph, cells: Mapping[str, str]) -> Sources:
    """Return the sources of a written graph; a node that no call made is linked to its line of the graph's own text."""
    found = Sources()
    calls = graph.sources(models=True)
    # id(): the nodes of one call share its places, which are slow to compare; equal ones are told apart by value once
    distinct = list({id(at): at for chain in calls for at in chain}.values())
    same = {at: at for at in reversed(distinct)}
    shared = {id(at): same[at] for at in distinct}
    place = _places(found, distinct, cells)
    row_of: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    text = -1
    for node, chain in zip(graph, calls, strict=True):
        if chain:
            found.of_node.append(_rows(found, [shared[id(at)] for at in chain], place, row_of))
            continue
        if text < 0:
            text = found.add("generated", "graph text", str(graph), language="text")
        found.of_node.append((found.line(text, node.id + 1),))
    return found


def _rows(
    found: Sources,
    chain: Sequence[Location],
    place: Callable[[Location], int],
    row_of: dict[tuple[int, tuple[int, ...]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the rows of a call and its callers, innermost first; the same call from another caller is another row."""
    rows: tuple[int, ...] = ()
    for here in reversed(chain):
        inner = row_of.get((id(here), rows))
        if inner is None:
            inner = row_of[id(here), rows] = (len(found.rows), *rows)
            found.rows.append((place(here), here.line, here.col, here.end_line, here.end_col, rows))
        rows = inner
    return rows


def _places(found: Sources, locations: Iterable[Location], cells: Mapping[str, str]) -> Callable[[Location], int]:
    """Add the sources that these locations stand in; return the source of each."""
    used: dict[str, set[int]] = {}
    for at in locations:
        used.setdefault(at.file, set()).update(range(at.line, max(at.line, at.end_line) + 1))
    blocks: dict[str, list[tuple[int, int]]] = {}  # (last line, source)
    for file, lines in sorted(used.items(), key=lambda item: (item[0] not in cells, in_models(item[0]))):
        if file in cells:
            blocks[file] = [(max(lines), found.add("cell", cell_name(file), cells[file]))]
        else:
            blocks[file] = [(last, _part(found, file, first, last)) for first, last in _runs(sorted(lines))]
    return lambda at: next(source for last, source in blocks[at.file] if at.line <= last)


def _part(found: Sources, file: str, first: int, last: int) -> int:
    listing = linecache.getlines(file)
    text = "".join(listing[first - 1 : last]) or "\n" * (last - first)
    kind, name = ("cell", "another cell") if _PROCESS.search(file) else ("file", PurePath(file).name)
    return found.add(kind, name, text, first)


def _runs(lines: list[int]) -> list[tuple[int, int]]:
    """Return (first, last) of every run of lines that lie near each other."""
    runs = [(lines[0], lines[0])]
    for line in lines[1:]:
        if line - runs[-1][1] <= _NEAR:
            runs[-1] = (runs[-1][0], line)
        else:
            runs.append((line, line))
    return runs


def cell_name(file: str) -> str:
    """Return the name of a cell, `Cell 4`, from a file name such as `<graph mlp, cell 4>`."""
    match = _CELL.search(file)
    return f"Cell {match[1]}" if match else "Cell"


# Python source of rules ----------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def function_source(function: Callable[..., Any]) -> Json | None:
    """Return `{name, line, text}` of a function as it stands in its file, decorators included; None where there is no
    file.

    `inspect` would tokenize the file: this is read on the way to a picture.
    """
    code = getattr(function, "__code__", None)
    listing = linecache.getlines(code.co_filename) if isinstance(code, CodeType) else []
    if not isinstance(code, CodeType) or not listing:
        return None
    first, last = code.co_firstlineno, _last_line(code)
    indent = _indent(listing[first - 1])
    while last < len(listing) and (_indent(listing[last]) > indent or listing[last].strip() in (")", "]", "}")):
        last += 1
    text = "".join(line[indent:] if line.strip() else "\n" for line in listing[first - 1 : last])
    return {"name": _file_name(function, code), "line": first, "text": text}


def _last_line(code: CodeType) -> int:
    inner = [_last_line(c) for c in code.co_consts if isinstance(c, CodeType)]  # as deep as functions are nested
    return max([code.co_firstlineno, *(line for *_, line in code.co_lines() if line), *inner])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _file_name(function: Callable[..., Any], code: CodeType) -> str:
    """Return the file's name as people know it, never with a folder of this machine."""
    module = getattr(function, "__module__", "") or ""
    if module.startswith("gdlab.") and not module.startswith("gdlab.<"):
        return module.replace(".", "/") + ".py"
    return cell_name(code.co_filename) if code.co_filename.startswith("<") else PurePath(code.co_filename).name
