"""How a picture opens: options such as `--around h:2` as the view state of a document, and files of models as studies;
for magics and `gdlab.show`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdlab.errors import ArgumentError, LoadError
from gdlab.graph import Graph
from gdlab.jupyter.display import show_document, show_thing
from gdlab.study import Study
from gdlab.view.diff import diff_doc
from gdlab.view.document import Document
from gdlab.view.engines import ENGINES
from gdlab.view.things import document_of
from gdlab.view.values import OVERLAYS

DEFAULT_RADIUS = 2
MODELS = (".onnx", ".safetensors")  # files that open as a study


def opening(
    document: Document,
    *,
    overlay: str | None = None,
    engine: str | None = None,
    depth: int | None = None,
    around: str | None = None,
) -> dict[str, Any]:
    """The view state for these options, those that are given; `ArgumentError` for a value that means nothing here."""
    found: dict[str, Any] = {}
    if overlay is not None:
        found["overlay"] = _one_of("overlay", overlay, OVERLAYS)
    if engine is not None:
        found["engine"] = _one_of("engine", engine, ENGINES)
    if depth is not None:
        found["depth"] = depth
    if around is not None:
        node, radius = _around(document, around)
        found |= {"select": f"node:0.{node}", "around": str(radius)}
    return found


def _one_of(what: str, given: str, known: Sequence[str]) -> str:
    if given not in known:
        raise ArgumentError("show", what, repr(given), f"one of {', '.join(known)}")
    return given


def _around(document: Document, text: str) -> tuple[int, int]:
    """(node of the graph as written, radius) of `h`, `h#2`, `%5`, each with `:R` behind it."""
    name, colon, radius = text.rpartition(":")
    if not colon or not radius.isdigit():
        name, radius = text, str(DEFAULT_RADIUS)
    names = document.nodes(0).column("name")
    if name in names:
        return list(names).index(name), int(radius)
    if name[:1] == "%" and name[1:].isdigit() and int(name[1:]) < len(names):
        return int(name[1:]), int(radius)
    near = difflib.get_close_matches(name, [n for n in names if n], 1)
    wanted = f"a node name or %id of {document.data['title']}" + (f"; nearest: {near[0]}" if near else "")
    raise ArgumentError("show", "around", name, wanted)


def open_model(path: str | Path) -> Study:
    """The ONNX model in a file as a study with the file's weights; a `.safetensors` of the same name beside it has the
    last word on those that it names. Either of the two files may be given."""
    from gdlab.load import load_onnx, load_safetensors

    model, beside = Path(path).with_suffix(".onnx"), Path(path).with_suffix(".safetensors")
    loaded = load_onnx(model)
    weights = dict(loaded.weights)
    if beside.exists():
        tensors = load_safetensors(beside)
        for name in [name for name in weights if name in tensors]:
            given, wanted = tensors.tensor_info(name).shape, weights[name].shape
            if given != wanted:
                where = f"{beside.name}: tensor {name!r}"
                raise LoadError("show", where, list(given), f"{list(wanted)}, as in {model.name}")
            weights[name] = tensors.tensor_f32(name)
    study = Study(loaded.graph, name=re.sub(r"\W|^(?=\d)", "_", model.stem))
    study.weights = weights
    return study


def show_with(
    thing: Any, show: list[str], *, static: bool = False, height: int | None = None, diff: Any = None, **options: Any
) -> None:
    """What `gdlab.show` does: display `thing`, or its difference to another (`diff`), opened as the options say."""
    unknown = [name for name in options if name not in ("overlay", "engine", "depth", "around")]
    if unknown:
        raise ArgumentError(
            "show", "option", unknown[0], "one of show, static, height, diff, overlay, engine, depth, around"
        )
    if isinstance(thing, (str, Path)) and str(thing).endswith(MODELS):
        thing = open_model(thing)
    if diff is not None:
        show_document(diff_doc(document_of(thing), document_of(diff)), ["diff"], height=height)
        return
    if isinstance(thing, Graph):
        thing = Study(thing)
    show_thing(thing, show, static=static, height=height, view=opening(document_of(thing), **options))
