"""Turn options such as `--around h:2` into the view state of a document, for magics and `gdlab.show`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.base.words import natural, near_hint
from gdlab.graph import Graph
from gdlab.jupyter.display import show_document, show_study
from gdlab.jupyter.options import SHOW
from gdlab.study.model_files import is_function, is_model, is_module, open_model, open_module
from gdlab.study.study import Study
from gdlab.view.ask.diff import diff_doc
from gdlab.view.document.document import Document
from gdlab.view.document.layouts import ENGINES
from gdlab.view.document.overlays import OVERLAYS
from gdlab.view.saved_views import suffix_of
from gdlab.view.things import document_of, first_view

DEFAULT_RADIUS = 2


def opening(
    document: Document,
    *,
    overlay: str | None = None,
    engine: str | None = None,
    depth: int | None = None,
    around: str | None = None,
) -> dict[str, Any]:
    """Return the view state for the given options; raise `ArgumentError` for a value that means nothing here."""
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
    """Return (node of the graph as written, radius) of `h`, `h#1`, `%5`, each with `:R` behind it."""
    name, colon, given = text.rpartition(":")
    radius = natural(given) if colon else None
    if radius is None:
        name, radius = text, DEFAULT_RADIUS
    names = document.nodes(0).column("name")
    if name in names:
        return list(names).index(name), radius
    number = natural(name[1:]) if name[:1] == "%" else None
    if number is not None and number < len(names):
        return number, radius
    wanted = f"a node name or %id of {document.data['title']}{near_hint(name, filter(None, names))}"
    raise ArgumentError("show", "around", name, wanted)


_LOOK = ("overlay", "engine", "depth", "around")
_MADE = ("train", "egraph", "no", "only", "enable", "allow", "cost", "device")  # of a graph that becomes a study
_RUN = ("feed", "sgd", "adam", "init", "until")
_OPTIONS = (
    "show", "static", "height", "quiet", "save", "diff", "values", "plan", "run", "dims", "like", *_LOOK, *_MADE, *_RUN
)  # fmt: skip


def show(thing: Any, *, show: str | Sequence[str] | None = None, **options: Any) -> None:
    """Display a study, graph, report, plan, session, document or file in the notebook: `%graph` as a function, with the
    same options by the same names (`train=True, run=20, feed="random:0", height=300, around="h:1"` …). `no`, `only`
    and `show` take one or several; `feed` and `diff` the thing itself. What can be refused is, before anything is
    shown."""
    panes = [show] if isinstance(show, str) else list(show or ())
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ArgumentError("show", "option", unknown[0], f"one of {', '.join(_OPTIONS)}")
    for pane in panes:
        _one_of("show", pane, SHOW)
    _in_range("height", given.get("height", 120), 120, 4000)
    _in_range("depth", given.get("depth", 0), 0, 100)
    if "save" in given:
        suffix_of(given["save"])
    if "sgd" in given and "adam" in given:
        raise ArgumentError("show", "adam", repr(given["adam"]), "one update rule: sgd is given as well")
    if is_model(thing):
        thing = open_model(thing, given.get("dims"))
    elif is_module(thing) or ("like" in given and is_function(thing)):
        return _show_module(thing, panes, given)
    elif "dims" in given:
        raise ArgumentError("show", "dims", repr(given["dims"]), "a file of a model with it")
    if "like" in given:
        wanted = "a module of PyTorch with it, or a function of JAX"
        raise ArgumentError("show", "like", f"{given['like']!r:.60}", wanted)
    if "diff" in given:
        _show_document(diff_doc(document_of(thing), document_of(given["diff"])), panes or ["diff"], given)
        return
    if isinstance(thing, Graph):
        thing = _study_of(thing, given)
    elif made := [name for name in _MADE if name in given]:
        raise ArgumentError("show", made[0], repr(given[made[0]]), "a Graph with it: what is shown has its own")
    if isinstance(thing, Study):
        _show_study(thing, panes, given)
    elif asked := [name for name in ("run", "values", *_RUN) if name in given]:
        raise ArgumentError("show", asked[0], repr(given[asked[0]]), "a Study or a Graph with it")
    else:
        _show_document(document_of(thing), panes or [first_view(thing)], given)


def _show_module(module: Any, panes: Sequence[str], given: Mapping[str, Any]) -> None:
    """Show a live module of PyTorch or a function of JAX with the inputs `like`: a single one, or several in a tuple.
    """
    if "like" not in given or "diff" in given:
        wanted = "the module's inputs: show(net, like=x), or like=(x, y)"
        raise ArgumentError("show", "like", "nothing" if "like" not in given else "diff as well", wanted)
    examples = given["like"] if isinstance(given["like"], (tuple, list)) else (given["like"],)
    named = {"no": "disable"}
    options = {named.get(name, name): given[name] for name in _MADE if name in given}
    name = getattr(module, "__name__", type(module).__name__)
    made = open_module(name if name.isidentifier() else "function", module, examples, **options)
    _ = made.plan  # what is wrong with the options is said before anything is shown
    _show_study(made, panes, given)


def _in_range(what: str, given: Any, low: int, high: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        raise ArgumentError("show", what, repr(given), f"an int in {low} … {high}")


def _study_of(graph: Graph, given: Mapping[str, Any]) -> Study:
    if "no" in given and "only" in given:
        raise ArgumentError("show", "only", repr(given["only"]), "no `no` as well")
    named = {"no": "disable"}
    made = Study(graph, **{named.get(name, name): given[name] for name in _MADE if name in given})
    _ = made.plan  # what is wrong with the options is said before anything is shown
    return made


def _show_study(study: Study, show: Sequence[str], given: Mapping[str, Any]) -> None:
    steps = given.get("run")
    if steps is not None:
        study.runner.check_start(steps)
    study.prepare(**{name: given[name] for name in _RUN if name in given})
    if steps:
        study.check_ready()
    if given.get("values") or given.get("overlay") in ("value", "gradient", "adjoint"):
        study.values(given.get("feed"))
    look = {name: given[name] for name in _LOOK if name in given}
    view = opening(study.doc, **look) if look else {}
    if given.get("values"):
        view = {"overlay": "value", **view}
    again: Callable[[], None] | None = None
    if not given.get("quiet"):
        panes = show or (["opt"] if steps is None else ["session"])
        again = show_study(study, panes, static=bool(given.get("static")), height=given.get("height"), view=view)
    if steps is not None:
        try:
            study.runner.run(steps)
        finally:
            if again is not None and steps:
                again()
    if "save" in given:
        study.save(given["save"])


def _show_document(document: Document, show: Sequence[str], given: Mapping[str, Any]) -> None:
    view = opening(document, **{name: given[name] for name in _LOOK if name in given})
    if not given.get("quiet"):
        show_document(document, show, height=given.get("height"), view=view)
    if "save" in given:
        document.save(given["save"])
