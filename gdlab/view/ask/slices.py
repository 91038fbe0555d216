"""The part of a document that one view reads: `python -m gdlab explain FILE --view V --json` prints exactly this."""

from __future__ import annotations

from gdlab.base.errors import unknown_name
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document, reading

_STAGES: dict[str, tuple[str, ...]] = {
    "graph": ("written",),
    "text": ("written",),
    "opt": ("written", "optimized"),
    "diff": ("written", "optimized"),
    "rewrites": ("written", "optimized", "derivative", "final"),
    "egraph": ("written", "optimized", "derivative", "final"),
    "grad": ("derivative:written",),
}
_PASSES = {
    "opt": "optimize", "diff": "optimize", "rewrites": "optimize", "egraph": "optimize", "grad": "differentiate",
    "plan": "compile",
}  # fmt: skip
_PLAN: dict[str, tuple[str, ...]] = {
    "plan": ("stage", "updates", "optimizer", "dispatches", "groups", "intervals", "memory"),
    "arena": ("stage", "intervals", "slots", "memory", "groups"),
    "kernels": ("stage", "kernels", "dispatches"),
}
VIEWS = (*_STAGES, *_PLAN, "session", "sweep", "links")


@reading
def view_slice(document: Document, view: str, at: str | None = None) -> Json:
    """Return the part of a document that a view reads; with `at` also `selected`, the entities that light up."""
    if view not in VIEWS:
        raise unknown_name("explain", "view", view, VIEWS)
    data = document.data
    found: Json = {"format": data["format"], "title": data["title"], "summary": data["summary"], "types": data["types"]}
    if view in _STAGES:
        found["stages"] = [stage for stage in data["stages"] if stage["key"] in _STAGES[view]]
    if view in _STAGES or view in _PASSES:
        found["passes"] = [one for one in data["passes"] if one["role"] == _PASSES.get(view)]
    if view == "opt" and "variants" in data:
        found["variants"] = data["variants"]
    if view in ("graph", "text"):
        found |= {"sources": data["sources"], "lines": data["lines"]}
    if view in _PLAN:
        plan = data["plan"]
        found["plan"] = plan and {name: plan[name] for name in _PLAN[view]}
    if view in ("session", "plan", "kernels"):  # the plan and its kernels have the measured times
        found["runs"] = data["runs"]
    if view == "plan" and "allreduce" in data:
        found["allreduce"] = data["allreduce"]
    if view == "sweep" and "sweep" in data:
        found["sweep"] = data["sweep"]
    if view == "links":
        found |= {"links": data["links"], "wgsl_base": data["wgsl_base"]}
    if document.bookmarks:
        found["bookmarks"] = document.bookmarks
    if at is not None:
        found["selected"] = sorted(document.select(at))
    return found
