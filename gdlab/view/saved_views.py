"""Save a document by suffix: replay file, standalone page, picture, DOT, Markdown or text."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gdlab.base.errors import ArgumentError
from gdlab.base.files import check_folder, write_file
from gdlab.base.kinds import FLAG, PATH, kinds
from gdlab.view.document.document import Document, reading
from gdlab.view.picture import html
from gdlab.view.picture.palette import family_ink
from gdlab.view.picture.picture import picture
from gdlab.view.text import twin

if TYPE_CHECKING:
    from gdlab.study.study import Study

Writer = Callable[[Document], bytes]


class SuffixError(ArgumentError):
    """Raised for a file name whose suffix names no format that can be written."""

    def text(self) -> str:
        """Return the message as one line, without the word that names a file as a file."""
        return f"{self.where}: given {self.given}, wanted {self.wanted}"


def _svg(document: Document) -> bytes:
    return picture(document, opened(document)).encode("utf-8", "replace")


def _dot(document: Document) -> bytes:
    return dot(document, len(document.data["stages"]) > 1).encode("utf-8", "replace")


# Longest suffix first where one ends in another.
WRITERS: dict[str, Writer] = {
    ".gdlab.json": Document.json,
    ".gdlab.json.gz": lambda document: gzip.compress(document.json(), 6, mtime=0),
    ".html": lambda document: html.page(document).encode("utf-8", "replace"),
    ".svg": _svg,
    ".dot": _dot,
    ".md": lambda document: twin.markdown(document).encode("utf-8", "replace"),
    ".txt": lambda document: twin.everything(document).encode("utf-8", "replace"),
}


RUNNABLE = (".html", ".gdlab.json", ".gdlab.json.gz")


def suffix_of(path: str | Path) -> str:
    """Return the suffix that decides the format; an unknown one is refused, before any work is done for it."""
    name = Path(path).name
    suffix = next((s for s in WRITERS if name.endswith(s)), None)
    if suffix is None:
        listed = list(WRITERS)
        raise SuffixError("save", "file", name, f"{', '.join(listed[:-1])} or {listed[-1]}")
    return suffix


@kinds(path=PATH, timeless=FLAG, runnable=FLAG, weights=FLAG, large=FLAG)
def save_study(
    study: Study, path: str | Path, timeless: bool = False, *, runnable: bool = False, batches: int = 1,
    weights: bool = False, large: bool = False,
) -> Path:  # fmt: skip
    """Write the document of a study by suffix: .gdlab.json[.gz], .html, .svg, .dot, .md or .txt.

    `runnable`: with everything that a page needs to make the steps itself, on its reader's GPU, without Python (.html,
    .gdlab.json[.gz]): parameters as before the first step (`weights`: as they are now) and up to `batches` batches of
    the feed; above 20 MB of them only with `large`.
    """
    if not runnable:
        return save(study.doc, path, timeless)
    suffix = suffix_of(path)
    if suffix not in RUNNABLE:
        raise ArgumentError("save", "runnable", f"a file that ends in {suffix}", f"one of {', '.join(RUNNABLE)}")
    check_folder("save", Path(path))
    from gdlab.view.document.runnable import runnable_doc  # the engine's rooms, which a document alone does not need

    return save(runnable_doc(study, batches, weights, large), path, timeless)


@kinds(path=PATH, timeless=FLAG, runnable=FLAG)
def save(document: Document, path: str | Path, timeless: bool = False, runnable: bool = False) -> Path:
    """Write the document to `path`, all of it or nothing; return the path. `timeless`: measured times are 0. A document
    that has no data to run on cannot be made `runnable`: its study can."""
    if runnable and not document.data.get("run"):
        raise ArgumentError("save", "runnable", "a document without its study", "a Study: study.save(…, runnable=True)")
    path = Path(path)
    check_folder("save", path)
    write_file("save", path, WRITERS[suffix_of(path)](document.portable(timeless)))
    return path


def opened(document: Document) -> str:
    """Return the view that a document opens with."""
    shown = (document.data.get("view") or {}).get("show") or ["opt"]
    return str(shown[0])


# DOT, the language of Graphviz: no binary and no package is needed for it ---------------------------------------------
@reading
def dot(document: Document, stage: int | str = 0) -> str:
    """Return the graph of one stage: node ids are the keys, edges of leaves are dotted."""
    nodes = document.nodes(stage)
    types = document.types.column("text")
    records = list(nodes)
    lines = [f"digraph {_quoted(str(document.data['title']))} {{", '  node [shape=box, style="rounded,filled"];']
    for record in records:
        ink = family_ink(record["family"], "light")
        label = "\n".join((f"{record['op']}  {record['name']}".rstrip(), types[record["type"]]))
        lines.append(
            f'  {_quoted(record["key"])} [label={_quoted(label)}, fillcolor="{ink.fill}", color="{ink.border}"];'
        )
    for record in records:
        for i in record["inputs"]:
            style = " [style=dotted]" if "leaf" in records[i]["flags"] else ""
            lines.append(f"  {_quoted(records[i]['key'])} -> {_quoted(record['key'])}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    """Return a text as a DOT string: backslashes and line breaks stand for themselves."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
