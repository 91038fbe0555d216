"""Every view as text: `twin(doc, "plan")` has the picture's content in lines; the command line and files print it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdlab.base.errors import unknown_name
from gdlab.base.words import flat
from gdlab.view.ask.chain import bookmarks, chain, links
from gdlab.view.ask.diff import diff_text
from gdlab.view.document.document import Document, reading
from gdlab.view.text.egraph_text import egraph
from gdlab.view.text.graph_text import before_after, comparison, derivative, node_rows, rewrites, written
from gdlab.view.text.plan_text import arena, dispatch_head, dispatch_rows, kernels, plan_table, session
from gdlab.view.text.sweep_text import sweep

Lines = Iterator[str]


@reading
def twin(document: Document, view: str = "opt", at: str | None = None) -> str:
    """Return the text of a view. `at`: an entity; the view says only what concerns it."""
    if view not in VIEWS:
        raise unknown_name("explain", "view", view, VIEWS)
    if view == "links" and at is not None:
        return "\n".join(chain(document, at)) + "\n"
    lit = None if at is None else document.select(at)
    lines = [flat(line) for line in VIEWS[view](document) if lit is None or _concerns(line, lit)]
    return "\n".join(lines) + "\n"


def everything(document: Document) -> str:
    """Return all views, one after the other."""
    parts = [str(document), *bookmarks(document), ""]
    for view in ("graph", "opt", "rewrites", "egraph", "grad", "plan", "arena", "kernels", "session"):
        parts += [f"== {view} ==", twin(document, view)]
    if "sweep" in document.data:
        parts += ["== sweep ==", twin(document, "sweep")]
    return "\n".join(parts)


@reading
def markdown(document: Document) -> str:
    """Return the summary and the main tables as Markdown."""
    parts = [f"# {_cell(document.data['title'])}", "", _cell(document.data["summary"]), ""]
    for s, stage in enumerate(document.data["stages"]):
        head, rows = ("entity", "op", "name", "type", "inputs"), []
        for node in node_rows(document, s):
            rows.append((node["entity"], node["op"], node["name"], node["type"], ", ".join(node["reads"])))
        parts += [f"## {_cell(stage['title'])}", "", *_table(head, rows), ""]
    if document.data["plan"]:
        parts += ["## Plan", "", *_table(dispatch_head(document), dispatch_rows(document)), ""]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]


def _cell(text: str) -> str:
    """Escape a text for a cell of Markdown: no markup, formula or link, no control character. A backslash is written as
    an entity, because notebooks look for formulas between doubled ones."""
    line = " ".join(flat(str(text).encode("utf-8", "replace").decode()).split())
    marked = "".join(f"\\{c}" if c in "`*_[]<>|#&~$!@" else "&#92;" if c == "\\" else c for c in line)
    return marked.replace("://", "\\://").replace("www.", "www\\.")


def _concerns(line: str, lit: frozenset[str]) -> bool:
    """Return whether a line names no entity, or one that is selected."""
    word = line.split(maxsplit=1)[0] if line.strip() else ""
    kind = word.partition(":")[0]
    return (
        kind not in ("node", "line", "step", "rule", "kernel", "dispatch", "interval", "wgsl")
        or ":" not in word
        or word in lit
    )


def _difference(document: Document) -> Lines:
    yield from comparison(document)
    yield from diff_text(document)


VIEWS: dict[str, Callable[[Document], Lines]] = {
    "graph": written,
    "text": written,
    "opt": before_after,
    "diff": _difference,
    "rewrites": rewrites,
    "egraph": egraph,
    "grad": derivative,
    "plan": plan_table,
    "arena": arena,
    "kernels": kernels,
    "session": session,
    "sweep": sweep,
    "links": links,
}
