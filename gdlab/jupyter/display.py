"""Make the output of a cell: one MIME bundle with the document, the live widget, a static picture and text."""

from __future__ import annotations

import base64
import gzip
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from IPython.display import display

from gdlab.base.errors import ArgumentError, GdlabError
from gdlab.base.words import nbytes
from gdlab.distributed.sweep import Sweep, sweep_of
from gdlab.graph import Graph
from gdlab.jupyter.widget import panel_of
from gdlab.study.study import Study
from gdlab.view.document.layouts import laid_out
from gdlab.view.document.make import Document
from gdlab.view.document.reduced import PICTURE_ALONE, without_growth, without_other_stages, without_values
from gdlab.view.picture.picture import picture, shown_stages
from gdlab.view.picture.refused import refused_operands, refused_picture, refused_text
from gdlab.view.text.twin import twin
from gdlab.view.things import document_of, first_view

MIME = "application/vnd.gdlab.graph.v1+json"
_MAX_TEXT_LINES = 200
_MAX_PACKED_BYTES = 1_000_000
_outputs = itertools.count(1)


View = Mapping[str, Any]  # what a picture opens with: overlay, engine, depth, around, select, diff


def show_study(
    study: Study, show: Sequence[str], *, static: bool = False, height: int | None = None, view: View | None = None,
    runnable: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """Display a study with these views open; live unless `static`. What comes back shows it anew in the same output: a
    notebook that is saved after a run holds its losses then. `runnable`: the output can train where no kernel is."""
    make = partial(study_bundle, study, show, static=static, height=height, view=view, runnable=runnable)
    data, metadata = make()
    alone = not static and _stand_in(study.key, data["image/svg+xml"])
    shown = display(data, metadata=metadata, raw=True, display_id=True)

    def again() -> None:
        if not alone:
            data, metadata = make()
            shown.update(data, metadata=metadata, raw=True)

    return again


def _stand_in(key: str, svg: str) -> bool:
    """Display the picture itself in marimo, which shows only the widget of a bundle. The loader hides it when the view
    draws; in an export, where no widget ever does, it stays. Whether this is marimo."""
    marimo: Any = sys.modules.get("marimo")
    if marimo is None or not marimo.running_in_notebook():
        return False
    marimo.output.append(marimo.Html(f'<div data-gdlab-static="{key}">{svg}</div>'))
    return True


def study_bundle(
    study: Study, show: Sequence[str], *, static: bool = False, height: int | None = None, view: View | None = None,
    runnable: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the whole bundle of a study: the static part, and unless `static` the live widget."""
    document = study.doc
    data, metadata = bundle(_with_data(study) if runnable else document, show, height, view)
    if show[0] in ("graph", "opt", "session") and not document.data["overlays"]:
        data["text/plain"] = _bounded(str(study).splitlines())
    if static:
        return data, metadata
    panel = panel_of(study)
    panel.show(
        document.with_view({"show": list(show)}), data["image/svg+xml"]
    )  # a host without the extension knows no other
    panel.refresh()
    live = panel.widget._repr_mimebundle_()
    live_data, live_metadata = live if isinstance(live, tuple) else (live or {}, {})
    return {**{k: v for k, v in live_data.items() if k != "text/plain"}, **data}, {**live_metadata, **metadata}


def _with_data(study: Study) -> Document:
    """Return the document with the data that a page needs to run it, if an output has room for them."""
    from gdlab.view.document.runnable import runnable_doc  # most outputs have none

    document = runnable_doc(study)
    if len(packed := pack(document)) > _MAX_PACKED_BYTES:
        wanted = f"at most {nbytes(_MAX_PACKED_BYTES)}: %graph_save {study.name} page.html --runnable writes a file"
        raise ArgumentError("graph", "--runnable", f"an output of {nbytes(len(packed))}", wanted)
    return document


def widget_of(thing: Study | Graph) -> Any:
    """Return the live view as one AnyWidget, for hosts that show those (marimo, VS Code, Colab) and have no magics."""
    study = Study(thing) if isinstance(thing, Graph) else thing
    if not isinstance(study, Study):
        raise ArgumentError("widget", "thing", type(thing).__name__, "a Study or a Graph")
    panel = panel_of(study)
    panel.show(study.doc)
    panel.refresh()
    return panel.widget


def rich(thing: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output of a cell whose last expression is a study, or anything else that has a picture."""
    if isinstance(thing, Graph):
        thing = Study(thing)
    if isinstance(thing, Sweep) and sweep_of(thing.study) is thing:
        return study_bundle(thing.study, ["sweep"])
    return study_bundle(thing, ["opt"]) if isinstance(thing, Study) else bundle(document_of(thing), [first_view(thing)])


def show_document(
    document: Document, show: Sequence[str], *, height: int | None = None, view: View | None = None
) -> None:
    """Display a document that has no live study."""
    data, metadata = bundle(document, show, height, view)
    display(data, metadata=metadata, raw=True)


def show_refused(error: BaseException) -> None:
    """Display the graph so far with the refused op in red, if the error is of such an op."""
    if isinstance(error, GdlabError) and refused_operands(error):
        display({"image/svg+xml": refused_picture(error), "text/plain": refused_text(error)}, raw=True)


def bundle(
    document: Document, show: Sequence[str], height: int | None = None, view: View | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the static part of the bundle: document (gzip, at most 1 MB), SVG and text; and the metadata for our
    renderer."""
    document = laid_out(document, (view or {}).get("engine") or "auto")
    state = {**(document.data.get("view") or {}), **(view or {}), "show": list(show), "height": height}
    document = document.with_view(state)
    packed = pack(document)
    data: dict[str, Any] = {"image/svg+xml": picture(document, show[0]), "text/plain": _text(document, show)}
    fewer_stages = partial(without_other_stages, shown=shown_stages(document, show[0]))
    for less in (without_growth, without_values, fewer_stages):  # what is largest for what it tells goes first
        if len(packed) > _MAX_PACKED_BYTES:
            document = less(document)
            packed = pack(document)
    study = document.data.get("study") or ""
    head = {"format": document.data["format"], "study": study}
    if len(packed) <= _MAX_PACKED_BYTES:
        data[MIME] = {**head, "gz": packed}
    else:  # still ours to draw: the widget's renderer would hide the picture where there is no kernel
        data[MIME] = {**head, "picture": PICTURE_ALONE}
        data["text/plain"] += f"\nnote: {PICTURE_ALONE}"
    return data, {MIME: {"study": study}}


def pack(document: Document) -> str:
    """Return the canonical JSON, gzipped without a time stamp, as base64 text: notebooks write JSON one number a line.
    """
    return base64.b64encode(gzip.compress(document.json(), 5, mtime=0)).decode("ascii")


def _text(document: Document, show: Sequence[str]) -> str:
    return _bounded([document.data["summary"], *twin(document, show[0]).splitlines()])


def _bounded(lines: list[str]) -> str:
    """Join the summary line and at most 200 others; the last line counts the rest."""
    rest = len(lines) - 1 - _MAX_TEXT_LINES
    return "\n".join(lines if rest <= 0 else [*lines[: 1 + _MAX_TEXT_LINES], f"… {rest} more lines"])
